/* SPDX-License-Identifier: BSD-3-Clause */

/* Retention: which samples of a history may be dropped, so that the history of
 * years stays small.  Pure: no I/O, no clock.
 *
 * A policy is a list of tiers, written GRAIN:AGE and separated by commas:
 *
 *   all:1d,hourly:7d,daily:90d,weekly:10y
 *
 * GRAIN is all, hourly, daily or weekly; AGE is a number with the unit h, d,
 * w or y (365 days), or "forever".  A sample belongs to the first tier whose
 * AGE it has not passed.  The tier keeps the first sample of each bucket: of
 * each hour, day or week (UTC; weeks begin on Monday).  A tier of "all" keeps
 * every sample.  A sample older than the last tier is dropped.  The very first
 * sample and the newest one always stay.
 *
 * The tiers become coarser and older, and each spans at least one of its own
 * buckets.  Therefore the result does not depend on how often the history was
 * thinned:
 *
 *  - Buckets are nested.  So the first of a week is the first of its day and
 *    of its hour, and no finer tier drops it.
 *
 *  - A sample that is not the first of its bucket is judged while the first
 *    is still there: when the first has grown too old for the tier, all of
 *    its bucket have reached the tier.
 *
 * "First" means recorded first, whatever the clock said: setting the clock back
 * cannot replace a sample that was kept.  But samples that a user requested
 * precede those that the server took by itself; in nested buckets that selects
 * the same sample, too.
 */

#ifndef NBDEDUP_RETENTION_H
#define NBDEDUP_RETENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RETENTION_DEFAULT "all:1d,hourly:7d,daily:90d,weekly:10y"
#define RETENTION_TIERS_MAX 4 /* the number of grains */
#define RETENTION_TEXT_MAX 79 /* characters of a policy */
#define RETENTION_FOREVER UINT64_MAX

struct retention_tier {
  uint64_t grain_s; /* length of a bucket; 0: all */
  uint64_t age_s;   /* the oldest that belongs here */
};

struct retention_policy {
  struct retention_tier tiers[RETENTION_TIERS_MAX];
  unsigned nr; /* at least 1 */
};

struct retention_sample {
  uint64_t id;   /* ascending as recorded; each once */
  uint64_t time; /* seconds since the epoch */
  bool asked;    /* requested by a user */
  bool drop;     /* the result */
};

/* Fails with EINVAL; the error names the rule that 'text' breaks. */
extern int
retention_policy_parse (const char *text, struct retention_policy *policy);

/* Set 'drop' of all samples of one history.  They may be in any order; the
 * function sorts them by time.  A sample from the future counts as new.
 */
extern void retention_apply (const struct retention_policy *policy,
                             uint64_t now_s, struct retention_sample *samples,
                             size_t nr);

#endif /* NBDEDUP_RETENTION_H */
