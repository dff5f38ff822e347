/* SPDX-License-Identifier: BSD-3-Clause */

/* Writes, trims and flushes at the same time.  See engine-rig.h. */

#include <config.h>

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/lock.h"
#include "core/ddt.h"
#include "core/txg-int.h"
#include "data/volume-types.h"
#include "data/writeback-int.h"
#include "data/writeback.h"
#include "disk/room.h"
#include "rigs/engine-rig.h"
#include "space/space.h"

static void
test_flush_waits_for_workers (void)
{
  struct job first, second;

  start (1);
  write_and_stall (&first, 5, 1);
  job_start (&second, do_flush, 0);
  poll (NULL, 0, A_WHILE_MS);
  expect (!first.done && !second.done);
  unstall ();
  job_end (&first);
  job_end (&second);
  expect_content (5, 1);
  end ();
}

/* A worker that is inside a txg has taken references in it, so its pointers
 * must go into the same txg.
 */
static void
test_fold_waits_for_workers (void)
{
  struct job flush, fold;

  start (1);
  write_and_stall (&flush, 5, 1);
  job_start (&fold, do_fold, 0);
  poll (NULL, 0, A_WHILE_MS);
  expect (!fold.done);
  unstall ();
  job_end (&flush);
  job_end (&fold);
  expect_content (5, 1);
  end ();
}

static void
fold_in_vain (uint64_t arg)
{
  (void) arg;
  expect (txg_run (pool->txg, NULL, NULL, NULL) == -1);
}

static bool
is_cutting (struct txg *t)
{
  WITH_LOCK (&t->lock);
  return t->cutting;
}

/* A worker fails between a reference and its pointer while a fold waits for it:
 * the fold must not write one without the other.
 */
static void
test_nothing_folds_half_a_change (void)
{
  struct job fold;
  uint64_t addr;

  start (1);
  write_block (5, 1);
  settle ();
  addr = address_of (5);
  txg_enter (pool->txg, 1, ROOM_BLOCK_PAGES);
  must (ddt_ref (pool->ddt, addr, 1));
  job_start (&fold, fold_in_vain, 0);
  while (!is_cutting (pool->txg))
    poll (NULL, 0, 1);
  nbdedup_fail (ENOMEM, "no memory for the pointer");
  txg_fail (pool->txg);
  txg_leave (pool->txg);
  job_end (&fold);
  nbdedup_volume_close (handle);
  expect (nbdedup_pool_close (pool) == -1);
  open_and_attach ();
  expect_content (5, 1);
  end ();
}

static void
test_trim_of_what_is_dirty (void)
{
  start (1);
  write_blocks (4, 3, 1); /* no worker has begun */
  trim_block (5);
  expect_content (5, 0);
  settle ();
  expect_content (4, 1);
  expect_content (5, 0);
  expect_content (6, 3);
  end ();
}

static void
test_trim_of_what_is_being_stored (void)
{
  struct job flush;

  start (1);
  write_block (5, 1);
  settle ();
  expect_content (5, 1); /* the leaf is in the cache */
  write_and_stall (&flush, 5, 2);
  trim_block (5);
  expect_content (5, 0);
  unstall ();
  job_end (&flush);
  expect_content (5, 0);
  settle ();
  expect_content (5, 0);
  end ();
}

static void
test_partial_write_over_what_is_being_stored (void)
{
  uint8_t buf[BLOCK], found[BLOCK];
  struct job flush;

  start (1);
  write_block (5, 1);
  settle ();
  expect_content (5, 1);
  write_and_stall (&flush, 5, 2);
  memset (buf, 7, 100);
  must (nbdedup_volume_write (handle, buf, 100, 5 * BLOCK + 50));
  unstall ();
  job_end (&flush);
  fill (buf, 2);
  memset (buf + 50, 7, 100);
  must (nbdedup_volume_read (handle, found, BLOCK, 5 * BLOCK));
  expect (memcmp (found, buf, BLOCK) == 0);
  settle ();
  must (nbdedup_volume_read (handle, found, BLOCK, 5 * BLOCK));
  expect (memcmp (found, buf, BLOCK) == 0);
  end ();
}

