/* SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/params.h>

#include "base/bytes.h"
#include "base/error.h"
#include "format/hash-keyed.h"

/* With two tags it fits into one block of SHA-256. */
#define PREFIX_LEN 16

struct keyed_hasher {
  EVP_CIPHER *gcm;      /* all owned */
  EVP_CIPHER_CTX *gmac; /* has its key */
  EVP_MAC *poly1305_type;
  EVP_MAC_CTX *poly1305;
  EVP_MD *sha256;
  EVP_MD_CTX *outer;
  uint8_t poly1305_key[HASH_SUBKEY_LEN];
  uint8_t prefix[PREFIX_LEN];
};

static const uint8_t nonce[12];

int
hash_fail_openssl (int err, const char *name, const char *what)
{
  char reason[160];
  unsigned long e = ERR_peek_last_error ();

  ERR_error_string_n (e, reason, sizeof reason);
  ERR_clear_error ();
  /* OpenSSL often says nothing at all if it has no memory. */
  if (e == 0 || ERR_GET_REASON (e) == ERR_R_MALLOC_FAILURE)
    return nbdedup_fail (ENOMEM, "hash %s: %s failed: OpenSSL has no memory",
                         name, what);
  return nbdedup_fail (err, "hash %s: %s failed in OpenSSL: %s", name, what,
                       reason);
}

void
keyed_hasher_free (struct keyed_hasher *h)
{
  if (h == NULL)
    return;
  EVP_CIPHER_CTX_free (h->gmac);
  EVP_CIPHER_free (h->gcm);
  EVP_MAC_CTX_free (h->poly1305);
  EVP_MAC_free (h->poly1305_type);
  EVP_MD_CTX_free (h->outer);
  EVP_MD_free (h->sha256);
  OPENSSL_cleanse (h, sizeof *h);
  free (h);
}

static bool
derive (const struct hash_key *key, const char *label, uint8_t *subkey)
{
  unsigned len;

  return HMAC (EVP_sha256 (), key->b, HASH_KEY_LEN,
               (const unsigned char *) label, strlen (label), subkey,
               &len) != NULL;
}

static bool
use_subkeys (struct keyed_hasher *h, const struct hash_subkeys *keys)
{
  memcpy (h->poly1305_key, keys->poly1305, sizeof h->poly1305_key);
  memcpy (h->prefix, keys->digest, PREFIX_LEN);
  return EVP_EncryptInit_ex2 (h->gmac, h->gcm, keys->gmac, nonce, NULL) &&
    EVP_DigestInit_ex2 (h->outer, h->sha256, NULL);
}

static bool
fetch_parts (struct keyed_hasher *h)
{
  h->gcm = EVP_CIPHER_fetch (NULL, "AES-256-GCM", NULL);
  h->poly1305_type = EVP_MAC_fetch (NULL, "POLY1305", NULL);
  h->sha256 = EVP_MD_fetch (NULL, "SHA256", NULL);
  return h->gcm && h->poly1305_type && h->sha256;
}

struct keyed_hasher *
keyed_hasher_new_from (const struct hash_subkeys *keys)
{
  struct keyed_hasher *h = calloc (1, sizeof *h);
  int err;

  if (h == NULL)
    return nbdedup_fail_null (ENOMEM, "hash gmac: out of memory");
  if (!fetch_parts (h)) {
    /* For example OpenSSL's FIPS provider has no Poly1305. */
    hash_fail_openssl (ENOTSUP, "gmac", "loading it");
    goto fail;
  }
  h->gmac = EVP_CIPHER_CTX_new ();
  h->poly1305 = EVP_MAC_CTX_new (h->poly1305_type);
  h->outer = EVP_MD_CTX_new ();
  if (!h->gmac || !h->poly1305 || !h->outer || !use_subkeys (h, keys)) {
    hash_fail_openssl (ENOMEM, "gmac", "starting it");
    goto fail;
  }
  return h;

fail:
  err = errno;
  keyed_hasher_free (h);
  errno = err;
  return NULL;
}

struct keyed_hasher *
keyed_hasher_new (const struct hash_key *key)
{
  struct keyed_hasher *h = NULL;
  struct hash_subkeys keys;

  assert (key->known);
  if (derive (key, "gmac", keys.gmac) &&
      derive (key, "poly1305", keys.poly1305) &&
      derive (key, "digest", keys.digest))
    h = keyed_hasher_new_from (&keys);
  else
    hash_fail_openssl (ENOMEM, "gmac", "deriving keys");
  OPENSSL_cleanse (&keys, sizeof keys);
  return h;
}

/* GMAC is GCM with the message as data that is only authenticated. */
static bool
gmac (struct keyed_hasher *h, const uint8_t *prefix, size_t prefix_len,
      const void *buf, size_t len, uint8_t tag[HASH_TAG_LEN])
{
  OSSL_PARAM get[] = {
    OSSL_PARAM_construct_octet_string (OSSL_CIPHER_PARAM_AEAD_TAG, tag,
                                       HASH_TAG_LEN),
    OSSL_PARAM_construct_end (),
  };
  int n;

  return EVP_EncryptInit_ex2 (h->gmac, NULL, NULL, nonce, NULL) &&
    (prefix_len == 0 ||
     EVP_EncryptUpdate (h->gmac, NULL, &n, prefix, (int) prefix_len)) &&
    EVP_EncryptUpdate (h->gmac, NULL, &n, buf, (int) len) &&
    EVP_EncryptFinal_ex (h->gmac, tag, &n) &&
    EVP_CIPHER_CTX_get_params (h->gmac, get);
}

static bool
poly1305 (struct keyed_hasher *h, const uint8_t *prefix, size_t prefix_len,
          const void *buf, size_t len, uint8_t tag[HASH_TAG_LEN])
{
  size_t n;

  return EVP_MAC_init (h->poly1305, h->poly1305_key, HASH_SUBKEY_LEN, NULL) &&
    (prefix_len == 0 || EVP_MAC_update (h->poly1305, prefix, prefix_len)) &&
    EVP_MAC_update (h->poly1305, buf, len) &&
    EVP_MAC_final (h->poly1305, tag, &n, HASH_TAG_LEN);
}

int
keyed_hasher_tags (struct keyed_hasher *h, uint64_t domain, const void *buf,
                   size_t len, uint8_t tags[2 * HASH_TAG_LEN])
{
  uint8_t prefix[8];
  const size_t prefix_len = domain == 0 ? 0 : sizeof prefix;

  put_le64 (prefix, domain);
  if (!gmac (h, prefix, prefix_len, buf, len, tags) ||
      !poly1305 (h, prefix, prefix_len, buf, len, tags + HASH_TAG_LEN))
    return hash_fail_openssl (ENOMEM, "gmac", "hashing");
  return 0;
}

int
keyed_hasher_digest (struct keyed_hasher *h, uint64_t domain, const void *buf,
                     size_t len, struct digest *digest)
{
  uint8_t inner[PREFIX_LEN + 2 * HASH_TAG_LEN];

  memcpy (inner, h->prefix, PREFIX_LEN);
  if (keyed_hasher_tags (h, domain, buf, len, inner + PREFIX_LEN) == -1)
    return -1;
  if (!EVP_DigestInit_ex2 (h->outer, NULL, NULL) ||
      !EVP_DigestUpdate (h->outer, inner, sizeof inner) ||
      !EVP_DigestFinal_ex (h->outer, digest->b, NULL))
    return hash_fail_openssl (ENOMEM, "gmac", "hashing");
  return 0;
}
