/* SPDX-License-Identifier: BSD-3-Clause */

/* A set of 64-bit numbers that may answer "yes" wrongly, but never "no".
 *
 * A blocked Bloom filter: all bits of a number lie in one cache line, so that
 * a question costs one access to memory.  At FILTER_BITS bits for each number
 * about 1.4 % of the answers "yes" are wrong; with fewer bits, more.
 * Source: Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom
 * Filters, WEA 2007, section 3.
 *
 * Files keep filters (warm-file.h): a filter that sets other bits for a number
 * needs another magic there.
 *
 * Threads: any number may add and ask at once.  An answer includes the numbers
 * whose filter_add happened before the question (by a lock, for example).
 */

#ifndef NBDEDUP_FILTER_H
#define NBDEDUP_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FILTER_BITS 10

struct filter;

/* Empty, of 'bytes' bytes, rounded up to a cache line.  NULL: no memory;
 * sets no error.
 */
extern struct filter *filter_new (size_t bytes);
extern void filter_free (struct filter *filter);
extern size_t filter_bytes (const struct filter *filter);
/* What it has if 'bytes' were asked for. */
extern size_t filter_bytes_for (size_t bytes);

/* The bits as bytes, for a file, and those of another filter of the same size
 * added to them.  'offset' and 'len' are multiples of 8.
 */
extern void filter_get (const struct filter *filter, size_t offset,
                        uint8_t *buf, size_t len);
extern void filter_merge (struct filter *filter, size_t offset,
                          const uint8_t *buf, size_t len);

/* 'n' must be evenly distributed, as a digest's bits are. */
extern void filter_add (struct filter *filter, uint64_t n);
extern bool filter_may_have (const struct filter *filter, uint64_t n);

#endif /* NBDEDUP_FILTER_H */
