/* SPDX-License-Identifier: BSD-3-Clause */

/* The allocator, see space.h: opening and closing, and allocating and freeing
 * of records.  A new record pins its segment's map until the fold has
 * committed the record.  A dead record's sectors stay in use until no reader
 * can reach them.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "space/space-int.h"

/* The journal cannot name a segment further past the last known one: this is
 * more than the allocator can allocate between two folds.
 */
#define CLAIM_DISTANCE_MAX (UINT64_C (1) << 20)

/*----------------------------------------------------------------------
 * Opening and closing
 */

static int
init_buckets (struct space *space, struct buckets *buckets)
{
  unsigned i;

  buckets->heads = malloc ((space->nr_sectors + 1) * sizeof (uint32_t));
  if (buckets->heads == NULL)
    return -1;
  for (i = 0; i <= space->nr_sectors; ++i)
    buckets->heads[i] = NONE;
  return 0;
}

struct space *
space_new (struct store *store, const struct space_ops *ops,
           uint64_t budget_bytes)
{
  struct space *space;
  unsigned chunk_sectors;
  uint64_t max;

  space = calloc (1, sizeof *space);
  if (space == NULL)
    return nbdedup_fail_null (ENOMEM, "space: no memory");
  lock_init (&space->lock);
  background_init (&space->puncher, &space->lock);
  cond_init (&space->punched);
  TAILQ_INIT (&space->lru);
  space->store = store;
  space->ops = *ops;
  space->sector_bytes = store_get_header (store)->sector_bytes;
  space->nr_sectors = SEGMENT_BYTES / space->sector_bytes;
  space->base_sectors = STORE_HEADER_BYTES / space->sector_bytes;
  chunk_sectors = segment_chunk_sectors (space->sector_bytes);
  space->slots_per_chunk = chunk_sectors * space->sector_bytes /
      SUMMARY_SLOT_BYTES -
    1;
  space->chunk_cost = 2 * chunk_sectors - 1;
  space->empty = space->current = space->dense = space->end_first = NONE;

  max = budget_bytes /
    (segment_map_memory (space->sector_bytes) + sizeof (struct entry) +
     sizeof (struct entry_list) + 16 /* malloc's own */);
  space->max_entries = max < 2 ? 2 : max < INT_MAX ? max : INT_MAX;
  space->nr_hash = 64;
  space->hash = calloc (space->nr_hash, sizeof *space->hash);
  if (space->hash == NULL || init_buckets (space, &space->with_slots) == -1 ||
      init_buckets (space, &space->without_slots) == -1) {
    space_destroy (space);
    return nbdedup_fail_null (ENOMEM, "space: no memory");
  }
  return space;
}

void
space_destroy (struct space *space)
{
  struct entry *e;
  uint32_t i;

  if (space == NULL)
    return;
  space_stop_puncher (space);
  {
    WITH_LOCK (&space->lock);
    space->closing = true;
    /* The next open would not know the empty segments. */
    if (space->segs != NULL)
      seg_punch_empty_locked (space, true);
    for (i = 0; space->hash != NULL && i < space->nr_hash; ++i)
      while ((e = LIST_FIRST (&space->hash[i])) != NULL)
        space_entry_free_locked (space, e);
  }
  free (space->hash);
  free (space->with_slots.heads);
  free (space->without_slots.heads);
  free (space->segs);
  free (space->absent);
  free (space->kept);
  cond_destroy (&space->punched);
  background_destroy (&space->puncher);
  lock_destroy (&space->lock);
  free (space);
}

