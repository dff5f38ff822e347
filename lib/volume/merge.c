/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/background.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/map.h"
#include "core/txg.h"
#include "data/writeback.h"
#include "meta/meta.h"
#include "volume/merge.h"
#include "volume/volume-int.h"
#include "volume/volume-layers.h"

/* While folds work on a merge, check it this often. */
#define LOOK_MS 50

struct merger {
  struct nbdedup_pool *pool; /* not owned */
  struct background thread;
};

/*----------------------------------------------------------------------
 * Adopt
 */

struct step {
  struct nbdedup_pool *pool;
  struct layer *layer, *child;
  struct volume *name; /* whose layer the child is; NULL: none */
};

static int
put_overlap (struct meta_conn *c, struct layer *layer, uint64_t overlap)
{
  struct meta_layer ml;

  if (meta_layer_need (c, layer->id, &ml) == -1)
    return -1;
  ml.overlap = overlap;
  return meta_layer_put (c, &ml);
}

static uint64_t
adopted_overlap (const struct step *s)
{
  uint64_t a = s->layer->overlap, b = s->child->overlap;

  return a < b ? a : b;
}

static int
adopt_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct step *s = arg;

  (void) state;
  if (put_overlap (c, s->layer, adopted_overlap (s)) == -1)
    return -1;
  return put_overlap (c, s->child, LAYER_OVERLAP_ALL);
}

/* A reader of pool.db as it was before the trim must not see the new overlaps:
 * the layer's rows there still have blocks that the child does not show.
 */
static void
adopt_done (void *arg)
{
  struct step *s = arg;
  struct volumes *vs = s->pool->volumes;

  assert (s->layer->merging == s->child && s->layer->merge_state == MERGE_TRIM);
  quiesce_wait (&s->pool->quiesce);
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  /* In this order: a reader that sees the child's new overlap must see the
   * layer's, too.
   */
  s->layer->overlap = adopted_overlap (s);
  s->child->overlap = LAYER_OVERLAP_ALL;
  layers_relink_locked (vs);
  s->child->cursor = 0;
  s->layer->pass_done = false;
  s->layer->merge_state = MERGE_PUSH;
}

/*----------------------------------------------------------------------
 * Switch
 */

static int
switch_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct step *s = arg;
  struct meta_layer child, layer;
  struct meta_volume mv;
  struct meta_snapshot ms;

  (void) state;
  if (meta_layer_need (c, s->child->id, &child) == -1 ||
      meta_layer_need (c, s->layer->id, &layer) == -1)
    return -1;
  if (child.pointers != 0)
    return nbdedup_fail (EIO,
                         "pool.db: layer %" PRIu64 " has %" PRIu64
                         " pointers left after it was merged: run nbdedup "
                         "check",
                         child.id, child.pointers);
  layer.blocks = child.blocks;
  if (meta_layer_put (c, &layer) == -1 ||
      meta_layer_reparent (c, child.id, layer.id) == -1 ||
      tombstones_put_merge (s->pool->volumes, c, s->layer, s->child) == -1)
    return -1;
  if (s->name && s->name->is_snapshot) {
    snapshot_to_meta (s->name, &ms);
    ms.layer = layer.id;
    if (meta_snapshot_put (c, &ms) == -1)
      return -1;
  }
  else if (s->name) {
    volume_to_meta (s->name, &mv);
    mv.layer = layer.id;
    if (meta_volume_put (c, &mv) == -1)
      return -1;
  }
  return meta_layer_delete (c, child.id);
}

/* A reader of pool.db as it was before the child's rows moved must find the
 * layers in the order of the rows' keys: otherwise it would meet a row of a
 * layer that it has not reached.
 */
static void
switch_done (void *arg)
{
  struct step *s = arg;
  struct volumes *vs = s->pool->volumes;
  struct layer *layer = s->layer, *child = s->child, *l;
  bool is_head = !child->frozen;
  size_t i;

  assert (layer->merging == child && layer->merge_state == MERGE_PUSH);
  assert (!is_head || child->nr_children == 0);
  assert (layer->nr_names == 0 && layer->nr_children == 1);
  quiesce_wait (&s->pool->quiesce);
  {
    WITH_LOCK (&vs->lock);
    WITH_CONSISTENT (volumes, vs);

    layer->blocks = (uint64_t) child->blocks;
    layer->nr_names = child->nr_names;
    layer->nr_children = child->nr_children;
    layer->merging = NULL;
    layer->merge_state = MERGE_NONE;
    for (i = 0; i < vs->layers.nr; ++i) {
      l = vs->layers.p[i];
      if (l->parent == child && !l->gone)
        l->parent = layer;
    }
    tombstones_merge_locked (vs, layer, child);
    layers_gone_locked (vs, child);
    child->nr_names = child->nr_children = 0;
    layers_relink_locked (vs);
  }
  map_forget_layer (s->pool->map, child);
  if (is_head)
    map_thaw (s->pool->map, layer);
  else
    map_set_unstable (s->pool->map, layer, false);
  if (s->name)
    volume_set_layer (s->name, layer);
  layers_settle (vs);
}

