/* SPDX-License-Identifier: BSD-3-Clause */

/* Alerts: the newest drift sample of a golden image is beyond a threshold.
 *
 *   ratio   the fleet's dedup ratio is below the pool's drift-alert-ratio
 *   growth  its distinct contents take more sectors than a week ago, by more
 *           than the pool's drift-alert-growth; a longer time since the last
 *           sample that is a week old counts in proportion, a shorter history
 *           as it is
 *   unique  a clone's unique bytes are more than its drift-alert-unique, or,
 *           unless it has one, the pool's
 *
 * The transaction that records a sample also stores the alerts, in the report
 * "drift-alerts", so they survive the end of the server; an alert that was
 * there before is the same alert, and goes to the log only once.  A change of a
 * threshold takes effect at once, on the newest samples.
 *
 * Images and clones are known by their ids: a rename changes no alert.
 *
 * An update has pool->alerts from its beginning to its end, so that a sample
 * and a change of a threshold follow each other.  The caller holds no lock.
 */

#ifndef NBDEDUP_ALERT_H
#define NBDEDUP_ALERT_H

#include <stdint.h>

#include <jansson.h>

#include "core/alert-property.h"

struct meta_conn;
struct nbdedup_pool;

/* {"alerts": [{"kind", "golden", "clone" (of "unique"), "value", "threshold",
 * "since", "text", "command"}]}: the present ones, of all golden images or of
 * 'name' (with " (destroyed)", if it is).  Alerts of images and clones that do
 * not exist any more are left out.  Takes only volumes->lock.
 */
extern json_t *alerts_get (struct nbdedup_pool *pool, const char *name);

/* A threshold has changed: look at the newest samples again. */
extern int alerts_refresh (struct nbdedup_pool *pool);

/*----------------------------------------------------------------------
 * For history.c: new samples
 */

struct alert_update;

/* NULL on failure. */
extern struct alert_update *alert_update_new (struct nbdedup_pool *pool);
extern void alert_update_free (struct alert_update *update);

/* Compare a document with the thresholds. */
extern int alert_update_add (struct alert_update *update, uint64_t golden,
                             const json_t *document);
/* Room for what alert_update_put writes. */
extern uint64_t alert_update_bytes (const struct alert_update *update);
/* In a transaction: store the alerts of the golden images that were added. */
extern int alert_update_put (struct alert_update *update, struct meta_conn *c);
/* After the commit: log what is new, and what is over. */
extern void alert_update_log (const struct alert_update *update);

#endif /* NBDEDUP_ALERT_H */
