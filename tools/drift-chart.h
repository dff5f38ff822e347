/* SPDX-License-Identifier: BSD-3-Clause */

/* The charts of a history, as parts of gnuplot's script. */

#ifndef NBDEDUP_DRIFT_CHART_H
#define NBDEDUP_DRIFT_CHART_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

/* The fleet's lines: logical, distinct, stored. */
enum { NR_LINES = 3 };

struct chart_line {
  const char *label;
  const char *color;            /* "#RRGGBB" */
  bool dashed;
};

extern const struct chart_line chart_lines[NR_LINES];
extern const char chart_ratio_color[];

/* How a chart is drawn. */
struct chart {
  FILE *script;
  const json_t *history;        /* by time */
  unsigned width;               /* pixels: there is no more detail than that */
  unsigned x_tics, y_tics;      /* at most */
  bool key;                     /* a legend, where the script has put it */
};

/* drift-chart.c: each plots once.  'first' is the first line that is drawn:
 * beside many clones' logical bytes the others are flat.  'clone' NULL: the
 * sums of all; 'greatest' is the top of its axis, in bytes (0: as high as it
 * is itself).
 */
extern void chart_bytes (const struct chart *chart, unsigned first);
extern void chart_composition (const struct chart *chart, const char *clone,
                               uint64_t greatest);
extern void chart_ratio (const struct chart *chart);

/* The most that the clone ever had, in bytes. */
extern uint64_t chart_greatest (const json_t *history, const char *clone);

/* drift-axis.c: at most 'max' tics.  axis_time has whole hours, days, months
 * or years of this machine's time zone; axis_moment one tic, in the middle.
 * axis_bytes returns the unit that data is to be divided by.
 */
extern void axis_time (FILE *script, uint64_t from, uint64_t to,
                       unsigned max);
extern void axis_moment (FILE *script, uint64_t from, uint64_t to);
extern double axis_bytes (FILE *script, uint64_t greatest, unsigned max);
extern void axis_ratio (FILE *script, double greatest, unsigned max);

#endif /* NBDEDUP_DRIFT_CHART_H */
