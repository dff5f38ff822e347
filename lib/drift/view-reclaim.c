/* SPDX-License-Identifier: BSD-3-Clause */

/* Predicts which layers die or merge when names are destroyed, by the rules of
 * layers_settle and merge.h.
 *
 * A layer without a name and without children dies: all its references are
 * dropped.  One without a name and with a single child merges with that, and
 * with the layers that the child merges with in turn, its heirs: the
 * references of blocks that these hide are dropped.  Destroying more names
 * only ever drops more references.
 *
 * Only the names' layers and those below can die or merge, so asking about one
 * clone after the other is cheap.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "drift/view.h"
#include "format/layer.h"

/* A layer that loses references. */
struct loser {
  struct view_layer *layer;
  bool only_new; /* without those that it loses anyway */
};

struct losers {
  struct view *v;
  struct loser *p; /* owned */
  size_t nr;
};

/*----------------------------------------------------------------------
 * Which layers die or merge
 */

static void
die_if_unneeded (struct view_layer *l)
{
  while (l && !l->dead && l->nr_names == 0 && l->nr_children == 0) {
    l->dead = true;
    l = l->parent;
    if (l) {
      assert (l->nr_children > 0);
      l->nr_children--;
    }
  }
}

static struct view_layer *
only_child (const struct view_layer *l)
{
  struct view_layer *child;

  for (child = l->children; child; child = child->sibling)
    if (!child->dead)
      return child;
  return NULL;
}

static void
find_heir (struct view_layer *l)
{
  l->heir = !l->dead && l->nr_names == 0 && l->nr_children == 1 ? only_child (l)
                                                                : NULL;
}

void
reclaim_begin (struct view *v)
{
  size_t i;

  /* A dying layer does not count as a child. */
  for (i = 0; i < v->nr_layers; ++i)
    if (v->layers[i].dying)
      v->layers[i].dead = true;
  /* Children have higher ids than parents, except after merges. */
  for (i = v->nr_layers; i-- > 0;)
    die_if_unneeded (&v->layers[i]);
  for (i = 0; i < v->nr_layers; ++i) {
    find_heir (&v->layers[i]);
    v->layers[i].was_dead = v->layers[i].dead;
    v->layers[i].old_heir = v->layers[i].heir;
  }
}

static int
add_loser (struct losers *losers, struct view_layer *l, bool only_new)
{
  return array_push (&losers->p, &losers->nr, (struct loser) { l, only_new });
}

/*----------------------------------------------------------------------
 * Rows
 */

/* Mark the blocks of a layer that its heirs hide.  'old': use old_heir, not
 * heir.
 */
static int
mark_hidden (struct view *v, struct view_layer *l, bool old, uint64_t leaf_nr,
             bool hidden[LEAF_BLOCKS])
{
  uint8_t buf[LEAF_LEN_MAX];
  struct leaf leaf;
  unsigned i;
  size_t len;

  for (l = old ? l->old_heir : l->heir; l; l = old ? l->old_heir : l->heir) {
    len = 0;
    if (meta_leaf_get (v->c, l->branch, leaf_nr, l->seq, buf, &len) == -1 ||
        leaf_unpack (buf, len, &leaf) == -1 || view_look (v) == -1)
      return -1;
    for (i = 0; i < LEAF_BLOCKS; ++i)
      if (leaf.state[i] != MAP_INHERIT ||
          leaf_nr * LEAF_BLOCKS + i >= l->overlap)
        hidden[i] = true;
  }
  return 0;
}

static int
mark_lost (struct view *v, struct view_layer *l, bool old, uint64_t leaf_nr,
           bool lost[LEAF_BLOCKS])
{
  if (old ? l->was_dead : l->dead) {
    memset (lost, true, LEAF_BLOCKS);
    return 0;
  }
  memset (lost, false, LEAF_BLOCKS);
  return mark_hidden (v, l, old, leaf_nr, lost);
}

static int
tell_row (struct view *v, const struct loser *loser,
          const struct meta_leaf_row *row,
          int (*fn) (void *opaque, uint64_t addr), void *opaque)
{
  bool lost[LEAF_BLOCKS], before[LEAF_BLOCKS] = { false };
  struct pointer ptr;
  struct leaf leaf;
  unsigned i;

  if (leaf_unpack (row->buf, row->len, &leaf) == -1 ||
      mark_lost (v, loser->layer, false, row->leaf, lost) == -1 ||
      (loser->only_new &&
       mark_lost (v, loser->layer, true, row->leaf, before) == -1))
    return -1;
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (leaf.state[i] != MAP_POINTER || !lost[i] || before[i])
      continue;
    if (pointer_unpack (leaf.ptr[i], loser->layer->block_size, &ptr) == -1 ||
        fn (opaque, ptr.addr) == -1)
      return -1;
  }
  return 0;
}

static int
compare_losers (const void *a, const void *b)
{
  const struct view_layer *x = ((const struct loser *) a)->layer;
  const struct view_layer *y = ((const struct loser *) b)->layer;

  return layer_order (x->branch, x->seq, y->branch, y->seq);
}

