/* SPDX-License-Identifier: BSD-3-Clause */

/* Wrong rows in pool.db, of tables that can be derived: written in a fold's
 * transaction, so they are damage that no checksum tells.
 */

#ifndef NBDEDUP_PLANTS_H
#define NBDEDUP_PLANTS_H

#include "core/txg.h"
#include "rigs/engine-rig.h"

typedef void plant_fn (struct meta_conn *c, struct meta_state *state);

/* In 'pool', which is open. */
extern void plant (plant_fn *fn);

/* What they are about: the record there, and by how much. */
extern uint64_t planted_addr;
extern int64_t planted_delta;

/* It has planted_delta more references. */
extern plant_fn change_count;
/* It is not described any more; half of its row is cut off. */
extern plant_fn drop_record, cut_group;

/* The hash index: its first row is empty, has an entry more, or two in the
 * wrong order.
 */
extern plant_fn empty_index, add_index_entry, swap_index_entries;

/* planted_addr waits to be freed. */
extern plant_fn put_limbo;

/* Of the pool, and of 'volume'. */
extern plant_fn change_totals;

/* The space map of its segment: gone, damaged, or with figures that cannot
 * be; its sectors are free (planted_delta < 0), or others are in use; a slot
 * of a summary is free by mistake, another one in use.
 */
extern plant_fn drop_segment, spoil_segment, spoil_figures, change_space;
extern plant_fn change_slots;

/* A leaf of no volume. */
extern plant_fn add_foreign_leaf;

#endif /* NBDEDUP_PLANTS_H */
