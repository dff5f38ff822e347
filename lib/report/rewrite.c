/* SPDX-License-Identifier: BSD-3-Clause */

/* The passes, and the batches of moves in them. */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/ddt.h"
#include "core/engine.h"
#include "core/fold-index.h"
#include "core/txg.h"
#include "data/capacity.h"
#include "data/sync.h"
#include "data/volume-types.h"
#include "report/compact.h"
#include "report/rewrite-int.h"
#include "space/space.h"

/* Groups of records that one transaction enters in the index. */
#define STEP_GROUPS 64u
/* While others hold the moves back. */
#define HELD_MS 50
/* While clients are refused for lack of space. */
#define ROOM_MS 30000
/* A batch ends after so long, because what it has done counts only then. */
#define FILL_MS 20000

static int
interrupted (void)
{
  return nbdedup_fail (EINTR,
                       "interrupted: the rewritten records keep their new "
                       "form, and the next run continues");
}

int
rewrite_go_on (struct rewrite *w)
{
  const uint64_t count = w->addrs ? sorter_count (w->addrs) : 0;

  return w->progress &&
      w->progress (w->opaque, w->pass * count + w->done,
                   w->nr_passes * count) != 0
    ? interrupted ()
    : 0;
}

/*----------------------------------------------------------------------
 * The first pass: the hash index
 */

/* 1: the record enters the index; 0: it must not. */
static int
index_record (void *opaque, const struct record *r)
{
  struct rewrite *w = opaque;
  struct index_entry e;

  if (r->flags & (RECORD_INDEXED | RECORD_COPY) || r->refcount == 0)
    return 0;
  index_entry_make (&r->digest, r->ptr.addr, &e);
  if (array_push (&w->ops, &w->nr_ops, e) == -1)
    return -1;
  ddt_expect (w->pool->ddt, &r->digest);
  return 1;
}

/* Runs again if the transaction has to be repeated. */
static int
index_step (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct rewrite *w = arg;

  w->nr_ops = 0;
  if (state->features_compat & FEATURE_COMPAT_RECORDS_LOST)
    return nbdedup_fail (EIO,
                         "parts of table \"record\" of pool.db are lost: "
                         "run nbdedup check --repair first");
  if (index_flag_change (c, w->names, w->nr_names, index_record, w) == -1)
    return -1;
  return fold_index (c, w->ops, w->nr_ops, &state->index_entries,
                     txg_index_merges (w->pool->txg), false);
}

/* After the commit. */
static void
index_done (void *arg)
{
  struct rewrite *w = arg;
  struct index_runs runs;

  w->indexed += w->nr_ops;
  if (meta_index_runs (meta_writer (w->pool->meta), &runs) == 0)
    ddt_set_runs (w->pool->ddt, &runs);
}

static int
index_names (struct rewrite *w)
{
  const uint64_t pages = index_flag_pages (STEP_GROUPS, w->nr_names);
  int r;

  if (w->nr_names == 0)
    return 0;
  {
    WITH_LOCK (&w->pool->admin);
    r = txg_run_large (w->pool->txg, pages, index_step, index_done, w);
  }
  w->nr_names = 0;
  w->group = UINT64_MAX; /* its flags have changed */
  if (r == -1 && errno == ENOSPC)
    return nbdedup_fail (ENOSPC,
                         "no room in pool.db for entries of the dedup "
                         "table: free some space on its file system");
  return r;
}

static int
index_pass (struct rewrite *w)
{
  struct record r;
  int found;

  for (; w->addr != UINT64_MAX; pace_rest (&w->pace)) {
    found = rewrite_look (w, w->addr, &r);
    if (found == -1 || (found == 1 && rewrite_index_record (w, &r) == -1) ||
        (index_flag_groups (w->names, w->nr_names, STEP_GROUPS) < w->nr_names &&
         index_names (w) == -1) ||
        rewrite_go_on (w) == -1 || rewrite_next (w) == -1)
      return -1;
  }
  return index_names (w);
}

/*----------------------------------------------------------------------
 * A batch
 */

static void
give_back (struct rewrite *w)
{
  const int err = errno;

  w->mover.len = 0;
  txg_unreserve (w->pool->txg, w->batch.reserved);
  moves_give_back (w->pool->moves, &w->batch);
  errno = err;
}

/* How much may be written in one batch: a small part of the free space, or what
 * one segment holds.
 */
static int
get_most (struct rewrite *w, uint64_t *most)
{
  struct capacity cap;

  *most = compact_bytes (w->pool, COMPACT_BATCH_BYTES);
  if (*most > 0)
    return 0;
  *most = SEGMENT_BYTES;
  if (capacity_used (w->pool, &cap) == -1)
    return -1;
  return cap.free_bytes >= SEGMENT_BYTES
    ? 0
    : nbdedup_fail (ENOSPC,
                    "there is no room for what is rewritten: free "
                    "some space on the file system of \"records\"");
}

