/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "core/engine.h"
#include "meta/meta.h"
#include "volume/allow.h"
#include "volume/volume-int.h"
#include "volume/volume.h"

bool
volume_is_name (const char *s)
{
  size_t n = strlen (s);

  /* "." and "..": programs may use the name as that of a file. */
  return n >= 1 && n <= META_NAME_MAX && strspn (s, ".") != n &&
    strspn (s,
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
            "0123456789._-") == n;
}

int
volume_check_name (const char *name)
{
  const char *at = strchr (name, '@');

  if (at != NULL && at != name && at[1] != '\0')
    return nbdedup_fail (EINVAL,
                         "'%.64s' names a snapshot: give the name of "
                         "a volume, which has no @",
                         name);
  if (!volume_is_name (name))
    return nbdedup_fail (EINVAL,
                         "'%.64s' is not a volume's name: letters, "
                         "digits, '.', '_', '-', at most 255, not all dots",
                         name);
  return 0;
}

int
snapshot_name_parse (const char *s, struct snapshot_name *name)
{
  const char *at = strchr (s, '@');

  if (at == NULL)
    return nbdedup_fail (EINVAL,
                         "'%.64s' is not a snapshot's name, which is "
                         "VOLUME@NAME",
                         s);
  if ((size_t) (at - s) > META_NAME_MAX || strlen (at + 1) > META_NAME_MAX)
    return nbdedup_fail (EINVAL, "'%.64s...': the name is too long", s);
  snprintf (name->volume, sizeof name->volume, "%.*s", (int) (at - s), s);
  snprintf (name->snapshot, sizeof name->snapshot, "%s", at + 1);
  if (!volume_is_name (name->volume) || !volume_is_name (name->snapshot))
    return nbdedup_fail (EINVAL,
                         "'%.64s' is not a snapshot's name: letters, "
                         "digits, '.', '_', '-' on both sides of the @",
                         s);
  return 0;
}

json_t *
volume_origin_json (const struct volume *v)
{
  char label[VOLUME_LABEL_MAX];

  if (v->origin == NULL)
    return json_null ();
  volume_label (v->origin, label);
  return json_string (label);
}

/*----------------------------------------------------------------------
 * Lists
 */

/* Where the name is, or would be inserted, in natural order: desk2 comes before
 * desk10.
 */
static size_t
list_position (const struct volume_list *list, const char *name)
{
  return array_position (list->nr, i, strverscmp (list->p[i]->name, name) < 0);
}

struct volume *
list_find (const struct volume_list *list, const char *name)
{
  size_t i = list_position (list, name);

  return i < list->nr && strcmp (list->p[i]->name, name) == 0 ? list->p[i]
                                                              : NULL;
}

int
list_reserve (struct volume_list *list, size_t nr)
{
  return array_reserve (&list->p, &list->cap, list->nr + nr, sizeof *list->p);
}

int
volumes_reserve (struct volumes *vs, size_t nr)
{
  WITH_LOCK (&vs->lock);
  return list_reserve (&vs->list, nr);
}

void
list_insert (struct volume_list *list, struct volume *v)
{
  size_t i = list_position (list, v->name);

  assert (list->nr < list->cap);
  memmove (&list->p[i + 1], &list->p[i], (list->nr - i) * sizeof *list->p);
  list->p[i] = v;
  list->nr++;
  v->in_list = true;
}

void
list_remove (struct volume_list *list, struct volume *v)
{
  size_t i = list_position (list, v->name);

  assert (v->in_list && list->nr > 0);
  while (list->p[i] != v) /* tombstones may have one name */
    i++;
  list->nr--;
  memmove (&list->p[i], &list->p[i + 1], (list->nr - i) * sizeof *list->p);
  v->in_list = false;
}

/*----------------------------------------------------------------------
 * The volumes
 */

