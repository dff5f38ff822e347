/* SPDX-License-Identifier: BSD-3-Clause */

/* resize: a volume grows, or shrinks.  Under pool->admin.
 *
 * What a shrink cuts off must never come back.  Whole blocks become holes, for
 * which nothing is read and no record is stored.  But where the new end cuts a
 * block in two, the rest of that block must become zeroes: the shrink reads the
 * block and stores it again, and may find it damaged or the pool full.  So it
 *
 *  1. reads the block, and reserves room for it;
 *  2. commits the new size, and tail_dirty with it;
 *  3. writes the block, makes the holes, and clears tail_dirty.
 *
 * If step 1 or 2 fails the volume has its old size and all of its bytes.  A
 * shrink that zeroed the block before it commits the size could not promise
 * this: after a failed commit, or a crash in between, the volume would have its
 * old size without these bytes.
 *
 * After a crash between 2 and 3 the next open takes step 3.  The block may be
 * damaged by then, or the pool full.  Then the pool opens all the same, and
 * tail_dirty stays.  Commands that could show what is behind the end (growing,
 * a snapshot, a rebase) take step 3 first, and fail if it fails.  (A clone
 * stands on a snapshot, which was clean when it was taken.)
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/iszero.h"
#include "base/log.h"
#include "core/engine.h"
#include "core/txg.h"
#include "data/read.h"
#include "data/writeback.h"
#include "meta/meta.h"
#include "volume/volume-int.h"
#include "volume/volume-layers.h"
#include "volume/volume.h"

/* The block that the end of a volume cuts in two. */
struct last_block {
  struct volume *v;
  uint64_t block;
  struct range range; /* held while 'buf' is not NULL */
  uint8_t *buf;       /* its new content, owned; NULL: it stays as it is */
  bool is_hole;       /* 'buf' is all zeroes; else its room is reserved */
};

static void
last_block_end (struct last_block *lb)
{
  free (lb->buf);
  lb->buf = NULL;
  writeback_range_end (lb->v, &lb->range);
}

static void
last_block_cancel (struct last_block *lb)
{
  if (lb->buf == NULL)
    return;
  if (!lb->is_hole)
    writeback_unreserve (lb->v->pool->writeback, lb->v);
  last_block_end (lb);
}

/* 'tail': the bytes that stay.  1; 0: the others are zeroes already; -1. */
static int
last_block_cut (struct last_block *lb, uint32_t tail)
{
  struct volume *v = lb->v;
  struct writeback *wb = v->pool->writeback;
  const uint32_t size = v->block_size;

  if (!writeback_read (wb, v, lb->block, lb->buf, 0, size) &&
      read_block (v, lb->block, lb->buf, 0, size) == -1)
    return -1;
  if (is_zero (lb->buf + tail, size - tail))
    return 0;
  memset (lb->buf + tail, 0, size - tail);
  lb->is_hole = is_zero (lb->buf, tail);
  return !lb->is_hole && writeback_reserve (wb, v, lb->block) == -1 ? -1 : 1;
}

/* Get ready to zero what 'size' cuts off of its last block.  Unless it fails,
 * end with last_block_write or last_block_cancel.
 */
static int
last_block_begin (struct last_block *lb, struct volume *v, uint64_t size)
{
  const uint32_t tail = (uint32_t) (size % v->block_size);
  char text[512];
  int r, err;

  *lb = (struct last_block) { .v = v, .block = size / v->block_size };
  if (tail == 0)
    return 0;
  lb->buf = malloc (v->block_size);
  if (lb->buf == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a block");
  writeback_range_begin (v, &lb->range, lb->block, lb->block);
  r = last_block_cut (lb, tail);
  if (r == 1)
    return 0;
  err = errno;
  snprintf (text, sizeof text, "%s", nbdedup_error ());
  last_block_end (lb);
  if (r == 0)
    return 0;
  return nbdedup_fail (err,
                       "the block at %" PRIu64 ", which the end at %" PRIu64
                       " cuts in two, cannot be written again: %s",
                       size - tail, size, text);
}

static int
last_block_write (struct last_block *lb)
{
  struct writeback *wb = lb->v->pool->writeback;
  int r;

  if (lb->buf == NULL)
    return 0;
  r = lb->is_hole ? writeback_holes (wb, lb->v, lb->block, 1)
                  : writeback_write_reserved (wb, lb->v, lb->block, lb->buf);
  last_block_end (lb);
  return r;
}

/* Make holes of the whole blocks behind the end.  (The overlap alone would hide
 * them, too, but then the count of blocks would be wrong.)
 */
static int
drop_blocks (struct volume *v, uint64_t old_size)
{
  const uint64_t first = blocks_of (v->size, v->block_size) * v->block_size;
  const uint64_t end = blocks_of (old_size, v->block_size) * v->block_size;
  struct io_counters io = { 0 }; /* no client's request: not kept */
  struct nbdedup_volume h = { .volume = v, .io = &io, .size = end };

  return end > first ? nbdedup_volume_zero (&h, end - first, first) : 0;
}

/* The layer whose overlap limits the blocks that a volume inherits: its head,
 * or the layer below while the head is merged into that.
 */
static struct layer *
bounding_layer (struct volume *v)
{
  struct layer *head = v->layer;

  return layer_is_pushed (head) ? head->parent : head;
}

struct tail {
  struct volume *v;
  struct meta_volume mv;
  uint64_t overlap;
};

static int
clean_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct tail *t = arg;
  struct meta_layer ml;

  (void) state;
  if (meta_layer_need (c, bounding_layer (t->v)->id, &ml) == -1)
    return -1;
  if (ml.overlap > t->overlap)
    ml.overlap = t->overlap;
  return meta_layer_put (c, &ml) == -1 ? -1 : meta_volume_put (c, &t->mv);
}

