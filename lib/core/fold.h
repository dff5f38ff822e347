/* SPDX-License-Identifier: BSD-3-Clause */

/* The fold: one closed txg's effects, written to pool.db.
 *
 * Order, and what a crash after each step leaves behind:
 *
 *  1. summary slots of the new records are written to the store, then one
 *     fdatasync of it: pool.db is old, the journal has everything;
 *
 *  2. one transaction: maps, records, counts, index, space maps, and the
 *     number of the journal batch that it covers.  COMMIT syncs the WAL.
 *     Step 1 made every record durable that it names;
 *
 *  3. in memory: the journal's space is free, the changes leave the tables
 *     (fold_finish), and when no reader is left that could have seen an
 *     older state (quiesce_wait), the dead records' sectors are free.
 *
 * So no write overwrites what the last durable state needs: sectors are
 * reused only after a durable state that does not refer to them.
 */

#ifndef NBDEDUP_FOLD_H
#define NBDEDUP_FOLD_H

#include "core/txg.h"

struct fold;

/* Collect the folding txg's changes.  'state' is the row to be stored; the
 * fold updates its totals.  NULL: ENOMEM.
 */
extern struct fold *fold_new (const struct txg_parts *parts, struct room *room,
                              const struct meta_state *state);
extern void fold_free (struct fold *f);

/* Step 1; fold-summary.c. */
extern int fold_write_summaries (struct fold *f);

/* Step 2 without BEGIN and COMMIT; may be repeated after a rollback.  If
 * 'with_index' is false it skips the hash index: that can be rebuilt, and
 * damage to it must not stop the pool.
 */
extern int
fold_write_tables (struct fold *f, struct meta_conn *c, bool with_index);

/* Free or move so many leaves in the background, besides the txg's changes:
 * as many as the WAL has room for.
 */
extern void fold_set_background (struct fold *f, unsigned rows, uint64_t pages);

/* Let merges of the hash index write so many pages.  They need not go on in
 * each fold, and a pool without room for them has none.
 */
extern void fold_set_merge_pages (struct fold *f, uint64_t pages);
/* How many they would need for all that is due. */
extern uint64_t fold_wanted_merge_pages (const struct fold *f);

/* Did damage in the hash index make the fold fail? */
extern bool fold_index_is_damaged (struct fold *f);

/* Did damage in the table of copies?  Then no later attempt uses that table:
 * space may stay in use until "check --repair".
 */
extern bool fold_copies_are_damaged (struct fold *f);

/* Did the fold fail because the tables contradict each other, or cannot be
 * read, and not because of a write?
 */
extern bool fold_is_inconsistent (const struct fold *f);
extern void fold_set_inconsistent (struct fold *f);
/* As txg_parts.repairing, for the next attempt. */
extern void fold_set_repairing (struct fold *f, bool repairing);

/* The merges of the hash index after this fold, for functions that change it
 * inside the transaction.
 */
extern struct index_merges *fold_merges (struct fold *f);

/* The last commit has these features now. */
extern void fold_set_features (struct fold *f, uint64_t features_compat);

/* The row with this fold's totals, for requests inside its transaction. */
extern struct meta_state *fold_state (struct fold *f);

/* The transaction with the tables was rolled back: no record has died. */
extern void fold_rolled_back (struct fold *f);

/* Step 3, after the commit. */
extern void fold_finish (struct fold *f);

/* May the next fold change the index all over, instead of adding a run?  It
 * does while records are lost, and when there are too many runs.  'before':
 * what this function said of the last fold.
 */
extern bool fold_index_is_in_place (const struct fold *f, bool before);

/* How many sectors do the records take that die in this fold? */
extern uint64_t fold_freed_sectors (const struct fold *f);

/* Is there background work left for the next fold? */
extern bool fold_has_more (struct fold *f);
/* Rows that background work has changed in this one. */
extern unsigned fold_background_done (const struct fold *f);
/* Has it merged deltas into leaves, which no change was promised? */
extern bool fold_has_merged (const struct fold *f);

#endif /* NBDEDUP_FOLD_H */
