/* SPDX-License-Identifier: BSD-3-Clause */

/* Digests against values from Python's hashlib (BLAKE3: its authors' test
 * vectors; gmac: tests/models/format_digest.py, and the parts' own test
 * vectors), names, keys, domains, and use from several threads.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "format/hash.h"
#include "format/hash-keyed.h"

#define PATTERN_LEN 4096

static uint8_t pattern[PATTERN_LEN];

static const struct {
  int id;
  const char *name;
  const char *empty, *abc; /* digests in hex */
  const char *of_pattern, *in_domain;
} known[] = {
  { HASH_SHA256, "sha256",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "d24ac44c83cce842b67a82d2f77bcbe5e41dbd555605c92832d609e29c5a997c",
    "b16be51c70aeb4f46e4096bb65ce53529ebf215ae4605e484228ab8353aecc51" },
  { HASH_SHA512_256, "sha512-256",
    "c672b8d1ef56ed28ab87c3622c5114069bdd3ad7b8f9737498d0c01ecef0967a",
    "53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23",
    "69fc361f26655f37d38f9bf5456a05787ea8d0aa75016ab262294e6c8559e365",
    "5655ba872c673bf51c046e552e431404da6855c956236f5cbc35b27aff98f29d" },
  { HASH_BLAKE2B512, "blake2b512",
    "786a02f742015903c6c6fd852552d272912f4740e15847618a86e217f71f5419",
    "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1",
    "d414580cff3db16dd74745e1c640c2a5a4e664ae20cc129116b829840670ee98",
    "313c17017b040ce300ad61116c50f11f9737d8f4f6bc1e7b39f323938036e39b" },
  { HASH_BLAKE2S256, "blake2s256",
    "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9",
    "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982",
    "2803b7785dca35e65f6efa15e4cdec8534421ecedcf8f0dedd289f1175fe3205",
    "425efa3b3c110a66fb2cfeea84ee892b6487108a56129b21ab98badfa996a1a2" },
#ifdef HAVE_BLAKE3
  { HASH_BLAKE3, "blake3",
    "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85", NULL,
    NULL },
#endif
  { HASH_GMAC, "gmac",
    "70e51bead561580b1d926ec867bde67096e2e2e63c4f0e62ad033cc94f971af9",
    "8e11a86b51d6af2db778339f287a94755cfae059e12e0b89c314d63d3cb045a7",
    "7abfcf3f685aa16b77f2e89e55a4e2957e6e3c265f341beae29e4479936c8364",
    "3fe9118c796ca0ff3296e0000ba5ab5057ae38d9a4240fd055a813b075b6a05e" },
};
#define NR_KNOWN (sizeof known / sizeof known[0])

#define DOMAIN UINT64_C (0x0102030405060708)

/* Bytes 0 to 31, in main. */
static struct hash_key key = { .known = true };

static void
check_hex (const void *buf, size_t len, const char *expected)
{
  const uint8_t *p = buf;
  char hex[65];
  size_t i;

  assert (len <= 32);
  for (i = 0; i < len; ++i)
    sprintf (&hex[2 * i], "%02x", p[i]);
  assert (strcmp (hex, expected) == 0);
}

static void
check_digest (struct hasher *h, uint64_t domain, const void *buf, size_t len,
              const char *expected)
{
  struct digest digest;

  if (expected == NULL)
    return;
  memset (&digest, 0xaa, sizeof digest);
  assert (hasher_digest (h, domain, buf, len, &digest) == 0);
  check_hex (digest.b, DIGEST_LEN, expected);
}

static void
check_all (struct hasher *h, size_t i)
{
  check_digest (h, 0, "", 0, known[i].empty);
  check_digest (h, 0, "abc", 3, known[i].abc);
  check_digest (h, 0, pattern, PATTERN_LEN, known[i].of_pattern);
  check_digest (h, DOMAIN, pattern, PATTERN_LEN, known[i].in_domain);
}

