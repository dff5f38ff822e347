/* SPDX-License-Identifier: BSD-3-Clause */

/* Deltas: pointers that are newer than the leaves they belong to.
 *
 * A block that a client overwrites at random changes 16 bytes of a leaf, but
 * the fold would write the leaf's whole page, and of a large map a different
 * one for nearly each block.  So the fold notes the new pointer in a row of
 * table "delta", which has those of an area: DELTA_LEAVES leaves of a layer.
 * When the row is full, the fold merges it into the leaves, which are
 * neighbours.  Precedents: the message buffers of B-epsilon trees (Brodal and
 * Fagerberg, 2003), and the delta records of Bw-trees (Levandoski, Lomet and
 * Sengupta, 2013).
 *
 * The fold only replaces a pointer by another one.  So the states of a leaf's
 * blocks are in the leaf's own row, and a leaf with deltas has a row.  After
 * damage that row may have lost blocks (mend.h); their deltas are not lost.
 *
 * A row is an array of entries, ascending by block; never empty:
 *
 *   OFFSET  SIZE  FIELD
 *      0      2   block, from the area's first on
 *      2     16   its pointer
 *
 * Pure: no I/O, no locks.
 */

#ifndef NBDEDUP_LEAF_DELTA_H
#define NBDEDUP_LEAF_DELTA_H

#include "format/format.h"

#define DELTA_LEAVES 64
#define DELTA_ENTRY_LEN (2 + POINTER_LEN)
/* A row must have no overflow pages (meta-btree.h), so a quarter of a page,
 * with its key, is the most.
 */
#define DELTA_ENTRIES_MAX 110
#define DELTA_LEN_MAX (DELTA_ENTRIES_MAX * DELTA_ENTRY_LEN)

/* A block's new pointer. */
struct leaf_pointer {
  uint8_t index; /* in the leaf */
  uint8_t ptr[POINTER_LEN];
};

/* False: the row is not valid.  One of no bytes is. */
extern bool deltas_are_valid (const uint8_t *row, size_t len);

/* How many deltas of a valid row belong to this leaf; '*first': the position of
 * the first one.
 */
extern unsigned
deltas_of_leaf (const uint8_t *row, size_t len, uint64_t leaf, size_t *first);

/* Change a packed leaf, in a buffer of LEAF_LEN_MAX bytes, into what it is with
 * the area's row; '*buf_len' becomes the new length.  -1: EIO, if the row is
 * not valid, or a delta is of a block that has no pointer and is not lost; the
 * leaf may have changed.
 */
extern int deltas_apply (const uint8_t *row, size_t len, uint64_t leaf,
                         uint8_t *buf, size_t *buf_len);

/* Remove the leaf's deltas from a valid row.  Returns the row's new length. */
extern size_t deltas_drop (uint8_t *row, size_t len, uint64_t leaf);

/* Add new pointers of the leaf, ascending by index, to a valid row; they
 * replace those that are there.  Returns the row's new length; 0: it would be
 * longer than DELTA_LEN_MAX, and is unchanged.
 */
extern size_t deltas_add (uint8_t row[DELTA_LEN_MAX], size_t len, uint64_t leaf,
                          const struct leaf_pointer *pointers, unsigned nr);

#endif /* NBDEDUP_LEAF_DELTA_H */
