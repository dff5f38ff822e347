/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/map.h"
#include "core/txg.h"
#include "volume/lost-leaves.h"
#include "volume/merge.h"
#include "volume/volume-int.h"
#include "volume/volume-layers.h"
#include "volume/volume.h"

int
layers_reserve (struct volumes *vs, size_t nr)
{
  WITH_LOCK (&vs->lock);
  return array_reserve (&vs->layers.p, &vs->layers.cap, vs->layers.nr + nr,
                        sizeof *vs->layers.p);
}

struct layer *
layer_new (const struct meta_layer *ml)
{
  struct layer *l = calloc (1, sizeof *l);

  if (l == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  l->id = ml->id;
  l->branch = ml->branch;
  l->seq = ml->seq;
  l->overlap = ml->overlap;
  l->block_size = ml->block_size;
  l->dying = ml->dying;
  l->pointers = ml->pointers;
  l->blocks = ml->blocks;
  l->base = l;
  l->run_overlap = LAYER_OVERLAP_ALL;
  return l;
}

/* Readers run meanwhile: resolve_leaf relies on the order of both stores. */
static void
link_run_locked (struct layer *l)
{
  struct layer *parent = l->parent;
  uint64_t overlap = LAYER_OVERLAP_ALL, below;

  if (parent && parent->branch == l->branch) {
    overlap = l->overlap;
    below = parent->run_overlap;
    if (below < overlap)
      overlap = below;
    l->base = (struct layer *) parent->base;
  }
  else
    l->base = l;
  l->run_overlap = overlap;
}

void
layers_add_locked (struct volumes *vs, struct layer *l, struct layer *parent)
{
  size_t i;

  assert_held (&vs->lock);
  assert (vs->layers.nr < vs->layers.cap);
  /* Ids only grow, so this is usually the end. */
  for (i = vs->layers.nr; i > 0 && vs->layers.p[i - 1]->id > l->id; --i)
    vs->layers.p[i] = vs->layers.p[i - 1];
  vs->layers.p[i] = l;
  vs->layers.nr++;
  l->parent = parent;
  if (parent)
    parent->nr_children++;
  link_run_locked (l);
}

struct layer *
volumes_find_layer (void *volumes, uint64_t id)
{
  struct volumes *vs = volumes;
  const struct layers *a = &vs->layers;
  size_t i;

  WITH_LOCK (&vs->lock);
  i = array_position (a->nr, k, a->p[k]->id < id);
  return i < a->nr && a->p[i]->id == id ? a->p[i] : NULL;
}

void
layers_place_locked (struct volumes *vs, struct layer *parent,
                     struct meta_layer *ml)
{
  size_t i;

  assert_held (&vs->lock);
  ml->branch = ml->seq = ml->id;
  ml->parent = 0;
  if (parent == NULL)
    return;
  ml->parent = parent->id;
  for (i = 0; i < vs->layers.nr; ++i)
    if (vs->layers.p[i]->branch == parent->branch && !vs->layers.p[i]->gone &&
        vs->layers.p[i]->seq > parent->seq)
      return;
  ml->branch = parent->branch;
}

void
layers_relink_locked (struct volumes *vs)
{
  struct layer *l, *base;
  uint64_t overlap;
  bool again = true;
  size_t i;

  /* Most parents are older than their children: few rounds. */
  assert_held (&vs->lock);
  while (again) {
    again = false;
    for (i = 0; i < vs->layers.nr; ++i) {
      l = vs->layers.p[i];
      if (l->gone)
        continue;
      base = l->base;
      overlap = l->run_overlap;
      link_run_locked (l);
      again |= l->base != base || l->run_overlap != overlap;
    }
  }
}

/*----------------------------------------------------------------------
 * Which layers die or merge
 */

/* Let a layer die that nothing refers to; its parent may be the next. */
static void
let_die_locked (struct layer *l)
{
  struct layer *parent = l->parent;

  assert (l->nr_names == 0 && l->nr_children == 0 && !l->gone);
  l->dying = true;
  l->cursor = 0;
  l->merging = NULL;
  l->merge_state = MERGE_NONE;
  if (parent) {
    assert (parent->nr_children > 0);
    parent->nr_children--;
    if (parent->merging == l) {
      parent->merging = NULL;
      parent->merge_state = MERGE_NONE;
    }
    /* No reader uses the layer, so it needs no parent. */
    l->parent = NULL;
  }
}

static struct layer *
only_child_locked (struct volumes *vs, struct layer *parent)
{
  size_t i;

  for (i = 0; i < vs->layers.nr; ++i)
    if (vs->layers.p[i]->parent == parent && !vs->layers.p[i]->gone &&
        !vs->layers.p[i]->dying)
      return vs->layers.p[i];
  return NULL;
}

static bool
is_merged_into_parent (struct layer *l)
{
  struct layer *parent = l->parent;

  return parent && parent->merging == l;
}

/* The first nameless layer that could begin to merge; neither it nor its
 * child may be in another merge.  Lower ones come first, so that each row
 * is moved only once.
 */
static struct layer *
next_merge_locked (struct volumes *vs)
{
  struct layer *l, *child;
  size_t i;

  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (l->gone || l->dying || l->nr_names > 0 || l->nr_children != 1 ||
        l->merging || is_merged_into_parent (l))
      continue;
    child = only_child_locked (vs, l);
    assert (child);
    if (child->merging)
      continue;
    l->merging = child;
    l->cursor = 0;
    l->pass_done = false;
    return l;
  }
  return NULL;
}

