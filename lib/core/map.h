/* SPDX-License-Identifier: BSD-3-Clause */

/* Layer maps: (layer, block) -> pointer, hole or inherit.
 *
 * The durable part is in table "leaf" of pool.db, LEAF_BLOCKS blocks a row.
 * Table "delta" has pointers that are newer (leaf-delta.h).  Here and below a
 * row is that of a leaf with its deltas.
 * In memory:
 *
 *  - the open txg's changes, and the folding txg's, by leaf;
 *
 *  - a cache of leaves (leaf-cache.h), also of the fact that a leaf has no
 *    row.  The checksums of pool.db's pages make that fact as reliable as a
 *    row: a tree that lost a row by damage cannot be read at all.
 *
 * The cache holds a head's own rows, and, for a frozen layer, its content
 * combined with that of all layers below it ("resolved").  A resolved leaf
 * changes only when a record moves (moves.h), all clones share it, and a read
 * costs the same at any depth.  A lookup in a head reads its changes, then its
 * own row, then its parent's resolved leaf.
 *
 * A fold removes its changes and updates the cached own rows in one step
 * under the lock; a row read from pool.db before that step is not put in the
 * cache after it ("generation").  The map does not cache resolved leaves of a
 * layer whose rows a merge is changing ("unstable").
 *
 * Installing a pointer or a hole returns the pointer that it displaces if
 * that was installed in the open txg too.  One displaced in pool.db (or in
 * the folding txg, which will be in pool.db by then) is found by the fold
 * that writes the leaf.
 */

#ifndef NBDEDUP_MAP_H
#define NBDEDUP_MAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"
#include "format/layer.h"
#include "format/leaf-delta.h"
#include "meta/meta.h"

struct map;

/* 'budget_bytes' is for the cache of leaves. */
extern struct map *map_new (struct meta *meta, uint64_t budget_bytes);
extern void map_free (struct map *map);

/* Look up 'nr' blocks from 'block' on, which must lie in one leaf.  states[]
 * are MAP_HOLE, MAP_POINTER or MAP_LOST (inheritance is resolved); ptrs[] is
 * valid for MAP_POINTER.  -1: EIO, ENOMEM.
 */
extern int map_get (struct map *map, struct layer *layer, uint64_t block,
                    unsigned nr, uint8_t *states, struct pointer *ptrs);

/* Does this head have a pointer there itself, not from a layer below it?  What
 * folds have pushed to its parent, whose place it takes, is its own, too.  The
 * caller has pool->admin or is inside quiesce.  1, 0; -1: EIO, ENOMEM.
 */
extern int map_owns (struct map *map, struct layer *layer, uint64_t block);

/* The first leaf from 'first' to 'last' in which the layer may show or have
 * anything but holes that nothing has set.  The caller is inside quiesce.
 * 1; 0: there is none; -1: EIO, ENOMEM.
 */
extern int map_next (struct map *map, struct layer *layer, uint64_t first,
                     uint64_t last, uint64_t *leaf);

/* A leaf in the cache: of a head itself, or as a frozen layer shows it. */
struct map_cached {
  uint64_t layer; /* its id */
  uint64_t leaf;
  bool resolved; /* of a frozen layer */
};

/* At most 'max' of them, about the latest used first, those of layers that are
 * gone included: their number.
 */
extern size_t
map_list_cached (struct map *map, struct map_cached *leaves, size_t max);
/* Put such a leaf of an earlier session into the cache, as the first to be
 * dropped.  The caller is inside quiesce.  1; 0: there is no room; -1: EIO,
 * ENOMEM.
 */
extern int map_warm (struct map *map, struct layer *layer, uint64_t leaf);

/* 'layer' does not change any more (unless it merges). */
extern void map_freeze (struct map *map, struct layer *layer);
/* The layer is a head again. */
extern void map_thaw (struct map *map, struct layer *layer);
/* A merge begins, or has ended. */
extern void
map_set_unstable (struct map *map, struct layer *layer, bool unstable);

/* Set a block in the open txg to 'ptr', or to a hole if it is NULL.  The
 * caller is inside txg_enter.  Returns 1 and the address in '*displaced' if
 * it replaced a pointer of the open txg, else 0; -1: ENOMEM, nothing changed.
 */
extern int map_set (struct map *map, struct layer *layer, uint64_t block,
                    const struct pointer *ptr, uint64_t *displaced);

/* The same, but mark the block's content as lost. */
extern int map_set_lost (struct map *map, struct layer *layer, uint64_t block,
                         uint64_t *displaced);

/* Set a whole leaf to holes.  Stores the displaced addresses in displaced[]
 * and returns their number, or -1.
 */
extern int map_set_holes (struct map *map, struct layer *layer, uint64_t leaf,
                          uint64_t displaced[LEAF_BLOCKS]);

/*----------------------------------------------------------------------
 * For the fold
 */

struct map_change {
  struct layer *layer;
  uint64_t leaf;
  const void *changes; /* opaque: for map_apply */
};

extern void map_cut (struct map *map);
/* The folding txg's leaves, ascending by layer and leaf, malloc'd. */
extern int
map_get_changes (struct map *map, struct map_change **changes, size_t *nr);
/* The change's new pointers, ascending by index, if it has nothing else and at
 * most 'max' of them: their number; else 0.
 */
extern unsigned map_get_pointers (const struct map_change *change,
                                  struct leaf_pointer *pointers, unsigned max);
/* Would map_apply read 'below'? */
extern bool
map_needs_below (const struct map_change *change, const struct leaf *leaf);
/* Apply a leaf's changes.  'below' is what shows through from the parent, no
 * MAP_INHERIT in it; unused if there is no parent or map_needs_below returned
 * false.  Holes that are holes in 'below' too become MAP_INHERIT, so that
 * trimming a clone's free space repeatedly does not make it grow.
 *
 * Addresses that lose a reference go to displaced[], their number to
 * *nr_displaced; *pointers and *blocks get the changes of the layer's
 * counts.
 */
extern void map_apply (const struct map_change *change, struct leaf *leaf,
                       const struct leaf *below,
                       uint64_t displaced[LEAF_BLOCKS], unsigned *nr_displaced,
                       int *pointers, int *blocks);
/* What shows through in a leaf of 'layer' from its parent, as 'c' sees it. */
extern int map_get_below (struct map *map, struct meta_conn *c,
                          struct layer *layer, uint64_t leaf,
                          struct leaf *below);
extern void map_fold_done (struct map *map);

/* Forget cached leaves of a layer that is gone. */
extern void map_forget_layer (struct map *map, struct layer *layer);

/* Forget each cached leaf that has one of these numbers and a pointer to an
 * address for which 'fn' returns true.  A thread that has read such a leaf from
 * pool.db before the last map_fold_done does not put it in the cache any more.
 */
extern void
map_forget_pointers (struct map *map, const uint64_t *leaves, size_t nr,
                     bool (*fn) (void *opaque, uint64_t addr), void *opaque);

extern size_t map_pending_bytes (struct map *map);

#endif /* NBDEDUP_MAP_H */
