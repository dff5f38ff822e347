/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/error.h"
#include "base/mix.h"
#include "core/map-int.h"

/*----------------------------------------------------------------------
 * True whenever the lock is not held:
 *
 *  (1) The changes of the open and the folding txg to a leaf are sorted, have
 *      each block once, and never say "inherit".
 *
 *  (2) pending_bytes counts all of them.
 *
 *  (3) The cache of leaves is within its budget.
 *
 * Checking (1) and (2) visits all changes.
 */

static void
assert_leaf_locked (void *opaque, struct hashtable_link *l)
{
  const struct leaf_changes *lc = hashtable_entry (l, struct leaf_changes,
                                                   link);
  size_t *bytes = opaque;
  unsigned i;

  assert (lc->nr <= lc->cap && lc->cap <= LEAF_BLOCKS);
  for (i = 0; i < lc->nr; ++i) {
    assert (lc->blocks[i].index < LEAF_BLOCKS);
    assert (lc->blocks[i].state != MAP_INHERIT);
    assert (i == 0 || lc->blocks[i].index > lc->blocks[i - 1].index);
  }
  *bytes += CHANGES_BYTES + lc->cap * sizeof *lc->blocks;
}

void
map_assert_consistent_locked (struct map *map)
{
  const size_t nr = map->changes[0].nr_entries + map->changes[1].nr_entries;
  size_t bytes = 0;
  bool all;

  assert_held (&map->lock);
  all = invariant_is_due (&map->nr_changes,
                          nr + map->cache.table.nr_entries +
                            map->changes[0].nr_buckets +
                            map->changes[1].nr_buckets);
  assert (map->open <= 1 && map->next_key > 0);
  assert (map->pending_bytes >= nr * CHANGES_BYTES);
  leaf_cache_assert_consistent (&map->cache, all);
  if (!all)
    return;
  hashtable_visit (&map->changes[0], assert_leaf_locked, &bytes);
  hashtable_visit (&map->changes[1], assert_leaf_locked, &bytes);
  assert (bytes == map->pending_bytes);
}

/*----------------------------------------------------------------------*/

struct map *
map_new (struct meta *meta, uint64_t budget_bytes)
{
  struct map *map = calloc (1, sizeof *map);

  if (map == NULL || hashtable_init (&map->changes[0]) == -1 ||
      hashtable_init (&map->changes[1]) == -1 ||
      leaf_cache_init (&map->cache, budget_bytes) == -1) {
    map_free (map);
    return nbdedup_fail_null (ENOMEM, "no memory for the maps");
  }
  map->meta = meta;
  map->next_key = 1;
  lock_init (&map->lock);
  return map;
}

void
map_free_changes (void *opaque, struct hashtable_link *l)
{
  struct leaf_changes *lc = hashtable_entry (l, struct leaf_changes, link);
  struct map *map = opaque;

  map->pending_bytes -= CHANGES_BYTES + lc->cap * sizeof *lc->blocks;
  free (lc->blocks);
  free (lc);
}

void
map_free (struct map *map)
{
  unsigned i;

  if (map == NULL)
    return;
  for (i = 0; i < 2; ++i)
    if (map->changes[i].buckets)
      hashtable_visit (&map->changes[i], map_free_changes, map);
  hashtable_destroy (&map->changes[0]);
  hashtable_destroy (&map->changes[1]);
  leaf_cache_destroy (&map->cache);
  lock_destroy (&map->lock);
  free (map);
}

static uint64_t
leaf_hash (const struct layer *layer, uint64_t leaf)
{
  return mix_two (layer->id, leaf);
}

struct leaf_changes *
map_find_changes_locked (struct map *map, unsigned table, struct layer *layer,
                         uint64_t leaf)
{
  struct hashtable *t = &map->changes[table];
  struct hashtable_link *l;
  struct leaf_changes *lc;

  assert_held (&map->lock);
  for (l = hashtable_chain (t, leaf_hash (layer, leaf)); l; l = l->next) {
    lc = hashtable_entry (l, struct leaf_changes, link);
    if (lc->layer == layer && lc->leaf == leaf)
      return lc;
  }
  return NULL;
}

