/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "child.h"
#include "gnuplot.h"
#include "image.h"

void
gnuplot_chart (FILE *script, const char *name, unsigned width,
               unsigned height)
{
  /* "noenhanced": an underscore in a name is no subscript. */
  fprintf (script,
           "reset\n"
           "set encoding utf8\n"
           "set terminal svg dynamic size %u,%u name '%s' noenhanced "
           "font 'system-ui,sans-serif,12'\n", width, height, name);
}

void
gnuplot_string (FILE *script, const char *text)
{
  putc ('\'', script);
  for (; *text != '\0'; ++text) {
    if (*text == '\'')
      putc ('\'', script);
    putc ((unsigned char) *text < ' ' ? ' ' : *text, script);
  }
  putc ('\'', script);
}

char *
gnuplot_run (const char *script, size_t len, const char *file)
{
  /* -d: nobody's ~/.gnuplot. */
  static const char *const argv[] = { "gnuplot", "-d", NULL };
  char *charts = NULL;
  struct child child;

  if (child_start_input (&child, argv, script, len) == -1)
    return NULL;
  if (child_wait (&child) == 0) {
    if (!child_exited (&child, 0))
      child_fail (&child, file);
    else if ((charts = child_output (&child)) == NULL)
      image_fail ("%s: too much for one file", file);
  }
  child_end (&child);
  return charts;
}

/* What a browser would show as the tooltip of a line: "c1_plot_2". */
static void
copy_without_titles (FILE *fp, const char *text, const char *end)
{
  static const char open[] = "<title>", close[] = "</title>";
  const char *title;

  while ((title = strstr (text, open)) != NULL && title < end) {
    fwrite (text, 1, title - text, fp);
    text = strstr (title, close);
    if (text == NULL || text > end)
      return;
    text += strlen (close);
  }
  fwrite (text, 1, end - text, fp);
}

int
gnuplot_copy (FILE *fp, char **charts)
{
  static const char start[] = "</defs>", stop[] = "</svg>";
  char *from = strstr (*charts, start);
  char *to = from == NULL ? NULL : strstr (from, stop);

  if (to == NULL)
    return image_fail ("this version of gnuplot writes SVG files that nbdedup "
                       "does not understand");
  copy_without_titles (fp, from + strlen (start), to);
  *charts = to + strlen (stop);
  return 0;
}
