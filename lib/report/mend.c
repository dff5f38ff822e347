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
#include "core/damage.h"
#include "core/engine.h"
#include "core/map.h"
#include "data/volume-types.h"
#include "format/layer.h"
#include "format/leaf-delta.h"
#include "meta/meta-mend.h"
#include "meta/meta-repair.h"
#include "meta/meta.h"
#include "report/mend.h"
#include "volume/lost-leaves.h"

/* Places to report, and leaves to read for them. */
#define PLACES_MAX 100
#define LEAVES_MAX (1u << 20)
/* Lines of the log. */
#define LOG_LINES_MAX 20

/*----------------------------------------------------------------------
 * The content of layers, and the names that see it
 */

struct candidate {
  struct layer *layer;
  uint64_t end;       /* blocks below it can be seen; 0: none */
  uint64_t names_end; /* of its own names */
  bool named;
  bool has_no_tail;        /* a volume's head, with nothing behind its end */
  uint64_t rows, pointers; /* that can be read */
  bool odd;                /* one of them is invalid */
};

struct map_mend {
  struct nbdedup_pool *pool;
  struct meta_state *state;
  struct candidate *list; /* owned; ascending by branch, seq */
  size_t nr;
  struct lost_range *lost; /* owned */
  size_t nr_lost;
  uint64_t blocks;
};

static int
compare_candidates (const void *a, const void *b)
{
  const struct layer *x = ((const struct candidate *) a)->layer;
  const struct layer *y = ((const struct candidate *) b)->layer;

  return layer_order (x->branch, x->seq, y->branch, y->seq);
}

static struct candidate *
find_candidate (struct map_mend *md, uint64_t branch, uint64_t seq)
{
  size_t i = array_position (md->nr, k,
                             layer_order (md->list[k].layer->branch,
                                          md->list[k].layer->seq, branch,
                                          seq) < 0);

  return i < md->nr && md->list[i].layer->branch == branch &&
      md->list[i].layer->seq == seq
    ? &md->list[i]
    : NULL;
}

/* All layers below it show through as far as the overlaps allow. */
static void
add_name (struct map_mend *md, const struct volume *v)
{
  uint64_t end = blocks_of (v->size, v->block_size);
  struct layer *l = v->layer;
  struct candidate *cd = find_candidate (md, l->branch, l->seq);

  if (cd) {
    cd->named = true;
    if (end > cd->names_end)
      cd->names_end = end;
  }
  for (; l && end > 0; l = l->parent) {
    cd = find_candidate (md, l->branch, l->seq);
    if (cd && end > cd->end)
      cd->end = end;
    if (l->overlap < end)
      end = l->overlap;
  }
}

static int
collect (struct map_mend *md)
{
  struct volumes *vs = md->pool->volumes;
  const struct volume *v;
  struct candidate *cd;
  size_t i, j;

  WITH_LOCK (&vs->lock);
  md->list = calloc (vs->layers.nr + 1, sizeof *md->list);
  if (md->list == NULL)
    return nbdedup_fail (ENOMEM, "no memory to repair");
  for (i = 0; i < vs->layers.nr; ++i)
    if (!vs->layers.p[i]->gone && !vs->layers.p[i]->dying)
      md->list[md->nr++].layer = vs->layers.p[i];
  qsort (md->list, md->nr, sizeof *md->list, compare_candidates);
  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    add_name (md, v);
    cd = find_candidate (md, v->layer->branch, v->layer->seq);
    if (cd)
      cd->has_no_tail = !v->tail_dirty;
    for (j = 0; j < v->snapshots.nr; ++j)
      add_name (md, v->snapshots.p[j]);
  }
  return 0;
}

static int
count_row (void *opaque, const struct leaf_key *key, const uint8_t *data,
           size_t len)
{
  struct candidate *cd = find_candidate (opaque, key->branch, key->seq);
  struct leaf leaf;
  unsigned i;

  if (cd == NULL)
    return 0;
  cd->rows++;
  if (leaf_unpack (data, len, &leaf) == -1) {
    cd->odd = true;
    return 0;
  }
  for (i = 0; i < LEAF_BLOCKS; ++i)
    cd->pointers += leaf.state[i] == MAP_POINTER;
  return 0;
}

