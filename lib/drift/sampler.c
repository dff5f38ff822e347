/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/background.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/priority.h"
#include "core/engine.h"
#include "drift/clone-set.h"
#include "drift/history.h"
#include "drift/sampler.h"
#include "meta/meta.h"

/* After a snapshot, wait so long for more snapshots. */
#define SETTLE_MS 1000
/* Check for new golden images this often. */
#define LOOK_MS 60000
/* When a server starts its volumes are busy: wait for a minute, or a tenth of
 * the interval.
 */
#define START_MS 60000

/* A golden image, as the thread knows it. */
struct golden {
  uint64_t id;
  uint64_t due_ms; /* of the monotonic clock */
  uint64_t state;  /* of its clone set, before the last sample */
  bool is_known;   /* 'state' is valid */
  bool is_asked;   /* a snapshot requested a sample */
};

struct sampler {
  struct nbdedup_pool *pool; /* not owned */
  uint64_t interval_ms;
  struct background thread; /* wakes up when asked */

  /* The thread's own. */
  struct golden *goldens; /* owned; ascending by id */
  size_t nr_goldens;
  uint64_t look_ms; /* latest time of the next check */
  uint64_t rest_ms; /* earliest time */

  struct lock lock; /* protects everything below; innermost */
  uint64_t *asked;  /* owned; ids of golden images */
  size_t nr_asked;
  uint64_t asked_ms; /* when the first of them was added */
  uint64_t nr_samples, nr_skipped;
  char error[512]; /* of the last attempt; "": none */
};

