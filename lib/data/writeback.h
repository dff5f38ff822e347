/* SPDX-License-Identifier: BSD-3-Clause */

/* Answered writes on their way to the store: dirty blocks in memory, and
 * the workers that hash, deduplicate, compress and place them.
 *
 * A block has at most two versions here:
 *
 *   open      takes more writes; several small ones become one record
 *   inflight  immutable, from the moment a worker takes it
 *
 * and a worker takes the open one only when none is in flight: versions of
 * a block are installed in the order in which they were made.  Workers
 * begin when a client flushes, or when the versions take a quarter of
 * dirty-max; a write waits when they take all of it.
 *
 * Every mutation (write, zero, trim) holds its range of blocks meanwhile
 * (writeback_range_begin), so that read-modify-write of part of a block is
 * atomic.  Reads do not.
 */

#ifndef NBDEDUP_WRITEBACK_H
#define NBDEDUP_WRITEBACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/lock.h"

struct nbdedup_pool;
struct volume;
struct writeback;

extern struct writeback *writeback_new (struct nbdedup_pool *pool,
                                        uint64_t dirty_max_bytes);
extern void writeback_free (struct writeback *wb);
extern int writeback_start (struct writeback *wb, unsigned nr_workers);
/* Everything must have been flushed, or the txg has failed. */
extern void writeback_stop (struct writeback *wb);

/* The lock of all dirty blocks, and of what volume.h says it protects. */
extern struct lock *writeback_lock (struct writeback *wb);

struct range {
  TAILQ_ENTRY (range) link;
  uint64_t first, last;         /* blocks */
};

extern void writeback_range_begin (struct writeback *wb, struct volume *v,
                                   struct range *range,
                                   uint64_t first, uint64_t last);
extern void writeback_range_end (struct writeback *wb, struct volume *v,
                                 struct range *range);

/* Copy part of a block if it is here: true. */
extern bool writeback_read (struct writeback *wb, struct volume *v,
                            uint64_t block,
                            void *buf, size_t offset, size_t len);

/* Which of 'nr' (<= 64) blocks from 'first' are here: bit i. */
extern uint64_t writeback_present (struct writeback *wb, struct volume *v,
                                   uint64_t first, unsigned nr);

/* Put 'len' bytes at 'offset' of a block.  In its range.
 *
 * 0; 1: the block is not here, and only part of it was given: the caller
 * reads the rest and comes back with 'base', a whole block (which is
 * copied); -1: ENOSPC, EIO.
 */
extern int writeback_write (struct writeback *wb, struct volume *v,
                            uint64_t block,
                            const void *buf, size_t offset, size_t len,
                            const void *base);

/* Blocks become holes.  In their range. */
extern int writeback_holes (struct writeback *wb, struct volume *v,
                            uint64_t first, uint64_t count);

/* Wait until everything that was answered before the call, on this volume
 * (NULL: on all), or in 'count' blocks of it, is installed.
 */
extern int writeback_drain (struct writeback *wb, struct volume *v);
extern int writeback_drain_range (struct writeback *wb, struct volume *v,
                                  uint64_t first, uint64_t count);

/* The volume is gone: wait until all that was accepted is installed, and no
 * worker has any of it.  Nothing is dropped: the command that takes the volume
 * away may fail, and then what clients were answered is still true.
 */
extern void writeback_settle (struct writeback *wb, struct volume *v);

#endif /* NBDEDUP_WRITEBACK_H */
