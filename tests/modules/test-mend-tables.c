/* SPDX-License-Identifier: BSD-3-Clause */

/* A page is damaged in both copies of pool.db, in a table that can be rebuilt
 * from others: the list of records, their counts, the space maps, the hash index, or a small
 * table or index.
 *
 * Nothing is lost: all data can be read, written and destroyed, in the damaged
 * pool, and after it was closed and opened.  "check --repair" repairs
 * everything, also when it is run again after a kill at any sync.  After that
 * everything can be destroyed, and no space stays in use.  See page-rig.h.
 */

#include <config.h>

#include "core/txg.h"
#include "format/format.h"
#include "rigs/page-rig.h"

/* Blocks that take a sector each, so that the rows of their records are longer
 * than a page; and blocks that do not compress.
 */
#define PACKED 4096u
#define PLAIN 6144u
/* Blocks of "plain" in another volume, written later: rows of table "count". */
#define TWIN (PLAIN - PLAIN / 4)

static unsigned generation; /* of the overwritten blocks */
static unsigned sweep;      /* SWEEP_STEP, see page-rig.h */

static bool
is_diverged (unsigned block)
{
  return block % 5 == 2;
}

static uint64_t
in_packed (unsigned block)
{
  return generation > 0 && block % 3 == 1 ? 1000000 * generation + block
                                          : 1 + block;
}

static uint64_t
in_snapshot (unsigned block)
{
  return 1 + block;
}

static uint64_t
in_clone (unsigned block)
{
  return is_diverged (block) ? 500000 + block : 1 + block;
}

/* The overwritten blocks have contents that "packed" has already. */
static uint64_t
in_plain (unsigned block)
{
  return generation > 0 && block % 4 == 1 ? 1 + block : 700000 + block;
}

static uint64_t
in_twin (unsigned block)
{
  return 700000 + block;
}

static const struct {
  const char *name;
  uint64_t (*content) (unsigned block);
  unsigned blocks;
  bool packed;
} names[] = {
  { "packed", in_packed, PACKED, true },
  { "packed@a", in_snapshot, PACKED, true },
  { "clone", in_clone, PACKED, true },
  { "plain", in_plain, PLAIN, false },
  { "twin", in_twin, TWIN, false },
};
#define NR_NAMES (sizeof names / sizeof names[0])

static void
make_block (uint8_t buf[BLOCK], uint64_t content, bool packed)
{
  fill (buf, content);
  if (packed)
    memset (buf + 16, 0, BLOCK - 16);
}

static void
put_made (struct nbdedup_volume *v, unsigned block, uint64_t content,
          bool packed)
{
  uint8_t buf[BLOCK];

  make_block (buf, content, packed);
  must (nbdedup_volume_write (v, buf, BLOCK, (uint64_t) block * BLOCK));
}

static void
put_all (size_t name, bool (*which) (unsigned block))
{
  struct nbdedup_volume *v = open_volume (names[name].name);
  unsigned i;

  for (i = 0; i < names[name].blocks; ++i)
    if (which == NULL || which (i))
      put_made (v, i, names[name].content (i), names[name].packed);
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
}

static void
make_pool (void)
{
  unsigned i;

  create_volume ("packed", PACKED);
  create_volume ("plain", PLAIN);
  put_all (0, NULL);
  run ("snapshot", json_pack ("{s:s}", "name", "packed@a"));
  run ("clone",
       json_pack ("{s:s,s:s}", "snapshot", "packed@a", "name", "clone"));
  put_all (2, is_diverged);
  put_all (3, NULL);
  write_blocks (600, 300, 600000);
  settle ();
  create_volume ("twin", TWIN);
  put_all (4, NULL);
  for (i = 600; i < 900; i += 10)
    trim_block (i);
  settle ();
  check_pool ();
}

/*----------------------------------------------------------------------
 * Contents
 */

static void
expect_all (void)
{
  uint8_t buf[BLOCK], wanted[BLOCK];
  struct nbdedup_volume *v;
  unsigned i;
  size_t n;

  for (n = 0; n < NR_NAMES; ++n) {
    v = open_name (names[n].name);
    for (i = n % 2; i < names[n].blocks; i += 2) {
      make_block (wanted, names[n].content (i), names[n].packed);
      if (nbdedup_volume_read (v, buf, BLOCK, (uint64_t) i * BLOCK) == -1)
        die ("%s, block %u: %s", names[n].name, i, nbdedup_error ());
      if (memcmp (buf, wanted, BLOCK) != 0)
        die ("%s: block %u is not what was written", names[n].name, i);
    }
    nbdedup_volume_close (v);
  }
}

static bool
is_overwritten (unsigned block)
{
  return block % 3 == 1;
}

static bool
is_shared (unsigned block)
{
  return block % 4 == 1;
}

