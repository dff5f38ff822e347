/* SPDX-License-Identifier: BSD-3-Clause */

/* Tell the service manager the state of the server (Type=notify), which nbdkit
 * does not.  Without a service manager, or in a build without libsystemd, these
 * do nothing.
 */

#ifndef NOTIFY_H
#define NOTIFY_H

/* The pool is open: clients are served from now on. */
extern void notify_ready (const char *pool);

/* The server ends: it makes all answered writes durable. */
extern void notify_stopping (void);

#endif /* NOTIFY_H */
