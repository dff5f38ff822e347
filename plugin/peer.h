/* SPDX-License-Identifier: BSD-3-Clause */

/* The client of a connection, as nbdkit describes it in .open. */

#ifndef PEER_H
#define PEER_H

#include <stddef.h>
#include <stdint.h>

/* -1: not known. */
extern int64_t peer_uid (void);

/* The peer's TLS identity, which the caller frees; NULL if the peer has none,
 * or if this nbdkit does not provide it.
 */
extern char *peer_tls_identity (void);

/* A name that connections of one client share: its process, or its address
 * without the port.  Empty: not known.
 */
extern void peer_name (char *buf, size_t len);
#define PEER_MAX 64

#endif /* PEER_H */
