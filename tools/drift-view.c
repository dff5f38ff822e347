/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drift-report.h"
#include "drift-series.h"
#include "drift-style-json.h"
#include "drift-view.h"
#include "tools.h"

/* The most clones with a chart: a browser is slow with thousands. */
#define CLONES_DRAWN 200

/* The most clones that fit on paper. */
#define CLONES_PRINTED 12

/* A clone that is smaller than the largest by more than this would be a stripe
 * on the common scale, so it gets a scale of its own.
 */
#define OWN_SCALE 8

/* Half the pixels of the widest chart, and of a clone's. */
#define FLEET_COLUMNS 490
#define CLONE_COLUMNS 150

/* Of a golden image's part of the picture, in pixels. */
#define PART_HEIGHT 910

json_t *
view_pack (const char *format, ...)
{
  json_t *value;
  va_list ap;

  va_start (ap, format);
  value = json_vpack_ex (NULL, 0, format, ap);
  va_end (ap);
  if (value == NULL)
    exit (fail ("out of memory"));
  return value;
}

json_t *
view_bytes (uint64_t bytes)
{
  char buf[HUMAN_MAX];

  return view_pack ("s", human_bytes (bytes, buf));
}

json_t *
view_width (uint64_t bytes, uint64_t all)
{
  char width[32];

  snprintf (width, sizeof width, "%.2f", all == 0 ? 0 : bytes * 100.0 / all);
  return view_pack ("s", width);
}

/*----------------------------------------------------------------------
 * Of clones
 */

static json_t *
class_views (const json_t *style, const struct drift_clone *figures)
{
  json_t *views = json_deep_copy (json_object_get (style, "palette")), *view;
  char percent[PERCENT_MAX];
  size_t i;

  json_array_foreach (views, i, view) {
    const uint64_t bytes = figures->class[i];

    json_object_update_new (view,
                            view_pack ("{s:o, s:o, s:s}", "bytes",
                                       view_bytes (bytes), "width",
                                       view_width (bytes, figures->logical),
                                       "percent",
                                       drift_percent (bytes, figures->logical,
                                                      percent)));
  }
  return views;
}

static json_t *
clone_view (const json_t *style, const char *name,
            const struct drift_clone *figures)
{
  return view_pack ("{s:s, s:o, s:o, s:o, s:o, s:o}", "name", name, "logical",
                    view_bytes (figures->logical), "diverged",
                    view_bytes (drift_diverged (figures)), "zero",
                    view_bytes (figures->zero), "only_here",
                    view_bytes (figures->only_here), "classes",
                    class_views (style, figures));
}

/* The most diverged first. */
static json_t *
clone_views (const json_t *style, const json_t *document)
{
  json_t *sorted = drift_by_divergence (document);
  json_t *views = view_pack ("[]"), *clone;
  struct drift_clone figures;
  size_t i;

  json_array_foreach (sorted, i, clone) {
    drift_clone_read (document, clone, &figures);
    json_array_append_new (views,
                           clone_view (style, json_text (clone, "name"),
                                       &figures));
  }
  json_decref (sorted);
  return views;
}

/*----------------------------------------------------------------------
 * The forecast
 */

/* Its sentences, as an array of {"text"}. */
static json_t *
outlook_views (const json_t *document)
{
  char *text = NULL, *line, *next;
  json_t *views = view_pack ("[]");
  size_t len;
  FILE *fp = open_memstream (&text, &len);

  if (fp != NULL)
    drift_write_outlook (fp, document);
  if (fp == NULL || fclose (fp) != 0)
    exit (fail ("out of memory"));
  for (line = text; (next = strchr (line, '\n')) != NULL; line = next + 1) {
    *next = '\0';
    json_array_append_new (views, view_pack ("{s:s}", "text", line));
  }
  free (text);
  return views;
}

/* The lines "time value low high" of a data block, from now on; 'top' and 'to'
 * are raised to the greatest value and time.  NULL: there is no forecast.
 */
