/* SPDX-License-Identifier: BSD-3-Clause */

/* Copies of records (copies.h): how they are made, checked by the fold, given
 * up, lost in a crash, and wrong in pool.db.  See engine-rig.h.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>

#include "core/ddt.h"
#include "core/record-cache.h"
#include "core/txg.h"
#include "data/verify.h"
#include "data/writeback.h"
#include "disk/room.h"
#include "disk/store.h"
#include "report/copier.h"
#include "rigs/engine-rig.h"
#include "space/space.h"

#define NR 8u /* blocks that have copies */
#define SECTORS (BLOCK / 512)

static void
set_copies (const char *value)
{
  run ("set", json_pack ("{s:s,s:s}", "property", "copies", "value", value));
}

/* Let the copier look at the record.  Returns the number of copies it made. */
static int
copy_record (uint64_t addr)
{
  struct verifier v;
  uint64_t bytes = 0;
  int r;

  must (verifier_init (&v, pool));
  r = copier_copy (pool, &v, addr, &bytes);
  verifier_free (&v);
  expect (r < 0 || bytes == (uint64_t) r * BLOCK);
  return r;
}

static int
copy_block (uint64_t block)
{
  return copy_record (address_of (block));
}

static void
copy_all (void)
{
  uint64_t i;

  for (i = 0; i < NR; ++i)
    expect (copy_block (i) >= 0);
}

static uint64_t
copied_sectors (void)
{
  struct meta_state state;

  settle ();
  txg_get_state (pool->txg, &state);
  return state.copy_sectors;
}

/* The addresses of the copies of the record at 'addr', in pool.db. */
static unsigned
copies_at (uint64_t addr, uint64_t copies[COPIES_BESIDE])
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  unsigned nr;

  expect (meta_copies_get (c, addr, copies, &nr) != -1);
  meta_reader_put (pool->meta, c);
  return nr;
}

static void
flip (uint64_t addr)
{
  int fd = openat (AT_FDCWD, directory, O_RDONLY | O_DIRECTORY), f;
  uint8_t byte;

  f = openat (fd, "records", O_RDWR);
  expect (f != -1 && pread (f, &byte, 1, (off_t) addr * 512 + 100) == 1);
  byte ^= 4;
  expect (pwrite (f, &byte, 1, (off_t) addr * 512 + 100) == 1);
  close (f);
  close (fd);
}

/* The scrub must find no damage, in the copies either. */
static void
scrub_pool (void)
{
  json_t *result = call ("scrub", NULL);

  expect (json_integer_value (json_object_get (result, "errors")) == 0);
  json_decref (result);
}

/* Make a volume of NR blocks, each with another content. */
static void
start_copying (const char *copies)
{
  start (1);
  set_copies (copies);
  write_blocks (0, NR, 1000);
  settle ();
}

static void
test_copies_go_with_their_records (void)
{
  uint64_t i;

  start_copying ("2:1");
  copy_all ();
  expect (copied_sectors () == NR * SECTORS);
  check_pool ();
  scrub_pool ();
  for (i = 0; i < NR; ++i)
    expect (copy_block (i) == 0); /* once is enough */
  trim_block (0);
  write_block (1, 5);
  expect (copied_sectors () == (NR - 2) * SECTORS);
  check_pool ();
  for (i = 2; i < NR; ++i)
    trim_block (i);
  expect (copied_sectors () == 0);
  end ();
}

static void
test_three_are_in_three_segments (void)
{
  uint64_t copies[COPIES_BESIDE], segment[COPIES_MAX];
  const uint64_t sectors = SEGMENT_BYTES / 512;

  start_copying ("3:1");
  expect (copy_block (0) == 2);
  settle ();
  expect (copies_at (address_of (0), copies) == 2);
  segment[0] = address_of (0) / sectors;
  segment[1] = copies[0] / sectors;
  segment[2] = copies[1] / sectors;
  expect (segment[0] != segment[1] && segment[1] != segment[2] &&
          segment[0] != segment[2]);
  expect (copy_record (copies[0]) == 0);
  end ();
}

static void
test_only_with_enough_references (void)
{
  start_copying ("2:3");
  write_block (100, 1000);
  settle ();
  expect (copy_block (0) == 0);
  write_block (101, 1000);
  settle ();
  expect (copy_block (0) == 1);
  expect (copy_block (1) == 0);
  expect (copied_sectors () == SECTORS);
  /* With fewer references the copy stays. */
  trim_block (100);
  trim_block (101);
  expect (copied_sectors () == SECTORS);
  end ();
}

