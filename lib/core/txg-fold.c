/* SPDX-License-Identifier: BSD-3-Clause */

/* A fold from start to end: how it handles failing requests, damage, and a
 * lack of space or memory (fold.h writes the tables).
 */

#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/backoff.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "core/events.h"
#include "core/fold.h"
#include "core/txg-int.h"

/* Retry interval after a fold that failed for lack of space. */
#define FULL_RETRY_MS 1000
/* How long a fold may change tables: writers may have to wait for it.  One in a
 * hundred takes four times as long, when it reads rows from a busy disk.
 */
#define FOLD_TARGET_MS 60
#define FOLD_TARGET_MAX_MS 100 /* if its syncs take as long */
/* The same with background work, which is done sooner in long folds. */
#define BACKGROUND_TARGET_MS 100
/* So many rows may always be worked on in the background. */
#define BACKGROUND_MIN 16u
/* A fold that takes so long is an event, but not more often than that: while it
 * runs, commands wait, and clients that write much or flush a full journal.
 */
#define SLOW_FOLD_MS 3000
#define SLOW_FOLD_AGAIN_MS 60000
/* A fold of fewer pages says nothing about the rate. */
#define FOLD_PAGES_KNOWN 256u
/* While clients overwrite data, a fold is due when the new data take this part
 * of what is stored, and as much more.
 */
#define NEW_SHARE 8
#define NEW_BYTES_MIN (UINT64_C (64) << 20)

static int
put_notes (void *arg, struct meta_conn *c, struct meta_state *state)
{
  return notes_put (arg, c, state);
}

static void
notes_are_durable (void *arg)
{
  notes_done (arg);
}

/* Let the fold write the pool's notes, behind what others have requested: it
 * may fail alone.
 */
static void
take_notes (struct txg *t, struct requests *taken)
{
  if (t->parts.notes == NULL || !notes_is_due (t->parts.notes))
    return;
  t->notes = (struct request) {
    .fn = put_notes,
    .done = notes_are_durable,
    .arg = t->parts.notes,
  };
  TAILQ_INSERT_TAIL (taken, &t->notes, link);
}

/* A fold that runs already would take the room of the open txg for needed. */
static void
note_room (struct txg *t, const struct requests *taken)
{
  const struct request *q;

  TAILQ_FOREACH (q, taken, link) {
    t->gives_back = t->gives_back || q->gives_back;
    t->expels_readers = t->expels_readers || q->expels_readers;
  }
}

static int
put_events (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct txg *t = arg;
  const struct request *q;

  (void) state;
  if (events_put (t->parts.events, c) == -1)
    return -1;
  TAILQ_FOREACH (q, t->taken, link)
    if (q->result == 0 && q->event && q->event->text &&
        meta_event_put (c, clock_wall_s (), q->event->text) == -1)
      return -1;
  return 0;
}

/* Let the fold write events, behind all requests, whose events belong to its
 * transaction.  They let pool.db grow, so only if there is room that nothing
 * else was promised.
 */
static void
take_events (struct txg *t, struct requests *taken)
{
  const struct request *q;
  bool any;

  t->taken = taken;
  t->events = (struct request) { .fn = put_events, .arg = t, .result = -1 };
  if (t->parts.events == NULL)
    return;
  any = events_is_due (t->parts.events);
  TAILQ_FOREACH (q, taken, link)
    any |= q->event != NULL;
  if (!any)
    return;
  if (room_check (t->room, EVENTS_PAGES) == -1) {
    events_written (t->parts.events, false);
    return;
  }
  t->events.result = 0;
  TAILQ_INSERT_TAIL (taken, &t->events, link);
}

/* The transaction is durable.  Events that it could not write wait for another.
 */
static void
end_events (struct txg *t)
{
  struct events *e = t->parts.events;
  const bool written = t->events.result == 0;
  const struct request *q;
  bool taken = false;

  if (e == NULL)
    return;
  TAILQ_FOREACH (q, t->taken, link) {
    taken |= q == &t->events;
    if (!written && q->result == 0 && q->event && q->event->text)
      events_keep_text (e, q->event->text);
  }
  if (taken)
    events_written (e, written);
}

/* Is it a request of the folding thread, and not a command's? */
static bool
is_own (const struct txg *t, const struct request *q)
{
  return q == &t->notes || q == &t->events;
}

