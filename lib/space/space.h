/* SPDX-License-Identifier: BSD-3-Clause */

/* The allocator of the backing file: which sectors are free, in memory.
 *
 * Table "segment" of pool.db has the durable state of the space.  The fold
 * (txg.c) writes it from the records that it inserts and removes, never from
 * this module's state.  This module also knows what was allocated since the
 * last fold, and what is free in pool.db but may not be reused yet because a
 * reader may still reach it.
 *
 * The number of free sectors and the longest free run of every segment are in
 * memory (12 bytes per segment).  So are the maps of the segments in use,
 * within a budget: the allocator drops the least recently used map that is not
 * pinned, and reads it from pool.db again when needed.  A map is pinned while
 * it differs from its row: from space_alloc or space_claim until
 * space_committed, and from space_unlink until space_release.
 *
 * State of a segment: ABSENT (past the end, or punched: it takes no space of
 * the file system, and has no row) or BACKED (fallocate'd).
 *
 * Policy: a batch is placed contiguously in the current segment; else in
 * the segment with the smallest free run that holds the batch; else in a new
 * segment, while the runs that this leaves unused are few and disk space is
 * plentiful (space-place.c).  Else it is placed record by record, in the free
 * runs of one sparse segment after the other, or best fit: a fold writes the
 * rows of each group of records that gets some, and a segment has few groups.
 * When nothing fits the allocator takes a new segment in any case: first ABSENT
 * ones from the front, then one past the end.  It keeps up to
 * SPACE_SPARE_SEGMENTS wholly empty segments BACKED, and punches the others
 * (their rows are deleted by then), in a thread of its own.  Compaction
 * (core/moves.h) empties segments that are mostly free.
 *
 * Threads: all functions lock (one mutex, never held over data I/O, nor while a
 * segment is punched; loading a map from pool.db and allocating a segment
 * happen under it).
 */

#ifndef NBDEDUP_SPACE_H
#define NBDEDUP_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "disk/store.h"
#include "format/segment.h"

#define SPACE_SPARE_SEGMENTS 4

struct space;

/* Where a record goes. */
struct placement {
  uint64_t addr;       /* first sector */
  uint16_t slot;       /* of the segment's summary */
  uint64_t chunk_addr; /* first sector of the chunk with the slot */
};

struct space_ops {
  /* Load the packed map of a segment from pool.db: 1 and a malloc'd buffer,
   * 0 if there is no row (empty segment), -1 on error.
   */
  int (*load) (void *opaque, uint64_t segment, uint8_t **buf, size_t *len);
  void *opaque;
};

/* 'budget_bytes' bounds the memory for maps.  'max_bytes': never use more
 * sectors than this (0: no limit).
 */
extern struct space *space_new (struct store *store,
                                const struct space_ops *ops,
                                uint64_t budget_bytes);
/* Punches empty segments; the store must still be open. */
extern void space_destroy (struct space *space);

/* Start a thread that punches empty segments, once the journal is replayed.
 * Without it space_release and others do so.  'find_leftovers': first punch
 * what a crash has left allocated in the file although no segment needs it.
 */
extern int space_start_puncher (struct space *space, bool find_leftovers);
extern void space_stop_puncher (struct space *space);

/* Do the puncher's work at once: on return, the file system has back all space
 * released before, except for the spare segments.  True: it got some back, so
 * an operation that failed for lack of space may succeed now.
 */
extern bool space_settle (struct space *space);

/* At open, once per row of table "segment", in ascending order. */
extern int space_add_segment (struct space *space, uint64_t segment,
                              uint32_t nr_free, uint32_t largest_run);

/* Set the pool's max-size in bytes of sectors used (0: none).  Reservations
 * beyond it fail with ENOSPC.
 */
extern void space_set_max (struct space *space, uint64_t max_bytes);

/* Before a write is accepted: reserve room for 'nr' records of 'lsize'
 * bytes, stored raw, each with a slot.  The function allocates new segments on
 * disk if needed; -1 and ENOSPC if the file system (or max-size) does not
 * allow it.  After a successful reservation space_alloc of as much cannot fail
 * for lack of space, whatever the fragmentation: only the longest run of each
 * BACKED segment counts, less one largest record and one chunk.
 *
 * space_alloc does not end the reservation: call space_unreserve with the
 * same numbers after it, or if the write is a duplicate or a hole.
 */
extern int space_reserve (struct space *space, uint32_t lsize, unsigned nr);
extern void space_unreserve (struct space *space, uint32_t lsize, unsigned nr);

/* Allocate 'nr' records of nr_sectors[i] each, contiguous and in order if
 * possible.  Pins the segments once per record, until space_committed for
 * that record's address.
 */
extern int space_alloc (struct space *space, unsigned nr,
                        const uint32_t *nr_sectors, struct placement *out);

/* Allocate one record like space_alloc, but in none of these segments, which
 * have the same bytes already.  It may need a new segment, so it can fail for
 * lack of space in spite of a reservation.
 */
extern int space_alloc_apart (struct space *space, uint32_t nr_sectors,
                              const uint64_t *segments, unsigned nr_segments,
                              struct placement *out);

