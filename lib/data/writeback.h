/* SPDX-License-Identifier: BSD-3-Clause */

/* Answered writes on their way to the store: dirty blocks in memory, and
 * the workers that hash, deduplicate, compress and place them.
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
/* The caller has flushed everything, or the txg has failed. */
extern void writeback_stop (struct writeback *wb);

/* The lock of all dirty blocks, and of members of struct volume
 * (volume-types.h).
 */
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

/* Copy part of a block, if it is dirty: true. */
extern bool writeback_read (struct writeback *wb, struct volume *v,
                            uint64_t block,
                            void *buf, size_t offset, size_t len);

/* Bit i: block 'first' + i is dirty; 'nr' <= 64. */
extern uint64_t writeback_present (struct writeback *wb, struct volume *v,
                                   uint64_t first, unsigned nr);

/* The first block from 'first' to 'last' that is dirty, or 'last' + 1. */
extern uint64_t writeback_next (struct writeback *wb, struct volume *v,
                                uint64_t first, uint64_t last);

/* Write 'len' bytes at 'offset' of a block.  The caller holds its range.
 *
 * 0; 1: the block is not dirty, and these bytes are only part of it: the
 * caller must read the block and call again with it in 'base' (the function
 * copies it); -1: ENOSPC, EIO.
 */
extern int writeback_write (struct writeback *wb, struct volume *v,
                            uint64_t block,
                            const void *buf, size_t offset, size_t len,
                            const void *base);

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
 * the volume fails, all answered writes must still be there.
 */
extern void writeback_settle (struct writeback *wb, struct volume *v);

#endif /* NBDEDUP_WRITEBACK_H */