/* A domain puts its 8 bytes in front of the data, with every hash. */
static void
test_domains (struct hasher *h)
{
  static uint8_t prefixed[8 + PATTERN_LEN];
  struct digest none, one, two, by_hand;

  put_le64 (prefixed, 1);
  memcpy (prefixed + 8, pattern, PATTERN_LEN);
  assert (hasher_digest (h, 0, pattern, PATTERN_LEN, &none) == 0);
  assert (hasher_digest (h, 1, pattern, PATTERN_LEN, &one) == 0);
  assert (hasher_digest (h, 2, pattern, PATTERN_LEN, &two) == 0);
  assert (hasher_digest (h, 0, prefixed, sizeof prefixed, &by_hand) == 0);
  assert (memcmp (&none, &one, sizeof none) != 0);
  assert (memcmp (&one, &two, sizeof one) != 0);
  assert (memcmp (&one, &by_hand, sizeof one) == 0);
}

static void
test_known_answers (void)
{
  struct hasher *h;
  size_t i;

  for (i = 0; i < NR_KNOWN; ++i) {
    assert (hash_by_name (known[i].name) == known[i].id);
    assert (strcmp (hash_name (known[i].id), known[i].name) == 0);
    h = hasher_new (known[i].id, &key);
    assert (h != NULL);
    check_all (h, i);
    check_all (h, i); /* nothing is left over from the first */
    test_domains (h);
    hasher_free (h);
  }
}

/* The GCM specification, test case 13 (key, nonce and message are zero or
 * empty), and RFC 8439, section 2.5.2.
 */
static void
test_vectors (void)
{
  static const char message[] = "Cryptographic Forum Research Group";
  static const struct hash_subkeys keys = {
    .poly1305 =
      "\x85\xd6\xbe\x78\x57\x55\x6d\x33\x7f\x44\x52\xfe\x42\xd5\x06\xa8"
      "\x01\x03\x80\x8a\xfb\x0d\xb2\xfd\x4a\xbf\xf6\xaf\x41\x49\xf5\x1b",
  };
  struct keyed_hasher *h = keyed_hasher_new_from (&keys);
  uint8_t tags[2 * HASH_TAG_LEN];

  assert (h != NULL);
  assert (keyed_hasher_tags (h, 0, "", 0, tags) == 0);
  check_hex (tags, HASH_TAG_LEN, "530f8afbc74536b9a963b4f1c4cb738b");
  assert (keyed_hasher_tags (h, 0, message, strlen (message), tags) == 0);
  check_hex (tags + HASH_TAG_LEN, HASH_TAG_LEN,
             "a8061dc1305136c6c22b8baf0c0127a9");
  keyed_hasher_free (h);
}

/* Each bit of the key matters, to both halves of the digest. */
static void
test_keys (void)
{
  struct hash_key other;
  struct digest digest, with_other;
  struct hasher *h;
  unsigned i;

  h = hasher_new (HASH_GMAC, &key);
  assert (h && hasher_digest (h, 0, pattern, PATTERN_LEN, &digest) == 0);
  hasher_free (h);
  for (i = 0; i < 8 * HASH_KEY_LEN; ++i) {
    other = key;
    other.b[i / 8] ^= 1u << i % 8;
    h = hasher_new (HASH_GMAC, &other);
    assert (h && hasher_digest (h, 0, pattern, PATTERN_LEN, &with_other) == 0);
    hasher_free (h);
    assert (memcmp (digest.b, with_other.b, 16) != 0);
    assert (memcmp (digest.b + 16, with_other.b + 16, 16) != 0);
  }
}

static void
test_key_texts (void)
{
  static const char *const bad[] = {
    "",
    "00",
    "zz",
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1",
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f0",
    "000102030405060708090A0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
  };
  struct hash_key unknown = { .known = false }, read = unknown;
  char text[HASH_KEY_TEXT];
  size_t i;

  hash_key_format (&key, text);
  assert (strcmp (text,
                  "000102030405060708090a0b0c0d0e0f"
                  "101112131415161718191a1b1c1d1e1f") == 0);
  assert (hash_key_parse (text, &read) && read.known);
  assert (memcmp (read.b, key.b, HASH_KEY_LEN) == 0);
  for (i = 0; i < sizeof bad / sizeof bad[0]; ++i)
    assert (!hash_key_parse (bad[i], &read));
  assert (!hash_key_parse (NULL, &read));

  assert (hasher_new (HASH_GMAC, &unknown) == NULL && errno == EIO);
  assert (strstr (nbdedup_error (), "key is lost") != NULL);
  assert (hasher_new (HASH_GMAC, NULL) == NULL && errno == EIO);
}

