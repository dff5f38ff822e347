/* SPDX-License-Identifier: BSD-3-Clause */

/* Pointers that are newer than their leaves: their rows, when the fold writes
 * them, what takes them away, and pools without them.  See leaf-delta.h and
 * engine-rig.h.
 */

#include <config.h>

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/syscall.h>

#include "base/bytes.h"
#include "core/txg-int.h"
#include "data/volume-types.h"
#include "format/leaf-delta.h"
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

#define AREA_BLOCKS (DELTA_LEAVES * LEAF_BLOCKS)

/* The pointer of a block in the model; 0: it has no delta. */
static uint8_t model[AREA_BLOCKS];

static void
expect_row (const uint8_t *row, size_t len, uint64_t area)
{
  uint8_t buf[LEAF_LEN_MAX], was;
  struct leaf leaf, out;
  unsigned nr, i, k;
  size_t first, leaf_len, all = 0;

  expect (deltas_are_valid (row, len));
  for (i = 0; i < DELTA_LEAVES; ++i) {
    nr = 0;
    for (k = 0; k < LEAF_BLOCKS; ++k) {
      was = model[i * LEAF_BLOCKS + k];
      nr += was != 0;
      leaf.state[k] = was != 0 && k % 5 == 0 ? MAP_LOST
        : was != 0 || k % 3 == 0             ? MAP_POINTER
        : k % 7 == 0                         ? MAP_LOST
                                             : MAP_HOLE;
      memset (leaf.ptr[k], 0xee, POINTER_LEN);
    }
    expect (deltas_of_leaf (row, len, area * DELTA_LEAVES + i, &first) == nr);
    expect (nr == 0 || first == all);
    all += nr;
    leaf_len = leaf_pack (&leaf, buf);
    must (deltas_apply (row, len, area * DELTA_LEAVES + i, buf, &leaf_len));
    must (leaf_unpack (buf, leaf_len, &out));
    for (k = 0; k < LEAF_BLOCKS; ++k) {
      was = model[i * LEAF_BLOCKS + k];
      expect (out.state[k] ==
              (was != 0 ? (unsigned) MAP_POINTER : leaf.state[k]));
      if (out.state[k] == MAP_POINTER)
        expect (out.ptr[k][0] == (was ? was : 0xee) &&
                out.ptr[k][POINTER_LEN - 1] == (was ? was : 0xee));
    }
  }
  expect (all * DELTA_ENTRY_LEN == len);
}

static void
test_rows (void)
{
  uint8_t row[DELTA_LEN_MAX];
  struct leaf_pointer p[4];
  struct rng rng = rng_make (1, 2);
  unsigned i, k, leaf, nr, added;
  size_t len = 0, n;

  for (i = 0; i < 3000; ++i) {
    leaf = (unsigned) rng_below (&rng, i < 1500 ? DELTA_LEAVES : 4);
    if (i % 100 == 99) {
      len = deltas_drop (row, len, 7 * DELTA_LEAVES + leaf);
      memset (model + leaf * LEAF_BLOCKS, 0, LEAF_BLOCKS);
    }
    nr = 1 + (unsigned) rng_below (&rng, 4);
    for (k = added = 0; k < nr; ++k) {
      p[k].index = (uint8_t) (k * 16 + rng_below (&rng, 16));
      memset (p[k].ptr, 1 + (int) (i % 200), POINTER_LEN);
      added += model[leaf * LEAF_BLOCKS + p[k].index] == 0;
    }
    n = deltas_add (row, len, 7 * DELTA_LEAVES + leaf, p, nr);
    expect ((n == 0) == (len / DELTA_ENTRY_LEN + added > DELTA_ENTRIES_MAX));
    if (n > 0) {
      len = n;
      for (k = 0; k < nr; ++k)
        model[leaf * LEAF_BLOCKS + p[k].index] = p[k].ptr[0];
    }
    else { /* as a merge does */
      expect_row (row, len, 7);
      memset (model, 0, sizeof model);
      len = 0;
    }
    if (i % 10 == 0)
      expect_row (row, len, 7);
  }
}

