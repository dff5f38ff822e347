/* SPDX-License-Identifier: BSD-3-Clause */

/* check: recount everything that pool.db counts. */

#ifndef NBDEDUP_CHECK_H
#define NBDEDUP_CHECK_H

#include "nbdedup.h"

/* Under pool->admin; the result as command.h says.  NULL: the check itself
 * failed; problems found are in the result.
 */
extern json_t *check_run (struct nbdedup_pool *pool, bool repair,
                          nbdedup_progress_fn *progress, void *opaque);

/* Recount the blocks of all volumes and snapshots in the state that 'c' is
 * frozen at, or in that of its transaction, while pool->admin is held:
 * 'wrong' gets each count that is not as stored.  (check-blocks.c)
 */
struct meta_conn;
extern int check_blocks (struct nbdedup_pool *pool, struct meta_conn *c,
                         int (*step) (void *opaque),
                         void (*wrong) (void *opaque, uint64_t layer,
                                        uint64_t stored, uint64_t found),
                         void *opaque);

/* Under pool->admin: put right what can be derived from what is right.  What
 * it could not do is left for the next check to find.  -1: it was stopped, and
 * what it did until then stays.  (check-repair.c)
 */
extern int check_repair (struct nbdedup_pool *pool, uint64_t *lost_blocks,
                         nbdedup_progress_fn *progress, void *opaque);

#endif /* NBDEDUP_CHECK_H */
