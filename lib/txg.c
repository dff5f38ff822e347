/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "backoff.h"
#include "cleanup.h"
#include "error.h"
#include "fold.h"
#include "log.h"
#include "txg-int.h"

/* Fold at the latest this long after the first change. */
#define FOLD_INTERVAL_MS 5000
/* Up to here the WAL is given more room rather than started again. */
#define WAL_GROW_BYTES (UINT64_C (96) << 20)
/* After a fold that failed for lack of space, try again this often. */
#define FULL_RETRY_MS 1000

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

  meta_give_back (t->parts.meta, db_pages, wal_pages);
}

static struct room *
new_room (struct txg *t, uint64_t wal_max_bytes)
{
  const struct room_ops ops = {
    get_pages, allocate_pages, give_back_pages, t,
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
  t->state = *state;
  t->budget = budget_bytes;
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
  if (state->copy_sectors > 0)
    room_set_copies (t->room, COPIES_MAX);
  return t;
}

void
txg_free (struct txg *t)
{
  if (t == NULL)
    return;
  assert (TAILQ_EMPTY (&t->requests));
  txg_log_free (t->log);
  room_free (t->room);
  pthread_cond_destroy (&t->folded);
  pthread_cond_destroy (&t->wake);
  pthread_cond_destroy (&t->all_out);
  pthread_cond_destroy (&t->may_enter);
  lock_destroy (&t->lock);
  free (t);
}

void
txg_fail (struct txg *t)
{
  if (errno == ENOMEM && !t->failed)
    t->no_memory = true;
  /* Who opens or closes the pool is told. */
  if (!atomic_exchange (&t->failed, true) && t->has_thread && !t->stop)
    nbdedup_log (NBDEDUP_LOG_ERROR, "the pool stops, nothing is written any "
                 "more: %s: close and open it again", nbdedup_error ());
}

int
txg_check (struct txg *t)
{
  if (t->failed && t->no_memory)
    return nbdedup_fail (EIO, "the pool has stopped, there was no memory; close "
                         "and open it again");
  if (t->failed)
    return nbdedup_fail (EIO, "the pool has stopped after a failed write to "
                         "its disk; close and open it again");
  return 0;
}

bool
txg_is_stuck (struct txg *t)
{
  return t->stuck;
}

size_t
txg_pending_bytes (struct txg *t)
{
  return map_pending_bytes (t->parts.map) + ddt_pending_bytes (t->parts.ddt) +
    txg_log_bytes (t->log);
}

static void
kick (struct txg *t)
{
  WITH_LOCK (&t->lock);
  t->kicked = true;
  pthread_cond_signal (&t->wake);
}

static bool
journal_is_half_full (struct txg *t)
{
  uint64_t live, ring;

  journal_get_usage (t->parts.journal, &live, &ring);
  return live > ring / 2 && live > JOURNAL_MAX_BYTES / 4;
}

void
txg_throttle (struct txg *t)
{
  size_t bytes = txg_pending_bytes (t);

  if (bytes > t->budget / 2 || journal_is_half_full (t))
    kick (t);
  if (bytes <= t->budget)
    return;
  WITH_LOCK (&t->lock);
  while (txg_pending_bytes (t) > t->budget && !t->failed && !t->stuck &&
         !t->stop) {
    t->kicked = true;
    pthread_cond_signal (&t->wake);
    lock_wait_ms (&t->lock, &t->folded, 100);
  }
}

void
txg_enter (struct txg *t, unsigned nr, uint64_t pages)
{
  WITH_LOCK (&t->lock);
  for (;;) {
    if (t->cutting) {
      lock_wait (&t->lock, &t->may_enter);
      continue;
    }
    if (room_enter (t->room, nr, pages) || t->failed || t->stuck || t->stop)
      break;
    t->kicked = true;
    pthread_cond_signal (&t->wake);
    lock_wait_ms (&t->lock, &t->folded, 100);
  }
  t->nr_inside++;
}

void
txg_leave (struct txg *t)
{
  WITH_LOCK (&t->lock);
  assert (t->nr_inside > 0);
  if (--t->nr_inside == 0 && t->cutting)
    pthread_cond_signal (&t->all_out);
}

int
txg_log_record (struct txg *t, const struct record *record,
                uint64_t chunk_addr)
{
  return txg_log_add_record (t->log, record, chunk_addr);
}

int
txg_set_pointer (struct txg *t, struct layer *layer, uint64_t block,
                 const struct pointer *ptr)
{
  uint64_t displaced;
  int r;

  /* Journal first: if that fails nothing has changed. */
  if (txg_log_add_pointer (t->log, layer->id, block, ptr) == -1)
    return -1;
  r = map_set (t->parts.map, layer, block, ptr, &displaced);
  if (r == 1)
    ddt_unref (t->parts.ddt, displaced);
  if (r == -1)
    txg_fail (t);           /* journal and memory differ now */
  return r == -1 ? -1 : 0;
}

/* The part of a hole that lies in one leaf. */
static int
set_leaf_holes (struct txg *t, struct layer *layer, uint64_t block,
                unsigned count)
{
  uint64_t displaced[LEAF_BLOCKS];
  unsigned i;
  int nr = 0, r;

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
  while (nr > 0)
    ddt_unref (t->parts.ddt, displaced[--nr]);
  return 0;
}

int
txg_apply_holes (struct txg *t, struct layer *layer, uint64_t block,
                 uint64_t count)
{
  unsigned n;

  for (; count > 0; block += n, count -= n) {
    n = LEAF_BLOCKS - block % LEAF_BLOCKS;
    if (n > count)
      n = (unsigned) count;
    if (set_leaf_holes (t, layer, block, n) == -1) {
      txg_fail (t);
      return -1;
    }
  }
  return 0;
}

int
txg_set_holes (struct txg *t, struct layer *layer, uint64_t block,
               uint64_t count)
{
  if (txg_log_add_holes (t->log, layer->id, block, count) == -1)
    return -1;
  return txg_apply_holes (t, layer, block, count);
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
  if (r == 1)                   /* the journal is full: pool.db then */
    return txg_run (t, NULL, NULL, NULL);
  if (r == -1)
    txg_fail (t);
  return r;
}

/*----------------------------------------------------------------------
 * Folding
 */

/* Close the open txg.  Returns with it folding, and 'taken' the requests
 * that this fold serves.
 */
static int
cut (struct txg *t, struct requests *taken, struct meta_state *state)
{
  int r;

  WITH_LOCK (&t->lock);
  t->cutting = true;
  while (t->nr_inside > 0)
    lock_wait (&t->lock, &t->all_out);
  TAILQ_INIT (taken);
  TAILQ_CONCAT (taken, &t->requests, link);
  t->kicked = false;
  *state = t->state;
  r = txg_log_cut (t->log, &state->folded, &state->journal_position);
  map_cut (t->parts.map);
  ddt_cut (t->parts.ddt);
  room_cut (t->room);
  t->cutting = false;
  pthread_cond_broadcast (&t->may_enter);
  return r;
}

/* Record why a request fails: the text is the last one of this thread. */
static void
fail_request (struct request *q, int err)
{
  q->result = -1;
  q->err = err;
  snprintf (q->text, sizeof q->text, "%s", nbdedup_error ());
}

/* Run the requests' functions inside the transaction, each by itself.  What
 * one that fails has done is undone, and it is not run again.  1: it cannot
 * be undone, because SQLite has rolled back the transaction: once more from
 * the start, without it.
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

/* 1: not done, but it may be next time: a request failed (run_requests). */
static int
try_transaction (struct txg *t, struct fold *f, struct requests *taken,
                 bool with_index)
{
  struct meta_conn *c = meta_writer (t->parts.meta);
  int r, err;

  if (meta_begin (c) == -1)
    return -1;
  backoff_is_off = true;        /* wait_for_memory, or it can do without */
  r = fold_write_tables (f, c, with_index);
  backoff_is_off = false;
  if (r == 0)
    r = run_requests (taken, c, fold_state (f));
  if (r == 0)
    r = meta_state_put (c, fold_state (f));
  if (r == 0)
    return meta_commit (c);
  err = errno;
  meta_rollback (c);
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
    if (result == -1 && q->result != -1)
      fail_request (q, err);
    q->finished = true;
  }
  pthread_cond_broadcast (&t->folded);
}