/* No leaf is read with what is wrong. */
static void
test_damaged_rows (void)
{
  uint8_t row[3 * DELTA_ENTRY_LEN] = { 0 }, buf[LEAF_LEN_MAX];
  struct leaf leaf = { .state = { MAP_POINTER, MAP_HOLE } };
  size_t len = leaf_pack (&leaf, buf);

  put_le16 (row, 0);
  put_le16 (row + DELTA_ENTRY_LEN, LEAF_BLOCKS);
  put_le16 (row + 2 * DELTA_ENTRY_LEN, AREA_BLOCKS - 1);
  expect (deltas_are_valid (row, sizeof row));
  must (deltas_apply (row, sizeof row, 0, buf, &len));
  expect (!deltas_are_valid (row, sizeof row - 1));
  expect (deltas_apply (row, sizeof row - 1, 2, buf, &len) == -1);
  put_le16 (row + 2 * DELTA_ENTRY_LEN, AREA_BLOCKS);
  expect (!deltas_are_valid (row, sizeof row));
  put_le16 (row + 2 * DELTA_ENTRY_LEN, LEAF_BLOCKS);
  expect (!deltas_are_valid (row, sizeof row));
  put_le16 (row, 1); /* a hole */
  put_le16 (row + 2 * DELTA_ENTRY_LEN, AREA_BLOCKS - 1);
  expect (deltas_apply (row, sizeof row, 0, buf, &len) == -1 && errno == EIO);
  must (deltas_apply (row, sizeof row, 2, buf, &len));
}

/*----------------------------------------------------------------------
 * The fold
 */

static unsigned nr_rows, nr_deltas; /* of table "delta" */

static int
count_row (void *opaque, const struct meta_leaf_key *key, const uint8_t *row,
           size_t len)
{
  (void) opaque;
  (void) key;
  expect (len > 0 && deltas_are_valid (row, len));
  nr_rows++;
  nr_deltas += (unsigned) (len / DELTA_ENTRY_LEN);
  return 0;
}

static void
count_rows (struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  nr_rows = nr_deltas = 0;
  must (meta_deltas_scan (c, count_row, NULL));
}

static void
expect_deltas_at (int line, unsigned deltas)
{
  plant (count_rows);
  if (nr_deltas != deltas)
    die ("line %d: %u deltas in %u rows, not %u", line, nr_deltas, nr_rows,
         deltas);
}
#define expect_deltas(deltas) expect_deltas_at (__LINE__, deltas)

/* A volume of 32 leaves, half an area, and all of its pointers in leaves. */
static void
start_full (void)
{
  start (1);
  write_blocks (0, NR_BLOCKS, 10000);
  settle ();
  expect_deltas (0);
  expect ((features () & FEATURE_INCOMPAT_DELTAS) == 0);
}

/* Overwrite one block in each of some leaves. */
static void
scatter (unsigned leaves, unsigned index, uint64_t content)
{
  unsigned i;

  for (i = 0; i < leaves; ++i)
    write_block (i * LEAF_BLOCKS + index, content + i);
}

static void
expect_scattered_at (int line, unsigned leaves, unsigned index,
                     uint64_t content)
{
  unsigned i;

  for (i = 0; i < leaves; ++i)
    expect_content_at (line, i * LEAF_BLOCKS + index, content + i);
}
#define expect_scattered(leaves, index, content)                               \
  expect_scattered_at (__LINE__, leaves, index, content)

static uint8_t leaf_row[2][LEAF_LEN_MAX];
static size_t leaf_row_len[2];
static unsigned taken;

/* Leaf 3 as its own row has it. */
static void
take_leaf_row (struct meta_conn *c, struct meta_state *state)
{
  sqlite3_stmt *st;

  (void) state;
  expect (sqlite3_prepare_v2 (c->db, "SELECT data FROM leaf WHERE leaf = 3", -1,
                              &st, NULL) == SQLITE_OK);
  expect (sqlite3_step (st) == SQLITE_ROW);
  leaf_row_len[taken] = (size_t) sqlite3_column_bytes (st, 0);
  memcpy (leaf_row[taken], sqlite3_column_blob (st, 0), leaf_row_len[taken]);
  sqlite3_finalize (st);
}

static bool
leaf_row_is_same (void)
{
  taken = 1;
  plant (take_leaf_row);
  taken = 0;
  return leaf_row_len[0] == leaf_row_len[1] &&
    memcmp (leaf_row[0], leaf_row[1], leaf_row_len[0]) == 0;
}

/* Scattered changes write no leaf; the second delta of a block replaces the
 * first one.
 */
