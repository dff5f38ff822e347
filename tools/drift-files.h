/* SPDX-License-Identifier: BSD-3-Clause */

/* "nbdedup drift --files": the documents of "drift", and for each clone in
 * addition
 *
 *   "files"     [{"path", "cause", "sibling", "unique"}...], bytes, the most
 *               first; paths that end in a slash are totals of a tree, which
 *               have no cause
 *   "causes"    [{"cause", "sibling", "unique"}...]
 *   "packages"  [{"package", "sibling", "unique"}...]
 *   "notes"     lines: what could not be seen, and why
 */

#ifndef NBDEDUP_DRIFT_FILES_H
#define NBDEDUP_DRIFT_FILES_H

#include "owner-map.h"
#include "tools.h"

/* As drift_ask_present; all of it is of one moment.  'flags': each document
 * also has "advice" (drift-advice.h), the most diverged clones have "map"
 * (drift-map.h).
 */
#define DRIFT_ADVICE 1
#define DRIFT_MAPS 2
extern json_t *drift_files_ask (const struct options *opts, const char *golden,
                                uint64_t memory, unsigned flags);

/* drift-files-text.c: for people, after drift_print. */
extern void drift_files_print (const json_t *documents);

/*----------------------------------------------------------------------
 * drift-tally.c: a clone's figures
 */

struct files_answer;

/* Set the first three; takes the owners from the answer's map. */
extern void drift_tally (json_t *clone, const struct files_answer *answer);

#endif /* NBDEDUP_DRIFT_FILES_H */
