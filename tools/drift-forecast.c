/* SPDX-License-Identifier: BSD-3-Clause */

/* The forecast (lib/drift/drift-forecast.h) as text. */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "drift-report.h"
#include "tools.h"

/* The month, or the next shorter one that the history allows. */
#define SHORT_DAYS 30

typedef const char *format_fn (double value, char buf[HUMAN_MAX]);

static const char *
format_bytes (double value, char buf[HUMAN_MAX])
{
  return human_bytes ((uint64_t) value, buf);
}

static const char *
format_ratio (double value, char buf[HUMAN_MAX])
{
  snprintf (buf, HUMAN_MAX, "%.2f", value);
  return buf;
}

static const struct figure {
  const char *key, *name;
  format_fn *format;
} figures[] = {
  { "unique_bytes", "unique", format_bytes },
  { "dedup_ratio", "dedup ratio", format_ratio },
  { "pool_used_bytes", "used in the pool", format_bytes },
};

#define NR_FIGURES (sizeof figures / sizeof figures[0])

static double
number (const json_t *object, const char *key)
{
  return json_number_value (json_object_get (object, key));
}

/* The value so many days ahead; 'exactly' false: or the last one before. */
static const json_t *
value_at (const json_t *series, unsigned days, bool exactly)
{
  const json_t *best = NULL;
  json_t *value;
  size_t i;

  json_array_foreach (json_object_get (series, "values"), i, value)
    if (exactly ? json_size (value, "days") == days
                : json_size (value, "days") <= days)
      best = value;
  return best;
}

/* "12.3 GiB (11.8 GiB to 12.9 GiB)" */
static char *
describe (const json_t *value, format_fn *format)
{
  char v[HUMAN_MAX], low[HUMAN_MAX], high[HUMAN_MAX];

  return make_string ("%s (%s to %s)", format (number (value, "value"), v),
                      format (number (value, "low"), low),
                      format (number (value, "high"), high));
}

static const char *
describe_day (const json_t *object, const char *key, char buf[64])
{
  json_t *document = check_memory (
    json_pack ("{s:O}", "time", json_object_get (object, key)));

  drift_time (document, "%Y-%m-%d", buf, 64);
  json_decref (document);
  return buf;
}

/* 'what' is "the dedup ratio is below 2". */
static void
write_when (FILE *fp, const json_t *when, const json_t *now_s, const char *what,
            bool always)
{
  char at[64], from[64], to[64];

  if (json_is_integer (json_object_get (when, "time"))) {
    if (json_equal (json_object_get (when, "time"), now_s))
      fprintf (fp, "%s now\n", what);
    else
      fprintf (fp, "%s about %s (%s to %s)\n", what,
               describe_day (when, "time", at),
               describe_day (when, "earliest", from),
               json_is_null (json_object_get (when, "latest"))
                 ? "later than can be told"
                 : describe_day (when, "latest", to));
  }
  else if (json_is_integer (json_object_get (when, "earliest")))
    fprintf (fp, "%s %s at the earliest, not expected before %s\n", what,
             describe_day (when, "earliest", from),
             describe_day (when, "looked_until", to));
  else if (always)
    fprintf (fp, "%s not before %s, the end of the forecast\n", what,
             describe_day (when, "looked_until", to));
}

static void
write_times (FILE *fp, const json_t *document, bool always)
{
  const json_t *forecast = json_object_get (document, "forecast");
  const json_t *ratio = json_object_get (forecast, "ratio_below");
  const json_t *full = json_object_get (forecast, "pool_full");
  const json_t *now_s = json_object_get (document, "time");
  char *what;

  if (json_is_object (ratio)) {
    what = make_string ("the dedup ratio is below %g:",
                        number (ratio, "ratio"));
    write_when (fp, ratio, now_s, what, true);
    free (what);
  }
  if (json_is_object (full))
    write_when (fp, full, now_s, "the pool is full:", always);
}

static const char *
reason (const json_t *forecast)
{
  const json_t *unique = json_object_get (forecast, "unique_bytes");
  const char *own = json_string_value (json_object_get (forecast, "reason"));

  return own ? own : json_string_value (json_object_get (unique, "reason"));
}

/* "in 30 days: unique 12.3 GiB (11.8 GiB to 12.9 GiB), ..." */
void
drift_write_outlook (FILE *fp, const json_t *document)
{
  const json_t *forecast = json_object_get (document, "forecast");
  const json_t *value;
  bool first = true;
  char *text;
  size_t i;

  if (forecast == NULL)
    return;
  if (reason (forecast)) {
    fprintf (fp, "no forecast: %s\n", reason (forecast));
    return;
  }
  for (i = 0; i < NR_FIGURES; ++i) {
    value = value_at (json_object_get (forecast, figures[i].key), SHORT_DAYS,
                      false);
    if (value == NULL)
      continue;
    if (first)
      fprintf (fp, "in %" PRIu64 " days: ", json_size (value, "days"));
    text = describe (value, figures[i].format);
    fprintf (fp, "%s%s %s", first ? "" : ", ", figures[i].name, text);
    free (text);
    first = false;
  }
  putc ('\n', fp);
  write_times (fp, document, false);
}

/*----------------------------------------------------------------------
 * In full
 */

static void
add_row (struct table *table, const struct figure *figure, const json_t *series)
{
  static const unsigned days[] = { 7, 30, 91 };
  const json_t *value, *error = json_object_get (series, "error");
  char now[HUMAN_MAX];
  char *text;
  size_t i;

  table_add (table, "%s", figure->name);
  table_add (table, "%s", figure->format (number (series, "now"), now));
  for (i = 0; i < sizeof days / sizeof days[0]; ++i) {
    value = value_at (series, days[i], true);
    text = value ? describe (value, figure->format) : copy_string ("-");
    table_add (table, "%s", text);
    free (text);
  }
  table_add (table, "%s", json_text (series, "method"));
  if (json_is_number (error))
    table_add (table, "%.1f %%", 100 * json_number_value (error));
  else
    table_add (table, "-");
}

static void
print_forecast (const json_t *document)
{
  const json_t *forecast = json_object_get (document, "forecast");
  const json_t *series;
  struct table *table;
  char since[64];
  size_t i;

  if (reason (forecast)) {
    printf ("%s: no forecast: %s\n", json_text (document, "golden"),
            reason (forecast));
    return;
  }
  printf ("%s: forecast from %" PRIu64 " samples since %s\n\n",
          json_text (document, "golden"), json_size (forecast, "samples"),
          describe_day (forecast, "since", since));
  table = table_new ("lrlllll");
  table_add (table, "FIGURE");
  table_add (table, "NOW");
  table_add (table, "IN 7 DAYS");
  table_add (table, "IN 30 DAYS");
  table_add (table, "IN 91 DAYS");
  table_add (table, "METHOD");
  table_add (table, "ERROR");
  for (i = 0; i < NR_FIGURES; ++i)
    add_row (table, &figures[i], json_object_get (forecast, figures[i].key));
  table_print (table);
  for (i = 0; i < NR_FIGURES; ++i) {
    series = json_object_get (forecast, figures[i].key);
    if (json_string_value (json_object_get (series, "reason")))
      printf ("%s: %s\n", figures[i].name, json_text (series, "reason"));
  }
  putchar ('\n');
  write_times (stdout, document, true);
}

void
drift_print_forecasts (const json_t *documents)
{
  json_t *document;
  size_t i;

  if (json_array_size (documents) == 0)
    printf ("no golden images: no volume is a clone of a snapshot\n");
  json_array_foreach (documents, i, document) {
    if (i > 0)
      putchar ('\n');
    print_forecast (document);
  }
}
