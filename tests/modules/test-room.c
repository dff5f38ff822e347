/* SPDX-License-Identifier: BSD-3-Clause */

/* The guarantee of room.h, against a model of two files on a file system that
 * other programs fill, too.
 *
 * Random writes are accepted, enter txgs and are folded.  Each fold writes as
 * much as the header allows, and pool.db grows by as much.  Accepted writes
 * must always fit into the space allocated before.
 */

#include <config.h>

#include <errno.h>
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "disk/room.h"
#include "format/format.h"
#include "format/leaf-delta.h"
#include "rigs/testutil.h"

static uint64_t seed;
static struct rng rng;

static uint64_t fs_free; /* pages */
static struct room_pages files;
static struct room *room;

static void
get (void *opaque, struct room_pages *pages)
{
  (void) opaque;
  *pages = files;
}

static int
take (uint64_t *have, uint64_t want)
{
  if (want <= *have)
    return 0;
  if (want - *have > fs_free) {
    errno = ENOSPC;
    return -1;
  }
  fs_free -= want - *have;
  *have = want;
  return 0;
}

static int
allocate (void *opaque, uint64_t db_pages, uint64_t wal_pages)
{
  (void) opaque;
  return take (&files.allocated, db_pages) == -1 ||
      take (&files.wal_allocated, wal_pages) == -1
    ? -1
    : 0;
}

static void
give (uint64_t *have, uint64_t want)
{
  if (want < *have) {
    fs_free += *have - want;
    *have = want;
  }
}

static void
give_back (void *opaque, uint64_t db_pages, uint64_t wal_pages)
{
  (void) opaque;
  assert (db_pages >= files.used);
  give (&files.allocated, db_pages);
  give (&files.wal_allocated, wal_pages);
}

/* Is the file system ample?  The model has no other programs then. */
static bool shows_free;
/* Is it so large, and for the whole txg, that others may have what is returned?
 */
static bool is_huge, txg_is_huge;

static uint64_t
get_free (void *opaque)
{
  (void) opaque;
  return is_huge ? UINT64_MAX : shows_free ? fs_free : 0;
}

static const struct room_ops ops = {
  get, allocate, give_back, get_free, NULL,
};

/* The model's figures of the txgs. */
static uint64_t waiting;    /* blocks, accepted */
static uint64_t full_pages; /* that the next change splits */
static uint64_t new_blocks; /* since they last filled a page */
static uint64_t open_blocks, open_pages, folding_blocks, folding_pages;

static void
begin (uint64_t used, uint64_t free_pages)
{
  files = (struct room_pages) { used, used, 0 };
  fs_free = free_pages;
  full_pages = used;
  new_blocks = 0;
  waiting = open_blocks = open_pages = folding_blocks = folding_pages = 0;
  txg_is_huge = false;
  room = room_new (&ops, 100000);
  assert (room != NULL);
  assert (room_keep (room));
}

static void
end (void)
{
  room_unreserve (room, (unsigned) waiting);
  room_free (room);
}

/* The worst fold: it splits two pages for each block, while there are full
 * ones, fills new pages by half, and writes each page that it changed.
 */
static void
fold (void)
{
  uint64_t grows, writes, fills;

  room_cut (room);
  folding_blocks = open_blocks;
  folding_pages = open_pages;
  open_blocks = open_pages = 0;
  /* Half full pages take a 32nd of one for each block. */
  new_blocks += folding_blocks;
  fills = new_blocks / 32;
  new_blocks %= 32;
  grows = 2 * folding_blocks;
  if (grows > full_pages + fills)
    grows = full_pages + fills;
  if (rng_percent (&rng, 50))
    grows = rng_below (&rng, grows + 1);
  writes = folding_pages + 8;
  if (writes > files.used + grows)
    writes = files.used + grows;
  if (writes > files.wal_allocated)
    die ("SEED=%" PRIu64 ": a fold of %" PRIu64 " blocks writes %" PRIu64
         " pages, the WAL has room for %" PRIu64,
         seed, folding_blocks, writes, files.wal_allocated);
  if (txg_is_huge && writes > room_fold_pages (room, 0))
    die ("SEED=%" PRIu64 ": room_fold_pages is too small", seed);
  if (files.used + grows > files.allocated)
    die ("SEED=%" PRIu64 ": pool.db has %" PRIu64 " pages, grows by %" PRIu64
         ", and has room for %" PRIu64,
         seed, files.used, grows, files.allocated);
  files.used += grows;
  if (grows > fills)
    full_pages -= grows - fills;
  full_pages += folding_blocks / 64;
  if (full_pages > files.used)
    full_pages = files.used;
  folding_blocks = folding_pages = 0;
  txg_is_huge = rng_percent (&rng, 50);
  room_folded (room);
  room_keep (room);
}

