/* SPDX-License-Identifier: BSD-3-Clause */

/* The page: for each golden image its figures, charts of the fleet, a small
 * chart for each clone, a table.  Two walks in the same order: one writes the
 * script that draws all charts, the other the page around them.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drift-chart.h"
#include "drift-html.h"
#include "gnuplot.h"
#include "tools.h"

/* Charts of clones that are shown at once. */
#define CLONES_SHOWN 12

/* A clone that is smaller than the largest by more than this would be a
 * stripe on the common scale: it gets one of its own.
 */
#define OWN_SCALE 8

struct size {
  unsigned width, height;
};

static const struct size wide = { 640, 250 };
static const struct size narrow = { 320, 250 };
static const struct size full = { 980, 250 };
static const struct size small = { 300, 130 };

struct page {
  FILE *fp;                     /* the script, or the page */
  char *charts;                 /* those not yet in the page; NULL: script */
  unsigned nr_charts;
  int r;                        /* -1: image_error */
};

static const json_t *
newest (const json_t *history)
{
  return json_array_get (history, json_array_size (history) - 1);
}

/*----------------------------------------------------------------------
 * A chart, in either walk
 */

/* In the script's walk: begin it, and tell so. */
static bool
begin_chart (struct page *page, const struct size *size)
{
  char name[32];

  page->nr_charts++;
  if (page->charts != NULL)
    return false;
  snprintf (name, sizeof name, "c%u", page->nr_charts);
  gnuplot_chart (page->fp, name, size->width, size->height);
  return true;
}

/* In the page's: 'what' and 'name' say what it shows. */
static void
place_chart (struct page *page, const struct size *size, const char *what,
             const char *name)
{
  fprintf (page->fp, "<svg viewBox=\"0 0 %u %u\" role=\"img\" aria-label=\"%s ",
           size->width, size->height, what);
  page_text (page->fp, name);
  fprintf (page->fp, "\"><g>");
  if (page->r == 0)
    page->r = gnuplot_copy (page->fp, &page->charts);
  fprintf (page->fp, "</svg>\n");
}

static struct chart
chart_of (const struct page *page, const json_t *history,
          const struct size *size)
{
  return (struct chart) {
    .script = page->fp, .history = history, .width = size->width,
    .x_tics = size->width / 100, .y_tics = size->height / 45,
  };
}

/*----------------------------------------------------------------------
 * The fleet
 */

static void
write_line_legend (FILE *fp)
{
  unsigned i;

  fprintf (fp, "<ul class=\"legend\">\n");
  for (i = 0; i < NR_LINES; ++i)
    fprintf (fp, "<li><span class=\"key line%s\" style=\"%s:%s\"></span>"
             "%s</li>\n", chart_lines[i].dashed ? " dash" : "",
             chart_lines[i].dashed ? "border-color" : "background",
             chart_lines[i].color, chart_lines[i].label);
  fprintf (fp, "</ul>\n");
}

static void
write_class_legend (FILE *fp)
{
  unsigned i;

  fprintf (fp, "<ul class=\"legend\">\n");
  for (i = NR_CLASSES; i-- > 0; )
    fprintf (fp, "<li><span class=\"key\" style=\"background:%s\"></span>"
             "%s</li>\n", drift_classes[i].color, drift_classes[i].label);
  fprintf (fp, "</ul>\n");
}

static void
walk_fleet (struct page *page, const json_t *history)
{
  const char *golden = json_text (newest (history), "golden");
  struct chart chart = chart_of (page, history, &wide);

  if (begin_chart (page, &wide))
    chart_bytes (&chart);
  else {
    fprintf (page->fp, "<h3>The fleet over time</h3>\n<div class=\"wide\">\n"
             "<figure><figcaption>Bytes</figcaption>\n");
    write_line_legend (page->fp);
    place_chart (page, &wide, "Logical, distinct and stored bytes over time "
                 "of", golden);
    fprintf (page->fp, "</figure>\n<figure><figcaption>Dedup ratio"
             "</figcaption>\n<ul class=\"legend\"><li>logical by distinct"
             "</li></ul>\n");
  }
  chart = chart_of (page, history, &narrow);
  if (begin_chart (page, &narrow))
    chart_ratio (&chart);
  else {
    place_chart (page, &narrow, "Dedup ratio over time of", golden);
    fprintf (page->fp, "</figure>\n</div>\n<h3>What the clones’ bytes are"
             "</h3>\n<figure>\n");
    write_class_legend (page->fp);
  }
  chart = chart_of (page, history, &full);
  if (begin_chart (page, &full))
    chart_composition (&chart, NULL, 0);
  else {
    place_chart (page, &full, "Composition over time of all clones of",
                 golden);
    fprintf (page->fp, "</figure>\n");
  }
}

