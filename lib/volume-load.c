/* SPDX-License-Identifier: BSD-3-Clause */

/* The volumes, snapshots and layers of a pool that is being opened.
 *
 * The rows refer to each other by id, in any order: layers first, then what
 * stands on them, then the links.  A row that refers to nothing is damage,
 * but for a dying layer's parent, which may be gone already.
 */

#include <config.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "check.h"
#include "cleanup.h"
#include "error.h"
#include "pool.h"
#include "property.h"
#include "volume-int.h"
#include "volume-layers.h"

/* What refers to a snapshot as its origin. */
struct link {
  struct volume *v;
  uint64_t origin;
};

struct load {
  struct volumes *vs;
  struct meta_conn *c;
  struct meta_volume *volumes;  /* owned, allow too */
  size_t nr;
  struct volume **snapshots;    /* owned array; ascending by id, later */
  size_t nr_snapshots;
  struct link *links;           /* owned */
  size_t nr_links;
};

static int
load_layer (void *opaque, const struct meta_layer *ml)
{
  struct load *ld = opaque;
  struct layer *l;

  if (check_block_size (ml->block_size, 0) == -1)
    return nbdedup_fail (EIO, "pool.db: layer %" PRIu64 " has block size %"
                         PRIu32, ml->id, ml->block_size);
  if (layers_reserve (ld->vs, 1) == -1 || (l = layer_new (ml)) == NULL)
    return -1;
  WITH_LOCK (&ld->vs->lock);
  layers_add_locked (ld->vs, l, NULL);
  return 0;
}

/* A second pass: a parent need not be older than its child. */
static int
link_layer (void *opaque, const struct meta_layer *ml)
{
  struct load *ld = opaque;
  struct layer *l, *parent;

  if (ml->parent == 0 || ml->dying)
    return 0;
  WITH_LOCK (&ld->vs->lock);
  l = layers_find_locked (ld->vs, ml->id);
  parent = layers_find_locked (ld->vs, ml->parent);
  if (l == NULL || parent == NULL || parent == l || parent->dying ||
      parent->block_size != l->block_size)
    return nbdedup_fail (EIO, "pool.db: layer %" PRIu64 " has a parent that "
                         "is missing or cannot be one", ml->id);
  l->parent = parent;
  parent->nr_children++;
  return 0;
}

/* A circle of parents would never end.  Brent's way: a mark that waits,
 * further on each time.
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
      return nbdedup_fail (EIO, "pool.db: layer %" PRIu64 " is below "
                           "itself", l->id);
  }
  return 0;
}

static int
load_volume (void *opaque, const struct meta_volume *mv)
{
  struct load *ld = opaque;
  struct meta_volume *p;

  p = array_add (&ld->volumes, &ld->nr, sizeof *p);
  if (p == NULL)
    return -1;
  *p = *mv;
  p->allow = strdup (mv->allow);
  return p->allow ? 0 : nbdedup_fail (ENOMEM, "no memory");
}

static int
add_link (struct load *ld, struct volume *v, uint64_t origin)
{
  struct link *l;

  if (origin == 0)
    return 0;
  l = array_add (&ld->links, &ld->nr_links, sizeof *l);
  if (l == NULL)
    return -1;
  *l = (struct link) { v, origin };
  return 0;
}

static int
make_volume (struct load *ld, const struct meta_volume *mv)
{
  struct volumes *vs = ld->vs;
  CLEANUP_FREE char *domain = NULL;
  struct layer *layer = volumes_find_layer (vs, mv->layer);
  struct volume *v;

  if (layer == NULL || layer->dying || !volume_is_name (mv->name))
    return nbdedup_fail (EIO, "pool.db: volume %" PRIu64 " is damaged",
                         mv->id);
  if (meta_domain_name (ld->c, mv->domain, &domain) == -1 ||
      list_reserve (&vs->list, 1) == -1)
    return -1;
  v = volume_new (vs->pool, mv, domain, layer);
  if (v == NULL)
    return -1;
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

static struct volume *
make_snapshot (struct load *ld, const struct meta_snapshot *ms,
               struct volume *of)
{
  struct layer *layer = volumes_find_layer (ld->vs, ms->layer);
  struct volume *s;

  if (layer == NULL || layer->dying || !volume_is_name (ms->name) ||
      of->block_size != layer->block_size)
    return nbdedup_fail_null (EIO, "pool.db: snapshot %" PRIu64 " is damaged",
                              ms->id);
  s = list_reserve (&of->snapshots, 1) == -1 ? NULL
    : snapshot_new (of, ms, layer);
  if (s) {
    layer->nr_names++;
    map_freeze (ld->vs->pool->map, layer);
    WITH_LOCK (&ld->vs->lock);
    list_insert (&of->snapshots, s);
  }
  return s;
}

/* A destroyed snapshot: a name for its clones' origin. */
static struct volume *
make_ghost (struct load *ld, const struct meta_snapshot *ms)
{
  struct volumes *vs = ld->vs;
  struct volume *s = calloc (1, sizeof *s);

  if (s)
    s->label = strdup (ms->name);
  if (s == NULL || s->label == NULL ||
      list_reserve (&vs->ghosts, 1) == -1) {
    volume_free (s);
    return nbdedup_fail_null (ENOMEM, "no memory");
  }
  s->pool = vs->pool;
  s->is_snapshot = true;
  s->id = ms->id;
  s->size = ms->size;
  s->time = ms->time;
  s->gone = true;
  WITH_LOCK (&vs->lock);
  list_insert (&vs->ghosts, s);
  return s;
}