/* Send some of each kind of command and request that changes pool.db. */
static void
use_pool (void)
{
  generation++;
  put_all (0, is_overwritten);
  put_all (3, is_shared);
  write_blocks (0, 512, 900000 * generation);
  settle ();
  expect_all ();
  must (nbdedup_volume_trim (handle, 256 * BLOCK, 0));
  create_volume ("more", 100);
  run ("snapshot", json_pack ("{s:s}", "name", "v@s"));
  run ("set", json_pack ("{s:s,s:s}", "property", "full-warn", "value", "80"));
  run ("rename", json_pack ("{s:s,s:s}", "old", "more", "new", "less"));
  settle ();
  run ("destroy", json_pack ("{s:s,s:b}", "name", "v@s", "wait", 1));
  run ("destroy", json_pack ("{s:s,s:b}", "name", "less", "wait", 1));
  settle ();
}

/* Dedup must find blocks that were written before the pool was opened. */
static void
expect_dedup (void)
{
  uint64_t records;
  unsigned i;

  for (i = 0; i < 64; ++i)
    write_block (1000 + i, 950000 + 100 * generation + i);
  settle ();
  reopen_pool ();
  records = pool_figure ("records");
  for (i = 0; i < 64; ++i)
    write_block (1100 + i, 950000 + 100 * generation + i);
  settle ();
  expect (pool_figure ("records") == records);
}

static void
repair (void)
{
  json_t *result = repair_pool ();

  expect (number (result, "lost_blocks") == 0);
  json_decref (result);
}

/* Use the pool, which uses other pages; then destroy everything, after which no
 * space may be in use.
 */
static void
use_and_end (void)
{
  use_pool ();
  expect_all ();
  check_pool ();
  nbdedup_volume_close (handle);
  run ("destroy",
       json_pack ("{s:s,s:b,s:b}", "name", "packed", "recursive", 1, "force",
                  1));
  run ("destroy", json_pack ("{s:s,s:b}", "name", "clone", "wait", 1));
  run ("destroy", json_pack ("{s:s,s:b}", "name", "plain", "wait", 1));
  run ("destroy", json_pack ("{s:s,s:b}", "name", "twin", "wait", 1));
  run ("destroy", json_pack ("{s:s,s:b}", "name", "v", "wait", 1));
  settle ();
  settle ();
  expect (pool_figure ("records") == 0);
  expect (pool_figure ("stored_bytes") == 0);
  check_pool ();
  must (nbdedup_pool_close (pool));
  generation = 0;
}

static bool
has_lost_records (void)
{
  struct meta_state state;

  txg_get_state (pool->txg, &state);
  return state.features_compat & FEATURE_COMPAT_RECORDS_LOST;
}

/*----------------------------------------------------------------------*/

/* Use the pool without a repair, and then with one. */
static void
go_on (const struct page *page)
{
  (void) page;
  open_and_attach ();
  expect_all ();
  use_pool ();
  expect_all ();
  expect_dedup ();
  expect_all ();
  use_pool ();
  close_pool ();
  open_to_repair ();
  expect_all ();
  repair ();
  expect (!has_lost_records ());
  expect_all ();
  use_and_end ();
}

static void
test_records_list (void)
{
  each_page ("record", 9, go_on);
}

static void
test_counts (void)
{
  each_page ("count", 1, go_on);
}

static void
test_space_maps (void)
{
  each_page ("segment", 1, go_on);
}

static void
test_hash_index (void)
{
  each_page ("ddt", 7, go_on);
}

static unsigned commits;

static int
fail_commit (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) c;
  (void) state;
  fail_wal_syncs = ++commits == 1;
  return 0;
}

/* A fold that has met the damage, and mended it, cannot sync its commit.  It is
 * unknown then what the disk has: the fold must not try again.
 */
static void
test_failed_commit_after_mending (void)
{
  begin ();
  damage_page (root_page ("ddt"));
  open_and_attach ();
  commits = 0;
  write_block (0, 123456);
  must (nbdedup_volume_flush (handle));
  expect (txg_run (pool->txg, fail_commit, NULL, NULL) == -1);
  expect (meta_saw_damage (pool->meta));
  expect (commits == 1 && fail_wal_syncs == 0);
  expect (nbdedup_volume_flush (handle) == -1 && errno == EIO);
  expect (strstr (nbdedup_error (), "restart the server") != NULL);
  nbdedup_volume_close (handle);
  expect (nbdedup_pool_close (pool) == -1);
  go_on (NULL);
}

static void
test_small_tables (void)
{
  static const char *const small[] = {
    "limbo",
    "copy",
    "property",
    "report",
    "drift",
    "drift_golden",
    "sqlite_autoindex_layer_1",
    "sqlite_autoindex_volume_1",
    "sqlite_autoindex_snapshot_1",
    "sqlite_autoindex_domain_1",
  };
  size_t i;

  for (i = 0; i < sizeof small / sizeof small[0]; i += sweep)
    each_page (small[i], 1, go_on);
}

