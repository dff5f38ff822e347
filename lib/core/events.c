/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/background.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/events.h"
#include "core/txg.h"

/* Events that wait for the reader of the log. */
#define POSTED_MAX 1024
/* After a failure to write. */
#define RETRY_MS 60000

struct posted {
  TAILQ_ENTRY (posted) link;
  enum nbdedup_log_level level;
  json_t *event; /* owned; NULL: there was no memory */
  char message[1024];
};
TAILQ_HEAD (posted_list, posted);

struct kept_event {
  char *text; /* owned */
  uint64_t time;
};

struct noted_place {
  uint64_t volume, block;
};

struct events {
  const char *path; /* not owned */

  struct lock lock; /* protects everything below */
  struct txg *txg;  /* not owned; NULL: cannot be written */
  struct background thread;
  struct posted_list posted;
  unsigned nr_posted;
  uint64_t nr_dropped;                           /* there were too many */
  struct kept_event waiting[EVENTS_WAITING_MAX]; /* for a fold; the
                                                         * oldest first */
  unsigned nr_waiting;
  unsigned nr_putting; /* the first ones: by the folding thread */
  uint64_t nr_written; /* successful calls of events_written */
  uint64_t retry_ms;   /* clock_ms; no attempt before */
  struct noted_place places[EVENTS_PLACES_MAX];
  unsigned nr_places;
};

