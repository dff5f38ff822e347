/* SPDX-License-Identifier: BSD-3-Clause */

/* A sort-merge join: pointers of a view, sorted by address, with their
 * records.
 *
 * The caller adds three kinds of entries, in any order: a block of a party has
 * its content at an address; a party would drop a reference to an address; a
 * party would refer to it once more.  Then one pass in the order of addresses,
 * which is that of the table of records, reports each content's digest, and
 * sums up the space freed.
 */

#ifndef NBDEDUP_RECORD_JOIN_H
#define NBDEDUP_RECORD_JOIN_H

#include <stdbool.h>
#include <stdint.h>

#include "drift/view.h"

struct record_join;

/* Numbers of parties: 0 .. RECORD_JOIN_WHO_MAX.  Releases of party 0 are those
 * that happen anyway.
 */
#define RECORD_JOIN_WHO_MAX ((1u << 24) - 1)

/* Works within 'memory_bytes'.  The view is not owned; long work calls its
 * 'look'.
 */
extern struct record_join *
record_join_new (struct view *v, uint64_t memory_bytes);
extern void record_join_free (struct record_join *t);

/* 'releases': 'who' would also drop this reference. */
extern int record_join_add_content (struct record_join *t, uint64_t addr,
                                    uint32_t who, uint64_t block,
                                    bool releases);
extern int
record_join_add_release (struct record_join *t, uint64_t addr, uint32_t who);
/* 'who' would refer to this record once more, so it frees it in no case. */
extern int
record_join_add_reference (struct record_join *t, uint64_t addr, uint32_t who);
extern uint64_t record_join_count (const struct record_join *t);

/* The pass calls it for each content added, ascending by address, with the
 * record, which is borrowed.
 */
typedef int record_join_content_fn (void *opaque, const struct record *record,
                                    uint32_t who, uint64_t block);

/* The pass.  Adds to freed[who] the sectors that become free if only 'who' and
 * party 0 drop their references: 'freed' has 'nr_who' + 1 elements, or is NULL.
 * 'content' may be NULL if none was added.  The pass calls 'step' now and then
 * with the entries done; if that returns -1 the pass ends.
 */
extern int record_join_run (struct record_join *t, uint64_t *freed,
                            uint32_t nr_who, record_join_content_fn *content,
                            int (*step) (void *opaque, uint64_t done),
                            void *opaque);

#endif /* NBDEDUP_RECORD_JOIN_H */
