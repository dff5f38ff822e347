/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "tools.h"
#include "volume-options.h"

static const struct argp_option options[] = { VOLUME_OPTIONS, { 0 } };

struct create_options {
  struct options common; /* first: parsers get a pointer to it */
  struct volume_options volume;
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct create_options *opts = state->input;

  return volume_options_parse (&opts->volume, &opts->common, key, arg, state);
}

int
cmd_create (int argc, char **argv, const char *pool)
{
  struct create_options opts = {
    .common = { .pool = pool, .min_args = 2, .max_args = 2 },
  };
  const char *why;
  uint64_t size;
  json_t *args;

  options_parse (&opts.common, argc, argv, options, parse, "NAME SIZE",
                 "Make an empty volume of SIZE bytes, such as 512M, 1.5G or "
                 "2TiB (powers of 1024).",
                 OPTIONS_POOL);
  why = parse_size (opts.common.args[1], &size);
  if (why != NULL)
    usage_error (&opts.common, "size '%s': %s", opts.common.args[1], why);
  if (size == 0)
    usage_error (&opts.common, "size 0: a volume has at least 512 bytes");

  args = pack_args (&opts.common, "{s:s, s:I}", "name", opts.common.args[0],
                    "size", (json_int_t) size);
  volume_options_add (&opts.volume, &opts.common, args);
  return run_silently (&opts.common, args);
}
