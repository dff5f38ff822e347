/* SPDX-License-Identifier: BSD-3-Clause */

/* Drift with the blocks behind its figures: golden images and their clones at
 * one moment, the class of each block, and the content that it has.
 *
 * The moment is a view's.  The content stays readable although clients go on:
 * from before the view is opened, the space of records that die is kept
 * (space_keep_begin).  When clients need that space, or the view has to give
 * way (view_check), all calls fail with EBUSY.
 *
 * Threads: a struct frozen belongs to one thread.  The functions take
 * pool->admin and pool->drift; the caller must hold neither.
 */

#ifndef NBDEDUP_FROZEN_H
#define NBDEDUP_FROZEN_H

#include <stdint.h>

#include "drift/advise.h"
#include "drift/class-map.h"
#include "nbdedup.h"

struct frozen;

/* 'name' and 'memory_bytes' as for drift_run. */
extern struct frozen *frozen_open (struct nbdedup_pool *pool, const char *name,
                                   uint64_t memory_bytes,
                                   nbdedup_progress_fn *progress, void *opaque);
extern void frozen_close (struct frozen *f);

/* The document of the next golden image, which the other calls then refer to;
 * an empty object: there are no more.
 */
extern json_t *
frozen_next (struct frozen *f, nbdedup_progress_fn *progress, void *opaque);

/* The next run of blocks of clone 'clone' of the document (0: the first;
 * NBDEDUP_FROZEN_GOLDEN: the golden image): as class_map_next, and
 * nbdedup_frozen_runs.
 */
extern int
frozen_classes (struct frozen *f, uint64_t clone, struct class_run *run);

/* The size in bytes; 0 if there is no such clone. */
extern uint64_t frozen_size (const struct frozen *f, uint64_t clone);

/* Read from a clone, or from the golden image. */
extern int frozen_read (struct frozen *f, uint64_t clone, void *buf,
                        uint32_t len, uint64_t offset);

/* What would be freed, if ... (advise.h).  zero: as advise_zero, of this
 * document's clones.  advise: as advise_run, once for a document.
 */
#define FROZEN_SETS ADVISE_SETS
extern int frozen_zero (struct frozen *f, unsigned set, uint64_t clone,
                        uint64_t offset, uint64_t len);
extern json_t *
frozen_advise (struct frozen *f, nbdedup_progress_fn *progress, void *opaque);

/* Is the moment still there?  EBUSY: no more can be read. */
extern int frozen_check (struct frozen *f);

#endif /* NBDEDUP_FROZEN_H */
