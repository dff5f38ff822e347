/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "core/engine.h"
#include "data/volume-types.h"
#include "drift/view.h"
#include "meta/meta.h"

/* Call 'look' after so many rows, which take a millisecond, or a second on a
 * disk that seeks for each.
 */
#define LOOK_ROWS 64

static int
load_layer (void *opaque, const struct meta_layer *ml)
{
  struct view *v = opaque;
  struct view_layer *l = array_add (&v->layers, &v->nr_layers, sizeof *l);

  if (l == NULL)
    return -1;
  l->id = ml->id;
  l->branch = ml->branch;
  l->seq = ml->seq;
  l->overlap = ml->overlap;
  l->block_size = ml->block_size;
  l->dying = ml->dying;
  l->pointers = ml->pointers;
  l->blocks = ml->blocks;
  return 0;
}

static struct view_layer *
find_layer (const struct view *v, uint64_t id)
{
  size_t i = array_position (v->nr_layers, k, v->layers[k].id < id);

  return i < v->nr_layers && v->layers[i].id == id ? &v->layers[i] : NULL;
}

/* The rows come by id: a second scan finds every parent. */
static int
link_layer (void *opaque, const struct meta_layer *ml)
{
  struct view *v = opaque;
  struct view_layer *l = find_layer (v, ml->id), *parent;

  if (ml->parent == 0)
    return 0;
  parent = find_layer (v, ml->parent);
  if (parent == NULL) {
    l->is_orphan = true;
    return 0;
  }
  l->parent = parent;
  if (!l->dying) {
    l->sibling = parent->children;
    parent->children = l;
    parent->nr_children++;
  }
  return 0;
}

/* A missing parent is no damage if its child is about to die, although the
 * child's row is not marked yet (volume-load.c).  Below a name it is damage.
 */
static int
check_orphans (const struct view *v)
{
  const struct view_layer *l;
  size_t i;

  for (i = 0; i < v->nr_names; ++i)
    for (l = v->names[i].layer; l; l = l->parent)
      if (l->is_orphan)
        return nbdedup_fail (EIO,
                             "pool.db: the parent of layer %" PRIu64 " is "
                             "missing: run nbdedup check",
                             l->id);
  return 0;
}

