/* SPDX-License-Identifier: BSD-3-Clause */

/* Cleans up nbdkit's listening sockets when the server ends, or cannot run.
 *
 * nbdkit (seen in 1.32.5) binds before .after_fork.  It never removes the name
 * of its Unix socket, so that the next start fails: "Address already in use".
 * And if .after_fork fails, with --run its first process has the listening
 * socket, too: a client that connects waits forever.
 */

#ifndef LISTENERS_H
#define LISTENERS_H

/* Call 'fn' for each descriptor of this process.  -1: /proc is not there. */
extern int each_descriptor (void (*fn) (int fd));

/* In .get_ready, before nbdkit binds: note the existing sockets, which belong
 * to the process that started nbdkit (socket activation).
 */
extern void listeners_note (void);

/* In .after_fork, first: remember the others, which nbdkit has bound. */
extern void listeners_remember (void);

/* At the end: remove the names of nbdkit's sockets. */
extern void listeners_remove (void);

/* In .after_fork: shut down nbdkit's sockets for all processes that have them,
 * and remove their names.  Waiting clients are disconnected, new ones refused.
 */
extern void listeners_give_up (void);

#endif /* LISTENERS_H */
