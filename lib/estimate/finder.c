/* SPDX-License-Identifier: BSD-3-Clause */

/* Finds the content of damaged records in an image by its digest.  It runs in
 * the process of "scrub --from": the server opens no file that a user names.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/iszero.h"
#include "base/lock.h"
#include "format/format.h"

struct wanted {
  uint64_t domain, address;
  uint32_t length;
  bool found;
  struct digest digest;
};

struct nbdedup_finder {
  struct lock lock;      /* protects everything below */
  struct hasher *hasher; /* owned */
  struct wanted *wanted; /* owned; by length, domain, digest */
  size_t nr, nr_found;
  uint8_t *tail; /* owned; an image's end, padded */
};

static int
compare_kind (const struct wanted *x, const struct wanted *y)
{
  if (x->length != y->length)
    return x->length < y->length ? -1 : 1;
  return x->domain < y->domain ? -1 : x->domain > y->domain;
}

static int
compare_wanted (const void *a, const void *b)
{
  const struct wanted *x = a, *y = b;
  int r = compare_kind (x, y);

  return r ? r : memcmp (&x->digest, &y->digest, sizeof x->digest);
}

static bool
parse_digest (const char *hex, struct digest *digest)
{
  unsigned i, byte;

  if (hex == NULL || strlen (hex) != 2 * DIGEST_LEN ||
      strspn (hex, "0123456789abcdef") != 2 * DIGEST_LEN)
    return false;
  for (i = 0; i < DIGEST_LEN; ++i) {
    sscanf (hex + 2 * i, "%2x", &byte);
    digest->b[i] = (uint8_t) byte;
  }
  return true;
}

/* The list comes from a server, whose version may differ. */
static bool
parse_wanted (const json_t *record, struct wanted *w)
{
  json_int_t length = json_integer_value (json_object_get (record, "length"));

  w->length = (uint32_t) length;
  w->address = (uint64_t) json_integer_value (
    json_object_get (record, "address"));
  w->domain = (uint64_t) json_integer_value (
    json_object_get (record, "domain"));
  return length >= BLOCK_SIZE_MIN && length <= BLOCK_SIZE_MAX &&
    (length & (length - 1)) == 0 &&
    parse_digest (json_string_value (json_object_get (record, "digest")),
                  &w->digest);
}

static int
parse_all (struct nbdedup_finder *f, const json_t *wanted)
{
  const char *hash = json_string_value (json_object_get (wanted, "hash"));
  const json_t *records = json_object_get (wanted, "records"), *record;
  struct hash_key key = { .known = false };
  int id = hash_by_name (hash ? hash : "");
  size_t i;

  if (id == -1)
    return -1;
  hash_key_parse (json_string_value (json_object_get (wanted, "key")), &key);
  f->hasher = hasher_new (id, &key);
  f->wanted = calloc (json_array_size (records) + 1, sizeof *f->wanted);
  f->tail = malloc (BLOCK_SIZE_MAX);
  if (f->hasher == NULL && errno != ENOMEM)
    return -1;
  if (f->hasher == NULL || f->wanted == NULL || f->tail == NULL)
    return nbdedup_fail (ENOMEM, "no memory to look for records");
  json_array_foreach (records, i, record)
    if (!parse_wanted (record, &f->wanted[f->nr++]))
      return nbdedup_fail (EIO,
                           "the server's list of damaged records is not "
                           "valid");
  qsort (f->wanted, f->nr, sizeof f->wanted[0], compare_wanted);
  return 0;
}

struct nbdedup_finder *
nbdedup_finder_new (const json_t *wanted)
{
  struct nbdedup_finder *f = calloc (1, sizeof *f);

  if (f == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory to look for records");
  lock_init (&f->lock);
  if (parse_all (f, wanted) == 0)
    return f;
  nbdedup_finder_free (f);
  return NULL;
}

void
nbdedup_finder_free (struct nbdedup_finder *f)
{
  const int err = errno;

  if (f == NULL)
    return;
  hasher_free (f->hasher);
  free (f->wanted);
  free (f->tail);
  lock_destroy (&f->lock);
  free (f);
  errno = err;
}

uint32_t
nbdedup_finder_block_size (struct nbdedup_finder *f)
{
  return f->nr == 0 ? 0 : f->wanted[f->nr - 1].length;
}

typedef int
found_fn (void *opaque, uint64_t address, const void *content, uint32_t len);

/* Compare one block with the wanted records of this length and domain. */
static int
look_at_block (struct nbdedup_finder *f, const struct wanted *kind,
               const uint8_t *block, found_fn *fn, void *opaque)
{
  struct wanted key = *kind, *end = f->wanted + f->nr, *w;

  if (hasher_digest (f->hasher, key.domain, block, key.length, &key.digest) ==
      -1)
    return -1;
  w = bsearch (&key, f->wanted, f->nr, sizeof *w, compare_wanted);
  if (w == NULL)
    return 0;
  while (w > f->wanted && compare_wanted (w - 1, &key) == 0)
    --w;
  for (; w < end && compare_wanted (w, &key) == 0; ++w) {
    if (w->found)
      continue;
    if (fn (opaque, w->address, block, key.length) == -1)
      return -1;
    w->found = true;
    f->nr_found++;
  }
  return 0;
}

static int
look_at_blocks (struct nbdedup_finder *f, const struct wanted *kind,
                const uint8_t *buf, size_t len, found_fn *fn, void *opaque)
{
  const uint8_t *block;
  size_t n;

  for (; len > 0; len -= n, buf += n) {
    n = len < kind->length ? len : kind->length;
    block = buf;
    if (n < kind->length) {
      memcpy (f->tail, buf, n);
      memset (f->tail + n, 0, kind->length - n);
      block = f->tail;
    }
    /* No record holds zeroes. */
    if (!is_zero (block, kind->length) &&
        look_at_block (f, kind, block, fn, opaque) == -1)
      return -1;
  }
  return 0;
}

int
nbdedup_finder_look (struct nbdedup_finder *f, const void *buf, size_t len,
                     found_fn *fn, void *opaque)
{
  size_t i;

  WITH_LOCK (&f->lock);
  if (f->nr_found == f->nr)
    return 0;
  for (i = 0; i < f->nr; ++i)
    if ((i == 0 || compare_kind (&f->wanted[i - 1], &f->wanted[i]) != 0) &&
        look_at_blocks (f, &f->wanted[i], buf, len, fn, opaque) == -1)
      return -1;
  return 0;
}
