/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "tools.h"

int
cmd_check (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool };
  json_t *result, *problem;
  uint64_t errors;
  size_t i;

  options_parse (&opts, argc, argv, NULL, NULL, "",
                 "Verify the pool's metadata: every map, count and free-space "
                 "figure. Exits 1 if there are errors, and prints them.",
                 OPTIONS_READS | OPTIONS_JSON | OPTIONS_PROGRESS);
  result = run (&opts, NULL);
  if (result == NULL)
    return EXIT_FAILURE;
  if (opts.json)
    print_json (result);
  else
    json_array_foreach (json_object_get (result, "problems"), i, problem)
      printf ("%s\n", json_string_value (problem));
  errors = json_size (result, "errors");
  json_decref (result);
  if (errors > 0)
    return fail ("check: %s: %" PRIu64 " error%s found", opts.pool, errors,
                 errors == 1 ? "" : "s");
  return EXIT_SUCCESS;
}
