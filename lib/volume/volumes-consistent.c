/* SPDX-License-Identifier: BSD-3-Clause */

/* True of the volumes and layers of a pool, once they are loaded, whenever
 * volumes->lock is not held:
 *
 *  (1) Layers are ascending by id.  At least nr_gone of them are gone.
 *
 *  (2) Nothing refers to a layer that is dying or gone, except a struct volume
 *      that is not in a list, or whose layer has just been merged: it has no
 *      name, no child, and no merge.  A dying one has no parent.
 *
 *  (3) Any other layer has such a one for its parent, of the same block size;
 *      nr_children counts its children; if there are any it is frozen.  Its
 *      base and run_overlap follow from its parent's.
 *
 *  (4) nr_names counts the volumes and snapshots in the lists whose layer it
 *      is; besides these, holds, and names that a command adds or removes.
 *
 *  (5) A layer that merges is nameless, and its only child is the one that is
 *      merged, and is in no merge with a child of its own.
 *
 *  (6) Lists are ascending by name.  What is in them is not gone, except a
 *      volume that is being rolled back, which no client may attach to.
 *
 *  (7) A volume's layer is its own, unless that is lost: no child, one name.
 *      A snapshot's is frozen.
 *
 *  (8) Only snapshots are origins.  nr_clones and nr_heirs count the volumes
 *      and snapshots in the lists whose origin it is; besides these, those that
 *      are being destroyed.
 *
 *  (9) nr_clients counts the clients in the list; besides these, a command that
 *      has cut them off.
 *
 * Checking these visits all layers, volumes, snapshots and tombstones.
 */

#include <config.h>

#include <assert.h>
#include <string.h>

#include "volume/volume-int.h"

static void
visit_locked (struct volumes *vs,
              void (*fn) (struct volume *v, const struct volume *of))
{
  struct volume *v;
  size_t i, j;

  assert_held (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    fn (v, NULL);
    for (j = 0; j < v->snapshots.nr; ++j)
      fn (v->snapshots.p[j], v);
  }
  for (i = 0; i < vs->tombstones.nr; ++i)
    fn (vs->tombstones.p[i], NULL);
}

/*----------------------------------------------------------------------
 * Counting what refers to each layer and each snapshot
 */

static void
reset (struct volume *v, const struct volume *of)
{
  (void) of;
  v->counted_clones = v->counted_heirs = 0;
}

static void
count (struct volume *v, const struct volume *of)
{
  (void) of;
  if (v->label == NULL)
    ((struct layer *) v->layer)->counted_names++;
  if (v->origin == NULL)
    return;
  if (v->is_snapshot)
    v->origin->counted_heirs++;
  else
    v->origin->counted_clones++;
}

static bool
is_dead (const struct layer *l)
{
  return l->dying || l->gone;
}

static void
count_all_locked (struct volumes *vs)
{
  struct layer *l;
  size_t i;

  assert_held (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i)
    vs->layers.p[i]->counted_children = vs->layers.p[i]->counted_names = 0;
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (!is_dead (l) && l->parent)
      ((struct layer *) l->parent)->counted_children++;
  }
  visit_locked (vs, reset);
  visit_locked (vs, count);
}

/*----------------------------------------------------------------------
 * Layers
 */

/* (2) */
static void
assert_dead (const struct layer *l)
{
  assert (l->nr_names == 0 && l->nr_children == 0);
  assert (l->merging == NULL && l->merge_state == MERGE_NONE);
  assert (l->gone || l->parent == NULL);
  assert (!l->gone || !l->dying);
}

/* (3) */
static void
assert_linked (const struct layer *l)
{
  const struct layer *parent = l->parent;
  uint64_t overlap = l->overlap;

  if (parent)
    assert (!is_dead (parent) && parent->block_size == l->block_size);
  if (parent == NULL || parent->branch != l->branch) {
    assert (l->base == l && l->run_overlap == LAYER_OVERLAP_ALL);
    return;
  }
  if (overlap > parent->run_overlap)
    overlap = parent->run_overlap;
  assert (l->base == parent->base && l->run_overlap == overlap);
}

