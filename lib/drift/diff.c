/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "core/engine.h"
#include "data/sync.h"
#include "drift/diff.h"
#include "drift/drift-int.h"
#include "drift/view.h"
#include "meta/meta.h"
#include "volume/volume.h"

/* One of the two snapshots, at its next leaf. */
struct diff_side {
  struct walk *walk; /* owned */
  uint64_t end;      /* in blocks; past it there are holes */
  bool has_leaf;
  uint64_t leaf_nr;
  struct leaf leaf;
};

struct diff {
  struct view v;
  struct drift_progress progress;
  struct diff_side from, to;
  uint64_t block_size;
  uint64_t end;         /* bytes */
  json_t *extents;      /* owned */
  uint64_t offset, len; /* not yet reported */
  bool zero;
  struct blob row;
};

/* The digest of the record at 'addr'. */
static int
get_digest (struct diff *d, uint64_t addr, struct digest *digest)
{
  struct record r;

  switch (meta_record_find (d->v.c, addr, &d->row, &r)) {
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
  struct digest x, y;

  if (a->addr == b->addr)
    return 1;
  /* Equal contents with the same stored form have equal checksums; contents
   * with different stored forms may be equal, too.
   */
  if (a->codec == b->codec && a->psize == b->psize && a->cksum != b->cksum &&
      a->codec == CODEC_NONE)
    return 0;
  if (get_digest (d, a->addr, &x) == -1 || get_digest (d, b->addr, &y) == -1)
    return -1;
  return memcmp (&x, &y, sizeof x) == 0;
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
  const uint64_t size = d->block_size;

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
next_leaf (struct diff_side *s)
{
  uint64_t top;
  int r = walk_next (s->walk, &s->leaf_nr, &s->leaf, &top);

  s->has_leaf = r == 1;
  return r == -1 ? -1 : 0;
}

/* What the side shows in this leaf: MAP_HOLE, MAP_POINTER or MAP_LOST. */
static uint8_t
state_at (const struct diff_side *s, uint64_t leaf_nr, unsigned i)
{
  if (!s->has_leaf || s->leaf_nr != leaf_nr ||
      leaf_nr * LEAF_BLOCKS + i >= s->end || s->leaf.state[i] == MAP_INHERIT)
    return MAP_HOLE;
  return s->leaf.state[i];
}

/* Do both show the same content?  1, 0, -1. */
static int
is_same (struct diff *d, uint64_t leaf_nr, unsigned i)
{
  const uint8_t a = state_at (&d->from, leaf_nr, i);
  const uint8_t b = state_at (&d->to, leaf_nr, i);
  struct pointer pa, pb;

  if (a != b || a == MAP_LOST)
    return 0;
  if (a != MAP_POINTER)
    return 1;
  if (pointer_unpack (d->from.leaf.ptr[i], (uint32_t) d->block_size, &pa) ==
        -1 ||
      pointer_unpack (d->to.leaf.ptr[i], (uint32_t) d->block_size, &pb) == -1)
    return -1;
  return same_content (d, &pa, &pb);
}

static int
diff_leaf (struct diff *d, uint64_t leaf_nr, uint64_t nr_blocks)
{
  const uint64_t first = leaf_nr * LEAF_BLOCKS;
  unsigned i;
  int same;

  for (i = 0; i < LEAF_BLOCKS && first + i < nr_blocks; ++i) {
    same = is_same (d, leaf_nr, i);
    if (same == -1)
      return -1;
    if (!same)
      add_block (d, first + i, state_at (&d->to, leaf_nr, i) == MAP_HOLE);
  }
  return 0;
}

/* Walk both, leaf by leaf; where only one has a leaf, the other has holes. */
static int
diff_all (struct diff *d)
{
  const uint64_t nr_blocks = blocks_of (d->end, (uint32_t) d->block_size);
  struct diff_side *a = &d->from, *b = &d->to;
  uint64_t leaf_nr;

  d->progress.total = nr_blocks;
  if (next_leaf (a) == -1 || next_leaf (b) == -1)
    return -1;
  while (a->has_leaf || b->has_leaf) {
    leaf_nr = !a->has_leaf                       ? b->leaf_nr
      : !b->has_leaf || a->leaf_nr <= b->leaf_nr ? a->leaf_nr
                                                 : b->leaf_nr;
    if (leaf_nr * LEAF_BLOCKS >= nr_blocks)
      break;
    if (diff_leaf (d, leaf_nr, nr_blocks) == -1 ||
        drift_progress (&d->progress, leaf_nr * LEAF_BLOCKS) == -1 ||
        (a->has_leaf && a->leaf_nr == leaf_nr && next_leaf (a) == -1) ||
        (b->has_leaf && b->leaf_nr == leaf_nr && next_leaf (b) == -1))
      return -1;
  }
  tell (d);
  return 0;
}

/* Under pool->admin, at the moment of the view. */
static int
find_both (struct diff *d, struct nbdedup_pool *pool, const char *from,
           const char *to)
{
  const struct volume *a = volumes_find_snapshot (pool->volumes, from);
  const struct volume *b = a ? volumes_find_snapshot (pool->volumes, to) : NULL;

  if (b == NULL)
    return -1;
  if (a->block_size != b->block_size)
    return nbdedup_fail (ENOTSUP,
                         "%s has blocks of %" PRIu32 " bytes, "
                         "%s of %" PRIu32 ": they must be equal",
                         from, a->block_size, to, b->block_size);
  d->block_size = a->block_size;
  d->from.end = blocks_of (a->size, a->block_size);
  d->to.end = blocks_of (b->size, b->block_size);
  d->end = a->size > b->size ? a->size : b->size;
  return view_open (pool, &d->v);
}

static int
walk_both (struct diff *d, const char *from, const char *to)
{
  struct view_name *a = view_find (&d->v, from);
  struct view_name *b = a ? view_find (&d->v, to) : NULL;

  if (b == NULL)
    return -1;
  drift_watch (&d->v, &d->progress);
  d->from.walk = walk_new (&d->v, a->layer, NULL);
  d->to.walk = d->from.walk ? walk_new (&d->v, b->layer, NULL) : NULL;
  return d->to.walk ? diff_all (d) : -1;
}

json_t *
diff_run (struct nbdedup_pool *pool, const char *from, const char *to,
          nbdedup_progress_fn *progress, void *opaque)
{
  struct diff d = { .progress = { .fn = progress, .opaque = opaque } };
  int r, err;

  if (pool_sync_for_view (pool) == -1)
    return NULL;
  {
    WITH_LOCK (&pool->admin);
    r = find_both (&d, pool, from, to);
  }
  if (r == -1)
    return NULL;
  d.extents = json_array ();
  r = walk_both (&d, from, to);
  err = errno;
  walk_free (d.from.walk);
  walk_free (d.to.walk);
  view_close (&d.v);
  blob_free (&d.row);
  errno = err;
  if (r == -1) {
    json_decref (d.extents);
    return NULL;
  }
  return json_pack ("{s:o}", "extents", d.extents);
}
