/* SPDX-License-Identifier: BSD-3-Clause */

/* Placement of records: the policy that space.h describes.
 *
 * Within a segment the records go together into the shortest free run that
 * holds them.  The chunks that they need are placed first, so that a segment
 * takes either the whole batch or nothing.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "base/error.h"
#include "space/space-int.h"

/* A batch leaves free runs alone while they are no more than this part of what
 * is used, and these bytes, and so much of the file system is free.
 */
#define LEFT_PART 4
#define LEFT_BYTES (UINT64_C (64) << 20)
#define LEFT_DISK_PART 4
/* A free run of so many bytes is worth it to divide a batch. */
#define DIVIDE_BYTES (64u << 10)
/* One segment of so many is chosen: 64 K take 0.1 ms. */
#define SPARSE_OF (1u << 16)

/* The shortest free run of at least 'len' sectors. */
static int
find_run (const struct segment_map *map, unsigned len)
{
  unsigned n, best_len = UINT_MAX;
  int run, best = -1;

  assert (len > 0);
  for (run = segment_map_next_run (map, 0, &n); run != -1;
       run = segment_map_next_run (map, run + n, &n))
    if (n >= len && n < best_len) {
      best = run;
      best_len = n;
      if (n == len)
        break;
    }
  return best;
}

/* The first aligned place in the shortest run that holds a chunk; or -1. */
static int
find_chunk_place (const struct segment_map *map)
{
  const unsigned cs = map->chunk_sectors;
  unsigned n, aligned, best_len = UINT_MAX;
  int run, best = -1;

  for (run = segment_map_next_run (map, 0, &n); run != -1;
       run = segment_map_next_run (map, run + n, &n)) {
    aligned = (run + cs - 1) / cs * cs;
    if (aligned + cs <= run + n && n < best_len) {
      best = aligned;
      best_len = n;
    }
  }
  return best;
}

/* Add a chunk, replacing a lost one if there is one.  Returns its number, or
 * -1 if there is no room.
 */
static int
add_chunk (struct segment_map *map)
{
  int sector = find_chunk_place (map);
  unsigned i;

  if (sector == -1)
    return -1;
  for (i = 0; i < map->nr_chunks; ++i)
    if (map->chunks[i] == SEGMENT_CHUNK_LOST)
      break;
  if (i >= map->max_chunks)
    return -1;
  if (segment_map_place_chunk (map, i, sector) == -1)
    abort (); /* the place was free and aligned */
  return i;
}

/* Place 'nr' records of 'total' sectors in one free run of a segment, with
 * the chunks that they need.  Returns false, with nothing changed, if they
 * do not fit.
 */
static bool
place_locked (struct space *space, struct entry *e, unsigned nr,
              const uint32_t *nr_sectors, uint64_t total, struct placement *out)
{
  struct segment_map *map = e->map;
  const uint64_t base = map->id * space->nr_sectors;
  const unsigned spc = map->slots_per_chunk;
  uint8_t added[SEGMENT_BYTES / 4096]; /* chunks' numbers: below 128 */
  unsigned i, nr_added = 0, sector;
  int r;

  assert (nr > 0 && total >= nr);
  if (total > space->nr_sectors)
    return false;
  while (segment_map_nr_free_slots (map) < nr) {
    r = add_chunk (map);
    if (r == -1)
      goto no_room;
    assert (nr_added < sizeof added && r <= UINT8_MAX);
    added[nr_added++] = r;
  }
  r = find_run (map, total);
  if (r == -1)
    goto no_room;

  sector = r;
  if (segment_map_set (map, sector, total) == -1)
    abort (); /* find_run found it free */
  for (i = 0; i < nr; ++i) {
    r = segment_map_find_slot (map);
    if (r == -1 || segment_map_set_slot (map, r) == -1)
      abort (); /* counted above */
    out[i].addr = base + sector;
    out[i].slot = r;
    out[i].chunk_addr = base + map->chunks[r / spc];
    sector += nr_sectors[i];
    space_entry_pin_locked (space, e);
  }
  assert (base + sector == out[0].addr + total);
  if (nr_added > 0)
    e->chunks_dirty = true;
  seg_refresh_locked (space, map);
  return true;

no_room:
  while (nr_added > 0)
    if (segment_map_drop_chunk (map, added[--nr_added]) == -1)
      abort (); /* nothing was put into it */
  return false;
}

