/* SPDX-License-Identifier: BSD-3-Clause */

/* Pointer -> record -> verified bytes. */

#ifndef NBDEDUP_READ_H
#define NBDEDUP_READ_H

#include <stddef.h>
#include <stdint.h>

#include "format/format.h"

struct nbdedup_pool;

/* Read 'len' bytes at 'offset' of the record of 'lsize' bytes.  EIO if what
 * the store has is not what the pointer's checksum says.  Between
 * quiesce_enter and quiesce_leave, since the pointer was looked up.
 */
extern int read_record (struct nbdedup_pool *pool, const struct pointer *ptr,
                        uint32_t lsize, void *buf, size_t offset, size_t len);

/* What a block that is lost (MAP_LOST) gives: -1, EIO and why. */
extern int read_lost (uint64_t block);

/* 'len' bytes at 'offset' of a block as it is installed in the volume's layer:
 * what is still dirty is not seen.  (io.c's.)
 */
struct volume;
extern int read_block (struct volume *v, uint64_t block, void *buf,
                       size_t offset, size_t len);

/* The contexts of read_record that wait to be used again. */
struct reader;
extern void readers_free (struct nbdedup_pool *pool);

#endif /* NBDEDUP_READ_H */