/* Close the open txg.  Returns with it folding, and 'taken' the requests
 * that this fold serves.
 */
static int
cut (struct txg *t, struct requests *taken, struct meta_state *state)
{
  int r;

  WITH_LOCK (&t->lock);
  WITH_CONSISTENT (txg, t);
  assert (!t->cutting && !t->folding);
  t->cutting = true;
  while (t->nr_inside > 0)
    lock_wait (&t->lock, &t->all_out);
  TAILQ_INIT (taken);
  TAILQ_CONCAT (taken, &t->requests, link);
  take_notes (t, taken);
  note_room (t, taken);
  t->kicked = false;
  *state = t->state;
  /* Of a change that failed while it was inside, only a part is here: records
   * without the pointers to them, for example.
   */
  r = txg_check (t);
  if (r == 0)
    r = txg_log_cut (t->log, &state->folded, &state->journal_position);
  map_cut (t->parts.map);
  ddt_cut (t->parts.ddt);
  room_cut (t->room);
  t->new_bytes = t->holes = 0;
  txg_forget_holes_locked (t);
  t->hurry = false;
  assert (t->nr_inside == 0);
  t->cutting = false;
  t->cut_ms = clock_ms ();
  txg_expect_fold (t);
  t->folding = true;
  cond_broadcast (&t->may_enter);
  cond_broadcast (&t->folded); /* for those that met the limit */
  return r;
}

/* A fold of so many pages has taken 'ms': let the next txgs take as many as
 * folds change in FOLD_TARGET_MS.  Pages in memory and pages on a slow disk
 * differ a hundredfold, so the limit follows the last fold; up, step by step.
 *
 * Only the changes of the tables take time by the number of pages.  The rest is
 * mostly for syncs: smaller folds would not take less, so the changes may take
 * as long as that.  But not much longer: writers that are faster than the folds
 * wait for the rest of a fold when the open txg is full.
 */
static void
set_limit (struct txg *t, uint64_t pages, uint64_t ms)
{
  const uint64_t tables = t->tables_ms;
  const uint64_t rest = ms > tables ? ms - tables : 0;
  const uint64_t target = rest < FOLD_TARGET_MS ? FOLD_TARGET_MS
    : rest < FOLD_TARGET_MAX_MS                 ? rest
                                                : FOLD_TARGET_MAX_MS;
  uint64_t limit = pages * target / (tables > 0 ? tables : 1);

  if (pages < FOLD_PAGES_KNOWN || (pages < t->limit / 4 && tables < target))
    return;
  t->rate = pages * 1000 / (tables > 0 ? tables : 1);
  if (limit > 2 * t->limit)
    limit = 2 * t->limit;
  t->limit = room_set_limit (t->room,
                             limit > FOLD_PAGES_MIN ? limit : FOLD_PAGES_MIN);
}

/* Record why a request fails: the text is the last one of this thread. */
static void
fail_request (struct request *q, int err)
{
  assert (q->result == 0); /* the first reason stays */
  q->result = -1;
  q->err = err;
  snprintf (q->text, sizeof q->text, "%s", nbdedup_error ());
}

/* Background work makes a fold longer, too: halve it, or let it grow again.
 * Then the fold says nothing about the limit.
 */
static void
set_background (struct txg *t, unsigned done)
{
  const unsigned max = t->parts.background_rows;

  if (t->tables_ms > 2 * BACKGROUND_TARGET_MS && done > BACKGROUND_MIN)
    t->background_rows = done / 2;
  else if (t->tables_ms < BACKGROUND_TARGET_MS &&
           done >= t->background_rows / 2)
    t->background_rows = t->background_rows * 2 < max ? t->background_rows * 2
                                                      : max;
}

/* Run the requests' functions inside the transaction, each in a savepoint.  If
 * one fails, undo its changes, and never run it again.  1: SQLite has rolled
 * back the whole transaction: the caller must start again, without that
 * request.
 */
static int
run_requests (struct requests *taken, struct meta_conn *c,
              struct meta_state *state)
{
  struct meta_state saved;
  struct request *q;

  TAILQ_FOREACH (q, taken, link) {
    if (q->fn == NULL || q->result == -1)
      continue;
    if (meta_savepoint (c) == -1)
      return -1;
    saved = *state;
    if (q->fn (q->arg, c, state) == 0 && meta_release (c, true) == 0)
      continue;
    fail_request (q, errno);
    *state = saved;
    if (meta_has_write_failed (c)) {
      errno = EIO;
      return -1;
    }
    if (meta_release (c, false) == -1)
      return 1;
  }
  return 0;
}

