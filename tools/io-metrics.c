/* SPDX-License-Identifier: BSD-3-Clause */

/* The document of "counters" as metrics.  Only a server counts requests. */

#include <config.h>

#include <stdio.h>
#include <string.h>

#include "metrics.h"
#include "tools.h"

#define NR(array) (sizeof (array) / sizeof (array)[0])

static const char *const ops[] = { "read", "write", "flush", "trim", "zero" };
/* Of the first ones there are histograms of the time that they take. */
#define NR_TIMED 3

/*----------------------------------------------------------------------
 * The pool
 */

static const struct metric {
  const char *object, *key; /* in the document */
  double scale;             /* the value is divided by it; 0: an integer */
  const char *name, *type, *help;
} pool_metrics[] = {
  { "queues", "clients", 0, "pool_clients", "gauge", "Connections of clients" },
  { "queues", "requests", 0, "pool_requests_in_flight", "gauge",
    "Requests of clients that run" },
  { "queues", "dirty_bytes", 0, "pool_dirty_bytes", "gauge",
    "Answered writes in memory that are still to be hashed" },
  { "queues", "dirty_max_bytes", 0, "pool_dirty_max_bytes", "gauge",
    "The most of these: dirty-max" },
  { "queues", "workers", 0, "pool_workers", "gauge",
    "Threads that hash and compress" },
  { "queues", "busy_workers", 0, "pool_busy_workers", "gauge",
    "Threads that hash and compress at this moment" },
  { "queues", "journal_bytes", 0, "journal_bytes", "gauge",
    "Part of the journal that is not yet in pool.db" },
  { "queues", "journal_max_bytes", 0, "journal_max_bytes", "gauge",
    "The most that the journal may have of these" },
  { "queues", "pending_bytes", 0, "pending_bytes", "gauge",
    "Memory of changes that are not yet in pool.db" },
  { "queues", "pending_max_bytes", 0, "pending_max_bytes", "gauge",
    "The most of these" },
  { "queues", "wal_bytes", 0, "wal_bytes", "gauge",
    "Part of the WAL of pool.db that is in use" },
  { "activity", "freeing_layers", 0, "freeing_layers", "gauge",
    "Layers of destroyed volumes and snapshots that are being freed" },
  { "activity", "merging_layers", 0, "merging_layers", "gauge",
    "Layers of destroyed snapshots that are being merged" },
  { "activity", "merge_entries", 0, "index_merge_entries", "gauge",
    "Entries of the hash index that are left to merge" },
  { "activity", "folds", 0, "folds_total", "counter",
    "Folds of the journal into pool.db" },
  { "activity", "fold_ms", 1e3, "fold_seconds_total", "counter",
    "How long these took" },
  { "cache", "record_bytes", 0, "record_cache_bytes", "gauge",
    "Memory that the record cache takes" },
  { "cache", "record_max_bytes", 0, "record_cache_max_bytes", "gauge",
    "The most that it may take" },
};

static const struct file {
  const char *name, *read, *written; /* keys of "traffic"; NULL: none */
} files[] = {
  { "records", "records_read_bytes", "records_written_bytes" },
  { "journal", NULL, "journal_written_bytes" },
  { "pool.db", NULL, "pool_db_written_bytes" },
  { "pool.db-wal", NULL, "wal_written_bytes" },
  { "pool.db.copy", NULL, "copy_written_bytes" },
};

static void
print_pool (const json_t *counters)
{
  const struct metric *m;
  const json_t *value;
  size_t i;

  for (i = 0; i < NR (pool_metrics); ++i) {
    m = &pool_metrics[i];
    value = json_object_get (json_object_get (counters, m->object), m->key);
    metric_head (m->name, m->type, m->help);
    if (m->scale == 0)
      metric_json (m->name, NULL, value);
    else
      metric_real (m->name, NULL, json_number_value (value) / m->scale);
  }
}

static void
print_file (const char *metric, const json_t *traffic, const char *file,
            const char *key)
{
  char *labels = make_string ("file=\"%s\"", file);

  metric_integer (metric, labels, json_size (traffic, key));
  free (labels);
}

static void
print_traffic (const json_t *traffic)
{
  size_t i;

  metric_head ("device_read_bytes_total", "counter",
               "Bytes that the server read from a file");
  for (i = 0; i < NR (files); ++i)
    if (files[i].read)
      print_file ("device_read_bytes_total", traffic, files[i].name,
                  files[i].read);
  metric_head ("device_written_bytes_total", "counter",
               "Bytes that the server wrote to a file");
  for (i = 0; i < NR (files); ++i)
    print_file ("device_written_bytes_total", traffic, files[i].name,
                files[i].written);
}

/*----------------------------------------------------------------------
 * Volumes
 */

static const struct {
  const char *key, *name, *type, *help;
} volume_metrics[] = {
  { "clients", "volume_clients", "gauge", "Connections of clients" },
  { "requests", "volume_requests_in_flight", "gauge",
    "Requests of clients that run" },
  { "dirty_bytes", "volume_dirty_bytes", "gauge",
    "Answered writes in memory that are still to be hashed" },
  { "cache_hits", "volume_cache_hits_total", "counter",
    "Blocks that reads found in memory" },
  { "cache_misses", "volume_cache_misses_total", "counter",
    "Blocks that reads got from the records file" },
  { "dedup_hits", "volume_dedup_hits_total", "counter",
    "Written blocks whose content was in the pool" },
  { "dedup_misses", "volume_dedup_misses_total", "counter",
    "Written blocks whose content was stored" },
  { "zero_blocks", "volume_zero_blocks_total", "counter",
    "Written blocks of zeroes, which became holes" },
  { "stored_bytes", "volume_stored_bytes_total", "counter",
    "Sectors that the stored blocks took" },
};