static void
test_two_versions_of_a_block (void)
{
  struct job first, second;
  struct dirty *d;
  unsigned nr = 0;

  start (2);
  write_and_stall (&first, 5, 1);
  write_block (5, 2);
  job_start (&second, do_flush, 0); /* the other worker is free */
  poll (NULL, 0, A_WHILE_MS);
  {
    WITH_LOCK (&volume->dirty.lock);
    TAILQ_FOREACH (d, &volume->dirty.open_list, vlink)
      nr++;
  }
  expect (nr == 1); /* the second version waits for the first */
  unstall ();
  job_end (&first);
  job_end (&second);
  expect_content (5, 2);
  settle ();
  expect_content (5, 2);
  end ();
}

static int
note_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  uint64_t *data = opaque;

  (void) offset;
  *data += hole ? 0 : len;
  return 0;
}

static void
test_extents_of_dirty_blocks (void)
{
  uint64_t data = 0;

  start (1);
  write_block (5, 1);
  must (
    nbdedup_volume_extents (handle, NR_BLOCKS * BLOCK, 0, note_extent, &data));
  expect (data == BLOCK);
  end ();
}

/* Two partial writes to a block that is not in memory: neither is lost. */
static atomic_bool stop_writing;

static void
do_partial_writes (uint64_t offset)
{
  uint8_t buf[64], found[64];
  unsigned round;

  for (round = 1; !stop_writing; ++round) {
    memset (buf, (int) (round % 255 + 1), sizeof buf);
    must (nbdedup_volume_write (handle, buf, sizeof buf, offset));
    if (round % 4 == 0)
      must (nbdedup_volume_flush (handle));
    must (nbdedup_volume_read (handle, found, sizeof found, offset));
    expect (memcmp (found, buf, sizeof buf) == 0);
  }
}

static void
test_partial_writes_to_one_block (void)
{
  struct job jobs[4];
  unsigned i;

  start (2);
  stop_writing = false;
  for (i = 0; i < 4; ++i)
    job_start (&jobs[i], do_partial_writes, i * 1000);
  poll (NULL, 0, 1000);
  stop_writing = true;
  for (i = 0; i < 4; ++i)
    job_end (&jobs[i]);
  end ();
}

static void
test_requests_that_are_refused (void)
{
  uint64_t size = NR_BLOCKS * (uint64_t) BLOCK;
  struct nbdedup_volume *readonly;
  uint8_t buf[BLOCK];

  start (1);
  write_block (0, 1);
#define refused(error, call)                                                   \
  do {                                                                         \
    errno = 0;                                                                 \
    expect ((call) == -1);                                                     \
    expect (errno == error);                                                   \
  } while (0)
  readonly = nbdedup_volume_open (pool, "v", NBDEDUP_VOLUME_READONLY, -1, NULL);
  expect (readonly != NULL);
  fill (buf, 2);
  refused (EROFS, nbdedup_volume_write (readonly, buf, BLOCK, 0));
  refused (EROFS, nbdedup_volume_zero (readonly, BLOCK, 0));
  refused (EROFS, nbdedup_volume_trim (readonly, BLOCK, 0));
  must (nbdedup_volume_read (readonly, buf, BLOCK, 0));
  must (nbdedup_volume_flush (readonly));
  nbdedup_volume_close (readonly);

  refused (EINVAL, nbdedup_volume_read (handle, buf, BLOCK, size));
  refused (EINVAL, nbdedup_volume_read (handle, buf, 2, size - 1));
  refused (EINVAL, nbdedup_volume_write (handle, buf, 2, size - 1));
  refused (EINVAL, nbdedup_volume_write (handle, buf, 1, UINT64_MAX));
  refused (EINVAL, nbdedup_volume_zero (handle, size, 1));
  refused (EINVAL, nbdedup_volume_trim (handle, UINT64_MAX, BLOCK));
#undef refused
  expect_content (0, 1);
  end ();
}

static void
resize_to (uint64_t bytes)
{
  nbdedup_volume_close (handle);
  run ("resize",
       json_pack ("{s:s,s:I,s:b}", "name", "v", "size", (json_int_t) bytes,
                  "shrink", 1));
  attach ();
}

static void
resize (uint64_t blocks)
{
  resize_to (blocks * BLOCK);
}

