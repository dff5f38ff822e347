/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "core/events.h"
#include "core/moves.h"
#include "core/txg-int.h"

/* Fold at most this long after the first change. */
#define FOLD_INTERVAL_MS 5000
/* The same when so many blocks were freed at once.  The last txg of a large
 * trim may have few of them: then fold when clients free nothing for so long.
 */
#define HURRY_INTERVAL_MS 200
#define HURRY_BLOCKS 16384u
#define STRETCH_STEP_MS 20
/* Pages of pool.db; 16 and 32 MiB. */
#define VACUUM_MIN_UNUSED 2048u
#define VACUUM_MAX_USED 4096u
#define VACUUM_TIMES 4u
#define VACUUM_RETRY_MS 15000

static _Thread_local struct txg_event *thread_event;

static void
get_pages (void *opaque, struct room_pages *pages)
{
  struct txg *t = opaque;
  struct meta_pages p;

  meta_get_pages (t->parts.meta, &p);
  *pages = (struct room_pages) { p.used, p.allocated, p.wal_allocated };
}

static int
allocate_pages (void *opaque, uint64_t db_pages, uint64_t wal_pages)
{
  struct txg *t = opaque;

  return meta_allocate (t->parts.meta, db_pages, wal_pages);
}

static void
give_back_pages (void *opaque, uint64_t db_pages, uint64_t wal_pages)
{
  struct txg *t = opaque;

  meta_give_back (t->parts.meta, db_pages, wal_pages,
                  t->expels_readers ? META_EXPEL : META_TRUNCATE);
}

static uint64_t
get_free_pages (void *opaque)
{
  struct txg *t = opaque;

  return meta_free_pages (t->parts.meta);
}

static struct room *
new_room (struct txg *t, uint64_t wal_max_bytes)
{
  const struct room_ops ops = {
    get_pages, allocate_pages, give_back_pages, get_free_pages, t,
  };

  return room_new (&ops, wal_max_bytes / META_PAGE_BYTES);
}

