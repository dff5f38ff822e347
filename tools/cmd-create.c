/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "tools.h"

enum {
  KEY_BLOCK_SIZE = 0x2000,
  KEY_COMPRESS,
  KEY_DEDUP,
};

static const struct argp_option options[] = {
  { "block-size", KEY_BLOCK_SIZE, "SIZE", 0,
    "The unit of dedup and compression: 4K to 1M, a power of two; default: "
    "the pool's", 0 },
  { "compress", KEY_COMPRESS, "NAME", 0,
    "none, lz4, zstd or zstd-N; default: the pool's", 0 },
  { "dedup", KEY_DEDUP, "on|off|verify", 0,
    "Whether to look for duplicates, and to compare bytes when one is found; "
    "default: the pool's", 0 },
  { 0 }
};

struct create_options {
  struct options common;        /* first: parsers get a pointer to it */
  uint64_t block_size;          /* 0: default */
  const char *compress, *dedup; /* NULL: default */
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct create_options *opts = state->input;

  switch (key) {
  case KEY_BLOCK_SIZE:
    opts->block_size = options_size (state, "block size", arg);
    if (opts->block_size == 0)
      usage_error (&opts->common, "a block size cannot be 0");
    return 0;
  case KEY_COMPRESS:
    opts->compress = arg;
    return 0;
  case KEY_DEDUP:
    opts->dedup = arg;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
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
                 "Make an empty volume of SIZE bytes (K, M, G, T: powers of "
                 "1024).", OPTIONS_POOL);
  why = parse_size (opts.common.args[1], &size);
  if (why != NULL)
    usage_error (&opts.common, "size '%s': %s", opts.common.args[1], why);

  args = pack_args (&opts.common, "{s:s, s:I, s:s*, s:s*}",
                    "name", opts.common.args[0], "size", (json_int_t) size,
                    "compress", opts.compress, "dedup", opts.dedup);
  if (opts.block_size != 0)
    json_object_set_new (args, "block-size", json_integer (opts.block_size));
  return run_silently (&opts.common, args);
}
