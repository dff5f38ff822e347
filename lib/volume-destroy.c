/* SPDX-License-Identifier: BSD-3-Clause */

/* Destroy a volume, with or without its snapshots, or a snapshot.
 *
 * Its names go in one transaction; that is all that the caller waits for.
 * What nothing refers to any more is given back by later folds, and a
 * nameless layer that something still stands on stays, or merges
 * (layers_settle).
 *
 * A snapshot that is the origin of clones leaves a ghost (ghost.c).
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "pool.h"
#include "volume-int.h"
#include "volume-layers.h"

struct destroy {
  struct volumes *vs;
  struct volume **victims;      /* owned array; a volume is the last */
  size_t nr;
  struct ghosts ghosts;         /* go with their last clone */
  bool force;
};

/* Clones that will be left. */
static unsigned
clones_left (const struct destroy *d, const struct volume *s)
{
  unsigned n = s->nr_clones;
  size_t i;

  for (i = 0; i < d->nr; ++i)
    if (d->victims[i]->origin == s && !d->victims[i]->is_snapshot)
      n--;
  return n;
}

static int
collect (struct destroy *d, struct volume *v, bool recursive)
{
  if (v->snapshots.nr > 0 && !recursive)
    return nbdedup_fail (EBUSY, "volume %s has %zu snapshot%s: -r destroys "
                         "them as well", v->name, v->snapshots.nr,
                         v->snapshots.nr == 1 ? "" : "s");
  d->victims = malloc ((v->snapshots.nr + 1) * sizeof *d->victims);
  if (d->victims == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  if (v->snapshots.nr > 0)
    memcpy (d->victims, v->snapshots.p,
            v->snapshots.nr * sizeof *d->victims);
  d->nr = v->snapshots.nr;
  d->victims[d->nr++] = v;
  return 0;
}

static int
check_clones (const struct destroy *d)
{
  char name[VOLUME_FULL_NAME_MAX];
  unsigned n;
  size_t i;

  for (i = 0; i < d->nr && !d->force; ++i) {
    n = d->victims[i]->is_snapshot ? clones_left (d, d->victims[i]) : 0;
    if (n > 0) {
      volume_full_name (d->victims[i], name);
      return nbdedup_fail (EBUSY, "%s has %u clone%s: --force destroys it, "
                           "they live on", name, n, n == 1 ? "" : "s");
    }
  }
  return 0;
}

/* From here on nobody attaches, and no request is accepted.  The clients
 * leave when they like, and the last one frees the struct: until we are
 * done we count as one.
 */
static int
cut_off (struct destroy *d)
{
  char name[VOLUME_FULL_NAME_MAX], clients[256];
  struct volume *v;
  size_t i;

  WITH_LOCK (&d->vs->lock);
  for (i = 0; i < d->nr && !d->force; ++i)
    if (d->victims[i]->nr_clients > 0) {
      volume_full_name (d->victims[i], name);
      volume_describe_clients_locked (d->victims[i], clients,
                                      sizeof clients);
      return nbdedup_fail (EBUSY, "%s is in use by %s; --force cuts them "
                           "off", name, clients);
    }
  for (i = 0; i < d->nr; ++i) {
    v = d->victims[i];
    list_remove (v->is_snapshot ? &v->of->snapshots : &d->vs->list, v);
    v->gone = true;
    v->nr_clients++;
  }
  return 0;
}

static void
take_back (struct destroy *d)
{
  struct volume *v;
  size_t i;

  WITH_LOCK (&d->vs->lock);
  for (i = d->nr; i-- > 0; ) {
    v = d->victims[i];
    v->gone = false;
    v->nr_clients--;
    list_insert (v->is_snapshot ? &v->of->snapshots : &d->vs->list, v);
  }
}

/* Labels are read under the lock alone. */
static void
set_label (struct volume *s, char *label)
{
  WITH_LOCK (&s->pool->volumes->lock);
  free (s->label);
  s->label = label;
}

/* What a snapshot leaves behind if something has it as origin; and which
 * ghosts have waited for these.
 */
static int
leave_ghosts (struct destroy *d)
{
  struct volume *s, **leaving = malloc (d->nr * sizeof *leaving);
  char name[VOLUME_FULL_NAME_MAX];
  size_t i, nr = 0;
  int r = leaving ? 0 : nbdedup_fail (ENOMEM, "no memory");

  for (i = 0; i < d->nr && r == 0; ++i) {
    s = d->victims[i];
    if (!s->is_snapshot || clones_left (d, s) + s->nr_heirs == 0)
      leaving[nr++] = s;
    else {
      volume_full_name (s, name);
      set_label (s, strdup (name));
      if (s->label == NULL)
        r = nbdedup_fail (ENOMEM, "no memory");
    }
  }
  if (r == 0)
    r = ghosts_collect (leaving, nr, &d->ghosts);
  free (leaving);
  if (r == -1)
    return -1;
  WITH_LOCK (&d->vs->lock);
  return list_reserve (&d->vs->ghosts, d->nr);
}

static void
drop_labels (struct destroy *d)
{
  size_t i;

  for (i = 0; i < d->nr; ++i)
    set_label (d->victims[i], NULL);
}

static int
destroy_in_transaction (void *arg, struct meta_conn *c,
                        struct meta_state *state)
{
  struct destroy *d = arg;
  struct meta_snapshot ms;
  struct volume *v;
  size_t i;
  int r = 0;

  (void) state;
  for (i = 0; i < d->nr && r == 0; ++i) {
    v = d->victims[i];
    if (!v->is_snapshot) {
      r = meta_volume_delete (c, v->id);
      if (r == 0)
        r = meta_layer_set_dying (c, v->layer->id);
    }
    else if (v->label == NULL)
      r = meta_snapshot_delete (c, v->id);
    else {
      snapshot_to_meta (v, &ms);
      ms.volume = 0;
      r = meta_snapshot_put (c, &ms);
    }
  }
  return r == 0 ? ghosts_delete (&d->ghosts, c) : -1;
}

/* After the commit, before any later fold: those give references back. */
static void
destroy_done (void *arg)
{
  struct destroy *d = arg;
  struct volume *v;
  size_t i;

  {
    WITH_LOCK (&d->vs->lock);
    for (i = 0; i < d->nr; ++i) {
      v = d->victims[i];
      v->layer->nr_names--;
      v->of = NULL;
      if (v->label)
        list_insert (&d->vs->ghosts, v);
      else
        volume_set_origin_locked (v, NULL);
    }
    ghosts_drop_locked (&d->ghosts);
  }
  layers_settle (d->vs);
}

/* Structs that nobody needs any more. */
static void
release (struct destroy *d)
{
  size_t i;

  WITH_LOCK (&d->vs->lock);
  for (i = d->nr; i-- > 0; ) {
    d->victims[i]->nr_clients--;
    volume_release_locked (d->victims[i]);
  }
}

static int
run (struct nbdedup_pool *pool, struct destroy *d)
{
  size_t i;

  if (check_clones (d) == -1 || cut_off (d) == -1)
    return -1;
  for (i = 0; i < d->nr; ++i)
    wb_forget (pool->writeback, d->victims[i]);
  if (leave_ghosts (d) == 0 &&
      txg_run (pool->txg, destroy_in_transaction, destroy_done, d) == 0) {
    release (d);
    return 0;
  }
  drop_labels (d);
  take_back (d);
  return -1;
}

static void
list_victims (const struct destroy *d, json_t *names)
{
  char full[VOLUME_FULL_NAME_MAX];
  size_t i;

  for (i = 0; i < d->nr; ++i) {
    volume_full_name (d->victims[i], full);
    json_array_append_new (names, json_string (full));
  }
}

int
volume_destroy (struct nbdedup_pool *pool, const char *name, bool recursive,
                bool force, json_t *names)
{
  struct destroy d = { .vs = pool->volumes, .force = force };
  struct volume *v = volumes_find_any (pool->volumes, name);
  json_t *list = json_array ();
  int r = -1;

  if (v && collect (&d, v, recursive) == 0) {
    list_victims (&d, list);    /* before the structs go */
    r = run (pool, &d);
  }
  if (r == 0)
    json_array_extend (names, list);
  json_decref (list);
  free (d.victims);
  free (d.ghosts.p);
  return r;
}

int
volume_destroy_dry (struct nbdedup_pool *pool, const char *name,
                    bool recursive, bool force, json_t *names)
{
  struct destroy d = { .vs = pool->volumes, .force = force };
  struct volume *v = volumes_find_any (pool->volumes, name);
  int r = -1;

  if (v && collect (&d, v, recursive) == 0 && check_clones (&d) == 0) {
    list_victims (&d, names);
    r = 0;
  }
  free (d.victims);
  free (d.ghosts.p);
  return r;
}