/*----------------------------------------------------------------------
 * The clones
 */

static void
write_clone_caption (FILE *fp, const struct page_clone *clone, bool own_scale)
{
  char bytes[HUMAN_MAX];

  fprintf (fp, "<figure><figcaption>");
  page_text (fp, json_text (clone->clone, "name"));
  fprintf (fp, "<small>%s diverged%s</small></figcaption>\n",
           human_bytes (drift_diverged (&clone->now), bytes),
           own_scale ? ", own scale" : "");
}

static void
walk_clone (struct page *page, const json_t *history,
            const struct page_clone *clone, uint64_t greatest)
{
  const char *name = json_text (clone->clone, "name");
  const bool own_scale = clone->greatest < greatest / OWN_SCALE;
  const struct chart chart = chart_of (page, history, &small);

  if (begin_chart (page, &small))
    chart_composition (&chart, name, own_scale ? clone->greatest : greatest);
  else {
    write_clone_caption (page->fp, clone, own_scale);
    place_chart (page, &small, "Composition over time of", name);
    fprintf (page->fp, "</figure>\n");
  }
}

static void
walk_clones (struct page *page, const json_t *history)
{
  struct page_clone *clones;
  uint64_t greatest = 0;
  size_t nr, i;

  clones = page_clones (newest (history), &nr);
  for (i = 0; i < nr; ++i) {
    clones[i].greatest =
      chart_greatest (history, json_text (clones[i].clone, "name"));
    if (clones[i].greatest > greatest)
      greatest = clones[i].greatest;
  }
  if (page->charts != NULL && nr > 0)
    fprintf (page->fp, "<h3>Each clone, the most diverged first</h3>\n"
             "<div class=\"small\">\n");
  for (i = 0; i < nr; ++i) {
    if (page->charts != NULL && i == CLONES_SHOWN)
      fprintf (page->fp, "</div>\n<details><summary>%zu more clones</summary>"
               "\n<div class=\"small\">\n", nr - i);
    walk_clone (page, history, &clones[i], greatest);
  }
  if (page->charts != NULL && nr > 0)
    fprintf (page->fp, "</div>\n%s", nr > CLONES_SHOWN ? "</details>\n" : "");
  free (clones);
}

/*----------------------------------------------------------------------
 * All
 */

static void
walk_golden (struct page *page, const json_t *history, size_t i)
{
  const json_t *document = newest (history);
  const bool writes = page->charts != NULL;

  if (writes) {
    fprintf (page->fp, "<section aria-labelledby=\"g%zu\">\n"
             "<h2 id=\"g%zu\">", i + 1, i + 1);
    page_text (page->fp, json_text (document, "golden"));
    fprintf (page->fp, "</h2>\n");
    page_summary (page->fp, document);
  }
  walk_fleet (page, history);
  walk_clones (page, history);
  if (writes) {
    page_table (page->fp, document);
    fprintf (page->fp, "</section>\n");
  }
}

static void
walk (struct page *page, const json_t *histories)
{
  json_t *history;
  size_t i;

  json_array_foreach (histories, i, history)
    walk_golden (page, history, i);
}

int
drift_write_html (FILE *fp, const json_t *histories, const char *file)
{
  char *script = NULL, *charts = NULL;
  size_t len;
  struct page page = { .fp = open_memstream (&script, &len) };

  if (page.fp != NULL)
    walk (&page, histories);
  if (page.fp == NULL || fclose (page.fp) != 0)
    exit (fail ("out of memory"));
  charts = gnuplot_run (script, len, file);
  free (script);
  if (charts == NULL)
    return -1;

  page = (struct page) { .fp = fp, .charts = charts };
  page_begin (fp, histories);
  walk (&page, histories);
  page_end (fp);
  free (charts);
  return page.r;
}
