/* SPDX-License-Identifier: BSD-3-Clause */

/* Maps some of whose pages are lost in all copies of pool.db: what they may
 * have said is lost from then on (MAP_LOST), never a hole and never what is
 * inherited; all else goes on.
 *
 * Which leaves stood there is not known.  So each layer loses all leaves that
 * its part of the range of keys could have, as far as volumes and snapshots
 * can see them; but for layers whose counts say that they have nothing there
 * (is_complete).
 */

#ifndef NBDEDUP_MEND_H
#define NBDEDUP_MEND_H

#include <jansson.h>

#include "meta/meta.h"

struct nbdedup_pool;

/* In the folding thread, or before it runs, outside of transactions.  'state'
 * is the row of the last commit, and is changed.  How many pages were lost; 0:
 * none; -1: nothing was changed.  The log says what it cost.
 */
extern int mend_run (struct nbdedup_pool *pool, struct meta_state *state);

/* The same of the tables that follow from others (mend-tables.c); mend_run does
 * this, too.  Needs no more of the pool than its files.
 */
extern int mend_tables (struct nbdedup_pool *pool, struct meta_state *state);

/* Space maps whose pages are whole, but not what they say, are made again, too:
 * while nothing else has the pool open, because memory may know more than the
 * rows.  'compare' them all with the records: one that can be read may be
 * wrong.  How many; -1: nothing was changed.
 */
extern int mend_space_maps (struct nbdedup_pool *pool,
                            struct meta_state *state, bool compare);

/* Rows of the maps have changed in pool.db itself: forget what is cached.  In
 * the folding thread.
 */
extern void mend_forget_maps (struct nbdedup_pool *pool);

/* What was lost since this was called the last time: blocks, and the places in
 * volumes and snapshots that cannot be read now, as "scrub" lists them.
 */
extern uint64_t mend_take (struct nbdedup_pool *pool, json_t *places);

#endif /* NBDEDUP_MEND_H */
