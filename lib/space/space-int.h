/* SPDX-License-Identifier: BSD-3-Clause */

/* Inside of the allocator: space.c (its life, and records that come and
 * go), space-place.c (where records go), space-promise.c (reservations),
 * space-segs.c (what is known of each segment), space-maps.c (the maps in
 * memory) and space-consistent.c (its invariants) share this.
 *
 * Functions with "_locked" need space->lock; the others look only at what
 * they are given, and at what never changes.
 */

#ifndef NBDEDUP_SPACE_INT_H
#define NBDEDUP_SPACE_INT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/invariant.h"
#include "base/lock.h"
#include "disk/store.h"
#include "format/segment.h"
#include "space/space.h"

/* Index of a segment in links: no segment. */
#define NONE ((UINT32_C (1) << 28) - 1)

/* Classes of record sizes: 4 KiB << class, up to 1 MiB. */
#define NR_CLASSES 9
#define CLASS_BYTES(c) (UINT32_C (4096) << (c))

#define SLOTS_MAX 255

/* 12 bytes per segment of the file. */
struct seg {
  uint32_t nr_free:14;          /* sectors */
  uint32_t largest:14;          /* the longest free run */
  uint32_t backed:1;
  uint32_t damaged:1;           /* its map cannot be read: not used */
  uint32_t slots_known:1;
  uint32_t next:28;
  uint32_t slots_high:4;        /* free slots, up to SLOTS_MAX */
  uint32_t prev:28;
  uint32_t slots_low:4;
};

/* A segment's map in memory. */
struct entry {
  LIST_ENTRY (entry) hash_link;
  TAILQ_ENTRY (entry) lru_link; /* on the list if and only if pins == 0 */
  uint32_t id;
  uint32_t pins;
  bool chunks_dirty;            /* has chunks that no fold has asked for */
  struct segment_map *map;      /* owned */
};

LIST_HEAD (entry_list, entry);
TAILQ_HEAD (entry_queue, entry);

#define BUCKET_WORDS ((SEGMENT_BYTES / 512) / 64 + 1)

/* Lists of segments by the length of their longest run. */
struct buckets {
  uint32_t *heads;              /* owned; nr_sectors + 1 */
  uint64_t nonempty[BUCKET_WORDS];
};

struct space {
  struct store *store;          /* not owned; outlives the space */
  struct space_ops ops;
  uint32_t sector_bytes;
  unsigned nr_sectors;          /* of a segment */
  unsigned base_sectors;        /* the store's header in segment 0 */
  unsigned slots_per_chunk;     /* without the header's */
  unsigned chunk_cost;          /* c in space-promise.c */

  struct lock lock;             /* protects everything below */

  struct seg *segs;             /* owned */
  uint64_t *absent;             /* owned; bitmap: segment is ABSENT */
  uint32_t nr_segs, max_segs;
  struct buckets with_slots, without_slots;
  uint32_t empty, nr_empty;     /* list of the wholly empty ones */
  uint32_t current;             /* where batches go, or NONE */

  uint64_t room[NR_CLASSES];    /* sum (1) of space-promise.c, in sectors */
  uint64_t whole[NR_CLASSES];   /* sum (2), in records */
  uint64_t reserved_records[NR_CLASSES];
  uint64_t reserved_nr, reserved_sectors;
  uint64_t free_sectors, used_sectors, nr_backed, nr_damaged;
  uint64_t max_sectors;         /* 0: no limit */
  bool contradicted;            /* a record was claimed where a map says that
                                 * there is another one */

  struct entry_list *hash;      /* owned; nr_hash is a power of two */
  uint32_t nr_hash, nr_entries, max_entries;
  struct entry_queue lru;       /* first: most recently used */

  size_t changes;               /* for invariant_is_due */
};

/* space-consistent.c: what is true whenever the lock is not held. */
extern void space_assert_consistent_locked (struct space *space);
DEFINE_WITH_CONSISTENT (space)

/*----------------------------------------------------------------------
 * space-segs.c: what is known of each segment.
 */

static inline unsigned
seg_slots (const struct seg *s)
{
  return s->slots_high << 4 | s->slots_low;
}

/* Sectors of an empty segment that can be used. */
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

/* Take a segment out of its list and out of all sums, before it changes,
 * and put it back.  They do nothing with an ABSENT one.
 */
extern void seg_remove_locked (struct space *space, uint32_t id);
extern void seg_insert_locked (struct space *space, uint32_t id);

/* Of a segment that is taken out. */
extern void seg_set_slots (struct seg *s, bool known, unsigned slots);

/* Take what is known of a segment from its map. */
extern void seg_refresh_locked (struct space *space,
                                const struct segment_map *map);

/* Its map cannot be read: nothing is placed in it any more. */
extern void seg_mark_damaged_locked (struct space *space, uint32_t id);

/* Make the table at least 'nr' long; new ones are ABSENT. */
extern int seg_extend_locked (struct space *space, uint64_t nr);
extern void seg_set_absent_locked (struct space *space, uint32_t id,
                                   bool absent);

/* ABSENT becomes BACKED and empty. */
extern int seg_back_locked (struct space *space, uint32_t id);

/* Take a new segment: the first ABSENT one, else one past the end. */
extern int seg_grow_locked (struct space *space);

/* One of the empty segments: the last or the first in the file, among the
 * 64 that were emptied last.
 */
extern uint32_t seg_pick_empty_locked (const struct space *space, bool last);

/* An empty segment becomes ABSENT.  The lock is let go of meanwhile. */
extern void seg_punch_locked (struct space *space, uint32_t id);

/* Give back empty segments beyond the spare ones, as far as what is
 * reserved does not need them.  The lock is let go of meanwhile.
 */
extern void seg_punch_empty_locked (struct space *space);

/*----------------------------------------------------------------------
 * space-maps.c: the maps in memory.
 */

/* NULL: it is not in memory.  A pinned one always is. */
extern struct entry *space_entry_find_locked (struct space *space, uint32_t id);

/* The map of a BACKED segment, from memory or from pool.db.  NULL on error;
 * a segment whose map is damaged is not used any more.
 */
extern struct entry *space_entry_get_locked (struct space *space, uint32_t id);
extern void space_entry_free_locked (struct space *space, struct entry *e);

/* Unpin once.  A segment without records that is not held becomes an empty
 * one: its chunks go, and its map.  May free 'e', and let go of the lock
 * meanwhile.
 */
extern void space_entry_pin_locked (struct space *space, struct entry *e);
extern void space_entry_unpin_locked (struct space *space, struct entry *e);

/*----------------------------------------------------------------------
 * space-promise.c: what reservations count on.
 */

/* room (R, f) and whole (R, f), for a class of records, of a segment whose
 * longest run and free slots are these.
 */
extern unsigned space_room (const struct space *space, unsigned class,
                            unsigned largest, unsigned slots);
extern unsigned space_whole (const struct space *space, unsigned class,
                             unsigned largest, unsigned slots);

/* The class of the largest records that are reserved. */
extern unsigned space_top_class_locked (const struct space *space);

/*----------------------------------------------------------------------
 * space-place.c: where records go.
 */

/* Place the first of 'nr' records, or all of them together, or something
 * in between.  Returns how many, -1 on error.
 */
extern int space_place_some_locked (struct space *space, unsigned nr,
                                    const uint32_t *nr_sectors,
                                    struct placement *out);

/* One, in none of these segments.  0, or -1. */
extern int space_place_apart_locked (struct space *space, uint32_t nr_sectors,
                                     const uint64_t *segments,
                                     unsigned nr_segments,
                                     struct placement *out);

#endif /* NBDEDUP_SPACE_INT_H */
