/* SPDX-License-Identifier: BSD-3-Clause */

/* Destroy volumes, with or without their snapshots, and snapshots: all names
 * given, or none.
 *
 * One transaction deletes the names; the caller waits only for that.  Later
 * folds free layers that nothing refers to.  A nameless layer that others
 * stand on stays, or merges (layers_settle).
 *
 * A snapshot that is the origin of clones leaves a tombstone (tombstone.c).
 */

#include <config.h>

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "core/alert-property.h"
#include "core/engine.h"
#include "core/txg.h"
#include "data/writeback.h"
#include "meta/meta.h"
#include "volume/volume-int.h"
#include "volume/volume-layers.h"
#include "volume/volume.h"

struct destroy {
  struct volumes *vs;
  struct volume **victims; /* owned array; a volume comes after all of
                                 * its snapshots */
  size_t nr;
  struct tombstones tombstones; /* deleted with their last clone */
  bool recursive, force;
  json_t *needs; /* dry run: not owned; options needed */
};

/* The command needs this option: fail, or in a dry run add it to 'needs'. */
static int __attribute__ ((format (printf, 3, 4)))
need (struct destroy *d, const char *option, const char *fmt, ...)
{
  char text[VOLUME_FULL_NAME_MAX + 512];
  va_list args;

  va_start (args, fmt);
  vsnprintf (text, sizeof text, fmt, args);
  va_end (args);
  if (d->needs == NULL)
    return nbdedup_fail (EBUSY, "%s", text);
  json_array_append_new (d->needs,
                         json_pack ("{s:s, s:s}", "option", option, "why",
                                    text));
  return 0;
}

/* The number of clones that will remain. */
static unsigned
clones_left (const struct destroy *d, const struct volume *s)
{
  unsigned n = s->nr_clones;
  size_t i;

  for (i = 0; i < d->nr; ++i)
    if (d->victims[i]->origin == s && !d->victims[i]->is_snapshot) {
      assert (n > 0);
      n--;
    }
  return n;
}

static bool
is_victim (const struct destroy *d, const struct volume *v)
{
  size_t i;

  for (i = 0; i < d->nr; ++i)
    if (d->victims[i] == v)
      return true;
  return false;
}

static int
add_victim (struct destroy *d, struct volume *v)
{
  if (is_victim (d, v))
    return 0;
  return array_push (&d->victims, &d->nr, v);
}

/* Requires -r, unless all its snapshots are named. */
static int
add_snapshots_of (struct destroy *d, struct volume *v)
{
  size_t i, nr = 0;

  for (i = 0; i < v->snapshots.nr; ++i)
    nr += !is_victim (d, v->snapshots.p[i]);
  if (nr > 0 && !d->recursive &&
      need (d, "-r", "volume %s has %zu snapshot%s: -r destroys them as well",
            v->name, nr, nr == 1 ? "" : "s") == -1)
    return -1;
  for (i = 0; i < v->snapshots.nr; ++i)
    if (add_victim (d, v->snapshots.p[i]) == -1)
      return -1;
  return 0;
}

static int
collect (struct destroy *d, const json_t *names)
{
  struct volume *v;
  json_t *name;
  size_t i;

  json_array_foreach (names, i, name) {
    v = volumes_find_any (d->vs, json_string_value (name));
    if (v == NULL || (v->is_snapshot && add_victim (d, v) == -1))
      return -1;
  }
  json_array_foreach (names, i, name) {
    v = volumes_find_any (d->vs, json_string_value (name));
    if (!v->is_snapshot &&
        (add_snapshots_of (d, v) == -1 || add_victim (d, v) == -1))
      return -1;
  }
  return 0;
}

static int
check_clones (struct destroy *d)
{
  char name[VOLUME_FULL_NAME_MAX];
  unsigned n;
  size_t i;

  for (i = 0; i < d->nr && !d->force; ++i) {
    assert (d->victims != NULL);
    n = d->victims[i]->is_snapshot ? clones_left (d, d->victims[i]) : 0;
    if (n > 0) {
      volume_full_name (d->victims[i], name);
      if (need (d, "--force",
                "%s has %u clone%s: --force destroys only the "
                "snapshot",
                name, n, n == 1 ? "" : "s") == -1)
        return -1;
    }
  }
  return 0;
}

static int
check_clients_locked (struct destroy *d)
{
  char name[VOLUME_FULL_NAME_MAX], clients[256];
  size_t i;

  assert_held (&d->vs->lock);
  for (i = 0; i < d->nr && !d->force; ++i)
    if (d->victims[i]->nr_clients > 0) {
      volume_full_name (d->victims[i], name);
      volume_describe_clients_locked (d->victims[i], clients, sizeof clients);
      if (need (d, "--force", "%s is in use by %s: --force disconnects them",
                name, clients) == -1)
        return -1;
    }
  return 0;
}

