/* SPDX-License-Identifier: BSD-3-Clause */

/* The caches of leaves and records must not keep what is no longer true.  See
 * engine-rig.h.
 */

#include <config.h>

#include "core/ddt-int.h"
#include "core/ddt.h"
#include "core/leaf-cache.h"
#include "core/map.h"
#include "core/record-cache.h"
#include "core/txg.h"
#include "data/volume-types.h"
#include "data/writeback.h"
#include "format/format.h"
#include "meta/meta.h"
#include "rigs/engine-rig.h"

static void
do_look (uint64_t block)
{
  struct pointer ptr; /* not followed */
  uint8_t state;

  must (map_get (pool->map, volume->layer, block, 1, &state, &ptr));
}

static bool
is_cached (struct record_cache *c, uint64_t addr, uint64_t cksum)
{
  uint8_t byte;

  return record_cache_get (c, addr, cksum, &byte, 0, 1);
}

static void
test_record_cache_keeps_its_budget (void)
{
  struct record_cache *c = record_cache_new (1 << 20);
  static uint8_t buf[BLOCK];
  unsigned i, nr = 0;

  expect (c != NULL);
  for (i = 0; i < 1000; ++i)
    record_cache_put (c, i + 1, i, buf, sizeof buf);
  for (i = 0; i < 1000; ++i)
    nr += is_cached (c, i + 1, i);
  expect (nr > 128 && nr * BLOCK <= 1 << 20);
  expect (is_cached (c, 1000, 999));
  record_cache_free (c);
}

/* How many records it lets in: their addresses, or the same one. */
static unsigned
count_admitted (struct record_cache *c, unsigned first, unsigned nr, bool same)
{
  unsigned i, admitted = 0;

  for (i = 0; i < nr; ++i)
    admitted += record_cache_admits (c, same ? first : first + i, BLOCK, false);
  return admitted;
}

static unsigned
fill_record_cache (struct record_cache *c)
{
  static const uint8_t buf[BLOCK];
  unsigned i;

  for (i = 1; record_cache_admits (c, i, sizeof buf, false); ++i) {
    expect (i < 1000);
    record_cache_put (c, i, 0, buf, sizeof buf);
  }
  return i - 1;
}

/* A full cache takes nothing that is read once, however much that is; and of
 * what is read again soon as much as its hits pay for, or a little without any.
 */
static void
test_record_cache_lets_scans_pass (void)
{
  struct record_cache *c = record_cache_new (1 << 20);
  unsigned i;

  expect (c != NULL);
  expect (fill_record_cache (c) > 128);
  expect (count_admitted (c, 1000, 1000, false) == 0);
  /* The latest marks are still there, and the oldest have been replaced. */
  expect (count_admitted (c, 1999, 160, true) == 10);
  expect (count_admitted (c, 1000, 600, false) == 0);
  for (i = 0; i < 40 * BLOCK; ++i)
    expect (is_cached (c, 1, 0));
  i = count_admitted (c, 1599, 10, true);
  expect (i == 10);
  for (i = 0; i < BLOCK * 1000; ++i)
    expect (is_cached (c, 1, 0));
  i = count_admitted (c, 1599, 160, true);
  expect (i > 40 && i < 50); /* no more for the many hits than for some */
  /* No mark lets in what would take more than its share. */
  expect (!record_cache_admits (c, 1, 1 << 19, false));
  expect (!record_cache_admits (c, 1, 1 << 19, false));
  record_cache_free (c);
}

/* Once a quarter is full, what costs a read little comes at its second read,
 * and everything else at its first while there is room.
 */
static void
test_record_cache_takes_cheap_ones_later (void)
{
  static const uint8_t buf[BLOCK];
  struct record_cache *c = record_cache_new (1 << 20);
  unsigned i;

  expect (c != NULL);
  for (i = 100; record_cache_admits (c, i, BLOCK, true); ++i) {
    expect (i < 1000);
    record_cache_put (c, i, 0, buf, sizeof buf);
  }
  expect ((i - 100) * BLOCK > (1 << 20) / 5);
  expect ((i - 100) * BLOCK < (1 << 20) / 3);
  expect (record_cache_admits (c, 1, BLOCK, false));
  expect (!record_cache_admits (c, 2, BLOCK, true));
  expect (record_cache_admits (c, 2, BLOCK, true));
  expect (record_cache_admits (c, 2, BLOCK, true));
  record_cache_free (c);
}

