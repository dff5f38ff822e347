/* SPDX-License-Identifier: BSD-3-Clause */

/* Recount the blocks of every volume and snapshot: inherited ones and those of
 * its own layers.
 *
 * One scan of all maps: for each row, resolve the parent in that leaf, and
 * record by how many blocks the layer has more or fewer.  Then add up the
 * counts from the lowest layers on.  So a thousand clones cost as much as
 * their own writes, not a thousand images.
 *
 * The layers are copies, since those of the pool change while a check reads an
 * older state of pool.db.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/resolve.h"
#include "data/volume-types.h"
#include "meta/meta.h"
#include "report/check.h"

struct count {
  struct layer layer; /* parent and base: of others here */
  int64_t own;        /* difference to the parent's blocks */
  uint64_t blocks;
  bool done;
};

struct recount {
  struct meta_conn *c;
  struct count *counts; /* owned; ascending by branch, seq */
  size_t nr;
  int (*step) (void *opaque);
  void *opaque;
};

static int
compare_counts (const void *a, const void *b)
{
  const struct layer *x = &((const struct count *) a)->layer;
  const struct layer *y = &((const struct count *) b)->layer;

  return layer_order (x->branch, x->seq, y->branch, y->seq);
}

static struct count *
find_count (struct recount *rc, uint64_t branch, uint64_t seq)
{
  const struct layer *l;
  size_t i = array_position (rc->nr, k,
                             layer_order (rc->counts[k].layer.branch,
                                          rc->counts[k].layer.seq, branch,
                                          seq) < 0);

  if (i == rc->nr)
    return NULL;
  l = &rc->counts[i].layer;
  return layer_order (l->branch, l->seq, branch, seq) == 0 ? &rc->counts[i]
                                                           : NULL;
}

static int
count_row (void *opaque, uint64_t branch, uint64_t leaf_nr, uint64_t seq,
           const uint8_t *buf, size_t len)
{
  struct recount *rc = opaque;
  struct count *ct = find_count (rc, branch, seq);
  struct leaf leaf, below;
  unsigned i;

  if (ct == NULL || leaf_unpack (buf, len, &leaf) == -1)
    return 0; /* other checks report it */
  memset (below.state, MAP_INHERIT, sizeof below.state);
  if (resolve_leaf (rc->c, ct->layer.parent, leaf_nr, ct->layer.overlap,
                    &below) == -1)
    return -1;
  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (leaf.state[i] != MAP_INHERIT)
      ct->own += (leaf.state[i] == MAP_POINTER) -
        (below.state[i] == MAP_POINTER);
  return rc->step (rc->opaque);
}

/* Blocks of a layer and all below it from 'first' on. */
static int
count_past (struct recount *rc, struct layer *layer, uint64_t first,
            uint64_t *nr)
{
  uint64_t leaf_nr = first / LEAF_BLOCKS;
  struct leaf leaf;
  unsigned i;
  int r;

  *nr = 0;
  for (;; leaf_nr++) {
    r = resolve_next_leaf (rc->c, layer, leaf_nr, &leaf_nr);
    if (r != 1)
      return r;
    memset (leaf.state, MAP_INHERIT, sizeof leaf.state);
    if (resolve_leaf (rc->c, layer, leaf_nr, UINT64_MAX, &leaf) == -1)
      return -1;
    for (i = 0; i < LEAF_BLOCKS; ++i)
      *nr += leaf.state[i] == MAP_POINTER && leaf_nr * LEAF_BLOCKS + i >= first;
  }
}

/* Add up the layer's count.  1; 0: its parent's is not done yet; -1. */
static int
add_up (struct recount *rc, struct count *ct)
{
  struct layer *l = &ct->layer, *parent = l->parent;
  struct count *below;
  uint64_t hidden;

  assert (!ct->done);
  ct->blocks = (uint64_t) ct->own;
  if (parent) {
    below = find_count (rc, parent->branch, parent->seq);
    if (below == NULL || !below->done)
      return 0;
    if (count_past (rc, parent, l->overlap, &hidden) == -1)
      return -1;
    ct->blocks += below->blocks - hidden;
  }
  ct->done = true;
  return 1;
}

