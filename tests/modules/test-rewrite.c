/* SPDX-License-Identifier: BSD-3-Clause */

/* A rewrite gives records another form, and lets equal ones become one, for all
 * that refer to them; whatever clients and crashes do.  See engine-rig.h.
 */

#include <config.h>

#include <errno.h>

#include "core/moves.h"
#include "core/txg.h"
#include "data/verify.h"
#include "data/volume-types.h"
#include "data/writeback.h"
#include "meta/meta-index.h"
#include "report/copier.h"
#include "rigs/engine-rig.h"
#include "service/command.h"
#include "space/space.h"

/* Blocks that have text, which every codec makes smaller. */
#define NR_TEXTS 600u

static void
fill_with_text (uint8_t buf[BLOCK], uint64_t content)
{
  size_t off;

  for (off = 0; off < BLOCK; off += 32)
    snprintf ((char *) buf + off, 32, "%15" PRIu64 " %14zu\n", content,
              off * content % 9973);
}

static void
write_text (uint64_t block, uint64_t content)
{
  uint8_t buf[BLOCK];

  fill_with_text (buf, content);
  must (nbdedup_volume_write (handle, buf, BLOCK, block * BLOCK));
}

static void
expect_text_of (struct nbdedup_volume *h, uint64_t block, uint64_t content)
{
  uint8_t buf[BLOCK], wanted[BLOCK];

  fill_with_text (wanted, content);
  must (nbdedup_volume_read (h, buf, BLOCK, block * BLOCK));
  expect (memcmp (buf, wanted, BLOCK) == 0);
}
#define expect_text(block, content) expect_text_of (handle, block, content)

static void
set (const char *property, const char *value)
{
  run ("set",
       json_pack ("{s:s,s:s,s:s}", "property", property, "value", value, "name",
                  "v"));
}

static json_t *
rewrite (const char *name, bool dedup)
{
  json_t *result = call ("rewrite",
                         json_pack ("{s:s,s:b}", "name", name, "dedup", dedup));

  check_pool ();
  return result;
}

/* Returns one of the figures. */
static uint64_t
rewrite_and_get (const char *name, bool dedup, const char *key)
{
  json_t *result = rewrite (name, dedup);
  uint64_t n = (uint64_t) number (result, key);

  json_decref (result);
  return n;
}

static void
scrub_pool (void)
{
  json_t *result = call ("scrub", NULL);

  expect (number (result, "errors") == 0);
  json_decref (result);
}

/* Text, stored raw, and behind it as many blocks that do not compress. */
static void
write_texts (void)
{
  uint64_t i;

  set ("compress", "none");
  for (i = 0; i < NR_TEXTS; ++i)
    write_text (i, 1000 + i);
  write_blocks (NR_TEXTS, NR_TEXTS, 5000);
  settle ();
}

static void
expect_texts (void)
{
  uint64_t i;

  for (i = 0; i < NR_TEXTS; ++i)
    expect_text (i, 1000 + i);
  for (i = 0; i < NR_TEXTS; ++i)
    expect_content (NR_TEXTS + i, 5000 + i);
}

/* What cannot be smaller stays where it is, and the figures are true. */
static void
test_form (void)
{
  static const char *const names[] = { "lz4", "zstd-9", "none", "zstd" };
  uint64_t before, address;
  json_t *result;
  unsigned i;

  start (1);
  write_texts ();
  address = address_of (NR_TEXTS);
  for (i = 0; i < 4; ++i) {
    before = pool_figure ("stored_bytes");
    set ("compress", names[i]);
    result = rewrite ("v", false);
    expect (number (result, "records") == 2 * NR_TEXTS);
    expect (number (result, "rewritten_records") == NR_TEXTS);
    expect (before - (uint64_t) number (result, "before_bytes") +
              (uint64_t) number (result, "after_bytes") ==
            pool_figure ("stored_bytes"));
    json_decref (result);
    expect ((pool_figure ("stored_bytes") == 2 * NR_TEXTS * BLOCK) == (i == 2));
    expect_texts ();
    expect (rewrite_and_get ("v", false, "rewritten_records") == 0);
    expect (rewrite_and_get ("v", false, "before_bytes") == 0);
  }
  expect (address_of (NR_TEXTS) == address);
  write_text (2000, 1005); /* what was rewritten is found */
  settle ();
  expect (address_of (2000) == address_of (5));
  scrub_pool ();
  reopen_pool ();
  expect_texts ();
  end ();
}

