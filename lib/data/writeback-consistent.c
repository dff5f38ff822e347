/* SPDX-License-Identifier: BSD-3-Clause */

/* True of the dirty blocks whenever their lock is not held:
 *
 *  (1) Versions and spare buffers together take at most dirty-max.
 *
 *  (2) A block is in the table if and only if it has a version.
 *
 *  (3) An open version is newer than the inflight one of its block, and is in
 *      one of the two queues.  Only an inflight one is superseded.
 *
 *  (4) The queue of versions that are not urgent is in their order.
 *
 *  (5) The sums of bytes match the versions and the buffers.
 *
 * Checking (2) to (5) visits all blocks.
 */

#include <config.h>

#include <assert.h>

#include "base/invariant.h"
#include "data/volume-types.h"
#include "data/writeback-int.h"

struct version_sums {
  const struct writeback *wb;
  size_t nr_open;
  uint64_t bytes;
};

static void
assert_dirty_locked (void *opaque, struct hashtable_link *l)
{
  const struct dirty *d = hashtable_entry (l, struct dirty, link);
  struct version_sums *sums = opaque;

  assert (d->open != NULL || d->inflight != NULL);
  assert (d->open == NULL || d->open_seq <= sums->wb->seq);
  assert (d->open == NULL || d->inflight == NULL ||
          d->inflight_seq < d->open_seq);
  assert (!d->superseded || d->inflight != NULL);
  assert (d->open == NULL || !TAILQ_EMPTY (&d->volume->open_list));
  assert (d->inflight == NULL || !TAILQ_EMPTY (&d->volume->inflight_list));
  sums->nr_open += d->open != NULL;
  sums->bytes += ((d->open != NULL) + (d->inflight != NULL)) *
    (uint64_t) d->volume->block_size;
}

static void
assert_queues_locked (const struct writeback *wb, size_t nr_open)
{
  const struct dirty *d;
  uint64_t seq = 0;
  size_t nr = 0;

  TAILQ_FOREACH (d, &wb->queue, queue) {
    assert (d->open != NULL && !d->urgent && d->open_seq > seq);
    seq = d->open_seq;
    nr++;
  }
  TAILQ_FOREACH (d, &wb->urgent, queue) {
    assert (d->open != NULL && d->urgent);
    nr++;
  }
  assert (nr == nr_open);
}

static void
assert_all_locked (struct writeback *wb)
{
  struct version_sums sums = { .wb = wb };
  uint64_t bytes = 0;
  unsigned i;

  hashtable_visit (&wb->table, assert_dirty_locked, &sums);
  assert (sums.bytes == wb->bytes);
  assert_queues_locked (wb, sums.nr_open);
  for (i = 0; i < sizeof wb->spare / sizeof wb->spare[0]; ++i)
    bytes += (uint64_t) wb->spare[i].nr << i;
  assert (bytes == wb->spare_bytes);
}

void
writeback_assert_consistent_locked (struct writeback *wb)
{
  assert_held (&wb->lock);
  assert (wb->bytes + wb->spare_bytes <= wb->max);
  assert ((wb->bytes == 0) == (wb->table.nr_entries == 0));
  if (invariant_is_due (&wb->changes,
                        wb->table.nr_entries + wb->table.nr_buckets))
    assert_all_locked (wb);
}
