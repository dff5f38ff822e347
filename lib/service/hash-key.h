/* SPDX-License-Identifier: BSD-3-Clause */

/* The secret key of a pool with a keyed hash (format/hash-keyed.h).
 *
 * "init" draws it.  Without it no digest can be computed: new data would find
 * no duplicates, and scrub could verify nothing.  So it is in two places that
 * have two copies each: in pool.db, and in the header of "records".  It is lost
 * only with both, and an opening for writing restores each from the other.
 *
 * An attacker who can read the key can make different blocks with equal
 * digests, so only the owner may read the two files.  The files also hold the
 * data, so the key needs no better protection than the data.
 */

#ifndef NBDEDUP_HASH_KEY_H
#define NBDEDUP_HASH_KEY_H

#include "format/hash.h"

struct nbdedup_pool;

extern void hash_key_make (struct hash_key *key);

/* Fail (EPERM) if others may read the "records" that an administrator has put
 * there for a pool with a keyed hash.
 */
extern int hash_key_check_mode (const char *records);

/* For an opening, after pool->hash is set and pool.db and "records" are open:
 * set pool->hash_key.  EIO: neither place has it, or they differ.  A read-only
 * opening succeeds then, but without a key: only what computes digests fails.
 */
extern int hash_key_find (struct nbdedup_pool *pool);

#endif /* NBDEDUP_HASH_KEY_H */