static struct view_name *
add_name (struct view *v, uint64_t layer, const char *name)
{
  struct view_name *n = array_add (&v->names, &v->nr_names, sizeof *n);

  if (n == NULL)
    return NULL;
  n->name = strdup (name);
  if (n->name == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  if (layer == 0)
    return n;
  n->layer = find_layer (v, layer);
  if (n->layer == NULL)
    return nbdedup_fail_null (EIO,
                              "pool.db: the layer of %s is missing: run "
                              "nbdedup check",
                              name);
  n->layer->nr_names++;
  return n;
}

static int
load_volume (void *opaque, const struct meta_volume *mv)
{
  struct view_name *n = add_name (opaque, mv->layer, mv->name);

  if (n == NULL)
    return -1;
  n->id = mv->id;
  n->size = mv->size;
  n->origin_id = mv->origin;
  n->domain = mv->domain;
  return compression_parse (mv->compress, &n->compression);
}

static int
compare_names (const void *a, const void *b)
{
  const struct view_name *x = a, *y = b;

  return strverscmp (x->name, y->name);
}

/* As "list" has them; pool.db has no natural order. */
static void
sort_volumes (struct view *v)
{
  if (v->nr_names > 0)
    qsort (v->names, v->nr_names, sizeof *v->names, compare_names);
}

/* Snapshots come by volume, volumes by name. */
struct snapshots {
  struct view *v;
  struct place *places; /* owned; of the volumes, ascending by id */
  size_t nr;
  const struct place *last;
};

struct place {
  uint64_t id;
  size_t index; /* in v->names, which moves as it grows */
};

static int
compare_places (const void *a, const void *b)
{
  const struct place *x = a, *y = b;

  return x->id < y->id ? -1 : x->id > y->id;
}

static int
find_places (struct snapshots *s)
{
  size_t i;

  s->nr = s->v->nr_names;
  s->places = malloc ((s->nr + 1) * sizeof *s->places);
  if (s->places == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (i = 0; i < s->nr; ++i)
    s->places[i] = (struct place) { s->v->names[i].id, i };
  if (s->nr > 0)
    qsort (s->places, s->nr, sizeof *s->places, compare_places);
  return 0;
}

/* The name of the volume whose snapshot is added next. */
static const char *
volume_name (struct snapshots *s, uint64_t id)
{
  struct place key = { id, 0 };
  struct view_name *n;

  if (s->last == NULL || s->last->id != id)
    s->last = s->nr == 0
      ? NULL
      : bsearch (&key, s->places, s->nr, sizeof key, compare_places);
  if (s->last == NULL)
    return nbdedup_fail_null (EIO,
                              "pool.db: volume %" PRIu64 ", which has "
                              "snapshots, is missing: run nbdedup check",
                              id);
  n = &s->v->names[s->last->index];
  if (n->nr_snapshots++ == 0)
    n->first_snapshot = s->v->nr_names;
  return n->name;
}

static int
load_snapshot (void *opaque, const struct meta_snapshot *ms)
{
  struct snapshots *s = opaque;
  char name[VOLUME_LABEL_MAX];
  const char *of = NULL;
  struct view_name *n;

  if (ms->volume && (of = volume_name (s, ms->volume)) == NULL)
    return -1;
  snprintf (name, sizeof name, "%s%s%s%s", of ? of : "", of ? "@" : "",
            ms->name, of ? "" : VOLUME_DESTROYED);
  n = add_name (s->v, of ? ms->layer : 0, name);
  if (n == NULL)
    return -1;
  if (of == NULL)
    n->remains = find_layer (s->v, ms->layer);
  n->id = ms->id;
  n->is_snapshot = true;
  n->volume_id = ms->volume;
  n->size = ms->size;
  n->time = ms->time;
  n->origin_id = ms->origin;
  return 0;
}

/* Clear 'remains' if the layer has fewer than two children: with one it merges,
 * and rows may be moving already.
 */
static void
check_remains (struct view *v)
{
  const struct view_layer *l;
  size_t i;

  for (i = 0; i < v->nr_names; ++i) {
    l = v->names[i].remains;
    if (l && (l->dying || l->nr_names > 0 || l->nr_children < 2))
      v->names[i].remains = NULL;
  }
}

static int
compare_by_id (const void *a, const void *b)
{
  const struct view_name *x = *(struct view_name *const *) a;
  const struct view_name *y = *(struct view_name *const *) b;

  return x->id < y->id ? -1 : x->id > y->id;
}

/* Ids are never reused, and volumes and snapshots share them. */
static int
link_origins (struct view *v)
{
  struct view_name **by_id = malloc ((v->nr_names + 1) * sizeof *by_id);
  struct view_name key, *k = &key, **found;
  size_t i;
  int r = 0;

  if (by_id == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (i = 0; i < v->nr_names; ++i)
    by_id[i] = &v->names[i];
  if (v->nr_names > 0)
    qsort (by_id, v->nr_names, sizeof *by_id, compare_by_id);
  for (i = 0; i < v->nr_names && r == 0; ++i) {
    key.id = v->names[i].origin_id;
    if (key.id == 0)
      continue;
    found = bsearch (&k, by_id, v->nr_names, sizeof *by_id, compare_by_id);
    if (found == NULL || !(*found)->is_snapshot)
      r = nbdedup_fail (EIO,
                        "pool.db: snapshot %" PRIu64 ", the origin of "
                        "%s, is missing: run nbdedup check",
                        key.id, v->names[i].name);
    else {
      v->names[i].origin = *found;
      (*found)->is_origin = true;
    }
  }
  free (by_id);
  return r;
}

int
view_open (struct nbdedup_pool *pool, struct view *v)
{
  struct snapshots s = { .v = v };
  int r = -1;

  assert_held (&pool->admin);
  *v = (struct view) {
    .meta = pool->meta,
    .dir = pool->path,
    .sector_bytes = pool->sector_bytes,
  };
  if ((v->c = meta_frozen_open (pool->meta)) != NULL &&
      meta_layer_scan (v->c, load_layer, v) == 0 &&
      meta_layer_scan (v->c, link_layer, v) == 0 &&
      meta_volume_scan (v->c, load_volume, v) == 0) {
    sort_volumes (v);
    if (find_places (&s) == 0 &&
        meta_snapshot_scan (v->c, load_snapshot, &s) == 0 &&
        check_orphans (v) == 0) {
      check_remains (v);
      r = link_origins (v);
    }
  }
  free (s.places);
  if (r == -1)
    view_close (v);
  return r;
}

int
view_check (const struct view *v)
{
  return meta_frozen_check (v->c);
}

void
view_close (struct view *v)
{
  size_t i;

  if (v->c)
    meta_frozen_close (v->meta, v->c);
  for (i = 0; i < v->nr_names; ++i)
    free (v->names[i].name);
  free (v->names);
  free (v->layers);
  memset (v, 0, sizeof *v);
}

int
view_look (struct view *v)
{
  if (++v->rows % LOOK_ROWS != 0 || v->look == NULL)
    return 0;
  return v->look (v->opaque);
}

struct view_name *
view_find (struct view *v, const char *name)
{
  size_t i;

  for (i = 0; i < v->nr_names; ++i)
    if (v->names[i].layer && strcmp (v->names[i].name, name) == 0)
      return &v->names[i];
  return nbdedup_fail_null (ENOENT, "there is no %s '%.*s'",
                            strchr (name, '@') ? "snapshot" : "volume",
                            VOLUME_FULL_NAME_MAX, name);
}

int
view_is_clone_of (const struct view *v, const struct view_name *volume,
                  const struct view_name *golden)
{
  const struct view_name *n;
  size_t steps = 0;

  if (volume->is_snapshot || volume->id == golden->volume_id)
    return 0;
  for (n = volume->origin; n; n = n->origin) {
    if (n == golden)
      return 1;
    if (++steps > v->nr_names)
      return nbdedup_fail (EIO,
                           "pool.db: %s is its own origin: run nbdedup "
                           "check",
                           volume->name);
  }
  return 0;
}
