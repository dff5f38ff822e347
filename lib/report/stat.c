/* SPDX-License-Identifier: BSD-3-Clause */

/* The figures of "stat" and "list", as of a fold that covers all answered
 * writes.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "core/ddt.h"
#include "core/engine.h"
#include "core/notes.h"
#include "core/txg.h"
#include "data/capacity.h"
#include "data/sync.h"
#include "disk/store.h"
#include "estimate/sizing.h"
#include "report/stat.h"
#include "volume/volume.h"

static json_t *
ratio (uint64_t above, uint64_t below)
{
  return below ? json_real ((double) above / (double) below) : json_null ();
}

/*----------------------------------------------------------------------*/

static json_t *
volume_stat (const struct volume *v, uint64_t logical)
{
  char compress[COMPRESSION_NAME_MAX];
  uint64_t size = v->size;

  compression_name (&v->compression, compress);
  return json_pack ("{s:s, s:I, s:I, s:s, s:o, s:I, s:I}", "name", v->name,
                    "size", (json_int_t) size, "block_size",
                    (json_int_t) v->block_size, "compress", compress, "origin",
                    volume_origin_json (v), "logical_bytes",
                    (json_int_t) logical, "own_bytes",
                    (json_int_t) (layer_own_pointers (v->layer) *
                                  v->block_size));
}

uint64_t
stat_wanted_ddt_cache (const struct nbdedup_pool *pool)
{
  const struct nbdedup_settings *s = &pool->settings;

  return s->primarycache == NBDEDUP_CACHE_NONE
    ? 0
    : sizing_wanted_ddt_cache (ddt_index_entries (pool->ddt),
                               s->ddt_cache_bytes);
}

static json_t *
pool_stat (struct nbdedup_pool *pool, uint64_t logical)
{
  uint64_t stored, copies, metadata = capacity_metadata_bytes (pool->path);
  struct capacity cap = { 0 };
  /* A command that opens the pool itself has no ddt-cache worth a word. */
  const uint64_t wanted = pool->control ? stat_wanted_ddt_cache (pool) : 0;
  bool has_capacity;
  struct notes_quota quota;
  struct ddt_info info;
  struct meta_state s;
  json_t *ddt;

  txg_get_state (pool->txg, &s);
  ddt_get_info (pool->ddt, &info);
  notes_get_quota (pool->notes, &quota);
  stored = s.stored_sectors * s.sector_bytes;
  copies = s.copy_sectors * s.sector_bytes;
  ddt = json_pack ("{s:I, s:I, s:I, s:I}", "entries",
                   (json_int_t) s.index_entries, "cache_hits",
                   (json_int_t) info.hits, "cache_misses",
                   (json_int_t) info.misses, "cache_bytes",
                   (json_int_t) info.cache_bytes);
  if (pool->ddt_quota_bytes > 0 || quota.blocks > 0) {
    json_object_set_new (ddt, "over_quota",
                         json_integer ((json_int_t) quota.blocks));
    json_object_set_new (ddt, "over_quota_bytes",
                         json_integer ((json_int_t) quota.bytes));
  }
  if (wanted > 0)
    json_object_set_new (ddt, "cache_wanted_bytes",
                         json_integer ((json_int_t) wanted));
  /* An error here must not suppress the other figures. */
  has_capacity = capacity_get (pool, &cap) == 0;
  return json_pack ("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, "
                    "s:o, s:o, s:o}",
                    "logical_bytes", (json_int_t) logical, "records",
                    (json_int_t) s.records, "record_bytes",
                    (json_int_t) s.record_bytes, "stored_bytes",
                    (json_int_t) stored, "copy_bytes", (json_int_t) copies,
                    "file_bytes", (json_int_t) store_file_bytes (pool->store),
                    "metadata_bytes", (json_int_t) metadata, "freeing_bytes",
                    (json_int_t) volumes_freeing_bytes (pool->volumes),
                    "writable_bytes",
                    !has_capacity
                      ? json_null ()
                      : json_integer ((json_int_t) cap.likely_bytes),
                    "writable_min_bytes",
                    !has_capacity ? json_null ()
                                  : json_integer ((json_int_t) cap.min_bytes),
                    "dedup_ratio", ratio (logical, s.record_bytes),
                    "compress_ratio", ratio (s.record_bytes, stored - copies),
                    "reduction", ratio (logical, stored + metadata), "ddt",
                    ddt);
}

