/* SPDX-License-Identifier: BSD-3-Clause */

/* A fold's background work on layers, a bounded part each time (merge.h
 * describes a whole merge):
 *
 *   reap   delete a dying layer's rows, and drop their references
 *   trim   delete blocks of a merging layer that its child does not show
 *   push   move a merging child's rows to the layer
 *
 * Each layer has a cursor: leaves below it are done.  The cursor is only in
 * memory; after a crash the work starts again, and finds less to do.  One
 * scan reaps all dying layers of a branch, because their rows are interleaved.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "core/fold-int.h"
#include "format/layer.h"

/* Rows of other layers that one fold may skip.  With the rows that it works on
 * (txg_parts) they bound its length.
 */
#define SCAN_ROWS 65536

struct budget {
  unsigned work, scan;
  uint64_t pages;
};

/* A row to work on after the scan: a scan must not write its table. */
struct leaf_row {
  struct layer *layer;
  uint64_t leaf;
  struct leaf content;
};

struct scan {
  struct layer **layers; /* of one branch, ascending by seq */
  bool push;             /* rows move to another layer */
  size_t nr;
  struct budget *budget;
  struct leaf_row *rows;
  size_t nr_rows;
  bool stopped;
  uint64_t stopped_at; /* leaf */
};

static int
compare_layers (const void *a, const void *b)
{
  const struct layer *x = *(struct layer *const *) a;
  const struct layer *y = *(struct layer *const *) b;

  return layer_order (x->branch, x->seq, y->branch, y->seq);
}

static struct layer *
find_seq (struct layer **layers, size_t nr, uint64_t seq)
{
  size_t i = array_position (nr, k, layers[k]->seq < seq);

  return i < nr && layers[i]->seq == seq ? layers[i] : NULL;
}

/* Pages that the work on a row touches, ROOM_HOLES_PAGES at most.  A row that
 * moves displaces what the other layer has there, which is not known yet.
 */
static int
row_pages (const struct scan *s, const struct leaf_row *row, uint64_t *pages)
{
  struct room_touched touched = { .leaves = 1, .areas = 1 };
  struct pointer ptr;
  unsigned i;

  *pages = ROOM_HOLES_PAGES;
  if (s->push)
    return 0;
  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (row->content.state[i] == MAP_POINTER) {
      if (pointer_unpack (row->content.ptr[i], row->layer->block_size, &ptr) ==
          -1)
        return -1;
      room_touch_lost (&touched, ptr.addr);
    }
  if (room_touched_pages (&touched) < *pages)
    *pages = room_touched_pages (&touched);
  return 0;
}

static int
add_row (struct scan *s, struct layer *layer, uint64_t leaf_nr,
         const uint8_t *buf, size_t len)
{
  struct leaf_row *row = array_add (&s->rows, &s->nr_rows, sizeof *row);
  uint64_t pages;

  if (row == NULL)
    return -1;
  row->layer = layer;
  row->leaf = leaf_nr;
  if (leaf_unpack (buf, len, &row->content) == -1 ||
      row_pages (s, row, &pages) == -1)
    return -1;
  if (pages > s->budget->pages) {
    s->nr_rows--;
    s->stopped = true;
    s->stopped_at = leaf_nr;
    return 1;
  }
  s->budget->pages -= pages;
  assert (s->budget->work > 0); /* scan_row has looked */
  s->budget->work--;
  return 0;
}

static int
scan_row (void *opaque, uint64_t leaf_nr, uint64_t seq, const uint8_t *buf,
          size_t len)
{
  struct scan *s = opaque;
  struct layer *layer = find_seq (s->layers, s->nr, seq);
  bool is_ours = layer != NULL && leaf_nr >= layer->cursor;

  assert (!s->stopped); /* the first stop ends the scan */
  /* Do not stop at a row of another layer: that may be of the same leaf as the
   * last row found, and then the scan would find that one forever.
   */
  if ((is_ours && s->budget->work == 0) || s->budget->scan == 0) {
    s->stopped = true;
    s->stopped_at = leaf_nr;
    return 1;
  }
  s->budget->scan--;
  return is_ours ? add_row (s, layer, leaf_nr, buf, len) : 0;
}

/* Collect rows of these layers, all of one branch, from their cursors on. */
static int
scan_branch (struct scan *s, struct meta_conn *c)
{
  uint64_t first = UINT64_MAX;
  size_t i;

  assert (s->nr > 0 && s->nr_rows == 0);
  for (i = 0; i < s->nr; ++i)
    if (s->layers[i]->cursor < first)
      first = s->layers[i]->cursor;
  return meta_leaf_scan (c, s->layers[0]->branch, first, scan_row, s);
}