/* The copy of a layer that the pool has; NULL: of none. */
static struct layer *
copy_of (struct recount *rc, const struct layer *l)
{
  struct count *ct = l ? find_count (rc, l->branch, l->seq) : NULL;

  return ct ? &ct->layer : NULL;
}

static void
copy_layer (struct count *ct, struct layer *l)
{
  ct->layer = (struct layer) {
    .id = l->id,
    .branch = l->branch,
    .seq = l->seq,
    .block_size = l->block_size,
    .nr_names = l->nr_names,
  };
  /* Still the pool's own: link_copies replaces them. */
  atomic_init (&ct->layer.parent, l->parent);
  atomic_init (&ct->layer.base, l->base);
  atomic_init (&ct->layer.overlap, l->overlap);
  atomic_init (&ct->layer.run_overlap, l->run_overlap);
}

/* A layer that is neither gone nor dying inherits from none that is. */
static void
link_copies (struct recount *rc)
{
  struct layer *l;
  size_t i;

  for (i = 0; i < rc->nr; ++i) {
    l = &rc->counts[i].layer;
    assert (l->parent == NULL || copy_of (rc, l->parent) != NULL);
    l->parent = copy_of (rc, l->parent);
    l->base = copy_of (rc, l->base);
  }
}

struct recount *
recount_new (struct nbdedup_pool *pool)
{
  struct recount *rc = calloc (1, sizeof *rc);
  struct volumes *vs = pool->volumes;
  struct layer *l;
  size_t i;

  if (rc == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory to check");
  WITH_LOCK (&vs->lock);
  rc->counts = calloc (vs->layers.nr + 1, sizeof *rc->counts);
  if (rc->counts == NULL) {
    recount_free (rc);
    return nbdedup_fail_null (ENOMEM, "no memory to check");
  }
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (!l->gone && !l->dying)
      copy_layer (&rc->counts[rc->nr++], l);
  }
  qsort (rc->counts, rc->nr, sizeof *rc->counts, compare_counts);
  link_copies (rc);
  return rc;
}

void
recount_free (struct recount *rc)
{
  if (rc == NULL)
    return;
  free (rc->counts);
  free (rc);
}

static int
compare_with_row (struct recount *rc, const struct count *ct,
                  void (*wrong) (void *opaque, uint64_t layer, uint64_t stored,
                                 uint64_t found))
{
  struct meta_layer stored;
  int r;

  if (ct->layer.nr_names == 0)
    return 0; /* no figure shows a nameless layer's count */
  r = meta_layer_get (rc->c, ct->layer.id, &stored);
  if (r == 1 && stored.blocks != ct->blocks)
    wrong (rc->opaque, stored.id, stored.blocks, ct->blocks);
  return r == -1 ? -1 : 0;
}

int
recount_blocks (struct recount *rc, struct meta_conn *c,
                int (*step) (void *opaque),
                void (*wrong) (void *opaque, uint64_t layer, uint64_t stored,
                               uint64_t found),
                void *opaque)
{
  bool again = true;
  size_t i;
  int r;

  rc->c = c;
  rc->step = step;
  rc->opaque = opaque;
  r = meta_leaf_scan_all (c, count_row, rc);
  while (r == 0 && again) {
    again = false;
    for (i = 0; i < rc->nr && r == 0; ++i) {
      if (rc->counts[i].done)
        continue;
      r = add_up (rc, &rc->counts[i]);
      again |= r == 1;
      if (r == 1)
        r = 0;
    }
  }
  for (i = 0; i < rc->nr && r == 0; ++i)
    r = compare_with_row (rc, &rc->counts[i], wrong);
  return r;
}
