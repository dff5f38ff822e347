/* SPDX-License-Identifier: BSD-3-Clause */

/* Records that move to other sectors (moves.h): what clients, snapshots and
 * crashes see of it.  See engine-rig.h.
 */

#include <config.h>

#include <errno.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/moves.h"
#include "core/txg-int.h"
#include "data/verify.h"
#include "data/volume-types.h"
#include "data/writeback.h"
#include "report/compact.h"
#include "report/copier.h"
#include "rigs/engine-rig.h"
#include "space/space.h"

#define LEFT 5u /* one block of so many is left */
#define ALL_ROWS 10000
#define MAX_BYTES (UINT64_C (64) << 20)

static uint64_t
file_bytes (void)
{
  return pool_figure ("file_bytes");
}

static struct space_info
space_info (void)
{
  struct space_info info;

  space_get_info (pool->space, &info);
  return info;
}

static uint64_t
used_bytes (void)
{
  return space_info ().used_bytes;
}

/* A volume of three segments, of which one block in LEFT is left: block b has
 * the content 1000 + b.
 */
static void
make_sparse (void)
{
  uint64_t i;

  write_blocks (0, NR_BLOCKS, 1000);
  settle ();
  for (i = 0; i < NR_BLOCKS; ++i)
    if (i % LEFT != 0)
      trim_block (i);
  settle ();
}

static void
start_sparse (void)
{
  start (1);
  make_sparse ();
}

static void
expect_sparse (void)
{
  uint64_t i;

  for (i = 0; i < NR_BLOCKS; ++i)
    expect_content (i, i % LEFT == 0 ? 1000 + i : 0);
}

static int
begin_batch (void)
{
  WITH_LOCK (&pool->moves->one);
  return compact_begin (pool, MAX_BYTES);
}

static void
begin (void)
{
  expect (begin_batch () > 0);
  expect (pool->moves->under_way);
}

/* One fold that may change so many leaves. */
static void
fold (unsigned rows)
{
  pool->moves->rows = rows;
  settle ();
}

static void
sweep (void)
{
  while (pool->moves->under_way)
    fold (ALL_ROWS);
}

/* Take the sectors that are free, so that a pointer to them would show it. */
static void
use_free_space (void)
{
  uint64_t i;

  for (i = 0; i < NR_BLOCKS; ++i)
    if (i % LEFT != 0)
      write_block (i, 900000 + i);
  settle ();
}

static void
expect_used (void)
{
  uint64_t i;

  for (i = 0; i < NR_BLOCKS; ++i)
    expect_content (i, i % LEFT == 0 ? 1000 + i : 900000 + i);
}

/* The scrub must find no damage, in the summaries either. */
static void
scrub_pool (void)
{
  json_t *result = call ("scrub", NULL);

  expect (number (result, "errors") == 0);
  expect (number (result, "summary_errors") == 0);
  json_decref (result);
}

static void
test_space_comes_back (void)
{
  uint64_t stored, old, i;

  start_sparse ();
  expect (file_bytes () > 2 * SEGMENT_BYTES);
  stored = pool_figure ("stored_bytes");
  old = address_of (LEFT);
  expect (space_info ().nr_segments >= 3);
  for (i = 0; i < NR_BLOCKS; i += LEFT)
    expect_content (i, 1000 + i); /* the leaves are in the cache */
  begin ();
  sweep ();
  expect (address_of (LEFT) != old);
  expect (pool_figure ("stored_bytes") == stored);
  expect_sparse ();
  scrub_pool ();
  reopen_pool ();
  expect (file_bytes () < 2 * SEGMENT_BYTES);
  expect_sparse ();
  use_free_space ();
  expect_used ();
  end ();
}

