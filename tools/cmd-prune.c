/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "interrupt.h"
#include "tools.h"

enum {
  KEY_AGE = 0x2000,
  KEY_PERCENT,
  KEY_DRY_RUN,
};

static const struct argp_option options[] = {
  { "age", KEY_AGE, "AGE", 0,
    "Remove entries that are at least AGE old: a number with s, m, h, d or w",
    0 },
  { "percent", KEY_PERCENT, "N", 0,
    "Remove the oldest N percent of the entries that nothing shares", 0 },
  { "dry-run", KEY_DRY_RUN, NULL, 0,
    "Change nothing; print how many entries would be removed", 0 },
  { 0 }
};

struct prune_options {
  struct options common; /* first: parsers get a pointer to it */
  bool has_age, has_percent, dry_run;
  uint64_t age, percent;
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct prune_options *opts = state->input;

  switch (key) {
  case KEY_AGE:
    opts->has_age = true;
    if (nbdedup_parse_age (arg, &opts->age) == -1)
      usage_error (&opts->common, "age '%s': %s", arg, nbdedup_error ());
    return 0;
  case KEY_PERCENT:
    opts->has_percent = true;
    opts->percent = options_number (state, "percent", arg);
    if (opts->percent == 0 || opts->percent > 100)
      usage_error (&opts->common, "percent '%s': must be from 1 to 100", arg);
    return 0;
  case KEY_DRY_RUN:
    opts->dry_run = true;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static json_t *
make_args (const struct prune_options *opts)
{
  return opts->has_age
    ? pack_args (&opts->common, "{s:I, s:b}", "age", (json_int_t) opts->age,
                 "dry-run", opts->dry_run)
    : pack_args (&opts->common, "{s:I, s:b}", "percent",
                 (json_int_t) opts->percent, "dry-run", opts->dry_run);
}

static void
print_prune (const struct prune_options *opts, const json_t *result)
{
  printf ("%s %" PRIu64 " of %" PRIu64 " entries of the dedup table\n",
          opts->dry_run ? "would remove" : "removed",
          json_size (result, "pruned_entries"),
          json_size (result, "entries_before"));
}

int
cmd_prune (int argc, char **argv, const char *pool)
{
  struct prune_options opts = { .common = { .pool = pool } };
  json_t *result;

  options_parse (&opts.common, argc, argv, options, parse, "",
                 "Make the dedup table smaller: remove the entries of old "
                 "records that have one reference. No data is lost; if a "
                 "client writes such content again, the pool stores it a "
                 "second time.",
                 OPTIONS_READS | OPTIONS_JSON | OPTIONS_PROGRESS);
  if (opts.has_age == opts.has_percent)
    usage_error (&opts.common, "how old? Give --age or --percent%s",
                 opts.has_age ? ", not both" : "");
  interrupt_catch ();
  result = run (&opts.common, make_args (&opts));
  if (result == NULL)
    return EXIT_FAILURE;
  if (opts.common.json)
    print_json (result);
  else
    print_prune (&opts, result);
  json_decref (result);
  return EXIT_SUCCESS;
}