static int
load_snapshot (void *opaque, const struct meta_snapshot *ms)
{
  struct load *ld = opaque;
  struct volume *of = NULL, *s, **p;

  if (ms->volume) {
    of = find_by_id (ld->vs, ms->volume);
    if (of == NULL)
      return nbdedup_fail (EIO, "pool.db: snapshot %" PRIu64 " is of a "
                           "volume that is missing", ms->id);
  }
  s = of ? make_snapshot (ld, ms, of) : make_ghost (ld, ms);
  if (s == NULL)
    return -1;
  p = array_add (&ld->snapshots, &ld->nr_snapshots, sizeof *p);
  if (p == NULL)
    return -1;
  *p = s;
  return add_link (ld, s, ms->origin);
}

static int
compare_ids (const void *a, const void *b)
{
  const struct volume *x = *(struct volume *const *) a;
  const struct volume *y = *(struct volume *const *) b;

  return x->id < y->id ? -1 : x->id > y->id;
}

static int
set_origins (struct load *ld)
{
  struct volume key, *k = &key, **found;
  size_t i;

  WITH_LOCK (&ld->vs->lock);
  if (ld->nr_snapshots > 0)
    qsort (ld->snapshots, ld->nr_snapshots, sizeof *ld->snapshots,
           compare_ids);
  for (i = 0; i < ld->nr_links; ++i) {
    key.id = ld->links[i].origin;
    found = ld->nr_snapshots == 0 ? NULL :
      bsearch (&k, ld->snapshots, ld->nr_snapshots, sizeof *ld->snapshots,
               compare_ids);
    if (found == NULL)
      return nbdedup_fail (EIO, "pool.db: snapshot %" PRIu64 ", the origin "
                           "of a clone, is missing", key.id);
    volume_set_origin_locked (ld->links[i].v, *found);
  }
  return 0;
}

/* Whatever has children is frozen, nameless or not. */
static void
freeze_parents (struct volumes *vs)
{
  size_t i;

  for (i = 0; i < vs->layers.nr; ++i)
    if (vs->layers.p[i]->nr_children > 0)
      map_freeze (vs->pool->map, vs->layers.p[i]);
  WITH_LOCK (&vs->lock);
  layers_relink_locked (vs);
}

/* A volume's head takes writes: nothing else may stand on it or name it. */
static int
check_heads (struct volumes *vs)
{
  struct layer *l;
  size_t i;

  for (i = 0; i < vs->list.nr; ++i) {
    l = vs->list.p[i]->layer;
    if (l->nr_children > 0 || l->nr_names != 1)
      return nbdedup_fail (EIO, "pool.db: volume %s shares its layer",
                           vs->list.p[i]->name);
  }
  return 0;
}

int
volumes_load (struct volumes *vs, struct meta_conn *c)
{
  struct load ld = { .vs = vs, .c = c };
  size_t i;
  int r;

  r = meta_layer_scan (c, load_layer, &ld);
  if (r == 0)
    r = meta_layer_scan (c, link_layer, &ld);
  if (r == 0)
    r = check_circles (vs);
  if (r == 0)
    r = meta_volume_scan (c, load_volume, &ld);
  for (i = 0; i < ld.nr; ++i) {
    if (r == 0)
      r = make_volume (&ld, &ld.volumes[i]);
    free ((char *) ld.volumes[i].allow);
  }
  if (r == 0)
    r = meta_snapshot_scan (c, load_snapshot, &ld);
  if (r == 0)
    r = set_origins (&ld);
  if (r == 0)
    r = check_heads (vs);
  if (r == 0)
    freeze_parents (vs);
  free (ld.volumes);
  free (ld.snapshots);
  free (ld.links);
  return r;
}
