/* SPDX-License-Identifier: BSD-3-Clause */

/* Golden images in a view: the snapshots that have clones.  A destroyed one
 * stays as long as a clone of it lives.
 *
 * Its exact content remains as long as its layer has two children or more
 * (tombstone.c).  When one is left, that child merges with the layer, and the
 * image's blocks cannot be told from those that the clone has written since.
 * The oldest state that all its clones have in common stands for it then.
 */

#ifndef NBDEDUP_GOLDEN_H
#define NBDEDUP_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "drift/drift-int.h"
#include "drift/view.h"

/* By name, then by id; the caller frees the array. */
extern struct view_name **goldens_find (struct view *v, size_t *nr);

/* The snapshot of this id, which may have no clones.  NULL: ENOENT. */
extern struct view_name *golden_find_id (struct view *v, uint64_t id);

/* The snapshot "vol@snap".  If it does not exist: the newest destroyed one of
 * that name that has clones.  With " (destroyed)" after the name, only
 * destroyed ones.  NULL: ENOENT, EINVAL (a volume's name).
 */
extern struct view_name *golden_find (struct view *v, const char *name);

/* The layer whose content stands for a destroyed golden image in a comparison
 * with its clones, members 1 .. nr - 1 (one at least).  NULL: EIO.
 */
extern struct view_layer *golden_of_clones (const struct view *v,
                                            const struct drift_member *members,
                                            uint32_t nr);

#endif /* NBDEDUP_GOLDEN_H */
