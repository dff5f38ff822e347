/* SPDX-License-Identifier: BSD-3-Clause */

/* The volumes, snapshots and layers of a pool that is being opened.
 *
 * The rows refer to each other by id, in any order: load layers first, then
 * volumes and snapshots, then the links.  A row that refers to a missing row
 * is damage, except for a dying layer's parent, which may be deleted already.
 *
 * Damage refuses the pool, unless it is opened read-only (volumes_salvage).
 * Then a layer that has no row, or has such a layer below it, is "lost".
 * Reads that skipped it would return holes or old data in place of the missing
 * blocks, so its volume can only be listed.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "core/engine.h"
#include "core/map.h"
#include "core/pool-property.h"
#include "meta/meta.h"
#include "volume/volume-int.h"
#include "volume/volume-layers.h"
#include "volume/volume.h"

/* A volume or snapshot whose origin is a snapshot. */
struct link {
  struct volume *v;
  uint64_t origin;
};

struct load {
  struct volumes *vs;
  struct meta_conn *c;
  bool salvage;                /* go on in spite of damage */
  unsigned nr_lost;            /* ... so many times */
  unsigned nr_orphans;         /* layers without their parents */
  struct meta_volume *volumes; /* owned, allow too */
  size_t nr;
  struct volume **snapshots; /* owned array; ascending by id, later */
  size_t nr_snapshots;
  struct link *links; /* owned */
  size_t nr_links;
};

/* Damage: refuse the pool, or log it and go on without the row. */
static int __attribute__ ((format (printf, 2, 3)))
damaged (struct load *ld, const char *fmt, ...)
{
  char text[1024];
  va_list args;

  va_start (args, fmt);
  vsnprintf (text, sizeof text, fmt, args);
  va_end (args);
  if (!ld->salvage)
    return nbdedup_fail (EIO, "pool.db: %s", text);
  ld->nr_lost++;
  nbdedup_log (NBDEDUP_LOG_WARNING, "pool.db: %s", text);
  return 0;
}

static int
load_layer (void *opaque, const struct meta_layer *ml)
{
  struct load *ld = opaque;
  struct layer *l;

  if (check_block_size (ml->block_size, 0) == -1)
    return damaged (ld, "layer %" PRIu64 " has the wrong block size %" PRIu32,
                    ml->id, ml->block_size);
  if (layers_reserve (ld->vs, 1) == -1 || (l = layer_new (ml)) == NULL)
    return -1;
  WITH_LOCK (&ld->vs->lock);
  layers_add_locked (ld->vs, l, NULL);
  return 0;
}

/* A second pass: a parent need not be older than its child.
 *
 * Layers that die together are deleted one by one, and a layer's row is marked
 * as dying when a fold begins with it.  So after a crash the parent may be
 * gone, or dying, while the child's row is not marked.  check_orphans tells
 * this from damage: no layer above it has a name.
 */
static int
link_layer (void *opaque, const struct meta_layer *ml)
{
  struct load *ld = opaque;
  struct layer *l, *parent;

  if (ml->parent == 0 || ml->dying)
    return 0;
  l = volumes_find_layer (ld->vs, ml->id);
  parent = volumes_find_layer (ld->vs, ml->parent);
  if (l == NULL && ld->salvage)
    return 0;
  if (l == NULL || parent == NULL || parent == l || parent->dying ||
      parent->block_size != l->block_size) {
    if (l)
      l->lost = true;
    if (l && (parent == NULL || parent->dying)) {
      ld->nr_orphans++;
      return 0;
    }
    return damaged (ld,
                    "the parent of layer %" PRIu64 " is missing, or cannot "
                    "be its parent",
                    ml->id);
  }
  WITH_LOCK (&ld->vs->lock);
  l->parent = parent;
  parent->nr_children++;
  return 0;
}

/* Fail if the parents form a cycle.  Brent's algorithm: the mark moves forward
 * after twice as many steps each time.
 */
static int
check_circles (struct volumes *vs)
{
  struct layer *l, *mark;
  uint64_t steps, limit;
  size_t i;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i) {
    mark = vs->layers.p[i];
    steps = 0;
    limit = 2;
    for (l = mark->parent; l; l = l->parent) {
      if (l == mark)
        break;
      if (++steps == limit) {
        mark = l;
        limit *= 2;
      }
    }
    if (l)
      return nbdedup_fail (EIO,
                           "pool.db: layer %" PRIu64 " is its own "
                           "ancestor",
                           l->id);
  }
  return 0;
}

