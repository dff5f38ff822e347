/* SPDX-License-Identifier: BSD-3-Clause */

/* Blocks whose content is lost: every read fails, until they are written whole
 * or zeroed.  See engine-rig.h.
 */

#include <config.h>

#include "core/txg.h"
#include "data/volume-types.h"
#include "rigs/engine-rig.h"

static void
lose (uint64_t block, uint64_t count)
{
  txg_enter (pool->txg, 64, ROOM_HOLES_PAGES);
  must (txg_set_lost (pool->txg, volume->layer, block, count));
  txg_leave (pool->txg);
}

#define expect_lost(block) expect_lost_at (__LINE__, handle, block)

static void
expect_lost_at (int line, struct nbdedup_volume *h, uint64_t block)
{
  uint8_t buf[BLOCK];

  errno = 0;
  if (nbdedup_volume_read (h, buf, BLOCK, block * BLOCK) != -1 ||
      errno != EIO || strstr (nbdedup_error (), "lost") == NULL)
    die ("line %d: block %" PRIu64 " is not lost", line, block);
}

static void
expect_scrub (json_int_t lost, size_t places)
{
  json_t *result = nbdedup_call (pool, "scrub", NULL);

  if (result == NULL)
    die ("scrub: %s", nbdedup_error ());
  expect (json_integer_value (json_object_get (result, "errors")) == lost);
  expect (json_integer_value (json_object_get (result, "lost_blocks")) == lost);
  expect (json_array_size (json_object_get (result, "damaged")) == places);
  json_decref (result);
}

static int
count_data (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  uint64_t *bytes = opaque;

  (void) offset;
  if (!hole)
    *bytes += len;
  return 0;
}

/* In memory, in pool.db, in the cache; over data and over holes. */
static void
test_reads_as_an_error (void)
{
  uint64_t bytes = 0;
  unsigned i;

  start (1);
  write_blocks (0, 8, 1);
  settle ();
  lose (2, 3);
  lose (100, 1);
  for (i = 0; i < 3; ++i) {
    expect_content (1, 2);
    expect_lost (2);
    expect_lost (4);
    expect_content (5, 6);
    expect_lost (100);
    if (i == 0)
      settle ();
    if (i == 1) {
      reopen_pool ();
    }
  }
  must (nbdedup_volume_extents (handle, 200 * BLOCK, 0, count_data, &bytes));
  expect (bytes == 9 * BLOCK);
  check_pool ();
  expect_scrub (4, 4);
  end ();
}

static void
test_is_healed_by_what_covers_it (void)
{
  uint8_t buf[BLOCK] = { 1 };

  start (1);
  write_blocks (0, 8, 1);
  settle ();
  lose (0, 8);
  settle ();
  /* A write of a part fails, because the rest is unknown. */
  expect (nbdedup_volume_write (handle, buf, 512, 512) == -1 && errno == EIO);
  expect (nbdedup_volume_zero (handle, 512, 512) == -1 && errno == EIO);
  write_block (0, 100);
  expect_content (0, 100);
  trim_block (1);
  expect_content (1, 0);
  settle ();
  expect_content (0, 100);
  expect_content (1, 0);
  expect_lost (2);
  must (nbdedup_volume_trim (handle, 64 * BLOCK, 0));
  expect_content (2, 0);
  settle ();
  expect_content (2, 0);
  expect_scrub (0, 0);
  end ();
}

/* Snapshots and clones inherit a lost block.  A write to a clone heals it there
 * only.  When layers merge it stays lost.
 */
static void
test_is_inherited (void)
{
  struct nbdedup_volume *clone;
  uint8_t buf[BLOCK], back[BLOCK];

  start (1);
  write_blocks (0, 8, 1);
  settle ();
  lose (3, 2);
  run ("snapshot", json_pack ("{s:s}", "name", "v@a"));
  run ("clone", json_pack ("{s:s,s:s}", "snapshot", "v@a", "name", "c"));
  clone = nbdedup_volume_open (pool, "c", 0, -1, NULL);
  expect (clone != NULL);
  expect_lost_at (__LINE__, clone, 3);
  fill (buf, 77);
  must (nbdedup_volume_write (clone, buf, BLOCK, 3 * BLOCK));
  must (nbdedup_volume_trim (clone, BLOCK, 4 * BLOCK));
  must (nbdedup_volume_flush (clone));
  settle ();
  must (nbdedup_volume_read (clone, back, BLOCK, 3 * BLOCK));
  expect (memcmp (buf, back, BLOCK) == 0);
  must (nbdedup_volume_read (clone, back, BLOCK, 4 * BLOCK));
  expect (memcmp (back, (uint8_t[BLOCK]) { 0 }, BLOCK) == 0);
  expect_lost (3);
  check_pool ();
  nbdedup_volume_close (clone);
  run ("destroy",
       json_pack ("{s:s,s:b,s:b}", "name", "c", "force", 1, "wait", 1));
  lose (6, 1);
  settle ();
  run ("destroy", json_pack ("{s:s,s:b}", "name", "v@a", "wait", 1));
  settle ();
  expect_content (2, 3);
  expect_lost (3);
  expect_lost (4);
  expect_content (5, 6);
  expect_lost (6);
  expect_scrub (3, 3);
  end ();
}

static void
test_stays_in_a_rebase (void)
{
  json_t *args, *extents;
  char *text;

  start (1);
  write_blocks (0, 8, 1);
  settle ();
  run ("snapshot", json_pack ("{s:s}", "name", "v@a"));
  run ("create",
       json_pack ("{s:s,s:I,s:i}", "name", "w", "size",
                  (json_int_t) NR_BLOCKS * BLOCK, "block-size", BLOCK));
  run ("snapshot", json_pack ("{s:s}", "name", "w@a"));
  lose (3, 1);
  settle ();
  run ("snapshot", json_pack ("{s:s}", "name", "v@b"));
  args = json_pack ("{s:s,s:s}", "from", "v@a", "to", "v@b");
  extents = nbdedup_call (pool, "diff", args);
  json_decref (args);
  expect (extents != NULL);
  text = json_dumps (extents, JSON_COMPACT);
  expect (text && strstr (text, "\"offset\":12288") != NULL);
  free (text);
  json_decref (extents);
  run ("rebase", json_pack ("{s:s,s:s}", "name", "v", "snapshot", "w@a"));
  expect_content (2, 3);
  expect_lost (3);
  expect_content (4, 5);
  end ();
}

static uint64_t
lose_two (void)
{
  lose (3, 2);
  must (txg_flush (pool->txg));
  return 0;
}

/* The journal has lost blocks, too. */
static void
test_survives_a_crash (void)
{
  start (1);
  write_blocks (0, 8, 1);
  settle ();
  close_pool ();
  crash_after (lose_two);
  open_and_attach ();
  expect_content (2, 3);
  expect_lost (3);
  expect_lost (4);
  expect_content (5, 6);
  end ();
}

static const struct engine_case cases[] = {
  CASE (survives_a_crash), /* forks: no thread may have been started */
  CASE (reads_as_an_error), CASE (is_healed_by_what_covers_it),
  CASE (is_inherited),      CASE (stays_in_a_rebase),
  { NULL, NULL },
};

/* test-lost [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}
