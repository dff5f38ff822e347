/* SPDX-License-Identifier: BSD-3-Clause */

/* Records: sharing, references, freeing.  See engine-rig.h. */

#include <config.h>

#include <errno.h>
#include <poll.h>

#include "core/ddt.h"
#include "core/map.h"
#include "core/txg-int.h"
#include "core/txg.h"
#include "data/volume-types.h"
#include "data/writeback.h"
#include "disk/journal.h"
#include "format/codec.h"
#include "format/format.h"
#include "meta/meta.h"
#include "rigs/engine-rig.h"
#include "space/space.h"

static void
test_equal_blocks_in_one_batch (void)
{
  uint8_t *buf = xmalloc (32 * BLOCK);
  uint64_t i;

  start (1);
  for (i = 0; i < 32; ++i)
    fill (buf + i * BLOCK, 1);
  must (nbdedup_volume_write (handle, buf, 32 * BLOCK, 0));
  settle ();
  for (i = 1; i < 32; ++i)
    expect (address_of (i) == address_of (0));
  check_pool ();
  must (nbdedup_volume_trim (handle, 31 * BLOCK, 0));
  settle ();
  expect_content (31, 1);
  free (buf);
  end ();
}

static void
test_overwriting_before_the_fold (void)
{
  struct meta_state state;
  unsigned i;

  start (1);
  for (i = 1; i <= 5; ++i) {
    write_block (0, i);
    must (writeback_drain (pool->writeback, NULL));
  }
  settle ();
  txg_get_state (pool->txg, &state);
  expect (state.records == 1);
  expect_content (0, 5);
  end ();
}

static int
set_domain (const char *domain)
{
  json_t *args = json_pack ("{s:s,s:s,s:s}", "property", "domain", "value",
                            domain, "name", "v");
  json_t *result = nbdedup_call (pool, "set", args);

  json_decref (args);
  json_decref (result);
  return result ? 0 : -1;
}

/* A volume with data keeps its domain: the data is shared within it. */
static void
test_domain_of_a_volume_with_data (void)
{
  start (1);
  nbdedup_volume_close (handle);
  must (set_domain ("red")); /* allowed, as it is empty */
  expect (set_domain ("") == -1 && errno == EINVAL);
  attach ();
  write_block (0, 1);
  nbdedup_volume_close (handle);
  expect (set_domain ("blue") == -1 && errno == EBUSY);
  attach ();
  trim_block (0);
  nbdedup_volume_close (handle);
  must (set_domain ("blue"));
  attach ();
  end ();
}

static void
do_set_domain (uint64_t arg)
{
  (void) arg;
  must (set_domain ("red"));
}

/* A client that attaches after the command has found the volume empty would
 * write in the old domain.
 */
static void
test_nobody_attaches_while_the_domain_is_set (void)
{
  struct job set;

  start (1);
  nbdedup_volume_close (handle);
  txg_enter (pool->txg, 0, 0); /* so "set" can look, but not go on */
  job_start (&set, do_set_domain, 0);
  while (!txg_is_cutting (pool->txg))
    poll (NULL, 0, 1);
  poll (NULL, 0, A_WHILE_MS);
  expect (!set.done);
  expect (nbdedup_volume_open (pool, "v", 0, -1, NULL) == NULL);
  expect (errno == EBUSY);
  txg_leave (pool->txg);
  job_end (&set);
  attach ();
  end ();
}

/* A record is compressed only if that saves a sector. */
static void
test_compressed_only_if_that_saves_a_sector (void)
{
  static const struct {
    unsigned zeroes;
    bool compressed;
  } cases[] = { { 0, false }, { 200, false }, { 450, false }, { 700, true } };
  uint8_t buf[BLOCK];
  struct pointer ptr;
  uint8_t state;
  unsigned i;

  start (1);
  for (i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    fill (buf, i + 1);
    memset (buf + 1000, 0, cases[i].zeroes);
    must (nbdedup_volume_write (handle, buf, BLOCK, i * BLOCK));
    must (writeback_drain (pool->writeback, NULL));
    must (map_get (pool->map, volume->layer, i, 1, &state, &ptr));
    expect (state == MAP_POINTER);
    expect ((ptr.codec != CODEC_NONE) == cases[i].compressed);
    expect (cases[i].compressed ? ptr.psize <= BLOCK - 512
                                : ptr.psize == BLOCK);
  }
  end ();
}

