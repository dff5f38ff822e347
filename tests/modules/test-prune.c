/* SPDX-License-Identifier: BSD-3-Clause */

/* Prune takes old records that nothing shares out of the hash index, and
 * nothing else, whatever happens at the same moment.  See engine-rig.h.
 */

#include <config.h>

#include <stdatomic.h>
#include <time.h>

#include "core/ddt.h"
#include "core/notes.h"
#include "core/txg.h"
#include "data/writeback.h"
#include "meta/meta-index.h"
#include "rigs/engine-rig.h"

/* The engine's clock of dates. */
static _Atomic time_t clock_s = 1000000;

time_t
time (time_t *t)
{
  if (t)
    *t = clock_s;
  return clock_s;
}

/* Returns how many entries it has pruned. */
static uint64_t
prune (const char *key, uint64_t value)
{
  json_t *result = call ("prune", json_pack ("{s:I}", key, (json_int_t) value));
  uint64_t n = json_integer_value (json_object_get (result, "pruned_entries"));

  json_decref (result);
  return n;
}

static uint64_t
nr_entries (void)
{
  struct meta_state state;

  txg_get_state (pool->txg, &state);
  return state.index_entries;
}

static int
add_len (void *opaque, unsigned run, uint64_t low, const uint8_t *buf,
         size_t len)
{
  (void) run;
  (void) low;
  (void) buf;
  *(uint64_t *) opaque += len / INDEX_ENTRY_LEN;
  return 0;
}

/* Entries that the index takes room for, those that remove others included. */
static uint64_t
nr_stored_entries (void)
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  uint64_t n = 0;

  must (meta_index_scan (c, add_len, &n));
  meta_reader_put (pool->meta, c);
  return n;
}

/* Write the content there, and say whether it became a record of its own. */
static bool
is_stored_again (uint64_t block, uint64_t content, uint64_t address)
{
  write_block (block, content);
  must (writeback_drain (pool->writeback, NULL));
  expect_content (block, content);
  return address_of (block) != address;
}

/*----------------------------------------------------------------------*/

static void
test_shared_stays (void)
{
  unsigned i;

  start (1);
  write_blocks (0, 10, 1);
  write_blocks (100, 5, 1);
  settle ();
  expect (nr_entries () == 10);
  expect (prune ("percent", 100) == 5);
  expect (nr_entries () == 5 && nr_stored_entries () == 5);
  for (i = 0; i < 10; ++i) {
    expect_content (i, 1 + i);
    expect (is_stored_again (200 + i, 1 + i, address_of (i)) == (i >= 5));
  }
  settle ();
  expect (nr_entries () == 10);
  /* These are referred to once, but not in the index any more. */
  expect (prune ("percent", 100) == 5);
  end ();
}

/* Several steps, and an index that was merged afterwards. */
static void
test_many (void)
{
  unsigned i;

  start (1);
  write_blocks (0, NR_BLOCKS, 1);
  settle ();
  expect (prune ("percent", 25) == NR_BLOCKS / 4);
  expect (prune ("percent", 50) == NR_BLOCKS * 3 / 8);
  expect (nr_entries () == NR_BLOCKS * 3 / 8);
  expect (nr_stored_entries () == nr_entries ());
  check_pool ();
  for (i = 0; i < NR_BLOCKS; ++i)
    trim_block (i);
  settle ();
  expect (nr_entries () == 0);
  end ();
}

static void
test_oldest (void)
{
  start (1);
  write_blocks (0, 100, 1);
  settle ();
  clock_s += 1000;
  write_blocks (100, 100, 101);
  settle ();
  clock_s += 1000;
  settle ();
  expect (prune ("age", 2100) == 0);
  expect (prune ("age", 1900) == 100);
  expect (prune ("age", 1900) == 0);
  expect (!is_stored_again (300, 150, address_of (149)));
  expect (is_stored_again (301, 50, address_of (49)));
  settle ();
  /* Of 99 old ones, and the one that was stored again. */
  expect (prune ("percent", 50) == 50);
  expect (is_stored_again (302, 101, address_of (100)));
  expect (!is_stored_again (303, 200, address_of (199)));
  reopen_pool ();
  expect (prune ("age", 900) == 48);
  expect (prune ("age", 0) == 2);
  end ();
}

/*----------------------------------------------------------------------
 * Races.  Inside the transaction readers still see the old state of pool.db.
 */

static uint64_t target, other; /* addresses */
static struct digest digest;
static bool pruned, again;

static void
note_target (struct meta_conn *c)
{
  struct blob row CLEANUP_BLOB = { NULL };
  struct record r;

  target = address_of (0);
  expect (meta_record_find (c, target, &row, &r) == 1);
  digest = r.digest;
}

static int
prune_then_write (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  note_target (c);
  pruned = ddt_try_prune (pool->ddt, target, &digest);
  again = is_stored_again (100, 1, target);
  return 0;
}

static int
write_then_prune (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  note_target (c);
  again = is_stored_again (100, 1, target);
  pruned = ddt_try_prune (pool->ddt, target, &digest);
  return 0;
}