/* Some leaves in each fold, and clients write in between. */
static void
test_in_steps (void)
{
  unsigned n, steps = 0;

  start_sparse ();
  begin ();
  fold (0);
  expect (pool->moves->moved == 0);
  for (n = 0; pool->moves->under_way; ++n) {
    if (n < 10) {
      write_block (n * 100, 5000 + n); /* some before, some behind the fold */
      write_block (2000 - n * 100, 6000 + n);
    }
    fold (2);
    check_pool ();
    steps++;
  }
  expect (steps > 10);
  for (n = 0; n < 10; ++n) {
    expect_content (n * 100, n == 10 ? 6010 : 5000 + n);
    expect_content (2000 - n * 100, 6000 + n);
  }
  expect_content (5, 1005);
  scrub_pool ();
  end ();
}

/* The new record is in the index, and all references go to it. */
static void
test_duplicates (void)
{
  uint64_t old;

  start_sparse ();
  write_block (1, 1005);
  write_block (1001, 1005);
  settle ();
  old = address_of (5);
  expect (address_of (1) == old && address_of (1001) == old);
  begin ();
  sweep ();
  expect (address_of (5) != old);
  expect (address_of (1) == address_of (5));
  expect (address_of (1001) == address_of (5));
  write_block (2, 1005);
  settle ();
  expect (address_of (2) == address_of (5));
  expect_content (2, 1005);
  end ();
}

/* A clone and a snapshot see the same as before, also from caches. */
static void
test_frozen_layers (void)
{
  struct nbdedup_volume *clone, *snapshot;
  uint8_t buf[BLOCK], wanted[BLOCK];
  uint64_t i;
  unsigned round;

  start_sparse ();
  run ("snapshot", json_pack ("{s:s}", "name", "v@s"));
  run ("clone", json_pack ("{s:s,s:s}", "snapshot", "v@s", "name", "c"));
  clone = open_volume ("c");
  snapshot = open_name ("v@s");
  for (round = 0; round < 2; ++round) {
    for (i = 0; i < NR_BLOCKS; i += LEFT) {
      fill (wanted, 1000 + i);
      must (nbdedup_volume_read (clone, buf, BLOCK, i * BLOCK));
      expect (memcmp (buf, wanted, BLOCK) == 0);
      must (nbdedup_volume_read (snapshot, buf, BLOCK, i * BLOCK));
      expect (memcmp (buf, wanted, BLOCK) == 0);
    }
    if (round == 0) {
      begin ();
      sweep ();
      use_free_space ();
    }
  }
  nbdedup_volume_close (clone);
  nbdedup_volume_close (snapshot);
  expect_used ();
  scrub_pool ();
  end ();
}

/* The open txg takes a reference to the old record, while a fold moves it. */
static void
write_duplicate (void)
{
  write_block (7, 1005);
  must (writeback_drain (pool->writeback, NULL));
}

static void
test_new_reference_to_the_old (void)
{
  uint64_t old;

  start_sparse ();
  old = address_of (5);
  begin ();
  at_sync_of_records = write_duplicate;
  fold (ALL_ROWS);
  expect (at_sync_of_records == NULL);
  settle ();
  sweep ();
  expect (address_of (5) != old);
  expect (address_of (7) == old); /* behind the fold */
  check_pool ();
  expect_content (5, 1005);
  expect_content (7, 1005);
  end ();
}

/* All references to the new record go before folds reach the next one to the
 * old, and its sectors have another record.
 */
static void
test_new_record_dies (void)
{
  uint64_t i;

  start_sparse ();
  write_block (2001, 1005);
  settle ();
  begin ();
  fold (1); /* the first leaf */
  expect (pool->moves->moved > 0);
  for (i = 0; i < 64; i += LEFT)
    trim_block (i);
  fold (0);
  for (i = 100; i < 120; ++i) /* where the new one was */
    write_block (i, 7000 + i);
  fold (0);
  sweep ();
  expect_content (2001, 1005);
  for (i = 100; i < 120; ++i)
    expect_content (i, 7000 + i);
  expect_content (5, 0);
  end ();
}

