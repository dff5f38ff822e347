/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by map.c (the changes, and the layers' keys in the cache),
 * map-lookup.c (reads) and map-fold.c (what a fold takes and writes).
 */

#ifndef NBDEDUP_MAP_INT_H
#define NBDEDUP_MAP_INT_H

#include <assert.h>
#include <stdatomic.h>

#include "base/array.h"
#include "base/hashtable.h"
#include "base/invariant.h"
#include "base/lock.h"
#include "core/leaf-cache.h"
#include "core/map.h"

/* One block's new state.  A random write changes one block of a leaf, so a
 * leaf's changes are a small sorted vector, not an array of 64.
 */
struct block_change {
  uint8_t index; /* in the leaf */
  uint8_t state; /* never MAP_INHERIT */
  uint8_t ptr[POINTER_LEN];
};

/* The changes of one txg to one leaf. */
struct leaf_changes {
  struct hashtable_link link;
  struct layer *layer; /* not owned */
  uint64_t leaf;
  bool all_holes; /* before 'blocks': every block a hole */
  uint8_t nr, cap;
  struct block_change *blocks; /* owned; ascending by index */
};

struct map {
  struct meta *meta; /* not owned; outlives the map */

  struct lock lock;            /* protects everything below, and the keys
                                 * of layers */
  struct hashtable changes[2]; /* by parity of the txg */
  unsigned open;
  struct leaf_cache cache;
  uint64_t next_key;   /* of layers, in the cache; 0: none */
  uint64_t generation; /* folds done */
  size_t nr_changes;   /* for invariant_is_due */

  atomic_size_t pending_bytes; /* written under the lock, read without */
};

#define CHANGES_BYTES (sizeof (struct leaf_changes) + 16)

/* The invariants while no thread holds the lock. */
extern void map_assert_consistent_locked (struct map *map);
DEFINE_WITH_CONSISTENT (map)

/* The changes to a leaf in map->changes[table], or NULL. */
extern struct leaf_changes *
map_find_changes_locked (struct map *map, unsigned table, struct layer *layer,
                         uint64_t leaf);
/* For hashtable_visit: frees a struct leaf_changes of the map 'opaque'. */
extern void map_free_changes (void *opaque, struct hashtable_link *l);

/* Where index is, or would be inserted. */
static inline unsigned
change_position (const struct leaf_changes *lc, unsigned index)
{
  assert (index < LEAF_BLOCKS);
  return (unsigned) array_position (lc->nr, i, lc->blocks[i].index < index);
}

static inline struct block_change *
find_change (const struct leaf_changes *lc, unsigned index)
{
  unsigned i = change_position (lc, index);

  return i < lc->nr && lc->blocks[i].index == index ? &lc->blocks[i] : NULL;
}

/* The cache's key of a layer: layer->own_key or layer->resolved_key. */
static inline uint64_t
key_of_locked (struct map *map, uint64_t *key)
{
  assert_held (&map->lock);
  if (*key == 0)
    *key = map->next_key++;
  return *key;
}

static inline uint64_t
source_of (const struct layer *layer, bool resolved)
{
  return layer->id << 1 | resolved;
}

#endif /* NBDEDUP_MAP_INT_H */