/* A content that only zstd makes smaller keeps its form. */
static void
fill_with_digits (uint8_t buf[BLOCK], uint64_t content)
{
  unsigned i;

  fill (buf, content);
  for (i = 0; i < BLOCK; ++i)
    buf[i] &= 15;
}

static void
test_no_worse_form (void)
{
  uint8_t buf[BLOCK], wanted[BLOCK];
  uint64_t stored;

  start (1);
  set ("compress", "zstd");
  fill_with_digits (wanted, 7);
  must (nbdedup_volume_write (handle, wanted, BLOCK, 0));
  settle ();
  stored = pool_figure ("stored_bytes");
  expect (stored < BLOCK);
  set ("compress", "lz4");
  expect (rewrite_and_get ("v", false, "rewritten_records") == 0);
  expect (pool_figure ("stored_bytes") == stored);
  must (nbdedup_volume_read (handle, buf, BLOCK, 0));
  expect (memcmp (buf, wanted, BLOCK) == 0);
  end ();
}

/* All that refers to a record gets the new one. */
static void
test_sharing (void)
{
  struct nbdedup_volume *clone, *snapshot;
  uint64_t i, records;

  start (1);
  write_texts ();
  run ("snapshot", json_pack ("{s:s}", "name", "v@s"));
  run ("clone", json_pack ("{s:s,s:s}", "snapshot", "v@s", "name", "c"));
  clone = open_volume ("c");
  snapshot = open_name ("v@s");
  write_text (2000, 1007); /* a duplicate, in the head */
  write_blocks (0, 1, 77); /* so that only the snapshot has the text */
  settle ();
  records = pool_figure ("records");
  set ("compress", "zstd");
  /* The snapshot's own record is not the volume's. */
  expect (rewrite_and_get ("v", false, "rewritten_records") == NR_TEXTS - 1);
  expect (rewrite_and_get ("v@s", false, "rewritten_records") == 1);
  expect (rewrite_and_get ("c", false, "rewritten_records") > 0); /* lz4 */
  expect (pool_figure ("records") == records);
  expect (address_of (2000) == address_of (7));
  for (i = 0; i < NR_TEXTS; ++i) {
    expect_text_of (clone, i, 1000 + i);
    expect_text_of (snapshot, i, 1000 + i);
  }
  expect_content (0, 77);
  expect_text (2000, 1007);
  nbdedup_volume_close (clone);
  nbdedup_volume_close (snapshot);
  scrub_pool ();
  end ();
}

/*----------------------------------------------------------------------
 * Dedup
 */

static uint64_t
nr_entries (void)
{
  struct meta_state state;

  txg_get_state (pool->txg, &state);
  return state.index_entries;
}

/* Three times the same content without dedup: one record is left, which later
 * writes find.
 */
static void
test_dedup (void)
{
  unsigned i;

  start (1);
  set ("dedup", "off");
  for (i = 0; i < 3; ++i)
    write_blocks (i * 500, 300, 1000);
  settle ();
  expect (pool_figure ("records") == 900 && nr_entries () == 0);
  expect (rewrite_and_get ("v", false, "joined_records") == 0);
  expect (rewrite_and_get ("v", true, "joined_records") == 600);
  expect (pool_figure ("records") == 300 && nr_entries () == 300);
  expect (pool_figure ("stored_bytes") == 300 * BLOCK);
  set ("dedup", "on");
  write_blocks (1700, 300, 1000);
  settle ();
  expect (pool_figure ("records") == 300);
  expect (address_of (1700) == address_of (500));
  expect (rewrite_and_get ("v", true, "indexed_records") == 0);
  for (i = 0; i < 300; ++i)
    expect_content (1000 + i, 1000 + i);
  scrub_pool ();
  end ();
}

