/* SPDX-License-Identifier: BSD-3-Clause */

/* Pauses before something is tried again that failed for lack of memory. */

#ifndef NBDEDUP_BACKOFF_H
#define NBDEDUP_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/clock.h"

/* So often, in 4 seconds: it was no bottleneck of a moment. */
#define BACKOFF_TRIES 12

/* 1, 2, 4 ... 1024 ms; 'tries' starts at 0. */
static inline uint64_t
backoff_ms (unsigned *tries)
{
  unsigned n = (*tries)++;

  return UINT64_C (1) << (n < 10 ? n : 10);
}

/* Sleep; false: it has been tried often enough. */
static inline bool
backoff_sleep (unsigned *tries)
{
  if (*tries >= BACKOFF_TRIES)
    return false;
  clock_sleep_ms (backoff_ms (tries));
  return true;
}

/* This thread does something that is tried again as a whole, with pauses of its
 * own, if it fails: no others within.
 */
extern _Thread_local bool backoff_is_off;

/* For what an answered write needs to be stored: if that fails the pool
 * stops, and a moment without memory is no reason.
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
