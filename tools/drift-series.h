/* SPDX-License-Identifier: BSD-3-Clause */

/* The data of one chart: what is drawn from a history. */

#ifndef NBDEDUP_DRIFT_SERIES_H
#define NBDEDUP_DRIFT_SERIES_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "drift-chart.h"
#include "drift-report.h"

#define SERIES_VALUES_MAX (NR_CLASSES + 1)

/* The values of one sample: a column each.  Returns false if it has none. */
typedef bool series_fn (const json_t *document, const char *clone,
                        double *values);

struct series {
  const struct chart *chart;
  const char *clone;            /* for 'get'; may be NULL */
  series_fn *get;
  unsigned nr_values;
  double unit;                  /* by which values are divided */
  uint64_t from, to;            /* of the x axis: series_start */
  bool moment;                  /* all samples are of one time */
};

/* Set up the chart's x axis. */
extern void series_start (struct series *series);

/* The greatest of all values in that column. */
extern double series_greatest (const struct series *series, unsigned column);

/* Write the data block "$data": the time, then the values. */
extern void series_write (const struct series *series);

#endif /* NBDEDUP_DRIFT_SERIES_H */
