/* SPDX-License-Identifier: BSD-3-Clause */

/* Compaction: the copies of a batch of moves (moves.h), and the command
 * "compact".
 */

#ifndef NBDEDUP_COMPACT_H
#define NBDEDUP_COMPACT_H

#include <jansson.h>
#include <stdint.h>

#include "nbdedup.h"

/* In use, in the segments of one batch; leaves that one fold changes. */
#define COMPACT_BATCH_BYTES (UINT64_C (64) << 20)
#define COMPACT_ROWS 1024

/* Copy the records of segments with up to 'max_bytes' in use in all, and begin
 * their moves.  Returns how many records move, or -1; 0: there is nothing to
 * move, or some thread holds the moves back.  The caller has the lock
 * moves->one, and no batch is under way.
 */
extern int compact_begin (struct nbdedup_pool *pool, uint64_t max_bytes);

/* Let a fold change so many leaves.  While there is a frozen reader, only wait
 * a moment: all that moves would be saved for it, and a drift's content kept.
 */
extern int compact_step (struct nbdedup_pool *pool, unsigned rows);

/* 'most', or less if space is short; 0: nothing may move. */
extern uint64_t compact_bytes (struct nbdedup_pool *pool, uint64_t most);

/* The result is that of "compact" in command.h.  Not under pool->admin. */
extern json_t *compact_run (struct nbdedup_pool *pool,
                            nbdedup_progress_fn *progress, void *opaque);

#endif /* NBDEDUP_COMPACT_H */
