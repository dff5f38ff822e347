/* SPDX-License-Identifier: BSD-3-Clause */

/* check --repair: plant each kind of damage in pool.db, repair it, in the same
 * open pool and after opening it again, and then use the pool.  See
 * engine-rig.h.
 */

#include <config.h>

#include <fcntl.h>

#include "data/volume-types.h"
#include "rigs/plants.h"

/* Blocks 0 to 63 and 64 to 127 have the same contents, from 1 on; blocks 200
 * to 207 have others, from 1000 on.
 */
#define NR_EQUAL 64u
#define FIRST_OTHER 200u
#define NR_OTHER 8u
#define NR_RECORDS (NR_EQUAL + NR_OTHER)

static void
start_pool (void)
{
  start (1);
  write_blocks (0, NR_EQUAL, 1);
  settle ();
  write_blocks (NR_EQUAL, NR_EQUAL, 1);
  write_blocks (FIRST_OTHER, NR_OTHER, 1000);
  settle ();
  check_pool ();
}

/*----------------------------------------------------------------------
 * Repairing
 */

static void
reopen (void)
{
  close_pool ();
  open_to_repair ();
}

/* The repair must repair everything that it finds. */
static void
repair (json_int_t lost)
{
  json_t *result = call ("check", json_pack ("{s:b}", "repair", 1)), *p;
  size_t i;

  json_array_foreach (json_object_get (result, "repairs"), i, p)
    if (!json_is_true (json_object_get (p, "repaired")))
      die ("not repaired: %s",
           json_string_value (json_object_get (p, "problem")));
  expect (number (result, "errors") == 0);
  expect (number (result, "stale_index_entries") == 0);
  expect (number (result, "missing_index_entries") == 0);
  expect (number (result, "lost_blocks") == lost);
  json_decref (result);
  check_pool ();
}

static json_int_t
nr_found (const char *key)
{
  json_t *result = call ("check", NULL);
  json_int_t n = number (result, key);

  json_decref (result);
  return n;
}

static void
expect_blocks (void)
{
  unsigned i;

  for (i = 0; i < 2 * NR_EQUAL; ++i)
    expect_content (i, 1 + i % NR_EQUAL);
  for (i = 0; i < NR_OTHER; ++i)
    expect_content (FIRST_OTHER + i, 1000 + i);
}

/* The pool must work: overwrite half of the equal blocks, the others stay; find
 * the same content again; trim everything in the end, after which no record may
 * be left.
 */
static void
use_and_end (void)
{
  unsigned i;

  settle ();
  expect (pool_figure ("records") == NR_RECORDS);
  write_blocks (0, NR_EQUAL, 5000);
  settle ();
  write_blocks (300, 200, 7000); /* in space that is free by mistake */
  settle ();
  expect (pool_figure ("records") == NR_RECORDS + NR_EQUAL + 200);
  reopen_pool ();
  for (i = 0; i < NR_EQUAL; ++i) {
    expect_content (i, 5000 + i);
    expect_content (NR_EQUAL + i, 1 + i);
  }
  for (i = 0; i < NR_OTHER; ++i)
    expect_content (FIRST_OTHER + i, 1000 + i);
  for (i = 0; i < 200; ++i)
    expect_content (300 + i, 7000 + i);
  check_pool ();
  write_blocks (0, NR_EQUAL, 1);
  settle ();
  expect (pool_figure ("records") == NR_RECORDS + 200);
  must (nbdedup_volume_trim (handle, (uint64_t) NR_BLOCKS * BLOCK, 0));
  settle ();
  settle ();
  expect (pool_figure ("records") == 0);
  end ();
}

static void
settle_and_use (void)
{
  settle ();
  expect_blocks ();
  use_and_end ();
}

static void
repair_and_use (plant_fn *fn, bool offline, const char *key)
{
  plant (fn);
  if (offline)
    reopen ();
  expect (nr_found (key) > 0);
  repair (0);
  expect_blocks ();
  use_and_end ();
}

