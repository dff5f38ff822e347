/* SPDX-License-Identifier: BSD-3-Clause */

/* The runs of the hash index, against a model: whatever is added, removed and
 * merged, and whenever a merge ends early, the index has the same entries.  See
 * engine-rig.h.
 */

#include <config.h>

#include <sqlite3.h>

#include "core/ddt.h"
#include "core/fold-index.h"
#include "core/txg.h"
#include "meta/meta-index.h"
#include "rigs/engine-rig.h"
#include "rigs/plants.h"
#include "vfs/cksum-vfs.h"

#define NR_ENTRIES 60000u

static bool present[NR_ENTRIES];
static uint64_t nr_present;
static struct index_merges merges;
static bool in_place;

/* Many have their prefix in common, so that a step of a merge would end among
 * them, and some have the lowest or the highest one.
 */
static struct index_entry
entry (unsigned i)
{
  struct index_entry e = { .addr = i + 1 };
  struct rng rng = rng_make (i, 7);

  e.prefix = rng_next (&rng);
  if (i % 10 < 3)
    e.prefix = UINT64_C (0x4034567890000000);
  else if (i % 100 == 4)
    e.prefix = UINT64_MAX - (i % 3 << 17);
  else if (i % 100 == 5)
    e.prefix = i % 3 << 17;
  e.prefix &= INDEX_PREFIX_MASK;
  return e;
}

static unsigned
number_of (const struct index_entry *e)
{
  return (unsigned) e->addr - 1;
}

/*----------------------------------------------------------------------
 * The tables against the model
 */

struct last_row {
  bool any;
  unsigned run;
  uint64_t key; /* of the last entry */
  size_t nr_entries, nr_rows;
};

static int
look_at_row (void *opaque, unsigned run, uint64_t low, const uint8_t *buf,
             size_t len)
{
  struct last_row *last = opaque;
  struct index_entry e, before = { .prefix = 0 };
  size_t off;

  expect (len > 0 && len % INDEX_ENTRY_LEN == 0);
  if (last->any && last->run == run)
    expect (INDEX_KEY (run, low) > last->key);
  for (off = 0; off < len; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (buf + off, &e);
    expect (e.prefix >= low);
    expect (off == 0 || index_entry_compare (&before, &e) < 0);
    before = e;
  }
  last->any = true;
  last->run = run;
  last->key = INDEX_KEY (run, e.prefix);
  last->nr_entries += len / INDEX_ENTRY_LEN;
  last->nr_rows++;
  return 0;
}

struct range {
  uint64_t first, last;
  uint64_t nr; /* entries that are not removed again */
};

static int
look_at_range (void *opaque, const struct index_entry *e)
{
  struct range *range = opaque;

  expect (e->prefix >= range->first && e->prefix <= range->last);
  range->nr += e->removed ? UINT64_MAX : 1;
  return 0;
}

/* Ranges that lie side by side have all entries, and none twice. */
static void
compare_ranges (struct meta_conn *c, const struct index_runs *runs)
{
  const uint64_t step = UINT64_C (0x0765432100012345);
  struct range range = { .nr = 0 };
  uint64_t at = 0;

  do {
    range.first = at;
    at += step;
    range.last = at > range.first ? at - 1 : UINT64_MAX;
    must (meta_index_range (c, runs, range.first, range.last, look_at_range,
                            &range));
  } while (range.last < UINT64_MAX);
  expect (range.nr == nr_present);
}

