/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "base/background.h"
#include "base/thread.h"

void
background_init (struct background *b, struct lock *lock)
{
  lock_init (&b->own);
  b->lock = lock ? lock : &b->own;
  cond_init (&b->wake);
  b->stop = b->woken = b->runs = false;
}

void
background_destroy (struct background *b)
{
  background_stop (b);
  cond_destroy (&b->wake);
  lock_destroy (&b->own);
}

/* The thread may look at 'runs', too. */
int
background_start (struct background *b, void *(*fn) (void *arg), void *arg)
{
  b->runs = true;
  if (thread_start (&b->thread, fn, arg) == 0)
    return 0;
  b->runs = false;
  return -1;
}

void
background_cancel (struct background *b)
{
  WITH_LOCK (b->lock);
  b->stop = true;
  cond_signal (&b->wake);
}

void
background_stop (struct background *b)
{
  background_cancel (b);
  if (!b->runs)
    return;
  pthread_join (b->thread, NULL);
  WITH_LOCK (b->lock);
  b->runs = false;
}

void
background_wake (struct background *b)
{
  WITH_LOCK (b->lock);
  b->woken = true;
  cond_signal (&b->wake);
}

static bool
end_wait_locked (struct background *b)
{
  assert_held (b->lock);
  b->woken = false;
  return !b->stop;
}

bool
background_wait_ms (struct background *b, uint64_t ms)
{
  WITH_LOCK (b->lock);
  if (!b->stop && !b->woken)
    lock_wait_ms (b->lock, &b->wake, ms);
  return end_wait_locked (b);
}

bool
background_wait (struct background *b)
{
  WITH_LOCK (b->lock);
  while (!b->stop && !b->woken)
    lock_wait (b->lock, &b->wake);
  return end_wait_locked (b);
}
