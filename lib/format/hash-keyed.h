/* SPDX-License-Identifier: BSD-3-Clause */

/* The keyed hash "gmac": for hash.c alone.
 *
 * With k1, k2 and k3 derived from the pool's key, the digest of a message m is
 *
 *   SHA-256 (k3 || GMAC (k1, m) || Poly1305 (k2, m))
 *
 * GMAC (AES-256, nonce 0) and Poly1305 serve as almost universal hash
 * functions: two different messages of n bytes, chosen without knowing the
 * key, have the same GMAC with a probability of at most
 * (n / 16 + 1) / 2^128, the same Poly1305 with one of at most
 * 8 (n / 16 + 1) / 2^106, and, as k1 and k2 are independent, both with the
 * product: 2^-211 for 16 KiB.  nbdedup-safety(7) derives what follows.
 *
 * Reusing a nonce breaks a MAC whose tags an attacker can see: the difference
 * of two tags is a polynomial of which the secret H is a root.  Here equal
 * messages must have equal tags, so the nonce is fixed, and the tags are no
 * output: SHA-256 with k3, as a pseudorandom function, hides them.  An
 * attacker without the key learns from a digest only to which others it is
 * equal, and the same from all that follows from digests: the order of the
 * index, hits and misses of the filter, and the time that these take.
 *
 * With the key an attacker can make different blocks with the same digest.
 */

#ifndef NBDEDUP_HASH_KEYED_H
#define NBDEDUP_HASH_KEYED_H

#include "format/hash.h"

#define HASH_SUBKEY_LEN 32
#define HASH_TAG_LEN 16

/* k1, k2 and, of which the first 16 bytes count, k3: HMAC-SHA-256 with the
 * pool's key of "gmac", "poly1305" and "digest".
 */
struct hash_subkeys {
  uint8_t gmac[HASH_SUBKEY_LEN];
  uint8_t poly1305[HASH_SUBKEY_LEN];
  uint8_t digest[HASH_SUBKEY_LEN];
};

/* NULL: ENOMEM, or ENOTSUP if this OpenSSL lacks a part, with a text.  One
 * thread at a time.
 */
struct keyed_hasher;
extern struct keyed_hasher *keyed_hasher_new (const struct hash_key *key);
extern struct keyed_hasher *
keyed_hasher_new_from (const struct hash_subkeys *keys);
extern void keyed_hasher_free (struct keyed_hasher *h);

/* As hasher_digest. */
extern int keyed_hasher_digest (struct keyed_hasher *h, uint64_t domain,
                                const void *buf, size_t len,
                                struct digest *digest);

/* GMAC, then Poly1305, for tests: a tag must not leave the process. */
extern int keyed_hasher_tags (struct keyed_hasher *h, uint64_t domain,
                              const void *buf, size_t len,
                              uint8_t tags[2 * HASH_TAG_LEN]);

/* Set the error of the call to OpenSSL that has just failed: "hash NAME: WHAT
 * failed", and its reason.  'err', or ENOMEM if memory was the reason.
 * Returns -1.
 */
extern int hash_fail_openssl (int err, const char *name, const char *what);

#endif /* NBDEDUP_HASH_KEYED_H */
