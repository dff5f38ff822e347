/* SPDX-License-Identifier: BSD-3-Clause */

/* Mutexes that record their owner.
 *
 * Lock order, outermost first; a thread takes only locks to the right of
 * those that it holds:
 *
 *   pool->drift, pool->alerts, scrub->one, moves->one  ->  pool->admin
 *     ->  watch->lock
 *     ->  inside a txg (txg_enter)
 *     ->  a volume's dirty.install  ->  a volume's dirty.lock
 *     ->  the writeback's lock
 *     ->  txg->lock  ->  txg_log->lock
 *     ->  map->lock, ddt->lock
 *     ->  volumes->lock  ->  space->lock, journal->lock,
 *                                meta->copying  ->  meta->lock
 *
 * No thread holds two locks that a comma separates, or those of two volumes.
 * The memory of dirty blocks, the record cache, the list of readers, the
 * sampler, the copier, other threads of background.h, the moves (lock), the
 * pool's notes and events, the writers of a volume, the turns, and the scrub's
 * part of "status" have locks of their own, innermost.  So have the second copy
 * of pool.db (in this order: its builder's lock, the locks of its two files,
 * the lock held during a change of pool.db, its state's lock), the room of its
 * files (outside the lock held during a change of pool.db) and its VFS.  A
 * thread that saves a page for snapshots of pool.db holds their list's lock
 * outside of the copy's, and inside of it a snapshot's (cksum-snapshot.h).
 *
 * Threads read and write records, copy blocks, hash and compress with none of
 * these locks held.  (writeback-int.h says why each copy is safe.)  Two
 * exceptions: while a volume's pointers are installed, its dirty.install waits
 * for the journal's buffer to be written, and so does txg_log->lock, which also
 * covers reading back the few records that a small flush carries.  Being inside
 * a txg is no lock, but a cut waits for it.  A checkpoint holds meta->copying
 * for its whole duration, so a thread that holds a lock which clients' requests
 * take must not wait for meta->copying.
 */

#ifndef NBDEDUP_LOCK_H
#define NBDEDUP_LOCK_H

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/cond.h"
#if NBDEDUP_LOCK_COUNTERS
#include "base/lock-counters.h"
#endif

struct lock {
  pthread_mutex_t mutex;
  _Atomic (pthread_t) owner; /* valid while 'held' */
  atomic_bool held;
#if NBDEDUP_LOCK_COUNTERS
  struct lock_counters *counters; /* not owned; NULL: not counted */
  uint64_t since;                 /* the owner took it */
#endif
};

static inline void
lock_init_uncounted (struct lock *l)
{
  pthread_mutex_init (&l->mutex, NULL);
  atomic_init (&l->owner, 0);
  atomic_init (&l->held, false);
}

#if NBDEDUP_LOCK_COUNTERS
#define lock_init(l)                                                           \
  do {                                                                         \
    static struct lock_counters counters_ = {                                  \
      .file = __FILE__,                                                        \
      .name = #l,                                                              \
    };                                                                         \
                                                                               \
    lock_init_uncounted (l);                                                   \
    (l)->counters = &counters_;                                                \
    lock_counters_add (&counters_);                                            \
  } while (0)
#else
#define lock_init(l) lock_init_uncounted (l)
#endif

static inline void
lock_destroy (struct lock *l)
{
  pthread_mutex_destroy (&l->mutex);
}

static inline bool
lock_is_held (const struct lock *l)
{
  return atomic_load_explicit (&l->held, memory_order_relaxed) &&
    pthread_equal (atomic_load_explicit (&l->owner, memory_order_relaxed),
                   pthread_self ());
}

#define assert_held(l) assert (lock_is_held (l))

static inline void
lock_set_owner (struct lock *l)
{
  atomic_store_explicit (&l->owner, pthread_self (), memory_order_relaxed);
  atomic_store_explicit (&l->held, true, memory_order_relaxed);
#if NBDEDUP_LOCK_COUNTERS
  if (l->counters)
    l->counters->taken++;
  l->since = clock_ns ();
#endif
}

/* The thread gives up the lock, perhaps for a wait. */
static inline void
lock_clear_owner (struct lock *l)
{
  assert_held (l);
#if NBDEDUP_LOCK_COUNTERS
  if (l->counters)
    lock_counters_held (l->counters, l->since);
#endif
  atomic_store_explicit (&l->held, false, memory_order_relaxed);
}

static inline void
lock_acquire (struct lock *l)
{
#if NBDEDUP_LOCK_COUNTERS
  const uint64_t since = clock_ns ();

  if (pthread_mutex_trylock (&l->mutex) == 0) {
    lock_set_owner (l);
    return;
  }
#endif
  if (pthread_mutex_lock (&l->mutex) != 0)
    abort ();
  lock_set_owner (l);
#if NBDEDUP_LOCK_COUNTERS
  if (l->counters)
    lock_counters_waited (l->counters, since);
#endif
}

/* False: another thread holds it. */
static inline bool
lock_try (struct lock *l)
{
  if (pthread_mutex_trylock (&l->mutex) != 0)
    return false;
  lock_set_owner (l);
  return true;
}

/* The same after waiting for at most 'ms' milliseconds. */
static inline bool
lock_try_ms (struct lock *l, uint64_t ms)
{
#ifdef __SANITIZE_THREAD__ /* Debian 12's does not know ..._clocklock */
  struct timespec ts;

  clock_gettime (CLOCK_REALTIME, &ts);
  ts.tv_nsec += (long) (ms % 1000) * 1000000;
  ts.tv_sec += (time_t) (ms / 1000) + ts.tv_nsec / 1000000000;
  ts.tv_nsec %= 1000000000;
  if (pthread_mutex_timedlock (&l->mutex, &ts) != 0)
    return false;
#else
  const struct timespec ts = clock_in_ms (ms);

  if (pthread_mutex_clocklock (&l->mutex, CLOCK_MONOTONIC, &ts) != 0)
    return false;
#endif
  lock_set_owner (l);
  return true;
}

static inline void
lock_release (struct lock *l)
{
  lock_clear_owner (l);
  if (pthread_mutex_unlock (&l->mutex) != 0)
    abort ();
}

/* Wait on 'cond' until 'end'.  errno stays. */
static inline void
lock_wait_until (struct lock *l, struct cond *cond, const struct timespec *end)
{
  const int err = errno;
  uint32_t changes;

  assert_held (l);
  changes = cond_begin (cond);
  lock_release (l);
  cond_sleep (cond, changes, end);
  lock_acquire (l);
  cond_end (cond);
  errno = err;
}

/* Wait on 'cond' with the lock held; name the predicate at the call. */
static inline void
lock_wait (struct lock *l, struct cond *cond)
{
  lock_wait_until (l, cond, NULL);
}

/* The same, for at most 'ms' milliseconds. */
static inline void
lock_wait_ms (struct lock *l, struct cond *cond, uint64_t ms)
{
  const struct timespec end = clock_in_ms (ms);

  lock_wait_until (l, cond, &end);
}

static inline void
cleanup_unlock (struct lock **l)
{
  lock_release (*l);
}

/* Hold the lock until the closing brace. */
#define WITH_LOCK(l) WITH_LOCK_ (l, __COUNTER__)
#define WITH_LOCK_(l, n) WITH_LOCK__ (l, n)
/* clang-format off */
#define WITH_LOCK__(l, n)                                               \
  __attribute__ ((cleanup (cleanup_unlock)))                            \
  struct lock *with_lock_##n = ({ lock_acquire (l); (l); })
/* clang-format on */

#endif /* NBDEDUP_LOCK_H */