/* The first list from 'len' on that is not empty, or UINT_MAX. */
static unsigned
find_bucket_locked (const struct space *space, const struct buckets *b,
                    uint64_t len)
{
  unsigned w;
  uint64_t word;

  if (len > space->nr_sectors)
    return UINT_MAX;
  w = len / 64;
  word = b->nonempty[w] & UINT64_MAX << len % 64;
  while (word == 0) {
    if (++w >= BUCKET_WORDS)
      return UINT_MAX;
    word = b->nonempty[w];
  }
  return 64 * w + __builtin_ctzll (word);
}

/* The segment with the shortest longest run that is at least 'len', if it
 * has free slots, or 'len_without' if it has none.  NONE if there is none.
 */
static uint32_t
find_segment_locked (const struct space *space, uint64_t len,
                     uint64_t len_without)
{
  const unsigned b0 = find_bucket_locked (space, &space->with_slots, len);
  const unsigned b1 = find_bucket_locked (space, &space->without_slots,
                                          len_without);

  if (b0 <= b1)
    return b0 == UINT_MAX ? NONE : space->with_slots.heads[b0];
  return space->without_slots.heads[b1];
}

/* Try one segment.  Returns 1, 0 if the records do not fit or the segment
 * turned out to be damaged, -1 on error.
 */
static int
try_segment_locked (struct space *space, uint32_t id, unsigned nr,
                    const uint32_t *nr_sectors, uint64_t total,
                    struct placement *out)
{
  struct entry *e = space_entry_get_locked (space, id);

  if (e == NULL)
    return errno == EIO ? 0 : -1;
  return place_locked (space, e, nr, nr_sectors, total, out);
}

/* May a batch take a new segment although free runs would hold its records one
 * by one?  Each group of records that gets some costs the fold two or three
 * pages, whether it gets one or all of them.  So segments are left until more
 * of them is free, and batches lie together; where disk space is short, or the
 * pool has a limit, none is left unused.
 */
static bool
may_leave_runs_locked (struct space *space)
{
  const uint64_t whole = (uint64_t) space->nr_empty * space->nr_sectors;
  struct store_fs fs;

  assert_held (&space->lock);
  return space->max_sectors == 0 &&
    space->free_sectors <= whole + space->used_sectors / LEFT_PART +
      LEFT_BYTES / space->sector_bytes &&
    store_get_fs (space->store, space->nr_segs, &fs) == 0 &&
    fs.free_bytes > fs.total_bytes / LEFT_DISK_PART;
}

/* Of some segments, from one on that moves, the one with the most free sectors
 * that surely holds a record: its groups get many of those that come next.
 * NONE: there is none.
 */
static uint32_t
find_sparse_locked (struct space *space, uint32_t nr_sectors)
{
  const uint64_t len = (uint64_t) nr_sectors + space->chunk_cost;
  uint32_t best = NONE, n, id;

  assert_held (&space->lock);
  if (find_segment_locked (space, len, len) == NONE)
    return NONE;
  for (n = 0; n < space->nr_segs && n < SPARSE_OF; ++n) {
    id = space->sparse_next++ % space->nr_segs;
    if (seg_is_used (&space->segs[id]) && !seg_is_empty_locked (space, id) &&
        space->segs[id].largest >= len &&
        (best == NONE || space->segs[id].nr_free > space->segs[best].nr_free))
      best = id;
  }
  return best;
}

/* Place the first record in the current segment, or in a sparse one that
 * becomes the current one.  0: it fits nowhere there.
 */
static int
place_in_runs_locked (struct space *space, const uint32_t *nr_sectors,
                      struct placement *out)
{
  int r = 0;

  if (space->current != NONE &&
      space->segs[space->current].largest >= nr_sectors[0])
    r = try_segment_locked (space, space->current, 1, nr_sectors, nr_sectors[0],
                            out);
  if (r == 0) {
    const uint32_t id = find_sparse_locked (space, nr_sectors[0]);

    if (id != NONE) {
      space->current = id;
      r = try_segment_locked (space, id, 1, nr_sectors, nr_sectors[0], out);
    }
  }
  return r;
}

