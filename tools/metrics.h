/* SPDX-License-Identifier: BSD-3-Clause */

/* Prometheus' text format.  All samples of one metric must follow its head. */

#ifndef NBDEDUP_METRICS_H
#define NBDEDUP_METRICS_H

#include <stdint.h>

#include <jansson.h>

/* Add a label to every sample from now on: "NAME=VALUE", which must stay valid.
 * Returns NULL, or why this cannot be one.
 */
extern const char *metrics_add_label (const char *label);

/* 'name' is without "nbdedup_", and 'help' without its full stop. */
extern void metric_head (const char *name, const char *type, const char *help);

/* 'labels' is NULL or as in the format: a="b",c="d".  Names of volumes and
 * snapshots need no escaping: they have letters, digits and . _ - @ only, and
 * if they were destroyed parentheses and a space.
 */
extern void
metric_integer (const char *name, const char *labels, uint64_t value);
extern void metric_real (const char *name, const char *labels, double value);
/* The same; what is not a number is NaN. */
extern void
metric_json (const char *name, const char *labels, const json_t *value);

/* status-metrics.c: what "status" has. */
extern void status_metrics_print (const json_t *status);

/* io-metrics.c: what "counters" has of the pool, and of those of 'volumes', an
 * array of objects with "name" (NULL: of all).
 */
extern void io_metrics_print (const json_t *counters, const json_t *volumes);

#endif /* NBDEDUP_METRICS_H */
