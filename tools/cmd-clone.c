/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>

#include "tools.h"

enum {
  KEY_COUNT = 0x2000,
  KEY_START,
};

static const struct argp_option options[] = {
  { "count", KEY_COUNT, "N", 0,
    "Make N clones, named NEW1 to NEWN: all of them, or none", 0 },
  { "start", KEY_START, "K", 0,
    "With --count: the first is NEWK instead of NEW1", 0 },
  { 0 }
};

struct clone_options {
  struct options common; /* first: parsers get a pointer to it */
  uint64_t count, start;
  bool has_count, has_start;
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct clone_options *opts = state->input;

  switch (key) {
  case KEY_COUNT:
    opts->count = options_number (state, "count", arg);
    opts->has_count = true;
    return 0;
  case KEY_START:
    opts->start = options_number (state, "start", arg);
    opts->has_start = true;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static void
print_clones (const json_t *result)
{
  json_t *name;
  size_t i;

  json_array_foreach (json_object_get (result, "clones"), i, name)
    printf ("%s\n", json_string_value (name));
}

int
cmd_clone (int argc, char **argv, const char *pool)
{
  struct clone_options opts = {
    .common = { .pool = pool, .min_args = 2, .max_args = 2 },
  };
  json_t *args, *result;

  options_parse (&opts.common, argc, argv, options, parse, "NAME@SNAP NEW",
                 "Make volume NEW with the content of snapshot NAME@SNAP, at "
                 "once, whatever its size. The clone shares all blocks that "
                 "it does not change. With --count, print the names of the "
                 "new volumes.",
                 OPTIONS_POOL | OPTIONS_JSON);
  check_snapshot_name (&opts.common, opts.common.args[0]);
  if (opts.has_start && !opts.has_count)
    usage_error (&opts.common, "--start needs --count");

  args = pack_args (&opts.common, "{s:s, s:s}", "snapshot", opts.common.args[0],
                    "name", opts.common.args[1]);
  if (opts.has_count)
    json_object_set_new (args, "count", json_integer (opts.count));
  if (opts.has_start)
    json_object_set_new (args, "start", json_integer (opts.start));
  result = run (&opts.common, args);
  if (result == NULL)
    return EXIT_FAILURE;
  if (opts.common.json)
    print_json (result);
  else if (opts.has_count)
    print_clones (result);
  json_decref (result);
  return EXIT_SUCCESS;
}
