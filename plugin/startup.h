/* SPDX-License-Identifier: BSD-3-Clause */

/* How the start went, told to whoever started nbdkit.
 *
 * nbdkit's first process exits with 0 as soon as it has forked the server
 * into the background, and the server's errors go to syslog.  But the pool
 * can only be opened (and recovered) after that fork.  So the first process
 * waits, in an exit handler, until the server says that the pool is open,
 * or why not: then it prints that and exits with 1.
 *
 * The happy side effect: when the command line "nbdkit dedup ..." returns,
 * recovery is done and the server answers.
 */

#ifndef STARTUP_H
#define STARTUP_H

/* In .get_ready.  Returns -1 after nbdkit_error. */
extern int startup_prepare (void);

/* In .after_fork: 'error' is NULL, or why the server will not run. */
extern void startup_report (const char *error);

#endif /* STARTUP_H */