/* From here on no client can attach, and no request is accepted.  Attached
 * clients may leave at any time, and the last one frees the struct.  So the
 * command counts as a client until it is done.
 */
static int
cut_off (struct destroy *d)
{
  struct volume *v;
  size_t i;

  WITH_LOCK (&d->vs->lock);
  WITH_CONSISTENT (volumes, d->vs);

  if (check_clients_locked (d) == -1)
    return -1;
  for (i = 0; i < d->nr; ++i) {
    v = d->victims[i];
    assert (v->in_list && !v->gone);
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
  WITH_CONSISTENT (volumes, d->vs);

  for (i = d->nr; i-- > 0;) {
    v = d->victims[i];
    assert (v->gone && v->nr_clients > 0 && !v->in_list);
    v->gone = false;
    v->exclusive = volume_has_exclusive_client_locked (v);
    v->nr_clients--;
    list_insert (v->is_snapshot ? &v->of->snapshots : &d->vs->list, v);
  }
}

/* Take the lock: others read labels under volumes->lock without pool->admin. */
static void
set_label (struct volume *s, char *label)
{
  WITH_LOCK (&s->pool->volumes->lock);
  free (s->label);
  s->label = label;
}

/* Turn snapshots that are still an origin into tombstones, and collect the
 * tombstones that were kept only for the others.
 */
static int
leave_tombstones (struct destroy *d)
{
  CLEANUP_FREE struct volume **leaving = malloc ((d->nr + 1) *
                                                 sizeof (struct volume *));
  char name[VOLUME_FULL_NAME_MAX];
  struct volume *s;
  size_t i, nr = 0;
  int r = 0;

  if (leaving == NULL)
    return nbdedup_fail (ENOMEM, "no memory");

  for (i = 0; i < d->nr && r == 0; ++i) {
    s = d->victims[i];
    if (!s->is_snapshot || clones_left (d, s) + s->nr_heirs == 0)
      leaving[nr++] = s;
    else {
      volume_full_name (s, name);
      set_label (s, strdup (name));
      s->remains = s->layer->id;
      if (s->label == NULL)
        r = nbdedup_fail (ENOMEM, "no memory");
    }
  }
  if (r == 0)
    r = tombstones_collect (leaving, nr, &d->tombstones);
  if (r == -1)
    return -1;
  WITH_LOCK (&d->vs->lock);
  return list_reserve (&d->vs->tombstones, d->nr);
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
        r = alert_volume_put (c, v->id, ALERT_DEFAULT);
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
  return r == 0 ? tombstones_delete (&d->tombstones, c) : -1;
}

/* After the commit, and before any later fold, which may drop references. */
static void
destroy_done (void *arg)
{
  struct destroy *d = arg;
  struct volume *v;
  size_t i;

  {
    WITH_LOCK (&d->vs->lock);
    WITH_CONSISTENT (volumes, d->vs);

    for (i = 0; i < d->nr; ++i) {
      v = d->victims[i];
      assert (v->layer->nr_names > 0);
      v->layer->nr_names--;
      v->of = NULL;
      if (v->label)
        list_insert (&d->vs->tombstones, v);
      else
        volume_set_origin_locked (v, NULL);
    }
    tombstones_drop_locked (d->vs, &d->tombstones);
  }
  layers_settle (d->vs);
}

/* Free structs that are not needed any more. */
static void
release (struct destroy *d)
{
  size_t i;

  WITH_LOCK (&d->vs->lock);
  WITH_CONSISTENT (volumes, d->vs);

  for (i = d->nr; i-- > 0;) {
    assert (d->victims[i]->nr_clients > 0); /* cut_off's */
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
    writeback_settle (pool->writeback, d->victims[i]);
  if (leave_tombstones (d) == 0 &&
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
volume_destroy (struct nbdedup_pool *pool, const json_t *names, bool recursive,
                bool force, json_t *destroyed)
{
  struct destroy d = {
    .vs = pool->volumes,
    .recursive = recursive,
    .force = force,
  };
  json_t *list = json_array ();
  int r = collect (&d, names);

  assert_held (&pool->admin);
  if (r == 0) {
    list_victims (&d, list); /* before the structs are freed */
    r = run (pool, &d);
  }
  if (r == 0)
    json_array_extend (destroyed, list);
  json_decref (list);
  free (d.victims);
  free (d.tombstones.p);
  return r;
}

int
volume_destroy_dry (struct nbdedup_pool *pool, const json_t *names,
                    bool recursive, bool force, json_t *destroyed,
                    json_t *needs)
{
  struct destroy d = {
    .vs = pool->volumes,
    .recursive = recursive,
    .force = force,
    .needs = needs,
  };
  int r = collect (&d, names);

  if (r == 0)
    r = check_clones (&d);
  if (r == 0) {
    WITH_LOCK (&d.vs->lock);
    r = check_clients_locked (&d);
  }
  if (r == 0)
    list_victims (&d, destroyed);
  free (d.victims);
  return r;
}
