/* SPDX-License-Identifier: BSD-3-Clause */

/* Recovery: the journal is replayed, the log told, and a report kept in
 * pool.db, by the transaction that makes the replay durable.
 *
 * The report of the last recovery, JSON:
 *
 *   time            when, in seconds since 1970
 *   seconds         how long reading and applying the journal took
 *   batches         how many batches it had
 *   records, blocks what they brought
 *   cut_short       behind them was a part of another one
 *   dropped_blocks  writes that were not answered by a flush, and whose data
 *                   had not arrived: these blocks keep what they had
 *   dropped         where, the first ones: name, offset, length
 *   damaged         how many of the batches were damaged
 *   lost_blocks     blocks whose content that took: MAP_LOST
 *   lost            where, as dropped
 *
 * No recovery, no report: one stays until the next.
 */

#ifndef NBDEDUP_RECOVERY_H
#define NBDEDUP_RECOVERY_H

#include <jansson.h>

struct nbdedup_pool;

/* When the pool is opened: what the journal has is in pool.db then. */
extern int recovery_run (struct nbdedup_pool *pool);

/* The last report, a null if there is none; NULL: an error. */
extern json_t *recovery_report (struct nbdedup_pool *pool);

#endif /* NBDEDUP_RECOVERY_H */
