/* SPDX-License-Identifier: BSD-3-Clause */

/* Commands on whole volumes: create, rename, and their properties.
 * All under pool->admin; each change is one operation inside a fold's
 * transaction (txg_run), and so atomic.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/alert-property.h"
#include "core/engine.h"
#include "core/pool-property.h"
#include "core/txg.h"
#include "data/sync.h"
#include "meta/meta.h"
#include "volume/allow.h"
#include "volume/volume-int.h"
#include "volume/volume-layers.h"
#include "volume/volume.h"

const char *const volume_properties[] = {
  "block-size", "compress", "dedup", "domain", "allow", ALERT_UNIQUE, NULL,
};

/*----------------------------------------------------------------------
 * Commands
 */

struct create {
  struct volumes *vs;
  struct meta_volume mv;
  struct meta_layer ml;
  const char *domain;
};

static int
create_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct create *cr = arg;

  cr->ml.id = state->next_id++;
  {
    WITH_LOCK (&cr->vs->lock);
    layers_place_locked (cr->vs, NULL, &cr->ml);
  }
  cr->mv.id = state->next_id++;
  cr->mv.layer = cr->ml.id;
  if (meta_domain_id (c, cr->domain, &cr->mv.domain) == -1 ||
      meta_layer_put (c, &cr->ml) == -1)
    return -1;
  return meta_volume_put (c, &cr->mv);
}

int
volume_check_size (uint64_t size)
{
  if (size == 0)
    return nbdedup_fail (EINVAL, "size 0: a volume has at least 512 bytes");
  if (size % 512 != 0)
    return nbdedup_fail (EINVAL,
                         "size %" PRIu64 ": must be a multiple of "
                         "512 bytes",
                         size);
  if (size > VOLUME_SIZE_MAX)
    return nbdedup_fail (EINVAL, "size %" PRIu64 " is too large", size);
  return 0;
}

/* Store the name, or "" for the word "none".  An empty one is an error: domains
 * keep tenants apart, and a script whose variable is empty must not undo that.
 */
static int
parse_domain (const char *word, const char **domain)
{
  *domain = strcmp (word, "none") == 0 ? "" : word;
  if (*word == '\0')
    return nbdedup_fail (EINVAL,
                         "the domain is empty: write a name, or none for a "
                         "volume that shares with all others that have none");
  if (**domain != '\0' && !volume_is_name (*domain))
    return nbdedup_fail (EINVAL,
                         "domain '%.64s': must be a name: letters, "
                         "digits, '.', '_', '-'",
                         *domain);
  return 0;
}

/* Names and values that no pool takes are told first, whatever the pool
 * holds: volume_set, and the command before it opens a file.
 */
int
nbdedup_volume_check_property (const char *property, const char *value)
{
  const char *domain;
  struct compression c;
  enum dedup_mode mode;

  if (strcmp (property, "compress") == 0)
    return compression_parse (value, &c);
  if (strcmp (property, "dedup") == 0)
    return dedup_parse (value, &mode);
  if (strcmp (property, "domain") == 0)
    return parse_domain (value, &domain);
  if (strcmp (property, "allow") == 0)
    return allow_check (value);
  if (strcmp (property, ALERT_UNIQUE) == 0)
    return alert_volume_check (value);
  if (strcmp (property, "block-size") == 0)
    return nbdedup_fail (EINVAL,
                         "block-size is fixed when the volume is "
                         "made");
  return nbdedup_fail (EINVAL, "a volume has no property '%.64s'", property);
}

/* The value given, or the pool's default. */
static int
or_default (struct nbdedup_pool *pool, const char *given, const char *name,
            char *buf, size_t len)
{
  CLEANUP_FREE char *value = NULL;

  if (given == NULL && pool_property_get (pool, name, &value) == -1)
    return -1;
  if (snprintf (buf, len, "%s", given ? given : value) >= (int) len)
    return nbdedup_fail (EINVAL, "%s: '%.32s' is too long", name, given);
  return 0;
}

static int
fill_create (struct nbdedup_pool *pool, const struct volume_spec *spec,
             struct create *cr)
{
  uint64_t block_size = spec->block_size;
  char buf[32];

  if (volume_check_name (spec->name) == -1 ||
      volume_check_size (spec->size) == -1)
    return -1;
  if (block_size == 0 &&
      (or_default (pool, NULL, "block-size", buf, sizeof buf) == -1 ||
       nbdedup_parse_size (buf, &block_size) == -1))
    return -1;
  if (block_size < pool->sector_bytes && spec->block_size == 0)
    block_size = pool->sector_bytes; /* the default was too small */
  if (check_block_size (block_size, pool->sector_bytes) == -1)
    return -1;
  snprintf (cr->mv.name, sizeof cr->mv.name, "%s", spec->name);
  cr->mv.size = spec->size;
  cr->mv.importing = spec->importing;
  cr->mv.allow = spec->allow ? spec->allow : "all";
  cr->ml.block_size = (uint32_t) block_size;
  if (parse_domain (spec->domain ? spec->domain : "none", &cr->domain) == -1 ||
      allow_check (cr->mv.allow) == -1)
    return -1;
  if (or_default (pool, spec->compress, "compress", cr->mv.compress,
                  sizeof cr->mv.compress) == -1)
    return -1;
  return or_default (pool, spec->dedup, "dedup", cr->mv.dedup,
                     sizeof cr->mv.dedup);
}

