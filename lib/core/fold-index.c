/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "core/fold-index-int.h"

static int
compare_ops (const void *a, const void *b)
{
  return index_entry_compare (a, b);
}

/* Sort, and leave out what cancels.  Returns how many are left, each of another
 * (prefix, addr).
 */
static size_t
reduce (struct index_entry *ops, size_t nr, uint64_t *nr_entries)
{
  size_t i, j, n = 0;
  int sum;

  qsort (ops, nr, sizeof *ops, compare_ops);
  for (i = 0; i < nr; i = j) {
    sum = 0;
    for (j = i; j < nr && index_entry_compare (&ops[i], &ops[j]) == 0; ++j)
      sum += ops[j].removed ? -1 : 1;
    *nr_entries += (uint64_t) (int64_t) sum;
    if (sum == 0)
      continue;
    ops[n] = ops[i];
    ops[n++].removed = sum < 0;
  }
  return n;
}

/* What reduce leaves: ascending, each (prefix, addr) once. */
static void
assert_reduced (const struct index_entry *ops, size_t nr)
{
  size_t i;

  for (i = 1; i < nr; ++i)
    assert (index_entry_compare (&ops[i - 1], &ops[i]) < 0);
}

/*----------------------------------------------------------------------
 * Rows
 */

static uint64_t
key (const struct index_entry *e)
{
  return INDEX_KEY (0, e->prefix);
}

/* Store the entries, of which the run has none yet between the first and the
 * last, in rows of up to 'max' entries; those of one key stay together.
 */
static int
put_rows (struct meta_conn *c, unsigned run, const struct index_entry *e,
          size_t nr, size_t max)
{
  struct blob row CLEANUP_BLOB = { NULL };
  size_t i, n;

  assert (max > 0 || nr == 0);
  for (; nr > 0; e += n, nr -= n) {
    n = nr < max ? nr : max;
    while (n > 1 && n < nr && key (&e[n - 1]) == key (&e[n]))
      n--;
    while (n < nr && key (&e[n - 1]) == key (&e[n]))
      n++;
    assert (n > 0 && n <= nr);
    if (blob_reserve (&row, n * INDEX_ENTRY_LEN) == -1)
      return -1;
    for (i = 0; i < n; ++i)
      index_entry_pack (&e[i], row.p + i * INDEX_ENTRY_LEN);
    if (meta_index_put (c, run, e->prefix, row.p, n * INDEX_ENTRY_LEN) == -1)
      return -1;
  }
  return 0;
}

/* Merge 'nr' entries into those of 'row', giving 'out'. */
static size_t
merge_row (const struct blob *row, const struct index_entry *ops, size_t nr,
           struct index_entry *out)
{
  const size_t end = row->len - row->len % INDEX_ENTRY_LEN;
  struct index_entry e = { .prefix = 0 };
  size_t off = 0, i = 0, n = 0;
  int order;

  while (off < end || i < nr) {
    if (off < end)
      index_entry_unpack (row->p + off, &e);
    order = off == end ? 1 : i == nr ? -1 : index_entry_compare (&e, &ops[i]);
    if (order == 0 && e.removed != ops[i].removed) {
      off += INDEX_ENTRY_LEN;
      i++;
      continue;
    }
    out[n++] = order <= 0 ? e : ops[i];
    off += order <= 0 ? INDEX_ENTRY_LEN : 0;
    i += order >= 0;
  }
  return n;
}

/* Merge the first of the entries, those that belong to one row of the run, into
 * it.  Returns their number.
 */
