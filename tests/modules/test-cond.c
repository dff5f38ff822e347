/* SPDX-License-Identifier: BSD-3-Clause */

/* Condition variables: no signal is lost, however the threads interleave.  A
 * lost one would let the program hang.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/lock.h"

/* To wait for ever is a failure. */
#define GIVE_UP_S 240
#define NR_CONSUMERS 8
#define NR_PRODUCERS 2
#define ITEMS 50000u /* of each producer */
#define PLACES 3

static struct lock lock;
static struct cond filled, taken;
static unsigned nr_items, nr_produced, nr_consumed;
static bool go;

static void *
consume (void *arg)
{
  (void) arg;
  for (;;) {
    WITH_LOCK (&lock);
    while (nr_items == 0 && nr_produced < NR_PRODUCERS * ITEMS)
      lock_wait (&lock, &filled);
    assert (lock_is_held (&lock));
    if (nr_items == 0)
      return NULL;
    nr_items--;
    nr_consumed++;
    cond_signal (&taken);
  }
}

/* The last item ends all consumers. */
static void *
produce (void *arg)
{
  unsigned i;

  (void) arg;
  for (i = 0; i < ITEMS; ++i) {
    bool last;

    {
      WITH_LOCK (&lock);
      while (nr_items == PLACES)
        lock_wait (&lock, &taken);
      nr_items++;
      last = ++nr_produced == NR_PRODUCERS * ITEMS;
    }
    /* Without the lock, which is allowed, too. */
    if (last)
      cond_broadcast (&filled);
    else
      cond_signal (&filled);
  }
  return NULL;
}

/* More threads wait, on either side, than there are items or places. */
static void
test_no_signal_is_lost (void)
{
  pthread_t threads[NR_CONSUMERS + NR_PRODUCERS];
  unsigned i;

  for (i = 0; i < NR_CONSUMERS + NR_PRODUCERS; ++i)
    assert (pthread_create (&threads[i], NULL,
                            i < NR_CONSUMERS ? consume : produce, NULL) == 0);
  for (i = 0; i < NR_CONSUMERS + NR_PRODUCERS; ++i)
    pthread_join (threads[i], NULL);
  assert (nr_items == 0 && nr_consumed == NR_PRODUCERS * ITEMS);
}

static void *
take_turns (void *arg)
{
  unsigned i;

  (void) arg;
  for (i = 0; i < ITEMS; ++i) {
    WITH_LOCK (&lock);
    while (nr_items == 0)
      lock_wait (&lock, &filled);
    nr_items = 0;
    cond_signal (&taken);
  }
  return NULL;
}

/* Each thread waits for the other's signal, which often comes between its look
 * at the condition and its sleep.  No later signal would make up for it.
 */
static void
test_turns (void)
{
  pthread_t thread;
  unsigned i;

  assert (pthread_create (&thread, NULL, take_turns, NULL) == 0);
  for (i = 0; i < ITEMS; ++i) {
    WITH_LOCK (&lock);
    nr_items = 1;
    cond_signal (&filled);
    while (nr_items == 1)
      lock_wait (&lock, &taken);
  }
  pthread_join (thread, NULL);
}

static void *
wait_for_go (void *arg)
{
  unsigned *nr = arg;

  WITH_LOCK (&lock);
  ++*nr;
  while (!go)
    lock_wait (&lock, &filled);
  return NULL;
}

static void
test_broadcast (void)
{
  pthread_t threads[NR_CONSUMERS];
  unsigned nr = 0, i, seen = 0;

  for (i = 0; i < NR_CONSUMERS; ++i)
    assert (pthread_create (&threads[i], NULL, wait_for_go, &nr) == 0);
  while (seen < NR_CONSUMERS) {
    WITH_LOCK (&lock);
    seen = nr;
  }
  /* All wait, because this thread gets the lock only while they do. */
  {
    WITH_LOCK (&lock);
    assert (filled.nr_waiting == NR_CONSUMERS);
    go = true;
    cond_broadcast (&filled);
  }
  for (i = 0; i < NR_CONSUMERS; ++i)
    pthread_join (threads[i], NULL);
}

/* The wait ends by itself, and not before its time. */
static void
test_time (void)
{
  const uint64_t start = clock_ns ();
  unsigned waits = 0;

  WITH_LOCK (&lock);
  errno = EXDEV;
  while (clock_ns () - start < 20 * 1000000) {
    lock_wait_ms (&lock, &taken, 20);
    waits++;
  }
  assert (waits == 1 && errno == EXDEV && lock_is_held (&lock));
  /* A time that has passed is no wait. */
  lock_wait_ms (&lock, &taken, 0);
}

int
main (void)
{
  alarm (GIVE_UP_S);
  lock_init (&lock);
  cond_init (&filled);
  cond_init (&taken);
  test_no_signal_is_lost ();
  test_turns ();
  test_broadcast ();
  test_time ();
  cond_destroy (&taken);
  cond_destroy (&filled);
  lock_destroy (&lock);
  return 0;
}
