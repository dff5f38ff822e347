/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "core/fold-ahead.h"
#include "core/fold-int.h"

/* True of a fold between its steps.  It has no lock: it belongs to the folding
 * thread.
 *
 *  (1) The changes ascend, each address and each leaf once.
 *
 *  (2) A record that is gone was in pool.db, and is pinned there, or was a NEW
 *      one, which is then not inserted.
 *
 *  (3) The state is that of the next fold, or still that of the last one; no
 *      ID is used twice.
 *
 *  (4) A layer knows its delta.
 *
 * Checking (1) and (4) visits all changes.
 */
static void
assert_changes (const struct fold *f)
{
  const struct layer_delta *ld = f->layers;
  const struct map_change *mc = f->map_changes;
  size_t i;

  for (i = 1; i < f->nr_changes; ++i)
    assert (f->changes[i - 1].addr < f->changes[i].addr);
  for (i = 1; i < f->nr_map_changes; ++i)
    assert (mc[i - 1].layer->id < mc[i].layer->id ||
            (mc[i - 1].layer == mc[i].layer && mc[i - 1].leaf < mc[i].leaf));
  for (i = 0; i < f->nr_layers; ++i)
    assert (ld[i].layer->delta_index == i);
}

static void
fold_assert_consistent (const struct fold *f)
{
  assert (f->segment_sectors * f->sector_bytes == SEGMENT_BYTES);
  assert (f->unlinked.nr <= f->nr_gone);
  assert (f->nr_gone - f->unlinked.nr + f->inserted.nr <=
          f->nr_changes + f->nr_added);
  assert (f->state.fold - f->base.fold <= 1);
  assert (f->state.next_id >= f->base.next_id);
  assert (f->state.sector_bytes == f->base.sector_bytes);
  if (NBDEDUP_EXPENSIVE_ASSERTS)
    assert_changes (f);
}