static struct last_row
compare (struct meta_conn *c, const struct meta_state *state)
{
  struct last_row last = { .any = false };
  struct index_cursor *cu;
  struct index_runs runs;
  struct index_entry e, want;
  uint64_t nr = 0;
  unsigned i;
  int sum;

  must (meta_index_scan (c, look_at_row, &last));
  must (meta_index_runs (c, &runs));
  cu = meta_index_cursor (c, &runs, 0);
  expect (cu != NULL);
  while (meta_index_cursor_next (cu, &e, &sum) == 1) {
    want = entry (number_of (&e));
    expect (index_entry_compare (&e, &want) == 0);
    expect (sum == present[number_of (&e)]);
    nr += (uint64_t) sum;
  }
  meta_index_cursor_free (cu);
  expect (nr == nr_present && state->index_entries == nr_present);
  compare_ranges (c, &runs);
  for (i = 0; i < NR_ENTRIES; i += 997) {
    e = entry (i);
    must (meta_index_sum (c, &runs, &e, &sum));
    expect (sum == present[i]);
  }
  return last;
}

/* Add or remove so many entries, from 'first' on. */
static void
change (struct meta_conn *c, struct meta_state *state, unsigned first,
        unsigned nr, bool random, struct rng *rng)
{
  struct index_entry *ops = malloc (nr * sizeof *ops);
  unsigned i, n;

  expect (ops != NULL);
  for (i = 0; i < nr; ++i) {
    n = random ? (unsigned) rng_below (rng, NR_ENTRIES) : first + i;
    ops[i] = entry (n);
    ops[i].removed = present[n];
    present[n] = !present[n];
    nr_present += present[n] ? 1 : UINT64_MAX;
  }
  must (fold_index (c, ops, nr, &state->index_entries, &merges, in_place));
  free (ops);
}

static unsigned
nr_runs (struct meta_conn *c)
{
  struct index_runs runs;
  unsigned run, nr = 0;

  must (meta_index_runs (c, &runs));
  for (run = 0; run < INDEX_RUNS; ++run)
    nr += index_runs_has (&runs, run);
  return nr;
}

static void
begin_empty (struct meta_conn *c, struct meta_state *state)
{
  empty_index (c, state);
  state->index_entries = nr_present = 0;
  memset (present, 0, sizeof present);
  memset (&merges, 0, sizeof merges);
}

/* All entries, in 'nr' runs of equal size. */
static void
begin_runs (struct meta_conn *c, struct meta_state *state, unsigned nr)
{
  const unsigned each = NR_ENTRIES / nr;
  unsigned i;

  begin_empty (c, state);
  for (i = 0; i < NR_ENTRIES; i += each)
    change (c, state, i, each, false, NULL);
}

static void
end_empty (struct meta_conn *c, struct meta_state *state)
{
  empty_index (c, state);
  state->index_entries = 0;
}

/* Run 'fn' in a fold's transaction, on the tables of an empty pool. */
static void
with_tables (int (*fn) (void *arg, struct meta_conn *c,
                        struct meta_state *state),
             void *arg)
{
  start (1);
  must (txg_run (pool->txg, fn, NULL, arg));
  end ();
}

/*----------------------------------------------------------------------*/

static int
do_anything (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct rng rng = rng_make (5, 1);
  unsigned round, nr;

  (void) arg;
  begin_empty (c, state);
  for (round = 0; round < 150; ++round) {
    nr = 1 +
      (unsigned) rng_below (&rng,
                            rng_below (&rng, 3)     ? 300
                              : rng_below (&rng, 3) ? 9000
                                                    : 40000);
    in_place = rng_below (&rng, 3) == 0;
    change (c, state, 0, nr, true, &rng);
    if (rng_below (&rng, 4))
      must (fold_index_merge (c, &merges, 1 + rng_below (&rng, 60000),
                              rng_below (&rng, 100000), state->index_entries));
    if (rng_below (&rng, 10) == 0) /* the pool was opened again */
      memset (&merges, 0, sizeof merges);
    if (round % 5 == 0)
      compare (c, state);
  }
  in_place = false;
  compare (c, state);
  end_empty (c, state);
  return 0;
}

static void
test_anything (void)
{
  with_tables (do_anything, NULL);
}

