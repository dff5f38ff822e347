/* SPDX-License-Identifier: BSD-3-Clause */

/* A volume shrinks while the layer below its head is being merged with it:
 * between the pass that trims what the head does not show, and the step that
 * gives up the head's overlap.  The blocks that the shrink cut off must not
 * come back when the volume grows again.
 *
 * The merger's steps need pool->admin; the test holds it to stop them.
 */

#include <config.h>

#include <limits.h>

#include "core/engine.h"
#include "core/txg.h"
#include "rigs/pool-util.h"
#include "volume/merge.h"
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

int
main (void)
{
  json_t *names = json_pack ("[s]", "clone@a"), *destroyed = json_array ();
  json_t *result;
  unsigned i;

  make_directory (directory, fast_directory (), "test-shrink");
  must (nbdedup_pool_create (directory, NULL));
  open_default (directory, "test-shrink");
  make_clone ();
  {
    WITH_LOCK (&pool->admin);
    must (volume_destroy (pool, names, false, false, destroyed));
    /* The trim finds nothing to do: the head shows everything. */
    must (txg_run (pool->txg, NULL, NULL, NULL));
    shrink_and_grow ();
    fill (NR_KEPT, 101);
    shrink_and_grow ();
  }
  wait_for_merge ();
  for (i = 0; i < NR_BLOCKS; ++i)
    expect (i, (uint8_t) (i < NR_KEPT ? 1 + i : 0));
  result = call ("check", NULL);
  if (json_integer_value (json_object_get (result, "errors")) != 0)
    die ("check: %s", json_dumps (result, 0));
  json_decref (result);
  json_decref (names);
  json_decref (destroyed);
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
  return 0;
}