/*----------------------------------------------------------------------
 * Reaping
 */

static int
reap_row (struct fold *f, struct meta_conn *c, const struct leaf_row *row)
{
  struct layer *layer = row->layer;
  uint64_t displaced[LEAF_BLOCKS];
  struct layer_delta *ld;
  struct pointer ptr;
  unsigned i, nr = 0;

  assert (layer->dying);
  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (row->content.state[i] == MAP_POINTER) {
      if (pointer_unpack (row->content.ptr[i], layer->block_size, &ptr) == -1)
        return -1;
      displaced[nr++] = ptr.addr;
    }
  ld = fold_delta (f, layer);
  if (ld == NULL || fold_add_displaced (f, displaced, nr) == -1)
    return -1;
  ld->pointers -= nr;
  return meta_leaf_delete (c, layer->branch, row->leaf, layer->seq);
}

static int
reap_branch (struct fold *f, struct meta_conn *c, struct layer **layers,
             size_t nr, struct budget *budget)
{
  struct scan s = { .layers = layers, .nr = nr, .budget = budget };
  struct layer_delta *ld;
  size_t i;
  int r = scan_branch (&s, c);

  assert (layers[0]->branch == layers[nr - 1]->branch);
  for (i = 0; i < s.nr_rows && r == 0; ++i)
    r = reap_row (f, c, &s.rows[i]);
  free (s.rows);
  for (i = 0; i < nr && r == 0; ++i) {
    ld = fold_delta (f, layers[i]);
    if (ld == NULL)
      return -1;
    ld->reaped = !s.stopped;
    ld->has_cursor = true;
    ld->cursor = s.stopped_at;
  }
  if (s.stopped)
    f->has_more = true;
  return r;
}

/*----------------------------------------------------------------------
 * Merging
 */

/* Blocks of the layer that the child does not show: they must not appear
 * when the child's overlap is given up.
 */
static int
trim_row (struct fold *f, struct meta_conn *c, struct leaf_row *row)
{
  struct layer *layer = row->layer;
  uint64_t displaced[LEAF_BLOCKS], overlap = layer->trim_overlap;
  struct layer_delta *ld;
  struct pointer ptr;
  unsigned i, nr = 0;

  assert (layer->merge_state == MERGE_TRIM);
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (row->leaf * LEAF_BLOCKS + i < overlap)
      continue;
    if (row->content.state[i] == MAP_POINTER) {
      if (pointer_unpack (row->content.ptr[i], layer->block_size, &ptr) == -1)
        return -1;
      displaced[nr++] = ptr.addr;
    }
    row->content.state[i] = MAP_INHERIT;
  }
  ld = fold_delta (f, layer);
  if (ld == NULL || fold_add_displaced (f, displaced, nr) == -1)
    return -1;
  ld->pointers -= nr;
  return fold_put_leaf (c, layer, row->leaf, &row->content, true);
}

int
fold_push_leaf (struct fold *f, struct meta_conn *c, struct layer *child,
                uint64_t leaf_nr, const struct leaf *leaf, bool exists)
{
  struct layer *layer = child->parent;
  uint64_t displaced[LEAF_BLOCKS];
  uint8_t buf[LEAF_LEN_MAX];
  struct layer_delta *ld;
  struct leaf mine, below;
  struct pointer ptr;
  unsigned i, nr = 0, moved = 0;
  size_t len = 0;
  int found;

  assert (layer != NULL && layer->merging == child &&
          layer->merge_state == MERGE_PUSH);
  found = meta_leaf_get (c, layer->branch, leaf_nr, layer->seq, buf, &len);
  if (found == -1 || leaf_unpack (buf, len, &mine) == -1 ||
      map_get_below (f->parts->map, c, layer, leaf_nr, &below) == -1)
    return -1;
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (leaf->state[i] == MAP_INHERIT)
      continue;
    if (mine.state[i] == MAP_POINTER) {
      if (pointer_unpack (mine.ptr[i], layer->block_size, &ptr) == -1)
        return -1;
      displaced[nr++] = ptr.addr;
    }
    moved += leaf->state[i] == MAP_POINTER;
    mine.state[i] = leaf->state[i];
    memcpy (mine.ptr[i], leaf->ptr[i], POINTER_LEN);
    if (mine.state[i] == MAP_HOLE && below.state[i] == MAP_HOLE)
      mine.state[i] = MAP_INHERIT;
  }
  if (fold_add_displaced (f, displaced, nr) == -1 ||
      (ld = fold_delta (f, child)) == NULL)
    return -1;
  ld->pointers -= moved;
  ld = fold_delta (f, layer);
  if (ld == NULL)
    return -1;
  ld->pointers += (int64_t) moved - nr;
  if (exists && meta_leaf_delete (c, child->branch, leaf_nr, child->seq) == -1)
    return -1;
  return fold_put_leaf (c, layer, leaf_nr, &mine, found);
}

