/* SPDX-License-Identifier: BSD-3-Clause */

/* Pages of SQLite's b-trees, read and made byte by byte: inside of meta-mend.c.
 * https://sqlite.org/fileformat2.html, section 1.6.  Pure: no I/O.
 *
 * A row of table "leaf" stands in an index b-tree (WITHOUT ROWID), in interior
 * pages as well as in those at the bottom.  Rows of the tables with an integer
 * key stand at the bottom of a table b-tree; a key in an interior page is the
 * greatest on its left.
 *
 * Why not SQLite's recovery extension: Debian's library lacks it, and it makes
 * a new database of the rows that it finds.  Here the pool stays open, and only
 * lost pages are replaced.
 */

#ifndef NBDEDUP_META_BTREE_H
#define NBDEDUP_META_BTREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "meta/meta.h"

/* Of a row, or of what may be one: of table "leaf"; of a table with an integer
 * key this is in 'seq', with the sign's bit turned round, and the others are 0.
 */
struct leaf_key {
  uint64_t branch, leaf, seq;
};

extern int leaf_key_compare (const struct leaf_key *a,
                             const struct leaf_key *b);

/* There and back. */
static inline uint64_t
btree_rowid (uint64_t rowid)
{
  return rowid ^ UINT64_C (1) << 63;
}

/* The i-th number of 4 bytes of a page. */
static inline uint32_t
btree_number (const uint8_t *p, size_t i)
{
  p += 4 * i;
  return (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16 |
    (uint32_t) p[2] << 8 | p[3];
}

/* What stands on a page. */
struct btree_page {
  const uint8_t *p;
  uint32_t number;
  bool interior, index;
  unsigned nr_cells;
};

struct btree_cell {
  uint32_t child;               /* left of it; 0: none */
  uint32_t overflow;            /* first page; 0: none */
  const uint8_t *payload;       /* the part on this page */
  size_t local;
  uint32_t nr_overflow;         /* pages, in all */
  uint64_t rowid;               /* of a table b-tree */
};

/* -1: it is none, or cannot be understood. */
extern int btree_page_open (const uint8_t *p, uint32_t number,
                            struct btree_page *page);
extern int btree_cell_get (const struct btree_page *page, unsigned i,
                           struct btree_cell *cell);
/* Of an interior page. */
extern uint32_t btree_right_child (const struct btree_page *page);

/* A row of table "leaf".  -1: it is none. */
extern int btree_leaf_row (const struct btree_cell *cell,
                           struct leaf_key *key, const uint8_t **data,
                           size_t *len);

/*----------------------------------------------------------------------
 * Making
 */

/* An empty page: 'right' is its right child; 0: at the bottom. */
extern void btree_make (uint8_t *p, bool index, uint32_t right);
/* Add a row behind those that are there, with no data, right of 'child' (0: at
 * the bottom; of a table b-tree no row, but its key).  With 'nr_overflow' pages
 * of data the first of them is 'overflow'.
 */
extern void btree_add (uint8_t *p, uint32_t child, const struct leaf_key *key,
                       uint32_t overflow, uint32_t nr_overflow);
/* A page of data; 'next': the one that follows, or 0. */
extern void btree_make_overflow (uint8_t *p, uint32_t next);

#endif /* NBDEDUP_META_BTREE_H */