/* There is no room although it was allocated (room.h): a file system that
 * writes to other places than it allocated is full, or a reader stays in the
 * WAL.  The journal and memory keep what cannot be folded; new data is
 * refused meanwhile, and those who wait for a fold are told.  -1: no use in
 * waiting.
 */
static int
wait_for_space (struct txg *t, struct requests *taken)
{
  WITH_LOCK (&t->lock);
  nbdedup_fail (ENOSPC, "the pool's file system is full, there is no room "
                "for pool.db: free some");
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

/* The WAL must have room for the fold: behind what it has, or from its start
 * on.
 */
static void
prepare_wal (struct txg *t, uint64_t extra)
{
  struct meta_pages p;
  uint64_t need = room_fold_pages (t->room, extra);

  meta_throttle (t->parts.meta);
  meta_get_pages (t->parts.meta, &p);
  /* Replay does not count what it brings, and does not know what the WAL
   * has: from the start there is room.
   */
  if (t->has_thread && p.wal_used + need <= p.wal_allocated)
    return;
  if (t->has_thread &&
      p.wal_used + need <= WAL_GROW_BYTES / META_PAGE_BYTES &&
      p.wal_used + need <= t->parts.wal_max_bytes / META_PAGE_BYTES &&
      meta_allocate (t->parts.meta, 0, p.wal_used + need) == 0)
    return;
  meta_restart_wal (t->parts.meta, true);
  /* If this fails, the transaction tells. */
  (void) meta_allocate (t->parts.meta, 0, need);
}

/* There was no memory for a step of the fold, which has written nothing that
 * counts: it is tried again, at once, and then in pauses that become longer.
 * Those who wait for a fold are told after a while.  -1: no use in waiting.
 */
static int
wait_for_memory (struct txg *t, struct requests *taken, unsigned *tries)
{
  uint64_t pause_ms;

  if (*tries == 0)
    nbdedup_log (NBDEDUP_LOG_WARNING, "no memory to write to pool.db (%s): "
                 "writes wait until there is some", nbdedup_error ());
  pause_ms = backoff_ms (tries);
  WITH_LOCK (&t->lock);
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

/* The fold has met a damaged page; true: once more.  Readers do not stay in the
 * WAL for ever.
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

static int
transaction (struct txg *t, struct fold *f, struct requests *taken)
{
  bool with_index = true, restarted = false;
  unsigned rows, tries = 0;
  int r;

  prepare_wal (t, pages_of (taken));
  rows = room_background_leaves (t->room, pages_of (taken),
                                 t->parts.background_rows);
  for (;;) {
    fold_set_background_rows (f, rows);
    r = try_transaction (t, f, taken, with_index);
    if (r == 0) {
      meta_committed (t->parts.meta);
      return 0;
    }
    if (r == 1)
      continue;
    /* Damage that was read there must not stop the pool.  Nothing that
     * could not be written is ever tried again.
     */
    if (errno == EIO && with_index && fold_index_is_damaged (f))
      with_index = false;
    else if (errno == EIO && fold_copies_are_damaged (f))
      nbdedup_log (NBDEDUP_LOG_ERROR, "%s: space of copies may stay in use "
                   "until \"nbdedup check --repair\"", nbdedup_error ());
    else if (errno == EIO && meta_is_damaged (meta_writer (t->parts.meta)) &&
             mend_for_fold (t, f))
      continue;
    else if (errno == ENOMEM) {
      if (wait_for_memory (t, taken, &tries) == -1)
        return -1;
    }
    else if (errno != ENOSPC)
      return -1;
    /* What happens in the background can do with less. */
    else if (rows > 0) {
      meta_restart_wal (t->parts.meta, true);
      rows /= 2;
    }
    else if (!restarted) {
      meta_restart_wal (t->parts.meta, true);
      restarted = true;
    }
    else {
      t->stuck = true;
      if (wait_for_space (t, taken) == -1)
        return -1;
      restarted = false;
    }
  }
}