static void
test_what_shrinking_dropped_stays_dropped (void)
{
  start (1);
  write_blocks (0, 20, 1);
  settle ();
  resize (10);
  settle ();
  expect (pool_figure ("records") == 10);
  resize (NR_BLOCKS);
  expect_content (9, 10);
  expect_content (10, 0);
  expect_content (19, 0);
  end ();
}

static void
start_small (unsigned nr_workers)
{
  dirty_max = NBDEDUP_DIRTY_MAX_MIN;
  start (nr_workers);
  dirty_max = NBDEDUP_DIRTY_MAX_DEFAULT;
}

/* All of it is installed: what a write reserves and gets has gone back. */
static void
expect_nothing_pending (void)
{
  struct space_info info;

  settle ();
  space_get_info (pool->space, &info);
  expect (info.reserved_bytes == SLACK_RECORDS * BLOCK);
  expect (pool->writeback->memory.bytes == 0);
}

static void
expect_contents (uint64_t block, unsigned nr, uint64_t content)
{
  while (nr-- > 0)
    expect_content (block + nr, content + nr);
}

/* A shrink that cuts a block in two reserves room for it before it commits the
 * new size.
 */
static void
test_what_a_shrink_reserves_goes_back (void)
{
  uint8_t buf[BLOCK] = { 0 };

  start (1);
  write_blocks (0, 20, 1);
  settle ();
  write_block (10, 30); /* it is still in memory */
  resize_to (10 * BLOCK + 512);
  expect_nothing_pending ();
  resize_to (5 * BLOCK + 512);
  expect_nothing_pending ();
  buf[BLOCK - 1] = 1; /* the rest of the block is a hole */
  must (nbdedup_volume_write (handle, buf, BLOCK, 4 * BLOCK));
  resize_to (4 * BLOCK + 512);
  expect_nothing_pending ();
  expect (pool_figure ("records") == 4);
  resize (NR_BLOCKS);
  expect_contents (0, 4, 1);
  expect_content (4, 0);
  expect_content (5, 0);
  expect_content (10, 0);
  end ();
}

/* Blocks of a request go together, also if one of them is being stored; but one
 * that waits for a worker is changed where it is.
 */
static void
test_one_request_for_many_blocks (void)
{
  struct job flush;

  start (1);
  expect_content (0, 0);
  expect_content (99, 0); /* the leaves are in the cache */
  write_and_stall (&flush, 5, 1);
  write_block (7, 2);
  write_blocks (0, 100, 1000);
  expect_contents (0, 100, 1000);
  expect (pool->writeback->memory.bytes == 101 * BLOCK);
  unstall ();
  job_end (&flush);
  expect_nothing_pending ();
  expect_contents (0, 100, 1000);
  expect (pool_figure ("records") == 100);
  end ();
}

static void
do_write_all (uint64_t content)
{
  write_blocks (0, NR_BLOCKS, content);
}

static void
test_dirty_max_makes_writers_wait (void)
{
  struct job writer;
  uint64_t bytes;

  start_small (1);
  expect (NR_BLOCKS * BLOCK > NBDEDUP_DIRTY_MAX_MIN);
  stall ();
  job_start (&writer, do_write_all, 1);
  poll (NULL, 0, A_WHILE_MS);
  bytes = pool->writeback->memory.bytes;
  expect (!writer.done);
  expect (bytes <= NBDEDUP_DIRTY_MAX_MIN);
  unstall ();
  job_end (&writer);
  expect_nothing_pending ();
  expect_contents (0, NR_BLOCKS, 1);
  end ();
}

static void
drain_zeroes (uint64_t block)
{
  write_block (block, 0);
  must (writeback_drain_range (pool->writeback, volume, block, 1));
}

/* The only worker that may compute waits for a reader.  Zeroes need none, so
 * another worker can take them, if workers' waits have slept lately.
 */
