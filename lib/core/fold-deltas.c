/* SPDX-License-Identifier: BSD-3-Clause */

/* Step 2 of a fold, maps: pointers that replace others all over a map become
 * deltas of their areas (leaf-delta.h) instead of new rows of their leaves.
 * Once an area has enough of them, a fold merges them into the leaves, with the
 * room that its background work leaves.  An area whose deltas could not be
 * merged in time is full: the fold then writes leaves of it, each of which
 * takes its deltas away.
 *
 * Measured with blocks overwritten at random in a map of 5 million: the server
 * writes 11 KB for each instead of 47.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>

#include "base/array.h"
#include "base/log.h"
#include "base/mix.h"
#include "core/fold-int.h"
#include "disk/room.h"
#include "format/layer.h"
#include "format/leaf-delta.h"

/* A leaf with more new pointers, and those of an area in which more leaves
 * change, get new rows: these share their pages.
 */
#define POINTERS_MAX 8
#define CHANGED_LEAVES_MAX 12
/* Of a small map a fold writes all pages anyway, unless it changes few leaves.
 */
#define FEW_LEAVES 256
/* From so many on, and some more, an area's deltas are merged.  Each area has a
 * number of its own, so that not all areas of a map that is overwritten evenly
 * are merged at the same time.
 */
#define MERGE_DELTAS_MIN 56
#define MERGE_DELTAS_MORE 41
/* Pages that a merge changes: the rows of leaves keep their lengths. */
#define MERGE_PAGES (DELTA_LEAVES + ROOM_DELTA_PAGES)
/* Growth by one delta, alone in its row, in pages that are half empty. */
#define DELTA_ROOM_BYTES 96

/* What gives references back has reserved no room for deltas. */
int
fold_deltas_begin (struct fold *f, struct meta_conn *c)
{
  const uint64_t bytes = (uint64_t) f->nr_map_changes * POINTERS_MAX *
    DELTA_ROOM_BYTES;
  const int r = meta_has_deltas (c);

  f->areas.nr = 0;
  f->area_end = 0;
  f->deltas.layer = NULL;
  f->deltas.dirty = false;
  f->has_merged = false;
  f->with_deltas = r == 1 && !f->repairing && f->nr_map_changes > 0 &&
    (f->nr_map_changes <= FEW_LEAVES || !room_is_small (f->room)) &&
    fold_has_room (f, bytes / META_PAGE_BYTES + 1);
  return r == -1 ? -1 : 0;
}

static size_t
merge_deltas (const struct layer *layer, uint64_t area)
{
  return MERGE_DELTAS_MIN + mix_two (layer->id, area) % MERGE_DELTAS_MORE;
}

/* Does the present area have enough for a merge? */
static int
note_area (struct fold *f)
{
  const struct area *last = f->areas.nr > 0 ? &f->areas.p[f->areas.nr - 1]
                                            : NULL;
  const struct area area = { f->deltas.layer, f->deltas.area };

  if (f->deltas.len / DELTA_ENTRY_LEN < merge_deltas (area.layer, area.area) ||
      (last && last->layer == area.layer && last->area == area.area))
    return 0;
  return array_push (&f->areas.p, &f->areas.nr, area);
}

int
fold_flush_deltas (struct fold *f, struct meta_conn *c)
{
  const struct layer *layer = f->deltas.layer;

  if (f->deltas.dirty &&
      (note_area (f) == -1 ||
       meta_deltas_put (c, layer->branch, f->deltas.area, layer->seq,
                        f->deltas.buf, f->deltas.len) == -1))
    return -1;
  f->deltas.dirty = false;
  f->deltas.layer = NULL;
  return 0;
}

int
fold_deltas_look (struct fold *f, struct meta_conn *c, size_t i)
{
  const struct map_change *first = &f->map_changes[i], *mc = first;
  const struct map_change *end = f->map_changes + f->nr_map_changes;

  if (i < f->area_end)
    return 0;
  while (mc < end && mc->layer == first->layer &&
         mc->leaf / DELTA_LEAVES == first->leaf / DELTA_LEAVES)
    mc++;
  f->area_end = (size_t) (mc - f->map_changes);
  f->area_is_dense = f->area_end - i > CHANGED_LEAVES_MAX;
  return fold_flush_deltas (f, c);
}

/* Read the row of the change's area, if it is not there. */
static int
get_row (struct fold *f, struct meta_conn *c, const struct map_change *mc)
{
  const struct layer *layer = mc->layer;

  if (f->deltas.layer)
    return 0;
  f->deltas.layer = layer;
  f->deltas.area = mc->leaf / DELTA_LEAVES;
  return meta_deltas_get (c, layer->branch, f->deltas.area, layer->seq,
                          f->deltas.buf, &f->deltas.len) == -1
    ? -1
    : 0;
}

int
fold_put_deltas (struct fold *f, struct meta_conn *c,
                 const struct map_change *mc, unsigned nr_displaced)
{
  struct leaf_pointer pointers[POINTERS_MAX];
  unsigned nr;
  size_t len;

  if (!f->with_deltas || f->area_is_dense)
    return 0;
  nr = map_get_pointers (mc, pointers, POINTERS_MAX);
  if (nr == 0 || nr != nr_displaced) /* not each replaces a pointer */
    return 0;
  if (get_row (f, c, mc) == -1)
    return -1;
  assert (f->deltas.layer == mc->layer &&
          f->deltas.area == mc->leaf / DELTA_LEAVES);
  if (!deltas_are_valid (f->deltas.buf, f->deltas.len))
    return 0;
  len = deltas_add (f->deltas.buf, f->deltas.len, mc->leaf, pointers, nr);
  if (len == 0) /* it is full */
    return note_area (f);
  f->deltas.len = len;
  f->deltas.dirty = true;
  f->state.features_incompat |= FEATURE_INCOMPAT_DELTAS;
  return 1;
}

/* A repair must not fail because of deltas that it is about to delete. */
int
fold_repair_deltas (struct fold *f, struct meta_conn *c,
                    const struct map_change *mc)
{
  const struct meta_leaf_key key = {
    mc->layer->branch,
    mc->leaf / DELTA_LEAVES,
    mc->layer->seq,
  };
  int r = f->repairing ? meta_deltas_lose_invalid (c, &key) : 0;

  if (r != 1)
    return r;
  nbdedup_log (NBDEDUP_LOG_ERROR,
               "pool.db: the deltas of layer %" PRIu64 ", area %" PRIu64
               " are not valid: the blocks that these leaves have are lost, "
               "except for those that were written since",
               mc->layer->id, key.leaf);
  f->state.features_compat |= FEATURE_COMPAT_LOST;
  return 0;
}

bool
fold_has_merged (const struct fold *f)
{
  return f->has_merged;
}

int
fold_merge_deltas (struct fold *f, struct meta_conn *c)
{
  const struct area *a;

  /* There is no room; or moves have used it, and do not say how much. */
  if (f->background_rows == 0 || f->moved_leaves.nr > 0)
    return 0;
  for (a = f->areas.p;
       a < f->areas.p + f->areas.nr && f->background_pages >= MERGE_PAGES;
       ++a) {
    f->background_pages -= MERGE_PAGES;
    f->has_merged = true;
    if (meta_deltas_merge (c, a->layer->branch, a->area, a->layer->seq) == -1)
      return -1;
  }
  return 0;
}
