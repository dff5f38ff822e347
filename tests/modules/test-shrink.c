/* SPDX-License-Identifier: BSD-3-Clause */

/* What a shrink cuts off must not come back when the volume grows again
 *
 *  - while the layer below its head is being merged with it: between the pass
 *    that trims what the head does not show, and the step that gives up the
 *    head's overlap;
 *
 *  - if the shrink is unfinished: its size is committed, but its blocks are
 *    still there, as a crash leaves them.  The pool must open, although the
 *    block that the new end cuts in two cannot be written again, because it is
 *    damaged or the pool is full.
 *
 * The merger's steps need pool->admin; the test holds it to stop them.
 */

#include <config.h>

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "core/engine.h"
#include "core/txg.h"
#include "meta/meta.h"
#include "rigs/pool-util.h"
#include "space/space.h"
#include "volume/merge.h"
#include "volume/volume-int.h"
#include "volume/volume.h"

#define BLOCK 4096u
#define NR_BLOCKS 20u
#define NR_KEPT 4u

static char directory[PATH_MAX];
struct nbdedup_pool *pool;

/* Fill blocks [first, NR_BLOCKS) of "clone", each with another content. */
static void
fill (unsigned first, uint8_t what)
{
  struct nbdedup_volume *v = open_volume ("clone");
  uint8_t buf[BLOCK];
  unsigned i;

  for (i = first; i < NR_BLOCKS; ++i) {
    memset (buf, what + i, sizeof buf);
    must (nbdedup_volume_write (v, buf, BLOCK, (uint64_t) i * BLOCK));
  }
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
}

static void
expect (unsigned block, uint8_t what)
{
  struct nbdedup_volume *v = open_volume ("clone");
  uint8_t buf[BLOCK];
  unsigned i;

  must (nbdedup_volume_read (v, buf, BLOCK, (uint64_t) block * BLOCK));
  nbdedup_volume_close (v);
  for (i = 0; i < BLOCK; ++i)
    if (buf[i] != what)
      die ("block %u has %u, not %u", block, buf[i], what);
}

static void
make_clone (void)
{
  run ("create",
       json_pack ("{s:s,s:i,s:i}", "name", "golden", "size", (int) BLOCK,
                  "block-size", (int) BLOCK));
  run ("snapshot", json_pack ("{s:s}", "name", "golden@v1"));
  run ("clone",
       json_pack ("{s:s,s:s}", "snapshot", "golden@v1", "name", "clone"));
  run ("resize",
       json_pack ("{s:s,s:i}", "name", "clone", "size",
                  (int) (NR_BLOCKS * BLOCK)));
  fill (0, 1);
  run ("snapshot", json_pack ("{s:s}", "name", "clone@a"));
}

/* The caller holds pool->admin. */
static void
shrink_and_grow (void)
{
  must (volume_resize (pool, "clone", NR_KEPT * BLOCK, true));
  must (volume_resize (pool, "clone", NR_BLOCKS * BLOCK, false));
}

static void
wait_for_merge (void)
{
  unsigned i;

  for (i = 0; i < 1000; ++i) {
    WITH_LOCK (&pool->admin);
    if (!merge_is_pending (pool))
      return;
    must (txg_run (pool->txg, NULL, NULL, NULL));
    must (merge_step (pool));
  }
  die ("the merge does not end");
}

static void
start (void)
{
  make_directory (directory, fast_directory (), "test-shrink");
  must (nbdedup_pool_create (directory, NULL));
  open_default (directory, "test-shrink");
}

static void
reopen (void)
{
  must (nbdedup_pool_close (pool));
  open_default (directory, "test-shrink");
}

static void
end (void)
{
  check_pool ();
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
}

/* The caller holds pool->admin. */
static void
destroy_snapshot (const char *name)
{
  json_t *names = json_pack ("[s]", name), *destroyed = json_array ();

  must (volume_destroy (pool, names, false, false, destroyed));
  json_decref (names);
  json_decref (destroyed);
}

static void
test_while_a_merge_trims (void)
{
  unsigned i;

  start ();
  make_clone ();
  {
    WITH_LOCK (&pool->admin);
    destroy_snapshot ("clone@a");
    /* The trim finds nothing to do: the head shows everything. */
    must (txg_run (pool->txg, NULL, NULL, NULL));
    shrink_and_grow ();
    fill (NR_KEPT, 101);
    shrink_and_grow ();
  }
  wait_for_merge ();
  for (i = 0; i < NR_BLOCKS; ++i)
    expect (i, (uint8_t) (i < NR_KEPT ? 1 + i : 0));
  end ();
}

