/* SPDX-License-Identifier: BSD-3-Clause */

/* Sizes on which several files of a pool, and several layers of the code,
 * must agree.
 */

#ifndef NBDEDUP_GEOMETRY_H
#define NBDEDUP_GEOMETRY_H

#include <stdint.h>

/* Each file of a pool carries the pool's UUID. */
#define UUID_LEN 16

/* "records": its header is at the start of segment 0. */
#define SEGMENT_BYTES (UINT32_C (4) << 20)
#define STORE_HEADER_BYTES 16384 /* two copies, 8 KiB apart */

/* Blocks in 'size' bytes, rounded up. */
static inline uint64_t
blocks_of (uint64_t size, uint32_t block_size)
{
  return size / block_size + (size % block_size != 0);
}

#endif /* NBDEDUP_GEOMETRY_H */
