/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "error.h"
#include "lock.h"
#include "map.h"
#include "table.h"

/* One block's new state.  A random write changes one block of a leaf, so a
 * leaf's changes are a small sorted vector, not an array of 64.
 */
struct block_change {
  uint8_t index;                /* in the leaf */
  uint8_t state;                /* MAP_HOLE or MAP_POINTER */
  uint8_t ptr[POINTER_LEN];
};

/* The changes of one txg to one leaf. */
struct leaf_changes {
  struct table_link link;
  struct layer *layer;          /* not owned */
  uint64_t leaf;
  bool all_holes;               /* before 'blocks': every block a hole */
  uint8_t nr, cap;
  struct block_change *blocks;  /* owned; ascending by index */
};

/* A row of pool.db, packed (length 0: there is no row). */
struct cached_leaf {
  struct table_link link;
  TAILQ_ENTRY (cached_leaf) lru;
  struct layer *layer;
  uint64_t leaf;
  uint16_t len;
  uint8_t data[];
};

struct map {
  struct meta *meta;            /* not owned; outlives the map */
  size_t cache_max;

  struct lock lock;             /* protects everything below */
  struct table changes[2];      /* by parity of the txg */
  unsigned open;
  struct table cache;
  TAILQ_HEAD (, cached_leaf) lru;
  size_t cache_bytes;
  uint64_t generation;          /* folds done */

  atomic_size_t pending_bytes;
};

struct map *
map_new (struct meta *meta, uint64_t budget_bytes)
{
  struct map *map = calloc (1, sizeof *map);

  if (map == NULL || table_init (&map->changes[0]) == -1 ||
      table_init (&map->changes[1]) == -1 || table_init (&map->cache) == -1) {
    map_free (map);
    return nbdedup_fail_null (ENOMEM, "no memory for the maps");
  }
  map->meta = meta;
  map->cache_max = budget_bytes;
  lock_init (&map->lock);
  TAILQ_INIT (&map->lru);
  return map;
}

static void
free_changes (void *opaque, struct table_link *l)
{
  struct leaf_changes *lc = table_entry (l, struct leaf_changes, link);
  struct map *map = opaque;

  map->pending_bytes -= sizeof *lc + 16 + lc->cap * sizeof *lc->blocks;
  free (lc->blocks);
  free (lc);
}

static void
free_cached (void *opaque, struct table_link *l)
{
  (void) opaque;
  free (table_entry (l, struct cached_leaf, link));
}

void
map_free (struct map *map)
{
  unsigned i;

  if (map == NULL)
    return;
  for (i = 0; i < 2; ++i)
    if (map->changes[i].buckets)
      table_visit (&map->changes[i], free_changes, map);
  if (map->cache.buckets)
    table_visit (&map->cache, free_cached, map);
  table_destroy (&map->changes[0]);
  table_destroy (&map->changes[1]);
  table_destroy (&map->cache);
  lock_destroy (&map->lock);
  free (map);
}

static uint64_t
leaf_hash (const struct layer *layer, uint64_t leaf)
{
  return table_mix (layer->id * UINT64_C (0x9e3779b97f4a7c15) + leaf);
}

static struct leaf_changes *
find_changes (struct table *t, struct layer *layer, uint64_t leaf)
{
  struct table_link *l;
  struct leaf_changes *lc;

  for (l = table_chain (t, leaf_hash (layer, leaf)); l; l = l->next) {
    lc = table_entry (l, struct leaf_changes, link);
    if (lc->layer == layer && lc->leaf == leaf)
      return lc;
  }
  return NULL;
}

