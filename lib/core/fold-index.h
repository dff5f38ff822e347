/* SPDX-License-Identifier: BSD-3-Clause */

/* The fold's changes of the hash index. */

#ifndef NBDEDUP_FOLD_INDEX_H
#define NBDEDUP_FOLD_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"
#include "meta/meta.h"

struct fold_index_op {
  struct index_entry entry;
  bool add;                     /* else remove; absent is no error */
};

/* Sort the operations and update the rows that they touch in one sweep:
 * split rows that grow too large, delete empty ones.  Adjusts '*nr_entries'.
 */
extern int fold_index (struct meta_conn *c, struct fold_index_op *ops,
                       size_t nr, uint64_t *nr_entries);

#endif /* NBDEDUP_FOLD_INDEX_H */
