/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/backoff.h"
#include "base/error.h"
#include "base/invariant.h"
#include "base/lock.h"
#include "base/hashtable.h"
#include "base/mix.h"
#include "core/leaf-cache.h"
#include "core/map.h"
#include "core/resolve.h"

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

static void
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

DEFINE_WITH_CONSISTENT (map)

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

static void
free_changes (void *opaque, struct hashtable_link *l)
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
      hashtable_visit (&map->changes[i], free_changes, map);
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

static struct leaf_changes *
find_changes_locked (struct hashtable *t, struct layer *layer, uint64_t leaf)
{
  struct hashtable_link *l;
  struct leaf_changes *lc;

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
  struct leaf_changes *lc = find_changes_locked (t, layer, leaf);

  assert_held (&map->lock);
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

/* Where index is, or would be inserted. */
static unsigned
change_position (const struct leaf_changes *lc, unsigned index)
{
  assert (index < LEAF_BLOCKS);
  return (unsigned) array_position (lc->nr, i, lc->blocks[i].index < index);
}

static struct block_change *
find_change (const struct leaf_changes *lc, unsigned index)
{
  unsigned i = change_position (lc, index);

  return i < lc->nr && lc->blocks[i].index == index ? &lc->blocks[i] : NULL;
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

static void
apply (const struct leaf_changes *lc, struct leaf *leaf)
{
  unsigned i;

  if (lc->all_holes)
    memset (leaf->state, MAP_HOLE, sizeof leaf->state);
  for (i = 0; i < lc->nr; ++i) {
    leaf->state[lc->blocks[i].index] = lc->blocks[i].state;
    memcpy (leaf->ptr[lc->blocks[i].index], lc->blocks[i].ptr, POINTER_LEN);
  }
}

/*----------------------------------------------------------------------
 * Layers in the cache
 */

static uint64_t
key_of_locked (struct map *map, uint64_t *key)
{
  assert_held (&map->lock);
  if (*key == 0)
    *key = map->next_key++;
  return *key;
}

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

/*----------------------------------------------------------------------
 * Lookup
 */

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

static uint64_t
source_of (const struct layer *layer, bool resolved)
{
  return layer->id << 1 | resolved;
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
    lc = find_changes_locked (&map->changes[map->open ^ i], g->layer, g->leaf);
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

  return get_own (map, &g) == -1 ? -1 : state == MAP_POINTER;
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
      if (find_changes_locked (t, layer, leaf))
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

/*----------------------------------------------------------------------
 * The fold
 */

void
map_cut (struct map *map)
{
  WITH_LOCK (&map->lock);
  WITH_CONSISTENT (map, map);
  map->open ^= 1;
  assert (map->changes[map->open].nr_entries == 0);
}

struct collect {
  struct map_change *p;
  size_t nr;
};

static void
collect_change_locked (void *opaque, struct hashtable_link *l)
{
  struct leaf_changes *lc = hashtable_entry (l, struct leaf_changes, link);
  struct collect *c = opaque;

  c->p[c->nr++] = (struct map_change) { lc->layer, lc->leaf, lc };
}

static int
compare_changes (const void *a, const void *b)
{
  const struct map_change *x = a, *y = b;

  if (x->layer->id != y->layer->id)
    return x->layer->id < y->layer->id ? -1 : 1;
  return x->leaf < y->leaf ? -1 : x->leaf > y->leaf;
}

int
map_get_changes (struct map *map, struct map_change **changes, size_t *nr)
{
  struct collect c = { .nr = 0 };

  {
    WITH_LOCK (&map->lock);
    struct hashtable *t = &map->changes[map->open ^ 1];

    c.p = malloc ((t->nr_entries + 1) * sizeof *c.p);
    if (c.p == NULL)
      return nbdedup_fail (ENOMEM, "no memory for %zu changed leaves",
                           t->nr_entries);
    hashtable_visit (t, collect_change_locked, &c);
  }
  qsort (c.p, c.nr, sizeof *c.p, compare_changes);
  *changes = c.p;
  *nr = c.nr;
  return 0;
}

/* In a layer without a parent a hole needs no entry, so trimmed volumes have
 * no rows.
 */
static void
drop_holes (struct leaf *leaf)
{
  unsigned i;

  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (leaf->state[i] == MAP_HOLE)
      leaf->state[i] = MAP_INHERIT;
}

bool
map_needs_below (const struct map_change *change, const struct leaf *leaf)
{
  const struct leaf_changes *lc = change->changes;
  unsigned i;

  if (change->layer->parent == NULL)
    return false;
  if (lc->all_holes)
    return true;
  for (i = 0; i < lc->nr; ++i)
    if (lc->blocks[i].state == MAP_HOLE ||
        leaf->state[lc->blocks[i].index] == MAP_INHERIT)
      return true;
  return false;
}

void
map_apply (const struct map_change *change, struct leaf *leaf,
           const struct leaf *below, uint64_t displaced[LEAF_BLOCKS],
           unsigned *nr_displaced, int *pointers, int *blocks)
{
  const struct leaf_changes *lc = change->changes;
  bool has_parent = change->layer->parent != NULL;
  struct leaf old = *leaf;
  uint8_t was;
  unsigned i;

  assert (!has_parent ||
          memchr (below->state, MAP_INHERIT, sizeof below->state) == NULL);
  *nr_displaced = 0;
  *pointers = *blocks = 0;
  apply (lc, leaf);
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    /* A block that the txg did not change keeps its reference. */
    if (!lc->all_holes && find_change (lc, i) == NULL)
      continue;
    if (old.state[i] == MAP_POINTER)
      displaced[(*nr_displaced)++] = pointer_addr (old.ptr[i]);
    was = old.state[i] == MAP_INHERIT && has_parent ? below->state[i]
                                                    : old.state[i];
    *pointers += (leaf->state[i] == MAP_POINTER) -
      (old.state[i] == MAP_POINTER);
    *blocks += (leaf->state[i] == MAP_POINTER) - (was == MAP_POINTER);
    if (has_parent && leaf->state[i] == MAP_HOLE && below->state[i] == MAP_HOLE)
      leaf->state[i] = MAP_INHERIT;
  }
  if (!has_parent)
    drop_holes (leaf);
}

int
map_get_below (struct map *map, struct meta_conn *c, struct layer *layer,
               uint64_t leaf, struct leaf *below)
{
  struct layer *parent = layer->parent;
  struct cached_leaf *cl;
  unsigned i;

  memset (below->state, MAP_INHERIT, sizeof below->state);
  if (parent) {
    WITH_LOCK (&map->lock);
    cl = parent->unstable
      ? NULL
      : leaf_cache_find (&map->cache,
                         key_of_locked (map, &parent->resolved_key), leaf);
    if (cl) {
      if (leaf_unpack (cl->data, cl->len, below) == -1)
        return -1;
      for (i = 0; i < LEAF_BLOCKS; ++i)
        if (below->state[i] == MAP_INHERIT ||
            leaf * LEAF_BLOCKS + i >= layer->overlap)
          below->state[i] = MAP_HOLE;
      return 0;
    }
  }
  return resolve_leaf (c, parent, leaf, layer->overlap, below);
}

static void
update_cached_locked (void *opaque, struct hashtable_link *l)
{
  struct leaf_changes *lc = hashtable_entry (l, struct leaf_changes, link);
  struct map *map = opaque;
  uint64_t key = key_of_locked (map, &lc->layer->own_key);
  struct cached_leaf *cl = leaf_cache_find (&map->cache, key, lc->leaf);
  uint8_t buf[LEAF_LEN_MAX];
  struct leaf leaf;

  if (cl) {
    if (leaf_unpack (cl->data, cl->len, &leaf) == -1)
      leaf_cache_drop (&map->cache, cl);
    else {
      apply (lc, &leaf);
      if (lc->layer->parent == NULL)
        drop_holes (&leaf);
      leaf_cache_put (&map->cache, key, lc->leaf, source_of (lc->layer, false),
                      buf, leaf_pack (&leaf, buf));
    }
  }
  free_changes (map, l);
}

void
map_fold_done (struct map *map)
{
  WITH_LOCK (&map->lock);
  WITH_CONSISTENT (map, map);
  struct hashtable *t = &map->changes[map->open ^ 1];

  hashtable_visit (t, update_cached_locked, map);
  hashtable_clear (t);
  map->generation++;
}

void
map_forget_layer (struct map *map, struct layer *layer)
{
  WITH_LOCK (&map->lock);
  layer->own_key = layer->resolved_key = 0;
  map->generation++; /* keeps a running read from caching it again */
}

static bool
has_pointer (const struct cached_leaf *cl,
             bool (*fn) (void *opaque, uint64_t addr), void *opaque)
{
  struct leaf leaf;
  unsigned i;

  if (leaf_unpack (cl->data, cl->len, &leaf) == -1)
    return true;
  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (leaf.state[i] == MAP_POINTER && fn (opaque, pointer_addr (leaf.ptr[i])))
      return true;
  return false;
}

/* Numbers of leaves, as hashes: some others look like them. */
#define FILTER_BITS 16384u

void
map_forget_pointers (struct map *map, const uint64_t *leaves, size_t nr,
                     bool (*fn) (void *opaque, uint64_t addr), void *opaque)
{
  uint8_t filter[FILTER_BITS / 8] = { 0 };
  struct cached_leaf *cl, *next;
  size_t i;

  for (i = 0; i < nr; ++i)
    filter[leaves[i] % FILTER_BITS / 8] |= 1 << leaves[i] % 8;
  WITH_LOCK (&map->lock);
  WITH_CONSISTENT (map, map);
  for (cl = TAILQ_FIRST (&map->cache.lru); cl; cl = next) {
    next = TAILQ_NEXT (cl, lru);
    if (filter[cl->leaf % FILTER_BITS / 8] >> cl->leaf % 8 & 1 &&
        has_pointer (cl, fn, opaque))
      leaf_cache_drop (&map->cache, cl);
  }
}

size_t
map_pending_bytes (struct map *map)
{
  return map->pending_bytes;
}
