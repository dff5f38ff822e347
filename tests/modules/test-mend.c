/* SPDX-License-Identifier: BSD-3-Clause */

/* A page of the maps is damaged in both copies of pool.db: each page in turn,
 * at the bottom of the tree, above it, and its root.
 *
 * Reads return the right data or an I/O error, never zeroes or older data.
 * Writes succeed, also into the lost part.  check --repair repairs the pool,
 * and reports what is lost.  Run again after a kill at any sync, it has the
 * same outcome.  See engine-rig.h.
 *
 * SWEEP_STEP=N in the environment: only each Nth page and sync.
 */

#include <config.h>

#include "core/txg.h"
#include "data/volume-types.h"
#include "format/format.h"
#include "rigs/page-rig.h"

/* Of the large volumes; enough for a tree of three levels. */
#define BLOCKS 16384u

/*----------------------------------------------------------------------
 * The sample: volumes that are full, sparse, inherited from
 */

static bool
is_changed (unsigned block)
{
  return block % 640 == 5;
}

static bool
is_diverged (unsigned block)
{
  return block % 1280 == 7;
}

static bool
is_trimmed (unsigned block)
{
  return block % 1280 == 9;
}

static bool
is_sparse (unsigned block)
{
  return block == 70 || block == 5000 || block == 16000;
}

static uint64_t
in_snapshot (unsigned block)
{
  return 1 + block % 61;
}

static uint64_t
in_big (unsigned block)
{
  return is_changed (block) ? 1000 + block % 7 : in_snapshot (block);
}

static uint64_t
in_diverged (unsigned block)
{
  return is_diverged (block) ? 2000 + block % 5
    : is_trimmed (block)     ? 0
                             : in_snapshot (block);
}

static uint64_t
in_holes (unsigned block)
{
  return is_trimmed (block) ? 0 : in_snapshot (block);
}

static uint64_t
in_sparse (unsigned block)
{
  return is_sparse (block) ? 3000 + block : 0;
}

static uint64_t
in_nothing (unsigned block)
{
  (void) block;
  return 0;
}

static const struct {
  const char *name;
  uint64_t (*content) (unsigned block);
  unsigned blocks;
} names[] = {
  { "big", in_big, BLOCKS },
  { "big@a", in_snapshot, BLOCKS },
  { "unwritten", in_snapshot, BLOCKS },
  { "diverged", in_diverged, BLOCKS },
  { "holes", in_holes, BLOCKS },
  { "sparse", in_sparse, BLOCKS },
  { "v", in_nothing, NR_BLOCKS },
};
#define NR_NAMES (sizeof names / sizeof names[0])

static void
clone_of (const char *name)
{
  run ("clone", json_pack ("{s:s,s:s}", "snapshot", "big@a", "name", name));
}

static void
make_volumes (void)
{
  struct nbdedup_volume *v;
  unsigned i;

  create_volume ("sparse", BLOCKS);
  create_volume ("big", BLOCKS);
  v = open_volume ("big");
  for (i = 0; i < BLOCKS; ++i)
    put_block (v, i, in_snapshot (i));
  settle ();
  run ("snapshot", json_pack ("{s:s}", "name", "big@a"));
  for (i = 0; i < BLOCKS; ++i)
    if (is_changed (i))
      put_block (v, i, in_big (i) + 100);
  settle ();
  for (i = 0; i < BLOCKS; ++i) /* these become deltas (leaf-delta.h) */
    if (is_changed (i))
      put_block (v, i, in_big (i));
  nbdedup_volume_close (v);
  clone_of ("unwritten");
  clone_of ("diverged");
  clone_of ("holes");
  v = open_volume ("diverged");
  for (i = 0; i < BLOCKS; ++i)
    if (is_diverged (i))
      put_block (v, i, in_diverged (i));
    else if (is_trimmed (i))
      must (nbdedup_volume_trim (v, BLOCK, (uint64_t) i * BLOCK));
  nbdedup_volume_close (v);
  v = open_volume ("holes");
  for (i = 0; i < BLOCKS; ++i)
    if (is_trimmed (i))
      must (nbdedup_volume_trim (v, BLOCK, (uint64_t) i * BLOCK));
  nbdedup_volume_close (v);
  v = open_volume ("sparse");
  for (i = 0; i < BLOCKS; ++i)
    if (is_sparse (i))
      put_block (v, i, in_sparse (i));
  nbdedup_volume_close (v);
  settle ();
  check_pool ();
}

/*----------------------------------------------------------------------
 * What can still be read
 */

/* A few blocks of each leaf, and all special ones. */
static bool
is_looked_at (unsigned block)
{
  return block % LEAF_BLOCKS == 0 || block % LEAF_BLOCKS == 63 ||
    is_changed (block) || is_diverged (block) || is_trimmed (block) ||
    is_sparse (block);
}

