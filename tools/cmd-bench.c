/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools.h"

#define LEN_MIN (UINT32_C (1) << 10)
#define LEN_MAX (UINT32_C (1) << 20)
#define NR_LENGTHS 11

#define KEY_COMPRESSIBLE 0x2000

static const struct argp_option options[] = {
  { "compressible", KEY_COMPRESSIBLE, "N", 0,
    "Instead, time data of which N percent of each 4 KiB are zeroes, and the "
    "others random",
    0 },
  { 0 }
};

struct bench_options {
  struct options common; /* first: parsers get a pointer to it */
  bool has_compressible;
  uint64_t compressible;
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct bench_options *opts = state->input;

  if (key != KEY_COMPRESSIBLE)
    return ARGP_ERR_UNKNOWN;
  opts->has_compressible = true;
  opts->compressible = options_number (state, "compressible", arg);
  if (opts->compressible > 100)
    usage_error (&opts->common, "compressible '%s': must be from 0 to 100",
                 arg);
  return 0;
}

/* What the blocks have. */
struct data {
  const char *name;
  unsigned random_percent;
};

static bool
is_skipped (const char *name)
{
  return strcmp (name, "auto") == 0 || strcmp (name, "none") == 0;
}

/* Time one name on one kind of data, of all lengths; append the results. */
static int
bench_one (json_t *results, const char *name, const char *kind,
           const struct data *data)
{
  const bool codec = strcmp (kind, "codec") == 0;
  uint32_t len;

  for (len = LEN_MIN; len <= LEN_MAX; len *= 2) {
    double ns = 0, ns_decompress = 0;
    json_t *row;

    if (nbdedup_bench (name, len, data->random_percent, &ns, &ns_decompress) ==
        -1)
      return fail ("bench: %s", nbdedup_error ());
    row = json_pack ("{s:s, s:s, s:I, s:s, s:f}", "name", name, "kind", kind,
                     "block_size", (json_int_t) len, "data", data->name, "ns",
                     ns);
    if (codec)
      json_object_set_new (row, "ns_decompress", json_real (ns_decompress));
    json_array_append_new (results, row);
  }
  return EXIT_SUCCESS;
}

/* 'data' ends with one without a name. */
static int
bench_all (json_t *results, const char *const *names, const char *kind,
           const struct data *data)
{
  const struct data *d;

  for (; *names != NULL; ++names)
    for (d = data; d->name != NULL && !is_skipped (*names); ++d)
      if (bench_one (results, *names, kind, d) != EXIT_SUCCESS)
        return EXIT_FAILURE;
  return EXIT_SUCCESS;
}

/* One row for each name, data and direction; a column for each length. */
static void
print_table (const json_t *results)
{
  struct table *table = table_new ("lllrrrrrrrrrrr");
  static const char *const keys[] = { "ns", "ns_decompress" };
  json_t *row;
  size_t i, k, first = 0;
  uint32_t len;

  printf ("ns per block\n\n");
  table_add (table, "NAME");
  table_add (table, "DATA");
  table_add (table, "WORK");
  for (len = LEN_MIN; len <= LEN_MAX; len *= 2)
    table_add (table, "%" PRIu32 "K", len >> 10);

  /* Rows of one name and data are adjacent, by length. */
  while (first < json_array_size (results)) {
    const size_t end = first + NR_LENGTHS;

    for (k = 0; k < 2; ++k) {
      row = json_array_get (results, first);
      if (json_object_get (row, keys[k]) == NULL)
        continue;
      table_add (table, "%s", json_text (row, "name"));
      table_add (table, "%s", json_text (row, "data"));
      table_add (table, "%s",
                 strcmp (json_text (row, "kind"), "hash") == 0 ? "hash"
                   : k == 0                                    ? "compress"
                                                               : "expand");
      for (i = first; i < end; ++i)
        table_add (table, "%.0f",
                   json_number_value (
                     json_object_get (json_array_get (results, i), keys[k])));
    }
    first = end;
  }
  table_print (table);
}

int
cmd_bench (int argc, char **argv, const char *pool)
{
  struct bench_options opts = { .common = { .pool = pool } };
  struct data data[] = { { "zero", 0 }, { "random", 100 }, { NULL, 0 } };
  json_t *results = json_array ();

  options_parse (&opts.common, argc, argv, options, parse, "",
                 "Time the hashes and codecs on this machine: nanoseconds for "
                 "a block of 1 KiB to 1 MiB of zeroes and of random data. "
                 "Needs no pool.",
                 OPTIONS_JSON);
  if (opts.has_compressible) {
    data[0] = (struct data) { "mixed", 100 - (unsigned) opts.compressible };
    data[1].name = NULL;
  }
  if (bench_all (results, nbdedup_hash_names (), "hash", data) !=
        EXIT_SUCCESS ||
      bench_all (results, nbdedup_codec_names (), "codec", data) !=
        EXIT_SUCCESS)
    return EXIT_FAILURE;
  if (opts.common.json)
    print_json (results);
  else
    print_table (results);
  json_decref (results);
  return EXIT_SUCCESS;
}