static size_t
merge_into_row (struct meta_conn *c, unsigned run,
                const struct index_entry *ops, size_t nr, int *result)
{
  struct blob row CLEANUP_BLOB = { NULL };
  struct blob next CLEANUP_BLOB = { NULL };
  CLEANUP_FREE struct index_entry *out = NULL;
  uint64_t low, end;
  size_t i, n;
  int found, has_next;

  *result = -1;
  found = meta_index_get (c, run, ops->prefix, &low, &row);
  if (found == -1)
    return 0;
  has_next = key (ops) == INDEX_KEY (0, UINT64_MAX)
    ? 0
    : meta_index_from (c, run, ops->prefix + INDEX_KEY_STEP, &end, &next);
  if (has_next == -1)
    return 0;
  for (i = 0; i < nr && (!has_next || ops[i].prefix < end); ++i)
    ;
  assert (i > 0);
  out = malloc ((row.len / INDEX_ENTRY_LEN + i) * sizeof *out);
  if (out == NULL) {
    nbdedup_fail (ENOMEM, "no memory to write the hash index");
    return 0;
  }
  n = merge_row (&row, ops, i, out);
  assert (n <= row.len / INDEX_ENTRY_LEN + i);
  if ((found && meta_index_delete (c, run, low) == -1) ||
      put_rows (c, run, out, n,
                n > INDEX_ROW_MAX / INDEX_ENTRY_LEN
                  ? INDEX_ROW_MAX / INDEX_ENTRY_LEN / 4 * 3
                  : n) == -1)
    return 0;
  *result = 0;
  return i;
}

/* Does the run end before this entry's row? */
static int
ends_before (struct meta_conn *c, unsigned run, const struct index_entry *e)
{
  struct blob row CLEANUP_BLOB = { NULL };
  struct index_entry last;
  uint64_t low;
  int r = meta_index_from (c, run, e->prefix, &low, &row);

  if (r != 0)
    return r == -1 ? -1 : 0;
  r = meta_index_get (c, run, e->prefix, &low, &row);
  if (r == -1)
    return -1;
  if (row.len < INDEX_ENTRY_LEN)
    return 1;
  index_entry_unpack (row.p + row.len - INDEX_ENTRY_LEN, &last);
  return key (&last) < key (e);
}

/* Add reduced entries to a run. */
static int
add_to_run (struct meta_conn *c, unsigned run, const struct index_entry *ops,
            size_t nr)
{
  size_t n;
  int r;

  if (nr == 0)
    return 0;
  r = ends_before (c, run, ops);
  if (r == -1)
    return -1;
  if (r == 1)
    return put_rows (c, run, ops, nr, INDEX_ROW_MAX / INDEX_ENTRY_LEN);
  for (; nr > 0; ops += n, nr -= n) {
    n = merge_into_row (c, run, ops, nr, &r);
    if (r == -1)
      return -1;
  }
  return 0;
}

/*----------------------------------------------------------------------
 * Runs
 */

/* The level of a run of so many entries. */
static unsigned
level_of (uint64_t entries)
{
  unsigned level = 0;

  entries /= INDEX_LEVEL_ENTRIES * INDEX_MERGE;
  for (; entries > 0 && level < INDEX_LEVELS - 1; entries /= INDEX_MERGE)
    level++;
  return level;
}

bool
index_merge_is_active (const struct index_merge *m)
{
  return m->inputs.bits[0] != 0 || m->inputs.bits[1] != 0;
}

static void
add_busy (const struct index_merge *m, struct index_runs *busy)
{
  if (!index_merge_is_active (m))
    return;
  busy->bits[0] |= m->inputs.bits[0];
  busy->bits[1] |= m->inputs.bits[1];
  index_runs_add (busy, m->output);
}

/* The runs of merges that are under way. */
static struct index_runs
busy_runs (const struct index_merges *merges)
{
  struct index_runs busy = { { 0 } };
  unsigned i;

  for (i = 0; i < INDEX_LEVELS; ++i)
    add_busy (&merges->levels[i], &busy);
  add_busy (&merges->all, &busy);
  return busy;
}

/* A number for a new run, of this level or of the next that has one.  If none
 * has, which takes more than a hundred runs that wait for merges, it is that of
 * an old run.
 */
