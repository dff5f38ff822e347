/* SPDX-License-Identifier: BSD-3-Clause */

/* What would come back if a volume or snapshot were destroyed: the records
 * whose every reference is given back.
 *
 * First the fates of all layers without those names: which die, which would
 * merge with their only child.  Of the first all pointers go; of the second
 * those that the child, or whatever that merges with in turn, does not show.
 * (What is dying or merging already counts: it comes back as well.)
 *
 * Then these pointers are counted by address in bounded memory: in passes
 * over the maps, each of which keeps the lowest addresses that have not been
 * dealt with.
 */

#include <config.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "error.h"
#include "pool.h"
#include "volume-int.h"

/* A layer that loses some or all of its references. */
struct loser {
  struct layer *layer;
  struct layer *child;          /* NULL: it dies; else it merges with it */
};

struct own {
  uint64_t addr, count;
};

struct pass {
  struct meta_conn *c;
  struct loser *losers;         /* owned; ascending by branch, seq */
  size_t nr_losers;
  struct loser *first;          /* of the branch that is scanned */
  size_t nr_first;
  uint64_t low, high;           /* addresses of this pass, inclusive */
  struct own *own;              /* owned */
  size_t nr, max;
};

static int
compare_own (const void *a, const void *b)
{
  const struct own *x = a, *y = b;

  return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/* Sort and add up. */
static void
compact (struct pass *p)
{
  size_t i, n = 0;

  if (p->nr == 0)
    return;
  qsort (p->own, p->nr, sizeof *p->own, compare_own);
  for (i = 1; i < p->nr; ++i) {
    if (p->own[i].addr == p->own[n].addr)
      p->own[n].count += p->own[i].count;
    else
      p->own[++n] = p->own[i];
  }
  p->nr = n + 1;
}

static void
add_own (struct pass *p, uint64_t addr)
{
  if (addr < p->low || addr > p->high)
    return;
  if (p->nr == p->max) {
    compact (p);
    if (p->nr > p->max / 2) {
      p->nr = p->max / 2;       /* the rest is another pass's */
      p->high = p->own[p->nr - 1].addr;
      if (addr > p->high)
        return;
    }
  }
  p->own[p->nr++] = (struct own) { addr, 1 };
}

/* Does anything above a layer keep its block from being seen? */
static int
mark_hidden (struct pass *p, const struct loser *loser, uint64_t leaf_nr,
             bool hidden[LEAF_BLOCKS])
{
  uint8_t buf[LEAF_LEN_MAX];
  struct layer *l = loser->child;
  struct leaf leaf;
  unsigned i;
  size_t len;
  int r;

  for (;;) {
    len = 0;
    r = meta_leaf_get (p->c, l->branch, leaf_nr, l->seq, buf, &len);
    if (r == -1 || leaf_unpack (buf, len, &leaf) == -1)
      return -1;
    for (i = 0; i < LEAF_BLOCKS; ++i)
      if (leaf.state[i] != MAP_INHERIT ||
          leaf_nr * LEAF_BLOCKS + i >= l->overlap)
        hidden[i] = true;
    if (l->sim_child == NULL)
      return 0;
    l = l->sim_child;
  }
}

static int
count_leaf (void *opaque, uint64_t leaf_nr, uint64_t seq, const uint8_t *buf,
            size_t len)
{
  struct pass *p = opaque;
  bool gone[LEAF_BLOCKS] = { false };
  struct loser *loser = NULL;
  struct pointer ptr;
  struct leaf leaf;
  unsigned i;
  size_t j;

  for (j = 0; j < p->nr_first && loser == NULL; ++j)
    if (p->first[j].layer->seq == seq)
      loser = &p->first[j];
  if (loser == NULL)
    return 0;
  if (leaf_unpack (buf, len, &leaf) == -1)
    return -1;
  if (loser->child == NULL)
    memset (gone, true, sizeof gone);
  else if (mark_hidden (p, loser, leaf_nr, gone) == -1)
    return -1;
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (leaf.state[i] != MAP_POINTER || !gone[i])
      continue;
    if (pointer_unpack (leaf.ptr[i], loser->layer->block_size, &ptr) == -1)
      return -1;
    add_own (p, ptr.addr);
  }
  return 0;
}

/* One pass over the branches in which layers lose something. */
static int
count_losers (struct pass *p)
{
  size_t i, j;
  int r = 0;

  for (i = 0; i < p->nr_losers && r == 0; i = j) {
    for (j = i + 1; j < p->nr_losers &&
           p->losers[j].layer->branch == p->losers[i].layer->branch; ++j)
      ;
    p->first = p->losers + i;
    p->nr_first = j - i;
    r = meta_leaf_scan (p->c, p->first->layer->branch, 0, count_leaf, p);
  }
  return r;
}