static void
test_only_deltas_change (void)
{
  start_full ();
  plant (take_leaf_row);
  scatter (12, 5, 20000);
  settle ();
  expect_deltas (12);
  expect (features () & FEATURE_INCOMPAT_DELTAS);
  expect (leaf_row_is_same ());
  check_pool ();
  scatter (10, 5, 30000);
  scatter (10, 9, 40000);
  settle ();
  expect_deltas (22);
  expect (leaf_row_is_same ());
  check_pool ();
  reopen_pool ();
  expect_scattered (10, 5, 30000);
  expect_scattered (10, 9, 40000);
  expect_content (10 * LEAF_BLOCKS + 5, 20010);
  expect_content (6, 10006);
  check_pool ();
  end ();
}

/* What changes much of an area, or more than pointers, writes leaves. */
static void
test_leaves_change (void)
{
  start_full ();
  scatter (13, 5, 20000); /* too many leaves */
  settle ();
  expect_deltas (0);
  write_blocks (130, 9, 21000); /* too many blocks of one */
  settle ();
  expect_deltas (0);
  trim_block (200);
  settle ();
  write_block (200, 22000); /* replaces no pointer */
  settle ();
  expect_deltas (0);
  check_pool ();
  expect_content (200, 22000);
  end ();
}

/* The leaf's new row has them. */
static void
test_deltas_go (void)
{
  start_full ();
  scatter (8, 5, 20000);
  settle ();
  expect_deltas (8);
  trim_block (6); /* leaf 0 */
  write_blocks (64, 20, 21000);
  settle ();
  expect_deltas (6);
  check_pool ();
  expect_content (5, 20000);
  expect_content (6, 0);
  expect_content (69, 21005);
  must (
    nbdedup_volume_trim (handle, LEAF_BLOCKS * BLOCK, 2 * LEAF_BLOCKS * BLOCK));
  settle ();
  expect_deltas (5);
  check_pool ();
  reopen_pool ();
  expect_content (2 * LEAF_BLOCKS + 5, 0);
  expect_content (3 * LEAF_BLOCKS + 5, 20003);
  must (nbdedup_volume_trim (handle, NR_BLOCKS * BLOCK, 0));
  settle ();
  expect_deltas (0);
  expect (pool_figure ("stored_bytes") == 0);
  end ();
}

/* The same fold writes deltas, and a leaf that had some. */
static void
test_both (void)
{
  start_full ();
  scatter (4, 5, 20000);
  settle ();
  write_block (5, 30000);
  write_blocks (64, 20, 31000);
  write_block (2 * LEAF_BLOCKS + 5, 32000);
  settle ();
  expect_deltas (3);
  check_pool ();
  reopen_pool ();
  expect_content (5, 30000);
  expect_content (LEAF_BLOCKS + 5, 31005);
  expect_content (2 * LEAF_BLOCKS + 5, 32000);
  expect_content (3 * LEAF_BLOCKS + 5, 20003);
  end ();
}

/* An area that has many is merged into its leaves. */
static void
test_merge (void)
{
  unsigned i;

  start_full ();
  plant (take_leaf_row);
  for (i = 0; i < 3; ++i) {
    scatter (12, i, 20000 + i * 100);
    settle ();
    expect_deltas ((i + 1) * 12);
  }
  expect (leaf_row_is_same ());
  do {
    scatter (12, i, 20000 + i * 100);
    i++;
    settle ();
    plant (count_rows);
  } while (nr_deltas > 0);
  expect (i <= 8);
  expect (!leaf_row_is_same ());
  check_pool ();
  reopen_pool ();
  while (i-- > 0)
    expect_scattered (12, i, 20000 + i * 100);
  end ();
}

/* Returns how many the area has then. */
static size_t
plant_deltas (struct meta_conn *c, uint64_t branch, uint64_t leaf, uint64_t seq,
              const struct leaf_pointer *pointers, unsigned nr)
{
  uint8_t row[DELTA_LEN_MAX];
  size_t len;

  expect (meta_deltas_get (c, branch, leaf / DELTA_LEAVES, seq, row, &len) >=
          0);
  len = deltas_add (row, len, leaf, pointers, nr);
  must (meta_deltas_put (c, branch, leaf / DELTA_LEAVES, seq, row, len));
  return len / DELTA_ENTRY_LEN;
}