/* What prune removed comes back, and joins what was stored since. */
static void
test_pruned (void)
{
  start (1);
  write_blocks (0, 300, 1000);
  settle ();
  run ("prune", json_pack ("{s:i}", "percent", 100));
  expect (nr_entries () == 0);
  write_blocks (500, 100, 1000);
  settle ();
  expect (pool_figure ("records") == 400 && nr_entries () == 100);
  expect (rewrite_and_get ("v", true, "joined_records") == 100);
  expect (pool_figure ("records") == 300 && nr_entries () == 300);
  expect (address_of (500) == address_of (0));
  end ();
}

static void
test_quota (void)
{
  json_t *result;

  start (1);
  write_blocks (0, 300, 1000);
  settle ();
  run ("prune", json_pack ("{s:i}", "percent", 100));
  run ("set",
       json_pack ("{s:s,s:s}", "property", "ddt-quota", "value", "5000"));
  result = rewrite ("v", true);
  expect (number (result, "indexed_records") == 100);
  expect (number (result, "over_quota_records") == 200);
  json_decref (result);
  expect (nr_entries () == 100);
  end ();
}

static void
write_twice (void)
{
  set ("dedup", "off");
  write_blocks (0, NR_BLOCKS / 2, 1000);
  write_blocks (NR_BLOCKS / 2, NR_BLOCKS / 2, 1000);
  settle ();
}

static void
expect_twice (void)
{
  uint64_t i;

  for (i = 0; i < NR_BLOCKS; ++i)
    expect_content (i, 1000 + i % (NR_BLOCKS / 2));
}

/* A record that is damaged neither joins another nor is joined. */
static void
test_damage (void)
{
  json_t *result;

  start (1);
  set ("dedup", "off");
  set ("compress", "none");
  write_text (0, 1);
  write_text (1, 1);
  settle ();
  fail_reads = 1;
  expect (rewrite_and_get ("v", true, "joined_records") == 0);
  expect (pool_figure ("records") == 2);
  expect (rewrite_and_get ("v", true, "joined_records") == 1);
  set ("compress", "lz4");
  fail_reads = 1;
  result = rewrite ("v", false);
  expect (number (result, "damaged_records") == 1);
  expect (number (result, "rewritten_records") == 0);
  json_decref (result);
  expect (rewrite_and_get ("v", false, "rewritten_records") == 1);
  expect_text (0, 1);
  expect_text (1, 1);
  end ();
}

/*----------------------------------------------------------------------
 * Moves to records that pool.db has: folds, step by step
 */

static struct record
record_of (uint64_t block)
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  struct blob row = { NULL };
  struct record r;

  expect (meta_record_find (c, address_of (block), &row, &r) == 1);
  meta_reader_put (pool->meta, c);
  blob_free (&row);
  return r;
}

/* Let the record of block 'from' go to that of block 'to'. */
static void
begin_join (uint64_t from, uint64_t to)
{
  const struct record old = record_of (from);
  struct moves_batch batch = { NULL };

  batch.p = calloc (1, sizeof *batch.p);
  batch.segments = calloc (1, sizeof *batch.segments);
  expect (batch.p && batch.segments);
  batch.p[0] = (struct move) {
    .record = record_of (to),
    .old = old.ptr,
    .inserted = true,
  };
  batch.nr = batch.nr_segments = 1;
  batch.segments[0] = old.ptr.addr / (SEGMENT_BYTES / pool->sector_bytes);
  expect (space_drain_one (pool->space, batch.segments[0]) == 1);
  expect (space_drain_one (pool->space, batch.segments[0]) == 0);
  expect (moves_begin (pool->moves, &batch));
}

static void
fold (unsigned rows)
{
  pool->moves->rows = rows;
  settle ();
}

/* Block 0 and 1000 have equal records, the second is in block 1900, too. */
static void
start_equal (void)
{
  start (1);
  set ("dedup", "off");
  write_block (0, 9);
  settle ();
  set ("dedup", "on");
  write_block (1000, 9);
  write_block (1900, 9);
  settle ();
  expect (address_of (0) != address_of (1000));
  expect (address_of (1900) == address_of (1000));
}

