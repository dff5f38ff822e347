/* SPDX-License-Identifier: BSD-3-Clause */

/* One random history after the other, each with a pool of its own: what the
 * programs share that do operations of lineage-model.h to a pool.
 *
 * SEED and two variables that the program names come from the environment: the
 * history to begin with, and whether to compare after each operation.  The
 * history stays the same, so that the guilty operation is found.
 */

#ifndef NBDEDUP_LINEAGE_HISTORY_H
#define NBDEDUP_LINEAGE_HISTORY_H

#include <limits.h>

#include "models/lineage-model.h"
#include "models/op-log.h"

extern struct history {
  uint64_t seed;
  unsigned nr;                  /* of this history */
  bool verify_each;
  char directory[PATH_MAX];     /* of its pool */
} history;

/* Read the environment, and print the seed.  If the program ends before
 * history_passed it says what it did last, and how to repeat that.
 */
extern void history_start (const char *first, const char *verify);
extern void history_passed (void);

/* Another stream for each history. */
extern struct rng history_rng (void);

/* Half of them as small as they can be, at random. */
extern void history_caches (struct nbdedup_settings *settings,
                            struct rng *rng);

/* Do 'op' by 'apply'; what comes of it is what the model expects, or the
 * program ends.  False: it was refused.
 */
extern bool history_try (struct lineage *l, const struct op *op,
                         int (*apply) (const struct op *op));

#endif /* NBDEDUP_LINEAGE_HISTORY_H */
