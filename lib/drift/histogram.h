/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_HISTOGRAM_H
#define NBDEDUP_HISTOGRAM_H

#include "nbdedup.h"

/* The histogram that "stat" adds with "ddt": how many records have how many
 * references.  Of the pool, and with 'name' also of a volume, or of a snapshot
 * and its clones.  Not under pool->admin.
 */
extern int histogram_add (struct nbdedup_pool *pool, const char *name,
                          json_t *stat, nbdedup_progress_fn *progress,
                          void *opaque);

#endif /* NBDEDUP_HISTOGRAM_H */
