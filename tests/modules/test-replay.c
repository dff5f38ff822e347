/* SPDX-License-Identifier: BSD-3-Clause */

/* The syncs of a flush, and the replay after a crash.  See engine-rig.h. */

#include <config.h>

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "core/txg-int.h"
#include "data/volume-types.h"
#include "data/writeback.h"
#include "rigs/engine-rig.h"

static void
test_flush_syncs_records_and_journal (void)
{
  unsigned records, journal;

  start (1);
  records = syncs_records;
  journal = syncs_journal;
  write_blocks (0, 256, 1); /* too much for the journal to carry */
  must (nbdedup_volume_flush (handle));
  expect (syncs_records > records);
  expect (syncs_journal > journal);
  journal = syncs_journal;
  write_block (0, 1000); /* the journal carries it */
  must (nbdedup_volume_flush (handle));
  expect (syncs_journal > journal);
  journal = syncs_journal;
  trim_block (1);
  must (nbdedup_volume_flush_range (handle, BLOCK, BLOCK));
  expect (syncs_journal > journal);
  end ();
}

/* One copy must be intact at any moment. */
static void
test_copies_of_a_header_are_synced_apart (void)
{
  struct meta_state state;
  unsigned syncs;

  start (1);
  settle ();
  txg_get_state (pool->txg, &state);
  syncs = syncs_journal;
  must (journal_set_epoch (pool->journal, state.epoch));
  expect (syncs_journal == syncs + 2);
  syncs = syncs_records;
  must (store_set_epoch (pool->store, state.epoch));
  expect (syncs_records >= syncs + 1);
  end ();
}

/* Make and close a pool with 'nr' blocks, with contents from 1 on. */
static void
start_closed (unsigned nr)
{
  start (1);
  write_blocks (0, nr, 1);
  settle ();
  close_pool ();
}

static uint64_t
overwrite_a_lot (void)
{
  write_blocks (0, 64, 1000);
  must (nbdedup_volume_flush (handle));
  return address_of (7);
}

static uint64_t
overwrite_twice (void)
{
  write_blocks (0, 64, 1000);
  must (nbdedup_volume_flush (handle));
  write_blocks (0, 2, 2000);
  trim_block (3);
  must (nbdedup_volume_flush (handle));
  return 1;
}

/* Begin a fold, and do not finish it. */
static uint64_t
overwrite_and_cut (void)
{
  uint64_t seq, position;

  write_blocks (0, 64, 1000);
  must (writeback_drain (pool->writeback, volume));
  must (txg_log_cut (pool->txg->log, &seq, &position));
  return address_of (7);
}

static void
zero_record (uint64_t addr)
{
  CLEANUP_FREE char *path = pool_file (directory, "records");
  static const uint8_t zeroes[BLOCK];
  FILE *f = fopen (path, "r+");

  expect (f != NULL);
  expect (fseeko (f, (off_t) addr * 512, SEEK_SET) == 0);
  expect (fwrite (zeroes, sizeof zeroes, 1, f) == 1);
  expect (fclose (f) == 0);
}

static uint64_t evicted; /* a record that only memory has; 0: none */

int
posix_fadvise (int fd, off_t offset, off_t len, int advice)
{
  uint64_t addr = evicted;

  if (evicted > 0 && offset == 0 && len == 0 && advice == POSIX_FADV_DONTNEED &&
      is_file (fd, "records")) {
    evicted = 0;
    zero_record (addr);
  }
  return (int) syscall (SYS_fadvise64, fd, offset, len, advice);
}

static json_int_t
reported (const char *key)
{
  json_t *result = call ("recovery", NULL);
  json_int_t n = number (json_object_get (result, "recovery"), key);

  json_decref (result);
  return n;
}

/* Check what monitoring sees.  "status" works while another command runs. */
static void
expect_state (const char *state, const char *text)
{
  const json_t *problem;
  json_t *result;
  size_t i;
  bool found = text == NULL;

  {
    WITH_LOCK (&pool->admin);
    result = call ("status", NULL);
  }
  expect (
    strcmp (json_string_value (json_object_get (result, "state")), state) == 0);
  json_array_foreach (json_object_get (result, "problems"), i, problem)
    if (text &&
        strstr (json_string_value (json_object_get (problem, "text")), text))
      found = true;
  expect (found);
  json_decref (result);
}

