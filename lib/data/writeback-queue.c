/* SPDX-License-Identifier: BSD-3-Clause */

/* What workers take and finish.
 *
 * A volume with a takeable version is in a list of the writeback at its level
 * (struct dirty_blocks, 'ready'), or a worker has just removed it from there
 * and will look at its queues: threads call make_ready_locked after they
 * changed the queues and with the volume's lock held, which the worker takes
 * after the removal.  So a thread that finds the volume in the list needs no
 * lock of the writeback.
 */

#include <config.h>

#include <assert.h>
#include <sched.h>
#include <sys/resource.h>

#include "base/error.h"
#include "core/txg.h"
#include "data/writeback-int.h"
#include "data/writeback.h"

/*----------------------------------------------------------------------
 * The lists of volumes
 */

void
set_active_locked (struct writeback *wb, struct volume *v, bool active)
{
  assert_held (&v->dirty.lock);
  WITH_LOCK (&wb->lock);
  assert (v->dirty.active != active);
  v->dirty.active = active;
  if (active) {
    TAILQ_INSERT_TAIL (&wb->active, v, dirty.active_link);
    wb->nr_active++;
  }
  else {
    TAILQ_REMOVE (&wb->active, v, dirty.active_link);
    wb->nr_active--;
  }
}

/* Are versions written only so that there is room for others later? */
static bool
is_in_background (const struct writeback *wb, unsigned eighths)
{
  return wb->nr_drains == 0 && !is_dirty_beyond (wb, eighths);
}

/* May a further worker begin? */
static bool
may_begin (const struct writeback *wb)
{
  unsigned nr = wb->nr_at_once;

  if (is_in_background (wb, DIRTY_ALL))
    nr = (nr + 1) / 2;
  return wb->nr_busy < nr + wb->nr_waiting;
}

/* A worker that may not begin would only sleep again.  The next busy one that
 * has finished finds the volume in the list.
 */
void
make_ready_locked (struct writeback *wb, struct volume *v, enum ready level)
{
  struct dirty_blocks *db = &v->dirty;

  assert_held (&db->lock);
  if (db->ready >= (int) level)
    return;
  WITH_LOCK (&wb->lock);
  WITH_CONSISTENT (writeback, wb);
  if (db->ready >= (int) level)
    return;
  if (db->ready != READY_NONE)
    TAILQ_REMOVE (&wb->ready[db->ready], v, dirty.ready_link);
  TAILQ_INSERT_TAIL (&wb->ready[level], v, dirty.ready_link);
  db->ready = (int) level;
  if ((level == READY_URGENT || is_dirty_beyond (wb, DIRTY_BEGIN)) &&
      may_begin (wb))
    cond_signal (&wb->work);
}

/* A worker leaves the busy ones and looks at the sum of bytes; this thread
 * changed the sum and looks at the number of busy ones: one of them sees the
 * other.
 */
void
wake_worker (struct writeback *wb)
{
  if (!may_begin (wb))
    return;
  WITH_LOCK (&wb->lock);
  cond_signal (&wb->work);
}

/* A worker that has slept may, by the scheduler's rules, compute as long as
 * other threads did meanwhile.  So the thread of a request would wait behind it
 * for the rest of its batch, half a millisecond and more.  A fold that cuts the
 * txg waits for the worker itself: then it does not give way.
 */
void
worker_yield (struct writeback *wb)
{
  if (is_in_background (wb, DIRTY_YIELD) && !txg_is_cutting (wb->pool->txg))
    sched_yield ();
}

/*----------------------------------------------------------------------
 * Workers that wait for a disk
 */

static __thread struct {
  long sleeps;  /* of this thread, when the wait began */
  bool counted; /* it is in nr_waiting */
} wait_of_worker;

