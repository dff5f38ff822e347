/* SPDX-License-Identifier: BSD-3-Clause */

/* "nbdedup drift --advise": what to do, the most bytes saved first.
 *
 * Each document gets "advice", an array of objects; JSON OUTPUT in
 * nbdedup-drift.pod describes them.
 */

#ifndef NBDEDUP_DRIFT_ADVICE_H
#define NBDEDUP_DRIFT_ADVICE_H

#include "give-back.h"
#include "tools.h"

/* The advice for the document at hand, a new array, in order.  'figures' are
 * nbdedup_frozen_advise's; 'more' is advice that others have found, or NULL.
 */
extern json_t *drift_advice (const json_t *document, const json_t *figures,
                             const struct give_back *g, json_t *more);

/* Make a piece of advice, with its commands.  The caller may add keys. */
extern json_t *
advice_new (const char *action, uint64_t saves_bytes, char *text);
extern void advice_command (json_t *advice, const char *fmt, ...)
  __attribute__ ((format (printf, 2, 3)));

/* Is this worth a piece of advice?  Not below 64 KiB, nor below a thousandth of
 * what the fleet takes.
 */
extern bool advice_pays (const json_t *document, int64_t bytes);

/* drift-advice-text.c: for people, after drift_print. */
extern void drift_advice_print (const json_t *documents);

#endif /* NBDEDUP_DRIFT_ADVICE_H */
