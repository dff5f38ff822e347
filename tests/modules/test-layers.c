/* SPDX-License-Identifier: BSD-3-Clause */

/* A server frees the structs of layers that are gone once no reader can use
 * them, however many snapshots and rollbacks there were.  Readers of what goes
 * get the data or an error.
 */

#include <config.h>

#include "core/map.h"
#include "core/txg-int.h"
#include "format/format.h"
#include "meta/meta-conn.h"
#include "rigs/engine-rig.h"
#include "volume/merge.h"
#include "volume/volume-layers.h"

#define ROUNDS 200
/* Fewer than this many may wait to be freed together (volume-layers.c). */
#define FEW 100
/* Too few for the merger to free them. */
#define TOO_FEW 30
/* In blocks; within a leaf. */
#define SHRUNK 100

static size_t
nr_layers (void)
{
  WITH_LOCK (&pool->volumes->lock);
  return pool->volumes->layers.nr;
}

/* The number of layers that are not gone yet. */
static size_t
nr_layers_left (void)
{
  size_t i, nr = 0;

  WITH_LOCK (&pool->volumes->lock);
  for (i = 0; i < pool->volumes->layers.nr; ++i)
    nr += !pool->volumes->layers.p[i]->gone;
  return nr;
}

static void
wait_until (bool (*fn) (void))
{
  unsigned ms;

  for (ms = 0; !fn (); ++ms) {
    expect (ms < GIVE_UP_MS);
    poll (NULL, 0, 1);
  }
}

static bool
few_layers (void)
{
  settle (); /* a fold: dying layers go */
  return nr_layers () < FEW;
}

static void
snapshot (const char *name)
{
  run ("snapshot", json_pack ("{s:s}", "name", name));
}

/* Each rollback leaves a head that dies.  The first cuts off the clients. */
static void
roll_back (unsigned rounds)
{
  for (; rounds > 0; --rounds)
    run ("rollback", json_pack ("{s:s, s:b}", "name", "v@s", "force", 1));
}

static void
begin (void)
{
  start (1);
  write_block (0, 1);
  do_flush (0);
  snapshot ("v@s");
}

/* After a rollback the volume has another struct. */
static void
attach_again (void)
{
  nbdedup_volume_close (handle);
  attach ();
  expect_content (0, 1);
}

static void
expect_cut_off (void)
{
  uint8_t buf[BLOCK];

  expect (nbdedup_volume_read (handle, buf, BLOCK, 0) == -1 &&
          errno == ESHUTDOWN);
  expect (nbdedup_volume_write (handle, buf, 1, 1) == -1 && errno == ESHUTDOWN);
}

static void
test_heads_that_were_rolled_back (void)
{
  begin ();
  roll_back (ROUNDS);
  wait_until (few_layers);
  /* The client's handle is still open, so its struct stays. */
  expect (volume->layer->nr_structs == 1 && volume->layer->gone);
  expect_cut_off ();
  attach_again ();
  roll_back (ROUNDS);
  wait_until (few_layers);
  attach_again ();
  end ();
}

static void
roll_back_once (uint64_t arg)
{
  (void) arg;
  roll_back (1);
}

/* The volume is still in the list, but its struct is about to be replaced. */
static void
test_an_exclusive_client_leaves_during_a_rollback (void)
{
  struct job job;

  begin ();
  nbdedup_volume_close (handle);
  handle = nbdedup_volume_open (pool, "v", NBDEDUP_VOLUME_EXCLUSIVE, -1, NULL);
  expect (handle != NULL);
  txg_enter (pool->txg, 0, 0); /* the rollback's fold waits for its cut */
  job_start (&job, roll_back_once, 0);
  while (!volume->gone)
    poll (NULL, 0, 1);
  nbdedup_volume_close (handle);
  expect (nbdedup_volume_open (pool, "v", 0, -1, NULL) == NULL &&
          errno == EBUSY);
  txg_leave (pool->txg);
  job_end (&job);
  attach ();
  expect_content (0, 1);
  end ();
}

