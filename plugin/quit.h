/* SPDX-License-Identifier: BSD-3-Clause */

/* The end of a server that still has clients.
 *
 * nbdkit by itself answers each request that comes after SIGTERM with
 * ESHUTDOWN, and ends when the last client has hung up.  QEMU hands such
 * an error to its guest, whose file system then stops; it would connect
 * again, and send the request to the next server, only if the connection
 * broke.  And a client that is silent keeps the server alive for ever.
 *
 * So a signal to quit comes here first.  (1) No new request is let in;
 * those at work are finished.  (2) The connections are shut.  (3) nbdkit
 * gets its signal, and closes the pool, which makes durable what was
 * answered.  A request that was held back in (1) was never answered: the
 * client sends it again when it finds a server.  Nothing is lost, whether
 * the client flushes or not.
 */

#ifndef QUIT_H
#define QUIT_H

#include <stdbool.h>

/* In .after_fork.  'private_socket' is the name of a Unix socket that is
 * not nbdkit's.  Returns -1 after nbdkit_error.
 */
extern int quit_start (const char *private_socket);

/* In .cleanup: before the pool is closed, and also if quit_start was not
 * called, or failed.
 */
extern void quit_stop (void);

/* Around each use of the pool by a client.  false: the server is quitting,
 * the connection is shut; errno is ESHUTDOWN.
 */
extern bool quit_request_begin (void);
extern void quit_request_end (const bool *began);

#define QUIT_REQUEST(began)                                             \
  __attribute__ ((cleanup (quit_request_end))) const bool began =       \
    quit_request_begin ()

#endif /* QUIT_H */
