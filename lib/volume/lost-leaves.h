/* SPDX-License-Identifier: BSD-3-Clause */

/* Leaves of the maps that a repair has found lost since the pool was opened
 * (mend.h), until "check" reports them (mend_take).
 *
 * Threads: any.
 */

#ifndef NBDEDUP_LOST_LEAVES_H
#define NBDEDUP_LOST_LEAVES_H

#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"

struct layer;

struct lost_leaves {
  struct lock lock; /* protects the rest */
  struct lost_range {
    struct layer *layer; /* NULL: deleted */
    uint64_t leaf, count;
  } *p; /* owned */
  size_t nr;
  uint64_t blocks; /* in all */
};

/* NULL on failure. */
extern struct lost_leaves *lost_leaves_new (void);
/* NULL is allowed. */
extern void lost_leaves_free (struct lost_leaves *lost);

/* Add 'count' leaves of a layer from 'leaf' on, which have 'blocks' blocks. */
extern int lost_leaves_note (struct lost_leaves *lost, struct layer *layer,
                             uint64_t leaf, uint64_t count, uint64_t blocks);

/* The layer's struct is about to be freed; no other layer is above it. */
extern void
lost_leaves_forget_layer (struct lost_leaves *lost, const struct layer *layer);

#endif /* NBDEDUP_LOST_LEAVES_H */
