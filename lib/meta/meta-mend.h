/* SPDX-License-Identifier: BSD-3-Clause */

/* Pages of a table that are lost in all copies of pool.db: see meta-mend.c. */

#ifndef NBDEDUP_META_MEND_H
#define NBDEDUP_META_MEND_H

#include "meta/meta-btree.h"
#include "meta/meta.h"

/* What may have stood on a lost page, and on those below it: rows above 'low'
 * and below 'high' (see struct leaf_key for tables with an integer key).
 */
struct meta_lost_range {
  bool has_low, has_high;
  struct leaf_key low, high;
};

enum meta_mend_table {
  META_MEND_LEAF,
  META_MEND_RECORD, META_MEND_SEGMENT, META_MEND_INDEX, /* an integer key */
};

struct meta_mend_ops {
  enum meta_mend_table table;
  /* Each row of table "leaf" that can be read, before anything else. */
  int (*row) (void *opaque, const struct leaf_key *key, const uint8_t *data,
              size_t len);
  /* In the transaction: put rows into this range, which has none now. */
  int (*lose) (void *opaque, struct meta_conn *c,
               const struct meta_lost_range *range);
  void *opaque;
};

/* By the writer, outside of its transactions.  The number of lost pages that
 * were replaced, durably; 0: there was none; -1: nothing was changed.  'state'
 * is the row as it was committed last; it is written if it was changed by
 * 'lose'.
 */
extern int meta_mend (struct meta *m, const struct meta_mend_ops *ops,
                      const struct meta_state *state);

#endif /* NBDEDUP_META_MEND_H */
