/* SPDX-License-Identifier: BSD-3-Clause */

/* See lineage-history.h. */

#include <config.h>

#include "models/lineage-history.h"

struct history history;

static const char *variables[2]; /* not owned */
static bool passed;

static void
print_last_ops (void)
{
  if (passed)
    return;
  fprintf (stderr, "the last operations of history %u, in %s:\n", history.nr,
           history.directory);
  op_log_print ();
  fprintf (stderr,
           "repeat with SEED=%" PRIu64 " %s=%u (%s=1 compares after "
           "each)\n",
           history.seed, variables[0], history.nr, variables[1]);
}

void
history_start (const char *first, const char *verify)
{
  variables[0] = first;
  variables[1] = verify;
  history.seed = seed_from_environment ();
  history.nr = (unsigned) number_from_environment (first, 0);
  history.verify_each = number_from_environment (verify, 0) != 0;
  printf ("SEED=%" PRIu64 "\n", history.seed);
  fflush (stdout);
  atexit (print_last_ops);
}

void
history_passed (void)
{
  passed = true;
}

struct rng
history_rng (void)
{
  return rng_make (history.seed, history.nr);
}

void
history_caches (struct nbdedup_settings *settings, struct rng *rng)
{
  if (rng_percent (rng, 50)) {
    settings->ddt_cache_bytes = NBDEDUP_DDT_CACHE_MIN;
    settings->dirty_max_bytes = NBDEDUP_DIRTY_MAX_MIN;
    settings->record_cache_bytes = 1 << 20;
  }
}

bool
history_try (struct lineage *l, const struct op *op,
             int (*apply) (const struct op *op))
{
  enum expect expect = lineage_expect (l, op);
  char *text = op_log_next ();
  bool ok;

  op_describe (op, text, OP_LOG_TEXT - 20);
  ok = apply (op) == 0;
  if (expect != EXPECT_EITHER && ok != (expect == EXPECT_OK))
    die ("%s: %s", text, ok ? "succeeded, but must fail" : nbdedup_error ());
  if (!ok)
    strcat (text, "  (refused)");
  return ok;
}
