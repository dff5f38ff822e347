/* SPDX-License-Identifier: BSD-3-Clause */

/* A background thread: how its waits begin and end, how it is stopped, and what
 * happens if it cannot be started.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/background.h"
#include "base/clock.h"
#include "base/error.h"

/* To wait for ever is a failure. */
#define GIVE_UP_S 60
#define HOUR_MS (60 * 60 * 1000)

static struct background b;
static atomic_uint rounds;
static atomic_bool ended;

/* The owner's condition, and its lock. */
static struct lock lock;
static unsigned work, done;
static bool waiting;

static void
init (struct lock *l)
{
  rounds = 0;
  ended = false;
  work = done = 0;
  waiting = false;
  background_init (&b, l);
}

/* A copy of one of the variables that the owner's lock protects. */
#define READ_LOCKED(v)                                                         \
  ({                                                                           \
    WITH_LOCK (&lock);                                                         \
    (v);                                                                       \
  })

static void
wait_for_rounds (unsigned n)
{
  while (rounds < n)
    clock_sleep_ms (1);
}

static void *
wait_without_limit (void *arg)
{
  assert (arg == &b);
  while (background_wait (&b))
    rounds++;
  ended = true;
  return NULL;
}

static void *
wait_for_hours (void *arg)
{
  (void) arg;
  do
    rounds++;
  while (background_wait_ms (&b, HOUR_MS));
  ended = true;
  return NULL;
}

static void *
wait_briefly (void *arg)
{
  (void) arg;
  while (background_wait_ms (&b, 1))
    rounds++;
  return NULL;
}

static void *
do_work (void *arg)
{
  (void) arg;
  WITH_LOCK (&lock);
  while (!b.stop)
    if (done < work)
      done++;
    else {
      waiting = true;
      lock_wait (&lock, &b.wake);
    }
  ended = true;
  return NULL;
}

static void
test_time (void)
{
  init (NULL);
  assert (background_start (&b, wait_briefly, NULL) == 0);
  wait_for_rounds (3);
  background_destroy (&b);
}

/* One wake before the thread waits ends one wait; two do no more. */
static void
test_wake (void)
{
  unsigned n;

  init (NULL);
  background_wake (&b);
  background_wake (&b);
  assert (background_start (&b, wait_without_limit, &b) == 0);
  wait_for_rounds (1);
  background_stop (&b);
  assert (rounds == 1 && ended);
  background_destroy (&b);

  init (NULL);
  assert (background_start (&b, wait_for_hours, NULL) == 0);
  for (n = 1; n <= 100; ++n) {
    wait_for_rounds (n);
    background_wake (&b);
  }
  background_destroy (&b);
  assert (rounds >= 100 && rounds <= 101);
}

static void
wait_until_ended (void)
{
  background_cancel (&b);
  while (!ended)
    clock_sleep_ms (1);
  assert (b.runs);
  background_stop (&b);
  assert (!b.runs);
  background_stop (&b);
  background_cancel (&b);
  background_destroy (&b);
}

/* In a wait, and before it. */
static void
test_cancel (void)
{
  init (&lock);
  assert (background_start (&b, do_work, NULL) == 0);
  while (!READ_LOCKED (waiting))
    clock_sleep_ms (1);
  wait_until_ended ();

  init (NULL);
  background_cancel (&b);
  assert (background_start (&b, wait_for_hours, NULL) == 0);
  wait_until_ended ();
  assert (rounds == 1);

  init (NULL);
  background_cancel (&b);
  background_wake (&b);
  assert (background_start (&b, wait_without_limit, &b) == 0);
  wait_until_ended ();
  assert (rounds == 0);
}

/* Started under the owner's lock. */
static void
test_owner (void)
{
  unsigned i;

  init (&lock);
  {
    WITH_LOCK (&lock);
    assert (background_start (&b, do_work, NULL) == 0);
  }
  for (i = 0; i < 100; ++i) {
    WITH_LOCK (&lock);
    work++;
    cond_signal (&b.wake);
  }
  while (READ_LOCKED (done) < 100)
    clock_sleep_ms (1);
  background_stop (&b);
  assert (ended && done == 100);
  background_destroy (&b);
}

/* The owner's signal also ends a wait for a time. */
static void
test_signal (void)
{
  init (&lock);
  assert (background_start (&b, wait_for_hours, NULL) == 0);
  while (rounds < 10) {
    {
      WITH_LOCK (&lock);
      cond_signal (&b.wake);
    }
    clock_sleep_ms (1);
  }
  background_destroy (&b);
}

/* Let no further thread start, by the size of its stack. */
static void
forbid_threads (pthread_attr_t *old)
{
  pthread_attr_t attr;

  assert (pthread_getattr_default_np (old) == 0);
  assert (pthread_attr_init (&attr) == 0);
  assert (pthread_attr_setstacksize (&attr, (size_t) 1 << 50) == 0);
  assert (pthread_setattr_default_np (&attr) == 0);
  pthread_attr_destroy (&attr);
}

static void
test_no_thread (void)
{
  pthread_attr_t old;
  char text[100];

  init (NULL);
  forbid_threads (&old);
  assert (background_start (&b, wait_without_limit, &b) == -1);
  /* EINVAL: valgrind's mmap refuses the stack before the kernel can. */
  assert (errno == EAGAIN || errno == EINVAL);
  snprintf (text, sizeof text, "cannot start a thread: %s", strerror (errno));
  assert (strcmp (nbdedup_error (), text) == 0);
  assert (!b.runs);
  assert (pthread_setattr_default_np (&old) == 0);
  pthread_attr_destroy (&old);

  assert (background_start (&b, wait_without_limit, &b) == 0);
  background_wake (&b);
  wait_for_rounds (1);
  background_destroy (&b);
  assert (ended);

  init (NULL);
  forbid_threads (&old);
  assert (background_start (&b, wait_without_limit, &b) == -1);
  background_destroy (&b);
  assert (pthread_setattr_default_np (&old) == 0);
  pthread_attr_destroy (&old);
}

int
main (void)
{
  alarm (GIVE_UP_S);
  lock_init (&lock);
  test_time ();
  test_wake ();
  test_cancel ();
  test_owner ();
  test_signal ();
  test_no_thread ();
  lock_destroy (&lock);
  return 0;
}
