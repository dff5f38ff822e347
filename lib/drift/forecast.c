/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "drift/forecast.h"

/* Enough to follow a curve, and few enough to fit hundreds of times. */
#define INTERVALS 48
/* The shortest beginning of the series that a curve is fitted to. */
#define TRAINING_MIN 5
/* Evaluate up to half of the series ahead; select by the first half of that. */
#define LEAD_MAX 0.5
#define LEAD_SELECT 0.25
/* A curve with more freedom must reduce the error by this factor. */
#define CLEARLY_BETTER 0.9
/* Of the greatest value: a smaller error is as good as none. */
#define NEGLIGIBLE 1e-3
#define CONFIDENCE 0.9
/* Widths of the interval are kept for so many distances. */
#define LEADS 64
/* Steps of the search for a level. */
#define SEARCH 1024

/* Time runs from 0 to 1 over the whole series. */
struct series {
  double x[INTERVALS], y[INTERVALS];
  size_t nr;
};

enum curve_kind { LEVEL, LINE, STEP_LINE, RECENT_LINE, SATURATING };

/* From few to many degrees of freedom. */
static const struct competitor {
  const char *name;
  enum curve_kind kind;
  bool without_steps;
} competitors[] = {
  { "level", LEVEL, false },
  { "linear", LINE, false },
  { "linear with a step", STEP_LINE, false },
  { "recent linear", RECENT_LINE, false },
  { "saturating", SATURATING, false },
  { "linear without steps", LINE, true },
  { "recent linear without steps", RECENT_LINE, true },
  { "saturating without steps", SATURATING, true },
};

#define NR_COMPETITORS (sizeof competitors / sizeof competitors[0])

/* y = a + b * phi (x), where phi (x) is x, or with a tau 1 - exp (-x / tau). */
struct curve {
  double a, b, tau; /* tau 0: a line */
};

/* An error of the evaluation. */
struct miss {
  double lead, error;
};

#define MISSES_MAX (INTERVALS * INTERVALS / 2)

struct misses {
  struct miss p[MISSES_MAX];
  size_t nr, nr_origins;
};

struct forecast {
  struct series s;
  double span_s, last; /* the last point's value */
  double least, most;
  const struct competitor *winner; /* NULL: too few samples */
  struct curve curve;
  double error;
  double misfit;
  double width[LEADS + 1]; /* by the distance, up to a whole span */
};

static int
compare_doubles (const void *a, const void *b)
{
  const double x = *(const double *) a, y = *(const double *) b;

  return x < y ? -1 : x > y;
}

/* Sorts 'v'. */
static double
median (double *v, size_t nr)
{
  assert (nr > 0);
  qsort (v, nr, sizeof *v, compare_doubles);
  return nr % 2 ? v[nr / 2] : (v[nr / 2 - 1] + v[nr / 2]) / 2;
}

/* The standard deviation, by the median of absolute values. */
static double
robust_scale (const double *residuals, size_t nr)
{
  double v[INTERVALS];
  size_t i;

  for (i = 0; i < nr; ++i)
    v[i] = fabs (residuals[i]);
  return 1.4826 * median (v, nr);
}

/*----------------------------------------------------------------------
 * Intervals of time
 */

static int
compare_points (const void *a, const void *b)
{
  const struct forecast_point *p = a, *q = b;

  return p->time_s < q->time_s ? -1 : p->time_s > q->time_s;
}

static void
add_interval (struct series *s, const struct forecast_point *p, size_t nr,
              double from_s, double span_s, double *values)
{
  double sum = 0;
  size_t i;

  for (i = 0; i < nr; ++i) {
    sum += (p[i].time_s - from_s) / span_s;
    values[i] = p[i].value;
  }
  s->x[s->nr] = sum / nr;
  s->y[s->nr++] = median (values, nr);
}

