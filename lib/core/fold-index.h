/* SPDX-License-Identifier: BSD-3-Clause */

/* The fold's changes of the hash index (meta-index.h).
 *
 * Digests are random, so the changes of one fold touch as many rows as there
 * are changes: an index of one run would be written again by nearly every
 * fold.  Instead the fold writes its changes as a run of their own, and merges
 * runs of about the same size when there are INDEX_MERGE of them, as tiered
 * compaction does (LevelDB's and Cassandra's word), and smaller ones with them.
 * So an entry is written less than once for each level, and a run is read and
 * written in its order.
 *
 * A run's level says how many entries it has: level 0 fewer than
 * INDEX_LEVEL_ENTRIES * INDEX_MERGE, each other one INDEX_MERGE times as many.
 *
 * A merge goes on over many folds.  Each one moves a bounded number of entries,
 * the lowest ones first, from the runs that are merged to the new one, in its
 * transaction.  So an entry is in exactly one run at any time, and a merge that
 * a crash or a failed fold ends has lost nothing.
 *
 * What merges are under way is in memory only (struct index_merges).  The first
 * merge of a session reads it from the runs: the output of a merge has all that
 * comes before its inputs.  If each session began its merges again, with a new
 * output, each would leave its output as one more run, and sessions that are
 * shorter than a merge would never end it.
 */

#ifndef NBDEDUP_FOLD_INDEX_H
#define NBDEDUP_FOLD_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"
#include "meta/meta-index.h"
#include "meta/meta.h"

#define INDEX_MERGE 4u
#define INDEX_LEVEL_ENTRIES 4096u
/* Entries that a step of a merge has in memory. */
#define INDEX_STEP_ENTRIES 16384u

/* A merge of runs of one level. */
struct index_merge {
  struct index_runs inputs; /* none: there is no merge */
  unsigned output;
  uint64_t left;   /* entries of the inputs, as far as is known */
  uint64_t credit; /* entries that it may move */
};

struct index_merges {
  struct index_merge levels[INDEX_LEVELS];
  struct index_merge all; /* one of all runs, most of which cancels */
  bool due;               /* since the last run none was begun */
  bool shrink;            /* next, merge all runs */
  bool surveyed;          /* what the last session left is known */
  /* Of each run, removals too; estimated, if an earlier session wrote it.  0:
   * not known yet, or there is no such run.
   */
  uint64_t entries[INDEX_RUNS];
};

/* Add the entries of 'ops' to the index, or remove those that are marked so,
 * in a run of their own.  Adjusts '*nr_entries', the sum of all.  Changes
 * 'ops'.  'merges' may be NULL.
 *
 * In a run of their own removals take room until a merge meets what they
 * remove.  'in_place': take it out of the runs at once, which searches each of
 * them, but lets the index shrink, and drops a removal of what the index has
 * lost.
 */
extern int fold_index (struct meta_conn *c, struct index_entry *ops, size_t nr,
                       uint64_t *nr_entries, struct index_merges *merges,
                       bool in_place);

/* Begin the merges that are due, and move 'nr' entries of each on average,
 * 'max' of all.  A large merge moves INDEX_STEP_ENTRIES at once, so that many
 * small folds cost no more than a large one.  'nr_entries' as above.
 */
extern int fold_index_merge (struct meta_conn *c, struct index_merges *merges,
                             uint64_t nr, uint64_t max, uint64_t nr_entries);

/* Is a merge under way, or may one be due? */
extern bool fold_index_is_merging (const struct index_merges *merges);
/* The entries that merges under way have not moved yet, as far as is known. */
extern uint64_t fold_index_left (const struct index_merges *merges);
/* The same for one of all runs. */
extern bool fold_index_is_shrinking (const struct index_merges *merges);

#endif /* NBDEDUP_FOLD_INDEX_H */
