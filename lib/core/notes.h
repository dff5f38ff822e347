/* SPDX-License-Identifier: BSD-3-Clause */

/* A pool's notes about its own past, besides its data: the times of its folds,
 * which give the age of records, and the number of blocks that ddt-quota kept
 * out of the hash index.  Reports of pool.db (meta_report_put) hold it.
 *
 * Each fold writes what is new, in its transaction, as a function of its own
 * that may fail alone: damage to these rows, or a lack of room for them, stops
 * nothing.  The journal says which of its records count, so after a crash the
 * counts are those of the writes that survived it.  They lack what folds could
 * not write since the last one that could, and what a damaged batch had.
 *
 * The times are few, however old the pool is: retention leaves gaps of up to an
 * eighth of their age.  A record may seem younger by so much, never older, as
 * long as the clock is right when someone asks.  While the clock is wrong, fast
 * or slow, folds get wrong times; those that can be told from the others count
 * as unknown, and records seem younger.  A slow clock can be told if it shows a
 * time before one that the pool has.
 *
 * Threads: any, if not stated otherwise; a lock of its own, innermost.
 */

#ifndef NBDEDUP_NOTES_H
#define NBDEDUP_NOTES_H

#include <stdbool.h>
#include <stdint.h>

#include "meta/meta.h"

struct notes;

/* NULL: ENOMEM. */
extern struct notes *notes_new (void);
extern void notes_free (struct notes *notes);

/* Read what pool.db has, before the first fold.  What cannot be read counts as
 * not there.
 */
extern void notes_load (struct notes *notes, struct meta_conn *c);

/* New blocks are stored without dedup, because the index is over its quota.
 * Inside a txg, to which the count belongs; or the journal is being replayed.
 */
extern void
notes_add_over_quota (struct notes *notes, uint64_t blocks, uint64_t bytes);
struct notes_quota {
  uint64_t blocks, bytes; /* since the pool was made */
};
extern void notes_get_quota (struct notes *notes, struct notes_quota *quota);

/* A fold at least 'age_s' seconds ago, the last one of which that is known: 1;
 * 0: there is none.
 */
extern int
notes_fold_of_age (struct notes *notes, uint64_t age_s, uint64_t *fold);

/*----------------------------------------------------------------------
 * For the folding thread
 */

/* A fold begins, with no thread inside the txg: may it write? */
extern bool notes_is_due (struct notes *notes);
/* It adds records, whose birth it is.  NULL is allowed. */
extern void notes_new_records (struct notes *notes);

/* Write it; 'state' is the row that the transaction stores. */
extern int notes_put (struct notes *notes, struct meta_conn *c,
                      const struct meta_state *state);

/* The transaction is durable. */
extern void notes_done (struct notes *notes);

#endif /* NBDEDUP_NOTES_H */
