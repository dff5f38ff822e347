/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "drift-report.h"
#include "estimate-print.h"
#include "tools.h"

static double
number_of (const json_t *row, const char *key)
{
  return json_number_value (json_object_get (row, key));
}

static const char *
block_size (const json_t *row, char buf[HUMAN_MAX])
{
  return block_size_text (json_size (row, "block_size"), buf);
}

static void
add_ratio (struct table *table, const json_t *row, const char *key,
           const char *error_key)
{
  const double error = number_of (row, error_key);

  if (!json_is_number (json_object_get (row, key)))
    table_add (table, "-");
  else if (error > 0)
    /* Round up, so that it does not look smaller than it is. */
    table_add (table, "%.2f +- %.3f", number_of (row, key), error + 0.000499);
  else
    table_add (table, "%.2f", number_of (row, key));
}

static void
print_table (const json_t *result)
{
  struct table *table = table_new ("rrrrrrrrrl");
  static const char *const head[] = {
    "BLOCK",    "BLOCKS", "ZERO",     "DISTINCT",  "DEDUP",
    "COMPRESS", "STORED", "METADATA", "REDUCTION", "",
  };
  char buf[HUMAN_MAX];
  json_t *row;
  size_t i;

  for (i = 0; i < sizeof head / sizeof head[0]; ++i)
    table_add (table, "%s", head[i]);
  json_array_foreach (result, i, row) {
    table_add (table, "%s", block_size (row, buf));
    table_add (table, "%" PRIu64, json_size (row, "blocks"));
    table_add (table, "%" PRIu64, json_size (row, "zero"));
    table_add (table, "%" PRIu64, json_size (row, "distinct"));
    add_ratio (table, row, "dedup_ratio", "dedup_error");
    add_ratio (table, row, "compress_ratio", "compress_error");
    table_add (table, "%s", human_bytes (json_size (row, "stored_bytes"), buf));
    table_add (table, "%s",
               human_bytes (json_size (row, "metadata_bytes"), buf));
    add_ratio (table, row, "reduction", "reduction_error");
    table_add (table, "%s",
               json_is_true (json_object_get (row, "best")) ? "best" : "");
  }
  table_print (table);
}

/* Print the results that the sample cannot tell from the best one. */
static void
print_rivals (const json_t *result, const json_t *best)
{
  char buf[HUMAN_MAX];
  unsigned nr = 0;
  json_t *row;
  size_t i;

  json_array_foreach (result, i, row) {
    if (row == best ||
        number_of (best, "reduction") - number_of (row, "reduction") >
          number_of (best, "reduction_error") +
            number_of (row, "reduction_error"))
      continue;
    printf ("%s%s", nr++ == 0 ? "As good, within the error: " : ", ",
            block_size (row, buf));
  }
  if (nr > 0)
    printf (". Larger blocks need less metadata, hence memory.\n");
}

/* What to plan for besides the records. */
static void
print_needs (const json_t *result)
{
  static const struct {
    const char *head, *key;
  } columns[] = {
    { "POOL.DB", "database_bytes" },
    { "JOURNAL", "journal_bytes" },
    { "SUMMARIES", "summary_bytes" },
    { "DDT-CACHE", "ddt_cache_bytes" },
  };
  struct table *table = table_new ("rrrrr");
  char buf[HUMAN_MAX];
  size_t i, j;
  json_t *row;

  table_add (table, "BLOCK");
  for (j = 0; j < sizeof columns / sizeof columns[0]; ++j)
    table_add (table, "%s", columns[j].head);
  json_array_foreach (result, i, row) {
    table_add (table, "%s", block_size (row, buf));
    for (j = 0; j < sizeof columns / sizeof columns[0]; ++j)
      table_add (table, "%s",
                 human_bytes (json_size (row, columns[j].key), buf));
  }
  printf ("\nOn disk, pool.db with its copy; in memory, the ddt-cache that "
          "serves best:\n");
  table_print (table);
}

static void
print_best (const json_t *result)
{
  const json_t *best = NULL;
  char buf[HUMAN_MAX];
  bool sampled = false;
  json_t *row;
  size_t i;

  json_array_foreach (result, i, row) {
    if (json_is_true (json_object_get (row, "best")))
      best = row;
    sampled |= number_of (row, "dedup_error") > 0;
  }
  putchar ('\n');
  if (best == NULL) {
    printf ("Nothing but zeroes: they take no space.\n");
    return;
  }
  if (number_of (best, "reduction") > 1)
    printf ("Blocks of %s pay best: the data would take 1/%.2f of its "
            "size.\n",
            block_size (best, buf), number_of (best, "reduction"));
  else
    printf ("Nothing is saved: with blocks of %s the data would take %.2f "
            "times its size.\n",
            block_size (best, buf), 1 / number_of (best, "reduction"));
  print_rivals (result, best);
  if (sampled)
    printf ("The contents did not fit into memory: DEDUP is an estimate from a "
            "sample where it has an error.\n");
}

/* The classes at the best block size. */
static void
print_classes (const json_t *result)
{
  const json_t *best = json_array_get (result, 0), *row;
  json_t *documents;
  char buf[HUMAN_MAX];
  size_t i;

  json_array_foreach (result, i, row)
    if (json_is_true (json_object_get (row, "best")))
      best = row;
  if (json_object_get (best, "drift") == NULL &&
      json_object_get (best, "samples") == NULL)
    return;
  printf ("\nAs clones, in blocks of %s:\n\n", block_size (best, buf));
  if (json_object_get (best, "drift") != NULL) {
    documents = json_pack ("[O]", json_object_get (best, "drift"));
    drift_print (check_memory (documents));
  }
  else {
    documents = drift_histories (json_object_get (best, "samples"));
    drift_print_history (documents);
  }
  json_decref (documents);
}

void
estimate_print (const json_t *result)
{
  print_table (result);
  print_best (result);
  print_needs (result);
  print_classes (result);
}
