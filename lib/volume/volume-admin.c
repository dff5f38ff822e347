/* SPDX-License-Identifier: BSD-3-Clause */

/* Commands on whole volumes: create, resize, rename, and their properties.
 * All under pool->admin; each change is one operation inside a fold's
 * transaction (txg_run), and so atomic.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/iszero.h"
#include "base/log.h"
#include "core/alert-property.h"
#include "core/engine.h"
#include "core/pool-property.h"
#include "core/txg.h"
#include "data/read.h"
#include "data/sync.h"
#include "data/writeback.h"
#include "meta/meta.h"
#include "volume/allow.h"
#include "volume/volume-int.h"
#include "volume/volume-layers.h"
#include "volume/volume.h"

const char *const volume_properties[] = {
  "block-size", "compress", "dedup", "domain", "allow", ALERT_UNIQUE, NULL,
};

/*----------------------------------------------------------------------
 * Commands
 */

struct create {
  struct volumes *vs;
  struct meta_volume mv;
  struct meta_layer ml;
  const char *domain;
};

static int
create_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct create *cr = arg;

  cr->ml.id = state->next_id++;
  {
    WITH_LOCK (&cr->vs->lock);
    layers_place_locked (cr->vs, NULL, &cr->ml);
  }
  cr->mv.id = state->next_id++;
  cr->mv.layer = cr->ml.id;
  if (meta_domain_id (c, cr->domain, &cr->mv.domain) == -1 ||
      meta_layer_put (c, &cr->ml) == -1)
    return -1;
  return meta_volume_put (c, &cr->mv);
}

static int
check_size (uint64_t size)
{
  if (size == 0)
    return nbdedup_fail (EINVAL, "size 0: a volume has at least 512 bytes");
  if (size % 512 != 0)
    return nbdedup_fail (EINVAL,
                         "size %" PRIu64 ": must be a multiple of "
                         "512 bytes",
                         size);
  if (size > VOLUME_SIZE_MAX)
    return nbdedup_fail (EINVAL, "size %" PRIu64 " is too large", size);
  return 0;
}

/* Store the name, or "" for the word "none".  An empty one is an error: domains
 * keep tenants apart, and a script whose variable is empty must not undo that.
 */
static int
parse_domain (const char *word, const char **domain)
{
  *domain = strcmp (word, "none") == 0 ? "" : word;
  if (*word == '\0')
    return nbdedup_fail (EINVAL,
                         "the domain is empty: write a name, or none for a "
                         "volume that shares with all others that have none");
  if (**domain != '\0' && !volume_is_name (*domain))
    return nbdedup_fail (EINVAL,
                         "domain '%.64s': must be a name: letters, "
                         "digits, '.', '_', '-'",
                         *domain);
  return 0;
}

/* Names and values that no pool takes are told first, whatever the pool
 * holds: volume_set, and the command before it opens a file.
 */
int
nbdedup_volume_check_property (const char *property, const char *value)
{
  const char *domain;
  struct compression c;
  enum dedup_mode mode;

  if (strcmp (property, "compress") == 0)
    return compression_parse (value, &c);
  if (strcmp (property, "dedup") == 0)
    return dedup_parse (value, &mode);
  if (strcmp (property, "domain") == 0)
    return parse_domain (value, &domain);
  if (strcmp (property, "allow") == 0)
    return allow_check (value);
  if (strcmp (property, ALERT_UNIQUE) == 0)
    return alert_volume_check (value);
  if (strcmp (property, "block-size") == 0)
    return nbdedup_fail (EINVAL,
                         "block-size is fixed when the volume is "
                         "made");
  return nbdedup_fail (EINVAL, "a volume has no property '%.64s'", property);
}

/* The value given, or the pool's default. */
static int
or_default (struct nbdedup_pool *pool, const char *given, const char *name,
            char *buf, size_t len)
{
  CLEANUP_FREE char *value = NULL;

  if (given == NULL && pool_property_get (pool, name, &value) == -1)
    return -1;
  if (snprintf (buf, len, "%s", given ? given : value) >= (int) len)
    return nbdedup_fail (EINVAL, "%s: '%.32s' is too long", name, given);
  return 0;
}

static int
fill_create (struct nbdedup_pool *pool, const struct volume_spec *spec,
             struct create *cr)
{
  uint64_t block_size = spec->block_size;
  char buf[32];

  if (volume_check_name (spec->name) == -1 || check_size (spec->size) == -1)
    return -1;
  if (block_size == 0 &&
      (or_default (pool, NULL, "block-size", buf, sizeof buf) == -1 ||
       nbdedup_parse_size (buf, &block_size) == -1))
    return -1;
  if (block_size < pool->sector_bytes && spec->block_size == 0)
    block_size = pool->sector_bytes; /* the default was too small */
  if (check_block_size (block_size, pool->sector_bytes) == -1)
    return -1;
  snprintf (cr->mv.name, sizeof cr->mv.name, "%s", spec->name);
  cr->mv.size = spec->size;
  cr->mv.importing = spec->importing;
  cr->mv.allow = spec->allow ? spec->allow : "all";
  cr->ml.block_size = (uint32_t) block_size;
  if (parse_domain (spec->domain ? spec->domain : "none", &cr->domain) == -1 ||
      allow_check (cr->mv.allow) == -1)
    return -1;
  if (or_default (pool, spec->compress, "compress", cr->mv.compress,
                  sizeof cr->mv.compress) == -1)
    return -1;
  return or_default (pool, spec->dedup, "dedup", cr->mv.dedup,
                     sizeof cr->mv.dedup);
}

