/* SPDX-License-Identifier: BSD-3-Clause */

/* What drift says of destroying, held against a copy of the pool on which it
 * is done.
 */

#ifndef NBDEDUP_DRIFT_COPY_H
#define NBDEDUP_DRIFT_COPY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "nbdedup.h"

#define MAX_SET 5

/* What drift said about destroying these together. */
struct promise {
  char names[MAX_SET][64];
  unsigned nr;
  json_t *destroyed;            /* owned; NULL: not said */
  uint64_t freed_bytes;
};

/* It must be so; did it give anything back?  The pool is closed. */
extern bool keep_promise (const char *directory, const struct promise *p);

extern struct nbdedup_pool *open_pool (const char *path,
                                       const struct nbdedup_settings *s);
extern void close_pool (struct nbdedup_pool *p);

/* 'args' is given away; the result is a new reference. */
extern json_t *call (struct nbdedup_pool *p, const char *command,
                     json_t *args);

/* Everything that was let go of is given back, merges included. */
extern void drain (struct nbdedup_pool *p);

#endif /* NBDEDUP_DRIFT_COPY_H */