int
space_add_segment (struct space *space, uint64_t segment, uint32_t nr_free,
                   uint32_t largest_run)
{
  bool is_known = true;
  uint64_t length;
  struct seg *s;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  if (store_length (space->store, &length) == -1)
    return -1;
  if (segment >= NONE || segment >= length / SEGMENT_BYTES)
    return nbdedup_fail (EIO,
                         "space: pool.db knows segment %" PRIu64 ", but "
                         "records has only %" PRIu64 " bytes: records is "
                         "truncated or belongs to another pool: restore it "
                         "from a backup",
                         segment, length);
  if (segment < space->nr_segs)
    return nbdedup_fail (EIO, "space: segment %" PRIu64 " is out of order",
                         segment);
  if (nr_free > seg_usable_sectors (space, segment) || largest_run > nr_free ||
      (nr_free > 0 && largest_run == 0)) {
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "space: segment %" PRIu64 " cannot have %" PRIu32
                 " free sectors and a longest run of %" PRIu32 ": the "
                 "pool stores nothing there until you run \"nbdedup check "
                 "--repair\"",
                 segment, nr_free, largest_run);
    nr_free = largest_run = 0;
    is_known = false;
  }
  if (seg_extend_locked (space, segment + 1) == -1)
    return -1;
  seg_set_absent_locked (space, segment, false);
  s = &space->segs[segment];
  s->backed = 1;
  s->nr_free = nr_free;
  s->largest = largest_run;
  seg_set_slots (s, false, 0);
  seg_insert_locked (space, segment);
  if (!is_known)
    seg_mark_damaged_locked (space, segment);
  return 0;
}

/*----------------------------------------------------------------------
 * Allocating and freeing records
 */

/* Undo one allocation. */
static void
undo_locked (struct space *space, const struct placement *p,
             uint32_t nr_sectors)
{
  const uint32_t id = p->addr / space->nr_sectors;
  struct entry *e = space_entry_find_locked (space, id);

  assert (e != NULL && e->pins > 0); /* the allocation pinned it */
  if (segment_map_clear (e->map, p->addr % space->nr_sectors, nr_sectors) ==
        -1 ||
      segment_map_clear_slot (e->map, p->slot) == -1)
    abort (); /* the allocation set them */
  seg_refresh_locked (space, e->map);
  space_entry_unpin_locked (space, e);
}

int
space_alloc (struct space *space, unsigned nr, const uint32_t *nr_sectors,
             struct placement *out)
{
  unsigned done, i;
  bool alone = false;
  int r, err;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  for (i = 0; i < nr; ++i)
    assert (nr_sectors[i] > 0);
  for (done = 0; done < nr; done += r) {
    r = space_place_some_locked (space, nr - done, nr_sectors + done, &alone,
                                 out + done);
    if (r == -1) {
      err = errno;
      while (done-- > 0)
        undo_locked (space, &out[done], nr_sectors[done]);
      errno = err;
      return -1;
    }
    assert (r > 0 && (unsigned) r <= nr - done);
  }
  return 0;
}

int
space_alloc_apart (struct space *space, uint32_t nr_sectors,
                   const uint64_t *segments, unsigned nr_segments,
                   struct placement *out)
{
  int r;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  assert (nr_sectors > 0);
  do
    r = space_place_apart_locked (space, nr_sectors, segments, nr_segments,
                                  out);
  while (r == -1 && errno == ENOSPC && seg_wait_for_punch_locked (space));
  return r;
}

void
space_undo (struct space *space, const struct placement *p, uint32_t nr_sectors)
{
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  undo_locked (space, p, nr_sectors);
}

