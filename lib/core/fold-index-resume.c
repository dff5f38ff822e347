/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>

#include "base/cleanup.h"
#include "core/fold-index-int.h"

/* Where a run begins and ends. */
struct extent {
  bool any;
  uint64_t first, last; /* prefixes */
};

/* Rows from which a run's entries are estimated. */
#define SURVEY_ROWS 4u

/* More than any run has. */
#define MOST_ENTRIES (UINT64_C (1) << 48)

/* A run whose first 'nr' entries end before the prefix 'next' has about so
 * many: prefixes are those of digests, so they are spread evenly.
 */
static uint64_t
extrapolate (uint64_t nr, const struct extent *e, uint64_t next)
{
  double n;

  assert (e->first < next && next <= e->last);
  n = (double) nr * (double) (e->last - e->first) / (double) (next - e->first);
  return n < (double) MOST_ENTRIES ? (uint64_t) n : MOST_ENTRIES;
}

/* The prefix of the run's last entry. */
static int
find_last (struct meta_conn *c, unsigned run, uint64_t *last)
{
  struct blob row CLEANUP_BLOB = { NULL };
  struct index_entry e;
  int r = meta_index_get (c, run, UINT64_MAX, last, &row);

  if (r == 1 && row.len >= INDEX_ENTRY_LEN) {
    index_entry_unpack (row.p + row.len - INDEX_ENTRY_LEN, &e);
    *last = e.prefix;
  }
  return r == -1 ? -1 : 0;
}

static int
survey_run (struct meta_conn *c, unsigned run, struct extent *extent,
            uint64_t *entries)
{
  struct blob row CLEANUP_BLOB = { NULL };
  uint64_t at = 0, low, nr = 0;
  unsigned i;
  int r;

  *entries = 1; /* a run without any does not exist */
  for (i = 0;; ++i) {
    r = meta_index_from (c, run, at, &low, &row);
    if (r == -1 ||
        (i == 0 && r == 1 && find_last (c, run, &extent->last) == -1))
      return -1;
    if (r == 0)
      return 0;
    if (i == 0) {
      extent->any = true;
      extent->first = low;
    }
    if (i == SURVEY_ROWS) {
      if (low <= extent->last)
        *entries = extrapolate (nr, extent, low);
      return 0;
    }
    nr += row.len / INDEX_ENTRY_LEN;
    *entries = nr > 0 ? nr : 1;
    if (low > UINT64_MAX - INDEX_KEY_STEP)
      return 0;
    at = low + INDEX_KEY_STEP;
  }
}

/* Does another idle run begin behind the end of this one? */
static bool
has_inputs (const struct extent *extents, const struct index_runs *idle,
            unsigned run)
{
  unsigned i;

  for (i = 0; i < INDEX_RUNS; ++i)
    if (index_runs_has (idle, i) && extents[i].first > extents[run].last)
      return true;
  return false;
}

/* The output of a merge ends before its inputs begin: they had what is before.
 * Of several merges find the one that got farthest first: the inputs of others
 * begin before its output ends.  INDEX_RUNS: there is none.
 */
static unsigned
find_output (const struct extent *extents, const struct index_runs *idle)
{
  unsigned run, output = INDEX_RUNS;

  for (run = 0; run < INDEX_RUNS; ++run)
    if (index_runs_has (idle, run) && has_inputs (extents, idle, run) &&
        (output == INDEX_RUNS || extents[run].last > extents[output].last))
      output = run;
  return output;
}

/* A run may look like an input and be none, as one of very few entries does.
 * That costs nothing: any runs may be merged.
 */
static void
resume_merge (struct index_merges *merges, struct index_merge *m,
              const struct extent *extents, const struct index_runs *idle,
              unsigned output)
{
  unsigned run;

  assert (!index_merge_is_active (m));
  m->output = output;
  m->left = m->credit = 0;
  for (run = 0; run < INDEX_RUNS; ++run)
    if (index_runs_has (idle, run) &&
        extents[run].first > extents[output].last) {
      index_runs_add (&m->inputs, run);
      m->left += index_entries_of (merges, run);
    }
  assert (index_merge_is_active (m) && !index_runs_has (&m->inputs, output));
}

/* Which level a merge was of does not matter: those of high levels are the
 * least likely to be needed for another.
 */
static void
resume_merges (struct index_merges *merges, const struct extent *extents,
               const struct index_runs *runs)
{
  struct index_runs idle;
  unsigned i, output;

  for (i = INDEX_LEVELS; i-- > 0;) {
    if (index_merge_is_active (&merges->levels[i]))
      continue;
    idle = index_idle_runs (merges, runs, 0, INDEX_LEVELS - 1);
    output = find_output (extents, &idle);
    if (output == INDEX_RUNS)
      return;
    resume_merge (merges, &merges->levels[i], extents, &idle, output);
  }
}

int
index_merges_resume (struct meta_conn *c, struct index_merges *merges,
                     const struct index_runs *runs)
{
  struct extent extents[INDEX_RUNS] = { { .any = false } };
  struct index_runs found = { { 0 } };
  unsigned run;

  for (run = 0; run < INDEX_RUNS; ++run) {
    if (!index_runs_has (runs, run))
      continue;
    if (survey_run (c, run, &extents[run], &merges->entries[run]) == -1)
      return -1;
    if (extents[run].any)
      index_runs_add (&found, run);
  }
  resume_merges (merges, extents, &found);
  merges->surveyed = true;
  return 0;
}
