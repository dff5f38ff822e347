/* SPDX-License-Identifier: BSD-3-Clause */

/* The table of segments (12 bytes for each), its lists and sums.
 *
 * There is one list of segments for each length of the longest free run, and
 * a bitmap of the lists that are not empty, so no search visits all segments.
 * There are two sets of lists: segments that have a free slot (or whose slots
 * are not known, because their map was not read since the pool was opened),
 * where a record needs only its own sectors, and segments where it needs a
 * new summary chunk too.  Wholly empty segments have a list of their own: the
 * allocator takes them only when a record fits nowhere else.
 *
 * The sums of room count BACKED segments that are neither damaged nor being
 * drained: see space-promise.c.  A function that changes a segment first
 * removes it from its list and from all sums (seg_remove_locked) and then
 * inserts it again (seg_insert_locked), so lists and sums always agree with the
 * segments.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/error.h"
#include "space/space-int.h"

/* The list that a segment belongs to, or NULL.  '*buckets' is NULL for the list
 * of empty segments.
 */
static uint32_t *
seg_list_locked (struct space *space, uint32_t id, struct buckets **buckets)
{
  struct seg *s = &space->segs[id];

  *buckets = NULL;
  if (!seg_is_used (s))
    return NULL;
  if (seg_is_empty_locked (space, id))
    return &space->empty;
  if (s->largest == 0)
    return NULL;
  *buckets = s->slots_known && seg_slots (s) == 0 ? &space->without_slots
                                                  : &space->with_slots;
  return &(*buckets)->heads[s->largest];
}

void
seg_remove_locked (struct space *space, uint32_t id)
{
  struct seg *s = &space->segs[id];
  struct buckets *buckets;
  uint32_t *head;
  unsigned c;

  assert_held (&space->lock);
  assert (id < space->nr_segs);
  if (!s->backed)
    return;
  head = seg_list_locked (space, id, &buckets);
  if (head != NULL) {
    if (s->prev != NONE)
      space->segs[s->prev].next = s->next;
    else
      *head = s->next;
    if (s->next != NONE)
      space->segs[s->next].prev = s->prev;
    if (head == &space->empty)
      space->nr_empty--;
    else if (*head == NONE)
      buckets->nonempty[s->largest / 64] &= ~(UINT64_C (1) << s->largest % 64);
  }
  if (seg_is_used (s))
    for (c = 0; c < NR_CLASSES; ++c) {
      space->room[c] -= space_room (space, c, s->largest, seg_slots (s));
      space->whole[c] -= space_whole (space, c, s->largest, seg_slots (s));
    }
  assert (space->nr_backed > 0 && space->free_sectors >= s->nr_free);
  space->nr_backed--;
  space->free_sectors -= s->nr_free;
  space->used_sectors -= space->nr_sectors - s->nr_free;
}

void
seg_insert_locked (struct space *space, uint32_t id)
{
  struct seg *s = &space->segs[id];
  struct buckets *buckets;
  uint32_t *head;
  unsigned c;

  assert_held (&space->lock);
  if (!s->backed)
    return;
  assert (s->largest <= s->nr_free && s->nr_free <= space->nr_sectors);
  head = seg_list_locked (space, id, &buckets);
  if (head != NULL) {
    s->prev = NONE;
    s->next = *head;
    if (*head != NONE)
      space->segs[*head].prev = id;
    *head = id;
    if (head == &space->empty)
      space->nr_empty++;
    else
      buckets->nonempty[s->largest / 64] |= UINT64_C (1) << s->largest % 64;
  }
  if (seg_is_used (s))
    for (c = 0; c < NR_CLASSES; ++c) {
      space->room[c] += space_room (space, c, s->largest, seg_slots (s));
      space->whole[c] += space_whole (space, c, s->largest, seg_slots (s));
    }
  space->nr_backed++;
  space->free_sectors += s->nr_free;
  space->used_sectors += space->nr_sectors - s->nr_free;
}

void
seg_set_slots (struct seg *s, bool known, unsigned slots)
{
  if (slots > SLOTS_MAX)
    slots = SLOTS_MAX;
  s->slots_known = known;
  s->slots_high = slots >> 4;
  s->slots_low = slots & 15;
  assert (seg_slots (s) == slots);
}