static int
forbid_deletion (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  return meta_exec (c,
                    "CREATE TEMP TRIGGER forbid BEFORE DELETE ON main.volume "
                    "BEGIN SELECT RAISE (ABORT, 'forbidden'); END",
                    "a test");
}

static int
allow_deletion (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  return meta_exec (c, "DROP TRIGGER temp.forbid", "a test");
}

static void
destroy_in_vain (uint64_t arg)
{
  json_t *args = json_pack ("{s:s, s:b, s:b}", "name", "v", "recursive", 1,
                            "force", 1);

  (void) arg;
  expect (nbdedup_call (pool, "destroy", args) == NULL);
  expect (strstr (nbdedup_error (), "forbidden"));
  json_decref (args);
}

/* Clients can attach again afterwards, if the exclusive one has left. */
static void
destroy_with_exclusive_client (bool leaves)
{
  struct job job;

  begin ();
  nbdedup_volume_close (handle);
  handle = nbdedup_volume_open (pool, "v", NBDEDUP_VOLUME_EXCLUSIVE, -1, NULL);
  expect (handle != NULL);
  must (txg_run (pool->txg, forbid_deletion, NULL, NULL));
  txg_enter (pool->txg, 0, 0); /* the fold waits for its cut */
  job_start (&job, destroy_in_vain, 0);
  while (!volume->gone)
    poll (NULL, 0, 1);
  if (leaves)
    nbdedup_volume_close (handle);
  txg_leave (pool->txg);
  job_end (&job);
  must (txg_run (pool->txg, allow_deletion, NULL, NULL));
  if (leaves)
    attach ();
  else
    expect (nbdedup_volume_open (pool, "v", 0, -1, NULL) == NULL &&
            errno == EBUSY);
  expect_content (0, 1);
  end ();
}

static void
test_an_exclusive_client_leaves_during_a_failed_destroy (void)
{
  destroy_with_exclusive_client (true);
  destroy_with_exclusive_client (false);
}

static void
test_layers_that_were_merged (void)
{
  unsigned i;

  begin ();
  for (i = 0; i < ROUNDS; ++i) {
    write_block (1 + i % 8, 2 + i);
    snapshot ("v@t");
    run ("destroy", json_pack ("{s:s, s:b}", "name", "v@t", "wait", 1));
  }
  wait_until (few_layers);
  expect_content (0, 1);
  expect_content (8, 2 + ROUNDS - 1);
  end ();
}

static void
collect (uint64_t arg)
{
  (void) arg;
  WITH_LOCK (&pool->admin);
  layers_collect (pool->volumes);
}

/* A reader may have found a layer before it was gone. */
static void
test_a_reader_stays (void)
{
  struct job job;
  unsigned ticket;
  size_t nr;

  begin ();
  roll_back (TOO_FEW);
  settle ();
  nr = nr_layers ();
  expect (nr > TOO_FEW);
  ticket = quiesce_enter (&pool->quiesce);
  job_start (&job, collect, 0);
  poll (NULL, 0, A_WHILE_MS);
  expect (!job.done && nr_layers () == nr);
  quiesce_leave (&pool->quiesce, ticket);
  job_end (&job);
  expect (nr_layers () < nr - TOO_FEW / 2);
  attach_again ();
  end ();
}

static void
read_in_vain (uint64_t arg)
{
  uint8_t buf[2 * BLOCK];

  expect (nbdedup_volume_read (handle, buf, sizeof buf, arg) == -1 &&
          errno == ESHUTDOWN);
}

static int
ignore_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  (void) opaque;
  (void) offset;
  (void) len;
  (void) hole;
  return 0;
}

static void
ask_in_vain (uint64_t arg)
{
  expect (nbdedup_volume_extents (handle, 2 * BLOCK, arg, ignore_extent,
                                  NULL) == -1 &&
          errno == ESHUTDOWN);
}

static bool
both_have_begun (void)
{
  return pool->quiesce.inside[0] + pool->quiesce.inside[1] == 2;
}

