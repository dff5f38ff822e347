/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "tools.h"

/* The form of "nbdinfo --map", in bytes, for scripts. */
static void
print_diff (const json_t *extents)
{
  struct table *table;
  json_t *extent;
  size_t i;

  if (json_array_size (extents) == 0)
    return;
  table = table_new ("rrl");
  table_add (table, "OFFSET");
  table_add (table, "LENGTH");
  table_add (table, "NOW");
  json_array_foreach (extents, i, extent) {
    table_add (table, "%" PRIu64, json_size (extent, "offset"));
    table_add (table, "%" PRIu64, json_size (extent, "length"));
    table_add (table,
               json_is_true (json_object_get (extent, "zero")) ? "zero"
                                                               : "data");
  }
  table_print (table);
}

int
cmd_diff (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool, .min_args = 2, .max_args = 2 };
  json_t *result;
  const json_t *extents;

  options_parse (&opts, argc, argv, NULL, NULL, "NAME@A NAME@B",
                 "Print the extents in which snapshot NAME@B differs from "
                 "NAME@A, and whether they are data or zeroes in NAME@B.",
                 OPTIONS_READS | OPTIONS_JSON | OPTIONS_PROGRESS);
  check_snapshot_name (&opts, opts.args[0]);
  check_snapshot_name (&opts, opts.args[1]);
  result = run (&opts,
                pack_args (&opts, "{s:s, s:s}", "from", opts.args[0], "to",
                           opts.args[1]));
  if (result == NULL)
    return EXIT_FAILURE;
  extents = json_object_get (result, "extents");
  if (opts.json)
    print_json (extents);
  else
    print_diff (extents);
  json_decref (result);
  return EXIT_SUCCESS;
}
