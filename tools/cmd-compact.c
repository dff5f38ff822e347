/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "tools.h"

static void
print_compacted (const json_t *result)
{
  const uint64_t records = json_size (result, "moved_records");
  char moved[HUMAN_MAX], file[HUMAN_MAX];

  printf ("%" PRIu64 " record%s moved, %s; the records file takes %s\n",
          records, records == 1 ? "" : "s",
          human_bytes (json_size (result, "moved_bytes"), moved),
          human_bytes (json_size (result, "file_bytes"), file));
}

int
cmd_compact (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool };
  json_t *result;

  options_parse (&opts, argc, argv, NULL, NULL, "",
                 "Give the free space inside of the records file back to the "
                 "file system.",
                 OPTIONS_POOL | OPTIONS_JSON | OPTIONS_PROGRESS);
  result = run (&opts, NULL);
  if (result == NULL)
    return EXIT_FAILURE;
  if (opts.json)
    print_json (result);
  else
    print_compacted (result);
  json_decref (result);
  return EXIT_SUCCESS;
}
