/* SPDX-License-Identifier: BSD-3-Clause */

/* Reference counts apart from the records: their rows, what the fold writes,
 * and pools without them.  See counts.h and engine-rig.h.
 */

#include <config.h>

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/syscall.h>

#include "core/txg-int.h"
#include "format/counts.h"
#include "meta/meta-conn.h"
#include "rigs/engine-rig.h"
#include "rigs/plants.h"

static atomic_bool is_full; /* the file system */

int
fallocate (int fd, int mode, off_t offset, off_t len)
{
  if (mode == 0 && is_full) {
    errno = ENOSPC;
    return -1;
  }
  return (int) syscall (SYS_fallocate, fd, mode, offset, len);
}

/*----------------------------------------------------------------------
 * The rows
 */

static const uint64_t values[] = {
  COUNT_DEAD,
  0,
  1,
  126,
  127,
  16382,
  16383,
  UINT64_C (1) << 32,
  RECORD_REFCOUNT_MAX - 1,
  RECORD_REFCOUNT_MAX,
};
#define NR_VALUES (sizeof values / sizeof values[0])

static void
test_round_trip (void)
{
  uint8_t buf[COUNTS_LEN_MAX];
  struct counts in, out;
  unsigned i, step;
  size_t len, whole;

  counts_clear (&in);
  expect (counts_pack (&in, buf) == 0);
  for (step = 1; step < RECORD_GROUP_SECTORS; step += 13) {
    counts_clear (&in);
    for (i = step - 1; i < RECORD_GROUP_SECTORS; i += step)
      in.of[i] = values[i % NR_VALUES];
    len = counts_pack (&in, buf);
    must (counts_unpack (5, buf, len, &out));
    expect (memcmp (&in, &out, sizeof in) == 0);
    /* The last entry is cut. */
    in.of[i - step] = COUNT_SAME;
    whole = counts_pack (&in, buf);
    in.of[i - step] = out.of[i - step];
    counts_pack (&in, buf);
    while (--len > whole)
      expect (counts_unpack (5, buf, len, &out) == -1);
  }
  for (i = 0; i < RECORD_GROUP_SECTORS; ++i)
    in.of[i] = RECORD_REFCOUNT_MAX;
  expect (counts_pack (&in, buf) == COUNTS_LEN_MAX);
}

static void
test_damaged_row (void)
{
  static const struct {
    uint8_t p[10];
    size_t len;
  } bad[] = {
    { { 5 }, 1 },
    { { 5, 2, 5, 2 }, 4 },
    { { 5, 2, 4, 2 }, 4 },
    { { 5, 0x80 }, 2 },
    /* 2^48 + 1; and a number of 8 bytes. */
    { { 5, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40 }, 8 },
    { { 5, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0 }, 9 },
  };
  struct record r = {
    .ptr = { .addr = 5, .psize = 4096 },
    .lsize = 4096,
    .refcount = 7,
  };
  uint8_t buf[RECORD_ENTRY_MAX];
  struct counts out;
  size_t i, len;

  for (i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    expect (counts_unpack (0, bad[i].p, bad[i].len, &out) == -1);
    expect (errno == EIO);
    /* Who reads the records with them finds the group damaged. */
    len = record_pack (&r, buf);
    counts_apply (0, buf, &len, bad[i].p, bad[i].len);
    expect (len > 0 && record_unpack (0, buf, len, &r) == -1);
  }
}

/*----------------------------------------------------------------------
 * The fold
 */

struct rows {
  struct blob record, count;
};

static uint64_t wanted_group;
static struct rows *wanted_rows;

static void
take_rows (struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  expect (meta_record_get_parts (c, wanted_group, &wanted_rows->record,
                                 &wanted_rows->count) >= 0);
}

/* The two rows of the block's group. */
static struct rows
rows_of (uint64_t addr)
{
  struct rows rows = { { NULL, 0, 0 }, { NULL, 0, 0 } };

  wanted_group = addr / RECORD_GROUP_SECTORS;
  wanted_rows = &rows;
  plant (take_rows);
  return rows;
}

static void
free_rows (struct rows *rows)
{
  blob_free (&rows->record);
  blob_free (&rows->count);
}

static bool
is_same (const struct blob *a, const struct blob *b)
{
  return a->len == b->len && memcmp (a->p, b->p, a->len) == 0;
}

