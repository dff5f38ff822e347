/* SPDX-License-Identifier: BSD-3-Clause */

/* The server side of control.sock: one thread that accepts, one per
 * connection.  The protocol is described in control-protocol.h.
 */

#ifndef NBDEDUP_CONTROL_H
#define NBDEDUP_CONTROL_H

#include "nbdedup.h"

struct control;

/* Listen on 'path' (mode 0600).  It replaces a stale socket; the caller holds
 * the pool's lock.  Requests run against 'pool', which outlives the result.
 */
extern struct control *
control_start (struct nbdedup_pool *pool, const char *path);

/* Refuse new requests, end the connections, close the volumes that they had
 * open, wait for the threads, remove the socket, and free.
 */
extern void control_free (struct control *control);

#endif /* NBDEDUP_CONTROL_H */
