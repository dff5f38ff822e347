/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/events.h"
#include "core/txg.h"
#include "data/capacity.h"
#include "data/watch.h"
#include "meta/meta.h"

#define LOOK_MS 1000
/* The warning ends so many points below full-warn, because the used space goes
 * up and down with each fold.
 */
#define HYSTERESIS 2.0
/* In a small pool that is not enough: pool.db and its WAL shrink at a
 * checkpoint, the second copy of pool.db gives way when room is short, and all
 * of it comes back.  So the metadata counts with the most it took in the last
 * one to two of these periods.  A lost copy is tried again each minute.
 */
#define PERIOD_MS 120000
/* There is room again when this much fits in the worst case, or this share of
 * the used space.  In a full pool single blocks come and go.
 */
#define ROOM_BYTES (UINT64_C (64) << 20)
#define USED_PER_ROOM 50

struct watch *
watch_new (void)
{
  struct watch *w = calloc (1, sizeof *w);

  if (w == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  w->full_warn = WATCH_WARN_DEFAULT;
  lock_init (&w->lock);
  return w;
}

void
watch_free (struct watch *w)
{
  if (w == NULL)
    return;
  lock_destroy (&w->lock);
  free (w);
}

static json_t *
used_event (const char *name, const struct capacity *cap, unsigned full_warn)
{
  return event_new (name, "{s:f, s:I, s:i}", "used_percent", cap->used_percent,
                    "used_bytes", (json_int_t) cap->used_bytes, "full_warn",
                    (int) full_warn);
}

/* Events to log when no lock is held. */
struct findings {
  bool over, below, room;
};

/* What is used when the metadata has grown back. */
static double
settled_percent_locked (struct watch *w, const struct capacity *cap,
                        uint64_t ms)
{
  uint64_t most;

  assert_held (&w->lock);
  if (ms - w->period_ms >= PERIOD_MS) {
    w->metadata_most[1] = w->metadata_most[0];
    w->metadata_most[0] = 0;
    w->period_ms = ms;
  }
  if (w->metadata_most[0] < cap->metadata_bytes)
    w->metadata_most[0] = cap->metadata_bytes;
  most = w->metadata_most[w->metadata_most[0] < w->metadata_most[1]];
  if (cap->metadata_total_bytes == 0)
    return cap->used_percent;
  return cap->used_percent +
    100.0 * (double) (most - cap->metadata_bytes) /
    (double) cap->metadata_total_bytes;
}

static void
look_at_used_locked (struct watch *w, const struct capacity *cap, uint64_t ms,
                     struct findings *events)
{
  double settled = settled_percent_locked (w, cap, ms);

  assert_held (&w->lock);
  assert (!events->over && !events->below);
  if (!w->warned)
    events->over = w->warned = cap->used_percent > w->full_warn;
  else if (settled < w->full_warn - HYSTERESIS) {
    events->below = true;
    w->warned = false;
  }
}

static bool
is_room_again (struct nbdedup_pool *pool)
{
  struct capacity cap;
  uint64_t enough;

  if (capacity_get (pool, &cap) == -1 || txg_is_stuck (pool->txg))
    return false;
  enough = cap.used_bytes / USED_PER_ROOM;
  if (enough > ROOM_BYTES)
    enough = ROOM_BYTES;
  return cap.min_bytes >= CAPACITY_FULL && cap.min_bytes > enough;
}

void
watch_look (struct nbdedup_pool *pool, bool now)
{
  struct watch *w = pool->watch;
  struct findings events = { false };
  struct capacity cap = { .used_percent = 0 };
  uint64_t ms = clock_ms ();

  if (!w->on)
    return;
  {
    WITH_LOCK (&w->lock);
    if (!now && ms - w->last_ms < LOOK_MS)
      return;
    w->last_ms = ms;
    /* An error here is not an event: whatever it stops reports it. */
    if (capacity_used (pool, &cap) == 0)
      look_at_used_locked (w, &cap, ms, &events);
    if (w->full && is_room_again (pool)) {
      events.room = true;
      w->full = false;
    }
  }
  if (events.over)
    events_post (pool->events, NBDEDUP_LOG_WARNING,
                 used_event ("nearly-full", &cap, w->full_warn),
                 "%.0f %% of "
                 "the space is used, more than full-warn (%u %%): free or add "
                 "space",
                 cap.used_percent, w->full_warn);
  if (events.below)
    events_post (pool->events, NBDEDUP_LOG_INFO,
                 used_event ("below-full-warn", &cap, w->full_warn),
                 "%.0f %% "
                 "of the space is used, less than full-warn (%u %%) again",
                 cap.used_percent, w->full_warn);
  if (events.room) {
    events_post (pool->events, NBDEDUP_LOG_INFO, event_new ("room", NULL),
                 "there is room for new data again");
    meta_copy_room (pool->meta);
  }
}

void
watch_refused (struct nbdedup_pool *pool)
{
  int err = errno;

  if (pool->watch->on && !atomic_exchange (&pool->watch->full, true))
    events_post (pool->events, NBDEDUP_LOG_WARNING,
                 event_new ("full", "{s:o}", "error",
                            nbdedup_json_text (nbdedup_error ())),
                 "the pool is full and refuses new data: %s", nbdedup_error ());
  errno = err;
}