static void
clean_done (void *arg)
{
  struct tail *t = arg;
  struct layer *l = bounding_layer (t->v);

  WITH_LOCK (&t->v->pool->volumes->lock);
  WITH_CONSISTENT (volumes, t->v->pool->volumes);

  if (l->overlap > t->overlap)
    l->overlap = t->overlap;
  layers_relink_locked (t->v->pool->volumes);
}

/* There is nothing behind the end any more: clear tail_dirty.  Lower the
 * overlap, so that inherited blocks do not show through there.
 */
static int
end_tail (struct volume *v)
{
  struct nbdedup_pool *pool = v->pool;
  struct tail t = { .v = v };

  if (writeback_drain (pool->writeback, v) == -1)
    return -1;
  volume_to_meta (v, &t.mv);
  t.mv.tail_dirty = false;
  t.overlap = blocks_of (v->size, v->block_size);
  if (txg_run (pool->txg, clean_in_transaction, clean_done, &t) == -1)
    return -1;
  v->tail_dirty = false;
  return 0;
}

struct last_leaf {
  uint64_t seq, last;
  bool any;
};

static int
note_leaf (void *opaque, uint64_t leaf, uint64_t seq, const uint8_t *buf,
           size_t len)
{
  struct last_leaf *ll = opaque;

  (void) buf;
  (void) len;
  if (seq == ll->seq) {
    ll->last = leaf;
    ll->any = true;
  }
  return 0;
}

static int
find_last_leaf (struct meta_conn *c, const struct layer *layer, uint64_t first,
                uint64_t *end)
{
  struct last_leaf ll = { .seq = layer->seq };

  if (meta_leaf_scan (c, layer->branch, first, note_leaf, &ll) == -1)
    return -1;
  if (ll.any && (ll.last + 1) * LEAF_BLOCKS > *end)
    *end = (ll.last + 1) * LEAF_BLOCKS;
  return 0;
}

/* Where what an unfinished shrink has left behind the end may end, in bytes.
 * All blocks of the volume are in pool.db.  While the head is merged into the
 * layer below, that layer has the volume's own blocks, too; rows move from the
 * head to that layer, so look in this order.
 */
static int
find_old_end (struct volume *v, uint64_t *old_end)
{
  const uint64_t first = v->size / v->block_size / LEAF_BLOCKS;
  struct nbdedup_pool *pool = v->pool;
  struct meta_conn *c = meta_reader_get (pool->meta);
  struct layer *l = v->layer;
  uint64_t end = 0;
  int r = find_last_leaf (c, l, first, &end);

  while (r == 0 && l->parent && l->overlap == LAYER_OVERLAP_ALL) {
    l = l->parent;
    r = find_last_leaf (c, l, first, &end);
  }
  meta_reader_put (pool->meta, c);
  if (l->parent && l->overlap > end)
    end = l->overlap;
  end *= v->block_size;
  *old_end = end > v->size ? end : v->size;
  return r;
}

static int
clean_old_tail (struct volume *v)
{
  struct last_block lb;
  uint64_t old_end;

  /* First the blocks, because they may give back the room that the last one
   * needs.
   */
  if (find_old_end (v, &old_end) == -1 || drop_blocks (v, old_end) == -1 ||
      last_block_begin (&lb, v, v->size) == -1 || last_block_write (&lb) == -1)
    return -1;
  return end_tail (v);
}

int
volumes_recover (struct volumes *vs)
{
  struct volume *v;
  size_t i;

  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    if (!v->tail_dirty || clean_old_tail (v) == 0)
      continue;
    if (txg_check (vs->pool->txg) == -1)
      return -1;
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: volume %s: what a shrink cut off is not dropped yet: "
                 "%s",
                 vs->pool->path, v->name, nbdedup_error ());
  }
  return 0;
}

