/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools.h"
#include "top-rates.h"

const char *const top_op_names[TOP_OPS] = {
  [TOP_READ] = "read", [TOP_WRITE] = "write", [TOP_FLUSH] = "flush",
  [TOP_TRIM] = "trim", [TOP_ZERO] = "zero",
};

/* A volume that was rolled back, or destroyed and made again, counts from 0. */
static uint64_t
growth (uint64_t before, uint64_t now)
{
  return now >= before ? now - before : now;
}

static uint64_t
growth_of (const json_t *before, const json_t *now, const char *key)
{
  return growth (json_size (before, key), json_size (now, key));
}

bool
top_is_same_server (const json_t *before, const json_t *now)
{
  return json_size (before, "pid") == json_size (now, "pid") &&
    json_size (before, "uptime_ns") < json_size (now, "uptime_ns");
}

uint64_t
top_growth (const struct top_rates *rates, const char *object, const char *key)
{
  return growth_of (json_object_get (rates->before, object),
                    json_object_get (rates->now, object), key);
}

/*----------------------------------------------------------------------
 * Rows
 */

static uint64_t
number_at (const json_t *array, size_t i)
{
  const json_int_t n = json_integer_value (json_array_get (array, i));

  return n < 0 ? 0 : n;
}

static void
read_requests (const json_t *before, const json_t *now, struct top_requests *r)
{
  const json_t *old = json_object_get (before, "latency");
  const json_t *new = json_object_get (now, "latency");
  size_t i;

  r->nr = growth_of (before, now, "requests");
  r->bytes = growth_of (before, now, "bytes");
  r->ns = growth_of (before, now, "ns");
  for (i = 0; i < json_array_size (new) && i < TOP_BUCKETS; ++i)
    r->latency[i] = growth (number_at (old, i), number_at (new, i));
}

/* 'before' NULL: the volume had no client then. */
static void
read_row (const json_t *before, const json_t *now, struct top_row *row)
{
  const json_t *old, *new;
  unsigned i;

  row->name = json_text (now, "name");
  row->clients = json_size (now, "clients");
  row->requests = json_size (now, "requests");
  row->dirty_bytes = json_size (now, "dirty_bytes");
  row->cache_hits = growth_of (before, now, "cache_hits");
  row->cache_misses = growth_of (before, now, "cache_misses");
  row->dedup_hits = growth_of (before, now, "dedup_hits");
  row->dedup_misses = growth_of (before, now, "dedup_misses");
  for (i = 0; i < TOP_OPS; ++i) {
    old = json_object_get (before, top_op_names[i]);
    new = json_object_get (now, top_op_names[i]);
    read_requests (old, new, &row->ops[i]);
    row->errors += growth_of (old, new, "errors");
  }
}

static void
add_row (struct top_row *total, const struct top_row *row)
{
  unsigned i, j;

  total->clients += row->clients;
  total->requests += row->requests;
  total->cache_hits += row->cache_hits;
  total->cache_misses += row->cache_misses;
  total->dedup_hits += row->dedup_hits;
  total->dedup_misses += row->dedup_misses;
  total->errors += row->errors;
  for (i = 0; i < TOP_OPS; ++i) {
    total->ops[i].nr += row->ops[i].nr;
    total->ops[i].bytes += row->ops[i].bytes;
    total->ops[i].ns += row->ops[i].ns;
    for (j = 0; j < TOP_BUCKETS; ++j)
      total->ops[i].latency[j] += row->ops[i].latency[j];
  }
}

/* Both documents have their volumes in one order, but one may have some that
 * the other lacks.
 */
static const json_t *
find_volume (const json_t *volumes, const char *name, size_t *at)
{
  const size_t nr = json_array_size (volumes);
  const json_t *volume;
  size_t i;

  for (i = 0; i < nr; ++i) {
    volume = json_array_get (volumes, (*at + i) % nr);
    if (strcmp (json_text (volume, "name"), name) == 0) {
      *at = (*at + i + 1) % nr;
      return volume;
    }
  }
  return NULL;
}