/* The record dies in the fold that would give it its copy. */
static void
test_dies_while_it_is_copied (void)
{
  start_copying ("2:1");
  expect (copy_block (0) == 1);
  trim_block (0);
  expect (copied_sectors () == 0);
  check_pool ();
  /* The record has too few references again, or the property has changed. */
  set_copies ("2:2");
  write_block (100, 1001);
  settle ();
  expect (copy_block (1) == 1);
  trim_block (100);
  expect (copied_sectors () == 0);
  end ();
}

static void
do_copy (uint64_t addr)
{
  expect (copy_record (addr) == 1);
}

/* The record dies in a fold between reading it and writing its copy. */
static void
test_gone_before_it_is_copied (void)
{
  struct job fold, copy;
  uint64_t addr;
  unsigned before;

  start_copying ("2:1");
  addr = address_of (0);
  trim_block (0);
  must (writeback_drain (pool->writeback, NULL));
  txg_enter (pool->txg, 0, 0);
  job_start (&fold, do_fold, 0); /* its cut waits for this txg */
  while (!txg_is_cutting (pool->txg))
    poll (NULL, 0, 1);
  before = reads_records;
  job_start (&copy, do_copy, addr); /* the copier waits for the cut */
  while (reads_records == before)
    poll (NULL, 0, 1);
  poll (NULL, 0, A_WHILE_MS);
  expect (!fold.done && !copy.done);
  txg_leave (pool->txg);
  job_end (&copy);
  job_end (&fold);
  expect (copied_sectors () == 0);
  end ();
}

/* The copier gets a record twice before the fold. */
static void
test_copied_twice_before_the_fold (void)
{
  start_copying ("2:1");
  expect (copy_block (0) == 1);
  expect (copy_block (0) == 1);
  expect (copied_sectors () == SECTORS);
  end ();
}

/* The address of the primary has another record when the fold comes. */
static void
test_copy_of_another_record (void)
{
  struct blob row CLEANUP_BLOB = { NULL };
  struct meta_conn *c;
  struct placement place;
  struct record r;
  uint64_t segment;
  uint8_t buf[BLOCK];

  start_copying ("2:1");
  c = meta_reader_get (pool->meta);
  expect (meta_record_find (c, address_of (0), &row, &r) == 1);
  meta_reader_put (pool->meta, c);
  fill (buf, 1000);
  segment = r.ptr.addr / (SEGMENT_BYTES / 512);
  txg_enter (pool->txg, 1, ROOM_BLOCK_PAGES);
  must (space_alloc_apart (pool->space, SECTORS, &segment, 1, &place));
  must (store_write (pool->store, place.addr, buf, BLOCK));
  r.ptr.addr = place.addr;
  r.slot = place.slot;
  r.flags = RECORD_COPY;
  r.refcount = 0;
  must (ddt_insert_copy (pool->ddt, &r, place.chunk_addr, address_of (1)));
  txg_leave (pool->txg);
  expect (copied_sectors () == 0);
  end ();
}

static void
test_damaged_records_are_not_copied (void)
{
  start_copying ("2:1");
  flip (address_of (0));
  expect (copy_block (0) == 0);
  flip (address_of (0));
  expect (copy_block (0) == 1);
  settle ();
  /* A damaged primary is read, and repaired, from its copy. */
  flip (address_of (0));
  record_cache_forget (pool->records, address_of (0));
  expect_content (0, 1000);
  expect (pool->copy_reads == 1);
  record_cache_forget (pool->records, address_of (0));
  scrub_pool ();
  expect_content (0, 1000);
  expect (pool->copy_reads == 1);
  end ();
}

/* The bytes of the copy are durable before pool.db refers to it. */
static void
test_copy_is_synced_before_the_commit (void)
{
  unsigned records, wal;

  start_copying ("2:1");
  expect (copy_block (0) == 1);
  records = syncs_records;
  wal = syncs_wal;
  settle ();
  expect (syncs_records > records && syncs_wal > wal);
  end ();
}

/*----------------------------------------------------------------------
 * Crashes
 */

static uint64_t
copy_and_crash (void)
{
  copy_all ();
  return 0;
}