int
volume_create (struct nbdedup_pool *pool, const struct volume_spec *spec)
{
  struct volumes *vs = pool->volumes;
  struct create cr = { .vs = vs, .domain = "" };
  struct compression c;
  enum dedup_mode mode;
  struct volume *v;
  struct layer *layer;

  assert_held (&pool->admin);
  if (fill_create (pool, spec, &cr) == -1 ||
      compression_parse (cr.mv.compress, &c) == -1 ||
      dedup_parse (cr.mv.dedup, &mode) == -1)
    return -1;
  if (volumes_find (vs, spec->name))
    return nbdedup_fail (EEXIST, "there is a volume '%s' already", spec->name);
  /* Allocate memory first: after the commit nothing may fail. */
  if (layers_reserve (vs, 1) == -1 || volumes_reserve (vs, 1) == -1 ||
      (layer = layer_new (&cr.ml)) == NULL)
    return -1;
  v = volume_new (pool, &cr.mv, cr.domain, layer);
  if (v == NULL ||
      txg_run_large (pool->txg, ROW_PAGES, create_in_transaction, NULL, &cr) ==
        -1) {
    volume_free (v);
    free (layer);
    return -1;
  }
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  layer->id = cr.ml.id;
  layer->branch = cr.ml.branch;
  layer->seq = cr.ml.seq;
  layer->nr_names = 1;
  layers_add_locked (vs, layer, NULL);
  v->id = cr.mv.id;
  v->domain = cr.mv.domain;
  list_insert (&vs->list, v);
  return 0;
}

static int
put_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  return meta_volume_put (c, arg);
}

static int
put_volume (struct nbdedup_pool *pool, struct meta_volume *mv)
{
  return txg_run (pool->txg, put_in_transaction, NULL, mv);
}

/*----------------------------------------------------------------------
 * Resize
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
  if (put_volume (v->pool, &mv) == -1)
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
  if (put_volume (v->pool, &mv) == -1) {
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

  if (check_size (size) == -1 ||
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

static int
put_snapshot_in_transaction (void *arg, struct meta_conn *c,
                             struct meta_state *state)
{
  (void) state;
  return meta_snapshot_put (c, arg);
}

static int
rename_snapshot (struct nbdedup_pool *pool, const char *old, const char *new)
{
  struct volumes *vs = pool->volumes;
  struct snapshot_name o, n;
  struct meta_snapshot ms;
  struct volume *s;

  if (snapshot_name_parse (old, &o) == -1 ||
      snapshot_name_parse (new, &n) == -1)
    return -1;
  if (strcmp (n.volume, o.volume) != 0)
    return nbdedup_fail (EINVAL,
                         "%s: a snapshot stays with its volume: the "
                         "new name must be %s@NAME",
                         old, o.volume);
  s = volumes_find_snapshot (vs, old);
  if (s == NULL)
    return -1;
  if (list_find (&s->of->snapshots, n.snapshot))
    return nbdedup_fail (EEXIST, "there is a snapshot '%s' already", new);
  snapshot_to_meta (s, &ms);
  ms.name = n.snapshot;
  if (txg_run (pool->txg, put_snapshot_in_transaction, NULL, &ms) == -1)
    return -1;
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  list_remove (&s->of->snapshots, s);
  snprintf (s->name, sizeof s->name, "%s", n.snapshot);
  list_insert (&s->of->snapshots, s);
  return 0;
}

int
volume_rename (struct nbdedup_pool *pool, const char *old, const char *new)
{
  struct volumes *vs = pool->volumes;
  struct meta_volume mv;
  struct volume *v;

  assert_held (&pool->admin);
  if (strchr (old, '@'))
    return rename_snapshot (pool, old, new);
  if (volume_check_name (new) == -1 || (v = volumes_find (vs, old)) == NULL)
    return -1;
  if (volumes_find (vs, new))
    return nbdedup_fail (EEXIST, "there is a volume '%s' already", new);
  volume_to_meta (v, &mv);
  snprintf (mv.name, sizeof mv.name, "%s", new);
  mv.importing = false; /* complete, or the user keeps it */
  if (put_volume (pool, &mv) == -1)
    return -1;
  WITH_LOCK (&vs->lock);
  WITH_CONSISTENT (volumes, vs);

  list_remove (&vs->list, v);
  snprintf (v->name, sizeof v->name, "%s", new);
  v->importing = false;
  list_insert (&vs->list, v);
  return 0;
}

/*----------------------------------------------------------------------
 * Properties
 */