/* Add the sectors of the pass's records that have no other reference. */
static int
add_sectors (struct nbdedup_pool *pool, const struct pass *p,
             uint64_t *sectors)
{
  struct blob row CLEANUP_BLOB = { NULL };
  uint64_t group;
  struct record r;
  size_t i = 0, off;
  int n;

  while (i < p->nr) {
    group = p->own[i].addr / RECORD_GROUP_SECTORS;
    if (meta_record_get (p->c, group, &row) == -1)
      return -1;
    for (off = 0; off < row.len && i < p->nr; off += (size_t) n) {
      n = record_unpack (group, row.p + off, row.len - off, &r);
      if (n == -1)
        return -1;
      while (i < p->nr && p->own[i].addr < r.ptr.addr)
        i++;
      if (i < p->nr && p->own[i].addr == r.ptr.addr) {
        if (p->own[i].count == r.refcount)
          *sectors += sectors_of (r.ptr.psize, pool->sector_bytes);
        i++;
      }
    }
    while (i < p->nr && p->own[i].addr / RECORD_GROUP_SECTORS == group)
      i++;
  }
  return 0;
}

/*----------------------------------------------------------------------
 * Fates
 */

/* The layers as they would be; a layer that dies has sim_names of ~0. */
#define DEAD UINT_MAX

static void
simulate_deaths (struct volumes *vs)
{
  struct layer *l, *parent;
  bool again = true;
  size_t i;

  while (again) {
    again = false;
    for (i = vs->layers.nr; i-- > 0; ) {
      l = vs->layers.p[i];
      if (l->gone || l->sim_names == DEAD || l->sim_names > 0 ||
          l->sim_children > 0)
        continue;
      l->sim_names = DEAD;
      parent = l->parent;
      if (parent)
        parent->sim_children--;
      again = true;
    }
  }
}

static int
collect_losers (struct volumes *vs, struct pass *p)
{
  struct layer *l, *parent;
  size_t i;

  p->losers = malloc ((vs->layers.nr + 1) * sizeof *p->losers);
  if (p->losers == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    parent = l->parent;
    if (!l->gone && l->sim_names != DEAD && parent &&
        parent->sim_names == 0 && parent->sim_children == 1)
      parent->sim_child = l;
  }
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (!l->gone && (l->sim_names == DEAD || l->sim_child))
      p->losers[p->nr_losers++] = (struct loser) { l, l->sim_child };
  }
  return 0;
}

static int
compare_losers (const void *a, const void *b)
{
  const struct layer *x = ((const struct loser *) a)->layer;
  const struct layer *y = ((const struct loser *) b)->layer;

  if (x->branch != y->branch)
    return x->branch < y->branch ? -1 : 1;
  return x->seq < y->seq ? -1 : x->seq > y->seq;
}

/* Without the names of 'v' (and its snapshots). */
static int
find_losers (struct volumes *vs, struct volume *v, struct pass *p)
{
  struct layer *l;
  size_t i;
  int r;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    l->sim_names = l->dying ? DEAD : l->nr_names;
    l->sim_children = l->nr_children;
    l->sim_child = NULL;
  }
  v->layer->sim_names--;
  for (i = 0; i < v->snapshots.nr; ++i)
    v->snapshots.p[i]->layer->sim_names--;
  simulate_deaths (vs);
  r = collect_losers (vs, p);
  if (r == 0 && p->nr_losers > 0)
    qsort (p->losers, p->nr_losers, sizeof *p->losers, compare_losers);
  return r;
}

int
volume_freed_bytes (struct nbdedup_pool *pool, struct volume *v,
                    uint64_t *bytes)
{
  struct pass p = { .high = UINT64_MAX };
  uint64_t sectors = 0;
  int r;

  if (pool_sync (pool) == -1 || find_losers (pool->volumes, v, &p) == -1)
    return -1;
  p.max = pool->settings.ddt_cache_bytes / 16 / sizeof *p.own;
  p.own = malloc (p.max * sizeof *p.own);
  if (p.own == NULL) {
    free (p.losers);
    return nbdedup_fail (ENOMEM, "no memory");
  }
  p.c = meta_reader_get (pool->meta);
  r = meta_freeze (p.c);
  while (r == 0) {
    p.nr = 0;
    r = count_losers (&p);
    if (r == 0) {
      compact (&p);
      r = add_sectors (pool, &p, &sectors);
    }
    if (p.high == UINT64_MAX)
      break;
    p.low = p.high + 1;
    p.high = UINT64_MAX;
  }
  meta_unfreeze (p.c);
  meta_reader_put (pool->meta, p.c);
  free (p.own);
  free (p.losers);
  *bytes = sectors * pool->sector_bytes;
  return r;
}