static void
destroy_volume (uint64_t arg)
{
  (void) arg;
  run ("destroy", json_pack ("{s:s, s:b}", "name", "v", "force", 1));
}

static bool
is_cut_off (void)
{
  return volume->gone;
}

/* From the first leaf to the next a request lets folds go on, so it may find
 * holes where a destroyed volume had data.  It must fail.
 */
static void
test_readers_during_a_destroy (void)
{
  const uint64_t offset = (LEAF_BLOCKS - 1) * BLOCK;
  struct job reads, asks, destroys;

  start (1);
  write_blocks (LEAF_BLOCKS - 1, 2, 1);
  reopen_pool (); /* no leaf is in memory */
  stall ();
  job_start (&reads, read_in_vain, offset);
  job_start (&asks, ask_in_vain, offset);
  wait_until (both_have_begun);
  job_start (&destroys, destroy_volume, 0);
  wait_until (is_cut_off);
  unstall ();
  job_end (&reads);
  job_end (&asks);
  job_end (&destroys);
  end ();
}

static void
rebase (uint64_t arg)
{
  (void) arg;
  run ("rebase", json_pack ("{s:s, s:s}", "name", "v", "snapshot", "g@s"));
}

/* True once the rebase has made a head, and given it the new parent. */
static struct layer *first_head;

static bool
is_rebased (void)
{
  struct layer *parent;

  WITH_LOCK (&pool->volumes->lock);
  parent = volume->layer->parent;
  return volume->layer != first_head && parent && parent != first_head;
}

/* A rebase puts another layer below the head.  A reader that has the old layer
 * still finds its parent, and reads no holes.
 */
static void
test_a_reader_during_a_rebase (void)
{
  struct layer *old, *below;
  struct pointer ptr;
  struct job job;
  unsigned ticket;
  uint8_t state;

  begin ();
  run ("create",
       json_pack ("{s:s, s:I, s:i}", "name", "g", "size",
                  (json_int_t) volume->size, "block-size", BLOCK));
  snapshot ("g@s");
  write_block (1, 2);
  do_flush (0);
  settle ();
  ticket = quiesce_enter (&pool->quiesce);
  first_head = old = volume->layer;
  below = old->parent;
  expect (below != NULL);
  job_start (&job, rebase, 0);
  wait_until (is_rebased);
  poll (NULL, 0, A_WHILE_MS);
  {
    WITH_LOCK (&pool->volumes->lock);
    expect (old->parent == below && !old->dying);
  }
  expect (!job.done);
  expect (map_get (pool->map, old, 0, 1, &state, &ptr) == 0 &&
          state == MAP_POINTER);
  quiesce_leave (&pool->quiesce, ticket);
  job_end (&job);
  expect_content (0, 1);
  expect_content (1, 2);
  end ();
}

/* At the end of a server folds go on after the merger has stopped, and layers
 * that go in a fold wake the merger.
 */
static void
test_layers_that_go_when_the_pool_closes (void)
{
  json_t *names = json_array ();
  unsigned i;

  begin ();
  run ("clone",
       json_pack ("{s:s, s:s, s:i}", "snapshot", "v@s", "name", "c", "count",
                  FEW));
  for (i = 1; i <= FEW; ++i)
    json_array_append_new (names, json_sprintf ("c%u", i));
  merger_stop (pool->merger);
  run ("destroy", json_pack ("{s:o}", "names", names));
  settle ();
  settle ();
  {
    WITH_LOCK (&pool->volumes->lock);
    expect (pool->volumes->nr_gone >= FEW);
  }
  end ();
}

static void
resize (unsigned nr_blocks)
{
  run ("resize",
       json_pack ("{s:s, s:i, s:b}", "name", "v", "size",
                  (int) (nr_blocks * BLOCK), "shrink", 1));
}

static void
destroy_first (uint64_t arg)
{
  (void) arg;
  run ("destroy", json_pack ("{s:s, s:b}", "name", "v@a", "wait", 1));
}