static void
put_records (struct record_cache *c, unsigned first, unsigned nr)
{
  static const uint8_t buf[BLOCK];
  unsigned i;

  for (i = 0; i < nr; ++i)
    record_cache_put (c, first + i, 0, buf, sizeof buf);
}

/* What was used since it came gets another turn, and not a third.  A cache that
 * was all used does not keep everything else out.
 */
static void
test_record_cache_drops_what_was_not_used (void)
{
  struct record_cache *c = record_cache_new (1 << 20);
  unsigned i, nr, used = 0;

  expect (c != NULL);
  nr = fill_record_cache (c);
  for (i = 1; i <= 10; ++i)
    expect (is_cached (c, i, 0));
  put_records (c, 1000, 10);
  for (i = 1; i <= 20; ++i)
    expect (record_cache_has (c, i) == (i <= 10));
  put_records (c, 2000, 2 * nr);
  for (i = 1; i <= 10; ++i)
    expect (!record_cache_has (c, i));

  for (i = 0; i < nr; ++i)
    expect (is_cached (c, 2000 + nr + i, 0));
  put_records (c, 4000, 1);
  expect (record_cache_has (c, 4000));
  for (i = 0; i < nr; ++i)
    used += record_cache_has (c, 2000 + nr + i);
  expect (used == nr - 1);
  record_cache_free (c);
}

/* A few large records, all used, let one in. */
static void
test_record_cache_of_few (void)
{
  struct record_cache *c = record_cache_new (5 * BLOCK);
  unsigned i, nr;

  expect (c != NULL);
  nr = fill_record_cache (c);
  expect (nr == 4);
  for (i = 1; i <= nr; ++i)
    expect (is_cached (c, i, 0));
  put_records (c, 1000, 1);
  expect (record_cache_has (c, 1000) && !record_cache_has (c, 1));
  record_cache_free (c);
}

static void
test_leaf_cache_drops_what_was_not_used (void)
{
  const size_t size = sizeof (struct cached_leaf) + 16 + 100;
  static const uint8_t buf[100];
  struct leaf_cache c;
  uint64_t i;

  must (leaf_cache_init (&c, 10 * size));
  for (i = 0; i < 10; ++i)
    leaf_cache_put (&c, 1, i, 0, buf, sizeof buf);
  for (i = 0; i < 10; i += 2)
    expect (leaf_cache_find (&c, 1, i) != NULL);
  for (i = 10; i < 15; ++i)
    leaf_cache_put (&c, 1, i, 0, buf, sizeof buf);
  leaf_cache_assert_consistent (&c, true);
  for (i = 0; i < 10; ++i)
    expect ((leaf_cache_find (&c, 1, i) != NULL) == (i % 2 == 0));
  leaf_cache_destroy (&c);
}

/* A pointer with another checksum than the record at its address, such as one
 * from another pool's pool.db, gets nothing.
 */
static void
test_record_cache_compares_checksums (void)
{
  struct record_cache *c = record_cache_new (1 << 20);
  static const uint8_t content[BLOCK] = { 1 };
  uint8_t buf[BLOCK];

  expect (c != NULL);
  record_cache_put (c, 7, 0x1234, content, sizeof content);
  expect (!record_cache_get (c, 7, 0x1235, buf, 0, sizeof buf));
  expect (record_cache_get (c, 7, 0x1234, buf, 0, sizeof buf));
  expect (memcmp (buf, content, sizeof buf) == 0);
  record_cache_free (c);
}

static void
test_leaf_cache_follows_the_fold (void)
{
  start (1);
  write_block (5, 1);
  settle ();
  expect_content (5, 1); /* now the leaf is cached */
  trim_block (5);
  settle ();
  expect_content (5, 0);
  write_block (5, 2);
  settle ();
  expect_content (5, 2);
  write_block (5, 3);
  settle ();
  expect_content (5, 3);
  end ();
}

/* A lookup that began before a fold, and reads a leaf in an older state of
 * pool.db, does not put the leaf into the cache after the fold.
 */
