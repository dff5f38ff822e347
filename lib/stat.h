/* SPDX-License-Identifier: BSD-3-Clause */

/* stat and list: figures of a fold that covers all answered writes. */

#ifndef NBDEDUP_STAT_H
#define NBDEDUP_STAT_H

#include "nbdedup.h"

/* What the files of the pool directory take, without "records". */
extern uint64_t pool_metadata_bytes (const char *path);

/* The figures of "stat".  'name': a volume, or a snapshot, whose clones are
 * meant; NULL: all volumes.
 */
extern json_t *stat_run (struct nbdedup_pool *pool, const char *name);
/* What "stat" adds with "ddt": how many records are referred to how often.
 * Of the pool, and with 'name' also of a volume, or of a snapshot and its
 * clones.  Not under pool->admin.  (histogram.c)
 */
extern int histogram_add (struct nbdedup_pool *pool, const char *name,
                          json_t *stat, nbdedup_progress_fn *progress,
                          void *opaque);
extern json_t *list_run (struct nbdedup_pool *pool);

#endif /* NBDEDUP_STAT_H */