static bool
is_merging (const struct layer *below, const struct layer *child)
{
  WITH_LOCK (&pool->volumes->lock);
  return below->merging == child;
}

/* A merge trims what the child does not show, and then lets the child show all.
 * It must wait for readers that read the layer's row before the trim, because
 * they would find what was cut off.  None of these records dies, so that no
 * fold waits for readers for another reason.
 */
static void
test_a_reader_during_a_merge (void)
{
  struct layer *below, *child;
  struct job job;
  unsigned ticket;

  start (1);
  write_block (0, 1);
  write_block (SHRUNK + 1, 1);
  do_flush (0);
  snapshot ("v@a");
  nbdedup_volume_close (handle);
  resize (SHRUNK);
  resize (NR_BLOCKS);
  attach ();
  snapshot ("v@b");
  settle ();
  child = volume->layer->parent;
  below = child->parent;
  ticket = quiesce_enter (&pool->quiesce);
  job_start (&job, destroy_first, 0);
  while (!is_merging (below, child))
    poll (NULL, 0, 1);
  poll (NULL, 0, A_WHILE_MS);
  expect (is_merging (below, child));
  {
    WITH_LOCK (&pool->volumes->lock);
    expect (child->overlap == SHRUNK);
  }
  quiesce_leave (&pool->quiesce, ticket);
  job_end (&job);
  expect_content (0, 1);
  expect_content (SHRUNK + 1, 0);
  end ();
}

static bool
no_layers_left (void)
{
  settle ();
  return nr_layers_left () == 0;
}

/* Let each fold process one row of layers. */
static void
let_folds_do_little (void)
{
  pool->txg->parts.background_rows = pool->txg->background_rows = 1;
}

/* A trim stops after the first row of a leaf, which stays, because the child
 * shows a part of it.  The next row of the leaf is the child's.  The next fold
 * must not begin with this leaf again.
 */
static void
test_a_merge_in_little_steps (void)
{
  struct job job;
  unsigned ms;

  start (1);
  write_block (SHRUNK - 1, 1);
  write_block (SHRUNK + 1, 1);
  do_flush (0);
  snapshot ("v@a");
  nbdedup_volume_close (handle);
  resize (SHRUNK);
  resize (NR_BLOCKS);
  attach ();
  write_block (SHRUNK - 2, 2);
  do_flush (0);
  snapshot ("v@b");
  settle ();
  let_folds_do_little ();
  job_start (&job, destroy_first, 0);
  for (ms = 0; !job.done; ++ms) {
    expect (ms < GIVE_UP_MS);
    poll (NULL, 0, 1);
  }
  job_end (&job);
  expect_content (SHRUNK - 2, 2);
  expect_content (SHRUNK - 1, 1);
  expect_content (SHRUNK + 1, 0);
  end ();
}

/* Make two branches, one on top of the other, of a few layers each. */
static void
make_family (void)
{
  start (1);
  write_blocks (0, 100, 1);
  do_flush (0);
  snapshot ("v@s");
  run ("clone", json_pack ("{s:s, s:s}", "snapshot", "v@s", "name", "c"));
  snapshot ("c@t");
  snapshot ("c@u");
  close_pool ();
}

static void
open_for_little (void)
{
  open_pool (1);
  let_folds_do_little ();
}

static void
destroy_family (void)
{
  unsigned i;

  run ("destroy",
       json_pack ("{s:[s, s], s:b}", "names", "c", "v", "recursive", 1));
  for (i = 0; i < 12; ++i)
    settle ();
}

/* The pool must open read-only: nothing that it needs is missing. */
static void
expect_readable (void)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.read_only = NBDEDUP_READ_ONLY_ON;
  pool = nbdedup_pool_open (directory, &settings, "test-layers", 0);
  if (pool == NULL)
    die ("read-only: %s", nbdedup_error ());
  must (nbdedup_pool_close (pool));
}

/* Layers that die together go in the course of many folds.  After a crash
 * between any two folds the pool can be opened, and the remaining layers go.
 */
