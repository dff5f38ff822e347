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

/* Those that have a chart at all: a browser takes long for thousands. */
#define CLONES_DRAWN 200

/* A clone that is smaller than the largest by more than this would be a
 * stripe on the common scale: it gets one of its own.
 */
#define OWN_SCALE 8

struct size {
  unsigned width, height;
  const char *class;            /* in the page's style; NULL: none */
};

static const struct size third = { 360, 230, NULL };
static const struct size small = { 300, 130, NULL };

/* Where there is no room for the full one, its letters would be too small:
 * the other one takes its place.
 */
static const struct size full = { 980, 250, "wide" };
static const struct size narrow = { 440, 240, "narrow" };

struct page {
  FILE *fp;                     /* the script, or the page */
  char *charts;                 /* those not yet in the page; NULL: script */
  unsigned nr_charts;
  int r;                        /* -1: image_error */
};

static const char *
golden_of (const json_t *history)
{
  return json_text (json_array_get (history, 0), "golden");
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
  fprintf (page->fp, "<svg");
  if (size->class != NULL)
    fprintf (page->fp, " class=\"%s\"", size->class);
  fprintf (page->fp, " viewBox=\"0 0 %u %u\" role=\"img\" aria-label=\"%s ",
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
    .script = page->fp, .history = history, .width = size->width / 2,
    .x_tics = size->width / 100, .y_tics = size->height / 45,
  };
}

/*----------------------------------------------------------------------
 * The fleet
 */

static void
walk_bytes (struct page *page, const json_t *history, unsigned first)
{
  const struct chart chart = chart_of (page, history, &third);

  if (begin_chart (page, &third)) {
    chart_bytes (&chart, first);
    return;
  }
  fprintf (page->fp, "<figure><figcaption>%s</figcaption>\n",
           first == 0 ? "Logical, distinct and stored bytes" :
           "Distinct and stored bytes");
  place_chart (page, &third, first == 0 ?
               "Logical, distinct and stored bytes over time of" :
               "Distinct and stored bytes over time of", golden_of (history));
  page_line_legend (page->fp, first);
  fprintf (page->fp, "</figure>\n");
}

static void
walk_ratio (struct page *page, const json_t *history)
{
  const struct chart chart = chart_of (page, history, &third);

  if (begin_chart (page, &third)) {
    chart_ratio (&chart);
    return;
  }
  fprintf (page->fp, "<figure><figcaption>Dedup ratio</figcaption>\n");
  place_chart (page, &third, "Dedup ratio over time of", golden_of (history));
  fprintf (page->fp, "<ul class=\"legend\"><li><span class=\"key line\" "
           "style=\"background:%s\"></span>logical by distinct</li></ul>\n"
           "</figure>\n", chart_ratio_color);
}

static void
walk_composition_chart (struct page *page, const json_t *history,
                        const struct size *size)
{
  const struct chart chart = chart_of (page, history, size);

  if (begin_chart (page, size))
    chart_composition (&chart, NULL, 0);
  else
    place_chart (page, size, "Composition over time of all clones of",
                 golden_of (history));
}

static void
walk_composition (struct page *page, const json_t *history)
{
  const bool writes = page->charts != NULL;

  if (writes)
    fprintf (page->fp, "<h3>What the clones’ bytes are</h3>\n<figure>\n");
  walk_composition_chart (page, history, &full);
  walk_composition_chart (page, history, &narrow);
  if (writes) {
    page_class_legend (page->fp);
    fprintf (page->fp, "</figure>\n");
  }
}

static void
walk_fleet (struct page *page, const json_t *history)
{
  const bool writes = page->charts != NULL;

  if (writes)
    fprintf (page->fp, "<h3>The fleet over time</h3>\n"
             "<div class=\"three\">\n");
  walk_bytes (page, history, 0);
  walk_bytes (page, history, 1);
  walk_ratio (page, history);
  if (writes)
    fprintf (page->fp, "</div>\n");
  walk_composition (page, history);
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
walk_clones (struct page *page, const json_t *history,
             const json_t *document)
{
  struct page_clone *clones;
  uint64_t greatest = 0;
  size_t nr, drawn, i;

  clones = page_clones (document, &nr);
  for (i = 0; i < nr; ++i) {
    clones[i].greatest =
      chart_greatest (history, json_text (clones[i].clone, "name"));
    if (clones[i].greatest > greatest)
      greatest = clones[i].greatest;
  }
  drawn = nr < CLONES_DRAWN ? nr : CLONES_DRAWN;
  if (page->charts != NULL && nr > 0)
    fprintf (page->fp, "<h3>Each clone, the most diverged first</h3>\n"
             "<div class=\"small\">\n");
  for (i = 0; i < drawn; ++i) {
    if (page->charts != NULL && i == CLONES_SHOWN)
      fprintf (page->fp, "</div>\n<details><summary>%zu more clones</summary>"
               "\n<div class=\"small\">\n", drawn - i);
    walk_clone (page, history, &clones[i], greatest);
  }
  if (page->charts != NULL && nr > 0)
    fprintf (page->fp, "</div>\n%s", nr > CLONES_SHOWN ? "</details>\n" : "");
  if (page->charts != NULL && nr > drawn)
    fprintf (page->fp, "<p class=\"dim\">The %zu least diverged are in the "
             "table only.</p>\n", nr - drawn);
  free (clones);
}

/*----------------------------------------------------------------------
 * All
 */

static void
walk_golden (struct page *page, const json_t *history, size_t i)
{
  const json_t *document =
    json_array_get (history, json_array_size (history) - 1);
  json_t *sorted = drift_by_time (history);
  const bool writes = page->charts != NULL;

  if (writes) {
    fprintf (page->fp, "<section aria-labelledby=\"g%zu\">\n"
             "<h2 id=\"g%zu\">", i + 1, i + 1);
    page_text (page->fp, json_text (document, "golden"));
    fprintf (page->fp, "</h2>\n");
    page_summary (page->fp, document);
  }
  walk_fleet (page, sorted);
  walk_clones (page, sorted, document);
  if (writes) {
    page_table (page->fp, document);
    fprintf (page->fp, "</section>\n");
  }
  json_decref (sorted);
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
