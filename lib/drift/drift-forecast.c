/* SPDX-License-Identifier: BSD-3-Clause */

/* The dedup ratio is forecast as its inverse, the share of the logical bytes
 * that are distinct: that grows in proportion to what the clones write, while
 * the ratio falls ever more slowly.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "core/alert-property.h"
#include "core/engine.h"
#include "core/pool-property.h"
#include "data/capacity.h"
#include "drift/drift-forecast.h"
#include "drift/forecast.h"
#include "drift/history.h"

#define DAY_S 86400.0
/* Samples to read: four for each interval of forecast.c.  All samples of a
 * thousand clones in ten years have a hundred megabytes.
 */
#define SAMPLES_MAX 192
/* A week, two, a month and a quarter. */
static const int horizons[] = { 7, 14, 30, 91 };

struct points {
  struct forecast_point *p; /* owned */
  size_t nr;
};

struct lines {
  uint64_t now_s; /* of the present document */
  struct points unique, share, pool;
  size_t nr_samples;
  uint64_t since_s; /* the oldest of the history; 0: none */
};

static double
number (const json_t *object, const char *key)
{
  return json_number_value (json_object_get (object, key));
}

static int
add_point (struct points *points, uint64_t time_s, double value)
{
  return array_push (&points->p, &points->nr,
                     (struct forecast_point) { (double) time_s, value });
}

static int
add_document (struct lines *l, const json_t *document, uint64_t time_s)
{
  const json_t *fleet = json_object_get (document, "fleet");
  const double logical = number (fleet, "logical");
  double unique = 0;
  json_t *clone;
  size_t i;

  json_array_foreach (json_object_get (document, "clones"), i, clone)
    unique += number (clone, "unique");
  l->nr_samples++;
  if (logical > 0 &&
      add_point (&l->share, time_s, number (fleet, "distinct") / logical) == -1)
    return -1;
  return add_point (&l->unique, time_s,
                    unique * number (document, "block_size"));
}

/* A sample from the future is of a clock that was wrong. */
static int
add_sample (void *opaque, json_t *document)
{
  struct lines *l = opaque;
  const uint64_t time_s = (uint64_t) number (document, "time");
  const json_t *used = json_object_get (document, POOL_USED);

  if (time_s >= l->now_s)
    return 0;
  if (json_is_integer (used) &&
      add_point (&l->pool, time_s, json_number_value (used)) == -1)
    return -1;
  if (l->since_s == 0 || time_s < l->since_s)
    l->since_s = time_s;
  return add_document (l, document, time_s);
}

/*----------------------------------------------------------------------
 * JSON
 */

static json_t *
value_json (const struct forecast_value *v, int days, uint64_t now_s,
            bool is_share)
{
  const json_int_t at = (json_int_t) now_s + days * (json_int_t) DAY_S;

  if (is_share)
    return json_pack ("{s:i, s:I, s:f, s:f, s:f}", "days", days, "time", at,
                      "value", 1 / v->value, "low", 1 / v->high, "high",
                      1 / v->low);
  return json_pack ("{s:i, s:I, s:I, s:I, s:I}", "days", days, "time", at,
                    "value", (json_int_t) v->value, "low", (json_int_t) v->low,
                    "high", (json_int_t) v->high);
}

static json_t *
reason_json (const struct forecast *f, size_t nr)
{
  char text[160];

  snprintf (text, sizeof text,
            "too few samples: %zu over %.0f days; at "
            "least %d, well apart, over at least %.0f days are needed",
            nr, floor (forecast_span_s (f) / DAY_S), FORECAST_INTERVALS_MIN,
            FORECAST_SPAN_MIN_S / DAY_S);
  return json_string (text);
}

/* 'is_share': show the inverse. */
static json_t *
forecast_json (const struct forecast *f, const struct points *points,
               uint64_t now_s, bool is_share)
{
  const double now = points->nr ? points->p[points->nr - 1].value : 0;
  json_t *values = json_array ();
  struct forecast_value v;
  size_t i;

  for (i = 0; i < sizeof horizons / sizeof horizons[0]; ++i)
    if (forecast_at (f, horizons[i] * DAY_S, &v))
      json_array_append_new (values,
                             value_json (&v, horizons[i], now_s, is_share));
  if (forecast_method (f) == NULL)
    return json_pack ("{s:n, s:n, s:o, s:n, s:o}", "now", "method", "reason",
                      reason_json (f, points->nr), "error", "values", values);
  return json_pack ("{s:o, s:s, s:n, s:o, s:o}", "now",
                    is_share ? json_real (1 / now)
                             : json_integer ((json_int_t) now),
                    "method", forecast_method (f), "reason", "error",
                    now > 0 ? json_real (forecast_error (f) / now)
                            : json_null (),
                    "values", values);
}