/* The pointers that leaves have anyway, as deltas. */
static void
plant_many (struct meta_conn *c, struct meta_state *state)
{
  const uint64_t branch = volume->layer->branch, seq = volume->layer->seq;
  struct leaf_pointer p[4];
  uint8_t buf[LEAF_LEN_MAX];
  struct leaf leaf;
  unsigned i, k;
  size_t n;

  state->features_incompat |= FEATURE_INCOMPAT_DELTAS;
  for (i = 0; i < DELTA_ENTRIES_MAX / 4; ++i) {
    expect (meta_leaf_get (c, branch, i, seq, buf, &n) == 1);
    must (leaf_unpack (buf, n, &leaf));
    for (k = 0; k < 4; ++k) {
      p[k].index = (uint8_t) (20 + k);
      memcpy (p[k].ptr, leaf.ptr[20 + k], POINTER_LEN);
    }
    expect (plant_deltas (c, branch, i, seq, p, 4) == (i + 1) * 4);
  }
}

/* What has no room in the area's row goes to the leaves. */
static void
test_full_area (void)
{
  start_full ();
  plant (plant_many);
  expect_deltas (DELTA_ENTRIES_MAX / 4 * 4);
  check_pool ();
  scatter (12, 5, 20000);
  settle ();
  expect_deltas (0);
  check_pool ();
  expect_scattered (12, 5, 20000);
  expect_content (20, 10020);
  end ();
}

/* Snapshots and clones read them, and keep them apart. */
static void
test_layers (void)
{
  start_full ();
  scatter (10, 5, 20000);
  settle ();
  run ("snapshot", json_pack ("{s:s}", "name", "v@a"));
  scatter (10, 5, 30000); /* a new layer: no leaf has a pointer */
  settle ();
  expect_deltas (10);
  scatter (10, 5, 40000);
  settle ();
  expect_deltas (20);
  check_pool ();
  expect_scattered (10, 5, 40000);
  nbdedup_volume_close (handle);
  handle = NULL;
  run ("rollback", json_pack ("{s:s,s:b}", "name", "v@a", "force", 1));
  attach ();
  settle ();
  expect_scattered (10, 5, 20000);
  check_pool ();
  expect_deltas (10);
  run ("snapshot", json_pack ("{s:s}", "name", "v@b"));
  scatter (4, 6, 50000);
  settle ();
  nbdedup_volume_close (handle);
  handle = NULL;
  run ("destroy", json_pack ("{s:s}", "name", "v@a"));
  run ("destroy", json_pack ("{s:s}", "name", "v@b"));
  attach ();
  do /* a merge of layers */
    settle ();
  while (pool_figure ("freeing_bytes") > 0);
  expect_scattered (4, 6, 50000);
  expect_scattered (10, 5, 20000);
  check_pool ();
  end ();
}

/* On a full file system the fold writes leaves, which do not grow. */
static void
test_full (void)
{
  start_full ();
  scatter (4, 5, 20000);
  settle ();
  expect_deltas (4);
  room_give_back (pool->txg->room);
  is_full = true;
  scatter (8, 5, 30000);
  settle ();
  is_full = false;
  expect_deltas (0);
  expect_scattered (8, 5, 30000);
  check_pool ();
  end ();
}

/*----------------------------------------------------------------------
 * Without the table, and wrong rows in it
 */

static void
forget_deltas (struct meta_conn *c, struct meta_state *state)
{
  state->features_incompat &= ~(uint64_t) FEATURE_INCOMPAT_DELTAS;
  must (meta_exec (c, "DROP TABLE delta", "a test"));
}

/* A pool of an earlier version. */
static void
test_older_pool (void)
{
  struct nbdedup_settings settings;

  start_full ();
  plant (forget_deltas);
  close_pool ();
  /* Read-only, the pool does not get the table. */
  nbdedup_settings_init (&settings);
  settings.read_only = NBDEDUP_READ_ONLY_ON;
  pool = nbdedup_pool_open (directory, &settings, "test-deltas", 0);
  expect (pool != NULL);
  check_pool ();
  must (nbdedup_pool_close (pool));
  open_and_attach ();
  scatter (10, 5, 20000);
  settle ();
  expect_deltas (10);
  check_pool ();
  reopen_pool ();
  expect_scattered (10, 5, 20000);
  expect_content (9, 10009);
  end ();
}

/* One of a leaf that has no row. */
static void
plant_stray (struct meta_conn *c, struct meta_state *state)
{
  struct leaf_pointer p = { .index = 3 };

  (void) state;
  plant_deltas (c, volume->layer->branch, 40, volume->layer->seq, &p, 1);
}

/* One of a layer that does not exist. */
static void
plant_foreign (struct meta_conn *c, struct meta_state *state)
{
  struct leaf_pointer p = { .index = 3 };

  (void) state;
  plant_deltas (c, 12345, 40, 7, &p, 1);
}

