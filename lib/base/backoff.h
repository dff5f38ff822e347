/* SPDX-License-Identifier: BSD-3-Clause */

/* Pauses before retrying a call that failed for lack of memory. */

#ifndef NBDEDUP_BACKOFF_H
#define NBDEDUP_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/clock.h"

/* The number of retries, about 4 seconds in all: a longer shortage is not
 * momentary.
 */
#define BACKOFF_TRIES 12

/* 1, 2, 4 ... 1024 ms; 'tries' starts at 0. */
static inline uint64_t
backoff_ms (unsigned *tries)
{
  unsigned n = (*tries)++;

  return UINT64_C (1) << (n < 10 ? n : 10);
}

/* Sleep before the next try; false: no tries are left. */
static inline bool
backoff_sleep (unsigned *tries)
{
  if (*tries >= BACKOFF_TRIES)
    return false;
  clock_sleep_ms (backoff_ms (tries));
  return true;
}

/* Set while this thread runs a function that its caller retries as a whole,
 * with pauses.  The functions below do not pause then.
 */
extern _Thread_local bool backoff_is_off;

/* For storing an answered write: a failure there stops the pool, which a
 * momentary lack of memory must not do.
 */
static inline void *
patient_realloc (void *p, size_t size)
{
  unsigned tries = 0;
  void *new;

  do
    new = realloc (p, size);
  while (new == NULL && !backoff_is_off && backoff_sleep (&tries));
  return new;
}

static inline void *
patient_calloc (size_t nr, size_t size)
{
  unsigned tries = 0;
  void *new;

  do
    new = calloc (nr, size);
  while (new == NULL && !backoff_is_off && backoff_sleep (&tries));
  return new;
}

#endif /* NBDEDUP_BACKOFF_H */
