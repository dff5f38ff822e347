/* SPDX-License-Identifier: BSD-3-Clause */

/* Drift: how far the clones of a golden image have diverged from it.
 *
 * The classes are those of nbdedup-drift(1): they compare contents, so
 * they see equal data whatever happened to it (written twice without dedup,
 * moved, brought back).  Nothing is estimated.
 *
 * The cost: the golden image's pointers once, the clones' own, and two sorts
 * of them in bounded memory (sorter.h).  What a clone inherits is not looked
 * at: it is the golden image's, at the same place.
 *
 * All of it is true of one moment (view.h).  The pool goes on meanwhile:
 * pool->admin is held only to open the view, and must not be held by the
 * caller.
 */

#ifndef NBDEDUP_DRIFT_H
#define NBDEDUP_DRIFT_H

#include <stdbool.h>
#include <stdint.h>

#include "nbdedup.h"

/* What sorting may use, in bytes; what does not fit goes to a nameless file
 * in the pool's directory.
 */
#define DRIFT_MEMORY_MIN        NBDEDUP_DRIFT_MEMORY_MIN
#define DRIFT_MEMORY_DEFAULT    (UINT64_C (32) << 20)

/* A golden image, by name ("vol@snap", also of a destroyed one: golden.h) or
 * by id.  Neither: all that have clones.
 */
struct drift_golden {
  const char *name;             /* not owned; NULL: none */
  uint64_t id;                  /* 0: none */
};

/* The document of one golden image, or {"goldens": [...]}.  'memory_bytes' 0:
 * the default.  'ids' gets the id of each golden image, in their order; may be
 * NULL.  NULL: ENOENT, EINVAL (too little memory), EINTR, EIO, ENOMEM, ENOSPC.
 */
extern json_t *drift_run (struct nbdedup_pool *pool, struct drift_golden which,
                          uint64_t memory_bytes, json_t *ids,
                          nbdedup_progress_fn *progress, void *opaque);

/* What would come back if these volumes (with their snapshots) and snapshots
 * were destroyed together: {"names": [all of them], "freed_bytes": N}.
 */
extern json_t *drift_freed_run (struct nbdedup_pool *pool, json_t *names,
                                uint64_t memory_bytes,
                                nbdedup_progress_fn *progress, void *opaque);

#endif /* NBDEDUP_DRIFT_H */