/* Repair in the same open pool, and after opening it again. */
#define BOTH(name, prepare, fn, key)                                           \
  static void test_##name (void)                                               \
  {                                                                            \
    int offline;                                                               \
                                                                               \
    for (offline = 0; offline < 2; ++offline) {                                \
      start_pool ();                                                           \
      prepare;                                                                 \
      repair_and_use (fn, offline, key);                                       \
    }                                                                          \
  }

#define RECORD(block, delta)                                                   \
  do {                                                                         \
    planted_addr = address_of (block);                                         \
    planted_delta = (delta);                                                   \
  } while (0)

/* Blocks 3 and 67 refer to the record. */
BOTH (count_too_low, RECORD (3, -1), change_count, "errors")
BOTH (count_too_high, RECORD (3, 4), change_count, "errors")
BOTH (no_count_at_all, RECORD (3, -2), change_count, "errors")
BOTH (record_is_gone, RECORD (3, 0), drop_record, "errors")
BOTH (records_are_damaged, RECORD (3, 0), cut_group, "errors")
BOTH (index_is_empty, (void) 0, empty_index, "missing_index_entries")
BOTH (index_names_no_record, (void) 0, add_index_entry, "errors")
BOTH (index_is_out_of_order, (void) 0, swap_index_entries, "errors")
BOTH (limbo_names_no_record, planted_addr = 123456, put_limbo, "errors")
BOTH (limbo_names_a_used_record, RECORD (3, 0), put_limbo, "errors")
BOTH (totals, (void) 0, change_totals, "errors")
BOTH (space_is_not_known, RECORD (3, 0), drop_segment, "errors")
BOTH (space_map_is_damaged, RECORD (3, 0), spoil_segment, "errors")
BOTH (space_figures, RECORD (3, 0), spoil_figures, "errors")
BOTH (slots, RECORD (3, 0), change_slots, "errors")
BOTH (space_is_free_by_mistake, RECORD (3, -1), change_space, "errors")
BOTH (space_is_used_by_mistake, RECORD (3, 1), change_space, "errors")
BOTH (leaf_of_no_layer, (void) 0, add_foreign_leaf, "errors")

/* A check with little memory reads the records in several windows.  It finds
 * the same, also at the beginning of each window.
 */
static void
test_first_record_of_each_group_is_gone (void)
{
  const unsigned first = 300, nr = 1000;
  uint64_t group = UINT64_MAX;
  json_int_t errors;
  unsigned i;

  start_pool ();
  write_blocks (first, nr, 20000);
  settle ();
  for (i = 0; i < nr; ++i) {
    RECORD (first + i, 0);
    if (planted_addr / RECORD_GROUP_SECTORS != group)
      plant (drop_record);
    group = planted_addr / RECORD_GROUP_SECTORS;
  }
  errors = nr_found ("errors");
  pool->settings.ddt_cache_bytes = 1;
  expect (nr_found ("errors") == errors);
  repair (0);
  expect_blocks ();
  for (i = 0; i < nr; ++i)
    expect_content (first + i, 20000 + i);
  end ();
}

/* A record that no block refers to any more: it dies, and its space is free. */
static void
test_leaked_record (void)
{
  int offline;

  for (offline = 0; offline < 2; ++offline) {
    start_pool ();
    RECORD (FIRST_OTHER, 1);
    plant (change_count);
    trim_block (FIRST_OTHER);
    settle ();
    expect (pool_figure ("records") == NR_RECORDS);
    if (offline)
      reopen ();
    repair (0);
    settle ();
    expect (pool_figure ("records") == NR_RECORDS - 1);
    write_block (FIRST_OTHER, 1000);
    settle_and_use ();
  }
}

/* Leaked sectors, which no record has, outlive all records of their segment.
 * Folds and opens must succeed in spite of that.
 */
