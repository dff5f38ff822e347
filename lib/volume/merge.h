/* SPDX-License-Identifier: BSD-3-Clause */

/* Merging: a nameless layer L with a single child C.
 *
 * L's content is needed only through C.  What C overwrote should come
 * back, and a volume whose oldest snapshot goes every day must not grow a
 * layer a day.  So C's rows move down into L, and L takes C's place.  The
 * cost is what C wrote, not what L holds.
 *
 *  trim    (folds) what L has past C's overlap goes: C does not show it;
 *          from the beginning if a shrink lowers the overlap meanwhile
 *  adopt   L's overlap becomes the lesser of both, C's becomes "all"
 *  push    (folds) C's rows move to L, a bounded number each time; what
 *          they displace there is given back.  A write to C, if it is a
 *          volume's head, goes on to L in the fold that brings it
 *  switch  C has no rows: its children, its name and its place are L's
 *
 * At each moment a reader that asks C first and then L finds the same
 * content: a row is in C, or has moved to where it looks next, and no
 * reader's cache holds L's rows ("unstable").  References move with their
 * pointers, no count changes.
 *
 * Nothing about a merge is stored: after a crash it begins again.  In each
 * state that a crash can leave the content is the same.
 *
 * Adopting and switching change the structure: they need pool->admin, and
 * a switch to a head the volume's whole range.  A thread takes these steps
 * when the folds have done theirs; so may a command that waits.
 */

#ifndef NBDEDUP_MERGE_H
#define NBDEDUP_MERGE_H

#include <stdbool.h>

struct merger;
struct nbdedup_pool;

/* Start the thread; wait for its end; free, when folds have ended, too: they
 * wake it.
 */
extern struct merger *merger_start (struct nbdedup_pool *pool);
extern void merger_stop (struct merger *merger);
extern void merger_free (struct merger *merger);
/* There may be something to do.  Any lock may be held. */
extern void merger_wake (struct merger *merger);

/* Under pool->admin: take the steps that are due.  -1: the pool is failed, or
 * full; it will be tried again.
 */
extern int merge_step (struct nbdedup_pool *pool);

/* Is there anything left that folds and steps will do?  Under admin. */
extern bool merge_is_pending (struct nbdedup_pool *pool);

#endif /* NBDEDUP_MERGE_H */