/* References that come and go write a row of table "count" only. */
static void
test_only_counts_change (void)
{
  struct rows before, more, less, again;
  uint64_t addr;

  start (1);
  write_blocks (0, 256, 1000);
  settle ();
  addr = address_of (3);
  before = rows_of (addr);
  expect (before.count.len == 0 && features () == FEATURE_INCOMPAT_PACKED);

  write_blocks (1000, 20, 1000);
  settle ();
  more = rows_of (addr);
  expect (is_same (&before.record, &more.record) && more.count.len > 0);
  expect (features () == (FEATURE_INCOMPAT_COUNTS | FEATURE_INCOMPAT_PACKED));
  check_pool ();

  /* One dies, and the references of the others are as at first. */
  must (nbdedup_volume_trim (handle, 20 * BLOCK, 1000 * BLOCK));
  trim_block (3);
  settle ();
  less = rows_of (addr);
  expect (is_same (&before.record, &less.record) && less.count.len == 2);
  check_pool ();
  reopen_pool ();
  expect_content (2, 1002);
  expect_content (3, 0);
  check_pool ();

  /* A new record in these sectors writes the row. */
  write_block (3, 77);
  settle ();
  again = rows_of (addr);
  expect (address_of (3) / RECORD_GROUP_SECTORS != wanted_group ||
          (again.count.len == 0 && !is_same (&before.record, &again.record)));
  check_pool ();
  free_rows (&before);
  free_rows (&more);
  free_rows (&less);
  free_rows (&again);
  end ();
}

/* References go one by one, then the records. */
static void
test_references_go (void)
{
  uint64_t records;
  unsigned k;

  start (1);
  write_blocks (0, 64, 1000);
  settle ();
  records = pool_figure ("records");
  for (k = 1; k < 5; ++k)
    write_blocks (k * 64, 64, 1000);
  settle ();
  check_pool ();
  for (k = 5; k-- > 0;) {
    expect (pool_figure ("records") == records);
    must (nbdedup_volume_trim (handle, 64 * BLOCK, k * 64 * BLOCK));
    settle ();
    check_pool ();
    if (k % 2 == 0)
      reopen_pool ();
    if (k > 0)
      expect_content (5, 1005);
  }
  expect (pool_figure ("records") == 0 && pool_figure ("stored_bytes") == 0);
  end ();
}

static uint64_t reached_addr;

static void
note_reached (void *opaque, const uint64_t *addrs, size_t nr)
{
  (void) opaque;
  expect (nr == 1);
  reached_addr = addrs[0];
}

/* A record whose count grows in table "count" may have copies. */
static void
test_references_reach_copies (void)
{
  start (1);
  run ("set", json_pack ("{s:s,s:s}", "property", "copies", "value", "2:4"));
  pool->txg->parts.reached = note_reached;
  write_block (0, 5);
  settle ();
  write_block (1, 5);
  settle ();
  write_block (2, 5);
  settle ();
  expect (reached_addr == 0);
  write_block (3, 5);
  settle ();
  expect (reached_addr == address_of (0));
  end ();
}

/* No lookup finds a dead record, and its sectors are used again. */
static void
test_dead_are_dead (void)
{
  uint64_t records, stored;
  unsigned i;

  start (1);
  write_blocks (0, 512, 1000);
  settle ();
  records = pool_figure ("records");
  stored = pool_figure ("stored_bytes");
  for (i = 0; i < 512; i += 8)
    trim_block (i);
  settle ();
  expect (pool_figure ("records") == records - 64);
  expect (pool_figure ("stored_bytes") == stored - 64 * BLOCK);
  reopen_pool ();
  for (i = 0; i < 512; i += 16)
    write_block (1000 + i, 1000 + i);
  for (i = 8; i < 512; i += 16)
    write_block (i, 5000 + i);
  settle ();
  expect (pool_figure ("records") == records);
  expect (pool_figure ("stored_bytes") == stored);
  check_pool ();
  reopen_pool ();
  for (i = 0; i < 512; ++i)
    expect_content (i, i % 16 == 0 ? 0 : i % 16 == 8 ? 5000 + i : 1000 + i);
  for (i = 0; i < 512; i += 16)
    expect_content (1000 + i, 1000 + i);
  end ();
}

/* The row of records is written without its dead ones in the end. */
static void
test_many_dead (void)
{
  struct rows rows;
  uint64_t addr;
  size_t len;
  unsigned i;

  start (1);
  write_blocks (0, 1024, 1000);
  settle ();
  addr = address_of (500);
  rows = rows_of (addr);
  len = rows.record.len;
  free_rows (&rows);
  for (i = 0; i < 1024; ++i)
    if (i % 4 != 0) {
      trim_block (i);
      if (i % 128 == 127)
        settle ();
    }
  settle ();
  rows = rows_of (addr);
  expect (rows.record.len < len / 2);
  free_rows (&rows);
  check_pool ();
  must (nbdedup_volume_trim (handle, 1024 * BLOCK, 0));
  settle ();
  rows = rows_of (addr);
  expect (rows.record.len == 0 && rows.count.len == 0);
  free_rows (&rows);
  expect (pool_figure ("records") == 0 && pool_figure ("stored_bytes") == 0);
  end ();
}