/* 'p' is sorted; 'values' has room for all. */
static void
cut (struct series *s, const struct forecast_point *p, size_t nr,
     double *values)
{
  const double from_s = p[0].time_s, span_s = p[nr - 1].time_s - from_s;
  size_t i, first = 0, interval, now = 0;

  for (i = 0; i < nr; ++i) {
    interval = (size_t) ((p[i].time_s - from_s) / span_s * INTERVALS);
    if (interval == INTERVALS)
      interval--;
    if (interval != now && i > first) {
      add_interval (s, p + first, i - first, from_s, span_s, values);
      first = i;
    }
    now = interval;
  }
  add_interval (s, p + first, nr - first, from_s, span_s, values);
  assert (s->nr <= INTERVALS);
}

/*----------------------------------------------------------------------
 * Curves
 */

static double
phi (double tau, double x)
{
  return tau == 0 ? x : 1 - exp (-x / tau);
}

static double
curve_at (const struct curve *c, double x)
{
  return c->a + c->b * phi (c->tau, x);
}

static void
fit_weighted (struct curve *c, const double *z, const double *y,
              const double *w, size_t nr)
{
  double sw = 0, sz = 0, sy = 0, szz = 0, szy = 0, mz, my;
  size_t i;

  for (i = 0; i < nr; ++i) {
    sw += w[i];
    sz += w[i] * z[i];
    sy += w[i] * y[i];
  }
  mz = sz / sw;
  my = sy / sw;
  for (i = 0; i < nr; ++i) {
    szz += w[i] * (z[i] - mz) * (z[i] - mz);
    szy += w[i] * (z[i] - mz) * (y[i] - my);
  }
  c->b = szz > 0 ? szy / szz : 0;
  c->a = my - c->b * mz;
}

/* Fit a and b for the tau that is set; returns the sum of absolute errors. */
static double
fit_robust (struct curve *c, const double *x, const double *y, size_t nr)
{
  double z[INTERVALS], w[INTERVALS], residuals[INTERVALS], limit, sum = 0;
  unsigned round;
  size_t i;

  for (i = 0; i < nr; ++i) {
    z[i] = phi (c->tau, x[i]);
    w[i] = 1;
  }
  for (round = 0; round < 4; ++round) {
    fit_weighted (c, z, y, w, nr);
    for (i = 0; i < nr; ++i)
      residuals[i] = y[i] - c->a - c->b * z[i];
    limit = 1.345 * robust_scale (residuals, nr);
    for (i = 0; i < nr; ++i)
      w[i] = fabs (residuals[i]) <= limit ? 1 : limit / fabs (residuals[i]);
    if (limit == 0)
      break; /* most points are on the curve */
  }
  for (i = 0; i < nr; ++i)
    sum += fabs (residuals[i]);
  return sum;
}

static struct curve
fit_saturating (const double *x, const double *y, size_t nr)
{
  static const double taus[] = {
    0.08, 0.12, 0.18, 0.27, 0.4, 0.6, 0.9, 1.4, 2.2, 4,
  };
  struct curve best = { 0, 0, 0 }, c;
  double least = INFINITY, sum;
  size_t i;

  for (i = 0; i < sizeof taus / sizeof taus[0]; ++i) {
    c.tau = taus[i] * x[nr - 1];
    sum = fit_robust (&c, x, y, nr);
    if (sum < least) {
      least = sum;
      best = c;
    }
  }
  return best;
}

/* Sums of a part of the series. */
struct sums {
  double nr, x, y, xx, xy, yy;
};

static void
add_sums (struct sums *s, double sign, double x, double y)
{
  s->nr += sign;
  s->x += sign * x;
  s->y += sign * y;
  s->xx += sign * x * x;
  s->xy += sign * x * y;
  s->yy += sign * y * y;
}

/* The squared errors of two lines of one slope, each through its part. */
static double
squares (const struct sums *p, const struct sums *q)
{
  const double xx = p->xx - p->x * p->x / p->nr + q->xx - q->x * q->x / q->nr;
  const double xy = p->xy - p->x * p->y / p->nr + q->xy - q->x * q->y / q->nr;
  const double yy = p->yy - p->y * p->y / p->nr + q->yy - q->y * q->y / q->nr;

  return yy - (xx > 0 ? xy * xy / xx : 0);
}

