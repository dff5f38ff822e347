/* SPDX-License-Identifier: BSD-3-Clause */

/* In which order a lookup searches the runs of the hash index (fold-index.h).
 *
 * A large pool has some thirty runs, and each one that is searched in vain is a
 * page, which for the large ones comes from the disk.  Most entries are in the
 * largest runs.  But duplicates come in the order of what they repeat, such as
 * an image that was written an hour ago, and so the entries of many lookups are
 * in one run, or a few: those that had most of the late hits are first, and
 * the largest ones then.
 *
 * Source: Rivest: On Self-Organizing Sequential Search Heuristics, CACM 19(2),
 * 1976; here by counts that decay, so that neither a few odd lookups nor what
 * was long ago change the order.
 *
 * Threads: the caller locks.
 */

#ifndef NBDEDUP_INDEX_ORDER_H
#define NBDEDUP_INDEX_ORDER_H

#include <stdint.h>

#include "meta/meta-index.h"

/* All 0: no lookup has hit yet. */
struct index_order {
  uint32_t hits[INDEX_RUNS]; /* of late; those before count less and less */
};

/* The runs to search, first to last. */
struct index_search {
  unsigned nr;
  uint8_t runs[INDEX_RUNS];
};

extern void index_order_hit (struct index_order *order, unsigned run);
extern void index_order_get (const struct index_order *order,
                             const struct index_runs *runs,
                             struct index_search *search);

#endif /* NBDEDUP_INDEX_ORDER_H */
