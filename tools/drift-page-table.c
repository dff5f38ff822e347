/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drift-html.h"
#include "tools.h"

static int
compare_clones (const void *pa, const void *pb)
{
  const struct page_clone *a = pa, *b = pb;
  const uint64_t da = drift_diverged (&a->now), db = drift_diverged (&b->now);

  if (da != db)
    return da > db ? -1 : 1;
  return strcmp (json_text (a->clone, "name"), json_text (b->clone, "name"));
}

struct page_clone *
page_clones (const json_t *document, size_t *nr)
{
  const json_t *list = json_object_get (document, "clones");
  struct page_clone *clones;
  size_t i;

  *nr = json_array_size (list);
  clones = check_memory (calloc (*nr + 1, sizeof *clones));
  for (i = 0; i < *nr; ++i) {
    clones[i].clone = json_array_get (list, i);
    drift_clone_read (document, clones[i].clone, &clones[i].now);
  }
  qsort (clones, *nr, sizeof *clones, compare_clones);
  return clones;
}

/* All of it in words as well, for those who cannot see it. */
static void
write_bar (FILE *fp, const struct drift_clone *figures, const char *class)
{
  char percent[PERCENT_MAX];
  unsigned i;

  fprintf (fp, "<div class=\"%s\" role=\"img\" aria-label=\"", class);
  for (i = 0; i < NR_CLASSES; ++i)
    fprintf (fp, "%s%s %s", i == 0 ? "" : ", ",
             drift_percent (figures->class[i], figures->logical, percent),
             drift_classes[i].label);
  fprintf (fp, "\">");
  for (i = 0; i < NR_CLASSES; ++i)
    if (figures->class[i] > 0)
      fprintf (fp, "<i style=\"width:%.2f%%;background:%s\"></i>",
               figures->class[i] * 100.0 / figures->logical,
               drift_classes[i].color);
  fprintf (fp, "</div>");
}

static void
write_tile (FILE *fp, const char *name, const char *value)
{
  fprintf (fp, "<div><dt>%s</dt><dd>%s</dd></div>\n", name, value);
}

static void
write_tiles (FILE *fp, const struct drift_fleet *fleet)
{
  char buf[HUMAN_MAX];

  fprintf (fp, "<dl class=\"tiles\">\n");
  write_tile (fp, "logical", human_bytes (fleet->logical, buf));
  write_tile (fp, "distinct", human_bytes (fleet->distinct, buf));
  write_tile (fp, "stored", human_bytes (fleet->stored, buf));
  snprintf (buf, sizeof buf, "%zu", fleet->nr_clones);
  write_tile (fp, "clones", buf);
  if (!isnan (fleet->ratio)) {
    snprintf (buf, sizeof buf, "%.2f", fleet->ratio);
    write_tile (fp, "dedup ratio", buf);
  }
  fprintf (fp, "</dl>\n");
}

void
page_summary (FILE *fp, const json_t *document)
{
  char bytes[HUMAN_MAX], percent[PERCENT_MAX], time[64];
  struct drift_fleet fleet;
  unsigned i;

  drift_fleet_read (document, &fleet);
  fprintf (fp, "<p class=\"dim\">As of %s; all times are in that zone.</p>\n",
           drift_time (document, "%Y-%m-%d %H:%M %Z", time, sizeof time));
  write_tiles (fp, &fleet);
  if (fleet.clones.logical == 0) {
    fprintf (fp, "<p>%s</p>\n", fleet.nr_clones == 0 ?
             "It has no clones." : "Its clones hold nothing.");
    return;
  }
  fprintf (fp, "<p>Of the clones’ %s:</p>\n",
           human_bytes (fleet.clones.logical, bytes));
  write_bar (fp, &fleet.clones, "bar big");
  fprintf (fp, "<ul class=\"legend\">\n");
  for (i = 0; i < NR_CLASSES; ++i) {
    fprintf (fp, "<li><span class=\"key\" style=\"background:%s\"></span>"
             "<b>%s</b> ", drift_classes[i].color,
             human_bytes (fleet.clones.class[i], bytes));
    page_text (fp, drift_percent (fleet.clones.class[i], fleet.clones.logical,
                                  percent));
    fprintf (fp, " %s</li>\n", drift_classes[i].label);
  }
  fprintf (fp, "</ul>\n");
}

static void
write_row (FILE *fp, const char *name, const struct drift_clone *row,
           bool is_sum)
{
  char bytes[HUMAN_MAX], percent[PERCENT_MAX];
  unsigned i;

  fprintf (fp, "<tr><th scope=\"row\">");
  page_text (fp, name);
  fprintf (fp, "</th><td>");
  write_bar (fp, row, "bar");
  fprintf (fp, "</td><td>%s</td>", human_bytes (row->logical, bytes));
  for (i = 0; i < NR_CLASSES; ++i) {
    fprintf (fp, "<td>%s <small>", human_bytes (row->class[i], bytes));
    page_text (fp, drift_percent (row->class[i], row->logical, percent));
    fprintf (fp, "</small></td>");
  }
  fprintf (fp, "<td>%s</td>", human_bytes (row->zero, bytes));
  fprintf (fp, "<td>%s</td></tr>\n",
           is_sum ? "–" : human_bytes (row->only_here, bytes));
}

const char *const page_columns[PAGE_COLUMNS] = {
  "clone", "composition", "logical", "as golden", "moved", "only siblings",
  "unique", "zero", "only here",
};

static void
write_head (FILE *fp)
{
  unsigned i;

  fprintf (fp, "<thead><tr>");
  for (i = 0; i < PAGE_COLUMNS; ++i)
    fprintf (fp, "<th scope=\"col\">%s</th>", page_columns[i]);
  fprintf (fp, "</tr></thead>\n");
}

void
page_table (FILE *fp, const json_t *document)
{
  struct page_clone *clones;
  struct drift_fleet fleet;
  size_t nr, i;

  clones = page_clones (document, &nr);
  drift_fleet_read (document, &fleet);
  fprintf (fp, "<h3>Now, the most diverged first</h3>\n"
           "<div class=\"scroll\"><table>\n");
  write_head (fp);
  fprintf (fp, "<tbody>\n");
  for (i = 0; i < nr; ++i)
    write_row (fp, json_text (clones[i].clone, "name"), &clones[i].now,
               false);
  fprintf (fp, "</tbody>\n");
  if (nr > 1) {
    fprintf (fp, "<tfoot>\n");
    write_row (fp, "all clones", &fleet.clones, true);
    fprintf (fp, "</tfoot>\n");
  }
  fprintf (fp, "</table></div>\n");
  free (clones);
}
