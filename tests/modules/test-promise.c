/* SPDX-License-Identifier: BSD-3-Clause */

/* What folds write, compared with what their changes were promised (room.h).
 *
 * The pool is so large that the promise is not bounded by its pages.  Each
 * scene writes blocks in an order that is hard for the tables: rows that grow
 * in full pages, rows that shrink, rows of several layers.  After each piece a
 * request asks, within the fold's transaction, for the promise, and after the
 * commit for the pages that the WAL has got.
 */

#include <config.h>

#include "base/clock.h"
#include "core/fold-index.h"
#include "core/txg-int.h"
#include "data/volume-types.h"
#include "data/writeback.h"
#include "disk/room.h"
#include "meta/meta.h"
#include "rigs/engine-rig.h"

#define PIECE 4000u
#define NR_LEAVES 16000u
#define IMAGE_BLOCKS 16000u /* from this leaf on: */
#define STATE_PAGES 8       /* state, layers, a new run */
#define IMAGE_LEAF NR_LEAVES
#define COPY_LEAF (IMAGE_LEAF + IMAGE_BLOCKS / LEAF_BLOCKS)
#define END_LEAF (COPY_LEAF + NR_LEAVES)

static struct rng rng;
static uint64_t content;
static const char *scene;
static uint64_t written, promised;
static struct nbdedup_volume *v;

struct look {
  bool merges, merging;
  uint64_t promised, before, after;
};

static uint64_t
wal_used (void)
{
  struct meta_pages p;

  meta_get_pages (pool->meta, &p);
  return p.wal_used;
}

static int
look_before (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct look *l = arg;

  (void) c;
  (void) state;
  pool->txg->merge_after_ms = l->merges ? 0 : UINT64_MAX;
  l->promised = room_folding_pages (pool->txg->room);
  l->before = wal_used ();
  return 0;
}

static void
look_after (void *arg)
{
  struct look *l = arg;

  l->after = wal_used ();
  l->merging = fold_index_is_merging (&pool->txg->merges);
}

static void
look (struct look *l)
{
  must (writeback_drain (pool->writeback, v->volume));
  must (txg_run (pool->txg, look_before, look_after, l));
}

/* Merges have room of their own: let them end, and begin no other. */
static void
begin_scene (const char *name)
{
  struct look l = { .merges = true };

  scene = name;
  written = promised = 0;
  do
    look (&l);
  while (l.merging);
  l.merges = false;
  look (&l);
}

static void
end_scene (void)
{
  printf ("%s: promised %" PRIu64 " pages, wrote %" PRIu64 "\n", scene,
          promised, written);
}

static void
end_piece (void)
{
  struct look l = { .merges = false };
  uint64_t pages;

  look (&l);
  /* Fewer than before: the WAL has begun again. */
  pages = l.after < l.before ? l.after : l.after - l.before;
  if (pages > l.promised + STATE_PAGES)
    die ("%s: a fold wrote %" PRIu64 " pages, and was promised %" PRIu64, scene,
         pages, l.promised);
  written += pages;
  promised += l.promised;
}

/*----------------------------------------------------------------------
 * Scenes.  Each does 'nr' changes, and folds after each PIECE.
 */

static void
put (uint64_t block, uint64_t number)
{
  uint8_t buf[BLOCK];

  fill (buf, number);
  must (nbdedup_volume_write (v, buf, BLOCK, block * BLOCK));
}

static void
trim (uint64_t block, uint64_t nr)
{
  must (nbdedup_volume_trim (v, nr * BLOCK, block * BLOCK));
}

static void
in_order (uint64_t i)
{
  put (IMAGE_LEAF * LEAF_BLOCKS + i, ++content);
}

/* The leaves' rows fill their pages. */
static void
one_of_each_leaf (uint64_t i)
{
  put (i % NR_LEAVES * LEAF_BLOCKS, ++content);
}

/* ... which have no room for more. */
static void
another_of_any_leaf (uint64_t i)
{
  put (i * 1567 % NR_LEAVES * LEAF_BLOCKS + 1 + i / NR_LEAVES, ++content);
}

static void
any_of_the_image (uint64_t i)
{
  (void) i;
  put (IMAGE_LEAF * LEAF_BLOCKS + rng_below (&rng, IMAGE_BLOCKS), ++content);
}

static void
any_duplicate (uint64_t i)
{
  (void) i;
  put (COPY_LEAF * LEAF_BLOCKS + rng_below (&rng, NR_LEAVES * LEAF_BLOCKS),
       1 + rng_below (&rng, IMAGE_BLOCKS));
}

static void
trim_any (uint64_t i)
{
  (void) i;
  trim (IMAGE_LEAF * LEAF_BLOCKS + rng_below (&rng, IMAGE_BLOCKS), 1);
}

static void
trim_any_leaf (uint64_t i)
{
  (void) i;
  trim (rng_below (&rng, END_LEAF) * LEAF_BLOCKS, LEAF_BLOCKS);
}

static void
run_scene (const char *name, void (*change) (uint64_t i), unsigned nr)
{
  unsigned i;

  begin_scene (name);
  for (i = 1; i <= nr; ++i) {
    change (i - 1);
    if (i % PIECE == 0)
      end_piece ();
  }
  end_scene ();
}

static void
snapshot (const char *name)
{
  run ("snapshot", json_pack ("{s:s}", "name", name));
}

int
main (void)
{
  const char *seed = getenv ("SEED");

  rng = rng_make (seed ? strtoull (seed, NULL, 0) : clock_ns (), 0);
  start (2);
  run ("create",
       json_pack ("{s:s, s:I, s:i}", "name", "large", "size",
                  (json_int_t) END_LEAF * LEAF_BLOCKS * BLOCK, "block-size",
                  (int) BLOCK));
  v = open_volume ("large");
  run_scene ("image order", in_order, IMAGE_BLOCKS);
  run_scene ("a block of each leaf", one_of_each_leaf, NR_LEAVES);
  run_scene ("a block of any leaf", another_of_any_leaf, 2 * NR_LEAVES);
  run_scene ("duplicates", any_duplicate, 8000);
  run_scene ("overwrites", any_of_the_image, 8000);
  snapshot ("large@a");
  run_scene ("a block of each leaf, second layer", one_of_each_leaf, NR_LEAVES);
  run_scene ("overwrites, second layer", any_of_the_image, 4000);
  run_scene ("trims", trim_any, 8000);
  snapshot ("large@b");
  run_scene ("a block of any leaf, third layer", another_of_any_leaf,
             NR_LEAVES);
  run_scene ("trims of leaves", trim_any_leaf, 4000);
  nbdedup_volume_close (v);
  end ();
  return 0;
}