/* 1: right, 0: EIO. */
static int
look (struct nbdedup_volume *v, const char *name, unsigned block,
      uint64_t content)
{
  uint8_t buf[BLOCK], wanted[BLOCK];

  fill (wanted, content);
  errno = 0;
  if (nbdedup_volume_read (v, buf, BLOCK, (uint64_t) block * BLOCK) == -1) {
    expect (errno == EIO);
    return 0;
  }
  if (memcmp (buf, wanted, BLOCK) != 0)
    die ("%s: block %u is not what was written", name, block);
  return 1;
}

/* Read the selected blocks of this name.  Returns how many cannot be read; all
 * others must be right.
 */
static unsigned
count_lost (size_t name)
{
  struct nbdedup_volume *v = open_name (names[name].name);
  unsigned i, lost = 0;

  for (i = 0; i < names[name].blocks; ++i)
    if (is_looked_at (i))
      lost += !look (v, names[name].name, i, names[name].content (i));
  nbdedup_volume_close (v);
  return lost;
}

/* True if the block is among the places. */
static bool
is_told (const json_t *places, const char *name, unsigned block)
{
  const json_t *p;
  json_int_t offset = (json_int_t) block * BLOCK;
  size_t i;

  json_array_foreach (places, i, p)
    if (strcmp (json_string_value (json_object_get (p, "name")), name) == 0 &&
        number (p, "offset") <= offset &&
        number (p, "offset") + number (p, "length") > offset)
      return true;
  return false;
}

/* The result must have each block that cannot be read, and no other. */
static void
expect_told (const json_t *result)
{
  const json_t *places = json_object_get (result, "lost");
  struct nbdedup_volume *v;
  uint8_t buf[BLOCK];
  unsigned i;
  size_t n;

  if (json_array_size (places) > 90)
    return; /* the result names no more places */
  for (n = 0; n < NR_NAMES; ++n) {
    v = open_name (names[n].name);
    for (i = 0; i < names[n].blocks; ++i)
      if (is_looked_at (i))
        expect ((nbdedup_volume_read (v, buf, BLOCK, (uint64_t) i * BLOCK) ==
                 -1) == is_told (places, names[n].name, i));
    nbdedup_volume_close (v);
  }
}

static bool
are_files_equal (void)
{
  char command[3 * PATH_MAX];

  snprintf (command, sizeof command, "cmp -s '%s/pool.db' '%s/pool.db.copy'",
            directory, directory);
  return system (command) == 0;
}

/* Everything can be written again, and read; then destroy everything, after
 * which no space may be in use.
 */
static void
use_and_end (void)
{
  json_t *result;
  struct nbdedup_volume *v;
  unsigned i;
  size_t n;

  for (n = 0; n < NR_NAMES; ++n) {
    if (strchr (names[n].name, '@'))
      continue;
    v = open_volume (names[n].name);
    for (i = 0; i < names[n].blocks; i += 32)
      put_block (v, i, 5000 + i % 11);
    must (nbdedup_volume_flush (v));
    settle ();
    for (i = 0; i < names[n].blocks; i += 32)
      expect (look (v, names[n].name, i, 5000 + i % 11) == 1);
    nbdedup_volume_close (v);
  }
  result = call ("check", NULL);
  expect (number (result, "errors") == 0);
  json_decref (result);
  nbdedup_volume_close (handle);
  run ("destroy",
       json_pack ("{s:s,s:b,s:b}", "name", "big", "recursive", 1, "force", 1));
  for (n = 2; n < NR_NAMES; ++n)
    run ("destroy", json_pack ("{s:s,s:b}", "name", names[n].name, "wait", 1));
  settle ();
  settle ();
  expect (pool_figure ("records") == 0);
  check_pool ();
  must (nbdedup_pool_close (pool));
  expect (are_files_equal ());
}

/* 'damaged': the page is still damaged.  If not, the volume without a map must
 * have lost nothing.
 */
static unsigned
expect_some_lost (bool damaged)
{
  unsigned lost = 0;
  size_t n;

  for (n = 0; n < NR_NAMES; ++n)
    lost += count_lost (n);
  expect (lost > 0);
  if (!damaged) {
    expect (count_lost (NR_NAMES - 1) == 0);
    expect (count_lost (2) == count_lost (1));
  }
  return lost;
}

/*----------------------------------------------------------------------*/

static void
repair_page (const struct page *page)
{
  json_t *result;
  unsigned lost;

  open_to_repair ();
  (void) page;
  expect_some_lost (true);
  result = repair_pool ();
  lost = expect_some_lost (false);
  expect (number (result, "lost_blocks") > 0);
  expect_told (result);
  json_decref (result);
  /* A second repair finds nothing. */
  result = repair_pool ();
  expect (number (result, "lost_blocks") == 0);
  json_decref (result);
  reopen_pool ();
  expect (expect_some_lost (false) == lost);
  use_and_end ();
}