static unsigned
choose_run (const struct index_runs *runs, const struct index_runs *busy,
            unsigned level)
{
  unsigned run;

  assert (level < INDEX_LEVELS);
  for (run = level * INDEX_LEVEL_RUNS; run < INDEX_RUNS - 1; ++run)
    if (!index_runs_has (runs, run) && !index_runs_has (busy, run))
      break;
  return run;
}

/* Take out of the row and of the sorted 'ops' what cancels.  '*pos' becomes the
 * first of the 'nr' ops behind the row, '*kept' counts those that remain.
 * Returns the row's entries that are left.
 */
static size_t
cancel_in_row (struct blob *row, struct index_entry *ops, size_t nr,
               size_t *pos, size_t *kept)
{
  const size_t end = row->len - row->len % INDEX_ENTRY_LEN;
  struct index_entry e;
  size_t off, left = 0;

  for (off = 0; off < end; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (row->p + off, &e);
    for (; *pos < nr && index_entry_compare (&ops[*pos], &e) < 0; ++*pos)
      ops[(*kept)++] = ops[*pos];
    if (*pos < nr && index_entry_compare (&ops[*pos], &e) == 0 &&
        ops[*pos].removed != e.removed) {
      ++*pos;
      continue;
    }
    memmove (row->p + left++ * INDEX_ENTRY_LEN, row->p + off, INDEX_ENTRY_LEN);
  }
  assert (*kept <= *pos && *pos <= nr);
  assert (left <= end / INDEX_ENTRY_LEN);
  return left;
}

/* Cancel sorted 'ops' against entries of the run, which gets smaller.  '*nr'
 * becomes the number of those that remain.
 */
static int
cancel_in_run (struct meta_conn *c, unsigned run, struct index_entry *ops,
               size_t *nr)
{
  struct blob row CLEANUP_BLOB = { NULL };
  struct index_entry first;
  size_t i = 0, kept = 0, before, left;
  uint64_t low;
  int found;

  while (i < *nr) {
    found = meta_index_get (c, run, ops[i].prefix, &low, &row);
    if (found == -1)
      return -1;
    if (found == 0) { /* it is before the run's first row */
      ops[kept++] = ops[i++];
      continue;
    }
    before = i;
    left = cancel_in_row (&row, ops, *nr, &i, &kept);
    if (left == row.len / INDEX_ENTRY_LEN) {
      if (i == before) /* it is behind the row's last entry */
        ops[kept++] = ops[i++];
      continue;
    }
    if (meta_index_delete (c, run, low) == -1)
      return -1;
    if (left == 0)
      continue;
    index_entry_unpack (row.p, &first);
    if (meta_index_put (c, run, first.prefix, row.p, left * INDEX_ENTRY_LEN) ==
        -1)
      return -1;
  }
  assert (i == *nr && kept <= i);
  *nr = kept;
  return 0;
}

/* The same against all runs.  A removal that remains has nothing to remove. */
static int
cancel (struct meta_conn *c, const struct index_runs *runs,
        struct index_entry *ops, size_t *nr, uint64_t *nr_entries)
{
  size_t i, kept = 0;
  unsigned run;

  for (run = 0; run < INDEX_RUNS; ++run)
    if (index_runs_has (runs, run) && cancel_in_run (c, run, ops, nr) == -1)
      return -1;
  for (i = 0; i < *nr; ++i)
    if (ops[i].removed)
      ++*nr_entries;
    else
      ops[kept++] = ops[i];
  *nr = kept;
  return 0;
}

int
fold_index (struct meta_conn *c, struct index_entry *ops, size_t nr,
            uint64_t *nr_entries, struct index_merges *merges, bool in_place)
{
  struct index_runs runs, busy = { { 0 } };
  unsigned run;

  if (nr > 0)
    nr = reduce (ops, nr, nr_entries);
  if (nr == 0)
    return 0;
  if (NBDEDUP_EXPENSIVE_ASSERTS)
    assert_reduced (ops, nr);
  if (meta_index_runs (c, &runs) == -1 ||
      (in_place && cancel (c, &runs, ops, &nr, nr_entries) == -1))
    return -1;
  if (nr == 0)
    return 0;
  if (merges)
    busy = busy_runs (merges);
  run = choose_run (&runs, &busy, level_of (nr));
  assert (run < INDEX_RUNS);
  if (add_to_run (c, run, ops, nr) == -1)
    return -1;
  if (merges) {
    merges->entries[run] += nr;
    merges->due = true;
  }
  return 0;
}