struct events *
events_new (const char *path)
{
  struct events *e = calloc (1, sizeof *e);

  if (e == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  e->path = path;
  TAILQ_INIT (&e->posted);
  lock_init (&e->lock);
  background_init (&e->thread, &e->lock);
  return e;
}

void
events_free (struct events *e)
{
  unsigned i;

  if (e == NULL)
    return;
  background_destroy (&e->thread);
  assert (TAILQ_EMPTY (&e->posted));
  for (i = 0; i < e->nr_waiting; ++i)
    free (e->waiting[i].text);
  lock_destroy (&e->lock);
  free (e);
}

void
events_open (struct events *e, struct txg *txg)
{
  WITH_LOCK (&e->lock);
  e->txg = txg;
}

/*----------------------------------------------------------------------
 * The log
 */

static void
tell (struct events *e, struct posted *p)
{
  event_log (p->level, e->path, p->event, p->message[0] ? p->message : NULL);
  json_decref (p->event);
  free (p);
}

static void
tell_dropped (struct events *e, uint64_t nr)
{
  CLEANUP_JSON json_t *event = event_new ("events-dropped", "{s:I}", "count",
                                          (json_int_t) nr);
  char message[128];

  if (nr == 0)
    return;
  snprintf (message, sizeof message,
            "%" PRIu64 " events were not logged: "
            "there were too many, or the log did not take them",
            nr);
  event_log (NBDEDUP_LOG_WARNING, e->path, event, message);
}

static void
tell_posted (struct events *e)
{
  struct posted_list list;
  struct posted *p;
  uint64_t dropped;

  TAILQ_INIT (&list);
  {
    WITH_LOCK (&e->lock);
    TAILQ_CONCAT (&list, &e->posted, link);
    e->nr_posted = 0;
    dropped = e->nr_dropped;
    e->nr_dropped = 0;
  }
  while ((p = TAILQ_FIRST (&list)) != NULL) {
    TAILQ_REMOVE (&list, p, link);
    tell (e, p);
  }
  tell_dropped (e, dropped);
}

/* The time until the next thing to do. */
static uint64_t
pause_ms (struct events *e)
{
  const uint64_t now = clock_ms ();

  WITH_LOCK (&e->lock);
  if (!TAILQ_EMPTY (&e->posted))
    return 0;
  if (e->nr_waiting == 0)
    return RETRY_MS;
  return e->retry_ms > now ? e->retry_ms - now : 1000;
}

static void *
events_thread (void *arg)
{
  struct events *e = arg;

  do {
    tell_posted (e);
    events_flush (e);
  } while (background_wait_ms (&e->thread, pause_ms (e)));
  return NULL;
}

int
events_start (struct events *e)
{
  WITH_LOCK (&e->lock);
  return background_start (&e->thread, events_thread, e);
}

bool
events_has_thread (struct events *e)
{
  WITH_LOCK (&e->lock);
  return e->thread.runs;
}

void
events_stop (struct events *e)
{
  if (e == NULL)
    return;
  background_stop (&e->thread);
  tell_posted (e);
  {
    WITH_LOCK (&e->lock);
    e->retry_ms = 0; /* the last attempt */
  }
  events_flush (e);
}

/* Takes the reference, or, if there are too many, drops the event. */
static void
enqueue_locked (struct events *e, struct posted *p)
{
  assert_held (&e->lock);
  if (e->nr_posted == POSTED_MAX) {
    e->nr_dropped++;
    json_decref (p->event);
    free (p);
    return;
  }
  TAILQ_INSERT_TAIL (&e->posted, p, link);
  e->nr_posted++;
  e->thread.woken = true;
  cond_signal (&e->thread.wake);
}

/* The thread gets a copy: the fields of 'event' may be those of a result that
 * the caller goes on using, and Jansson orders only its counts of references,
 * not what another thread read before it gave up the last but one.
 */
void
events_post (struct events *e, enum nbdedup_log_level level, json_t *event,
             const char *fmt, ...)
{
  struct posted *p = calloc (1, sizeof *p);
  const int err = errno;
  bool runs;
  va_list ap;

  if (p == NULL) {
    json_decref (event);
    WITH_LOCK (&e->lock);
    e->nr_dropped++;
    return;
  }
  p->level = level;
  p->event = json_deep_copy (event);
  json_decref (event);
  va_start (ap, fmt);
  vsnprintf (p->message, sizeof p->message, fmt, ap);
  va_end (ap);
  error_replace_controls (p->message);
  {
    WITH_LOCK (&e->lock);
    runs = e->thread.runs;
    if (runs)
      enqueue_locked (e, p);
  }
  if (!runs)
    tell (e, p);
  errno = err;
}

bool
events_is_new_place (struct events *e, uint64_t volume, uint64_t block)
{
  unsigned i;

  WITH_LOCK (&e->lock);
  for (i = 0; i < e->nr_places; ++i)
    if (e->places[i].volume == volume && e->places[i].block == block)
      return false;
  if (e->nr_places == EVENTS_PLACES_MAX)
    return false;
  e->places[e->nr_places++] = (struct noted_place) { volume, block };
  return true;
}

/*----------------------------------------------------------------------
 * The history
 */

/* What is left of an event that is too long. */
static char *
text_of_long (const json_t *event)
{
  static const char *const keys[] = { "time", "event", "by", "uid", "pid" };
  CLEANUP_JSON json_t *rest = json_object ();
  size_t i;

  for (i = 0; i < sizeof keys / sizeof keys[0]; ++i)
    if (json_object_get (event, keys[i]))
      json_object_set (rest, keys[i], json_object_get (event, keys[i]));
  json_object_set_new (rest, "cut", json_true ());
  return json_dumps (rest, JSON_COMPACT);
}

char *
events_text_of (const json_t *event)
{
  char *text = event ? json_dumps (event, JSON_COMPACT) : NULL;

  if (text == NULL || strlen (text) <= EVENTS_TEXT_MAX)
    return text;
  free (text);
  return text_of_long (event);
}

static void
drop_oldest_locked (struct events *e)
{
  assert_held (&e->lock);
  free (e->waiting[0].text);
  e->nr_waiting--;
  memmove (e->waiting, e->waiting + 1, e->nr_waiting * sizeof e->waiting[0]);
  if (e->nr_putting > 0)
    e->nr_putting--;
}

/* Takes the text, which may be NULL. */
static void
wait_for_fold (struct events *e, char *text)
{
  if (text == NULL)
    return;
  WITH_LOCK (&e->lock);
  if (e->nr_waiting == EVENTS_WAITING_MAX)
    drop_oldest_locked (e);
  e->waiting[e->nr_waiting++] = (struct kept_event) {
    .text = text,
    .time = clock_wall_s (),
  };
  e->thread.woken = true;
  cond_signal (&e->thread.wake);
}

void
events_keep (struct events *e, const json_t *event)
{
  wait_for_fold (e, events_text_of (event));
}

void
events_keep_text (struct events *e, const char *text)
{
  wait_for_fold (e, strdup (text));
}

bool
events_is_due (struct events *e)
{
  WITH_LOCK (&e->lock);
  return e->nr_waiting > 0 && clock_ms () >= e->retry_ms;
}

/* The number of events that wait. */
static unsigned
nr_waiting (struct events *e)
{
  WITH_LOCK (&e->lock);
  return e->nr_waiting;
}

void
events_flush (struct events *e)
{
  unsigned before, left = nr_waiting (e);
  struct txg *txg;

  {
    WITH_LOCK (&e->lock);
    txg = e->txg;
  }
  /* A failure to fold is reported by what it stops. */
  while (txg && events_is_due (e)) {
    before = left;
    if (txg_run (txg, NULL, NULL, NULL) == -1)
      return;
    left = nr_waiting (e);
    if (left >= before)
      return;
  }
}

int
events_put (struct events *e, struct meta_conn *c)
{
  struct kept_event put[EVENTS_PER_FOLD];
  unsigned i, nr;
  int r = 0;

  {
    /* Only this thread frees the texts that it counts. */
    WITH_LOCK (&e->lock);
    nr = e->nr_waiting < EVENTS_PER_FOLD ? e->nr_waiting : EVENTS_PER_FOLD;
    e->nr_putting = nr;
    for (i = 0; i < nr; ++i) {
      put[i] = e->waiting[i];
      put[i].text = strdup (put[i].text);
    }
  }
  for (i = 0; i < nr; ++i) {
    if (r == 0)
      r = put[i].text ? meta_event_put (c, put[i].time, put[i].text)
                      : nbdedup_fail (ENOMEM, "no memory for the history");
    free (put[i].text);
  }
  return r;
}

void
events_written (struct events *e, bool success)
{
  WITH_LOCK (&e->lock);
  e->nr_written += success;
  while (success && e->nr_putting > 0)
    drop_oldest_locked (e);
  e->nr_putting = 0;
  e->retry_ms = success ? 0 : clock_ms () + RETRY_MS;
}

/*----------------------------------------------------------------------*/

struct history_read {
  json_t *events;
  uint64_t last; /* id */
  size_t gap;    /* where unreadable ones would be */
};

static int
add_event (json_t *events, size_t at, const char *text)
{
  json_t *event;

  errno = 0;
  event = json_loads (text, 0, NULL);
  if (event == NULL && errno != ENOMEM)
    return 0; /* damaged: the others can be read */
  if (event == NULL || json_array_insert_new (events, at, event) == -1)
    return nbdedup_fail (ENOMEM, "no memory for the history");
  return 0;
}

static int
get_event (void *opaque, uint64_t id, const char *text)
{
  struct history_read *g = opaque;

  if (id > g->last) {
    g->gap = json_array_size (g->events);
    g->last = id;
  }
  return add_event (g->events, g->gap, text);
}

/* Returns the number of successful writes so far, in *written. */
static int
get_waiting (struct events *e, json_t *events, uint64_t *written)
{
  unsigned i;
  int r = 0;

  WITH_LOCK (&e->lock);
  for (i = 0; i < e->nr_waiting && r == 0; ++i)
    r = add_event (events, json_array_size (events), e->waiting[i].text);
  *written = e->nr_written;
  return r;
}

/* Read pool.db, and what waits.  An event that moves from here to there in the
 * meantime must come once: then begin again.  As meta_event_scan.
 */
static int
get_all (struct events *e, struct meta *meta, struct history_read *g)
{
  CLEANUP_JSON json_t *waiting = json_array ();
  struct meta_conn *c;
  uint64_t before, after;
  int r;

  do {
    *g = (struct history_read) { .events = g->events };
    json_array_clear (g->events);
    json_array_clear (waiting);
    if (get_waiting (e, waiting, &before) == -1)
      return -1;
    c = meta_reader_get (meta);
    r = meta_event_scan (c, get_event, g);
    meta_reader_put (meta, c);
    {
      WITH_LOCK (&e->lock);
      after = e->nr_written;
    }
  } while (before != after);
  if (r != -1 && json_array_extend (g->events, waiting) == -1)
    return nbdedup_fail (ENOMEM, "no memory for the history");
  return r;
}

json_t *
events_get (struct events *e, struct meta *meta)
{
  struct history_read g = { .events = json_array () };
  json_t *result = NULL;
  int r = g.events ? get_all (e, meta, &g)
                   : nbdedup_fail (ENOMEM, "no memory for the history");

  if (r != -1)
    result = json_pack ("{s:O}", "history", g.events);
  if (result && r == 1)
    json_object_set_new (result, "incomplete", json_true ());
  json_decref (g.events);
  return result;
}