static bool
enter (unsigned nr, uint64_t pages)
{
  bool entered;

  is_huge = txg_is_huge;
  entered = room_enter (room, nr, pages);
  is_huge = false;
  return entered;
}

/* Changes have entered with 'pages'.  Returns how many the fold may touch:
 * fewer, unless it displaces much on a file system that is nearly full.
 */
static uint64_t
give_pages (uint64_t pages, const struct room_touched *t)
{
  uint64_t touched = t->leaves * ROOM_ROW_PAGES + t->areas * ROOM_DELTA_PAGES +
    t->groups * ROOM_GROUP_PAGES + t->removed * ROOM_CANCEL_PAGES +
    t->added / 256;

  room_return (room, pages, t);
  return touched < pages && txg_is_huge ? touched : pages;
}

static uint64_t
pages_touched (unsigned nr, uint64_t pages)
{
  struct room_touched t = { .leaves = rng_between (&rng, 1, nr) };
  unsigned i;

  t.areas = rng_between (&rng, 1, t.leaves);

  for (i = 0; i < nr; ++i) {
    room_touch_new (&t, rng_below (&rng, 100000));
    if (rng_percent (&rng, 50))
      room_touch_lost (&t, rng_below (&rng, 100000));
  }
  return give_pages (pages, &t);
}

static void
trim_some (void)
{
  struct room_touched t = { .leaves = rng_between (&rng, 1, 64) };
  uint64_t pages = t.leaves * ROOM_HOLES_PAGES, i;

  if (t.leaves > room_leaves_at_once (room))
    return;
  while (!enter (0, pages))
    fold ();
  for (i = 0; i < t.leaves * 64; ++i)
    room_touch_lost (&t, i);
  open_pages += give_pages (pages, &t);
}

static void
write_some (void)
{
  unsigned nr = (unsigned) rng_between (&rng, 1, 64), i;
  uint64_t pages, max;

  for (i = 0; i < nr; ++i) {
    if (room_reserve (room, 1, ROOM_NEW) == -1) {
      assert (errno == ENOSPC);
      break;
    }
    waiting++;
  }
  max = room_blocks_at_once (room);
  nr = waiting < 64 ? (unsigned) waiting : 64;
  if (nr > max)
    nr = (unsigned) max;
  if (nr == 0 || rng_percent (&rng, 30))
    return;
  pages = nr * ROOM_BLOCK_PAGES + rng_between (&rng, 1, nr) * ROOM_LEAF_PAGES;
  while (!enter (nr, pages))
    fold ();
  open_blocks += nr;
  open_pages += rng_percent (&rng, 50) ? pages : pages_touched (nr, pages);
  room_unreserve (room, nr);
  waiting -= nr;
}

static void
random_life (uint64_t used, uint64_t free_pages, unsigned steps)
{
  unsigned i;

  begin (used, free_pages);
  for (i = 0; i < steps; ++i) {
    switch (rng_below (&rng, 12)) {
    case 0:
      fold ();
      break;
    case 1: /* other programs take or free space */
      if (rng_percent (&rng, 50))
        fs_free -= rng_below (&rng, fs_free + 1);
      else
        fs_free += rng_below (&rng, 2000);
      break;
    case 2:
      room_give_back (room);
      break;
    case 3: /* a volume was destroyed */
      files.used -= rng_below (&rng, files.used / 4 + 1);
      if (files.used == 0)
        files.used = 1;
      if (full_pages > files.used)
        full_pages = files.used;
      break;
    case 4:
      trim_some ();
      break;
    default:
      write_some ();
    }
  }
  while (waiting > 0) {
    fs_free = 0;
    write_some ();
    fold ();
  }
  /* An overwrite must be possible, however much pool.db has grown. */
  fs_free = 0;
  fold ();
  if (room_reserve (room, 1, ROOM_OVERWRITE) == -1)
    die ("SEED=%" PRIu64 ": with %" PRIu64 " pages of %" PRIu64 ", and %" PRIu64
         " in the WAL, nothing can be overwritten",
         seed, files.used, files.allocated, files.wal_allocated);
  waiting++;
  end ();
}