/* The journal has the last batch, and all of its records but one are written.
 * A loss of power may leave this of a batch that no flush waited for.  The
 * block has its old content, and recovery reports it.
 */
static void
test_replay_of_a_record_that_never_arrived (void)
{
  json_t *result, *place;

  start_closed (64);
  zero_record (crash_after (overwrite_and_cut));
  open_and_attach ();
  expect_content (6, 1006);
  expect_content (7, 8);
  expect_content (63, 1063);

  result = call ("recovery", NULL);
  place = json_array_get (json_object_get (json_object_get (result, "recovery"),
                                           "dropped"),
                          0);
  expect (strcmp (json_string_value (json_object_get (place, "name")), "v") ==
          0);
  expect (number (place, "offset") == 7 * BLOCK);
  expect (number (place, "length") == BLOCK);
  json_decref (result);
  expect (reported ("dropped_blocks") == 1);
  expect (reported ("blocks") == 63);
  expect (reported ("records") == 63);
  expect_state ("warning", "dropped the writes of 1 blocks");
  pool->txg->failed = true;
  expect_state ("critical", "stopped after a failed write");
  pool->txg->failed = false;
  end ();
}

/* The same, but the sync of the process before failed, and the kernel's cache
 * still has what it could not write.
 */
static void
test_replay_of_a_record_that_failed_to_be_written (void)
{
  start_closed (64);
  evicted = crash_after (overwrite_and_cut);
  open_and_attach ();
  expect (evicted == 0);
  expect_content (6, 1006);
  expect_content (7, 8);
  expect (reported ("dropped_blocks") == 1);
  end ();
}

static uint64_t
overwrite_more_and_cut (void)
{
  uint64_t seq, position;

  write_blocks (0, 300, 1000);
  must (writeback_drain (pool->writeback, volume));
  must (txg_log_cut (pool->txg->log, &seq, &position));
  return address_of (299);
}

/* The file ends before the record, which was never written. */
static void
test_replay_of_a_record_past_the_end (void)
{
  CLEANUP_FREE char *path = NULL;

  start_closed (850);
  /* They do not fit into the one segment that pool.db knows. */
  expect (crash_after (overwrite_more_and_cut) * 512 > SEGMENT_BYTES);
  path = pool_file (directory, "records");
  expect (truncate (path, SEGMENT_BYTES) == 0);
  open_and_attach ();
  expect_content (0, 1000);
  expect_content (299, 300);
  expect (reported ("dropped_blocks") > 0);
  end ();
}

/* A flush had returned, so the record was written.  If it is missing now it is
 * damaged: reads fail, and return neither the old content nor zeroes.
 */
static void
test_replay_of_a_record_that_was_flushed (void)
{
  uint8_t buf[BLOCK];
  json_t *result;

  start_closed (64);
  zero_record (crash_after (overwrite_a_lot));
  open_and_attach ();
  expect_content (6, 1006);
  expect_content (63, 1063);
  expect (nbdedup_volume_read (handle, buf, BLOCK, 7 * BLOCK) == -1 &&
          errno == EIO);
  expect (reported ("dropped_blocks") == 0);
  result = call ("scrub", NULL);
  expect (number (result, "errors") == 1);
  expect (json_array_size (json_object_get (result, "damaged")) == 1);
  json_decref (result);
  write_block (7, 5000);
  expect_content (7, 5000);
  end ();
}

static uint64_t segment_of_7;

