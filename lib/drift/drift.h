/* SPDX-License-Identifier: BSD-3-Clause */

/* Drift: how far the clones of a golden image have diverged from it.
 *
 * The classes are those of nbdedup-drift(1).  They compare contents, so equal
 * data counts as equal whatever its history (written twice without dedup,
 * moved, changed and restored).  All figures are exact.
 *
 * The cost: reading the golden image's pointers once and the clones' own, and
 * sorting them twice in bounded memory (sorter.h).  Blocks that a clone
 * inherits are not read: they are the golden image's, at the same place.
 *
 * All figures are of one moment (view.h).  The pool serves clients meanwhile.
 * The functions take pool->admin only to open the view; the caller must not
 * hold it.
 */

#ifndef NBDEDUP_DRIFT_H
#define NBDEDUP_DRIFT_H

#include <stdbool.h>
#include <stdint.h>

#include "nbdedup.h"

/* Memory for sorting, in bytes; the rest goes to a nameless file in the pool's
 * directory.
 */
#define DRIFT_MEMORY_MIN NBDEDUP_DRIFT_MEMORY_MIN
#define DRIFT_MEMORY_DEFAULT (UINT64_C (32) << 20)

/* A golden image, by name ("vol@snap", also of a destroyed one: golden.h) or
 * by id.  Neither: all that have clones.
 */
struct drift_golden {
  const char *name; /* not owned; NULL: none */
  uint64_t id;      /* 0: none */
};

/* In a document: the golden image's id.  Names change, and return. */
#define GOLDEN_ID "golden_id"

/* The document of one golden image, or {"goldens": [...]}.  'memory_bytes' 0:
 * the default.  NULL: ENOENT, EINVAL (too little memory), EINTR, EIO, ENOMEM,
 * ENOSPC.
 */
extern json_t *drift_run (struct nbdedup_pool *pool, struct drift_golden which,
                          uint64_t memory_bytes, nbdedup_progress_fn *progress,
                          void *opaque);

/* The space that destroying these volumes (with their snapshots) and snapshots
 * together would free: {"names": [all of them], "freed_bytes": N}.
 */
extern json_t *drift_freed_run (struct nbdedup_pool *pool, json_t *names,
                                uint64_t memory_bytes,
                                nbdedup_progress_fn *progress, void *opaque);

#endif /* NBDEDUP_DRIFT_H */
