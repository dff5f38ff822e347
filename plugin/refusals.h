/* SPDX-License-Identifier: BSD-3-Clause */

/* What is logged of requests that fail.  A client that gets ENOSPC often
 * tries again, at once and for hours: of each kind of failure (request and
 * errno) the first is logged with its text, the others are counted.
 *
 * Threads: any.
 */

#ifndef REFUSALS_H
#define REFUSALS_H

/* A request has failed with errno; 'text' says why. */
extern void refusals_note (const char *request, const char *text);

/* A request has succeeded: say so if there were failures, and have been none
 * for a while.
 */
extern void refusals_check (void);

/* The server ends: tell what has been counted. */
extern void refusals_end (void);

#endif /* REFUSALS_H */