static void
test_waiting_workers_let_others_begin (void)
{
  struct writeback *wb;
  struct job flush, zeroes;

  start (0);
  wb = pool->writeback;
  {
    WITH_LOCK (&wb->lock); /* the workers run already */
    wb->nr_at_once = 1;
  }
  drain_zeroes (6); /* the leaf is in memory */
  write_and_stall (&flush, 5, 1);
  job_start (&zeroes, drain_zeroes, 6);
  poll (NULL, 0, A_WHILE_MS);
  expect (!zeroes.done && wb->nr_waiting == 0);
  unstall ();
  job_end (&flush);
  job_end (&zeroes);

  wb->sleeps = WAIT_SHARES;
  write_and_stall (&flush, 7, 2);
  job_start (&zeroes, drain_zeroes, 6);
  job_end (&zeroes);
  expect (!flush.done && wb->nr_waiting == 1);
  unstall ();
  job_end (&flush);
  expect (wb->nr_waiting == 0);
  expect_content (5, 1);
  expect_content (7, 2);
  end ();
}

/*----------------------------------------------------------------------
 * Workers in the background
 */

#define QUARTER (NBDEDUP_DIRTY_MAX_MIN / BLOCK / 4)

static atomic_uint nr_yields;

int
sched_yield (void)
{
  nr_yields++;
  return 0;
}

static _Atomic ssize_t longest_write; /* with one call */

ssize_t
pwritev (int fd, const struct iovec *iov, int nr_iov, off_t offset)
{
  const ssize_t n = syscall (SYS_pwritev, fd, iov, nr_iov, offset, 0);

  if (n > longest_write)
    longest_write = n;
  return n;
}

static void
wait_until_busy (unsigned nr)
{
  unsigned ms;

  for (ms = 0; pool->writeback->nr_busy != nr; ++ms) {
    if (ms == GIVE_UP_MS)
      die ("%u workers are busy, expected %u", pool->writeback->nr_busy, nr);
    poll (NULL, 0, 1);
  }
}

/* One of two workers begins while there is much room, and both when there is
 * not, or when a client waits.
 */
static void
test_half_of_the_workers_in_the_background (void)
{
  struct job flush;

  start_small (2);
  wait_until_busy (0);
  stall ();
  write_blocks (0, QUARTER + 1, 1);
  wait_until_busy (1);
  poll (NULL, 0, A_WHILE_MS);
  expect (pool->writeback->nr_busy == 1);
  write_blocks (QUARTER + 1, QUARTER, 5000);
  wait_until_busy (2);
  unstall ();
  settle ();

  wait_until_busy (0);
  pool->writeback->sleeps = 0; /* as if no worker had waited for another */
  stall ();
  write_blocks (0, QUARTER + 1, 10000);
  wait_until_busy (1);
  job_start (&flush, do_flush, 0);
  wait_until_busy (2);
  unstall ();
  job_end (&flush);
  expect_content (QUARTER, 10000 + QUARTER);
  expect_content (2 * QUARTER, 5000 + QUARTER - 1);
  end ();
}

/* A worker lets others have its processor, unless they wait for it: between
 * blocks, and between writes, which are not long in any case.
 */
static void
test_workers_yield_in_the_background (void)
{
  struct job fold;
  unsigned ms;

  start_small (1);
  longest_write = 0;
  write_blocks (0, QUARTER + 1, 1);
  for (ms = 0; pool->writeback->memory.bytes > QUARTER * BLOCK; ++ms) {
    expect (ms < GIVE_UP_MS);
    poll (NULL, 0, 1);
  }
  expect (nr_yields >= BATCH_BLOCKS / (YIELD_BYTES / BLOCK));
  expect (longest_write == WRITE_BYTES_MAX);
  settle ();

  nr_yields = 0;
  longest_write = 0;
  write_blocks (0, QUARTER / 2, 5000);
  must (nbdedup_volume_flush (handle));
  expect (nr_yields == 0);
  expect (longest_write == WRITE_BYTES_MAX);

  txg_enter (pool->txg, 0, 0); /* the fold waits for the txg's cut */
  job_start (&fold, do_fold, 0);
  for (ms = 0; !txg_is_cutting (pool->txg); ++ms) {
    expect (ms < GIVE_UP_MS);
    poll (NULL, 0, 1);
  }
  write_blocks (0, QUARTER + 1, 10000);
  wait_until_busy (1);
  poll (NULL, 0, A_WHILE_MS);
  expect (nr_yields == 0);
  txg_leave (pool->txg);
  job_end (&fold);
  end ();
}

