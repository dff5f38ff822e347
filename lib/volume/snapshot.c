/* SPDX-License-Identifier: BSD-3-Clause */

/* Snapshots, clones, rollback: each makes new layers, in a time that does not
 * depend on the volume's content, as one operation in a fold's transaction
 * (txg_run).
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/map.h"
#include "core/txg.h"
#include "data/writeback.h"
#include "meta/meta.h"
#include "volume/volume-int.h"
#include "volume/volume-layers.h"
#include "volume/volume.h"

/*----------------------------------------------------------------------
 * Snapshots: of one volume, or of several at one moment
 */

struct snapshot {
  struct volume *v;
  struct volume *s;           /* the snapshot; owned until it is in v's list */
  struct layer *head, *layer; /* the one that freezes, and the new head */
  struct meta_snapshot ms;
  struct meta_volume mv;
  struct meta_layer ml;
  struct range range;
};

struct snapshots {
  struct volumes *vs;
  struct snapshot *p;
  size_t nr;
  uint64_t time;
  bool have_clients;
};

static int
put_snapshot (struct volumes *vs, struct snapshot *sn, struct meta_conn *c,
              struct meta_state *state)
{
  struct meta_layer head;

  /* This transaction's fold has counted the head's blocks for the last time. */
  if (meta_layer_need (c, sn->head->id, &head) == -1)
    return -1;
  sn->ml.id = state->next_id++;
  sn->ms.id = state->next_id++;
  {
    WITH_LOCK (&vs->lock);
    layers_place_locked (vs, sn->head, &sn->ml);
  }
  sn->ml.blocks = head.blocks;
  sn->ms.layer = sn->head->id;
  sn->mv.layer = sn->ml.id;
  if (meta_layer_put (c, &sn->ml) == -1 || meta_volume_put (c, &sn->mv) == -1)
    return -1;
  return meta_snapshot_put (c, &sn->ms);
}

static int
snapshots_in_transaction (void *arg, struct meta_conn *c,
                          struct meta_state *state)
{
  struct snapshots *sns = arg;
  size_t i;

  for (i = 0; i < sns->nr; ++i)
    if (put_snapshot (sns->vs, &sns->p[i], c, state) == -1)
      return -1;
  return 0;
}

static void
freeze_head (struct volumes *vs, struct snapshot *sn)
{
  struct layer *l = sn->layer;

  /* All mutations wait, so the head is still the same. */
  assert (sn->v->layer == sn->head && !sn->head->frozen);
  map_freeze (vs->pool->map, sn->head);
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  l->id = sn->ml.id;
  l->branch = sn->ml.branch;
  l->seq = sn->ml.seq;
  l->blocks = sn->ml.blocks;
  l->nr_names = 1; /* the volume's; the head has the snapshot's */
  layers_add_locked (vs, l, sn->head);
  volume_set_layer (sn->v, l);
}

static void
snapshots_done (void *arg)
{
  struct snapshots *sns = arg;
  size_t i;

  for (i = 0; i < sns->nr; ++i)
    freeze_head (sns->vs, &sns->p[i]);
}

/* When all mutations of all the volumes wait, and all answered writes are
 * installed in their heads: this is the snapshots' moment, on all connections.
 * A mutation never waits for another volume's range while it holds one, so the
 * ranges may be taken one after the other.
 */
static int
snapshot_now (struct nbdedup_pool *pool, struct snapshots *sns)
{
  struct snapshot *sn;
  size_t i;
  int r = 0;

  for (i = 0; i < sns->nr; ++i)
    writeback_range_begin (sns->p[i].v, &sns->p[i].range, 0, UINT64_MAX);
  for (i = 0; i < sns->nr && r == 0; ++i) {
    sn = &sns->p[i];
    r = writeback_drain (pool->writeback, sn->v);
    sn->head = sn->v->layer;
    sn->ms.size = sn->v->size;
    volume_to_meta (sn->v, &sn->mv);
  }
  if (r == 0)
    r = txg_run_large (pool->txg, ROW_PAGES * sns->nr, snapshots_in_transaction,
                       snapshots_done, sns);
  for (i = 0; i < sns->nr; ++i)
    writeback_range_end (sns->p[i].v, &sns->p[i].range);
  return r;
}

/* While clients write, fold pending writes first: then they wait only for the
 * few that come meanwhile.
 */