/* Runs of equal size are merged, in steps, and the merges end. */
static int
do_merge (void *arg, struct meta_conn *c, struct meta_state *state)
{
  const unsigned each = 500;
  unsigned i, steps, most = 0;

  (void) arg;
  begin_empty (c, state);
  for (i = 0; i + each <= NR_ENTRIES; i += each) {
    change (c, state, i, each, false, NULL);
    must (fold_index_merge (c, &merges, 6 * each, UINT64_MAX,
                            state->index_entries));
    if (nr_runs (c) > most)
      most = nr_runs (c);
  }
  expect (most > INDEX_MERGE && most < 4 * INDEX_MERGE);
  compare (c, state);
  for (steps = 0; fold_index_is_merging (&merges); ++steps)
    must (
      fold_index_merge (c, &merges, 16384, UINT64_MAX, state->index_entries));
  expect (nr_runs (c) < 3 * INDEX_MERGE);
  expect (compare (c, state).nr_rows < NR_ENTRIES / 80);
  end_empty (c, state);
  return 0;
}

static void
test_merge (void)
{
  with_tables (do_merge, NULL);
}

/* A large merge moves as many entries as the folds allow, but many at once: a
 * small fold moves none, most of the time.
 */
static int
do_small_folds (void *arg, struct meta_conn *c, struct meta_state *state)
{
  const unsigned nr = INDEX_STEP_ENTRIES / 16;
  const struct index_merge *m = &merges.levels[0];
  unsigned i, steps = 0;
  uint64_t left = 0;

  (void) arg;
  begin_runs (c, state, INDEX_MERGE);
  for (i = 0; i < 32; ++i) {
    must (fold_index_merge (c, &merges, nr, UINT64_MAX, state->index_entries));
    steps += i > 0 && m->left != left;
    left = m->left;
  }
  /* Entries of one key stay together. */
  expect (steps == 2 && left <= NR_ENTRIES - 2 * INDEX_STEP_ENTRIES);
  compare (c, state);
  end_empty (c, state);
  return 0;
}

static void
test_small_folds (void)
{
  with_tables (do_small_folds, NULL);
}

/* Merges go on when the pool is opened again: sessions that are shorter than a
 * merge end it, and leave no runs of their own.
 */
static int
do_sessions (void *arg, struct meta_conn *c, struct meta_state *state)
{
  unsigned i;

  (void) arg;
  begin_runs (c, state, INDEX_MERGE);
  for (i = 0; nr_runs (c) > 1; ++i) {
    expect (i < NR_ENTRIES / INDEX_STEP_ENTRIES + 1);
    memset (&merges, 0, sizeof merges);
    must (fold_index_merge (c, &merges, INDEX_STEP_ENTRIES, UINT64_MAX,
                            state->index_entries));
    expect (nr_runs (c) <= INDEX_MERGE + 1);
    compare (c, state);
  }
  expect (i > 2);
  end_empty (c, state);
  return 0;
}

static void
test_sessions (void)
{
  with_tables (do_sessions, NULL);
}

/* A session knows about how large the runs of earlier ones are. */
static int
do_survey (void *arg, struct meta_conn *c, struct meta_state *state)
{
  static const unsigned sizes[] = { 1, 300, 5000, 100000 };
  struct index_entry *ops = malloc (100000 * sizeof *ops);
  struct index_merges old;
  struct rng rng = rng_make (8, 1);
  unsigned i, j, run, nr = 0;

  (void) arg;
  expect (ops != NULL);
  begin_empty (c, state);
  for (i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    for (j = 0; j < sizes[i]; ++j)
      ops[j] = (struct index_entry) {
        .prefix = rng_next (&rng) & INDEX_PREFIX_MASK, .addr = j + 1
      };
    must (fold_index (c, ops, sizes[i], &state->index_entries, &merges, false));
  }
  old = merges;
  memset (&merges, 0, sizeof merges);
  must (fold_index_merge (c, &merges, 0, UINT64_MAX, state->index_entries));
  for (run = 0; run < INDEX_RUNS; ++run) {
    nr += old.entries[run] > 0;
    expect (merges.entries[run] >= old.entries[run] * 9 / 10);
    expect (merges.entries[run] <= old.entries[run] * 11 / 10);
  }
  expect (nr == sizeof sizes / sizeof sizes[0]);
  free (ops);
  end_empty (c, state);
  return 0;
}

