/* SPDX-License-Identifier: BSD-3-Clause */

/* Giving empty segments back to the file system.
 *
 * A file system can take many milliseconds to punch a hole: it frees the pages
 * of the range in memory, and some write dirty ones first.  So a thread of its
 * own does it, the puncher, which neither a fold nor a client waits for.
 *
 * The queue of the puncher is the list of empty segments.  They stay BACKED:
 * the allocator may use any of them before the puncher comes to it, which
 * spares both a punch and an allocation.  A segment that is being punched is
 * neither BACKED nor ABSENT, so no allocation takes it.
 *
 * If the process dies, the segments in the queue are free, but still have their
 * space.  So do those that a punch was to give back, since the file system need
 * not have made it durable.  space_start_puncher finds them.
 *
 * An operation that fails for lack of space calls space_settle, which does the
 * puncher's work at once.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/priority.h"
#include "space/space-int.h"

/* Segments that one system call punches. */
#define PUNCH_AT_ONCE 64u

static void
take_empty_locked (struct space *space, uint32_t id)
{
  assert_held (&space->lock);
  assert (seg_is_used (&space->segs[id]) && seg_is_empty_locked (space, id));
  seg_remove_locked (space, id);
  space->segs[id].backed = 0;
  /* It may have been chosen for a batch that then failed for lack of memory.
   */
  seg_leave_locked (space, id);
}

/* Release the lock during the system call, so that writers can reserve room.
 * 'end' may be past the table: there is nothing to be BACKED or ABSENT.
 */
static void
punch_taken_locked (struct space *space, uint32_t first, uint32_t end)
{
  const uint64_t from = (uint64_t) first * space->nr_sectors +
    (first == 0 ? space->base_sectors : 0);
  const uint64_t to = (uint64_t) end * space->nr_sectors;
  uint32_t id;

  assert_held (&space->lock);
  assert (first < end);
  space->punches_begun++;
  space_assert_consistent_locked (space);
  lock_release (&space->lock);
  /* If this fails the file only keeps the space until the segments are used
   * again.
   */
  store_punch (space->store, from, to - from);
  lock_acquire (&space->lock);
  space->punches_ended++;
  assert (space->punches_ended <= space->punches_begun);
  cond_broadcast (&space->punched);
  for (id = first; id < end && id < space->nr_segs; ++id) {
    assert (!space->segs[id].backed);
    seg_set_absent_locked (space, id, true);
  }
}

/* Keep as much room as the spare segments have on top of the reservations.
 * Otherwise a full pool would punch and allocate a segment for every write.
 */
static bool
has_surplus_locked (const struct space *space)
{
  const unsigned c = space_top_class_locked (space);
  const uint64_t fresh = space_room (space, c, space->nr_sectors, 0);

  if (space->closing)
    return space->nr_empty > 0;
  return space->nr_empty > SPACE_SPARE_SEGMENTS &&
    space->room[c] >= space->reserved_sectors + SPACE_SPARE_SEGMENTS * fresh;
}

/* A large volume leaves neighbours: one call takes them all.  Segment 0, with
 * the header, is not worth it.
 */
static void
punch_some_locked (struct space *space)
{
  uint32_t first, last;

  assert (space->nr_empty > 0);
  first = last = seg_pick_empty_locked (space, true);
  take_empty_locked (space, last);
  while (first > 1 && last - first + 1 < PUNCH_AT_ONCE &&
         seg_is_used (&space->segs[first - 1]) &&
         seg_is_empty_locked (space, first - 1) && has_surplus_locked (space))
    take_empty_locked (space, --first);
  punch_taken_locked (space, first, last + 1);
}

void
seg_punch_empty_locked (struct space *space, bool all)
{
  assert_held (&space->lock);
  if (!has_surplus_locked (space))
    return;
  /* Many are freed one after the other: let them wait for their neighbours. */
  if (!all && space->nr_empty < SPACE_SPARE_SEGMENTS + EMPTY_AT_ONCE)
    return;
  if (space->puncher.runs) {
    space->punch_all |= all;
    cond_signal (&space->puncher.wake);
    return;
  }
  while (has_surplus_locked (space))
    punch_some_locked (space);
}

bool
seg_wait_for_punch_locked (struct space *space)
{
  const uint64_t begun = space->punches_begun;

  assert_held (&space->lock);
  if (space->punches_ended == begun)
    return false;
  while (space->punches_ended < begun)
    lock_wait (&space->lock, &space->punched);
  return true;
}

bool
space_settle (struct space *space)
{
  bool any = false;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  for (; has_surplus_locked (space); any = true)
    punch_some_locked (space);
  return seg_wait_for_punch_locked (space) || any;
}

/*----------------------------------------------------------------------
 * After a crash
 */

/* Does the file have more space than the BACKED segments?  (A file system adds
 * some for its own records of where they are.)
 */
static bool
has_more_space_locked (struct space *space)
{
  return !store_is_device (space->store) &&
    store_file_bytes (space->store) / SEGMENT_BYTES > space->nr_backed + 1;
}

/* Punch the next ABSENT segments from 'id' on.  Returns where to go on. */
static uint32_t
punch_absent_locked (struct space *space, uint32_t id)
{
  uint32_t end;

  while (id < space->nr_segs && !seg_is_absent_locked (space, id))
    id++;
  for (end = id; end < space->nr_segs && end - id < PUNCH_AT_ONCE &&
       seg_is_absent_locked (space, end);
       ++end)
    seg_set_absent_locked (space, end, false);
  if (end > id)
    punch_taken_locked (space, id, end);
  return end;
}

/* Punch what is past the table, the end of the file first, so that growth meets
 * it last.
 */
static void
punch_end_locked (struct space *space)
{
  uint64_t length, end;

  assert (space->end_first == NONE);
  if (store_length (space->store, &length) == -1)
    return;
  end = length / SEGMENT_BYTES < NONE ? length / SEGMENT_BYTES : NONE;
  while (end > space->nr_segs && !space->puncher.stop) {
    space->end_first = end - space->nr_segs > PUNCH_AT_ONCE
      ? (uint32_t) end - PUNCH_AT_ONCE
      : space->nr_segs;
    punch_taken_locked (space, space->end_first, (uint32_t) end);
    end = space->end_first;
    space->end_first = NONE;
  }
}

static void
punch_leftovers_locked (struct space *space)
{
  uint32_t id = 0;

  if (!has_more_space_locked (space))
    return;
  punch_end_locked (space);
  while (id < space->nr_segs && !space->puncher.stop)
    id = punch_absent_locked (space, id);
}

/*----------------------------------------------------------------------
 * The thread
 */

static bool
is_due_locked (struct space *space)
{
  if (has_surplus_locked (space))
    return space->punch_all ||
      space->nr_empty >= SPACE_SPARE_SEGMENTS + EMPTY_AT_ONCE;
  space->punch_all = false;
  return false;
}

static void *
puncher_thread (void *arg)
{
  struct space *space = arg;

  thread_lower_priority ();
  WITH_LOCK (&space->lock);
  if (space->find_leftovers)
    punch_leftovers_locked (space);
  while (!space->puncher.stop)
    if (is_due_locked (space))
      punch_some_locked (space);
    else
      lock_wait (&space->lock, &space->puncher.wake); /* stop, or due */
  return NULL;
}

int
space_start_puncher (struct space *space, bool find_leftovers)
{
  WITH_LOCK (&space->lock);

  assert (!space->puncher.runs);
  space->find_leftovers = find_leftovers;
  return background_start (&space->puncher, puncher_thread, space);
}

void
space_stop_puncher (struct space *space)
{
  background_stop (&space->puncher);
}