static void
test_only_a_leak_is_left (void)
{
  start_pool ();
  RECORD (3, 1);
  plant (change_space);
  must (nbdedup_volume_trim (handle, (uint64_t) NR_BLOCKS * BLOCK, 0));
  settle ();
  settle ();
  expect (pool_figure ("records") == 0);
  write_blocks (0, NR_EQUAL, 1);
  write_blocks (NR_EQUAL, NR_EQUAL, 1);
  write_blocks (FIRST_OTHER, NR_OTHER, 1000);
  settle ();
  expect (nr_found ("errors") > 0);
  repair (0);
  expect_blocks ();
  use_and_end ();
}

static void
zero_layer_counts (struct meta_conn *c, struct meta_state *state)
{
  struct meta_layer l;

  (void) state;
  expect (meta_layer_get (c, volume->layer->id, &l) == 1);
  l.pointers = l.blocks = 0;
  must (meta_layer_put (c, &l));
}

static uint64_t
trim_and_flush (void)
{
  trim_block (3);
  must (nbdedup_volume_flush (handle));
  return 0;
}

/* A layer's count is lower than the number of blocks that a fold removes, also
 * in the first fold after a crash.  Writes and opens must succeed.
 */
static void
test_layer_counts_too_low (void)
{
  int crashed;

  for (crashed = 0; crashed < 2; ++crashed) {
    start_pool ();
    plant (zero_layer_counts);
    close_pool ();
    if (crashed)
      crash_after (trim_and_flush);
    open_and_attach ();
    if (!crashed)
      trim_and_flush ();
    settle ();
    expect (nr_found ("errors") > 0);
    repair (0);
    write_block (3, 4);
    settle_and_use ();
  }
}

/*----------------------------------------------------------------------
 * Lost blocks
 */

#define expect_lost(block) expect_lost_at (__LINE__, block)

static void
expect_lost_at (int line, uint64_t block)
{
  uint8_t buf[BLOCK];

  errno = 0;
  if (nbdedup_volume_read (handle, buf, BLOCK, block * BLOCK) != -1 ||
      errno != EIO || strstr (nbdedup_error (), "lost") == NULL)
    die ("line %d: block %" PRIu64 " is not lost", line, block);
}

/* Change bytes of the record. */
static void
spoil_content (uint64_t addr)
{
  char path[PATH_MAX + 16];
  uint8_t byte;
  off_t offset = (off_t) (addr * pool->sector_bytes + 1000);
  int fd;

  snprintf (path, sizeof path, "%s/records", directory);
  fd = open (path, O_RDWR | O_CLOEXEC);
  expect (fd != -1 && pread (fd, &byte, 1, offset) == 1);
  byte ^= 0x10;
  expect (pwrite (fd, &byte, 1, offset) == 1 && close (fd) == 0);
}

static void
test_record_and_content_are_gone (void)
{
  int offline;

  for (offline = 0; offline < 2; ++offline) {
    start_pool ();
    RECORD (3, 0);
    plant (drop_record);
    spoil_content (planted_addr);
    if (offline)
      reopen ();
    repair (2);
    expect_lost (3);
    expect_lost (NR_EQUAL + 3);
    settle ();
    reopen_pool ();
    expect_lost (3);
    write_block (3, 4);
    write_block (NR_EQUAL + 3, 4);
    settle_and_use ();
  }
}

/* The pointers are in a snapshot's layer.  The blocks that inherit them are
 * lost, too.
 */
static void
test_lost_in_a_snapshot (void)
{
  struct nbdedup_volume *clone;
  uint8_t buf[BLOCK];

  start_pool ();
  run ("snapshot", json_pack ("{s:s}", "name", "v@a"));
  run ("clone", json_pack ("{s:s,s:s}", "snapshot", "v@a", "name", "c"));
  clone = open_volume ("c");
  must (nbdedup_volume_read (clone, buf, BLOCK, 3 * BLOCK));
  RECORD (3, 0);
  plant (drop_record);
  spoil_content (planted_addr);
  repair (2);
  expect_lost (3);
  write_block (3, 4);
  settle ();
  expect_content (3, 4);
  expect (nbdedup_volume_read (clone, buf, BLOCK, 3 * BLOCK) == -1 &&
          errno == EIO && strstr (nbdedup_error (), "lost") != NULL);
  must (nbdedup_volume_read (clone, buf, BLOCK, 4 * BLOCK));
  nbdedup_volume_close (clone);
  run ("destroy", json_pack ("{s:s,s:b}", "name", "c", "wait", 1));
  run ("destroy", json_pack ("{s:s,s:b}", "name", "v@a", "wait", 1));
  write_block (NR_EQUAL + 3, 4);
  settle_and_use ();
}

