/* SPDX-License-Identifier: BSD-3-Clause */

/* Forecast: where a series of figures leads.  Pure: no I/O, no clock.
 *
 * Samples are irregular: dense lately, sparse long ago (retention.h).  So the
 * span of the series is cut into equal intervals of time; the median of each
 * counts once.
 *
 * Four curves compete: the last level, a line through all of the series, a line
 * through its last third, and an exponential that approaches a limit.  They are
 * fitted by Huber's M-estimator (P. J. Huber, Robust Statistics, 1981), which
 * bounds the influence of outliers.  Sudden shifts of the level (C. Chen and
 * L.-M. Liu, Joint Estimation of Model Parameters and Outlier Effects in Time
 * Series, 1993) can be taken out before a fit, so there are two of each
 * curve.
 *
 * The winner is selected by evaluation on a rolling origin (L. J. Tashman,
 * Out-of-sample tests of forecasting accuracy, 2000; R. J. Hyndman and
 * G. Athanasopoulos, Forecasting: Principles and Practice, "Time series
 * cross-validation"): each curve is fitted to every beginning of the series and
 * predicts what followed.  A curve with more freedom must be clearly better.
 *
 * The interval is the 90 % quantile of the winner's absolute errors in that
 * evaluation, at about the same distance; no distribution is assumed.  It never
 * gets narrower with the distance, and includes by how far the curve misses the
 * last value.  So steps that the series had make it wide; the first step cannot
 * be foreseen.
 *
 * It does not guess: it needs FORECAST_INTERVALS_MIN intervals with samples and
 * FORECAST_SPAN_MIN_S of history, and looks no further ahead than the history
 * reaches back.
 */

#ifndef NBDEDUP_FORECAST_H
#define NBDEDUP_FORECAST_H

#include <stdbool.h>
#include <stddef.h>

#define FORECAST_INTERVALS_MIN 8
#define FORECAST_SPAN_MIN_S (7 * 86400.0)

struct forecast_point {
  double time_s, value;
};

struct forecast_value {
  double value, low, high;
};

/* Seconds after the last point; INFINITY: not as far ahead as it looks. */
struct forecast_when {
  double expected_s, earliest_s, latest_s;
};

struct forecast;

/* Of points in any order; the latest of them is the present.  Values are
 * limited to 'least' and 'most'.  NULL: ENOMEM.
 */
extern struct forecast *forecast_new (const struct forecast_point *points,
                                      size_t nr, double least, double most);
extern void forecast_free (struct forecast *forecast);

/* The name of the winner; NULL: too few samples. */
extern const char *forecast_method (const struct forecast *forecast);

/* The seconds that the points span, which is also how far ahead it looks. */
extern double forecast_span_s (const struct forecast *forecast);

/* The winner's mean absolute error in the evaluation, a quarter of the series
 * ahead at most.
 */
extern double forecast_error (const struct forecast *forecast);

/* The value so many seconds after the last point.  False: too few samples, or
 * too far ahead.
 */
extern bool forecast_at (const struct forecast *forecast, double ahead_s,
                         struct forecast_value *value);

/* When the value will be at least 'level'.  False: too few samples. */
extern bool forecast_when_above (const struct forecast *forecast, double level,
                                 struct forecast_when *when);

#endif /* NBDEDUP_FORECAST_H */