/* For compaction.  drain: choose up to 'nr_segments' segments with many free
 * sectors, and up to 'max_bytes' in use in all, the emptiest ones; store their
 * numbers in 'segments' and return how many.  From then on no record is placed
 * there, and no reservation counts on their room, until space_undrain, which
 * returns how many are empty.
 *
 * alloc_dense: allocate one record as space_alloc does, but beside other moved
 * records.  It may need a new segment, so it can fail for lack of space in
 * spite of a reservation.
 */
extern unsigned space_drain (struct space *space, uint64_t max_bytes,
                             uint64_t *segments, unsigned nr_segments);
/* Drain this segment, whatever is in it: 1; 0: it has no record, is damaged, or
 * is being drained; -1: the reservations need its room (ENOSPC).
 */
extern int space_drain_one (struct space *space, uint64_t segment);
extern unsigned
space_undrain (struct space *space, const uint64_t *segments, unsigned nr);
extern int space_alloc_dense (struct space *space, uint32_t nr_sectors,
                              struct placement *out);

/* Undo an allocation to which nothing refers yet. */
extern void space_undo (struct space *space, const struct placement *p,
                        uint32_t nr_sectors);

/* During replay: the record at 'p' was allocated before the crash, after
 * the last fold.  Marks it used (EIO if it overlaps), pins like
 * space_alloc, and makes sure that the segment is BACKED.  'lenient': the map
 * may mark free space as used, so overlaps are no error; a record that
 * overlaps keeps its sectors when it is released.
 */
extern int space_claim (struct space *space, const struct placement *p,
                        uint32_t nr_sectors, bool lenient);

/* Call it when the fold that made the record at 'addr' durable has committed,
 * or the fold that called space_unlink for it was rolled back.  Unpins once:
 * exactly one space_committed or space_release ends each space_alloc,
 * space_claim and space_unlink.
 */
extern void space_committed (struct space *space, uint64_t addr);

/* Call it before the commit of a fold that removes this record's row.  Pins the
 * map (reading it first if needed), so that a map read later from pool.db
 * cannot show the sectors as free too early.
 */
extern int space_unlink (struct space *space, uint64_t addr);

/* Free the sectors and slots of these records.  Call it when the commit is
 * durable and no reader can reach them any more.  Unpins what space_unlink
 * pinned (or, for a record that was never inserted, what space_alloc pinned).
 * Cheapest in ascending order of address: it visits each segment once then.
 */
struct space_freed {
  uint64_t addr;
  uint32_t nr_sectors;
  uint16_t slot;
};
extern void
space_release (struct space *space, const struct space_freed *freed, size_t nr);

/* Keep the bytes of records that die from now on, for a reader that stays at a
 * moment for longer than a fold may wait (drift/frozen.h): see space-keep.c.
 * Nothing of this is stored, so after a crash their space is free.
 *
 * keep_begin returns a ticket for the other two.  kept: are all bytes still
 * there?  Call it inside quiesce, and read before leaving that: EBUSY if not.
 * keep_give_way: all keepers lose what they keep, with the next fold.
 * keep_end: true if the next fold will free something for that.
 */
extern uint64_t space_keep_begin (struct space *space);
extern bool space_keep_end (struct space *space, uint64_t ticket);
extern int space_kept (struct space *space, uint64_t ticket);
extern void space_keep_give_way (struct space *space);

/* For the fold, before it waits for readers (quiesce_wait).  keep: note these
 * records, which it must not release then: true; false if there is no keeper.
 * take_kept: those noted before that it must release in addition (owned by the
 * caller), in ascending order of address; NULL and 0: none.
 */
extern bool
space_keep (struct space *space, const struct space_freed *freed, size_t nr);
extern struct space_freed *space_take_kept (struct space *space, size_t *nr);

/* The chunks of a (pinned) segment as the fold must store them: a malloc'd
 * array of their first sectors, or SEGMENT_CHUNK_LOST, to pass to
 * segment_map_set_chunks.
 */
extern int space_get_chunks (struct space *space, uint64_t segment,
                             uint16_t **chunks, unsigned *nr_chunks);

/* For "check --repair".  hold: place nothing more in this segment, and keep its
 * space in use, whatever its row says.  -1 (ENOSPC, EIO): the reservations
 * would have no room.  replace: the caller has written the segment's row with
 * everything that was placed there; read it.  (If something is missing, the
 * segment stays held until the pool is opened again.)
 */
extern int space_hold (struct space *space, uint64_t segment);
extern void space_replace (struct space *space, uint64_t segment,
                           uint32_t nr_free, uint32_t largest_run);

/* Bytes in free sectors of BACKED segments; bytes reserved; sectors in use
 * (chunks included) in bytes.
 */
struct space_info {
  uint64_t free_bytes, reserved_bytes, used_bytes;
  uint64_t waste_bytes; /* free ones beside records */
  uint64_t max_bytes;   /* 0: no limit */
  uint64_t nr_segments; /* BACKED */
  uint64_t nr_damaged;  /* segments with an unreadable map */
  bool contradicted;    /* a space_claim failed: a map contradicts it */
};
extern void space_get_info (struct space *space, struct space_info *info);

/* How many more segments the file needs for a space_reserve of 'nr' more
 * records of 'lsize' bytes.  UINT64_MAX: max-size forbids it.
 */
extern uint64_t
space_segments_for (struct space *space, uint32_t lsize, uint64_t nr);

#endif /* NBDEDUP_SPACE_H */