/* Can all rows of the layer certainly be read?  If no block of the pool was
 * ever lost, a row has pointers or holes.  A layer without a parent has no
 * holes; and one that hides a block of its parent by a hole has fewer blocks.
 */
static bool
is_complete (struct map_mend *md, const struct candidate *cd)
{
  struct layer *parent = cd->layer->parent;
  const struct candidate *below;

  if (md->state->features_compat & FEATURE_COMPAT_LOST || cd->odd ||
      cd->pointers != cd->layer->pointers)
    return false;
  if (parent == NULL)
    return true;
  below = find_candidate (md, parent->branch, parent->seq);
  return cd->rows == 0 && cd->named && below && below->named &&
    cd->layer->overlap >= below->names_end &&
    cd->layer->blocks == parent->blocks;
}

/*----------------------------------------------------------------------
 * Losing
 */

static int
note (struct map_mend *md, struct layer *layer, uint64_t leaf)
{
  struct lost_range *p = md->nr_lost > 0 ? &md->lost[md->nr_lost - 1] : NULL;

  /* The lost ranges are ascending, and so are the leaves in each. */
  assert (p == NULL || p->layer != layer || p->leaf + p->count <= leaf);
  if (p && p->layer == layer && p->leaf + p->count == leaf) {
    p->count++;
    return 0;
  }
  return array_push (&md->lost, &md->nr_lost,
                     (struct lost_range) { layer, leaf, 1 });
}

/* The leaf's deltas stay.  So blocks behind the end, which no name shows, are
 * lost as well if the layer may have deltas there.
 */
static int
lose_leaf (struct map_mend *md, struct meta_conn *c, const struct candidate *cd,
           uint64_t leaf_nr)
{
  uint8_t buf[LEAF_LEN_MAX];
  struct leaf leaf;
  bool is_seen;
  unsigned i;

  assert (leaf_nr * LEAF_BLOCKS < cd->end);
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    is_seen = leaf_nr * LEAF_BLOCKS + i < cd->end;
    leaf.state[i] = is_seen || !cd->has_no_tail ? MAP_LOST : MAP_INHERIT;
    md->blocks += is_seen;
  }
  if (note (md, cd->layer, leaf_nr) == -1)
    return -1;
  return meta_leaf_put_alone (c, cd->layer->branch, leaf_nr, cd->layer->seq,
                              buf, leaf_pack (&leaf, buf));
}

static int
lose (void *opaque, struct meta_conn *c, const struct meta_lost_range *range)
{
  struct map_mend *md = opaque;
  const struct candidate *cd;
  uint64_t first, end;
  size_t i;

  for (i = 0; i < md->nr; ++i) {
    cd = &md->list[i];
    assert (i == 0 || compare_candidates (cd - 1, cd) <= 0);
    if ((range->has_low && cd->layer->branch < range->low.branch) ||
        (range->has_high && cd->layer->branch > range->high.branch) ||
        cd->end == 0 || is_complete (md, cd))
      continue;
    first = 0;
    end = (cd->end + LEAF_BLOCKS - 1) / LEAF_BLOCKS;
    if (range->has_low && cd->layer->branch == range->low.branch)
      first = range->low.leaf + (cd->layer->seq <= range->low.seq);
    if (range->has_high && cd->layer->branch == range->high.branch &&
        end > range->high.leaf)
      end = range->high.leaf + (cd->layer->seq < range->high.seq);
    for (; first < end; ++first)
      if (lose_leaf (md, c, cd, first) == -1)
        return -1;
  }
  md->state->features_compat |= FEATURE_COMPAT_LOST;
  return 0;
}

/*----------------------------------------------------------------------
 * Losing deltas
 */

/* So many leaves change before the scan goes on: a scan must not write. */
#define LEAVES_AT_ONCE 256

struct old_leaf {
  struct meta_leaf_key key;
  struct leaf content;
};