static void
test_each_page_is_repaired (void)
{
  each_page ("leaf", 1, repair_page);
  each_page ("delta", 1, repair_page);
}

/* Write without a repair: into the lost part, and elsewhere. */
static void
write_on (const struct page *page)
{
  struct nbdedup_volume *v;
  unsigned i;
  json_t *result;

  (void) page;
  open_and_attach ();
  v = open_volume ("big");
  for (i = 3; i < BLOCKS; i += 256)
    put_block (v, i, 7000 + i);
  must (nbdedup_volume_flush (v));
  settle ();
  for (i = 3; i < BLOCKS; i += 256)
    expect (look (v, "big", i, 7000 + i) == 1);
  nbdedup_volume_close (v);
  expect_some_lost (false);
  close_pool ();
  open_to_repair ();
  result = repair_pool ();
  json_decref (result);
  expect_some_lost (false);
  use_and_end ();
}

static void
test_writes_go_on (void)
{
  each_page ("leaf", 1, write_on);
  each_page ("delta", 1, write_on);
}

/* A lost leaf does not take the pointers with it that are elsewhere. */
static void
test_deltas_survive (void)
{
  struct nbdedup_volume *v;
  unsigned i;

  begin ();
  damage_page (root_page ("leaf"));
  open_to_repair ();
  json_decref (repair_pool ());
  v = open_volume ("big");
  for (i = 0; i < BLOCKS; ++i)
    if (is_changed (i))
      expect (look (v, "big", i, in_big (i)) == 1);
  nbdedup_volume_close (v);
  use_and_end ();
}

/* Mending one of the two tables must not need the other. */
static void
test_leaves_and_deltas_are_lost (void)
{
  begin ();
  damage_page (root_page ("leaf"));
  damage_page (root_page ("delta"));
  open_to_repair ();
  json_decref (repair_pool ());
  expect_some_lost (true);
  use_and_end ();
}

/* The layer that dies still has the pointers that its deltas replaced, which
 * hold no references.
 */
static void
test_layer_with_lost_deltas_dies (void)
{
  size_t n;

  begin ();
  damage_page (root_page ("delta"));
  open_and_attach ();
  run ("rollback", json_pack ("{s:s,s:b}", "name", "big@a", "force", 1));
  settle ();
  close_pool ();
  open_to_repair ();
  json_decref (repair_pool ());
  check_pool ();
  for (n = 1; n < NR_NAMES; ++n)
    (void) count_lost (n);
  close_pool ();
}

/* A layer that merges has a leaf with deltas on both sides of the end. */
static uint64_t
cut_a_leaf (void)
{
  struct nbdedup_volume *v;
  unsigned i, round;

  create_volume ("cut", 1024);
  v = open_volume ("cut");
  for (i = 0; i < 1024; ++i)
    put_block (v, i, 1 + i);
  settle ();
  for (round = 0; round < 2; ++round) {
    for (i = 645; i < 651; ++i)
      put_block (v, i, 5000 + 100 * round + i);
    settle ();
  }
  nbdedup_volume_close (v);
  run ("snapshot", json_pack ("{s:s}", "name", "cut@a"));
  run ("resize",
       json_pack ("{s:s,s:I,s:b}", "name", "cut", "size",
                  (json_int_t) 648 * BLOCK, "shrink", 1));
  settle ();
  run ("destroy", json_pack ("{s:s}", "name", "cut@a"));
  return 0;
}

static void
test_cut_leaf_is_lost (void)
{
  struct nbdedup_volume *v;
  unsigned i;

  begin ();
  crash_after (cut_a_leaf);
  damage_page (root_page ("leaf"));
  open_and_attach ();
  settle ();
  settle ();
  v = open_volume ("cut");
  put_block (v, 641, 9000);
  settle ();
  expect (look (v, "cut", 641, 9000) == 1);
  for (i = 645; i < 648; ++i)
    (void) look (v, "cut", i, 5100 + i);
  nbdedup_volume_close (v);
  close_pool ();
  open_to_repair ();
  json_decref (repair_pool ());
  check_pool ();
  close_pool ();
}

static struct meta_leaf_key areas[64];
static unsigned nr_areas;

static int
note_area (void *opaque, const struct meta_leaf_key *key, const uint8_t *row,
           size_t len)
{
  (void) opaque;
  (void) row;
  (void) len;
  expect (nr_areas < 64);
  areas[nr_areas++] = *key;
  return 0;
}