#define STRAY_BRANCH 12345
#define STRAY_SEQ 7

static int
put_stray_leaf (void *arg, struct meta_conn *c, struct meta_state *state)
{
  uint8_t buf[LEAF_LEN_MAX];
  size_t len = 0;

  (void) arg;
  (void) state;
  expect (meta_leaf_get (c, volume->layer->branch, 0, volume->layer->seq, buf,
                         &len) == 1);
  return meta_leaf_put (c, STRAY_BRANCH, 0, STRAY_SEQ, buf, len);
}

static int
delete_stray_leaf (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  return meta_leaf_delete (c, STRAY_BRANCH, 0, STRAY_SEQ);
}

/* Damage has left a row of no layer.  Its references are not counted, so they
 * must not move: the pool would stop, or give away what the volume has.
 */
static void
test_stray_leaf (void)
{
  start_sparse ();
  must (txg_run (pool->txg, put_stray_leaf, NULL, NULL));
  begin ();
  sweep ();
  expect (pool->moves->moved > 0);
  must (txg_run (pool->txg, delete_stray_leaf, NULL, NULL));
  use_free_space ();
  expect_content (LEFT, 1000 + LEFT);
  end ();
}

/* Old records that die before a fold reaches them do not move. */
static void
test_old_records_die (void)
{
  uint64_t i;

  start_sparse ();
  begin ();
  must (nbdedup_volume_trim (handle, NR_BLOCKS * BLOCK, 0));
  fold (0); /* one that began before has no rows, either */
  sweep ();
  expect (pool->moves->moved == 0);
  expect (pool_figure ("stored_bytes") == 0);
  for (i = 0; i < NR_BLOCKS; ++i)
    write_block (i, 1000 + i);
  settle ();
  expect_content (77, 1077);
  end ();
}

/* A record that cannot be read stays where it is. */
static void
test_damaged_record (void)
{
  uint64_t old;

  start_sparse ();
  old = address_of (0);
  fail_reads = 1;
  begin ();
  sweep ();
  expect (address_of (0) == old && address_of (5) != old + 5 * 8);
  expect_sparse ();
  end ();
}

/* The transaction ends without effect, and the fold's next attempt moves
 * nothing.
 */
static int
roll_back (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  meta_rollback (c);
  pool->txg->repairing = true;
  return nbdedup_fail (ECANCELED, "the test rolls back");
}

/* What died in an attempt that was rolled back is not dead. */
static void
test_rolled_back (void)
{
  uint64_t old;

  start_sparse ();
  old = address_of (5);
  begin ();
  pool->moves->rows = ALL_ROWS;
  expect (txg_run (pool->txg, roll_back, NULL, NULL) == -1);
  expect (errno == ECANCELED);
  pool->txg->repairing = false;
  must (txg_hold_moves (pool->txg)); /* ends the batch */
  txg_release_moves (pool->txg);
  expect (address_of (5) == old);
  write_block (7, 1005);
  settle ();
  expect (address_of (7) == old);
  check_pool ();
  end ();
}

/* Those who keep addresses of frozen layers. */
static void
test_held_back (void)
{
  uint64_t old;

  start_sparse ();
  old = address_of (0);
  begin ();
  must (txg_hold_moves (pool->txg));
  expect (!pool->moves->under_way);
  expect (begin_batch () == 0);
  expect (!pool->moves->under_way);
  settle ();
  expect (address_of (0) == old);
  txg_release_moves (pool->txg);
  begin ();
  sweep ();
  expect (address_of (0) != old);
  expect_sparse ();
  end ();
}

static void
test_gives_way (void)
{
  uint64_t before;

  start_sparse ();
  before = used_bytes ();
  begin ();
  expect (used_bytes () > before);
  moves_give_way (pool->moves);
  settle ();
  expect (!pool->moves->under_way);
  expect (used_bytes () == before);
  expect_sparse ();
  end ();
}