static void
end_prune (void *arg)
{
  (void) arg;
  if (pruned)
    ddt_end_prune (pool->ddt, &target, 1);
}

static void
race (int (*fn) (void *arg, struct meta_conn *c, struct meta_state *state),
      bool cached)
{
  start (1);
  write_blocks (0, 10, 1);
  settle ();
  if (!cached)
    reopen_pool ();
  must (txg_run (pool->txg, fn, end_prune, NULL));
}

static void
test_prune_wins (void)
{
  unsigned cached;

  for (cached = 0; cached < 2; ++cached) {
    race (prune_then_write, cached);
    expect (pruned && again);
    trim_block (0);
    settle ();
    end ();
  }
}

static void
test_reference_wins (void)
{
  unsigned cached;

  for (cached = 0; cached < 2; ++cached) {
    race (write_then_prune, cached);
    expect (!pruned && !again);
    expect (!is_stored_again (101, 1, target));
    settle ();
    expect (prune ("percent", 100) == 9);
    end ();
  }
}

/* A reference of the open txg that is gone again still counts: the journal may
 * have it.
 */
static int
write_trim_prune (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  note_target (c);
  again = is_stored_again (100, 1, target);
  trim_block (100);
  must (writeback_drain (pool->writeback, NULL));
  pruned = ddt_try_prune (pool->ddt, target, &digest);
  return 0;
}

static void
test_dropped_reference (void)
{
  race (write_trim_prune, false);
  expect (!pruned && !again);
  settle ();
  expect (prune ("percent", 100) == 10);
  end ();
}

static int
prune_and_fail (void *arg, struct meta_conn *c, struct meta_state *state)
{
  prune_then_write (arg, c, state);
  errno = EIO;
  return -1;
}

static void
test_undone (void)
{
  start (1);
  write_blocks (0, 10, 1);
  settle ();
  expect (txg_run (pool->txg, prune_and_fail, NULL, NULL) == -1);
  expect (pruned);
  end_prune (NULL);
  other = address_of (100);
  /* Both have an entry now. */
  write_block (101, 1);
  settle ();
  expect (address_of (101) == target || address_of (101) == other);
  expect (nr_entries () == 11);
  end ();
}

/* The same, and the record is in use by something that did not look it up. */
static int
prune_refer_fail (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  note_target (c);
  pruned = ddt_try_prune (pool->ddt, target, &digest);
  must (ddt_ref (pool->ddt, target, 0));
  errno = EIO;
  return -1;
}

static void
test_undone_in_use (void)
{
  start (1);
  write_blocks (0, 10, 1);
  settle ();
  reopen_pool ();
  expect (txg_run (pool->txg, prune_refer_fail, NULL, NULL) == -1);
  expect (pruned);
  end_prune (NULL);
  expect (!is_stored_again (100, 1, target));
  settle ();
  expect (!is_stored_again (101, 1, target));
  end ();
}

/* Records that die in the fold that would prune them. */
static void
test_death (void)
{
  unsigned i;

  start (1);
  write_blocks (0, 100, 1);
  settle ();
  for (i = 0; i < 100; i += 2)
    trim_block (i);
  must (writeback_drain (pool->writeback, NULL));
  expect (prune ("percent", 100) == 50);
  expect (nr_entries () == 0);
  for (i = 1; i < 100; i += 2)
    trim_block (i);
  settle ();
  write_blocks (0, 100, 1);
  settle ();
  expect (nr_entries () == 100);
  end ();
}

/*----------------------------------------------------------------------
 * Crashes
 */

static void
open_for_prune (void)
{
  open_and_attach ();
}

static void
prune_all (void)
{
  (void) prune ("percent", 100);
}

static void
expect_all (void)
{
  unsigned i;

  for (i = 0; i < NR_BLOCKS; i += 100)
    expect_content (i, 1 + i);
  check_pool ();
}

static void
test_crashes (void)
{
  unsigned nth;
  bool crashed;

  start (1);
  write_blocks (0, NR_BLOCKS, 1);
  settle ();
  close_pool ();
  for (nth = 1;; ++nth) {
    crashed = crashes_at_sync (nth, open_for_prune, prune_all);
    open_and_attach ();
    expect_all ();
    if (!crashed)
      break;
    close_pool ();
  }
  expect (nth > 3);
  expect (nr_entries () == 0 && nr_stored_entries () == 0);
  write_blocks (0, NR_BLOCKS, 1);
  settle ();
  expect_all ();
  end ();
}

int
main (int argc, char *argv[])
{
  static const struct engine_case cases[] = {
    CASE (crashes),
    CASE (shared_stays),
    CASE (many),
    CASE (oldest),
    CASE (prune_wins),
    CASE (reference_wins),
    CASE (dropped_reference),
    CASE (undone),
    CASE (undone_in_use),
    CASE (death),
    { NULL, NULL },
  };

  return run_cases (argc, argv, cases);
}