/* On a file system that stays full overwriting works, at least with one block
 * per fold, and so does freeing space.
 */
static void
full (uint64_t used)
{
  unsigned i;

  begin (used, 100000);
  fs_free = 0;
  while (room_reserve (room, 1, ROOM_NEW) == 0)
    waiting++;
  assert (errno == ENOSPC);
  assert (room_reserve (room, 1, ROOM_OVERWRITE) == 0);
  waiting++;
  for (i = 0; i < 100; ++i) {
    assert (room_background_pages (room, 0) >= ROOM_HOLES_PAGES);
    assert (room_leaves_at_once (room) > 0);
    fold ();
  }
  assert (room_check (room, 12) == -1 && errno == ENOSPC);
  end ();
}

#define BATCH_PAGES (64 * (ROOM_BLOCK_PAGES + ROOM_LEAF_PAGES))

/* The open txg has a limit.  A batch that is alone may exceed it. */
static void
limit (void)
{
  begin (1000000, 100000);
  room_set_limit (room, 10 * BATCH_PAGES - 1);
  while (room_enter (room, 64, BATCH_PAGES))
    open_pages += BATCH_PAGES;
  assert (open_pages == 9 * BATCH_PAGES);
  room_cut (room);
  assert (room_folding_pages (room) == open_pages);
  assert (room_enter (room, 64, 20 * BATCH_PAGES));
  assert (!room_enter (room, 64, BATCH_PAGES));
  end ();
}

/* A txg that could take all of the WAL's room would leave none for the next
 * until it is folded.
 */
static void
two_at_once (void)
{
  unsigned i, nr[2] = { 0, 0 };

  begin (1000000, 200000);
  assert (room_set_limit (room, UINT64_MAX) == 50000);
  for (i = 0; i < 2; ++i) {
    while (room_enter (room, 64, BATCH_PAGES))
      nr[i]++;
    if (i == 0)
      room_cut (room);
  }
  assert (nr[0] == 50000 / BATCH_PAGES && nr[1] == nr[0]);
  end ();
}

/* In a small pool many changes touch the same pages, so a txg may count more of
 * them than the WAL has.  Its fold writes all of pool.db at most, and begins
 * with room for that.
 */
static void
small_pool (void)
{
  uint64_t all;
  unsigned i;

  begin (50001, 200000);
  assert (room_set_limit (room, UINT64_MAX) == 50000);
  end ();
  begin (50000, 200000);
  assert (room_set_limit (room, UINT64_MAX) == 400000);
  assert (room_set_limit (room, 1000) == 1000);
  end ();

  begin (2000, 1000000);
  shows_free = true;
  room_set_limit (room, UINT64_MAX);
  while (room_enter (room, 1, BATCH_PAGES))
    open_pages += BATCH_PAGES;
  assert (open_pages > 400000 - BATCH_PAGES && files.wal_allocated < 10000);
  room_cut (room);
  all = room_fold_pages (room, 0);
  assert (all >= 2000 && all < 10000);
  assert (room_fold_pages (room, 1000) == all);
  assert (room_enter (room, 64, BATCH_PAGES));
  shows_free = false;
  end ();

  /* The largest of them: the next txg need not wait for the fold. */
  begin (50000, 1000000);
  room_set_limit (room, 100000);
  for (i = 0; i < 2; ++i) {
    while (room_enter (room, 1000, BATCH_PAGES))
      open_pages += BATCH_PAGES;
    if (i == 0)
      room_cut (room);
  }
  assert (open_pages > 2 * (100000 - BATCH_PAGES));
  assert (files.wal_allocated > 100000 && files.wal_allocated <= 125000);
  end ();
}

/* The open txg may take more than the limit, the next may not; and no txg more
 * than the WAL.
 */
