/* SPDX-License-Identifier: BSD-3-Clause */

/* The allocator's invariants while no thread holds its lock.
 *
 *  (1) Each sector of a BACKED segment is free or in use:
 *      free_sectors + used_sectors = nr_backed * nr_sectors.
 *
 *  (2) A segment is either BACKED, or ABSENT, or being punched.  The current
 *      segment, for batches, and that for moved records are BACKED.
 *
 *  (3) Each reserved record has at least one sector, and belongs to one class.
 *
 *  (4) Each sum (free, used, room, whole) equals the sum over the segments.
 *
 *  (5) Each BACKED segment with a free run that is neither damaged nor being
 *      drained is in one list, that of its longest run; the bitmap says which
 *      lists are not empty.
 *
 *  (6) Records are kept only in BACKED segments, and each pins its map.  If
 *      there is no keeper all of them are due.
 *
 *  (7) A map in memory is on the LRU list if and only if it is not pinned.
 *
 * Checking (4) to (7) is expensive: it visits all segments, or all maps.
 */

#include <config.h>

#include <assert.h>
#include <string.h>

#include "base/invariant.h"
#include "space/space-int.h"

/* (3) */
static void
assert_reserved_locked (const struct space *space)
{
  uint64_t nr = 0;
  unsigned c;

  for (c = 0; c < NR_CLASSES; ++c)
    nr += space->reserved_records[c];
  assert (nr == space->reserved_nr);
  assert (space->reserved_sectors >= space->reserved_nr);
  assert (nr > 0 || space->reserved_sectors == 0);
}

/* (4) */
struct sums {
  uint64_t room[NR_CLASSES], whole[NR_CLASSES];
  uint64_t free_sectors, nr_backed, nr_damaged, nr_empty, nr_listed;
};

static void
add_seg_locked (const struct space *space, uint32_t id, struct sums *sums)
{
  const struct seg *s = &space->segs[id];
  unsigned c;

  sums->nr_damaged += s->damaged;
  if (!s->backed)
    return;
  assert ((space->absent[id / 64] >> id % 64 & 1) == 0);
  assert (s->largest <= s->nr_free);
  assert (s->nr_free <= seg_usable_sectors (space, id));
  sums->nr_backed++;
  sums->free_sectors += s->nr_free;
  if (!seg_is_used (s))
    return;
  sums->nr_empty += seg_is_empty_locked (space, id);
  sums->nr_listed += s->largest > 0;
  for (c = 0; c < NR_CLASSES; ++c) {
    sums->room[c] += space_room (space, c, s->largest, seg_slots (s));
    sums->whole[c] += space_whole (space, c, s->largest, seg_slots (s));
  }
}

/* (5): how many segments are in the list. */
static uint64_t
list_length_locked (const struct space *space, uint32_t head)
{
  uint32_t id, prev = NONE;
  uint64_t n = 0;

  for (id = head; id != NONE; prev = id, id = space->segs[id].next, ++n) {
    assert (id < space->nr_segs);
    assert (space->segs[id].prev == prev);
    assert (seg_is_used (&space->segs[id]));
  }
  return n;
}

static uint64_t
bucket_lengths_locked (const struct space *space, const struct buckets *b)
{
  uint64_t n = 0;
  unsigned i;

  for (i = 0; i <= space->nr_sectors; ++i) {
    assert ((b->nonempty[i / 64] >> i % 64 & 1) == (b->heads[i] != NONE));
    n += list_length_locked (space, b->heads[i]);
  }
  return n;
}

static void
assert_segments_locked (const struct space *space)
{
  struct sums sums = { .nr_backed = 0 };
  uint64_t listed;
  uint32_t id;

  for (id = 0; id < space->nr_segs; ++id)
    add_seg_locked (space, id, &sums);
  assert (sums.nr_backed == space->nr_backed);
  assert (sums.nr_damaged == space->nr_damaged);
  assert (sums.free_sectors == space->free_sectors);
  assert (sums.nr_empty == space->nr_empty);
  assert (memcmp (sums.room, space->room, sizeof sums.room) == 0);
  assert (memcmp (sums.whole, space->whole, sizeof sums.whole) == 0);
  listed = list_length_locked (space, space->empty);
  assert (listed == space->nr_empty);
  listed += bucket_lengths_locked (space, &space->with_slots);
  listed += bucket_lengths_locked (space, &space->without_slots);
  assert (listed == sums.nr_listed);
}

/* (7) */
static void
assert_maps_locked (const struct space *space)
{
  uint32_t i, nr = 0, nr_unpinned = 0;
  const struct entry *e;

  for (i = 0; i < space->nr_hash; ++i)
    LIST_FOREACH (e, &space->hash[i], hash_link) {
      assert (e->id < space->nr_segs && e->map->id == e->id);
      nr++;
      nr_unpinned += e->pins == 0;
    }
  assert (nr == space->nr_entries);
  TAILQ_FOREACH (e, &space->lru, lru_link) {
    assert (e->pins == 0);
    nr_unpinned--;
  }
  assert (nr_unpinned == 0);
}

/* (6) */
static void
assert_kept_locked (struct space *space)
{
  const struct entry *e;
  size_t i;

  for (i = 0; i < space->nr_kept; ++i) {
    e = space_entry_find_locked (space,
                                 space->kept[i].addr / space->nr_sectors);
    assert (e != NULL && e->pins > 0);
  }
}

void
space_assert_consistent_locked (struct space *space)
{
  const uint32_t current = space->current, dense = space->dense;

  assert_held (&space->lock);
  assert (space->nr_segs <= space->max_segs);
  assert (space->nr_backed <= space->nr_segs);
  assert (space->nr_empty <= space->nr_backed);
  assert ((space->empty == NONE) == (space->nr_empty == 0));
  assert (space->free_sectors + space->used_sectors ==
          space->nr_backed * space->nr_sectors);
  assert (current == NONE || current < space->nr_segs);
  assert (current == NONE || space->segs[current].backed);
  assert (dense == NONE || space->segs[dense].backed);
  assert (space->nr_due <= space->nr_kept);
  assert (space->nr_kept <= space->cap_kept);
  assert (space->nr_keepers > 0 || space->nr_due == space->nr_kept);
  assert_reserved_locked (space);
  if (invariant_is_due (&space->changes,
                        space->nr_segs + 2 * (size_t) space->nr_sectors +
                          space->nr_hash)) {
    assert_segments_locked (space);
    assert_maps_locked (space);
    assert_kept_locked (space);
  }
}
