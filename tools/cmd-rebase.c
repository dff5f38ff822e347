/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>

#include "tools.h"

enum {
  KEY_DRY_RUN = 0x2000,
};

static const struct argp_option options[] = {
  { "dry-run", KEY_DRY_RUN, NULL, 0,
    "Change nothing; print how much would no longer be the volume's own", 0 },
  { 0 }
};

struct rebase_options {
  struct options common; /* first: parsers get a pointer to it */
  bool dry_run;
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct rebase_options *opts = state->input;

  (void) arg;
  if (key != KEY_DRY_RUN)
    return ARGP_ERR_UNKNOWN;
  opts->dry_run = true;
  return 0;
}

static void
print_rebase (const struct rebase_options *opts, const json_t *result)
{
  char shared[HUMAN_MAX], all[HUMAN_MAX], before[HUMAN_MAX], after[HUMAN_MAX],
    back[HUMAN_MAX];

  printf ("%s: %s %s of %s with %s; own data %s -> %s, %s %s\n",
          opts->common.args[0], opts->dry_run ? "would share" : "shares",
          human_bytes (json_size (result, "shared_bytes"), shared),
          human_bytes (json_size (result, "logical_bytes"), all),
          opts->common.args[1],
          human_bytes (json_size (result, "own_bytes_before"), before),
          human_bytes (json_size (result, "own_bytes_after"), after),
          human_bytes (json_size (result, "given_back_bytes"), back),
          opts->dry_run ? "would no longer be its own" : "no longer its own");
}

int
cmd_rebase (int argc, char **argv, const char *pool)
{
  struct rebase_options opts = {
    .common = { .pool = pool, .min_args = 2, .max_args = 2 },
  };
  json_t *result;

  options_parse (&opts.common, argc, argv, options, parse, "NAME GOLDEN@SNAP",
                 "Make volume NAME inherit from another snapshot. Its content "
                 "stays the same, byte for byte; blocks that equal those of "
                 "GOLDEN@SNAP no longer count as its own. Its snapshots and "
                 "clones keep their origin.",
                 OPTIONS_READS | OPTIONS_JSON | OPTIONS_PROGRESS);
  check_snapshot_name (&opts.common, opts.common.args[1]);
  result = run (&opts.common,
                pack_args (&opts.common, "{s:s, s:s, s:b}", "name",
                           opts.common.args[0], "snapshot", opts.common.args[1],
                           "dry-run", opts.dry_run));
  if (result == NULL)
    return EXIT_FAILURE;
  if (opts.common.json)
    print_json (result);
  else
    print_rebase (&opts, result);
  json_decref (result);
  return EXIT_SUCCESS;
}
