/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools.h"
#include "top-text.h"

#define NR(array) (sizeof (array) / sizeof (array)[0])

/* As iostat has them; MB are of 2^20 bytes, as there. */
static const char *const columns[] = {
  "VOLUME", "r/s",   "w/s",   "f/s",   "rMB/s",   "wMB/s",
  "r_p50",  "r_p99", "w_p50", "w_p99", "f_p50",   "f_p99",
  "dedup",  "cache", "dirty", "qd",    "clients",
};

static void
add_rate (struct table *table, double rate)
{
  table_add (table, "%.*f", rate > 0 && rate < 9.95 ? 1 : 0, rate);
}

/* Three digits at most. */
static void
add_duration (struct table *table, double ns)
{
  static const struct {
    const char *unit;
    double ns;
  } units[] = { { "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 } };
  unsigned i = 0;

  if (isnan (ns)) {
    table_add (table, "-");
    return;
  }
  while (i + 1 < NR (units) && ns / units[i].ns >= 999.5)
    i++;
  ns /= units[i].ns;
  table_add (table, "%.*f%s", ns < 9.95 ? 1 : 0, ns, units[i].unit);
}

static void
add_percent (struct table *table, double percent)
{
  if (isnan (percent))
    table_add (table, "-");
  else
    table_add (table, "%.0f%%", percent);
}

static void
add_row (struct table *table, const struct top_rates *rates,
         const struct top_row *row)
{
  static const enum top_op ops[] = { TOP_READ, TOP_WRITE, TOP_FLUSH };
  char buf[HUMAN_MAX];
  unsigned i;

  table_add (table, "%s", row->name);
  for (i = 0; i < NR (ops); ++i)
    add_rate (table, row->ops[ops[i]].nr / rates->seconds);
  for (i = 0; i < 2; ++i)
    add_rate (table, row->ops[ops[i]].bytes / rates->seconds / 0x1p20);
  for (i = 0; i < NR (ops); ++i) {
    add_duration (table, top_quantile_ns (rates, &row->ops[ops[i]], 0.5));
    add_duration (table, top_quantile_ns (rates, &row->ops[ops[i]], 0.99));
  }
  add_percent (table, top_percent (row->dedup_hits, row->dedup_misses));
  add_percent (table, top_percent (row->cache_hits, row->cache_misses));
  table_add (table, "%s", human_bytes (row->dirty_bytes, buf));
  table_add (table, "%" PRIu64, row->requests);
  table_add (table, "%" PRIu64, row->clients);
}

static uint64_t
requests_of (const struct top_row *row)
{
  uint64_t nr = 0;
  unsigned i;

  for (i = 0; i < TOP_OPS; ++i)
    nr += row->ops[i].nr;
  return nr;
}

static int
compare_rows (const void *a, const void *b)
{
  const struct top_row *x = *(const struct top_row *const *) a;
  const struct top_row *y = *(const struct top_row *const *) b;
  const uint64_t nr_x = requests_of (x), nr_y = requests_of (y);

  if (nr_x != nr_y)
    return nr_x > nr_y ? -1 : 1;
  return strverscmp (x->name, y->name);
}

static void
print_pool (const struct top_rates *rates, const char *pool)
{
  static const char *const written[] = {
    "records_written_bytes", "journal_written_bytes", "pool_db_written_bytes",
    "wal_written_bytes",     "copy_written_bytes",
  };
  const json_t *queues = json_object_get (rates->now, "queues");
  char dirty[HUMAN_MAX], max[HUMAN_MAX], journal[HUMAN_MAX];
  uint64_t bytes = 0;
  size_t i;

  for (i = 0; i < NR (written); ++i)
    bytes += top_growth (rates, "traffic", written[i]);
  printf ("%s: dirty %s of %s, journal %s, workers %" PRIu64 " of %" PRIu64
          " busy, disk %.1f MB/s read, %.1f MB/s written, errors %.1f/s\n",
          pool, human_bytes (json_size (queues, "dirty_bytes"), dirty),
          human_bytes (json_size (queues, "dirty_max_bytes"), max),
          human_bytes (json_size (queues, "journal_bytes"), journal),
          json_size (queues, "busy_workers"), json_size (queues, "workers"),
          top_growth (rates, "traffic", "records_read_bytes") / rates->seconds /
            0x1p20,
          bytes / rates->seconds / 0x1p20,
          rates->total.errors / rates->seconds);
}

void
top_print (const struct top_rates *rates, const char *pool, size_t max_rows)
{
  const struct top_row **rows;
  struct table *table = table_new ("lrrrrrrrrrrrrrrrr");
  size_t nr = rates->nr, i;

  rows = check_memory (calloc (nr + 1, sizeof *rows));
  for (i = 0; i < nr; ++i)
    rows[i] = &rates->rows[i];
  qsort (rows, nr, sizeof *rows, compare_rows);
  if (max_rows > 0 && nr > max_rows)
    nr = max_rows;
  print_pool (rates, pool);
  for (i = 0; i < NR (columns); ++i)
    table_add (table, "%s", columns[i]);
  add_row (table, rates, &rates->total);
  for (i = 0; i < nr; ++i)
    add_row (table, rates, rows[i]);
  table_print (table);
  if (nr < rates->nr)
    printf ("and %zu more volumes\n", rates->nr - nr);
  free (rows);
}
