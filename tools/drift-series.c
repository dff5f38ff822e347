/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <math.h>
#include <stdio.h>

#include "drift-series.h"
#include "tools.h"

/* The width of a history that has one moment only, and how much of it and of
 * a longer one a single sample's bar takes.
 */
#define VIEW_SECONDS 86400
#define MOMENT_BAR 0.5
#define SINGLE_BAR 0.012

static uint64_t
sample_time (const json_t *history, size_t i)
{
  return json_size (json_array_get (history, i), "time");
}

void
series_start (struct series *series)
{
  const json_t *history = series->chart->history;

  series->from = sample_time (history, 0);
  series->to = sample_time (history, json_array_size (history) - 1);
  series->moment = series->to <= series->from;
  if (series->moment) {
    series->to = series->from + VIEW_SECONDS / 2;
    series->from -= series->from < VIEW_SECONDS / 2 ?
      series->from : VIEW_SECONDS / 2;
    axis_moment (series->chart->script, series->from, series->to);
  }
  else
    axis_time (series->chart->script, series->from, series->to,
               series->chart->x_tics);
}

double
series_greatest (const struct series *series, unsigned column)
{
  double values[SERIES_VALUES_MAX], greatest = 0;
  const json_t *document;
  size_t i;

  json_array_foreach (series->chart->history, i, document)
    if (series->get (document, series->clone, values))
      greatest = fmax (greatest, values[column]);
  return greatest;
}

static void
write_point (const struct series *series, double t, const double *values)
{
  unsigned i;

  fprintf (series->chart->script, "%.0f", t);
  for (i = 0; i < series->nr_values; ++i)
    fprintf (series->chart->script, " %.6g", values[i] / series->unit);
  putc ('\n', series->chart->script);
}

/* A point that has no neighbours would not be seen: make it a short bar. */
static void
write_single (const struct series *series, double t, const double *values)
{
  const double half = (series->to - series->from) / 2.0 *
    (series->moment ? MOMENT_BAR : SINGLE_BAR);

  write_point (series, t - half, values);
  write_point (series, t + half, values);
}

/* Is sample 'i' the last one of its column of pixels?  Of one moment there is
 * one column.
 */
static bool
is_visible (const struct series *series, size_t i)
{
  const json_t *history = series->chart->history;
  const double pixel =
    (double) (series->to - series->from) / series->chart->width;

  if (series->moment)
    return i + 1 == json_array_size (history);
  return i == 0 || i + 1 == json_array_size (history) ||
    (uint64_t) ((sample_time (history, i) - series->from) / pixel) !=
    (uint64_t) ((sample_time (history, i + 1) - series->from) / pixel);
}

/* A line for each sample; an empty one where the clone was not there. */
void
series_write (const struct series *series)
{
  double values[SERIES_VALUES_MAX], held[SERIES_VALUES_MAX];
  double held_time = 0;
  const json_t *document;
  unsigned run = 0, j;
  size_t i;

  fprintf (series->chart->script, "$data << END\n");
  json_array_foreach (series->chart->history, i, document) {
    if (!is_visible (series, i))
      continue;
    if (series->get (document, series->clone, values)) {
      /* The first of a run waits until there is a second. */
      if (run++ == 1)
        write_point (series, held_time, held);
      if (run > 1)
        write_point (series, json_size (document, "time"), values);
      held_time = json_size (document, "time");
      for (j = 0; j < series->nr_values; ++j)
        held[j] = values[j];
      continue;
    }
    if (run == 1)
      write_single (series, held_time, held);
    if (run > 0)
      putc ('\n', series->chart->script);
    run = 0;
  }
  if (run == 1)
    write_single (series, held_time, held);
  fprintf (series->chart->script, "END\n");
}
