/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_REBASE_H
#define NBDEDUP_REBASE_H

#include "nbdedup.h"

/* Make a volume inherit from 'snapshot', without a change of its content.
 * With 'dry_run' only compute how much that would save.  Under pool->admin.
 * The result is that of "rebase" in command.h; NULL: error.
 */
extern json_t *rebase_run (struct nbdedup_pool *pool, const char *name,
                           const char *snapshot, bool dry_run,
                           nbdedup_progress_fn *progress, void *opaque);

#endif /* NBDEDUP_REBASE_H */