/* The open txg is full when the fold is expected to end, not long before. */
static void
test_pauses_last_until_the_fold_ends (void)
{
  const uint64_t limit = 12000, fold_ms = 300;
  uint64_t pages, pause, last = 0;

  for (pages = 0; pages <= limit; pages += 100) {
    pause = txg_pause_ms (fold_ms, 0, pages, limit);
    expect (pages <= limit / 4 ? pause == 0 : pause > 0);
    expect (pause >= last && pause <= last + fold_ms / 40);
    expect (txg_pause_ms (fold_ms, 100, pages, limit) ==
            (pause > 100 ? pause - 100 : 0));
    expect (txg_pause_ms (0, 0, pages, limit) == 0);
    last = pause;
  }
  expect (last >= fold_ms && last < fold_ms * 5 / 4);
  expect (txg_pause_ms (fold_ms, 0, 2 * limit, limit) == last);
  expect (txg_pause_ms (UINT64_C (1) << 30, 0, limit, limit) <= 1000);
  expect (txg_pause_ms (fold_ms, 0, 1, 1) >= fold_ms);
}

static void
no_pages (void *opaque, struct room_pages *pages)
{
  (void) opaque;
  *pages = (struct room_pages) { 0 };
}

static int
any_room (void *opaque, uint64_t db_pages, uint64_t wal_pages)
{
  (void) opaque;
  (void) db_pages;
  (void) wal_pages;
  return 0;
}

static uint64_t
all_free (void *opaque)
{
  (void) opaque;
  return 1000000;
}

static uint64_t
expected_of (struct txg *t, uint64_t pages)
{
  uint64_t expected;

  expect (room_enter (t->room, 0, pages));
  room_return (t->room, pages, NULL);
  room_cut (t->room);
  txg_expect_fold (t);
  expected = t->expected_ms;
  room_folded (t->room);
  return expected;
}

/* What a fold takes follows from the last two, and from what the WAL took.  No
 * fold of a pool's own may come between, so there is no pool.
 */
static void
test_folds_take_as_long_as_those_before (void)
{
  static const struct room_ops ops = { .get = no_pages,
                                       .allocate = any_room,
                                       .get_free = all_free };
  struct txg t = { .room = room_new (&ops, 100000) };

  expect (t.room != NULL);
  txg_note_fold (&t, 1000, 200);
  txg_note_fold (&t, 1000, 5000);
  expect (expected_of (&t, 1000) == 200);
  expect (expected_of (&t, 4000) == 200);
  expect (expected_of (&t, 500) == 100);
  txg_note_fold (&t, 2000, 300);
  expect (expected_of (&t, 1000) == 150);
  expect (expected_of (&t, 2000) == 300);
  txg_expect_restart (&t); /* there was none */
  expect (t.expected_ms == 300);
  txg_restarted (&t, 80);
  txg_note_fold (&t, 2000, 330);
  expect (expected_of (&t, 2000) == 250);
  txg_expect_restart (&t);
  expect (t.expected_ms == 330);
  room_free (t.room);
}

/* While a fold runs, writers pause before the open txg has as many pages as it
 * may take.  Else each would wait for the whole fold when it has.
 */
static void
test_writers_pause_before_the_limit (void)
{
  const uint64_t limit = 1000;
  uint64_t start_ms;
  struct job fold;

  start (1);
  fold_hold (&fold);
  room_set_limit (pool->txg->room, limit);
  txg_enter (pool->txg, 0, limit - 1);
  room_return (pool->txg->room, limit - 1, NULL);
  txg_leave (pool->txg);
  start_ms = clock_ms ();
  pool->txg->expected_ms = start_ms - pool->txg->cut_ms + 200;
  txg_throttle (pool->txg);
  expect (clock_ms () - start_ms >= 50);
  fold_release (&fold);
  end ();
}

/* A txg that is stuck takes what it has no room for.  Returning it must not
 * return the room of others.
 */
static void
test_what_enters_without_room_returns_none (void)
{
  struct txg *t;
  struct room_touched touched;

  start (1);
  t = pool->txg;
  room_set_limit (t->room, 1);
  expect (txg_enter (t, 0, 100) == 100); /* so no fold cuts the txg */
  t->stuck = true;
  expect (txg_enter (t, 0, 100) == 0);
  t->stuck = false;
  touched = txg_touch (t);
  txg_return (t, 0, &touched);
  txg_leave (t);
  txg_return (t, 100, &touched);
  txg_leave (t);
  end ();
}

