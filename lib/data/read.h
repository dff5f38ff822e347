/* SPDX-License-Identifier: BSD-3-Clause */

/* Pointer -> record -> verified bytes. */

#ifndef NBDEDUP_READ_H
#define NBDEDUP_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"

struct nbdedup_pool;

/* Read 'len' bytes at 'offset' of the record of 'lsize' bytes.  EIO if the
 * bytes in the store do not match the pointer's checksum.  The caller looks up
 * the pointer and calls this within one quiesce_enter .. quiesce_leave.
 * '*cached' (may be NULL): the record cache had them.
 */
extern int read_record (struct nbdedup_pool *pool, const struct pointer *ptr,
                        uint32_t lsize, void *buf, size_t offset, size_t len,
                        bool *cached);

/* The same, without a place for the record in the cache. */
extern int read_record_once (struct nbdedup_pool *pool,
                             const struct pointer *ptr, uint32_t lsize,
                             void *buf, size_t offset, size_t len);

/* Read records of 'lsize' bytes, which the client wants whole and one after the
 * other, with one read of the store: as many of the first as lie side by side
 * there and are good, if the cache has none of them.  Inside quiesce, as
 * read_record.  Returns how many; 0 also if a record is alone or damaged: the
 * caller reads that with read_of_block, which reports errors and tries copies.
 */
extern unsigned read_run (struct nbdedup_pool *pool, const struct pointer *ptrs,
                          uint32_t lsize, unsigned nr, uint8_t *buf);

/* Read a record that no client has asked for into the record cache, as the
 * first to be dropped, inside quiesce like read_record.  1; 0: the cache has no
 * room; -1.
 */
extern int read_warm (struct nbdedup_pool *pool, const struct pointer *ptr,
                      uint32_t lsize);

/* Fail as a read of a lost block (MAP_LOST) does: -1, EIO and the reason. */
extern int read_lost (uint64_t block);

/* The same as read_record, of a block of the volume: damage is an event. */
struct volume;
extern int read_of_block (struct volume *v, uint64_t block,
                          const struct pointer *ptr, void *buf, size_t offset,
                          size_t len, bool *cached);

/* Read 'len' bytes at 'offset' of a block as installed in the volume's layer,
 * without dirty data.  (In io.c.)
 */
extern int read_block (struct volume *v, uint64_t block, void *buf,
                       size_t offset, size_t len);

/* The same for a whole block that a write is about to replace.  The record does
 * not go into the cache: a copy of it there costs more than all else that such
 * a read does, and pushes out a record that clients do read.
 */
extern int read_replaced_block (struct volume *v, uint64_t block, void *buf);

/* The same for a whole block that a client asked to have in the cache. */
extern int read_into_cache (struct volume *v, uint64_t block, void *buf);

/* Contexts of read_record, kept for the next call. */
struct reader;
extern void readers_free (struct nbdedup_pool *pool);

#endif /* NBDEDUP_READ_H */
