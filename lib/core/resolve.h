/* SPDX-License-Identifier: BSD-3-Clause */

/* What a stack of frozen layers says of a leaf, read from pool.db: one
 * descending range scan per run (layer.h), however many layers it has.
 */

#ifndef NBDEDUP_RESOLVE_H
#define NBDEDUP_RESOLVE_H

#include "format/format.h"
#include "format/layer.h"
#include "meta/meta.h"

/* Fill in the blocks of 'out' that are MAP_INHERIT and lie below 'limit'
 * (a block's number) from 'layer' and what it stands on.  What no
 * layer says anything about becomes MAP_HOLE: no MAP_INHERIT is left.  'layer'
 * may be NULL.  -1: EIO.
 *
 * Order matters to readers that run beside a merge: an upper layer's rows
 * are read before those of the layer below it.
 */
extern int resolve_leaf (struct meta_conn *c, struct layer *layer,
                         uint64_t leaf, uint64_t limit, struct leaf *out);

/* The first leaf from 'first' on about which the layer or one below it may
 * say something.  1, 0: there is none, -1.
 */
extern int resolve_next_leaf (struct meta_conn *c, struct layer *layer,
                              uint64_t first, uint64_t *leaf);

#endif /* NBDEDUP_RESOLVE_H */
