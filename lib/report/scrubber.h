/* SPDX-License-Identifier: BSD-3-Clause */

/* The scrubber: a server's thread that scrubs the pool when the last scrub
 * ended longer ago than the property "scrub-interval" says, also if a
 * user ran that.
 * One that was stopped goes on as soon as there is a server again.
 *
 * It runs at a low priority and at "scrub-rate", and gives way at once to a
 * scrub that a user runs, which goes on where it was.  After a failure it waits
 * before it tries again.  The log hears when it begins, when it ends, and what
 * it found.
 *
 * The time since the last scrub is measured by the clock on the wall; one from
 * the future counts as new.
 */

#ifndef NBDEDUP_SCRUBBER_H
#define NBDEDUP_SCRUBBER_H

#include "nbdedup.h"

struct scrubber;

/* NULL on failure. */
extern struct scrubber *scrubber_start (struct nbdedup_pool *pool);

/* The property scrub-interval has changed.  NULL is allowed, here and below. */
extern void scrubber_wake (struct scrubber *scrubber);

/* Let a scrub under way end soon, and begin no other. */
extern void scrubber_cancel (struct scrubber *scrubber);
/* Stop the thread, and free. */
extern void scrubber_stop (struct scrubber *scrubber);

#endif /* NBDEDUP_SCRUBBER_H */