/* If so, it has one more reference. */
static bool
is_in_ddt (struct ddt *ddt, const struct record *r, struct pointer *ptr)
{
  struct ddt_query query = { &r->digest, ptr, false };

  ddt_lookup (ddt, 1, &query, r->lsize, r->domain);
  return query.found;
}

static void
test_dead_or_referred_to (void)
{
  struct record record = {
    .ptr = { .addr = 12345, .psize = BLOCK },
    .lsize = BLOCK,
    .domain = 77,
    .flags = RECORD_INDEXED,
  };
  struct pointer ptr;
  const struct ddt_new new = { &record, 1, &ptr };
  struct ddt *ddt;

  start (1);
  ddt = ddt_new (pool->meta, 1 << 20);
  expect (ddt != NULL);
  fill_random (&record.digest, sizeof record.digest, 1);

  /* The folding txg gives up the last reference, the open one has a new
   * one: the record lives.
   */
  must (ddt_insert (ddt, 1, &new));
  ddt_cut (ddt);
  expect (is_in_ddt (ddt, &record, &ptr));
  expect (ptr.addr == record.ptr.addr);
  expect (!ddt_try_kill (ddt, record.ptr.addr, &record.digest));
  ddt_fold_done (ddt, 1);

  /* It lives even if that reference is gone: the journal may have it. */
  ddt_unref (ddt, record.ptr.addr);
  expect (!ddt_try_kill (ddt, record.ptr.addr, &record.digest));
  ddt_cut (ddt);

  /* Without references it dies, and lookups no longer find it. */
  expect (ddt_try_kill (ddt, record.ptr.addr, &record.digest));
  expect (!is_in_ddt (ddt, &record, &ptr));
  ddt_fold_done (ddt, 0);
  ddt_forget (ddt, record.ptr.addr);
  ddt_free (ddt);
  end ();
}

static void
test_space_waits_for_readers (void)
{
  unsigned ticket;
  struct job fold;

  start (1);
  write_block (0, 1);
  settle ();
  ticket = quiesce_enter (&pool->quiesce);
  write_block (0, 2); /* its lookup enters later, and leaves */
  must (writeback_drain (pool->writeback, NULL));
  job_start (&fold, do_fold, 0);
  poll (NULL, 0, A_WHILE_MS);
  expect (!fold.done);
  quiesce_leave (&pool->quiesce, ticket);
  job_end (&fold);
  expect_content (0, 2);
  end ();
}

/* Figures to check inside the transaction, before the commit. */
struct inside {
  uint64_t fold; /* before, in pool.db */
  uint64_t free_bytes, live_bytes;
  unsigned records_syncs;
  bool disturbed; /* by another fold */
};

static int
look_inside (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct inside *in = arg;
  struct space_info space;
  uint64_t live, ring;

  (void) c;
  if (state->fold != in->fold + 1) {
    in->disturbed = true;
    return 0;
  }
  space_get_info (pool->space, &space);
  journal_get_usage (pool->journal, &live, &ring);
  expect (space.free_bytes <= in->free_bytes);
  expect (live >= in->live_bytes);
  expect (syncs_records > in->records_syncs);
  return 0;
}

