/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_DIFF_H
#define NBDEDUP_DIFF_H

#include "nbdedup.h"

/* The extents in which two snapshots of equal block size differ, up to the
 * larger one's end; past its end the smaller one counts as zeroes.  Extents
 * are whole blocks (the last one is cut at the end), neighbours of one kind
 * joined.  The function compares contents: records with equal digests are
 * equal.  The result is that of "diff" in command.h; NULL: error, EBUSY as for
 * view_check.
 *
 * It works on a view, so other commands run beside it, and may destroy the
 * snapshots.  It takes pool->admin while it begins.
 */
extern json_t *diff_run (struct nbdedup_pool *pool, const char *from,
                         const char *to, nbdedup_progress_fn *progress,
                         void *opaque);

#endif /* NBDEDUP_DIFF_H */
