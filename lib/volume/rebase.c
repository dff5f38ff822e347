/* SPDX-License-Identifier: BSD-3-Clause */

/* Rebase: a volume keeps its content and inherits from another snapshot.
 *
 * Clients keep access meanwhile; no step changes the content:
 *
 *  1. The head H freezes, as for a snapshot, but without a name; the volume
 *     goes on in a new head on it.
 *  2. A new layer R on the snapshot's layer is filled, block by block, until
 *     it shows the same as H.  Where the snapshot shows the same R needs no
 *     entry; elsewhere it gets H's pointer, whose record gains a reference, or
 *     a hole.
 *  3. The head's parent becomes R instead of H, in one transaction with the
 *     volume's origin.
 *  4. Unless snapshots stand on H nothing refers to it: it dies, and its
 *     references are dropped.  R is nameless with one child: it merges
 *     (merge.h), quickly, since the head has only the writes made meanwhile.
 *
 * A crash before step 3 leaves R, which dies, and H, which merges with the
 * head: the volume is as before.
 *
 * H and R have no name meanwhile; a hold keeps them from dying or merging.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/ddt.h"
#include "core/engine.h"
#include "core/map.h"
#include "core/resolve.h"
#include "core/txg.h"
#include "data/sync.h"
#include "data/writeback.h"
#include "disk/room.h"
#include "meta/meta.h"
#include "volume/merge.h"
#include "volume/rebase.h"
#include "volume/volume-int.h"
#include "volume/volume-layers.h"
#include "volume/volume.h"

/* Blocks copied inside one txg. */
#define LEAVES_AT_ONCE 16

struct rebase {
  struct nbdedup_pool *pool;
  struct volume *v, *onto;
  uint64_t size;
  struct layer *old, *head; /* H and the new head on it */
  struct layer *new;        /* R */
  struct meta_layer head_row, new_row;
  struct meta_volume mv;
  struct tombstones tombstones; /* kept for the old origin */
  nbdedup_progress_fn *progress;
  void *opaque;
};

/*----------------------------------------------------------------------
 * Step 1, and R's row
 */

static int
begin_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct rebase *rb = arg;
  struct meta_layer old;

  if (meta_layer_need (c, rb->old->id, &old) == -1)
    return -1;
  /* Branches of their own: H's branch has rows that will not be below them. */
  rb->head_row.id = rb->head_row.branch = rb->head_row.seq = state->next_id++;
  rb->head_row.blocks = old.blocks;
  rb->new_row.id = rb->new_row.branch = rb->new_row.seq = state->next_id++;
  rb->mv.layer = rb->head_row.id;
  if (meta_layer_put (c, &rb->head_row) == -1 ||
      meta_layer_put (c, &rb->new_row) == -1)
    return -1;
  return meta_volume_put (c, &rb->mv);
}

static void
place_locked (struct volumes *vs, struct layer *l, const struct meta_layer *ml,
              struct layer *parent)
{
  assert_held (&vs->lock);
  l->id = ml->id;
  l->branch = ml->branch;
  l->seq = ml->seq;
  l->blocks = ml->blocks;
  l->nr_names = 1;
  layers_add_locked (vs, l, parent);
}

static void
begin_done (void *arg)
{
  struct rebase *rb = arg;
  struct volumes *vs = rb->pool->volumes;

  assert (rb->v->layer == rb->old && !rb->old->frozen);
  map_freeze (rb->pool->map, rb->old);
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  /* The head takes the volume's name; the one counted for H is a hold now, and
   * so is R's.
   */
  place_locked (vs, rb->head, &rb->head_row, rb->old);
  place_locked (vs, rb->new, &rb->new_row, rb->onto->layer);
  volume_set_layer (rb->v, rb->head);
}

static int
begin (struct rebase *rb)
{
  struct writeback *wb = rb->pool->writeback;
  struct volume *v = rb->v;
  struct range range;
  int r;

  if (volume_clean_tail (v) == -1 || writeback_drain (wb, v) == -1 ||
      txg_run (rb->pool->txg, NULL, NULL, NULL) == -1)
    return -1;
  writeback_range_begin (v, &range, 0, UINT64_MAX);
  r = writeback_drain (wb, v);
  if (r == 0) {
    rb->old = v->layer;
    rb->size = v->size;
    rb->head_row.parent = rb->old->id;
    volume_to_meta (v, &rb->mv);
    r = txg_run (rb->pool->txg, begin_in_transaction, begin_done, rb);
  }
  writeback_range_end (v, &range);
  return r;
}

/*----------------------------------------------------------------------
 * Step 2
 */