/*----------------------------------------------------------------------
 * An unfinished shrink
 */

static int
put_volume (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  return meta_volume_put (c, arg);
}

/* Commit a new size, and nothing else.  The caller holds pool->admin. */
static void
begin_shrink (const char *name, uint64_t size)
{
  struct volume *v = volumes_find (pool->volumes, name);
  struct meta_volume mv;

  volume_to_meta (v, &mv);
  mv.size = size;
  mv.tail_dirty = true;
  must (txg_run (pool->txg, put_volume, NULL, &mv));
  v->size = size;
  v->tail_dirty = true;
}

/* Begin to merge the layer below the clone's head with it.  False: the folding
 * thread moved all rows while merge_step still ran, so that has ended the
 * merge.  The caller holds pool->admin.
 */
static bool
begin_push (void)
{
  destroy_snapshot ("clone@a");
  while (merge_is_pending (pool)) {
    if (layer_is_pushed (volumes_find (pool->volumes, "clone")->layer))
      return true;
    must (txg_run (pool->txg, NULL, NULL, NULL));
    must (merge_step (pool));
  }
  return false;
}

/* True if it has tried that. */
static bool
unfinished_while_a_merge_pushes (bool again)
{
  bool pushed;
  unsigned i;

  start ();
  make_clone ();
  {
    WITH_LOCK (&pool->admin);
    pushed = begin_push ();
    begin_shrink ("clone", NR_KEPT * BLOCK);
    if (!again)
      must (volume_resize (pool, "clone", NR_BLOCKS * BLOCK, false));
  }
  if (again) {
    reopen ();
    run ("resize",
         json_pack ("{s:s,s:i}", "name", "clone", "size",
                    (int) (NR_BLOCKS * BLOCK)));
  }
  wait_for_merge ();
  for (i = 0; i < NR_BLOCKS; ++i)
    expect (i, (uint8_t) (i < NR_KEPT ? 1 + i : 0));
  end ();
  return pushed;
}

static void
test_unfinished_while_a_merge_pushes (bool again)
{
  unsigned tries;

  for (tries = 0; !unfinished_while_a_merge_pushes (again); ++tries)
    if (tries == 100)
      die ("each merge ends before it can be stopped");
}

#define SIZE ((uint64_t) NR_BLOCKS * BLOCK)
#define KEPT 512u /* of the last block */
#define CUT ((uint64_t) NR_KEPT * BLOCK + KEPT)

static uint8_t content[SIZE];

/* "v" and "golden" have the same size; "golden" is empty. */
static void
make_volumes (void)
{
  struct nbdedup_volume *v;
  const char *name;
  unsigned i;

  for (i = 0; i < 2; ++i) {
    name = i ? "golden" : "v";
    run ("create",
         json_pack ("{s:s,s:I,s:i}", "name", name, "size", (json_int_t) SIZE,
                    "block-size", (int) BLOCK));
  }
  run ("snapshot", json_pack ("{s:s}", "name", "golden@v1"));
  fill_random (content, SIZE, 1);
  v = open_volume ("v");
  must (nbdedup_volume_write (v, content, SIZE, 0));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
  run ("snapshot", json_pack ("{s:s}", "name", "v@s"));
}

static void
resize (const char *name, uint64_t size)
{
  run ("resize",
       json_pack ("{s:s,s:I,s:b}", "name", name, "size", (json_int_t) size,
                  "shrink", 1));
}

/* The function takes the reference of 'args'. */
static void
refused (int err, const char *command, json_t *args)
{
  json_t *result = nbdedup_call (pool, command, args);

  if (result != NULL || errno != err)
    die ("%s: %s, not %s", command, result ? "done" : nbdedup_error (),
         strerror (err));
  json_decref (args);
}

/* Until the shrink is finished nothing may show what it cut off. */
static void
expect_unfinished (int err)
{
  refused (err, "resize",
           json_pack ("{s:s,s:I}", "name", "v", "size", (json_int_t) SIZE));
  refused (err, "snapshot", json_pack ("{s:s}", "name", "v@t"));
  refused (err, "rebase",
           json_pack ("{s:s,s:s}", "name", "v", "snapshot", "golden@v1"));
}

/* The volume has grown again: it has 'kept' bytes of the content, then zeroes.
 * The first 'lost' of its last block are zeroes, too.
 */
