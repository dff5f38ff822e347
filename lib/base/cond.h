/* SPDX-License-Identifier: BSD-3-Clause */

/* Condition variables, for lock_wait (lock.h).
 *
 * They are used as those of POSIX.  But in glibc before 2.41, which Debian 12
 * has, pthread_cond_signal may wake no thread although some wait, so that one
 * waits for the next signal, or forever
 * (https://sourceware.org/bugzilla/show_bug.cgi?id=25847).
 *
 * These are those of Bionic, Android's C library.  A waiting thread reads
 * 'changes' with the lock held, and the kernel lets it sleep only while
 * 'changes' is the same.  A signal changes it first, and then wakes a thread.
 * So a thread that read the old value is woken, or does not sleep at all, or
 * another thread that waits is woken, which is as good: the caller looks at its
 * condition in a loop, and signals one thread only if it does not matter which.
 *
 * A wait may end without a signal.
 */

#ifndef NBDEDUP_COND_H
#define NBDEDUP_COND_H

#include <assert.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
#include <linux/futex.h>
#include <sys/syscall.h>

/* Only 32-bit machines have it, with the times of today's C library. */
#ifndef SYS_futex_time64
#define SYS_futex_time64 SYS_futex
#endif

struct cond {
  _Atomic uint32_t changes;    /* a futex: see futex(2) */
  _Atomic uint32_t nr_waiting; /* changes only with the lock held */
};

static inline void
cond_init (struct cond *c)
{
  atomic_init (&c->changes, 0);
  atomic_init (&c->nr_waiting, 0);
}

/* No thread waits. */
static inline void
cond_destroy (struct cond *c)
{
  assert (c->nr_waiting == 0);
  (void) c;
}

/* For a thread that waits: the value for cond_sleep.  With the lock held. */
static inline uint32_t
cond_begin (struct cond *c)
{
  c->nr_waiting++;
  return c->changes;
}

/* Without the lock.  'end': a time of CLOCK_MONOTONIC; NULL: none. */
static inline void
cond_sleep (struct cond *c, uint32_t changes, const struct timespec *end)
{
  const long call = sizeof (time_t) > sizeof (long) ? SYS_futex_time64
                                                    : SYS_futex;

  syscall (call, &c->changes, FUTEX_WAIT_BITSET_PRIVATE, changes, end, NULL,
           FUTEX_BITSET_MATCH_ANY);
}

/* With the lock held again. */
static inline void
cond_end (struct cond *c)
{
  assert (c->nr_waiting > 0);
  c->nr_waiting--;
}

static inline void
cond_wake (struct cond *c, int max)
{
  if (c->nr_waiting == 0)
    return;
  c->changes++;
  syscall (SYS_futex, &c->changes, FUTEX_WAKE_PRIVATE, max, NULL, NULL, 0);
}

/* Wake one thread, if any waits.  The caller has changed the condition with the
 * lock held, and may hold it still.
 */
static inline void
cond_signal (struct cond *c)
{
  cond_wake (c, 1);
}

/* Wake all threads that wait. */
static inline void
cond_broadcast (struct cond *c)
{
  cond_wake (c, INT_MAX);
}

#endif /* NBDEDUP_COND_H */
