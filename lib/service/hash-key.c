/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"
#include "core/engine.h"
#include "disk/store.h"
#include "meta/meta.h"
#include "service/hash-key.h"

void
hash_key_make (struct hash_key *key)
{
  /* This fails only before the kernel's generator is ready. */
  while (getrandom (key->b, HASH_KEY_LEN, 0) != HASH_KEY_LEN)
    ;
  key->known = true;
}

int
hash_key_check_mode (const char *records)
{
  struct stat st;

  if (stat (records, &st) == -1)
    return 0; /* it will be made, with mode 0600 */
  /* A group that may read a disk is as mighty as root. */
  if (st.st_mode & (S_ISBLK (st.st_mode) ? S_IROTH : S_IRGRP | S_IROTH))
    return nbdedup_fail (EPERM,
                         "%s: other users may read it, but the pool "
                         "would keep the secret key of its hash there: change "
                         "its mode to 0600, or choose a hash without a key",
                         records);
  return 0;
}

/* Reading volumes needs no digest, so only an opening for writing fails. */
static int
no_key (const struct nbdedup_pool *pool, const char *why)
{
  if (pool->settings.read_only == NBDEDUP_READ_ONLY_OFF)
    return nbdedup_fail (EIO,
                         "%s: %s: restore the pool from a backup, or use "
                         "--read-only, or a server with read-only=on, to read "
                         "its volumes",
                         pool->path, why);
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "%s: %s: volumes can be read, but no "
               "digest can be verified",
               pool->path, why);
  return 0;
}

int
hash_key_find (struct nbdedup_pool *pool)
{
  const struct store_header *h = store_get_header (pool->store);
  const bool in_header = h->hash_key.known && h->hash == pool->hash;
  struct hash_key key = { .known = false };
  int r;

  if (!hash_is_keyed (pool->hash))
    return 0;
  r = meta_hash_key_get (meta_writer (pool->meta), &key);
  if (r == -1 && errno == ENOMEM)
    return -1;
  pool->hash_key_missing = r == 0;
  if (r != 1 && !in_header)
    return no_key (pool,
                   "the key of its hash is lost in pool.db and in the "
                   "header of records");
  if (r == 1 && in_header && memcmp (key.b, h->hash_key.b, HASH_KEY_LEN) != 0)
    return no_key (pool, "pool.db and records have different keys of its hash");
  if (r != 1 || !in_header)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: the key of the pool's hash is "
                 "missing in %s: it is taken from %s",
                 pool->path, in_header ? "pool.db" : "the header of records",
                 in_header ? "the header of records" : "pool.db");
  pool->hash_key = r == 1 ? key : h->hash_key;
  if (!in_header)
    store_set_hash (pool->store, pool->hash, &pool->hash_key);
  return 0;
}