/* 1: a request failed (run_requests): try again. */
static int
try_transaction (struct txg *t, struct fold *f, struct requests *taken,
                 bool with_index)
{
  struct meta_conn *c = meta_writer (t->parts.meta);
  uint64_t start;
  int r, err;

  if (meta_begin (c) == -1)
    return -1;
  start = clock_ms ();
  backoff_is_off = true; /* wait_for_memory, or it can do without */
  r = fold_write_tables (f, c, with_index);
  backoff_is_off = false;
  t->tables_ms = clock_ms () - start;
  t->next_merges = fold_merges (f);
  if (r == 0)
    r = run_requests (taken, c, fold_state (f));
  fold_state (f)->features_incompat |= FEATURE_INCOMPAT_PACKED;
  if (r == 0)
    r = meta_state_put (c, fold_state (f));
  if (r == 0)
    r = meta_commit (c);
  if (r == 0)
    return 0;
  err = errno;
  meta_rollback (c);
  fold_rolled_back (f);
  errno = err;
  return r;
}

static void
finish_requests_locked (struct txg *t, struct requests *list, int result)
{
  struct request *q;
  int err = errno;

  assert_held (&t->lock);
  while ((q = TAILQ_FIRST (list)) != NULL) {
    TAILQ_REMOVE (list, q, link);
    assert (!q->finished);
    if (result == -1 && q->result != -1)
      fail_request (q, err);
    q->finished = true;
  }
  cond_broadcast (&t->folded);
}

/* There is no room although it was allocated (room.h): a file system that
 * does not write to the places it allocated is full, or a reader stays in the
 * WAL.  Until a fold succeeds the journal and memory keep the changes, the
 * pool refuses new data, and requests for a fold fail.  -1: waiting is
 * useless.
 */
static int
wait_for_space (struct txg *t, struct requests *taken)
{
  WITH_LOCK (&t->lock);
  WITH_CONSISTENT (txg, t);
  nbdedup_fail (ENOSPC,
                "the pool's file system is full, and pool.db needs "
                "more room: free some space on it");
  finish_requests_locked (t, taken, -1);
  errno = ENOSPC;
  finish_requests_locked (t, &t->requests, -1);
  errno = ENOSPC;
  if (t->stop || !t->has_thread)
    return -1;
  lock_wait_ms (&t->lock, &t->wake, FULL_RETRY_MS);
  return 0;
}

static uint64_t
pages_of (const struct requests *taken)
{
  const struct request *q;
  uint64_t pages = 0;

  TAILQ_FOREACH (q, taken, link)
    pages += q->pages;
  return pages;
}

/* There was no memory for a step of the fold, which has committed nothing: it
 * tries again, at once, and then in pauses that grow.  After a while requests
 * for a fold fail.  -1: waiting is useless.
 */
static int
wait_for_memory (struct txg *t, struct requests *taken, unsigned *tries)
{
  uint64_t pause_ms;

  if (*tries == 0)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "no memory to write to pool.db (%s): "
                 "writes wait until there is memory",
                 nbdedup_error ());
  pause_ms = backoff_ms (tries);
  WITH_LOCK (&t->lock);
  WITH_CONSISTENT (txg, t);
  if (*tries > BACKOFF_TRIES) {
    nbdedup_fail (ENOMEM, "no memory to write to pool.db");
    finish_requests_locked (t, taken, -1);
    errno = ENOMEM;
    finish_requests_locked (t, &t->requests, -1);
    errno = ENOMEM;
    if (t->stop || !t->has_thread)
      return -1;
  }
  lock_wait_ms (&t->lock, &t->wake, pause_ms);
  return 0;
}

/* As parts.mend. */
static int
mend (struct txg *t, uint64_t *features_compat)
{
  struct meta_state state;
  int r;

  assert (t->parts.mend != NULL && !t->parts.readonly);
  {
    WITH_LOCK (&t->lock);
    state = t->state;
  }
  r = t->parts.mend (t->parts.opaque, &state);
  if (r > 0) {
    WITH_LOCK (&t->lock);
    *features_compat = t->state.features_compat = state.features_compat;
  }
  return r;
}

