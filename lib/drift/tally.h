/* SPDX-License-Identifier: BSD-3-Clause */

/* Pointers of a moment, sorted by address, meet their records.
 *
 * Two things are added, in any order: that a block of a party has its content
 * at an address, and that a party would give a reference to it back.  Then
 * one pass in the order of addresses, which is that of the table of records,
 * tells each content's digest, and adds up what comes back.
 */

#ifndef NBDEDUP_TALLY_H
#define NBDEDUP_TALLY_H

#include <stdbool.h>
#include <stdint.h>

#include "drift/moment.h"

struct tally;

/* Numbers of parties: 0 .. TALLY_WHO_MAX.  Of those who give back 0 is
 * what is given back anyway.
 */
#define TALLY_WHO_MAX ((1u << 24) - 1)

/* Within 'memory_bytes'.  The moment is not owned; all that takes long looks
 * up as it says.
 */
extern struct tally *tally_new (struct moment *m, uint64_t memory_bytes);
extern void tally_free (struct tally *t);

/* 'releases': the pointer is also one that 'who' would give back. */
extern int tally_add_content (struct tally *t, uint64_t addr, uint32_t who,
                              uint64_t block, bool releases);
extern int tally_add_release (struct tally *t, uint64_t addr, uint32_t who);
extern uint64_t tally_count (const struct tally *t);

/* Called for each content that was added, ascending by address, with its
 * record, which is borrowed.
 */
typedef int tally_content_fn (void *opaque, const struct record *record,
                              uint32_t who, uint64_t block);

/* The pass.  freed[who] grows by the sectors that come back if 'who' gives
 * its references back, and no other but 0: 'freed' has 'nr_who' + 1
 * elements, or is NULL.  'content' may be NULL if none was added; 'step' is
 * called now and then with what has been done, and ends the pass by -1.
 */
extern int tally_run (struct tally *t, uint64_t *freed, uint32_t nr_who,
                      tally_content_fn *content,
                      int (*step) (void *opaque, uint64_t done),
                      void *opaque);

#endif /* NBDEDUP_TALLY_H */
