/* SPDX-License-Identifier: BSD-3-Clause */

/* The rows of the hash index: table "ddt".
 *
 * The index is a set of sorted runs, as a log-structured merge tree has them
 * (O'Neil and others: The Log-Structured Merge-Tree, 1996).  Each fold writes
 * its changes as a new run, and merges move entries, in key order, from
 * several runs to a larger one (fold-index.h).
 *
 * An entry is in the index if more entries of all runs add it than remove it.
 * So the order of the runs does not matter, and neither does which of them are
 * merged.
 *
 * A row's key is the number of its run and the upper bits of its lowest
 * prefix (INDEX_KEY).  The row holds the run's entries from there up to the
 * run's next row.  A run without rows does not exist.
 */

#ifndef NBDEDUP_META_INDEX_H
#define NBDEDUP_META_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"
#include "meta/meta.h"

/* A set of runs. */
struct index_runs {
  uint64_t bits[INDEX_RUNS / 64];
};

static inline bool
index_runs_has (const struct index_runs *runs, unsigned run)
{
  return runs->bits[run / 64] >> run % 64 & 1;
}

static inline unsigned
index_runs_count (const struct index_runs *runs)
{
  return (unsigned) (__builtin_popcountll (runs->bits[0]) +
                     __builtin_popcountll (runs->bits[1]));
}

static inline void
index_runs_add (struct index_runs *runs, unsigned run)
{
  runs->bits[run / 64] |= UINT64_C (1) << run % 64;
}

static inline void
index_runs_remove (struct index_runs *runs, unsigned run)
{
  runs->bits[run / 64] &= ~(UINT64_C (1) << run % 64);
}

/* An older pool has the index in another form: replace it by an empty one, in a
 * transaction of its own.  1: done; 0: it has not; -1.
 */
extern int meta_index_make (struct meta_conn *c);

/* The runs that exist. */
extern int meta_index_runs (struct meta_conn *c, struct index_runs *runs);

/* The run's row that would hold 'prefix': 1, 0: there is none, -1.  '*low' is
 * the lowest prefix that the row may hold.
 */
extern int meta_index_get (struct meta_conn *c, unsigned run, uint64_t prefix,
                           uint64_t *low, struct blob *b);
/* The run's first row whose '*low' is at least 'prefix' without the bits that
 * a key lacks: 1, 0: there is none, -1.
 */
extern int meta_index_from (struct meta_conn *c, unsigned run, uint64_t prefix,
                            uint64_t *low, struct blob *b);
/* The run's entries with this prefix, packed: 1, 0: there is none, -1. */
extern int meta_index_find (struct meta_conn *c, unsigned run, uint64_t prefix,
                            struct blob *entries);
extern int meta_index_put (struct meta_conn *c, unsigned run, uint64_t low,
                           const uint8_t *buf, size_t len);
extern int meta_index_delete (struct meta_conn *c, unsigned run, uint64_t low);
/* Delete the run's rows whose 'low' is less than 'end', or all. */
extern int
meta_index_delete_before (struct meta_conn *c, unsigned run, uint64_t end);
extern int meta_index_delete_run (struct meta_conn *c, unsigned run);

/* How many more runs add the entry with this prefix and address than remove it.
 */
extern int meta_index_sum (struct meta_conn *c, const struct index_runs *runs,
                           const struct index_entry *e, int *sum);

/* All rows, run by run. */
extern int meta_index_scan (struct meta_conn *c,
                            int (*fn) (void *opaque, unsigned run, uint64_t low,
                                       const uint8_t *buf, size_t len),
                            void *opaque);

/* The entries of these runs whose prefix is in first .. last, run by run: so
 * they cost less than through a cursor.
 */
extern int
meta_index_range (struct meta_conn *c, const struct index_runs *runs,
                  uint64_t first, uint64_t last,
                  int (*fn) (void *opaque, const struct index_entry *e),
                  void *opaque);

/*----------------------------------------------------------------------
 * The entries of several runs, ascending by (prefix, addr), each once
 */

struct index_cursor;

/* From 'prefix' on.  The tables must not change while the cursor is used: the
 * connection is frozen, or is the writer's.  NULL: an error.
 */
extern struct index_cursor *meta_index_cursor (struct meta_conn *c,
                                               const struct index_runs *runs,
                                               uint64_t prefix);
extern void meta_index_cursor_free (struct index_cursor *cursor);
/* The next entry: 1, 0: the end, -1.  '*sum': how many more runs add it than
 * remove it; 0 is not left out, so that a caller can stop between any two.
 * 'removed' is set if the sum is negative.
 */
extern int meta_index_cursor_next (struct index_cursor *cursor,
                                   struct index_entry *e, int *sum);
/* The prefix at which the cursor goes on: 1, or 0: the end. */
extern int
meta_index_cursor_at (const struct index_cursor *cursor, uint64_t *prefix);
/* The entries that are left of the run's current row, packed; returns their
 * bytes, 0 if the run has ended.  '*low' is the row's.
 */
extern size_t meta_index_cursor_rest (const struct index_cursor *cursor,
                                      unsigned run, uint64_t *low,
                                      const uint8_t **entries);

/* The sum of all entries: -1 for each that removes one. */
extern int meta_index_count (struct meta_conn *c, uint64_t *sum);

#endif /* NBDEDUP_META_INDEX_H */