/*----------------------------------------------------------------------
 * Merges
 */

/* The next entries of a merge, in memory. */
struct step {
  struct index_entry *e; /* owned */
  size_t nr;
  struct index_entry *more; /* owned; those of which one is not enough */
  size_t nr_more;
  size_t nr_read;
  uint64_t end; /* all before this prefix; UINT64_MAX: all */
};

static int
read_step (struct index_cursor *cu, size_t max, struct step *s)
{
  struct index_entry e = { .prefix = 0 };
  uint64_t at;
  int sum, r;

  s->nr = s->nr_more = s->nr_read = 0;
  while (meta_index_cursor_at (cu, &at) == 1) {
    if (s->nr_read >= max && INDEX_KEY (0, at) != key (&e)) {
      s->end = at & ~(INDEX_KEY_STEP - 1);
      return 0;
    }
    r = meta_index_cursor_next (cu, &e, &sum);
    if (r == -1)
      return -1;
    s->nr_read++;
    if (sum != 0 && array_push (&s->e, &s->nr, e) == -1)
      return -1;
    /* The same content came to the same place again, and a run that has no part
     * in the merge has what was between.
     */
    for (; sum < -1 || sum > 1; sum += sum < 0 ? 1 : -1)
      if (array_push (&s->more, &s->nr_more, e) == -1)
        return -1;
  }
  s->end = UINT64_MAX;
  return 0;
}

/* Delete what a step has read from an input.  True: the run has ended. */
static int
cut_input (struct meta_conn *c, struct index_cursor *cu, unsigned run,
           uint64_t end, bool *ended)
{
  const uint8_t *rest = NULL;
  uint64_t low = 0;
  size_t len = meta_index_cursor_rest (cu, run, &low, &rest);
  struct index_entry e;

  *ended = len == 0;
  if (*ended)
    return meta_index_delete_run (c, run);
  if (meta_index_delete_before (c, run, end) == -1)
    return -1;
  if (low >= end)
    return 0;
  index_entry_unpack (rest, &e);
  return meta_index_put (c, run, e.prefix, rest, len);
}

/* A run has no entry twice: give each one of these a run that has it not. */
static int
put_more (struct meta_conn *c, struct index_merges *merges, struct step *s)
{
  struct index_runs runs, busy = busy_runs (merges);
  size_t i, n, left = s->nr_more;
  struct index_entry e;
  unsigned run;

  for (; left > 0; left = n) {
    if (meta_index_runs (c, &runs) == -1)
      return -1;
    run = choose_run (&runs, &busy, 0);
    for (i = n = 0; i < left; ++i) {
      e = s->more[i];
      if (i > 0 && index_entry_compare (&e, &s->more[i - 1]) == 0)
        s->more[n++] = e;
      else if (add_to_run (c, run, &e, 1) == -1)
        return -1;
    }
    merges->due = true;
  }
  return 0;
}

/* Move entries from the inputs to the output.  The rows are deleted first: what
 * they free is what the others need.
 */
static int
merge_step (struct meta_conn *c, struct index_merges *merges,
            struct index_merge *m, struct step *s)
{
  struct index_cursor *cu = meta_index_cursor (c, &m->inputs, 0);
  unsigned run;
  bool ended;
  int r;

