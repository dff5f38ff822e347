/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "tools.h"

static void
print_scrub (const json_t *result)
{
  const uint64_t summaries = json_size (result, "summary_errors");
  char buf[HUMAN_MAX];
  json_t *damaged, *page;
  size_t i;

  json_array_foreach (json_object_get (result, "metadata"), i, page)
    printf ("%s\n", json_string_value (page));
  json_array_foreach (json_object_get (result, "damaged"), i, damaged)
    printf ("%s: %" PRIu64 " bytes at offset %" PRIu64 " are damaged\n",
            json_text (damaged, "name"), json_size (damaged, "length"),
            json_size (damaged, "offset"));
  if (summaries > 0)
    printf ("%" PRIu64 " summar%s damaged or missing, and %s written again\n",
            summaries, summaries == 1 ? "y was" : "ies were",
            summaries == 1 ? "was" : "were");
  printf ("%" PRIu64 " records, %s verified\n", json_size (result, "records"),
          human_bytes (json_size (result, "bytes"), buf));
}

int
cmd_scrub (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool };
  json_t *result;
  uint64_t records, lost, pages;

  options_parse (&opts, argc, argv, NULL, NULL, "",
                 "Read every record and verify its hash, and every page of "
                 "both copies of pool.db. Exits 1 if any is damaged, and "
                 "prints where volumes are concerned. Writes damaged "
                 "summaries of records again.",
                 OPTIONS_READS | OPTIONS_JSON | OPTIONS_PROGRESS);
  result = run (&opts, NULL);
  if (result == NULL)
    return EXIT_FAILURE;
  if (opts.json)
    print_json (result);
  else
    print_scrub (result);
  lost = json_size (result, "lost_blocks");
  pages = json_size (result, "metadata_errors");
  records = json_size (result, "errors") - lost - pages -
    json_size (result, "summary_errors");
  json_decref (result);
  if (records > 0)
    return fail ("scrub: %s: %" PRIu64 " record%s damaged", opts.pool, records,
                 records == 1 ? " is" : "s are");
  if (lost > 0)
    return fail ("scrub: %s: %" PRIu64 " block%s lost", opts.pool, lost,
                 lost == 1 ? " is" : "s are");
  if (pages > 0)
    return fail ("scrub: %s: %" PRIu64 " page%s of pool.db %s damaged",
                 opts.pool, pages, pages == 1 ? "" : "s",
                 pages == 1 ? "is" : "are");
  return EXIT_SUCCESS;
}