static int
fold_before (struct nbdedup_pool *pool, const struct snapshots *sns)
{
  size_t i;

  if (!sns->have_clients)
    return 0;
  for (i = 0; i < sns->nr; ++i)
    if (writeback_drain (pool->writeback, sns->p[i].v) == -1)
      return -1;
  return txg_run (pool->txg, NULL, NULL, NULL);
}

static bool
has_volume (const struct snapshots *sns, size_t nr, const struct volume *v)
{
  while (nr > 0)
    if (sns->p[--nr].v == v)
      return true;
  return false;
}

static int
prepare (struct snapshots *sns, size_t i, const char *name)
{
  struct snapshot *sn = &sns->p[i];
  struct volumes *vs = sns->vs;
  struct snapshot_name n;
  struct volume *v;

  if (snapshot_name_parse (name, &n) == -1 ||
      (v = volumes_find (vs, n.volume)) == NULL)
    return -1;
  if (list_find (&v->snapshots, n.snapshot))
    return nbdedup_fail (EEXIST, "there is a snapshot '%s' already", name);
  if (has_volume (sns, i, v))
    return nbdedup_fail (EINVAL,
                         "'%s': a snapshot of '%s' is named already: "
                         "take one of each volume",
                         name, v->name);
  /* Clones of the snapshot, and a rollback to it, rely on this. */
  if (volume_clean_tail (v) == -1)
    return -1;
  sn->v = v;
  sn->ms.volume = v->id;
  sn->ms.name = strchr (name, '@') + 1;
  sn->ms.origin = v->origin ? v->origin->id : 0;
  sn->ms.time = sns->time;
  sn->ml.block_size = v->block_size;
  sn->ml.overlap = blocks_of (v->size, v->block_size);
  if ((sn->layer = layer_new (&sn->ml)) == NULL ||
      (sn->s = snapshot_new (v, &sn->ms, v->layer)) == NULL)
    return -1;
  WITH_LOCK (&vs->lock);
  sns->have_clients |= v->nr_clients > 0;
  return list_reserve (&v->snapshots, 1);
}

static void
publish (struct nbdedup_pool *pool, struct snapshot *sn)
{
  struct volumes *vs = pool->volumes;

  if (pool->snapshot_taken)
    pool->snapshot_taken (pool, sn->v);
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  sn->s->id = sn->ms.id;
  volume_set_layer (sn->s, sn->head);
  sn->s->size = sn->ms.size;
  volume_set_origin_locked (sn->s, sn->v->origin);
  list_insert (&sn->v->snapshots, sn->s);
}

int
volume_snapshot (struct nbdedup_pool *pool, const json_t *names)
{
  struct snapshots sns = { .vs = pool->volumes, .time = clock_wall_s () };
  const size_t nr = json_array_size (names);
  size_t i;
  int r = 0;

  assert_held (&pool->admin);
  assert (nr > 0);
  if (nr > VOLUME_SNAPSHOTS_MAX)
    return nbdedup_fail (EINVAL, "%zu snapshots: at most %d at one moment", nr,
                         VOLUME_SNAPSHOTS_MAX);
  sns.p = calloc (nr, sizeof *sns.p);
  if (sns.p == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (i = 0; i < nr && r == 0; ++i)
    r = prepare (&sns, i, json_string_value (json_array_get (names, i)));
  sns.nr = nr;
  if (r == 0 &&
      (layers_reserve (pool->volumes, nr) == -1 ||
       fold_before (pool, &sns) == -1 || snapshot_now (pool, &sns) == -1))
    r = -1;
  for (i = 0; i < nr; ++i)
    if (r == 0)
      publish (pool, &sns.p[i]);
    else {
      volume_free (sns.p[i].s);
      free (sns.p[i].layer);
    }
  free (sns.p);
  return r;
}

/*----------------------------------------------------------------------
 * Clones
 */

struct clones {
  struct volumes *vs;
  struct volume *origin;
  struct meta_volume mv; /* of all clones, except ids and names */
  struct meta_layer ml;
  size_t nr;
  struct layer **layers; /* owned until done */
  struct volume **volumes;
};

static int
clone_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct clones *cl = arg;
  struct volume *v;
  struct layer *l;
  size_t i;

  for (i = 0; i < cl->nr; ++i) {
    v = cl->volumes[i];
    l = cl->layers[i];
    l->id = cl->ml.id = state->next_id++;
    v->id = cl->mv.id = state->next_id++;
    cl->ml.branch = cl->ml.seq = l->branch = l->seq = l->id;
    cl->mv.layer = l->id;
    snprintf (cl->mv.name, sizeof cl->mv.name, "%s", v->name);
    if (meta_layer_put (c, &cl->ml) == -1 || meta_volume_put (c, &cl->mv) == -1)
      return -1;
  }
  return 0;
}

