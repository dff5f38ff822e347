/* SPDX-License-Identifier: BSD-3-Clause */

/* The state of a pool.  "status" waits for no other command and for no fold,
 * so it returns at once even in a pool that is full, stopped, or busy for
 * hours.
 *
 * The document:
 *
 *   pool       its path
 *   who, pid   the process that has it open
 *   state      "ok", "warning", "critical": the worst of the problems
 *   problems   an array of {"level", "text"}
 *   space      {"used_bytes", "file_bytes", "metadata_bytes", "free_bytes",
 *              "metadata_free_bytes", "max_size" (null: none),
 *              "used_percent", "full_warn", "writable_bytes",
 *              "writable_min_bytes", "full"}; null: not known
 *   damage     {"stopped", "lost_blocks", "damaged_records",
 *              "damaged_segments"}: lost_blocks and damaged_records as found
 *              by the last scrub or by a recovery since
 *   recovery   recovery.h's report, or null
 *   scrub      the last one's result (command.h) without "damaged", with
 *              "time", or null
 *   scrub_progress  scrub.h's
 *   drift_alerts    alert.h's array
 *   activity, queues  counters.h's
 */

#ifndef NBDEDUP_STATUS_H
#define NBDEDUP_STATUS_H

#include <stdbool.h>

#include <jansson.h>

struct nbdedup_pool;

#define SCRUB_REPORT "scrub"
#define SCRUB_POSITION "scrub-position"

extern json_t *status_run (struct nbdedup_pool *pool);

/* Add a problem: 'critical', or a warning. */
extern void status_add_problem (json_t *status, bool critical, const char *fmt,
                                ...) __attribute__ ((format (printf, 3, 4)));

/* A report in pool.db; JSON's null if there is none; NULL: an error. */
extern json_t *status_report (struct nbdedup_pool *pool, const char *name);

#endif /* NBDEDUP_STATUS_H */
