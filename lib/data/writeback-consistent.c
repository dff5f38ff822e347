/* SPDX-License-Identifier: BSD-3-Clause */

/* True of the dirty blocks of a volume whenever their lock is not held:
 *
 *  (1) A block is in the table if and only if it has a version.
 *
 *  (2) An open version is newer than the inflight one of its block, and is in
 *      one of the two queues.  Only an inflight one is superseded, or kept; the
 *      block of a kept one has no open one.
 *
 *  (3) The queue of versions that are not urgent is in their order, and so is
 *      the list of all open versions.
 *
 *  (4) Only an open version is being filled, while a mutation is under way.
 *
 *  (5) No version in the table is dropped.
 *
 *  (6) If a worker may take a version, the volume is in a list of the
 *      writeback, at that version's level, or a worker has just found it there.
 *
 * And of the writeback:
 *
 *  (7) A volume with a version is active; one that is ready may be.
 *
 * Checking (1) to (6) visits all blocks.  dirty-memory.c has the memory.
 */

#include <config.h>

#include <assert.h>

#include "base/invariant.h"
#include "data/writeback-int.h"

struct version_sums {
  const struct dirty_blocks *db;
  size_t nr_open, nr_inflight, nr_kept;
};

static void
assert_open_locked (const struct dirty_blocks *db, const struct dirty *d)
{
  const struct version *open = d->open;

  assert (open->seq <= db->seq && !open->dropped);
  assert (d->inflight == NULL || d->inflight->seq < open->seq);
  assert (!open->filling || !TAILQ_EMPTY (&db->ranges));
  /* A worker pins the volume before it removes it from the list. */
  assert (!is_takeable_locked (d) ||
          db->ready >= (int) (d->urgent ? READY_URGENT : READY_NORMAL) ||
          db->pins > 0);
}

static void
assert_dirty_locked (void *opaque, struct hashtable_link *l)
{
  const struct dirty *d = hashtable_entry (l, struct dirty, link);
  struct version_sums *sums = opaque;

  assert (d->open != NULL || d->inflight != NULL);
  assert (!d->superseded || d->inflight != NULL);
  assert (!d->kept || (d->inflight != NULL && d->open == NULL));
  if (d->inflight)
    assert (!d->inflight->filling && !d->inflight->dropped);
  if (d->open)
    assert_open_locked (sums->db, d);
  sums->nr_open += d->open != NULL;
  sums->nr_inflight += d->inflight != NULL && !d->kept;
  sums->nr_kept += d->kept;
}

static void
assert_queues_locked (const struct dirty_blocks *db, size_t nr_open)
{
  const struct dirty *d;
  uint64_t seq = 0;
  size_t nr = 0;

  TAILQ_FOREACH (d, &db->queue, queue) {
    assert (d->open != NULL && !d->urgent && d->open->seq > seq);
    seq = d->open->seq;
    nr++;
  }
  TAILQ_FOREACH (d, &db->urgent, queue) {
    assert (d->open != NULL && d->urgent);
    nr++;
  }
  assert (nr == nr_open);
}

static void
assert_lists_locked (const struct dirty_blocks *db,
                     const struct version_sums *sums)
{
  const struct dirty *d;
  uint64_t seq = 0;
  size_t nr = 0;

  TAILQ_FOREACH (d, &db->open_list, vlink) {
    assert (d->open != NULL && d->open->seq > seq);
    seq = d->open->seq;
    nr++;
  }
  assert (nr == sums->nr_open);
  nr = 0;
  TAILQ_FOREACH (d, &db->inflight_list, flink)
    nr++;
  assert (nr == sums->nr_inflight);
  nr = 0;
  TAILQ_FOREACH (d, &db->kept_list, flink)
    nr++;
  assert (nr == sums->nr_kept);
}

static void
assert_all_locked (struct dirty_blocks *db)
{
  struct version_sums sums = { .db = db };

  if (db->table.buckets)
    hashtable_visit (&db->table, assert_dirty_locked, &sums);
  assert_queues_locked (db, sums.nr_open);
  assert_lists_locked (db, &sums);
}

void
dirty_blocks_assert_consistent_locked (struct dirty_blocks *db)
{
  assert_held (&db->lock);
  assert (db->nr == db->table.nr_entries);
  assert (db->nr > 0 ||
          (TAILQ_EMPTY (&db->open_list) && TAILQ_EMPTY (&db->inflight_list) &&
           TAILQ_EMPTY (&db->kept_list)));
  assert (TAILQ_EMPTY (&db->open_list) ==
          (TAILQ_EMPTY (&db->queue) && TAILQ_EMPTY (&db->urgent)));
  if (invariant_is_due (&db->changes,
                        db->table.nr_entries + db->table.nr_buckets))
    assert_all_locked (db);
}

void
writeback_assert_consistent_locked (struct writeback *wb)
{
  assert_held (&wb->lock);
  assert (TAILQ_EMPTY (&wb->active) == (wb->nr_active == 0));
}
