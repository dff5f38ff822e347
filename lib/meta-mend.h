/* SPDX-License-Identifier: BSD-3-Clause */

/* Pages of table "leaf" that are lost in all copies of pool.db: see
 * meta-mend.c.
 */

#ifndef NBDEDUP_META_MEND_H
#define NBDEDUP_META_MEND_H

#include "meta.h"
#include "meta-btree.h"

/* What may have stood on a lost page, and on those below it: rows above 'low'
 * and below 'high'.
 */
struct meta_lost_range {
  bool has_low, has_high;
  struct leaf_key low, high;
};

struct meta_mend_ops {
  /* Each row that can be read, before anything else. */
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
