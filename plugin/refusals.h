/* SPDX-License-Identifier: BSD-3-Clause */

/* The log of failed requests.  A client that gets ENOSPC often tries again, at
 * once and for hours.  So of each kind of failure (request and errno) the
 * plugin logs the first with its text, and counts the others.
 *
 * Threads: any.
 */

#ifndef REFUSALS_H
#define REFUSALS_H

/* A request has failed with errno; 'text' is the reason. */
extern void refusals_note (const char *request, const char *text);

/* A request has succeeded: log the end of failures if there have been none for
 * a while.
 */
extern void refusals_check (void);

/* The server ends: log the remaining counts. */
extern void refusals_end (void);

#endif /* REFUSALS_H */