  /* A merge never reads what it writes. */
  assert (!index_runs_has (&m->inputs, m->output));
  if (cu == NULL)
    return -1;
  r = read_step (cu, INDEX_STEP_ENTRIES, s);
  for (run = 0; r == 0 && run < INDEX_RUNS; ++run) {
    if (!index_runs_has (&m->inputs, run))
      continue;
    r = cut_input (c, cu, run, s->end, &ended);
    if (r == 0 && ended) {
      index_runs_remove (&m->inputs, run);
      merges->entries[run] = 0;
    }
  }
  meta_index_cursor_free (cu);
  if (r == 0)
    r = add_to_run (c, m->output, s->e, s->nr);
  if (r == 0)
    r = put_more (c, merges, s);
  merges->entries[m->output] += s->nr;
  return r;
}

/* While there is no room for steps, credit for so many is enough. */
#define CREDIT_STEPS 16

static uint64_t
at_most (uint64_t n, uint64_t max)
{
  return n < max ? n : max;
}

/* What the next step moves. */
static uint64_t
step_entries (const struct index_merge *m)
{
  return m->left == 0 ? INDEX_STEP_ENTRIES
                      : at_most (m->left, INDEX_STEP_ENTRIES);
}

/* Decreases '*max'. */
static int
merge_some (struct meta_conn *c, struct index_merges *merges,
            struct index_merge *m, uint64_t nr, uint64_t *max)
{
  const bool was_active = index_merge_is_active (m);
  struct step s = { NULL };
  int r = 0;

  m->credit += nr;
  while (r == 0 && index_merge_is_active (m) && m->credit >= step_entries (m) &&
         *max >= INDEX_STEP_ENTRIES) {
    *max -= INDEX_STEP_ENTRIES;
    r = merge_step (c, merges, m, &s);
    m->credit -= at_most (s.nr_read, m->credit);
    m->left -= at_most (s.nr_read, m->left);
  }
  m->credit = index_merge_is_active (m)
    ? at_most (m->credit, CREDIT_STEPS * INDEX_STEP_ENTRIES)
    : 0;
  /* It may have kept one of all runs from beginning. */
  merges->due |= was_active && !index_merge_is_active (m);
  free (s.e);
  free (s.more);
  return r;
}

uint64_t
index_entries_of (const struct index_merges *merges, unsigned run)
{
  assert (run < INDEX_RUNS);
  return merges->entries[run] > 0 ? merges->entries[run] : 1;
}

struct index_runs
index_idle_runs (const struct index_merges *merges,
                 const struct index_runs *runs, unsigned first, unsigned last)
{
  const struct index_runs busy = busy_runs (merges);
  struct index_runs idle = { { 0 } };
  unsigned run, level;

  assert (first <= last && last < INDEX_LEVELS);
  for (run = 0; run < INDEX_RUNS; ++run) {
    if (!index_runs_has (runs, run) || index_runs_has (&busy, run))
      continue;
    level = level_of (index_entries_of (merges, run));
    if (level >= first && level <= last)
      index_runs_add (&idle, run);
  }
  return idle;
}

/* Begin a merge of these runs, which have no part in one. */
static void
begin_merge (struct index_merges *merges, struct index_merge *m,
             const struct index_runs *runs, const struct index_runs *inputs,
             uint64_t nr_entries)
{
  const struct index_runs busy = busy_runs (merges);
  uint64_t sum = 0;
  unsigned run;

  assert (!index_merge_is_active (m));
  for (run = 0; run < INDEX_RUNS; ++run)
    if (index_runs_has (inputs, run))
      sum += index_entries_of (merges, run);
  if (sum > nr_entries && m == &merges->all)
    sum = nr_entries;
  m->left = sum;
  m->output = choose_run (runs, &busy, level_of (sum));
  m->inputs = *inputs;
  index_runs_remove (&m->inputs, m->output);
  assert (index_merge_is_active (m) && m->output < INDEX_RUNS);
}

/* Has the level enough runs for a merge?  The one that a merge of lower levels
 * is about to add counts, too.
 */
