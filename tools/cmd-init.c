/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "tools.h"

enum {
  KEY_SECTOR = 0x2000,
  KEY_HASH,
  KEY_BLOCK_SIZE,
  KEY_COMPRESS,
};

static const struct argp_option options[] = {
  { "sector", KEY_SECTOR, "SIZE", 0,
    "The unit of space: 512 (default) to 8K; fixed from now on", 0 },
  { "hash", KEY_HASH, "NAME", 0,
    "The hash that finds duplicates: sha256 (default), sha512-256, "
    "blake2b512, blake2s256, blake3 (where built in), gmac (keyed), or auto "
    "for the fastest on this CPU; fixed from now on",
    0 },
  { "block-size", KEY_BLOCK_SIZE, "SIZE", 0,
    "Default block size of its volumes: 4K to 1M", 0 },
  { "compress", KEY_COMPRESS, "NAME", 0,
    "Default compression of its volumes: none, lz4 (default), zstd or "
    "zstd-N",
    0 },
  { 0 }
};

struct init_options {
  struct options common; /* first: parsers get a pointer to it */
  json_t *properties;    /* owned */
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct init_options *opts = state->input;
  json_t *value;
  const char *name;

  switch (key) {
  case KEY_SECTOR:
    name = "sector";
    value = json_integer (options_size (state, "sector", arg));
    break;
  case KEY_BLOCK_SIZE:
    name = "block-size";
    value = json_integer (options_size (state, "block size", arg));
    break;
  case KEY_HASH:
    name = "hash";
    value = json_string (arg);
    break;
  case KEY_COMPRESS:
    name = "compress";
    value = json_string (arg);
    break;
  default:
    return ARGP_ERR_UNKNOWN;
  }
  if (json_object_set_new (opts->properties, name, value) == -1)
    usage_error (&opts->common, "%s: bad value", name);
  return 0;
}

#define WHY_MAX 160

/* Measure here, to say what was taken, and why; "": the user chose. */
static int
choose_hash (json_t *properties, char why[WHY_MAX])
{
  const char *hash = json_string_value (json_object_get (properties, "hash"));
  json_int_t block = json_integer_value (
    json_object_get (properties, "block-size"));

  why[0] = 0;
  if (hash == NULL || strcmp (hash, "auto") != 0)
    return EXIT_SUCCESS;
  /* The library refuses a block size that is none. */
  hash = nbdedup_hash_auto (block > 0 && block <= 1 << 20 ? (uint32_t) block
                                                          : 0,
                            why, WHY_MAX);
  if (hash == NULL)
    return fail ("init: %s", nbdedup_error ());
  json_object_set_new (properties, "hash", json_string (hash));
  return EXIT_SUCCESS;
}

int
cmd_init (int argc, char **argv, const char *pool)
{
  struct init_options opts = {
    .common = { .pool = pool, .max_args = 1 },
    .properties = json_object (),
  };
  const char *environment = getenv ("NBDEDUP_POOL");
  char why[WHY_MAX];
  int r;

  options_parse (&opts.common, argc, argv, options, parse, "[POOL]",
                 "Make a pool in the directory POOL, which must be empty or "
                 "not exist yet.",
                 OPTIONS_POOL);
  if (opts.common.nr_args == 1) {
    /* By -p: $NBDEDUP_POOL gives way to the argument. */
    if (opts.common.pool != NULL && opts.common.pool != environment &&
        strcmp (opts.common.pool, opts.common.args[0]) != 0)
      usage_error (&opts.common, "two pools were given: '%s' and '%s'",
                   opts.common.pool, opts.common.args[0]);
    opts.common.pool = opts.common.args[0];
  }
  if (opts.common.pool == NULL)
    usage_error (&opts.common, "no directory for the pool was given");

  if (choose_hash (opts.properties, why) != EXIT_SUCCESS) {
    json_decref (opts.properties);
    return EXIT_FAILURE;
  }
  r = nbdedup_pool_create (opts.common.pool, opts.properties);
  if (r == 0 && why[0] != 0)
    note ("init: hash %s: %s", json_text (opts.properties, "hash"), why);
  json_decref (opts.properties);
  if (r == -1 && errno == EINVAL)
    usage_error (&opts.common, "%s", nbdedup_error ());
  if (r == -1)
    return fail ("init: %s", nbdedup_error ());
  return EXIT_SUCCESS;
}