static struct layer *
next_to_die_locked (struct volumes *vs)
{
  struct layer *l;
  size_t i;

  for (i = vs->layers.nr; i-- > 0;) {
    l = vs->layers.p[i];
    if (!l->gone && !l->dying && l->nr_names == 0 && l->nr_children == 0)
      return l;
  }
  return NULL;
}

/* A reader may have reached such a layer just before it lost its last name or
 * child (a rebase puts another one below a head).  Until that reader is done it
 * must find the layer's rows and its parent, not holes.
 */
static void
let_die (struct volumes *vs)
{
  struct layer *l;

  {
    WITH_LOCK (&vs->lock);
    if (next_to_die_locked (vs) == NULL)
      return;
  }
  quiesce_wait (&vs->pool->quiesce);
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  while ((l = next_to_die_locked (vs)) != NULL)
    let_die_locked (l);
}

void
layers_settle (struct volumes *vs)
{
  struct layer *l;

  let_die (vs);
  for (;;) {
    {
      WITH_LOCK (&vs->lock);
      WITH_CONSISTENT (volumes, vs);

      l = next_merge_locked (vs);
    }
    if (l == NULL)
      break;
    /* This must be before the first of its rows changes. */
    map_set_unstable (vs->pool->map, l, true);
    {
      WITH_LOCK (&vs->lock);
      WITH_CONSISTENT (volumes, vs);

      l->merge_state = MERGE_TRIM;
    }
    merger_wake (vs->pool->merger);
  }
}

/*----------------------------------------------------------------------
 * For the fold
 */

void
volumes_each_background (void *volumes, void (*fn) (void *, struct layer *),
                         void *arg)
{
  struct volumes *vs = volumes;
  struct layer *l;
  size_t i;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (l->dying || (l->merge_state != MERGE_NONE && !l->pass_done))
      fn (arg, l);
  }
}

void
volumes_layer_gone (void *volumes, struct layer *layer)
{
  struct volumes *vs = volumes;

  assert (layer->dying && layer->nr_names == 0);
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  layer->dying = false;
  layers_gone_locked (vs, layer);
}

/*----------------------------------------------------------------------
 * Structs of deleted layers
 */

/* Collecting costs a fold. */
#define GONE_MAX 64

