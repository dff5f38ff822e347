/* SPDX-License-Identifier: BSD-3-Clause */

/* Prune: remove from the hash index the entries of old records that have one
 * reference.  The records and their data stay; content that is written again
 * later is stored a second time.
 *
 * Prune scans table "record" in order of addresses, and learns each record's
 * age from the fold of its birth, which its summary has, and from the pool's
 * notes (core/notes.h).  It hands what it finds to the folding thread, a
 * bounded number of groups of records at once.  In one transaction, that one
 * looks at each record again, asks the dedup table (ddt_try_prune), clears
 * RECORD_INDEXED and removes the entry.  So after a crash each record has its
 * entry and the flag, or neither, and prune can be repeated.
 *
 * Removed entries take room in the index until it is merged (fold-index.h);
 * prune asks for that at its end, and waits.
 */

#ifndef NBDEDUP_PRUNE_H
#define NBDEDUP_PRUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "nbdedup.h"

struct prune_args {
  bool has_age;
  uint64_t age_s;   /* at least so old; 0: all */
  uint64_t percent; /* without 'has_age': the oldest, 1 .. 100 */
  bool dry_run;
};

/* {"entries_before", "entries_after", "pruned_entries"}; NULL: an error, and
 * what was pruned before it stays so.  The caller does not hold pool->admin,
 * which each step takes.
 */
extern json_t *prune_run (struct nbdedup_pool *pool,
                          const struct prune_args *args,
                          nbdedup_progress_fn *progress, void *opaque);

#endif /* NBDEDUP_PRUNE_H */
