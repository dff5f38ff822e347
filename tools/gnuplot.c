/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "child.h"
#include "gnuplot.h"
#include "image.h"
#include "tools.h"

static char *
run_script (const char *script, size_t len, const char *file)
{
  /* -d: no ~/.gnuplot. */
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

static json_t *
cut (const char *text)
{
  static const char start[] = "</defs>", stop[] = "</svg>";
  json_t *charts = json_array ();
  const char *end;

  while ((text = strstr (text, start)) != NULL &&
         (end = strstr (text, stop)) != NULL) {
    text += strlen (start);
    if (json_array_append_new (charts, json_stringn (text, end - text)) == -1)
      exit (fail ("out of memory"));
    text = end;
  }
  return charts;
}

json_t *
gnuplot_run (const char *script, size_t len, const char *file)
{
  char *text = run_script (script, len, file);
  json_t *charts = text == NULL ? NULL : cut (text);

  free (text);
  return charts;
}