struct fold *
fold_new (const struct txg_parts *parts, struct room *room,
          const struct meta_state *state)
{
  struct fold *f = calloc (1, sizeof *f);

  if (f == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for a fold");
  f->parts = parts;
  f->room = room;
  f->base = f->state = *state;
  f->sector_bytes = state->sector_bytes;
  f->segment_sectors = SEGMENT_BYTES / state->sector_bytes;
  if (map_get_changes (parts->map, &f->map_changes, &f->nr_map_changes) == -1 ||
      ddt_get_changes (parts->ddt, &f->changes, &f->nr_changes) == -1 ||
      fold_moves_begin (f) == -1) {
    fold_free (f);
    return NULL;
  }
  fold_assert_consistent (f);
  return f;
}

void
fold_free (struct fold *f)
{
  if (f == NULL)
    return;
  free (f->map_changes);
  free (f->changes);
  free (f->displaced.p);
  free (f->areas.p);
  free (f->layers);
  free (f->gone);
  free (f->unlinked.p);
  free (f->inserted.p);
  free (f->index);
  free (f->reached.p);
  free (f->move_refs);
  free (f->added);
  free (f->moved_leaves.p);
  free (f);
}

struct meta_state *
fold_state (struct fold *f)
{
  return &f->state;
}

struct index_merges *
fold_merges (struct fold *f)
{
  return &f->merges;
}

void
fold_set_features (struct fold *f, uint64_t features_compat)
{
  f->base.features_compat = f->state.features_compat = features_compat;
}

void
fold_set_background (struct fold *f, unsigned rows, uint64_t pages)
{
  f->background_rows = rows;
  f->background_pages = pages;
}

void
fold_set_merge_pages (struct fold *f, uint64_t pages)
{
  f->merge_pages = pages;
}

unsigned
fold_background_leaves (const struct fold *f)
{
  const uint64_t n = f->background_pages / ROOM_HOLES_PAGES;

  return n < f->background_rows ? (unsigned) n : f->background_rows;
}

bool
fold_is_inconsistent (const struct fold *f)
{
  return f->inconsistent;
}

void
fold_set_inconsistent (struct fold *f)
{
  f->inconsistent = true;
}

void
fold_set_repairing (struct fold *f, bool repairing)
{
  f->repairing = repairing ||
    f->base.features_compat & FEATURE_COMPAT_RECORDS_LOST;
}

int
fold_note_contradiction (struct fold *f)
{
  char text[512];

  if (f->repairing) {
    if (f->nr_contradictions++ == 0)
      nbdedup_log (NBDEDUP_LOG_WARNING, "%s", nbdedup_error ());
    return 0;
  }
  snprintf (text, sizeof text, "%s", nbdedup_error ());
  f->inconsistent = true;
  return nbdedup_fail (EIO, "%s: run nbdedup check --repair", text);
}

bool
fold_index_is_damaged (struct fold *f)
{
  return f->index_damaged;
}

bool
fold_copies_are_damaged (struct fold *f)
{
  bool failed = f->copies_failed;

  f->copies_failed = false;
  f->copies_damaged |= failed;
  return failed;
}

bool
fold_index_is_in_place (const struct fold *f, bool before)
{
  return f->repairing ||
    (f->has_runs ? index_runs_count (&f->runs) > INDEX_RUNS / 2 : before);
}

uint64_t
fold_freed_sectors (const struct fold *f)
{
  uint64_t sectors = 0;
  size_t i;

  for (i = 0; i < f->nr_gone; ++i)
    sectors += f->gone[i].nr_sectors;
  return sectors;
}

unsigned
fold_background_done (const struct fold *f)
{
  return f->background_done;
}

bool
fold_has_more (struct fold *f)
{
  return f->has_more;
}

/*----------------------------------------------------------------------
 * Step 2: maps
 */

int
fold_add_displaced (struct fold *f, const uint64_t *addrs, size_t nr)
{
  size_t i;

  for (i = 0; i < nr; ++i)
    if (array_push (&f->displaced.p, &f->displaced.nr, addrs[i]) == -1)
      return -1;
  return 0;
}

struct layer_delta *
fold_delta (struct fold *f, struct layer *layer)
{
  const unsigned i = layer->delta_index;

  if (i < f->nr_layers && f->layers[i].layer == layer)
    return &f->layers[i];
  if (array_push (&f->layers, &f->nr_layers,
                  (struct layer_delta) { .layer = layer }) == -1)
    return NULL;
  layer->delta_index = (unsigned) (f->nr_layers - 1);
  return &f->layers[layer->delta_index];
}

int
fold_put_leaf (struct meta_conn *c, struct layer *layer, uint64_t leaf_nr,
               const struct leaf *leaf, bool exists)
{
  uint8_t buf[LEAF_LEN_MAX];
  size_t len = leaf_pack (leaf, buf);

  if (len > 0)
    return meta_leaf_put (c, layer->branch, leaf_nr, layer->seq, buf, len);
  return exists ? meta_leaf_delete (c, layer->branch, leaf_nr, layer->seq) : 0;
}

/* The row exists and is invalid although its checksums match.  A repair must
 * not fail because of damage that it is about to repair; it does the same with
 * such leaves that this fold does not write (judge_leaf).
 */
static int
read_leaf (struct fold *f, const struct map_change *mc, const uint8_t *buf,
           size_t len, struct leaf *leaf)
{
  if (leaf_unpack (buf, len, leaf) == 0)
    return 0;
  if (!f->repairing)
    return -1;
  nbdedup_log (NBDEDUP_LOG_ERROR,
               "pool.db: %s: leaf %" PRIu64 " of layer %" PRIu64
               " is lost, except for the blocks that were written since",
               nbdedup_error (), mc->leaf, mc->layer->id);
  memset (leaf, 0, sizeof *leaf);
  memset (leaf->state, MAP_LOST, sizeof leaf->state);
  f->state.features_compat |= FEATURE_COMPAT_LOST;
  return 0;
}

static int
fold_leaf (struct fold *f, struct meta_conn *c, const struct map_change *mc)
{
  uint64_t displaced[LEAF_BLOCKS];
  uint8_t buf[LEAF_LEN_MAX];
  struct layer *layer = mc->layer;
  struct layer_delta *ld;
  struct leaf leaf, below;
  int found, pointers, blocks, r;
  unsigned nr;
  size_t len = 0;

  if (fold_repair_deltas (f, c, mc) == -1)
    return -1;
  found = meta_leaf_get (c, layer->branch, mc->leaf, layer->seq, buf, &len);
  if (found == -1 || read_leaf (f, mc, buf, len, &leaf) == -1)
    return -1;
  if (map_needs_below (mc, &leaf)) {
    if (map_get_below (f->parts->map, c, layer, mc->leaf, &below) == -1)
      return -1;
  }
  else /* no block's count depends on it */
    memset (below.state, MAP_HOLE, sizeof below.state);
  map_apply (mc, &leaf, &below, displaced, &nr, &pointers, &blocks);
  if (memchr (leaf.state, MAP_LOST, sizeof leaf.state) != NULL)
    f->state.features_compat |= FEATURE_COMPAT_LOST;
  ld = fold_delta (f, layer);
  if (ld == NULL || fold_add_displaced (f, displaced, nr) == -1)
    return -1;
  ld->pointers += pointers;
  ld->blocks += blocks;
  if (layer_is_pushed (layer))
    return fold_push_leaf (f, c, layer, mc->leaf, &leaf, found);
  r = found ? fold_put_deltas (f, c, mc, nr) : 0;
  if (r != 0)
    return r == 1 ? 0 : -1;
  if (fold_flush_deltas (f, c) == -1)
    return -1;
  return fold_put_leaf (c, layer, mc->leaf, &leaf, found);
}

/* Update the layers' counters; delete a reaped layer's row. */
static int
fold_layers (struct fold *f, struct meta_conn *c)
{
  struct layer *parent;
  struct layer_delta *ld;
  struct meta_layer l;
  size_t i;

  for (i = 0; i < f->nr_layers; ++i) {
    ld = &f->layers[i];
    parent = ld->layer->parent;
    if (ld->reaped) {
      assert (ld->layer->dying);
      if (meta_layer_delete (c, ld->layer->id) == -1)
        return -1;
      continue;
    }
    l = (struct meta_layer) {
      .id = ld->layer->id,
      .branch = ld->layer->branch,
      .seq = ld->layer->seq,
      .parent = parent && !ld->layer->dying ? parent->id : 0,
      .overlap = ld->layer->overlap,
      .block_size = ld->layer->block_size,
      .dying = ld->layer->dying,
      .pointers = layer_count (ld->layer->pointers, ld->pointers),
      .blocks = layer_count (ld->layer->blocks, ld->blocks),
    };
    if (meta_layer_put (c, &l) == -1)
      return -1;
  }
  return 0;
}

/*----------------------------------------------------------------------*/

void
fold_rolled_back (struct fold *f)
{
  size_t i;

  for (i = 0; i < f->nr_gone; ++i)
    ddt_revive (f->parts->ddt, f->gone[i].addr);
  f->nr_gone = 0;
}

/* Reset the results of a failed attempt. */
static void
reset (struct fold *f)
{
  size_t i;

  assert (f->nr_gone == 0); /* fold_rolled_back */
  for (i = 0; i < f->unlinked.nr; ++i)
    space_committed (f->parts->space, f->unlinked.p[i]);
  f->displaced.nr = f->unlinked.nr = f->inserted.nr = f->reached.nr = 0;
  f->nr_layers = f->nr_index = 0;
  f->nr_added = f->moved_leaves.nr = 0;
  f->has_more = f->looked_at_copies = f->inconsistent = false;
  f->has_runs = f->index_damaged = false;
  f->background_done = 0;
  f->nr_contradictions = 0;
  f->state = f->base;
  f->merges = *f->parts->merges;
  fold_assert_consistent (f);
}

/* Merges move so many times the entries that the fold adds: more than the four
 * times that a level needs to end its merge before the next one is due.
 */
#define MERGE_FACTOR 6
/* And so many more, for folds that add few. */
#define MERGE_ENTRIES_MIN 1024
/* A fold without any changes has the time to end merges. */
#define MERGE_ENTRIES_IDLE (1u << 18)
/* Entries for each page that merges may write: half of what a page holds, as
 * each step also changes pages at its ends.
 */
#define MERGE_ENTRIES_PER_PAGE (META_PAGE_BYTES / INDEX_ENTRY_LEN / 2)
/* Levels that usually have a merge under way, while clients write. */
#define MERGE_LEVELS 3

/* Changes of maps or counts are those of clients, and of background work. */
static bool
is_idle (const struct fold *f)
{
  return f->nr_changes == 0 && f->nr_map_changes == 0;
}

/* How many entries each merge moves, for so many changes of the index. */
static uint64_t
nr_to_merge (const struct fold *f, uint64_t nr_changes)
{
  return is_idle (f) ? MERGE_ENTRIES_IDLE
                     : nr_changes * MERGE_FACTOR + MERGE_ENTRIES_MIN;
}

uint64_t
fold_wanted_merge_pages (const struct fold *f)
{
  uint64_t nr = nr_to_merge (f, f->nr_changes);

  if (!is_idle (f))
    nr = (nr + INDEX_STEP_ENTRIES) * MERGE_LEVELS;
  else if (!fold_index_is_merging (f->parts->merges))
    return 0;
  return nr / MERGE_ENTRIES_PER_PAGE + 1;
}

bool
fold_has_room (const struct fold *f, uint64_t pages)
{
  return room_check (f->room, pages) == 0 ||
    (space_settle (f->parts->space) && room_check (f->room, pages) == 0);
}

/* The file system has no room for a run of what the fold removes.  The fold
 * removes it in place then, and while the index is repaired: a removal of what
 * is not there would be a new error behind the repair.
 */
static bool
is_short_of_room (const struct fold *f)
{
  uint64_t removed = 0;
  size_t i;

  for (i = 0; i < f->nr_index; ++i)
    removed += f->index[i].removed;
  return removed > 0 &&
    !fold_has_room (f, removed * INDEX_ENTRY_LEN / META_PAGE_BYTES * 2 + 1);
}

static int
fold_index_tables (struct fold *f, struct meta_conn *c)
{
  /* A fold that has nothing to do with the index does not meet its damage. */
  if (f->nr_index == 0 && !fold_index_is_merging (&f->merges))
    return 0;
  if (fold_index (c, f->index, f->nr_index, &f->state.index_entries, &f->merges,
                  f->repairing || is_short_of_room (f)) == -1 ||
      fold_index_merge (c, &f->merges, nr_to_merge (f, f->nr_index),
                        f->merge_pages * MERGE_ENTRIES_PER_PAGE,
                        f->state.index_entries) == -1)
    return -1;
  f->has_runs = true;
  return meta_index_runs (c, &f->runs);
}

/* Maps, records and counts: what threads read ahead of. */
static int
fold_data (struct fold *f, struct meta_conn *c)
{
  size_t i;

  if (fold_deltas_begin (f, c) == -1)
    return -1;
  for (i = 0; i < f->nr_map_changes; ++i) {
    if (fold_deltas_look (f, c, i) == -1 ||
        fold_leaf (f, c, &f->map_changes[i]) == -1)
      return -1;
    fold_ahead_look (f, i + 1);
  }
  return fold_flush_deltas (f, c) == -1 || fold_background (f, c) == -1 ||
      fold_moves (f, c) == -1 || fold_merge_deltas (f, c) == -1 ||
      fold_layers (f, c) == -1
    ? -1
    : fold_records (f, c);
}

int
fold_write_tables (struct fold *f, struct meta_conn *c, bool with_index)
{
  int r;

  reset (f);
  fold_ahead_begin (f);
  r = fold_data (f, c);
  fold_ahead_end (f);
  if (r == -1 || fold_copies (f, c) == -1)
    return -1;
  if (with_index && fold_index_tables (f, c) == -1) {
    f->index_damaged = meta_is_damaged (c);
    return -1;
  }
  if (f->inserted.nr > 0)
    notes_new_records (f->parts->notes);
  f->state.fold++;
  fold_assert_consistent (f);
  return 0;
}

/*----------------------------------------------------------------------
 * Step 3
 */

/* No thread can reach the dead records any more: give their space back, unless
 * a reader keeps them.
 */
static void
release_gone (struct fold *f)
{
  const struct txg_parts *parts = f->parts;
  CLEANUP_FREE struct space_freed *kept = NULL;
  size_t nr_kept, i;
  bool keep;

  kept = space_take_kept (parts->space, &nr_kept);
  keep = space_keep (parts->space, f->gone, f->nr_gone);
  if (f->nr_gone == 0 && nr_kept == 0)
    return;
  quiesce_wait (parts->quiesce);
  for (i = 0; i < nr_kept; ++i)
    parts->forget_record (parts->opaque, kept[i].addr);
  for (i = 0; i < f->nr_gone; ++i) {
    parts->forget_record (parts->opaque, f->gone[i].addr);
    ddt_forget (parts->ddt, f->gone[i].addr);
  }
  space_release (parts->space, kept, nr_kept);
  if (!keep)
    space_release (parts->space, f->gone, f->nr_gone);
}

static void
note_copies (struct fold *f)
{
  struct copies *copies = f->parts->copies;

  if (f->looked_at_copies) {
    copies->under_way = f->copies_wanted;
    copies->cursor = f->copies_cursor;
    if (f->copies_cursor == 0)
      copies->done = f->copies_wanted;
  }
  if (f->reached.nr > 0)
    f->parts->reached (f->parts->opaque, f->reached.p, f->reached.nr);
}

void
fold_finish (struct fold *f)
{
  const struct txg_parts *parts = f->parts;
  struct layer_delta *ld;
  size_t i;

  fold_assert_consistent (f);
  assert (f->state.fold == f->base.fold + 1);
  for (i = 0; i < f->nr_layers; ++i) {
    ld = &f->layers[i];
    ld->layer->pointers = layer_count (ld->layer->pointers, ld->pointers);
    ld->layer->blocks = layer_count (ld->layer->blocks, ld->blocks);
    if (ld->has_cursor)
      ld->layer->cursor = ld->cursor;
    if (ld->pass_done)
      ld->layer->pass_done = true;
  }
  *parts->merges = f->merges;
  if (f->has_runs)
    ddt_set_runs (parts->ddt, &f->runs);
  ddt_fold_done (parts->ddt, f->state.index_entries);
  map_fold_done (parts->map);
  fold_moves_committed (f);
  for (i = 0; i < f->nr_layers; ++i) {
    ld = &f->layers[i];
    if (ld->reaped) {
      map_forget_layer (parts->map, ld->layer);
      parts->layer_gone (parts->opaque, ld->layer);
    }
  }
  for (i = 0; i < f->inserted.nr; ++i)
    space_committed (parts->space, f->inserted.p[i]);
  note_copies (f);
  if (f->nr_contradictions > 1)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "pool.db: %" PRIu64 " more such "
                 "contradictions",
                 f->nr_contradictions - 1);
  release_gone (f);
  fold_moves_finish (f);
}