static void
test_survey (void)
{
  with_tables (do_survey, NULL);
}

/* What is removed leaves nothing behind, although its run has no other of its
 * level.
 */
static int
do_remove_all (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct last_row last;
  unsigned i;

  (void) arg;
  begin_empty (c, state);
  change (c, state, 0, NR_ENTRIES, false, NULL);
  expect (compare (c, state).nr_entries == NR_ENTRIES);
  change (c, state, 0, NR_ENTRIES, false, NULL);
  expect (nr_present == 0);
  for (i = 0; i < 20; ++i)
    must (
      fold_index_merge (c, &merges, 16384, UINT64_MAX, state->index_entries));
  last = compare (c, state);
  expect (last.nr_entries == 0);
  end_empty (c, state);
  return 0;
}

static void
test_remove_all (void)
{
  with_tables (do_remove_all, NULL);
}

/* The same if a merge is under way when they are removed: that of all runs,
 * which has to wait for its end, begins then.
 */
static int
do_remove_beside_a_merge (void *arg, struct meta_conn *c,
                          struct meta_state *state)
{
  unsigned i;

  (void) arg;
  begin_runs (c, state, INDEX_MERGE);
  must (fold_index_merge (c, &merges, INDEX_STEP_ENTRIES, UINT64_MAX,
                          state->index_entries));
  change (c, state, 0, NR_ENTRIES, false, NULL);
  expect (nr_present == 0);
  expect (merges.levels[0].left > 0);
  for (i = 0; fold_index_is_merging (&merges); ++i) {
    expect (i < 100);
    must (fold_index_merge (c, &merges, INDEX_STEP_ENTRIES, UINT64_MAX,
                            state->index_entries));
  }
  expect (compare (c, state).nr_entries == 0);
  end_empty (c, state);
  return 0;
}

static void
test_remove_beside_a_merge (void)
{
  with_tables (do_remove_beside_a_merge, NULL);
}

/* Without room for a run the index shrinks by what is removed, whichever runs
 * have it, and before any merge.
 */
static int
do_remove_in_place (void *arg, struct meta_conn *c, struct meta_state *state)
{
  const unsigned each = NR_ENTRIES / 8;
  unsigned i;

  (void) arg;
  begin_runs (c, state, 8);
  expect (nr_runs (c) == 8);
  in_place = true;
  for (i = each / 2; i < NR_ENTRIES; i += each) {
    change (c, state, i, i + each < NR_ENTRIES ? each : each / 2, false, NULL);
    expect (compare (c, state).nr_entries == nr_present);
  }
  expect (nr_runs (c) == 1);
  change (c, state, 0, each / 2, false, NULL);
  expect (nr_present == 0 && nr_runs (c) == 0);
  /* What the index has lost is not removed once more. */
  memset (present, true, 1000);
  state->index_entries = nr_present = 1000;
  change (c, state, 0, 1000, false, NULL);
  expect (nr_runs (c) == 0 && state->index_entries == 1000);
  in_place = false;
  end_empty (c, state);
  return 0;
}

static void
test_remove_in_place (void)
{
  with_tables (do_remove_in_place, NULL);
}

/* No merge is due, as on a full disk: more folds than there are numbers for
 * runs.
 */
static int
do_without_merges (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct rng rng = rng_make (6, 1);
  unsigned i;

  (void) arg;
  begin_empty (c, state);
  for (i = 0; i < 2 * INDEX_RUNS; ++i)
    change (c, state, 0, 20, true, &rng);
  expect (nr_runs (c) == INDEX_RUNS);
  compare (c, state);
  end_empty (c, state);
  return 0;
}