/* Is no layer from 'l' down lost?  False also for a cycle. */
static bool
is_whole_locked (struct volumes *vs, struct layer *l)
{
  size_t steps;

  for (steps = 0; l; l = l->parent)
    if (l->lost || ++steps > vs->layers.nr)
      return false;
  return true;
}

/* Orphans without a name die once the pool is open (layers_settle). */
static int
check_orphans (struct load *ld)
{
  struct volumes *vs = ld->vs;
  struct layer *l;
  size_t i;

  assert (!ld->salvage); /* then the mark stays */
  if (ld->nr_orphans == 0)
    return 0;
  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (l->nr_names > 0 && !is_whole_locked (vs, l))
      return damaged (ld,
                      "an ancestor of layer %" PRIu64 " is missing, or "
                      "cannot be its ancestor",
                      l->id);
  }
  for (i = 0; i < vs->layers.nr; ++i)
    vs->layers.p[i]->lost = false;
  return 0;
}

static void
spread_loss (struct volumes *vs)
{
  struct layer *l, *parent;
  size_t i;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i)
    if (!is_whole_locked (vs, vs->layers.p[i]))
      vs->layers.p[i]->lost = true;
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (!l->lost || l->parent == NULL)
      continue;
    parent = l->parent;
    assert (parent->nr_children > 0);
    parent->nr_children--;
    l->parent = NULL;
  }
}

/* Make a placeholder for a layer without a row. */
static struct layer *
add_lost_layer (struct volumes *vs, uint64_t id, uint32_t block_size)
{
  struct meta_layer ml = {
    .id = id,
    .branch = id,
    .seq = id,
    .block_size = block_size,
  };
  struct layer *l;

  assert (volumes_find_layer (vs, id) == NULL);
  if (layers_reserve (vs, 1) == -1 || (l = layer_new (&ml)) == NULL)
    return NULL;
  l->lost = true;
  WITH_LOCK (&vs->lock);
  layers_add_locked (vs, l, NULL);
  return l;
}

static int
load_volume (void *opaque, const struct meta_volume *mv)
{
  struct load *ld = opaque;
  struct meta_volume *p = array_add (&ld->volumes, &ld->nr, sizeof *p);

  if (p == NULL)
    return -1;
  *p = *mv;
  p->allow = strdup (mv->allow);
  return p->allow ? 0 : nbdedup_fail (ENOMEM, "no memory");
}

static int
add_link (struct load *ld, struct volume *v, uint64_t origin)
{
  if (origin == 0)
    return 0;
  return array_push (&ld->links, &ld->nr_links, (struct link) { v, origin });
}

/* No read needs it. */
static int
read_domain (struct load *ld, const struct meta_volume *mv, char **name)
{
  if (meta_domain_name (ld->c, mv->domain, name) == 0)
    return 0;
  if (errno == ENOMEM || !ld->salvage)
    return -1;
  damaged (ld, "the name of volume %s's domain is lost", mv->name);
  *name = strdup ("");
  return *name ? 0 : nbdedup_fail (ENOMEM, "no memory");
}

static int
make_volume (struct load *ld, const struct meta_volume *mv)
{
  struct volumes *vs = ld->vs;
  CLEANUP_FREE char *domain = NULL;
  struct layer *layer = volumes_find_layer (vs, mv->layer);
  struct volume *v;

  if (ld->salvage && layer == NULL)
    layer = add_lost_layer (vs, mv->layer, BLOCK_SIZE_MIN);
  if (layer == NULL || layer->dying || !volume_is_name (mv->name))
    return damaged (ld, "volume %" PRIu64 " is damaged", mv->id);
  if (layer->lost && damaged (ld, "volume %s has lost its map", mv->name) == -1)
    return -1;
  if (read_domain (ld, mv, &domain) == -1 || list_reserve (&vs->list, 1) == -1)
    return -1;
  v = volume_new (vs->pool, mv, domain, layer);
  if (v == NULL)
    return errno == ENOMEM || !ld->salvage
      ? -1
      : damaged (ld, "volume %s: %s", mv->name, nbdedup_error ());
  WITH_LOCK (&vs->lock);
  layer->nr_names++;
  list_insert (&vs->list, v);
  return add_link (ld, v, mv->origin);
}