struct sides {
  uint8_t old_states[LEAF_BLOCKS], new_states[LEAF_BLOCKS];
  struct pointer old[LEAF_BLOCKS], new[LEAF_BLOCKS];
};

static int
get_sides (struct nbdedup_pool *pool, struct layer *old, struct layer *new,
           uint64_t new_overlap, uint64_t block, unsigned nr, struct sides *s)
{
  unsigned i;

  if (map_get (pool->map, old, block, nr, s->old_states, s->old) == -1 ||
      map_get (pool->map, new, block, nr, s->new_states, s->new) == -1)
    return -1;
  for (i = 0; i < nr; ++i)
    if (block + i >= new_overlap)
      s->new_states[i] = MAP_HOLE;
  return 0;
}

static bool
says_the_same (const struct sides *s, unsigned i)
{
  return s->old_states[i] == s->new_states[i] &&
    (s->old_states[i] != MAP_POINTER || s->old[i].addr == s->new[i].addr);
}

/* Inside a txg: make R show a leaf as H does. */
static int
copy_leaf (struct rebase *rb, uint64_t block, unsigned nr)
{
  struct nbdedup_pool *pool = rb->pool;
  struct sides s;
  unsigned i;

  assert (nr > 0 && block % LEAF_BLOCKS == 0);
  if (get_sides (pool, rb->old, rb->onto->layer, rb->new_row.overlap, block, nr,
                 &s) == -1)
    return -1;
  for (i = 0; i < nr; ++i) {
    if (says_the_same (&s, i))
      continue;
    if (s.old_states[i] == MAP_LOST) {
      if (txg_set_lost (pool->txg, rb->new, block + i, 1) == -1)
        return -1;
    }
    else if (s.old_states[i] != MAP_POINTER) {
      if (txg_set_holes (pool->txg, rb->new, block + i, 1, NULL) == -1)
        return -1;
    }
    /* H's own pointer keeps the record alive until the fold counts R's. */
    else if (ddt_ref (pool->ddt, s.old[i].addr, 1) == -1 ||
             txg_set_pointer (pool->txg, rb->new, block + i, &s.old[i], NULL) ==
               -1) {
      txg_fail (pool->txg); /* a reference without a pointer */
      return -1;
    }
  }
  return 0;
}

/* The first leaf from '*leaf' on for which one of two layers, or one below it,
 * may have a row.  1, 0: none below 'end', -1.
 */
static int
next_leaf (struct nbdedup_pool *pool, struct layer *a, struct layer *b,
           uint64_t *leaf, uint64_t end)
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  uint64_t x, y = UINT64_MAX;
  int r;

  r = resolve_next_leaf (c, a, *leaf, &x);
  if (r != -1)
    r = resolve_next_leaf (c, b, *leaf, &y);
  meta_reader_put (pool->meta, c);
  if (r == -1)
    return -1;
  *leaf = x < y ? x : y;
  return *leaf < end;
}

/* The number of blocks in a leaf, of 'nr_blocks' in all. */
static unsigned
blocks_in_leaf (uint64_t leaf, uint64_t nr_blocks)
{
  uint64_t left = nr_blocks - leaf * LEAF_BLOCKS;

  assert (leaf * LEAF_BLOCKS < nr_blocks);
  return left < LEAF_BLOCKS ? (unsigned) left : LEAF_BLOCKS;
}

/* Copy some leaves inside one txg, from '*leaf' on.  1: there may be more. */
static int
copy_some (struct rebase *rb, uint64_t *leaf, uint64_t end, unsigned nr)
{
  struct nbdedup_pool *pool = rb->pool;
  uint64_t nr_blocks = blocks_of (rb->size, rb->v->block_size), pages;
  unsigned i;
  int r = 1;

  assert (nr > 0 && nr <= LEAVES_AT_ONCE);
  if (txg_reserve (pool->txg, nr * LEAF_BLOCKS, ROOM_NEW) == -1)
    return -1;
  txg_throttle (pool->txg);
  pages = txg_enter (pool->txg, nr * LEAF_BLOCKS, nr * ROOM_HOLES_PAGES);
  for (i = 0; i < nr && r == 1; ++i) {
    r = next_leaf (pool, rb->old, rb->onto->layer, leaf, end);
    if (r == 1 &&
        copy_leaf (rb, *leaf * LEAF_BLOCKS,
                   blocks_in_leaf (*leaf, nr_blocks)) == -1)
      r = -1;
    ++*leaf;
  }
  txg_return (pool->txg, pages, NULL);
  txg_leave (pool->txg);
  txg_unreserve (pool->txg, nr * LEAF_BLOCKS);
  return r;
}

