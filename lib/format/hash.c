/* SPDX-License-Identifier: BSD-3-Clause */

/* Digests of records.
 *
 * Fetching an algorithm from OpenSSL 3 and allocating a context take longer
 * than hashing 1 KiB, so a hasher does both once.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#ifdef HAVE_BLAKE3
#include <blake3.h>
#endif

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "format/hash.h"
#include "format/hash-keyed.h"

struct algorithm {
  int id;
  const char *name;     /* the property's value */
  const char *evp_name; /* OpenSSL's; NULL for libblake3, keyed */
  bool keyed;
};

/* In the order to list them. */
static const struct algorithm algorithms[] = {
  { HASH_SHA256, "sha256", "SHA256", false },
  { HASH_SHA512_256, "sha512-256", "SHA512-256", false },
  { HASH_BLAKE2B512, "blake2b512", "BLAKE2B-512", false },
  { HASH_BLAKE2S256, "blake2s256", "BLAKE2S-256", false },
#ifdef HAVE_BLAKE3
  { HASH_BLAKE3, "blake3", NULL, false },
#endif
  { HASH_GMAC, "gmac", NULL, true },
};
#define NR_ALGORITHMS (sizeof algorithms / sizeof algorithms[0])

/* "auto" measures each hash for this time; the default block size. */
#define AUTO_NS 2000000
#define AUTO_BLOCK 16384

struct hasher {
  const struct algorithm *algorithm;
  EVP_MD *md;                 /* owned; NULL for libblake3, keyed */
  EVP_MD_CTX *ctx;            /* owned; has 'md' set already */
  struct keyed_hasher *keyed; /* owned; NULL: not keyed */
#ifdef HAVE_BLAKE3
  blake3_hasher blake3;
#endif
};

static const struct algorithm *
find_id (int id)
{
  size_t i;

  for (i = 0; i < NR_ALGORITHMS; ++i)
    if (algorithms[i].id == id)
      return &algorithms[i];
  return NULL;
}

const char *
hash_name (int id)
{
  const struct algorithm *a = find_id (id);

  return a ? a->name : NULL;
}

bool
hash_is_keyed (int id)
{
  const struct algorithm *a = find_id (id);

  return a && a->keyed;
}

void
hash_key_format (const struct hash_key *key, char text[HASH_KEY_TEXT])
{
  unsigned i;

  for (i = 0; i < HASH_KEY_LEN; ++i)
    snprintf (text + 2 * i, 3, "%02x", key->b[i]);
}

bool
hash_key_parse (const char *text, struct hash_key *key)
{
  unsigned i, byte;

  if (text == NULL || strlen (text) != 2 * HASH_KEY_LEN ||
      strspn (text, "0123456789abcdef") != 2 * HASH_KEY_LEN)
    return false;
  for (i = 0; i < HASH_KEY_LEN; ++i) {
    sscanf (text + 2 * i, "%2x", &byte);
    key->b[i] = (uint8_t) byte;
  }
  key->known = true;
  return true;
}

void
hasher_free (struct hasher *hasher)
{
  if (hasher == NULL)
    return;
  EVP_MD_CTX_free (hasher->ctx);
  EVP_MD_free (hasher->md);
  keyed_hasher_free (hasher->keyed);
  free (hasher);
}

static int
start_evp (struct hasher *h)
{
  const struct algorithm *a = h->algorithm;

  h->md = EVP_MD_fetch (NULL, a->evp_name, NULL);
  if (h->md == NULL)
    /* For example OpenSSL's FIPS provider has no BLAKE2. */
    return hash_fail_openssl (ENOTSUP, a->name, "loading it");
  h->ctx = EVP_MD_CTX_new ();
  if (h->ctx == NULL)
    return nbdedup_fail (ENOMEM, "hash %s: out of memory", a->name);
  if (!EVP_DigestInit_ex2 (h->ctx, h->md, NULL))
    return hash_fail_openssl (ENOMEM, a->name, "starting it");
  return 0;
}

static int
start_keyed (struct hasher *h, const struct hash_key *key)
{
  if (key == NULL || !key->known)
    return nbdedup_fail (EIO,
                         "hash %s: the pool's key is lost, so no digest "
                         "can be computed: restore a copy of pool.db",
                         h->algorithm->name);
  h->keyed = keyed_hasher_new (key);
  return h->keyed ? 0 : -1;
}

struct hasher *
hasher_new (int id, const struct hash_key *key)
{
  const struct algorithm *a = find_id (id);
  struct hasher *h;
  int r = 0;

  if (a == NULL)
    return nbdedup_fail_null (EINVAL,
                              "hash number %d: not built into this "
                              "nbdedup",
                              id);
  h = calloc (1, sizeof *h);
  if (h == NULL)
    return nbdedup_fail_null (ENOMEM, "hash %s: out of memory", a->name);
  h->algorithm = a;
  /* A program may call exit() while other threads hash: OpenSSL must not clean
   * up then.
   */
  /* Without its default context, for lack of memory, OpenSSL 3.0 crashes. */
  if (!OPENSSL_init_crypto (OPENSSL_INIT_NO_ATEXIT, NULL) ||
      OSSL_LIB_CTX_get0_global_default () == NULL)
    r = nbdedup_fail (ENOMEM, "hash %s: OpenSSL has no memory", a->name);
  else if (a->keyed)
    r = start_keyed (h, key);
  else if (a->evp_name)
    r = start_evp (h);
  if (r == 0)
    return h;
  r = errno;
  hasher_free (h);
  errno = r;
  return NULL;
}

