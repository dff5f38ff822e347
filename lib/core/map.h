/* SPDX-License-Identifier: BSD-3-Clause */

/* Layer maps: (layer, block) -> pointer, hole or inherit.
 *
 * What is durable stands in table "leaf" of pool.db, LEAF_BLOCKS blocks a
 * row.  In memory:
 *
 *  - the open txg's changes, and the folding txg's, by leaf;
 *
 *  - an LRU cache of leaves, also of the fact that a leaf has no row.  The
 *    checksums of pool.db's pages make that fact as sure as a row: a tree
 *    that lost a row by damage does not read at all.
 *
 * The cache holds a head's own rows, and of a frozen layer what it and all
 * below it say together ("resolved"): that never changes, is shared by all
 * clones, and makes a read cost the same at any depth.  A lookup in a head
 * asks its changes, then its own row, then its parent's resolved leaf.
 *
 * One fold removes its changes and updates the cached own rows in one step
 * under the lock; a row that was read from pool.db before that step is not
 * put in the cache after it ("generation").  What is resolved of a layer
 * whose rows a merge is changing is not cached at all ("unstable").
 *
 * Installing a pointer or a hole returns what it displaces if that was
 * installed in the open txg too; what it displaces in pool.db (or in the
 * folding txg, which will be in pool.db by then) is found by the fold that
 * writes the leaf.
 */

#ifndef NBDEDUP_MAP_H
#define NBDEDUP_MAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"
#include "format/layer.h"
#include "meta/meta.h"

struct map;

/* 'budget_bytes' is for the cache of leaves. */
extern struct map *map_new (struct meta *meta, uint64_t budget_bytes);
extern void map_free (struct map *map);

/* What does the layer say about 'nr' blocks from 'block' on, which must lie
 * in one leaf?  states[] are MAP_HOLE, MAP_POINTER or MAP_LOST (inheritance
 * is resolved), ptrs[] valid for the latter.  -1: EIO, ENOMEM.
 */
extern int map_get (struct map *map, struct layer *layer, uint64_t block,
                    unsigned nr, uint8_t *states, struct pointer *ptrs);

/* Does the layer itself, not what it stands on, have a pointer there?
 * 1, 0; -1: EIO, ENOMEM.  Of a head.
 */
extern int map_owns (struct map *map, struct layer *layer, uint64_t block);

/* Nothing below 'layer' changes any more (unless it merges). */
extern void map_freeze (struct map *map, struct layer *layer);
/* It is a head again. */
extern void map_thaw (struct map *map, struct layer *layer);
/* A merge begins, or has ended. */
extern void map_set_unstable (struct map *map, struct layer *layer,
                              bool unstable);

/* Say something new about a block, in the open txg: 'ptr', or a hole if it
 * is NULL.  The caller is inside txg_enter.  Returns 1 and the address in
 * '*displaced' if a pointer of the open txg was replaced, else 0; -1:
 * ENOMEM, nothing changed.
 */
extern int map_set (struct map *map, struct layer *layer, uint64_t block,
                    const struct pointer *ptr, uint64_t *displaced);

/* The same, but the block's content is lost. */
extern int map_set_lost (struct map *map, struct layer *layer, uint64_t block,
                         uint64_t *displaced);

/* A whole leaf becomes holes.  Displaced addresses go to displaced[]; their
 * number is returned, or -1.
 */
extern int map_set_holes (struct map *map, struct layer *layer,
                          uint64_t leaf, uint64_t displaced[LEAF_BLOCKS]);

/*----------------------------------------------------------------------
 * For the fold
 */

struct map_change {
  struct layer *layer;
  uint64_t leaf;
  const void *changes;          /* opaque: for map_apply */
};

extern void map_cut (struct map *map);
/* The folding txg's leaves, ascending by layer and leaf, malloc'd. */
extern int map_get_changes (struct map *map, struct map_change **changes,
                            size_t *nr);
/* Would map_apply look at what the layer's parent says? */
extern bool map_needs_below (const struct map_change *change,
                             const struct leaf *leaf);
/* Apply a leaf's changes.  'below' is what shows through from the parent, no
 * MAP_INHERIT in it; unused if there is no parent or map_needs_below said
 * no.  Holes that say what 'below' says become MAP_INHERIT: trimming a
 * clone's free space again and again must not make it grow.
 *
 * Addresses that lose a reference go to displaced[], their number to
 * *nr_displaced; *pointers and *blocks get the changes of the layer's
 * counts.
 */
extern void map_apply (const struct map_change *change, struct leaf *leaf,
                       const struct leaf *below,
                       uint64_t displaced[LEAF_BLOCKS],
                       unsigned *nr_displaced, int *pointers, int *blocks);
/* What shows through in a leaf of 'layer' from below, as 'c' sees it. */
extern int map_get_below (struct map *map, struct meta_conn *c,
                          struct layer *layer, uint64_t leaf,
                          struct leaf *below);
extern void map_fold_done (struct map *map);

/* Forget cached leaves of a layer that is gone. */
extern void map_forget_layer (struct map *map, struct layer *layer);

extern size_t map_pending_bytes (struct map *map);
extern size_t map_cache_bytes (struct map *map);

#endif /* NBDEDUP_MAP_H */
