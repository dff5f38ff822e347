/* SPDX-License-Identifier: BSD-3-Clause */

/* Thinning: valid and invalid policies; five years of samples every hour; and
 * that the result does not depend on how often samples are thinned.  The test
 * determines what must stay in another way, from the calendar: gmtime's hour,
 * date and ISO week.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "base/error.h"
#include "format/retention.h"
#include "rigs/testutil.h"

#define HOUR UINT64_C (3600)
#define DAY (24 * HOUR)
#define YEAR (365 * DAY)
#define NR_HOURS (5 * 365 * 24)

static uint64_t seed;

#define fatal(fmt, ...)                                                        \
  die ("SEED=%" PRIu64 " line %d: " fmt, seed, __LINE__, ##__VA_ARGS__)

/*----------------------------------------------------------------------
 * Policies
 */

static void
test_policies (void)
{
  static const char *const good[] = {
    RETENTION_DEFAULT,
    "all:1h",
    "all:forever",
    "weekly:forever",
    "hourly:1h",
    "all:1d,hourly:25h",
    "hourly:1w,daily:8d,weekly:3w",
    "daily:1y",
    "all:1d,hourly:7d,daily:90d,weekly:forever",
    "all:999999y",
  };
  static const char *const bad[] = {
    "",
    ",",
    "all",
    "all:",
    ":1d",
    "all:0d",
    "all:1",
    "all:d",
    "all:1m",
    "all:-1d",
    "all:+1d",
    "all: 1d",
    "all:1d ",
    " all:1d",
    "all:1d,",
    ",all:1d",
    "all:1dd",
    "all:1.5d",
    "ALL:1d",
    "monthly:1y",
    "alll:1d",
    "all:1d,all:2d",
    "daily:2d,hourly:3d",
    "all:1d,hourly:1d",
    "all:2d,hourly:1d",
    "all:1d,daily:47h",
    "daily:23h",
    "weekly:6d",
    "all:forever,daily:forever",
    "all:foreve",
    "all:forevers",
    "all:1000000d",
    "all:18446744073709551617d",
    "hourly:1h,daily:1d",
    "all:1d,hourly:7d,daily:90d,weekly:10y,weekly:20y",
    "all:1d,hourly:7d,daily:90d,weekly:000000000000000000000000000000000010y",
    "all:1d,hourly:7d,daily:90d,weekly:10y                                  "
    "               ",
  };
  struct retention_policy p;
  size_t i;

  for (i = 0; i < sizeof good / sizeof good[0]; ++i)
    if (retention_policy_parse (good[i], &p) == -1)
      die ("'%s' is refused: %s", good[i], nbdedup_error ());
  for (i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    errno = 0;
    if (retention_policy_parse (bad[i], &p) != -1 || errno != EINVAL)
      die ("'%s' is taken as a policy", bad[i]);
    if (strstr (nbdedup_error (), "drift-keep") == NULL)
      die ("'%s': %s", bad[i], nbdedup_error ());
  }
  if (retention_policy_parse ("hourly:2w,weekly:1y", &p) == -1 || p.nr != 2 ||
      p.tiers[0].grain_s != HOUR || p.tiers[0].age_s != 14 * DAY ||
      p.tiers[1].grain_s != 7 * DAY || p.tiers[1].age_s != YEAR)
    die ("a policy is misread");
}

/*----------------------------------------------------------------------
 * What must stay, from the calendar
 */

/* "2026-47" for a week, "2026-325" for a day, followed by the hour for one. */
static void
calendar_bucket (uint64_t time_s, uint64_t grain_s, char buf[32])
{
  time_t t = (time_t) time_s;
  struct tm tm;

  gmtime_r (&t, &tm);
  strftime (buf, 32,
            grain_s == HOUR    ? "%Y-%j %H"
              : grain_s == DAY ? "%Y-%j"
                               : "%G-%V",
            &tm);
}

static bool
must_stay (const struct retention_policy *p, uint64_t now,
           const struct retention_sample *all, size_t nr, size_t i)
{
  uint64_t age = all[i].time < now ? now - all[i].time : 0, grain;
  char mine[32], other[32];
  unsigned k;
  size_t j;

  if (i == 0 || i == nr - 1)
    return true;
  for (k = 0; k < p->nr && age > p->tiers[k].age_s; ++k)
    ;
  if (k == p->nr)
    return false;
  grain = p->tiers[k].grain_s;
  if (grain == 0)
    return true;
  calendar_bucket (all[i].time, grain, mine);
  for (j = 0; j < nr; ++j) {
    /* The earlier sample stays, but a requested one stays before others. */
    if (j == i || (all[j].asked == all[i].asked ? j > i : all[i].asked))
      continue;
    /* To be quick: so far apart they cannot share a bucket. */
    if (all[j].time + grain <= all[i].time ||
        all[i].time + grain <= all[j].time)
      continue;
    calendar_bucket (all[j].time, grain, other);
    if (strcmp (mine, other) == 0)
      return false;
  }
  return true;
}

