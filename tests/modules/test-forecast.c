/* SPDX-License-Identifier: BSD-3-Clause */

/* Forecasts, tested on the past: on series with noise whose samples are as
 * retention leaves them, the forecast of the next quarter is at most 10 % off,
 * whatever the series is: a line, a curve that saturates, a line with a step.
 * Its interval holds what came.  After a first step the interval is wider.
 * Too few samples make no forecast.
 */

#include <config.h>

#include <math.h>

#include "drift/forecast.h"
#include "format/retention.h"
#include "rigs/testutil.h"

#define HOUR 3600.0
#define DAY (24 * HOUR)
#define START 1700000000.0
#define ROUNDS 60
/* Points of the next quarter that are compared. */
#define TARGETS 10

static uint64_t seed;

#define fatal(fmt, ...)                                                        \
  die ("SEED=%" PRIu64 " line %d: " fmt, seed, __LINE__, ##__VA_ARGS__)

/* From 'low' to 'high'. */
static double
rng_real (struct rng *rng, double low, double high)
{
  return low + (high - low) * (rng_next (rng) >> 11) * 0x1p-53;
}

/* About normal, with standard deviation 1. */
static double
rng_normal (struct rng *rng)
{
  double sum = -6;
  unsigned i;

  for (i = 0; i < 12; ++i)
    sum += rng_real (rng, 0, 1);
  return sum;
}

/*----------------------------------------------------------------------
 * Series.  Time is 1 at the end of the history, and 1.25 a quarter later.
 */

enum shape { LINEAR, SATURATING, STEP, STAIRS, NR_SHAPES };

static const char *const shapes[] = {
  "linear",
  "saturating",
  "step",
  "stairs",
};

struct truth {
  enum shape shape;
  double base, slope, tau, step, step_at;
  double noise;
};

static double
truth_at (const struct truth *t, double x)
{
  switch (t->shape) {
  case LINEAR:
    return t->base + t->slope * x;
  case SATURATING:
    return t->base + t->slope * (1 - exp (-x / t->tau));
  case STEP:
    return t->base + t->slope * x + (x >= t->step_at ? t->step : 0);
  case STAIRS:
    return t->base + t->step * floor (x / t->step_at);
  default:
    fatal ("shape %d", t->shape);
  }
}

static struct truth
make_truth (struct rng *rng, enum shape shape)
{
  const double base = rng_real (rng, 50, 5000) * (1 << 20);

  return (struct truth) {
    .shape = shape,
    .base = base,
    .slope = base * rng_real (rng, shape == SATURATING ? 0.2 : -0.4, 4),
    .tau = rng_real (rng, 0.15, 0.8),
    .step = base * rng_real (rng, 0.2, 1),
    .step_at = shape == STAIRS ? rng_real (rng, 0.03, 0.08)
                               : rng_real (rng, 0.15, 0.85),
    .noise = rng_real (rng, 0, 0.02),
  };
}

/* Samples every hour, except for days when nothing ran, thinned. */
static size_t
sample (struct rng *rng, const struct truth *t, unsigned days,
        struct forecast_point **points)
{
  const size_t nr = days * 24;
  struct retention_sample *s = xcalloc (nr, sizeof *s);
  struct retention_policy policy;
  size_t i, left = 0;
  double x;

  if (retention_policy_parse (RETENTION_DEFAULT, &policy) == -1)
    fatal ("the default of drift-keep");
  for (i = 0; i < nr; ++i)
    s[i] = (struct retention_sample) {
      .id = i,
      .time = (uint64_t) (START + i * HOUR + rng_real (rng, 0, HOUR / 2)),
    };
  retention_apply (&policy, s[nr - 1].time, s, nr);
  *points = xcalloc (nr, sizeof **points);
  for (i = 0; i < nr; ++i)
    if (!s[i].drop && (i == nr - 1 || rng_below (rng, 5) > 0)) {
      x = (s[i].time - START) / (days * DAY);
      (*points)[left++] = (struct forecast_point) {
        s[i].time, truth_at (t, x) * (1 + t->noise * rng_normal (rng))
      };
    }
  free (s);
  return left;
}

static struct forecast *
make_forecast (struct rng *rng, const struct truth *t, unsigned days)
{
  struct forecast_point *points;
  const size_t nr = sample (rng, t, days, &points);
  struct forecast *f = forecast_new (points, nr, 0, INFINITY);

  if (f == NULL)
    fatal ("no memory");
  free (points);
  return f;
}

/*----------------------------------------------------------------------*/

struct score {
  unsigned nr, inside;
  double worst, sum;
};

static void
back_test (enum shape shape, unsigned days, struct score *score)
{
  struct rng rng = rng_make (seed, shape * 1000 + days);
  struct truth t = make_truth (&rng, shape);
  struct forecast *f = make_forecast (&rng, &t, days);
  struct forecast_value v;
  double ahead, truth, error;
  unsigned i;

  if (forecast_method (f) == NULL)
    fatal ("%s, %u days: no forecast", shapes[shape], days);
  for (i = 1; i <= TARGETS; ++i) {
    ahead = 0.25 * i / TARGETS;
    truth = truth_at (&t, 1 + ahead);
    if (!forecast_at (f, ahead * days * DAY * 0.99, &v))
      fatal ("%s, %u days: no value", shapes[shape], days);
    if (v.low > v.value || v.value > v.high)
      fatal ("%s, %u days: an interval without its value", shapes[shape], days);
    error = fabs (v.value - truth) / truth;
    if (error > 0.1)
      fatal ("%s, %u days: %.3g instead of %.3g after %.2f: %s", shapes[shape],
             days, v.value, truth, ahead, forecast_method (f));
    score->nr++;
    score->inside += v.low <= truth && truth <= v.high;
    score->sum += error;
    score->worst = fmax (score->worst, error);
  }
  forecast_free (f);
}

static void
test_quarters (void)
{
  static const unsigned lengths[] = { 14, 60, 200, 500 };
  struct score score;
  unsigned shape, i;

  for (shape = 0; shape < NR_SHAPES; ++shape)
    for (i = 0; i < sizeof lengths / sizeof lengths[0]; ++i) {
      score = (struct score) { 0 };
      for (seed = 1; seed <= ROUNDS; ++seed)
        back_test ((enum shape) shape, lengths[i], &score);
      printf ("%s, %u days: mean error %.3f, worst %.3f, inside %.0f %%\n",
              shapes[shape], lengths[i], score.sum / score.nr, score.worst,
              100.0 * score.inside / score.nr);
      if (score.inside < 0.9 * score.nr)
        fatal ("the interval holds too few of what came");
    }
}

/*----------------------------------------------------------------------
 * The first step
 */

/* The half width of the interval 25 days ahead, of 100 days and later. */
static double
width_after (const struct truth *t, unsigned days)
{
  struct rng rng = rng_make (seed, days);
  struct truth scaled = *t;
  struct forecast_value v;
  struct forecast *f;

  scaled.slope *= days / 100.0;
  scaled.step_at /= days / 100.0;
  f = make_forecast (&rng, &scaled, days);
  if (!forecast_at (f, 25 * DAY, &v))
    fatal ("no value");
  forecast_free (f);
  return v.high - v.value;
}

static void
test_first_step (void)
{
  struct rng rng;
  struct truth t;
  double before, after;

  for (seed = 1; seed <= ROUNDS; ++seed) {
    rng = rng_make (seed, 0);
    t = make_truth (&rng, STEP);
    t.step_at = 1.1;
    t.slope = t.base * rng_real (&rng, 0, 1);
    t.step = t.base * 0.5;
    before = width_after (&t, 100);
    after = width_after (&t, 130);
    if (before > t.step / 2)
      fatal ("wide before the step: %.2f steps", before / t.step);
    if (after < 2 * before || after < 0.9 * t.step)
      fatal ("after the step no other would fit: %.2f steps, before %.2f",
             after / t.step, before / t.step);
  }
}

/* A last value that no curve explains is in the interval at once. */
static void
test_last_value (void)
{
  struct forecast_point p[40];
  struct forecast_value v;
  struct forecast *f;
  unsigned i;

  for (i = 0; i < 40; ++i)
    p[i] = (struct forecast_point) { START + i * DAY, 100 + i };
  p[39].value += 50;
  f = forecast_new (p, 40, 0, INFINITY);
  if (f == NULL || !forecast_at (f, DAY, &v) || v.high < p[39].value ||
      v.low > 141)
    fatal ("the last value is outside of the interval");
  forecast_free (f);
}

/*----------------------------------------------------------------------*/

static struct forecast *
forecast_line (size_t nr, double step_s, double value, double rise,
               double least, double most)
{
  struct forecast_point *p = xcalloc (nr, sizeof *p);
  struct forecast *f;
  size_t i;

  /* Any order will do. */
  for (i = 0; i < nr; ++i)
    p[nr - 1 - i] = (struct forecast_point) { START + i * step_s,
                                              value + i * rise };
  f = forecast_new (p, nr, least, most);
  if (f == NULL)
    fatal ("no memory");
  free (p);
  return f;
}

static void
expect_none (size_t nr, double step_s)
{
  struct forecast *f = forecast_line (nr, step_s, 5, 1, 0, INFINITY);
  struct forecast_when when;
  struct forecast_value v;

  if (forecast_method (f) || forecast_at (f, DAY, &v) ||
      forecast_when_above (f, 3, &when))
    fatal ("%zu samples, one each %.0f s: a guess", nr, step_s);
  forecast_free (f);
}

static void
test_too_few (void)
{
  struct forecast_point lately[101];
  struct forecast *f;
  size_t i;

  expect_none (0, 0);
  expect_none (1, 0);
  expect_none (50, 0); /* one moment */
  expect_none (7, 10 * DAY);
  expect_none (100, HOUR); /* four days */
  for (i = 0; i < 100; ++i)
    lately[i] = (struct forecast_point) { START + i * HOUR, (double) i };
  lately[100] = (struct forecast_point) { START - 365 * DAY, 0 };
  f = forecast_new (lately, 101, 0, INFINITY);
  if (f == NULL || forecast_method (f))
    fatal ("a guess from four days and one sample long ago");
  forecast_free (f);
}

/* A server that ran for a while, and then now and then, or once more. */
static void
test_gaps (void)
{
  static const double days[][8] = {
    { 0, 3, 6, 9, 12, 43, 74, 105 },
    { 0, 3, 6, 9, 12, 15, 18, 110 },
  };
  struct forecast_point p[8];
  struct forecast_value v;
  struct forecast *f;
  size_t i, j;

  for (i = 0; i < 2; ++i) {
    for (j = 0; j < 8; ++j)
      p[j] = (struct forecast_point) { START + days[i][j] * DAY, days[i][j] };
    f = forecast_new (p, 8, 0, INFINITY);
    if (f == NULL || forecast_method (f) == NULL ||
        !isfinite (forecast_error (f)) || !forecast_at (f, 30 * DAY, &v) ||
        !isfinite (v.low) || !isfinite (v.high) || v.low > v.value ||
        v.value > v.high)
      fatal ("gaps: no forecast");
    forecast_free (f);
  }
}

static void
test_reach (void)
{
  struct forecast *f = forecast_line (8, DAY, 5, 0, 0, INFINITY);
  struct forecast_value v;

  if (!forecast_at (f, 7 * DAY, &v) || v.value != 5 || v.low != 5 ||
      v.high != 5)
    fatal ("what never changed is not the same in a week");
  if (forecast_at (f, 7.1 * DAY, &v))
    fatal ("it looks further ahead than the history reaches back");
  forecast_free (f);
}

static void
test_when (void)
{
  struct forecast *f = forecast_line (101, DAY, 100, 1, 0, 260);
  struct forecast_when when;
  struct forecast_value v;

  if (!forecast_when_above (f, 225, &when) ||
      fabs (when.expected_s - 25 * DAY) > DAY ||
      when.earliest_s > when.expected_s || when.latest_s < when.expected_s)
    fatal ("225 after %.1f days", when.expected_s / DAY);
  if (!forecast_when_above (f, 200, &when) || when.expected_s != 0 ||
      when.latest_s != 0)
    fatal ("200 is now");
  if (!forecast_when_above (f, 301, &when) || !isinf (when.expected_s) ||
      !isinf (when.earliest_s))
    fatal ("301 is too far away");
  if (!forecast_at (f, 90 * DAY, &v) || v.value != 260 || v.high != 260)
    fatal ("a value above the greatest that is possible");
  forecast_free (f);
}

int
main (void)
{
  test_quarters ();
  test_first_step ();
  test_last_value ();
  test_too_few ();
  test_gaps ();
  test_reach ();
  test_when ();
  return 0;
}
