/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "core/engine.h"
#include "format/format.h"
#include "volume/heirs.h"
#include "volume/volume.h"

struct heir_layer {
  uint64_t id, branch, seq, overlap;
  uint32_t block_size;
  struct heir_layer *parent; /* not owned; NULL: none */
  uint64_t search;           /* the one that has set ... */
  uint64_t shown;            /* ... this: blocks that show through */
};

struct heirs {
  struct heir_layer *layers; /* owned; ascending by id */
  size_t nr_layers;
  struct heir *names; /* owned */
  size_t nr_names;
  struct heir_layer **path; /* owned; for nr_layers of them */

  /* The present search. */
  uint64_t search, leaf;
  const struct heir_layer *layer;
  size_t next; /* of two rounds over the names: which of them */
};

/*----------------------------------------------------------------------
 * The copy
 */

static struct heir_layer *
find_layer (const struct heirs *h, const struct layer *layer)
{
  size_t i;

  if (layer == NULL)
    return NULL;
  i = array_position (h->nr_layers, k, h->layers[k].id < layer->id);
  return i < h->nr_layers && h->layers[i].id == layer->id ? &h->layers[i]
                                                          : NULL;
}

static int
copy_layers_locked (struct heirs *h, const struct volumes *vs)
{
  const struct layer *l;
  size_t i;

  assert_held (&vs->lock);
  h->layers = calloc (vs->layers.nr + 1, sizeof *h->layers);
  h->path = calloc (vs->layers.nr + 1, sizeof *h->path);
  if (h->layers == NULL || h->path == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (!l->gone && !l->dying)
      h->layers[h->nr_layers++] = (struct heir_layer) {
        .id = l->id,
        .branch = l->branch,
        .seq = l->seq,
        .overlap = l->overlap,
        .block_size = l->block_size,
      };
  }
  for (i = 0; i < vs->layers.nr; ++i) {
    l = vs->layers.p[i];
    if (!l->gone && !l->dying)
      find_layer (h, l)->parent = find_layer (h, l->parent);
  }
  return 0;
}

static int
copy_name_locked (struct heirs *h, const struct volume *v)
{
  char name[VOLUME_FULL_NAME_MAX];
  struct heir *heir = array_add (&h->names, &h->nr_names, sizeof *heir);

  assert_held (&v->pool->volumes->lock);
  if (heir == NULL)
    return -1;
  volume_full_name (v, name);
  *heir = (struct heir) {
    .name = strdup (name),
    .size = v->size,
    .layer = find_layer (h, v->layer),
  };
  return heir->name ? 0 : nbdedup_fail (ENOMEM, "no memory");
}

static int
copy_names_locked (struct heirs *h, const struct volumes *vs)
{
  const struct volume *v;
  size_t i, j;

  assert_held (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    if (copy_name_locked (h, v) == -1)
      return -1;
    for (j = 0; j < v->snapshots.nr; ++j)
      if (copy_name_locked (h, v->snapshots.p[j]) == -1)
        return -1;
  }
  return 0;
}

struct heirs *
heirs_new (struct nbdedup_pool *pool)
{
  struct volumes *vs = pool->volumes;
  struct heirs *h = calloc (1, sizeof *h);
  int r;

  assert_held (&pool->admin);
  if (h == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  {
    WITH_LOCK (&vs->lock);
    r = copy_layers_locked (h, vs);
    if (r == 0)
      r = copy_names_locked (h, vs);
  }
  if (r == 0)
    return h;
  heirs_free (h);
  return NULL;
}

void
heirs_free (struct heirs *h)
{
  size_t i;

  if (h == NULL)
    return;
  for (i = 0; i < h->nr_names; ++i)
    free (h->names[i].name);
  free (h->names);
  free (h->layers);
  free (h->path);
  free (h);
}

/*----------------------------------------------------------------------
 * The search
 */

/* The blocks of the leaf below block 'end' of the volume. */
static uint64_t
blocks_below (uint64_t leaf, uint64_t end)
{
  const uint64_t first = leaf * LEAF_BLOCKS;

  if (end <= first)
    return 0;
  return end - first >= LEAF_BLOCKS ? UINT64_MAX
                                    : (UINT64_C (1) << (end - first)) - 1;
}

/* Of the blocks that a layer's parent shows, those that the layer shows. */
static int
show_through (const struct heirs *h, struct meta_conn *c,
              const struct heir_layer *l, uint64_t *shown)
{
  uint8_t buf[LEAF_LEN_MAX];
  struct leaf row;
  size_t len;
  unsigned i;
  int r;

  *shown &= blocks_below (h->leaf, l->overlap);
  if (*shown == 0)
    return 0;
  r = meta_leaf_get (c, l->branch, h->leaf, l->seq, buf, &len);
  if (r != 1)
    return r;
  if (leaf_unpack (buf, len, &row) == -1)
    return -1;
  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (row.state[i] != MAP_INHERIT)
      *shown &= ~(UINT64_C (1) << i);
  return 0;
}

/* Climb down to a layer that this search knows, and up again. */
static int
find_shown (struct heirs *h, struct meta_conn *c, struct heir_layer *l,
            uint64_t *shown)
{
  size_t n = 0;

  for (; l && l->search != h->search; l = l->parent)
    h->path[n++] = l;
  *shown = l ? l->shown : 0;
  while (n > 0) {
    l = h->path[--n];
    if (*shown != 0 && show_through (h, c, l, shown) == -1)
      return -1;
    l->shown = *shown;
    l->search = h->search;
  }
  return 0;
}

void
heirs_forget (struct heirs *h)
{
  size_t i;

  for (i = 0; i < h->nr_names; ++i)
    h->names[i].was_found = false;
}

uint32_t
heirs_begin (struct heirs *h, const struct meta_leaf_key *row, uint64_t blocks)
{
  struct heir_layer *l;
  size_t i;

  for (i = 0; i < h->nr_layers; ++i) {
    l = &h->layers[i];
    if (l->branch != row->branch || l->seq != row->seq)
      continue;
    l->search = ++h->search;
    l->shown = blocks;
    h->leaf = row->leaf;
    h->layer = l;
    h->next = 0;
    return l->block_size;
  }
  h->next = 2 * h->nr_names;
  return 0;
}

int
heirs_next (struct heirs *h, struct meta_conn *c, struct heir **heir,
            uint64_t *blocks)
{
  struct heir *name = NULL;
  bool is_first;

  while (name == NULL && h->next < 2 * h->nr_names) {
    is_first = h->next < h->nr_names;
    name = &h->names[h->next++ % h->nr_names];
    if (name->layer == NULL || (name->layer == h->layer) != is_first)
      name = NULL;
  }
  if (name == NULL)
    return 0;
  if (find_shown (h, c, name->layer, blocks) == -1)
    return -1;
  *blocks &= blocks_below (h->leaf,
                           name->size / h->layer->block_size +
                             (name->size % h->layer->block_size != 0));
  name->was_found |= *blocks != 0;
  *heir = name;
  return 1;
}

const struct heir *
heirs_all (const struct heirs *h, size_t *nr)
{
  *nr = h->nr_names;
  return h->names;
}