/* Place the first ones in the current segment's longest run, which too few
 * sectors are left in for all: the end of a segment that batches have filled.
 * Returns how many; 0: too few.
 */
static int
place_first_locked (struct space *space, unsigned nr,
                    const uint32_t *nr_sectors, struct placement *out)
{
  const uint32_t id = space->current;
  uint64_t total = 0, len;
  unsigned n;
  int r;

  if (id == NONE || space->segs[id].largest < space->chunk_cost)
    return 0;
  len = space->segs[id].largest - space->chunk_cost; /* for slots, perhaps */
  for (n = 0; n < nr && total + nr_sectors[n] <= len; ++n)
    total += nr_sectors[n];
  if (total * space->sector_bytes < DIVIDE_BYTES)
    return 0;
  r = try_segment_locked (space, id, n, nr_sectors, total, out);
  return r == 1 ? (int) n : r;
}

/* Place all in a segment where they fit even if no slot is free; else in a new
 * one, if there is plenty of room.  0: not so.
 */
static int
place_together_locked (struct space *space, unsigned nr,
                       const uint32_t *nr_sectors, uint64_t total,
                       struct placement *out)
{
  const uint64_t surely = total +
    (uint64_t) space->chunk_cost *
      ((nr + space->slots_per_chunk - 1) / space->slots_per_chunk);
  uint32_t id = find_segment_locked (space, surely, surely);
  int r;

  if (id == NONE && may_leave_runs_locked (space) &&
      (space->empty != NONE || seg_grow_locked (space) == 0))
    id = seg_pick_empty_locked (space, false);
  if (id == NONE)
    return 0;
  r = try_segment_locked (space, id, nr, nr_sectors, total, out);
  if (r == 1)
    space->current = id;
  return r;
}

/* Place all in a new segment, or the first. */
static int
place_in_new_locked (struct space *space, unsigned nr,
                     const uint32_t *nr_sectors, uint64_t total,
                     struct placement *out)
{
  uint32_t id;
  int r;

  if (space->empty == NONE && seg_grow_locked (space) == -1)
    return -1;
  id = seg_pick_empty_locked (space, false);
  assert (id != NONE);
  space->current = id;
  r = nr > 1 ? try_segment_locked (space, id, nr, nr_sectors, total, out) : 0;
  if (r != 0)
    return r == 1 ? (int) nr : -1;
  r = try_segment_locked (space, id, 1, nr_sectors, nr_sectors[0], out);
  if (r == 0)
    return nbdedup_fail (EINVAL,
                         "space: a record of %" PRIu32 " sectors is "
                         "too large",
                         nr_sectors[0]);
  return r;
}

int
space_place_some_locked (struct space *space, unsigned nr,
                         const uint32_t *nr_sectors, bool *alone,
                         struct placement *out)
{
  uint64_t total = 0;
  uint32_t id;
  unsigned i;
  bool known;
  int r;

  assert_held (&space->lock);
  for (i = 0; i < nr; ++i)
    total += nr_sectors[i];

  /* Try to place all in the current segment. */
  id = space->current;
  if (id != NONE && space->segs[id].largest >= total) {
    r = try_segment_locked (space, id, nr, nr_sectors, total, out);
    if (r != 0)
      return r == 1 ? (int) nr : -1;
  }

  if (nr > 1 && !*alone) {
    r = place_first_locked (space, nr, nr_sectors, out);
    if (r != 0)
      return r;
    r = place_together_locked (space, nr, nr_sectors, total, out);
    if (r != 0)
      return r == 1 ? (int) nr : -1;
  }

  *alone = true;
  r = place_in_runs_locked (space, nr_sectors, out);
  if (r != 0)
    return r;