struct lost_deltas {
  const struct meta_lost_range *range;
  struct meta_leaf_key next;
  struct old_leaf *p; /* owned; LEAVES_AT_ONCE */
  unsigned nr;
};

/* May the lost rows have had deltas of the leaf? */
static bool
is_in_range (const struct meta_lost_range *range,
             const struct meta_leaf_key *key)
{
  const struct leaf_key area = { key->branch, key->leaf / DELTA_LEAVES,
                                 key->seq };

  return (!range->has_low || leaf_key_compare (&range->low, &area) < 0) &&
    (!range->has_high || leaf_key_compare (&area, &range->high) < 0);
}

/* Is no later row in the range? */
static bool
is_behind (const struct meta_lost_range *range, const struct meta_leaf_key *key)
{
  return range->has_high &&
    (key->branch > range->high.branch ||
     (key->branch == range->high.branch &&
      key->leaf / DELTA_LEAVES > range->high.leaf));
}

static int
find_old (void *opaque, const struct meta_leaf_key *key, const uint8_t *buf,
          size_t len)
{
  struct lost_deltas *ld = opaque;
  struct old_leaf *old = &ld->p[ld->nr];

  ld->next = *key;
  if (is_behind (ld->range, key) || ld->nr == LEAVES_AT_ONCE)
    return 1;
  if (!is_in_range (ld->range, key) ||
      leaf_unpack (buf, len, &old->content) == -1 ||
      memchr (old->content.state, MAP_POINTER, LEAF_BLOCKS) == NULL)
    return 0;
  old->key = *key;
  ld->nr++;
  return 0;
}

/* Which of its pointers were replaced is not known: so all are lost.  Those of
 * a layer that no name shows must go as well: some hold no reference any more,
 * and the fold would give one back.
 */
static int
lose_old (struct map_mend *md, struct meta_conn *c, struct old_leaf *old)
{
  const struct candidate *cd = find_candidate (md, old->key.branch,
                                               old->key.seq);
  uint8_t buf[LEAF_LEN_MAX];
  unsigned i;

  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (old->content.state[i] == MAP_POINTER) {
      old->content.state[i] = MAP_LOST;
      md->blocks += cd && old->key.leaf * LEAF_BLOCKS + i < cd->end;
    }
  if (cd && note (md, cd->layer, old->key.leaf) == -1)
    return -1;
  return meta_leaf_put_alone (c, old->key.branch, old->key.leaf, old->key.seq,
                              buf, leaf_pack (&old->content, buf));
}

/* Without the feature there never was a delta. */
static int
lose_deltas (void *opaque, struct meta_conn *c,
             const struct meta_lost_range *range)
{
  struct map_mend *md = opaque;
  struct lost_deltas ld = { .range = range };
  unsigned i;
  int r;

  if (!(md->state->features_incompat & FEATURE_INCOMPAT_DELTAS))
    return 0;
  if (range->has_low)
    ld.next = (struct meta_leaf_key) { range->low.branch,
                                       range->low.leaf * DELTA_LEAVES, 0 };
  ld.p = calloc (LEAVES_AT_ONCE, sizeof *ld.p);
  if (ld.p == NULL)
    return nbdedup_fail (ENOMEM, "no memory to repair");
  do {
    ld.nr = 0;
    r = meta_leaf_scan_from (c, &ld.next, find_old, &ld);
    for (i = 0; i < ld.nr && r == 0; ++i)
      r = lose_old (md, c, &ld.p[i]);
  } while (r == 0 && ld.nr == LEAVES_AT_ONCE);
  free (ld.p);
  md->state->features_compat |= FEATURE_COMPAT_LOST;
  return r;
}

static int
skip_row (void *opaque, const struct leaf_key *key, const uint8_t *data,
          size_t len)
{
  (void) opaque;
  (void) key;
  (void) data;
  (void) len;
  return 0;
}

/*----------------------------------------------------------------------
 * The unreadable places
 */

struct name {
  char name[VOLUME_FULL_NAME_MAX];
  struct layer *layer;
  uint64_t end;
  uint32_t block_size;
};

