/* SPDX-License-Identifier: BSD-3-Clause */

/* check: recount everything that pool.db counts. */

#ifndef NBDEDUP_CHECK_H
#define NBDEDUP_CHECK_H

#include "nbdedup.h"

/* Under pool->admin; the result is that of "check" in command.h, with the
 * problems found.  NULL: the check itself failed.
 */
extern json_t *check_run (struct nbdedup_pool *pool, bool repair,
                          nbdedup_progress_fn *progress, void *opaque);

/* Recount the blocks of all volumes and snapshots in the state that 'c' is
 * frozen at, or in that of its transaction, under pool->admin.  Call 'wrong'
 * for each count that differs from the stored one.  (check-blocks.c)
 */
struct meta_conn;
extern int check_blocks (struct nbdedup_pool *pool, struct meta_conn *c,
                         int (*step) (void *opaque),
                         void (*wrong) (void *opaque, uint64_t layer,
                                        uint64_t stored, uint64_t found),
                         void *opaque);

/* Under pool->admin: repair what can be derived from intact data.  The next
 * check finds what this could not repair.  -1: it was stopped; the repairs
 * made until then stay.  (check-repair.c)
 */
extern int check_repair (struct nbdedup_pool *pool, uint64_t *lost_blocks,
                         nbdedup_progress_fn *progress, void *opaque);

#endif /* NBDEDUP_CHECK_H */
