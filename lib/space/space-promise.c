/* SPDX-License-Identifier: BSD-3-Clause */

/* Reservations, and the proof that a reserved record finds room.
 *
 * A reserved record must find room even if the allocator used each free run
 * in the worst way.  Let L be the sectors of the largest record that is
 * reserved now, K the slots that a chunk provides, and c the most sectors
 * that a new chunk can take: its own, and the gap in front that aligns it.
 * For a segment with longest run R and f free slots, room (R, f) is the
 * greatest N with
 *
 *   N + c * ceil (max (0, N - f) / K)  <=  R - L
 *
 * that is, the sectors of records that fit into R - L if each record has only
 * one sector, which needs the most slots.  The invariant is
 *
 *   sum of room over all BACKED segments >= sectors reserved      (1)
 *
 * (records that were allocated but not yet unreserved still count on the right
 * side, which errs on the safe side).  The invariant is sufficient:
 *
 *  - If a record of r <= L sectors is owed, some segment has room >= 1,
 *    hence R >= L + 1, and R >= L + 1 + c if it has no free slot: record
 *    and chunk fit.
 *
 *  - Placing r sectors at the start of a free run, and a chunk at the start
 *    of some run, lowers the sum by r at most, and r sectors fewer are owed
 *    afterwards.  With N = room (R, f), N - r satisfies the inequality for
 *    the rest of the run, because r >= 1: with a free slot the rest is
 *    (R - r, f - 1), else (R - r - c, K - 1).  Placing in another run than the
 *    longest leaves more.
 *
 *  - Freeing raises the sum.  Two more operations could lower it: punching an
 *    empty segment, and dropping a map together with a chunk that pool.db
 *    does not know.  The allocator does so only if (1) still holds afterwards.
 *
 * The allocator keeps one sum for each power of two that a record's size can
 * be, so that L may be as small as the blocks in use allow.
 *
 * (1) promises too little in a pool that is nearly full of records of one
 * size: a hole of exactly that size counts as nothing.  So while all reserved
 * records have the same size L, another sum may promise instead: whole (R, f),
 * the number of records of L sectors that fit into the longest run with the
 * chunks that they need, and
 *
 *   sum of whole over all BACKED segments >= records reserved     (2)
 *
 * Placing r <= L sectors lowers one segment's whole by one at most, and one
 * record fewer is owed afterwards; if the longest run holds L, the record fits
 * there.  A record of another size depends on (1) alone, which counts all
 * reservations.
 *
 * Unknown slots count as none, and more than 255 as 255: both give less room,
 * so the argument still holds.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "space/space-int.h"

/* room (R, f) above, for records of at most CLASS_BYTES (class). */
unsigned
space_room (const struct space *space, unsigned class, unsigned largest,
            unsigned slots)
{
  const unsigned k = space->slots_per_chunk, c = space->chunk_cost;
  unsigned max_record = CLASS_BYTES (class) / space->sector_bytes;
  unsigned x, y, rest;

  assert (class < NR_CLASSES && largest <= space->nr_sectors);
  if (max_record == 0)
    max_record = 1;
  if (largest <= max_record)
    return 0;
  x = largest - max_record;
  if (x <= slots)
    return x;
  y = x - slots;
  rest = y % (k + c);
  return slots + y / (k + c) * k + (rest > c ? rest - c : 0);
}

/* whole (R, f) above: how many records of one class, and of no other, fit
 * into the longest run.
 */
unsigned
space_whole (const struct space *space, unsigned class, unsigned largest,
             unsigned slots)
{
  const unsigned k = space->slots_per_chunk, c = space->chunk_cost;
  unsigned record = CLASS_BYTES (class) / space->sector_bytes, n, cost;

  if (record == 0)
    record = 1;
  n = largest / record;
  if (n <= slots)
    return n;
  cost = (n - slots + k - 1) / k * c;
  n = largest > cost ? (largest - cost) / record : 0;
  return n > slots ? n : slots;
}

unsigned
space_top_class_locked (const struct space *space)
{
  unsigned c = NR_CLASSES - 1;

  assert_held (&space->lock);
  while (c > 0 && space->reserved_records[c] == 0)
    c--;
  return c;
}

void
space_set_max (struct space *space, uint64_t max_bytes)
{
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  space->max_sectors = max_bytes / space->sector_bytes;
  if (max_bytes > 0 && space->max_sectors == 0)
    space->max_sectors = 1;
}