static json_t *
time_json (uint64_t now_s, double ahead_s)
{
  return isinf (ahead_s)
    ? json_null ()
    : json_integer ((json_int_t) now_s + (json_int_t) ahead_s);
}

/* Null: it is not known. */
static json_t *
when_json (const struct forecast *f, double level, uint64_t now_s,
           const char *key, json_t *value)
{
  struct forecast_when when;

  if (!forecast_when_above (f, level, &when)) {
    json_decref (value);
    return json_null ();
  }
  return json_pack ("{s:o, s:o, s:o, s:o, s:I}", key, value, "time",
                    time_json (now_s, when.expected_s), "earliest",
                    time_json (now_s, when.earliest_s), "latest",
                    time_json (now_s, when.latest_s), "looked_until",
                    (json_int_t) now_s + (json_int_t) forecast_span_s (f));
}

/*----------------------------------------------------------------------*/

/* A number in JSON. */
#define BYTES_MAX 9e18
/* The least share: even the ratio's greatest value is a number. */
#define SHARE_MIN 1e-9

static json_t *
compute (struct lines *l, uint64_t limit_bytes, double ratio)
{
  struct forecast *unique = forecast_new (l->unique.p, l->unique.nr, 0,
                                          BYTES_MAX);
  struct forecast *share = forecast_new (l->share.p, l->share.nr, SHARE_MIN, 1);
  struct forecast *pool = forecast_new (l->pool.p, l->pool.nr, 0,
                                        fmin ((double) limit_bytes, BYTES_MAX));
  json_t *result = NULL;

  if (unique && share && pool)
    result =
      json_pack ("{s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "samples",
                 (json_int_t) l->nr_samples, "since",
                 l->since_s == 0 ? json_null ()
                                 : json_integer ((json_int_t) l->since_s),
                 "unique_bytes",
                 forecast_json (unique, &l->unique, l->now_s, false),
                 "dedup_ratio",
                 forecast_json (share, &l->share, l->now_s, true),
                 "pool_used_bytes",
                 forecast_json (pool, &l->pool, l->now_s, false), "ratio_below",
                 ratio == 0 ? json_null ()
                            : when_json (share, 1 / ratio, l->now_s, "ratio",
                                         json_real (ratio)),
                 "pool_full",
                 limit_bytes == 0
                   ? json_null ()
                   : when_json (pool, (double) limit_bytes, l->now_s,
                                "limit_bytes",
                                json_integer ((json_int_t) limit_bytes)));
  forecast_free (unique);
  forecast_free (share);
  forecast_free (pool);
  return result ? result
                : nbdedup_fail_null (ENOMEM, "no memory for a forecast");
}

static json_t *
unreadable (void)
{
  return json_pack ("{s:o}", "reason", nbdedup_json_text (nbdedup_error ()));
}

static json_t *
forecast_of (struct nbdedup_pool *pool, uint64_t golden, const json_t *document,
             double ratio)
{
  struct lines l = { .now_s = (uint64_t) number (document, "time") };
  struct capacity cap = { .limit_bytes = 0 };
  json_t *result = NULL;

  if (history_spread (pool, golden, SAMPLES_MAX, add_sample, &l) == -1)
    result = errno == ENOMEM ? NULL : unreadable ();
  else if (add_document (&l, document, l.now_s) == 0 &&
           (capacity_used (pool, &cap) == -1 ||
            add_point (&l.pool, l.now_s, (double) cap.used_bytes) == 0))
    result = compute (&l, cap.limit_bytes, ratio);
  free (l.unique.p);
  free (l.share.p);
  free (l.pool.p);
  return result;
}

static int
add_to (struct nbdedup_pool *pool, json_t *document, double ratio)
{
  const json_t *id = json_object_get (document, GOLDEN_ID);
  json_t *forecast = forecast_of (pool, (uint64_t) json_integer_value (id),
                                  document, ratio);

  if (forecast == NULL)
    return -1;
  return json_object_set_new (document, "forecast", forecast) == 0
    ? 0
    : nbdedup_fail (ENOMEM, "no memory for a forecast");
}

int
drift_forecast_add (struct nbdedup_pool *pool, json_t *result, double ratio)
{
  json_t *goldens = json_object_get (result, "goldens"), *document;
  CLEANUP_FREE char *value = NULL;
  size_t i;

  if (ratio == 0 && pool_property_get (pool, ALERT_RATIO, &value) == 0)
    (void) alert_parse_ratio (value, &ratio);
  if (goldens == NULL)
    return add_to (pool, result, ratio);
  json_array_foreach (goldens, i, document)
    if (add_to (pool, document, ratio) == -1)
      return -1;
  return 0;
}