static void
expect_volume (const char *name, uint64_t kept, uint32_t lost)
{
  struct nbdedup_volume *v = open_volume (name);
  static uint8_t found[SIZE], wanted[SIZE];

  memset (wanted, 0, SIZE);
  memcpy (wanted, content, kept);
  memset (wanted + kept - lost, 0, lost);
  must (nbdedup_volume_read (v, found, SIZE, 0));
  nbdedup_volume_close (v);
  expect_bytes ("after a shrink", name, BLOCK, 0, SIZE, found, wanted);
}

static void
set_max_size (uint64_t bytes)
{
  char text[32];

  snprintf (text, sizeof text, "%" PRIu64, bytes);
  run ("set",
       json_pack ("{s:s,s:s}", "property", "max-size", "value",
                  bytes ? text : "none"));
}

static void
test_unfinished_in_a_full_pool (void)
{
  struct space_info info;

  start ();
  make_volumes ();
  {
    WITH_LOCK (&pool->admin);
    begin_shrink ("v", CUT);
  }
  space_get_info (pool->space, &info);
  set_max_size (info.used_bytes);
  expect_unfinished (ENOSPC);
  reopen ();
  expect_unfinished (ENOSPC);
  set_max_size (0);
  /* Each of these finishes it. */
  run ("snapshot", json_pack ("{s:s}", "name", "v@t"));
  run ("clone", json_pack ("{s:s,s:s}", "snapshot", "v@t", "name", "c"));
  resize ("c", SIZE);
  expect_volume ("c", CUT, 0);
  resize ("v", SIZE);
  expect_volume ("v", CUT, 0);
  run ("rollback", json_pack ("{s:s}", "name", "v@s"));
  {
    WITH_LOCK (&pool->admin);
    begin_shrink ("v", CUT);
  }
  run ("rebase", json_pack ("{s:s,s:s}", "name", "v", "snapshot", "golden@v1"));
  resize ("v", SIZE);
  expect_volume ("v", CUT, 0);
  end ();
}

/* Change a byte of the record that has the content of a block of "v". */
static void
damage_block (unsigned block)
{
  const uint8_t *begin = content + (size_t) block * BLOCK;
  char path[PATH_MAX + 10];
  struct stat st;
  uint8_t *p, *found;
  int fd;

  snprintf (path, sizeof path, "%s/records", directory);
  fd = open (path, O_RDWR);
  if (fd == -1 || fstat (fd, &st) == -1)
    die ("%s: %s", path, strerror (errno));
  p = mmap (NULL, (size_t) st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
            0);
  if (p == MAP_FAILED)
    die ("%s: %s", path, strerror (errno));
  found = memmem (p, (size_t) st.st_size, begin, 64);
  if (found == NULL)
    die ("%s: block %u is not there", path, block);
  found[BLOCK / 2] ^= 1;
  munmap (p, (size_t) st.st_size);
  close (fd);
}

static void
shrink_through_damage (void)
{
  start ();
  make_volumes ();
  {
    WITH_LOCK (&pool->admin);
    begin_shrink ("v", CUT);
  }
  must (nbdedup_pool_close (pool));
  damage_block (NR_KEPT);
  open_default (directory, "test-shrink");
  expect_unfinished (EIO);
}

/* Three ways out: drop the block, replace it, or return to a snapshot. */
static void
test_unfinished_at_a_damaged_block (void)
{
  struct nbdedup_volume *v;

  shrink_through_damage ();
  resize ("v", NR_KEPT * BLOCK);
  resize ("v", SIZE);
  expect_volume ("v", NR_KEPT * BLOCK, 0);
  end ();

  shrink_through_damage ();
  v = open_volume ("v");
  must (nbdedup_volume_zero (v, KEPT, NR_KEPT * BLOCK));
  nbdedup_volume_close (v);
  resize ("v", SIZE);
  expect_volume ("v", CUT, KEPT);
  end ();

  shrink_through_damage ();
  run ("rollback", json_pack ("{s:s}", "name", "v@s"));
  resize ("v", NR_KEPT * BLOCK);
  resize ("v", SIZE);
  expect_volume ("v", NR_KEPT * BLOCK, 0);
  end ();
}

/*----------------------------------------------------------------------*/

int
main (void)
{
  test_while_a_merge_trims ();
  test_unfinished_while_a_merge_pushes (false);
  test_unfinished_while_a_merge_pushes (true);
  test_unfinished_in_a_full_pool ();
  test_unfinished_at_a_damaged_block ();
  return 0;
}