/* 0; 1: the batch must go first; -1. */
static int
do_record (struct rewrite *w,
           int (*fn) (struct rewrite *w, const struct record *r))
{
  struct record r;
  int ret = rewrite_look (w, w->addr, &r);

  if (ret != 1)
    return ret;
  ret = fn (w, &r);
  w->records += ret == 0;
  return ret;
}

/* Add records to the batch.  If space ends, those that it has go first. */
static int
fill (struct rewrite *w, int (*fn) (struct rewrite *w, const struct record *r))
{
  const uint64_t begun = clock_ms ();
  uint64_t most;
  int r = get_most (w, &most);

  while (r == 0 && w->addr != UINT64_MAX && w->batch.nr < MOVES_MAX &&
         w->new_bytes + BLOCK_SIZE_MAX <= most &&
         clock_ms () - begun < FILL_MS) {
    r = do_record (w, fn);
    if (r == 0 && rewrite_next (w) == -1)
      r = -1;
    if (r == 0 && rewrite_go_on (w) == -1)
      return -1;
    pace_rest (&w->pace);
  }
  if (r == -1 && (errno != ENOSPC || w->batch.nr == 0))
    return -1;
  assert (w->batch.nr <= MOVES_MAX && w->batch.nr <= w->batch.reserved);
  return mover_write (&w->mover);
}

/* Wait until no thread holds the moves back, and begin. */
static int
send (struct rewrite *w)
{
  size_t i;

  assert_held (&w->pool->moves->one);
  w->nr_sent = 0;
  for (i = 0; i < w->batch.nr; ++i)
    if (array_push (&w->sent, &w->nr_sent, w->batch.p[i]) == -1)
      return -1;
  while (!moves_begin (w->pool->moves, &w->batch)) {
    if (rewrite_go_on (w) == -1)
      return -1;
    clock_sleep_ms (HELD_MS);
  }
  memset (&w->batch, 0, sizeof w->batch);
  return 0;
}

/* The folds' part of a batch. */
static int
sweep (struct rewrite *w)
{
  struct moves *m = w->pool->moves;
  bool stopped = false;
  int64_t ms;

  while (m->under_way) {
    ms = pace_step (&w->pace);
    if (ms == -1)
      return -1;
    if (!stopped && rewrite_go_on (w) == -1)
      stopped = m->end = true;
    if (!stopped && w->pace.busy)
      clock_sleep_ms ((uint64_t) ms);
  }
  return stopped ? interrupted () : 0;
}

static uint64_t
stored_bytes (const struct rewrite *w, const struct pointer *ptr)
{
  return (uint64_t) sectors_of (ptr->psize, w->pool->sector_bytes) *
    w->pool->sector_bytes;
}

/* Does it take space: 1, 0, -1.  One without references does, too: a client has
 * just taken one, which the next fold counts.
 */
static int
has_record (struct rewrite *w, const struct pointer *ptr)
{
  struct meta_conn *c = meta_reader_get (w->pool->meta);
  struct record r;
  int found = meta_record_find (c, ptr->addr, &w->fresh, &r);

  meta_reader_put (w->pool->meta, c);
  return found != 1 ? found
                    : r.ptr.cksum == ptr->cksum && r.ptr.psize == ptr->psize &&
      r.ptr.codec == ptr->codec;
}

/* Count what has really come of the moves: clients may have replaced blocks
 * meanwhile, or referred to an old record behind the folds.
 */
static int
count_sent (struct rewrite *w)
{
  const struct move *move;
  int old, new;
  size_t i;

  for (i = 0; i < w->nr_sent; ++i) {
    move = &w->sent[i];
    old = has_record (w, &move->old);
    new = has_record (w, &move->record.ptr);
    if (old == -1 || new == -1)
      return -1;
    if (!move->inserted && new == 1)
      w->after_bytes += stored_bytes (w, &move->record.ptr);
    if (old == 1 || new == 0)
      continue;
    w->before_bytes += stored_bytes (w, &move->old);
    *(move->inserted ? &w->joined : &w->rewritten) += 1;
  }
  w->nr_sent = 0;
  return 0;
}

/* After a client was refused for lack of space, which may be short-lived. */
static int
wait_for_room (struct rewrite *w)
{
  const uint64_t begun = clock_ms ();

  while (clock_ms () < w->pool->moves->not_before_ms) {
    if (clock_ms () - begun > ROOM_MS)
      return nbdedup_fail (ENOSPC,
                           "clients need the room that is left: what "
                           "was rewritten stays so; free some space and run "
                           "it again");
    if (rewrite_go_on (w) == -1)
      return -1;
    clock_sleep_ms (HELD_MS);
  }
  return 0;
}

