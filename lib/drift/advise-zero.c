/* SPDX-License-Identifier: BSD-3-Clause */

/* What zeroing bytes of clones would free, as a guest's TRIM does.
 *
 * A block that is zeroed as a whole drops its reference, if the clone's own
 * layer has it, or one that merges with that: what the clone inherits stays.
 * A block that is zeroed in part gets a new content (io.c, zero_part), which
 * takes a record of its own, unless the pool has the content already, as when a
 * clone has written behind the end of a file of its golden image and has given
 * that back.  So each such block is read, hashed and compressed here.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/geometry.h"
#include "base/iszero.h"
#include "disk/sorter.h"
#include "drift/advise-int.h"
#include "format/codec.h"
#include "meta/meta.h"

/* Parties of the join: 0 is the background work, then all clones together for
 * each set, then each clone alone.
 */
#define WHO_SET(set) (1 + (uint32_t) (set))
#define WHO_CLONE_SET(clone, set)                                              \
  (1 + ADVISE_SETS + (uint32_t) (clone) * ADVISE_SETS + (uint32_t) (set))
#define CLONES_MAX ((RECORD_JOIN_WHO_MAX - 1) / ADVISE_SETS - 1)

/* A new content. */
struct cost_item {
  uint64_t set;
  struct digest digest;
  uint64_t clone;
  uint64_t sectors;
};

/* Where a set has come to, and the block there that is zeroed in part. */
struct frontier {
  uint64_t clone, offset; /* what comes next is not before this */
  bool has_block;
  uint64_t block;
  uint8_t *buf; /* owned; its content, a part of it zeroed */
  bool is_changed;
};

struct zeroes {
  struct view *v;                     /* not owned */
  const struct drift_blocks *blocks;  /* not owned */
  const struct advise_source *source; /* not owned */
  struct record_join *join;           /* owned */
  struct sorter *costs;               /* owned */
  uint64_t *freed;                    /* owned; sectors, by party */
  uint64_t *cost;                     /* owned; the same */
  struct frontier sets[ADVISE_SETS];
  uint32_t block_size;
  uint8_t *stored;                 /* owned; a block */
  struct codec_ctx *codec;         /* owned */
  struct drift_progress *progress; /* not owned */
};

static int
compare_costs (const void *a, const void *b)
{
  const struct cost_item *x = a, *y = b;
  int r;

  if (x->set != y->set)
    return x->set < y->set ? -1 : 1;
  r = digest_compare (&x->digest, &y->digest);
  if (r != 0)
    return r;
  return x->clone < y->clone ? -1 : x->clone > y->clone;
}