/* What stays allocated is what the next open needs. */
static void
keep_room (struct txg *t)
{
  struct meta_pages p;

  meta_get_pages (t->parts.meta, &p);
  meta_set_kept (t->parts.meta, room_kept_pages (p.used),
                 room_kept_wal_pages (p.used, room_get_copies (t->room)));
  room_keep (t->room);
}

static void
finish_requests (struct txg *t, struct requests *taken, int result)
{
  WITH_LOCK (&t->lock);
  finish_requests_locked (t, taken, result);
}

static void
note_background (void *arg, struct layer *layer)
{
  (void) layer;
  *(bool *) arg = true;
}

/* Do layers wait for folds? */
static bool
has_background (struct txg *t)
{
  bool found = false;

  t->parts.each_background (t->parts.opaque, note_background, &found);
  return found;
}

/* What comes before the transaction; NULL: it failed. */
static struct fold *
begin_fold (struct txg *t, struct requests *taken,
            const struct meta_state *state)
{
  unsigned tries = 0;
  struct fold *f;
  int err;

  for (;;) {
    f = fold_new (&t->parts, state);
    if (f != NULL && fold_write_summaries (f) == 0 &&
        store_sync (t->parts.store) == 0)
      return f;
    err = errno;
    fold_free (f);
    errno = err;
    if (err != ENOMEM || wait_for_memory (t, taken, &tries) == -1)
      return NULL;
  }
}

