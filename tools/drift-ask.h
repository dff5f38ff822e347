/* SPDX-License-Identifier: BSD-3-Clause */

/* Calls of the engine for "nbdedup drift" and other commands.  Each returns a
 * new reference; NULL: reported.  'memory' 0: the engine's default.
 */

#ifndef NBDEDUP_DRIFT_ASK_H
#define NBDEDUP_DRIFT_ASK_H

#include <stdbool.h>
#include <stdint.h>

#include "tools.h"

/* The document of 'golden', or (NULL) {"goldens": [documents]}, with forecasts.
 * 'ratio': of the forecast's "ratio_below"; 0: the pool's.
 */
extern json_t *drift_ask_present (const struct options *opts,
                                  const char *golden, bool record, double ratio,
                                  uint64_t memory);

/* The array of present alerts, of all images if 'golden' is NULL. */
extern json_t *
drift_ask_alerts (const struct options *opts, const char *golden);

/* {"names", "freed_bytes"} */
extern json_t *
drift_ask_freed (const struct options *opts, json_t *names, uint64_t memory);

/* {"samples": [documents]}, in recorded order, of all images if 'golden' is
 * NULL.
 */
extern json_t *
drift_ask_history (const struct options *opts, const char *golden);

/* An array with the newest sample of each golden image that has one. */
extern json_t *drift_ask_newest (const struct options *opts);

/* An array with the history (drift-report.h) for each of these documents, which
 * have the present figures.
 */
extern json_t *
drift_ask_histories (const struct options *opts, const json_t *documents);

#endif /* NBDEDUP_DRIFT_ASK_H */
