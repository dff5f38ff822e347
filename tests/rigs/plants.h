/* SPDX-License-Identifier: BSD-3-Clause */

/* Wrong rows in pool.db, in tables that can be rebuilt.  They are written in a
 * fold's transaction, so no checksum finds this damage.
 */

#ifndef NBDEDUP_PLANTS_H
#define NBDEDUP_PLANTS_H

#include "core/txg.h"
#include "rigs/engine-rig.h"

typedef void plant_fn (struct meta_conn *c, struct meta_state *state);

/* Run 'fn' in 'pool', which is open. */
extern void plant (plant_fn *fn);
/* The pool's features_incompat, as of the last fold. */
extern uint64_t features (void);

/* Arguments of the functions below: a record's address, and a difference. */
extern uint64_t planted_addr;
extern int64_t planted_delta;

/* Store all rows as versions did that did not pack them. */
extern plant_fn unpack_rows;

/* Add planted_delta references to the record. */
extern plant_fn change_count;
/* Remove the record's description; cut off half of its row. */
extern plant_fn drop_record, cut_group;

/* In the first row of the hash index: remove all entries, add one, or put two
 * in the wrong order.
 */
/* The hash index's longest row; returns its bytes, 0: there is none. */
extern size_t longest_index_row (struct meta_conn *c, unsigned *run,
                                 uint64_t *low, struct blob *b);
extern plant_fn empty_index, add_index_entry, swap_index_entries;

/* Put planted_addr into the list of records to be freed. */
extern plant_fn put_limbo;

/* Change the totals of the pool and of 'volume'. */
extern plant_fn change_totals;

/* The space map of the record's segment: remove it, damage it, or give it
 * impossible figures; mark the record's sectors free (planted_delta < 0), or
 * others in use; mark the record's slot free, and another one in use.
 */
extern plant_fn drop_segment, spoil_segment, spoil_figures, change_space;
extern plant_fn change_slots;

/* Add a leaf that belongs to no volume. */
extern plant_fn add_foreign_leaf;

#endif /* NBDEDUP_PLANTS_H */