static void
clone_done (void *arg)
{
  struct clones *cl = arg;
  struct volume *v;
  size_t i;

  assert (cl->origin->layer->frozen);
  WITH_LOCK (&cl->vs->lock);
  WITH_CONSISTENT (volumes, cl->vs);

  for (i = 0; i < cl->nr; ++i) {
    v = cl->volumes[i];
    cl->layers[i]->nr_names = 1;
    layers_add_locked (cl->vs, cl->layers[i], cl->origin->layer);
    volume_set_origin_locked (v, cl->origin);
    list_insert (&cl->vs->list, v);
  }
}

/* The i-th clone's name. */
static int
clone_name (char buf[META_NAME_MAX + 1], const char *name, bool numbered,
            uint64_t number)
{
  int n = numbered
    ? snprintf (buf, META_NAME_MAX + 1, "%s%" PRIu64, name, number)
    : snprintf (buf, META_NAME_MAX + 1, "%s", name);

  if (n > META_NAME_MAX)
    return nbdedup_fail (EINVAL, "'%.64s...': the name is too long", name);
  return volume_check_name (buf);
}

static int
make_clones (struct clones *cl, const char *name, bool numbered, uint64_t start,
             json_t *names)
{
  struct volume *of = cl->origin->of;
  size_t i;

  for (i = 0; i < cl->nr; ++i) {
    if (clone_name (cl->mv.name, name, numbered, start + i) == -1)
      return -1;
    if (volumes_find (cl->vs, cl->mv.name))
      return nbdedup_fail (EEXIST, "there is a volume '%s' already",
                           cl->mv.name);
    cl->layers[i] = layer_new (&cl->ml);
    if (cl->layers[i] == NULL)
      return -1;
    cl->volumes[i] = volume_new (cl->vs->pool, &cl->mv, of->domain_name,
                                 cl->layers[i]);
    if (cl->volumes[i] == NULL)
      return -1;
    json_array_append_new (names, json_string (cl->mv.name));
  }
  return 0;
}

int
volume_clone (struct nbdedup_pool *pool, const char *snapshot, const char *name,
              bool numbered, uint64_t start, uint64_t count, json_t *names)
{
  struct volumes *vs = pool->volumes;
  struct clones cl = { .vs = vs };
  struct layer *below;
  struct volume *s;
  size_t i;
  int r = -1;

  assert_held (&pool->admin);
  if (volume_check_name (name) == -1)
    return -1;
  if (count < 1 || count > VOLUME_CLONES_MAX)
    return nbdedup_fail (EINVAL, "count %" PRIu64 ": must be from 1 to %d",
                         count, VOLUME_CLONES_MAX);
  if (start > UINT32_MAX)
    return nbdedup_fail (EINVAL, "start %" PRIu64 ": must be at most %" PRIu32,
                         start, UINT32_MAX);
  s = volumes_find_snapshot (vs, snapshot);
  if (s == NULL)
    return -1;
  cl.origin = s;
  below = s->layer;
  volume_to_meta (s->of, &cl.mv);
  cl.mv.size = s->size;
  cl.mv.tail_dirty = cl.mv.importing = false;
  cl.mv.origin = s->id;
  cl.ml.parent = below->id;
  cl.ml.block_size = s->block_size;
  cl.ml.overlap = blocks_of (s->size, s->block_size);
  cl.ml.blocks = below->blocks;
  cl.layers = calloc (count, sizeof *cl.layers);
  cl.volumes = calloc (count, sizeof *cl.volumes);
  cl.nr = count;
  if (cl.layers == NULL || cl.volumes == NULL)
    nbdedup_fail (ENOMEM, "no memory");
  else if (layers_reserve (vs, count) == 0 &&
           volumes_reserve (vs, count) == 0 &&
           make_clones (&cl, name, numbered, start, names) == 0)
    r = txg_run_large (pool->txg, ROW_PAGES + count / ROWS_PER_PAGE,
                       clone_in_transaction, clone_done, &cl);
  if (r == -1 && cl.layers && cl.volumes)
    for (i = 0; i < count; ++i) {
      volume_free (cl.volumes[i]);
      free (cl.layers[i]);
    }
  free (cl.layers);
  free (cl.volumes);
  return r;
}

/*----------------------------------------------------------------------
 * Rollback: the volume continues from the snapshot, in a new layer; later
 * writes are dropped.  Clients of the old head are cut off: a new struct
 * volume replaces the one that they hold.
 */

