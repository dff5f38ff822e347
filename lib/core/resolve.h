/* SPDX-License-Identifier: BSD-3-Clause */

/* A leaf as a stack of frozen layers shows it, read from pool.db: one
 * descending range scan per run (layer.h), however many layers it has.
 */

#ifndef NBDEDUP_RESOLVE_H
#define NBDEDUP_RESOLVE_H

#include "format/format.h"
#include "format/layer.h"
#include "meta/meta.h"

/* Fill in the blocks of 'out' that are MAP_INHERIT and lie below 'limit'
 * (a block's number) from 'layer' and the layers below it.  A block that all
 * of them inherit becomes MAP_HOLE: no MAP_INHERIT is left.  'layer' may be
 * NULL.  -1: EIO.
 *
 * For readers that run beside a merge the order matters: the function reads
 * an upper layer's rows before those of the layer below it.
 */
extern int resolve_leaf (struct meta_conn *c, struct layer *layer,
                         uint64_t leaf, uint64_t limit, struct leaf *out);

/* The first leaf from 'first' on for which the layer or one below it may have
 * a row.  1, 0: there is none, -1.
 */
extern int resolve_next_leaf (struct meta_conn *c, struct layer *layer,
                              uint64_t first, uint64_t *leaf);

#endif /* NBDEDUP_RESOLVE_H */