static void
test_layers_that_die_together (void)
{
  unsigned nth;

  for (nth = 1;; ++nth) {
    make_family ();
    if (!crashes_at_sync (nth, open_for_little, destroy_family))
      break;
    expect_readable ();
    open_pool (1);
    if (pool->volumes->list.nr == 0)
      wait_until (no_layers_left);
    check_pool ();
    must (nbdedup_pool_close (pool));
    remove_directory (directory);
  }
  expect (nth > 10);
  remove_directory (directory);
}

/* While a long line of clones of clones dies there is always one whose parent
 * is gone and whose own row does not say yet that it dies.  Drift of other
 * volumes works meanwhile.
 */
static void
test_drift_while_layers_die (void)
{
  json_t *names = json_array ();
  char name[20], below[20];
  unsigned i;

  start (1);
  nbdedup_volume_close (handle);
  run ("create", json_pack ("{s:s, s:i}", "name", "golden", "size", 1 << 20));
  snapshot ("golden@v1");
  run ("clone",
       json_pack ("{s:s, s:s}", "snapshot", "golden@v1", "name", "web"));
  snapshot ("v@t");
  snprintf (below, sizeof below, "v@t");
  json_array_append_new (names, json_string ("v"));
  for (i = 0; i < 60; ++i) {
    snprintf (name, sizeof name, "c%u", i);
    run ("clone", json_pack ("{s:s, s:s}", "snapshot", below, "name", name));
    json_array_append_new (names, json_string (name));
    snprintf (below, sizeof below, "c%u@t", i);
    snapshot (below);
  }
  settle ();
  let_folds_do_little ();
  run ("destroy", json_pack ("{s:o, s:b}", "names", names, "recursive", 1));
  for (i = 0; i < 10; ++i)
    run ("drift", NULL);
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
}

static int
delete_names (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct volume *const *s = arg;

  (void) state;
  return meta_layer_delete (c, s[0]->layer->id) == -1 ||
      meta_snapshot_delete (c, s[0]->id) == -1 ||
      meta_snapshot_delete (c, s[1]->id) == -1
    ? -1
    : 0;
}

/* If it were opened the parent's data would read as holes. */
static void
test_a_volume_on_nothing_is_refused (void)
{
  struct nbdedup_settings settings;

  start (1);
  write_block (0, 1);
  do_flush (0);
  snapshot ("v@a");
  snapshot ("v@b");
  must (txg_run (pool->txg, delete_names, NULL, volume->snapshots.p));
  close_pool ();
  nbdedup_settings_init (&settings);
  pool = nbdedup_pool_open (directory, &settings, "test-layers", 0);
  expect (pool == NULL && errno == EIO);
  remove_directory (directory);
}

static void
step (uint64_t arg)
{
  (void) arg;
  WITH_LOCK (&pool->admin);
  must (merge_step (pool));
}

static bool
is_pushed (const struct layer *layer)
{
  WITH_LOCK (&pool->volumes->lock);
  return layer->merge_state == MERGE_PUSH && layer->pass_done;
}

/* Merge until all rows have moved.  False: the folding thread moved the last
 * ones while merge_step still ran, so that has ended the merge, too.
 */
static bool
push_all (struct layer *below)
{
  unsigned i;

  for (i = 0; !is_pushed (below); ++i) {
    if (volume->layer->parent == below)
      return false;
    expect (i < 100);
    step (0);
    settle ();
  }
  return true;
}

static bool
begin_merge_and_push (struct layer **below, struct layer **child)
{
  begin ();
  write_block (1, 2);
  do_flush (0);
  snapshot ("v@b");
  settle ();
  merger_stop (pool->merger);
  *child = volume->layer->parent;
  *below = (*child)->parent;
  run ("destroy", json_pack ("{s:s}", "name", "v@s"));
  return push_all (*below);
}

/* When all rows have moved, the layer takes the child's place.  It must wait
 * for readers that read pool.db before the rows moved.
 */
