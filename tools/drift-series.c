/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "drift-series.h"
#include "tools.h"

/* The width of a history of one moment, and the share of that width, and of a
 * longer history's, that a single sample's bar takes.
 */
#define VIEW_SECONDS 86400
#define MOMENT_BAR 0.5
#define SINGLE_BAR 0.012

struct point {
  double time;
  double values[NR_SERIES];
};

static uint64_t
sample_time (const json_t *history, size_t i)
{
  return json_size (json_array_get (history, i), "time");
}

struct series_axis
series_axis (const json_t *history)
{
  const size_t last = json_array_size (history) - 1;
  const time_t newest = (time_t) sample_time (history, last);
  struct series_axis axis = {
    .from = sample_time (history, 0),
    .to = sample_time (history, last),
  };
  struct tm tm;

  if (localtime_r (&newest, &tm) != NULL)
    axis.offset = tm.tm_gmtoff;
  axis.moment = axis.to <= axis.from;
  if (axis.moment) {
    axis.to = axis.from + VIEW_SECONDS / 2;
    axis.from -= axis.from < VIEW_SECONDS / 2 ? axis.from : VIEW_SECONDS / 2;
  }
  return axis;
}

static void
set_classes (const struct drift_clone *figures, double *values)
{
  unsigned i;

  for (i = 0; i < NR_CLASSES; ++i) {
    values[SERIES_CLASSES + i] = figures->class[i];
    values[SERIES_HELD] += figures->class[i];
  }
  values[SERIES_DIVERGED] = drift_diverged (figures);
}

/* Returns false if the clone was not there. */
static bool
read_point (const json_t *document, const char *name, struct point *point)
{
  struct drift_fleet fleet;
  struct drift_clone figures;
  const json_t *clone;

  *point = (struct point) { .time = json_size (document, "time") };
  if (name == NULL) {
    drift_fleet_read (document, &fleet);
    set_classes (&fleet.clones, point->values);
    point->values[SERIES_LOGICAL] = fleet.logical;
    point->values[SERIES_DISTINCT] = fleet.distinct;
    point->values[SERIES_STORED] = fleet.stored;
    point->values[SERIES_RATIO] = fleet.ratio;
    return true;
  }
  clone = drift_find_clone (document, name);
  if (clone == NULL)
    return false;
  drift_clone_read (document, clone, &figures);
  set_classes (&figures, point->values);
  return true;
}

static void
write_point (FILE *fp, const struct series_axis *axis, double delay,
             const struct point *point)
{
  unsigned i;

  fprintf (fp, "%.0f", point->time + axis->offset + delay);
  for (i = 0; i < NR_SERIES; ++i)
    fprintf (fp, " %.6g", point->values[i]);
  putc ('\n', fp);
}

/* Is sample 'i' the last one of its column?  One moment has one column. */
static bool
is_visible (const json_t *history, const struct series_axis *axis, size_t i,
            unsigned columns)
{
  const double width = (double) (axis->to - axis->from) / columns;

  if (i + 1 == json_array_size (history))
    return true;
  return !axis->moment &&
    (i == 0 ||
     (uint64_t) ((sample_time (history, i) - axis->from) / width) !=
       (uint64_t) ((sample_time (history, i + 1) - axis->from) / width));
}

static void
keep_greatest (double greatest[NR_SERIES], const struct point *point)
{
  unsigned i;

  for (i = 0; i < NR_SERIES; ++i)
    greatest[i] = fmax (greatest[i], point->values[i]);
}

/* Extend each run of points at both ends by half the width of a bar, because a
 * point without neighbours would be invisible.
 */
static void
write_lines (FILE *fp, const json_t *history, const char *clone,
             unsigned columns, double greatest[NR_SERIES])
{
  const struct series_axis axis = series_axis (history);
  const double half = (axis.to - axis.from) / 2.0 *
    (axis.moment ? MOMENT_BAR : SINGLE_BAR);
  struct point point, last;
  bool there, was_there = false;
  size_t i;

  for (i = 0; i < json_array_size (history); ++i) {
    there = read_point (json_array_get (history, i), clone, &point);
    if (there)
      keep_greatest (greatest, &point);
    if (!is_visible (history, &axis, i, columns))
      continue;
    if (there && !was_there)
      write_point (fp, &axis, -half, &point);
    if (there)
      write_point (fp, &axis, 0, &point);
    if (!there && was_there) {
      write_point (fp, &axis, half, &last);
      putc ('\n', fp);
    }
    was_there = there;
    last = point;
  }
  if (was_there)
    write_point (fp, &axis, half, &last);
}

char *
series_lines (const json_t *history, const char *clone, unsigned columns,
              double greatest[NR_SERIES])
{
  char *lines = NULL;
  size_t len;
  FILE *fp = open_memstream (&lines, &len);

  memset (greatest, 0, NR_SERIES * sizeof *greatest);
  if (fp != NULL)
    write_lines (fp, history, clone, columns, greatest);
  if (fp == NULL || fclose (fp) != 0)
    exit (fail ("out of memory"));
  return lines;
}
