/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "drift-ask.h"
#include "drift-metrics.h"
#include "metrics.h"
#include "tools.h"

enum {
  KEY_DDT = 0x2000,
  KEY_PROMETHEUS,
  KEY_LABEL,
};

static const struct argp_option options[] = {
  { "ddt", KEY_DDT, NULL, 0,
    "Add a histogram of records by their number of references: the pool's, "
    "and those of NAME, or of NAME@SNAP and its clones",
    0 },
  { "prometheus", KEY_PROMETHEUS, NULL, 0,
    "Print metrics in Prometheus' text format", 0 },
  { "label", KEY_LABEL, "NAME=VALUE", 0,
    "Add this label to every metric of --prometheus", 0 },
  { 0 }
};

struct stat_options {
  struct options common; /* first: parsers get a pointer to it */
  bool ddt, prometheus;
  bool has_label;
};

static void
add_label (struct stat_options *opts, const char *label)
{
  const char *why = metrics_add_label (label);

  if (why != NULL)
    usage_error (&opts->common, "--label '%s': %s", label, why);
  opts->has_label = true;
}

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct stat_options *opts = state->input;

  switch (key) {
  case KEY_DDT:
    opts->ddt = true;
    return 0;
  case KEY_PROMETHEUS:
    opts->prometheus = true;
    return 0;
  case KEY_LABEL:
    add_label (opts, arg);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/*----------------------------------------------------------------------
 * The figures: one table for text and for Prometheus
 */

enum kind { BYTES, COUNT, COUNTER, COUNTER_BYTES, RATIO };

static const struct figure {
  const char *object; /* member of "pool" it is in, or NULL */
  const char *key;
  enum kind kind;
  const char *metric; /* after "nbdedup_" */
  const char *label;  /* in text */
  const char *help;
} pool_figures[] = {
  { NULL, "logical_bytes", BYTES, "pool_logical_bytes", "logical",
    "Blocks of all volumes that are not holes" },
  { NULL, "records", COUNT, "pool_records", "records",
    "Records that are referred to" },
  { NULL, "record_bytes", BYTES, "pool_record_bytes", "record data",
    "Records before compression" },
  { NULL, "stored_bytes", BYTES, "pool_stored_bytes", "stored",
    "Sectors that records and their copies take" },
  { NULL, "copy_bytes", BYTES, "pool_copy_bytes", "of it, copies",
    "Sectors that copies of records take" },
  { NULL, "file_bytes", BYTES, "pool_file_bytes", "records file",
    "What the backing file takes on its file system" },
  { NULL, "metadata_bytes", BYTES, "pool_metadata_bytes", "metadata",
    "All other files of the pool" },
  { NULL, "freeing_bytes", BYTES, "pool_freeing_bytes", "being freed",
    "Destroyed and not yet given back" },
  { NULL, "writable_bytes", BYTES, "pool_writable_bytes", "writable, likely",
    "New data that fits with the present ratios" },
  { NULL, "writable_min_bytes", BYTES, "pool_writable_min_bytes",
    "writable, at worst", "New data that fits whatever it is" },
  { NULL, "dedup_ratio", RATIO, "pool_dedup_ratio", "dedup ratio",
    "Logical bytes by record bytes" },
  { NULL, "compress_ratio", RATIO, "pool_compress_ratio", "compress ratio",
    "Record bytes by stored bytes without copies" },
  { NULL, "reduction", RATIO, "pool_reduction_ratio", "reduction",
    "Logical bytes by stored and metadata bytes" },
  { "ddt", "entries", COUNT, "ddt_entries", "DDT entries",
    "Entries of the dedup table" },
  { "ddt", "cache_hits", COUNTER, "ddt_cache_hits_total", "DDT cache hits",
    "Lookups that the cache answered" },
  { "ddt", "cache_misses", COUNTER, "ddt_cache_misses_total",
    "DDT cache misses", "Lookups that the cache did not answer" },
  { "ddt", "cache_bytes", BYTES, "ddt_cache_bytes", "DDT cache",
    "Memory that the cache takes" },
  /* Only if the server's ddt-cache is smaller. */
  { "ddt", "cache_wanted_bytes", BYTES, "ddt_cache_wanted_bytes",
    "DDT cache, wanted", "The ddt-cache that the entries need" },
  /* Only with a ddt-quota. */
  { "ddt", "over_quota", COUNTER, "ddt_over_quota_total", "over ddt-quota",
    "New blocks that were stored without dedup" },
  { "ddt", "over_quota_bytes", COUNTER_BYTES, "ddt_over_quota_bytes_total",
    "data over quota", "Data that was stored without dedup" },
};

static const struct figure volume_figures[] = {
  { NULL, "size", BYTES, "volume_size_bytes", "SIZE", "Size of the volume" },
  { NULL, "block_size", BYTES, "volume_block_size_bytes", "BLOCK",
    "Its unit of dedup and compression" },
  { NULL, "logical_bytes", BYTES, "volume_logical_bytes", "LOGICAL",
    "Its blocks that are not holes" },
  { NULL, "own_bytes", BYTES, "volume_own_bytes", "OWN",
    "Blocks of its own writable layer" },
};

#define NR(array) (sizeof (array) / sizeof (array)[0])

static const json_t *
get_figure (const json_t *object, const struct figure *figure)
{
  if (figure->object != NULL)
    object = json_object_get (object, figure->object);
  return json_object_get (object, figure->key);
}

static void
add_figure (struct table *table, const json_t *value, enum kind kind)
{
  char buf[HUMAN_MAX];

  if (!json_is_number (value))
    table_add (table, "-");
  else if (kind == RATIO)
    table_add (table, "%.2f", json_number_value (value));
  else if (kind == BYTES || kind == COUNTER_BYTES)
    table_add (table, "%s", human_bytes (json_integer_value (value), buf));
  else
    table_add (table, "%" JSON_INTEGER_FORMAT, json_integer_value (value));
}

/* How many records have how many references: a row is for all counts from its
 * own to the next row's.
 */
static void
print_histogram (const char *of, const json_t *histogram)
{
  struct table *table = table_new ("rrrrr");
  json_t *row;
  size_t i;

  table_add (table, "REFERENCES");
  table_add (table, "RECORDS");
  table_add (table, "DATA");
  table_add (table, "STORED");
  table_add (table, "REFERRED TO");
  json_array_foreach (histogram, i, row) {
    table_add (table, "%" PRIu64 "%s", json_size (row, "refcount"),
               json_size (row, "refcount") > 1 ? "+" : "");
    add_figure (table, json_object_get (row, "records"), COUNT);
    add_figure (table, json_object_get (row, "record_bytes"), BYTES);
    add_figure (table, json_object_get (row, "stored_bytes"), BYTES);
    add_figure (table, json_object_get (row, "references"), COUNT);
  }
  printf ("\nDDT of %s:\n", of);
  table_print (table);
}

static void
print_histograms (const json_t *stat)
{
  const json_t *ddt = json_object_get (json_object_get (stat, "pool"), "ddt");
  const json_t *named = json_object_get (stat, "ddt");
  const json_t *histogram = json_object_get (ddt, "histogram");

  if (histogram)
    print_histogram ("the pool", histogram);
  if (named)
    print_histogram (json_text (named, "name"),
                     json_object_get (named, "histogram"));
}

/* Segments are given back when they are empty (a few are kept): less than this
 * needs no words.
 */
#define FREE_INSIDE_MIN (UINT64_C (32) << 20)

static void
explain_file (const json_t *pool)
{
  const uint64_t stored = json_size (pool, "stored_bytes");
  const uint64_t file = json_size (pool, "file_bytes");
  char buf[HUMAN_MAX];

  if (file < stored || file - stored < stored / 8 + FREE_INSIDE_MIN)
    return;
  printf ("\n%s of the records file are free, in segments of 4 MiB that still "
          "have records.\nNew data fills them before the file grows; a server "
          "that is idle, or \"nbdedup compact\",\ngives them back.\n",
          human_bytes (file - stored, buf));
}

static void
explain_cache (const json_t *pool)
{
  const json_t *ddt = json_object_get (pool, "ddt");
  const uint64_t wanted = json_size (ddt, "cache_wanted_bytes");

  if (wanted > 0)
    printf ("\nThe server's ddt-cache is small for so many entries: new blocks "
            "cost reads of\npool.db.  Start it with ddt-cache=%" PRIu64 "M.\n",
            (wanted >> 20) + 1);
}

static void
print_volumes (const json_t *volumes)
{
  struct table *table = table_new ("lrrrrll");
  json_t *volume;
  size_t i, j;

  putchar ('\n');
  table_add (table, "NAME");
  for (i = 0; i < NR (volume_figures); ++i)
    table_add (table, "%s", volume_figures[i].label);
  table_add (table, "COMPRESS");
  table_add (table, "ORIGIN");
  json_array_foreach (volumes, i, volume) {
    table_add (table, "%s", json_text (volume, "name"));
    for (j = 0; j < NR (volume_figures); ++j)
      add_figure (table, get_figure (volume, &volume_figures[j]),
                  volume_figures[j].kind);
    table_add (table, "%s", json_text (volume, "compress"));
    table_add (table, "%s", json_text (volume, "origin"));
  }
  table_print (table);
}

static void
print_human (const json_t *stat)
{
  const json_t *pool = json_object_get (stat, "pool");
  json_t *volumes = json_sorted (json_object_get (stat, "volumes"));
  struct table *table = table_new ("lr");
  size_t i;

  for (i = 0; i < NR (pool_figures); ++i) {
    if (get_figure (pool, &pool_figures[i]) == NULL)
      continue;
    table_add (table, "%s", pool_figures[i].label);
    add_figure (table, get_figure (pool, &pool_figures[i]),
                pool_figures[i].kind);
  }
  table_print (table);
  explain_file (pool);
  explain_cache (pool);
  print_histograms (stat);
  if (json_array_size (volumes) > 0)
    print_volumes (volumes);
  json_decref (volumes);
}

static void
print_metric_head (const struct figure *figure)
{
  metric_head (figure->metric,
               figure->kind == COUNTER || figure->kind == COUNTER_BYTES
                 ? "counter"
                 : "gauge",
               figure->help);
}

/* With "--ddt", of the pool or of the named volume or snapshot. */
static const struct figure histogram_figures[] = {
  { NULL, "records", COUNT, "ddt_records", NULL,
    "Records with at least this many references, and less than the next" },
  { NULL, "record_bytes", BYTES, "ddt_record_bytes", NULL,
    "What they take before compression" },
  { NULL, "stored_bytes", BYTES, "ddt_stored_bytes", NULL,
    "Sectors that they take" },
  { NULL, "references", COUNT, "ddt_references", NULL,
    "How often they are referred to" },
};

static void
print_histogram_metrics (const json_t *histogram, const char *name)
{
  json_t *row;
  char *labels;
  size_t i, j;

  for (i = 0; i < NR (histogram_figures); ++i) {
    if (json_array_size (histogram) > 0)
      print_metric_head (&histogram_figures[i]);
    json_array_foreach (histogram, j, row) {
      labels = make_string ("%s%s%srefcount=\"%" PRIu64 "\"",
                            name ? "name=\"" : "", name ? name : "",
                            name ? "\"," : "", json_size (row, "refcount"));
      metric_json (histogram_figures[i].metric, labels,
                   get_figure (row, &histogram_figures[i]));
      free (labels);
    }
  }
}

static void
print_volume_metrics (const json_t *volumes)
{
  json_t *volume;
  char *labels;
  size_t i, j;

  for (i = 0; i < NR (volume_figures); ++i) {
    if (json_array_size (volumes) > 0)
      print_metric_head (&volume_figures[i]);
    json_array_foreach (volumes, j, volume) {
      labels = make_string ("volume=\"%s\"", json_text (volume, "name"));
      metric_json (volume_figures[i].metric, labels,
                   get_figure (volume, &volume_figures[i]));
      free (labels);
    }
  }
}

static void
print_prometheus (const json_t *stat)
{
  const json_t *pool = json_object_get (stat, "pool");
  const json_t *named = json_object_get (stat, "ddt");
  size_t i;

  for (i = 0; i < NR (pool_figures); ++i) {
    if (get_figure (pool, &pool_figures[i]) == NULL)
      continue;
    print_metric_head (&pool_figures[i]);
    metric_json (pool_figures[i].metric, NULL,
                 get_figure (pool, &pool_figures[i]));
  }
  print_volume_metrics (json_object_get (stat, "volumes"));
  if (named)
    print_histogram_metrics (json_object_get (named, "histogram"),
                             json_text (named, "name"));
  else
    print_histogram_metrics (json_object_get (json_object_get (pool, "ddt"),
                                              "histogram"),
                             NULL);
}

static json_t *
ask_stat (const struct stat_options *opts)
{
  return run (&opts->common,
              pack_args (&opts->common, "{s:s*, s:b}", "name",
                         opts->common.args[0], "ddt", opts->ddt));
}

/* What the server answers at once in any state.  'volumes' as in metrics.h. */
static int
print_live_metrics (const struct options *common, const json_t *volumes)
{
  json_t *status = run_other (common, "status", NULL), *counters = NULL;
  int r = -1;

  if (status != NULL)
    counters = run_other (common, "counters", NULL);
  if (counters != NULL) {
    status_metrics_print (status);
    io_metrics_print (counters, volumes);
    r = fflush (stdout) == EOF ? -1 : 0;
  }
  json_decref (status);
  json_decref (counters);
  return r;
}

static int
print_drift_metrics (const struct options *common)
{
  json_t *newest = drift_ask_newest (common), *alerts;

  if (newest == NULL)
    return -1;
  alerts = drift_ask_alerts (common, NULL);
  if (alerts != NULL) {
    drift_metrics_print (newest, common->args[0]);
    drift_alert_metrics_print (alerts, common->args[0]);
  }
  json_decref (newest);
  json_decref (alerts);
  return alerts != NULL ? 0 : -1;
}

/* The figures of "stat" need a fold, so they can fail in a pool that has
 * stopped, and wait for another command.  Monitoring must still see the rest,
 * which has been written by then.  A NAME is checked first.
 */
static int
print_all_metrics (const struct stat_options *opts)
{
  const bool has_name = opts->common.args[0] != NULL;
  json_t *stat = has_name ? ask_stat (opts) : NULL;
  int r = -1;

  if (has_name && stat == NULL)
    return -1;
  if (print_live_metrics (&opts->common,
                          has_name ? json_object_get (stat, "volumes")
                                   : NULL) == 0) {
    if (!has_name)
      stat = ask_stat (opts);
    if (stat != NULL) {
      print_prometheus (stat);
      r = print_drift_metrics (&opts->common);
    }
    metric_head ("collect_success", "gauge",
                 "Whether the command could get all metrics");
    metric_integer ("collect_success", NULL, r == 0);
  }
  json_decref (stat);
  return r;
}

int
cmd_stat (int argc, char **argv, const char *pool)
{
  struct stat_options opts = {
    .common = { .pool = pool, .max_args = 1 },
  };
  json_t *result;

  options_parse (&opts.common, argc, argv, options, parse, "[NAME]\nNAME@SNAP",
                 "Show how much data the pool's volumes, volume NAME, or the "
                 "clones of NAME@SNAP hold, the space that it takes, and the "
                 "ratios. Figures include all answered writes.",
                 OPTIONS_READS | OPTIONS_JSON | OPTIONS_PROGRESS);
  if (opts.common.json && opts.prometheus)
    usage_error (&opts.common, "--json or --prometheus, not both");
  if (opts.has_label && !opts.prometheus)
    usage_error (&opts.common, "--label is only for --prometheus");
  if (opts.prometheus)
    return print_all_metrics (&opts) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
  result = ask_stat (&opts);
  if (result == NULL)
    return EXIT_FAILURE;
  if (opts.common.json)
    print_json (result);
  else
    print_human (result);
  json_decref (result);
  return EXIT_SUCCESS;
}