struct describe {
  struct nbdedup_pool *pool;
  json_t *places;
  uint64_t leaves;    /* read so far */
  struct name *names; /* owned */
  size_t nr_names;
};

static int
collect_name (struct describe *d, const struct volume *v)
{
  struct name *n = array_add (&d->names, &d->nr_names, sizeof *n);

  if (n == NULL)
    return -1;
  *n = (struct name) {
    .layer = v->layer,
    .end = blocks_of (v->size, v->block_size),
    .block_size = v->block_size,
  };
  volume_full_name (v, n->name);
  return 0;
}

static int
collect_names (struct describe *d)
{
  struct volumes *vs = d->pool->volumes;
  const struct volume *v;
  size_t i, j;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    if (collect_name (d, v) == -1)
      return -1;
    for (j = 0; j < v->snapshots.nr; ++j)
      if (collect_name (d, v->snapshots.p[j]) == -1)
        return -1;
  }
  return 0;
}

static void
add_place (struct describe *d, const struct name *n, uint64_t block,
           uint64_t count)
{
  assert (block <= n->end && count <= n->end - block);
  if (count > 0)
    json_array_append_new (d->places,
                           json_pack ("{s:s, s:I, s:I}", "name", n->name,
                                      "offset",
                                      (json_int_t) (block * n->block_size),
                                      "length",
                                      (json_int_t) (count * n->block_size)));
}

static int
compare_ranges (const void *a, const void *b)
{
  const struct lost_range *x = a, *y = b;

  return x->leaf < y->leaf ? -1 : x->leaf > y->leaf;
}

/* Layers below the name have lost these leaves, ascending: add the blocks that
 * are lost to it now.
 */
static void
describe_name (struct describe *d, const struct name *n,
               const struct lost_range *p, size_t nr)
{
  struct pointer ptrs[LEAF_BLOCKS];
  uint8_t states[LEAF_BLOCKS];
  uint64_t first = 0, count = 0, block, next = 0;
  unsigned j, len;
  size_t i;

  for (i = 0; i < nr; ++i) {
    assert (i == 0 || p[i - 1].leaf <= p[i].leaf);
    if (p[i].leaf > next)
      next = p[i].leaf;
    for (; next < p[i].leaf + p[i].count; ++next) {
      block = next * LEAF_BLOCKS;
      if (block >= n->end || ++d->leaves > LEAVES_MAX ||
          json_array_size (d->places) > PLACES_MAX)
        break;
      len = n->end - block < LEAF_BLOCKS ? (unsigned) (n->end - block)
                                         : LEAF_BLOCKS;
      if (map_get (d->pool->map, n->layer, block, len, states, ptrs) == -1)
        continue;
      for (j = 0; j < len; ++j) {
        if (states[j] != MAP_LOST)
          continue;
        if (first + count != block + j) {
          add_place (d, n, first, count);
          first = block + j;
          count = 0;
        }
        count++;
      }
    }
  }
  add_place (d, n, first, count);
}

static bool
has_layer (const struct name *n, const struct layer *layer)
{
  const struct layer *l = n->layer;

  while (l && l != layer)
    l = l->parent;
  return l != NULL;
}

static int
describe (struct describe *d, const struct lost_range *p, size_t nr)
{
  CLEANUP_FREE struct lost_range *of = calloc (nr + 1, sizeof *of);
  size_t i, j, n;

  if (of == NULL)
    return nbdedup_fail (ENOMEM, "no memory to repair");
  if (collect_names (d) == -1)
    return -1;
  for (i = 0; i < d->nr_names; ++i) {
    for (j = n = 0; j < nr; ++j)
      if (has_layer (&d->names[i], p[j].layer))
        of[n++] = p[j];
    qsort (of, n, sizeof *of, compare_ranges);
    describe_name (d, &d->names[i], of, n);
  }
  return 0;
}

static void
describe_ranges (struct nbdedup_pool *pool, const struct lost_range *p,
                 size_t nr, json_t *places)
{
  struct describe d = { .pool = pool, .places = places };

  (void) describe (&d, p, nr); /* an error only shortens the report */
  free (d.names);
}

