/* SPDX-License-Identifier: BSD-3-Clause */

/* A thread that works beside clients' requests, until it is told to end.
 *
 * It waits in one of two ways:
 *
 *  - for a time, or for background_wake: background_wait_ms, background_wait;
 *  - for a condition of its owner: with lock_wait or lock_wait_ms on 'wake',
 *    while neither the condition nor 'stop' is true.  The thread that makes the
 *    condition true holds the lock, and signals 'wake'.  This also ends a
 *    background_wait_ms, but not one that begins later.
 *
 * While it does long work it looks at 'stop' again and again.
 *
 * Threads: any thread may read 'stop'.  The lock protects the rest, but the
 * owner, which starts and stops the thread, may read 'runs' without it.
 * background_cancel and background_wake acquire the lock, and any thread may
 * call them.  background_stop and background_destroy wait for the thread: the
 * caller must hold no lock that the thread acquires.
 */

#ifndef NBDEDUP_BACKGROUND_H
#define NBDEDUP_BACKGROUND_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

struct background {
  struct lock *lock; /* of the owner, or 'own' */
  struct lock own;   /* innermost */
  struct cond wake;  /* stop, woken, or the owner's condition */
  atomic_bool stop;  /* the thread must end; for good */
  bool woken;        /* by background_wake, and no wait ended yet */
  bool runs;         /* was started, and not joined */
  pthread_t thread;
};

/* 'lock' is the one that protects the owner's condition; NULL: one of its own.
 */
extern void background_init (struct background *b, struct lock *lock);
/* Stop the thread, and free all but the owner's lock. */
extern void background_destroy (struct background *b);

/* Call fn (arg) in a thread, perhaps before this returns.  -1: the system has
 * refused to start one.  The caller may hold the lock.
 */
extern int
background_start (struct background *b, void *(*fn) (void *arg), void *arg);

/* End the thread's wait, and make it end soon. */
extern void background_cancel (struct background *b);
/* The same, and wait for its end, if it runs. */
extern void background_stop (struct background *b);

/* End the thread's wait, or, if it does not wait now, its next one. */
extern void background_wake (struct background *b);

/* For the thread: wait at most 'ms' milliseconds, or without a limit.  False:
 * it must end.
 */
extern bool background_wait_ms (struct background *b, uint64_t ms);
extern bool background_wait (struct background *b);

#endif /* NBDEDUP_BACKGROUND_H */
