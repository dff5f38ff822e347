/* SPDX-License-Identifier: BSD-3-Clause */

/* Recovery: replay the journal, log the result, and keep a report in pool.db.
 * The transaction that makes the replay durable stores the report.
 *
 * The report of the last recovery, JSON:
 *
 *   time            when, in seconds since 1970
 *   seconds         how long reading and applying the journal took
 *   batches         the number of its batches
 *   records, blocks the numbers of these in the batches
 *   cut_short       an incomplete batch followed
 *   dropped_blocks  blocks whose write no flush had covered, and whose data
 *                   had not arrived: they keep their old content
 *   dropped         where, the first ones: name, offset, length
 *   damaged         the number of damaged batches
 *   lost_blocks     blocks whose content that damage cost: MAP_LOST
 *   lost            where, as dropped
 *
 * A report stays until the next recovery.
 */

#ifndef NBDEDUP_RECOVERY_H
#define NBDEDUP_RECOVERY_H

#include <jansson.h>

struct nbdedup_pool;

/* Replay the journal into pool.db, while the pool is being opened. */
extern int recovery_run (struct nbdedup_pool *pool);

/* The last report, JSON's null if there is none; NULL: an error. */
extern json_t *recovery_report (struct nbdedup_pool *pool);

#endif /* NBDEDUP_RECOVERY_H */