static int
digest_evp (struct hasher *h, uint64_t domain, const void *buf, size_t len,
            struct digest *digest)
{
  uint8_t out[EVP_MAX_MD_SIZE];
  uint8_t prefix[8];
  unsigned out_len = 0;

  put_le64 (prefix, domain);
  if (!EVP_DigestInit_ex2 (h->ctx, NULL, NULL) ||
      (domain != 0 && !EVP_DigestUpdate (h->ctx, prefix, sizeof prefix)) ||
      !EVP_DigestUpdate (h->ctx, buf, len) ||
      !EVP_DigestFinal_ex (h->ctx, out, &out_len))
    return hash_fail_openssl (ENOMEM, h->algorithm->name, "hashing");
  assert (out_len >= DIGEST_LEN);
  memcpy (digest->b, out, DIGEST_LEN);
  return 0;
}

#ifdef HAVE_BLAKE3
static int
digest_blake3 (struct hasher *h, uint64_t domain, const void *buf, size_t len,
               struct digest *digest)
{
  uint8_t prefix[8];

  put_le64 (prefix, domain);
  blake3_hasher_init (&h->blake3);
  if (domain != 0)
    blake3_hasher_update (&h->blake3, prefix, sizeof prefix);
  blake3_hasher_update (&h->blake3, buf, len);
  blake3_hasher_finalize (&h->blake3, digest->b, DIGEST_LEN);
  return 0;
}
#endif

int
hasher_digest (struct hasher *hasher, uint64_t domain, const void *buf,
               size_t len, struct digest *digest)
{
  if (hasher->keyed)
    return keyed_hasher_digest (hasher->keyed, domain, buf, len, digest);
#ifdef HAVE_BLAKE3
  if (hasher->algorithm->evp_name == NULL)
    return digest_blake3 (hasher, domain, buf, len, digest);
#endif
  return digest_evp (hasher, domain, buf, len, digest);
}

/* The shortest time for one block within AUTO_NS: other processes can only make
 * it longer.  0 if the hash does not work here.
 */
static uint64_t
measure (const struct algorithm *a, const void *block, uint32_t block_size)
{
  static const struct hash_key key = { .known = true };
  struct hasher *h;
  struct digest digest;
  uint64_t start, t, end, best = UINT64_MAX;

  h = hasher_new (a->id, &key);
  if (h == NULL)
    return 0;
  end = clock_ns () + AUTO_NS;
  do {
    start = clock_ns ();
    if (hasher_digest (h, 0, block, block_size, &digest) == -1) {
      best = 0;
      break;
    }
    t = clock_ns ();
    if (t - start < best)
      best = t - start;
  } while (t < end);
  hasher_free (h);
  return best;
}

/* The fastest of those with or without a key; id -1: there is none. */
static struct hash_choice
fastest (const uint64_t times[NR_ALGORITHMS], bool keyed)
{
  struct hash_choice best = { .id = -1, .ns = UINT64_MAX };
  size_t i;

  for (i = 0; i < NR_ALGORITHMS; ++i)
    if (algorithms[i].keyed == keyed && times[i] > 0 && times[i] < best.ns) {
      best.id = algorithms[i].id;
      best.ns = times[i];
    }
  return best;
}

static bool
pays (const struct hash_choice *x, uint64_t ns)
{
  return x->id != -1 && (double) ns >= HASH_GAIN * (double) x->ns;
}

int
hash_choose (uint32_t block_size, struct hash_choice *choice)
{
  const uint32_t size = block_size ? block_size : AUTO_BLOCK;
  CLEANUP_FREE void *block = calloc (1, size);
  uint64_t times[NR_ALGORITHMS];
  struct hash_choice plain, keyed, best = { .id = -1, .ns = UINT64_MAX };
  size_t i;

  if (block == NULL)
    return nbdedup_fail (ENOMEM, "hash auto: out of memory");
  for (i = 0; i < NR_ALGORITHMS; ++i)
    times[i] = measure (&algorithms[i], block, size);
  assert (algorithms[0].id == HASH_SHA256);
  if (times[0] > 0)
    best = (struct hash_choice) { .id = HASH_SHA256, .ns = times[0] };
  plain = fastest (times, false);
  keyed = fastest (times, true);
  if (pays (&plain, best.ns))
    best = plain;
  if (pays (&keyed, plain.ns))
    best = keyed;
  if (best.id == -1)
    return nbdedup_fail (EINVAL,
                         "hash auto: OpenSSL offers none of the "
                         "hashes that nbdedup knows");
  *choice = best;
  choice->sha256_ns = times[0];
  return 0;
}

int
hash_by_name (const char *name)
{
  char choices[128] = "";
  size_t i, len = 0;

  for (i = 0; i < NR_ALGORITHMS; ++i) {
    if (strcmp (name, algorithms[i].name) == 0)
      return algorithms[i].id;
    len += snprintf (choices + len, sizeof choices - len, "%s, ",
                     algorithms[i].name);
  }
  return nbdedup_fail (EINVAL,
                       "hash '%s': not known to this nbdedup; "
                       "choose one of: %sauto",
                       name, choices);
}