/* The intervals before the one step that explains the series best. */
static size_t
find_step (const double *x, const double *y, size_t nr)
{
  struct sums before = { 0 }, after = { 0 };
  double least = INFINITY, sum;
  size_t i, best = 1;

  for (i = 0; i < nr; ++i)
    add_sums (&after, 1, x[i], y[i]);
  for (i = 0; i + 2 < nr; ++i) {
    add_sums (&before, 1, x[i], y[i]);
    add_sums (&after, -1, x[i], y[i]);
    sum = squares (&before, &after);
    if (sum < least) {
      least = sum;
      best = i + 1;
    }
  }
  return best;
}

static struct curve
fit_step (const double *x, const double *y, size_t nr)
{
  const size_t step = find_step (x, y, nr);
  double moved[INTERVALS], residuals[INTERVALS], xx = 0, xy = 0, mx, my;
  struct curve c = { 0, 0, 0 };
  size_t part, from, to, i;

  /* The common slope, then the height of the step. */
  for (part = 0; part < 2; ++part) {
    from = part == 0 ? 0 : step;
    to = part == 0 ? step : nr;
    for (i = from, mx = my = 0; i < to; ++i) {
      mx += x[i] / (to - from);
      my += y[i] / (to - from);
    }
    for (i = from; i < to; ++i) {
      xx += (x[i] - mx) * (x[i] - mx);
      xy += (x[i] - mx) * (y[i] - my);
    }
  }
  c.b = xx > 0 ? xy / xx : 0;
  for (i = 0; i < nr; ++i)
    residuals[i] = y[i] - c.b * x[i];
  mx = median (residuals, step);
  my = median (residuals + step, nr - step);
  for (i = 0; i < nr; ++i)
    moved[i] = i < step ? y[i] + my - mx : y[i];
  fit_robust (&c, x, moved, nr);
  return c;
}

static struct curve
fit (enum curve_kind kind, const double *x, const double *y, size_t nr)
{
  struct curve c = { 0, 0, 0 };
  double last[3];
  size_t skip = 0;

  switch (kind) {
  case LEVEL:
    memcpy (last, y + nr - 3, sizeof last);
    c.a = median (last, 3);
    return c;
  case STEP_LINE:
    return fit_step (x, y, nr);
  case SATURATING:
    return fit_saturating (x, y, nr);
  case RECENT_LINE:
    skip = nr * 2 / 3 < nr - 4 ? nr * 2 / 3 : nr - 4;
    break;
  case LINE:
    break;
  }
  fit_robust (&c, x + skip, y + skip, nr - skip);
  return c;
}

/*----------------------------------------------------------------------
 * Steps
 */

#define NEIGHBOURS 3
#define STEP_SIGMAS 5
/* A smaller step, as a share of the greatest value, is not worth it. */
#define STEP_MIN 0.03

/* How much the value rises between two intervals beyond what it does around
 * them.
 */
static double
excess (const double *x, const double *y, size_t nr, size_t i)
{
  double rates[2 * NEIGHBOURS];
  size_t from = i < NEIGHBOURS ? 0 : i - NEIGHBOURS, j, nr_rates = 0;

  for (j = from; j <= i + NEIGHBOURS && j + 1 < nr; ++j)
    if (j != i)
      rates[nr_rates++] = (y[j + 1] - y[j]) / (x[j + 1] - x[j]);
  return y[i + 1] - y[i] - median (rates, nr_rates) * (x[i + 1] - x[i]);
}

/* Shift what was before each step to the level after it. */
static void
remove_steps (const double *x, const double *y, size_t nr, double *adjusted)
{
  double excesses[INTERVALS], greatest = 0, limit, shift = 0;
  size_t i;

  memcpy (adjusted, y, nr * sizeof *y);
  for (i = 0; i < nr; ++i)
    greatest = fmax (greatest, fabs (y[i]));
  for (i = 0; i + 1 < nr; ++i)
    excesses[i] = excess (x, y, nr, i);
  limit = fmax (STEP_SIGMAS * robust_scale (excesses, nr - 1),
                STEP_MIN * greatest);
  for (i = nr - 1; i-- > 0;) {
    if (fabs (excesses[i]) > limit)
      shift += excesses[i];
    adjusted[i] += shift;
  }
}