int
space_claim (struct space *space, const struct placement *p,
             uint32_t nr_sectors, bool lenient)
{
  const uint64_t segment = p->addr / space->nr_sectors;
  const unsigned sector = p->addr % space->nr_sectors;
  uint64_t known;
  struct entry *e;
  unsigned chunk, nr_chunks;
  bool lost;
  int err;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  if (store_length (space->store, &known) == -1)
    return -1;
  known /= SEGMENT_BYTES;
  if (known < space->nr_segs)
    known = space->nr_segs;
  if (segment >= known + CLAIM_DISTANCE_MAX || segment >= NONE)
    return nbdedup_fail (EIO,
                         "space: the journal names sector %" PRIu64
                         ", far past the end of records",
                         p->addr);
  if (nr_sectors == 0 || nr_sectors > space->nr_sectors - sector ||
      p->chunk_addr / space->nr_sectors != segment)
    return nbdedup_fail (EIO,
                         "space: the journal names sectors %" PRIu64
                         " + %" PRIu32 ", chunk %" PRIu64
                         ", which cannot exist",
                         p->addr, nr_sectors, p->chunk_addr);
  if (segment >= space->nr_segs && seg_extend_locked (space, segment + 1) == -1)
    return -1;
  if (!space->segs[segment].backed && seg_back_locked (space, segment) == -1)
    return -1;
  e = space_entry_get_locked (space, segment);
  if (e == NULL)
    goto fail;

  chunk = p->slot / e->map->slots_per_chunk;
  nr_chunks = e->map->nr_chunks;
  lost = chunk < nr_chunks && e->map->chunks[chunk] == SEGMENT_CHUNK_LOST;
  if (lenient)
    segment_map_force_chunk (e->map, chunk, p->chunk_addr % space->nr_sectors);
  else if (segment_map_place_chunk (e->map, chunk,
                                    p->chunk_addr % space->nr_sectors) == -1)
    goto contradicted;
  if (lost || chunk >= nr_chunks)
    e->chunks_dirty = true;
  if (segment_map_set_record (e->map, sector, nr_sectors, p->slot) == -1) {
    if (!lenient) {
      seg_refresh_locked (space, e->map);
      goto contradicted;
    }
    /* Without its slot the record is not freed, see take_space of a fold. */
    segment_map_cover (e->map, sector, nr_sectors);
  }
  space_entry_pin_locked (space, e);
  seg_refresh_locked (space, e->map);
  return 0;

contradicted:
  space->contradicted |= errno == EIO;
fail:
  /* The segment may hold other records of the journal.  Marked damaged, it
   * does not count as empty, so closing the pool does not punch it.
   */
  if (seg_is_empty_locked (space, segment)) {
    err = errno;
    seg_mark_damaged_locked (space, segment);
    errno = err;
  }
  return -1;
}

/*----------------------------------------------------------------------
 * The fold
 */

void
space_committed (struct space *space, uint64_t addr)
{
  struct entry *e;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  e = space_entry_find_locked (space, addr / space->nr_sectors);
  assert (e != NULL);
  assert (e->pins > 0);
  space_entry_unpin_locked (space, e);
}

int
space_unlink (struct space *space, uint64_t addr)
{
  const uint64_t segment = addr / space->nr_sectors;
  struct entry *e;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  if (segment >= space->nr_segs || !space->segs[segment].backed)
    return nbdedup_fail (EIO, "space: sector %" PRIu64 ": there is no record",
                         addr);
  e = space_entry_get_locked (space, segment);
  if (e == NULL)
    return -1;
  space_entry_pin_locked (space, e);
  return 0;
}

/* Writers wait for the lock while records are released: so many between two
 * pauses.  A segment costs as much as some records.
 */
#define RELEASE_AT_ONCE 512
#define SEGMENT_AS_RECORDS 16

/* Release records that are all in one segment. */
static void
release_in_segment (struct space *space, const struct space_freed *freed,
                    size_t nr)
{
  struct entry *e;
  size_t i;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  e = space_entry_find_locked (space, freed[0].addr / space->nr_sectors);
  assert (e != NULL);
  assert (e->pins >= nr); /* each record was pinned */
  /* If the map disagrees the sectors stay in use: that is a leak, which check
   * finds, but never two records in one place.
   */
  for (i = 0; i < nr; ++i)
    (void) segment_map_clear_record (e->map, freed[i].addr % space->nr_sectors,
                                     freed[i].nr_sectors, freed[i].slot);
  seg_refresh_locked (space, e->map);
  for (i = 0; i < nr; ++i) /* the last call may drop the map */
    space_entry_unpin_locked (space, e);
}

void
space_release (struct space *space, const struct space_freed *freed, size_t nr)
{
  size_t i, j, since = 0;

  for (i = 0; i < nr; i = j) {
    for (j = i + 1; j < nr && j - i < RELEASE_AT_ONCE &&
         freed[j].addr / space->nr_sectors == freed[i].addr / space->nr_sectors;
         ++j)
      ;
    release_in_segment (space, freed + i, j - i);
    since += j - i + SEGMENT_AS_RECORDS;
    /* A mutex is not fair: a waiting thread gets it only if this one pauses. */
    if (j < nr && since >= RELEASE_AT_ONCE) {
      clock_sleep_ns (1);
      since = 0;
    }
  }
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);
  seg_punch_empty_locked (space, true);
}

