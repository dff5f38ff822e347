/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_REBASE_H
#define NBDEDUP_REBASE_H

#include "nbdedup.h"

/* Let a volume inherit from 'snapshot' from now on; its content stays.  Only
 * say what that would save if 'dry_run'.  Under pool->admin.  The result is
 * that of "rebase" in command.h; NULL: error.
 */
extern json_t *rebase_run (struct nbdedup_pool *pool, const char *name,
                           const char *snapshot, bool dry_run,
                           nbdedup_progress_fn *progress, void *opaque);

#endif /* NBDEDUP_REBASE_H */