/* On a full file system, references that go let the tables shrink. */
static void
test_full (void)
{
  struct rows rows;
  uint64_t addr;
  size_t len;

  start (1);
  write_blocks (0, 256, 1000);
  write_blocks (300, 20, 1000);
  settle ();
  addr = address_of (3);
  rows = rows_of (addr);
  len = rows.record.len;
  free_rows (&rows);
  room_give_back (pool->txg->room);
  is_full = true;
  trim_block (302);
  trim_block (3);
  trim_block (303);
  settle ();
  rows = rows_of (addr);
  expect (rows.count.len == 0 && rows.record.len == len - RECORD_ENTRY_LEN);
  free_rows (&rows);
  is_full = false;
  check_pool ();
  end ();
}

/*----------------------------------------------------------------------
 * Without the table, and wrong rows in it
 */

static void
forget_counts (struct meta_conn *c, struct meta_state *state)
{
  unpack_rows (c, state);
  state->features_incompat = 0;
  must (meta_exec (c, "DROP TABLE count", "a test"));
}

/* A pool of an earlier version. */
static void
test_older_pool (void)
{
  struct nbdedup_settings settings;

  start (1);
  write_blocks (0, 256, 1000);
  write_blocks (300, 50, 1000);
  settle ();
  plant (forget_counts);
  close_pool ();
  /* Read-only, the pool does not get the table. */
  nbdedup_settings_init (&settings);
  settings.read_only = NBDEDUP_READ_ONLY_ON;
  pool = nbdedup_pool_open (directory, &settings, "test-counts", 0);
  expect (pool != NULL);
  check_pool ();
  must (nbdedup_pool_close (pool));
  open_and_attach ();
  check_pool ();
  write_blocks (400, 50, 1000);
  trim_block (301);
  trim_block (100);
  settle ();
  expect (features () == (FEATURE_INCOMPAT_COUNTS | FEATURE_INCOMPAT_PACKED));
  check_pool ();
  reopen_pool ();
  check_pool ();
  expect_content (1, 1001);
  expect_content (100, 0);
  end ();
}

static void
plant_stray (struct meta_conn *c, struct meta_state *state)
{
  const uint8_t row[] = { 1, 9 };

  (void) state;
  must (meta_count_put (c, 123456, row, sizeof row));
}

static void
plant_cut (struct meta_conn *c, struct meta_state *state)
{
  const uint8_t row[] = { 1, 0x80 };

  (void) state;
  must (
    meta_count_put (c, planted_addr / RECORD_GROUP_SECTORS, row, sizeof row));
}

static void
plant_wrong (struct meta_conn *c, struct meta_state *state)
{
  const uint8_t row[] = { (uint8_t) planted_addr, 9 };

  (void) state;
  must (
    meta_count_put (c, planted_addr / RECORD_GROUP_SECTORS, row, sizeof row));
}

/* The check finds it, and a repair mends it without a loss. */
static void
test_wrong_rows (void)
{
  static plant_fn *const plants[] = { plant_stray, plant_cut, plant_wrong };
  json_t *result;
  unsigned i, j;

  start (1);
  write_blocks (0, 600, 1000);
  write_blocks (600, 100, 1000);
  settle ();
  for (i = 0; i < sizeof plants / sizeof plants[0]; ++i) {
    planted_addr = address_of (300);
    plant (plants[i]);
    result = call ("check", NULL);
    expect (number (result, "errors") > 0);
    json_decref (result);
    close_pool ();
    open_to_repair ();
    run ("check", json_pack ("{s:b}", "repair", 1));
    check_pool ();
    for (j = 0; j < 700; ++j)
      expect_content (j, 1000 + j % 600);
  }
  end ();
}

/* A crash at each sync of a fold that changes only counts, and of one that
 * writes rows without their dead records.
 */
static void
make_counts (void)
{
  open_and_attach ();
  write_blocks (0, 512, 1000);
  settle ();
}

static void
change_counts (void)
{
  unsigned i;

  for (i = 0; i < 512; i += 5)
    trim_block (i);
  write_blocks (1000, 100, 1001);
  must (nbdedup_volume_flush (handle));
  settle ();
  for (i = 0; i < 512; i += 2)
    trim_block (i);
  must (nbdedup_volume_flush (handle));
  settle ();
}

static void
test_crash (void)
{
  unsigned nth;

  start (1);
  close_pool ();
  for (nth = 1; crashes_at_sync (nth, make_counts, change_counts); ++nth) {
    open_and_attach ();
    check_pool ();
    settle ();
    check_pool ();
    expect_content (1, 1001);
    expect_content (511, 1511);
    must (nbdedup_volume_trim (handle, 2048 * BLOCK, 0));
    settle ();
    expect (pool_figure ("stored_bytes") == 0);
    close_pool ();
  }
  expect (nth > 4);
  open_and_attach ();
  end ();
}

int
main (int argc, char *argv[])
{
  static const struct engine_case cases[] = {
    CASE (round_trip),
    CASE (damaged_row),
    CASE (only_counts_change),
    CASE (references_go),
    CASE (references_reach_copies),
    CASE (dead_are_dead),
    CASE (many_dead),
    CASE (full),
    CASE (older_pool),
    CASE (wrong_rows),
    CASE (crash),
    { NULL },
  };

  return run_cases (argc, argv, cases);
}