/* Mark all slots of the map as in use, and with '*sectors' all sectors. */
static int
use_all (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct blob b CLEANUP_BLOB = { NULL };
  const bool *sectors = arg;
  struct segment_map *map;
  unsigned first, len;
  uint8_t *packed;
  size_t packed_len;
  int slot;

  expect (meta_segment_get (c, segment_of_7, &b) == 1);
  map = segment_map_unpack (segment_of_7, state->sector_bytes, b.p, b.len);
  expect (map != NULL);
  while ((slot = segment_map_find_slot (map)) != -1)
    must (segment_map_set_slot (map, (unsigned) slot));
  while (*sectors && (len = segment_map_largest_run (map, &first)) > 0)
    must (segment_map_set (map, first, len));
  packed = segment_map_pack (map, &packed_len);
  must (meta_segment_put (c, segment_of_7, map->nr_sectors - map->nr_used,
                          segment_map_largest_run (map, &first), packed,
                          packed_len));
  free (packed);
  segment_map_free (map);
  return 0;
}

/* The allocator has the map in memory, and does not see the change. */
static uint64_t
overwrite_and_use (bool sectors)
{
  write_blocks (0, 64, 1000);
  settle ();
  segment_of_7 = address_of (7) / (SEGMENT_BYTES / 512);
  must (txg_run (pool->txg, use_all, NULL, &sectors));
  write_blocks (0, 2, 2000); /* carried */
  must (nbdedup_volume_flush (handle));
  write_blocks (10, 64, 3000);
  must (nbdedup_volume_flush (handle));
  return address_of (0) / (SEGMENT_BYTES / 512) == segment_of_7;
}

static uint64_t
overwrite_and_use_slots (void)
{
  return overwrite_and_use (false);
}

static uint64_t
overwrite_and_use_sectors (void)
{
  return overwrite_and_use (true);
}

/* If a map contradicts the journal, and the records agree with the journal, the
 * map is wrong.
 */
static void
test_replay_of_a_record_where_a_map_has_another (void)
{
  static uint64_t (*const fns[]) (void) = {
    overwrite_and_use_slots,
    overwrite_and_use_sectors,
  };
  unsigned i;

  for (i = 0; i < 2; ++i) {
    start_closed (64);
    expect (crash_after (fns[i]) == 1);
    open_and_attach ();
    expect_content (0, 2000);
    expect_content (1, 2001);
    expect_content (9, 1009);
    expect_content (10, 3000);
    expect_content (73, 3063);
    write_block (5, 5000);
    settle ();
    expect_content (5, 5000);
    end ();
  }
}

/* Flush three times: blocks 0 and 1, whose records the journal carries; 10 to
 * 73, whose records it does not; 2, which shares block 0's record, and 100, a
 * hole.
 */
static uint64_t
flush_three_times (void)
{
  write_blocks (0, 2, 1000);
  must (nbdedup_volume_flush (handle));
  write_blocks (10, 64, 2000);
  must (nbdedup_volume_flush (handle));
  write_block (2, 1000);
  trim_block (100);
  must (nbdedup_volume_flush (handle));
  return 1;
}

/* Zero bytes of a batch, 'from_last' batches before the last one. */
static void
spoil_batch (unsigned from_last, off_t offset, size_t len)
{
  CLEANUP_FREE char *path = pool_file (directory, "journal");
  static const uint8_t zeroes[4096];
  off_t found[100], pos;
  uint64_t seqs[100], seq;
  unsigned nr = 0, i, best = 0;
  uint8_t buf[96];
  FILE *f = fopen (path, "r+");

  expect (f != NULL && len <= sizeof zeroes);
  for (pos = JOURNAL_HEADER_BYTES;
       fseeko (f, pos, SEEK_SET) == 0 && fread (buf, sizeof buf, 1, f) == 1;
       pos += JOURNAL_ALIGN) {
    if (memcmp (buf, "NBJB\1", 5) != 0)
      continue;
    expect (nr < 100);
    memcpy (&seqs[nr], buf + 32, sizeof seq); /* little-endian, as here */
    found[nr++] = pos;
  }
  for (i = 0; i < nr; ++i)
    if (seqs[i] > seqs[best])
      best = i;
  seq = seqs[best] - from_last;
  for (i = 0; i < nr && seqs[i] != seq; ++i)
    ;
  expect (i < nr);
  expect (fseeko (f, found[i] + offset, SEEK_SET) == 0);
  expect (fwrite (zeroes, len, 1, f) == 1);
  expect (fclose (f) == 0);
}

