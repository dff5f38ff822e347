/* SPDX-License-Identifier: BSD-3-Clause */

/* What a server does for its clients: counters since the pool was opened, and
 * how much waits.  Like "status", "counters" waits for no other command and for
 * no fold.  Two calls and their difference give rates (io-counters.h).
 *
 * The document:
 *
 *   pid        the process that has the pool open
 *   server     does it serve clients?
 *   uptime_ns  since the pool was opened
 *   bounds_ns  upper bounds of the buckets of latencies, all but the last's
 *   queues     what waits at this moment: {"clients" (connections),
 *              "requests" (that run), "dirty_bytes", "dirty_max_bytes",
 *              "workers", "busy_workers", "journal_bytes" (not yet folded),
 *              "journal_max_bytes", "pending_bytes" (memory of changes not
 *              yet folded), "pending_max_bytes", "wal_bytes"}
 *   activity   in the background: {"freeing_bytes", "freeing_layers",
 *              "merging_layers", "merge_entries" (of the hash index, to be
 *              merged), "folds", "fold_ms" (how long these took)}
 *   traffic    bytes read from and written to each file: {"records_read_bytes",
 *              "records_written_bytes", "journal_written_bytes",
 *              "pool_db_written_bytes", "wal_written_bytes",
 *              "copy_written_bytes"}
 *   cache      {"record_bytes", "record_max_bytes", "ddt_bytes", "ddt_hits",
 *              "ddt_misses"}
 *   volumes    an array of volumes and snapshots that clients have, or have
 *              had since then:
 *
 *     name
 *     clients       connections
 *     requests      that run
 *     dirty_bytes   answered writes that wait for a worker, whole blocks
 *     cache_hits, cache_misses    blocks that were read, but holes: from
 *                                 memory; from "records"
 *     dedup_hits, dedup_misses    blocks that were written, but zeroes: the
 *                                 content was there; it was stored
 *     zero_blocks   the zeroes
 *     stored_bytes  what the misses took in "records"
 *     read, write, flush, trim, zero   an object each: {"requests", "bytes",
 *                   "errors" (requests that failed, which the others leave
 *                   out), "ns" (how long they took, in all), "latency" (an
 *                   array: the requests in each bucket)}.  A write with FUA
 *                   counts as a write and a flush.
 */

#ifndef NBDEDUP_COUNTERS_H
#define NBDEDUP_COUNTERS_H

#include <jansson.h>

struct nbdedup_pool;

extern json_t *counters_run (struct nbdedup_pool *pool);

/* "queues" and "activity", for "status". */
extern json_t *counters_queues (struct nbdedup_pool *pool);
extern json_t *counters_activity (struct nbdedup_pool *pool);

#endif /* NBDEDUP_COUNTERS_H */
