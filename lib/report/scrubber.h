/* SPDX-License-Identifier: BSD-3-Clause */

/* The scrubber: a server's thread that scrubs the pool when "scrub-interval"
 * has passed since the end of the last scrub, also if a user ran that.  The
 * next server resumes an interrupted scrub without waiting for the interval.
 *
 * The scrubber runs at a low priority and at "scrub-rate".  It yields at once
 * to a scrub that a user runs, which resumes at the scrubber's position.
 * After a failure it waits before it tries again.  It logs the start, the end
 * and the findings.
 *
 * It measures the time since the last scrub by the wall clock; a time in the
 * future counts as now.
 */

#ifndef NBDEDUP_SCRUBBER_H
#define NBDEDUP_SCRUBBER_H

#include "nbdedup.h"

struct scrubber;

/* NULL on failure. */
extern struct scrubber *scrubber_start (struct nbdedup_pool *pool);

/* The property scrub-interval has changed.  NULL is allowed, here and below. */
extern void scrubber_wake (struct scrubber *scrubber);

/* End a running scrub soon, and begin no other. */
extern void scrubber_cancel (struct scrubber *scrubber);
/* Stop the thread, and free. */
extern void scrubber_free (struct scrubber *scrubber);

#endif /* NBDEDUP_SCRUBBER_H */