void
top_rates_init (struct top_rates *rates, const json_t *before,
                const json_t *now)
{
  const json_t *old = json_object_get (before, "volumes");
  const json_t *volumes = json_object_get (now, "volumes");
  const json_t *bounds = json_object_get (now, "bounds_ns");
  size_t i, at = 0;
  json_t *volume;

  *rates = (struct top_rates) {
    .seconds = growth_of (before, now, "uptime_ns") / 1e9,
    .before = before,
    .now = now,
    .nr = json_array_size (volumes),
    .total.name = "(pool)",
  };
  rates->rows = check_memory (calloc (rates->nr + 1, sizeof *rates->rows));
  json_array_foreach (volumes, i, volume) {
    read_row (find_volume (old, json_text (volume, "name"), &at), volume,
              &rates->rows[i]);
    add_row (&rates->total, &rates->rows[i]);
  }
  rates->total.dirty_bytes = json_size (json_object_get (now, "queues"),
                                        "dirty_bytes");
  for (i = 0; i < json_array_size (bounds) && i < TOP_BUCKETS - 1; ++i)
    rates->bounds_ns[i] = number_at (bounds, i);
  rates->nr_bounds = i;
}

void
top_rates_destroy (struct top_rates *rates)
{
  free (rates->rows);
}

/*----------------------------------------------------------------------*/

double
top_quantile_ns (const struct top_rates *rates,
                 const struct top_requests *requests, double share)
{
  double lower = 0, rank, below = 0;
  uint64_t nr = 0;
  size_t i;

  for (i = 0; i <= rates->nr_bounds; ++i)
    nr += requests->latency[i];
  if (nr == 0)
    return NAN;
  rank = share * nr;
  for (i = 0; i < rates->nr_bounds; ++i) {
    const double here = requests->latency[i], upper = rates->bounds_ns[i];

    if (here > 0 && below + here >= rank)
      return lower + (upper - lower) * (rank - below) / here;
    below += here;
    lower = upper;
  }
  return lower; /* in the last bucket, which has no bound */
}

double
top_percent (uint64_t hits, uint64_t misses)
{
  return hits + misses == 0 ? NAN : 100.0 * hits / ((double) hits + misses);
}

static json_t *
number_or_null (double value)
{
  return isnan (value) ? json_null () : json_real (value);
}

static json_t *
requests_json (const struct top_rates *rates, const struct top_requests *r)
{
  return json_pack ("{s:f, s:f, s:o, s:o}", "requests_per_second",
                    r->nr / rates->seconds, "bytes_per_second",
                    r->bytes / rates->seconds, "p50_ns",
                    number_or_null (top_quantile_ns (rates, r, 0.5)), "p99_ns",
                    number_or_null (top_quantile_ns (rates, r, 0.99)));
}

static json_t *
row_json (const struct top_rates *rates, const struct top_row *row)
{
  json_t *json;
  unsigned i;

  json = json_pack ("{s:s, s:I, s:I, s:I, s:o, s:o, s:f}", "name", row->name,
                    "clients", (json_int_t) row->clients, "requests",
                    (json_int_t) row->requests, "dirty_bytes",
                    (json_int_t) row->dirty_bytes, "dedup_hit_percent",
                    number_or_null (
                      top_percent (row->dedup_hits, row->dedup_misses)),
                    "cache_hit_percent",
                    number_or_null (
                      top_percent (row->cache_hits, row->cache_misses)),
                    "errors_per_second", row->errors / rates->seconds);
  for (i = 0; i < TOP_OPS; ++i)
    json_object_set_new (json, top_op_names[i],
                         requests_json (rates, &row->ops[i]));
  return json;
}

json_t *
top_rates_json (const struct top_rates *rates, const char *pool)
{
  json_t *volumes = json_array (), *total = row_json (rates, &rates->total);
  json_t *json;
  size_t i;

  json_object_del (total, "name");
  for (i = 0; i < rates->nr; ++i)
    json_array_append_new (volumes, row_json (rates, &rates->rows[i]));
  json = json_pack ("{s:o, s:f, s:o, s:o}", "path", nbdedup_json_text (pool),
                    "interval_seconds", rates->seconds, "pool", total,
                    "volumes", volumes);
  need_all_args ("top");
  return check_memory (json);
}