/* A read error does not make a block lost: a later read may succeed. */
static void
test_read_error_loses_nothing (void)
{
  json_t *result;

  start_pool ();
  RECORD (3, 0);
  plant (drop_record);
  reopen ();
  fail_reads = 1000000;
  result = call ("check", json_pack ("{s:b}", "repair", 1));
  fail_reads = 0;
  expect (number (result, "errors") > 0);
  expect (number (result, "lost_blocks") == 0);
  json_decref (result);
  write_blocks (700, 2 * NR_EQUAL, 30000); /* not in its place */
  settle ();
  expect_blocks ();
  repair (0);
  expect_blocks ();
  must (
    nbdedup_volume_trim (handle, 2 * NR_EQUAL * BLOCK, (uint64_t) 700 * BLOCK));
  use_and_end ();
}

static void
spoil_leaf (struct meta_conn *c, struct meta_state *state)
{
  const uint8_t nothing[3] = { 0xff, 0xff, 0xff };

  (void) state;
  must (meta_leaf_put (c, volume->layer->branch, FIRST_OTHER / LEAF_BLOCKS,
                       volume->layer->seq, nothing, sizeof nothing));
}

static void
test_leaf_is_damaged (void)
{
  unsigned first = FIRST_OTHER / LEAF_BLOCKS * LEAF_BLOCKS, i;
  int offline;

  for (offline = 0; offline < 2; ++offline) {
    start_pool ();
    plant (spoil_leaf);
    if (offline)
      reopen ();
    repair (LEAF_BLOCKS);
    for (i = 0; i < LEAF_BLOCKS; ++i)
      expect_lost (first + i);
    expect_content (3, 4);
    must (nbdedup_volume_trim (handle, LEAF_BLOCKS * BLOCK,
                               (uint64_t) first * BLOCK));
    write_blocks (FIRST_OTHER, NR_OTHER, 1000);
    settle_and_use ();
  }
}

/*----------------------------------------------------------------------
 * Damage that a fold meets
 */

/* The journal replaces a pointer whose record is missing.  The pool opens only
 * to be repaired.
 */
static uint64_t
drop_and_displace (void)
{
  RECORD (3, 0);
  plant (drop_record);
  write_block (3, 9999);
  must (nbdedup_volume_flush (handle));
  return 0;
}

static void
test_replay_meets_the_damage (void)
{
  start_pool ();
  close_pool ();
  crash_after (drop_and_displace);
  pool = nbdedup_pool_open (directory, NULL, "test-repair", 0);
  expect (pool == NULL && strstr (nbdedup_error (), "--repair") != NULL);
  open_to_repair ();
  repair (0);
  expect_content (3, 9999);
  write_block (3, 4);
  settle_and_use ();
}

/* A fold that meets the damage stops the pool, and the error says what helps.
 */
static void
test_fold_meets_the_damage (void)
{
  start_pool ();
  RECORD (3, 0);
  plant (drop_record);
  write_block (3, 9999);
  must (nbdedup_volume_flush (handle));
  expect (txg_run (pool->txg, NULL, NULL, NULL) == -1 && errno == EIO);
  expect (txg_check (pool->txg) == -1 &&
          strstr (nbdedup_error (), "check --repair") != NULL);
  nbdedup_volume_close (handle);
  (void) nbdedup_pool_close (pool);
  open_to_repair ();
  repair (0);
  expect_content (3, 9999);
  write_block (3, 4);
  settle_and_use ();
}

/* Rows that cannot be decoded although their pages are intact.  The error must
 * not say to restart the server.  The advice that it gives must help, although
 * the journal meets the rows again.
 */