static uint64_t
least (uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

/*----------------------------------------------------------------------
 * Calls from other threads
 */

static bool
is_asked_locked (const struct sampler *s, uint64_t id)
{
  size_t i;

  for (i = 0; i < s->nr_asked; ++i)
    if (s->asked[i] == id)
      return true;
  return false;
}

/* Without memory the image is sampled only by the interval. */
static void
ask_locked (struct sampler *s, uint64_t id)
{
  assert_held (&s->lock);
  if (is_asked_locked (s, id))
    return;
  if (array_push (&s->asked, &s->nr_asked, id) == 0 && s->nr_asked == 1)
    s->asked_ms = clock_ms ();
}

void
sampler_note_snapshot (struct sampler *s, const struct volume *v)
{
  const struct volume *golden;

  assert_held (&v->pool->admin); /* origins change under it */
  if (s == NULL || v->origin == NULL)
    return;
  WITH_LOCK (&s->lock);
  for (golden = v->origin; golden; golden = golden->origin)
    ask_locked (s, golden->id);
  cond_signal (&s->thread.wake);
}

json_t *
sampler_json (struct sampler *s)
{
  if (s == NULL)
    return json_null ();
  WITH_LOCK (&s->lock);
  return json_pack ("{s:I, s:I, s:o?}", "samples", (json_int_t) s->nr_samples,
                    "skipped", (json_int_t) s->nr_skipped, "error",
                    *s->error ? nbdedup_json_text (s->error) : NULL);
}

/*----------------------------------------------------------------------
 * The list of golden images
 */

static struct golden *
find_golden (struct sampler *s, uint64_t id)
{
  size_t i = array_position (s->nr_goldens, k, s->goldens[k].id < id);

  return i < s->nr_goldens && s->goldens[i].id == id ? &s->goldens[i] : NULL;
}

/* The time when a new entry is due, by its last sample in the history. */
static uint64_t
first_due_ms (struct sampler *s, uint64_t id)
{
  uint64_t last_s, wall_s = clock_wall_s (), age_ms;

  /* If the history cannot be read, recording will report it. */
  if (history_last (s->pool, id, &last_s) != 1)
    return clock_ms ();
  age_ms = last_s < wall_s ? (wall_s - last_s) * 1000 : 0;
  return clock_ms () + (age_ms < s->interval_ms ? s->interval_ms - age_ms : 0);
}

/* Update 's->goldens' to 'sets', ascending by id. */
static int
take_over (struct sampler *s, const struct clone_set *sets, size_t nr)
{
  struct golden *new = calloc (nr ? nr : 1, sizeof *new), *old;
  size_t i;

  if (new == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a list of golden images");
  for (i = 0; i < nr; ++i) {
    old = find_golden (s, sets[i].golden);
    if (old)
      new[i] = *old;
    else
      new[i] = (struct golden) {
        .id = sets[i].golden,
        .due_ms = first_due_ms (s, sets[i].golden),
      };
  }
  free (s->goldens);
  s->goldens = new;
  s->nr_goldens = nr;
  return 0;
}

/* Take the requests by snapshots so far; the caller frees the array. */
static uint64_t *
take_asked (struct sampler *s, size_t *nr)
{
  WITH_LOCK (&s->lock);
  *nr = s->nr_asked;
  s->nr_asked = 0;
  return TAKE_PTR (s->asked);
}

/* Update the list of golden images, and mark the requested ones. */
static int
look (struct sampler *s, struct clone_set **sets, size_t *nr)
{
  size_t nr_asked, i;
  CLEANUP_FREE uint64_t *asked = take_asked (s, &nr_asked);
  struct golden *g;

  if (clone_sets_get (s->pool->volumes, sets, nr) == -1 ||
      take_over (s, *sets, *nr) == -1)
    return -1;
  for (i = 0; i < nr_asked; ++i)
    if ((g = find_golden (s, asked[i])) != NULL)
      g->is_asked = true;
  return 0;
}

/*----------------------------------------------------------------------
 * Sampling
 */

static int
go_on (void *opaque, uint64_t done, uint64_t total)
{
  struct sampler *s = opaque;

  (void) done;
  (void) total;
  return s->thread.stop;
}

static void
count (struct sampler *s, uint64_t *counter)
{
  WITH_LOCK (&s->lock);
  ++*counter;
}

/* Log an error unless it is the same as the last one. */
static void
set_error (struct sampler *s, const char *error)
{
  bool is_new;

  {
    WITH_LOCK (&s->lock);
    is_new = strncmp (s->error, error, sizeof s->error - 1) != 0;
    snprintf (s->error, sizeof s->error, "%s", error);
  }
  if (is_new && *error)
    nbdedup_log (NBDEDUP_LOG_WARNING, "no drift sample was recorded: %s",
                 error);
}

static int
sample (struct sampler *s, struct golden *g, const struct clone_set *f)
{
  CLEANUP_JSON json_t *document = NULL;

  g->due_ms = clock_ms () + s->interval_ms;
  g->is_asked = false;
  if (g->is_known && g->state == f->state) {
    count (s, &s->nr_skipped);
    return 0;
  }
  document = history_drift (s->pool, (struct drift_golden) { .id = g->id }, 0,
                            false, go_on, s);
  if (document) {
    g->state = f->state;
    g->is_known = true;
    count (s, &s->nr_samples);
    return 0;
  }
  if (errno != ENOENT && errno != EBUSY && errno != EINTR)
    return -1;
  g->due_ms = 0; /* destroyed or renamed: check again */
  return 0;
}

/* Sample the images that are due, and compute when the next will be.  A failed
 * sample does not prevent the others.
 */
static void
pass (struct sampler *s)
{
  CLEANUP_FREE struct clone_set *sets = NULL;
  uint64_t begin_ms = clock_ms ();
  char error[sizeof s->error] = "";
  struct golden *g;
  size_t i, nr = 0;

  s->look_ms = begin_ms + least (s->interval_ms, LOOK_MS);
  if (look (s, &sets, &nr) == -1) {
    set_error (s, nbdedup_error ());
    return;
  }
  for (i = 0; i < nr && !s->thread.stop; ++i) {
    g = &s->goldens[i];
    if (g->is_asked || g->due_ms <= clock_ms ()) {
      if (sample (s, g, &sets[i]) == -1)
        snprintf (error, sizeof error, "%s", nbdedup_error ());
      set_error (s, error);
    }
    if (g->due_ms > begin_ms)
      s->look_ms = least (s->look_ms, g->due_ms);
  }
  s->rest_ms = clock_ms () + (clock_ms () - begin_ms);
}

/* Wait until it is time.  False: stop. */
static bool
wait_until_due (struct sampler *s)
{
  uint64_t at, now;

  WITH_LOCK (&s->lock);
  while (!s->thread.stop) {
    at = s->look_ms;
    if (s->nr_asked > 0)
      at = least (at, s->asked_ms + SETTLE_MS);
    if (at < s->rest_ms)
      at = s->rest_ms;
    now = clock_ms ();
    if (now >= at)
      return true;
    lock_wait_ms (&s->lock, &s->thread.wake, at - now);
  }
  return false;
}

static void *
sampler_thread (void *arg)
{
  struct sampler *s = arg;

  thread_lower_priority ();
  while (wait_until_due (s))
    pass (s);
  return NULL;
}

struct sampler *
sampler_start (struct nbdedup_pool *pool, uint64_t interval_s)
{
  struct sampler *s = calloc (1, sizeof *s);

  if (s == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  s->pool = pool;
  s->interval_ms = interval_s * 1000;
  s->look_ms = clock_ms () + least (s->interval_ms / 10, START_MS);
  lock_init (&s->lock);
  background_init (&s->thread, &s->lock);
  if (background_start (&s->thread, sampler_thread, s) == 0)
    return s;
  sampler_free (s);
  return NULL;
}

void
sampler_cancel (struct sampler *s)
{
  if (s)
    background_cancel (&s->thread);
}

void
sampler_free (struct sampler *s)
{
  if (s == NULL)
    return;
  background_destroy (&s->thread);
  lock_destroy (&s->lock);
  free (s->goldens);
  free (s->asked);
  free (s);
}
