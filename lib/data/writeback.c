/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/mix.h"
#include "core/map.h"
#include "core/moves.h"
#include "core/txg.h"
#include "data/volume-types.h"
#include "data/watch.h"
#include "data/writeback-int.h"
#include "data/writeback.h"
#include "disk/room.h"
#include "format/format.h"
#include "space/space.h"

/* Room that only overwrites may use, when there is no other.  Without it a
 * full pool could not accept any, since the new record is written before the
 * old one's space is free.  In records of the size that is being written: a
 * larger size would cost room in every segment (space.c, the promise).
 */
#define SLACK_RECORDS 2

/* Workers begin by themselves when this share of dirty-max is taken. */
#define BACKGROUND_SHARE 4

struct writeback *
writeback_new (struct nbdedup_pool *pool, uint64_t dirty_max_bytes)
{
  struct writeback *wb = calloc (1, sizeof *wb);

  if (wb == NULL || hashtable_init (&wb->table) == -1) {
    free (wb);
    return nbdedup_fail_null (ENOMEM, "no memory for dirty blocks");
  }
  wb->pool = pool;
  wb->max = dirty_max_bytes;
  lock_init (&wb->lock);
  cond_init (&wb->work);
  cond_init (&wb->room);
  cond_init (&wb->installed);
  cond_init (&wb->range_free);
  TAILQ_INIT (&wb->queue);
  TAILQ_INIT (&wb->urgent);
  return wb;
}

static void
free_dirty (void *opaque, struct hashtable_link *l)
{
  struct dirty *d = hashtable_entry (l, struct dirty, link);

  (void) opaque;
  free (d->open);
  free (d->inflight);
  free (d);
}

void
writeback_free (struct writeback *wb)
{
  size_t i, j;

  if (wb == NULL)
    return;
  assert (wb->nr_threads == 0);
  hashtable_visit (&wb->table, free_dirty, NULL);
  hashtable_destroy (&wb->table);
  for (i = 0; i < sizeof wb->spare / sizeof wb->spare[0]; ++i) {
    for (j = 0; j < wb->spare[i].nr; ++j)
      free (wb->spare[i].p[j]);
    free (wb->spare[i].p);
  }
  free (wb->threads);
  pthread_cond_destroy (&wb->range_free);
  pthread_cond_destroy (&wb->installed);
  pthread_cond_destroy (&wb->room);
  pthread_cond_destroy (&wb->work);
  lock_destroy (&wb->lock);
  free (wb);
}

static void
release_slack (struct writeback *wb)
{
  WITH_LOCK (&wb->lock);
  if (wb->slack_record > 0)
    space_unreserve (wb->pool->space, wb->slack_record, SLACK_RECORDS);
  wb->slack_record = 0;
}