static struct volume *
find_by_id (struct volumes *vs, uint64_t id)
{
  size_t i;

  for (i = 0; i < vs->list.nr; ++i)
    if (vs->list.p[i]->id == id)
      return vs->list.p[i];
  return NULL;
}

/* Make a placeholder for a volume without a row that has snapshots.  Its
 * "allow" is not known, so only the pool's owner may read them.
 */
static struct volume *
add_lost_volume (struct load *ld, uint64_t id)
{
  struct meta_volume mv = {
    .id = id,
    .layer = id,
    .compress = "none",
    .dedup = "on",
    .allow = "",
  };

  assert (ld->salvage && find_by_id (ld->vs, id) == NULL);
  snprintf (mv.name, sizeof mv.name, "lost-%" PRIu64, id);
  if (damaged (ld,
               "volume %" PRIu64 " is lost; its snapshots are listed as "
               "those of %s",
               id, mv.name) == -1 ||
      make_volume (ld, &mv) == -1)
    return NULL;
  return find_by_id (ld->vs, id);
}

static struct volume *
make_snapshot (struct load *ld, const struct meta_snapshot *ms,
               struct volume *of)
{
  struct layer *layer = volumes_find_layer (ld->vs, ms->layer);
  struct volume *s;

  if (ld->salvage && layer == NULL)
    layer = add_lost_layer (ld->vs, ms->layer, of->block_size);
  if (layer && of->layer->lost)
    of->block_size = layer->block_size; /* the volume's may not be known */
  if (layer == NULL || layer->dying || !volume_is_name (ms->name) ||
      of->block_size != layer->block_size) {
    damaged (ld, "snapshot %" PRIu64 " is damaged", ms->id);
    errno = EIO;
    return NULL;
  }
  if (layer->lost &&
      damaged (ld, "snapshot %s@%s has lost its map", of->name, ms->name) == -1)
    return NULL;
  s = list_reserve (&of->snapshots, 1) == -1 ? NULL
                                             : snapshot_new (of, ms, layer);
  if (s) {
    map_freeze (ld->vs->pool->map, layer);
    WITH_LOCK (&ld->vs->lock);
    layer->nr_names++;
    list_insert (&of->snapshots, s);
  }
  return s;
}

/* A destroyed snapshot: a name for its clones' origin. */
static struct volume *
make_tombstone (struct load *ld, const struct meta_snapshot *ms)
{
  struct volumes *vs = ld->vs;
  struct volume *s = calloc (1, sizeof *s);

  if (s)
    s->label = strdup (ms->name);
  if (s == NULL || s->label == NULL ||
      list_reserve (&vs->tombstones, 1) == -1) {
    volume_free (s);
    return nbdedup_fail_null (ENOMEM, "no memory");
  }
  s->pool = vs->pool;
  s->is_snapshot = true;
  s->id = ms->id;
  s->size = ms->size;
  s->time = ms->time;
  s->gone = true;
  s->remains = ms->layer;
  WITH_LOCK (&vs->lock);
  list_insert (&vs->tombstones, s);
  return s;
}

static int
load_snapshot (void *opaque, const struct meta_snapshot *ms)
{
  struct load *ld = opaque;
  struct volume *of = NULL, *s;

  if (ms->volume) {
    of = find_by_id (ld->vs, ms->volume);
    if (of == NULL && ld->salvage)
      of = add_lost_volume (ld, ms->volume);
    if (of == NULL)
      return damaged (ld,
                      "snapshot %" PRIu64 " is of a volume that is "
                      "missing",
                      ms->id);
  }
  s = of ? make_snapshot (ld, ms, of) : make_tombstone (ld, ms);
  if (s == NULL)
    return ld->salvage && errno != ENOMEM ? 0 : -1;
  if (array_push (&ld->snapshots, &ld->nr_snapshots, s) == -1)
    return -1;
  return add_link (ld, s, ms->origin);
}

static int
compare_ids (const void *a, const void *b)
{
  const struct volume *x = *(struct volume *const *) a;
  const struct volume *y = *(struct volume *const *) b;

  return x->id < y->id ? -1 : x->id > y->id;
}

/* Does the line of origins from 's' on lead to 'v'?  Those that are set so far
 * form no circle, because set_origins asks before it sets one.
 */
static bool
leads_to (const struct volume *s, const struct volume *v)
{
  while (s && s != v)
    s = s->origin;
  return s != NULL;
}