static void
fold_fails_for (plant_fn *fn, unsigned block)
{
  start_pool ();
  RECORD (3, 0);
  plant (fn);
  write_block (block, 9999);
  write_block (500, 9998);
  must (nbdedup_volume_flush (handle));
  expect (txg_run (pool->txg, NULL, NULL, NULL) == -1 && errno == EIO);
  expect (strstr (nbdedup_error (), "check --repair") != NULL);
  expect (txg_check (pool->txg) == -1 &&
          strstr (nbdedup_error (), "check --repair") != NULL &&
          strstr (nbdedup_error (), "restart") == NULL);
  nbdedup_volume_close (handle);
  (void) nbdedup_pool_close (pool);
}

static void
test_fold_meets_a_row_that_is_cut_short (void)
{
  fold_fails_for (cut_group, 3);
  open_to_repair ();
  repair (0);
  expect_content (3, 9999);
  expect_content (500, 9998);
  write_block (3, 4);
  trim_block (500);
  settle_and_use ();
}

static void
test_fold_meets_a_damaged_leaf (void)
{
  unsigned first = FIRST_OTHER / LEAF_BLOCKS * LEAF_BLOCKS, i;

  fold_fails_for (spoil_leaf, FIRST_OTHER);
  open_to_repair ();
  repair (0);
  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (first + i != FIRST_OTHER)
      expect_lost (first + i);
  expect_content (FIRST_OTHER, 9999);
  expect_content (500, 9998);
  expect_content (3, 4);
  must (nbdedup_volume_trim (handle, LEAF_BLOCKS * BLOCK,
                             (uint64_t) first * BLOCK));
  trim_block (500);
  write_blocks (FIRST_OTHER, NR_OTHER, 1000);
  settle_and_use ();
}

/* Opening the pool rebuilds a space map. */
static void
test_fold_meets_a_damaged_map (void)
{
  fold_fails_for (spoil_segment, 3);
  open_and_attach ();
  expect_content (3, 9999);
  expect_content (500, 9998);
  check_pool ();
  write_block (3, 4);
  trim_block (500);
  settle_and_use ();
}

/* A write since the last fold replaces a pointer whose record is wrong.  The
 * first fold of the repair meets it, in a pool that was not opened to be
 * repaired.
 */
static void
test_first_fold_meets_the_damage (void)
{
  static plant_fn *const kinds[] = { drop_record, cut_group, change_count };
  unsigned i;

  for (i = 0; i < 3; ++i) {
    start_pool ();
    RECORD (3, -2);
    plant (kinds[i]);
    write_block (3, 9999);
    repair (0);
    expect_content (3, 9999);
    write_block (3, 4);
    settle_and_use ();
  }
}

static void
write_on (uint64_t nr)
{
  uint64_t i;

  for (i = 0; i < nr; ++i) {
    write_blocks (600 + i % 8 * 64, NR_EQUAL, i % 3 ? 1 : 20000 + i);
    if (i % 4 == 0)
      must (nbdedup_volume_flush (handle));
  }
}

/* A client takes references to the records while they are repaired. */
static void
test_while_it_is_written (void)
{
  static plant_fn *const kinds[] = {
    drop_record, cut_group, change_count, empty_index, change_totals,
  };
  struct job job;
  unsigned i;

  start_pool ();
  reopen (); /* or a fold that meets it stops the pool */
  job_start (&job, write_on, 400);
  for (i = 0; !job.done; ++i) {
    RECORD (i % NR_EQUAL, i % 2 ? 2 : -1);
    plant (kinds[i % 5]);
    repair (0);
  }
  job_end (&job);
  expect (i > 0);
  repair (0);
  must (nbdedup_volume_trim (handle, 512 * BLOCK, 600 * BLOCK));
  settle ();
  settle_and_use ();
}

static void
do_repair (uint64_t lost)
{
  repair ((json_int_t) lost);
}

/* A lookup that has read a row before the repair must not cache the record that
 * was there after the dedup table has forgotten it.
 */