static int
forget_deltas (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  nr_areas = 0;
  must (meta_deltas_scan (c, note_area, NULL));
  expect (nr_areas > 0);
  while (nr_areas-- > 0)
    must (meta_deltas_merge (c, areas[nr_areas].branch, areas[nr_areas].leaf,
                             areas[nr_areas].seq));
  state->features_incompat &= ~(uint64_t) FEATURE_INCOMPAT_DELTAS;
  return 0;
}

/* A damaged page that never had a row costs nothing. */
static void
test_no_deltas_are_lost (void)
{
  struct nbdedup_settings settings;
  size_t n;

  begin ();
  open_and_attach ();
  must (txg_run (pool->txg, forget_deltas, NULL, NULL));
  close_pool ();
  damage_page (root_page ("delta"));
  nbdedup_settings_init (&settings);
  settings.read_only = NBDEDUP_READ_ONLY_ON;
  pool = nbdedup_pool_open (directory, &settings, "test-mend", 0);
  expect (pool != NULL);
  for (n = 0; n < NR_NAMES; ++n)
    expect (count_lost (n) == 0);
  must (nbdedup_pool_close (pool));
  open_to_repair ();
  json_decref (repair_pool ());
  for (n = 0; n < NR_NAMES; ++n)
    expect (count_lost (n) == 0);
  use_and_end ();
}

/* A block whose only content was its loss: no count says that it had a row. */
static void
test_what_was_lost_before (void)
{
  uint8_t buf[BLOCK];

  begin ();
  open_and_attach ();
  txg_enter (pool->txg, 64, ROOM_HOLES_PAGES);
  must (txg_set_lost (pool->txg, volume->layer, 100, 1));
  txg_leave (pool->txg);
  settle ();
  close_pool ();
  damage_page (root_page ("leaf"));
  open_to_repair ();
  json_decref (repair_pool ());
  expect (nbdedup_volume_read (handle, buf, BLOCK, 100 * BLOCK) == -1 &&
          errno == EIO);
  use_and_end ();
}

/*----------------------------------------------------------------------
 * Killed
 */

static unsigned lost_before; /* the same after each kill; 0: not known yet */

static void
do_repair (void)
{
  json_decref (repair_pool ());
}

static void
end_repair (bool killed)
{
  unsigned lost;

  do_repair ();
  lost = expect_some_lost (false);
  expect (lost_before == 0 || lost_before == lost);
  lost_before = lost;
  if (killed)
    close_pool ();
  else
    use_and_end ();
}

static void
test_killed_while_repairing (void)
{
  static const enum page_kind kinds[] = { PAGE_BOTTOM, PAGE_INTERIOR };
  unsigned i;

  for (i = 0; i < 2; ++i) {
    lost_before = 0;
    expect (kill_at_each_sync (some_page ("leaf", kinds[i]),
                               (i == 0 ? 1 : 3) * sweep_step (), do_repair,
                               end_repair) > 5);
  }
}

static uint64_t
write_and_crash (void)
{
  struct nbdedup_volume *v = open_volume ("big");
  unsigned i;

  for (i = 3; i < BLOCKS; i += 64)
    put_block (v, i, 7000 + i);
  must (nbdedup_volume_flush (v));
  return 0;
}

/* The journal has writes into the lost part. */
static void
test_replay_goes_on (void)
{
  struct nbdedup_volume *v;
  unsigned i, round;
  json_t *result;

  for (round = 0; round < 2; ++round) {
    begin ();
    crash_after (write_and_crash);
    damage_page (some_page ("leaf", round == 0 ? PAGE_BOTTOM : PAGE_INTERIOR));
    open_and_attach ();
    v = open_volume ("big");
    for (i = 3; i < BLOCKS; i += 64)
      expect (look (v, "big", i, 7000 + i) == 1);
    nbdedup_volume_close (v);
    expect_some_lost (false);
    result = repair_pool ();
    expect (number (result, "lost_blocks") > 0);
    json_decref (result);
    use_and_end ();
  }
}

static const struct engine_case cases[] = {
  CASE (killed_while_repairing), /* forks: first */
  CASE (cut_leaf_is_lost),       /* as well */
  CASE (replay_goes_on),
  CASE (what_was_lost_before),
  CASE (each_page_is_repaired),
  CASE (writes_go_on),
  CASE (deltas_survive),
  CASE (leaves_and_deltas_are_lost),
  CASE (layer_with_lost_deltas_dies),
  CASE (no_deltas_are_lost),
  { NULL, NULL },
};

int
main (int argc, char *argv[])
{
  int r = 77;

  start_sample (make_volumes);
  if (some_page ("leaf", PAGE_BOTTOM) != 0)
    r = run_cases (argc, argv, cases);
  end_sample ();
  return r;
}