static void
test_nothing_is_given_up_before_the_commit (void)
{
  struct inside in = { .disturbed = true };
  struct meta_state state;
  struct space_info space;
  uint64_t ring, live, content = 1;
  unsigned tries;

  start (1);
  write_blocks (0, 256, content);
  settle ();
  for (tries = 0; in.disturbed; ++tries) {
    expect (tries < 10);
    txg_get_state (pool->txg, &state);
    content += 1000;
    write_blocks (0, 256, content);
    must (nbdedup_volume_flush (handle));
    /* Write more, without a flush. */
    write_blocks (256, 256, content + 300);
    must (writeback_drain (pool->writeback, NULL));
    space_get_info (pool->space, &space);
    journal_get_usage (pool->journal, &live, &ring);
    in = (struct inside) {
      .fold = state.fold,
      .free_bytes = space.free_bytes,
      .live_bytes = live,
      .records_syncs = syncs_records,
    };
    must (txg_run (pool->txg, look_inside, NULL, &in));
  }
  expect (live > 0);
  space_get_info (pool->space, &space);
  expect (space.free_bytes > in.free_bytes);
  journal_get_usage (pool->journal, &live, &ring);
  expect (live == 0);
  expect_content (255, content + 255);
  end ();
}

/* A fold gives up the journal's batches, so its commit must be durable, not
 * only the next checkpoint.
 */
static void
test_commit_is_synced (void)
{
  unsigned i, syncs;

  start (1);
  for (i = 1; i <= 5; ++i) {
    write_block (0, i);
    must (writeback_drain (pool->writeback, NULL));
    syncs = syncs_wal;
    must (txg_run (pool->txg, NULL, NULL, NULL));
    expect (syncs_wal > syncs);
  }
  end ();
}

/* Append 'max' batches without entries, or as many as there is room for. */
static void
append_empty_batches (uint64_t max)
{
  uint64_t seq;

  for (; max > 0; --max)
    if (journal_append (pool->journal, NULL, 0, &(struct iovec) { NULL, 0 }, 0,
                        &seq) != 0)
      return;
}

/* A ring that has wrapped cannot grow, so it may be full while it is small.
 * Then the buffer waits for a fold, and nothing else would begin one here.
 */
static void
test_a_full_journal_begins_a_fold (void)
{
  uint64_t live, ring, seq, position, folds, i;
  struct txg_load load;
  unsigned ms;

  start (1);
  {
    WITH_LOCK (&pool->txg->lock);
    pool->txg->fold_interval_ms = UINT64_MAX / 2;
  }
  write_block (0, 1);
  settle ();
  journal_get_usage (pool->journal, &live, &ring);
  append_empty_batches (ring / 512 * 3 / 4);
  journal_get_end (pool->journal, &seq, &position);
  journal_trim (pool->journal, seq, position);
  append_empty_batches (2 * ring / 512);
  journal_get_usage (pool->journal, &live, &ring);
  expect (live > ring / 2 && live < JOURNAL_MAX_BYTES / 4);

  txg_get_load (pool->txg, &load);
  folds = load.folds;
  for (i = 0; i < 8 * NR_BLOCKS; ++i) {
    write_block (i * 7 % NR_BLOCKS, i + 2);
    if (i % NR_BLOCKS == NR_BLOCKS - 1)
      must (writeback_drain (pool->writeback, NULL));
  }
  for (ms = 0; load.folds == folds; ++ms) {
    expect (ms < GIVE_UP_MS);
    poll (NULL, 0, 1);
    txg_get_load (pool->txg, &load);
  }
  end ();
}

static const struct engine_case cases[] = {
  CASE (equal_blocks_in_one_batch),
  CASE (overwriting_before_the_fold),
  CASE (domain_of_a_volume_with_data),
  CASE (nobody_attaches_while_the_domain_is_set),
  CASE (compressed_only_if_that_saves_a_sector),
  CASE (dead_or_referred_to),
  CASE (space_waits_for_readers),
  CASE (nothing_is_given_up_before_the_commit),
  CASE (commit_is_synced),
  CASE (a_full_journal_begins_a_fold),
  { NULL, NULL },
};

/* test-records [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}
