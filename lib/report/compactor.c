/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/background.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/priority.h"
#include "core/engine.h"
#include "core/moves.h"
#include "core/txg.h"
#include "data/capacity.h"
#include "data/watch.h"
#include "meta/meta.h"
#include "report/compact.h"
#include "report/compactor.h"
#include "report/pace.h"
#include "space/space.h"

/* Look at the pool so often. */
#define LOOK_MS 1000
/* Between batches. */
#define PAUSE_MS 100
#define READ_TIMES 16
/* After a failure, or a batch that did not pay; twice as long each time. */
#define RETRY_MS 5000
#define RETRY_MAX_MS (10 * 60 * 1000)
/* While clients write. */
#define BUSY_BATCH_BYTES (UINT64_C (32) << 20)
#define FULL_PERCENT 90

struct compactor {
  struct nbdedup_pool *pool; /* not owned */
  struct background thread;

  /* The thread's own. */
  struct pace pace;
  uint64_t retry_ms;
  bool moved; /* since room was given back */
};

/*----------------------------------------------------------------------
 * The thread
 */

static uint64_t
most_waste (const struct compactor *s, uint64_t used)
{
  return s->pace.busy ? used / 100 * COMPACT_BUSY_PERCENT + COMPACT_BUSY_SLACK
                      : used / 100 * COMPACT_PERCENT + COMPACT_SLACK;
}

/* How much of what is in use to move now; 0: nothing. */
static uint64_t
bytes_to_move (struct compactor *s)
{
  struct nbdedup_pool *pool = s->pool;
  unsigned most = pool->watch->full_warn;
  struct space_info info;
  struct capacity cap;

  if (most > FULL_PERCENT)
    most = FULL_PERCENT;
  space_get_info (pool->space, &info);
  if (info.waste_bytes <= most_waste (s, info.used_bytes) ||
      txg_check (pool->txg) == -1 || txg_is_stuck (pool->txg) ||
      pool->watch->full || clock_ms () < pool->moves->not_before_ms ||
      capacity_used (pool, &cap) == -1 || cap.used_percent >= most)
    return 0;
  return compact_bytes (pool,
                        s->pace.busy ? BUSY_BATCH_BYTES : COMPACT_BATCH_BYTES);
}

/* Let a fold do a part of the work.  False: stop. */
static bool
step (struct compactor *s)
{
  const int64_t ms = pace_step (&s->pace);

  return background_wait_ms (&s->thread, ms == -1 ? RETRY_MS : (uint64_t) ms);
}

static void
sweep (struct compactor *s)
{
  while (s->pool->moves->under_way && step (s))
    ;
}

/* A batch reads all maps.  So many times what it gives back is too much. */
static bool
was_worthwhile (struct compactor *s, uint64_t emptied)
{
  const uint64_t bytes = (s->pool->moves->emptied - emptied) * SEGMENT_BYTES;
  struct meta_pages p;

  meta_get_pages (s->pool->meta, &p);
  return bytes > 0 && p.used * META_PAGE_BYTES / READ_TIMES <= bytes;
}

/* Returns the time to wait before the next batch.  If one does not pay, because
 * the pool is very large, or what is free belongs to records that cannot move,
 * try seldom.
 */
static uint64_t
compact (struct compactor *s, uint64_t bytes)
{
  const uint64_t emptied = s->pool->moves->emptied;
  int nr;
  WITH_LOCK (&s->pool->moves->one);

  nr = s->pool->moves->under_way ? 0 : compact_begin (s->pool, bytes);
  if (nr == -1 && errno != ENOSPC)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: records could not be moved, and "
                 "\"records\" stays larger than necessary: %s",
                 s->pool->path, nbdedup_error ());
  if (nr > 0)
    sweep (s);
  s->moved |= nr > 0;
  if (was_worthwhile (s, emptied)) {
    s->retry_ms = RETRY_MS;
    return PAUSE_MS;
  }
  bytes = s->retry_ms;
  s->retry_ms = bytes * 2 < RETRY_MAX_MS ? bytes * 2 : RETRY_MAX_MS;
  assert (s->retry_ms >= bytes);
  return bytes;
}

static void *
compactor_thread (void *arg)
{
  struct compactor *s = arg;
  uint64_t bytes, wait_ms = LOOK_MS;

  thread_lower_priority ();
  pace_begin (&s->pace, s->pool);
  while (background_wait_ms (&s->thread, wait_ms)) {
    wait_ms = LOOK_MS;
    pace_look (&s->pace);
    bytes = bytes_to_move (s);
    if (bytes > 0)
      wait_ms = compact (s, bytes);
    else if (s->moved && !s->pace.busy) {
      /* Moved records needed room in pool.db until the old ones were gone. */
      s->moved = false;
      (void) txg_make_room (s->pool->txg, false);
    }
  }
  return NULL;
}

struct compactor *
compactor_start (struct nbdedup_pool *pool)
{
  struct compactor *s = calloc (1, sizeof *s);

  if (s == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  s->pool = pool;
  s->retry_ms = RETRY_MS;
  background_init (&s->thread, NULL);
  if (background_start (&s->thread, compactor_thread, s) == 0)
    return s;
  compactor_free (s);
  return NULL;
}

void
compactor_cancel (struct compactor *s)
{
  if (s)
    background_cancel (&s->thread);
}

void
compactor_free (struct compactor *s)
{
  if (s == NULL)
    return;
  background_destroy (&s->thread);
  free (s);
}
