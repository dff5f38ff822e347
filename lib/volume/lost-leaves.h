/* SPDX-License-Identifier: BSD-3-Clause */

/* Leaves of the maps that a repair since the open found to be lost (mend.h),
 * until "check" has told them (mend_take).
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
  struct lock lock;             /* protects the rest */
  struct lost_range {
    struct layer *layer;        /* NULL: it is gone */
    uint64_t leaf, count;
  } *p;                         /* owned */
  size_t nr;
  uint64_t blocks;              /* in all */
};

/* NULL on failure. */
extern struct lost_leaves *lost_leaves_new (void);
/* NULL is allowed. */
extern void lost_leaves_free (struct lost_leaves *lost);

/* A layer's leaves, with so many blocks. */
extern int lost_leaves_note (struct lost_leaves *lost, struct layer *layer,
                             uint64_t leaf, uint64_t count, uint64_t blocks);

/* Nothing stands on that layer any more, and its struct is about to go. */
extern void lost_leaves_forget_layer (struct lost_leaves *lost,
                                      const struct layer *layer);

#endif /* NBDEDUP_LOST_LEAVES_H */
