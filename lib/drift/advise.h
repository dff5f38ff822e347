/* SPDX-License-Identifier: BSD-3-Clause */

/* What would be freed, if ...: the figures behind the advice of "drift
 * --advise", for one golden image and its clones.
 *
 * - Bytes that clones could give back come in sets (trim, swap, ...).  A set's
 *   figure is what zeroing all its bytes at once would free (advise-zero.c).
 * - Next golden images (advise-base.c): if all clones were rebased onto
 *   another snapshot, or a snapshot of one of them, how many blocks of their
 *   own would they have, and what would destroying the present golden image
 *   free then?
 * - Storing again (advise-rewrite.c): what would joining duplicates that were
 *   missed, and today's compression, save?
 *
 * All of it is computed from the references of the view: exact, but for
 * compression, which is tried on a sample of 4,096 records or 256 MiB.
 */

#ifndef NBDEDUP_ADVISE_H
#define NBDEDUP_ADVISE_H

#include <stdint.h>

#include <jansson.h>

#include "drift/drift-int.h"
#include "format/format.h"
#include "format/hash.h"

struct advise;

#define ADVISE_SETS 8

/* Reads what the view has; -1. */
struct advise_source {
  int (*read_record) (void *opaque, const struct pointer *ptr, uint32_t lsize,
                      void *buf);
  int (*read_clone) (void *opaque, uint64_t clone, void *buf, uint32_t len,
                     uint64_t offset);
  void *opaque;          /* not owned */
  struct hasher *hasher; /* the pool's hash; not owned */
};

/* 'blocks' are those of the last document, and outlive it, as 'v' and what
 * 'source' refers to do.
 */
extern struct advise *
advise_new (struct view *v, const struct drift_blocks *blocks,
            const struct advise_source *source, uint64_t memory_bytes);
extern void advise_free (struct advise *a);

/* These bytes of clone 'clone' would read as zeroes.  Those of one set must
 * come in ascending order of clones and bytes.
 */
extern int advise_zero (struct advise *a, unsigned set, uint64_t clone,
                        uint64_t offset, uint64_t len);

/* The figures, after all sets:
 *
 *   {"sets": [{"freed_bytes", "clones": [bytes of each clone alone]}...],
 *            which may be negative: a part of a shared block is copied
 *    "own_blocks": of all clones, above the golden image,
 *    "rebase", "promote": the best target, or null:
 *      {"target", "is_snapshot", "snapshot": the target, or a free name for a
 *       snapshot of it, "own_blocks": of all clones then, "rebases": [names],
 *       "destroys": [names], "freed_bytes"},
 *    "rewrite": {"missed_bytes", "missed": [names of volumes and snapshots],
 *                "compress_bytes", "compress": [the same]}}
 *
 * Call it once.
 */
extern json_t *advise_run (struct advise *a, struct drift_progress *progress);

#endif /* NBDEDUP_ADVISE_H */
