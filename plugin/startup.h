/* SPDX-License-Identifier: BSD-3-Clause */

/* Reports the result of the start to the process that started nbdkit.
 *
 * nbdkit's first process exits with 0 as soon as it has forked the server
 * into the background, and the server's errors go to syslog.  But the pool
 * can be opened (and recovered) only after that fork.  So the first process
 * waits, in an exit handler, for the server's report.  If the server could not
 * open the pool, the first process prints the reason and exits with 1.
 *
 * So when the command "nbdkit dedup ..." returns, recovery is complete and the
 * server answers.
 */

#ifndef STARTUP_H
#define STARTUP_H

/* In .get_ready.  Returns -1 after nbdkit_error. */
extern int startup_prepare (void);

/* In .after_fork: 'error' is NULL, or the reason why the server cannot run. */
extern void startup_report (const char *error);

#endif /* STARTUP_H */