static int
fold_folding (struct txg *t, struct requests *taken,
              const struct meta_state *state)
{
  struct fold *f = begin_fold (t, taken, state);
  bool only_here;               /* the journal does not know all of it */
  struct request *q;
  int r = -1, err;

  if (f != NULL && transaction (t, f, taken) == 0) {
    r = 0;
    {
      WITH_LOCK (&t->lock);
      t->state = *fold_state (f);
      t->more = fold_has_more (f);
    }
    only_here = txg_log_folded (t->log);
    journal_trim (t->parts.journal, state->folded, state->journal_position);
    fold_finish (f);
    TAILQ_FOREACH (q, taken, link) {
      only_here |= q->fn != NULL && q->result == 0;
      if (q->result == 0 && q->done)
        q->done (q->arg);
    }
    /* Of writes, the journal knows when pool.db has lost its WAL; of what a
     * command did, and of what had no room in the journal, nothing else
     * knows.
     */
    if (only_here) {
      bool more = has_background (t);

      meta_copy_wal (t->parts.meta);
      WITH_LOCK (&t->lock);
      t->more |= more;
    }
    t->stuck = false;
    room_folded (t->room);
    keep_room (t);
  }
  else
    txg_fail (t);
  err = errno;
  fold_free (f);
  errno = err;
  return r;
}

static bool
take_give_back (struct txg *t)
{
  bool wanted;

  WITH_LOCK (&t->lock);
  wanted = t->give_back;
  t->give_back = false;
  return wanted;
}

static int
fold (struct txg *t)
{
  struct requests taken;
  struct meta_state state;
  int r = txg_check (t);

  if (r == 0) {
    r = cut (t, &taken, &state);
    if (r == 0)
      r = fold_folding (t, &taken, &state);
    else
      txg_fail (t);
  }
  else {
    WITH_LOCK (&t->lock);
    TAILQ_INIT (&taken);
    TAILQ_CONCAT (&taken, &t->requests, link);
    t->kicked = t->more = false;
  }
  if (r == 0 && take_give_back (t))
    room_give_back (t->room);
  finish_requests (t, &taken, r);
  if (r == 0 && t->has_thread && t->parts.folded)
    t->parts.folded (t->parts.opaque);
  return r;
}

