/* SPDX-License-Identifier: BSD-3-Clause */

/* The copier: a server's thread that makes the copies of records that the
 * property "copies" asks for (copies.h).
 *
 * Folds report the records that have reached enough references.  When the
 * copier starts, when the property has changed, and when its list of reported
 * records overflowed, it scans table "record" instead.  The scan skips records
 * that have their copies, so no list has to outlive the session.
 *
 * It runs at a low priority and at "scrub-rate".  It waits while the used
 * space has reached full-warn or COPIER_FULL_PERCENT, or while new data is
 * refused: a copy must never take the room that a client's write needs.
 *
 * To make a copy the copier reads and verifies the record and writes its
 * stored bytes to another segment.  The next fold inserts the copy, if it
 * still matches its primary (fold-copies.c), and syncs "records" before
 * pool.db refers to it.
 */

#ifndef NBDEDUP_COPIER_H
#define NBDEDUP_COPIER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define COPIER_FULL_PERCENT 90

struct copier;
struct nbdedup_pool;
struct verifier;

/* NULL on failure. */
extern struct copier *copier_start (struct nbdedup_pool *pool);

/* These records may need copies.  NULL is allowed, here and below. */
extern void
copier_note (struct copier *copier, const uint64_t *addrs, size_t nr);
/* Any record may. */
extern void copier_look_again (struct copier *copier);

/* Begin no more copies; wait for the thread's end; free, after the last fold.
 */
extern void copier_cancel (struct copier *copier);
extern void copier_stop (struct copier *copier);
extern void copier_free (struct copier *copier);

/* For "status": {"waiting", "looking", "made", "reads"}; NULL for NULL. */
extern json_t *copier_status (struct copier *copier);

/* Write the copies that the record at 'addr' lacks.  Returns how many, or -1;
 * adds their size to '*bytes'.
 */
extern int copier_copy (struct nbdedup_pool *pool, struct verifier *v,
                        uint64_t addr, uint64_t *bytes);

#endif /* NBDEDUP_COPIER_H */
