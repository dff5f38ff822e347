/* SPDX-License-Identifier: BSD-3-Clause */

/* The file "metadata-copy" of a pool, the mark: where the second copy of
 * pool.db is, and whether it is current.  A lost pool.db could not say so.
 *
 * It has two equal blocks of 4096 bytes; little-endian:
 *
 *   OFFSET  SIZE  FIELD
 *      0      8   magic "NBDDUPMC"
 *      8      4   format version, 1
 *     12      4   state: 1 current, 2 not; 3 and 4 the same, but pool.db is
 *                 distrusted
 *     16     16   uuid of the pool
 *     32      8   pages already copied, if a clean close interrupted copying
 *     40      4   length of the path
 *     44   1023   path, absolute; none: "pool.db.copy" beside pool.db
 *                 then zeroes up to
 *   4088      8   XXH3_64bits of bytes 0 .. 4087
 *
 * meta_mark_write overwrites it in place, one block after the other, with a
 * sync between them: a full disk cannot keep it from recording that the copy
 * is not current.  The copy is current only if each valid block says so.
 * pool.db is distrusted if one block says so: another program wrote to it while
 * it was open (cksum-mirror.h).
 */

#ifndef NBDEDUP_META_MARK_H
#define NBDEDUP_META_MARK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/geometry.h"

#define META_MARK_PATH_MAX 1023

struct meta_mark {
  bool current, distrusted;
  uint8_t uuid[UUID_LEN];
  uint64_t copied;
  char path[META_MARK_PATH_MAX + 1]; /* "": the default */
};

/* True for an error for lack of the process's resources, which says nothing
 * about the file.
 */
extern bool meta_is_of_process (int err);
/* 1; 0: there is no valid mark; -1 with errno and a text: for lack of the
 * process's resources it is not known.
 */
extern int meta_mark_read (const char *file, struct meta_mark *mark);
/* Durable when it returns 0; -1 with errno and a text. */
extern int meta_mark_write (const char *file, const struct meta_mark *mark);

#endif /* NBDEDUP_META_MARK_H */
