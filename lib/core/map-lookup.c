/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "core/map-int.h"
#include "core/resolve.h"

struct get {
  struct layer *layer;
  uint64_t leaf;
  unsigned first, nr;
  uint8_t *states;
  struct pointer *ptrs;
  bool cold; /* put the leaf in the cache as the first to be
                                 * dropped */
};

static int
get_block (const struct get *g, unsigned i, uint8_t state, const uint8_t *ptr)
{
  g->states[i] = state;
  if (state == MAP_POINTER)
    return pointer_unpack (ptr, g->layer->block_size, &g->ptrs[i]);
  return 0;
}

/* Fill in the blocks that are still MAP_INHERIT from a txg's changes.
 * Returns how many are left, or -1.
 */
static int
get_from_changes_locked (const struct get *g, const struct leaf_changes *lc)
{
  struct block_change *bc;
  unsigned i;
  int left = 0;

  for (i = 0; i < g->nr; ++i) {
    if (g->states[i] != MAP_INHERIT)
      continue;
    bc = lc ? find_change (lc, g->first + i) : NULL;
    if (bc) {
      if (get_block (g, i, bc->state, bc->ptr) == -1)
        return -1;
    }
    else if (lc && lc->all_holes)
      g->states[i] = MAP_HOLE;
    else
      left++;
  }
  return left;
}

/* The blocks still MAP_INHERIT, below 'limit'. */
static int
get_from_leaf (const struct get *g, const struct leaf *leaf, uint64_t limit)
{
  uint64_t first = g->leaf * LEAF_BLOCKS + g->first;
  unsigned i;

  for (i = 0; i < g->nr && first + i < limit; ++i) {
    if (g->states[i] != MAP_INHERIT)
      continue;
    if (get_block (g, i, leaf->state[g->first + i], leaf->ptr[g->first + i]) ==
        -1)
      return -1;
  }
  return 0;
}

static int
get_from_cached_locked (const struct get *g, const struct cached_leaf *cl,
                        uint64_t limit)
{
  struct leaf leaf;

  if (leaf_unpack (cl->data, cl->len, &leaf) == -1)
    return -1;
  return get_from_leaf (g, &leaf, limit);
}

/* Look up in a head itself.  1: done; 0: the caller must read the row
 * ('*generation' and '*key' as of now); -1.
 */
static int
get_own_from_memory (struct map *map, const struct get *g, uint64_t *generation,
                     uint64_t *key)
{
  struct leaf_changes *lc;
  struct cached_leaf *cl;
  unsigned i;
  int left;

  WITH_LOCK (&map->lock);
  for (i = 0; i < 2; ++i) { /* the open txg first, then the folding */
    lc = map_find_changes_locked (map, map->open ^ i, g->layer, g->leaf);
    left = get_from_changes_locked (g, lc);
    if (left <= 0)
      return left == 0 ? 1 : -1;
  }
  *generation = map->generation;
  *key = key_of_locked (map, &g->layer->own_key);
  cl = leaf_cache_find (&map->cache, *key, g->leaf);
  if (cl == NULL)
    return 0;
  return get_from_cached_locked (g, cl, UINT64_MAX) == -1 ? -1 : 1;
}

static void
put_leaf_locked (struct map *map, const struct get *g, uint64_t key,
                 uint64_t source, const uint8_t *buf, size_t len)
{
  assert_held (&map->lock);
  if (g->cold)
    leaf_cache_put_cold (&map->cache, key, g->leaf, source, buf, len);
  else
    leaf_cache_put (&map->cache, key, g->leaf, source, buf, len);
}

static int
get_own (struct map *map, const struct get *g)
{
  uint64_t generation = 0, key = 0;
  uint8_t buf[LEAF_LEN_MAX];
  struct meta_conn *c;
  struct leaf leaf;
  size_t len = 0;
  int r = get_own_from_memory (map, g, &generation, &key);

  if (r != 0)
    return r == 1 ? 0 : -1;
  c = meta_reader_get (map->meta);
  r = meta_leaf_get (c, g->layer->branch, g->leaf, g->layer->seq, buf, &len);
  meta_reader_put (map->meta, c);
  if (r == -1 || leaf_unpack (buf, len, &leaf) == -1)
    return -1;
  {
    WITH_LOCK (&map->lock);
    WITH_CONSISTENT (map, map);
    if (map->generation == generation && g->layer->own_key == key &&
        !g->layer->frozen)
      put_leaf_locked (map, g, key, source_of (g->layer, false), buf, len);
  }
  return get_from_leaf (g, &leaf, UINT64_MAX);
}

/* Resolved leaves are stored with "inherit" for "hole", as no layer is below.
 */
static void
put_resolved_locked (struct map *map, const struct get *g,
                     const struct layer *layer, const struct leaf *resolved)
{
  struct leaf leaf = *resolved;
  uint8_t buf[LEAF_LEN_MAX];
  unsigned i;

  assert_held (&map->lock);
  assert (layer->frozen && !layer->unstable && layer->resolved_key != 0);
  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (leaf.state[i] == MAP_HOLE)
      leaf.state[i] = MAP_INHERIT;
  put_leaf_locked (map, g, layer->resolved_key, source_of (layer, true), buf,
                   leaf_pack (&leaf, buf));
}