int
volume_create (struct nbdedup_pool *pool, const struct volume_spec *spec)
{
  struct volumes *vs = pool->volumes;
  struct create cr = { .vs = vs, .domain = "" };
  struct compression c;
  enum dedup_mode mode;
  struct volume *v;
  struct layer *layer;

  assert_held (&pool->admin);
  if (fill_create (pool, spec, &cr) == -1 ||
      compression_parse (cr.mv.compress, &c) == -1 ||
      dedup_parse (cr.mv.dedup, &mode) == -1)
    return -1;
  if (volumes_find (vs, spec->name))
    return nbdedup_fail (EEXIST, "there is a volume '%s' already", spec->name);
  /* Allocate memory first: after the commit nothing may fail. */
  if (layers_reserve (vs, 1) == -1 || volumes_reserve (vs, 1) == -1 ||
      (layer = layer_new (&cr.ml)) == NULL)
    return -1;
  v = volume_new (pool, &cr.mv, cr.domain, layer);
  if (v == NULL ||
      txg_run_large (pool->txg, ROW_PAGES, create_in_transaction, NULL, &cr) ==
        -1) {
    volume_free (v);
    free (layer);
    return -1;
  }
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  layer->id = cr.ml.id;
  layer->branch = cr.ml.branch;
  layer->seq = cr.ml.seq;
  layer->nr_names = 1;
  layers_add_locked (vs, layer, NULL);
  v->id = cr.mv.id;
  v->domain = cr.mv.domain;
  list_insert (&vs->list, v);
  return 0;
}

static int
put_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  return meta_volume_put (c, arg);
}

int
volume_put (struct nbdedup_pool *pool, struct meta_volume *mv)
{
  return txg_run (pool->txg, put_in_transaction, NULL, mv);
}

static int
put_snapshot_in_transaction (void *arg, struct meta_conn *c,
                             struct meta_state *state)
{
  (void) state;
  return meta_snapshot_put (c, arg);
}

static int
rename_snapshot (struct nbdedup_pool *pool, const char *old, const char *new)
{
  struct volumes *vs = pool->volumes;
  struct snapshot_name o, n;
  struct meta_snapshot ms;
  struct volume *s;

  if (snapshot_name_parse (old, &o) == -1 ||
      snapshot_name_parse (new, &n) == -1)
    return -1;
  if (strcmp (n.volume, o.volume) != 0)
    return nbdedup_fail (EINVAL,
                         "%s: a snapshot stays with its volume: the "
                         "new name must be %s@NAME",
                         old, o.volume);
  s = volumes_find_snapshot (vs, old);
  if (s == NULL)
    return -1;
  if (list_find (&s->of->snapshots, n.snapshot))
    return nbdedup_fail (EEXIST, "there is a snapshot '%s' already", new);
  snapshot_to_meta (s, &ms);
  ms.name = n.snapshot;
  if (txg_run (pool->txg, put_snapshot_in_transaction, NULL, &ms) == -1)
    return -1;
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  list_remove (&s->of->snapshots, s);
  snprintf (s->name, sizeof s->name, "%s", n.snapshot);
  list_insert (&s->of->snapshots, s);
  return 0;
}

int
volume_rename (struct nbdedup_pool *pool, const char *old, const char *new)
{
  struct volumes *vs = pool->volumes;
  struct meta_volume mv;
  struct volume *v;

  assert_held (&pool->admin);
  if (strchr (old, '@'))
    return rename_snapshot (pool, old, new);
  if (volume_check_name (new) == -1 || (v = volumes_find (vs, old)) == NULL)
    return -1;
  if (volumes_find (vs, new))
    return nbdedup_fail (EEXIST, "there is a volume '%s' already", new);
  volume_to_meta (v, &mv);
  snprintf (mv.name, sizeof mv.name, "%s", new);
  mv.importing = false; /* complete, or the user keeps it */
  if (volume_put (pool, &mv) == -1)
    return -1;
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  list_remove (&vs->list, v);
  snprintf (v->name, sizeof v->name, "%s", new);
  v->importing = false;
  list_insert (&vs->list, v);
  return 0;
}

/*----------------------------------------------------------------------
 * Properties
 */

static int
get_alert (struct volume *v, char **value)
{
  struct meta_conn *c = meta_reader_get (v->pool->meta);
  int r = alert_volume_get (c, v->id, value);

  meta_reader_put (v->pool->meta, c);
  return r;
}