/* Is 'v' included in the figures: the volume, or a clone of the snapshot? */
static bool
is_asked (const struct volume *v, const struct volume *name)
{
  const struct volume *origin;

  if (name == NULL || v == name)
    return true;
  if (!name->is_snapshot || v == name->of)
    return false;
  for (origin = v->origin; origin; origin = origin->origin)
    if (origin == name)
      return true;
  return false;
}

json_t *
stat_run (struct nbdedup_pool *pool, const char *name)
{
  struct volume *v, *asked = NULL;
  uint64_t logical, sum = 0;
  json_t *volumes;
  size_t i;

  assert_held (&pool->admin);
  if (name && (asked = volumes_find_any (pool->volumes, name)) == NULL)
    return NULL;
  if (pool_sync (pool) == -1)
    return NULL;
  /* Read each count once: a fold may change it meanwhile, and the pool's figure
   * must be the sum of the volumes'.
   */
  volumes = json_array ();
  for (i = 0; i < pool->volumes->list.nr; ++i) {
    v = pool->volumes->list.p[i];
    logical = v->layer->blocks * v->block_size;
    sum += logical;
    if (is_asked (v, asked))
      json_array_append_new (volumes, volume_stat (v, logical));
  }
  return json_pack ("{s:o, s:o}", "pool", pool_stat (pool, sum), "volumes",
                    volumes);
}

static json_t *
list_snapshots (const struct volume *v)
{
  json_t *snapshots = json_array ();
  const struct volume *s;
  uint64_t size;
  size_t i;

  for (i = 0; i < v->snapshots.nr; ++i) {
    s = v->snapshots.p[i];
    size = s->size;
    json_array_append_new (
      snapshots,
      json_pack ("{s:s, s:I, s:I, s:I, s:I, s:I}", "name", s->name, "time",
                 (json_int_t) s->time, "size", (json_int_t) size,
                 "logical_bytes",
                 (json_int_t) (s->layer->blocks * s->block_size), "own_bytes",
                 (json_int_t) (layer_own_pointers (s->layer) * s->block_size),
                 "clients", (json_int_t) s->nr_clients));
  }
  return snapshots;
}

/* Those that clones, or snapshots of clones, still name as their origin. */
static json_t *
list_destroyed_locked (struct volumes *vs)
{
  json_t *destroyed = json_array ();
  char label[VOLUME_LABEL_MAX];
  size_t i;

  assert_held (&vs->lock);
  for (i = 0; i < vs->tombstones.nr; ++i) {
    volume_label (vs->tombstones.p[i], label);
    json_array_append_new (destroyed,
                           json_pack ("{s:s, s:o}", "name", label, "origin",
                                      volume_origin_json (
                                        vs->tombstones.p[i])));
  }
  return destroyed;
}

json_t *
list_run (struct nbdedup_pool *pool)
{
  json_t *volumes = json_array (), *row;
  const struct volume *v;
  uint64_t size;
  size_t i;

  assert_held (&pool->admin);
  if (pool_sync (pool) == -1) {
    json_decref (volumes);
    return NULL;
  }
  WITH_LOCK (&pool->volumes->lock);
  for (i = 0; i < pool->volumes->list.nr; ++i) {
    v = pool->volumes->list.p[i];
    size = v->size;
    row = json_pack ("{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:I, s:I}", "name",
                     v->name, "size", (json_int_t) size, "block_size",
                     (json_int_t) v->block_size, "logical_bytes",
                     (json_int_t) (v->layer->blocks * v->block_size),
                     "own_bytes",
                     (json_int_t) (layer_own_pointers (v->layer) *
                                   v->block_size),
                     "origin", volume_origin_json (v), "snapshots",
                     list_snapshots (v), "clients", (json_int_t) v->nr_clients,
                     "writers", (json_int_t) v->writers.nr);
    if (v->importing)
      json_object_set_new (row, "importing", json_true ());
    json_array_append_new (volumes, row);
  }
  return json_pack ("{s:o, s:o*}", "volumes", volumes, "destroyed",
                    pool->volumes->tombstones.nr > 0
                      ? list_destroyed_locked (pool->volumes)
                      : NULL);
}
