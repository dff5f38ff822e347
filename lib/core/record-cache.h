/* SPDX-License-Identifier: BSD-3-Clause */

/* Decompressed records, by address, within a budget of bytes.  The cache first
 * drops those that were not used lately (second-chance.h).
 *
 * An address has one content while its record lives.  Before its space is
 * reused, when no thread that read the old content is left (quiesce.h), the
 * fold calls record_cache_forget.  Callers use record_cache_put only between
 * quiesce_enter and quiesce_leave.
 *
 * A pointer from a damaged pool.db (pages of an earlier moment, or of another
 * pool) may name an address that has other content here.  So the cache, like
 * the file, serves a pointer only content that its checksum was verified for.
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
/* True if a record that a client has read may enter the cache.  While there is
 * room it may.  The exception is a 'cheap' record, which the page cache would
 * serve nearly as well: once a quarter of the budget is taken, it may enter
 * only if the caller asked for this address recently.  In a full cache a record
 * displaces another one, so it must have been asked for recently, and hits of
 * other records must pay for it.  Data that is read once (a backup) therefore
 * does not enter, and random reads of far more than the budget add little.
 *
 * Source of the marks: the doorkeeper of G. Einziger, R. Friedman, B. Manes,
 * "TinyLFU: A Highly Efficient Cache Admission Policy", ACM Transactions on
 * Storage 13 (4), 2017; here they are a direct-mapped table instead of a Bloom
 * filter, so they age by themselves.
 */
extern bool record_cache_admits (struct record_cache *cache, uint64_t addr,
                                 size_t len, bool cheap);
/* Copies the data; may do nothing.  'cksum' is the stored bytes' checksum. */
extern void record_cache_put (struct record_cache *cache, uint64_t addr,
                              uint64_t cksum, const void *data, size_t len);
/* What an earlier session used (warm-file.h): it is the first to be dropped,
 * and nothing is dropped for it.  False: there is no room.
 */
extern bool record_cache_put_cold (struct record_cache *cache, uint64_t addr,
                                   uint64_t cksum, const void *data,
                                   size_t len);
extern bool record_cache_has (struct record_cache *cache, uint64_t addr);
/* True: it lacks one of these records.  Without the lock, and in less time than
 * a lookup takes; false may be wrong.
 */
extern bool record_cache_lacks_one (const struct record_cache *cache,
                                    const uint64_t *addrs, unsigned nr);
/* Bit i: it has the record at addrs[i]; 'nr' <= 64. */
extern uint64_t record_cache_present (struct record_cache *cache,
                                      const uint64_t *addrs, unsigned nr);
/* The addresses of at most 'max' records, about the latest used first:
 * their number.
 */
extern size_t
record_cache_list (struct record_cache *cache, uint64_t *addrs, size_t max);
/* The bytes that it takes, and its budget. */
extern void record_cache_get_usage (struct record_cache *cache, uint64_t *bytes,
                                    uint64_t *max_bytes);
extern void record_cache_forget (struct record_cache *cache, uint64_t addr);

#endif /* NBDEDUP_RECORD_CACHE_H */