/* The choice depends on the machine, its rules do not. */
static void
test_choice (void)
{
  static const uint32_t sizes[] = { 0, 4096, 1 << 20 };
  struct hash_choice c;
  char why[160];
  size_t i;

  for (i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    assert (hash_choose (sizes[i], &c) == 0);
    assert (c.ns > 0 && c.sha256_ns > 0 && hash_name (c.id) != NULL);
    if (c.id == HASH_SHA256)
      assert (c.ns == c.sha256_ns);
    else
      assert ((double) c.sha256_ns >= HASH_GAIN * (double) c.ns);
  }
  assert (nbdedup_hash_auto (0, why, sizeof why) != NULL);
  assert (strstr (why, "as fast") != NULL);
}

static void
test_names (void)
{
  static const char *const bad[] = {
    "", "SHA256", "sha256 ", "sha-256", "md5", "blake2b", "auto", "poly1305",
  };
  const char *const *names = nbdedup_hash_names ();
  size_t i;

  for (i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    errno = 0;
    assert (hash_by_name (bad[i]) == -1);
    assert (errno == EINVAL);
    assert (strstr (nbdedup_error (), "sha256, sha512-256, blake2b512, ") !=
            NULL);
    assert (strstr (nbdedup_error (), "auto") != NULL);
  }

  for (i = 0; i < NR_KNOWN; ++i)
    assert (strcmp (names[i], known[i].name) == 0);
  assert (names[NR_KNOWN] == NULL);

  for (i = 0; i < NR_KNOWN; ++i)
    assert (hash_is_keyed (known[i].id) == (known[i].id == HASH_GMAC));
  assert (!hash_is_keyed (-1));
}

static void
test_unknown_ids (void)
{
  static const int bad[] = { -1, 0, 7, 15, 255, 1 << 30 };
  size_t i;

  for (i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    assert (hash_name (bad[i]) == NULL);
    errno = 0;
    assert (hasher_new (bad[i], &key) == NULL);
    assert (errno == EINVAL);
  }
#ifndef HAVE_BLAKE3
  assert (hash_name (HASH_BLAKE3) == NULL);
  assert (hasher_new (HASH_BLAKE3, NULL) == NULL);
  assert (hash_by_name ("blake3") == -1);
#endif
  hasher_free (NULL);
}

static void *
hash_in_thread (void *arg)
{
  size_t i = *(size_t *) arg;
  struct hasher *h = hasher_new (known[i].id, &key);
  int n;

  assert (h != NULL);
  for (n = 0; n < 200; ++n)
    check_all (h, i);
  hasher_free (h);
  return NULL;
}

static void
test_threads (void)
{
  pthread_t threads[2 * NR_KNOWN];
  size_t which[2 * NR_KNOWN], i;

  for (i = 0; i < 2 * NR_KNOWN; ++i) {
    which[i] = i % NR_KNOWN;
    assert (pthread_create (&threads[i], NULL, hash_in_thread, &which[i]) == 0);
  }
  for (i = 0; i < 2 * NR_KNOWN; ++i)
    assert (pthread_join (threads[i], NULL) == 0);
}

/* The speeds are unknown, but they must be plausible. */
static void
test_bench (void)
{
  double ns, ns_decompress;
  size_t i;

  for (i = 0; i < NR_KNOWN; ++i) {
    ns = ns_decompress = -1;
    assert (nbdedup_bench (known[i].name, 4096, i % 2 * 100, &ns,
                           &ns_decompress) == 0);
    assert (ns > 0 && ns_decompress == 0);
  }
  assert (nbdedup_bench ("md5", 4096, 100, &ns, &ns_decompress) == -1);
  assert (errno == EINVAL);
  assert (nbdedup_bench ("sha256", 0, 100, &ns, &ns_decompress) == -1);
  assert (errno == EINVAL);
}

int
main (void)
{
  size_t i;

  for (i = 0; i < PATTERN_LEN; ++i)
    pattern[i] = i * 7 + i / 256;
  for (i = 0; i < HASH_KEY_LEN; ++i)
    key.b[i] = i;

  test_known_answers ();
  test_vectors ();
  test_keys ();
  test_key_texts ();
  test_choice ();
  test_names ();
  test_unknown_ids ();
  test_threads ();
  test_bench ();
  return 0;
}
