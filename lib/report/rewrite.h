/* SPDX-License-Identifier: BSD-3-Clause */

/* The command "rewrite": store the records of a volume again with the
 * compression that it has today, and deduplicate what was missed.
 *
 * A record is replaced as a move (core/moves.h): the folds let all pointers to
 * it name the new record, in all layers, so what is shared stays shared, and
 * snapshots become smaller, too.  No block is written, so clients see no
 * change, and a crash leaves each pointer as it was or as it should be.
 *
 * It goes through the volume's records in up to three passes:
 *
 *  1. With "dedup", a record that is not in the hash index, and that has no
 *     equal there, enters it, as far as the quota allows.
 *
 *  2. With "dedup", a record that has an equal one in the index, with a lower
 *     address if both are there, moves to that one.  So of several equal
 *     records the one with the lowest address stays.
 *
 *  3. A record that would be stored in another form today moves to a new place,
 *     in that form.
 *
 * Each pass collects the addresses first, in order.  They may be out of date
 * when their turn comes, so it looks at each record again.  Nothing is stored
 * about the progress: a record that is as it should be is left alone.
 */

#ifndef NBDEDUP_REWRITE_H
#define NBDEDUP_REWRITE_H

#include <jansson.h>
#include <stdbool.h>

#include "nbdedup.h"

struct rewrite_args {
  const char *name; /* of a volume or a snapshot */
  bool dedup;
};

/* The result is that of "rewrite" in command.h.  Not under pool->admin. */
extern json_t *rewrite_run (struct nbdedup_pool *pool,
                            const struct rewrite_args *args,
                            nbdedup_progress_fn *progress, void *opaque);

#endif /* NBDEDUP_REWRITE_H */
