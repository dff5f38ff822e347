/* SPDX-License-Identifier: BSD-3-Clause */

/* The data of charts: the figures of a history over time. */

#ifndef NBDEDUP_DRIFT_SERIES_H
#define NBDEDUP_DRIFT_SERIES_H

#include <stdint.h>

#include <jansson.h>

#include "drift-report.h"

/* The columns after the time: drift.gnuplot counts them from 2. */
enum {
  SERIES_CLASSES,           /* NR_CLASSES of them, bytes */
  SERIES_HELD = NR_CLASSES, /* their sum */
  SERIES_DIVERGED,
  SERIES_LOGICAL, /* this and the rest: of the fleet only */
  SERIES_DISTINCT,
  SERIES_STORED,
  SERIES_RATIO,
  NR_SERIES,
};

/* The x axis.  Gnuplot knows no time zones: it gets the seconds of local time,
 * by the zone's offset at the newest sample.
 */
struct series_axis {
  uint64_t from, to;
  bool moment; /* all samples are of one time */
  long offset;
};

/* 'history' is sorted by time. */
extern struct series_axis series_axis (const json_t *history);

/* The lines of a data block (owned by the caller): of the clone, or, with
 * 'clone' NULL, of the sums over all clones and of the fleet.  They have no
 * more detail than 'columns' can show.  'greatest' gets the greatest values.
 */
extern char *series_lines (const json_t *history, const char *clone,
                           unsigned columns, double greatest[NR_SERIES]);

#endif /* NBDEDUP_DRIFT_SERIES_H */