/* Repair at once, in a pool that is in use. */
static void
repair_page (const struct page *page)
{
  (void) page;
  open_and_attach ();
  repair ();
  expect_all ();
  use_and_end ();
}

static void
test_repair_in_use (void)
{
  each_page ("record", 29, repair_page);
  each_page ("count", 1, repair_page);
  each_page ("segment", 2, repair_page);
  each_page ("ddt", 29, repair_page);
}

static uint64_t
write_and_crash (void)
{
  generation++;
  put_all (0, is_overwritten);
  put_all (3, is_shared);
  return 0;
}

/* The journal has entries for records and space that are unknown. */
static void
test_replay (void)
{
  static const struct {
    const char *table;
    enum page_kind kind;
  } pages[] = {
    { "record", PAGE_BOTTOM },  { "record", PAGE_OVERFLOW },
    { "segment", PAGE_BOTTOM }, { "segment", PAGE_BOTTOM },
    { "count", PAGE_BOTTOM },
  };
  size_t i;

  for (i = 0; i < sizeof pages / sizeof pages[0]; ++i) {
    begin ();
    crash_after (write_and_crash);
    generation = 1;
    damage_page (i % 2 ? some_page (pages[i].table, pages[i].kind)
                       : root_page (pages[i].table));
    go_on (NULL);
  }
}

/* With both damaged it is unknown which space is in use. */
static void
test_records_and_space (void)
{
  begin ();
  damage_page (some_page ("record", PAGE_BOTTOM));
  damage_page (some_page ("segment", PAGE_BOTTOM));
  go_on (NULL);
  begin ();
  crash_after (write_and_crash);
  generation = 1;
  damage_page (some_page ("record", PAGE_OVERFLOW));
  damage_page (some_page ("segment", PAGE_BOTTOM));
  damage_page (some_page ("ddt", PAGE_BOTTOM));
  go_on (NULL);
}

/* More pointers to missing records than a repair processes at once, most of
 * them to records of one row.
 */
static void
test_many_pointers (void)
{
  static const unsigned nr = 70000, periods[] = { PACKED, 200 };
  struct nbdedup_volume *v;
  uint8_t buf[BLOCK], wanted[BLOCK];
  unsigned i, p;

  for (p = 0; p < 2; p += sweep) {
    begin ();
    open_pool (1);
    create_volume ("many", nr);
    v = open_volume ("many");
    for (i = 0; i < nr; ++i)
      put_made (v, i, 1 + i % periods[p], true);
    nbdedup_volume_close (v);
    settle ();
    must (nbdedup_pool_close (pool));
    damage_page (root_page ("record"));
    open_to_repair ();
    repair ();
    v = open_volume ("many");
    for (i = 0; i < nr; i += 7) {
      make_block (wanted, 1 + i % periods[p], true);
      must (nbdedup_volume_read (v, buf, BLOCK, (uint64_t) i * BLOCK));
      expect (memcmp (buf, wanted, BLOCK) == 0);
    }
    nbdedup_volume_close (v);
    run ("destroy", json_pack ("{s:s,s:b}", "name", "many", "wait", 1));
    expect_all ();
    use_and_end ();
  }
}

/*----------------------------------------------------------------------
 * Killed
 */

static void
end_repair (bool killed)
{
  expect_all ();
  repair ();
  expect (!has_lost_records ());
  expect_all ();
  if (killed)
    close_pool ();
  else
    use_and_end ();
}

static void
test_killed_while_repairing (void)
{
  const struct {
    uint32_t page;
    unsigned step;
  } pages[] = {
    { some_page ("record", PAGE_BOTTOM), 7 },
    { some_page ("record", PAGE_OVERFLOW), 17 },
    { root_page ("record"), 17 },
    { some_page ("count", PAGE_BOTTOM), 17 },
    { root_page ("segment"), 9 },
  };
  size_t i;

  for (i = 0; i < sizeof pages / sizeof pages[0]; ++i)
    kill_at_each_sync (pages[i].page, pages[i].step * sweep, repair,
                       end_repair);
}

static const struct engine_case cases[] = {
  CASE (killed_while_repairing), /* forks: first */
  CASE (replay),
  CASE (records_and_space),
  CASE (records_list),
  CASE (counts),
  CASE (space_maps),
  CASE (hash_index),
  CASE (failed_commit_after_mending),
  CASE (small_tables),
  CASE (repair_in_use),
  CASE (many_pointers),
  { NULL, NULL }
};

int
main (int argc, char *argv[])
{
  int r = 77;

  sweep = sweep_step ();
  start_sample (make_pool);
  if (some_page ("record", PAGE_OVERFLOW) != 0)
    r = run_cases (argc, argv, cases);
  end_sample ();
  return r;
}
