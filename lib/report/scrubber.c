/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdlib.h>

#include "base/background.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/priority.h"
#include "core/engine.h"
#include "meta/meta.h"
#include "report/scrub.h"
#include "report/scrubber.h"
#include "report/status.h"

/* When a server starts its volumes are busy: wait for a minute, or a tenth of
 * the interval.
 */
#define START_MS 60000
/* Check at least this often, because the wall clock may have been set. */
#define LOOK_MS 60000
/* After a failure. */
#define RETRY_MS 3600000

struct scrubber {
  struct nbdedup_pool *pool; /* not owned */
  struct background thread;
  uint64_t started_ms;
  uint64_t not_before_ms; /* the thread's own */
};

static uint64_t
least (uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

/* The start of the next scrub, by clock_ms. */
static uint64_t
due_ms (struct scrubber *s, uint64_t interval_s)
{
  CLEANUP_JSON json_t *last = status_report (s->pool, SCRUB_REPORT);
  uint64_t now_s = clock_wall_s (), now_ms = clock_ms (), age_s, due;
  json_int_t time_s = json_integer_value (json_object_get (last, "time"));

  due = s->started_ms + least (interval_s * 100, START_MS);
  if (time_s > 0) {
    age_s = (uint64_t) time_s < now_s ? now_s - (uint64_t) time_s : 0;
    if (age_s < interval_s && now_ms + (interval_s - age_s) * 1000 > due)
      due = now_ms + (interval_s - age_s) * 1000;
  }
  return due > s->not_before_ms ? due : s->not_before_ms;
}

/* Wait until it is time.  False: stop. */
static bool
wait_until_due (struct scrubber *s)
{
  uint64_t interval_s, due, now;

  while (!s->thread.stop) {
    interval_s = s->pool->scrub->interval_s;
    due = interval_s == 0 ? UINT64_MAX : due_ms (s, interval_s);
    now = clock_ms ();
    if (now >= due)
      return true;
    background_wait_ms (&s->thread, least (due - now, LOOK_MS));
  }
  return false;
}

static int
go_on (void *opaque, uint64_t done, uint64_t total)
{
  struct scrubber *s = opaque;

  (void) done;
  (void) total;
  return s->thread.stop || s->pool->scrub->interval_s == 0 ||
    s->pool->scrub->waiting > 0;
}

static void
scrub (struct scrubber *s)
{
  const struct scrub_args args = { .scheduled = true };
  uint64_t interval_ms = s->pool->scrub->interval_s * 1000;
  CLEANUP_JSON json_t *result = scrub_run (s->pool, &args, go_on, s);

  if (result)
    return;
  if (errno == EINTR) {
    /* Yield to the user's scrub, which may fail, too. */
    s->not_before_ms = clock_ms () + least (interval_ms / 10, START_MS);
    return;
  }
  s->not_before_ms = clock_ms () + least (interval_ms, RETRY_MS);
}

static void *
scrubber_thread (void *arg)
{
  struct scrubber *s = arg;

  thread_lower_priority ();
  while (wait_until_due (s))
    scrub (s);
  return NULL;
}

struct scrubber *
scrubber_start (struct nbdedup_pool *pool)
{
  struct scrubber *s = calloc (1, sizeof *s);

  if (s == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  s->pool = pool;
  s->started_ms = clock_ms ();
  background_init (&s->thread, NULL);
  if (background_start (&s->thread, scrubber_thread, s) == 0)
    return s;
  scrubber_free (s);
  return NULL;
}

void
scrubber_wake (struct scrubber *s)
{
  if (s)
    background_wake (&s->thread);
}

void
scrubber_cancel (struct scrubber *s)
{
  if (s)
    background_cancel (&s->thread);
}

void
scrubber_free (struct scrubber *s)
{
  if (s == NULL)
    return;
  background_destroy (&s->thread);
  free (s);
}
