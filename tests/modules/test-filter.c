/* SPDX-License-Identifier: BSD-3-Clause */

/* The filter in front of the hash index: it answers for new blocks, and it
 * loses none of the old ones.  See engine-rig.h.
 */

#include <config.h>

#include "core/ddt.h"
#include "core/filter.h"
#include "core/txg.h"
#include "data/writeback.h"
#include "meta/meta.h"
#include "rigs/engine-rig.h"
#include "rigs/plants.h"

#define NR_NUMBERS 100000u

static void
test_no_is_right (void)
{
  struct filter *f = filter_new (NR_NUMBERS * FILTER_BITS / 8);
  struct rng rng = rng_make (1, 1);
  unsigned i, wrong = 0;

  expect (f != NULL);
  for (i = 0; i < NR_NUMBERS; ++i)
    filter_add (f, rng_next (&rng));
  rng = rng_make (1, 1);
  for (i = 0; i < NR_NUMBERS; ++i)
    expect (filter_may_have (f, rng_next (&rng)));
  for (i = 0; i < NR_NUMBERS; ++i)
    wrong += filter_may_have (f, rng_next (&rng));
  expect (wrong > 0 && wrong < NR_NUMBERS / 50);
  filter_free (f);
}

static uint64_t
filter_bytes_now (void)
{
  struct ddt_info info;

  ddt_get_info (pool->ddt, &info);
  return info.filter_bytes;
}

/* Write new blocks until there is a filter; returns the next content. */
static uint64_t
make_filter (uint64_t content)
{
  unsigned ms;

  for (ms = 0; filter_bytes_now () == 0; ++ms) {
    if (ms == GIVE_UP_MS)
      die ("there is no filter");
    write_blocks (0, 64, content);
    content += 64;
    must (writeback_drain (pool->writeback, NULL));
    poll (NULL, 0, 1);
  }
  return content;
}

/* The contents from 'content' on, written where they are not, become no new
 * records.  The cache must not answer in the filter's place.
 */
static void
expect_duplicates (uint64_t content, unsigned nr)
{
  const uint64_t before = pool_figure ("records");

  settle ();
  expect (filter_bytes_now () > 0);
  ddt_forget_clean (pool->ddt);
  write_blocks (NR_BLOCKS / 2, nr, content);
  settle ();
  expect (pool_figure ("records") == before);
}

/* A lookup in pool.db would wait for a reader. */
static bool
are_written_without_pool_db (uint64_t content)
{
  struct job flush;
  unsigned ms;
  bool done;

  stall ();
  write_blocks (0, 8, content);
  job_start (&flush, do_flush, 0);
  for (ms = 0; !flush.done && ms < GIVE_UP_MS / 6; ++ms)
    poll (NULL, 0, 1);
  done = flush.done;
  unstall ();
  job_end (&flush);
  return done;
}

/* One in a few thousand looks known. */
static void
test_new_blocks_need_no_pool_db (void)
{
  unsigned i;

  start (1);
  make_filter (1);
  settle ();
  for (i = 0; !are_written_without_pool_db ((UINT64_C (1) << 40) + 8 * i); ++i)
    expect (i < 3);
  end ();
}

/* Those from before the filter, from before this opening, and those that were
 * only in memory when it was made.
 */
static void
test_old_blocks_are_found (void)
{
  uint64_t content;

  start (1);
  write_blocks (512, 64, 1000000);
  settle ();
  reopen_pool ();
  write_blocks (600, 64, 2000000);
  content = make_filter (1);
  write_blocks (700, 64, content);
  settle ();
  expect_duplicates (1000000, 64);
  expect_duplicates (2000000, 64);
  expect_duplicates (content, 64);
  end ();
}

/* As a repair does after it has added entries to the index. */
static void
test_forgotten (void)
{
  uint64_t content;

  start (1);
  write_blocks (512, 64, 1000000);
  content = make_filter (1);
  ddt_forget_filter (pool->ddt);
  expect (filter_bytes_now () == 0);
  write_blocks (600, 64, 2000000);
  make_filter (content);
  expect_duplicates (1000000, 64);
  expect_duplicates (2000000, 64);
  end ();
}

static int
lose_index (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  empty_index (c, state);
  state->index_entries = 0;
  return 0;
}

/* The filter was made of an index that had lost its entries, and a repair has
 * put them back.
 */
static void
test_repaired (void)
{
  uint64_t content;

  start (1);
  write_blocks (512, 64, 1000000);
  settle ();
  must (txg_run (pool->txg, lose_index, NULL, NULL));
  content = make_filter (1);
  run ("check", json_pack ("{s:b}", "repair", 1));
  make_filter (content);
  expect_duplicates (1000000, 64);
  end ();
}

/* It outgrows its first size.  All its blocks are found. */
static void
test_grows (void)
{
  const uint64_t content = 4000000;
  struct nbdedup_volume *v;
  uint8_t buf[BLOCK];
  uint64_t first, nr, i;
  unsigned ms;

  start (2);
  /* It has room for twice as many as were written until it was there. */
  nr = 10000 + 2 * make_filter (1);
  first = filter_bytes_now ();
  run ("create",
       json_pack ("{s:s, s:I, s:i}", "name", "large", "size",
                  (json_int_t) (nr * BLOCK), "block-size", (int) BLOCK));
  v = open_volume ("large");
  for (i = 0; i < nr; ++i) {
    fill (buf, content + i);
    must (nbdedup_volume_write (v, buf, BLOCK, i * BLOCK));
  }
  for (ms = 0; filter_bytes_now () <= first; ++ms) {
    if (ms == GIVE_UP_MS)
      die ("the filter does not grow");
    poll (NULL, 0, 1);
  }
  expect_duplicates (content, 64);
  expect_duplicates (content + nr - 64, 64);
  nbdedup_volume_close (v);
  end ();
}

/* Entries that a rewrite puts back in the index are found, also through a filter
 * that was made while they were not there.
 */
static void
test_put_back (void)
{
  start (1);
  write_blocks (100, 300, 1000);
  settle ();
  run ("prune", json_pack ("{s:i}", "percent", 100));
  make_filter (100000);
  run ("rewrite", json_pack ("{s:s,s:b}", "name", "v", "dedup", 1));
  expect_duplicates (1000, 300);
  end ();
}

static const struct engine_case cases[] = {
  CASE (no_is_right),
  CASE (put_back),
  CASE (new_blocks_need_no_pool_db),
  CASE (old_blocks_are_found),
  CASE (forgotten),
  CASE (repaired),
  CASE (grows),
  { NULL, NULL },
};

/* test-filter [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}
