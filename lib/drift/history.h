/* SPDX-License-Identifier: BSD-3-Clause */

/* The history of drift: samples in pool.db.
 *
 * A sample is the document of one golden image (drift.h) at one time, stored
 * under the golden image's id, which is never reused: the samples survive a
 * rename and the destruction of the image.
 *
 * Samples are ordered by their own ids, as they were recorded, so a clock that
 * is set back does not change the order.  The transaction that records a new
 * sample of a golden image also thins its old ones (retention.h), by the
 * property "drift-keep".
 *
 * The caller of these must not hold pool->admin.
 */

#ifndef NBDEDUP_HISTORY_H
#define NBDEDUP_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "drift/drift.h"
#include "nbdedup.h"

/* The pool's used bytes, in a recorded document. */
#define POOL_USED "pool_used_bytes"

/* A longer document is damaged: this is enough for a million clones. */
#define SAMPLE_LENGTH_MAX (UINT64_C (256) << 20)

/* As drift_run, and record the result durably.  'asked': a user requested this
 * sample, so thinning prefers to keep it (retention.h).  ENOSPC: samples do not
 * use the pool's reserve.
 *
 * A recorded document also has "pool_used_bytes", for the forecast of the
 * pool's fill; users do not see it.  The same transaction updates the alerts
 * (alert.h).
 */
extern json_t *history_drift (struct nbdedup_pool *pool,
                              struct drift_golden which, uint64_t memory_bytes,
                              bool asked, nbdedup_progress_fn *progress,
                              void *opaque);

/* {"samples": [documents, oldest first]}: all, or those of one golden image.
 * An id stands for itself.  A name is that of an existing snapshot, else of the
 * newest destroyed one that still has clones, else it is the name, with or
 * without " (destroyed)" after it, under which samples were recorded.  ENOENT:
 * there is none of these; EIO: a sample is damaged.
 *
 * A long history comes in parts of about HISTORY_PART_BYTES of text: while
 * there is more the result has "next", which is 'after' of the next call (0
 * in the first).
 */
#define HISTORY_PART_BYTES (UINT64_C (16) << 20)
extern json_t *history_get (struct nbdedup_pool *pool,
                            struct drift_golden which, uint64_t after,
                            nbdedup_progress_fn *progress, void *opaque);

/* The same for the newest sample of each golden image that has clones now, by
 * id, under its present name.  'after' is the id of one of these.
 */
extern json_t *history_newest (struct nbdedup_pool *pool, uint64_t after,
                               nbdedup_progress_fn *progress, void *opaque);

/* Call 'fn' for each sample of this golden image whose id is above 'after', in
 * recorded order, as it was recorded.  'fn' returns 0, 1 to stop, or -1.
 * Damaged samples are left out.
 */
extern int
history_each (struct nbdedup_pool *pool, uint64_t golden, uint64_t after,
              int (*fn) (void *opaque, json_t *document), void *opaque);

/* The same for at most 'most' + 1 samples, spread over the history: the first
 * of each of so many equal intervals of time, and the newest.
 */
extern int
history_spread (struct nbdedup_pool *pool, uint64_t golden, size_t most,
                int (*fn) (void *opaque, json_t *document), void *opaque);

/* The newest one, as it was recorded.  ENOENT: there is none, or it is damaged.
 */
extern json_t *history_newest_of (struct nbdedup_pool *pool, uint64_t golden);

/* When the newest sample of this golden image was taken: 1, 0 (there is
 * none) or -1.
 */
extern int
history_last (struct nbdedup_pool *pool, uint64_t golden, uint64_t *time_s);

/* Check that each sample is readable in the state that 'c' is frozen at.
 * Calls 'wrong' with a text for each that is not; ids are below 'next_id'.
 */
struct meta_conn;
extern int history_check (struct meta_conn *c, uint64_t next_id,
                          int (*step) (void *opaque),
                          void (*wrong) (void *opaque, const char *text),
                          void *opaque);

#endif /* NBDEDUP_HISTORY_H */
