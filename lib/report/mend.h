/* SPDX-License-Identifier: BSD-3-Clause */

/* Mending: some pages of the maps are lost in all copies of pool.db.  Blocks
 * that may have been in them are lost from then on (MAP_LOST); they never
 * become holes or inherited blocks.  All others stay.
 *
 * Which leaves the pages held is not known.  So each layer loses all leaves
 * that its part of the key range could have, as far as volumes and snapshots
 * can see them, except for layers whose counts prove that they have nothing
 * there (is_complete).
 */

#ifndef NBDEDUP_MEND_H
#define NBDEDUP_MEND_H

#include <jansson.h>

#include "meta/meta.h"

struct nbdedup_pool;

/* In the folding thread, or before it runs, outside of transactions.  'state'
 * is the row of the last commit, and is changed.  Returns how many pages were
 * lost; 0: none; -1: nothing was changed.  The log says what was lost.
 */
extern int mend_run (struct nbdedup_pool *pool, struct meta_state *state);

/* The same for the tables that can be derived from others (mend-tables.c);
 * mend_run does this, too.  Needs only the pool's files.
 */
extern int mend_tables (struct nbdedup_pool *pool, struct meta_state *state);

/* Rebuild space maps whose pages are whole and whose content is not.  Only
 * while nothing else has the pool open, because memory may be ahead of the
 * rows.  'compare': check them all against the records, because a readable one
 * may be wrong.  Returns how many; -1: nothing was changed.
 */
extern int mend_space_maps (struct nbdedup_pool *pool, struct meta_state *state,
                            bool compare);

/* Rows of the maps have changed in pool.db itself: drop the cached leaves.  In
 * the folding thread.
 */
extern void mend_forget_maps (struct nbdedup_pool *pool);

/* The losses since the last call: returns the blocks, and adds to 'places' the
 * parts of volumes and snapshots that are unreadable, as "scrub" lists them.
 */
extern uint64_t mend_take (struct nbdedup_pool *pool, json_t *places);

#endif /* NBDEDUP_MEND_H */