  /* Then only the first one, best fit.  If it does not fit into a segment
   * whose slots were not known, the attempt has made them known, so the next
   * search does not find that segment again.
   */
  for (;;) {
    id = find_segment_locked (space, nr_sectors[0],
                              nr_sectors[0] + space->chunk_cost);
    if (id == NONE)
      break;
    known = space->segs[id].slots_known;
    r = try_segment_locked (space, id, 1, nr_sectors, nr_sectors[0], out);
    if (r != 0)
      return r;
    if (known && !space->segs[id].damaged)
      seg_mark_damaged_locked (space, id);
  }

  return place_in_new_locked (space, nr, nr_sectors, total, out);
}

static bool
is_one_of (uint32_t id, const uint64_t *segments, unsigned nr)
{
  unsigned i;

  for (i = 0; i < nr; ++i)
    if (segments[i] == id)
      return true;
  return false;
}

/* The segment with the shortest longest run that is at least 'len', if it is
 * none of these.  NONE if there is none.
 */
static uint32_t
find_apart_locked (const struct space *space, const struct buckets *b,
                   uint64_t len, const uint64_t *segments, unsigned nr)
{
  unsigned bucket;
  uint32_t id;

  for (bucket = find_bucket_locked (space, b, len); bucket != UINT_MAX;
       bucket = find_bucket_locked (space, b, (uint64_t) bucket + 1))
    for (id = b->heads[bucket]; id != NONE; id = space->segs[id].next)
      if (!is_one_of (id, segments, nr))
        return id;
  return NONE;
}

/* The first in the file of the last 64 emptied segments, without these; or
 * NONE.
 */
static uint32_t
find_empty_apart_locked (const struct space *space, const uint64_t *segments,
                         unsigned nr)
{
  uint32_t id, n, best = NONE;

  for (id = space->empty, n = 0; id != NONE && n < 64;
       id = space->segs[id].next, ++n)
    if (id < best && !is_one_of (id, segments, nr))
      best = id;
  return best;
}

/* Best fit, as in space_place_some_locked. */
int
space_place_apart_locked (struct space *space, uint32_t nr_sectors,
                          const uint64_t *segments, unsigned nr_segments,
                          struct placement *out)
{
  uint32_t id;
  bool known;
  int r;

  assert_held (&space->lock);
  for (;;) {
    id = find_apart_locked (space, &space->with_slots, nr_sectors, segments,
                            nr_segments);
    if (id == NONE)
      id = find_apart_locked (space, &space->without_slots,
                              nr_sectors + space->chunk_cost, segments,
                              nr_segments);
    if (id == NONE)
      break;
    known = space->segs[id].slots_known;
    r = try_segment_locked (space, id, 1, &nr_sectors, nr_sectors, out);
    if (r != 0)
      return r == 1 ? 0 : -1;
    if (known && !space->segs[id].damaged)
      seg_mark_damaged_locked (space, id);
  }
  /* Each new segment is another one, so this loop ends. */
  while ((id = find_empty_apart_locked (space, segments, nr_segments)) == NONE)
    if (seg_grow_locked (space) == -1)
      return -1;
  r = try_segment_locked (space, id, 1, &nr_sectors, nr_sectors, out);
  if (r == 0)
    return nbdedup_fail (EINVAL,
                         "space: a record of %" PRIu32 " sectors is "
                         "too large",
                         nr_sectors);
  return r == 1 ? 0 : -1;
}

int
space_place_dense_locked (struct space *space, uint32_t nr_sectors,
                          struct placement *out)
{
  uint32_t id = space->dense;
  int r = 0;

  assert_held (&space->lock);
  if (id != NONE && space->segs[id].largest >= nr_sectors)
    r = try_segment_locked (space, id, 1, &nr_sectors, nr_sectors, out);
  if (r != 0)
    return r == 1 ? 0 : -1;
  if (space->empty == NONE && seg_grow_locked (space) == -1)
    return -1;
  id = seg_pick_empty_locked (space, false);
  assert (id != NONE);
  r = try_segment_locked (space, id, 1, &nr_sectors, nr_sectors, out);
  if (r == 1)
    space->dense = id;
  else if (r == 0)
    return nbdedup_fail (EINVAL,
                         "space: a record of %" PRIu32 " sectors is "
                         "too large",
                         nr_sectors);
  return r == 1 ? 0 : -1;
}
