/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/ddt.h"
#include "core/engine.h"
#include "core/record-cache.h"
#include "core/txg.h"
#include "data/io-counters.h"
#include "data/volume-types.h"
#include "data/writeback.h"
#include "disk/journal.h"
#include "disk/store.h"
#include "meta/meta.h"
#include "report/counters.h"
#include "volume/volume.h"

/*----------------------------------------------------------------------
 * Volumes.  They are copied under their lock, which a client that attaches
 * needs, and turned into JSON without it.
 */

struct volume_row {
  char name[VOLUME_FULL_NAME_MAX];
  unsigned nr_clients;
  uint64_t dirty_bytes;
  uint64_t hits, misses, zeroes, stored_bytes;
  struct io_counters io;
};

struct volume_rows {
  struct volume_row *p; /* owned */
  size_t nr;
};

static void
copy_row (struct volume_row *row, const struct volume *v)
{
  const struct nbdedup_volume *h;

  volume_full_name (v, row->name);
  row->nr_clients = v->nr_clients;
  row->dirty_bytes = writeback_dirty_bytes (v);
  row->hits = io_counted (&v->dedup_counters.hits);
  row->misses = io_counted (&v->dedup_counters.misses);
  row->zeroes = io_counted (&v->dedup_counters.zeroes);
  row->stored_bytes = io_counted (&v->dedup_counters.stored_bytes);
  if (v->io_past)
    io_counters_add (&row->io, v->io_past);
  LIST_FOREACH (h, &v->clients, link)
    io_counters_add (&row->io, h->io);
}

/* Volumes that no client has had are left out: there may be many. */
static int
add_row (struct volume_rows *rows, const struct volume *v)
{
  struct volume_row *row;

  if (v->io_past == NULL && LIST_EMPTY (&v->clients))
    return 0;
  row = array_add (&rows->p, &rows->nr, sizeof *row);
  if (row == NULL)
    return -1;
  copy_row (row, v);
  return 0;
}

static int
get_rows (struct nbdedup_pool *pool, struct volume_rows *rows)
{
  struct volumes *vs = pool->volumes;
  const struct volume *v;
  size_t i, j;

  *rows = (struct volume_rows) { NULL, 0 };
  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    if (add_row (rows, v) == -1)
      return -1;
    for (j = 0; j < v->snapshots.nr; ++j)
      if (add_row (rows, v->snapshots.p[j]) == -1)
        return -1;
  }
  return 0;
}

static json_t *
op_json (const struct io_op_counters *o)
{
  json_t *latency = json_array ();
  unsigned i;

  for (i = 0; i < IO_BUCKETS; ++i)
    json_array_append_new (latency,
                           json_integer (
                             (json_int_t) io_counted (&o->buckets[i])));
  return json_pack ("{s:I, s:I, s:I, s:I, s:o}", "requests",
                    (json_int_t) io_op_requests (o), "bytes",
                    (json_int_t) io_counted (&o->bytes), "errors",
                    (json_int_t) io_counted (&o->errors), "ns",
                    (json_int_t) io_counted (&o->ns), "latency", latency);
}

static json_t *
row_json (const struct volume_row *row)
{
  json_t *json;
  unsigned i;

  json = json_pack ("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
                    "name", row->name, "clients", (json_int_t) row->nr_clients,
                    "requests", (json_int_t) io_in_flight (&row->io),
                    "dirty_bytes", (json_int_t) row->dirty_bytes, "cache_hits",
                    (json_int_t) io_counted (&row->io.cache_hits),
                    "cache_misses",
                    (json_int_t) io_counted (&row->io.cache_misses),
                    "dedup_hits", (json_int_t) row->hits, "dedup_misses",
                    (json_int_t) row->misses, "zero_blocks",
                    (json_int_t) row->zeroes, "stored_bytes",
                    (json_int_t) row->stored_bytes);
  for (i = 0; i < IO_OPS; ++i)
    json_object_set_new (json, io_op_names[i], op_json (&row->io.ops[i]));
  return json;
}

/*----------------------------------------------------------------------
 * The pool
 */

/* Connections, and their requests that run. */
static void
count_clients (struct nbdedup_pool *pool, uint64_t *clients, uint64_t *requests)
{
  struct volumes *vs = pool->volumes;
  const struct nbdedup_volume *h;
  const struct volume *v, *s;
  size_t i, j;

  *clients = *requests = 0;
  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    for (j = 0; j <= v->snapshots.nr; ++j) {
      s = j < v->snapshots.nr ? v->snapshots.p[j] : v;
      LIST_FOREACH (h, &s->clients, link) {
        ++*clients;
        *requests += io_in_flight (h->io);
      }
    }
  }
}