/* Check that 'kept' is what must stay of 'all'.  Both are sorted by id. */
static void
compare (const struct retention_policy *p, uint64_t now,
         const struct retention_sample *all, size_t nr,
         const struct retention_sample *kept, size_t nr_kept)
{
  size_t i, k = 0;

  for (i = 0; i < nr; ++i) {
    bool found = k < nr_kept && kept[k].id == all[i].id;

    if (found != must_stay (p, now, all, nr, i))
      fatal ("of %zu samples, that of %" PRIu64 " (age %" PRIu64 " h) %s", nr,
             all[i].time, (now - all[i].time) / HOUR,
             found ? "stayed" : "is gone");
    k += found;
  }
  if (k != nr_kept)
    fatal ("%zu samples stayed, expected %zu", nr_kept, k);
}

static int
compare_ids (const void *a, const void *b)
{
  const struct retention_sample *x = a, *y = b;

  return x->id < y->id ? -1 : x->id > y->id;
}

/* Thin, and remove the samples that may go. */
static size_t
retention_now (const struct retention_policy *p, uint64_t now,
               struct retention_sample *s, size_t nr)
{
  size_t i, left = 0;

  retention_apply (p, now, s, nr);
  for (i = 0; i < nr; ++i)
    if (!s[i].drop)
      s[left++] = s[i];
  qsort (s, left, sizeof *s, compare_ids);
  return left;
}

/*----------------------------------------------------------------------
 * Five years
 */

static void
test_years (const char *text, uint64_t start, size_t max)
{
  struct retention_sample *all = xcalloc (NR_HOURS, sizeof *all);
  struct retention_sample *kept = xcalloc (NR_HOURS, sizeof *kept);
  struct retention_sample *once = xcalloc (NR_HOURS, sizeof *once);
  struct retention_policy p;
  size_t i, nr_kept = 0, again;
  uint64_t now = 0;

  if (retention_policy_parse (text, &p) == -1)
    die ("%s", nbdedup_error ());
  for (i = 0; i < NR_HOURS; ++i) {
    now = start + i * HOUR;
    all[i] = (struct retention_sample) {
      .id = i * 3 + 1,
      .time = now,
      .asked = i % 97 == 5,
    };
    kept[nr_kept++] = all[i];
    nr_kept = retention_now (&p, now, kept, nr_kept);
    if (nr_kept > max)
      fatal ("%s: %zu samples after %zu hours", text, nr_kept, i);
    if (i % 4999 == 0)
      compare (&p, now, all, i + 1, kept, nr_kept);
  }
  compare (&p, now, all, NR_HOURS, kept, nr_kept);
  /* Thinning again changes nothing, and thinning only once has the same result.
   */
  again = retention_now (&p, now, kept, nr_kept);
  memcpy (once, all, NR_HOURS * sizeof *all);
  if (again != nr_kept || retention_now (&p, now, once, NR_HOURS) != nr_kept ||
      memcmp (once, kept, nr_kept * sizeof *kept) != 0)
    fatal ("%s: thinning once is not thinning every hour", text);
  printf ("%s: %zu of %d samples are left\n", text, nr_kept, NR_HOURS);
  free (all);
  free (kept);
  free (once);
}

/*----------------------------------------------------------------------
 * Thinning at random
 */

static void
random_policy (struct rng *rng, struct retention_policy *p)
{
  static const char *const grains[] = { "all", "hourly", "daily", "weekly" };
  static const uint64_t lengths[] = { 0, HOUR, DAY, 7 * DAY };
  uint64_t hours = 0;
  char text[200];
  size_t len;
  unsigned k;

  do {
    len = 0;
    for (k = 0; k < 4; ++k) {
      if (rng_percent (rng, 40))
        continue;
      /* Often only the length that is needed. */
      hours += lengths[k] / HOUR +
        rng_below (rng, rng_percent (rng, 50) ? 2 : 300);
      if (k == 0 && hours == 0)
        hours = 1;
      len += (size_t) sprintf (text + len, "%s%s:%" PRIu64 "h", len ? "," : "",
                               grains[k], hours);
    }
  } while (len == 0);
  if (retention_policy_parse (text, p) == -1)
    fatal ("%s: %s", text, nbdedup_error ());
}