static void
expect_eio (uint64_t block)
{
  uint8_t buf[BLOCK];

  errno = 0;
  if (nbdedup_volume_read (handle, buf, BLOCK, block * BLOCK) != -1 ||
      errno != EIO)
    die ("block %" PRIu64 " is not lost", block);
}

/* Damage in one place of a durable batch loses at most its blocks, and blocks
 * that refer to its records.  The pool can always be opened.
 */
static void
test_replay_of_a_damaged_batch (void)
{
  unsigned which, part, i;

  for (which = 0; which < 3; ++which)
    for (part = 0; part < 2; ++part) {
      start_closed (128);
      crash_after (flush_three_times);
      /* The header, or a part of the body. */
      spoil_batch (which, part == 0 ? 0 : 100, 20);
      open_and_attach ();
      expect_content (3, 4);
      expect_content (9, 10);
      expect_content (74, 75);
      if (part == 0 || which != 2) {
        expect_content (0, 1000);
        expect_content (1, 1001);
      }
      else {
        expect_eio (0);
        expect_eio (1);
      }
      for (i = 10; i < 74; ++i)
        if (part == 0 || which != 1)
          expect_content (i, 2000 + i - 10);
        else
          expect_eio (i);
      if (part == 0 || which == 1)
        expect_content (2, 1000);
      else
        expect_eio (2); /* its batch, or that of its record */
      /* The batch has holes in two places. */
      expect_content (100, 0);
      expect (reported ("damaged") == part);
      expect (reported ("lost_blocks") ==
              (part == 0      ? 0
                 : which == 0 ? 1
                 : which == 1 ? 64
                              : 3));
      if (part != 0)
        expect_state ("critical", "blocks is lost");
      check_pool ();
      write_blocks (0, 80, 5000);
      expect_content (2, 5002);
      settle ();
      expect_content (73, 5073);
      end ();
    }
}

/* A batch damaged in two places: its blocks are unknown. */
static void
test_replay_of_a_batch_damaged_twice (void)
{
  struct nbdedup_settings settings;

  start (1);
  close_pool ();
  crash_after (flush_three_times);
  spoil_batch (0, 0, 1024);
  nbdedup_settings_init (&settings);
  expect (nbdedup_pool_open (directory, &settings, "test", 0) == NULL);
  expect (errno == EIO && strstr (nbdedup_error (), "more than one place"));
  remove_directory (directory);
}

/* A record that cannot be read may still have been written. */
static void
test_replay_with_read_errors (void)
{
  struct nbdedup_settings settings;

  start_closed (64);
  crash_after (overwrite_and_cut);
  nbdedup_settings_init (&settings);
  fail_reads = 3;
  while (fail_reads > 0) {
    expect (nbdedup_pool_open (directory, &settings, "test", 0) == NULL);
    expect (errno == EIO);
    expect (strstr (nbdedup_error (), "try again") != NULL);
  }
  open_and_attach ();
  expect_content (0, 1000);
  expect_content (7, 1007);
  expect_content (63, 1063);
  expect (reported ("dropped_blocks") == 0);
  end ();
}

static void
test_replay_of_two_batches (void)
{
  unsigned i;

  start_closed (64);
  crash_after (overwrite_twice);
  for (i = 0; i < 2; ++i) { /* the second open has nothing to replay */
    open_and_attach ();
    expect_content (0, 2000);
    expect_content (1, 2001);
    expect_content (2, 1002);
    expect_content (3, 0);
    expect_content (63, 1063);
    check_pool ();
    if (i == 0)
      close_pool ();
  }
  end ();
}

static void
open_with_a_worker (void)
{
  open_pool (1);
}

/* Kill it twice at the same sync, for each sync. */
static void
test_killed_while_opening (void)
{
  unsigned nth;
  bool killed = true;

  start_closed (64);
  for (nth = 1; killed; ++nth) {
    crash_after (overwrite_twice);
    killed = crashes_at_sync (nth, NULL, open_with_a_worker);
    crashes_at_sync (nth, NULL, open_with_a_worker);
    open_and_attach ();
    expect_content (0, 2000);
    expect_content (2, 1002);
    expect_content (3, 0);
    expect_content (63, 1063);
    check_pool ();
    close_pool ();
  }
  expect (nth > 5);
  open_and_attach ();
  end ();
}

