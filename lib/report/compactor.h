/* SPDX-License-Identifier: BSD-3-Clause */

/* The compactor: a server's thread that moves the records of segments that are
 * mostly free, so that "records" stays near the size of what is stored
 * (moves.h says how).
 *
 * It begins when the free sectors beside records exceed COMPACT_PERCENT of
 * those in use and COMPACT_SLACK, and stops below that.  While clients write it
 * waits until much more is free, and moves less at once.  It runs at a low
 * priority, and not at all when space is short: then clients use the free
 * sectors as they are.
 */

#ifndef NBDEDUP_COMPACTOR_H
#define NBDEDUP_COMPACTOR_H

#include <stdint.h>

#define COMPACT_PERCENT 10
#define COMPACT_SLACK (UINT64_C (32) << 20)
#define COMPACT_BUSY_PERCENT 40
#define COMPACT_BUSY_SLACK (UINT64_C (256) << 20)

struct compactor;
struct nbdedup_pool;

/* NULL on failure. */
extern struct compactor *compactor_start (struct nbdedup_pool *pool);

/* Begin no more batches; wait for the thread's end, and free.  Before the last
 * fold.  NULL is allowed.  A batch that is under way stays (moves_free).
 */
extern void compactor_cancel (struct compactor *compactor);
extern void compactor_free (struct compactor *compactor);

#endif /* NBDEDUP_COMPACTOR_H */