/* The volume whose layer it is, or NULL. */
static struct volume *
find_name (struct volumes *vs, const struct layer *layer)
{
  struct volume *v;
  size_t i, j;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    if (v->layer == layer)
      return v;
    for (j = 0; j < v->snapshots.nr; ++j)
      if (v->snapshots.p[j]->layer == layer)
        return v->snapshots.p[j];
  }
  return NULL;
}

static int
run_switch (struct step *s)
{
  struct writeback *wb = s->pool->writeback;
  struct range range;
  int r;

  s->name = find_name (s->pool->volumes, s->child);
  if (s->name == NULL || s->name->is_snapshot)
    return txg_run (s->pool->txg, switch_in_transaction, switch_done, s);
  /* A head: writes to it must be folded, and pushed, before. */
  writeback_range_begin (s->name, &range, 0, UINT64_MAX);
  r = writeback_drain (wb, s->name);
  if (r == 0)
    r = txg_run (s->pool->txg, switch_in_transaction, switch_done, s);
  writeback_range_end (s->name, &range);
  return r;
}

/*----------------------------------------------------------------------*/

/* The next layer whose folds are done. */
static struct layer *
find_due (struct volumes *vs)
{
  struct layer *l;
  size_t i;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (l->merging && l->merge_state != MERGE_NONE && l->pass_done)
      return l;
  }
  return NULL;
}

/* False if a shrink has lowered the child's overlap since the trim: blocks that
 * the child has not shown since then must be trimmed, too.  Under pool->admin
 * there is no shrink.
 */
static bool
is_trimmed (const struct step *s)
{
  return s->layer->trim_overlap == s->child->overlap;
}

int
merge_step (struct nbdedup_pool *pool)
{
  struct step s = { .pool = pool };
  int r;

  assert_held (&pool->admin);
  while ((s.layer = find_due (pool->volumes)) != NULL) {
    s.child = s.layer->merging;
    assert (s.child->parent == s.layer);
    if (s.layer->merge_state == MERGE_PUSH)
      r = run_switch (&s);
    else if (is_trimmed (&s))
      r = txg_run (pool->txg, adopt_in_transaction, adopt_done, &s);
    else {
      s.layer->pass_done = false;
      r = txg_run (pool->txg, NULL, NULL, NULL);
    }
    if (r == -1)
      return -1;
  }
  return 0;
}

bool
merge_is_pending (struct nbdedup_pool *pool)
{
  struct volumes *vs = pool->volumes;
  size_t i;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i)
    if (vs->layers.p[i]->dying || vs->layers.p[i]->merging)
      return true;
  return false;
}

static bool
is_merging (struct volumes *vs)
{
  size_t i;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i)
    if (vs->layers.p[i]->merging)
      return true;
  return false;
}

static void *
merger_thread (void *arg)
{
  struct merger *m = arg;
  struct nbdedup_pool *pool = m->pool;
  bool merging = true;

  while (merging ? background_wait_ms (&m->thread, LOOK_MS)
                 : background_wait (&m->thread)) {
    merging = is_merging (pool->volumes);
    if (txg_check (pool->txg) == -1 ||
        (find_due (pool->volumes) == NULL &&
         !layers_want_collecting (pool->volumes)))
      continue;
    WITH_LOCK (&pool->admin);
    /* If the pool is full the thread tries again; if it has failed the next
     * client gets the error.
     */
    merge_step (pool);
    if (layers_want_collecting (pool->volumes))
      layers_collect (pool->volumes);
  }
  return NULL;
}

struct merger *
merger_start (struct nbdedup_pool *pool)
{
  struct merger *m = calloc (1, sizeof *m);

  if (m == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  m->pool = pool;
  background_init (&m->thread, NULL);
  if (background_start (&m->thread, merger_thread, m) == 0)
    return m;
  merger_free (m);
  return NULL;
}

void
merger_stop (struct merger *m)
{
  if (m)
    background_stop (&m->thread);
}

void
merger_free (struct merger *m)
{
  if (m == NULL)
    return;
  background_destroy (&m->thread);
  free (m);
}

void
merger_wake (struct merger *m)
{
  if (m)
    background_wake (&m->thread);
}
