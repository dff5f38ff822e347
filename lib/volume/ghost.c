/* SPDX-License-Identifier: BSD-3-Clause */

/* What a destroyed snapshot leaves behind if it is the origin of clones, or
 * of snapshots of clones: a name, in a row without a layer.  It keeps its
 * own origin, so that the line back to a golden image does not break, and
 * goes with the last of those that have it as origin.
 */

#include <config.h>

#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "core/engine.h"
#include "meta/meta.h"
#include "volume/volume-int.h"

static int
add (struct ghosts *ghosts, struct volume *g)
{
  struct volume **p = array_add (&ghosts->p, &ghosts->nr, sizeof *p);

  if (p == NULL)
    return -1;
  *p = g;
  return 0;
}

/* One less has this origin: was it the last? */
static int
leave (struct volume *origin, struct ghosts *ghosts)
{
  if (origin == NULL ||
      ++origin->nr_leaving < origin->nr_clones + origin->nr_heirs ||
      origin->label == NULL)
    return 0;
  return add (ghosts, origin);
}

int
ghosts_collect (struct volume *const *leaving, size_t nr,
                struct ghosts *ghosts)
{
  size_t i;
  int r = 0;

  for (i = 0; i < nr && r == 0; ++i)
    r = leave (leaving[i]->origin, ghosts);
  /* A ghost that goes lets go of its own origin: the array may grow. */
  for (i = 0; i < ghosts->nr && r == 0; ++i)
    r = leave (ghosts->p[i]->origin, ghosts);
  for (i = 0; i < nr; ++i)
    if (leaving[i]->origin)
      leaving[i]->origin->nr_leaving = 0;
  for (i = 0; i < ghosts->nr; ++i)
    if (ghosts->p[i]->origin)
      ghosts->p[i]->origin->nr_leaving = 0;
  return r;
}

int
ghosts_delete (const struct ghosts *ghosts, struct meta_conn *c)
{
  size_t i;

  for (i = 0; i < ghosts->nr; ++i)
    if (meta_snapshot_delete (c, ghosts->p[i]->id) == -1)
      return -1;
  return 0;
}

void
ghosts_drop_locked (struct ghosts *ghosts)
{
  struct volume *g;
  size_t i;

  for (i = 0; i < ghosts->nr; ++i) {
    g = ghosts->p[i];
    list_remove (&g->pool->volumes->ghosts, g);
    volume_set_origin_locked (g, NULL);
  }
  for (i = 0; i < ghosts->nr; ++i)
    volume_release_locked (ghosts->p[i]);
}