static int
get_alert (struct volume *v, char **value)
{
  struct meta_conn *c = meta_reader_get (v->pool->meta);
  int r = alert_volume_get (c, v->id, value);

  meta_reader_put (v->pool->meta, c);
  return r;
}

int
volume_get (struct volume *v, const char *property, char **value)
{
  char name[COMPRESSION_NAME_MAX];
  int r;

  if (strcmp (property, ALERT_UNIQUE) == 0)
    return get_alert (v, value);
  if (strcmp (property, "block-size") == 0)
    r = asprintf (value, "%" PRIu32, v->block_size);
  else if (strcmp (property, "compress") == 0) {
    compression_name (&v->compression, name);
    r = asprintf (value, "%s", name);
  }
  else if (strcmp (property, "dedup") == 0)
    r = asprintf (value, "%s", dedup_name (v->dedup));
  else if (strcmp (property, "domain") == 0)
    r = asprintf (value, "%s", *v->domain_name ? v->domain_name : "none");
  else if (strcmp (property, "allow") == 0)
    r = asprintf (value, "%s", v->allow);
  else
    return nbdedup_fail (EINVAL, "a volume has no property '%.64s'", property);
  return r == -1 ? nbdedup_fail (ENOMEM, "no memory") : 0;
}

/* Domains: the same transaction makes the id. */
struct set_volume {
  struct meta_volume mv;
  const char *domain;
};

static int
set_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct set_volume *s = arg;

  (void) state;
  if (meta_domain_id (c, s->domain, &s->mv.domain) == -1)
    return -1;
  return meta_volume_put (c, &s->mv);
}

/* Only an empty volume: stored data is shared within the old domain. */
static int
check_is_empty (struct volume *v)
{
  if (pool_sync (v->pool) == -1)
    return -1;
  if (v->layer->blocks > 0 || v->layer->parent || v->snapshots.nr > 0)
    return nbdedup_fail (EBUSY,
                         "domain: can only be set while volume %s is "
                         "empty, is not a clone, and has no snapshots",
                         v->name);
  return 0;
}

static int
set_property (struct nbdedup_pool *pool, struct volume *v, const char *property,
              const char *value)
{
  struct set_volume s;
  struct compression c;
  enum dedup_mode mode;
  char *allow, *domain;
  int r;

  assert_held (&pool->admin);
  c = v->compression;
  mode = v->dedup;
  volume_to_meta (v, &s.mv);
  s.domain = v->domain_name;
  if (strcmp (property, "compress") == 0) {
    if (compression_parse (value, &c) == -1)
      return -1;
    compression_name (&c, s.mv.compress);
  }
  else if (strcmp (property, "dedup") == 0) {
    if (dedup_parse (value, &mode) == -1)
      return -1;
    snprintf (s.mv.dedup, sizeof s.mv.dedup, "%s", value);
  }
  else if (strcmp (property, "domain") == 0) {
    if (parse_domain (value, &s.domain) == -1 || check_is_empty (v) == -1)
      return -1;
  }
  else
    s.mv.allow = value;
  allow = strdup (s.mv.allow);
  domain = strdup (s.domain);
  if (allow == NULL || domain == NULL)
    r = nbdedup_fail (ENOMEM, "no memory");
  else
    r = txg_run (pool->txg, set_in_transaction, NULL, &s);
  if (r == -1) {
    free (allow);
    free (domain);
    return -1;
  }
  {
    WITH_LOCK (&pool->volumes->lock);
    free (v->allow);
    free (v->domain_name);
    v->allow = allow;
    v->domain_name = domain;
  }
  WITH_LOCK (&v->dirty.lock);
  v->compression = c;
  v->dedup = mode;
  v->domain = s.mv.domain;
  return 0;
}

struct set_alert {
  uint64_t volume;
  const char *value;
};

static int
set_alert_in_transaction (void *arg, struct meta_conn *c,
                          struct meta_state *state)
{
  const struct set_alert *s = arg;

  (void) state;
  return alert_volume_put (c, s->volume, s->value);
}

int
volume_set (struct nbdedup_pool *pool, const char *name, const char *property,
            const char *value)
{
  struct volume *v;
  int r;

  if (nbdedup_volume_check_property (property, value) == -1 ||
      (v = volumes_find (pool->volumes, name)) == NULL)
    return -1;
  if (strcmp (property, ALERT_UNIQUE) == 0) {
    struct set_alert s = { v->id, value };

    return txg_run (pool->txg, set_alert_in_transaction, NULL, &s);
  }
  if (strcmp (property, "domain") != 0)
    return set_property (pool, v, property, value);
  {
    WITH_LOCK (&pool->volumes->lock);
    if (v->nr_clients > 0)
      return nbdedup_fail (EBUSY,
                           "domain: can only be set while volume %s has "
                           "no clients, but it has %u",
                           name, v->nr_clients);
    v->exclusive = true; /* no client may attach, and write, meanwhile */
  }
  r = set_property (pool, v, property, value);
  WITH_LOCK (&pool->volumes->lock);
  v->exclusive = false;
  return r;
}