struct txg *
txg_new (const struct txg_parts *parts, const struct meta_state *state,
         uint64_t budget_bytes)
{
  struct txg *t = calloc (1, sizeof *t);

  if (t == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  t->parts = *parts;
  t->parts.merges = &t->merges;
  t->repairing = parts->repairing;
  t->index_in_place = true; /* not known before the first fold */
  t->state = *state;
  t->budget = budget_bytes;
  t->new_bytes_max = UINT64_MAX;
  t->fold_interval_ms = FOLD_INTERVAL_MS;
  lock_init (&t->lock);
  cond_init (&t->may_enter);
  cond_init (&t->all_out);
  cond_init (&t->wake);
  cond_init (&t->folded);
  TAILQ_INIT (&t->requests);
  t->log = txg_log_new (parts->journal, parts->store, state->sector_bytes);
  t->room = new_room (t, parts->wal_max_bytes);
  if (t->log == NULL || t->room == NULL) {
    txg_free (t);
    return NULL;
  }
  t->limit = FOLD_PAGES_MIN * 4;
  t->background_rows = parts->background_rows;
  if (state->copy_sectors > 0)
    room_set_copies (t->room, COPIES_MAX);
  return t;
}

void
txg_free (struct txg *t)
{
  if (t == NULL)
    return;
  assert (TAILQ_EMPTY (&t->requests) && t->nr_inside == 0);
  assert (!t->has_thread);
  txg_log_free (t->log);
  room_free (t->room);
  cond_destroy (&t->folded);
  cond_destroy (&t->wake);
  cond_destroy (&t->all_out);
  cond_destroy (&t->may_enter);
  lock_destroy (&t->lock);
  free (t);
}

/* Without memory, which may be why it failed, a plain line of the log. */
static void
tell_failure (const struct txg *t)
{
  static const char fmt[] = "the pool has stopped and writes nothing "
                            "more: %s%s";
  const char *const todo = t->inconsistent
    ? ", once this server has stopped"
    : ": restart the server, or run the command again";
  json_t *event = t->parts.events == NULL
    ? NULL
    : event_new ("stopped", "{s:o}", "error",
                 nbdedup_json_text (nbdedup_error ()));

  if (event)
    events_post (t->parts.events, NBDEDUP_LOG_ERROR, event, fmt,
                 nbdedup_error (), todo);
  else
    nbdedup_log (NBDEDUP_LOG_ERROR, fmt, nbdedup_error (), todo);
}

void
txg_fail (struct txg *t)
{
  const int err = errno;

  if (errno == ENOMEM && !t->failed)
    t->no_memory = true;
  /* While the pool is being opened or closed the caller gets the error. */
  if (!atomic_exchange (&t->failed, true) && t->has_thread && !t->stop)
    tell_failure (t);
  errno = err;
}

int
txg_check (struct txg *t)
{
  if (t->failed && t->no_memory)
    return nbdedup_fail (EIO,
                         "the pool has stopped for lack of memory: "
                         "restart the server, or run the command again");
  if (t->failed && t->inconsistent)
    return nbdedup_fail (EIO,
                         "the pool has stopped, because the tables of "
                         "pool.db are damaged or contradict each other: stop "
                         "the server, and run nbdedup check --repair");
  if (t->failed)
    return nbdedup_fail (EIO,
                         "the pool has stopped after a failed write to "
                         "its disk: restart the server, or run the command "
                         "again");
  return 0;
}

bool
txg_is_stuck (struct txg *t)
{
  return t->stuck;
}

bool
txg_is_overfull (struct txg *t)
{
  return t->stuck && txg_pending_bytes (t) > t->budget;
}

bool
txg_is_cutting (const struct txg *t)
{
  return t->cutting;
}

size_t
txg_pending_bytes (struct txg *t)
{
  return map_pending_bytes (t->parts.map) + ddt_pending_bytes (t->parts.ddt) +
    txg_log_bytes (t->log);
}

void
txg_get_load (struct txg *t, struct txg_load *load)
{
  load->folds = t->nr_folds;
  load->fold_ms = t->fold_ms;
  load->merge_entries = t->merge_entries;
  load->pending_bytes = txg_pending_bytes (t);
  load->pending_max_bytes = t->budget;
}

void
txg_assert_consistent_locked (struct txg *t)
{
  const struct request *first = TAILQ_FIRST (&t->requests), *q;

  assert_held (&t->lock);
  assert (!t->cutting || !t->folding);
  assert (first == NULL || t->has_thread || TAILQ_NEXT (first, link) == NULL);
  if (NBDEDUP_EXPENSIVE_ASSERTS)
    TAILQ_FOREACH (q, &t->requests, link)
      assert (!q->finished && q->result == 0);
}

static void
kick (struct txg *t)
{
  WITH_LOCK (&t->lock);
  WITH_CONSISTENT (txg, t);
  t->kicked = true;
  cond_signal (&t->wake);
}

/* A small ring that is full grows only after a fold, too. */
static bool
journal_wants_fold (struct txg *t)
{
  uint64_t live, ring;

  if (txg_log_waits_for_room (t->log))
    return true;
  journal_get_usage (t->parts.journal, &live, &ring);
  return live > ring / 2 && live > JOURNAL_MAX_BYTES / 4;
}

/* What this txg overwrites stays in use until its fold. */
static bool
holds_much_space (struct txg *t)
{
  return t->new_bytes > t->new_bytes_max;
}

void
txg_throttle (struct txg *t)
{
  size_t bytes = txg_pending_bytes (t);

  if (bytes > t->budget / 2 || journal_wants_fold (t) || holds_much_space (t))
    kick (t);
  txg_pace (t, bytes);
  if (bytes <= t->budget)
    return;
  WITH_LOCK (&t->lock);
  WITH_CONSISTENT (txg, t);
  while (txg_pending_bytes (t) > t->budget && !t->failed && !t->stuck &&
         !t->stop) {
    t->kicked = true;
    cond_signal (&t->wake);
    lock_wait_ms (&t->lock, &t->folded, 100);
  }
}

uint64_t
txg_enter (struct txg *t, unsigned nr, uint64_t pages)
{
  bool entered;

  assert (!t->parts.readonly);
  WITH_LOCK (&t->lock);
  WITH_CONSISTENT (txg, t);
  for (;;) {
    if (t->cutting) {
      lock_wait (&t->lock, &t->may_enter);
      continue;
    }
    entered = room_enter (t->room, nr, pages);
    if (entered || t->failed || t->stuck || t->stop)
      break;
    /* The end of a fold makes room in this txg, so that it need not be cut with
     * the few changes that had room beside the other.
     */
    if (!t->folding) {
      t->kicked = true;
      cond_signal (&t->wake);
    }
    lock_wait_ms (&t->lock, &t->folded, STRETCH_STEP_MS);
    txg_stretch (t);
  }
  assert (!t->cutting);
  t->nr_inside++;
  return entered ? pages : 0;
}

struct room_touched
txg_touch (struct txg *t)
{
  return room_touch (t->room);
}

void
txg_return (struct txg *t, uint64_t pages, const struct room_touched *touched)
{
  assert (touched == NULL || touched->room == t->room); /* by txg_touch */
  room_return (t->room, pages,
               t->index_in_place || t->repairing ? NULL : touched);
}

void
txg_leave (struct txg *t)
{
  WITH_LOCK (&t->lock);
  WITH_CONSISTENT (txg, t);
  assert (t->nr_inside > 0);
  if (--t->nr_inside == 0 && t->cutting)
    cond_signal (&t->all_out);
}

int
txg_log_record (struct txg *t, const struct record *record, uint64_t chunk_addr,
                bool over_quota)
{
  t->new_bytes += record->ptr.psize;
  t->all_new_bytes += record->ptr.psize;
  return txg_log_add_record (t->log, record, chunk_addr, over_quota);
}

/* Layers of one branch have their rows between each other (layer.h). */
static void
touch_leaf (struct room_touched *touched, const struct layer *layer,
            uint64_t block)
{
  if (touched)
    room_touch_leaf (touched, layer->id, block / LEAF_BLOCKS,
                     layer->base == layer);
}

int
txg_set_pointer (struct txg *t, struct layer *layer, uint64_t block,
                 const struct pointer *ptr, struct room_touched *touched)
{
  uint64_t displaced;
  int r;

  /* Journal first: if that fails nothing has changed. */
  if (txg_log_add_pointer (t->log, layer->id, block, ptr) == -1)
    return -1;
  touch_leaf (touched, layer, block);
  r = map_set (t->parts.map, layer, block, ptr, &displaced);
  if (r == 1) {
    ddt_unref (t->parts.ddt, displaced);
    if (touched)
      room_touch_lost (touched, displaced);
  }
  if (r == -1)
    txg_fail (t); /* journal and memory differ now */
  return r == -1 ? -1 : 0;
}

/* The part of a hole that lies in one leaf. */
static int
set_leaf_holes (struct txg *t, struct layer *layer, uint64_t block,
                unsigned count, struct room_touched *touched)
{
  uint64_t displaced[LEAF_BLOCKS];
  unsigned i;
  int nr = 0, r;

  assert (count > 0 && block % LEAF_BLOCKS + count <= LEAF_BLOCKS);
  if (count == LEAF_BLOCKS)
    nr = map_set_holes (t->parts.map, layer, block / LEAF_BLOCKS, displaced);
  else
    for (i = 0; i < count; ++i) {
      r = map_set (t->parts.map, layer, block + i, NULL, &displaced[nr]);
      if (r == -1)
        return -1;
      nr += r;
    }
  if (nr == -1)
    return -1;
  if (t->parts.readonly)
    return 0;
  touch_leaf (touched, layer, block);
  while (nr > 0) {
    ddt_unref (t->parts.ddt, displaced[--nr]);
    if (touched)
      room_touch_lost (touched, displaced[nr]);
  }
  return 0;
}

static int
set_holes (struct txg *t, struct layer *layer, uint64_t block, uint64_t count,
           struct room_touched *touched)
{
  unsigned n;

  for (; count > 0; block += n, count -= n) {
    n = LEAF_BLOCKS - block % LEAF_BLOCKS;
    if (n > count)
      n = (unsigned) count;
    if (set_leaf_holes (t, layer, block, n, touched) == -1) {
      txg_fail (t);
      return -1;
    }
  }
  return 0;
}

int
txg_apply_holes (struct txg *t, struct layer *layer, uint64_t block,
                 uint64_t count)
{
  return set_holes (t, layer, block, count, NULL);
}

/* Their space comes back with the fold. */
static void
note_holes (struct txg *t, uint64_t count)
{
  const uint64_t before = atomic_fetch_add (&t->holes, count);
  const bool large = before + count >= HURRY_BLOCKS;

  t->late_holes += count;
  if (!large && (before > 0 || t->late_holes < HURRY_BLOCKS))
    return;
  WITH_LOCK (&t->lock);
  if (!t->hurry)
    cond_signal (&t->wake);
  t->hurry |= large;
}

void
txg_forget_holes_locked (struct txg *t)
{
  const uint64_t now = clock_ms ();

  assert_held (&t->lock);
  if (now - t->forgot_holes_ms < t->fold_interval_ms)
    return;
  t->late_holes = t->late_holes / 2;
  t->forgot_holes_ms = now;
}

int
txg_set_holes (struct txg *t, struct layer *layer, uint64_t block,
               uint64_t count, struct room_touched *touched)
{
  if (txg_log_add_holes (t->log, layer->id, block, count) == -1)
    return -1;
  note_holes (t, count);
  return set_holes (t, layer, block, count, touched);
}

int
txg_apply_lost (struct txg *t, struct layer *layer, uint64_t block,
                uint64_t count)
{
  uint64_t displaced;
  int r;

  for (; count > 0; ++block, --count) {
    r = map_set_lost (t->parts.map, layer, block, &displaced);
    if (r == -1) {
      txg_fail (t);
      return -1;
    }
    if (r == 1 && !t->parts.readonly)
      ddt_unref (t->parts.ddt, displaced);
  }
  return 0;
}

int
txg_set_lost (struct txg *t, struct layer *layer, uint64_t block,
              uint64_t count)
{
  if (txg_log_add_lost (t->log, layer->id, block, count) == -1)
    return -1;
  return txg_apply_lost (t, layer, block, count);
}

int
txg_flush (struct txg *t)
{
  int r;

  if (txg_check (t) == -1)
    return -1;
  if (t->parts.readonly)
    return 0;
  r = txg_log_flush (t->log);
  if (r == 1) /* the journal is full: pool.db then */
    return txg_run (t, NULL, NULL, NULL);
  if (r == -1)
    txg_fail (t);
  return r;
}

/* Nothing is to be done: if most of pool.db is free, and the rest is written
 * soon, make it small again.
 */
static void
vacuum (struct txg *t)
{
  const uint64_t now = clock_ms ();
  struct meta_pages p;
  int r;

  meta_get_pages (t->parts.meta, &p);
  if (p.unused < VACUUM_MIN_UNUSED || p.unused < VACUUM_TIMES * p.used ||
      p.used > VACUUM_MAX_USED || now < t->vacuum_after_ms)
    return;
  r = meta_vacuum (t->parts.meta);
  if (r == 1) {
    txg_keep_room (t);
    t->gives_back = true;
  }
  if (r != -1) /* a frozen reader ends soon */
    return;
  /* Without room, or beside a damaged page, pool.db stays as it is. */
  t->vacuum_after_ms = now + VACUUM_RETRY_MS;
  if (errno == EIO && meta_has_write_failed (meta_writer (t->parts.meta)))
    txg_fail (t);
}

static bool
may_wait_locked (const struct txg *t)
{
  return TAILQ_EMPTY (&t->requests) && !t->kicked && !t->stop && !t->more;
}

/* Wait until a fold is due, or there is nothing to do. */
static void
wait_for_changes_locked (struct txg *t)
{
  const uint64_t end = clock_ms () + t->fold_interval_ms;
  uint64_t now, holes;
  bool trimmed;

  assert_held (&t->lock);
  while (may_wait_locked (t) && !t->hurry && (now = clock_ms ()) < end) {
    holes = t->holes;
    trimmed = holes > 0 && t->late_holes >= HURRY_BLOCKS;
    lock_wait_ms (&t->lock, &t->wake, trimmed ? HURRY_INTERVAL_MS : end - now);
    if (trimmed && holes == t->holes)
      return;
  }
  if (may_wait_locked (t) && t->hurry)
    lock_wait_ms (&t->lock, &t->wake, HURRY_INTERVAL_MS);
}

static void *
folding_thread (void *arg)
{
  struct txg *t = arg;
  bool stop, idle;

  for (;;) {
    {
      WITH_LOCK (&t->lock);
      wait_for_changes_locked (t);
      stop = t->stop;
      if (stop && TAILQ_EMPTY (&t->requests))
        return NULL;
      idle = TAILQ_EMPTY (&t->requests) && !t->kicked && !t->more &&
        txg_pending_bytes (t) == 0 && !fold_index_is_merging (&t->merges);
    }
    if (!idle)
      txg_fold (t);
    else if (txg_check (t) == 0) {
      vacuum (t);
      txg_give_back (t);
    }
  }
}

static int
run (struct txg *t, struct request *q)
{
  if (q->fn && thread_event && !thread_event->taken)
    q->event = thread_event;
  assert (q->pages == 0 || q->fn != NULL);
  if (t->parts.readonly)
    return q->fn == NULL ? 0
                         : nbdedup_fail (EROFS, "the pool is open read-only");
  {
    WITH_LOCK (&t->lock);
    WITH_CONSISTENT (txg, t);
    TAILQ_INSERT_TAIL (&t->requests, q, link);
    cond_signal (&t->wake);
    if (t->has_thread)
      while (!q->finished)
        lock_wait (&t->lock, &t->folded);
  }
  if (!q->finished)
    txg_fold (t); /* before txg_start: in this thread */
  assert (q->finished);
  if (q->result == -1)
    return nbdedup_fail (q->err, "%s", q->text);
  if (q->event)
    q->event->taken = true;
  return 0;
}

void
txg_set_event (struct txg_event *event)
{
  thread_event = event;
}

int
txg_run (struct txg *t,
         int (*fn) (void *arg, struct meta_conn *c, struct meta_state *state),
         void (*done) (void *arg), void *arg)
{
  struct request q = { .fn = fn, .done = done, .arg = arg };

  return run (t, &q);
}

/* What records have left may still have to be given back. */
static bool
finds_room (struct txg *t)
{
  const int err = errno;
  const bool found = err == ENOSPC && space_settle (t->parts.space);

  errno = err;
  return found;
}

int
txg_run_large (struct txg *t, uint64_t pages,
               int (*fn) (void *arg, struct meta_conn *c,
                          struct meta_state *state),
               void (*done) (void *arg), void *arg)
{
  struct request q = { .fn = fn, .done = done, .arg = arg, .pages = pages };

  if (room_check (t->room, pages) == -1 &&
      (!finds_room (t) || room_check (t->room, pages) == -1))
    return -1;
  return run (t, &q);
}

int
txg_reserve (struct txg *t, unsigned nr, enum room_use use)
{
  return room_reserve (t->room, nr, use);
}

void
txg_unreserve (struct txg *t, unsigned nr)
{
  room_unreserve (t->room, nr);
}

void
txg_set_copies (struct txg *t)
{
  room_set_copies (t->room, COPIES_MAX);
}

int
txg_check_copies (struct txg *t)
{
  int r = room_check_copies (t->room, COPIES_MAX);

  if (r == -1 && finds_room (t))
    r = room_check_copies (t->room, COPIES_MAX);
  return r;
}

uint64_t
txg_get_room (struct txg *t, struct room_pages *pages)
{
  return room_get (t->room, pages);
}

uint64_t
txg_leaves_at_once (struct txg *t)
{
  return room_leaves_at_once (t->room);
}

uint64_t
txg_blocks_at_once (struct txg *t)
{
  return room_blocks_at_once (t->room);
}

int
txg_hold_moves (struct txg *t)
{
  struct moves *m = t->parts.moves;

  moves_hold (m);
  if (!m->under_way || txg_run (t, NULL, NULL, NULL) == 0)
    return 0;
  moves_release (m);
  return -1;
}

void
txg_release_moves (struct txg *t)
{
  moves_release (t->parts.moves);
}

uint64_t
txg_new_bytes (struct txg *t)
{
  return t->all_new_bytes;
}

struct lend {
  struct txg *txg;
  void (*fn) (void *arg);
  void *arg;
};

/* Runs between the commit and txg_keep_room, which allocates it again. */
static void
lend (void *arg)
{
  struct lend *l = arg;

  meta_give_back (l->txg->parts.meta, 0, 0, META_EXPEL);
  l->fn (l->arg);
}

int
txg_lend_room (struct txg *t, void (*fn) (void *arg), void *arg)
{
  struct lend l = { t, fn, arg };

  return txg_run (t, NULL, lend, &l);
}

int
txg_make_room (struct txg *t, bool urgent)
{
  struct request q = { .gives_back = true, .expels_readers = urgent };

  if (run (t, &q) == -1)
    return -1;
  space_settle (t->parts.space);
  return 0;
}

void
txg_keep_room (struct txg *t)
{
  struct meta_pages p;

  meta_get_pages (t->parts.meta, &p);
  meta_set_kept (t->parts.meta, room_kept_pages (p.used),
                 room_kept_wal_pages (p.used, room_get_copies (t->room)));
  room_keep (t->room);
}

static void
note_background (void *arg, struct layer *layer)
{
  (void) layer;
  *(bool *) arg = true;
}

bool
txg_has_background (struct txg *t)
{
  bool found = false;

  t->parts.each_background (t->parts.opaque, note_background, &found);
  return found;
}

int
txg_start (struct txg *t)
{
  assert (!t->has_thread && !t->parts.readonly);
  txg_keep_room (t);
  /* Release surplus copies, also if there is no other change. */
  t->more = txg_has_background (t) ||
    (t->state.copy_sectors > 0 && copies_has_surplus (t->parts.copies));
  t->has_thread = true;
  if (thread_start (&t->thread, folding_thread, t) == 0)
    return 0;
  t->has_thread = false;
  return -1;
}

int
txg_stop (struct txg *t)
{
  int r = 0;

  if (!t->has_thread)
    return 0;
  if (txg_pending_bytes (t) > 0)
    r = txg_run (t, NULL, NULL, NULL);
  if (r == 0)
    r = txg_check (t);
  {
    WITH_LOCK (&t->lock);
    WITH_CONSISTENT (txg, t);
    t->stop = true;
    cond_signal (&t->wake);
  }
  pthread_join (t->thread, NULL);
  t->has_thread = false;
  return r;
}

void
txg_set_repairing (struct txg *t, bool repairing)
{
  t->repairing = repairing;
}

void
txg_get_state (struct txg *t, struct meta_state *state)
{
  WITH_LOCK (&t->lock);
  *state = t->state;
}