static const struct loser *
find_seq (const struct loser *p, size_t nr, uint64_t seq)
{
  size_t i = array_position (nr, k, p[k].layer->seq < seq);

  return i < nr && p[i].layer->seq == seq ? &p[i] : NULL;
}

/* One scan for all losers of a branch, because their rows are interleaved. */
static int
tell_branch (struct view *v, const struct loser *p, size_t nr,
             int (*fn) (void *opaque, uint64_t addr), void *opaque)
{
  struct meta_cursor *cursor;
  const struct loser *loser;
  struct meta_leaf_row row;
  int r;

  cursor = meta_leaf_cursor (v->c, p[0].layer->branch, p[0].layer->seq,
                             p[nr - 1].layer->seq);
  if (cursor == NULL)
    return -1;
  while ((r = meta_cursor_next (cursor, &row)) == 1) {
    loser = find_seq (p, nr, row.seq);
    if ((loser && tell_row (v, loser, &row, fn, opaque) == -1) ||
        view_look (v) == -1) {
      r = -1;
      break;
    }
  }
  meta_cursor_free (cursor);
  return r;
}

static int
tell_all (struct losers *losers, int (*fn) (void *opaque, uint64_t addr),
          void *opaque)
{
  const struct loser *p = losers->p;
  size_t i, j;
  int r = 0;

  assert (losers->nr == 0 || losers->p != NULL);
  if (losers->nr > 0)
    qsort (losers->p, losers->nr, sizeof *p, compare_losers);
  for (i = 0; i < losers->nr && r == 0; i = j) {
    for (j = i + 1; j < losers->nr && p[j].layer->branch == p[i].layer->branch;
         ++j)
      ;
    r = tell_branch (losers->v, p + i, j - i, fn, opaque);
  }
  return r;
}

/*----------------------------------------------------------------------*/

int
reclaim_background (struct view *v, int (*fn) (void *opaque, uint64_t addr),
                    void *opaque)
{
  struct losers losers = { .v = v };
  size_t i;
  int r = 0;

  for (i = 0; i < v->nr_layers && r == 0; ++i)
    if (v->layers[i].dead || v->layers[i].heir)
      r = add_loser (&losers, &v->layers[i], false);
  if (r == 0)
    r = tell_all (&losers, fn, opaque);
  free (losers.p);
  return r;
}

/* Layers that may die or merge now: the names' layers, and those below them
 * down to the first that still has other children or a name.
 */
struct touched {
  struct view_layer **p; /* owned */
  size_t nr;
};

static int
touch (struct touched *t, struct view_layer *l)
{
  l->is_touched = true;
  return array_push (&t->p, &t->nr, l);
}

/* Does this layer stay as it is?  Then the layers below it do, too. */
static bool
stops_changes (const struct view_layer *l)
{
  return !l->dead && (l->nr_names > 0 || l->nr_children != 1);
}

static int
touch_all (struct touched *t, struct view_name *const *names, size_t nr)
{
  struct view_layer *l;
  size_t i;

  for (i = 0; i < nr; ++i)
    for (l = names[i]->layer; l && !l->is_touched; l = l->parent) {
      if (touch (t, l) == -1)
        return -1;
      if (stops_changes (l))
        break;
    }
  return 0;
}

static int
find_losers (struct losers *losers, const struct touched *t,
             const struct view_layer *known)
{
  struct view_layer *l;
  size_t i;

  for (i = 0; i < t->nr; ++i)
    find_heir (t->p[i]);
  for (i = 0; i < t->nr; ++i) {
    l = t->p[i];
    assert (l != known || (l->dead && !l->was_dead));
    if (l != known && ((l->dead && !l->was_dead) || (!l->dead && l->heir)))
      if (add_loser (losers, l, true) == -1)
        return -1;
  }
  return 0;
}

/* Restore the view. */
static void
undo (struct touched *t, struct view_name *const *names, size_t nr)
{
  struct view_layer *l;
  size_t i;

  for (i = 0; i < nr; ++i)
    names[i]->layer->nr_names++;
  assert (t->nr == 0 || t->p != NULL);
  for (i = 0; i < t->nr; ++i) {
    l = t->p[i];
    if (l->dead && !l->was_dead) {
      l->dead = false;
      if (l->parent)
        l->parent->nr_children++;
    }
    l->heir = l->old_heir;
    l->is_touched = false;
  }
  free (t->p);
}

int
reclaim_without (struct view *v, struct view_name *const *names, size_t nr,
                 const struct view_layer *known,
                 int (*fn) (void *opaque, uint64_t addr), void *opaque)
{
  struct losers losers = { .v = v };
  struct touched t = { NULL };
  size_t i;
  int r;

  for (i = 0; i < nr; ++i) {
    assert (names[i]->layer->nr_names > 0);
    names[i]->layer->nr_names--;
  }
  for (i = 0; i < nr; ++i)
    die_if_unneeded (names[i]->layer);
  r = touch_all (&t, names, nr);
  if (r == 0)
    r = find_losers (&losers, &t, known);
  if (r == 0)
    r = tell_all (&losers, fn, opaque);
  free (losers.p);
  undo (&t, names, nr);
  return r;
}