static unsigned
class_of (uint32_t lsize)
{
  unsigned c = 0;

  while (CLASS_BYTES (c) < lsize)
    c++;
  assert (c < NR_CLASSES);
  return c;
}

static uint64_t
sectors_of (const struct space *space, uint32_t lsize, uint64_t nr)
{
  return nr * ((lsize + space->sector_bytes - 1) / space->sector_bytes);
}

/* Return true if all reservations are of this class and (2) holds with 'nr'
 * more.
 */
static bool
fits_alone_locked (const struct space *space, unsigned class, unsigned nr)
{
  return space->reserved_records[class] == space->reserved_nr &&
    space->whole[class] >= space->reserved_nr + nr;
}

bool
space_keeps_promises_locked (const struct space *space)
{
  const unsigned c = space_top_class_locked (space);

  assert_held (&space->lock);
  return space->room[c] >= space->reserved_sectors ||
    fits_alone_locked (space, c, 0);
}

static bool
exceeds_max_locked (const struct space *space, uint64_t sectors, uint64_t nr)
{
  uint64_t chunks = (space->reserved_nr + nr) / space->slots_per_chunk + 1;

  return space->max_sectors > 0 &&
    space->used_sectors + space->reserved_sectors + sectors +
      chunks * segment_chunk_sectors (space->sector_bytes) >
    space->max_sectors;
}

/* How many segments are missing, each of which adds 'each' to the sum. */
static uint64_t
segments_missing (uint64_t need, uint64_t have, unsigned each)
{
  if (need <= have)
    return 0;
  return each == 0 ? UINT64_MAX : (need - have + each - 1) / each;
}

uint64_t
space_segments_for (struct space *space, uint32_t lsize, uint64_t nr)
{
  const uint64_t need = sectors_of (space, lsize, nr);
  const unsigned class = class_of (lsize);
  uint64_t by_room, by_whole;
  unsigned c;
  WITH_LOCK (&space->lock);

  if (exceeds_max_locked (space, need, nr))
    return UINT64_MAX;
  c = space_top_class_locked (space);
  if (c < class)
    c = class;
  by_room = segments_missing (space->reserved_sectors + need, space->room[c],
                              space_room (space, c, space->nr_sectors, 0));
  if (space->reserved_records[class] != space->reserved_nr)
    return by_room;
  by_whole = segments_missing (space->reserved_nr + nr, space->whole[class],
                               space_whole (space, class, space->nr_sectors,
                                            0));
  return by_room < by_whole ? by_room : by_whole;
}

/* Take new segments until there is room for 'nr' more records. */
static int
grow_for_locked (struct space *space, unsigned class, uint64_t need,
                 unsigned nr)
{
  unsigned c = space_top_class_locked (space);

  assert_held (&space->lock);
  if (c < class)
    c = class;
  while (space->room[c] < space->reserved_sectors + need &&
         !fits_alone_locked (space, class, nr))
    if (seg_grow_locked (space) == -1)
      return -1;
  return 0;
}

int
space_reserve (struct space *space, uint32_t lsize, unsigned nr)
{
  const uint64_t need = sectors_of (space, lsize, nr);
  const unsigned class = class_of (lsize);
  int r, err;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  do {
    if (exceeds_max_locked (space, need, nr))
      return nbdedup_fail (ENOSPC,
                           "the pool has reached its max-size: free "
                           "some space in it, or raise max-size");
    r = grow_for_locked (space, class, need, nr);
    /* What is being punched may be the room. */
  } while (r == -1 && errno == ENOSPC && seg_wait_for_punch_locked (space));
  if (r == -1) {
    err = errno;
    seg_punch_empty_locked (space, true);
    errno = err;
    return -1;
  }
  space->reserved_records[class] += nr;
  space->reserved_nr += nr;
  space->reserved_sectors += need;
  return 0;
}

void
space_unreserve (struct space *space, uint32_t lsize, unsigned nr)
{
  const uint64_t sectors = sectors_of (space, lsize, nr);
  const unsigned class = class_of (lsize);
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  assert (space->reserved_records[class] >= nr);
  assert (space->reserved_nr >= nr);
  assert (space->reserved_sectors >= sectors);
  space->reserved_records[class] -= nr;
  space->reserved_nr -= nr;
  space->reserved_sectors -= sectors;
  seg_punch_empty_locked (space, true);
}
