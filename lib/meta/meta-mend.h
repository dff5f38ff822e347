/* SPDX-License-Identifier: BSD-3-Clause */

/* Replacing pages that are damaged in all copies of pool.db: see meta-mend.c.
 */

#ifndef NBDEDUP_META_MEND_H
#define NBDEDUP_META_MEND_H

#include "meta/meta-btree.h"
#include "meta/meta.h"

/* The rows that a lost page, and the pages below it, may have had: those above
 * 'low' and below 'high' (see struct leaf_key for tables with an integer key).
 */
struct meta_lost_range {
  bool has_low, has_high;
  struct leaf_key low, high;
};

enum meta_mend_table {
  META_MEND_LEAF,
  META_MEND_DELTA, /* a key's 'leaf' is the area */
  /* With an integer key: */
  META_MEND_RECORD,
  META_MEND_COUNT,
  META_MEND_SEGMENT,
  META_MEND_INDEX,
};

struct meta_mend_ops {
  enum meta_mend_table table;
  /* Called first, for each readable row of table "leaf" or "delta". */
  int (*row) (void *opaque, const struct leaf_key *key, const uint8_t *data,
              size_t len);
  /* Called in the transaction: insert rows into this range, which has none. */
  int (*lose) (void *opaque, struct meta_conn *c,
               const struct meta_lost_range *range);
  void *opaque;
};

/* Call it with the writer, outside of its transactions.  Returns the number of
 * lost pages that it replaced durably; 0: there was none; -1: nothing was
 * changed.  'state' is the row of the last commit; the function writes it if
 * 'lose' changed it.
 */
extern int meta_mend (struct meta *m, const struct meta_mend_ops *ops,
                      const struct meta_state *state);

#endif /* NBDEDUP_META_MEND_H */
