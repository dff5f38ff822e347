/* SPDX-License-Identifier: BSD-3-Clause */

/* The registry of an open pool's layers (layer.h).
 *
 * Functions with "_locked" need volumes->lock.  Those that change the
 * structure may be called only before the folding thread starts, or from
 * txg_run's 'done' callbacks.
 */

#ifndef NBDEDUP_VOLUME_LAYERS_H
#define NBDEDUP_VOLUME_LAYERS_H

#include "volume/volume.h"

/* Make room for 'nr' more, so that layers_add_locked cannot fail. */
extern int layers_reserve (struct volumes *vs, size_t nr);
/* A layer with the row's fields, not in the registry yet. */
extern struct layer *layer_new (const struct meta_layer *ml);
/* Add it as a child of 'parent'.  Takes ownership. */
extern void layers_add_locked (struct volumes *vs, struct layer *layer,
                               struct layer *parent);

/* Place a new layer on 'parent' (NULL: none): in the parent's branch, or in a
 * new one.
 */
extern void layers_place_locked (struct volumes *vs, struct layer *parent,
                                 struct meta_layer *ml);

/* Compute every layer's run again. */
extern void layers_relink_locked (struct volumes *vs);

/* Start the work on nameless layers: those without children die, those with
 * one child merge.
 */
extern void layers_settle (struct volumes *vs);

/* The layer's row is deleted.  Its struct stays: a reader may hold it. */
extern void layers_gone_locked (struct volumes *vs, struct layer *layer);
/* Are there enough such structs to justify a fold? */
extern bool layers_want_collecting (struct volumes *vs);
/* Free those that no reader and no struct volume holds.  Under pool->admin;
 * waits for a fold.
 */
extern void layers_collect (struct volumes *vs);

#endif /* NBDEDUP_VOLUME_LAYERS_H */
