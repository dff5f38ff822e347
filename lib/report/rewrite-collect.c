/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "core/engine.h"
#include "core/map.h"
#include "data/volume-types.h"
#include "report/rewrite-int.h"
#include "volume/volume.h"

/* For addresses. */
#define SORTER_MEMORY (UINT64_C (4) << 20)
/* Other commands run in between. */
#define LEAVES_AT_ONCE 256

static int
compare_addrs (const void *a, const void *b)
{
  const uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

  return x < y ? -1 : x > y;
}

struct volume *
rewrite_find (struct rewrite *w)
{
  struct volume *v = volumes_find_any (w->pool->volumes, w->args->name);

  assert_held (&w->pool->admin);
  if (v == NULL || w->volume_id == 0 ||
      (v->id == w->volume_id && v->is_snapshot == w->is_snapshot))
    return v;
  return nbdedup_fail_null (ENOENT, "%s was replaced meanwhile", w->args->name);
}

/* The pointers of the volume's next leaf from '*leaf' on, as it shows them: 1;
 * 0: there is none; -1.
 */
static int
next_leaf (struct rewrite *w, struct volume *v, uint64_t *leaf,
           uint8_t states[LEAF_BLOCKS], struct pointer ptrs[LEAF_BLOCKS])
{
  const uint64_t blocks = (v->size + v->block_size - 1) / v->block_size;
  const uint64_t end = (blocks + LEAF_BLOCKS - 1) / LEAF_BLOCKS;
  unsigned ticket, nr = LEAF_BLOCKS, i;
  int r;

  if (*leaf >= end)
    return 0;
  ticket = quiesce_enter (&w->pool->quiesce);
  r = map_next (w->pool->map, v->layer, *leaf, end - 1, leaf);
  if (r == 1) {
    assert (*leaf < end);
    if (blocks - *leaf * LEAF_BLOCKS < nr)
      nr = (unsigned) (blocks - *leaf * LEAF_BLOCKS);
    for (i = nr; i < LEAF_BLOCKS; ++i)
      states[i] = MAP_HOLE;
    if (map_get (w->pool->map, v->layer, *leaf * LEAF_BLOCKS, nr, states,
                 ptrs) == -1)
      r = -1;
  }
  quiesce_leave (&w->pool->quiesce, ticket);
  return r;
}

/* Of some leaves from '*leaf' on; 1; 0: that was all; -1. */
static int
collect_some (struct rewrite *w, uint64_t *leaf)
{
  struct pointer ptrs[LEAF_BLOCKS];
  uint8_t states[LEAF_BLOCKS];
  struct volume *v;
  unsigned n, i;
  int r = 1;

  WITH_LOCK (&w->pool->admin);
  v = rewrite_find (w);
  if (v == NULL)
    return -1;
  for (n = 0; n < LEAVES_AT_ONCE && r == 1; ++n, ++*leaf) {
    r = next_leaf (w, v, leaf, states, ptrs);
    for (i = 0; i < LEAF_BLOCKS && r == 1; ++i)
      if (states[i] == MAP_POINTER &&
          sorter_add (w->addrs, &ptrs[i].addr) == -1)
        return -1;
  }
  return r;
}

int
rewrite_next (struct rewrite *w)
{
  const uint64_t last = w->addr;
  const void *item;
  int r;

  do {
    r = sorter_next (w->addrs, &item);
    if (r == -1)
      return -1;
    w->done += r == 1;
    w->addr = r == 1 ? *(const uint64_t *) item : UINT64_MAX;
  } while (r == 1 && w->addr == last);
  return 0;
}

static int
look (void *opaque)
{
  return rewrite_go_on (opaque);
}

int
rewrite_collect (struct rewrite *w)
{
  uint64_t leaf = 0;
  int r;

  sorter_free (w->addrs);
  w->addrs = sorter_new (w->pool->path, sizeof (uint64_t), compare_addrs,
                         SORTER_MEMORY);
  w->addr = w->done = 0;
  if (w->addrs == NULL)
    return -1;
  sorter_set_look (w->addrs, look, w);
  do {
    r = collect_some (w, &leaf);
    if (r != -1 && rewrite_go_on (w) == -1)
      r = -1;
    pace_rest (&w->pace);
  } while (r == 1);
  return r == -1 || sorter_finish (w->addrs) == -1 ? -1 : rewrite_next (w);
}