static void
test_lookups_end_first (void)
{
  unsigned ticket;
  struct job job;

  start_pool ();
  reopen ();
  RECORD (3, 0);
  plant (drop_record);
  ticket = quiesce_enter (&pool->quiesce);
  job_start (&job, do_repair, 0);
  poll (NULL, 0, A_WHILE_MS);
  expect (!job.done);
  quiesce_leave (&pool->quiesce, ticket);
  job_end (&job);
  settle_and_use ();
}

/*----------------------------------------------------------------------
 * Killed
 */

static void
repair_all (void)
{
  repair (2);
}

/* Plant several kinds.  Block 3 is lost. */
static uint64_t
plant_all (void)
{
  RECORD (3, 0);
  plant (drop_record);
  spoil_content (planted_addr);
  RECORD (4, -1);
  plant (change_count);
  RECORD (5, 3);
  plant (change_count);
  RECORD (6, 0);
  plant (drop_record);
  RECORD (7, -1);
  plant (change_space);
  RECORD (8, 1);
  plant (change_space);
  plant (swap_index_entries);
  planted_addr = 123456;
  plant (put_limbo);
  plant (change_totals);
  return 0;
}

/* Kill the repair at each sync, or a sweep of them, and then repeat it. */
static void
test_killed_while_repairing (void)
{
  const unsigned step = sweep_step ();
  unsigned nth;
  bool killed = true;
  json_t *result;

  start_pool ();
  close_pool ();
  for (nth = sweep_start (step); killed; nth += step) {
    crash_after (plant_all);
    killed = crashes_at_sync (nth, open_and_attach, repair_all);
    open_and_attach ();
    result = call ("check", json_pack ("{s:b}", "repair", 1));
    expect (number (result, "errors") == 0);
    json_decref (result);
    expect_lost (3);
    expect_lost (NR_EQUAL + 3);
    write_block (3, 4);
    write_block (NR_EQUAL + 3, 4);
    settle ();
    expect_blocks ();
    check_pool ();
    close_pool ();
  }
  expect (nth > 5);
  open_and_attach ();
  use_and_end ();
}

static const struct engine_case cases[] = {
  CASE (killed_while_repairing), /* forks: first */
  CASE (only_a_leak_is_left),
  CASE (layer_counts_too_low),
  CASE (replay_meets_the_damage),
  CASE (fold_meets_the_damage),
  CASE (first_fold_meets_the_damage),
  CASE (count_too_low),
  CASE (count_too_high),
  CASE (no_count_at_all),
  CASE (first_record_of_each_group_is_gone),
  CASE (leaked_record),
  CASE (record_is_gone),
  CASE (records_are_damaged),
  CASE (record_and_content_are_gone),
  CASE (lost_in_a_snapshot),
  CASE (read_error_loses_nothing),
  CASE (leaf_is_damaged),
  CASE (fold_meets_a_row_that_is_cut_short),
  CASE (fold_meets_a_damaged_leaf),
  CASE (fold_meets_a_damaged_map),
  CASE (leaf_of_no_layer),
  CASE (index_is_empty),
  CASE (index_names_no_record),
  CASE (index_is_out_of_order),
  CASE (limbo_names_no_record),
  CASE (limbo_names_a_used_record),
  CASE (totals),
  CASE (space_is_not_known),
  CASE (space_map_is_damaged),
  CASE (space_figures),
  CASE (slots),
  CASE (space_is_free_by_mistake),
  CASE (space_is_used_by_mistake),
  CASE (while_it_is_written),
  CASE (lookups_end_first),
  { NULL, NULL }
};

int
main (int argc, char *argv[])
{
  /* "plant POOL": for repair.bats; its volume "v" has blocks of 4 KiB. */
  if (argc == 3 && strcmp (argv[1], "plant") == 0) {
    snprintf (directory, sizeof directory, "%s", argv[2]);
    open_and_attach ();
    plant_all ();
    close_pool ();
    return 0;
  }
  return run_cases (argc, argv, cases);
}
