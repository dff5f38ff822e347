/* SPDX-License-Identifier: BSD-3-Clause */

/* The copier: a server's thread that makes the copies of records that the
 * property "copies" asks for (copies.h).
 *
 * Folds tell it which records have come to have enough references.  When it
 * starts, when the property has changed, and when there were more than it can
 * keep in mind, it goes through table "record" instead: what has its copies is
 * passed over, so nothing has to be remembered from one session to the next.
 *
 * It runs at a low priority and at "scrub-rate".  While as much space is used
 * as full-warn says, or COPIER_FULL_PERCENT, or new data has been refused, it
 * waits: a copy must never take the room that a client's write needs.
 *
 * One copy: the record is read and verified, its stored bytes are written to
 * another segment, and the next fold inserts the copy, if that is still one
 * (fold-copies.c).  The fold syncs "records" before pool.db refers to it.
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

/* These records may want copies.  NULL is allowed, here and below. */
extern void copier_note (struct copier *copier, const uint64_t *addrs,
                         size_t nr);
/* Any may. */
extern void copier_look_again (struct copier *copier);

/* Begin nothing more; wait for the thread's end; free, when folds have
 * ended, too.
 */
extern void copier_cancel (struct copier *copier);
extern void copier_stop (struct copier *copier);
extern void copier_free (struct copier *copier);

/* For "status": {"waiting", "looking", "made", "reads"}; NULL of NULL. */
extern json_t *copier_status (struct copier *copier);

/* Write the copies that the record at 'addr' lacks: how many; -1.  '*bytes'
 * are added.
 */
extern int copier_copy (struct nbdedup_pool *pool, struct verifier *v,
                        uint64_t addr, uint64_t *bytes);

#endif /* NBDEDUP_COPIER_H */