/*----------------------------------------------------------------------
 * Evaluation
 */

/* Fit to the first 'nr' intervals. */
static struct curve
fit_competitor (const struct competitor *k, const struct series *s, size_t nr)
{
  double adjusted[INTERVALS];

  if (!k->without_steps)
    return fit (k->kind, s->x, s->y, nr);
  remove_steps (s->x, s->y, nr, adjusted);
  return fit (k->kind, s->x, adjusted, nr);
}

static void
evaluate (const struct competitor *k, const struct series *s, struct misses *m)
{
  size_t nr = s->nr / 3 > TRAINING_MIN ? s->nr / 3 : TRAINING_MIN, i;
  struct curve c;
  double lead;

  m->nr = m->nr_origins = 0;
  /* There are at least three origins, and at most one is farther than LEAD_MAX
   * from what follows it.
   */
  for (; nr < s->nr; ++nr) {
    c = fit_competitor (k, s, nr);
    m->nr_origins++;
    for (i = nr; i < s->nr; ++i) {
      lead = s->x[i] - s->x[nr - 1];
      if (lead > LEAD_MAX)
        break;
      assert (m->nr < MISSES_MAX);
      m->p[m->nr++] = (struct miss) { lead,
                                      fabs (curve_at (&c, s->x[i]) - s->y[i]) };
    }
  }
  assert (m->nr > 0);
}

/* Those at these distances, sorted. */
static size_t
collect_errors (const struct misses *m, double from, double to,
                double errors[MISSES_MAX])
{
  size_t i, nr = 0;

  for (i = 0; i < m->nr; ++i)
    if (m->p[i].lead >= from && m->p[i].lead <= to)
      errors[nr++] = m->p[i].error;
  qsort (errors, nr, sizeof *errors, compare_doubles);
  return nr;
}

/* The mean without the greatest quarter: a step hits all curves alike, and must
 * not hide which of them is the best.
 */
static double
typical_error (const struct misses *m)
{
  double errors[MISSES_MAX], sum = 0;
  size_t nr = collect_errors (m, 0, LEAD_SELECT, errors), i;

  if (nr == 0) /* gaps everywhere */
    nr = collect_errors (m, 0, LEAD_MAX, errors);
  nr -= nr / 4;
  for (i = 0; i < nr; ++i)
    sum += errors[i];
  return sum / nr;
}

static void
select_winner (struct forecast *f, struct misses *won, struct misses *m)
{
  double error;
  double least = 0;
  size_t i;

  for (i = 0; i < f->s.nr; ++i)
    least = fmax (least, NEGLIGIBLE * fabs (f->s.y[i]));
  f->error = INFINITY;
  for (i = 0; i < NR_COMPETITORS; ++i) {
    evaluate (&competitors[i], &f->s, m);
    error = typical_error (m);
    if (f->winner == NULL ||
        error + least < (f->error + least) * CLEARLY_BETTER) {
      f->winner = &competitors[i];
      f->error = error;
      *won = *m;
    }
  }
}

/*----------------------------------------------------------------------
 * The interval
 */

/* The quantile of the errors at about this distance.  Errors at a distance that
 * could not be evaluated grow in proportion to it.
 */
static double
error_at (const struct misses *m, double lead)
{
  double errors[MISSES_MAX], farthest = 0, nearest = INFINITY, at, part;
  size_t i, nr;

  for (i = 0; i < m->nr; ++i) {
    farthest = fmax (farthest, m->p[i].lead);
    nearest = fmin (nearest, m->p[i].lead);
  }
  at = fmax (fmin (lead, farthest / 1.5), nearest);
  nr = collect_errors (m, at / 1.5, at * 1.5, errors);
  if (nr == 0) /* a gap in the series */
    nr = collect_errors (m, 0, LEAD_MAX, errors);
  /* As in split conformal prediction; then for the few origins, whose errors
   * are not independent.
   */
  part = ceil (CONFIDENCE * (nr + 1));
  i = part > nr ? nr : (size_t) part;
  return errors[i - 1] * fmax (1, lead / at) * (1 + 1.0 / m->nr_origins);
}

