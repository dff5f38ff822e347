/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/backoff.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "core/txg.h"
#include "data/writeback-int.h"
#include "data/writeback.h"

static void
make_all_urgent_locked (struct writeback *wb, struct volume *v)
{
  struct dirty_blocks *db = &v->dirty;
  struct dirty *d;

  assert_held (&db->lock);
  TAILQ_FOREACH (d, &db->open_list, vlink)
    make_urgent_locked (v, d);
  if (!TAILQ_EMPTY (&db->urgent))
    make_ready_locked (wb, v, READY_URGENT);
}

/* Does the volume have a version up to 'seq'? */
static bool
has_versions_locked (const struct dirty_blocks *db, uint64_t seq)
{
  const struct dirty *d = TAILQ_FIRST (&db->open_list);

  if (d && d->open->seq <= seq)
    return true;
  TAILQ_FOREACH (d, &db->inflight_list, flink)
    if (d->inflight->seq <= seq)
      return true;
  return false;
}

static int
drain_volume (struct writeback *wb, struct volume *v)
{
  struct dirty_blocks *db = &v->dirty;
  uint64_t seq;

  WITH_LOCK (&db->lock);
  WITH_CONSISTENT (dirty_blocks, db);
  seq = db->seq;
  make_all_urgent_locked (wb, v);
  while (has_versions_locked (db, seq)) {
    if (v->gone)
      return nbdedup_fail (ESHUTDOWN, "volume %s was destroyed", v->name);
    lock_wait (&db->lock, &db->installed);
  }
  return 0;
}

/*----------------------------------------------------------------------
 * All volumes
 */

struct pinned {
  struct volume *volume;
  uint64_t seq;
};

static size_t
count_active (struct writeback *wb)
{
  WITH_LOCK (&wb->lock);
  return wb->nr_active;
}

/* Pin the active volumes.  False: more than 'max' are active. */
static bool
pin_active (struct writeback *wb, struct pinned *p, size_t max, size_t *nr)
{
  struct volume *v;

  *nr = 0;
  WITH_LOCK (&wb->lock);
  WITH_CONSISTENT (writeback, wb);
  if (wb->nr_active > max)
    return false;
  TAILQ_FOREACH (v, &wb->active, dirty.active_link) {
    v->dirty.pins++;
    p[(*nr)++].volume = v;
  }
  assert (*nr == wb->nr_active);
  return true;
}

static void
begin_drain (struct writeback *wb, struct pinned *p)
{
  struct dirty_blocks *db = &p->volume->dirty;

  WITH_LOCK (&db->lock);
  WITH_CONSISTENT (dirty_blocks, db);
  p->seq = db->seq;
  make_all_urgent_locked (wb, p->volume);
}

static void
end_drain (struct pinned *p)
{
  struct dirty_blocks *db = &p->volume->dirty;

  {
    WITH_LOCK (&db->lock);
    while (has_versions_locked (db, p->seq))
      lock_wait (&db->lock, &db->installed);
  }
  writeback_unpin (p->volume);
}

static int
drain_all (struct writeback *wb)
{
  struct pinned *p = NULL;
  size_t max, nr, i;

  do {
    free (p);
    max = count_active (wb);
    p = patient_calloc (max + 1, sizeof *p);
    if (p == NULL)
      return nbdedup_fail (ENOMEM, "no memory to write %zu volumes", max);
  } while (!pin_active (wb, p, max, &nr));
  /* First let the workers begin with all of them. */
  for (i = 0; i < nr; ++i)
    begin_drain (wb, &p[i]);
  for (i = 0; i < nr; ++i)
    end_drain (&p[i]);
  free (p);
  return 0;
}

int
writeback_drain (struct writeback *wb, struct volume *v)
{
  int r;

  wb->nr_drains++;
  r = v ? drain_volume (wb, v) : drain_all (wb);
  wb->nr_drains--;
  return r == -1 ? -1 : txg_check (wb->pool->txg);
}

/*----------------------------------------------------------------------
 * Some blocks
 */

static bool
range_has_versions_locked (struct volume *v, uint64_t first, uint64_t count,
                           uint64_t seq, bool urgent)
{
  bool found = false;
  struct dirty *d;
  uint64_t i;

  assert_held (&v->dirty.lock);
  for (i = 0; i < count; ++i) {
    d = find_dirty_locked (v, first + i);
    if (d == NULL)
      continue;
    if (urgent)
      make_urgent_locked (v, d);
    if ((d->open && d->open->seq <= seq) ||
        (d->inflight && !d->kept && d->inflight->seq <= seq))
      found = true;
  }
  return found;
}

static int
drain_range (struct writeback *wb, struct volume *v, uint64_t first,
             uint64_t count)
{
  struct dirty_blocks *db = &v->dirty;
  uint64_t seq;

  WITH_LOCK (&db->lock);
  WITH_CONSISTENT (dirty_blocks, db);
  seq = db->seq;
  range_has_versions_locked (v, first, count, seq, true);
  if (!TAILQ_EMPTY (&db->urgent))
    make_ready_locked (wb, v, READY_URGENT);
  while (range_has_versions_locked (v, first, count, seq, false)) {
    if (v->gone)
      return nbdedup_fail (ESHUTDOWN, "volume %s was destroyed", v->name);
    lock_wait (&db->lock, &db->installed);
  }
  return 0;
}

int
writeback_drain_range (struct writeback *wb, struct volume *v, uint64_t first,
                       uint64_t count)
{
  int r;

  assert (count > 0 && first + count > first);
  /* Looking up more blocks than are dirty costs more than draining all. */
  if (count > 4096)
    return writeback_drain (wb, v);
  wb->nr_drains++;
  r = drain_range (wb, v, first, count);
  wb->nr_drains--;
  return r == -1 ? -1 : txg_check (wb->pool->txg);
}

/*----------------------------------------------------------------------
 * A volume that goes
 */

/* Wait for its versions and mutations.  False: the txg has failed, and the
 * volume keeps versions.
 */
static bool
settle_blocks (struct writeback *wb, struct volume *v)
{
  struct dirty_blocks *db = &v->dirty;

  WITH_LOCK (&db->lock);
  WITH_CONSISTENT (dirty_blocks, db);
  /* Wake the waiting threads: they find the volume gone. */
  cond_broadcast (&db->installed);
  /* A running mutation may open another version. */
  while (!TAILQ_EMPTY (&db->open_list) || !TAILQ_EMPTY (&db->inflight_list) ||
         !TAILQ_EMPTY (&db->ranges)) {
    make_all_urgent_locked (wb, v);
    dirty_memory_wake (&wb->memory);
    lock_wait_ms (&db->lock, &db->installed, 10);
  }
  assert (TAILQ_EMPTY (&db->kept_list) == (db->nr == 0));
  return db->nr == 0;
}

/* Let no thread find the volume in a list any more.  False: one has. */
static bool
hide (struct writeback *wb, struct volume *v)
{
  struct dirty_blocks *db = &v->dirty;

  WITH_LOCK (&wb->lock);
  WITH_CONSISTENT (writeback, wb);
  assert (!db->active);
  if (db->ready != READY_NONE)
    TAILQ_REMOVE (&wb->ready[db->ready], v, dirty.ready_link);
  db->ready = READY_NONE;
  return db->pins == 0;
}

void
writeback_settle (struct writeback *wb, struct volume *v)
{
  unsigned tries = 0;
  bool settled;

  assert (v->gone);
  wb->nr_drains++;
  settled = settle_blocks (wb, v);
  wb->nr_drains--;
  while (settled && !hide (wb, v))
    clock_sleep_ms (backoff_ms (&tries));
}
