/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>

#include "interrupt.h"
#include "tools.h"

enum {
  KEY_FORCE = 0x2000,
  KEY_WAIT,
  KEY_DRY_RUN,
};

static const struct argp_option options[] = {
  { "recursive", 'r', NULL, 0, "Also destroy the volume's snapshots", 0 },
  { "force", KEY_FORCE, NULL, 0,
    "Destroy it even if it is in use (its clients get errors) or has clones "
    "(they stay)",
    0 },
  { "wait", KEY_WAIT, NULL, 0, "Wait until its space is free", 0 },
  { "dry-run", KEY_DRY_RUN, NULL, 0,
    "Only print what would be destroyed and freed", 0 },
  { 0 }
};

struct destroy_options {
  struct options common; /* first: parsers get a pointer to it */
  bool recursive, force, wait, dry_run;
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct destroy_options *opts = state->input;

  (void) arg;
  switch (key) {
  case 'r':
    opts->recursive = true;
    return 0;
  case KEY_FORCE:
    opts->force = true;
    return 0;
  case KEY_WAIT:
    opts->wait = true;
    return 0;
  case KEY_DRY_RUN:
    opts->dry_run = true;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static void
print_dry_run (const json_t *result)
{
  char buf[HUMAN_MAX];
  json_t *name, *need;
  size_t i;

  json_array_foreach (json_object_get (result, "destroyed"), i, name)
    printf ("would destroy %s\n", json_string_value (name));
  json_array_foreach (json_object_get (result, "needs"), i, need)
    printf ("would need %s: %s\n", json_text (need, "option"),
            json_text (need, "why"));
  printf ("would free %s\n",
          human_bytes (json_size (result, "freed_bytes"), buf));
}

int
cmd_destroy (int argc, char **argv, const char *pool)
{
  struct destroy_options opts = {
    .common = { .pool = pool, .min_args = 1, .max_args = argc },
  };
  json_t *names, *result;
  unsigned i;
  int r = EXIT_FAILURE;

  opts.common.list = check_memory (
    calloc ((size_t) argc, sizeof *opts.common.list));
  options_parse (&opts.common, argc, argv, options, parse,
                 "NAME...\nNAME@SNAP...",
                 "Destroy volumes or snapshots: all that are named, or none. "
                 "They are gone when the command returns; the space that "
                 "nothing else refers to is freed in the background.",
                 OPTIONS_READS | OPTIONS_JSON | OPTIONS_PROGRESS);
  interrupt_catch ();
  names = json_array ();
  for (i = 0; i < opts.common.nr_args; ++i)
    json_array_append_new (names,
                           pack_args (&opts.common, "s", opts.common.list[i]));
  result = run (&opts.common,
                pack_args (&opts.common, "{s:o, s:b, s:b, s:b, s:b}", "names",
                           names, "recursive", opts.recursive, "force",
                           opts.force, "wait", opts.wait, "dry-run",
                           opts.dry_run));
  if (result != NULL) {
    if (opts.common.json)
      print_json (result);
    else if (opts.dry_run)
      print_dry_run (result);
    r = EXIT_SUCCESS;
  }
  json_decref (result);
  free (opts.common.list);
  return r;
}
