/* SPDX-License-Identifier: BSD-3-Clause */

/* pool.db gives back pages that it does not use, and a crash at any moment of
 * that loses nothing.  See engine-rig.h.
 */

#include <config.h>

#include <poll.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "core/txg-int.h"
#include "data/writeback.h"
#include "disk/room.h"
#include "meta/meta-conn.h"
#include "rigs/engine-rig.h"

#define NR_KEPT 10u

static off_t
size_of_pool_db (void)
{
  CLEANUP_FREE char *path = pool_file (directory, "pool.db");
  struct stat st;

  must (stat (path, &st));
  return st.st_size;
}

/* Make a pool that uses few of its pages. */
static void
start_sparse (void)
{
  unsigned i;

  start (1);
  write_blocks (0, NR_BLOCKS, 1);
  settle ();
  for (i = NR_KEPT; i < NR_BLOCKS; ++i)
    trim_block (i);
  settle ();
}

static void
expect_kept (void)
{
  unsigned i;

  for (i = 0; i < NR_KEPT; ++i)
    expect_content (i, 1 + i);
  expect_content (NR_KEPT, 0);
  check_pool ();
}

static void
vacuum (void)
{
  expect (meta_vacuum (pool->meta) == 1);
  must (txg_make_room (pool->txg, false));
}

static void
test_vacuum (void)
{
  struct meta_pages before, after;

  start_sparse ();
  meta_get_pages (pool->meta, &before);
  vacuum ();
  meta_get_pages (pool->meta, &after);
  expect (before.unused > 10 && after.unused < 3);
  expect (after.used <= before.used);
  expect (after.allocated < before.allocated);
  expect_kept ();
  write_blocks (NR_KEPT, NR_BLOCKS - NR_KEPT, 5000);
  settle ();
  expect_content (NR_BLOCKS - 1, 5000 + NR_BLOCKS - 1 - NR_KEPT);
  reopen_pool ();
  expect_content (NR_BLOCKS - 1, 5000 + NR_BLOCKS - 1 - NR_KEPT);
  end ();
}

/* A reader keeps its view of the pool, and VACUUM waits. */
static void
test_beside_a_frozen_reader (void)
{
  struct meta_conn *c;

  start_sparse ();
  c = meta_frozen_open (pool->meta);
  expect (c != NULL);
  expect (meta_vacuum (pool->meta) == 0);
  meta_frozen_close (pool->meta, c);
  vacuum ();
  expect_kept ();
  end ();
}

static void
no_problem (void *opaque, const char *text)
{
  (void) opaque;
  die ("a problem: %s", text);
}

static int
go_on (void *opaque)
{
  (void) opaque;
  return 0;
}

/* A VACUUM that began first may end after a reader began: the file keeps the
 * pages that the reader has.
 */
static void
test_during_a_frozen_reader (void)
{
  struct meta_conn *c;
  struct meta_pages p;

  start_sparse ();
  c = meta_frozen_open (pool->meta);
  expect (c != NULL);
  meta_get_pages (pool->meta, &p);
  must (meta_allocate (pool->meta, 0, p.wal_used + 2 * p.used + 100));
  must (meta_exec (meta_writer (pool->meta), "VACUUM", "a test"));
  meta_committed (pool->meta);
  must (txg_make_room (pool->txg, false));
  must (meta_quick_check (c, no_problem, go_on, NULL));
  meta_frozen_close (pool->meta, c);
  must (txg_make_room (pool->txg, false));
  meta_get_pages (pool->meta, &p);
  expect (p.unused < 3);
  expect_kept ();
  end ();
}

/* A reader keeps no room that nothing needs. */
static void
test_room_beside_a_frozen_reader (void)
{
  struct meta_pages before, after;
  struct meta_conn *c;

  start_sparse ();
  expect (meta_vacuum (pool->meta) == 1);
  c = meta_frozen_open (pool->meta);
  expect (c != NULL);
  meta_get_pages (pool->meta, &before);
  must (txg_make_room (pool->txg, false));
  meta_get_pages (pool->meta, &after);
  expect (after.allocated < before.allocated);
  must (meta_frozen_check (c));
  meta_frozen_close (pool->meta, c);
  expect_kept ();
  end ();
}

/* Most pages of pool.db, for a moment. */
#define BULK_PAGES 4096u

static int
put_bulk (void *arg, struct meta_conn *c, struct meta_state *state)
{
  CLEANUP_FREE char *text = malloc (BULK_PAGES * META_PAGE_BYTES + 1);

  (void) arg;
  (void) state;
  memset (text, 'x', BULK_PAGES * META_PAGE_BYTES);
  text[BULK_PAGES * META_PAGE_BYTES] = 0;
  return meta_property_put (c, "bulk", text);
}

static int
delete_bulk (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  return meta_property_delete (c, "bulk");
}

/* An idle server vacuums by itself, and gives the space back before the next
 * fold, which may never come.
 */
static void
test_idle (void)
{
  struct meta_pages p;
  unsigned tries;

  start_sparse ();
  must (txg_run (pool->txg, put_bulk, NULL, NULL));
  must (txg_run (pool->txg, delete_bulk, NULL, NULL));
  meta_get_pages (pool->meta, &p);
  expect (p.allocated > BULK_PAGES);
  for (tries = 0; p.allocated > BULK_PAGES / 4; ++tries) {
    expect (tries < 6000);
    poll (NULL, 0, 10);
    meta_get_pages (pool->meta, &p);
  }
  expect (p.unused < 3);
  expect_kept ();
  end ();
}

static void
make_room (uint64_t arg)
{
  (void) arg;
  must (txg_make_room (pool->txg, true));
}

static bool
has_requests (void)
{
  struct txg *t = pool->txg;

  WITH_LOCK (&t->lock);
  return !TAILQ_EMPTY (&t->requests);
}

/* The fold that runs when room is asked for cannot free what the open txg was
 * promised.  The next one can.
 */
static void
test_room_comes_after_the_open_txg (void)
{
  struct job fold, room;
  struct meta_pages p;

  start_sparse ();
  must (txg_make_room (pool->txg, true));
  fold_hold (&fold);
  write_blocks (NR_KEPT, NR_BLOCKS - NR_KEPT, 5000);
  must (writeback_drain (pool->writeback, NULL));
  job_start (&room, make_room, 0);
  while (!has_requests ())
    poll (NULL, 0, 1);
  fold_release (&fold);
  job_end (&room);
  meta_get_pages (pool->meta, &p);
  expect (p.wal_allocated <= room_kept_wal_pages (p.used, 1));
  expect_content (NR_BLOCKS - 1, 5000 + NR_BLOCKS - 1 - NR_KEPT);
  end ();
}

static void
test_crash (void)
{
  bool killed = true;
  off_t before;
  unsigned nth;

  for (nth = 1; killed; ++nth) {
    start_sparse ();
    close_pool ();
    before = size_of_pool_db ();
    killed = crashes_at_sync (nth, open_and_attach, vacuum);
    open_and_attach ();
    expect_kept ();
    vacuum ();
    expect (size_of_pool_db () < before);
    reopen_pool ();
    expect_kept ();
    end ();
  }
  expect (nth > 3);
}

static const struct engine_case cases[] = {
  CASE (vacuum),
  CASE (beside_a_frozen_reader),
  CASE (during_a_frozen_reader),
  CASE (room_beside_a_frozen_reader),
  CASE (idle),
  CASE (room_comes_after_the_open_txg),
  CASE (crash),
  { NULL, NULL },
};

/* test-vacuum [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}