static bool
is_due (const struct index_merges *merges, const struct index_runs *runs,
        unsigned level)
{
  unsigned i, nr;
  struct index_runs idle;

  for (i = level; !index_merge_is_active (&merges->levels[i]); --i) {
    idle = index_idle_runs (merges, runs, i, i);
    nr = index_runs_count (&idle);
    if (nr >= INDEX_MERGE)
      return true;
    if (nr < INDEX_MERGE - 1 || i == 0)
      return false;
  }
  return false;
}

/* A merge takes runs of so many lower levels along: what they have would else
 * be written again for each level up to this one.  Runs of still lower levels
 * are as good as nothing in such a merge, but would have to wait for its end,
 * and until then each of them is one more to search.
 */
#define LEVELS_ALONG 2u

/* Begin the merges that are due, those of high levels first. */
static void
begin_merges (struct index_merges *merges, const struct index_runs *runs,
              uint64_t nr_entries)
{
  struct index_runs idle;
  unsigned i;

  for (i = INDEX_LEVELS; i-- > 0;)
    if (is_due (merges, runs, i)) {
      idle = index_idle_runs (merges, runs,
                              i > LEVELS_ALONG ? i - LEVELS_ALONG : 0, i);
      begin_merge (merges, &merges->levels[i], runs, &idle, nr_entries);
    }
}

/* Do most entries only remove others? */
static bool
is_mostly_removed (const struct index_merges *merges,
                   const struct index_runs *runs, uint64_t nr_entries)
{
  uint64_t sum = 0;
  unsigned run;

  for (run = 0; run < INDEX_RUNS; ++run)
    if (index_runs_has (runs, run))
      sum += index_entries_of (merges, run);
  return sum / 3 > nr_entries + INDEX_LEVEL_ENTRIES * INDEX_MERGE;
}

bool
fold_index_is_merging (const struct index_merges *merges)
{
  struct index_runs busy = busy_runs (merges);

  return merges->due || merges->shrink || busy.bits[0] != 0 ||
    busy.bits[1] != 0;
}

uint64_t
fold_index_left (const struct index_merges *merges)
{
  uint64_t left = index_merge_is_active (&merges->all) ? merges->all.left : 0;
  unsigned i;

  for (i = 0; i < INDEX_LEVELS; ++i)
    if (index_merge_is_active (&merges->levels[i]))
      left += merges->levels[i].left;
  return left;
}

bool
fold_index_is_shrinking (const struct index_merges *merges)
{
  return merges->shrink || index_merge_is_active (&merges->all);
}

/* Merge all runs if most of them cancels, or txg_shrink_index asked for it:
 * when no other merge is under way, and none begins before.
 */
static void
begin_merge_of_all (struct index_merges *merges, const struct index_runs *runs,
                    uint64_t nr_entries)
{
  const bool shrink = merges->shrink;

  merges->due = merges->shrink = false;
  if (fold_index_is_merging (merges))
    merges->shrink = shrink;
  else if (index_runs_count (runs) >= 2 &&
           (shrink || is_mostly_removed (merges, runs, nr_entries)))
    begin_merge (merges, &merges->all, runs, runs, nr_entries);
}

int
fold_index_merge (struct meta_conn *c, struct index_merges *merges, uint64_t nr,
                  uint64_t max, uint64_t nr_entries)
{
  struct index_runs runs;
  unsigned i;

  if (max < INDEX_STEP_ENTRIES)
    return 0;
  if (meta_index_runs (c, &runs) == -1)
    return -1;
  if (!merges->surveyed && index_merges_resume (c, merges, &runs) == -1)
    return -1;
  begin_merge_of_all (merges, &runs, nr_entries);
  if (!merges->shrink)
    begin_merges (merges, &runs, nr_entries);
  for (i = 0; i < INDEX_LEVELS; ++i)
    if (merge_some (c, merges, &merges->levels[i], nr, &max) == -1)
      return -1;
  return merge_some (c, merges, &merges->all, nr, &max);
}