static void
log_loss (struct map_mend *md, int pages)
{
  struct damage_place place;
  json_t *places = json_array (), *p;
  size_t i;

  events_post (md->pool->events, NBDEDUP_LOG_ERROR,
               event_new ("damage", "{s:s, s:i, s:I}", "found", "fold", "pages",
                          pages, "blocks", (json_int_t) md->blocks),
               "pool.db: a part of the maps is damaged in all copies (pages: "
               "%d): the %" PRIu64 " blocks that it may have held are lost; "
               "run \"nbdedup check --repair\" to count references again",
               pages, md->blocks);
  describe_ranges (md->pool, md->lost, md->nr_lost, places);
  json_array_foreach (places, i, p) {
    if (i == LOG_LINES_MAX) {
      nbdedup_log (NBDEDUP_LOG_ERROR,
                   "%s: other places are lost, too: "
                   "\"nbdedup scrub\" lists them",
                   md->pool->path);
      break;
    }
    place = damage_place_of (p);
    damage_tell (md->pool->events, &place, "fold",
                 "cannot be read until a "
                 "client writes or zeroes whole blocks there",
                 DAMAGE_LOG | DAMAGE_KEEP);
  }
  json_decref (places);
}

/*----------------------------------------------------------------------*/

/* Only this thread changes the list of layers (layer.h). */
void
mend_forget_maps (struct nbdedup_pool *pool)
{
  struct volumes *vs = pool->volumes;
  size_t i;

  for (i = 0; i < vs->layers.nr; ++i)
    map_forget_layer (pool->map, vs->layers.p[i]);
}

static int
mend_maps (struct nbdedup_pool *pool, struct meta_state *state,
           enum meta_mend_table table)
{
  struct map_mend md = { .pool = pool, .state = state };
  const bool deltas = table == META_MEND_DELTA;
  const struct meta_mend_ops ops = {
    table,
    deltas ? skip_row : count_row,
    deltas ? lose_deltas : lose,
    &md,
  };
  int r = collect (&md), err;
  size_t i;

  if (r == 0)
    r = meta_mend (pool->meta, &ops, state);
  err = errno;
  if (r > 0) {
    mend_forget_maps (pool);
    for (i = 0; i < md.nr_lost; ++i)
      (void) lost_leaves_note (pool->lost, md.lost[i].layer, md.lost[i].leaf,
                               md.lost[i].count, 0);
    {
      WITH_LOCK (&pool->lost->lock);
      pool->lost->blocks += md.blocks;
    }
    log_loss (&md, r);
  }
  free (md.lost);
  free (md.list);
  errno = err;
  return r;
}

/* A table that cannot be mended must not prevent mending the others.  Mending
 * the leaves does not read deltas, and mending the deltas reads leaves.
 */
int
mend_run (struct nbdedup_pool *pool, struct meta_state *state)
{
  char text[512];
  int n[4], nr = 0, err = 0;
  unsigned i;

  for (i = 0; i < 4; ++i) {
    n[i] = i == 0 ? mend_tables (pool, state)
      : i == 1    ? mend_maps (pool, state, META_MEND_LEAF)
      : i == 2    ? mend_maps (pool, state, META_MEND_DELTA)
                  : meta_repair (pool->meta, true);
    if (n[i] > 0)
      nr += n[i];
    else if (n[i] == -1) {
      err = errno;
      snprintf (text, sizeof text, "%s", nbdedup_error ());
      if (err == EBUSY)
        break;
    }
  }
  return nr > 0 || err == 0 ? nr : nbdedup_fail (err, "%s", text);
}

uint64_t
mend_take (struct nbdedup_pool *pool, json_t *places)
{
  struct lost_leaves *l = pool->lost;
  struct lost_range *p;
  uint64_t blocks;
  size_t nr;

  {
    WITH_LOCK (&l->lock);
    p = l->p;
    nr = l->nr;
    blocks = l->blocks;
    l->p = NULL;
    l->nr = 0;
    l->blocks = 0;
  }
  describe_ranges (pool, p, nr, places);
  free (p);
  return blocks;
}
