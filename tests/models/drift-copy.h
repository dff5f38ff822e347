/* SPDX-License-Identifier: BSD-3-Clause */

/* Compares what drift predicts for a destroy with the result of the destroy on
 * a copy of the pool.
 */

#ifndef NBDEDUP_DRIFT_COPY_H
#define NBDEDUP_DRIFT_COPY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "nbdedup.h"

#define MAX_SET 5

/* What drift predicts for destroying these together. */
struct promise {
  char names[MAX_SET][64];
  unsigned nr;
  json_t *destroyed; /* owned; NULL: no prediction */
  uint64_t freed_bytes;
};

/* Check the prediction on a copy of the closed pool.  True if the destroy
 * freed anything.
 */
extern bool keep_promise (const char *directory, const struct promise *p);

extern struct nbdedup_pool *
open_pool (const char *path, const struct nbdedup_settings *s);
extern void close_pool (struct nbdedup_pool *p);

/* The function takes the reference of 'args'.  The result is a new one. */
extern json_t *call (struct nbdedup_pool *p, const char *command, json_t *args);

/* Wait until all space that can be freed is free, also by merges. */
extern void drain (struct nbdedup_pool *p);

#endif /* NBDEDUP_DRIFT_COPY_H */