static json_t *
ahead_lines (const json_t *document, const char *key, long offset, double *top,
             double *to)
{
  const json_t *series = json_object_get (json_object_get (document,
                                                           "forecast"),
                                          key);
  const json_t *values = json_object_get (series, "values");
  const double now = json_number_value (json_object_get (series, "now"));
  char *text = NULL;
  json_t *value, *lines;
  double at, high;
  size_t len, i;
  FILE *fp;

  if (json_array_size (values) == 0)
    return NULL;
  fp = check_memory (open_memstream (&text, &len));
  fprintf (fp, "%.0f %.6g %.6g %.6g\n",
           (double) json_size (document, "time") + offset, now, now, now);
  json_array_foreach (values, i, value) {
    at = (double) json_size (value, "time") + offset;
    high = json_number_value (json_object_get (value, "high"));
    fprintf (fp, "%.0f %.6g %.6g %.6g\n", at,
             json_number_value (json_object_get (value, "value")),
             json_number_value (json_object_get (value, "low")), high);
    *top = fmax (*top, high);
    *to = fmax (*to, at);
  }
  if (fclose (fp) != 0)
    exit (fail ("out of memory"));
  lines = view_pack ("s", text);
  free (text);
  return lines;
}

/* Charts of the unique bytes and of the ratio, with what is ahead. */
static void
set_forecast (json_t *view, const json_t *document, long offset,
              const double greatest[NR_SERIES])
{
  double top_unique = greatest[SERIES_CLASSES + CLASS_UNIQUE];
  double top_ratio = greatest[SERIES_RATIO], to = 0;
  json_t *unique = ahead_lines (document, "unique_bytes", offset, &top_unique,
                                &to);
  json_t *ratio = ahead_lines (document, "dedup_ratio", offset, &top_ratio,
                               &to);

  json_t *outlook = outlook_views (document);

  json_object_update_new (view,
                          view_pack ("{s:b, s:o}", "leads",
                                     json_array_size (outlook) > 0, "outlook",
                                     outlook));
  if (unique != NULL && ratio != NULL)
    json_object_set_new (view, "forecast",
                         view_pack ("{s:O, s:O, s:f, s:f, s:f}", "unique_lines",
                                    unique, "ratio_lines", ratio, "ahead", to,
                                    "top_unique", top_unique, "top_ahead",
                                    top_ratio));
  json_decref (unique);
  json_decref (ratio);
}

/*----------------------------------------------------------------------
 * Charts
 */

static void
set_lines (json_t *view, const json_t *history, const char *clone,
           unsigned columns, double greatest[NR_SERIES])
{
  char *text = series_lines (history, clone, columns, greatest);

  json_object_set_new (view, "series", view_pack ("s", text));
  free (text);
}

/* Add to 'views', of clones, the data for their charts. */
static void
set_clone_series (json_t *views, const json_t *history, const json_t *lines)
{
  double greatest[NR_SERIES], top = 0;
  json_t *view;
  size_t i;

  json_array_foreach (views, i, view) {
    set_lines (view, history, json_text (view, "name"), CLONE_COLUMNS,
               greatest);
    json_object_update_new (view,
                            view_pack ("{s:I, s:f, s:f, s:O*}", "n",
                                       (json_int_t) i + 1, "top",
                                       greatest[SERIES_HELD], "top_diverged",
                                       greatest[SERIES_DIVERGED], "line",
                                       json_array_get (lines, i)));
    top = fmax (top, greatest[SERIES_HELD]);
  }
  json_array_foreach (views, i, view)
    if (json_real_value (json_object_get (view, "top")) < top / OWN_SCALE)
      json_object_set_new (view, "own_scale", json_true ());
    else
      json_object_set_new (view, "top", json_real (top));
}

