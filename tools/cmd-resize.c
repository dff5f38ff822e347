/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "tools.h"

enum {
  KEY_SHRINK = 0x2000,
};

static const struct argp_option options[] = {
  { "shrink", KEY_SHRINK, NULL, 0,
    "Allow a smaller size; the data past the new end is lost", 0 },
  { 0 }
};

struct resize_options {
  struct options common; /* first: parsers get a pointer to it */
  bool shrink;
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct resize_options *opts = state->input;

  (void) arg;
  if (key != KEY_SHRINK)
    return ARGP_ERR_UNKNOWN;
  opts->shrink = true;
  return 0;
}

int
cmd_resize (int argc, char **argv, const char *pool)
{
  struct resize_options opts = {
    .common = { .pool = pool, .min_args = 2, .max_args = 2 },
  };
  const char *why;
  uint64_t size;

  options_parse (&opts.common, argc, argv, options, parse, "NAME SIZE",
                 "Change a volume's size. Clients see the new size at their "
                 "next connection. Shrinking needs --shrink, and that no "
                 "client is attached.",
                 OPTIONS_POOL);
  why = parse_size (opts.common.args[1], &size);
  if (why != NULL)
    usage_error (&opts.common, "size '%s': %s", opts.common.args[1], why);
  if (size == 0)
    usage_error (&opts.common, "size 0: a volume has at least 512 bytes");
  return run_silently (&opts.common,
                       pack_args (&opts.common, "{s:s, s:I, s:b}", "name",
                                  opts.common.args[0], "size",
                                  (json_int_t) size, "shrink", opts.shrink));
}