struct volumes *
volumes_new (struct nbdedup_pool *pool)
{
  struct volumes *vs = calloc (1, sizeof *vs);

  if (vs == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  vs->pool = pool;
  lock_init (&vs->lock);
  return vs;
}

void
volume_set_layer (struct volume *v, struct layer *layer)
{
  struct layer *old = v->layer;

  if (layer)
    layer->nr_structs++;
  v->layer = layer;
  if (old) {
    assert (old->nr_structs > 0);
    old->nr_structs--;
  }
}

void
volume_free (struct volume *v)
{
  if (v == NULL)
    return;
  volume_set_layer (v, NULL);
  free (v->snapshots.p);
  free (v->domain_name);
  free (v->allow);
  free (v->label);
  free (v->io_past);
  dirty_blocks_destroy (&v->dirty);
  writers_destroy (&v->writers);
  free (v);
}

void
volume_release_locked (struct volume *v)
{
  assert_held (&v->pool->volumes->lock);
  if (!v->in_list && v->nr_clients == 0 && v->nr_clones == 0 &&
      v->nr_heirs == 0)
    volume_free (v);
}

static void
free_list (struct volume_list *list)
{
  size_t i;

  for (i = 0; i < list->nr; ++i) {
    assert (list->p[i]->nr_clients == 0);
    free_list (&list->p[i]->snapshots);
    list->p[i]->snapshots = (struct volume_list) { NULL, 0, 0 };
    volume_free (list->p[i]);
  }
  free (list->p);
}

void
volumes_free (struct volumes *vs)
{
  size_t i;

  if (vs == NULL)
    return;
  free_list (&vs->list);
  free_list (&vs->tombstones);
  for (i = 0; i < vs->layers.nr; ++i)
    free (vs->layers.p[i]);
  free (vs->layers.p);
  lock_destroy (&vs->lock);
  free (vs);
}

static void
init_lists (struct volume *v)
{
  LIST_INIT (&v->clients);
  dirty_blocks_init (&v->dirty);
  writers_init (&v->writers);
}

struct volume *
volume_new (struct nbdedup_pool *pool, const struct meta_volume *mv,
            const char *domain_name, struct layer *layer)
{
  static _Atomic uint64_t incarnations;
  struct volume *v = calloc (1, sizeof *v);

  if (v == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  v->pool = pool;
  v->incarnation = incarnations++;
  v->id = mv->id;
  snprintf (v->name, sizeof v->name, "%s", mv->name);
  volume_set_layer (v, layer);
  v->block_size = layer->block_size;
  v->size = mv->size;
  v->tail_dirty = mv->tail_dirty;
  v->importing = mv->importing;
  v->domain = mv->domain;
  v->domain_name = strdup (domain_name);
  v->allow = strdup (mv->allow);
  init_lists (v);
  if (v->domain_name == NULL || v->allow == NULL) {
    volume_free (v);
    return nbdedup_fail_null (ENOMEM, "no memory");
  }
  if (compression_parse (mv->compress, &v->compression) == -1 ||
      dedup_parse (mv->dedup, &v->dedup) == -1) {
    volume_free (v);
    return NULL;
  }
  return v;
}

struct volume *
snapshot_new (struct volume *of, const struct meta_snapshot *ms,
              struct layer *layer)
{
  struct volume *s = calloc (1, sizeof *s);

  assert (!of->is_snapshot && of->block_size == layer->block_size);
  if (s == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  s->pool = of->pool;
  s->is_snapshot = true;
  s->of = of;
  s->id = ms->id;
  snprintf (s->name, sizeof s->name, "%s", ms->name);
  volume_set_layer (s, layer);
  s->block_size = layer->block_size;
  s->size = ms->size;
  s->time = ms->time;
  init_lists (s);
  return s;
}

void
volume_set_origin_locked (struct volume *v, struct volume *origin)
{
  assert_held (&v->pool->volumes->lock);
  if (v->origin)
    --*(v->is_snapshot ? &v->origin->nr_heirs : &v->origin->nr_clones);
  v->origin = origin;
  if (origin)
    ++*(v->is_snapshot ? &origin->nr_heirs : &origin->nr_clones);
}

void
volume_to_meta (const struct volume *v, struct meta_volume *mv)
{
  assert (!v->is_snapshot);
  memset (mv, 0, sizeof *mv);
  mv->id = v->id;
  snprintf (mv->name, sizeof mv->name, "%s", v->name);
  mv->layer = v->layer->id;
  mv->size = v->size;
  mv->tail_dirty = v->tail_dirty;
  mv->importing = v->importing;
  compression_name (&v->compression, mv->compress);
  snprintf (mv->dedup, sizeof mv->dedup, "%s", dedup_name (v->dedup));
  mv->domain = v->domain;
  mv->allow = v->allow;
  mv->origin = v->origin ? v->origin->id : 0;
}

void
snapshot_to_meta (const struct volume *s, struct meta_snapshot *ms)
{
  assert (s->is_snapshot && (s->label != NULL || s->of != NULL));
  *ms = (struct meta_snapshot) {
    .id = s->id,
    .volume = s->of ? s->of->id : 0,
    .name = s->label ? s->label : s->name,
    .layer = s->label ? s->remains : s->layer->id,
    .size = s->size,
    .time = s->time,
    .origin = s->origin ? s->origin->id : 0,
  };
}

static struct volume *
find_volume_locked (struct volumes *vs, const char *name)
{
  struct volume *v = list_find (&vs->list, name);

  assert_held (&vs->lock);
  if (v)
    return v;
  /* No pool can have it. */
  if (!volume_is_name (name)) {
    volume_check_name (name);
    return NULL;
  }
  return nbdedup_fail_null (ENOENT, "there is no volume '%s'", name);
}

static struct volume *
find_snapshot_locked (struct volumes *vs, const char *name)
{
  struct snapshot_name n;
  struct volume *v, *s;

  if (snapshot_name_parse (name, &n) == -1)
    return NULL;
  v = find_volume_locked (vs, n.volume);
  if (v == NULL)
    return NULL;
  s = list_find (&v->snapshots, n.snapshot);
  return s ? s
           : nbdedup_fail_null (ENOENT, "volume %s has no snapshot '%s'",
                                n.volume, n.snapshot);
}

static struct volume *
find_any_locked (struct volumes *vs, const char *name)
{
  return strchr (name, '@') ? find_snapshot_locked (vs, name)
                            : find_volume_locked (vs, name);
}

struct volume *
volumes_find (struct volumes *vs, const char *name)
{
  assert_held (&vs->pool->admin);
  WITH_LOCK (&vs->lock);
  return find_volume_locked (vs, name);
}

struct volume *
volumes_find_snapshot (struct volumes *vs, const char *name)
{
  assert_held (&vs->pool->admin);
  WITH_LOCK (&vs->lock);
  return find_snapshot_locked (vs, name);
}

struct volume *
volumes_find_any (struct volumes *vs, const char *name)
{
  assert_held (&vs->pool->admin);
  WITH_LOCK (&vs->lock);
  return find_any_locked (vs, name);
}

/* Does a volume or snapshot stand on the layer? */
static bool
stands_on (const struct volume *v, const struct layer *layer, bool directly)
{
  struct layer *l = v->layer;

  while (!directly && l && l != layer)
    l = l->parent;
  return l == layer;
}

static const struct volume *
find_name_locked (const struct volumes *vs, const struct layer *layer,
                  bool directly)
{
  const struct volume *v;
  size_t i, j;

  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    for (j = 0; j < v->snapshots.nr; ++j)
      if (stands_on (v->snapshots.p[j], layer, directly))
        return v->snapshots.p[j];
    if (stands_on (v, layer, directly))
      return v;
  }
  return NULL;
}

struct layer *
volumes_describe_layer (struct volumes *vs, uint64_t branch, uint64_t seq,
                        char name[VOLUME_FULL_NAME_MAX])
{
  const struct volume *v;
  struct layer *l;
  size_t i;

  assert_held (&vs->pool->admin);
  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (l->branch != branch || l->seq != seq || l->gone)
      continue;
    v = find_name_locked (vs, l, true);
    if (v == NULL)
      v = find_name_locked (vs, l, false);
    if (v)
      volume_full_name (v, name);
    return v ? l : NULL;
  }
  return NULL;
}

/*----------------------------------------------------------------------
 * Attaching
 */

/* Two clients, of which at least one wants to be the only one; or one, while a
 * command needs the volume for itself.
 */
static int
fail_in_use_locked (const struct volume *v, const char *name)
{
  const struct nbdedup_volume *h = LIST_FIRST (&v->clients);
  char uid[32] = "";

  assert_held (&v->pool->volumes->lock);
  if (h == NULL)
    return nbdedup_fail (EBUSY,
                         "volume %s is being changed by a command: try again "
                         "when that has ended",
                         name);
  if (h->uid >= 0)
    snprintf (uid, sizeof uid, ", uid %" PRId64, h->uid);
  return nbdedup_fail (EBUSY,
                       "volume %s has a client already: %s%s: end that one "
                       "first, or serve the pool with attach=shared",
                       name,
                       h->tls_identity ? h->tls_identity
                         : h->is_admin ? "an import or export"
                         : h->peer[0]  ? h->peer
                                       : "one whose name is not known",
                       uid);
}

static int
attach_locked (struct volume *v, unsigned flags, struct nbdedup_volume *h)
{
  const char *allow = v->of ? v->of->allow : v->allow;
  char name[VOLUME_FULL_NAME_MAX];

  assert_held (&v->pool->volumes->lock);
  volume_full_name (v, name);
  if (!(flags & NBDEDUP_VOLUME_ADMIN) &&
      !allow_has (allow, h->uid, h->tls_identity))
    return nbdedup_fail (EACCES,
                         "volume %s: its property allow does not "
                         "name this client",
                         name);
  if (!(flags & NBDEDUP_VOLUME_ADMIN) && (v->of ? v->of : v)->importing)
    return nbdedup_fail (EBUSY,
                         "volume %s is being imported, or its import was "
                         "killed: if so, remove it with nbdedup destroy",
                         name);
  if (v->layer->lost) {
    /* A volume of size 0 has lost its row, too, and would get no request. */
    if (!(flags & NBDEDUP_VOLUME_LOST) || v->size == 0)
      return nbdedup_fail (EIO, "volume %s " VOLUME_LOST_TEXT, name);
    nbdedup_log (NBDEDUP_LOG_WARNING, "volume %s " VOLUME_LOST_TEXT, name);
  }
  if (v->exclusive || ((flags & NBDEDUP_VOLUME_EXCLUSIVE) && v->nr_clients))
    return fail_in_use_locked (v, name);
  assert (!v->gone); /* what is gone is not in a list */
  v->nr_clients++;
  LIST_INSERT_HEAD (&v->clients, h, link);
  h->lost = v->layer->lost;
  if (flags & NBDEDUP_VOLUME_EXCLUSIVE)
    v->exclusive = true;
  h->volume = v;
  return 0;
}

bool
volume_has_exclusive_client_locked (const struct volume *v)
{
  const struct nbdedup_volume *h;

  assert_held (&v->pool->volumes->lock);
  LIST_FOREACH (h, &v->clients, link)
    if (h->exclusive)
      return true;
  return false;
}

void
volume_describe_clients_locked (const struct volume *v, char *buf, size_t len)
{
  const struct nbdedup_volume *h;
  const char *separator = " (";
  size_t n;

  assert_held (&v->pool->volumes->lock);
  n = (size_t) snprintf (buf, len, "%u client%s", v->nr_clients,
                         v->nr_clients == 1 ? "" : "s");
  LIST_FOREACH (h, &v->clients, link) {
    if (n >= len)
      return;
    if (h->tls_identity)
      n += (size_t) snprintf (buf + n, len - n, "%s%s", separator,
                              h->tls_identity);
    else if (h->is_admin)
      n += (size_t) snprintf (buf + n, len - n, "%san nbdedup command",
                              separator);
    else if (h->uid >= 0)
      n += (size_t) snprintf (buf + n, len - n, "%suid %" PRId64, separator,
                              h->uid);
    else
      continue;
    separator = ", ";
  }
  if (n < len && *separator == ',')
    snprintf (buf + n, len - n, ")");
}

static void
handle_free (struct nbdedup_volume *h)
{
  if (h == NULL)
    return;
  free (h->io);
  free (h->tls_identity);
  free (h);
}

/* The volume keeps the counts of a client that leaves. */
static void
keep_counters_locked (struct volume *v, struct nbdedup_volume *h)
{
  assert_held (&v->pool->volumes->lock);
  if (v->io_past == NULL) {
    v->io_past = h->io;
    h->io = NULL;
  }
  else
    io_counters_add (v->io_past, h->io);
}

struct nbdedup_volume *
nbdedup_volume_open (struct nbdedup_pool *pool, const char *name,
                     unsigned flags, int64_t uid, const char *tls_identity)
{
  struct nbdedup_volume *h = calloc (1, sizeof *h);
  struct volume *v;

  if (h == NULL || (h->io = io_counters_new ()) == NULL ||
      (tls_identity && (h->tls_identity = strdup (tls_identity)) == NULL)) {
    handle_free (h);
    return nbdedup_fail_null (ENOMEM, "no memory");
  }
  h->uid = uid;
  h->is_admin = (flags & NBDEDUP_VOLUME_ADMIN) != 0;
  h->exclusive = (flags & NBDEDUP_VOLUME_EXCLUSIVE) != 0;
  {
    WITH_LOCK (&pool->volumes->lock);
    WITH_CONSISTENT (volumes, pool->volumes);

    v = find_any_locked (pool->volumes, name);
    if (v)
      attach_locked (v, flags, h);
  }
  if (h->volume == NULL) {
    handle_free (h);
    return NULL;
  }
  h->size = v->size;
  h->readonly = v->is_snapshot || (flags & NBDEDUP_VOLUME_READONLY) != 0 ||
    pool->settings.read_only != NBDEDUP_READ_ONLY_OFF;
  return h;
}

void
nbdedup_volume_set_peer (struct nbdedup_volume *h, const char *peer)
{
  WITH_LOCK (&h->volume->pool->volumes->lock);
  snprintf (h->peer, sizeof h->peer, "%s", peer);
}

void
nbdedup_volume_close (struct nbdedup_volume *h)
{
  struct volume *v;

  if (h == NULL)
    return;
  v = h->volume;
  writers_forget (h);
  {
    WITH_LOCK (&v->pool->volumes->lock);
    WITH_CONSISTENT (volumes, v->pool->volumes);

    assert (v->nr_clients > 0);
    if (h->exclusive && !v->gone) /* else a command keeps others out */
      v->exclusive = false;
    LIST_REMOVE (h, link);
    v->nr_clients--;
    keep_counters_locked (v, h);
    volume_release_locked (v);
  }
  handle_free (h);
}

int
nbdedup_pool_list (struct nbdedup_pool *pool,
                   int (*fn) (void *opaque, const char *name, uint64_t size,
                              bool readonly),
                   void *opaque)
{
  bool readonly = pool->settings.read_only != NBDEDUP_READ_ONLY_OFF;
  struct volumes *vs = pool->volumes;
  char name[VOLUME_FULL_NAME_MAX];
  struct volume *v, *s;
  size_t i, j;
  int r;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    if (v->importing)
      continue; /* no client may have it */
    if ((r = fn (opaque, v->name, v->size, readonly)) != 0)
      return r;
    for (j = 0; j < v->snapshots.nr; ++j) {
      s = v->snapshots.p[j];
      volume_full_name (s, name);
      if ((r = fn (opaque, name, s->size, true)) != 0)
        return r;
    }
  }
  return 0;
}