/* The child does not show blocks from its overlap on.  If a shrink has lowered
 * that since the last fold the pass starts again.
 */
static void
begin_trim (struct layer *layer)
{
  uint64_t overlap = layer->merging->overlap;

  if (layer->trim_overlap != overlap) {
    layer->trim_overlap = overlap;
    layer->cursor = 0;
  }
  if (layer->cursor < overlap / LEAF_BLOCKS)
    layer->cursor = overlap / LEAF_BLOCKS;
}

static int
merge_layer (struct fold *f, struct meta_conn *c, struct layer *layer,
             struct budget *budget)
{
  bool trim = layer->merge_state == MERGE_TRIM;
  struct layer *source = trim ? layer : layer->merging;
  struct scan s = {
    .layers = &source,
    .nr = 1,
    .push = !trim,
    .budget = budget,
  };
  struct layer_delta *ld;
  struct leaf_row *row;
  size_t i;
  int r;

  assert (layer->merge_state != MERGE_NONE && !layer->dying);
  assert (layer->merging->parent == layer);
  if (trim)
    begin_trim (layer);
  r = scan_branch (&s, c);
  for (i = 0; i < s.nr_rows && r == 0; ++i) {
    row = &s.rows[i];
    r = trim ? trim_row (f, c, row)
             : fold_push_leaf (f, c, source, row->leaf, &row->content, true);
  }
  free (s.rows);
  if (r == -1 || (ld = fold_delta (f, source)) == NULL)
    return -1;
  ld->has_cursor = true;
  ld->cursor = s.stopped_at;
  ld = fold_delta (f, layer);
  if (ld == NULL)
    return -1;
  ld->pass_done = !s.stopped;
  if (s.stopped)
    f->has_more = true;
  return 0;
}

/*----------------------------------------------------------------------*/

struct layer_set {
  struct layer **p; /* owned */
  size_t nr;
};

struct work {
  struct layer_set dying, merging;
  bool failed;
};

static void
collect (void *arg, struct layer *layer)
{
  struct work *w = arg;
  struct layer_set *layers = layer->dying ? &w->dying : &w->merging;

  if (array_push (&layers->p, &layers->nr, layer) == -1)
    w->failed = true; /* a later fold takes it */
}

int
fold_background (struct fold *f, struct meta_conn *c)
{
  struct budget budget = {
    f->background_rows,
    SCAN_ROWS,
    f->background_pages,
  };
  struct work w = { .failed = false };
  struct layer **p;
  size_t i, j;
  int r = 0;

  f->parts->each_background (f->parts->opaque, collect, &w);
  p = w.dying.p;
  if (w.dying.nr > 0)
    qsort (p, w.dying.nr, sizeof *p, compare_layers);
  for (i = 0; i < w.dying.nr && r == 0 && budget.work > 0; i = j) {
    for (j = i + 1; j < w.dying.nr && p[j]->branch == p[i]->branch; ++j)
      ;
    r = reap_branch (f, c, p + i, j - i, &budget);
    if (budget.work > 0)
      budget.work--; /* a layer without rows also costs time */
  }
  if (i < w.dying.nr)
    f->has_more = true;
  p = w.merging.p;
  for (i = 0; i < w.merging.nr && r == 0; ++i) {
    if (p[i]->pass_done)
      continue;
    if (budget.work == 0)
      f->has_more = true;
    else
      r = merge_layer (f, c, p[i], &budget);
  }
  f->has_more |= w.failed;
  /* The budgets only shrink. */
  assert (budget.work <= f->background_rows);
  assert (budget.pages <= f->background_pages);
  f->background_done = f->background_rows - budget.work;
  f->background_pages = budget.pages; /* the rest is for copies and moves */
  free (w.dying.p);
  free (w.merging.p);
  return r;
}
