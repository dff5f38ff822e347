/* SPDX-License-Identifier: BSD-3-Clause */

/* Tombstones.  A destroyed snapshot that is the origin of clones, or of
 * snapshots of clones, leaves a name, in a row without a layer.  The tombstone
 * keeps its own origin, so that the line back to a golden image does not
 * break, and is deleted with the last volume or snapshot whose origin it is.
 *
 * It records its layer as long as that is still the content of the snapshot:
 * drift compares the clones with it.  It does not hold the layer.  A layer
 * with two children or more does not change; with one it merges, takes the
 * child's content, and is not the snapshot any more.
 */

#include <config.h>

#include <assert.h>

#include "base/array.h"
#include "core/engine.h"
#include "meta/meta.h"
#include "volume/volume-int.h"

static int
add (struct tombstones *tombstones, struct volume *g)
{
  return array_push (&tombstones->p, &tombstones->nr, g);
}

/* A volume or snapshot leaves this origin: was it the last? */
static int
leave (struct volume *origin, struct tombstones *tombstones)
{
  assert (origin == NULL ||
          origin->nr_leaving < origin->nr_clones + origin->nr_heirs);
  if (origin == NULL ||
      ++origin->nr_leaving < origin->nr_clones + origin->nr_heirs ||
      origin->label == NULL)
    return 0;
  return add (tombstones, origin);
}

int
tombstones_collect (struct volume *const *leaving, size_t nr,
                    struct tombstones *tombstones)
{
  size_t i;
  int r = 0;

  for (i = 0; i < nr && r == 0; ++i)
    r = leave (leaving[i]->origin, tombstones);
  /* A deleted tombstone leaves its own origin, too: the array may grow. */
  for (i = 0; i < tombstones->nr && r == 0; ++i)
    r = leave (tombstones->p[i]->origin, tombstones);
  for (i = 0; i < nr; ++i)
    if (leaving[i]->origin)
      leaving[i]->origin->nr_leaving = 0;
  for (i = 0; i < tombstones->nr; ++i)
    if (tombstones->p[i]->origin)
      tombstones->p[i]->origin->nr_leaving = 0;
  return r;
}

int
tombstones_delete (const struct tombstones *tombstones, struct meta_conn *c)
{
  size_t i;

  for (i = 0; i < tombstones->nr; ++i)
    if (meta_snapshot_delete (c, tombstones->p[i]->id) == -1)
      return -1;
  return 0;
}

void
tombstones_drop_locked (struct volumes *vs, struct tombstones *tombstones)
{
  struct volume *g;
  size_t i;

  assert_held (&vs->lock);
  for (i = 0; i < tombstones->nr; ++i) {
    g = tombstones->p[i];
    assert (g->label != NULL && g->nr_clones + g->nr_heirs == 0);
    list_remove (&vs->tombstones, g);
    volume_set_origin_locked (g, NULL);
  }
  for (i = 0; i < tombstones->nr; ++i)
    volume_release_locked (tombstones->p[i]);
}

/* The layer that this tombstone has after the merge; 0: none. */
static uint64_t
remains_after (const struct volume *g, const struct layer *layer,
               const struct layer *child)
{
  return g->remains == layer->id ? 0
    : g->remains == child->id    ? layer->id
                                 : g->remains;
}

int
tombstones_put_merge (struct volumes *vs, struct meta_conn *c,
                      const struct layer *layer, const struct layer *child)
{
  struct meta_snapshot ms;
  struct volume *g;
  size_t i;

  for (i = 0; i < vs->tombstones.nr; ++i) {
    g = vs->tombstones.p[i];
    snapshot_to_meta (g, &ms);
    ms.layer = remains_after (g, layer, child);
    if (ms.layer != g->remains && meta_snapshot_put (c, &ms) == -1)
      return -1;
  }
  return 0;
}

void
tombstones_merge_locked (struct volumes *vs, const struct layer *layer,
                         const struct layer *child)
{
  struct volume *g;
  size_t i;

  assert_held (&vs->lock);
  for (i = 0; i < vs->tombstones.nr; ++i) {
    g = vs->tombstones.p[i];
    g->remains = remains_after (g, layer, child);
  }
}