static void
test_join_in_steps (void)
{
  start_equal ();
  write_block (5, 10); /* so that the segment is not empty */
  settle ();
  begin_join (1000, 0);
  while (pool->moves->under_way) {
    fold (1);
    check_pool ();
  }
  expect (address_of (1000) == address_of (0));
  expect (address_of (1900) == address_of (0));
  expect (pool_figure ("records") == 2);
  scrub_pool ();
  end ();
}

/* The other record dies before the folds get there, and another one takes its
 * sectors: a pointer to it would show that.
 */
static void
test_join_with_the_dead (void)
{
  uint64_t address;

  start_equal ();
  address = address_of (0);
  begin_join (1000, 0);
  trim_block (0);
  fold (0);
  fold (0);
  /* Draining keeps new records out of there; the end of it is not this test's
   * concern.
   */
  while (pool->moves->under_way)
    fold (100);
  expect (address_of (1000) != address);
  expect_content (1000, 9);
  expect_content (1900, 9);
  expect (pool_figure ("records") == 1);
  end ();
}

/* In the fold that moves them, the last reference that it had goes. */
static void
trim_first (void)
{
  trim_block (0);
  must (writeback_drain (pool->writeback, NULL));
}

static void
test_join_with_the_dying (void)
{
  start_equal ();
  begin_join (1000, 0);
  trim_first ();
  pool->moves->rows = 100;
  settle ();
  while (pool->moves->under_way)
    fold (100);
  expect (address_of (1000) == address_of (1900));
  expect_content (0, 0);
  expect_content (1000, 9);
  expect_content (1900, 9);
  expect (pool_figure ("records") == 1);
  end ();
}

/*----------------------------------------------------------------------
 * Clients, interruption, crashes
 */

static void
write_duplicate (void)
{
  if (!pool->moves->under_way) {
    at_sync_of_records = write_duplicate; /* not yet */
    return;
  }
  write_text (1800, 1005);
  must (writeback_drain (pool->writeback, NULL));
}

/* A client refers to the old record while a fold replaces it: that stays, and
 * nothing is counted as saved.
 */
static void
test_new_reference_to_the_old (void)
{
  uint64_t before, old;
  json_t *result;

  start (1);
  write_texts ();
  old = address_of (5);
  before = pool_figure ("stored_bytes");
  set ("compress", "zstd");
  at_sync_of_records = write_duplicate;
  result = rewrite ("v", false);
  expect (at_sync_of_records == NULL);
  expect (before - (uint64_t) number (result, "before_bytes") +
            (uint64_t) number (result, "after_bytes") ==
          pool_figure ("stored_bytes"));
  json_decref (result);
  expect (address_of (5) != old && address_of (1800) == old);
  expect_text (1800, 1005);
  /* The next run makes one record of the two. */
  result = rewrite ("v", true);
  json_decref (result);
  expect (pool_figure ("records") == 2 * NR_TEXTS);
  expect (address_of (1800) == address_of (5));
  expect_texts ();
  end ();
}

/* Sectors that records leave go to no others before all maps were read. */
static uint64_t old_segment;
static bool was_drained;

static void
look_at_segment (void)
{
  if (pool->moves->under_way)
    was_drained = space_drain_one (pool->space, old_segment) == 0;
  else
    at_sync_of_records = look_at_segment; /* not yet */
}

static void
test_drains (void)
{
  start (1);
  write_texts ();
  old_segment = address_of (5) / (SEGMENT_BYTES / pool->sector_bytes);
  set ("compress", "zstd");
  at_sync_of_records = look_at_segment;
  run ("rewrite", json_pack ("{s:s}", "name", "v"));
  expect (at_sync_of_records == NULL && was_drained);
  expect (space_drain_one (pool->space, old_segment) == 1);
  expect (space_undrain (pool->space, &old_segment, 1) == 0);
  expect_texts ();
  end ();
}

static unsigned nr_calls, interrupt_at;

static int
interrupt (void *opaque, uint64_t done, uint64_t total)
{
  (void) opaque;
  expect (done <= total);
  return ++nr_calls >= interrupt_at;
}

