/* SPDX-License-Identifier: BSD-3-Clause */

/* Compaction: which segments to empty, and where their records go.
 *
 * A segment that is being drained takes no new record, and counts for no
 * reservation, even when it is empty: so an address in it names one record
 * only, until space_undrain.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "base/error.h"
#include "space/space-int.h"

/* Segments with a smaller part of free sectors are left alone. */
#define FREE_PART 16
#define NR_SHARES 64

static unsigned
used_locked (const struct space *space, uint32_t id)
{
  return seg_usable_sectors (space, id) - space->segs[id].nr_free;
}

static unsigned
share_locked (const struct space *space, uint32_t id)
{
  return used_locked (space, id) * (NR_SHARES - 1) / space->nr_sectors;
}

/* A pinned map has changes that pool.db does not show yet. */
static bool
may_drain_locked (struct space *space, uint32_t id)
{
  const struct seg *s = &space->segs[id];
  const struct entry *e;

  if (!seg_is_used (s) || seg_is_empty_locked (space, id) ||
      id == space->dense || s->nr_free < space->nr_sectors / FREE_PART)
    return false;
  e = space_entry_find_locked (space, id);
  return e == NULL || e->pins == 0;
}

/* Those that use at most this share of their sectors are the sparsest ones, up
 * to 'max' sectors in all.
 */
static unsigned
find_share_locked (struct space *space, uint64_t max)
{
  uint64_t used[NR_SHARES] = { 0 }, sum = 0;
  uint32_t id;
  unsigned i;

  for (id = 0; id < space->nr_segs; ++id)
    if (may_drain_locked (space, id))
      used[share_locked (space, id)] += used_locked (space, id);
  for (i = 0; i < NR_SHARES - 1 && sum + used[i] < max; ++i)
    sum += used[i];
  return i;
}

static void
set_draining_locked (struct space *space, uint32_t id, bool draining)
{
  assert (space->segs[id].backed && space->segs[id].draining != draining);
  seg_remove_locked (space, id);
  space->segs[id].draining = draining;
  seg_insert_locked (space, id);
  seg_leave_locked (space, id);
}

/* False: the reservations need its room. */
static bool
drain_locked (struct space *space, uint32_t id)
{
  set_draining_locked (space, id, true);
  while (!space_keeps_promises_locked (space))
    if (seg_grow_locked (space) == -1) {
      set_draining_locked (space, id, false);
      return false;
    }
  return true;
}

unsigned
space_drain (struct space *space, uint64_t max_bytes, uint64_t *segments,
             unsigned nr_segments)
{
  const uint64_t max = max_bytes / space->sector_bytes;
  uint64_t sum = 0;
  unsigned share, nr = 0;
  uint32_t id;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  share = find_share_locked (space, max);
  for (id = 0; id < space->nr_segs && nr < nr_segments; ++id) {
    if (!may_drain_locked (space, id) || share_locked (space, id) > share ||
        sum + used_locked (space, id) > max)
      continue;
    sum += used_locked (space, id);
    if (!drain_locked (space, id))
      break;
    segments[nr++] = id;
  }
  return nr;
}

int
space_drain_one (struct space *space, uint64_t segment)
{
  const uint32_t id = (uint32_t) segment;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  if (segment >= space->nr_segs || !seg_is_used (&space->segs[id]) ||
      seg_is_empty_locked (space, id))
    return 0;
  return drain_locked (space, id)
    ? 1
    : nbdedup_fail (ENOSPC,
                    "clients' writes need the room in segment %" PRIu32
                    " of \"records\"",
                    id);
}

unsigned
space_undrain (struct space *space, const uint64_t *segments, unsigned nr)
{
  unsigned i, nr_empty = 0;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  for (i = 0; i < nr; ++i) {
    assert (segments[i] < space->nr_segs);
    assert (space->segs[segments[i]].draining);
    set_draining_locked (space, (uint32_t) segments[i], false);
    nr_empty += seg_is_empty_locked (space, (uint32_t) segments[i]);
  }
  seg_punch_empty_locked (space, true);
  return nr_empty;
}

int
space_alloc_dense (struct space *space, uint32_t nr_sectors,
                   struct placement *out)
{
  int r;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  assert (nr_sectors > 0);
  do
    r = space_place_dense_locked (space, nr_sectors, out);
  while (r == -1 && errno == ENOSPC && seg_wait_for_punch_locked (space));
  return r;
}
