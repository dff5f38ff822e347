/* SPDX-License-Identifier: BSD-3-Clause */

/* The server side of control.sock: one thread that accepts, one per
 * connection.  The protocol is described in control-protocol.h.
 */

#ifndef NBDEDUP_CONTROL_H
#define NBDEDUP_CONTROL_H

#include "nbdedup.h"

struct control;

/* Listen on 'path' (mode 0600; a stale socket is replaced: the caller holds
 * the pool's lock).  Requests run against 'pool', which outlives this.
 */
extern struct control *control_start (struct nbdedup_pool *pool,
                                      const char *path);

/* Stop: refuse new requests, end the connections, wait for the threads,
 * remove the socket.  Volumes that connections had open are closed.
 */
extern void control_stop (struct control *control);

#endif /* NBDEDUP_CONTROL_H */
