/* SPDX-License-Identifier: BSD-3-Clause */

/* The page and the picture: gnuplot draws the charts; templates make the rest.
 */

#include <config.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "drift-gnuplot.h"
#include "drift-page-html.h"
#include "drift-picture-svg.h"
#include "drift-report.h"
#include "gnuplot.h"
#include "image.h"
#include "template.h"
#include "tools.h"

static json_t *
draw (const json_t *view, const char *file)
{
  char *script = NULL;
  size_t len;
  FILE *fp = open_memstream (&script, &len);
  json_t *charts;

  if (fp != NULL)
    template_write (fp, drift_gnuplot, view);
  if (fp == NULL || fclose (fp) != 0)
    exit (fail ("out of memory"));
  charts = gnuplot_run (script, len, file);
  free (script);
  return charts;
}

/* Take the next chart; -1: there is none. */
static int
set_chart (json_t *view, const char *key, json_t *charts)
{
  const int r = json_object_set (view, key, json_array_get (charts, 0));

  json_array_remove (charts, 0);
  return r;
}

/* In the order of drift.gnuplot. */
static int
set_page_charts (json_t *view, json_t *charts)
{
  static const char *const keys[] = {
    "bytes", "distinct_bytes", "ratios", "divergence", "wide", "narrow",
  };
  static const char *const ahead[] = { "unique_ahead", "ratio_ahead" };
  json_t *golden, *clone;
  size_t i, j;
  int r = 0;

  json_array_foreach (json_object_get (view, "goldens"), i, golden) {
    for (j = 0; j < sizeof keys / sizeof keys[0]; ++j)
      r |= set_chart (golden, keys[j], charts);
    for (j = 0; json_object_get (golden, "forecast") && j < 2; ++j)
      r |= set_chart (golden, ahead[j], charts);
    json_array_foreach (json_object_get (golden, "drawn"), j, clone)
      r |= set_chart (clone, "chart", charts);
  }
  return r;
}

/* 'form' selects the template, and is passed to the script. */
static int
write_form (FILE *fp, const json_t *histories, const char *file,
            const char *form, bool is_page)
{
  json_t *view = drift_view (histories), *charts;
  int r = -1;

  json_object_set_new (view, "page", json_boolean (is_page));
  charts = draw (view, file);
  if (charts != NULL) {
    r = is_page ? set_page_charts (view, charts)
                : set_chart (view, "chart", charts);
    if (r == 0)
      template_write (fp, form, view);
    else
      image_fail ("this version of gnuplot writes SVG files that nbdedup "
                  "does not understand");
    json_decref (charts);
  }
  json_decref (view);
  return r;
}

int
drift_write_html (FILE *fp, const json_t *histories, const char *file)
{
  return write_form (fp, histories, file, drift_page_html, true);
}

int
drift_write_svg (FILE *fp, const json_t *histories, const char *file)
{
  return write_form (fp, histories, file, drift_picture_svg, false);
}