static void
stretched (void)
{
  uint64_t max;

  begin (1000000, 100000);
  room_stretch (room, 1); /* there is no limit */
  assert (room_open_pages (room, &max) == 0 && max == UINT64_MAX);
  room_set_limit (room, 2 * BATCH_PAGES);
  assert (room_enter (room, 64, BATCH_PAGES));
  assert (room_enter (room, 64, BATCH_PAGES));
  assert (!room_enter (room, 64, BATCH_PAGES));
  room_stretch (room, BATCH_PAGES - 1);
  assert (!room_enter (room, 64, BATCH_PAGES));
  room_stretch (room, BATCH_PAGES);
  assert (room_enter (room, 64, BATCH_PAGES));
  assert (!room_enter (room, 64, BATCH_PAGES));
  room_stretch (room, UINT64_MAX);
  assert (room_open_pages (room, &max) == 3 * BATCH_PAGES && max == 100000);
  room_cut (room);
  open_pages = 3 * BATCH_PAGES;
  assert (room_open_pages (room, &max) == 0 && max == 2 * BATCH_PAGES);
  end ();
}

/* Batches that threads work on count, in the limit, as much as the last changes
 * touched, not as much as they entered with: else a limit of two batches would
 * end each txg when a third thread comes, however little is in it.
 */
static void
unknown (void)
{
  struct room_touched t = { .added = 1 };
  uint64_t max;
  unsigned i;

  begin (1000000, 100000);
  room_set_limit (room, 2 * BATCH_PAGES);
  assert (room_enter (room, 64, BATCH_PAGES));
  assert (room_enter (room, 64, BATCH_PAGES));
  assert (!room_enter (room, 64, BATCH_PAGES)); /* nothing is known yet */
  room_return (room, BATCH_PAGES, &t);
  room_return (room, BATCH_PAGES, &t);
  assert (room_open_pages (room, &max) == 2 && max == 2 * BATCH_PAGES);

  for (i = 0; i < 8; ++i)
    assert (room_enter (room, 64, BATCH_PAGES));
  assert (room_open_pages (room, &max) == 2 + 8);
  /* They touch all that they may. */
  for (i = 0; i < 8; ++i)
    room_return (room, BATCH_PAGES, NULL);
  assert (room_open_pages (room, &max) == 2 + 8 * BATCH_PAGES);
  assert (!room_enter (room, 64, BATCH_PAGES));

  /* So the next txg takes two again, about. */
  room_cut (room);
  for (i = 0; room_enter (room, 64, BATCH_PAGES); ++i)
    ;
  assert (i == 2);
  end ();
}

/* On an ample file system a fold begins with room for a share of its pages, but
 * never for more than it may write.
 */
static void
ample (void)
{
  begin (1000000, 1000000);
  shows_free = true;
  assert (room_fold_pages (room, 0) == ROOM_FOLD_PAGES);
  while (room_enter (room, 64, BATCH_PAGES))
    open_pages += BATCH_PAGES;
  assert (open_pages <= 100000 && files.wal_allocated <= 100000);
  room_cut (room);
  assert (room_fold_pages (room, 0) < open_pages / 4);
  fs_free = open_pages;
  assert (room_fold_pages (room, 0) >= open_pages);
  shows_free = false;
  end ();
}

/* Enter batches that touch one page each, as far as is known, and return the
 * rest.  Returns how many enter.
 */
static unsigned
enter_and_return (void)
{
  struct room_touched t = { .added = 1 };
  unsigned n = 0;

  while (n < 1000 && room_enter (room, 64, BATCH_PAGES)) {
    room_return (room, BATCH_PAGES, &t);
    n++;
  }
  return n;
}

/* What the fold displaces may touch all that the txg entered with.  So others
 * get nothing of that when the file system lacks room for it.
 */
static void
returns (void)
{
  begin (1000000, 100000);
  assert (enter_and_return () ==
          (100000 - ROOM_GROWTH_MIN_PAGES - ROOM_FOLD_PAGES) / BATCH_PAGES);
  end ();
  begin (1000000, 100000);
  is_huge = true;
  assert (enter_and_return () == 1000);
  is_huge = false;
  room_cut (room);
  assert (room_folding_pages (room) == 1000);
  end ();
  /* A fold never writes more than all of pool.db. */
  begin (2000, 100000);
  assert (enter_and_return () == 1000);
  end ();
}

