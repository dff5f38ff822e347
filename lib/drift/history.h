/* SPDX-License-Identifier: BSD-3-Clause */

/* The history of drift: samples in pool.db.
 *
 * A sample is the document of one golden image (drift.h) as it was at one
 * time, kept by the golden image's id, which is never used again: it keeps
 * its samples when it is renamed, and they stay when it is destroyed.
 *
 * Samples are ordered by their own id, as they were recorded: a clock that
 * is set back changes no order.  What grows old is thinned (retention.h) by the
 * property "drift-keep", of a golden image's samples in the transaction
 * that records a new one.
 *
 * None of these is called with pool->admin held.
 */

#ifndef NBDEDUP_HISTORY_H
#define NBDEDUP_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "drift/drift.h"
#include "nbdedup.h"

/* More of a document is damage: a million clones. */
#define SAMPLE_LENGTH_MAX (UINT64_C (256) << 20)

/* As drift_run; what it returns has been recorded, and is durable.  'asked':
 * a user requested this sample, so thinning prefers to keep it (retention.h).
 * ENOSPC: what the pool has in reserve is not used for this.
 */
extern json_t *history_drift (struct nbdedup_pool *pool,
                              struct drift_golden which,
                              uint64_t memory_bytes, bool asked,
                              nbdedup_progress_fn *progress, void *opaque);

/* {"samples": [documents, oldest first]}: all, or those of a snapshot that
 * exists, or those that had this name, with or without " (destroyed)" behind
 * it, of snapshots that do not.  ENOENT: neither the one nor the other; EIO:
 * one of them is damaged.
 *
 * A long history comes in parts of about HISTORY_PART_BYTES of text: while
 * there is more the result has "next", which is 'after' of the next call (0
 * in the first).
 */
#define HISTORY_PART_BYTES (UINT64_C (16) << 20)
extern json_t *history_get (struct nbdedup_pool *pool, const char *name,
                            uint64_t after,
                            nbdedup_progress_fn *progress, void *opaque);

/* The same of the newest sample of each golden image that has clones now, by
 * id, under the name that it has now.  'after' is the id of one of these.
 */
extern json_t *history_newest (struct nbdedup_pool *pool, uint64_t after,
                               nbdedup_progress_fn *progress, void *opaque);

/* When the newest sample of this golden image was taken: 1, 0 (there is
 * none) or -1.
 */
extern int history_last (struct nbdedup_pool *pool, uint64_t golden,
                         uint64_t *time_s);

/* Is each sample readable in the state that 'c' is frozen at?  'wrong' gets
 * a text for each that is not; ids are below 'next_id'.
 */
struct meta_conn;
extern int history_check (struct meta_conn *c, uint64_t next_id,
                          int (*step) (void *opaque),
                          void (*wrong) (void *opaque, const char *text),
                          void *opaque);

#endif /* NBDEDUP_HISTORY_H */