static int
copy_all (struct rebase *rb)
{
  uint64_t nr_blocks = blocks_of (rb->size, rb->v->block_size), leaf = 0;
  uint64_t end = (nr_blocks + LEAF_BLOCKS - 1) / LEAF_BLOCKS, leaves;
  struct nbdedup_pool *pool = rb->pool;
  int r = 1;

  while (r == 1) {
    if (rb->progress && rb->progress (rb->opaque, leaf, end) != 0)
      return nbdedup_fail (EINTR, "interrupted; the volume is unchanged");
    if (txg_check (pool->txg) == -1)
      return -1;
    leaves = txg_leaves_at_once (pool->txg);
    r = copy_some (rb, &leaf, end,
                   leaves < LEAVES_AT_ONCE ? (unsigned) leaves
                                           : LEAVES_AT_ONCE);
  }
  return r;
}

/*----------------------------------------------------------------------
 * Steps 3 and 4
 */

static int
finish_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct rebase *rb = arg;
  struct meta_layer head, new;

  (void) state;
  /* Read the rows as this transaction's fold has left them. */
  if (meta_layer_need (c, rb->head->id, &head) == -1 ||
      meta_layer_need (c, rb->new->id, &new) == -1)
    return -1;
  head.parent = rb->new->id;
  if (meta_layer_put (c, &head) == -1 || meta_volume_put (c, &rb->mv) == -1)
    return -1;
  return tombstones_delete (&rb->tombstones, c);
}

static void
set_origin_locked (struct rebase *rb)
{
  volume_set_origin_locked (rb->v, rb->onto);
  tombstones_drop_locked (rb->v->pool->volumes, &rb->tombstones);
}

static void
finish_done (void *arg)
{
  struct rebase *rb = arg;
  struct volumes *vs = rb->pool->volumes;

  {
    WITH_LOCK (&vs->lock);
    WITH_CONSISTENT (volumes, vs);

    assert (rb->head->parent == rb->old && rb->old->nr_children > 0);
    assert (rb->old->nr_names > 0 && rb->new->nr_names > 0); /* the holds */
    rb->old->nr_names--;
    rb->old->nr_children--;
    rb->new->nr_names--;
    rb->new->nr_children++;
    rb->head->parent = rb->new;
    layers_relink_locked (vs);
    set_origin_locked (rb);
  }
  layers_settle (vs);
}

/* Release the layers of a failed rebase. */
static void
undo_done (void *arg)
{
  struct rebase *rb = arg;

  {
    WITH_LOCK (&rb->pool->volumes->lock);
    WITH_CONSISTENT (volumes, rb->pool->volumes);

    assert (rb->old->nr_names > 0 && rb->new->nr_names > 0);
    rb->old->nr_names--;
    rb->new->nr_names--;
  }
  layers_settle (rb->pool->volumes);
}

static int
nothing (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) c;
  (void) state;
  return 0;
}

static int
finish (struct rebase *rb)
{
  struct volume *v = rb->v;

  if (tombstones_collect (&rb->v, 1, &rb->tombstones) == -1)
    return -1;
  map_freeze (rb->pool->map, rb->new);
  volume_to_meta (v, &rb->mv);
  rb->mv.origin = rb->onto->id;
  return txg_run (rb->pool->txg, finish_in_transaction, finish_done, rb);
}

/* Until R is the volume's head, R's pointers do not count as the volume's own.
 * The rebase is complete: if this fails the merger tries again in the
 * background.
 */
static void
merge_new (struct rebase *rb)
{
  while (rb->new->merging)
    if (txg_run (rb->pool->txg, NULL, NULL, NULL) == -1 ||
        merge_step (rb->pool) == -1)
      return;
}

/*----------------------------------------------------------------------*/

static int
check_rebase (struct volume *v, struct volume *onto)
{
  if (v->block_size != onto->block_size)
    return nbdedup_fail (ENOTSUP,
                         "volume %s has blocks of %" PRIu32 " bytes, "
                         "the snapshot of %" PRIu32 ": they must be equal",
                         v->name, v->block_size, onto->block_size);
  if (v->domain != onto->of->domain)
    return nbdedup_fail (ENOTSUP,
                         "volume %s and the snapshot are of "
                         "different domains, which never share",
                         v->name);
  if (v == onto->of)
    return nbdedup_fail (EINVAL,
                         "volume %s: a volume cannot be a clone of its "
                         "own snapshot; use rollback to return to it",
                         v->name);
  return 0;
}

/* Own pointers before and after, and how many references are dropped. */
struct estimate {
  uint64_t before, after, given_back;
};

