/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the programs that apply operations of lineage-model.h to a pool,
 * in one random history after the other, each with a pool of its own.
 *
 * SEED and two variables that the program names come from the environment: the
 * history to begin with, and whether to compare after each operation.
 * Comparing does not change the history, so it finds the operation that fails.
 */

#ifndef NBDEDUP_LINEAGE_HISTORY_H
#define NBDEDUP_LINEAGE_HISTORY_H

#include <limits.h>

#include "models/lineage-model.h"
#include "models/op-log.h"

extern struct history {
  uint64_t seed;
  unsigned nr; /* of this history */
  bool verify_each;
  char directory[PATH_MAX]; /* of its pool */
} history;

/* Read the environment, and print the seed.  If the program ends before
 * history_passed, it prints its last operations and how to repeat them.
 */
extern void history_start (const char *first, const char *verify);
extern void history_passed (void);

/* The generator of this history. */
extern struct rng history_rng (void);

/* With a chance of one half, make all caches as small as possible. */
extern void history_caches (struct nbdedup_settings *settings, struct rng *rng);

/* Do 'op' with 'apply'.  If the result is not what the model expects, end the
 * program.  False: the pool refused 'op'.
 */
extern bool history_try (struct lineage *l, const struct op *op,
                         int (*apply) (const struct op *op));

#endif /* NBDEDUP_LINEAGE_HISTORY_H */
