/* SPDX-License-Identifier: BSD-3-Clause */

/* The history as text: a line of block characters, then a table. */

#include <config.h>

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "drift-report.h"
#include "tools.h"

#define SPARK_WIDTH 60
#define SPARK_LEVELS 8

static const char *const blocks_utf8[SPARK_LEVELS] = {
  "\u2581", "\u2582", "\u2583", "\u2584",
  "\u2585", "\u2586", "\u2587", "\u2588",
};
static const char *const blocks_ascii[SPARK_LEVELS] = {
  "_", ".", "-", ":", "=", "+", "*", "#",
};

/* The program itself uses the C locale, for figures that scripts read. */
static bool
terminal_has_utf8 (void)
{
  const locale_t locale = newlocale (LC_CTYPE_MASK, "", (locale_t) 0);
  bool utf8;

  if (locale == (locale_t) 0)
    return false;
  utf8 = strcmp (nl_langinfo_l (CODESET, locale), "UTF-8") == 0;
  freelocale (locale);
  return utf8;
}

typedef double figure_fn (const struct drift_fleet *fleet);

static double
distinct (const struct drift_fleet *fleet)
{
  return fleet->distinct;
}

static double
ratio (const struct drift_fleet *fleet)
{
  return fleet->ratio;
}

static double
figure_at (const json_t *history, size_t i, figure_fn *figure)
{
  struct drift_fleet fleet;

  drift_fleet_read (json_array_get (history, i), &fleet);
  return figure (&fleet);
}

static uint64_t
time_at (const json_t *history, size_t i)
{
  return json_size (json_array_get (history, i), "time");
}

/* The last sample of a column.  Columns are equal spans of time, whatever the
 * intervals of samples: each shows the last sample up to its end.
 */
static size_t
spark_sample (const json_t *history, size_t i, size_t column)
{
  const size_t nr = json_array_size (history);
  const uint64_t start = time_at (history, 0);
  const double span = time_at (history, nr - 1) - start;
  const double end = start + span * (column + 1) / SPARK_WIDTH;

  while (i + 1 < nr && time_at (history, i + 1) <= end)
    i++;
  return i;
}

/* Print a block for each column: the lowest for the least figure of all. */
static void
print_spark (const json_t *history, figure_fn *figure)
{
  const char *const *blocks = terminal_has_utf8 () ? blocks_utf8 : blocks_ascii;
  const size_t nr = json_array_size (history);
  const bool moment = time_at (history, 0) == time_at (history, nr - 1);
  double least = INFINITY, greatest = -INFINITY, value;
  size_t i, column;

  for (i = 0; i < nr; ++i) {
    value = figure_at (history, i, figure);
    least = fmin (least, value);
    greatest = fmax (greatest, value);
  }
  for (column = 0, i = 0; column < (moment ? 1 : SPARK_WIDTH); ++column) {
    i = moment ? nr - 1 : spark_sample (history, i, column);
    value = figure_at (history, i, figure);
    if (isnan (value))
      putchar (' ');
    else
      fputs (blocks[greatest > least
                      ? (int) ((value - least) / (greatest - least) *
                                 (SPARK_LEVELS - 1) +
                               0.5)
                      : SPARK_LEVELS / 2],
             stdout);
  }
}

static void
print_sparks (const json_t *history)
{
  const size_t last = json_array_size (history) - 1;
  char from[HUMAN_MAX], to[HUMAN_MAX];

  printf ("distinct  ");
  print_spark (history, distinct);
  printf ("  %s to %s\n", human_bytes (figure_at (history, 0, distinct), from),
          human_bytes (figure_at (history, last, distinct), to));
  printf ("ratio     ");
  print_spark (history, ratio);
  if (!isnan (figure_at (history, 0, ratio)) &&
      !isnan (figure_at (history, last, ratio)))
    printf ("  %.2f to %.2f", figure_at (history, 0, ratio),
            figure_at (history, last, ratio));
  putchar ('\n');
}

static void
add_sample (struct table *table, const json_t *document)
{
  struct drift_fleet fleet;
  char buf[64];
  unsigned i;

  drift_fleet_read (document, &fleet);
  table_add (table, "%s",
             drift_time (document, "%Y-%m-%d %H:%M:%S", buf, sizeof buf));
  table_add (table, "%zu", fleet.nr_clones);
  table_add (table, "%s", drift_bytes (fleet.logical, buf, sizeof buf));
  table_add (table, "%s", drift_bytes (fleet.distinct, buf, sizeof buf));
  table_add (table, "%s", drift_bytes (fleet.stored, buf, sizeof buf));
  for (i = 0; i < NR_CLASSES; ++i)
    table_add (table, "%s",
               drift_bytes (fleet.clones.class[i], buf, sizeof buf));
  if (isnan (fleet.ratio))
    table_add (table, "-");
  else
    table_add (table, "%.2f", fleet.ratio);
}

static void
print_samples (const json_t *history)
{
  struct table *table = table_new ("lrrrrrrrrr");
  json_t *document;
  size_t i;

  table_add (table, "TIME");
  table_add (table, "CLONES");
  table_add (table, "LOGICAL");
  table_add (table, "DISTINCT");
  table_add (table, "STORED");
  for (i = 0; i < NR_CLASSES; ++i)
    table_add (table, "%s", drift_classes[i].head);
  table_add (table, "RATIO");
  json_array_foreach (history, i, document)
    add_sample (table, document);
  table_print (table);
}

void
drift_print_history (const json_t *histories)
{
  char from[32], to[32];
  json_t *recorded, *history;
  size_t i, nr;

  if (json_array_size (histories) == 0)
    printf ("no samples yet: 'nbdedup drift --record' takes one\n");
  json_array_foreach (histories, i, recorded) {
    history = drift_by_time (recorded);
    nr = json_array_size (history);
    if (i > 0)
      putchar ('\n');
    printf ("%s: %zu sample%s, %s to %s\n",
            json_text (drift_newest (recorded), "golden"), nr,
            nr == 1 ? "" : "s",
            drift_time (json_array_get (history, 0), "%Y-%m-%d", from,
                        sizeof from),
            drift_time (json_array_get (history, nr - 1), "%Y-%m-%d", to,
                        sizeof to));
    print_sparks (history);
    putchar ('\n');
    print_samples (history);
    json_decref (history);
  }
}
