/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_CLOCK_H
#define NBDEDUP_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Milliseconds since an unknown moment.  It only goes forward, whatever the
 * administrator sets.
 */
static inline uint64_t
clock_ms (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_MONOTONIC, &ts);
  return (uint64_t) ts.tv_sec * 1000 + (uint64_t) ts.tv_nsec / 1000000;
}

#endif /* NBDEDUP_CLOCK_H */