static void
test_leaf_cache_takes_nothing_old (void)
{
  struct meta_state state;
  struct job look;
  unsigned i;

  start (1);
  write_block (5, 1);
  settle ();
  close_pool ();
  open_and_attach ();               /* no leaf is cached */
  write_block (LEAF_BLOCKS * 3, 2); /* but the segment's map is */
  settle ();
  stall ();
  for (i = 0; i < NR_READERS; ++i) {
    must (meta_freeze (readers[i]));
    must (meta_state_get (readers[i], &state));
  }
  job_start (&look, do_look, 5);
  poll (NULL, 0, A_WHILE_MS); /* the job has looked in memory, and waits */
  trim_block (5);
  must (txg_run (pool->txg, NULL, NULL, NULL));
  unstall ();
  job_end (&look);
  stall ();
  for (i = 0; i < NR_READERS; ++i)
    meta_unfreeze (readers[i]);
  unstall ();
  expect_content (5, 0);
  end ();
}

/* Make block 0's record die, and another one take its address.  Returns the
 * block 'b' that has this record; its content is 'b' + 1000.
 */
static uint64_t
reuse_address_of_block_0 (void)
{
  uint64_t addr = address_of (0), b;

  write_block (0, 2);
  settle ();
  for (b = 100; b < 200; ++b) {
    write_block (b, b + 1000);
    settle ();
    if (address_of (b) == addr)
      return b;
  }
  die ("the space of a dead record is not used again");
}

static void
test_record_cache_forgets (void)
{
  struct pointer ptr;
  uint8_t state;
  uint64_t b;

  start (1);
  write_block (0, 1);
  settle ();
  expect_and_cache (0, 1);
  must (map_get (pool->map, volume->layer, 0, 1, &state, &ptr));
  expect (is_cached (pool->records, ptr.addr, ptr.cksum));
  b = reuse_address_of_block_0 ();
  expect (!is_cached (pool->records, ptr.addr, ptr.cksum));
  expect_content (b, b + 1000);
  end ();
}

static bool
is_block_cached (uint64_t block)
{
  return record_cache_has (pool->records, address_of (block));
}

/* In a full cache: further reads, or a CACHE request, bring a record in. */
static void
test_full_record_cache (void)
{
  const uint64_t foreign = UINT64_C (1) << 40;
  static uint8_t buf[BLOCK];
  unsigned reads = 0;
  uint64_t i;

  start (1);
  write_blocks (0, 2, 1);
  settle ();
  for (i = foreign; record_cache_admits (pool->records, i, BLOCK, false); ++i) {
    expect (i < foreign + 100000);
    record_cache_put (pool->records, i, 0, buf, BLOCK);
  }
  expect_content (0, 1);
  expect (!is_block_cached (0));
  for (; !is_block_cached (0); ++reads) {
    expect (reads < 20);
    expect_content (0, 1);
  }
  expect (!is_block_cached (1));
  must (nbdedup_volume_cache (handle, BLOCK, BLOCK));
  expect (is_block_cached (1));
  expect_content (1, 2);
  end ();
}

static void
test_index_forgets (void)
{
  struct meta_state before, after;

  start (1);
  write_block (0, 1);
  settle ();
  txg_get_state (pool->txg, &before);
  expect (before.index_entries == 1);
  reuse_address_of_block_0 ();
  txg_get_state (pool->txg, &after);
  expect (after.index_entries == after.records);
  write_block (1, 1); /* the index had an address for this hash */
  settle ();
  expect_content (1, 1);
  end ();
}

/* How many of these lookups memory answers, all of records in pool.db. */
static uint64_t
hits (uint64_t content, unsigned nr)
{
  struct ddt_info before, after;

  ddt_get_info (pool->ddt, &before);
  write_blocks (NR_BLOCKS / 2, nr, content);
  must (writeback_drain (pool->writeback, NULL));
  ddt_get_info (pool->ddt, &after);
  expect (after.hits + after.misses - before.hits - before.misses == nr);
  return after.hits - before.hits;
}

/* A second hit near the first one brings the records that follow into memory;
 * hits far from each other bring only themselves.
 */
