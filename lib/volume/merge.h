/* SPDX-License-Identifier: BSD-3-Clause */

/* Merging: a nameless layer L with a single child C.
 *
 * L's content is needed only through C.  A merge frees what C overwrote, and
 * keeps a volume whose oldest snapshot is destroyed every day from growing a
 * layer a day.  It moves C's rows down into L, and L takes C's place.  The
 * cost depends on what C wrote, not on what L holds.
 *
 *  trim    (folds) delete L's blocks past C's overlap, which C does not show;
 *          starts again if a shrink lowers the overlap meanwhile
 *  adopt   L's overlap becomes the lesser of both, C's becomes "all"
 *  push    (folds) move C's rows to L, a bounded number each time, and drop
 *          the references that they displace there.  A write to C, if that
 *          is a volume's head, goes on to L in the fold that writes it
 *  switch  C has no rows: L takes its children, its name and its place
 *
 * At each moment a reader that looks in C first and then in L finds the same
 * content: a row is in C, or has moved to L, where the reader looks next, and
 * no reader's cache holds L's rows ("unstable").  References move with their
 * pointers, so no count changes.
 *
 * Nothing about a merge is stored: after a crash it begins again.  In each
 * state that a crash can leave the content is the same.
 *
 * Adopting and switching change the structure: they need pool->admin, and
 * a switch to a head the volume's whole range.  The merger's thread takes
 * these steps after the folds' steps; so may a command that waits.
 */

#ifndef NBDEDUP_MERGE_H
#define NBDEDUP_MERGE_H

#include <stdbool.h>

struct merger;
struct nbdedup_pool;

/* Start the thread; wait for its end; free.  Free it only after the last fold,
 * because folds wake it.
 */
extern struct merger *merger_start (struct nbdedup_pool *pool);
extern void merger_stop (struct merger *merger);
extern void merger_free (struct merger *merger);
/* There may be work.  The caller may hold any lock. */
extern void merger_wake (struct merger *merger);

/* Under pool->admin: take the steps that are due.  -1: the pool is failed, or
 * full; the thread will try again.
 */
extern int merge_step (struct nbdedup_pool *pool);

/* Is there work left for folds or steps?  Under pool->admin. */
extern bool merge_is_pending (struct nbdedup_pool *pool);

#endif /* NBDEDUP_MERGE_H */
