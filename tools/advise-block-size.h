/* SPDX-License-Identifier: BSD-3-Clause */

/* The advice "block-size" of "nbdedup drift --advise": would a golden image and
 * its clones take less in the pool with another block size?
 *
 * The engine's estimate counts, for several block sizes at once, what they take
 * now and would take: the golden image is read once, and of each clone the
 * regions where it differs.  Blocks that a clone inherits take nothing.
 *
 * Use: block_sizes_begin after nbdedup_frozen_next, and before the runs of the
 * clones; block_sizes_add_run and block_sizes_end_clone for each clone, with
 * what nbdedup_frozen_runs says; then advise_block_size.
 */

#ifndef NBDEDUP_ADVISE_BLOCK_SIZE_H
#define NBDEDUP_ADVISE_BLOCK_SIZE_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "nbdedup.h"
#include "progress.h"

struct block_sizes;

/* None of the three is owned.  'document' is that of the last
 * nbdedup_frozen_next.  NULL: image_error.
 */
extern struct block_sizes *block_sizes_begin (struct nbdedup_client *client,
                                              struct nbdedup_frozen *frozen,
                                              const json_t *document);
extern void block_sizes_free (struct block_sizes *b);

/* The golden image's size in bytes. */
extern uint64_t block_sizes_golden (const struct block_sizes *b);

/* A run of blocks of a clone, and its end: the size in bytes. */
extern void block_sizes_add_run (struct block_sizes *b, uint64_t clone,
                                 uint64_t block, uint64_t nr,
                                 enum nbdedup_class class);
extern void
block_sizes_end_clone (struct block_sizes *b, uint64_t clone, uint64_t size);

/* Append the advice to change the block size, if that pays, to the array
 * 'advice':
 *
 *   action        "block-size"
 *   block_size    the better one
 *   saves_bytes   of these: bytes_before less bytes_after
 *   bytes_before  what the golden image and its clones take in the present
 *                 block size: records with their summaries, and pool.db
 *   bytes_after   the same in the better one
 *   error_bytes   of saves_bytes (95 %), where compression was sampled
 *   text, commands
 *
 * 'progress' (may be NULL) gets the parts of the volumes that are done.
 * -1: image_error.
 */
extern int advise_block_size (struct block_sizes *b, struct progress *progress,
                              json_t *advice);

/*----------------------------------------------------------------------
 * advise-new-volumes.c
 */

/* The commands that move the golden image and the clones of 'document' into new
 * volumes with this block size, as an array, and sentences about what they
 * leave behind (owned by the caller).  1; 0: there are none, because a volume
 * is not there any more, or its property dedup is off; -1: image_error.
 */
extern int advise_new_volumes (struct nbdedup_client *client,
                               const json_t *document, uint32_t block_size,
                               json_t **commands, char **notes);

/* The properties of a volume, or (NULL) of the pool: an object of strings.
 * NULL: nbdedup_error.
 */
extern json_t *
advise_properties (struct nbdedup_client *client, const char *name);

/* The volume of "VOLUME@SNAP", owned by the caller. */
extern char *advise_volume_of (const char *golden);

/* Is it "VOLUME@SNAP (destroyed)"? */
extern bool advise_is_destroyed (const char *golden);

#endif /* NBDEDUP_ADVISE_BLOCK_SIZE_H */