static int
estimate_leaf (struct nbdedup_pool *pool, struct volume *v,
               const struct volume *onto, uint64_t overlap, uint64_t block,
               unsigned nr, struct estimate *e)
{
  struct sides s;
  unsigned i;
  int owns;

  if (get_sides (pool, v->layer, onto->layer, overlap, block, nr, &s) == -1)
    return -1;
  for (i = 0; i < nr; ++i) {
    if (s.old_states[i] != MAP_POINTER)
      continue;
    owns = map_owns (pool->map, v->layer, block + i);
    if (owns == -1)
      return -1;
    if (!says_the_same (&s, i))
      e->after++;
    else if (owns)
      e->given_back++;
  }
  return 0;
}

static int
estimate (struct nbdedup_pool *pool, struct volume *v,
          const struct volume *onto, struct estimate *e)
{
  uint64_t nr_blocks = blocks_of (v->size, v->block_size), leaf;
  uint64_t end = (nr_blocks + LEAF_BLOCKS - 1) / LEAF_BLOCKS;
  uint64_t overlap = blocks_of (onto->size, onto->block_size);
  int r;

  *e = (struct estimate) { .before = layer_own_pointers (v->layer) };
  for (leaf = 0;; ++leaf) {
    r = next_leaf (pool, v->layer, onto->layer, &leaf, end);
    if (r != 1)
      return r;
    if (estimate_leaf (pool, v, onto, overlap, leaf * LEAF_BLOCKS,
                       blocks_in_leaf (leaf, nr_blocks), e) == -1)
      return -1;
  }
}

static int
rebase (struct rebase *rb)
{
  struct volumes *vs = rb->pool->volumes;
  char text[512];
  int r, err;

  if (layers_reserve (vs, 2) == -1 ||
      (rb->head = layer_new (&rb->head_row)) == NULL)
    return -1;
  rb->new = layer_new (&rb->new_row);
  if (rb->new == NULL || begin (rb) == -1) {
    free (rb->head);
    free (rb->new);
    return -1;
  }
  r = copy_all (rb);
  if (r == 0)
    r = finish (rb);
  if (r == 0) {
    merge_new (rb);
    return 0;
  }
  err = errno;
  snprintf (text, sizeof text, "%s", nbdedup_error ());
  txg_run (rb->pool->txg, nothing, undo_done, rb);
  return nbdedup_fail (err, "%s", text);
}

static json_t *
rebase_held (struct nbdedup_pool *pool, const char *name, const char *snapshot,
             bool dry_run, nbdedup_progress_fn *progress, void *opaque)
{
  struct volume *v = volumes_find (pool->volumes, name);
  struct volume *onto = v ? volumes_find_snapshot (pool->volumes, snapshot)
                          : NULL;
  struct rebase rb = {
    .pool = pool, .v = v, .onto = onto, .progress = progress, .opaque = opaque
  };
  struct estimate e;
  uint64_t size, blocks, overlap, data;
  int r;

  assert_held (&pool->admin);
  if (onto == NULL || check_rebase (v, onto) == -1 || pool_sync (pool) == -1 ||
      estimate (pool, v, onto, &e) == -1)
    return NULL;
  size = v->block_size;
  data = v->layer->blocks;
  if (!dry_run) {
    blocks = blocks_of (v->size, v->block_size);
    overlap = blocks_of (onto->size, onto->block_size);
    rb.head_row.block_size = rb.new_row.block_size = v->block_size;
    rb.head_row.overlap = blocks;
    rb.new_row.parent = onto->layer->id;
    rb.new_row.overlap = overlap < blocks ? overlap : blocks;
    /* Only a start for R's count, which the head's replaces. */
    rb.new_row.blocks = onto->layer->blocks;
    r = rebase (&rb);
    free (rb.tombstones.p);
    if (r == -1)
      return NULL;
  }
  /* Clients may have written while both were counted. */
  return json_pack ("{s:I, s:I, s:I, s:I, s:I}", "logical_bytes",
                    (json_int_t) (data * size), "shared_bytes",
                    (json_int_t) (data > e.after ? (data - e.after) * size : 0),
                    "own_bytes_before", (json_int_t) (e.before * size),
                    "own_bytes_after", (json_int_t) (e.after * size),
                    "given_back_bytes", (json_int_t) (e.given_back * size));
}

/* It takes references to records because frozen layers have them. */
json_t *
rebase_run (struct nbdedup_pool *pool, const char *name, const char *snapshot,
            bool dry_run, nbdedup_progress_fn *progress, void *opaque)
{
  json_t *result;

  assert_held (&pool->admin);
  if (txg_hold_moves (pool->txg) == -1)
    return NULL;
  result = rebase_held (pool, name, snapshot, dry_run, progress, opaque);
  txg_release_moves (pool->txg);
  return result;
}