static int
run_batch (struct rewrite *w,
           int (*fn) (struct rewrite *w, const struct record *r))
{
  int r;

  assert_held (&w->pool->moves->one);
  /* A thread may have ended in the middle of a batch. */
  if (txg_check (w->pool->txg) == -1 || sweep (w) == -1)
    return -1;
  assert (w->batch.nr == 0 && w->batch.segments == NULL);
  w->new_bytes = 0;
  w->batch.segments = calloc (MOVES_SEGMENTS_MAX, sizeof *w->batch.segments);
  if (w->batch.segments == NULL)
    return nbdedup_fail (ENOMEM, "no memory to rewrite records");
  r = fill (w, fn);
  if (r == 0 && w->batch.nr > 0)
    r = send (w);
  if (r == -1 || w->batch.segments) {
    give_back (w); /* it has failed, or is empty */
    return r;
  }
  w->group = UINT64_MAX;
  return sweep (w) == -1 ? -1 : count_sent (w);
}

static int
look (void *opaque)
{
  return rewrite_go_on (opaque);
}

static int
wait_and_run_batch (struct rewrite *w,
                    int (*fn) (struct rewrite *w, const struct record *r))
{
  struct moves *m = w->pool->moves;
  int r;

  if (wait_for_room (w) == -1 || turn_take (&m->turn, &m->one, look, w) == -1)
    return -1;
  r = run_batch (w, fn);
  turn_give (&m->turn, &m->one);
  return r;
}

/*----------------------------------------------------------------------
 * The command
 */

static int
run_pass (struct rewrite *w,
          int (*fn) (struct rewrite *w, const struct record *r))
{
  int r = rewrite_collect (w);

  assert (w->pass < w->nr_passes);
  w->group = UINT64_MAX;
  w->records = w->damaged = 0;
  if (r == 0 && fn == rewrite_index_record)
    r = index_pass (w);
  while (r == 0 && w->addr != UINT64_MAX)
    r = wait_and_run_batch (w, fn);
  w->pass++;
  return r;
}

static int
prepare (struct rewrite *w)
{
  struct volume *v, *head;
  WITH_LOCK (&w->pool->admin);

  v = rewrite_find (w);
  if (v == NULL)
    return -1;
  w->volume_id = v->id;
  w->is_snapshot = v->is_snapshot;
  head = v->is_snapshot ? v->of : v;
  WITH_LOCK (&head->dirty.lock);
  w->compression = head->compression;
  return 0;
}

static int
run_passes (struct rewrite *w)
{
  if (prepare (w) == -1 || pool_sync (w->pool) == -1 ||
      verifier_init (&w->v, w->pool) == -1 ||
      mover_init (&w->mover, w->pool) == -1)
    return -1;
  w->content = malloc (BLOCK_SIZE_MAX);
  if (w->content == NULL)
    return nbdedup_fail (ENOMEM, "no memory to rewrite records");
  w->nr_passes = w->args->dedup ? 3 : 1;
  if (w->args->dedup &&
      (run_pass (w, rewrite_index_record) == -1 ||
       run_pass (w, rewrite_join_record) == -1))
    return -1;
  if (run_pass (w, rewrite_form_record) == -1)
    return -1;
  return txg_make_room (w->pool->txg, false);
}

static json_t *
make_result (const struct rewrite *w)
{
  return json_pack ("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "records",
                    (json_int_t) w->records, "rewritten_records",
                    (json_int_t) w->rewritten, "joined_records",
                    (json_int_t) w->joined, "indexed_records",
                    (json_int_t) w->indexed, "over_quota_records",
                    (json_int_t) w->over_quota, "damaged_records",
                    (json_int_t) w->damaged, "before_bytes",
                    (json_int_t) w->before_bytes, "after_bytes",
                    (json_int_t) w->after_bytes);
}

static void
free_memory (struct rewrite *w)
{
  sorter_free (w->addrs);
  free (w->sent);
  free (w->names);
  free (w->ops);
  free (w->content);
  mover_free (&w->mover);
  verifier_free (&w->v);
  blob_free (&w->row);
  blob_free (&w->fresh);
  blob_free (&w->index);
}

json_t *
rewrite_run (struct nbdedup_pool *pool, const struct rewrite_args *args,
             nbdedup_progress_fn *progress, void *opaque)
{
  struct rewrite w = {
    .pool = pool,
    .args = args,
    .progress = progress,
    .opaque = opaque,
    .group = UINT64_MAX,
  };
  int r, err;

  pace_begin (&w.pace, pool);
  r = run_passes (&w);
  err = errno;
  free_memory (&w);
  errno = err;
  return r == -1 ? NULL : make_result (&w);
}
