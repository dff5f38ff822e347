/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "core/resolve.h"

struct run {
  struct layer *layer;  /* walked down to the row's */
  uint64_t leaf, limit; /* blocks below it show through so far */
  bool is_cut;          /* an overlap in the run cuts this leaf */
  struct leaf *out;
  unsigned left; /* blocks still MAP_INHERIT */
};

static void
take (struct run *run, const struct leaf *row)
{
  uint64_t first = run->leaf * LEAF_BLOCKS;
  unsigned i;

  for (i = 0; i < LEAF_BLOCKS && first + i < run->limit; ++i) {
    if (run->out->state[i] != MAP_INHERIT || row->state[i] == MAP_INHERIT)
      continue;
    run->out->state[i] = row->state[i];
    memcpy (run->out->ptr[i], row->ptr[i], POINTER_LEN);
    run->left--;
  }
}

static int
take_row (void *opaque, uint64_t seq, const uint8_t *buf, size_t len)
{
  struct run *run = opaque;
  struct leaf row;
  uint64_t overlap;

  assert (run->left > 0); /* else the scan has ended */
  if (leaf_unpack (buf, len, &row) == -1)
    return -1;
  while (run->is_cut && run->layer->seq > seq) {
    overlap = run->layer->overlap;
    if (overlap < run->limit)
      run->limit = overlap;
    run->layer = run->layer->parent;
    if (run->layer == NULL)
      return nbdedup_fail (EIO,
                           "pool.db: a map row names layer %" PRIu64 ", "
                           "which is not in the lineage of the volume or "
                           "snapshot: run nbdedup check",
                           seq);
  }
  take (run, &row);
  return run->left == 0;
}

static unsigned
count_open (const struct leaf *leaf, uint64_t first, uint64_t limit)
{
  unsigned i, n = 0;

  for (i = 0; i < LEAF_BLOCKS && first + i < limit; ++i)
    n += leaf->state[i] == MAP_INHERIT;
  return n;
}

int
resolve_leaf (struct meta_conn *c, struct layer *layer, uint64_t leaf,
              uint64_t limit, struct leaf *out)
{
  uint64_t first = leaf * LEAF_BLOCKS, end = first + LEAF_BLOCKS, overlap;
  struct layer *base;
  struct run run;
  unsigned i;

  while (layer && (run.left = count_open (out, first, limit)) > 0) {
    /* In this order: a switch may shorten the run meanwhile, and then the
     * overlaps that the new run leaves out count from the old one on, or at
     * the new base.
     */
    overlap = layer->run_overlap;
    base = layer->base;
    run.layer = layer;
    run.leaf = leaf;
    run.limit = limit;
    run.is_cut = overlap < end;
    run.out = out;
    if (meta_leaf_resolve (c, layer->branch, leaf, base->seq, layer->seq,
                           take_row, &run) == -1)
      return -1;
    if (overlap < limit)
      limit = overlap;
    overlap = base->overlap;
    if (overlap < limit)
      limit = overlap;
    layer = base->parent;
  }
  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (out->state[i] == MAP_INHERIT)
      out->state[i] = MAP_HOLE;
  return 0;
}

int
resolve_next_leaf (struct meta_conn *c, struct layer *layer, uint64_t first,
                   uint64_t *leaf)
{
  uint64_t next = UINT64_MAX, found;
  struct layer *base;
  int r;

  for (; layer; layer = base->parent) {
    base = layer->base;
    r = meta_leaf_next (c, layer->branch, first, &found);
    if (r == -1)
      return -1;
    if (r == 1 && found < next)
      next = found;
  }
  *leaf = next;
  return next != UINT64_MAX;
}