void
layers_gone_locked (struct volumes *vs, struct layer *layer)
{
  assert_held (&vs->lock);
  assert (!layer->gone);
  layer->gone = true;
  if (++vs->nr_gone >= GONE_MAX)
    merger_wake (vs->pool->merger);
}

bool
layers_want_collecting (struct volumes *vs)
{
  WITH_LOCK (&vs->lock);
  return vs->nr_gone >= GONE_MAX;
}

struct collected {
  struct volumes *vs;
  struct layer **p; /* owned; so are what they point to */
  size_t nr;
};

/* Remove from the list those that no struct volume holds.  Unlink gone and
 * dying ones that stay, so that no layer in the list points to a removed one.
 */
static int
take_gone (struct collected *cd)
{
  struct volumes *vs = cd->vs;
  struct layers *a = &vs->layers;
  struct layer *l;
  size_t i, kept = 0;

  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  cd->p = malloc (a->nr * sizeof *cd->p);
  if (cd->p == NULL)
    return -1;
  for (i = 0; i < a->nr; ++i) {
    l = a->p[i];
    if (l->gone || l->dying) {
      l->parent = NULL;
      l->base = l;
      l->run_overlap = LAYER_OVERLAP_ALL;
    }
    if (l->gone && l->nr_structs == 0)
      cd->p[cd->nr++] = l;
    else
      a->p[kept++] = l;
  }
  a->nr = kept;
  vs->nr_gone = 0;
  return 0;
}

/* Runs in the folding thread, the only one to use the list without the lock;
 * with pool->admin held, no command uses a layer.  The cut of this fold has
 * waited for all threads inside a txg, and their changes were folded: no layer
 * that is gone is in the map's changes.  Only readers are left.  The first
 * wait is for those that got a layer while a volume had it, and must still
 * find its parent.  The second wait is for those that came from a layer that
 * stays, for a client of a destroyed volume: that client gets ESHUTDOWN.
 */
static void
collect_gone (void *arg)
{
  struct collected *cd = arg;
  struct nbdedup_pool *pool = cd->vs->pool;
  size_t i;

  quiesce_wait (&pool->quiesce);
  if (take_gone (cd) == -1 || cd->nr == 0)
    return;
  quiesce_wait (&pool->quiesce);
  for (i = 0; i < cd->nr; ++i) {
    lost_leaves_forget_layer (pool->lost, cd->p[i]);
    free (cd->p[i]);
  }
}

void
layers_collect (struct volumes *vs)
{
  struct collected cd = { .vs = vs };

  assert_held (&vs->pool->admin);
  /* If this fails the next call does it. */
  (void) txg_run (vs->pool->txg, NULL, collect_gone, &cd);
  free (cd.p);
}

/*----------------------------------------------------------------------*/

void
volumes_count_background (struct volumes *vs, unsigned *nr_freeing,
                          unsigned *nr_merging)
{
  size_t i;

  *nr_freeing = *nr_merging = 0;
  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i) {
    *nr_freeing += vs->layers.p[i]->dying;
    *nr_merging += vs->layers.p[i]->merging != NULL;
  }
}

/* The most pointers that a merge can drop.  The layer keeps those that the
 * child shows: all blocks of the child, except for what comes from below.
 */
static uint64_t
most_dropped_locked (const struct layer *l)
{
  const struct layer *child = l->merging, *below = l->parent;
  const uint64_t shown = child->blocks, inherited = below ? below->blocks : 0;
  const uint64_t kept = shown > inherited ? shown - inherited : 0;
  const uint64_t all = l->pointers + child->pointers;
  const uint64_t dropped = all > kept ? all - kept : 0;

  return dropped < l->pointers ? dropped : l->pointers;
}

uint64_t
volumes_freeing_bytes (struct volumes *vs)
{
  uint64_t bytes = 0;
  struct layer *l;
  size_t i;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (l->dying)
      bytes += l->pointers * l->block_size;
    else if (l->merging)
      bytes += most_dropped_locked (l) * l->block_size;
  }
  return bytes;
}
