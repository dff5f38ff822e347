/* SPDX-License-Identifier: BSD-3-Clause */

/* Layer maps: (layer, block) -> pointer, hole or inherit.
 *
 * What is durable stands in table "leaf" of pool.db, LEAF_BLOCKS blocks a
 * row.  In memory:
 *
 *  - the open txg's changes, and the folding txg's, by leaf;
 *
 *  - an LRU cache of pool.db's leaves, also of the fact that a leaf has no
 *    row.  The checksums of pool.db's pages make that fact as sure as a
 *    row: a tree that lost a row by damage does not read at all.
 *
 * A lookup asks them in this order.  One fold removes its changes and
 * updates the cache in one step under the lock; a leaf that was read from
 * pool.db before that step is not put in the cache after it ("generation").
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

#include "format.h"
#include "meta.h"

struct map;

/* A layer: the part of a volume between two snapshots.  Owned by the pool's
 * registry (volume.c); 'pointers' and 'dying' belong to the fold.
 */
struct layer {
  uint64_t id, branch, seq;
  struct layer *parent;         /* not owned; NULL: none */
  uint64_t overlap;             /* blocks of the parent that show through */
  uint32_t block_size;
  bool dying;
  _Atomic uint64_t pointers;    /* own pointers as of the last fold */
  _Atomic uint64_t blocks;      /* not holes, inherited ones included */
};

/* 'budget_bytes' is for the cache of leaves. */
extern struct map *map_new (struct meta *meta, uint64_t budget_bytes);
extern void map_free (struct map *map);

/* What does the layer say about 'nr' blocks from 'block' on, which must lie
 * in one leaf?  states[] are MAP_HOLE or MAP_POINTER (inheritance is
 * resolved), ptrs[] valid for the latter.  -1: EIO, ENOMEM.
 */
extern int map_get (struct map *map, struct layer *layer, uint64_t block,
                    unsigned nr, uint8_t *states, struct pointer *ptrs);

/* Say something new about a block, in the open txg: 'ptr', or a hole if it
 * is NULL.  The caller is inside txg_enter.  Returns 1 and the address in
 * '*displaced' if a pointer of the open txg was replaced, else 0; -1:
 * ENOMEM, nothing changed.
 */
extern int map_set (struct map *map, struct layer *layer, uint64_t block,
                    const struct pointer *ptr, uint64_t *displaced);

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
/* Apply a leaf's changes.  Addresses that lose a reference go to
 * displaced[], their number to *nr_displaced; returns the change of the
 * leaf's number of pointers.
 */
extern int map_apply (const struct map_change *change, struct leaf *leaf,
                      uint64_t displaced[LEAF_BLOCKS],
                      unsigned *nr_displaced);
extern void map_fold_done (struct map *map);

/* Forget cached leaves of a layer that is gone. */
extern void map_forget_layer (struct map *map, struct layer *layer);

extern size_t map_pending_bytes (struct map *map);
extern size_t map_cache_bytes (struct map *map);

#endif /* NBDEDUP_MAP_H */