/* Bring all blocks of the volume to pool.db. */
static int
fold_volume (struct volume *v)
{
  struct nbdedup_pool *pool = v->pool;

  if (writeback_drain (pool->writeback, v) == -1)
    return -1;
  return txg_run (pool->txg, NULL, NULL, NULL);
}

int
volume_clean_tail (struct volume *v)
{
  char text[512];
  int err;

  assert_held (&v->pool->admin);
  if (!v->tail_dirty)
    return 0;
  if (fold_volume (v) == 0 && clean_old_tail (v) == 0)
    return 0;
  err = errno;
  snprintf (text, sizeof text, "%s", nbdedup_error ());
  return nbdedup_fail (err,
                       "volume %s: an earlier shrink must drop what it cut "
                       "off first: %s",
                       v->name, text);
}

static int
grow (struct volume *v, uint64_t size)
{
  struct meta_volume mv;

  volume_to_meta (v, &mv);
  mv.size = size;
  if (volume_put (v->pool, &mv) == -1)
    return -1;
  v->size = size;
  v->changes++;
  return 0;
}

/* The new size is durable, so the command has not failed. */
static int
shrunk_with_tail (struct volume *v)
{
  char text[512];

  snprintf (text, sizeof text, "%s", nbdedup_error ());
  if (txg_check (v->pool->txg) == -1)
    return nbdedup_fail (errno,
                         "volume %s has %" PRIu64 " bytes now, but the pool "
                         "failed: %s",
                         v->name, (uint64_t) v->size, text);
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "%s: volume %s has %" PRIu64 " bytes now, but what was behind "
               "its end is not dropped yet: %s",
               v->pool->path, v->name, (uint64_t) v->size, text);
  return 0;
}

/* Step 1.  '*old_end': where the blocks end that the shrink drops.  An earlier
 * shrink may be unfinished, because its last block is damaged: this one may
 * drop that block.
 */
static int
begin_shrink (struct volume *v, uint64_t size, struct last_block *lb,
              uint64_t *old_end)
{
  char text[512];
  int err;

  *old_end = v->size;
  if (v->tail_dirty &&
      (fold_volume (v) == -1 || find_old_end (v, old_end) == -1))
    return -1;
  if (last_block_begin (lb, v, size) == 0)
    return 0;
  err = errno;
  snprintf (text, sizeof text, "%s", nbdedup_error ());
  return nbdedup_fail (err,
                       "volume %s keeps its size: %s (a multiple of %" PRIu32
                       " cuts no block)",
                       v->name, text, v->block_size);
}

/* No client is attached, and none may attach. */
static int
shrink_volume (struct volume *v, uint64_t size)
{
  struct last_block lb;
  struct meta_volume mv;
  uint64_t old_end;

  assert (size < v->size);
  if (begin_shrink (v, size, &lb, &old_end) == -1)
    return -1;
  volume_to_meta (v, &mv);
  mv.size = size;
  mv.tail_dirty = true;
  if (volume_put (v->pool, &mv) == -1) {
    last_block_cancel (&lb);
    return -1;
  }
  v->tail_dirty = true;
  v->size = size;
  v->changes++;
  if (last_block_write (&lb) == -1 || drop_blocks (v, old_end) == -1 ||
      end_tail (v) == -1)
    return shrunk_with_tail (v);
  return 0;
}

static int
resize (struct volume *v, uint64_t size)
{
  assert_held (&v->pool->admin);
  if (size < v->size)
    return shrink_volume (v, size);
  return volume_clean_tail (v) == -1 ? -1 : grow (v, size);
}

int
volume_resize (struct nbdedup_pool *pool, const char *name, uint64_t size,
               bool shrink)
{
  struct volume *v;
  char clients[256];
  int r;

  if (volume_check_size (size) == -1 ||
      (v = volumes_find (pool->volumes, name)) == NULL)
    return -1;
  if (size >= v->size)
    return resize (v, size);
  if (!shrink)
    return nbdedup_fail (EPERM,
                         "volume %s has %" PRIu64 " bytes: making "
                         "it smaller loses data and needs --shrink",
                         name, (uint64_t) v->size);
  {
    WITH_LOCK (&pool->volumes->lock);
    volume_describe_clients_locked (v, clients, sizeof clients);
    if (v->nr_clients > 0)
      return nbdedup_fail (EBUSY,
                           "volume %s is in use by %s: disconnect them "
                           "first",
                           name, clients);
    v->exclusive = true; /* no client may attach meanwhile */
  }
  r = resize (v, size);
  WITH_LOCK (&pool->volumes->lock);
  v->exclusive = false;
  return r;
}