/* A copy is in another segment than its record, so it does not move; a record
 * that moves leaves its copies, and gets others.
 */
static void
test_copies (void)
{
  struct verifier v;
  uint64_t bytes = 0;

  start_sparse ();
  run ("set", json_pack ("{s:s,s:s}", "property", "copies", "value", "2:1"));
  must (verifier_init (&v, pool));
  expect (copier_copy (pool, &v, address_of (5), &bytes) == 1);
  settle ();
  check_pool ();
  begin ();
  sweep ();
  check_pool ();
  expect (copier_copy (pool, &v, address_of (5), &bytes) == 1);
  verifier_free (&v);
  settle ();
  expect_sparse ();
  scrub_pool ();
  end ();
}

/* The pool is closed in the middle of a batch. */
static void
test_close (void)
{
  start_sparse ();
  begin ();
  fold (3);
  expect (pool->moves->under_way && pool->moves->moved > 0);
  reopen_pool ();
  check_pool ();
  expect_sparse ();
  begin ();
  reopen_pool ();
  use_free_space ();
  expect_used ();
  scrub_pool ();
  end ();
}

/* A process ends at any sync of a batch, and clients write. */
static void
move_all (void)
{
  open_and_attach ();
  begin ();
  fold (5);
  write_block (7, 1005);
  write_block (10, 42);
  must (nbdedup_volume_flush (handle));
  sweep ();
  use_free_space ();
}

static void
test_crash (void)
{
  unsigned nth;
  bool killed = true;
  uint64_t i;

  start_sparse ();
  close_pool ();
  for (nth = 1; killed; ++nth) {
    killed = crashes_at_sync (nth, NULL, move_all);
    open_and_attach ();
    check_pool ();
    scrub_pool ();
    for (i = 0; i < NR_BLOCKS; i += LEFT)
      if (i != 10)
        expect_content (i, 1000 + i);
    use_free_space ();
    write_block (10, 1010);
    expect_used ();
    for (i = 0; i < NR_BLOCKS; ++i)
      if (i % LEFT != 0)
        trim_block (i);
    settle ();
    close_pool ();
  }
  expect (nth > 8);
  open_and_attach ();
  end ();
}

static uint64_t
nr_folds (void)
{
  struct meta_state state;

  txg_get_state (pool->txg, &state);
  return state.fold;
}

/* From now on no fold comes by time: what folds has another reason. */
static void
fold_by_reason_only (void)
{
  {
    WITH_LOCK (&pool->txg->lock);
    pool->txg->fold_interval_ms = 1000000;
  }
  settle (); /* the folding thread's next wait obeys */
}

static bool
was_fold_since (uint64_t folds, uint64_t wait_ms)
{
  const uint64_t end = clock_ms () + wait_ms;

  while (nr_folds () == folds && clock_ms () < end)
    poll (NULL, 0, 10);
  return nr_folds () > folds;
}

static bool
is_empty_within (uint64_t wait_ms)
{
  const uint64_t end = clock_ms () + wait_ms;

  while (pool_figure ("stored_bytes") > 0 && clock_ms () < end)
    poll (NULL, 0, 10);
  return pool_figure ("stored_bytes") == 0;
}

#define BIG_BYTES (8u << 20) /* of a volume with blocks of 64 KiB */
#define FOREVER_MS 60000

/* Write all of the volume 'times' times.  Does that fold? */
static bool
overwrite (struct nbdedup_volume *big, unsigned times, uint64_t content,
           uint64_t wait_ms)
{
  CLEANUP_FREE uint8_t *buf = xmalloc (BIG_BYTES);
  uint64_t folds;

  settle ();
  folds = nr_folds ();
  for (; times > 0; --times) {
    fill_random (buf, BIG_BYTES, content + times);
    must (nbdedup_volume_write (big, buf, BIG_BYTES, 0));
    must (writeback_drain (pool->writeback, NULL));
  }
  return was_fold_since (folds, wait_ms);
}

