/* SPDX-License-Identifier: BSD-3-Clause */

/* How much more data fits into a pool: an estimate for users and monitoring,
 * computed on request.  space.h and room.h decide which writes are accepted.
 */

#ifndef NBDEDUP_CAPACITY_H
#define NBDEDUP_CAPACITY_H

#include <stdint.h>

struct nbdedup_pool;

/* The pool is full if less than this fits in the worst case: writes of some
 * sizes fail then.
 */
#define CAPACITY_FULL (UINT64_C (1) << 20)

struct capacity {
  uint64_t used_bytes;          /* sectors that are in use */
  uint64_t max_bytes;           /* max-size; 0: none */
  uint64_t free_bytes;          /* where "records" is stored */
  uint64_t metadata_free_bytes; /* where all other files are */
  uint64_t metadata_total_bytes;
  uint64_t metadata_bytes; /* that the other files take */
  uint64_t limit_bytes;    /* that used_bytes can grow to */
  uint64_t nr_damaged;     /* segments */
  double used_percent;     /* of the resource nearest to its limit */

  /* New data that fits.  min_bytes: each block is unique and does not
   * compress.  likely_bytes: dedup and compression work as on the existing
   * data.  In whole blocks, of the volumes' block size that gives least.
   */
  uint64_t min_bytes, likely_bytes;
};

/* The space that the files of the pool directory take, without "records". */
extern uint64_t capacity_metadata_bytes (const char *path);

/* Only the first half: a few system calls. */
extern int capacity_used (struct nbdedup_pool *pool, struct capacity *cap);
/* All of it. */
extern int capacity_get (struct nbdedup_pool *pool, struct capacity *cap);

#endif /* NBDEDUP_CAPACITY_H */