/* Samples at random moments, sometimes after a long gap.  They are thinned
 * after some of the samples.
 */
static void
test_random (struct rng *rng, bool clock_jumps)
{
  enum { NR = 600 };
  struct retention_sample all[NR], kept[NR];
  uint64_t now = UINT64_C (1700000000) + rng_below (rng, YEAR);
  uint64_t gap = rng_between (rng, 60, 20 * HOUR);
  size_t i, nr_kept = 0, max = rng_between (rng, 1, NR);
  unsigned often = rng_between (rng, 1, 100);
  struct retention_policy p;

  random_policy (rng, &p);
  for (i = 0; i < max; ++i) {
    now += rng_below (rng, rng_percent (rng, 3) ? 40 * DAY : gap);
    if (clock_jumps && rng_percent (rng, 2))
      now -= rng_below (rng, 10 * DAY);
    all[i] = (struct retention_sample) {
      .id = i + 5,
      .time = now,
      .asked = rng_percent (rng, 15),
    };
    kept[nr_kept++] = all[i];
    if (i == max - 1 || rng_percent (rng, often))
      nr_kept = retention_now (&p, now, kept, nr_kept);
  }
  if (!clock_jumps) {
    compare (&p, now, all, max, kept, nr_kept);
    return;
  }
  /* This must be true whatever the clock does. */
  if (kept[0].id != 5 || kept[nr_kept - 1].id != max + 4)
    fatal ("the first or the newest sample is gone");
  memcpy (all, kept, nr_kept * sizeof kept[0]);
  if (retention_now (&p, now, kept, nr_kept) != nr_kept ||
      memcmp (all, kept, nr_kept * sizeof kept[0]) != 0)
    fatal ("thinning once more drops more");
}

/* If the clock was set back a sample with an earlier time does not replace
 * samples recorded before it.
 */
static void
test_clock_set_back (void)
{
  /* Monday, 20 November 2023, 12:00. */
  const uint64_t noon = UINT64_C (1700481600);
  struct retention_sample s[] = {
    { .id = 1, .time = noon - 30 * DAY },
    { .id = 2, .time = noon },
    { .id = 3, .time = noon - HOUR }, /* the same day, and "before" */
    { .id = 4, .time = noon + 3 * DAY },
    { .id = 5, .time = noon + 400 * DAY }, /* of the future */
    { .id = 6, .time = noon + 5 * DAY },
  };
  struct retention_policy p;
  size_t nr;

  if (retention_policy_parse ("hourly:1d,daily:1y", &p) == -1)
    die ("%s", nbdedup_error ());
  nr = retention_now (&p, noon + 5 * DAY, s, 6);
  if (nr != 5 || s[0].id != 1 || s[1].id != 2 || s[2].id != 4 || s[3].id != 5 ||
      s[4].id != 6)
    die ("a clock that is set back changes what is kept");
  retention_apply (&p, noon, s, 0);
}

/* A requested sample stays before one that the server took by itself. */
static void
test_asked (void)
{
  const uint64_t noon = UINT64_C (1700481600);
  struct retention_sample s[] = {
    { .id = 1, .time = noon - 30 * DAY },
    { .id = 2, .time = noon },
    { .id = 3, .time = noon + 60, .asked = true },
    { .id = 4, .time = noon + 120, .asked = true },
    { .id = 5, .time = noon + 5 * DAY },
  };
  struct retention_policy p;
  size_t nr;

  if (retention_policy_parse ("hourly:1d,daily:1y", &p) == -1)
    die ("%s", nbdedup_error ());
  nr = retention_now (&p, noon + 5 * DAY, s, 5);
  if (nr != 3 || s[0].id != 1 || s[1].id != 3 || s[2].id != 5)
    die ("a sample that was asked for went before one that was not");
}

int
main (void)
{
  struct rng rng;
  unsigned i;

  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 "\n", seed);
  fflush (stdout);
  rng = rng_make (seed, 1);
  test_policies ();
  test_clock_set_back ();
  test_asked ();
  /* 1 day of hours, 6 days of them, 83 days, and weeks of 5 years. */
  test_years (RETENTION_DEFAULT, UINT64_C (1700000000), 25 + 145 + 84 + 250);
  test_years ("daily:30d,weekly:1y", UINT64_C (1703123456), 33 + 50);
  test_years ("all:2d,weekly:3w", UINT64_C (1690000001), 49 + 5);
  for (i = 0; i < 2000; ++i)
    test_random (&rng, i % 4 == 3);
  return 0;
}
