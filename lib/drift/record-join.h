/* SPDX-License-Identifier: BSD-3-Clause */

/* A sort-merge join: pointers of a view, sorted by address, with their
 * records.
 *
 * Two things are added, in any order: that a block of a party has its content
 * at an address, and that a party would give a reference to it back.  Then
 * one pass in the order of addresses, which is that of the table of records,
 * tells each content's digest, and adds up what comes back.
 */

#ifndef NBDEDUP_RECORD_JOIN_H
#define NBDEDUP_RECORD_JOIN_H

#include <stdbool.h>
#include <stdint.h>

#include "drift/view.h"

struct record_join;

/* Numbers of parties: 0 .. RECORD_JOIN_WHO_MAX.  Of those who give back 0 is
 * what is given back anyway.
 */
#define RECORD_JOIN_WHO_MAX ((1u << 24) - 1)

/* Within 'memory_bytes'.  The view is not owned; all that takes long looks
 * up as it says.
 */
extern struct record_join *record_join_new (struct view *v,
                                            uint64_t memory_bytes);
extern void record_join_free (struct record_join *t);

/* 'releases': the pointer is also one that 'who' would give back. */
extern int record_join_add_content (struct record_join *t, uint64_t addr,
                                    uint32_t who,
                                    uint64_t block, bool releases);
extern int record_join_add_release (struct record_join *t, uint64_t addr,
                                    uint32_t who);
extern uint64_t record_join_count (const struct record_join *t);

/* Called for each content that was added, ascending by address, with its
 * record, which is borrowed.
 */
typedef int record_join_content_fn (void *opaque, const struct record *record,
                                    uint32_t who, uint64_t block);

/* The pass.  freed[who] grows by the sectors that come back if 'who' gives
 * its references back, and no other but 0: 'freed' has 'nr_who' + 1
 * elements, or is NULL.  'content' may be NULL if none was added; 'step' is
 * called now and then with what has been done, and ends the pass by -1.
 */
extern int record_join_run (struct record_join *t, uint64_t *freed,
                            uint32_t nr_who, record_join_content_fn *content,
                            int (*step) (void *opaque, uint64_t done),
                            void *opaque);

#endif /* NBDEDUP_RECORD_JOIN_H */