static struct leaf_changes *
get_changes_locked (struct map *map, struct layer *layer, uint64_t leaf)
{
  struct hashtable *t = &map->changes[map->open];
  struct leaf_changes *lc = map_find_changes_locked (map, map->open, layer,
                                                     leaf);

  if (lc)
    return lc;
  lc = patient_calloc (1, sizeof *lc);
  if (lc == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for a map change");
  lc->layer = layer;
  lc->leaf = leaf;
  hashtable_insert (t, &lc->link, leaf_hash (layer, leaf));
  map->pending_bytes += CHANGES_BYTES;
  return lc;
}

static int
grow_changes_locked (struct map *map, struct leaf_changes *lc)
{
  size_t cap = lc->cap;

  assert_held (&map->lock);
  if (array_grow (&lc->blocks, &cap, lc->nr + 1u, sizeof *lc->blocks,
                  patient_realloc) == -1)
    return -1;
  map->pending_bytes += (cap - lc->cap) * sizeof *lc->blocks;
  lc->cap = (uint8_t) cap;
  return 0;
}

static int
set_block (struct map *map, struct layer *layer, uint64_t block,
           enum map_state state, const struct pointer *ptr, uint64_t *displaced)
{
  unsigned index = block % LEAF_BLOCKS, i;
  struct leaf_changes *lc;
  struct block_change *bc;
  int r = 0;

  assert (state != MAP_INHERIT && (ptr != NULL) == (state == MAP_POINTER));
  WITH_LOCK (&map->lock);
  WITH_CONSISTENT (map, map);
  lc = get_changes_locked (map, layer, block / LEAF_BLOCKS);
  if (lc == NULL)
    return -1;
  i = change_position (lc, index);
  if (i < lc->nr && lc->blocks[i].index == index) {
    bc = &lc->blocks[i];
    if (bc->state == MAP_POINTER) {
      *displaced = pointer_addr (bc->ptr);
      r = 1;
    }
  }
  else {
    if (grow_changes_locked (map, lc) == -1)
      return -1;
    bc = &lc->blocks[i];
    memmove (bc + 1, bc, (lc->nr - i) * sizeof *bc);
    lc->nr++;
    bc->index = (uint8_t) index;
  }
  bc->state = (uint8_t) state;
  if (ptr)
    pointer_pack (ptr, bc->ptr);
  return r;
}

int
map_set (struct map *map, struct layer *layer, uint64_t block,
         const struct pointer *ptr, uint64_t *displaced)
{
  return set_block (map, layer, block, ptr ? MAP_POINTER : MAP_HOLE, ptr,
                    displaced);
}

int
map_set_lost (struct map *map, struct layer *layer, uint64_t block,
              uint64_t *displaced)
{
  return set_block (map, layer, block, MAP_LOST, NULL, displaced);
}

int
map_set_holes (struct map *map, struct layer *layer, uint64_t leaf,
               uint64_t displaced[LEAF_BLOCKS])
{
  struct leaf_changes *lc;
  int nr = 0;
  unsigned i;

  WITH_LOCK (&map->lock);
  WITH_CONSISTENT (map, map);
  lc = get_changes_locked (map, layer, leaf);
  if (lc == NULL)
    return -1;
  for (i = 0; i < lc->nr; ++i)
    if (lc->blocks[i].state == MAP_POINTER)
      displaced[nr++] = pointer_addr (lc->blocks[i].ptr);
  assert (nr <= LEAF_BLOCKS);
  map->pending_bytes -= lc->cap * sizeof *lc->blocks;
  free (lc->blocks);
  lc->blocks = NULL;
  lc->nr = lc->cap = 0;
  lc->all_holes = true;
  return nr;
}

/*----------------------------------------------------------------------
 * Layers in the cache
 */

void
map_freeze (struct map *map, struct layer *layer)
{
  WITH_LOCK (&map->lock);
  layer->resolved_key = 0; /* from an earlier time as a frozen layer */
  layer->frozen = true;
}

void
map_thaw (struct map *map, struct layer *layer)
{
  WITH_LOCK (&map->lock);
  layer->own_key = layer->resolved_key = 0;
  layer->unstable = false;
  layer->frozen = false;
}

void
map_set_unstable (struct map *map, struct layer *layer, bool unstable)
{
  WITH_LOCK (&map->lock);
  layer->own_key = layer->resolved_key = 0;
  layer->unstable = unstable;
}