int
volume_get (struct volume *v, const char *property, char **value)
{
  char name[COMPRESSION_NAME_MAX];
  int r;

  if (strcmp (property, ALERT_UNIQUE) == 0)
    return get_alert (v, value);
  if (strcmp (property, "block-size") == 0)
    r = asprintf (value, "%" PRIu32, v->block_size);
  else if (strcmp (property, "compress") == 0) {
    compression_name (&v->compression, name);
    r = asprintf (value, "%s", name);
  }
  else if (strcmp (property, "dedup") == 0)
    r = asprintf (value, "%s", dedup_name (v->dedup));
  else if (strcmp (property, "domain") == 0)
    r = asprintf (value, "%s", *v->domain_name ? v->domain_name : "none");
  else if (strcmp (property, "allow") == 0)
    r = asprintf (value, "%s", v->allow);
  else
    return nbdedup_fail (EINVAL, "a volume has no property '%.64s'", property);
  return r == -1 ? nbdedup_fail (ENOMEM, "no memory") : 0;
}

/* Domains: the same transaction makes the id. */
struct set_volume {
  struct meta_volume mv;
  const char *domain;
};

static int
set_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct set_volume *s = arg;

  (void) state;
  if (meta_domain_id (c, s->domain, &s->mv.domain) == -1)
    return -1;
  return meta_volume_put (c, &s->mv);
}

/* Only an empty volume: stored data is shared within the old domain. */
static int
check_is_empty (struct volume *v)
{
  if (pool_sync (v->pool) == -1)
    return -1;
  if (v->layer->blocks > 0 || v->layer->parent || v->snapshots.nr > 0)
    return nbdedup_fail (EBUSY,
                         "domain: can only be set while volume %s is "
                         "empty, is not a clone, and has no snapshots",
                         v->name);
  return 0;
}

static int
set_property (struct nbdedup_pool *pool, struct volume *v, const char *property,
              const char *value)
{
  struct set_volume s;
  struct compression c;
  enum dedup_mode mode;
  char *allow, *domain;
  int r;

  assert_held (&pool->admin);
  c = v->compression;
  mode = v->dedup;
  volume_to_meta (v, &s.mv);
  s.domain = v->domain_name;
  if (strcmp (property, "compress") == 0) {
    if (compression_parse (value, &c) == -1)
      return -1;
    compression_name (&c, s.mv.compress);
  }
  else if (strcmp (property, "dedup") == 0) {
    if (dedup_parse (value, &mode) == -1)
      return -1;
    snprintf (s.mv.dedup, sizeof s.mv.dedup, "%s", value);
  }
  else if (strcmp (property, "domain") == 0) {
    if (parse_domain (value, &s.domain) == -1 || check_is_empty (v) == -1)
      return -1;
  }
  else
    s.mv.allow = value;
  allow = strdup (s.mv.allow);
  domain = strdup (s.domain);
  if (allow == NULL || domain == NULL)
    r = nbdedup_fail (ENOMEM, "no memory");
  else
    r = txg_run (pool->txg, set_in_transaction, NULL, &s);
  if (r == -1) {
    free (allow);
    free (domain);
    return -1;
  }
  {
    WITH_LOCK (&pool->volumes->lock);
    free (v->allow);
    free (v->domain_name);
    v->allow = allow;
    v->domain_name = domain;
  }
  WITH_LOCK (&v->dirty.lock);
  v->compression = c;
  v->dedup = mode;
  v->domain = s.mv.domain;
  return 0;
}

struct set_alert {
  uint64_t volume;
  const char *value;
};

static int
set_alert_in_transaction (void *arg, struct meta_conn *c,
                          struct meta_state *state)
{
  const struct set_alert *s = arg;

  (void) state;
  return alert_volume_put (c, s->volume, s->value);
}

int
volume_set (struct nbdedup_pool *pool, const char *name, const char *property,
            const char *value)
{
  struct volume *v;
  int r;

  if (nbdedup_volume_check_property (property, value) == -1 ||
      (v = volumes_find (pool->volumes, name)) == NULL)
    return -1;
  if (strcmp (property, ALERT_UNIQUE) == 0) {
    struct set_alert s = { v->id, value };

    return txg_run (pool->txg, set_alert_in_transaction, NULL, &s);
  }
  if (strcmp (property, "domain") != 0)
    return set_property (pool, v, property, value);
  {
    WITH_LOCK (&pool->volumes->lock);
    if (v->nr_clients > 0)
      return nbdedup_fail (EBUSY,
                           "domain: can only be set while volume %s has "
                           "no clients, but it has %u",
                           name, v->nr_clients);
    v->exclusive = true; /* no client may attach, and write, meanwhile */
  }
  r = set_property (pool, v, property, value);
  WITH_LOCK (&pool->volumes->lock);
  v->exclusive = false;
  return r;
}
