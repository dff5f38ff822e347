/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "interrupt.h"
#include "tools.h"

enum { KEY_DEDUP = 0x2000 };

static const struct argp_option options[] = {
  { "dedup", KEY_DEDUP, NULL, 0,
    "Also find duplicates that were missed, and put pruned entries back in the "
    "dedup table",
    0 },
  { 0 }
};

struct rewrite_options {
  struct options common; /* first: parsers get a pointer to it */
  bool dedup;
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct rewrite_options *opts = state->input;

  (void) arg;
  if (key != KEY_DEDUP)
    return ARGP_ERR_UNKNOWN;
  opts->dedup = true;
  return 0;
}

static void
print_rewritten (const struct rewrite_options *opts, const json_t *result)
{
  char before[HUMAN_MAX], after[HUMAN_MAX];

  printf ("rewrote %" PRIu64 " of %" PRIu64 " records",
          json_size (result, "rewritten_records"),
          json_size (result, "records"));
  if (opts->dedup)
    printf (", gave up %" PRIu64 " duplicates",
            json_size (result, "joined_records"));
  printf (": they took %s, and take %s now\n",
          human_bytes (json_size (result, "before_bytes"), before),
          human_bytes (json_size (result, "after_bytes"), after));
}

/* What could not be done, although the command succeeds. */
static void
print_left (const json_t *result)
{
  const uint64_t damaged = json_size (result, "damaged_records");
  const uint64_t over_quota = json_size (result, "over_quota_records");

  if (damaged > 0)
    note ("%" PRIu64 " damaged records stay as they are: run nbdedup scrub",
          damaged);
  if (over_quota > 0)
    note ("%" PRIu64 " records are not in the dedup table, which has reached "
          "ddt-quota",
          over_quota);
}

int
cmd_rewrite (int argc, char **argv, const char *pool)
{
  struct rewrite_options opts = {
    .common = { .pool = pool, .min_args = 1, .max_args = 1 },
  };
  json_t *result;

  options_parse (&opts.common, argc, argv, options, parse, "NAME[@SNAP]",
                 "Store the records of a volume again with the volume's "
                 "current compression.",
                 OPTIONS_POOL | OPTIONS_JSON | OPTIONS_PROGRESS);
  interrupt_catch ();
  result = run (&opts.common,
                pack_args (&opts.common, "{s:s, s:b}", "name",
                           opts.common.args[0], "dedup", opts.dedup));
  if (result == NULL)
    return EXIT_FAILURE;
  print_left (result);
  if (opts.common.json)
    print_json (result);
  else
    print_rewritten (&opts, result);
  json_decref (result);
  return EXIT_SUCCESS;
}
