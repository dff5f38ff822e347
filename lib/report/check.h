/* SPDX-License-Identifier: BSD-3-Clause */

/* check: recount everything that pool.db counts. */

#ifndef NBDEDUP_CHECK_H
#define NBDEDUP_CHECK_H

#include "nbdedup.h"

/* The result is that of "check" in command.h, with the problems found.  NULL:
 * the check itself failed; EBUSY: it gave way to clients that need the space of
 * what they changed meanwhile (meta_frozen_check).
 *
 * With 'repair', under pool->admin.  Without, it takes that only while it
 * begins, so other commands run beside it.
 */
extern json_t *check_run (struct nbdedup_pool *pool, bool repair,
                          nbdedup_progress_fn *progress, void *opaque);

/* Recount the blocks of all volumes and snapshots (check-blocks.c). */
struct meta_conn;
struct recount;

/* For the layers as they are now: under pool->admin, or in a fold that a thread
 * with pool->admin waits for.  NULL: ENOMEM.
 */
extern struct recount *recount_new (struct nbdedup_pool *pool);
extern void recount_free (struct recount *rc);
/* Once: 'c' is frozen at a state that has the same layers, or has it as its
 * transaction.  Call 'wrong' for each count that differs from the stored one.
 */
extern int recount_blocks (struct recount *rc, struct meta_conn *c,
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