static void
set_widths (struct forecast *f, const struct misses *m)
{
  size_t i;

  f->width[0] = 0;
  for (i = 1; i <= LEADS; ++i)
    f->width[i] = fmax (f->width[i - 1], error_at (m, 1.0 * i / LEADS));
  f->width[0] = f->width[1];
}

static double
width_at (const struct forecast *f, double lead)
{
  const double at = lead * LEADS;
  const size_t i = at >= LEADS ? LEADS - 1 : (size_t) at;

  return f->misfit + f->width[i] + (at - i) * (f->width[i + 1] - f->width[i]);
}

/*----------------------------------------------------------------------*/

static int
compute (struct forecast *f)
{
  struct misses *won = malloc (2 * sizeof *won);

  if (won == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a forecast");
  select_winner (f, won, won + 1);
  set_widths (f, won);
  free (won);
  f->curve = fit_competitor (f->winner, &f->s, f->s.nr);
  f->misfit = fabs (curve_at (&f->curve, 1) - f->last);
  return 0;
}

static int
set_points (struct forecast *f, const struct forecast_point *points, size_t nr)
{
  struct forecast_point *sorted = malloc ((nr + 1) * sizeof *sorted);
  double *values = malloc ((nr + 1) * sizeof *values);
  int r = 0;

  if (sorted == NULL || values == NULL)
    r = nbdedup_fail (ENOMEM, "no memory for a forecast");
  else if (nr > 0) {
    memcpy (sorted, points, nr * sizeof *sorted);
    qsort (sorted, nr, sizeof *sorted, compare_points);
    f->last = sorted[nr - 1].value;
    f->span_s = sorted[nr - 1].time_s - sorted[0].time_s;
    if (f->span_s > 0)
      cut (&f->s, sorted, nr, values);
    else
      f->s.nr = 1;
  }
  free (sorted);
  free (values);
  return r;
}

struct forecast *
forecast_new (const struct forecast_point *points, size_t nr, double least,
              double most)
{
  struct forecast *f = calloc (1, sizeof *f);

  if (f == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for a forecast");
  f->least = least;
  f->most = most;
  if (set_points (f, points, nr) == 0 &&
      (f->s.nr < FORECAST_INTERVALS_MIN || f->span_s < FORECAST_SPAN_MIN_S ||
       compute (f) == 0))
    return f;
  forecast_free (f);
  return NULL;
}

void
forecast_free (struct forecast *f)
{
  free (f);
}

const char *
forecast_method (const struct forecast *f)
{
  return f->winner ? f->winner->name : NULL;
}

double
forecast_span_s (const struct forecast *f)
{
  return f->span_s;
}

double
forecast_error (const struct forecast *f)
{
  return f->error;
}

static double
limited (const struct forecast *f, double value)
{
  return fmin (fmax (value, f->least), f->most);
}

static struct forecast_value
value_at (const struct forecast *f, double lead)
{
  const double value = curve_at (&f->curve, 1 + lead);
  const double width = width_at (f, lead);

  return (struct forecast_value) { limited (f, value),
                                   limited (f, value - width),
                                   limited (f, value + width) };
}

bool
forecast_at (const struct forecast *f, double ahead_s,
             struct forecast_value *value)
{
  if (f->winner == NULL || ahead_s > f->span_s)
    return false;
  *value = value_at (f, ahead_s / f->span_s);
  return true;
}

bool
forecast_when_above (const struct forecast *f, double level,
                     struct forecast_when *when)
{
  struct forecast_value v;
  double ahead_s;
  unsigned i;

  if (f->winner == NULL)
    return false;
  *when = (struct forecast_when) { INFINITY, INFINITY, INFINITY };
  if (f->last >= level) {
    *when = (struct forecast_when) { 0, 0, 0 };
    return true;
  }
  for (i = SEARCH + 1; i-- > 0;) {
    v = value_at (f, 1.0 * i / SEARCH);
    ahead_s = f->span_s * i / SEARCH;
    if (v.value >= level)
      when->expected_s = ahead_s;
    if (v.high >= level)
      when->earliest_s = ahead_s;
    if (v.low >= level)
      when->latest_s = ahead_s;
  }
  return true;
}
