/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "core/notes.h"

#define QUOTA_REPORT "ddt-quota"
#define FOLDS_REPORT "folds"

/* More than retention keeps of a hundred years. */
#define TIMES_MAX 512
/* Retention leaves gaps of up to this part of their age. */
#define RETENTION_SHARE 8u
/* After a failure. */
#define RETRY_MS 60000

struct fold_time {
  uint64_t fold, time; /* seconds since the epoch */
};

/* Ascending by fold.  The times are what the clock said, so they need not
 * ascend: see is_doubtful.
 */
struct times {
  struct fold_time p[TIMES_MAX];
  size_t nr;
};

struct notes {
  struct lock lock; /* protects what other threads use: */
  struct notes_quota quota;
  struct times times; /* as pool.db has them */

  /* The folding thread's own. */
  struct notes_quota stored, storing;
  struct times next; /* as they will be, unless 'next.nr' is 0 */
  bool has_records;  /* the fold adds some */
  bool writing;      /* notes_put was called, and not done */
  uint64_t retry_ms; /* clock_ms */
};

struct notes *
notes_new (void)
{
  struct notes *n = calloc (1, sizeof *n);

  if (n == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  lock_init (&n->lock);
  return n;
}

void
notes_free (struct notes *n)
{
  if (n == NULL)
    return;
  lock_destroy (&n->lock);
  free (n);
}

/*----------------------------------------------------------------------
 * In pool.db
 */

static json_t *
load_report (struct meta_conn *c, const char *name)
{
  CLEANUP_FREE char *text = NULL;

  return meta_report_get (c, name, &text) == 1 ? json_loads (text, 0, NULL)
                                               : NULL;
}

static uint64_t
number (const json_t *value)
{
  const json_int_t n = json_integer_value (value);

  return n > 0 ? (uint64_t) n : 0;
}

static void
load_times (struct times *t, const json_t *report)
{
  const json_t *folds = json_object_get (report, "folds");
  const json_t *times = json_object_get (report, "times");
  struct fold_time m;
  uint64_t last = 0;
  size_t i;

  for (i = 0; i < json_array_size (folds) && t->nr < TIMES_MAX; ++i) {
    m.fold = number (json_array_get (folds, i));
    m.time = number (json_array_get (times, i));
    if (m.fold <= last || m.time == 0)
      continue;
    last = m.fold;
    t->p[t->nr++] = m;
  }
}

void
notes_load (struct notes *n, struct meta_conn *c)
{
  CLEANUP_JSON json_t *quota = load_report (c, QUOTA_REPORT);
  CLEANUP_JSON json_t *folds = load_report (c, FOLDS_REPORT);

  WITH_LOCK (&n->lock);
  n->quota.blocks = number (json_object_get (quota, "blocks"));
  n->quota.bytes = number (json_object_get (quota, "bytes"));
  n->stored = n->quota;
  n->times.nr = 0;
  load_times (&n->times, folds);
}

/* Takes the reference. */
static int
put_report (struct meta_conn *c, const char *name, json_t *report)
{
  CLEANUP_FREE char *text = NULL;

  if (report)
    text = json_dumps (report, JSON_COMPACT);
  json_decref (report);
  return text ? meta_report_put (c, name, text)
              : nbdedup_fail (ENOMEM, "no memory");
}

static json_t *
times_report (const struct times *t)
{
  json_t *folds = json_array (), *times = json_array ();
  size_t i;

  for (i = 0; i < t->nr; ++i) {
    json_array_append_new (folds, json_integer ((json_int_t) t->p[i].fold));
    json_array_append_new (times, json_integer ((json_int_t) t->p[i].time));
  }
  return json_pack ("{s:o, s:o}", "folds", folds, "times", times);
}

/*----------------------------------------------------------------------
 * Times
 */

/* A clock that was wrong for a while leaves times that are too late or too
 * early, and where they step back they do not say which are the wrong ones.  So
 * the list keeps both, and 'now' decides.  Times in its future are too late, or
 * 'now' itself is too early, and then they mean nothing beside it.  Of the
 * others, each has to be later than all before it: a record is not older than
 * one of an earlier fold.  Without its time a fold's records count from that of
 * the next one, and so seem younger.
 *
 * 'last' is the latest time so far that was not doubtful.
 */
static bool
is_doubtful (const struct fold_time *m, uint64_t last, uint64_t now)
{
  return m->time > now || m->time <= last;
}

/* Can this time go, because its neighbours are close?  Not if it steps back, or
 * is in the future: others depend on it.
 */
static bool
is_close (const struct fold_time *before, const struct fold_time *m,
          const struct fold_time *after, uint64_t now)
{
  return before->time < m->time && m->time < after->time &&
    after->time <= now &&
    after->time - before->time < (now - after->time) / RETENTION_SHARE;
}

/* Drop times that lie close to their neighbours, and, if there still are too
 * many, the first one that can go.  Records of a fold whose time is dropped
 * seem younger.
 */
static void
apply_retention (struct times *t, uint64_t now)
{
  size_t i, n = 0;

  for (i = 0; i < t->nr; ++i) {
    if (n > 0 && i + 1 < t->nr &&
        is_close (&t->p[n - 1], &t->p[i], &t->p[i + 1], now))
      continue;
    t->p[n++] = t->p[i];
  }
  if (n == TIMES_MAX) {
    for (i = 1; i + 2 < n && t->p[i].time > t->p[i + 1].time; ++i)
      ; /* without it the next one may not be doubtful */
    memmove (&t->p[i], &t->p[i + 1], (n - i - 1) * sizeof t->p[0]);
    n--;
  }
  assert (n < TIMES_MAX); /* there is room for one more */
  t->nr = n;
}

/* Add this time, in place of another one of the same second.  Times before it
 * that are doubtful now will always be, and go.  Those in the future stay: if
 * the clock is slow now, they are right, and tell so when it has been set.
 */
static void
add_fold_time (struct times *t, const struct fold_time *m)
{
  uint64_t last = 0;
  size_t i, n = 0;

  for (i = 0; i < t->nr && t->p[i].fold < m->fold; ++i) {
    if (t->p[i].time <= m->time) {
      if (is_doubtful (&t->p[i], last, m->time))
        continue;
      last = t->p[i].time;
      if (last == m->time)
        continue;
    }
    t->p[n++] = t->p[i];
  }
  t->nr = n;
  apply_retention (t, m->time);
  t->p[t->nr++] = *m;
}

/* Sets n->next. */
static void
note_time (struct notes *n, const struct meta_state *state)
{
  const struct fold_time now = { state->fold, clock_wall_s () };

  n->next.nr = 0;
  if (n->times.nr > 0 && !n->has_records)
    return;
  n->next = n->times;
  add_fold_time (&n->next, &now);
}

int
notes_fold_of_age (struct notes *n, uint64_t age_s, uint64_t *fold)
{
  const uint64_t now = clock_wall_s ();
  const struct fold_time *m;
  uint64_t last = 0;
  int found = 0;
  size_t i;

  WITH_LOCK (&n->lock);
  for (i = 0; i < n->times.nr; ++i) {
    m = &n->times.p[i];
    if (is_doubtful (m, last, now))
      continue;
    last = m->time;
    if (now - m->time < age_s)
      break;
    *fold = m->fold;
    found = 1;
  }
  return found;
}

/*----------------------------------------------------------------------
 * The quota
 */

void
notes_add_over_quota (struct notes *n, uint64_t blocks, uint64_t bytes)
{
  WITH_LOCK (&n->lock);
  n->quota.blocks += blocks;
  n->quota.bytes += bytes;
}

void
notes_get_quota (struct notes *n, struct notes_quota *quota)
{
  WITH_LOCK (&n->lock);
  *quota = n->quota;
}

/*----------------------------------------------------------------------
 * Folds
 */

bool
notes_is_due (struct notes *n)
{
  n->has_records = false;
  /* Not when the transaction writes it: what the next txg counts until then is
   * in the journal, too, and a replay would count it again.
   */
  notes_get_quota (n, &n->storing);
  if (n->writing) { /* the last attempt failed */
    n->writing = false;
    n->retry_ms = clock_ms () + RETRY_MS;
  }
  return clock_ms () >= n->retry_ms;
}

void
notes_new_records (struct notes *n)
{
  if (n)
    n->has_records = true;
}

/* The transaction may be repeated, so nothing here counts before it is done. */
int
notes_put (struct notes *n, struct meta_conn *c, const struct meta_state *state)
{
  bool quota;

  n->writing = true;
  quota = n->storing.blocks != n->stored.blocks;
  note_time (n, state);
  if (!quota && n->next.nr == 0)
    return 0;
  if (meta_history_make (c) == -1)
    return -1;
  if (quota &&
      put_report (c, QUOTA_REPORT,
                  json_pack ("{s:I, s:I}", "blocks",
                             (json_int_t) n->storing.blocks, "bytes",
                             (json_int_t) n->storing.bytes)) == -1)
    return -1;
  return n->next.nr == 0
    ? 0
    : put_report (c, FOLDS_REPORT, times_report (&n->next));
}

void
notes_done (struct notes *n)
{
  assert (n->writing); /* notes_put was in this transaction */
  n->writing = false;
  n->stored = n->storing;
  if (n->next.nr == 0)
    return;
  WITH_LOCK (&n->lock);
  n->times = n->next;
}
