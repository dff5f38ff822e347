/* SPDX-License-Identifier: BSD-3-Clause */

/* Parsing and building of pages of SQLite's b-trees, for meta-mend.c.
 * https://sqlite.org/fileformat2.html, section 1.6.  Pure: no I/O.
 *
 * The rows of tables "leaf" and "delta" are in index b-trees (WITHOUT ROWID),
 * in interior pages and in leaf pages.  The rows of tables with an integer key
 * are in the leaf pages of a table b-tree; a key in an interior page is the
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

/* The key of a row, or of a possible row, of table "leaf".  In table "delta"
 * 'leaf' is the area.  For a table with an integer key 'seq' is that key with
 * its sign bit flipped, and the other members are 0.
 */
struct leaf_key {
  uint64_t branch, leaf, seq;
};

extern int
leaf_key_compare (const struct leaf_key *a, const struct leaf_key *b);

/* Flip the sign bit: from rowid to 'seq', and back. */
static inline uint64_t
btree_rowid (uint64_t rowid)
{
  return rowid ^ UINT64_C (1) << 63;
}

/* The i-th big-endian 32-bit number of a page. */
static inline uint32_t
btree_number (const uint8_t *p, size_t i)
{
  p += 4 * i;
  return (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16 | (uint32_t) p[2] << 8 |
    p[3];
}

/* A parsed page. */
struct btree_page {
  const uint8_t *p;
  uint32_t number;
  bool interior, index;
  unsigned nr_cells;
};

struct btree_cell {
  uint32_t child;         /* left of it; 0: none */
  uint32_t overflow;      /* first page; 0: none */
  const uint8_t *payload; /* the part on this page */
  size_t local;
  uint32_t nr_overflow; /* pages, in all */
  uint64_t rowid;       /* of a table b-tree */
};

/* -1: not a page or a cell, or not understood. */
extern int
btree_page_open (const uint8_t *p, uint32_t number, struct btree_page *page);
extern int btree_cell_get (const struct btree_page *page, unsigned i,
                           struct btree_cell *cell);
/* Only for an interior page. */
extern uint32_t btree_right_child (const struct btree_page *page);

/* Parse a row of table "leaf" or "delta".  -1: not a row. */
extern int btree_leaf_row (const struct btree_cell *cell, struct leaf_key *key,
                           const uint8_t **data, size_t *len);

/*----------------------------------------------------------------------
 * Building
 */

/* Make an empty page with the right child 'right'; 0: a leaf page. */
extern void btree_make (uint8_t *p, bool index, uint32_t right);
/* Append a row without data, to the right of 'child' (0: in a leaf page).  In
 * an interior page of a table b-tree append only the key.  If the row has
 * 'nr_overflow' pages of data, 'overflow' is the first of them.
 */
extern void btree_add (uint8_t *p, uint32_t child, const struct leaf_key *key,
                       uint32_t overflow, uint32_t nr_overflow);
/* Make a page of data; 'next' is the following one, or 0. */
extern void btree_make_overflow (uint8_t *p, uint32_t next);

#endif /* NBDEDUP_META_BTREE_H */
