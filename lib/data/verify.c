/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/xxh3.h"
#include "core/engine.h"
#include "core/record-cache.h"
#include "data/verify.h"
#include "disk/store.h"
#include "format/codec.h"
#include "format/hash.h"
#include "meta/meta.h"

int
verifier_init (struct verifier *v, struct nbdedup_pool *pool)
{
  *v = (struct verifier) { .pool = pool };
  v->hasher = hasher_new (pool->hash, &pool->hash_key);
  if (v->hasher == NULL && errno != ENOMEM)
    return -1; /* for example the key is lost */
  v->codec = codec_ctx_new ();
  v->raw = malloc (BLOCK_SIZE_MAX);
  v->block = malloc (BLOCK_SIZE_MAX);
  v->out = malloc (BLOCK_SIZE_MAX);
  if (v->hasher && v->codec && v->raw && v->block && v->out)
    return 0;
  verifier_free (v);
  return nbdedup_fail (ENOMEM, "no memory to verify records");
}

void
verifier_free (struct verifier *v)
{
  hasher_free (v->hasher);
  codec_ctx_free (v->codec);
  free (v->raw);
  free (v->block);
  free (v->out);
  *v = (struct verifier) { NULL };
}

static bool
has_digest (struct verifier *v, const struct record *r, const uint8_t *content)
{
  struct digest digest;
  int rc = hasher_digest (v->hasher, r->domain, content, r->lsize, &digest);

  if (rc == 0)
    errno = EIO;
  return rc == 0 && memcmp (&digest, &r->digest, sizeof digest) == 0;
}

const uint8_t *
verify_read (struct verifier *v, const struct record *r)
{
  const uint8_t *p = v->raw;

  assert (r->ptr.psize <= r->lsize && r->lsize <= BLOCK_SIZE_MAX);
  if (store_read (v->pool->store, r->ptr.addr, v->raw, r->ptr.psize) == -1)
    return NULL;
  if (xxh3_64 (v->raw, r->ptr.psize) != r->ptr.cksum) {
    errno = EIO;
    return NULL;
  }
  if (r->ptr.codec != CODEC_NONE) {
    if (codec_decompress (v->codec, r->ptr.codec, v->raw, r->ptr.psize,
                          v->block, r->lsize) == -1)
      return NULL;
    p = v->block;
  }
  return has_digest (v, r, p) ? p : NULL;
}

/* Compress the content into v->out so that the record's checksum matches. */
static bool
compress_as_it_was (struct verifier *v, const struct record *r,
                    const uint8_t *content)
{
  /* The level is not recorded; this one is the most likely. */
  struct compression c = { .codec = r->ptr.codec, .level = 3 };
  int level;
  size_t n;

  if (r->ptr.codec == CODEC_NONE) {
    memcpy (v->out, content, r->lsize);
    return xxh3_64 (v->out, r->lsize) == r->ptr.cksum;
  }
  for (level = 0; level <= 19; ++level) {
    if (level > 0)
      c.level = level;
    n = codec_compress (v->codec, &c, content, r->lsize, v->out,
                        r->lsize - v->pool->sector_bytes);
    if (n == r->ptr.psize && xxh3_64 (v->out, n) == r->ptr.cksum)
      return true;
    if (c.codec != CODEC_ZSTD)
      break; /* it has no levels */
  }
  return false;
}

/* Write 'stored', which is v->raw or v->out, in whole sectors. */
static int
write_stored (struct verifier *v, const struct record *r, uint8_t *stored)
{
  size_t bytes = (size_t) sectors_of (r->ptr.psize, v->pool->sector_bytes) *
    v->pool->sector_bytes;

  assert (stored == v->raw || stored == v->out);
  assert (bytes >= r->ptr.psize && bytes <= BLOCK_SIZE_MAX);
  memset (stored + r->ptr.psize, 0, bytes - r->ptr.psize);
  return store_write (v->pool->store, r->ptr.addr, stored, bytes) == -1 ? -1
                                                                        : 1;
}

int
verify_write_again (struct verifier *v, const struct record *r,
                    const uint8_t *content, uint32_t len)
{
  if (len != r->lsize || !has_digest (v, r, content) ||
      !compress_as_it_was (v, r, content))
    return 0;
  return write_stored (v, r, v->out);
}

int
verify_write_from (struct verifier *v, const struct record *r,
                   const struct record *from)
{
  const uint8_t *content = verify_read (v, from);

  if (content == NULL)
    return 0;
  /* Copy the same stored bytes without compressing the content again. */
  if (from->ptr.psize == r->ptr.psize && from->ptr.codec == r->ptr.codec &&
      from->ptr.cksum == r->ptr.cksum && from->lsize == r->lsize &&
      memcmp (&from->digest, &r->digest, sizeof r->digest) == 0)
    return write_stored (v, r, v->raw);
  return verify_write_again (v, r, content, from->lsize);
}

int
verify_write_cached (struct verifier *v, const struct record *r)
{
  if (!record_cache_get (v->pool->records, r->ptr.addr, r->ptr.cksum, v->block,
                         0, r->lsize))
    return 0;
  return verify_write_again (v, r, v->block, r->lsize);
}
