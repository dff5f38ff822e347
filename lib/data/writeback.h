/* SPDX-License-Identifier: BSD-3-Clause */

/* Answered writes on their way to the store: dirty blocks in memory, and
 * the workers that hash, deduplicate, compress and place them.
 *
 * Each volume has its dirty blocks under a lock of its own, which no thread
 * holds while it copies, hashes, compresses or waits for a disk.  So volumes
 * share only the memory and the list of volumes that have work.
 *
 * A block has at most two versions here:
 *
 *   open      takes more writes; several small ones become one record
 *   inflight  immutable, from the moment a worker takes it
 *
 * A worker takes the open one only when none is in flight, so versions of a
 * block are installed in the order in which they were made.  Workers begin
 * when a client flushes, or when the versions take a quarter of dirty-max; a
 * write waits when they take all of it.
 *
 * Every mutation (write, zero, trim) holds its range of blocks while it runs
 * (writeback_range_begin), so that read-modify-write of part of a block is
 * atomic.  Reads do not hold their range.
 */

#ifndef NBDEDUP_WRITEBACK_H
#define NBDEDUP_WRITEBACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/hashtable.h"
#include "base/lock.h"
#include "base/spares.h"

struct dirty;
struct nbdedup_pool;
struct range;
struct volume;
struct writeback;

/* What a volume has for the workers, at least. */
enum ready {
  READY_NORMAL, /* when enough is dirty */
  READY_URGENT, /* a thread waits for it */
  READY_LEVELS,
};
#define READY_NONE (-1)

TAILQ_HEAD (dirty_list, dirty);
TAILQ_HEAD (volume_queue, volume);

/* The dirty blocks of a volume, and the mutations under way. */
struct dirty_blocks {
  struct lock install; /* held while pointers or holes are installed:
                                 * a hole and the versions before it in order;
                                 * outside of 'lock' */

  struct lock lock;       /* protects everything below */
  struct cond installed;  /* a version was installed or dropped */
  struct cond range_free; /* a range ended */
  struct cond copied;     /* a copy into or from a version ended */
  struct hashtable table; /* by block; no buckets: never used */
  struct spares spares;   /* of struct dirty; none if no block is dirty */
  struct dirty_list queue, urgent; /* open versions */
  struct dirty_list open_list;     /* the same, by sequence */
  struct dirty_list inflight_list;
  struct dirty_list kept_list; /* empty unless the txg has failed */
  TAILQ_HEAD (, range) ranges; /* mutations under way */
  uint64_t seq;
  size_t changes; /* for invariant_is_due */

  /* Read without a lock. */
  atomic_size_t nr; /* entries of the table; written under it */
  atomic_int ready; /* enum ready or READY_NONE: the list that the
                                 * volume is in; written under the writeback's
                                 * lock */
  atomic_uint pins; /* threads that found the volume in a list of
                                 * the writeback; added under its lock */

  /* Under the writeback's lock. */
  TAILQ_ENTRY (volume) active_link, ready_link;
  bool active;
};

extern void dirty_blocks_init (struct dirty_blocks *db);
extern void dirty_blocks_destroy (struct dirty_blocks *db);

extern struct writeback *
writeback_new (struct nbdedup_pool *pool, uint64_t dirty_max_bytes);
extern void writeback_free (struct writeback *wb);
/* 'nr_workers' threads; 0: so many that each CPU, of 16 at most, has one that
 * computes, also while others wait for a disk.
 */
extern int writeback_start (struct writeback *wb, unsigned nr_workers);
/* The caller has flushed everything, or the txg has failed. */
extern void writeback_stop (struct writeback *wb);

/* For figures; no lock is taken. */
struct writeback_load {
  uint64_t dirty_bytes, dirty_max_bytes;
  unsigned nr_workers;
  unsigned nr_busy; /* workers that have a batch */
};
extern void
writeback_get_load (struct writeback *wb, struct writeback_load *load);
/* Of one volume: its dirty blocks. */
extern uint64_t writeback_dirty_bytes (const struct volume *v);

struct range {
  TAILQ_ENTRY (range) link;
  uint64_t first, last; /* blocks */
};

extern void writeback_range_begin (struct volume *v, struct range *range,
                                   uint64_t first, uint64_t last);
extern void writeback_range_end (struct volume *v, struct range *range);

/* Copy part of a block, if it is dirty: true. */
extern bool writeback_read (struct writeback *wb, struct volume *v,
                            uint64_t block, void *buf, size_t offset,
                            size_t len);

/* Bit i: block 'first' + i is dirty; 'nr' <= 64. */
extern uint64_t
writeback_present (struct volume *v, uint64_t first, unsigned nr);

/* The first block from 'first' to 'last' that is dirty, or 'last' + 1. */
extern uint64_t
writeback_next (struct volume *v, uint64_t first, uint64_t last);

/* Write 'len' bytes at 'offset' of a block.  The caller holds its range.  The
 * function reads the rest of the block if it is not dirty.  -1: ENOSPC, EIO.
 */
extern int writeback_write (struct writeback *wb, struct volume *v,
                            uint64_t block, const void *buf, size_t offset,
                            size_t len);

/* Reserve room for one more version of a block, whose range the caller holds.
 * Then writeback_write_reserved, which replaces the whole block, cannot fail
 * for lack of space; it ends the reservation, and so does writeback_unreserve.
 * reserve: -1 (ENOSPC) if there is no room.
 */
extern int
writeback_reserve (struct writeback *wb, struct volume *v, uint64_t block);
extern int writeback_write_reserved (struct writeback *wb, struct volume *v,
                                     uint64_t block, const void *buf);
extern void writeback_unreserve (struct writeback *wb, struct volume *v);

/* Write the first of 'nr' whole blocks, as many as need no wait and have no
 * open version, with less overhead than one at a time.  The caller holds their
 * range.  Returns how many.  0: call writeback_write for the first, which waits
 * or says what is wrong.
 */
extern unsigned writeback_write_run (struct writeback *wb, struct volume *v,
                                     uint64_t first, unsigned nr,
                                     const void *buf);

/* Set blocks to holes.  The caller holds their range. */
extern int writeback_holes (struct writeback *wb, struct volume *v,
                            uint64_t first, uint64_t count);

/* Wait until all writes answered before the call are installed: those of this
 * volume (NULL: of all), or of 'count' blocks of it.
 */
extern int writeback_drain (struct writeback *wb, struct volume *v);
extern int writeback_drain_range (struct writeback *wb, struct volume *v,
                                  uint64_t first, uint64_t count);

/* The volume is gone: wait until all accepted writes are installed, and no
 * worker has a block of it.  This drops no write: if the command that removes
 * the volume fails, all answered writes must still be there.  If the txg has
 * failed the volume may have some left; then txg_run fails as well.
 */
extern void writeback_settle (struct writeback *wb, struct volume *v);

#endif /* NBDEDUP_WRITEBACK_H */