/* The open txg has met its limit, and the fold before it does not end. */
static void
test_a_long_fold_lets_writers_go_on (void)
{
  struct job fold, flush;
  unsigned i, ms;

  start (1);
  fold_hold (&fold);
  room_set_limit (pool->txg->room, 1);
  pool->txg->rate = 10000;
  for (i = 0; i < 3; ++i) {
    write_block (i, 1 + i);
    job_start (&flush, do_flush, 0);
    for (ms = 0; !flush.done && ms < GIVE_UP_MS; ++ms)
      poll (NULL, 0, 1);
    if (!flush.done)
      die ("the writer waits for the fold");
    job_end (&flush);
  }
  fold_release (&fold);
  for (i = 0; i < 3; ++i)
    expect_content (i, 1 + i);
  end ();
}

static json_t *
two_snapshots (void)
{
  return json_pack ("{s:s, s:s}", "from", "v@a", "to", "v@b");
}

static const struct view_command {
  const char *name;
  json_t *(*args) (void);
} view_commands[] = {
  { "check", NULL },
  { "drift", NULL },
  { "diff", two_snapshots },
};

static void
do_command (uint64_t i)
{
  const struct view_command *c = &view_commands[i];

  run (c->name, c->args ? c->args () : NULL);
}

/* What opens a view of pool.db first brings there what was answered; other
 * commands do not wait for that.
 */
static void
test_views_wait_without_admin (void)
{
  struct job flush, command;
  uint64_t i;

  start (1);
  run ("snapshot", json_pack ("{s:s}", "name", "v@a"));
  run ("snapshot", json_pack ("{s:s}", "name", "v@b"));
  for (i = 0; i < 3; ++i) {
    write_and_stall (&flush, 5, 1 + i);
    job_start (&command, do_command, i);
    while (pool->writeback->nr_drains < 2)
      poll (NULL, 0, 1);
    expect (lock_try (&pool->admin));
    lock_release (&pool->admin);
    unstall ();
    job_end (&flush);
    job_end (&command);
  }
  end ();
}

/* No fold can be written, so each hole would stay in memory. */
static void
test_holes_that_memory_has_no_room_for (void)
{
  struct job fold;
  size_t budget;

  start (1);
  budget = pool->txg->budget;
  write_block (5, 1);
  must (writeback_drain (pool->writeback, NULL));
  fold_hold (&fold);
  pool->txg->stuck = true;
  trim_block (5); /* within the budget */
  pool->txg->budget = 0;
  expect (nbdedup_volume_trim (handle, BLOCK, 6 * BLOCK) == -1);
  expect (errno == ENOSPC);
  expect (nbdedup_volume_zero (handle, BLOCK, 6 * BLOCK) == -1);
  expect (errno == ENOSPC);
  pool->txg->budget = budget;
  pool->txg->stuck = false;
  fold_release (&fold);
  expect_content (5, 0);
  end ();
}

static const struct engine_case cases[] = {
  CASE (flush_waits_for_workers),
  CASE (fold_waits_for_workers),
  CASE (nothing_folds_half_a_change),
  CASE (trim_of_what_is_dirty),
  CASE (trim_of_what_is_being_stored),
  CASE (partial_write_over_what_is_being_stored),
  CASE (two_versions_of_a_block),
  CASE (extents_of_dirty_blocks),
  CASE (partial_writes_to_one_block),
  CASE (requests_that_are_refused),
  CASE (what_shrinking_dropped_stays_dropped),
  CASE (what_a_shrink_reserves_goes_back),
  CASE (one_request_for_many_blocks),
  CASE (dirty_max_makes_writers_wait),
  CASE (pauses_last_until_the_fold_ends),
  CASE (folds_take_as_long_as_those_before),
  CASE (writers_pause_before_the_limit),
  CASE (a_long_fold_lets_writers_go_on),
  CASE (what_enters_without_room_returns_none),
  CASE (waiting_workers_let_others_begin),
  CASE (half_of_the_workers_in_the_background),
  CASE (workers_yield_in_the_background),
  CASE (views_wait_without_admin),
  CASE (holes_that_memory_has_no_room_for),
  { NULL, NULL },
};

/* test-writes [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}
