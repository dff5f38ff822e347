/* SPDX-License-Identifier: BSD-3-Clause */

/* Changed reference counts of records, apart from the records.
 *
 * A reference that comes or goes changes 8 bytes of a record, but the row of
 * its group of records has 14 KiB.  So the fold notes new counts in a small
 * row of table "count", which has the same key as the group's row in table
 * "record", and leaves the latter alone until it has a better reason to write
 * it.  Then there is no row in "count" any more.
 *
 * A row is an array of entries, ascending by sector; never empty:
 *
 *   OFFSET  SIZE  FIELD
 *      0      1   sector in the group, of a record of the group's row
 *      1    1..7  0: the record is dead, as if the group's row did not have
 *                 it; else its reference count + 1.  A number of 7 bits each
 *                 byte, lowest first; bit 7 is 1 in all bytes but the last
 *
 * A record without an entry has the count that its own entry says.
 *
 * Pure: no I/O, no locks.
 */

#ifndef NBDEDUP_COUNTS_H
#define NBDEDUP_COUNTS_H

#include "format/format.h"

#define COUNTS_ENTRY_MAX 8
#define COUNTS_LEN_MAX (RECORD_GROUP_SECTORS * COUNTS_ENTRY_MAX)

/* In memory: what is noted for each sector of a group. */
#define COUNT_SAME UINT64_MAX /* nothing */
#define COUNT_DEAD (UINT64_MAX - 1)
struct counts {
  uint64_t of[RECORD_GROUP_SECTORS]; /* COUNT_* or the reference count */
};

extern void counts_clear (struct counts *counts);

/* Returns the bytes used; 0: nothing is noted, so no row is needed. */
extern size_t
counts_pack (const struct counts *counts, uint8_t buf[COUNTS_LEN_MAX]);

/* A row of no bytes notes nothing.  -1: EIO, if it is damaged. */
extern int counts_unpack (uint64_t group, const uint8_t *buf, size_t len,
                          struct counts *counts);

/* Change a group's packed records into what they are with these counts: write
 * the counts into them, and drop the dead ones.  '*len' becomes the new length.
 * If the counts are damaged, the records end after a byte, so that all who read
 * them find the group damaged.
 */
extern void counts_apply (uint64_t group, uint8_t *records, size_t *len,
                          const uint8_t *counts, size_t counts_len);

#endif /* NBDEDUP_COUNTS_H */