/* The check finds it, and a repair mends it without a loss. */
static void
test_stray_deltas (void)
{
  static plant_fn *const plants[] = { plant_stray, plant_foreign };
  json_t *result;
  unsigned i;

  start_full ();
  scatter (10, 5, 20000);
  settle ();
  for (i = 0; i < sizeof plants / sizeof plants[0]; ++i) {
    plant (plants[i]);
    expect_deltas (11);
    result = call ("check", NULL);
    expect (number (result, "errors") > 0);
    json_decref (result);
    close_pool ();
    open_to_repair ();
    run ("check", json_pack ("{s:b}", "repair", 1));
    check_pool ();
    expect_deltas (10);
    expect_scattered (10, 5, 20000);
    expect_content (7, 10007);
  }
  end ();
}

/* It ends within an entry. */
static void
plant_cut (struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  must (
    meta_exec (c, "UPDATE delta SET data = substr (data, 1, 30)", "a test"));
}

/* A delta of a block that is a hole in the leaf's row. */
static void
plant_hole (struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  must (meta_exec (c, "UPDATE leaf SET data = zeroblob (16) WHERE leaf = 1",
                   "a test"));
}

/* 1: right; 0: EIO. */
static bool
reads_right (unsigned block, uint64_t content)
{
  uint8_t buf[BLOCK], wanted[BLOCK];

  fill (wanted, content);
  if (nbdedup_volume_read (handle, buf, BLOCK, block * (uint64_t) BLOCK) ==
      -1) {
    expect (errno == EIO);
    return false;
  }
  expect (memcmp (buf, wanted, BLOCK) == 0);
  return true;
}

/* A row that is not valid must not show what was before it: not before a repair,
 * and not after.
 */
static void
test_wrong_rows (void)
{
  json_t *result;
  unsigned round, i;

  for (round = 0; round < 2; ++round) {
    start_full ();
    scatter (10, 5, 20000);
    settle ();
    plant (round == 0 ? plant_cut : plant_hole);
    close_pool ();
    open_to_repair ();
    for (i = 0; i < 10; ++i)
      expect (reads_right (i * LEAF_BLOCKS + 5, 20000 + i) ==
              (round == 1 && i != 1));
    result = call ("check", NULL);
    expect (number (result, "errors") > 0);
    json_decref (result);
    run ("check", json_pack ("{s:b}", "repair", 1));
    check_pool ();
    reopen_pool ();
    for (i = 0; i < 10; ++i)
      expect (reads_right (i * LEAF_BLOCKS + 5, 20000 + i) ==
              (round == 1 && i != 1));
    write_blocks (0, NR_BLOCKS, 50000);
    settle ();
    expect_deltas (0);
    expect_content (LEAF_BLOCKS + 5, 50000 + LEAF_BLOCKS + 5);
    end ();
  }
}

/* A crash at each sync of folds that write deltas, and merge them. */
static void
make_deltas (void)
{
  open_and_attach ();
  write_blocks (0, NR_BLOCKS, 10000);
  settle ();
  scatter (12, 1, 20000);
  scatter (12, 2, 20100);
  scatter (12, 3, 20200);
  settle ();
}

static void
merge_deltas (void)
{
  scatter (12, 4, 20300);
  must (nbdedup_volume_flush (handle));
  settle ();
  scatter (12, 1, 30000);
  scatter (12, 5, 20400);
  scatter (12, 6, 20500);
  must (nbdedup_volume_flush (handle));
  settle ();
}

static void
test_crash (void)
{
  unsigned nth;

  start (1);
  close_pool ();
  for (nth = 1; crashes_at_sync (nth, make_deltas, merge_deltas); ++nth) {
    open_and_attach ();
    check_pool ();
    settle ();
    check_pool ();
    expect_scattered (12, 2, 20100);
    expect_scattered (12, 3, 20200);
    expect_content (7, 10007);
    must (nbdedup_volume_trim (handle, NR_BLOCKS * BLOCK, 0));
    settle ();
    expect_deltas (0);
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
    CASE (rows),          CASE (damaged_rows), CASE (only_deltas_change),
    CASE (leaves_change), CASE (deltas_go),    CASE (both),
    CASE (merge),         CASE (full_area),    CASE (layers),
    CASE (full),          CASE (older_pool),   CASE (stray_deltas),
    CASE (wrong_rows),    CASE (crash),        { NULL },
  };

  return run_cases (argc, argv, cases);
}
