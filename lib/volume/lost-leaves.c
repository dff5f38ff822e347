/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "volume/lost-leaves.h"

struct lost_leaves *
lost_leaves_new (void)
{
  struct lost_leaves *lost = calloc (1, sizeof *lost);

  if (lost == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  lock_init (&lost->lock);
  return lost;
}

void
lost_leaves_free (struct lost_leaves *lost)
{
  if (lost == NULL)
    return;
  free (lost->p);
  lock_destroy (&lost->lock);
  free (lost);
}

int
lost_leaves_note (struct lost_leaves *lost, struct layer *layer, uint64_t leaf,
                  uint64_t count, uint64_t blocks)
{
  assert (layer != NULL && count > 0);
  WITH_LOCK (&lost->lock);
  lost->blocks += blocks;
  return array_push (&lost->p, &lost->nr,
                     (struct lost_range) { layer, leaf, count });
}

void
lost_leaves_forget_layer (struct lost_leaves *lost, const struct layer *layer)
{
  size_t i;

  WITH_LOCK (&lost->lock);
  for (i = 0; i < lost->nr; ++i)
    if (lost->p[i].layer == layer)
      lost->p[i].layer = NULL;
}