static long
count_sleeps (void)
{
  struct rusage usage;

  return getrusage (RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : 0;
}

/* Most lookups of a small pool find their pages in the page cache.  If another
 * worker began then, it would only compete for the CPUs with the clients'
 * threads.  So it begins if waits have slept lately, one in four or more.
 */
void
worker_waits (void *writeback)
{
  struct writeback *wb = writeback;

  wait_of_worker.sleeps = count_sleeps ();
  wait_of_worker.counted = wb->sleeps >= WAIT_SHARES / 4;
  if (!wait_of_worker.counted)
    return;
  wb->nr_waiting++;
  wake_worker (wb);
}

/* The average may lose another worker's wait: it need not be exact. */
void
worker_has_waited (void *writeback)
{
  struct writeback *wb = writeback;
  const bool slept = count_sleeps () > wait_of_worker.sleeps;
  const unsigned old = wb->sleeps;

  wb->sleeps = old - old / 16 + (slept ? WAIT_SHARES / 16 : 0);
  if (wait_of_worker.counted)
    wb->nr_waiting--;
}

static struct volume *
first_ready_locked (struct writeback *wb)
{
  struct volume *v = TAILQ_FIRST (&wb->ready[READY_URGENT]);

  if (v == NULL && is_dirty_beyond (wb, DIRTY_BEGIN))
    v = TAILQ_FIRST (&wb->ready[READY_NORMAL]);
  return v;
}

/* Remove the next volume from its list, and pin it.  NULL: stop. */
static struct volume *
next_ready (struct writeback *wb, enum ready *level)
{
  struct volume *v = NULL;

  WITH_LOCK (&wb->lock);
  WITH_CONSISTENT (writeback, wb);
  assert (wb->nr_busy > 0);
  wb->nr_busy--;
  while ((!may_begin (wb) || (v = first_ready_locked (wb)) == NULL) &&
         !wb->stop)
    lock_wait (&wb->lock, &wb->work);
  wb->nr_busy++;
  if (v == NULL)
    return NULL;
  *level = (enum ready) v->dirty.ready;
  TAILQ_REMOVE (&wb->ready[*level], v, dirty.ready_link);
  v->dirty.pins++; /* first; invariant (6) */
  v->dirty.ready = READY_NONE;
  return v;
}

void
writeback_unpin (struct volume *v)
{
  assert (v->dirty.pins > 0);
  v->dirty.pins--; /* now the volume may go */
}

/*----------------------------------------------------------------------
 * A volume's queues
 */

void
queue_open_locked (struct volume *v, struct dirty *d)
{
  struct dirty_blocks *db = &v->dirty;

  assert_held (&db->lock);
  d->urgent = false;
  TAILQ_INSERT_TAIL (&db->queue, d, queue);
  TAILQ_INSERT_TAIL (&db->open_list, d, vlink);
}

void
unqueue_open_locked (struct volume *v, struct dirty *d)
{
  struct dirty_blocks *db = &v->dirty;

  assert_held (&db->lock);
  assert (d->open != NULL);
  TAILQ_REMOVE (d->urgent ? &db->urgent : &db->queue, d, queue);
  TAILQ_REMOVE (&db->open_list, d, vlink);
}

void
make_urgent_locked (struct volume *v, struct dirty *d)
{
  struct dirty_blocks *db = &v->dirty;

  assert_held (&db->lock);
  if (d->open == NULL || d->urgent)
    return;
  TAILQ_REMOVE (&db->queue, d, queue);
  TAILQ_INSERT_TAIL (&db->urgent, d, queue);
  d->urgent = true;
}

static struct dirty *
takeable_from_locked (struct dirty *d)
{
  while (d && !is_takeable_locked (d))
    d = TAILQ_NEXT (d, queue);
  return d;
}

/* The version stays the same, and so do the threads that read it. */
static void
take_locked (struct volume *v, struct dirty_batch *b, struct dirty *d)
{
  assert (is_takeable_locked (d) && b->nr < BATCH_BLOCKS);
  unqueue_open_locked (v, d);
  d->inflight = d->open;
  d->open = NULL;
  d->superseded = false;
  TAILQ_INSERT_TAIL (&v->dirty.inflight_list, d, flink);
  b->blocks[b->nr++] = d;
}

static void
take_from_locked (struct volume *v, struct dirty_list *list,
                  struct dirty_batch *b)
{
  struct dirty *d = takeable_from_locked (TAILQ_FIRST (list)), *next;

  for (; d && b->nr < BATCH_BLOCKS &&
       (b->nr + 1) * (uint64_t) v->block_size <= BATCH_BYTES;
       d = next) {
    next = takeable_from_locked (TAILQ_NEXT (d, queue));
    take_locked (v, b, d);
  }
}

/* For another worker. */
static void
leave_rest_locked (struct writeback *wb, struct volume *v)
{
  struct dirty_blocks *db = &v->dirty;

  if (takeable_from_locked (TAILQ_FIRST (&db->urgent)))
    make_ready_locked (wb, v, READY_URGENT);
  else if (takeable_from_locked (TAILQ_FIRST (&db->queue)))
    make_ready_locked (wb, v, READY_NORMAL);
}

static void
take_batch (struct writeback *wb, struct volume *v, enum ready level,
            struct dirty_batch *b)
{
  struct dirty_blocks *db = &v->dirty;

  WITH_LOCK (&db->lock);
  WITH_CONSISTENT (dirty_blocks, db);
  b->volume = v;
  b->compression = v->compression;
  b->dedup = v->dedup;
  b->domain = v->domain;
  b->nr = 0;
  take_from_locked (v, &db->urgent, b);
  if (b->nr == 0 && level == READY_NORMAL)
    take_from_locked (v, &db->queue, b);
  leave_rest_locked (wb, v);
}

int
writeback_take (struct writeback *wb, struct dirty_batch *b)
{
  enum ready level;
  struct volume *v;

  while ((v = next_ready (wb, &level)) != NULL) {
    take_batch (wb, v, level, b);
    if (b->nr > 0)
      return 1;
    /* Others were faster, or all versions must wait; see make_ready_locked. */
    writeback_unpin (v);
  }
  return 0;
}

static void
done_locked (struct writeback *wb, struct volume *v, struct dirty *d,
             struct version_list *list)
{
  struct dirty_blocks *db = &v->dirty;

  assert (d->inflight != NULL);
  TAILQ_REMOVE (&db->inflight_list, d, flink);
  drop_version_locked (db, d->inflight, list);
  d->inflight = NULL;
  d->superseded = false;
  if (d->open) /* a worker may take it now */
    make_ready_locked (wb, v, d->urgent ? READY_URGENT : READY_NORMAL);
  drop_if_empty_locked (wb, v, d);
}

/* The txg has failed, so no newer version can come.  Without this one reads
 * would return what the block had before an answered write.
 */
static void
keep_locked (struct volume *v, struct dirty *d)
{
  struct dirty_blocks *db = &v->dirty;

  assert_held (&db->lock);
  assert (d->inflight != NULL && d->open == NULL && !d->kept);
  TAILQ_REMOVE (&db->inflight_list, d, flink);
  TAILQ_INSERT_TAIL (&db->kept_list, d, flink);
  d->kept = true;
}

static bool
must_keep_locked (const struct dirty *d)
{
  return d->open == NULL && !d->superseded;
}

void
writeback_done (struct writeback *wb, struct dirty_batch *b, bool installed)
{
  struct version_list list = SLIST_HEAD_INITIALIZER (list);
  struct dirty_blocks *db = &b->volume->dirty;
  unsigned i;

  {
    WITH_LOCK (&db->lock);
    WITH_CONSISTENT (dirty_blocks, db);
    for (i = 0; i < b->nr; ++i)
      if (!installed && must_keep_locked (b->blocks[i]))
        keep_locked (b->volume, b->blocks[i]);
      else
        done_locked (wb, b->volume, b->blocks[i], &list);
    /* Before a drain ends: its caller may be about to reserve. */
    unreserve (wb, b->volume, b->nr);
    cond_broadcast (&db->installed);
  }
  dirty_memory_put (&wb->memory, &list, b->volume->block_size);
  if (!installed)
    dirty_memory_wake (&wb->memory); /* writers that wait are refused now */
}
