/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "core/engine.h"
#include "core/map.h"
#include "core/resolve.h"
#include "core/txg.h"
#include "meta/meta.h"
#include "volume/diff.h"
#include "volume/volume-int.h"
#include "volume/volume.h"

struct diff {
  struct nbdedup_pool *pool;
  struct volume *from, *to;
  uint64_t end;         /* bytes */
  json_t *extents;      /* owned */
  uint64_t offset, len; /* not yet reported */
  bool zero;
  struct blob row;
};

/* The digest of the record at 'addr'. */
static int
get_digest (struct diff *d, struct meta_conn *c, uint64_t addr,
            struct digest *digest)
{
  struct record r;

  switch (meta_record_find (c, addr, &d->row, &r)) {
  case 1:
    *digest = r.digest;
    return 0;
  case 0:
    return nbdedup_fail (EIO,
                         "pool.db: the record at %" PRIu64 " is missing: "
                         "run nbdedup check",
                         addr);
  default:
    return -1;
  }
}

/* One content may have several records.  1, 0, -1. */
static int
same_content (struct diff *d, const struct pointer *a, const struct pointer *b)
{
  struct meta_conn *c;
  struct digest x, y;
  int r;

  if (a->addr == b->addr)
    return 1;
  /* Equal contents with the same stored form have equal checksums; contents
   * with different stored forms may be equal, too.
   */
  if (a->codec == b->codec && a->psize == b->psize && a->cksum != b->cksum &&
      a->codec == CODEC_NONE)
    return 0;
  c = meta_reader_get (d->pool->meta);
  r = get_digest (d, c, a->addr, &x);
  if (r == 0)
    r = get_digest (d, c, b->addr, &y);
  meta_reader_put (d->pool->meta, c);
  return r == -1 ? -1 : memcmp (&x, &y, sizeof x) == 0;
}

static void
tell (struct diff *d)
{
  uint64_t len = d->len;

  if (len == 0)
    return;
  assert (d->offset < d->end);
  if (len > d->end - d->offset)
    len = d->end - d->offset; /* the last block */
  json_array_append_new (d->extents,
                         json_pack ("{s:I, s:I, s:b}", "offset",
                                    (json_int_t) d->offset, "length",
                                    (json_int_t) len, "zero", d->zero));
  d->len = 0;
}

static void
add_block (struct diff *d, uint64_t block, bool zero)
{
  uint64_t size = d->to->block_size;

  assert (block * size < d->end); /* the last block may be a part */
  if (d->len > 0 && (d->zero != zero || d->offset + d->len != block * size))
    tell (d);
  if (d->len == 0) {
    d->offset = block * size;
    d->zero = zero;
  }
  d->len += size;
}

static int
get_side (struct diff *d, struct volume *v, uint64_t block, unsigned nr,
          uint8_t *states, struct pointer *ptrs)
{
  uint64_t end = blocks_of (v->size, v->block_size);
  unsigned i;

  if (map_get (d->pool->map, v->layer, block, nr, states, ptrs) == -1)
    return -1;
  for (i = 0; i < nr; ++i)
    if (block + i >= end)
      states[i] = MAP_HOLE;
  return 0;
}

static int
diff_leaf (struct diff *d, uint64_t block, unsigned nr)
{
  uint8_t a[LEAF_BLOCKS], b[LEAF_BLOCKS];
  struct pointer pa[LEAF_BLOCKS], pb[LEAF_BLOCKS];
  unsigned i;
  int same;

  assert (nr > 0 && block % LEAF_BLOCKS == 0);
  if (get_side (d, d->from, block, nr, a, pa) == -1 ||
      get_side (d, d->to, block, nr, b, pb) == -1)
    return -1;
  for (i = 0; i < nr; ++i) {
    same = a[i] == b[i] && a[i] != MAP_LOST;
    if (same && a[i] == MAP_POINTER)
      same = same_content (d, &pa[i], &pb[i]);
    if (same == -1)
      return -1;
    if (!same)
      add_block (d, block + i, b[i] == MAP_HOLE);
  }
  return 0;
}

static int
diff_all (struct diff *d, nbdedup_progress_fn *progress, void *opaque)
{
  uint64_t nr_blocks = blocks_of (d->end, d->to->block_size), block = 0;
  uint64_t leaf, other;
  struct meta_conn *c;
  unsigned nr;
  int r;

  for (;;) {
    other = UINT64_MAX;
    c = meta_reader_get (d->pool->meta);
    r = resolve_next_leaf (c, d->from->layer, block / LEAF_BLOCKS, &leaf);
    if (r != -1)
      r = resolve_next_leaf (c, d->to->layer, block / LEAF_BLOCKS, &other);
    meta_reader_put (d->pool->meta, c);
    if (r == -1)
      return -1;
    if (other < leaf)
      leaf = other;
    if (leaf == UINT64_MAX || leaf * LEAF_BLOCKS >= nr_blocks)
      break;
    block = leaf * LEAF_BLOCKS;
    nr = nr_blocks - block < LEAF_BLOCKS ? (unsigned) (nr_blocks - block)
                                         : LEAF_BLOCKS;
    if (diff_leaf (d, block, nr) == -1)
      return -1;
    block += nr;
    if (block % LEAF_BLOCKS != 0)
      break;
    if (progress && progress (opaque, block, nr_blocks) != 0)
      return nbdedup_fail (EINTR, "interrupted");
  }
  tell (d);
  return 0;
}

json_t *
diff_run (struct nbdedup_pool *pool, const char *from, const char *to,
          nbdedup_progress_fn *progress, void *opaque)
{
  struct diff d = { .pool = pool };
  uint64_t a, b;
  int r;

  assert_held (&pool->admin);
  if ((d.from = volumes_find_snapshot (pool->volumes, from)) == NULL ||
      (d.to = volumes_find_snapshot (pool->volumes, to)) == NULL)
    return NULL;
  if (d.from->block_size != d.to->block_size)
    return nbdedup_fail_null (ENOTSUP,
                              "%s has blocks of %" PRIu32 " bytes, "
                              "%s of %" PRIu32 ": they must be equal",
                              from, d.from->block_size, to, d.to->block_size);
  a = d.from->size;
  b = d.to->size;
  d.end = a > b ? a : b;
  /* It looks up records because frozen layers have them. */
  if (txg_hold_moves (pool->txg) == -1)
    return NULL;
  d.extents = json_array ();
  r = diff_all (&d, progress, opaque);
  txg_release_moves (pool->txg);
  blob_free (&d.row);
  if (r == -1) {
    json_decref (d.extents);
    return NULL;
  }
  return json_pack ("{s:o}", "extents", d.extents);
}
