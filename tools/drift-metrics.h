/* SPDX-License-Identifier: BSD-3-Clause */

/* Drift, for Prometheus. */

#ifndef NBDEDUP_DRIFT_METRICS_H
#define NBDEDUP_DRIFT_METRICS_H

#include <jansson.h>

/* 'documents' are the newest samples, one of each golden image.  'name' NULL:
 * all of them; a golden image's: its sample; a volume's: that clone in them.
 */
extern void drift_metrics_print (const json_t *documents, const char *name);

/* The same for the present alerts: drift-alert.c. */
extern void drift_alert_metrics_print (const json_t *alerts, const char *name);

#endif /* NBDEDUP_DRIFT_METRICS_H */
