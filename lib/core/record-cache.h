/* SPDX-License-Identifier: BSD-3-Clause */

/* Decompressed records, by address: an LRU within a budget of bytes.
 *
 * An address means one content as long as its record lives; before its
 * space is reused, record_cache_forget is called, when no thread that read
 * the old content is left (quiesce.h).  record_cache_put is called only
 * between quiesce_enter and quiesce_leave.
 *
 * A pointer out of a damaged pool.db (pages of an earlier moment, or of
 * another pool) may name an address that means something else here.  So a
 * pointer gets only what its checksum was verified for, from here as from
 * the file.
 *
 * Threads: any; it locks by itself.
 */

#ifndef NBDEDUP_RECORD_CACHE_H
#define NBDEDUP_RECORD_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct record_cache;

extern struct record_cache *record_cache_new (uint64_t budget_bytes);
extern void record_cache_free (struct record_cache *cache);

/* Copy 'len' bytes from 'offset' of the record: true if it is there. */
extern bool record_cache_get (struct record_cache *cache, uint64_t addr,
                              uint64_t cksum, void *buf, size_t offset,
                              size_t len);
extern bool record_cache_has (struct record_cache *cache, uint64_t addr);
/* Copies the data; may do nothing.  'cksum' is that of the stored bytes. */
extern void record_cache_put (struct record_cache *cache, uint64_t addr,
                              uint64_t cksum, const void *data, size_t len);
extern void record_cache_forget (struct record_cache *cache, uint64_t addr);

#endif /* NBDEDUP_RECORD_CACHE_H */
