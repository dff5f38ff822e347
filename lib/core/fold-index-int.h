/* SPDX-License-Identifier: BSD-3-Clause */

/* What the sources of fold-index.h share. */

#ifndef NBDEDUP_FOLD_INDEX_INT_H
#define NBDEDUP_FOLD_INDEX_INT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/fold-index.h"

extern bool index_merge_is_active (const struct index_merge *m);

/* Entries of a run. */
extern uint64_t
index_entries_of (const struct index_merges *merges, unsigned run);

/* Those of 'runs' that have no part in a merge and are of these levels, by
 * their sizes.
 */
extern struct index_runs index_idle_runs (const struct index_merges *merges,
                                          const struct index_runs *runs,
                                          unsigned first, unsigned last);

/* Once in a session, before its first merge: estimate the entries of each run,
 * and go on with the merges that were under way when the pool was closed.
 */
extern int index_merges_resume (struct meta_conn *c,
                                struct index_merges *merges,
                                const struct index_runs *runs);

#endif /* NBDEDUP_FOLD_INDEX_INT_H */