static void
set_fleet_series (json_t *view, const json_t *history, const json_t *document)
{
  const struct series_axis axis = series_axis (history);
  double greatest[NR_SERIES];

  set_lines (view, history, NULL, FLEET_COLUMNS, greatest);
  json_object_update_new (view,
                          view_pack ("{s:f, s:f, s:i, s:f, s:f, s:f, s:f}",
                                     "from", (double) axis.from + axis.offset,
                                     "to", (double) axis.to + axis.offset,
                                     "moment", (int) axis.moment, "top_held",
                                     greatest[SERIES_HELD], "top_logical",
                                     greatest[SERIES_LOGICAL], "top_distinct",
                                     fmax (greatest[SERIES_DISTINCT],
                                           greatest[SERIES_STORED]),
                                     "top_ratio", greatest[SERIES_RATIO]));
  set_forecast (view, document, axis.offset, greatest);
}

/*----------------------------------------------------------------------
 * Of a golden image, and all
 */

static json_t *
fleet_view (const json_t *style, const json_t *document)
{
  struct drift_fleet fleet;
  char ratio[32];
  json_t *view;

  drift_fleet_read (document, &fleet);
  view = clone_view (style, "all clones", &fleet.clones);
  json_object_update_new (view,
                          view_pack ("{s:o, s:o, s:o, s:o, s:I, s:b, s:b}",
                                     "held", view_bytes (fleet.clones.logical),
                                     "logical", view_bytes (fleet.logical),
                                     "distinct", view_bytes (fleet.distinct),
                                     "stored", view_bytes (fleet.stored),
                                     "nr_clones", (json_int_t) fleet.nr_clones,
                                     "holds", fleet.clones.logical > 0,
                                     "several", fleet.nr_clones > 1));
  if (!isnan (fleet.ratio)) {
    snprintf (ratio, sizeof ratio, "%.2f", fleet.ratio);
    json_object_set_new (view, "ratio", view_pack ("s", ratio));
  }
  return view;
}

static json_t *
golden_view (const json_t *style, const json_t *history, size_t nth)
{
  const json_t *document = drift_newest (history);
  json_t *view = fleet_view (style, document);
  json_t *sorted = drift_by_time (history);
  json_t *clones = clone_views (style, document), *drawn = json_copy (clones);
  const size_t nr = json_array_size (clones);
  char time[64];

  while (json_array_size (drawn) > CLONES_DRAWN)
    json_array_remove (drawn, json_array_size (drawn) - 1);
  set_fleet_series (view, sorted, document);
  set_clone_series (drawn, sorted, json_object_get (style, "clone_lines"));
  json_object_update_new (view,
                          view_pack ("{s:I, s:s, s:s, s:o, s:o, s:I, s:I, s:b}",
                                     "nth", (json_int_t) nth, "golden",
                                     json_text (document, "golden"), "as_of",
                                     drift_time (document, "%Y-%m-%d %H:%M %Z",
                                                 time, sizeof time),
                                     "clones", clones, "drawn", drawn,
                                     "nr_drawn",
                                     (json_int_t) json_array_size (drawn),
                                     "not_drawn",
                                     (json_int_t) (nr -
                                                   json_array_size (drawn)),
                                     "printed", nr <= CLONES_PRINTED));
  drift_view_why (view, document);
  drift_view_advice (view, document);
  json_decref (sorted);
  return view;
}

json_t *
drift_view (const json_t *histories)
{
  const size_t nr = json_array_size (histories);
  json_t *view = view_pack ("o", json_loads (drift_style_json, 0, NULL));
  json_t *goldens = view_pack ("[]"), *history;
  size_t i;

  json_array_foreach (histories, i, history)
    json_array_append_new (goldens, golden_view (view, history, i + 1));
  json_object_update_new (view,
                          view_pack ("{s:s, s:b, s:i, s:I, s:o}", "generator",
                                     PACKAGE_STRING, "several_goldens", nr > 1,
                                     "part_height", PART_HEIGHT, "height",
                                     (json_int_t) PART_HEIGHT *
                                       (nr == 0 ? 1 : nr),
                                     "goldens", goldens));
  return view;
}