json_t *
counters_queues (struct nbdedup_pool *pool)
{
  uint64_t clients, requests, journal = 0, ring;
  struct writeback_load load;
  struct meta_pages pages;
  struct txg_load txg;

  count_clients (pool, &clients, &requests);
  writeback_get_load (pool->writeback, &load);
  txg_get_load (pool->txg, &txg);
  meta_get_pages (pool->meta, &pages);
  if (pool->journal)
    journal_get_usage (pool->journal, &journal, &ring);
  return json_pack ("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
                    "clients", (json_int_t) clients, "requests",
                    (json_int_t) requests, "dirty_bytes",
                    (json_int_t) load.dirty_bytes, "dirty_max_bytes",
                    (json_int_t) load.dirty_max_bytes, "workers",
                    (json_int_t) load.nr_workers, "busy_workers",
                    (json_int_t) load.nr_busy, "journal_bytes",
                    (json_int_t) journal, "journal_max_bytes",
                    (json_int_t) JOURNAL_MAX_BYTES, "pending_bytes",
                    (json_int_t) txg.pending_bytes, "pending_max_bytes",
                    (json_int_t) txg.pending_max_bytes, "wal_bytes",
                    (json_int_t) (pages.wal_used * META_PAGE_BYTES));
}

json_t *
counters_activity (struct nbdedup_pool *pool)
{
  unsigned nr_freeing, nr_merging;
  struct txg_load load;

  volumes_count_background (pool->volumes, &nr_freeing, &nr_merging);
  txg_get_load (pool->txg, &load);
  return json_pack ("{s:I, s:I, s:I, s:I, s:I, s:I}", "freeing_bytes",
                    (json_int_t) volumes_freeing_bytes (pool->volumes),
                    "freeing_layers", (json_int_t) nr_freeing, "merging_layers",
                    (json_int_t) nr_merging, "merge_entries",
                    (json_int_t) load.merge_entries, "folds",
                    (json_int_t) load.folds, "fold_ms",
                    (json_int_t) load.fold_ms);
}

static json_t *
traffic_json (struct nbdedup_pool *pool)
{
  uint64_t read_bytes, written_bytes, journal = 0;
  struct meta_traffic meta;

  store_get_traffic (pool->store, &read_bytes, &written_bytes);
  if (pool->journal)
    journal = journal_written_bytes (pool->journal);
  if (meta_get_traffic (pool->meta, &meta) == -1)
    return NULL;
  return json_pack ("{s:I, s:I, s:I, s:I, s:I, s:I}", "records_read_bytes",
                    (json_int_t) read_bytes, "records_written_bytes",
                    (json_int_t) written_bytes, "journal_written_bytes",
                    (json_int_t) journal, "pool_db_written_bytes",
                    (json_int_t) meta.db_bytes, "wal_written_bytes",
                    (json_int_t) meta.wal_bytes, "copy_written_bytes",
                    (json_int_t) meta.copy_bytes);
}

static json_t *
cache_json (struct nbdedup_pool *pool)
{
  uint64_t bytes, max_bytes;
  struct ddt_info ddt;

  record_cache_get_usage (pool->records, &bytes, &max_bytes);
  ddt_get_info (pool->ddt, &ddt);
  return json_pack ("{s:I, s:I, s:I, s:I, s:I}", "record_bytes",
                    (json_int_t) bytes, "record_max_bytes",
                    (json_int_t) max_bytes, "ddt_bytes",
                    (json_int_t) ddt.cache_bytes, "ddt_hits",
                    (json_int_t) ddt.hits, "ddt_misses",
                    (json_int_t) ddt.misses);
}

json_t *
counters_run (struct nbdedup_pool *pool)
{
  json_t *volumes = json_array (), *bounds = json_array (), *result;
  struct volume_rows rows;
  size_t i;
  int r;

  r = get_rows (pool, &rows);
  for (i = 0; i < rows.nr; ++i)
    json_array_append_new (volumes, row_json (&rows.p[i]));
  free (rows.p);
  for (i = 0; i < IO_BUCKETS - 1; ++i)
    json_array_append_new (bounds,
                           json_integer (
                             (json_int_t) io_bucket_ns ((unsigned) i)));
  result = json_pack ("{s:I, s:b, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "pid",
                      (json_int_t) getpid (), "server", pool->control != NULL,
                      "uptime_ns", (json_int_t) (clock_ns () - pool->opened_ns),
                      "bounds_ns", bounds, "queues", counters_queues (pool),
                      "activity", counters_activity (pool), "traffic",
                      traffic_json (pool), "cache", cache_json (pool),
                      "volumes", volumes);
  if (r == 0 && result != NULL)
    return result;
  json_decref (result);
  return nbdedup_fail_null (ENOMEM, "no memory for the counters");
}
