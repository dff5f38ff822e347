/* SPDX-License-Identifier: BSD-3-Clause */

/* Internals of the allocator, shared by space.c (opening, closing, and
 * allocating and freeing of records), space-place.c (placement),
 * space-promise.c (reservations), space-drain.c (compaction), space-keep.c
 * (readers that stay at a moment), space-segs.c (the table of segments),
 * space-punch.c (giving segments back), space-maps.c (the maps in memory) and
 * space-consistent.c (the invariants).
 *
 * Functions with "_locked" need space->lock; the others read only their
 * arguments, and members that never change.
 */

#ifndef NBDEDUP_SPACE_INT_H
#define NBDEDUP_SPACE_INT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/background.h"
#include "base/invariant.h"
#include "base/lock.h"
#include "disk/store.h"
#include "format/segment.h"
#include "space/space.h"

/* In place of a segment's index in links: no segment. */
#define NONE ((UINT32_C (1) << 28) - 1)

/* Classes of record sizes: 4 KiB << class, up to 1 MiB. */
#define NR_CLASSES 9
#define CLASS_BYTES(c) (UINT32_C (4096) << (c))

#define SLOTS_MAX 255

/* So many empty segments beyond the spare ones wait for their neighbours, to be
 * punched with one system call.
 */
#define EMPTY_AT_ONCE 16u

/* 12 bytes per segment of the file. */
struct seg {
  uint32_t nr_free : 14; /* sectors */
  uint32_t largest : 14; /* the longest free run */
  uint32_t backed : 1;
  uint32_t damaged : 1; /* not used: its map cannot be read */
  uint32_t slots_known : 1;
  uint32_t draining : 1; /* not used: its records are being moved */
  uint32_t next : 28;
  uint32_t slots_high : 4; /* free slots, up to SLOTS_MAX */
  uint32_t prev : 28;
  uint32_t slots_low : 4;
};

/* A segment's map in memory. */
struct entry {
  LIST_ENTRY (entry) hash_link;
  TAILQ_ENTRY (entry) lru_link; /* on the list if and only if pins == 0 */
  uint32_t id;
  uint32_t pins;
  bool chunks_dirty;       /* has chunks that no fold has asked for */
  struct segment_map *map; /* owned */
};

LIST_HEAD (entry_list, entry);
TAILQ_HEAD (entry_queue, entry);

#define BUCKET_WORDS ((SEGMENT_BYTES / 512) / 64 + 1)

/* Lists of segments by the length of their longest run. */
struct buckets {
  uint32_t *heads; /* owned; nr_sectors + 1 */
  uint64_t nonempty[BUCKET_WORDS];
};

struct space {
  struct store *store; /* not owned; outlives the space */
  struct space_ops ops;
  uint32_t sector_bytes;
  unsigned nr_sectors;      /* of a segment */
  unsigned base_sectors;    /* the store's header in segment 0 */
  unsigned slots_per_chunk; /* without the header's */
  unsigned chunk_cost;      /* c in space-promise.c */

  struct lock lock; /* protects everything below */

  struct seg *segs; /* owned */
  uint64_t *absent; /* owned; bitmap: segment is ABSENT */
  uint32_t nr_segs, max_segs;
  struct buckets with_slots, without_slots;
  uint32_t empty, nr_empty; /* list of the wholly empty ones */
  uint32_t current;         /* segment for batches, or NONE */
  uint32_t sparse_next;     /* modulo nr_segs: where to look for sparse ones */
  uint32_t dense;           /* segment for moved records, or NONE */

  uint64_t room[NR_CLASSES];  /* sum (1) of space-promise.c, in sectors */
  uint64_t whole[NR_CLASSES]; /* sum (2), in records */
  uint64_t reserved_records[NR_CLASSES];
  uint64_t reserved_nr, reserved_sectors;
  uint64_t free_sectors, used_sectors, nr_backed, nr_damaged;
  uint64_t max_sectors; /* 0: no limit */
  bool contradicted;    /* a claimed record overlapped another one in
                                 * a map */

  struct entry_list *hash; /* owned; nr_hash is a power of two */
  uint32_t nr_hash, nr_entries, max_entries;
  struct entry_queue lru; /* first: most recently used */

  /* The puncher, see space-punch.c. */
  struct background puncher; /* wakes up when is_due_locked */
  bool find_leftovers;
  bool punch_all;      /* also those that wait for neighbours */
  bool closing;        /* spare segments are given back, too */
  struct cond punched; /* a system call has ended */
  uint64_t punches_begun, punches_ended;
  uint32_t end_first; /* past the table: from here on segments are
                                 * being punched; or NONE */

  /* Records that died while a reader needs their bytes: see space-keep.c. */
  struct space_freed *kept; /* owned; each pins its map */
  size_t nr_kept, cap_kept;
  size_t nr_due;       /* the first ones: no keeper needs them */
  unsigned nr_keepers; /* that have not lost theirs */
  uint64_t keep_epoch; /* keepers with a lower ticket have lost */

  size_t changes; /* for invariant_is_due */
};

/* space-consistent.c: the invariants while no thread holds the lock. */
extern void space_assert_consistent_locked (struct space *space);
DEFINE_WITH_CONSISTENT (space)