static void
test_interrupted (void)
{
  json_t *args = json_pack ("{s:s,s:b}", "name", "v", "dedup", 1), *result;
  unsigned runs = 0;
  int err;

  start (1);
  write_twice ();
  set ("compress", "zstd");
  for (interrupt_at = 1;; interrupt_at += interrupt_at / 3 + 1, ++runs) {
    nr_calls = 0;
    result = command_run (pool, "rewrite", args, interrupt, NULL);
    err = errno;
    check_pool ();
    if (result)
      break;
    /* ECANCELED: a thread of the server had its turn when it began. */
    expect (err == EINTR || err == ECANCELED);
    expect (!pool->moves->under_way);
  }
  json_decref (result);
  json_decref (args);
  expect (runs > 10);
  expect (pool_figure ("records") == NR_BLOCKS / 2);
  expect_twice ();
  scrub_pool ();
  end ();
}

/* A rewrite waits for those who hold the moves back. */
static void
do_rewrite (uint64_t arg)
{
  (void) arg;
  run ("rewrite", json_pack ("{s:s}", "name", "v"));
}

static void
test_held_back (void)
{
  struct job job;
  uint64_t old;

  start (1);
  write_texts ();
  old = address_of (5);
  set ("compress", "lz4");
  must (txg_hold_moves (pool->txg));
  job_start (&job, do_rewrite, 0);
  poll (NULL, 0, A_WHILE_MS);
  expect (!job.done && address_of (5) == old);
  txg_release_moves (pool->txg);
  job_end (&job);
  expect (address_of (5) != old);
  expect_texts ();
  end ();
}

/* A record leaves its copies behind, and gets others. */
static void
test_copies (void)
{
  struct verifier v;
  uint64_t bytes = 0;

  start (1);
  write_texts ();
  run ("set", json_pack ("{s:s,s:s}", "property", "copies", "value", "2:1"));
  must (verifier_init (&v, pool));
  expect (copier_copy (pool, &v, address_of (5), &bytes) == 1);
  settle ();
  set ("compress", "lz4");
  expect (rewrite_and_get ("v", false, "rewritten_records") == NR_TEXTS);
  expect (copier_copy (pool, &v, address_of (5), &bytes) == 1);
  verifier_free (&v);
  settle ();
  check_pool ();
  expect_texts ();
  scrub_pool ();
  end ();
}

/* A process ends at any sync. */
static void
rewrite_all (void)
{
  run ("rewrite", json_pack ("{s:s,s:b}", "name", "v", "dedup", 1));
  write_text (0, 1001);
  write_block (NR_TEXTS, 5001);
  must (nbdedup_volume_flush (handle));
}

static void
test_crash (void)
{
  unsigned nth;
  bool killed = true;
  uint64_t i;

  start (1);
  set ("dedup", "off");
  write_texts ();
  write_texts ();
  for (i = 1; i < 100; ++i)
    write_text (1500 + i, 1000 + i);
  set ("compress", "zstd");
  settle ();
  close_pool ();
  for (nth = 1; killed; ++nth) {
    killed = crashes_at_sync (nth, open_and_attach, rewrite_all);
    open_and_attach ();
    check_pool ();
    scrub_pool ();
    for (i = 1; i < NR_TEXTS; ++i)
      expect_text (i, 1000 + i);
    for (i = 1; i < 100; ++i)
      expect_text (1500 + i, 1000 + i);
    for (i = 1; i < NR_TEXTS; ++i)
      expect_content (NR_TEXTS + i, 5000 + i);
    close_pool ();
  }
  expect (nth > 8);
  open_and_attach ();
  /* The two that it wrote behind the rewrite. */
  expect (rewrite_and_get ("v", true, "joined_records") == 2);
  expect (pool_figure ("records") == 2 * NR_TEXTS - 2);
  end ();
}

int
main (int argc, char *argv[])
{
  static const struct engine_case cases[] = {
    CASE (crash),
    CASE (form),
    CASE (no_worse_form),
    CASE (sharing),
    CASE (dedup),
    CASE (pruned),
    CASE (quota),
    CASE (damage),
    CASE (drains),
    CASE (join_in_steps),
    CASE (join_with_the_dead),
    CASE (join_with_the_dying),
    CASE (new_reference_to_the_old),
    CASE (interrupted),
    CASE (held_back),
    CASE (copies),
    { NULL },
  };

  return run_cases (argc, argv, cases);
}