static struct leaf_changes *
get_changes_locked (struct map *map, struct layer *layer, uint64_t leaf)
{
  struct table *t = &map->changes[map->open];
  struct leaf_changes *lc = find_changes (t, layer, leaf);

  assert_held (&map->lock);
  if (lc)
    return lc;
  lc = calloc (1, sizeof *lc);
  if (lc == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for a map change");
  lc->layer = layer;
  lc->leaf = leaf;
  table_insert (t, &lc->link, leaf_hash (layer, leaf));
  map->pending_bytes += sizeof *lc + 16;
  return lc;
}

/* Where index is, or would be inserted. */
static unsigned
change_position (const struct leaf_changes *lc, unsigned index)
{
  unsigned lo = 0, hi = lc->nr, mid;

  while (lo < hi) {
    mid = (lo + hi) / 2;
    if (lc->blocks[mid].index < index)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

static struct block_change *
find_change (const struct leaf_changes *lc, unsigned index)
{
  unsigned i = change_position (lc, index);

  return i < lc->nr && lc->blocks[i].index == index ? &lc->blocks[i] : NULL;
}

static int
grow_changes (struct map *map, struct leaf_changes *lc)
{
  unsigned cap = lc->cap ? lc->cap * 2 : 1;
  struct block_change *p;

  if (lc->nr < lc->cap)
    return 0;
  p = realloc (lc->blocks, cap * sizeof *p);
  if (p == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a map change");
  map->pending_bytes += (cap - lc->cap) * sizeof *p;
  lc->blocks = p;
  lc->cap = (uint8_t) cap;
  return 0;
}

static uint64_t
packed_addr (const uint8_t ptr[POINTER_LEN])
{
  struct pointer p;

  /* The size limits do not matter for an address. */
  if (pointer_unpack (ptr, BLOCK_SIZE_MAX, &p) == -1)
    return p.addr;
  return p.addr;
}

int
map_set (struct map *map, struct layer *layer, uint64_t block,
         const struct pointer *ptr, uint64_t *displaced)
{
  unsigned index = block % LEAF_BLOCKS, i;
  struct leaf_changes *lc;
  struct block_change *bc;
  int r = 0;

  WITH_LOCK (&map->lock);
  lc = get_changes_locked (map, layer, block / LEAF_BLOCKS);
  if (lc == NULL)
    return -1;
  i = change_position (lc, index);
  if (i < lc->nr && lc->blocks[i].index == index) {
    bc = &lc->blocks[i];
    if (bc->state == MAP_POINTER) {
      *displaced = packed_addr (bc->ptr);
      r = 1;
    }
  }
  else {
    if (grow_changes (map, lc) == -1)
      return -1;
    bc = &lc->blocks[i];
    memmove (bc + 1, bc, (lc->nr - i) * sizeof *bc);
    lc->nr++;
    bc->index = (uint8_t) index;
  }
  bc->state = ptr ? MAP_POINTER : MAP_HOLE;
  if (ptr)
    pointer_pack (ptr, bc->ptr);
  return r;
}

int
map_set_holes (struct map *map, struct layer *layer, uint64_t leaf,
               uint64_t displaced[LEAF_BLOCKS])
{
  struct leaf_changes *lc;
  int nr = 0;
  unsigned i;

  WITH_LOCK (&map->lock);
  lc = get_changes_locked (map, layer, leaf);
  if (lc == NULL)
    return -1;
  for (i = 0; i < lc->nr; ++i)
    if (lc->blocks[i].state == MAP_POINTER)
      displaced[nr++] = packed_addr (lc->blocks[i].ptr);
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
 * The cache of pool.db's leaves
 */

static struct cached_leaf *
find_cached_locked (struct map *map, struct layer *layer, uint64_t leaf)
{
  struct table_link *l;
  struct cached_leaf *cl;

  assert_held (&map->lock);
  for (l = table_chain (&map->cache, leaf_hash (layer, leaf)); l;
       l = l->next) {
    cl = table_entry (l, struct cached_leaf, link);
    if (cl->layer == layer && cl->leaf == leaf)
      return cl;
  }
  return NULL;
}

static size_t
cached_size (const struct cached_leaf *cl)
{
  return sizeof *cl + 16 + cl->len;
}

static void
drop_cached_locked (struct map *map, struct cached_leaf *cl)
{
  map->cache_bytes -= cached_size (cl);
  TAILQ_REMOVE (&map->lru, cl, lru);
  table_remove (&map->cache, &cl->link);
  free (cl);
}

static void
add_cached_locked (struct map *map, struct layer *layer, uint64_t leaf,
                   const uint8_t *buf, size_t len)
{
  struct cached_leaf *cl = find_cached_locked (map, layer, leaf);

  if (cl)
    drop_cached_locked (map, cl);
  if (map->cache_max == 0)
    return;
  cl = malloc (sizeof *cl + len);
  if (cl == NULL)
    return;                     /* a cache may forget */
  cl->layer = layer;
  cl->leaf = leaf;
  cl->len = (uint16_t) len;
  memcpy (cl->data, buf, len);
  table_insert (&map->cache, &cl->link, leaf_hash (layer, leaf));
  TAILQ_INSERT_TAIL (&map->lru, cl, lru);
  map->cache_bytes += cached_size (cl);
  while (map->cache_bytes > map->cache_max)
    drop_cached_locked (map, TAILQ_FIRST (&map->lru));
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
};

static int
get_block (const struct get *g, unsigned i, uint8_t state, const uint8_t *ptr)
{
  g->states[i] = state;
  if (state == MAP_POINTER)
    return pointer_unpack (ptr, g->layer->block_size, &g->ptrs[i]);
  return 0;
}

/* Fill in what a txg says about the blocks that are still MAP_INHERIT.
 * Returns how many are left, or -1.
 */
static int
get_from_changes (const struct get *g, const struct leaf_changes *lc)
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

static int
get_from_leaf (const struct get *g, const struct leaf *leaf)
{
  unsigned i;

  for (i = 0; i < g->nr; ++i) {
    if (g->states[i] != MAP_INHERIT)
      continue;
    if (get_block (g, i, leaf->state[g->first + i],
                   leaf->ptr[g->first + i]) == -1)
      return -1;
  }
  return 0;
}

/* 1: answered; 0: the leaf must be read ('*generation' as of now); -1. */
static int
get_from_memory (struct map *map, const struct get *g, uint64_t *generation)
{
  struct cached_leaf *cl;
  struct leaf leaf;
  unsigned i;
  int left;

  WITH_LOCK (&map->lock);
  for (i = 0; i < 2; ++i) {     /* the open txg first, then the folding */
    left = get_from_changes (g, find_changes (&map->changes[map->open ^ i],
                                              g->layer, g->leaf));
    if (left <= 0)
      return left == 0 ? 1 : -1;
  }
  *generation = map->generation;
  cl = find_cached_locked (map, g->layer, g->leaf);
  if (cl == NULL)
    return 0;
  TAILQ_REMOVE (&map->lru, cl, lru);
  TAILQ_INSERT_TAIL (&map->lru, cl, lru);
  if (leaf_unpack (cl->data, cl->len, &leaf) == -1)
    return -1;
  return get_from_leaf (g, &leaf) == -1 ? -1 : 1;
}

static int
get_from_meta (struct map *map, const struct get *g, uint64_t generation)
{
  struct meta_conn *c = meta_reader_get (map->meta);
  uint8_t buf[LEAF_LEN_MAX];
  struct leaf leaf;
  size_t len = 0;
  int r;

  r = meta_leaf_get (c, g->layer->branch, g->leaf, g->layer->seq, buf, &len);
  meta_reader_put (map->meta, c);
  if (r == -1 || leaf_unpack (buf, len, &leaf) == -1)
    return -1;
  {
    WITH_LOCK (&map->lock);
    if (map->generation == generation)
      add_cached_locked (map, g->layer, g->leaf, buf, len);
  }
  return get_from_leaf (g, &leaf);
}

int
map_get (struct map *map, struct layer *layer, uint64_t block, unsigned nr,
         uint8_t *states, struct pointer *ptrs)
{
  struct get g = {
    .leaf = block / LEAF_BLOCKS, .first = block % LEAF_BLOCKS, .nr = nr,
    .states = states, .ptrs = ptrs,
  };
  uint64_t generation;
  unsigned i;
  int r;

  assert (g.first + nr <= LEAF_BLOCKS);
  memset (states, MAP_INHERIT, nr);
  for (g.layer = layer; g.layer; g.layer = g.layer->parent) {
    r = get_from_memory (map, &g, &generation);
    if (r == -1 || (r == 0 && get_from_meta (map, &g, generation) == -1))
      return -1;
    /* What lies past the overlap does not show through. */
    for (i = 0; i < nr; ++i)
      if (states[i] == MAP_INHERIT &&
          (g.layer->parent == NULL || block + i >= g.layer->overlap))
        states[i] = MAP_HOLE;
    if (memchr (states, MAP_INHERIT, nr) == NULL)
      break;
  }
  return 0;
}

/*----------------------------------------------------------------------
 * The fold
 */

void
map_cut (struct map *map)
{
  WITH_LOCK (&map->lock);
  map->open ^= 1;
  assert (map->changes[map->open].nr_entries == 0);
}

struct collect {
  struct map_change *p;
  size_t nr;
};

static void
collect_change (void *opaque, struct table_link *l)
{
  struct leaf_changes *lc = table_entry (l, struct leaf_changes, link);
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
    struct table *t = &map->changes[map->open ^ 1];

    c.p = malloc ((t->nr_entries + 1) * sizeof *c.p);
    if (c.p == NULL)
      return nbdedup_fail (ENOMEM, "no memory for %zu changed leaves",
                           t->nr_entries);
    table_visit (t, collect_change, &c);
  }
  qsort (c.p, c.nr, sizeof *c.p, compare_changes);
  *changes = c.p;
  *nr = c.nr;
  return 0;
}

/* In a layer without a parent a hole is nothing: that keeps the rows of
 * trimmed volumes from existing.
 */
static void
normalise (const struct layer *layer, struct leaf *leaf)
{
  unsigned i;

  if (layer->parent)
    return;
  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (leaf->state[i] == MAP_HOLE)
      leaf->state[i] = MAP_INHERIT;
}

int
map_apply (const struct map_change *change, struct leaf *leaf,
           uint64_t displaced[LEAF_BLOCKS], unsigned *nr_displaced)
{
  const struct leaf_changes *lc = change->changes;
  struct leaf old = *leaf;
  int delta = 0;
  unsigned i;

  *nr_displaced = 0;
  apply (lc, leaf);
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    delta += (leaf->state[i] == MAP_POINTER) - (old.state[i] == MAP_POINTER);
    /* A block that the txg did not name keeps its reference. */
    if (old.state[i] == MAP_POINTER &&
        (lc->all_holes || find_change (lc, i)))
      displaced[(*nr_displaced)++] = packed_addr (old.ptr[i]);
  }
  normalise (change->layer, leaf);
  return delta;
}

static void
update_cached (void *opaque, struct table_link *l)
{
  struct leaf_changes *lc = table_entry (l, struct leaf_changes, link);
  struct map *map = opaque;
  struct cached_leaf *cl = find_cached_locked (map, lc->layer, lc->leaf);
  uint8_t buf[LEAF_LEN_MAX];
  struct leaf leaf;

  if (cl) {
    if (leaf_unpack (cl->data, cl->len, &leaf) == -1)
      drop_cached_locked (map, cl);
    else {
      apply (lc, &leaf);
      normalise (lc->layer, &leaf);
      add_cached_locked (map, lc->layer, lc->leaf, buf,
                         leaf_pack (&leaf, buf));
    }
  }
  free_changes (map, l);
}

void
map_fold_done (struct map *map)
{
  WITH_LOCK (&map->lock);
  struct table *t = &map->changes[map->open ^ 1];

  table_visit (t, update_cached, map);
  table_clear (t);
  map->generation++;
}

struct forget {
  struct map *map;
  struct layer *layer;
};

static void
forget_cached (void *opaque, struct table_link *l)
{
  struct cached_leaf *cl = table_entry (l, struct cached_leaf, link);
  struct forget *f = opaque;

  if (cl->layer == f->layer)
    drop_cached_locked (f->map, cl);
}

void
map_forget_layer (struct map *map, struct layer *layer)
{
  struct forget f = { map, layer };

  WITH_LOCK (&map->lock);
  table_visit (&map->cache, forget_cached, &f);
  map->generation++;            /* nor may a read under way bring it back */
}

size_t
map_pending_bytes (struct map *map)
{
  return map->pending_bytes;
}

size_t
map_cache_bytes (struct map *map)
{
  WITH_LOCK (&map->lock);
  return map->cache_bytes;
}