static int
make (struct zeroes *z, uint64_t memory_bytes)
{
  const uint32_t parties = WHO_CLONE_SET (z->blocks->nr, 0);
  unsigned set;

  z->freed = calloc (parties, sizeof *z->freed);
  z->cost = calloc (parties, sizeof *z->cost);
  z->stored = malloc (z->block_size);
  if (z->freed == NULL || z->cost == NULL || z->stored == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (set = 0; set < ADVISE_SETS; ++set)
    if ((z->sets[set].buf = malloc (z->block_size)) == NULL)
      return nbdedup_fail (ENOMEM, "no memory");
  z->codec = codec_ctx_new ();
  if (z->codec == NULL)
    return -1;
  z->join = record_join_new (z->v, memory_bytes);
  z->costs = sorter_new (z->v->dir, sizeof (struct cost_item), compare_costs,
                         memory_bytes);
  if (z->costs)
    sorter_set_look (z->costs, z->v->look, z->v->opaque);
  return z->join && z->costs ? 0 : -1;
}

struct zeroes *
zeroes_new (struct view *v, const struct drift_blocks *blocks,
            const struct advise_source *source, uint64_t memory_bytes)
{
  struct zeroes *z;

  if (blocks->nr > CLONES_MAX)
    return nbdedup_fail_null (E2BIG, "%s: more than %u clones",
                              blocks->golden.name, CLONES_MAX);
  z = calloc (1, sizeof *z);
  if (z == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  z->v = v;
  z->blocks = blocks;
  z->source = source;
  z->block_size = blocks->golden.layer->block_size;
  if (make (z, memory_bytes) == 0)
    return z;
  zeroes_free (z);
  return NULL;
}

void
zeroes_free (struct zeroes *z)
{
  unsigned set;

  if (z == NULL)
    return;
  for (set = 0; set < ADVISE_SETS; ++set)
    free (z->sets[set].buf);
  record_join_free (z->join);
  sorter_free (z->costs);
  codec_ctx_free (z->codec);
  free (z->freed);
  free (z->cost);
  free (z->stored);
  free (z);
}

/*----------------------------------------------------------------------
 * References that are dropped
 */

/* The first row of a leaf that says something about blocks, of a layer and
 * those that merge with it.
 */
static int
release_row (struct zeroes *z, unsigned set, uint64_t clone,
             const struct view_layer *layer, uint64_t leaf_nr, uint64_t *wanted)
{
  uint8_t buf[LEAF_LEN_MAX];
  struct pointer ptr;
  struct leaf leaf;
  size_t len = 0;
  unsigned i;
  int r = meta_leaf_get (z->v->c, layer->branch, leaf_nr, layer->seq, buf,
                         &len);

  if (r == -1 || view_look (z->v) == -1)
    return -1;
  if (r == 0)
    return 0;
  if (leaf_unpack (buf, len, &leaf) == -1)
    return -1;
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (!(*wanted >> i & 1) || leaf.state[i] == MAP_INHERIT)
      continue;
    *wanted &= ~(UINT64_C (1) << i);
    if (leaf.state[i] == MAP_POINTER &&
        (pointer_unpack (leaf.ptr[i], z->block_size, &ptr) == -1 ||
         record_join_add_release (z->join, ptr.addr, WHO_SET (set)) == -1 ||
         record_join_add_release (z->join, ptr.addr,
                                  WHO_CLONE_SET (clone, set)) == -1))
      return -1;
  }
  return 0;
}

/* The blocks of a leaf from 'first' to 'last' that are below 'limit'. */
static uint64_t
mask_of (uint64_t leaf_nr, unsigned first, unsigned last, uint64_t limit)
{
  uint64_t mask = 0;
  unsigned i;

  for (i = first; i <= last && leaf_nr * LEAF_BLOCKS + i < limit; ++i)
    mask |= UINT64_C (1) << i;
  return mask;
}

/* The pointers for blocks 'first' to 'last' of a leaf that only the clone has:
 * its own layer's, and those of the layers below that merge with it because
 * their snapshots were destroyed.  What is hidden there already is the
 * background work's.
 */
static int
release_in_leaf (struct zeroes *z, unsigned set, uint64_t clone,
                 uint64_t leaf_nr, unsigned first, unsigned last)
{
  const struct view_layer *layer = z->blocks->clones[clone]->layer;
  uint64_t limit = UINT64_MAX;
  uint64_t wanted = mask_of (leaf_nr, first, last, limit);

  for (;;) {
    if (release_row (z, set, clone, layer, leaf_nr, &wanted) == -1)
      return -1;
    if (layer->overlap < limit)
      limit = layer->overlap;
    wanted &= mask_of (leaf_nr, first, last, limit);
    if (wanted == 0 || layer->parent == NULL || layer->parent->heir != layer)
      return 0;
    layer = layer->parent;
  }
}

static int
release_blocks (struct zeroes *z, unsigned set, uint64_t clone, uint64_t block,
                uint64_t nr)
{
  const uint64_t end = block + nr;
  uint64_t leaf_nr, leaf_end;

  for (; block < end; block = leaf_end) {
    leaf_nr = block / LEAF_BLOCKS;
    leaf_end = (leaf_nr + 1) * LEAF_BLOCKS;
    if (release_in_leaf (z, set, clone, leaf_nr, block % LEAF_BLOCKS,
                         end < leaf_end ? (end - 1) % LEAF_BLOCKS
                                        : LEAF_BLOCKS - 1) == -1)
      return -1;
  }
  return 0;
}

/*----------------------------------------------------------------------
 * New contents
 */

static int
add_reference (struct zeroes *z, uint64_t addr, unsigned set, uint64_t clone)
{
  return record_join_add_reference (z->join, addr, WHO_SET (set)) == -1
    ? -1
    : record_join_add_reference (z->join, addr, WHO_CLONE_SET (clone, set));
}

static int
add_cost (struct zeroes *z, unsigned set, uint64_t clone, const uint8_t *buf)
{
  const struct view_name *name = z->blocks->clones[clone];
  struct cost_item item;
  struct record record;
  int codec, r;

  memset (&item, 0, sizeof item);
  item.set = set;
  item.clone = clone;
  if (hasher_digest (z->source->hasher, name->domain, buf, z->block_size,
                     &item.digest) == -1)
    return -1;
  r = advise_find_content (z->v, &item.digest, z->block_size, &record);
  if (r == 1)
    return add_reference (z, record.ptr.addr, set, clone);
  if (r == -1)
    return -1;
  item.sectors = sectors_of ((uint32_t) codec_store (z->codec,
                                                     &name->compression,
                                                     z->v->sector_bytes, buf,
                                                     z->block_size, z->stored,
                                                     &codec, NULL),
                             z->v->sector_bytes);
  return sorter_add (z->costs, &item);
}

/* Finish the block that the set has zeroed in part. */
static int
end_block (struct zeroes *z, unsigned set)
{
  struct frontier *f = &z->sets[set];

  if (!f->has_block)
    return 0;
  f->has_block = false;
  if (!f->is_changed)
    return 0;
  if (release_blocks (z, set, f->clone, f->block, 1) == -1)
    return -1;
  return is_zero (f->buf, z->block_size) ? 0
                                         : add_cost (z, set, f->clone, f->buf);
}

/* 1; 0: the block is damaged, and stays as it is; -1. */
static int
begin_block (struct zeroes *z, unsigned set, uint64_t block)
{
  struct frontier *f = &z->sets[set];
  const uint64_t size = z->blocks->clones[f->clone]->size;
  const uint64_t offset = block * z->block_size;
  const uint32_t len = size - offset < z->block_size
    ? (uint32_t) (size - offset)
    : z->block_size;

  memset (f->buf + len, 0, z->block_size - len);
  if (z->source->read_clone (z->source->opaque, f->clone, f->buf, len,
                             offset) == -1)
    return errno == EIO ? 0 : -1;
  f->has_block = true;
  f->block = block;
  f->is_changed = false;
  return 1;
}

static int
zero_part (struct zeroes *z, unsigned set, uint64_t block, size_t from,
           size_t to)
{
  struct frontier *f = &z->sets[set];
  int r = 1;

  assert (from < to && to <= z->block_size);
  if (!f->has_block || f->block != block) {
    if (end_block (z, set) == -1)
      return -1;
    r = begin_block (z, set, block);
  }
  if (r != 1 || is_zero (f->buf + from, to - from))
    return r == -1 ? -1 : 0;
  memset (f->buf + from, 0, to - from);
  f->is_changed = true;
  return 0;
}

/*----------------------------------------------------------------------*/

static int
check_range (const struct zeroes *z, unsigned set, uint64_t clone,
             uint64_t offset, uint64_t len)
{
  const struct frontier *f;
  uint64_t size;

  if (set >= ADVISE_SETS || clone >= z->blocks->nr)
    return nbdedup_fail (EINVAL, "there is no set %u of clone %" PRIu64, set,
                         clone);
  f = &z->sets[set];
  size = z->blocks->clones[clone]->size;
  return clone >= f->clone && (clone > f->clone || offset >= f->offset) &&
      offset <= size && len <= size - offset
    ? 0
    : nbdedup_fail (EINVAL, "%s: bytes out of order, or past the end",
                    z->blocks->clones[clone]->name);
}

/* As zero_range in io.c: at the end of the image the last block counts as
 * whole.
 */
static int
zero_blocks (struct zeroes *z, unsigned set, uint64_t clone, uint64_t offset,
             uint64_t end)
{
  const uint32_t size = z->block_size;
  const bool at_end = end == z->blocks->clones[clone]->size;
  const uint64_t first = blocks_of (offset, size);
  const uint64_t last = at_end ? blocks_of (end, size) : end / size;

  if (offset / size == end / size && first > last) /* within a block */
    return zero_part (z, set, offset / size, offset % size, end % size);
  if (offset % size != 0 &&
      zero_part (z, set, offset / size, offset % size, size) == -1)
    return -1;
  if (last > first && release_blocks (z, set, clone, first, last - first) == -1)
    return -1;
  return at_end || end % size == 0
    ? 0
    : zero_part (z, set, end / size, 0, end % size);
}

int
zeroes_add (struct zeroes *z, unsigned set, uint64_t clone, uint64_t offset,
            uint64_t len)
{
  struct frontier *f;

  if (check_range (z, set, clone, offset, len) == -1)
    return -1;
  if (len == 0)
    return 0;
  f = &z->sets[set];
  if (clone != f->clone && end_block (z, set) == -1)
    return -1;
  f->clone = clone;
  f->offset = offset + len;
  return zero_blocks (z, set, clone, offset, offset + len);
}

/*----------------------------------------------------------------------
 * The figures
 */

static int
add_background (void *opaque, uint64_t addr)
{
  return record_join_add_release (opaque, addr, 0);
}

static int
step (void *opaque, uint64_t done)
{
  struct zeroes *z = opaque;

  (void) done;
  return drift_progress (z->progress, z->progress->done);
}

/* Each new content once for all clones, and once for each that has it. */
static int
sum_costs (struct zeroes *z)
{
  struct cost_item last = { .set = ADVISE_SETS };
  const struct cost_item *item;
  const void *next;
  int r;

  if (sorter_finish (z->costs) == -1)
    return -1;
  while ((r = sorter_next (z->costs, &next)) == 1) {
    item = next;
    if (item->set != last.set ||
        memcmp (&item->digest, &last.digest, sizeof last.digest) != 0)
      z->cost[WHO_SET (item->set)] += item->sectors;
    else if (item->clone == last.clone)
      continue;
    z->cost[WHO_CLONE_SET (item->clone, item->set)] += item->sectors;
    last = *item;
  }
  return r;
}

int
zeroes_run (struct zeroes *z, struct drift_progress *progress)
{
  unsigned set;

  z->progress = progress;
  for (set = 0; set < ADVISE_SETS; ++set)
    if (end_block (z, set) == -1)
      return -1;
  if (reclaim_background (z->v, add_background, z->join) == -1 ||
      record_join_run (z->join, z->freed, WHO_CLONE_SET (z->blocks->nr, 0) - 1,
                       NULL, step, z) == -1 ||
      sum_costs (z) == -1)
    return -1;
  /* Others need the memory now. */
  record_join_free (z->join);
  sorter_free (z->costs);
  z->join = NULL;
  z->costs = NULL;
  return 0;
}

static json_t *
bytes_json (const struct zeroes *z, uint32_t who)
{
  return json_integer (
    ((json_int_t) z->freed[who] - (json_int_t) z->cost[who]) *
    (json_int_t) z->v->sector_bytes);
}

json_t *
zeroes_json (const struct zeroes *z)
{
  json_t *sets = json_array (), *clones;
  unsigned set;
  uint32_t i;

  for (set = 0; set < ADVISE_SETS; ++set) {
    clones = json_array ();
    for (i = 0; i < z->blocks->nr; ++i)
      json_array_append_new (clones, bytes_json (z, WHO_CLONE_SET (i, set)));
    json_array_append_new (sets,
                           json_pack ("{s:o, s:o}", "freed_bytes",
                                      bytes_json (z, WHO_SET (set)), "clones",
                                      clones));
  }
  return sets;
}
