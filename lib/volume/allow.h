/* SPDX-License-Identifier: BSD-3-Clause */

/* The property "allow" of a volume: which clients may attach to it.
 *
 * "all", or a list of entries that are separated by commas: uids, and
 * distinguished names of TLS certificates (RFC 4514: "CN=web1,O=Example") as
 * nbdkit presents them.  A comma or a backslash that belongs to a name has a
 * backslash before it.
 *
 * Pure: no I/O.
 */

#ifndef NBDEDUP_ALLOW_H
#define NBDEDUP_ALLOW_H

#include <stdbool.h>
#include <stdint.h>

/* Fail with EINVAL unless it is such a list and each entry can match a client.
 */
extern int allow_check (const char *allow);

/* Does the list contain this client?  uid -1: not known; 'tls_dn' NULL: none.
 */
extern bool allow_has (const char *allow, int64_t uid, const char *tls_dn);

#endif /* NBDEDUP_ALLOW_H */
