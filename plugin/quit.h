/* SPDX-License-Identifier: BSD-3-Clause */

/* The end of a server that still has clients.
 *
 * By itself nbdkit answers each request after SIGTERM with ESHUTDOWN, and ends
 * when the last client has disconnected.  QEMU passes such an error to its
 * guest, whose file system then stops; only after a broken connection does
 * QEMU connect again, and send the request to the next server.  And a silent
 * client keeps the server running forever.
 *
 * So the plugin gets a signal to quit first.  (1) It holds back new requests,
 * and finishes the running ones.  (2) It shuts down the connections.  (3) It
 * passes the signal to nbdkit, which closes the pool and so makes all answered
 * writes durable.  A request that was held back in (1) was never answered: the
 * client sends it again when it finds a server.  Nothing is lost, whether the
 * client flushes or not.
 */

#ifndef QUIT_H
#define QUIT_H

#include <stdbool.h>

/* In .after_fork.  'private_socket' is the name of a Unix socket that is
 * not nbdkit's.  Returns -1 after nbdkit_error.
 */
extern int quit_start (const char *private_socket);

/* Call it in .cleanup before closing the pool, also if quit_start was not
 * called, or failed.
 */
extern void quit_stop (void);

/* Around each use of the pool by a client.  false: the server is quitting,
 * the connection is shut; errno is ESHUTDOWN.
 */
extern bool quit_request_begin (void);
extern void quit_request_end (const bool *began);

#define QUIT_REQUEST(began)                                                    \
  __attribute__ ((cleanup (quit_request_end)))                                 \
  const bool began = quit_request_begin ()

#endif /* QUIT_H */
