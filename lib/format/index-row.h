/* SPDX-License-Identifier: BSD-3-Clause */

/* A row of table "ddt" as pool.db stores it.
 *
 * An entry is written once for each level of the index, so its size decides
 * what a new block costs in a large pool.  A row's entries ascend, so a row has
 * the differences of their prefixes, as LevelDB's blocks have only what a key
 * does not share with the one before it:
 *
 *   for each entry:
 *     prefix / 2^17, less that of the entry before it    (varint.h)
 *     2 * addr, and 1 more if it removes another entry   (varint.h)
 *   and a byte 0, if the length were a multiple of INDEX_ENTRY_LEN without it
 *
 * A row whose length is a multiple of INDEX_ENTRY_LEN has the entries of
 * format.h as they are: earlier versions of nbdedup stored all rows so.
 *
 * Pure: no I/O, no locks.
 */

#ifndef NBDEDUP_INDEX_ROW_H
#define NBDEDUP_INDEX_ROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"

/* Pack entries into a buffer of 'len' bytes.  Returns the bytes used; 0: they
 * do not ascend, or take no less room packed: store them as they are.
 */
extern size_t index_row_pack (const uint8_t *entries, size_t len, uint8_t *buf);

extern bool index_row_is_packed (size_t len);

/* A row of either form, read from its first entry on. */
struct index_row {
  const uint8_t *p; /* not owned */
  size_t len, off;
  uint64_t last; /* prefix, as the row has it */
  bool packed;
};

extern struct index_row index_row_open (const uint8_t *row, size_t len);
/* 1: the next entry; 0: there is none; -1: the row is damaged. */
extern int index_row_next (struct index_row *row, struct index_entry *e);

/* Do these entries ascend by (prefix, addr), with none twice and none below
 * 'low', and is nothing left over?
 */
extern bool
index_row_is_in_order (uint64_t low, const uint8_t *entries, size_t len);

/* The most that a packed row's entries take. */
extern size_t index_row_unpacked_max (size_t len);
/* Turn a packed row into entries.  Returns the bytes used: no multiple of
 * INDEX_ENTRY_LEN if the row is damaged.
 */
extern size_t
index_row_unpack (const uint8_t *row, size_t len, uint8_t *entries);

#endif /* NBDEDUP_INDEX_ROW_H */