static void
test_a_reader_at_the_end_of_a_merge (void)
{
  struct layer *below, *child;
  unsigned ticket, tries;
  struct job job;

  for (tries = 0; !begin_merge_and_push (&below, &child); ++tries) {
    expect (tries < 20);
    end ();
  }
  ticket = quiesce_enter (&pool->quiesce);
  job_start (&job, step, 0);
  poll (NULL, 0, A_WHILE_MS);
  {
    WITH_LOCK (&pool->volumes->lock);
    expect (below->merging == child && volume->layer->parent == child);
  }
  expect (!job.done);
  quiesce_leave (&pool->quiesce, ticket);
  job_end (&job);
  expect (volume->layer->parent == below && child->gone);
  expect_content (0, 1);
  expect_content (1, 2);
  end ();
}

#define SHARED 900u /* blocks of the snapshot, of which the volume ... */
#define NEWER 200u  /* ... has written so many again */
#define GONE 100u   /* ... and trimmed so many, behind these */

static uint64_t
own_bytes_of_volume (void)
{
  json_t *list = call ("list", NULL);
  const json_t *v = json_array_get (json_object_get (list, "volumes"), 0);
  uint64_t bytes = number (v, "own_bytes");

  expect (number (v, "logical_bytes") == (SHARED - GONE) * BLOCK);
  json_decref (list);
  return bytes;
}

/* What still takes space is "freeing". */
static void
expect_freeing (void)
{
  json_t *stat = call ("stat", NULL);
  const json_t *p = json_object_get (stat, "pool");

  expect (number (p, "records") * BLOCK <=
          (SHARED - GONE) * BLOCK + number (p, "freeing_bytes"));
  expect (number (p, "freeing_bytes") <= (NEWER + GONE) * BLOCK);
  json_decref (stat);
}

static bool
owns (uint64_t block)
{
  unsigned ticket = quiesce_enter (&pool->quiesce);
  int r = map_owns (pool->map, volume->layer, block);

  quiesce_leave (&pool->quiesce, ticket);
  expect (r != -1);
  return r == 1;
}

/* While a volume takes over what only a destroyed snapshot had, a block is its
 * own or not yet, but what was its own stays so.
 */
static void
test_figures_during_a_merge (void)
{
  uint64_t own, before = NEWER * BLOCK;

  start (1);
  write_blocks (0, SHARED, 1);
  do_flush (0);
  snapshot ("v@s");
  write_blocks (0, NEWER, 10000);
  must (nbdedup_volume_trim (handle, GONE * BLOCK, NEWER * BLOCK));
  settle ();
  let_folds_do_little ();
  run ("destroy", json_pack ("{s:[s]}", "names", "v@s"));
  while (merge_is_pending (pool)) {
    own = own_bytes_of_volume ();
    expect (own == before || own == (SHARED - GONE) * BLOCK);
    expect (owns (1) && !owns (NEWER + 1));
    expect (owns (SHARED - 1) || own == NEWER * BLOCK);
    expect_freeing ();
    before = own;
  }
  expect (own_bytes_of_volume () == (SHARED - GONE) * BLOCK);
  expect_freeing ();
  end ();
}

static const struct engine_case cases[] = {
  CASE (heads_that_were_rolled_back),
  CASE (an_exclusive_client_leaves_during_a_rollback),
  CASE (an_exclusive_client_leaves_during_a_failed_destroy),
  CASE (layers_that_were_merged),
  CASE (a_reader_stays),
  CASE (readers_during_a_destroy),
  CASE (a_reader_during_a_rebase),
  CASE (a_reader_during_a_merge),
  CASE (a_reader_at_the_end_of_a_merge),
  CASE (layers_that_go_when_the_pool_closes),
  CASE (a_merge_in_little_steps),
  CASE (figures_during_a_merge),
  CASE (layers_that_die_together),
  CASE (drift_while_layers_die),
  CASE (a_volume_on_nothing_is_refused),
  { NULL, NULL },
};

/* test-layers [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}