static void
spoil_journal (void)
{
  char path[PATH_MAX + 20];

  snprintf (path, sizeof path, "%s/journal", directory);
  must (truncate (path, 100));
}

static void
recover_without_journal (void)
{
  json_t *result = nbdedup_pool_recover (directory, true);

  expect (result && json_is_true (json_object_get (result, "recovered")));
  json_decref (result);
}

/* Volumes have their contents in pool.db, wherever recover was killed, and
 * killed again.
 */
static void
test_killed_without_a_journal (void)
{
  unsigned nth;
  bool killed = true;

  start_closed (64);
  for (nth = 1; killed; ++nth) {
    crash_after (overwrite_twice);
    spoil_journal ();
    killed = crashes_at_sync (nth, NULL, recover_without_journal);
    crashes_at_sync (nth / 2 + 1, NULL, recover_without_journal);
    recover_without_journal ();
    open_and_attach ();
    expect_content (0, 1);
    expect_content (2, 3);
    expect_content (63, 64);
    check_pool ();
    close_pool ();
  }
  expect (nth > 8);
  open_and_attach ();
  end ();
}

static int
count_one (void *opaque, uint64_t addr)
{
  unsigned *nr = opaque;

  (void) addr;
  ++*nr;
  return 0;
}

/* The number of records without references in pool.db. */
static unsigned
count_limbo (void)
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  unsigned nr = 0;

  must (meta_limbo_scan (c, count_one, &nr));
  meta_reader_put (pool->meta, c);
  return nr;
}

/* While a fold removes the last reference to a record, the next txg refers to
 * it.  The record stays, without a reference in pool.db.
 */
static uint64_t
refer_during_the_fold (void)
{
  uint64_t before, now, position;
  struct job fold;
  unsigned ms;

  write_block (0, 1);
  settle ();
  expect_content (0, 1);
  trim_block (0);
  journal_get_end (pool->journal, &before, &position);
  {
    /* After the cut the fold takes this lock, for the dying layers. */
    WITH_LOCK (&pool->volumes->lock);
    job_start (&fold, do_fold, 0);
    for (ms = 0, now = before; now == before; ++ms) {
      expect (ms < GIVE_UP_MS);
      poll (NULL, 0, 1);
      journal_get_end (pool->journal, &now, &position);
    }
    write_block (1, 1);
    must (writeback_drain (pool->writeback, volume));
  }
  job_end (&fold);
  expect_content (1, 1);
  return count_limbo ();
}

static void
test_record_that_only_a_crash_leaves (void)
{
  struct meta_state state;

  start (1);
  close_pool ();
  expect (crash_after (refer_during_the_fold) == 1);
  open_and_attach ();
  expect_content (0, 0);
  expect_content (1, 0); /* was not flushed */
  settle ();
  expect (count_limbo () == 0);
  txg_get_state (pool->txg, &state);
  expect (state.records == 0 && state.index_entries == 0);
  end ();
}

static const struct engine_case cases[] = {
  /* First, because they fork: no thread may run yet. */
  CASE (replay_of_a_record_that_never_arrived),
  CASE (replay_of_a_record_that_failed_to_be_written),
  CASE (replay_of_a_record_past_the_end),
  CASE (replay_of_a_record_that_was_flushed),
  CASE (replay_of_a_record_where_a_map_has_another),
  CASE (replay_with_read_errors),
  CASE (replay_of_a_damaged_batch),
  CASE (replay_of_a_batch_damaged_twice),
  CASE (replay_of_two_batches),
  CASE (killed_while_opening),
  CASE (killed_without_a_journal),
  CASE (record_that_only_a_crash_leaves),
  CASE (flush_syncs_records_and_journal),
  CASE (copies_of_a_header_are_synced_apart),
  { NULL, NULL },
};

/* test-replay [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}