struct rollback {
  struct volumes *vs;
  struct volume *snapshot, *old, *new;
  struct layer *layer;
  struct meta_volume mv;
  struct meta_layer ml;
  struct tombstones tombstones; /* kept for the old origin */
};

static int
rollback_in_transaction (void *arg, struct meta_conn *c,
                         struct meta_state *state)
{
  struct rollback *rb = arg;

  rb->ml.id = rb->ml.branch = rb->ml.seq = state->next_id++;
  rb->mv.layer = rb->ml.id;
  if (meta_layer_put (c, &rb->ml) == -1 || meta_volume_put (c, &rb->mv) == -1 ||
      tombstones_delete (&rb->tombstones, c) == -1)
    return -1;
  return meta_layer_set_dying (c, rb->old->layer->id);
}

static void
rollback_done (void *arg)
{
  struct rollback *rb = arg;
  struct volume *new = rb->new, *old = rb->old;
  struct layer *l = rb->layer;
  size_t i;

  assert (old->gone && old->layer->nr_names > 0);
  {
    WITH_LOCK (&rb->vs->lock);
    WITH_CONSISTENT (volumes, rb->vs);

    l->id = l->branch = l->seq = rb->ml.id;
    l->nr_names = 1;
    layers_add_locked (rb->vs, l, rb->snapshot->layer);
    old->layer->nr_names--;
    new->snapshots = old->snapshots;
    old->snapshots = (struct volume_list) { NULL, 0, 0 };
    for (i = 0; i < new->snapshots.nr; ++i)
      new->snapshots.p[i]->of = new;
    /* The volume has the origin again that it had at that time. */
    volume_set_origin_locked (old, NULL);
    volume_set_origin_locked (new, rb->snapshot->origin);
    tombstones_drop_locked (rb->vs, &rb->tombstones);
    list_remove (&rb->vs->list, old);
    list_insert (&rb->vs->list, new);
  }
  layers_settle (rb->vs);
}

static int
rollback_cut_off (struct volume *v, bool force)
{
  char clients[256];

  WITH_LOCK (&v->pool->volumes->lock);
  if (v->nr_clients > 0 && !force) {
    volume_describe_clients_locked (v, clients, sizeof clients);
    return nbdedup_fail (EBUSY,
                         "volume %s is in use by %s: --force "
                         "disconnects them",
                         v->name, clients);
  }
  assert (!v->gone);
  v->exclusive = true; /* no client may attach meanwhile */
  v->gone = true;
  v->nr_clients++; /* else the last client to leave frees it */
  return 0;
}

int
volume_rollback (struct nbdedup_pool *pool, const char *name, bool force)
{
  struct volumes *vs = pool->volumes;
  struct volume *s = volumes_find_snapshot (vs, name);
  struct rollback rb = { .vs = vs, .snapshot = s };
  struct volume *v;
  int r;

  if (s == NULL)
    return -1;
  v = rb.old = s->of;
  volume_to_meta (v, &rb.mv);
  rb.mv.size = s->size;
  rb.mv.origin = s->origin ? s->origin->id : 0;
  rb.mv.tail_dirty = false; /* that of the head, which goes */
  rb.ml.parent = s->layer->id;
  rb.ml.block_size = s->block_size;
  rb.ml.overlap = blocks_of (s->size, s->block_size);
  rb.ml.blocks = s->layer->blocks;
  if (layers_reserve (vs, 1) == -1 || volumes_reserve (vs, 1) == -1 ||
      (rb.layer = layer_new (&rb.ml)) == NULL)
    return -1;
  rb.new = volume_new (pool, &rb.mv, v->domain_name, rb.layer);
  if (rb.new == NULL || tombstones_collect (&v, 1, &rb.tombstones) == -1 ||
      rollback_cut_off (v, force) == -1) {
    volume_free (rb.new);
    free (rb.layer);
    free (rb.tombstones.p);
    return -1;
  }
  writeback_settle (pool->writeback, v);
  r = txg_run (pool->txg, rollback_in_transaction, rollback_done, &rb);
  free (rb.tombstones.p);
  WITH_LOCK (&vs->lock);
  assert (v->nr_clients > 0); /* rollback_cut_off's */
  v->nr_clients--;
  if (r == -1) {
    v->gone = false;
    v->exclusive = volume_has_exclusive_client_locked (v);
    volume_free (rb.new);
    free (rb.layer);
    return -1;
  }
  volume_release_locked (v);
  return 0;
}
