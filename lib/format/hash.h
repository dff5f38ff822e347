/* SPDX-License-Identifier: BSD-3-Clause */

/* The digest that identifies a record's content (OpenSSL EVP; BLAKE3 if
 * configure has found libblake3).
 */

#ifndef NBDEDUP_HASH_H
#define NBDEDUP_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIGEST_LEN 32
#define HASH_KEY_LEN 32

/* The first 32 bytes of a hash's output (all but blake2b512 have 32). */
struct digest {
  uint8_t b[DIGEST_LEN];
};

/* Stored in the pool; never reused. */
enum hash_id {
  HASH_SHA256 = 1,
  HASH_SHA512_256 = 2,
  HASH_BLAKE2B512 = 3,
  HASH_BLAKE2S256 = 4,
  HASH_BLAKE3 = 5,
  HASH_GMAC = 6, /* keyed: see hash-keyed.h */
};

/* Returns the id, or -1 (EINVAL) for a name that this build does not have, with
 * a text that lists the names that it has.
 */
extern int hash_by_name (const char *name);

/* NULL for an id that this build lacks. */
extern const char *hash_name (int id);

/* The secret of a pool with a keyed hash.  Nothing prints or logs it: see
 * service/hash-key.h for where it is stored.
 */
struct hash_key {
  bool known;
  uint8_t b[HASH_KEY_LEN];
};

/* Its text in pool.db and on the control socket: 64 hexadecimal digits. */
#define HASH_KEY_TEXT (2 * HASH_KEY_LEN + 1)
extern void
hash_key_format (const struct hash_key *key, char text[HASH_KEY_TEXT]);
/* False: NULL, or not such a text. */
extern bool hash_key_parse (const char *text, struct hash_key *key);

/* Does this hash need a key? */
extern bool hash_is_keyed (int id);

/* What "auto" means for blocks of this size (0: 16 KiB) on this CPU; it takes
 * some milliseconds.  SHA-256, unless another hash is HASH_GAIN times as fast;
 * a keyed one only if it is so much faster than all others, too.  0; -1: no
 * memory, or OpenSSL has none of the hashes.
 */
#define HASH_GAIN 1.3
struct hash_choice {
  int id;
  uint64_t ns, sha256_ns; /* for one block; sha256_ns may be 0: none */
};
extern int hash_choose (uint32_t block_size, struct hash_choice *choice);

/* A hasher computes any number of digests, for one thread at a time.  'key' is
 * needed only during the call, and only by a keyed hash; it may be NULL
 * otherwise.  NULL: ENOMEM; EINVAL for an unknown id; ENOTSUP: this OpenSSL
 * lacks the hash; EIO: the key is not known.
 */
struct hasher;
extern struct hasher *hasher_new (int id, const struct hash_key *key);
extern void hasher_free (struct hasher *hasher);

/* The digest of 'len' bytes.  With 'domain' 0 the function hashes the bytes
 * alone.  Otherwise it hashes the domain's 8 little-endian bytes first, so that
 * the digests differ and volumes of different domains never share records.
 */
extern int hasher_digest (struct hasher *hasher, uint64_t domain,
                          const void *buf, size_t len, struct digest *digest);

#endif /* NBDEDUP_HASH_H */