static void *
folding_thread (void *arg)
{
  struct txg *t = arg;
  bool stop;

  for (;;) {
    {
      WITH_LOCK (&t->lock);
      if (TAILQ_EMPTY (&t->requests) && !t->kicked && !t->stop && !t->more)
        lock_wait_ms (&t->lock, &t->wake, FOLD_INTERVAL_MS);
      stop = t->stop;
      if (stop && TAILQ_EMPTY (&t->requests))
        return NULL;
      if (TAILQ_EMPTY (&t->requests) && !t->kicked && !t->more &&
          txg_pending_bytes (t) == 0)
        continue;
    }
    fold (t);
  }
}

static int
run (struct txg *t, uint64_t pages,
     int (*fn) (void *arg, struct meta_conn *c, struct meta_state *state),
     void (*done) (void *arg), void *arg)
{
  struct request q = { .fn = fn, .done = done, .arg = arg, .pages = pages };

  if (t->parts.readonly)
    return fn == NULL ? 0
      : nbdedup_fail (EROFS, "the pool is open read-only");
  {
    WITH_LOCK (&t->lock);
    TAILQ_INSERT_TAIL (&t->requests, &q, link);
    pthread_cond_signal (&t->wake);
    if (t->has_thread)
      while (!q.finished)
        lock_wait (&t->lock, &t->folded);
  }
  if (!q.finished)
    fold (t);                   /* before txg_start: in this thread */
  assert (q.finished);
  if (q.result == -1)
    return nbdedup_fail (q.err, "%s", q.text);
  return 0;
}

int
txg_run (struct txg *t,
         int (*fn) (void *arg, struct meta_conn *c, struct meta_state *state),
         void (*done) (void *arg), void *arg)
{
  return run (t, 0, fn, done, arg);
}

int
txg_run_large (struct txg *t, uint64_t pages,
               int (*fn) (void *arg, struct meta_conn *c,
                          struct meta_state *state),
               void (*done) (void *arg), void *arg)
{
  if (room_check (t->room, pages) == -1)
    return -1;
  return run (t, pages, fn, done, arg);
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
  return room_check_copies (t->room, COPIES_MAX);
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

struct lend {
  struct txg *txg;
  void (*fn) (void *arg);
  void *arg;
};

/* Between the commit and keep_room, which takes it again. */
static void
lend (void *arg)
{
  struct lend *l = arg;

  meta_give_back (l->txg->parts.meta, 0, 0);
  l->fn (l->arg);
}

int
txg_lend_room (struct txg *t, void (*fn) (void *arg), void *arg)
{
  struct lend l = { t, fn, arg };

  return txg_run (t, NULL, lend, &l);
}

int
txg_make_room (struct txg *t)
{
  {
    WITH_LOCK (&t->lock);
    t->give_back = true;
  }
  return txg_run (t, NULL, NULL, NULL);
}

int
txg_start (struct txg *t)
{
  int err;

  keep_room (t);
  /* Copies that are too many go, also if nothing else comes. */
  t->more = has_background (t) ||
    (t->state.copy_sectors > 0 && copies_has_surplus (t->parts.copies));
  t->has_thread = true;
  err = pthread_create (&t->thread, NULL, folding_thread, t);
  if (err != 0) {
    t->has_thread = false;
    return nbdedup_fail (err, "cannot start a thread: %s", strerror (err));
  }
  return 0;
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
    t->stop = true;
    pthread_cond_signal (&t->wake);
  }
  pthread_join (t->thread, NULL);
  t->has_thread = false;
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

void
txg_set_repairing (struct txg *t, bool repairing)
{
  t->parts.repairing = repairing;
}

void
txg_get_state (struct txg *t, struct meta_state *state)
{
  WITH_LOCK (&t->lock);
  *state = t->state;
}
