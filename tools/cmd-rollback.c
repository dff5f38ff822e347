/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "tools.h"

enum {
  KEY_FORCE = 0x2000,
};

static const struct argp_option options[] = {
  { "force", KEY_FORCE, NULL, 0,
    "Roll back even if the volume is in use: its clients get errors until they "
    "attach again",
    0 },
  { 0 }
};

struct rollback_options {
  struct options common; /* first: parsers get a pointer to it */
  bool force;
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct rollback_options *opts = state->input;

  (void) arg;
  if (key != KEY_FORCE)
    return ARGP_ERR_UNKNOWN;
  opts->force = true;
  return 0;
}

int
cmd_rollback (int argc, char **argv, const char *pool)
{
  struct rollback_options opts = {
    .common = { .pool = pool, .min_args = 1, .max_args = 1 },
  };

  options_parse (&opts.common, argc, argv, options, parse, "NAME@SNAP",
                 "Return volume NAME to the content and the size that it had "
                 "when the snapshot was taken. Later writes are lost. All "
                 "snapshots stay, also later ones.",
                 OPTIONS_POOL);
  check_snapshot_name (&opts.common, opts.common.args[0]);
  return run_silently (&opts.common,
                       pack_args (&opts.common, "{s:s, s:b}", "name",
                                  opts.common.args[0], "force", opts.force));
}
