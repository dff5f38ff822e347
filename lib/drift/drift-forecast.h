/* SPDX-License-Identifier: BSD-3-Clause */

/* Where a golden image and its clones are heading: forecasts (forecast.h) of
 * the figures of drift, from the history and the present.
 */

#ifndef NBDEDUP_DRIFT_FORECAST_H
#define NBDEDUP_DRIFT_FORECAST_H

#include <jansson.h>

struct nbdedup_pool;

/* Add "forecast" to each document of drift_run's 'result'; nbdedup-drift(1)
 * describes it.  'ratio': when will the dedup ratio be below it; 0: below the
 * property drift-alert-ratio.
 *
 * A history that cannot be read makes no forecast, with the reason.  Fails with
 * ENOMEM only.  The caller must not hold pool->admin.
 */
extern int
drift_forecast_add (struct nbdedup_pool *pool, json_t *result, double ratio);

#endif /* NBDEDUP_DRIFT_FORECAST_H */
