/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "format/retention.h"

#define HOUR_S UINT64_C (3600)
#define DAY_S (24 * HOUR_S)
#define WEEK_S (7 * DAY_S)
#define YEAR_S (365 * DAY_S)
/* The epoch was a Thursday: its week began so much earlier. */
#define MONDAY_S (3 * DAY_S)
#define AGE_DIGITS_MAX 6

/*----------------------------------------------------------------------
 * Policies
 */

static const struct {
  const char *name;
  uint64_t bytes, grain_s;
} grains[] = {
#define GRAIN(name, grain_s) { name, sizeof name - 1, grain_s }
  GRAIN ("all", 0),
  GRAIN ("hourly", HOUR_S),
  GRAIN ("daily", DAY_S),
  GRAIN ("weekly", WEEK_S),
#undef GRAIN
};

static uint64_t
unit_of (char c)
{
  switch (c) {
  case 'h':
    return HOUR_S;
  case 'd':
    return DAY_S;
  case 'w':
    return WEEK_S;
  case 'y':
    return YEAR_S;
  default:
    return 0;
  }
}

/* Parse 'len' characters: "12h", "90d", "forever". */
static bool
parse_age (const char *s, size_t len, uint64_t *age_s)
{
  uint64_t n = 0;
  size_t i;

  if (len == strlen ("forever") && memcmp (s, "forever", len) == 0) {
    *age_s = RETENTION_FOREVER;
    return true;
  }
  for (i = 0; i < len && isdigit ((unsigned char) s[i]); ++i)
    n = i < AGE_DIGITS_MAX ? n * 10 + (uint64_t) (s[i] - '0') : n;
  if (i == 0 || i > AGE_DIGITS_MAX || i + 1 != len)
    return false;
  *age_s = n * unit_of (s[i]);
  return *age_s != 0;
}

static bool
parse_tier (const char *s, size_t len, struct retention_tier *tier)
{
  size_t i, n;

  for (i = 0; i < sizeof grains / sizeof grains[0]; ++i) {
    n = grains[i].bytes;
    if (len > n && memcmp (s, grains[i].name, n) == 0 && s[n] == ':') {
      tier->grain_s = grains[i].grain_s;
      return parse_age (s + n + 1, len - n - 1, &tier->age_s);
    }
  }
  return false;
}

/* Check that tier 't' continues where 'before' ends (NULL: at 0). */
static int
check_tier (const struct retention_tier *before, const struct retention_tier *t,
            const char *s, size_t len)
{
  uint64_t from = before ? before->age_s : 0;

  if (before && t->grain_s <= before->grain_s)
    return nbdedup_fail (EINVAL,
                         "drift-keep: '%.*s' must be coarser than the "
                         "entry before it: all, hourly, daily, weekly",
                         (int) len, s);
  if (from == RETENTION_FOREVER || t->age_s <= from ||
      t->age_s - from < t->grain_s)
    return nbdedup_fail (EINVAL,
                         "drift-keep: '%.*s' must cover at least one "
                         "hour, day or week beyond the entry before it",
                         (int) len, s);
  return 0;
}

int
retention_policy_parse (const char *text, struct retention_policy *policy)
{
  struct retention_tier *t;
  const char *s = text;
  size_t len;

  policy->nr = 0;
  if (strlen (text) > RETENTION_TEXT_MAX)
    return nbdedup_fail (EINVAL, "drift-keep: more than %d characters",
                         RETENTION_TEXT_MAX);
  for (;; s += len + 1) {
    len = strcspn (s, ",");
    t = &policy->tiers[policy->nr];
    /* After the last grain no coarser one can follow. */
    if (policy->nr == RETENTION_TIERS_MAX || !parse_tier (s, len, t))
      return nbdedup_fail (EINVAL,
                           "drift-keep: '%.*s' is not GRAIN:AGE; GRAIN "
                           "is all, hourly, daily or weekly, AGE a number "
                           "with h, d, w or y, or forever",
                           (int) len, s);
    if (check_tier (policy->nr ? t - 1 : NULL, t, s, len) == -1)
      return -1;
    policy->nr++;
    if (s[len] == '\0')
      return 0;
  }
}

/*----------------------------------------------------------------------
 * Thinning
 */

static int
compare_times (const void *a, const void *b)
{
  const struct retention_sample *x = a, *y = b;

  if (x->time != y->time)
    return x->time < y->time ? -1 : 1;
  return x->id < y->id ? -1 : x->id > y->id;
}

static const struct retention_tier *
tier_of (const struct retention_policy *policy, uint64_t now_s, uint64_t time_s)
{
  uint64_t age_s = time_s < now_s ? now_s - time_s : 0;
  unsigned i;

  for (i = 0; i < policy->nr; ++i)
    if (age_s <= policy->tiers[i].age_s)
      return &policy->tiers[i];
  return NULL;
}

static uint64_t
bucket_of (uint64_t time_s, uint64_t grain_s)
{
  return (time_s + MONDAY_S) / grain_s;
}

/* True if 'a' is kept rather than 'b', in the same bucket. */
static bool
is_before (const struct retention_sample *a, const struct retention_sample *b)
{
  return a->asked != b->asked ? a->asked : a->id < b->id;
}

/* Drop each sample of the tier that is not the first of its bucket.  Samples in
 * other tiers also count as the first.
 */
static void
retention_tier (const struct retention_policy *policy,
                const struct retention_tier *tier, uint64_t now_s,
                struct retention_sample *samples, size_t nr)
{
  size_t begin, end, i, first;
  uint64_t bucket;

  for (begin = 0; begin < nr; begin = end) {
    bucket = bucket_of (samples[begin].time, tier->grain_s);
    first = begin;
    for (end = begin;
         end < nr && bucket_of (samples[end].time, tier->grain_s) == bucket;
         ++end)
      if (is_before (&samples[end], &samples[first]))
        first = end;
    for (i = begin; i < end; ++i)
      if (i != first && tier_of (policy, now_s, samples[i].time) == tier)
        samples[i].drop = true;
  }
}

void
retention_apply (const struct retention_policy *policy, uint64_t now_s,
                 struct retention_sample *samples, size_t nr)
{
  size_t i, oldest = 0, newest = 0;

  if (nr == 0)
    return;
  qsort (samples, nr, sizeof *samples, compare_times);
  for (i = 0; i < nr; ++i) {
    samples[i].drop = tier_of (policy, now_s, samples[i].time) == NULL;
    if (samples[i].id < samples[oldest].id)
      oldest = i;
    if (samples[i].id > samples[newest].id)
      newest = i;
  }
  for (i = 0; i < policy->nr; ++i)
    if (policy->tiers[i].grain_s != 0)
      retention_tier (policy, &policy->tiers[i], now_s, samples, nr);
  samples[oldest].drop = samples[newest].drop = false;
}