int
space_get_chunks (struct space *space, uint64_t segment, uint16_t **chunks,
                  unsigned *nr_chunks)
{
  struct entry *e;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  if (segment >= space->nr_segs || !space->segs[segment].backed)
    return nbdedup_fail (EIO, "space: segment %" PRIu64 " is not in use",
                         segment);
  e = space_entry_get_locked (space, segment);
  if (e == NULL)
    return -1;
  *nr_chunks = e->map->nr_chunks;
  *chunks = malloc ((*nr_chunks + 1) * sizeof **chunks);
  if (*chunks == NULL)
    return nbdedup_fail (ENOMEM, "space: no memory");
  memcpy (*chunks, e->map->chunks, *nr_chunks * sizeof **chunks);
  e->chunks_dirty = false;
  return 0;
}

/*----------------------------------------------------------------------
 * Repair
 */

static void
set_damaged_locked (struct space *space, uint32_t id, bool damaged)
{
  struct seg *s = &space->segs[id];

  if (damaged == s->damaged)
    return;
  if (damaged) {
    seg_mark_damaged_locked (space, id);
    return;
  }
  seg_remove_locked (space, id);
  s->damaged = 0;
  assert (space->nr_damaged > 0);
  space->nr_damaged--;
  seg_insert_locked (space, id);
}

/* Is this segment being punched, or does a punch past the table forbid to
 * extend the table?
 */
static bool
is_being_punched_locked (const struct space *space, uint64_t segment)
{
  if (segment >= space->nr_segs)
    return space->end_first != NONE;
  return !space->segs[segment].backed &&
    !seg_is_absent_locked (space, (uint32_t) segment);
}

int
space_hold (struct space *space, uint64_t segment)
{
  uint64_t length;
  unsigned c;
  bool was;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  if (store_length (space->store, &length) == -1)
    return -1;
  if (segment >= length / SEGMENT_BYTES || segment >= NONE)
    return nbdedup_fail (EIO,
                         "space: segment %" PRIu64 " is past the end of "
                         "records",
                         segment);
  while (is_being_punched_locked (space, segment))
    lock_wait (&space->lock, &space->punched);
  if (segment >= space->nr_segs && seg_extend_locked (space, segment + 1) == -1)
    return -1;
  if (!space->segs[segment].backed && seg_back_locked (space, segment) == -1)
    return -1;
  was = space->segs[segment].damaged;
  set_damaged_locked (space, segment, true);
  c = space_top_class_locked (space);
  while (space->room[c] < space->reserved_sectors)
    if (seg_grow_locked (space) == -1) {
      set_damaged_locked (space, segment, was);
      return -1;
    }
  return 0;
}

void
space_replace (struct space *space, uint64_t segment, uint32_t nr_free,
               uint32_t largest_run)
{
  struct entry *e;
  struct seg *s;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);
  assert (segment < space->nr_segs && space->segs[segment].backed);

  s = &space->segs[segment]; /* an extension moves the array */
  e = space_entry_find_locked (space, segment);
  if (e != NULL && e->pins > 0)
    return;
  if (e != NULL)
    space_entry_free_locked (space, e);
  seg_remove_locked (space, segment);
  s->nr_free = nr_free;
  s->largest = largest_run;
  seg_set_slots (s, seg_is_empty_locked (space, segment), 0);
  seg_insert_locked (space, segment);
  set_damaged_locked (space, segment, false);
}

void
space_get_info (struct space *space, struct space_info *info)
{
  uint64_t free_sectors, empty;
  WITH_LOCK (&space->lock);

  free_sectors = space->free_sectors;
  empty = (uint64_t) space->nr_empty * space->nr_sectors;
  info->free_bytes = space->free_sectors * space->sector_bytes;
  info->waste_bytes = free_sectors > empty
    ? (free_sectors - empty) * space->sector_bytes
    : 0;
  info->used_bytes = space->used_sectors * space->sector_bytes;
  info->reserved_bytes = space->reserved_sectors * space->sector_bytes;
  info->max_bytes = space->max_sectors * space->sector_bytes;
  info->nr_segments = space->nr_backed;
  info->nr_damaged = space->nr_damaged;
  info->contradicted = space->contradicted;
}
