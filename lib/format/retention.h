/* SPDX-License-Identifier: BSD-3-Clause */

/* Retention: which samples of a history may go, so that years stay small.
 * Pure: no I/O, no clock.
 *
 * A policy is a list of tiers, written GRAIN:AGE and separated by commas:
 *
 *   all:1d,hourly:7d,daily:90d,weekly:10y
 *
 * GRAIN is all, hourly, daily or weekly; AGE is a number with the unit h, d,
 * w or y (365 days), or "forever".  A sample belongs to the first tier whose
 * AGE it has not passed.  There it stays if it is the first of its bucket:
 * of its hour, day or week (UTC; weeks begin on Monday); in a tier of "all"
 * it stays anyway.  One that is older than the last tier goes.  The first
 * sample of all, and the newest one, always stay.
 *
 * The tiers become coarser and older, and each spans at least one of its own
 * buckets; then what stays does not depend on how often one has thinned:
 *
 *  - Buckets are nested.  So the first of a week is the first of its day and
 *    of its hour, and no finer tier drops it.
 *
 *  - A sample that is not the first of its bucket is judged while that one
 *    is there still: when the first has grown too old for the tier, all of
 *    its bucket have reached the tier.
 *
 * "First" is the first recorded, whatever the clock said: one that is set
 * back cannot put another sample in the place of one that was kept.  But a
 * sample that a user requested goes before those that the server took by
 * itself; in nested buckets that is the same one, too.
 */

#ifndef NBDEDUP_RETENTION_H
#define NBDEDUP_RETENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RETENTION_DEFAULT "all:1d,hourly:7d,daily:90d,weekly:10y"
#define RETENTION_TIERS_MAX 4   /* there are no more grains */
#define RETENTION_TEXT_MAX 79   /* characters of a policy */
#define RETENTION_FOREVER UINT64_MAX

struct retention_tier {
  uint64_t grain_s;             /* length of a bucket; 0: all */
  uint64_t age_s;               /* the oldest that belongs here */
};

struct retention_policy {
  struct retention_tier tiers[RETENTION_TIERS_MAX];
  unsigned nr;                  /* at least 1 */
};

struct retention_sample {
  uint64_t id;                  /* ascending as recorded; each once */
  uint64_t time;                /* seconds since the epoch */
  bool asked;                   /* requested by a user */
  bool drop;                    /* the answer */
};

/* EINVAL, with the rule that 'text' breaks. */
extern int retention_policy_parse (const char *text,
                                   struct retention_policy *policy);

/* Decide about all samples of one history, in any order; leaves them sorted
 * by time.  A sample of the future counts as new.
 */
extern void retention_apply (const struct retention_policy *policy,
                             uint64_t now_s,
                             struct retention_sample *samples, size_t nr);

#endif /* NBDEDUP_RETENTION_H */
