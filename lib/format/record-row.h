/* SPDX-License-Identifier: BSD-3-Clause */

/* A row of table "record" as pool.db stores it.
 *
 * A group's records resemble each other: in a group of small records 56 bytes
 * for each (format.h) would be the largest part of all that a new block writes.
 * So the row has only what an entry does not share with the one before it.
 *
 *   OFFSET  SIZE  FIELD
 *      0      2   RECORD_ROW_PACKED
 *      2          the entries
 *
 * Each entry is
 *
 *      0      1   which fields follow, in this order:
 *                   bit 0      1: sector in the group (1 byte)
 *                              0: the one after the last entry's sector
 *                   bit 1      1: slot (2); 0: the last one + 1
 *                   bit 2      1: codec and lsize (1: byte 4 of format.h)
 *                   bit 3      1: flags (2), without RECORD_EXTENDED
 *                   bit 4      1: reference count (varint.h); 0: it is 1
 *                   bit 5      1: domain (varint.h)
 *                   bits 6, 7  bytes of psize - 1
 *                 without codec and lsize, flags, domain or psize - 1: the last
 *                 entry's
 *      1      n   those fields
 *            8   cksum
 *           32   digest
 *
 * "The last entry" of the first one has sector and slot -1, codec and lsize 0,
 * flags RECORD_INDEXED, domain 0 and psize - 1 = 0.
 *
 * Earlier versions of nbdedup stored the entries of format.h as they are.  Such
 * a row begins with a sector, so its second byte is 0.
 *
 * Pure: no I/O, no locks.
 */

#ifndef NBDEDUP_RECORD_ROW_H
#define NBDEDUP_RECORD_ROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"

/* No sector of a group. */
#define RECORD_ROW_PACKED RECORD_GROUP_SECTORS

/* The most that a group's entries take, in either form, and a byte more. */
#define RECORD_ROW_MAX (RECORD_GROUP_SECTORS * RECORD_ENTRY_MAX + 1)

/* Pack a group's entries, at least one.  Returns the bytes used, or -1: EIO, if
 * they are damaged.
 */
extern int record_row_pack (uint64_t group, const uint8_t *entries, size_t len,
                            uint8_t buf[RECORD_ROW_MAX]);

extern bool record_row_is_packed (const uint8_t *row, size_t len);

/* Turn a packed row into entries.  Returns the bytes used.  If the row is
 * damaged, the entries end after a byte, so that all who read them find the
 * group damaged.
 */
extern size_t record_row_unpack (const uint8_t *row, size_t len,
                                 uint8_t entries[RECORD_ROW_MAX]);

#endif /* NBDEDUP_RECORD_ROW_H */
