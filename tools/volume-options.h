/* SPDX-License-Identifier: BSD-3-Clause */

/* The options of the commands that make a volume: create and import. */

#ifndef NBDEDUP_VOLUME_OPTIONS_H
#define NBDEDUP_VOLUME_OPTIONS_H

#include <argp.h>
#include <stdint.h>

#include <jansson.h>

struct options;

struct volume_options {
  uint64_t block_size;                   /* 0: the pool's default; so is ... */
  const char *compress, *dedup, *domain; /* ... NULL */
};

/* For the command's own table of options. */
/* clang-format off */
#define VOLUME_OPTIONS \
  { "block-size", VOLUME_KEY_BLOCK_SIZE, "SIZE", 0, \
    "The unit of dedup and compression: 4K to 1M, a power of two; default: " \
    "the pool's", 0 }, \
  { "compress", VOLUME_KEY_COMPRESS, "NAME", 0, \
    "none, lz4, zstd or zstd-N; default: the pool's", 0 }, \
  { "dedup", VOLUME_KEY_DEDUP, "on|off|verify", 0, \
    "Whether to look for duplicates, and to compare bytes when one is found; " \
    "default: the pool's", 0 }, \
  { "domain", VOLUME_KEY_DOMAIN, "NAME", 0, \
    "Share only with volumes of the same domain; default: with those that " \
    "have none", 0 }
/* clang-format on */

enum {
  VOLUME_KEY_BLOCK_SIZE = 0x3000,
  VOLUME_KEY_COMPRESS,
  VOLUME_KEY_DEDUP,
  VOLUME_KEY_DOMAIN,
};

/* ARGP_ERR_UNKNOWN: not one of these options. */
extern error_t volume_options_parse (struct volume_options *v,
                                     const struct options *opts, int key,
                                     char *arg, struct argp_state *state);

/* Add the given options to the arguments of the engine's "create". */
extern void volume_options_add (const struct volume_options *v,
                                const struct options *opts, json_t *args);

#endif /* NBDEDUP_VOLUME_OPTIONS_H */
