/* SPDX-License-Identifier: BSD-3-Clause */

/* One picture: for each golden image three charts, below each other. */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drift-chart.h"
#include "drift-report.h"
#include "gnuplot.h"
#include "image.h"
#include "tools.h"

#define WIDTH 900

/* Where the charts begin and end, in parts of the width. */
#define LEFT 0.09
#define RIGHT 0.97

/* Letters of a name in a title. */
#define NAME_MAX_SHOWN 48

/* Pixels from the top of a golden image's part. */
#define PART_HEIGHT 880
static const struct panel {
  unsigned title_y, top, bottom;
  const char *title;            /* after the golden image's name */
} panels[] = {
  { 22, 78, 310, "bytes of the image and its clones" },
  { 366, 422, 654, "what the clones' bytes are" },
  { 718, 740, 824, "dedup ratio" },
};

/* Gnuplot counts from the bottom, in parts of the whole. */
struct place {
  double top, height;
};

static double
screen (const struct place *place, double y)
{
  return 1 - (place->top + y) / place->height;
}

/* The golden image's name, as far as a title has room: its beginning and its
 * end tell more than its middle.
 */
static char *
write_title (const char *name, const char *what)
{
  const int len = strlen (name), half = NAME_MAX_SHOWN / 2;

  return len <= NAME_MAX_SHOWN ? make_string ("%s: %s", name, what)
    : make_string ("%.*s…%s: %s", half, name, name + len - half, what);
}

/* The title is a label, because titles are centred. */
static void
write_frame (FILE *script, const json_t *history, const struct panel *panel,
             const struct place *place)
{
  char *title = write_title (json_text (json_array_get (history, 0), "golden"),
                             panel->title);

  fprintf (script, "set tmargin at screen %.6f\nset bmargin at screen %.6f\n",
           screen (place, panel->top), screen (place, panel->bottom));
  fprintf (script, "set label 1 ");
  gnuplot_string (script, title);
  fprintf (script, " at screen %g, screen %.6f left "
           "font 'sans-serif,15'\n", LEFT,
           screen (place, panel->title_y));
  fprintf (script, "set key at screen %g, screen %.6f left center "
           "horizontal maxrows 1 Left reverse samplen 1.5\n", LEFT,
           screen (place, panel->title_y + 30));
  free (title);
}

static void
write_part (FILE *script, const json_t *history, size_t part, size_t nr_parts)
{
  const struct place place = {
    (double) PART_HEIGHT * part, (double) PART_HEIGHT * nr_parts,
  };
  struct chart chart = {
    .script = script, .history = history, .width = WIDTH,
    .x_tics = 8, .y_tics = 5, .key = true,
  };
  unsigned i;

  for (i = 0; i < sizeof panels / sizeof panels[0]; ++i) {
    write_frame (script, history, &panels[i], &place);
    switch (i) {
    case 0:
      chart_bytes (&chart, 0);
      break;
    case 1:
      chart_composition (&chart, NULL, 0);
      break;
    case 2:
      chart.key = false;
      chart.y_tics = 3;
      chart_ratio (&chart);
    }
  }
}

static void
write_script (FILE *script, const json_t *histories, unsigned height)
{
  const size_t nr = json_array_size (histories);
  json_t *history, *sorted;
  size_t i;

  gnuplot_chart (script, "drift", WIDTH, height);
  fprintf (script, "set multiplot\nset lmargin at screen %g\n"
           "set rmargin at screen %g\n", LEFT, RIGHT);
  json_array_foreach (histories, i, history) {
    sorted = drift_by_time (history);
    write_part (script, sorted, i, nr);
    json_decref (sorted);
  }
  if (nr == 0)
    fprintf (script, "unset border\nunset tics\nunset key\n"
             "set title 'no golden images' font ',15'\n"
             "plot [0:1] [0:1] 2\n");
  fprintf (script, "unset multiplot\n");
}

/* Names stand within the charts, where gnuplot escapes them. */
static int
write_svg (FILE *fp, char *charts, unsigned height)
{
  fprintf (fp,
           "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n"
           "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" "
           "height=\"%u\" viewBox=\"0 0 %u %u\" role=\"img\">\n"
           "<title>Drift of golden images and their clones</title>\n"
           "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
           "<g>\n", WIDTH, height, WIDTH, height);
  if (gnuplot_copy (fp, &charts) == -1)
    return -1;
  fprintf (fp, "</svg>\n");
  return 0;
}

int
drift_write_svg (FILE *fp, const json_t *histories, const char *file)
{
  const size_t nr = json_array_size (histories);
  const unsigned height = PART_HEIGHT * (nr == 0 ? 1 : nr);
  char *script = NULL, *charts;
  size_t len;
  FILE *out = open_memstream (&script, &len);
  int r = -1;

  if (out != NULL)
    write_script (out, histories, height);
  if (out == NULL || fclose (out) != 0)
    exit (fail ("out of memory"));
  charts = gnuplot_run (script, len, file);
  if (charts != NULL)
    r = write_svg (fp, charts, height);
  free (charts);
  free (script);
  return r;
}
