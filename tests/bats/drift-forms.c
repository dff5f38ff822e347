/* SPDX-License-Identifier: BSD-3-Clause */

/* Print documents of drift as the command does, without a pool, which would
 * have to be used for weeks:
 *
 *   drift-forms text|history|csv|svg|html|freed <DOCUMENTS
 *
 * DOCUMENTS: a JSON array of what "nbdedup drift --json" prints for one
 * golden image; for "freed" {"if_destroyed", "asked"}.  svg and html go
 * through drift_save to the file named next.
 */

#include <config.h>

#include <stdio.h>
#include <string.h>

#include "drift-file.h"
#include "drift-report.h"
#include "image.h"
#include "tools.h"

static int
save (const json_t *documents, drift_write_fn *write, const char *file)
{
  json_t *histories = drift_histories (documents);
  int r = drift_save (file, write, histories);

  json_decref (histories);
  return r == 0 ? EXIT_SUCCESS : fail ("%s", image_error ());
}

static int
show (const json_t *documents, const char *form, const char *file)
{
  json_t *histories;

  if (strcmp (form, "svg") == 0)
    return save (documents, drift_write_svg, file);
  if (strcmp (form, "html") == 0)
    return save (documents, drift_write_html, file);
  if (strcmp (form, "text") == 0)
    drift_print (documents);
  else if (strcmp (form, "csv") == 0)
    drift_print_csv (documents);
  else if (strcmp (form, "freed") == 0)
    drift_print_freed (json_object_get (documents, "if_destroyed"),
                       json_object_get (documents, "asked"));
  else if (strcmp (form, "history") == 0) {
    histories = drift_histories (documents);
    drift_print_history (histories);
    json_decref (histories);
  }
  else
    return EXIT_USAGE;
  return EXIT_SUCCESS;
}

int
main (int argc, char **argv)
{
  json_error_t err;
  json_t *documents;
  int r;

  if (argc < 2)
    return EXIT_USAGE;
  documents = json_loadf (stdin, 0, &err);
  if (documents == NULL)
    return fail ("%s", err.text);
  r = show (documents, argv[1], argc > 2 ? argv[2] : "-");
  json_decref (documents);
  return r;
}