static void
test_neighbours (void)
{
  const unsigned nr = NR_BLOCKS / 2;
  struct ddt_info before, after;
  unsigned i;

  start (1);
  write_blocks (0, nr, 1);
  settle ();
  ddt_forget_clean (pool->ddt);
  ddt_get_info (pool->ddt, &before);
  expect (hits (1, 1) == 0);
  expect (hits (1, 1) == 1);
  expect (hits (2, 1) == 0);
  expect (hits (3, 8) == 8);
  ddt_forget_clean (pool->ddt);
  for (i = 0; i < nr; i += nr / 2)
    expect (hits (1 + i, 1) == 0);
  ddt_get_info (pool->ddt, &after);
  expect (after.hits - before.hits == 9);
  end ();
}

/* How many lookups of this content, block after block, go to pool.db. */
static uint64_t
misses_in_order (uint64_t content, unsigned nr)
{
  struct ddt_info before, after;

  ddt_get_info (pool->ddt, &before);
  for (; nr > 0; --nr, ++content)
    (void) hits (content, 1);
  ddt_get_info (pool->ddt, &after);
  return after.misses - before.misses;
}

/* The cache has room for so many entries. */
static void
set_cache (unsigned entries)
{
  struct ddt *ddt = pool->ddt;

  WITH_LOCK (&ddt->lock);
  ddt->budget_bytes = ddt_filter_memory_locked (ddt->filter) +
    entries * CLEAN_BYTES;
}

/* Lookups that go from group to group read one group ahead, then two, four and
 * eight: a look at pool.db for the first two blocks, and for the groups 1, 3,
 * 6, 11, 20 and 29 of 32.  That is so again when the cache has lost them.
 */
static void
test_groups_ahead (void)
{
  const unsigned nr = NR_BLOCKS / 2, group = 32;

  start (1);
  write_blocks (0, nr, 1);
  settle ();
  ddt_forget_clean (pool->ddt);
  set_cache (12 * group);
  expect (misses_in_order (1, nr) == 8);
  expect (misses_in_order (1, nr) == 8);
  expect (misses_in_order (1 + nr - group, group) == 0);
  ddt_forget_clean (pool->ddt);
  set_cache (0);
  expect (misses_in_order (1, 2 * group) == 2 * group);
  end ();
}

/* The run that a lookup searches first. */
static unsigned
first_run (void)
{
  struct index_search search;

  WITH_LOCK (&pool->ddt->lock);
  index_order_get (&pool->ddt->order, &pool->ddt->runs, &search);
  expect (search.nr == index_runs_count (&pool->ddt->runs));
  return search.runs[0];
}

/* ... after so many lookups of this content. */
static unsigned
first_run_after (unsigned nr, uint64_t content)
{
  for (; nr > 0; --nr) {
    ddt_forget_clean (pool->ddt);
    expect (hits (content, 1) == 0);
  }
  return first_run ();
}

/* Lookups search those runs first that had the last hits, and else the largest.
 * Each fold has made a run of its own.
 */
static void
test_order_of_runs (void)
{
  unsigned runs[3], i;

  start (1);
  for (i = 0; i < 3; ++i) {
    write_block (i, i + 1);
    settle ();
  }
  expect (index_runs_count (&pool->ddt->runs) == 3);
  expect (first_run () == 2);
  for (i = 0; i < 3; ++i)
    runs[i] = first_run_after (40, i + 1);
  expect (runs[0] != runs[1] && runs[1] != runs[2] && runs[0] != runs[2]);
  expect (first_run_after (1, 1) == runs[2]);
  expect (first_run_after (20, 1) == runs[0]);
  end ();
}

static const struct engine_case cases[] = {
  CASE (record_cache_keeps_its_budget),
  CASE (record_cache_lets_scans_pass),
  CASE (record_cache_takes_cheap_ones_later),
  CASE (record_cache_drops_what_was_not_used),
  CASE (record_cache_of_few),
  CASE (leaf_cache_drops_what_was_not_used),
  CASE (record_cache_compares_checksums),
  CASE (leaf_cache_follows_the_fold),
  CASE (leaf_cache_takes_nothing_old),
  CASE (record_cache_forgets),
  CASE (full_record_cache),
  CASE (index_forgets),
  CASE (neighbours),
  CASE (groups_ahead),
  CASE (order_of_runs),
  { NULL, NULL },
};

/* test-caches [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}
