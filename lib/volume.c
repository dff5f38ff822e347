/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cleanup.h"
#include "error.h"
#include "pool.h"
#include "property.h"
#include "volume-int.h"

static const char *const dedup_names[] = { "on", "off", "verify" };

int
dedup_parse (const char *name, enum dedup_mode *mode)
{
  unsigned i;

  for (i = 0; i < 3; ++i)
    if (strcmp (name, dedup_names[i]) == 0) {
      *mode = (enum dedup_mode) i;
      return 0;
    }
  return nbdedup_fail (EINVAL, "dedup: '%s' is not on, off or verify", name);
}

const char *
dedup_name (enum dedup_mode mode)
{
  return dedup_names[mode];
}

bool
volume_is_name (const char *s)
{
  size_t n = strlen (s);

  return n >= 1 && n <= META_NAME_MAX &&
    strspn (s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
            "0123456789._-") == n;
}

int
volume_check_name (const char *name)
{
  if (!volume_is_name (name))
    return nbdedup_fail (EINVAL, "'%.64s' is not a volume's name: letters, "
                         "digits, '.', '_', '-', at most 255", name);
  return 0;
}

/*----------------------------------------------------------------------
 * The list
 */

struct volumes *
volumes_new (struct nbdedup_pool *pool)
{
  struct volumes *vs = calloc (1, sizeof *vs);

  if (vs == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  vs->pool = pool;
  lock_init (&vs->lock);
  TAILQ_INIT (&vs->list);
  return vs;
}

void
volume_free (struct volume *v)
{
  if (v == NULL)
    return;
  free (v->domain_name);
  free (v->allow);
  free (v);
}

void
volumes_free (struct volumes *vs)
{
  struct volume *v;
  size_t i;

  if (vs == NULL)
    return;
  while ((v = TAILQ_FIRST (&vs->list)) != NULL) {
    assert (v->nr_clients == 0);
    TAILQ_REMOVE (&vs->list, v, link);
    volume_free (v);
  }
  for (i = 0; i < vs->layers.nr; ++i)
    free (vs->layers.p[i]);
  free (vs->layers.p);
  lock_destroy (&vs->lock);
  free (vs);
}

/* A volume that is not in the list yet. */
struct volume *
volume_new (struct nbdedup_pool *pool, const struct meta_volume *mv,
            const char *domain_name, struct layer *layer)
{
  struct volume *v = calloc (1, sizeof *v);

  if (v == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  v->pool = pool;
  v->id = mv->id;
  snprintf (v->name, sizeof v->name, "%s", mv->name);
  v->layer = layer;
  v->block_size = layer->block_size;
  v->size = mv->size;
  v->tail_dirty = mv->tail_dirty;
  v->domain = mv->domain;
  v->domain_name = strdup (domain_name);
  v->allow = strdup (mv->allow);
  TAILQ_INIT (&v->open_list);
  TAILQ_INIT (&v->inflight_list);
  TAILQ_INIT (&v->ranges);
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

void
volumes_insert_locked (struct volumes *vs, struct volume *v)
{
  struct volume *next;

  assert_held (&vs->lock);
  TAILQ_FOREACH (next, &vs->list, link)
    if (strcmp (next->name, v->name) > 0)
      break;
  if (next)
    TAILQ_INSERT_BEFORE (next, v, link);
  else
    TAILQ_INSERT_TAIL (&vs->list, v, link);
  v->in_list = true;
}

int
volumes_add_layer_locked (struct volumes *vs, const struct meta_layer *ml,
                          struct layer **out)
{
  size_t cap = vs->layers.cap ? vs->layers.cap * 2 : 16;
  struct layer **p, *l;

  assert_held (&vs->lock);
  if (vs->layers.nr == vs->layers.cap) {
    p = realloc (vs->layers.p, cap * sizeof *p);
    if (p == NULL)
      return nbdedup_fail (ENOMEM, "no memory");
    vs->layers.p = p;
    vs->layers.cap = cap;
  }
  l = calloc (1, sizeof *l);
  if (l == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  l->id = ml->id;
  l->branch = ml->branch;
  l->seq = ml->seq;
  l->overlap = ml->overlap;
  l->block_size = ml->block_size;
  l->dying = ml->dying;
  l->pointers = ml->pointers;
  l->blocks = ml->blocks;
  vs->layers.p[vs->layers.nr++] = l;
  *out = l;
  return 0;
}

static struct layer *
find_layer_locked (struct volumes *vs, uint64_t id)
{
  size_t lo = 0, hi = vs->layers.nr, mid;

  /* Ids only grow: the array is sorted. */
  while (lo < hi) {
    mid = (lo + hi) / 2;
    if (vs->layers.p[mid]->id < id)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo < vs->layers.nr && vs->layers.p[lo]->id == id
    ? vs->layers.p[lo] : NULL;
}

struct layer *
volumes_find_layer (void *volumes, uint64_t id)
{
  struct volumes *vs = volumes;

  WITH_LOCK (&vs->lock);
  return find_layer_locked (vs, id);
}

void
volumes_each_dying (void *volumes, void (*fn) (void *, struct layer *),
                    void *arg)
{
  struct volumes *vs = volumes;
  size_t i;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i)
    if (vs->layers.p[i]->dying)
      fn (arg, vs->layers.p[i]);
}

void
volumes_layer_gone (void *volumes, struct layer *layer)
{
  struct volumes *vs = volumes;

  /* The struct stays until the pool is closed: a client of the destroyed
   * volume may still hold it.
   */
  WITH_LOCK (&vs->lock);
  layer->dying = false;
}

uint64_t
volumes_freeing_bytes (struct volumes *vs)
{
  uint64_t bytes = 0;
  size_t i;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i)
    if (vs->layers.p[i]->dying)
      bytes += vs->layers.p[i]->pointers * vs->layers.p[i]->block_size;
  return bytes;
}

static struct volume *
find_locked (struct volumes *vs, const char *name)
{
  struct volume *v;

  assert_held (&vs->lock);
  TAILQ_FOREACH (v, &vs->list, link)
    if (strcmp (v->name, name) == 0)
      return v;
  return nbdedup_fail_null (ENOENT, "there is no volume '%.255s'", name);
}

struct volume *
volumes_find (struct volumes *vs, const char *name)
{
  assert_held (&vs->pool->admin);
  WITH_LOCK (&vs->lock);
  return find_locked (vs, name);
}

/*----------------------------------------------------------------------
 * Loading
 */

struct load {
  struct volumes *vs;
  struct meta_conn *c;
  struct meta_volume *volumes;  /* owned, allow too */
  size_t nr;
};

static int
load_layer (void *opaque, const struct meta_layer *ml)
{
  struct load *ld = opaque;
  struct layer *l;

  WITH_LOCK (&ld->vs->lock);
  if (volumes_add_layer_locked (ld->vs, ml, &l) == -1)
    return -1;
  if (check_block_size (l->block_size, 0) == -1)
    return nbdedup_fail (EIO, "pool.db: layer %" PRIu64 " has block size %"
                         PRIu32, l->id, l->block_size);
  return 0;
}

/* A second pass: a parent need not be older than its child. */
static int
link_layer (void *opaque, const struct meta_layer *ml)
{
  struct load *ld = opaque;
  struct layer *l, *parent;

  if (ml->parent == 0)
    return 0;
  WITH_LOCK (&ld->vs->lock);
  l = find_layer_locked (ld->vs, ml->id);
  parent = find_layer_locked (ld->vs, ml->parent);
  if (l == NULL || parent == NULL || parent == l ||
      parent->block_size != l->block_size)
    return nbdedup_fail (EIO, "pool.db: layer %" PRIu64 " has a parent that "
                         "is missing or cannot be one", ml->id);
  l->parent = parent;
  return 0;
}

static int
load_volume (void *opaque, const struct meta_volume *mv)
{
  struct load *ld = opaque;
  struct meta_volume *p;

  p = realloc (ld->volumes, (ld->nr + 1) * sizeof *p);
  if (p == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  ld->volumes = p;
  p[ld->nr] = *mv;
  p[ld->nr].allow = strdup (mv->allow);
  if (p[ld->nr].allow == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  ld->nr++;
  return 0;
}

static int
load_one (struct load *ld, const struct meta_volume *mv)
{
  CLEANUP_FREE char *domain = NULL;
  struct layer *layer = volumes_find_layer (ld->vs, mv->layer);
  struct volume *v;

  if (layer == NULL || !volume_is_name (mv->name))
    return nbdedup_fail (EIO, "pool.db: volume %" PRIu64 " is damaged",
                         mv->id);
  if (meta_domain_name (ld->c, mv->domain, &domain) == -1)
    return -1;
  v = volume_new (ld->vs->pool, mv, domain, layer);
  if (v == NULL)
    return -1;
  WITH_LOCK (&ld->vs->lock);
  TAILQ_INSERT_TAIL (&ld->vs->list, v, link);   /* they come by name */
  v->in_list = true;
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
    r = meta_volume_scan (c, load_volume, &ld);
  for (i = 0; i < ld.nr; ++i) {
    if (r == 0)
      r = load_one (&ld, &ld.volumes[i]);
    free ((char *) ld.volumes[i].allow);
  }
  free (ld.volumes);
  return r;
}

/*----------------------------------------------------------------------
 * Attaching
 */

/* Does the list in "allow" (uids and TLS identities, separated by commas;
 * "all": everybody) contain this peer?
 */
static bool
is_allowed (const char *allow, int64_t uid, const char *tls_identity)
{
  char number[24];
  const char *p;
  size_t n;

  if (strcmp (allow, "all") == 0)
    return true;
  snprintf (number, sizeof number, "%" PRId64, uid);
  for (p = allow; *p; p += n + (p[n] == ',')) {
    n = strcspn (p, ",");
    if (uid >= 0 && strlen (number) == n && memcmp (p, number, n) == 0)
      return true;
    if (tls_identity && strlen (tls_identity) == n &&
        memcmp (p, tls_identity, n) == 0)
      return true;
  }
  return false;
}

static int
attach_locked (struct volume *v, unsigned flags, int64_t uid,
               const char *tls_identity)
{
  if (!(flags & NBDEDUP_VOLUME_ADMIN) &&
      !is_allowed (v->allow, uid, tls_identity))
    return nbdedup_fail (EACCES, "volume %s: its property allow does not "
                         "name this client", v->name);
  if (v->exclusive || ((flags & NBDEDUP_VOLUME_EXCLUSIVE) && v->nr_clients))
    return nbdedup_fail (EBUSY, "volume %s has a client already", v->name);
  v->nr_clients++;
  if (flags & NBDEDUP_VOLUME_EXCLUSIVE)
    v->exclusive = true;
  return 0;
}

struct nbdedup_volume *
nbdedup_volume_open (struct nbdedup_pool *pool, const char *name,
                     unsigned flags, int64_t uid, const char *tls_identity)
{
  struct nbdedup_volume *h = calloc (1, sizeof *h);

  if (h == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  {
    WITH_LOCK (&pool->volumes->lock);
    h->volume = find_locked (pool->volumes, name);
    if (h->volume &&
        attach_locked (h->volume, flags, uid, tls_identity) == -1)
      h->volume = NULL;
  }
  if (h->volume == NULL) {
    free (h);
    return NULL;
  }
  h->size = h->volume->size;
  h->readonly = (flags & NBDEDUP_VOLUME_READONLY) != 0;
  h->exclusive = (flags & NBDEDUP_VOLUME_EXCLUSIVE) != 0;
  return h;
}

void
nbdedup_volume_close (struct nbdedup_volume *h)
{
  struct volume *v, *last = NULL;

  if (h == NULL)
    return;
  v = h->volume;
  {
    WITH_LOCK (&v->pool->volumes->lock);
    assert (v->nr_clients > 0);
    if (h->exclusive)
      v->exclusive = false;
    if (--v->nr_clients == 0 && !v->in_list)
      last = v;
  }
  volume_free (last);
  free (h);
}

int
nbdedup_pool_list (struct nbdedup_pool *pool,
                   int (*fn) (void *opaque, const char *name, uint64_t size,
                              bool readonly), void *opaque)
{
  struct volume *v;
  int r = 0;

  WITH_LOCK (&pool->volumes->lock);
  TAILQ_FOREACH (v, &pool->volumes->list, link)
    if ((r = fn (opaque, v->name, v->size, false)) != 0)
      break;
  return r;
}

