/* SPDX-License-Identifier: BSD-3-Clause */

/* Layers of one run have their rows for a leaf side by side (layer.h).  The
 * walk has a cursor for each run, and advances all of them leaf by leaf, lower
 * runs first, so that upper layers override lower ones.  It reads each row
 * once.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "drift/view.h"

static_assert (LEAF_BLOCKS == 64, "a mask has a bit for each block");

struct walk_layer {
  uint64_t seq;
  uint64_t limit; /* its blocks below this show through */
};

struct walk_run {
  struct meta_cursor *cursor; /* owned */
  struct walk_layer *layers;  /* not owned; ascending by seq */
  size_t nr_layers;
  struct meta_leaf_row row;
  bool has_row;
};

struct walk {
  struct view *v;            /* not owned */
  struct walk_layer *layers; /* owned; run by run, the lowest first */
  uint64_t top_seq;          /* in the last run */
  struct walk_run *runs;     /* owned; the lowest first */
  size_t nr_runs;
};

/* List the layers, the lowest first, with the limit up to which each shows.
 * Returns their number.
 */
static size_t
fill_layers (struct view_layer *top, const struct view_layer *bottom, size_t nr,
             struct walk_layer *layers, struct view_layer **stack)
{
  uint64_t limit = UINT64_MAX;
  struct view_layer *l;
  size_t i = nr;

  for (l = top; l != bottom && l; l = l->parent) {
    i--;
    layers[i] = (struct walk_layer) { l->seq, limit };
    stack[i] = l;
    if (l->overlap < limit)
      limit = l->overlap;
  }
  assert (i == 0); /* the caller counted them */
  return nr;
}

static int
advance (struct walk *w, struct walk_run *run)
{
  int r = meta_cursor_next (run->cursor, &run->row);

  run->has_row = r == 1;
  return r == -1 ? -1 : view_look (w->v);
}

static int
open_runs (struct walk *w, struct view_layer **stack, size_t nr)
{
  struct walk_run *run;
  size_t i, j;

  for (i = 0; i < nr; i = j) {
    for (j = i + 1; j < nr && stack[j]->branch == stack[i]->branch; ++j)
      ;
    assert (w->nr_runs < nr);
    run = &w->runs[w->nr_runs++];
    w->top_seq = stack[j - 1]->seq;
    run->layers = w->layers + i;
    run->nr_layers = j - i;
    run->cursor = meta_leaf_cursor (w->v->c, stack[i]->branch, stack[i]->seq,
                                    stack[j - 1]->seq);
    if (run->cursor == NULL || advance (w, run) == -1)
      return -1;
  }
  return 0;
}

struct walk *
walk_new (struct view *v, struct view_layer *top,
          const struct view_layer *bottom)
{
  struct walk *w = calloc (1, sizeof *w);
  struct view_layer **stack, *l;
  size_t nr = 0;
  int r = -1;

  if (w == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  for (l = top; l != bottom && l; l = l->parent)
    if (++nr > v->nr_layers) {
      walk_free (w);
      return nbdedup_fail_null (EIO,
                                "pool.db: layer %" PRIu64 " is its own "
                                "ancestor: run nbdedup check",
                                top->id);
    }
  w->v = v;
  w->layers = malloc ((nr + 1) * sizeof *w->layers);
  w->runs = calloc (nr + 1, sizeof *w->runs);
  stack = malloc ((nr + 1) * sizeof *stack);
  if (w->layers && w->runs && stack)
    r = open_runs (w, stack, fill_layers (top, bottom, nr, w->layers, stack));
  else
    nbdedup_fail (ENOMEM, "no memory");
  free (stack);
  if (r == 0)
    return w;
  walk_free (w);
  return NULL;
}

void
walk_free (struct walk *w)
{
  size_t i;

  if (w == NULL)
    return;
  for (i = 0; i < w->nr_runs; ++i)
    meta_cursor_free (w->runs[i].cursor);
  free (w->runs);
  free (w->layers);
  free (w);
}

static const struct walk_layer *
find_seq (const struct walk_run *run, uint64_t seq)
{
  size_t i = array_position (run->nr_layers, k, run->layers[k].seq < seq);

  return i < run->nr_layers && run->layers[i].seq == seq ? &run->layers[i]
                                                         : NULL;
}

/* Put a row over the rows below it.  'said' gets the blocks that it has. */
static int
take_row (const struct walk_run *run, struct leaf *out, uint64_t *said)
{
  const struct walk_layer *layer = find_seq (run, run->row.seq);
  uint64_t first = run->row.leaf * LEAF_BLOCKS;
  struct leaf leaf;
  unsigned i;

  if (layer == NULL)
    return nbdedup_fail (EIO,
                         "pool.db: a map row names layer %" PRIu64 ", "
                         "which is not in the lineage of the volume or "
                         "snapshot: run nbdedup check",
                         run->row.seq);
  if (leaf_unpack (run->row.buf, run->row.len, &leaf) == -1)
    return -1;
  for (i = 0; i < LEAF_BLOCKS && first + i < layer->limit; ++i) {
    if (leaf.state[i] == MAP_INHERIT)
      continue;
    *said |= UINT64_C (1) << i;
    out->state[i] = leaf.state[i];
    memcpy (out->ptr[i], leaf.ptr[i], POINTER_LEN);
  }
  return 0;
}

int
walk_next (struct walk *w, uint64_t *leaf_nr, struct leaf *leaf, uint64_t *top)
{
  uint64_t next = UINT64_MAX, said;
  struct walk_run *run;
  size_t i;

  for (i = 0; i < w->nr_runs; ++i)
    if (w->runs[i].has_row && w->runs[i].row.leaf < next)
      next = w->runs[i].row.leaf;
  if (next == UINT64_MAX)
    return 0;
  memset (leaf->state, MAP_INHERIT, sizeof leaf->state);
  *top = 0;
  for (i = 0; i < w->nr_runs; ++i) {
    run = &w->runs[i];
    while (run->has_row && run->row.leaf == next) {
      said = 0;
      if (take_row (run, leaf, &said) == -1)
        return -1;
      if (i + 1 == w->nr_runs && run->row.seq == w->top_seq)
        *top = said;
      if (advance (w, run) == -1)
        return -1;
    }
  }
  *leaf_nr = next;
  return 1;
}