/* The fold has met a damaged page.  True: try again.  Readers leave the WAL
 * sooner or later.
 */
static bool
mend_for_fold (struct txg *t, struct fold *f)
{
  uint64_t features_compat;
  char text[512];

  snprintf (text, sizeof text, "%s", nbdedup_error ());
  switch (mend (t, &features_compat)) {
  case 0:
    nbdedup_fail (EIO, "%s", text);
    return false;
  case -1:
    return errno == EBUSY;
  default:
    fold_set_features (f, features_compat);
    return true;
  }
}

/* Without merges, background work and commands a fold writes what its changes
 * were promised, and no more.
 */
static void
assert_promise (struct txg *t, const struct fold *f,
                const struct requests *taken, uint64_t before)
{
  const uint64_t after = txg_wal_pages (t);
  const uint64_t written = after >= before ? after - before : after;
  const struct request *q;
  bool has_command = false;

  TAILQ_FOREACH (q, taken, link)
    has_command |= q->fn != NULL && !is_own (t, q);
  assert (has_command || fold_background_done (f) > 0 || fold_has_merged (f) ||
          written <= room_folding_most (t->room) + ROOM_FOLD_PAGES);
}

/* What the next attempt of a fold's transaction may do. */
struct attempt {
  bool with_index;
  bool restarted;              /* the WAL, for lack of space */
  unsigned rows;               /* of background work */
  unsigned tries;              /* of wait_for_memory */
  uint64_t pages, merge_pages; /* for background work, for merges */
};

/* The fold has met a damaged page.  True: it can try again.  False: errno says
 * why not.
 */
static bool
get_round_damage (struct txg *t, struct fold *f, struct attempt *a)
{
  assert (errno == EIO);
  /* It is unknown what the disk has: never try again. */
  if (meta_has_write_failed (meta_writer (t->parts.meta)))
    return false;
  /* A damaged index that cannot be read must not stop the pool. */
  if (a->with_index && fold_index_is_damaged (f)) {
    if (!t->index_is_lost && mend_for_fold (t, f))
      return true;
    /* Each later fold would search all tables again, in vain. */
    t->index_is_lost = true;
    a->with_index = false;
    return true;
  }
  if (fold_copies_are_damaged (f)) {
    nbdedup_log (NBDEDUP_LOG_ERROR,
                 "%s: the space of copies may stay in use "
                 "until you run \"nbdedup check --repair\"",
                 nbdedup_error ());
    return true;
  }
  return meta_is_damaged (meta_writer (t->parts.meta)) && mend_for_fold (t, f);
}

/* pool.db has no room for the fold.  -1: trying again is useless. */
static int
make_space (struct txg *t, struct requests *taken, struct attempt *a)
{
  /* What the folds before this one have freed may be the room. */
  if (space_settle (t->parts.space))
    return 0;
  /* Merges can wait, and background work can do with less room. */
  if (a->merge_pages > 0 || a->rows > 0) {
    meta_restart_wal (t->parts.meta, META_RESTART);
    if (a->merge_pages > 0)
      txg_postpone_merges (t);
    else {
      a->rows /= 2;
      a->pages /= 2;
    }
    a->merge_pages = 0;
    return 0;
  }
  /* The WAL's file has all that the fold was promised, from its start on. */
  if (!a->restarted) {
    meta_restart_wal (t->parts.meta, META_EXPEL);
    a->restarted = true;
    return 0;
  }
  t->stuck = true;
  a->restarted = false;
  return wait_for_space (t, taken);
}

/* The transaction has failed, as errno says.  0: try again; -1: that is
 * useless.
 */
static int
recover_transaction (struct txg *t, struct fold *f, struct requests *taken,
                     struct attempt *a)
{
  if (errno == EIO && get_round_damage (t, f, a))
    return 0;
  if (errno == ENOMEM)
    return wait_for_memory (t, taken, &a->tries);
  if (errno == ENOSPC)
    return make_space (t, taken, a);
  if (errno == EIO && !meta_has_write_failed (meta_writer (t->parts.meta)))
    fold_set_inconsistent (f);
  return -1;
}