/* The journal has no copies: those that were not folded are free again. */
static void
test_crash_before_the_fold (void)
{
  start_copying ("2:1");
  close_pool ();
  crash_after (copy_and_crash);
  open_and_attach ();
  expect (copied_sectors () == 0);
  check_pool ();
  write_blocks (NR, NR, 2000); /* into the same sectors */
  settle ();
  copy_all ();
  expect (copied_sectors () == NR * SECTORS);
  scrub_pool ();
  end ();
}

static void
change_all (void)
{
  open_and_attach ();
  copy_all ();
  settle ();
  write_blocks (0, NR / 2, 3000);
  must (nbdedup_volume_flush (handle));
  settle ();
  copy_all ();
  set_copies ("1");
  settle ();
  close_pool ();
}

/* Copies are made, given up, made again and removed.  After each crash counts
 * and space are right, and each copy has the bytes of its record.
 */
static void
test_crash_at_each_sync (void)
{
  bool killed = true;
  unsigned nth;

  start_copying ("2:1");
  close_pool ();
  for (nth = 1; killed; ++nth) {
    killed = crashes_at_sync (nth, NULL, change_all);
    open_and_attach ();
    check_pool ();
    scrub_pool ();
    expect_content (NR - 1, 1000 + NR - 1);
    if (!killed)
      expect (copied_sectors () == 0);
    write_blocks (0, NR, 1000);
    set_copies ("2:1");
    settle ();
    close_pool ();
  }
  expect (nth > 5);
  open_and_attach ();
  end ();
}

/*----------------------------------------------------------------------
 * Table "copy" is wrong
 */

struct wrong {
  uint64_t addr, copies[COPIES_BESIDE];
  unsigned nr;
};

static int
put_wrong (void *arg, struct meta_conn *c, struct meta_state *state)
{
  const struct wrong *w = arg;

  (void) state;
  return meta_copies_put (c, w->addr, w->copies, w->nr);
}

static void
plant (uint64_t addr, uint64_t copy)
{
  struct wrong w = { addr, { copy }, copy != 0 };

  must (txg_run (pool->txg, put_wrong, NULL, &w));
}

static json_int_t
errors (bool repair, const char *key)
{
  json_t *result = call ("check", json_pack ("{s:b}", "repair", (int) repair));
  json_int_t n = json_integer_value (json_object_get (result, key));

  json_decref (result);
  return n;
}

/* A row that names another block's record does not harm it. */
static void
test_row_that_names_no_copy (void)
{
  start_copying ("2:1");
  copy_all ();
  settle ();
  plant (address_of (0), address_of (1));
  trim_block (0);
  settle ();
  expect_content (1, 1001);
  expect (errors (false, "errors") > 0); /* block 0's copy is left */
  expect (errors (true, "errors") == 0);
  settle ();
  expect_content (1, 1001);
  expect (copied_sectors () == (NR - 1) * SECTORS);
  end ();
}

/* check finds and repairs each wrong row, and keeps the others. */
static void
test_check_finds_and_repairs (void)
{
  uint64_t copies[COPIES_BESIDE];
  unsigned i;

  start_copying ("2:1");
  copy_all ();
  settle ();
  for (i = 0; i < 4; ++i) {
    expect (copies_at (address_of (1), copies) == 1);
    switch (i) {
    case 0: /* a row is missing */
      plant (address_of (0), 0);
      break;
    case 1: /* a primary that does not exist */
      plant (4000000, copies[0]);
      break;
    case 2: /* a copy that does not exist */
      plant (address_of (0), 4000000);
      break;
    case 3: /* the copy of another record */
      plant (address_of (0), copies[0]);
      break;
    }
    expect (errors (false, "errors") > 0);
    expect (errors (true, "errors") == 0);
    settle ();
    check_pool ();
    copy_all ();
    expect (copied_sectors () == NR * SECTORS);
    check_pool ();
    scrub_pool ();
  }
  end ();
}

static const struct engine_case cases[] = {
  CASE (crash_before_the_fold),
  CASE (crash_at_each_sync),
  CASE (copies_go_with_their_records),
  CASE (three_are_in_three_segments),
  CASE (only_with_enough_references),
  CASE (dies_while_it_is_copied),
  CASE (gone_before_it_is_copied),
  CASE (copied_twice_before_the_fold),
  CASE (copy_of_another_record),
  CASE (damaged_records_are_not_copied),
  CASE (copy_is_synced_before_the_commit),
  CASE (row_that_names_no_copy),
  CASE (check_finds_and_repairs),
  { NULL, NULL },
};

/* test-copies [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}
