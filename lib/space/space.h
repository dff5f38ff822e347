/* SPDX-License-Identifier: BSD-3-Clause */

/* The allocator of the backing file: which sectors are free, in memory.
 *
 * What is durable about space stands in table "segment" of pool.db, and is
 * written by the fold (txg.c) from the records that it inserts and
 * removes, never from this module's state.  This module knows more: also
 * what was allocated since the last fold, and what is free in pool.db but
 * may not be reused yet because a reader may still reach it.
 *
 * For every segment of the file its number of free sectors and its longest
 * free run are in memory (12 bytes per segment); the maps of the segments
 * in use are, too, within a budget: the least recently used map that is
 * not pinned is dropped and read again from pool.db when needed.  A map is
 * pinned while it differs from its row: from space_alloc or space_claim
 * until space_committed, and from space_unlink until space_release.
 *
 * State of a segment: ABSENT (past the end, or punched: nothing of the
 * file system's space behind it, no row) or BACKED (fallocate'd).
 *
 * Policy: a batch is placed contiguously in the current segment; else in
 * the segment with the smallest free run that holds the batch; else record
 * by record, best fit; only when nothing fits is a new segment taken:
 * first ABSENT ones from the front, then one past the end.  Segments that
 * become wholly empty are kept BACKED, up to SPACE_SPARE_SEGMENTS, and
 * punched beyond that (their row is gone by then).
 *
 * Threads: all functions lock by themselves (one mutex, never held over
 * data I/O; loading a map from pool.db and fallocate happen under it).
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
  uint64_t addr;                /* first sector */
  uint16_t slot;                /* of the segment's summary */
  uint64_t chunk_addr;          /* first sector of the chunk with the slot */
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
/* Gives empty segments back to the file system; the store is still open. */
extern void space_destroy (struct space *space);

/* At open, once per row of table "segment", in ascending order. */
extern int space_add_segment (struct space *space, uint64_t segment,
                              uint32_t nr_free, uint32_t largest_run);

/* The pool's max-size in bytes of sectors used (0: none): reservations
 * beyond it get ENOSPC.
 */
extern void space_set_max (struct space *space, uint64_t max_bytes);

/* Before a write is accepted: reserve room for 'nr' records of 'lsize'
 * bytes, stored raw, each with a slot.  -1 and ENOSPC if the file system
 * (or max-size) cannot promise that: new segments are really allocated
 * here.  A reservation that succeeded means that space_alloc of as much
 * cannot fail for lack of space, whatever the fragmentation: only the
 * longest run of each BACKED segment counts as promised room, less one
 * largest record and one chunk.
 *
 * space_alloc does not end the reservation: call space_unreserve with the
 * same numbers after it, or when the write turned out a duplicate or hole.
 */
extern int space_reserve (struct space *space, uint32_t lsize, unsigned nr);
extern void space_unreserve (struct space *space, uint32_t lsize, unsigned nr);

/* Allocate 'nr' records of nr_sectors[i] each, contiguous and in order if
 * that is possible.  The segments are pinned once per record until
 * space_committed is called for that record's address.
 */
extern int space_alloc (struct space *space, unsigned nr,
                        const uint32_t *nr_sectors, struct placement *out);

/* One record, like space_alloc, but in none of these segments: the same bytes
 * stand there already.  It may want a new segment, so that it can fail for
 * lack of space in spite of a reservation.
 */
extern int space_alloc_apart (struct space *space, uint32_t nr_sectors,
                              const uint64_t *segments, unsigned nr_segments,
                              struct placement *out);

/* An allocation that comes to nothing, before anything refers to it. */
extern void space_undo (struct space *space, const struct placement *p,
                        uint32_t nr_sectors);

/* During replay: the record at 'p' was allocated before the crash, after
 * the last fold.  Marks it used (EIO if it overlaps), pins like
 * space_alloc, and makes sure that the segment is BACKED.  'lenient': the map
 * may say that more is used than is, and overlaps are no error.
 */
extern int space_claim (struct space *space, const struct placement *p,
                        uint32_t nr_sectors, bool lenient);

/* The fold that made the record at 'addr' durable has committed (or the one
 * that called space_unlink for it was rolled back).  Unpins once: each
 * space_alloc, space_claim and space_unlink is ended by exactly one
 * space_committed or space_release.
 */
extern void space_committed (struct space *space, uint64_t addr);

/* The fold is about to remove this record's row: pin its map (reading it
 * first if needed) so that a map read later from pool.db cannot show the
 * sectors as free too early.  Called before the commit.
 */
extern int space_unlink (struct space *space, uint64_t addr);

/* The commit is durable and no reader can reach these records any more: their
 * sectors and slots are free now.  Unpins what space_unlink pinned (or,
 * for a record that was never inserted, what space_alloc pinned).  Cheapest
 * if ascending by address: each segment is looked at once.
 */
struct space_freed {
  uint64_t addr;
  uint32_t nr_sectors;
  uint16_t slot;
};
extern void space_release (struct space *space,
                           const struct space_freed *freed, size_t nr);

/* The chunks of a (pinned) segment as the fold must store them: a malloc'd
 * array of their first sectors, SEGMENT_CHUNK_LOST among them: give it to
 * segment_map_set_chunks.
 */
extern int space_get_chunks (struct space *space, uint64_t segment,
                             uint16_t **chunks, unsigned *nr_chunks);

/* For "check --repair".  hold: nothing more is placed in this segment; its
 * space stays in use, whatever its row says.  -1 (ENOSPC, EIO): then what is
 * reserved has no room.  replace: its row was written, and all that was placed
 * there is in it: read it.  (If something is not, it stays held until the pool
 * is opened again.)
 */
extern int space_hold (struct space *space, uint64_t segment);
extern void space_replace (struct space *space, uint64_t segment,
                           uint32_t nr_free, uint32_t largest_run);

/* Bytes in free sectors of BACKED segments; bytes reserved; sectors in use
 * (chunks included) in bytes.
 */
struct space_info {
  uint64_t free_bytes, reserved_bytes, used_bytes;
  uint64_t max_bytes;           /* 0: no limit */
  uint64_t nr_segments;         /* BACKED */
  uint64_t nr_damaged;          /* whose map could not be read */
  bool contradicted;            /* a space_claim failed for what a map says */
};
extern void space_get_info (struct space *space, struct space_info *info);

/* How many more segments must the file have, for space_reserve to promise
 * room for 'nr' more records of 'lsize' bytes?  UINT64_MAX: max-size is in
 * the way.
 */
extern uint64_t space_segments_for (struct space *space, uint32_t lsize,
                                    uint64_t nr);

#endif /* NBDEDUP_SPACE_H */