static int
set_origins (struct load *ld)
{
  struct volume key, *k = &key, **found;
  size_t i;

  if (ld->nr_snapshots > 0)
    qsort (ld->snapshots, ld->nr_snapshots, sizeof *ld->snapshots, compare_ids);
  for (i = 0; i < ld->nr_links; ++i) {
    assert (ld->links[i].v->origin == NULL);
    key.id = ld->links[i].origin;
    found = ld->nr_snapshots == 0
      ? NULL
      : bsearch (&k, ld->snapshots, ld->nr_snapshots, sizeof *ld->snapshots,
                 compare_ids);
    if (found == NULL) {
      if (damaged (ld,
                   "snapshot %" PRIu64 ", the origin of a clone, is "
                   "missing",
                   key.id) == -1)
        return -1;
      continue;
    }
    /* A snapshot's origin is older than the snapshot. */
    if (leads_to (*found, ld->links[i].v)) {
      if (damaged (ld, "snapshot %" PRIu64 " is its own origin",
                   ld->links[i].v->id) == -1)
        return -1;
      continue;
    }
    WITH_LOCK (&ld->vs->lock);
    volume_set_origin_locked (ld->links[i].v, *found);
  }
  return 0;
}

/* A layer with children is frozen, with or without a name. */
static void
freeze_parents (struct volumes *vs)
{
  size_t i;

  for (i = 0; i < vs->layers.nr; ++i)
    if (vs->layers.p[i]->nr_children > 0)
      map_freeze (vs->pool->map, vs->layers.p[i]);
  WITH_LOCK (&vs->lock);
  layers_relink_locked (vs);
  volumes_assert_consistent_locked (vs);
}

/* A volume's head takes writes: it may have no child and no other name. */
static int
check_heads (struct load *ld)
{
  struct volumes *vs = ld->vs;
  struct layer *l;
  size_t i;

  for (i = 0; i < vs->list.nr; ++i) {
    l = vs->list.p[i]->layer;
    if (l->nr_children == 0 && l->nr_names == 1)
      continue;
    if (damaged (ld, "volume %s shares its layer", vs->list.p[i]->name) == -1)
      return -1;
    l->lost = true;
  }
  return 0;
}

static int
load_names (struct load *ld, int r)
{
  size_t i;

  for (i = 0; i < ld->nr; ++i) {
    if (r == 0)
      r = make_volume (ld, &ld->volumes[i]);
    free ((char *) ld->volumes[i].allow);
  }
  if (r == 0 && !ld->salvage)
    r = meta_snapshot_scan (ld->c, load_snapshot, ld);
  else if (r == 0) {
    r = meta_snapshot_salvage (ld->c, load_snapshot, ld);
    if (r == 1)
      r = damaged (ld, "a page of snapshots is damaged: some may be missing");
  }
  if (r == 0)
    r = set_origins (ld);
  if (r == 0 && !ld->salvage)
    r = check_orphans (ld);
  if (r == 0)
    r = check_heads (ld);
  if (r == 0)
    freeze_parents (ld->vs);
  free (ld->volumes);
  free (ld->snapshots);
  free (ld->links);
  return r;
}

int
volumes_load (struct volumes *vs, struct meta_conn *c)
{
  struct load ld = { .vs = vs, .c = c };
  int r;

  assert (vs->layers.nr == 0 && vs->list.nr == 0);
  r = meta_layer_scan (c, load_layer, &ld);
  if (r == 0)
    r = meta_layer_scan (c, link_layer, &ld);
  if (r == 0)
    r = check_circles (vs);
  if (r == 0)
    r = meta_volume_scan (c, load_volume, &ld);
  return load_names (&ld, r);
}

int
volumes_salvage (struct volumes *vs, struct meta_conn *c)
{
  struct load ld = { .vs = vs, .c = c, .salvage = true };
  int r;

  assert (vs->layers.nr == 0 && vs->list.nr == 0);
  r = meta_layer_salvage (c, load_layer, &ld);
  if (r == 1)
    r = damaged (&ld, "a page of layers is damaged: some are missing");
  if (r == 0 && meta_layer_salvage (c, link_layer, &ld) == -1)
    r = -1;
  spread_loss (vs);
  if (r == 0) {
    r = meta_volume_salvage (c, load_volume, &ld);
    if (r == 1)
      r = damaged (&ld, "a page of volumes is damaged: some may be missing");
  }
  if (load_names (&ld, r) == -1)
    return -1;
  return ld.nr_lost > 0;
}