static void
test_without_merges (void)
{
  with_tables (do_without_merges, NULL);
}

/* Lookups find what many folds have written, before and after merges. */
static void
test_lookups (void)
{
  const unsigned each = 16, nr = 40;
  uint64_t before;
  unsigned i;

  start (1);
  for (i = 0; i < nr; ++i) {
    write_blocks (i * each, each, 1 + i * each);
    settle ();
  }
  before = pool_figure ("records");
  expect (before == nr * each);
  reopen_pool ();
  write_blocks (NR_BLOCKS / 2, nr * each, 1);
  settle ();
  expect (pool_figure ("records") == before);
  end ();
}

static void
set_dedup (const char *value)
{
  json_decref (call ("set",
                     json_pack ("{s:s,s:s,s:s}", "name", "v", "property",
                                "dedup", "value", value)));
}

/* The run that has the entry of a dead record must not lead a lookup to the
 * next record in its sectors, if that is not in the index.
 */
static void
test_sectors_of_a_dead_record (void)
{
  uint64_t addr;

  start (1);
  write_block (0, 1);
  settle ();
  addr = address_of (0);
  trim_block (0);
  settle ();
  set_dedup ("off");
  write_block (1, 1);
  settle ();
  expect (address_of (1) == addr);
  set_dedup ("on");
  write_block (2, 1);
  settle ();
  expect (address_of (2) != addr);
  end ();
}

/* Give the closed pool the index that a pool had before there were runs, or
 * before its entries became shorter.
 */
static void
make_older (const char *key)
{
  char make[400], path[PATH_MAX + 20];
  char *error = NULL;
  sqlite3 *db;

  snprintf (make, sizeof make,
            "PRAGMA locking_mode = EXCLUSIVE; BEGIN; DROP TABLE ddt;"
            "CREATE TABLE ddt (%s INTEGER PRIMARY KEY, data BLOB NOT NULL) "
            "STRICT; INSERT INTO ddt VALUES (-9223372036854775807 - 1, "
            "zeroblob (160)); COMMIT",
            key);
  snprintf (path, sizeof path, "%s/pool.db", directory);
  must (cksum_vfs_register ());
  expect (sqlite3_open_v2 (path, &db, SQLITE_OPEN_READWRITE, CKSUM_VFS_NAME) ==
          SQLITE_OK);
  if (sqlite3_exec (db, make, NULL, NULL, &error) != SQLITE_OK)
    die ("%s", error);
  sqlite3_close (db);
}

/* Such a pool opens, stores known data again, and is repaired. */
static void
make_and_mend_older (const char *key)
{
  const unsigned nr = 64;
  json_t *result;

  start (1);
  write_blocks (0, nr, 1);
  settle ();
  close_pool ();
  make_older (key);
  open_and_attach ();
  result = call ("check", NULL);
  expect (number (result, "errors") == 0);
  expect (number (result, "missing_index_entries") == nr);
  json_decref (result);
  json_decref (call ("check", json_pack ("{s:b}", "repair", 1)));
  write_blocks (NR_BLOCKS / 2, nr, 1);
  settle ();
  expect (pool_figure ("records") == nr);
  end ();
}

static void
test_older_form (void)
{
  make_and_mend_older ("prefix");
  make_and_mend_older ("key");
}

static const struct engine_case cases[] = {
  CASE (anything),
  CASE (merge),
  CASE (small_folds),
  CASE (sessions),
  CASE (survey),
  CASE (remove_all),
  CASE (remove_beside_a_merge),
  CASE (remove_in_place),
  CASE (without_merges),
  CASE (lookups),
  CASE (sectors_of_a_dead_record),
  CASE (older_form),
  { NULL, NULL },
};

/* test-index [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}
