/* SPDX-License-Identifier: BSD-3-Clause */

/* What a pool can still take: an answer for people and monitoring, computed
 * when asked.  What is accepted is decided elsewhere (space.h, room.h).
 */

#ifndef NBDEDUP_CAPACITY_H
#define NBDEDUP_CAPACITY_H

#include <stdint.h>

struct nbdedup_pool;

/* Less at worst, and the pool is full: writes of some size do not fit. */
#define CAPACITY_FULL (UINT64_C (1) << 20)

struct capacity {
  uint64_t used_bytes;          /* sectors that are in use */
  uint64_t max_bytes;           /* max-size; 0: none */
  uint64_t free_bytes;          /* of what "records" lies on */
  uint64_t metadata_free_bytes; /* of what all other files lie on */
  uint64_t nr_damaged;          /* segments */
  double used_percent;          /* of what is nearest to its limit */

  /* New data: each block with a content of its own that does not compress;
   * and data that dedup and compression do to what they did to the rest.
   * Whole blocks, of the block size of a volume that gives least.
   */
  uint64_t min_bytes, likely_bytes;
};

/* Only the first half: two system calls. */
extern int capacity_used (struct nbdedup_pool *pool, struct capacity *cap);
/* All of it. */
extern int capacity_get (struct nbdedup_pool *pool, struct capacity *cap);

#endif /* NBDEDUP_CAPACITY_H */