/* What is overwritten stays in use until a fold: with much of it there are more
 * folds than one in five seconds.  In large blocks, no other limit asks for one.
 */
static void
test_overwrites_fold_sooner (void)
{
  struct nbdedup_volume *big;

  start (1);
  run ("create",
       json_pack ("{s:s, s:i, s:i}", "name", "big", "size", (int) BIG_BYTES,
                  "block-size", 64 << 10));
  big = nbdedup_volume_open (pool, "big", 0, -1, NULL);
  expect (big != NULL);
  fold_by_reason_only ();
  overwrite (big, 1, 100, 0);
  overwrite (big, 1, 200, 0); /* the next fold knows that this is freed */
  expect (!overwrite (big, 4, 300, A_WHILE_MS));
  expect (overwrite (big, 12, 1000, FOREVER_MS));
  nbdedup_volume_close (big);
  end ();
}

/* Leaf by leaf: a larger request passes over what is a hole already. */
static void
trim_all (void)
{
  uint64_t i;

  for (i = 0; i < NR_BLOCKS; i += LEAF_BLOCKS)
    must (nbdedup_volume_trim (handle, LEAF_BLOCKS * BLOCK, i * BLOCK));
}

/* Large trims give their space back before the usual fold, and so does the rest
 * of one, which another txg has.
 */
static void
test_trims_fold_sooner (void)
{
  uint64_t folds, i;

  start (1);
  fold_by_reason_only ();
  write_blocks (0, NR_BLOCKS, 1);
  settle ();
  folds = nr_folds ();
  for (i = 0; i < 16384; i += NR_BLOCKS)
    trim_all ();
  expect (was_fold_since (folds, FOREVER_MS));
  expect (is_empty_within (FOREVER_MS));

  settle ();
  poll (NULL, 0, A_WHILE_MS); /* until the folding thread waits */
  folds = nr_folds ();
  trim_block (0);
  expect (was_fold_since (folds, FOREVER_MS));
  end ();
}

/* The process dies when the space is free in pool.db, and not yet on the file
 * system.
 */
#define NR_KEPT 100u

static uint64_t
free_most (void)
{
  write_blocks (NR_KEPT, NR_BLOCKS - NR_KEPT, 5000);
  must (writeback_drain (pool->writeback, NULL));
  write_blocks (NR_KEPT, NR_BLOCKS - NR_KEPT, 9000);
  settle ();
  must (nbdedup_volume_trim (handle, (NR_BLOCKS - NR_KEPT) * BLOCK,
                             NR_KEPT * BLOCK));
  settle ();
  return file_bytes ();
}

static void
test_freed_and_crashed (void)
{
  uint64_t i;

  start (1);
  write_blocks (0, NR_KEPT, 1000);
  close_pool ();
  expect (crash_after (free_most) >= 4 * SEGMENT_BYTES);
  open_and_attach ();
  while (file_bytes () >= 3 * SEGMENT_BYTES)
    poll (NULL, 0, 10);
  check_pool ();
  for (i = 0; i < NR_KEPT; ++i)
    expect_content (i, 1000 + i);
  scrub_pool ();
  end ();
}

int
main (int argc, char *argv[])
{
  static const struct engine_case cases[] = {
    CASE (space_comes_back),
    CASE (in_steps),
    CASE (duplicates),
    CASE (frozen_layers),
    CASE (new_reference_to_the_old),
    CASE (new_record_dies),
    CASE (old_records_die),
    CASE (stray_leaf),
    CASE (damaged_record),
    CASE (rolled_back),
    CASE (held_back),
    CASE (gives_way),
    CASE (copies),
    CASE (close),
    CASE (crash),
    CASE (freed_and_crashed),
    CASE (overwrites_fold_sooner),
    CASE (trims_fold_sooner),
    { NULL },
  };

  return run_cases (argc, argv, cases);
}