/* Look up the blocks still MAP_INHERIT in a frozen layer and all below it. */
static int
get_resolved (struct map *map, const struct get *g, struct layer *layer,
              uint64_t limit)
{
  struct cached_leaf *cl;
  struct meta_conn *c;
  struct leaf leaf;
  uint64_t key, generation;
  int r;

  {
    WITH_LOCK (&map->lock);
    generation = map->generation;
    key = key_of_locked (map, &layer->resolved_key);
    cl = leaf_cache_find (&map->cache, key, g->leaf);
    if (cl)
      return get_from_cached_locked (g, cl, limit);
  }
  memset (leaf.state, MAP_INHERIT, sizeof leaf.state);
  c = meta_reader_get (map->meta);
  r = resolve_leaf (c, layer, g->leaf, UINT64_MAX, &leaf);
  meta_reader_put (map->meta, c);
  if (r == -1)
    return -1;
  {
    WITH_LOCK (&map->lock);
    WITH_CONSISTENT (map, map);
    if (map->generation == generation && layer->frozen && !layer->unstable &&
        layer->resolved_key == key)
      put_resolved_locked (map, g, layer, &leaf);
  }
  return get_from_leaf (g, &leaf, limit);
}

int
map_get (struct map *map, struct layer *layer, uint64_t block, unsigned nr,
         uint8_t *states, struct pointer *ptrs)
{
  struct get g = {
    .layer = layer,
    .leaf = block / LEAF_BLOCKS,
    .first = block % LEAF_BLOCKS,
    .nr = nr,
    .states = states,
    .ptrs = ptrs,
  };
  uint64_t limit = UINT64_MAX;
  unsigned i;

  assert (nr > 0 && g.first + nr <= LEAF_BLOCKS);
  memset (states, MAP_INHERIT, nr);
  if (!layer->frozen) {
    if (get_own (map, &g) == -1)
      return -1;
    limit = layer->overlap; /* blocks past it do not show through */
    layer = layer->parent;
  }
  if (layer && memchr (states, MAP_INHERIT, nr) &&
      get_resolved (map, &g, layer, limit) == -1)
    return -1;
  for (i = 0; i < nr; ++i)
    if (states[i] == MAP_INHERIT)
      states[i] = MAP_HOLE;
  return 0;
}

int
map_owns (struct map *map, struct layer *layer, uint64_t block)
{
  struct pointer ptr;
  uint8_t state = MAP_INHERIT;
  struct get g = {
    .layer = layer,
    .leaf = block / LEAF_BLOCKS,
    .first = block % LEAF_BLOCKS,
    .nr = 1,
    .states = &state,
    .ptrs = &ptr,
  };

  if (get_own (map, &g) == -1)
    return -1;
  if (state == MAP_INHERIT && layer_is_pushed (layer) &&
      block < layer->overlap) {
    g.layer = layer->parent;
    if (get_own (map, &g) == -1)
      return -1;
  }
  return state == MAP_POINTER;
}

size_t
map_list_cached (struct map *map, struct map_cached *leaves, size_t max)
{
  const struct cached_leaf *cl;
  size_t nr = 0;

  WITH_LOCK (&map->lock);
  TAILQ_FOREACH_REVERSE (cl, &map->cache.lru, cached_leaves, lru)
  {
    if (nr == max)
      break;
    leaves[nr++] = (struct map_cached) {
      .layer = cl->source >> 1,
      .leaf = cl->leaf,
      .resolved = cl->source & 1,
    };
  }
  return nr;
}

int
map_warm (struct map *map, struct layer *layer, uint64_t leaf)
{
  struct pointer ptrs[LEAF_BLOCKS];
  uint8_t states[LEAF_BLOCKS];
  const struct get g = {
    .layer = layer,
    .leaf = leaf,
    .nr = LEAF_BLOCKS,
    .states = states,
    .ptrs = ptrs,
    .cold = true,
  };

  {
    WITH_LOCK (&map->lock);
    if (map->cache.bytes + LEAF_LEN_MAX + sizeof (struct cached_leaf) + 16 >
        map->cache.max)
      return 0;
  }
  memset (states, MAP_INHERIT, sizeof states);
  if ((layer->frozen ? get_resolved (map, &g, layer, UINT64_MAX)
                     : get_own (map, &g)) == -1)
    return -1;
  return 1;
}

struct search {
  struct layer *layer;
  uint64_t first, next;
};

static void
search_change_locked (void *opaque, struct hashtable_link *l)
{
  const struct leaf_changes *lc = hashtable_entry (l, struct leaf_changes,
                                                   link);
  struct search *s = opaque;

  if (lc->layer == s->layer && lc->leaf >= s->first && lc->leaf < s->next)
    s->next = lc->leaf;
}

/* The first leaf from 'first' on that a txg changes, or 'end'. */
static uint64_t
next_change (struct map *map, struct layer *layer, uint64_t first, uint64_t end)
{
  struct search s = { .layer = layer, .first = first, .next = end };
  struct hashtable *t;
  uint64_t leaf;
  unsigned i;

  WITH_LOCK (&map->lock);
  for (i = 0; i < 2; ++i) {
    t = &map->changes[i];
    if (s.next - first > t->nr_entries) {
      hashtable_visit (t, search_change_locked, &s);
      continue;
    }
    for (leaf = first; leaf < s.next; ++leaf)
      if (map_find_changes_locked (map, i, layer, leaf))
        s.next = leaf;
  }
  return s.next;
}

/* Memory first: a fold moves changes to pool.db.  But a look at the first leaf
 * alone can save the search.
 */
int
map_next (struct map *map, struct layer *layer, uint64_t first, uint64_t last,
          uint64_t *leaf)
{
  struct meta_conn *c = meta_reader_get (map->meta);
  uint64_t changed = last + 1;
  int r;

  assert (first <= last && last < UINT64_MAX);
  r = resolve_next_leaf (c, layer, first, leaf);
  if (r != -1 && (r == 0 || *leaf > first)) {
    changed = next_change (map, layer, first, last + 1);
    r = resolve_next_leaf (c, layer, first, leaf);
  }
  meta_reader_put (map->meta, c);
  if (r == -1)
    return -1;
  if (r == 0 || *leaf > changed)
    *leaf = changed;
  return *leaf <= last;
}