static int
transaction (struct txg *t, struct fold *f, struct requests *taken)
{
  struct attempt a = { .with_index = true, .rows = t->background_rows };
  const uint64_t extra = pages_of (taken);
  uint64_t before = 0;
  int r;

  take_events (t, taken);
  txg_prepare_wal (t, extra);
  if (NBDEDUP_EXPENSIVE_ASSERTS)
    before = txg_wal_pages (t);
  a.pages = room_background_pages (t->room, extra);
  a.merge_pages = txg_merge_room (t, extra, fold_wanted_merge_pages (f));
  do {
    fold_set_background (f, a.rows, a.pages);
    fold_set_merge_pages (f, a.merge_pages);
    fold_set_repairing (f, t->repairing);
    r = try_transaction (t, f, taken, a.with_index);
    if (r == -1 && recover_transaction (t, f, taken, &a) == -1)
      return -1;
  } while (r != 0);
  meta_committed (t->parts.meta);
  if (NBDEDUP_EXPENSIVE_ASSERTS && a.merge_pages == 0 && t->has_thread)
    assert_promise (t, f, taken, before);
  return 0;
}

static void
finish_requests (struct txg *t, struct requests *taken, int result)
{
  WITH_LOCK (&t->lock);
  WITH_CONSISTENT (txg, t);
  t->folding = false;
  finish_requests_locked (t, taken, result);
}

/* The steps before the transaction; NULL: one failed. */
static struct fold *
begin_fold (struct txg *t, struct requests *taken,
            const struct meta_state *state, bool *inconsistent)
{
  unsigned tries = 0;
  struct fold *f;
  int err;

  for (;;) {
    f = fold_new (&t->parts, t->room, state);
    if (f != NULL && fold_write_summaries (f) == 0 &&
        store_sync (t->parts.store) == 0)
      return f;
    err = errno;
    *inconsistent = f != NULL && fold_is_inconsistent (f);
    fold_free (f);
    errno = err;
    if (err != ENOMEM || wait_for_memory (t, taken, &tries) == -1)
      return NULL;
  }
}

static bool
has_advice (const char *error)
{
  return strstr (error, "check --repair") || strstr (error, "restore the pool");
}

/* Stop the pool.  A restart may cure a failed write; it cannot cure wrong
 * content of pool.db.
 */
static void
fail_fold (struct txg *t, bool inconsistent)
{
  char text[512];

  t->inconsistent = inconsistent;
  if (inconsistent && !has_advice (nbdedup_error ())) {
    snprintf (text, sizeof text, "%s", nbdedup_error ());
    nbdedup_fail (EIO, "%s: run nbdedup check --repair", text);
  }
  txg_fail (t);
}

/* Until its fold, what a txg overwrites takes space beside the new data, and
 * "records" grows by that.  If clients overwrite about as much as they write,
 * fold sooner; else that would only cost time.
 */
static void
limit_new_bytes_locked (struct txg *t, const struct fold *f,
                        const struct meta_state *before)
{
  const struct meta_state *s = &t->state;
  const uint64_t freed = fold_freed_sectors (f);
  const uint64_t new = s->stored_sectors + freed - before->stored_sectors;

  assert_held (&t->lock);
  t->new_bytes_max = freed < new / 2 || freed == 0
    ? UINT64_MAX
    : s->stored_sectors * s->sector_bytes / NEW_SHARE + NEW_BYTES_MIN;
}

static void
count_fold (struct txg *t, uint64_t start)
{
  t->nr_folds++;
  t->fold_ms += clock_ms () - start;
  t->merge_entries = fold_index_left (&t->merges);
}

static void
note_slow (struct txg *t, uint64_t ms)
{
  const uint64_t pages = room_folding_pages (t->room), now = clock_ms ();
  double all = (double) ms / 1000, tables = (double) t->tables_ms / 1000;

  if (ms < SLOW_FOLD_MS || now < t->slow_after_ms || t->parts.events == NULL ||
      !events_has_thread (t->parts.events))
    return;
  t->slow_after_ms = now + SLOW_FOLD_AGAIN_MS;
  events_post (t->parts.events, NBDEDUP_LOG_WARNING,
               event_new ("slow-fold", "{s:f, s:f, s:I}", "seconds", all,
                          "tables_seconds", tables, "pages",
                          (json_int_t) pages),
               "a fold into pool.db took %.1f s, of which %.1f s for its "
               "tables: commands and flushes may wait for it; the disk is "
               "slow or busy",
               all, tables);
}

