/* SPDX-License-Identifier: BSD-3-Clause */

/* Golden images in a view: the snapshots that have clones.  A destroyed one
 * stays as long as a clone of it lives.
 *
 * Its content is still there, exactly, as long as two layers or more stand on
 * its layer (tombstone.c).  When one is left that layer has merged with it:
 * what was the image's and what the clone has written since cannot be told
 * apart.  The oldest state that all its clones have in common stands for it
 * then.
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

/* The snapshot "vol@snap".  If there is none: of the destroyed ones that have
 * clones and were called so, the newest.  With " (destroyed)" behind it, only
 * those.  NULL: ENOENT, EINVAL (a volume's name).
 */
extern struct view_name *golden_find (struct view *v, const char *name);

/* The layer whose content stands for a destroyed golden image in a comparison
 * with its clones, members 1 .. nr - 1 (one at least).  NULL: EIO.
 */
extern struct view_layer *golden_of_clones (const struct view *v,
                                            const struct drift_member *members,
                                            uint32_t nr);

#endif /* NBDEDUP_GOLDEN_H */