void
seg_refresh_locked (struct space *space, const struct segment_map *map)
{
  const uint32_t id = map->id;
  unsigned start;

  assert_held (&space->lock);
  seg_remove_locked (space, id);
  space->segs[id].nr_free = map->nr_sectors - map->nr_used;
  space->segs[id].largest = segment_map_largest_run (map, &start);
  seg_set_slots (&space->segs[id], true, segment_map_nr_free_slots (map));
  seg_insert_locked (space, id);
}

void
seg_set_absent_locked (struct space *space, uint32_t id, bool absent)
{
  const uint64_t bit = UINT64_C (1) << id % 64;

  assert_held (&space->lock);
  assert (!space->segs[id].backed); /* never both */
  if (absent)
    space->absent[id / 64] |= bit;
  else
    space->absent[id / 64] &= ~bit;
}

int
seg_extend_locked (struct space *space, uint64_t nr)
{
  struct seg *segs;
  uint64_t *absent;
  uint64_t max = space->max_segs;

  assert_held (&space->lock);
  if (nr > NONE)
    return nbdedup_fail (ENOSPC,
                         "space: segment %" PRIu64 ": there can be "
                         "only %" PRIu32,
                         nr - 1, NONE);
  if (nr > max) {
    max = nr + nr / 4 + 64;
    max -= max % 64;
    segs = patient_realloc (space->segs, max * sizeof *segs);
    if (segs == NULL)
      goto nomem;
    space->segs = segs;
    absent = patient_realloc (space->absent, max / 64 * sizeof *absent);
    if (absent == NULL)
      goto nomem;
    memset (absent + space->max_segs / 64, 0,
            (max - space->max_segs) / 64 * sizeof *absent);
    space->absent = absent;
    space->max_segs = max;
  }
  for (; space->nr_segs < nr; space->nr_segs++) {
    memset (&space->segs[space->nr_segs], 0, sizeof space->segs[0]);
    seg_set_absent_locked (space, space->nr_segs, true);
  }
  assert (space->nr_segs <= space->max_segs && space->max_segs % 64 == 0);
  return 0;

nomem:
  return nbdedup_fail (ENOMEM, "space: no memory for %" PRIu64 " segments", nr);
}

int
seg_back_locked (struct space *space, uint32_t id)
{
  struct seg *s = &space->segs[id];

  assert_held (&space->lock);
  assert (!s->backed);
  if (store_allocate_segment (space->store, id) == -1)
    return -1;
  seg_set_absent_locked (space, id, false);
  s->backed = 1;
  s->nr_free = s->largest = seg_usable_sectors (space, id);
  seg_set_slots (s, true, 0);
  seg_insert_locked (space, id);
  return 0;
}

int
seg_grow_locked (struct space *space)
{
  uint32_t id = space->nr_segs;
  uint32_t w;

  assert_held (&space->lock);
  for (w = 0; w < (space->nr_segs + 63) / 64; ++w)
    if (space->absent[w] != 0) {
      id = 64 * w + __builtin_ctzll (space->absent[w]);
      break;
    }
  if (id >= space->end_first)
    return nbdedup_fail (ENOSPC,
                         "space: segment %" PRIu32 " is being given "
                         "back: try again",
                         id);
  if (id == space->nr_segs) {
    if (seg_extend_locked (space, (uint64_t) id + 1) == -1)
      return -1;
    if (seg_back_locked (space, id) == -1) {
      seg_set_absent_locked (space, id, false);
      space->nr_segs--;
      return -1;
    }
    return 0;
  }
  return seg_back_locked (space, id);
}

void
seg_leave_locked (struct space *space, uint32_t id)
{
  assert_held (&space->lock);
  if (space->current == id)
    space->current = NONE;
  if (space->dense == id)
    space->dense = NONE;
}

uint32_t
seg_pick_empty_locked (const struct space *space, bool last)
{
  uint32_t id, n, best = space->empty;

  assert_held (&space->lock);
  for (id = space->empty, n = 0; id != NONE && n < 64;
       id = space->segs[id].next, ++n)
    if (last ? id > best : id < best)
      best = id;
  return best;
}

void
seg_mark_damaged_locked (struct space *space, uint32_t id)
{
  assert_held (&space->lock);
  assert (space->segs[id].backed);
  seg_remove_locked (space, id);
  space->nr_damaged += !space->segs[id].damaged;
  space->segs[id].damaged = 1;
  seg_insert_locked (space, id);
  seg_leave_locked (space, id);
}
