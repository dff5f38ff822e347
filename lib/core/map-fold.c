/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/map-int.h"
#include "core/resolve.h"

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

unsigned
map_get_pointers (const struct map_change *change,
                  struct leaf_pointer *pointers, unsigned max)
{
  const struct leaf_changes *lc = change->changes;
  unsigned i;

  if (lc->all_holes || lc->nr > max)
    return 0;
  for (i = 0; i < lc->nr; ++i) {
    if (lc->blocks[i].state != MAP_POINTER)
      return 0;
    pointers[i].index = lc->blocks[i].index;
    memcpy (pointers[i].ptr, lc->blocks[i].ptr, POINTER_LEN);
  }
  return lc->nr;
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
  map_free_changes (map, l);
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
#define LEAF_FILTER_BITS 16384u

void
map_forget_pointers (struct map *map, const uint64_t *leaves, size_t nr,
                     bool (*fn) (void *opaque, uint64_t addr), void *opaque)
{
  uint8_t filter[LEAF_FILTER_BITS / 8] = { 0 };
  struct cached_leaf *cl, *next;
  size_t i;

  for (i = 0; i < nr; ++i)
    filter[leaves[i] % LEAF_FILTER_BITS / 8] |= 1 << leaves[i] % 8;
  WITH_LOCK (&map->lock);
  WITH_CONSISTENT (map, map);
  for (cl = TAILQ_FIRST (&map->cache.lru); cl; cl = next) {
    next = TAILQ_NEXT (cl, lru);
    if (filter[cl->leaf % LEAF_FILTER_BITS / 8] >> cl->leaf % 8 & 1 &&
        has_pointer (cl, fn, opaque))
      leaf_cache_drop (&map->cache, cl);
  }
}

size_t
map_pending_bytes (struct map *map)
{
  return map->pending_bytes;
}
