/* SPDX-License-Identifier: BSD-3-Clause */

/* What a destroyed snapshot leaves behind if it is the origin of clones: a
 * name, in a row without a layer.  It keeps its volume's origin, so that the
 * line back to a golden image does not break, and goes with the last of
 * those that have it as origin.
 */

#include <config.h>

#include <stdlib.h>

#include "error.h"
#include "pool.h"
#include "volume-int.h"

int
ghosts_collect (const struct volume *last, struct ghosts *ghosts)
{
  struct volume *g, **p;

  for (g = last->origin; g && g->label && g->nr_clones == 1; g = g->origin) {
    p = realloc (ghosts->p, (ghosts->nr + 1) * sizeof *p);
    if (p == NULL)
      return nbdedup_fail (ENOMEM, "no memory");
    ghosts->p = p;
    p[ghosts->nr++] = g;
  }
  return 0;
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
    if (g->origin)
      g->origin->nr_clones--;
  }
  for (i = 0; i < ghosts->nr; ++i)
    volume_release_locked (ghosts->p[i]);
}
