/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "tools.h"

enum { KEY_REPAIR = 0x2000 };

static const struct argp_option options[] = {
  { "repair", KEY_REPAIR, NULL, 0,
    "Repair what can be derived from undamaged metadata", 0 },
  { 0 }
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct options *opts = state->input;

  (void) arg;
  if (key != KEY_REPAIR)
    return ARGP_ERR_UNKNOWN;
  opts->repair = true;
  return 0;
}

static void
print_repairs (const json_t *result)
{
  const uint64_t lost = json_size (result, "lost_blocks");
  json_t *repair, *place;
  size_t i;

  json_array_foreach (json_object_get (result, "repairs"), i, repair)
    printf ("%s: %s\n", json_text (repair, "problem"),
            json_is_true (json_object_get (repair, "repaired"))
              ? "repaired"
              : "not repaired");
  json_array_foreach (json_object_get (result, "lost"), i, place)
    printf ("%s: %" PRIu64 " bytes at offset %" PRIu64 " are lost\n",
            json_text (place, "name"), json_size (place, "length"),
            json_size (place, "offset"));
  if (lost > 0)
    printf ("The content of %" PRIu64 " block%s is lost: \"nbdedup scrub\" "
            "lists %s, and writing %s again heals %s\n",
            lost, lost == 1 ? "" : "s", lost == 1 ? "it" : "them",
            lost == 1 ? "it" : "them", lost == 1 ? "it" : "them");
}

static void
print_checked (const json_t *result)
{
  const json_t *c = json_object_get (result, "checked");

  printf ("No errors: %" PRIu64 " layers of volumes and snapshots, %" PRIu64
          " references, %" PRIu64 " records, %" PRIu64 " entries of the hash "
          "index\n",
          json_size (c, "layers"), json_size (c, "references"),
          json_size (c, "records"), json_size (c, "index_entries"));
}

int
cmd_check (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool };
  json_t *result, *problem;
  uint64_t errors;
  bool try_offline;
  size_t i;

  options_parse (&opts, argc, argv, options, parse, "",
                 "Verify the pool's metadata: every map, count and free-space "
                 "figure. Exits 1 if there are errors, and prints them.",
                 OPTIONS_READS | OPTIONS_JSON | OPTIONS_PROGRESS);
  if (opts.repair && opts.read_only != NBDEDUP_READ_ONLY_OFF)
    usage_error (&opts,
                 "--repair changes the pool: it cannot be used with "
                 "--read-only");
  result = run (&opts,
                opts.repair ? pack_args (&opts, "{s:b}", "repair", 1) : NULL);
  if (result == NULL)
    return EXIT_FAILURE;
  if (opts.json)
    print_json (result);
  else if (opts.repair)
    print_repairs (result);
  else
    json_array_foreach (json_object_get (result, "problems"), i, problem)
      printf ("%s\n", json_string_value (problem));
  errors = json_size (result, "errors");
  if (errors == 0 && json_size (result, "found") == 0 && !opts.json)
    print_checked (result);
  try_offline = json_is_true (json_object_get (result, "try_offline"));
  json_decref (result);
  if (errors > 0)
    return fail ("check: %s: %" PRIu64 " error%s %s%s", opts.pool, errors,
                 errors == 1 ? "" : "s",
                 opts.repair ? "could not be repaired" : "found",
                 try_offline ? " while a server has the pool: stop "
                               "it, and repair again"
                             : "");
  return EXIT_SUCCESS;
}