/* A txg is charged once for what several of its batches touch, and for all of
 * it again when the next txg does.
 */
static void
once (void)
{
  struct room_touched t;
  unsigned txg, batch;

  begin (1000000, 100000);
  for (txg = 0; txg < 2; ++txg) {
    for (batch = 0; batch < 2; ++batch) {
      t = room_touch (room);
      room_touch_leaf (&t, 1, 7, false);
      room_touch_leaf (&t, 1, 7, false);
      room_touch_leaf (&t, 2, 7, false);
      room_touch_ref (&t, RECORD_GROUP_SECTORS);
      room_touch_lost (&t, 10 * RECORD_GROUP_SECTORS);
      room_touch_ref (&t, 11 * RECORD_GROUP_SECTORS - 1);
      room_touch_new (&t, 12 * RECORD_GROUP_SECTORS);
      assert (t.added == 1 && t.removed == 1);
      if (batch == 0)
        assert (t.leaves == 2 && t.groups == 2 && t.counts == 1);
      else
        assert (t.leaves == 0 && t.groups == 0 && t.counts == 0);
    }
    room_cut (room);
    room_folded (room);
  }
  /* A row of records costs more than the counts that were charged. */
  t = room_touch (room);
  room_touch_ref (&t, 0);
  room_touch_new (&t, 0);
  assert (t.groups == 1 && t.counts == 1);
  end ();
}

/* Neighbours cost less, but not between the rows of other layers. */
static void
neighbours (void)
{
  struct room_touched t;
  uint64_t leaf;

  begin (1000000, 100000);
  t = room_touch (room);
  for (leaf = 0; leaf < 2 * ROOM_AREA_LEAVES; ++leaf)
    room_touch_leaf (&t, 1, leaf, true);
  assert (t.leaves == 2 && t.neighbours == 2 * ROOM_AREA_LEAVES - 2);
  assert (t.areas == 1);
  assert (room_touched_pages (&t) ==
          2 * ROOM_ROW_PAGES + ROOM_AREA_LEAVES - 1 + ROOM_DELTA_PAGES);
  t = room_touch (room);
  for (leaf = 0; leaf < ROOM_AREA_LEAVES; ++leaf) {
    room_touch_leaf (&t, 2, leaf, false);
    room_touch_leaf (&t, 3, leaf * ROOM_AREA_LEAVES, true);
  }
  assert (t.leaves == 2 * ROOM_AREA_LEAVES && t.neighbours == 0);
  assert (t.areas == 1 + ROOM_AREA_LEAVES * ROOM_AREA_LEAVES / DELTA_LEAVES);
  end ();
}

/* An empty pool is small, and a large one keeps little extra. */
static void
kept (void)
{
  assert (room_kept_pages (20) + room_kept_wal_pages (20, 1) <= 70);
  assert (room_kept_pages (100000) == 100000 + ROOM_GROWTH_MIN_PAGES);
  assert (room_kept_wal_pages (100000, 1) == ROOM_WAL_MIN_PAGES);
  assert (room_kept_wal_pages (100000, 3) > 2 * ROOM_WAL_MIN_PAGES);
}

int
main (void)
{
  const char *seed_text = getenv ("SEED");
  unsigned i;

  kept ();
  full (20);
  full (1000);
  full (100000);
  limit ();
  two_at_once ();
  small_pool ();
  stretched ();
  unknown ();
  ample ();
  once ();
  neighbours ();
  returns ();
  seed = seed_text ? strtoull (seed_text, NULL, 0) : (uint64_t) time (NULL);
  printf ("SEED=%" PRIu64 "\n", seed);
  for (i = 0; i < 200; ++i, ++seed) {
    rng = rng_make (seed, 0);
    random_life (rng_between (&rng, 18, i % 2 ? 40 : 20000),
                 rng_between (&rng, 1000, 200000), 2000);
  }
  /* Short runs, for the space that a new pool takes at once. */
  for (i = 0; i < 2000; ++i, ++seed) {
    rng = rng_make (seed, 0);
    random_life (rng_between (&rng, 18, 200), 2000,
                 (unsigned) rng_between (&rng, 5, 50));
  }
  return 0;
}
