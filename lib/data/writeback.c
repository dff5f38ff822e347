/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mix.h"
#include "base/thread.h"
#include "core/map.h"
#include "core/moves.h"
#include "core/txg.h"
#include "data/read.h"
#include "data/watch.h"
#include "data/writeback-int.h"
#include "data/writeback.h"
#include "disk/room.h"
#include "format/format.h"
#include "space/space.h"

struct writeback *
writeback_new (struct nbdedup_pool *pool, uint64_t dirty_max_bytes)
{
  struct writeback *wb = calloc (1, sizeof *wb);
  unsigned i;

  if (wb == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for dirty blocks");
  wb->pool = pool;
  dirty_memory_init (&wb->memory, dirty_max_bytes);
  lock_init (&wb->lock);
  cond_init (&wb->work);
  TAILQ_INIT (&wb->active);
  for (i = 0; i < READY_LEVELS; ++i)
    TAILQ_INIT (&wb->ready[i]);
  return wb;
}

void
writeback_free (struct writeback *wb)
{
  if (wb == NULL)
    return;
  assert (wb->nr_threads == 0);
  free (wb->threads);
  cond_destroy (&wb->work);
  lock_destroy (&wb->lock);
  dirty_memory_destroy (&wb->memory);
  free (wb);
}

void
dirty_blocks_init (struct dirty_blocks *db)
{
  lock_init (&db->install);
  lock_init (&db->lock);
  cond_init (&db->installed);
  cond_init (&db->range_free);
  cond_init (&db->copied);
  TAILQ_INIT (&db->queue);
  TAILQ_INIT (&db->urgent);
  TAILQ_INIT (&db->open_list);
  TAILQ_INIT (&db->inflight_list);
  TAILQ_INIT (&db->kept_list);
  TAILQ_INIT (&db->ranges);
  db->ready = READY_NONE;
}

static void
free_dirty (void *opaque, struct hashtable_link *l)
{
  struct dirty *d = hashtable_entry (l, struct dirty, link);

  (void) opaque;
  version_free (d->open);
  version_free (d->inflight);
  free (d);
}

/* Blocks are left only if the txg has failed. */
void
dirty_blocks_destroy (struct dirty_blocks *db)
{
  assert (db->pins == 0 && TAILQ_EMPTY (&db->ranges));
  if (db->table.buckets)
    hashtable_visit (&db->table, free_dirty, NULL);
  hashtable_destroy (&db->table);
  spares_free (&db->spares);
  cond_destroy (&db->copied);
  cond_destroy (&db->range_free);
  cond_destroy (&db->installed);
  lock_destroy (&db->lock);
  lock_destroy (&db->install);
}

static int
start_worker (struct writeback *wb)
{
  struct worker *w = worker_new (wb);

  if (w == NULL)
    return -1;
  wb->nr_busy++; /* until it waits for work */
  if (thread_start (&wb->threads[wb->nr_threads], write_worker, w) == -1) {
    wb->nr_busy--;
    worker_free (w);
    return -1;
  }
  wb->nr_threads++;
  return 0;
}

int
writeback_start (struct writeback *wb, unsigned nr_workers)
{
  const long cpus = sysconf (_SC_NPROCESSORS_ONLN);

  wb->nr_at_once = nr_workers;
  if (nr_workers == 0) {
    wb->nr_at_once = cpus < 1 ? 1
      : cpus > WORKERS_MAX    ? WORKERS_MAX
                              : (unsigned) cpus;
    nr_workers = wb->nr_at_once + WORKERS_WAITING_MIN;
    if (nr_workers < WORKERS_PER_CPU * wb->nr_at_once)
      nr_workers = WORKERS_PER_CPU * wb->nr_at_once;
  }
  wb->threads = calloc (nr_workers, sizeof *wb->threads);
  if (wb->threads == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  while (wb->nr_threads < nr_workers)
    if (start_worker (wb) == -1)
      return -1;
  return 0;
}

void
writeback_stop (struct writeback *wb)
{
  {
    WITH_LOCK (&wb->lock);
    wb->stop = true;
    cond_broadcast (&wb->work);
  }
  dirty_memory_wake (&wb->memory);
  while (wb->nr_threads > 0)
    pthread_join (wb->threads[--wb->nr_threads], NULL);
  release_slack (wb);
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

  for (r = TAILQ_FIRST (&v->dirty.ranges); r != range; r = TAILQ_NEXT (r, link))
    if (r->first <= range->last && range->first <= r->last)
      return true;
  return false;
}

void
writeback_range_begin (struct volume *v, struct range *range, uint64_t first,
                       uint64_t last)
{
  struct dirty_blocks *db = &v->dirty;

  assert (first <= last);
  WITH_LOCK (&db->lock);
  WITH_CONSISTENT (dirty_blocks, db);

  range->first = first;
  range->last = last;
  TAILQ_INSERT_TAIL (&db->ranges, range, link);
  while (must_wait_locked (v, range))
    lock_wait (&db->lock, &db->range_free);
}

void
writeback_range_end (struct volume *v, struct range *range)
{
  struct dirty_blocks *db = &v->dirty;

  WITH_LOCK (&db->lock);
  WITH_CONSISTENT (dirty_blocks, db);

  assert (!TAILQ_EMPTY (&db->ranges));
  TAILQ_REMOVE (&db->ranges, range, link);
  cond_broadcast (&db->range_free);
}

/*----------------------------------------------------------------------
 * Dirty blocks
 */

struct dirty *
find_dirty_locked (struct volume *v, uint64_t block)
{
  struct dirty_blocks *db = &v->dirty;
  struct hashtable_link *l;
  struct dirty *d;

  assert_held (&db->lock);
  if (db->nr == 0)
    return NULL;
  for (l = hashtable_chain (&db->table, mix (block)); l; l = l->next) {
    d = hashtable_entry (l, struct dirty, link);
    if (d->block == block)
      return d;
  }
  return NULL;
}

void
drop_if_empty_locked (struct writeback *wb, struct volume *v, struct dirty *d)
{
  struct dirty_blocks *db = &v->dirty;

  assert_held (&db->lock);
  if (d->open || d->inflight)
    return;
  hashtable_remove (&db->table, &d->link);
  spares_give (&db->spares, d, DIRTY_SPARES_MAX);
  if (--db->nr > 0)
    return;
  /* A volume that wrote much once does not keep a large table. */
  hashtable_clear (&db->table);
  spares_free (&db->spares);
  set_active_locked (wb, v, false);
}

/* The block's present content, or NULL: it is not dirty (or became a hole). */
static struct version *
content_locked (const struct dirty *d)
{
  if (d->open)
    return d->open;
  return d->superseded ? NULL : d->inflight;
}

/* Let the caller copy from the block's content without the lock. */
static struct version *
begin_read (struct volume *v, uint64_t block)
{
  struct dirty_blocks *db = &v->dirty;
  struct version *version;
  struct dirty *d;

  if (db->nr == 0)
    return NULL;
  WITH_LOCK (&db->lock);
  for (;;) {
    d = find_dirty_locked (v, block);
    version = d ? content_locked (d) : NULL;
    if (version == NULL)
      return NULL;
    if (!version->filling)
      break;
    lock_wait (&db->lock, &db->copied);
  }
  version->nr_readers++;
  return version;
}

static void
end_read (struct writeback *wb, struct volume *v, struct version *version)
{
  struct version_list list = SLIST_HEAD_INITIALIZER (list);
  struct dirty_blocks *db = &v->dirty;

  {
    WITH_LOCK (&db->lock);
    assert (version->nr_readers > 0);
    if (--version->nr_readers == 0) {
      if (version->dropped)
        SLIST_INSERT_HEAD (&list, version, link);
      else if (version->filling)
        cond_broadcast (&db->copied);
    }
  }
  dirty_memory_put (&wb->memory, &list, v->block_size);
}

bool
writeback_read (struct writeback *wb, struct volume *v, uint64_t block,
                void *buf, size_t offset, size_t len)
{
  struct version *version;

  assert (offset <= v->block_size && len <= v->block_size - offset);
  version = begin_read (v, block);
  if (version == NULL)
    return false;
  memcpy (buf, version->data + offset, len);
  end_read (wb, v, version);
  return true;
}

uint64_t
writeback_present (struct volume *v, uint64_t first, unsigned nr)
{
  struct dirty_blocks *db = &v->dirty;
  uint64_t bits = 0;
  struct dirty *d;
  unsigned i;

  assert (nr <= 64);
  /* A block whose write was answered before this read began is counted, or
   * its pointer is in the map by now.
   */
  if (db->nr == 0)
    return 0;
  WITH_LOCK (&db->lock);
  for (i = 0; i < nr; ++i) {
    d = find_dirty_locked (v, first + i);
    if (d && content_locked (d))
      bits |= UINT64_C (1) << i;
  }
  return bits;
}

uint64_t
writeback_next (struct volume *v, uint64_t first, uint64_t last)
{
  struct dirty_blocks *db = &v->dirty;
  uint64_t next = last + 1;
  const struct dirty *d;

  if (db->nr == 0)
    return next;
  WITH_LOCK (&db->lock);
  if (last - first < db->nr) {
    for (; first <= last; ++first)
      if (find_dirty_locked (v, first))
        return first;
    return next;
  }
  TAILQ_FOREACH (d, &db->open_list, vlink)
    if (d->block >= first && d->block < next)
      next = d->block;
  TAILQ_FOREACH (d, &db->inflight_list, flink)
    if (d->block >= first && d->block < next)
      next = d->block;
  TAILQ_FOREACH (d, &db->kept_list, flink)
    if (d->block >= first && d->block < next)
      next = d->block;
  return next;
}

void
drop_version_locked (struct dirty_blocks *db, struct version *version,
                     struct version_list *list)
{
  assert_held (&db->lock);
  assert (!version->filling && !version->dropped);
  if (version->nr_readers > 0)
    version->dropped = true;
  else
    SLIST_INSERT_HEAD (list, version, link);
}

/* Give back a record's room in the store, and a pointer's in pool.db. */
void
unreserve (struct writeback *wb, struct volume *v, unsigned nr)
{
  space_unreserve (wb->pool->space, v->block_size, nr);
  txg_unreserve (wb->pool->txg, nr);
}

int
writeback_can_accept (struct writeback *wb, struct volume *v)
{
  if (txg_check (wb->pool->txg) == -1)
    return -1;
  if (v->gone)
    return nbdedup_fail (ESHUTDOWN, "volume %s was destroyed", v->name);
  return 0;
}

/* Drop the versions of blocks that become holes.  Returns how many. */
static unsigned
supersede_locked (struct writeback *wb, struct volume *v, uint64_t first,
                  uint64_t count, struct version_list *list)
{
  struct dirty_blocks *db = &v->dirty;
  uint64_t last = first + count - 1;
  struct dirty *d, *next;
  unsigned nr = 0;

  assert_held (&db->install);
  assert_held (&db->lock);
  TAILQ_FOREACH (d, &db->inflight_list, flink)
    if (d->block >= first && d->block <= last)
      d->superseded = true;
  TAILQ_FOREACH (d, &db->kept_list, flink)
    if (d->block >= first && d->block <= last)
      d->superseded = true;
  for (d = TAILQ_FIRST (&db->open_list); d; d = next) {
    next = TAILQ_NEXT (d, vlink);
    if (d->block < first || d->block > last)
      continue;
    unqueue_open_locked (v, d);
    drop_version_locked (db, d->open, list);
    d->open = NULL;
    drop_if_empty_locked (wb, v, d);
    nr++;
  }
  return nr;
}

static void
supersede (struct writeback *wb, struct volume *v, uint64_t first,
           uint64_t count)
{
  struct version_list list = SLIST_HEAD_INITIALIZER (list);
  struct dirty_blocks *db = &v->dirty;

  {
    WITH_LOCK (&db->lock);
    WITH_CONSISTENT (dirty_blocks, db);
    unreserve (wb, v, supersede_locked (wb, v, first, count, &list));
    cond_broadcast (&db->installed);
  }
  dirty_memory_put (&wb->memory, &list, v->block_size);
}

static int
put_holes (struct writeback *wb, struct volume *v, uint64_t first,
           uint64_t count)
{
  struct nbdedup_pool *pool = wb->pool;
  const uint64_t leaves = (first + count - 1) / LEAF_BLOCKS -
    first / LEAF_BLOCKS + 1;
  uint64_t pages = leaves * ROOM_LEAF_PAGES + count * ROOM_POINTER_PAGES;
  struct room_touched touched;
  int r;

  if (txg_is_overfull (pool->txg))
    return nbdedup_fail (ENOSPC,
                         "the pool's file system is full, and memory holds as "
                         "many changes as it may: free some space on it");
  txg_throttle (pool->txg);
  pages = txg_enter (pool->txg, 0, pages);
  touched = txg_touch (pool->txg);
  {
    WITH_LOCK (&v->dirty.install);
    r = writeback_can_accept (wb, v);
    if (r == 0)
      r = txg_set_holes (pool->txg, v->layer, first, count, &touched);
    /* From here on no worker installs an older version.  If txg_set_holes
     * fails the older versions stay, because they were answered.
     */
    if (r == 0)
      supersede (wb, v, first, count);
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
 * Figures
 */

void
writeback_get_load (struct writeback *wb, struct writeback_load *load)
{
  load->dirty_bytes = wb->memory.bytes;
  load->dirty_max_bytes = wb->memory.max;
  load->nr_workers = wb->nr_threads;
  load->nr_busy = wb->nr_busy;
}

uint64_t
writeback_dirty_bytes (const struct volume *v)
{
  return (uint64_t) v->dirty.nr * v->block_size;
}