static int
run_fold (struct txg *t, struct requests *taken, const struct meta_state *state)
{
  const uint64_t start = clock_ms ();
  bool inconsistent = false;
  struct fold *f = begin_fold (t, taken, state, &inconsistent);
  bool only_here; /* the journal does not have all of it */
  struct request *q;
  int r = -1, err;

  if (f != NULL && transaction (t, f, taken) == 0) {
    r = 0;
    {
      WITH_LOCK (&t->lock);
      WITH_CONSISTENT (txg, t);
      assert (fold_state (f)->fold == t->state.fold + 1);
      assert (fold_state (f)->next_id >= t->state.next_id);
      t->state = *fold_state (f);
      limit_new_bytes_locked (t, f, state);
      t->more = fold_has_more (f);
      t->index_in_place = fold_index_is_in_place (f, t->index_in_place);
    }
    only_here = txg_log_folded (t->log);
    journal_trim (t->parts.journal, state->folded, state->journal_position);
    fold_finish (f);
    end_events (t);
    TAILQ_FOREACH (q, taken, link) {
      only_here |= q->fn != NULL && q->result == 0 && !is_own (t, q);
      if (q->result == 0 && q->done)
        q->done (q->arg);
    }
    /* If pool.db loses its WAL the journal still proves writes.  Nothing else
     * has the changes by commands, and those that had no room in the journal.
     */
    if (only_here) {
      bool more = txg_has_background (t);

      meta_copy_wal (t->parts.meta);
      WITH_LOCK (&t->lock);
      t->more |= more;
    }
    t->stuck = false;
    if (fold_background_done (f) > 0)
      set_background (t, fold_background_done (f));
    else
      set_limit (t, room_folding_pages (t->room), clock_ms () - start);
    if (room_folding_pages (t->room) >= FOLD_PAGES_KNOWN)
      txg_note_fold (t, room_folding_pages (t->room), clock_ms () - start);
    note_slow (t, clock_ms () - start);
    room_folded (t->room);
    txg_keep_room (t);
    count_fold (t, start);
  }
  else
    fail_fold (t, f != NULL ? fold_is_inconsistent (f) : inconsistent);
  err = errno;
  fold_free (f);
  errno = err;
  return r;
}

/* Most of the checkpoint comes before the room's lock, which writers take. */
void
txg_give_back (struct txg *t)
{
  if (!t->gives_back && !txg_wal_is_too_large (t))
    return;
  meta_copy_wal (t->parts.meta);
  room_give_back (t->room);
  t->gives_back = t->expels_readers = false;
}

int
txg_fold (struct txg *t)
{
  struct requests taken;
  struct meta_state state;
  int r = txg_check (t);

  if (r == 0) {
    r = cut (t, &taken, &state);
    if (r == 0)
      r = run_fold (t, &taken, &state);
    else
      txg_fail (t);
  }
  else {
    WITH_LOCK (&t->lock);
    TAILQ_INIT (&taken);
    TAILQ_CONCAT (&taken, &t->requests, link);
    t->kicked = t->more = false;
  }
  if (r == 0)
    txg_give_back (t);
  finish_requests (t, &taken, r);
  assert (TAILQ_EMPTY (&taken));
  if (r == 0 && t->has_thread && t->parts.folded)
    t->parts.folded (t->parts.opaque);
  return r;
}

struct mending {
  struct txg *txg;
  int result, err;
  char text[512];
};

static void
mend_now (void *arg)
{
  struct mending *m = arg;
  uint64_t features_compat;

  m->result = mend (m->txg, &features_compat);
  m->err = errno;
  snprintf (m->text, sizeof m->text, "%s", nbdedup_error ());
}

int
txg_mend (struct txg *t)
{
  struct mending m = { .txg = t };

  if (txg_run (t, NULL, mend_now, &m) == -1)
    return -1;
  return m.result == -1 ? nbdedup_fail (m.err, "%s", m.text) : 0;
}

struct index_merges *
txg_index_merges (struct txg *t)
{
  assert (t->next_merges != NULL); /* inside a fold's transaction */
  return t->next_merges;
}

void
txg_shrink_index (struct txg *t)
{
  t->merges.shrink = true;
}

bool
txg_is_shrinking_index (struct txg *t)
{
  return fold_index_is_shrinking (&t->merges) &&
    clock_ms () >= t->merge_after_ms;
}