/* (5) */
static void
assert_merge (const struct layer *l)
{
  const struct layer *child = l->merging;

  if (child == NULL) {
    assert (l->merge_state == MERGE_NONE);
    return;
  }
  assert (l->nr_names == 0 && l->nr_children == 1);
  assert (child->parent == l && child->merging == NULL && !is_dead (child));
}

static void
assert_layer (const struct layer *l)
{
  if (is_dead (l)) {
    assert_dead (l);
    return;
  }
  assert (l->counted_children == l->nr_children);
  assert (l->nr_children == 0 || l->frozen);
  assert (l->counted_names <= l->nr_names);
  assert_linked (l);
  assert_merge (l);
}

static void
assert_layers_locked (const struct volumes *vs)
{
  const struct layers *a = &vs->layers;
  size_t i, nr_gone = 0;

  for (i = 0; i < a->nr; ++i) {
    assert (i == 0 || a->p[i - 1]->id <= a->p[i]->id);
    nr_gone += a->p[i]->gone;
    assert_layer (a->p[i]);
  }
  assert (vs->nr_gone <= nr_gone);
}

/*----------------------------------------------------------------------
 * Names
 */

/* (9) */
static void
assert_clients (const struct volume *v)
{
  const struct nbdedup_volume *h;
  unsigned nr = 0;

  LIST_FOREACH (h, &v->clients, link) {
    assert (h->volume == v);
    nr++;
  }
  if (v->gone)
    nr++;
  assert (v->label != NULL || v->nr_clients == nr);
  assert (v->gone || !v->exclusive || nr <= 1);
}

/* (7) */
static void
assert_layer_of (const struct volume *v)
{
  const struct layer *l = v->layer;

  assert (l->gone || l->lost || l->block_size == v->block_size);
  if (v->is_snapshot)
    assert (l->frozen);
  else if (!l->gone && !l->lost)
    assert (l->nr_names == 1 && l->nr_children == 0);
}

/* (8) */
static void
assert_origin (const struct volume *v)
{
  assert (v->counted_clones <= v->nr_clones);
  assert (v->counted_heirs <= v->nr_heirs);
  assert (v->is_snapshot || v->nr_clones + v->nr_heirs == 0);
  assert (v->origin == NULL || v->origin->is_snapshot);
}

/* (6) */
static void
assert_name (struct volume *v, const struct volume *of)
{
  assert (v->in_list && v->of == of);
  assert_origin (v);
  assert_clients (v);
  if (v->label != NULL) {
    assert (v->is_snapshot && v->gone && of == NULL);
    return;
  }
  assert (v->is_snapshot == (of != NULL));
  assert (!v->gone || (!v->is_snapshot && v->exclusive));
  assert (!v->is_snapshot || v->snapshots.nr == 0);
  assert_layer_of (v);
}

static void
assert_list_locked (const struct volume_list *list)
{
  size_t i;

  assert (list->nr <= list->cap);
  for (i = 1; i < list->nr; ++i)
    assert (strverscmp (list->p[i - 1]->name, list->p[i]->name) <= 0);
}

static void
assert_lists_locked (const struct volumes *vs)
{
  size_t i;

  assert_list_locked (&vs->list);
  assert_list_locked (&vs->tombstones);
  for (i = 0; i < vs->list.nr; ++i)
    assert_list_locked (&vs->list.p[i]->snapshots);
}

void
volumes_assert_consistent_locked (struct volumes *vs)
{
  assert_held (&vs->lock);
  assert (vs->layers.nr <= vs->layers.cap);
  assert (vs->list.nr <= vs->list.cap);
  assert (vs->tombstones.nr <= vs->tombstones.cap);
  assert (vs->nr_gone <= vs->layers.nr);
  /* Each snapshot has a layer, so there are not more of them. */
  if (invariant_is_due (&vs->changes,
                        vs->layers.nr + vs->list.nr + vs->tombstones.nr)) {
    count_all_locked (vs);
    assert_layers_locked (vs);
    assert_lists_locked (vs);
    visit_locked (vs, assert_name);
  }
}
