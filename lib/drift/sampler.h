/* SPDX-License-Identifier: BSD-3-Clause */

/* The sampler: a server's thread that records drift (history.h).
 *
 * It takes a sample of a golden image when the last one is older than the
 * interval, also if another server took that: a server that restarts more
 * often than the interval samples as often as any other.  It also takes
 * one shortly after a snapshot of a clone; the delay lets a night's snapshots
 * of a whole fleet cause one sample, not one each.
 *
 * It records nothing while the clone set has not changed since the last
 * sample: no write, trim, resize, rollback, rebase, clone or destroy among its
 * clones.  The sampler knows this from counters in memory (clone-set.h), so a
 * new server may take one sample of an unchanged set.
 *
 * It runs at a low priority (on Linux each thread has its own nice value),
 * and rests after each sample for as long as that took.  It holds pool->admin
 * only briefly, as drift_run and history_drift do.  After a failure it tries
 * again at the next interval; sampler_json has the reason.
 *
 * It measures intervals by the monotonic clock, and the age of samples of an
 * earlier session by the wall clock; a time in the future counts as now.
 */

#ifndef NBDEDUP_SAMPLER_H
#define NBDEDUP_SAMPLER_H

#include "nbdedup.h"

struct sampler;
struct volume;

/* NULL on failure.  'interval_s' is not 0. */
extern struct sampler *
sampler_start (struct nbdedup_pool *pool, uint64_t interval_s);

/* End a running sample soon, and begin no other, so that a thread that waits
 * for it, or for pool->drift, can go on.  NULL is allowed, here and below.
 */
extern void sampler_cancel (struct sampler *sampler);
/* Stop the thread, and free. */
extern void sampler_free (struct sampler *sampler);

/* A snapshot of 'v' was made: if 'v' is a clone, sample its golden images.
 * Under pool->admin.
 */
extern void
sampler_note_snapshot (struct sampler *sampler, const struct volume *v);

/* {"samples", "skipped": numbers, "error": text or null}; JSON's null if
 * there is no sampler.
 */
extern json_t *sampler_json (struct sampler *sampler);

#endif /* NBDEDUP_SAMPLER_H */
