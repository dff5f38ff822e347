/* SPDX-License-Identifier: BSD-3-Clause */

/* What would come back if a volume were destroyed: the records whose every
 * reference is this volume's.
 *
 * Its pointers are counted by address in bounded memory: in passes over its
 * map, each of which keeps the lowest addresses that it has not yet dealt
 * with.
 */

#include <config.h>

#include <stdlib.h>

#include "check.h"
#include "error.h"
#include "pool.h"

struct own {
  uint64_t addr, count;
};

struct pass {
  struct layer *layer;
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

static int
count_leaf (void *opaque, uint64_t leaf_nr, uint64_t seq, const uint8_t *buf,
            size_t len)
{
  struct pass *p = opaque;
  struct pointer ptr;
  struct leaf leaf;
  unsigned i;

  (void) leaf_nr;
  if (seq != p->layer->seq)
    return 0;
  if (leaf_unpack (buf, len, &leaf) == -1)
    return -1;
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (leaf.state[i] != MAP_POINTER)
      continue;
    if (pointer_unpack (leaf.ptr[i], p->layer->block_size, &ptr) == -1)
      return -1;
    add_own (p, ptr.addr);
  }
  return 0;
}

/* Add the sectors of the pass's records that have no other reference. */
static int
add_sectors (struct nbdedup_pool *pool, struct meta_conn *c,
             const struct pass *p, uint64_t *sectors)
{
  struct blob row CLEANUP_BLOB = { NULL };
  uint64_t group;
  struct record r;
  size_t i = 0, off;
  int n;

  while (i < p->nr) {
    group = p->own[i].addr / RECORD_GROUP_SECTORS;
    if (meta_record_get (c, group, &row) == -1)
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

int
volume_freed_bytes (struct nbdedup_pool *pool, const char *name,
                    uint64_t *bytes)
{
  struct volume *v = volumes_find (pool->volumes, name);
  struct pass p = { .high = UINT64_MAX };
  struct meta_conn *c;
  uint64_t sectors = 0;
  int r;

  if (v == NULL || pool_sync (pool) == -1)
    return -1;
  p.layer = v->layer;
  p.max = pool->settings.ddt_cache_bytes / 16 / sizeof *p.own;
  p.own = malloc (p.max * sizeof *p.own);
  if (p.own == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  c = meta_reader_get (pool->meta);
  r = meta_freeze (c);
  while (r == 0) {
    p.nr = 0;
    r = meta_leaf_scan (c, v->layer->branch, 0, count_leaf, &p);
    if (r == 0) {
      compact (&p);
      r = add_sectors (pool, c, &p, &sectors);
    }
    if (p.high == UINT64_MAX)
      break;
    p.low = p.high + 1;
    p.high = UINT64_MAX;
  }
  meta_unfreeze (c);
  meta_reader_put (pool->meta, c);
  free (p.own);
  *bytes = sectors * pool->sector_bytes;
  return r;
}
