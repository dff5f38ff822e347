/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_CLOCK_H
#define NBDEDUP_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds, and milliseconds, since an unspecified moment.  Monotonic:
 * setting the system's clock does not change it.
 */
static inline uint64_t
clock_ns (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_MONOTONIC, &ts);
  return (uint64_t) ts.tv_sec * UINT64_C (1000000000) + (uint64_t) ts.tv_nsec;
}

static inline uint64_t
clock_ms (void)
{
  return clock_ns () / 1000000;
}

/* The time of day, in seconds since 1970.  Setting the system's clock changes
 * it.
 */
static inline uint64_t
clock_wall_s (void)
{
  return (uint64_t) time (NULL);
}

/* 'ms' from now, as a time of CLOCK_MONOTONIC. */
static inline struct timespec
clock_in_ms (uint64_t ms)
{
  const uint64_t ns = clock_ns () + ms % 1000 * 1000000;

  return (struct timespec) {
    .tv_sec = (time_t) (ns / 1000000000 + ms / 1000),
    .tv_nsec = (long) (ns % 1000000000),
  };
}

/* A signal ends it early. */
static inline void
clock_sleep_ns (uint64_t ns)
{
  const struct timespec ts = {
    .tv_sec = (time_t) (ns / 1000000000),
    .tv_nsec = (long) (ns % 1000000000),
  };

  nanosleep (&ts, NULL);
}

static inline void
clock_sleep_ms (uint64_t ms)
{
  clock_sleep_ns (ms * 1000000);
}

#endif /* NBDEDUP_CLOCK_H */
