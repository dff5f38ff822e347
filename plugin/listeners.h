/* SPDX-License-Identifier: BSD-3-Clause */

/* The sockets on which nbdkit listens, when the server ends, or will not run.
 *
 * nbdkit (seen in 1.32.5) binds before .after_fork.  It leaves the name of its
 * Unix socket behind, however it ends, so that the next start fails: "Address
 * already in use".  And if .after_fork fails, with --run its first process has
 * the listening socket, too: a client that connects waits for an answer for
 * ever.
 */

#ifndef LISTENERS_H
#define LISTENERS_H

/* Call 'fn' for each descriptor of this process.  -1: /proc is not there. */
extern int each_descriptor (void (*fn) (int fd));

/* In .get_ready, before nbdkit binds: those that there are now belong to who
 * started nbdkit (socket activation).
 */
extern void listeners_note (void);

/* In .after_fork, first: nbdkit has bound the others. */
extern void listeners_remember (void);

/* At the end: their names go. */
extern void listeners_remove (void);

/* In .after_fork: close all others for everybody.  Who waits is hung up on,
 * who connects is refused, the name goes.
 */
extern void listeners_give_up (void);

#endif /* LISTENERS_H */