/* Of each request. */
static const struct {
  const char *key, *name, *help;
} op_metrics[] = {
  { "requests", "volume_requests_total", "Requests that succeeded" },
  { "bytes", "volume_request_bytes_total", "Bytes that these were about" },
  { "errors", "volume_request_errors_total", "Requests that failed" },
};

#define DURATION "volume_request_duration_seconds"

static void
print_op (const json_t *volume, const char *op, const char *metric,
          const char *key)
{
  char *labels = make_string ("volume=\"%s\",op=\"%s\"",
                              json_text (volume, "name"), op);

  metric_integer (metric, labels,
                  json_size (json_object_get (volume, op), key));
  free (labels);
}

static void
print_bucket (const char *labels, const char *bound, uint64_t nr)
{
  char *all = make_string ("%s,le=\"%s\"", labels, bound);

  metric_integer (DURATION "_bucket", all, nr);
  free (all);
}

/* Buckets are cumulative, and the last one has all. */
static void
print_duration (const json_t *volume, const char *op, const json_t *bounds)
{
  const json_t *o = json_object_get (volume, op);
  const json_t *latency = json_object_get (o, "latency");
  char *labels = make_string ("volume=\"%s\",op=\"%s\"",
                              json_text (volume, "name"), op);
  uint64_t nr = 0;
  char bound[32];
  size_t i;

  for (i = 0; i < json_array_size (latency); ++i) {
    nr += (uint64_t) json_integer_value (json_array_get (latency, i));
    snprintf (bound, sizeof bound, "%.9g",
              json_number_value (json_array_get (bounds, i)) / 1e9);
    print_bucket (labels, i < json_array_size (bounds) ? bound : "+Inf", nr);
  }
  metric_real (DURATION "_sum", labels, json_size (o, "ns") / 1e9);
  metric_integer (DURATION "_count", labels, nr);
  free (labels);
}

/* A fleet has many volumes that are never written: their histograms, each of
 * them some thirty lines, would say nothing.
 */
static void
print_durations (const json_t *volumes, const json_t *bounds)
{
  json_t *volume;
  size_t i, j;

  metric_head (DURATION, "histogram", "How long requests took in the server");
  json_array_foreach (volumes, i, volume)
    for (j = 0; j < NR_TIMED; ++j)
      if (json_size (json_object_get (volume, ops[j]), "requests") > 0)
        print_duration (volume, ops[j], bounds);
}

static void
print_ops (const json_t *volumes)
{
  json_t *volume;
  size_t i, j, k;

  for (i = 0; i < NR (op_metrics); ++i) {
    metric_head (op_metrics[i].name, "counter", op_metrics[i].help);
    json_array_foreach (volumes, j, volume)
      for (k = 0; k < NR (ops); ++k)
        print_op (volume, ops[k], op_metrics[i].name, op_metrics[i].key);
  }
}

static void
print_volumes (const json_t *volumes)
{
  json_t *volume;
  char *labels;
  size_t i, j;

  for (i = 0; i < NR (volume_metrics); ++i) {
    metric_head (volume_metrics[i].name, volume_metrics[i].type,
                 volume_metrics[i].help);
    json_array_foreach (volumes, j, volume) {
      labels = make_string ("volume=\"%s\"", json_text (volume, "name"));
      metric_json (volume_metrics[i].name, labels,
                   json_object_get (volume, volume_metrics[i].key));
      free (labels);
    }
  }
}

static bool
is_in (const json_t *volumes, const char *name)
{
  json_t *volume;
  size_t i;

  json_array_foreach (volumes, i, volume)
    if (strcmp (json_text (volume, "name"), name) == 0)
      return true;
  return false;
}

/* A new array. */
static json_t *
choose (const json_t *counted, const json_t *wanted)
{
  json_t *chosen = check_memory (json_array ()), *volume;
  size_t i;

  json_array_foreach (counted, i, volume)
    if (wanted == NULL || is_in (wanted, json_text (volume, "name")))
      json_array_append (chosen, volume);
  return chosen;
}

void
io_metrics_print (const json_t *counters, const json_t *volumes)
{
  const bool served = json_is_true (json_object_get (counters, "server"));
  json_t *chosen;

  metric_head ("pool_served", "gauge", "Whether a server has the pool open");
  metric_integer ("pool_served", NULL, served);
  if (!served)
    return;
  metric_head ("server_uptime_seconds", "gauge",
               "How long the server has had the pool open");
  metric_real ("server_uptime_seconds", NULL,
               json_size (counters, "uptime_ns") / 1e9);
  print_pool (counters);
  print_traffic (json_object_get (counters, "traffic"));
  chosen = choose (json_object_get (counters, "volumes"), volumes);
  if (json_array_size (chosen) > 0) {
    print_volumes (chosen);
    print_ops (chosen);
    print_durations (chosen, json_object_get (counters, "bounds_ns"));
  }
  json_decref (chosen);
}
