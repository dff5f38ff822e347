/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "tools.h"

static int
print_recover (const char *pool, const json_t *result)
{
  char bytes[HUMAN_MAX], stored[HUMAN_MAX];

  if (json_is_true (json_object_get (result, "recovered"))) {
    printf ("%s: can be used: %" PRIu64 " volumes\n", pool,
            json_size (result, "volumes"));
    return EXIT_SUCCESS;
  }
  printf ("records: its summaries name %" PRIu64 " records of %s, which take "
          "%s\n",
          json_size (result, "records"),
          human_bytes (json_size (result, "record_bytes"), bytes),
          human_bytes (json_size (result, "stored_bytes"), stored));
  return EXIT_FAILURE;
}

enum { KEY_WITHOUT_JOURNAL = 256 };

static bool without_journal;

static const struct argp_option options[] = {
  { "without-journal", KEY_WITHOUT_JOURNAL, NULL, 0,
    "Last resort: start a new journal. Data flushed after the last fold is "
    "lost",
    0 },
  { 0 }
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  (void) arg;
  (void) state;
  if (key != KEY_WITHOUT_JOURNAL)
    return ARGP_ERR_UNKNOWN;
  without_journal = true;
  return 0;
}

int
cmd_recover (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool };
  json_t *result;
  int r;

  options_parse (&opts, argc, argv, options, parse, "",
                 "Bring back a pool whose pool.db is lost or cannot be used, "
                 "from its second copy and the journal. Exits 1 if that is "
                 "not possible, and prints what is missing and what is left.",
                 OPTIONS_POOL | OPTIONS_JSON);
  need_pool (&opts);
  result = nbdedup_pool_recover (opts.pool, without_journal);
  if (result == NULL)
    return fail ("recover: %s", nbdedup_error ());
  if (opts.json) {
    print_json (result);
    r = json_is_true (json_object_get (result, "recovered")) ? EXIT_SUCCESS
                                                             : EXIT_FAILURE;
  }
  else
    r = print_recover (opts.pool, result);
  if (r == EXIT_FAILURE)
    fail ("recover: %s", json_text (result, "missing"));
  json_decref (result);
  return r;
}
