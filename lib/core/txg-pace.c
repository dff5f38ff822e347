/* SPDX-License-Identifier: BSD-3-Clause */

/* The pace of writers while a fold runs: a part of txg.c.
 *
 * If clients write faster than folds, the open txg meets its limit before the
 * fold ends.  Then all writers would stop until it does, for a third of a
 * second perhaps, and with them each client whose data has no room in
 * dirty-max.  So each writer waits a little instead, and the txg is full when
 * the fold is expected to end.  Source: the write throttle of OpenZFS
 * (dsl_pool.c) delays each write by how full the open txg is, too, but by a
 * curve, and without an expected end.
 */

#include <config.h>

#include <assert.h>

#include "base/clock.h"
#include "core/txg-int.h"
#include "disk/room.h"

/* Writers wait from this part of the budget on; half-way to the end so long. */
#define PACE_EIGHTHS 5
#define PACE_US 500
#define PACE_MAX_US 50000
/* The open txg takes this part of its limit at once, which bursts may have. */
#define PACE_FREE_PART 4
/* Batches that begin together do not see each other's pages, and what they
 * touch is only an estimate: aim at this part of the rest.
 */
#define PACE_AIM(pages) ((pages) * 7 / 8)
/* A fold that hangs is not waited for by each batch. */
#define PACE_MAX_MS 1000
/* While a fold takes longer than this, the open txg's limit grows, by this part
 * of what folds write in that time.
 */
#define STRETCH_AFTER_MS 100
#define STRETCH_PART 4

/* The pause while 'n' of 'max' is in use: it grows up to PACE_MAX_US. */
static uint64_t
pause_us (uint64_t n, uint64_t max)
{
  const uint64_t begin = max / 8 * PACE_EIGHTHS;
  const uint64_t left = n < max ? max - n : 1;
  uint64_t us;

  if (n <= begin)
    return 0;
  us = PACE_US * (n - begin) / left;
  return us < PACE_MAX_US ? us : PACE_MAX_US;
}

uint64_t
txg_pause_ms (uint64_t expected_ms, uint64_t age_ms, uint64_t pages,
              uint64_t limit)
{
  const uint64_t begin = limit / PACE_FREE_PART;
  uint64_t due, ms;

  if (pages <= begin)
    return 0;
  if (pages > limit)
    pages = limit;
  due = expected_ms * (pages - begin) / (PACE_AIM (limit - begin) + 1);
  ms = due > age_ms ? due - age_ms : 0;
  return ms < PACE_MAX_MS ? ms : PACE_MAX_MS;
}

/* A fold of as many pages as one of the last two takes as long; a smaller one
 * less.  One that was slow says nothing, so the faster one counts.
 */
void
txg_expect_fold (struct txg *t)
{
  const uint64_t pages = room_folding_pages (t->room);
  const struct fold_times *f = &t->times;
  uint64_t expected = UINT64_MAX, ms;
  unsigned i;

  for (i = 0; i < 2; ++i) {
    ms = pages < f->pages[i] ? f->ms[i] * pages / f->pages[i] : f->ms[i];
    if (ms < expected)
      expected = ms;
  }
  t->expected_ms = expected;
  t->times.restarted_ms = 0;
}

void
txg_expect_restart (struct txg *t)
{
  t->expected_ms += t->times.restart_ms;
}

void
txg_restarted (struct txg *t, uint64_t ms)
{
  t->times.restart_ms = t->times.restarted_ms = ms;
}

void
txg_note_fold (struct txg *t, uint64_t pages, uint64_t ms)
{
  struct fold_times *f = &t->times;

  assert (ms >= f->restarted_ms);
  f->pages[1] = f->pages[0];
  f->ms[1] = f->ms[0];
  f->pages[0] = pages;
  f->ms[0] = ms - f->restarted_ms;
}

/* A fold that waits for a slow sync or checkpoint stops the writers for as long
 * if the open txg meets its limit, so that limit grows meanwhile.  The fold of
 * that txg then takes longer, too, and may stretch the next; but by a part of
 * it, so that folds do not get longer and longer.
 */
void
txg_stretch (struct txg *t)
{
  const uint64_t cut = t->cut_ms, age = clock_ms () - cut;

  if (t->folding && age > STRETCH_AFTER_MS)
    room_stretch (t->room,
                  t->rate * (age - STRETCH_AFTER_MS) / 1000 / STRETCH_PART);
}

void
txg_pace (struct txg *t, size_t bytes)
{
  const uint64_t us = pause_us (bytes, t->budget), cut = t->cut_ms;
  uint64_t ms, pages, limit;

  if (!t->folding || t->stop)
    return;
  txg_stretch (t);
  pages = room_open_pages (t->room, &limit);
  ms = txg_pause_ms (t->expected_ms, clock_ms () - cut, pages, limit);
  if (ms < us / 1000)
    ms = us / 1000;
  if (ms == 0) {
    if (us > 0)
      clock_sleep_ns (us * 1000);
    return;
  }
  WITH_LOCK (&t->lock);
  if (t->folding)
    lock_wait_ms (&t->lock, &t->folded, ms);
}
