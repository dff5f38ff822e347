/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <math.h>

#include "drift-chart.h"
#include "drift-report.h"
#include "drift-series.h"
#include "tools.h"

const struct chart_line chart_lines[NR_LINES] = {
  { "logical", "#808080", true },
  { "distinct: each content once", "#0072b2", false },
  { "stored: that, compressed", "#009e73", false },
};

/* Okabe and Ito's palette, as the classes' colours; not one of those. */
const char chart_ratio_color[] = "#cc79a7";

/* Lines that are seen on light and on dark pages. */
static void
write_style (const struct chart *chart)
{
  fprintf (chart->script,
           "set border 3 lc rgb '#707070'\n"
           "set tics nomirror out scale 0.5\n"
           "set grid ytics lt 1 lw 1 lc rgb '#b0808080'\n"
           "set style fill solid 1 noborder\n");
  if (!chart->key)
    fprintf (chart->script, "unset key\n");
}

/*----------------------------------------------------------------------
 * The fleet's bytes
 */

static bool
get_bytes (const json_t *document, const char *clone, double *values)
{
  struct drift_fleet fleet;

  (void) clone;
  drift_fleet_read (document, &fleet);
  values[0] = fleet.logical;
  values[1] = fleet.distinct;
  values[2] = fleet.stored;
  return true;
}

void
chart_bytes (const struct chart *chart, unsigned first)
{
  struct series series = {
    .chart = chart, .get = get_bytes, .nr_values = NR_LINES,
  };
  unsigned i;

  write_style (chart);
  series_start (&series);
  series.unit = axis_bytes (chart->script, series_greatest (&series, first),
                            chart->y_tics);
  series_write (&series);
  fprintf (chart->script, "plot");
  for (i = first; i < NR_LINES; ++i)
    fprintf (chart->script,
             "%s $data using 1:%u with lines lw 2 dt %d lc rgb '%s' "
             "title '%s'", i == first ? "" : ",", i + 2,
             chart_lines[i].dashed ? 2 : 1, chart_lines[i].color,
             chart_lines[i].label);
  putc ('\n', chart->script);
}

/*----------------------------------------------------------------------
 * The clones' composition
 */

/* Each class on top of those before it; values[0] is 0. */
static bool
get_composition (const json_t *document, const char *name,
                 double *values)
{
  struct drift_fleet fleet;
  struct drift_clone one;
  const json_t *clone;
  unsigned i;

  if (name == NULL) {
    drift_fleet_read (document, &fleet);
    one = fleet.clones;
  }
  else {
    clone = drift_find_clone (document, name);
    if (clone == NULL)
      return false;
    drift_clone_read (document, clone, &one);
  }
  values[0] = 0;
  for (i = 0; i < NR_CLASSES; ++i)
    values[i + 1] = values[i] + one.class[i];
  return true;
}

uint64_t
chart_greatest (const json_t *history, const char *clone)
{
  const struct chart chart = { .history = history };
  const struct series series = {
    .chart = &chart, .clone = clone, .get = get_composition,
  };

  return series_greatest (&series, NR_CLASSES);
}

void
chart_composition (const struct chart *chart, const char *clone,
                   uint64_t greatest)
{
  struct series series = {
    .chart = chart, .clone = clone, .get = get_composition,
    .nr_values = NR_CLASSES + 1,
  };
  unsigned i;

  write_style (chart);
  series_start (&series);
  if (greatest == 0)
    greatest = chart_greatest (chart->history, clone);
  series.unit = axis_bytes (chart->script, greatest, chart->y_tics);
  series_write (&series);
  fprintf (chart->script, "plot");
  for (i = 0; i < NR_CLASSES; ++i)
    fprintf (chart->script, "%s $data using 1:%u:%u with filledcurves "
             "lc rgb '%s' title '%s'", i == 0 ? "" : ",", i + 2, i + 3,
             drift_classes[i].color, drift_classes[i].label);
  putc ('\n', chart->script);
}

/*----------------------------------------------------------------------
 * The ratio
 */

static bool
get_ratio (const json_t *document, const char *clone, double *values)
{
  struct drift_fleet fleet;

  (void) clone;
  drift_fleet_read (document, &fleet);
  values[0] = fleet.ratio;
  return !isnan (fleet.ratio);
}

void
chart_ratio (const struct chart *chart)
{
  struct series series = {
    .chart = chart, .get = get_ratio, .nr_values = 1, .unit = 1,
  };

  write_style (chart);
  series_start (&series);
  axis_ratio (chart->script, series_greatest (&series, 0), chart->y_tics);
  series_write (&series);
  fprintf (chart->script, "plot $data using 1:2 with lines lw 2 "
           "lc rgb '%s' notitle\n", chart_ratio_color);
}
