/* SPDX-License-Identifier: BSD-3-Clause */

/* Copy an image to another.
 *
 * Several threads take pieces in turn, read each from the source, and write
 * it to the target.  They do not read holes.  They read, and write, a stream
 * in order, each thread when its turn comes.
 */

#ifndef NBDEDUP_COPY_H
#define NBDEDUP_COPY_H

#include "image.h"
#include "progress.h"

#define COPY_LEN (UINT32_C (1) << 20) /* of a piece of data */

/* Copy from *offset on, up to 'limit' or the source's end; set *offset to the
 * end of the copy.  *at_end: a source that is a stream has ended.
 *
 * -1: failed (image_error), or interrupted.
 */
extern int copy_images (struct image *source, struct image *target,
                        uint64_t *offset, uint64_t limit, bool *at_end,
                        struct progress *progress);

#endif /* NBDEDUP_COPY_H */