/*----------------------------------------------------------------------
 * space-segs.c: the table of segments.
 */

static inline unsigned
seg_slots (const struct seg *s)
{
  return s->slots_high << 4 | s->slots_low;
}

/* Usable sectors of an empty segment. */
static inline unsigned
seg_usable_sectors (const struct space *space, uint32_t id)
{
  return space->nr_sectors - (id == 0 ? space->base_sectors : 0);
}

static inline bool
seg_is_empty_locked (const struct space *space, uint32_t id)
{
  return space->segs[id].nr_free == seg_usable_sectors (space, id);
}

/* Does it take new records, and count for reservations? */
static inline bool
seg_is_used (const struct seg *s)
{
  return s->backed && !s->damaged && !s->draining;
}

/* Remove a segment from its list and from all sums before changing it, and
 * insert it again.  Both ignore an ABSENT one.
 */
extern void seg_remove_locked (struct space *space, uint32_t id);
extern void seg_insert_locked (struct space *space, uint32_t id);

/* Only for a removed segment. */
extern void seg_set_slots (struct seg *s, bool known, unsigned slots);

/* Update the segment's entry of the table from its map. */
extern void
seg_refresh_locked (struct space *space, const struct segment_map *map);

/* Stop placing records in a segment, because its map cannot be read. */
extern void seg_mark_damaged_locked (struct space *space, uint32_t id);

/* Make the table at least 'nr' long; new ones are ABSENT. */
extern int seg_extend_locked (struct space *space, uint64_t nr);
extern void
seg_set_absent_locked (struct space *space, uint32_t id, bool absent);

static inline bool
seg_is_absent_locked (const struct space *space, uint32_t id)
{
  return space->absent[id / 64] >> id % 64 & 1;
}

/* ABSENT becomes BACKED and empty. */
extern int seg_back_locked (struct space *space, uint32_t id);

/* Take a new segment: the first ABSENT one, else one past the end. */
extern int seg_grow_locked (struct space *space);

/* No longer the current segment, nor that for moved records. */
extern void seg_leave_locked (struct space *space, uint32_t id);

/* Of the 64 segments that were emptied last, choose the last or the first in
 * the file.
 */
extern uint32_t seg_pick_empty_locked (const struct space *space, bool last);

/*----------------------------------------------------------------------
 * space-punch.c: giving segments back to the file system.
 */

/* Let the puncher punch empty segments beyond the spare ones, unless
 * reservations need them; without 'all', only if they are many.  If there is no
 * puncher, the function does it, and releases the lock meanwhile.
 */
extern void seg_punch_empty_locked (struct space *space, bool all);

/* Wait until the punches that are under way have ended.  False: there is none.
 * Releases the lock meanwhile.
 */
extern bool seg_wait_for_punch_locked (struct space *space);

/*----------------------------------------------------------------------
 * space-maps.c: the maps in memory.
 */

/* NULL: the map is not in memory.  A pinned one always is. */
extern struct entry *space_entry_find_locked (struct space *space, uint32_t id);

/* The map of a BACKED segment, from memory or from pool.db.  NULL on error; if
 * the map is damaged, the allocator stops using the segment.
 */
extern struct entry *space_entry_get_locked (struct space *space, uint32_t id);
extern void space_entry_free_locked (struct space *space, struct entry *e);

/* unpin: unpin once.  If the segment has no records and is not held, it becomes
 * empty: the function drops its chunks and its map.  May free 'e', and release
 * the lock meanwhile.
 */
extern void space_entry_pin_locked (struct space *space, struct entry *e);
extern void space_entry_unpin_locked (struct space *space, struct entry *e);

/*----------------------------------------------------------------------
 * space-promise.c: the sums behind reservations.
 */

/* room (R, f) and whole (R, f) for a class of records, of a segment with this
 * longest run and this number of free slots.
 */
extern unsigned space_room (const struct space *space, unsigned class,
                            unsigned largest, unsigned slots);
extern unsigned space_whole (const struct space *space, unsigned class,
                             unsigned largest, unsigned slots);

/* Is there room for all that is reserved?  (Only (1) and (2).) */
extern bool space_keeps_promises_locked (const struct space *space);

/* The class of the largest reserved records. */
extern unsigned space_top_class_locked (const struct space *space);

/*----------------------------------------------------------------------
 * space-place.c: placement.
 */

/* Place at least the first of 'nr' records, and more if they fit together.
 * '*alone': some of their batch had to be placed alone, so the others join
 * those, without another search.  Returns how many, -1 on error.
 */
extern int space_place_some_locked (struct space *space, unsigned nr,
                                    const uint32_t *nr_sectors, bool *alone,
                                    struct placement *out);

/* Place one record, in none of these segments.  0, or -1. */
extern int space_place_apart_locked (struct space *space, uint32_t nr_sectors,
                                     const uint64_t *segments,
                                     unsigned nr_segments,
                                     struct placement *out);

/* Place one record where moved records go: in a segment that was empty when the
 * first of them came.  0, or -1.
 */
extern int space_place_dense_locked (struct space *space, uint32_t nr_sectors,
                                     struct placement *out);

#endif /* NBDEDUP_SPACE_INT_H */