int
writeback_start (struct writeback *wb, unsigned nr_workers)
{
  int err;

  wb->threads = calloc (nr_workers, sizeof *wb->threads);
  if (wb->threads == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  while (wb->nr_threads < nr_workers) {
    err = pthread_create (&wb->threads[wb->nr_threads], NULL, write_worker,
                          wb);
    if (err != 0) {
      writeback_stop (wb);
      return nbdedup_fail (err, "cannot start a thread: %s", strerror (err));
    }
    wb->nr_threads++;
  }
  return 0;
}

void
writeback_stop (struct writeback *wb)
{
  {
    WITH_LOCK (&wb->lock);
    wb->stop = true;
    pthread_cond_broadcast (&wb->work);
    pthread_cond_broadcast (&wb->room);
  }
  while (wb->nr_threads > 0)
    pthread_join (wb->threads[--wb->nr_threads], NULL);
  release_slack (wb);
}

struct lock *
writeback_lock (struct writeback *wb)
{
  return &wb->lock;
}

/*----------------------------------------------------------------------
 * Buffers.  Versions come and go at the rate of writes; the allocator
 * would map and unmap the larger ones each time.
 */

static uint8_t *
buffer_get_locked (struct writeback *wb, uint32_t size)
{
  unsigned i = (unsigned) __builtin_ctz (size);

  assert_held (&wb->lock);
  assert (size > 0 && (size & (size - 1)) == 0);
  if (wb->spare[i].nr > 0) {
    wb->spare_bytes -= size;
    return wb->spare[i].p[--wb->spare[i].nr];
  }
  return malloc (size);
}

static void
buffer_put_locked (struct writeback *wb, uint8_t *buf, uint32_t size)
{
  unsigned i = (unsigned) __builtin_ctz (size);

  assert_held (&wb->lock);
  assert (buf != NULL && (size & (size - 1)) == 0);
  if (wb->bytes + wb->spare_bytes + size > wb->max ||
      array_reserve (&wb->spare[i].p, &wb->spare[i].cap, wb->spare[i].nr + 1,
                     sizeof *wb->spare[i].p) == -1) {
    free (buf);
    return;
  }
  wb->spare[i].p[wb->spare[i].nr++] = buf;
  wb->spare_bytes += size;
}

/* Free spare buffers of other sizes, so that all stay within dirty-max. */
static void
trim_spare_locked (struct writeback *wb)
{
  unsigned i;

  for (i = 0; i < sizeof wb->spare / sizeof wb->spare[0]; ++i)
    while (wb->spare[i].nr > 0 && wb->bytes + wb->spare_bytes > wb->max) {
      free (wb->spare[i].p[--wb->spare[i].nr]);
      wb->spare_bytes -= UINT64_C (1) << i;
    }
}

/*----------------------------------------------------------------------
 * Ranges
 */

/* First come, first served: a range that covers the whole volume (a
 * snapshot's) gets its turn although small ones overlap all the time.
 */
static bool
must_wait_locked (const struct volume *v, const struct range *range)
{
  const struct range *r;

  for (r = TAILQ_FIRST (&v->ranges); r != range; r = TAILQ_NEXT (r, link))
    if (r->first <= range->last && range->first <= r->last)
      return true;
  return false;
}

void
writeback_range_begin (struct writeback *wb, struct volume *v,
                       struct range *range, uint64_t first, uint64_t last)
{
  assert (first <= last);
  WITH_LOCK (&wb->lock);
  range->first = first;
  range->last = last;
  TAILQ_INSERT_TAIL (&v->ranges, range, link);
  while (must_wait_locked (v, range))
    lock_wait (&wb->lock, &wb->range_free);
}

void
writeback_range_end (struct writeback *wb, struct volume *v,
                     struct range *range)
{
  WITH_LOCK (&wb->lock);
  assert (!TAILQ_EMPTY (&v->ranges));
  TAILQ_REMOVE (&v->ranges, range, link);
  pthread_cond_broadcast (&wb->range_free);
}

/*----------------------------------------------------------------------
 * Dirty blocks
 */

static uint64_t
hash_of (const struct volume *v, uint64_t block)
{
  return mix_two (v->id, block);
}

static struct dirty *
find_locked (struct writeback *wb, struct volume *v, uint64_t block)
{
  struct hashtable_link *l;
  struct dirty *d;

  assert_held (&wb->lock);
  for (l = hashtable_chain (&wb->table, hash_of (v, block)); l; l = l->next) {
    d = hashtable_entry (l, struct dirty, link);
    if (d->volume == v && d->block == block)
      return d;
  }
  return NULL;
}

/* The block's present content, or NULL: it is not dirty (or became a hole). */
static const uint8_t *
content_locked (const struct dirty *d)
{
  if (d->open)
    return d->open;
  return d->superseded ? NULL : d->inflight;
}

bool
writeback_read (struct writeback *wb, struct volume *v, uint64_t block,
                void *buf, size_t offset, size_t len)
{
  const uint8_t *p;
  struct dirty *d;

  assert (offset <= v->block_size && len <= v->block_size - offset);
  WITH_LOCK (&wb->lock);
  d = find_locked (wb, v, block);
  p = d ? content_locked (d) : NULL;
  if (p)
    memcpy (buf, p + offset, len);
  return p != NULL;
}

uint64_t
writeback_present (struct writeback *wb, struct volume *v, uint64_t first,
                   unsigned nr)
{
  uint64_t bits = 0;
  struct dirty *d;
  unsigned i;

  assert (nr <= 64);
  WITH_LOCK (&wb->lock);
  if (TAILQ_EMPTY (&v->open_list) && TAILQ_EMPTY (&v->inflight_list))
    return 0;
  for (i = 0; i < nr; ++i) {
    d = find_locked (wb, v, first + i);
    if (d && content_locked (d))
      bits |= UINT64_C (1) << i;
  }
  return bits;
}

uint64_t
writeback_next (struct writeback *wb, struct volume *v, uint64_t first,
                uint64_t last)
{
  uint64_t next = last + 1;
  const struct dirty *d;

  WITH_LOCK (&wb->lock);
  if (TAILQ_EMPTY (&v->open_list) && TAILQ_EMPTY (&v->inflight_list))
    return next;
  if (last - first < wb->table.nr_entries) {
    for (; first <= last; ++first)
      if (find_locked (wb, v, first))
        return first;
    return next;
  }
  TAILQ_FOREACH (d, &v->open_list, vlink)
    if (d->block >= first && d->block < next)
      next = d->block;
  TAILQ_FOREACH (d, &v->inflight_list, flink)
    if (d->block >= first && d->block < next)
      next = d->block;
  return next;
}

static void
drop_if_empty_locked (struct writeback *wb, struct dirty *d)
{
  if (d->open == NULL && d->inflight == NULL) {
    hashtable_remove (&wb->table, &d->link);
    free (d);
  }
}

/* Open a version with this (owned) content. */
static void
add_open_locked (struct writeback *wb, struct dirty *d, uint8_t *buf)
{
  assert (d->open == NULL && buf != NULL);
  d->open = buf;
  d->open_seq = ++wb->seq;
  d->urgent = false;
  TAILQ_INSERT_TAIL (&wb->queue, d, queue);
  TAILQ_INSERT_TAIL (&d->volume->open_list, d, vlink);
  wb->bytes += d->volume->block_size;
  if (wb->bytes > wb->max / BACKGROUND_SHARE)
    pthread_cond_signal (&wb->work);
}

static void
unqueue_open_locked (struct writeback *wb, struct dirty *d)
{
  assert (d->open != NULL);
  TAILQ_REMOVE (d->urgent ? &wb->urgent : &wb->queue, d, queue);
  TAILQ_REMOVE (&d->volume->open_list, d, vlink);
}

/* Reserve a record's room in the store, and a pointer's in pool.db. */
static void
unreserve (struct writeback *wb, struct volume *v)
{
  space_unreserve (wb->pool->space, v->block_size, 1);
  txg_unreserve (wb->pool->txg, 1);
}

/* A version is installed or dropped: return its buffer and its reservation. */
static void
release_version_locked (struct writeback *wb, struct volume *v, uint8_t *buf)
{
  assert (wb->bytes >= v->block_size);
  wb->bytes -= v->block_size;
  buffer_put_locked (wb, buf, v->block_size);
  unreserve (wb, v);
  pthread_cond_broadcast (&wb->room);
}

static void
drop_open_locked (struct writeback *wb, struct dirty *d)
{
  unqueue_open_locked (wb, d);
  release_version_locked (wb, d->volume, d->open);
  d->open = NULL;
}

static int
can_accept_locked (struct writeback *wb, struct volume *v)
{
  if (txg_check (wb->pool->txg) == -1)
    return -1;
  if (v->gone)
    return nbdedup_fail (ESHUTDOWN, "volume %s was destroyed", v->name);
  return 0;
}

/* Wait for room for one more version. */
static int
wait_for_room_locked (struct writeback *wb, struct volume *v)
{
  while (wb->bytes + v->block_size > wb->max) {
    if (wb->stop || can_accept_locked (wb, v) == -1)
      return wb->stop ? nbdedup_fail (ESHUTDOWN, "the pool is closing") : -1;
    pthread_cond_broadcast (&wb->work);
    lock_wait_ms (&wb->lock, &wb->room, 1000);
  }
  return can_accept_locked (wb, v);
}

/* Make the open version of a block that has none, from 'base' (NULL: the
 * caller overwrites all of it).
 */
static struct dirty *
open_version_locked (struct writeback *wb, struct volume *v, uint64_t block,
                     const void *base)
{
  struct dirty *d;
  uint8_t *buf;

  if (wait_for_room_locked (wb, v) == -1)
    return NULL;
  d = find_locked (wb, v, block);
  assert (d == NULL || d->open == NULL);        /* this thread has the range */
  buf = buffer_get_locked (wb, v->block_size);
  if (d == NULL && buf) {
    d = calloc (1, sizeof *d);
    if (d) {
      d->volume = v;
      d->block = block;
      hashtable_insert (&wb->table, &d->link, hash_of (v, block));
    }
  }
  if (d == NULL || buf == NULL) {
    free (buf);
    return nbdedup_fail_null (ENOMEM, "no memory for a block");
  }
  if (base)
    memcpy (buf, base, v->block_size);
  add_open_locked (wb, d, buf);
  trim_spare_locked (wb);
  return d;
}

static int
try_reserve (struct writeback *wb, struct volume *v, enum room_use use)
{
  int err;

  if (txg_is_stuck (wb->pool->txg))
    return nbdedup_fail (ENOSPC, "the pool's file system is full");
  if (txg_reserve (wb->pool->txg, 1, use) == -1)
    return -1;
  if (space_reserve (wb->pool->space, v->block_size, 1) == 0)
    return 0;
  err = errno;
  txg_unreserve (wb->pool->txg, 1);
  errno = err;
  return -1;
}

static void
hold_slack (struct writeback *wb, uint32_t record)
{
  WITH_LOCK (&wb->lock);
  if (wb->slack_record == 0 &&
      space_reserve (wb->pool->space, record, SLACK_RECORDS) == 0)
    wb->slack_record = record;
}

/* Does the volume have this block itself?  (Overwriting an inherited block
 * frees nothing.)
 */
static bool
is_mapped (struct writeback *wb, struct volume *v, uint64_t block)
{
  return map_owns (wb->pool->map, v->layer, block) == 1;
}

/* Reserve room for a new version of a block.  If there is none, a fold may
 * free the space of overwritten blocks: fold, and try again.
 */
static int
reserve (struct writeback *wb, struct volume *v, uint64_t block)
{
  if (try_reserve (wb, v, ROOM_NEW) == 0) {
    if (wb->slack_record == 0)
      hold_slack (wb, v->block_size);
    return 0;
  }
  if (errno != ENOSPC)
    return -1;
  moves_give_way (wb->pool->moves);
  if (writeback_drain (wb, NULL) == -1 ||
      txg_make_room (wb->pool->txg) == -1)
    return -1;
  if (try_reserve (wb, v, ROOM_NEW) == 0)
    return 0;
  if (errno != ENOSPC || !is_mapped (wb, v, block))
    return -1;
  if (try_reserve (wb, v, ROOM_OVERWRITE) == 0)
    return 0;
  release_slack (wb);
  return try_reserve (wb, v, ROOM_OVERWRITE);
}

int
writeback_write (struct writeback *wb, struct volume *v, uint64_t block,
                 const void *buf, size_t offset, size_t len, const void *base)
{
  bool whole = len == v->block_size;
  const uint8_t *old;
  struct dirty *d;

  assert (len > 0 && offset <= v->block_size &&
          len <= v->block_size - offset);
  {
    WITH_LOCK (&wb->lock);
    if (can_accept_locked (wb, v) == -1)
      return -1;
    d = find_locked (wb, v, block);
    if (d && d->open) {
      memcpy (d->open + offset, buf, len);
      return 0;
    }
    if (!whole && base == NULL && !(d && content_locked (d)))
      return 1;
  }
  if (reserve (wb, v, block) == -1) {
    if (errno == ENOSPC)
      watch_refused (wb->pool);
    return -1;
  }
  WITH_LOCK (&wb->lock);
  WITH_CONSISTENT (writeback, wb);
  /* If a worker has installed the inflight version meanwhile, the caller must
   * read that.
   */
  d = find_locked (wb, v, block);
  old = base ? base : d ? content_locked (d) : NULL;
  if (!whole && old == NULL) {
    unreserve (wb, v);
    return 1;
  }
  if (whole)
    old = NULL;
  if (wb->bytes + v->block_size > wb->max && old && old != base) {
    /* The inflight version may be dropped during the wait: copy it first. */
    CLEANUP_FREE uint8_t *copy = malloc (v->block_size);

    if (copy)
      memcpy (copy, old, v->block_size);
    d = copy ? open_version_locked (wb, v, block, copy) : NULL;
  }
  else
    d = open_version_locked (wb, v, block, old);
  if (d == NULL) {
    unreserve (wb, v);
    return -1;
  }
  memcpy (d->open + offset, buf, len);
  return 0;
}

/* Drop the versions of blocks that become holes. */
static void
supersede_locked (struct writeback *wb, struct volume *v, uint64_t first,
                  uint64_t count)
{
  struct dirty *d, *next;
  uint64_t last = first + count - 1;

  for (d = TAILQ_FIRST (&v->inflight_list); d; d = TAILQ_NEXT (d, flink))
    if (d->block >= first && d->block <= last)
      d->superseded = true;
  for (d = TAILQ_FIRST (&v->open_list); d; d = next) {
    next = TAILQ_NEXT (d, vlink);
    if (d->block >= first && d->block <= last) {
      drop_open_locked (wb, d);
      drop_if_empty_locked (wb, d);
    }
  }
}

static int
put_holes (struct writeback *wb, struct volume *v, uint64_t first,
           uint64_t count)
{
  struct nbdedup_pool *pool = wb->pool;
  const uint64_t leaves =
    (first + count - 1) / LEAF_BLOCKS - first / LEAF_BLOCKS + 1;
  const uint64_t pages = leaves * ROOM_LEAF_PAGES +
    count * ROOM_POINTER_PAGES;
  struct room_touched touched;
  int r;

  txg_throttle (pool->txg);
  txg_enter (pool->txg, 0, pages);
  touched = txg_touch (pool->txg);
  {
    WITH_LOCK (&wb->lock);
    WITH_CONSISTENT (writeback, wb);
    r = can_accept_locked (wb, v);
    if (r == 0) {
      r = txg_set_holes (pool->txg, v->layer, first, count, &touched);
      /* From here on no worker installs an older version.  If txg_set_holes
       * fails the older versions stay, because they were answered.
       */
      if (r == 0)
        supersede_locked (wb, v, first, count);
      pthread_cond_broadcast (&wb->installed);
    }
  }
  if (r == 0)
    txg_return (pool->txg, pages, &touched);
  txg_leave (pool->txg);
  return r;
}

int
writeback_holes (struct writeback *wb, struct volume *v, uint64_t first,
                 uint64_t count)
{
  uint64_t n, leaves;

  assert (first + count >= first);
  for (; count > 0; first += n, count -= n) {
    /* When space is short a fold accepts fewer leaves. */
    leaves = txg_leaves_at_once (wb->pool->txg);
    n = count;
    if (leaves < UINT64_MAX / LEAF_BLOCKS &&
        n > leaves * LEAF_BLOCKS - first % LEAF_BLOCKS)
      n = leaves * LEAF_BLOCKS - first % LEAF_BLOCKS;
    if (put_holes (wb, v, first, n) == -1)
      return -1;
  }
  return 0;
}

/*----------------------------------------------------------------------
 * Taking and finishing
 */

/* The first block of a list that a worker may take: one without an inflight
 * version.
 */
static struct dirty *
takeable_locked (struct dirty_list *list)
{
  struct dirty *d;

  TAILQ_FOREACH (d, list, queue)
    if (d->inflight == NULL)
      return d;
  return NULL;
}

static void
take_locked (struct writeback *wb, struct dirty_batch *b, struct dirty *d)
{
  assert (d->inflight == NULL && b->nr < BATCH_BLOCKS);
  unqueue_open_locked (wb, d);
  d->inflight = d->open;
  d->inflight_seq = d->open_seq;
  d->open = NULL;
  d->superseded = false;
  TAILQ_INSERT_TAIL (&d->volume->inflight_list, d, flink);
  b->blocks[b->nr++] = d;
}

int
writeback_take (struct writeback *wb, struct dirty_batch *b)
{
  struct dirty_list *list;
  struct dirty *d, *next;
  struct volume *v;

  WITH_LOCK (&wb->lock);
  WITH_CONSISTENT (writeback, wb);
  for (;;) {
    list = &wb->urgent;
    d = takeable_locked (list);
    if (d == NULL && wb->bytes > wb->max / BACKGROUND_SHARE) {
      list = &wb->queue;
      d = takeable_locked (list);
    }
    if (d)
      break;
    if (wb->stop)
      return 0;
    lock_wait (&wb->lock, &wb->work);
  }
  v = d->volume;
  b->volume = v;
  b->compression = v->compression;
  b->dedup = v->dedup;
  b->domain = v->domain;
  b->nr = 0;
  for (; d && b->nr < BATCH_BLOCKS &&
         (b->nr + 1) * (uint64_t) v->block_size <= BATCH_BYTES; d = next) {
    next = TAILQ_NEXT (d, queue);
    if (d->volume == v && d->inflight == NULL)
      take_locked (wb, b, d);
    else if (d->volume != v)
      break;
  }
  /* There may be more, for another worker. */
  if (!TAILQ_EMPTY (&wb->urgent) || wb->bytes > wb->max / BACKGROUND_SHARE)
    pthread_cond_signal (&wb->work);
  return 1;
}

void
writeback_done_locked (struct writeback *wb, struct dirty_batch *b)
{
  struct dirty *d;
  unsigned i;
  WITH_CONSISTENT (writeback, wb);

  assert_held (&wb->lock);
  for (i = 0; i < b->nr; ++i) {
    d = b->blocks[i];
    assert (d->inflight != NULL);
    TAILQ_REMOVE (&d->volume->inflight_list, d, flink);
    release_version_locked (wb, d->volume, d->inflight);
    d->inflight = NULL;
    d->superseded = false;
    drop_if_empty_locked (wb, d);
  }
  pthread_cond_broadcast (&wb->installed);
  /* A worker may take open versions of these blocks now. */
  if (!TAILQ_EMPTY (&wb->urgent))
    pthread_cond_signal (&wb->work);
}

/*----------------------------------------------------------------------
 * Draining
 */

static void
make_urgent_locked (struct writeback *wb, struct dirty *d)
{
  if (d->open == NULL || d->urgent)
    return;
  TAILQ_REMOVE (&wb->queue, d, queue);
  TAILQ_INSERT_TAIL (&wb->urgent, d, queue);
  d->urgent = true;
}

/* Does the volume have a version up to 'seq'? */
static bool
has_versions_locked (const struct volume *v, uint64_t seq)
{
  const struct dirty *d = TAILQ_FIRST (&v->open_list);

  if (d && d->open_seq <= seq)
    return true;
  TAILQ_FOREACH (d, &v->inflight_list, flink)
    if (d->inflight_seq <= seq)
      return true;
  return false;
}

static int
drain_volume_locked (struct writeback *wb, struct volume *v)
{
  uint64_t seq = wb->seq;
  struct dirty *d;

  TAILQ_FOREACH (d, &v->open_list, vlink)
    make_urgent_locked (wb, d);
  pthread_cond_broadcast (&wb->work);
  while (has_versions_locked (v, seq)) {
    if (v->gone)
      return nbdedup_fail (ESHUTDOWN, "volume %s was destroyed", v->name);
    lock_wait (&wb->lock, &wb->installed);
  }
  return 0;
}

/* The first version in memory, of any volume, up to 'seq'. */
static bool
any_version_locked (struct writeback *wb, uint64_t seq)
{
  struct dirty *d;
  struct hashtable_link *l;
  size_t i;

  for (i = 0; i < wb->table.nr_buckets; ++i)
    for (l = wb->table.buckets[i]; l; l = l->next) {
      d = hashtable_entry (l, struct dirty, link);
      if ((d->open && d->open_seq <= seq) ||
          (d->inflight && d->inflight_seq <= seq))
        return true;
    }
  return false;
}

static void
drain_all_locked (struct writeback *wb)
{
  uint64_t seq = wb->seq;
  struct dirty *d;

  while ((d = TAILQ_FIRST (&wb->queue)) != NULL && d->open_seq <= seq)
    make_urgent_locked (wb, d);
  pthread_cond_broadcast (&wb->work);
  while (any_version_locked (wb, seq))
    lock_wait (&wb->lock, &wb->installed);
}

int
writeback_drain (struct writeback *wb, struct volume *v)
{
  {
    WITH_LOCK (&wb->lock);
    WITH_CONSISTENT (writeback, wb);
    if (v == NULL)
      drain_all_locked (wb);
    else if (drain_volume_locked (wb, v) == -1)
      return -1;
  }
  return txg_check (wb->pool->txg);
}

static bool
range_has_versions_locked (struct writeback *wb, struct volume *v,
                           uint64_t first, uint64_t count, uint64_t seq,
                           bool urgent)
{
  bool found = false;
  struct dirty *d;
  uint64_t i;

  for (i = 0; i < count; ++i) {
    d = find_locked (wb, v, first + i);
    if (d == NULL)
      continue;
    if (urgent)
      make_urgent_locked (wb, d);
    if ((d->open && d->open_seq <= seq) ||
        (d->inflight && d->inflight_seq <= seq))
      found = true;
  }
  return found;
}

int
writeback_drain_range (struct writeback *wb, struct volume *v, uint64_t first,
                       uint64_t count)
{
  uint64_t seq;

  /* Looking up more blocks than are dirty costs more than draining all. */
  if (count > 4096)
    return writeback_drain (wb, v);
  {
    WITH_LOCK (&wb->lock);
    WITH_CONSISTENT (writeback, wb);
    seq = wb->seq;
    range_has_versions_locked (wb, v, first, count, seq, true);
    pthread_cond_broadcast (&wb->work);
    while (range_has_versions_locked (wb, v, first, count, seq, false)) {
      if (v->gone)
        return nbdedup_fail (ESHUTDOWN, "volume %s was destroyed", v->name);
      lock_wait (&wb->lock, &wb->installed);
    }
  }
  return txg_check (wb->pool->txg);
}

void
writeback_settle (struct writeback *wb, struct volume *v)
{
  struct dirty *d;

  WITH_LOCK (&wb->lock);
  WITH_CONSISTENT (writeback, wb);
  assert (v->gone);
  /* Wake the waiting threads: they find the volume gone. */
  pthread_cond_broadcast (&wb->installed);
  pthread_cond_broadcast (&wb->room);
  /* A running mutation may open another version. */
  while (!TAILQ_EMPTY (&v->open_list) || !TAILQ_EMPTY (&v->inflight_list) ||
         !TAILQ_EMPTY (&v->ranges)) {
    TAILQ_FOREACH (d, &v->open_list, vlink)
      make_urgent_locked (wb, d);
    pthread_cond_broadcast (&wb->work);
    lock_wait_ms (&wb->lock, &wb->installed, 10);
  }
}
