/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "base/clock.h"
#include "refusals.h"

/* A series of failures has ended when there were none for so long. */
#define QUIET_MS 5000
/* While it lasts, log its count this often. */
#define REPEAT_MS 60000
/* Enough for seven requests, some with FUA, and their few errors. */
#define KINDS_MAX 64

struct kind {
  const char *request; /* not owned: a constant */
  int err;
  uint64_t count;             /* since the last line; 0: it has ended */
  uint64_t first_ms, last_ms; /* of these */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kind kinds[KINDS_MAX]; /* under 'lock' */
static unsigned nr_kinds;
static atomic_uint nr_going_on;  /* kinds with a count */
static _Atomic uint64_t look_ms; /* earliest time of the next line */

/* NULL: there are too many. */
static struct kind *
find_locked (const char *request, int err)
{
  unsigned i;

  for (i = 0; i < nr_kinds; ++i)
    if (kinds[i].err == err && strcmp (kinds[i].request, request) == 0)
      return &kinds[i];
  if (nr_kinds == KINDS_MAX)
    return NULL;
  kinds[nr_kinds] = (struct kind) { .request = request, .err = err };
  return &kinds[nr_kinds++];
}

/* The first failure has been logged already. */
static void
tell_count (const struct kind *k)
{
  if (k->count > 1)
    nbdkit_error ("%s: %s: %llu requests were refused in %llu s", k->request,
                  strerror (k->err), (unsigned long long) k->count,
                  (unsigned long long) (k->last_ms - k->first_ms + 999) / 1000);
}

static void
tell_ended_locked (uint64_t now, uint64_t quiet_ms)
{
  struct kind *k;

  for (k = kinds; k < kinds + nr_kinds; ++k)
    if (k->count > 0 && now - k->last_ms >= quiet_ms) {
      tell_count (k);
      k->count = 0;
      nr_going_on--;
    }
}

void
refusals_note (const char *request, const char *text)
{
  uint64_t now = clock_ms ();
  int err = errno;
  struct kind *k;
  bool is_first;

  pthread_mutex_lock (&lock);
  tell_ended_locked (now, QUIET_MS);
  k = find_locked (request, err);
  is_first = k == NULL || k->count == 0;
  if (k && is_first) {
    k->first_ms = now;
    nr_going_on++;
  }
  if (k) {
    k->count++;
    k->last_ms = now;
    if (now - k->first_ms >= REPEAT_MS) {
      tell_count (k);
      k->count = 1;
      k->first_ms = now;
    }
  }
  look_ms = now + QUIET_MS;
  pthread_mutex_unlock (&lock);
  if (is_first)
    nbdkit_error ("%s: %s", request, text);
  errno = err;
}

void
refusals_check (void)
{
  uint64_t now;

  if (nr_going_on == 0 || (now = clock_ms ()) < look_ms)
    return;
  pthread_mutex_lock (&lock);
  tell_ended_locked (now, QUIET_MS);
  look_ms = now + QUIET_MS;
  pthread_mutex_unlock (&lock);
}

void
refusals_end (void)
{
  pthread_mutex_lock (&lock);
  tell_ended_locked (clock_ms (), 0);
  pthread_mutex_unlock (&lock);
}
