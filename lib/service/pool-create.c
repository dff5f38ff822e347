/* SPDX-License-Identifier: BSD-3-Clause */

/* Making a pool. */

#include <config.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/owner.h"
#include "core/engine.h"
#include "core/events.h"
#include "core/pool-property.h"
#include "disk/journal.h"
#include "disk/store.h"
#include "format/format.h"
#include "format/hash.h"
#include "meta/meta.h"
#include "service/hash-key.h"
#include "service/property-apply.h"
#include "service/pool.h"

/* Make the pool's own name durable, too.  If another user made the directory,
 * this process may lack the permission.
 */
static int
sync_name (const char *path, bool made)
{
  CLEANUP_FREE char *real = realpath (path, NULL);

  if ((real == NULL || sync_directory_of (real) == -1) && made)
    return nbdedup_fail (errno, "%s: syncing its directory: %s", path,
                         strerror (errno));
  return 0;
}

/* Only "records" may be there. */
int
pool_check_empty (const char *path)
{
  CLEANUP_FREE char *db = pool_file (path, "pool.db");
  struct dirent *e;
  struct stat st;
  bool empty = true;
  DIR *dir;

  if (db == NULL)
    return -1;
  if (lstat (db, &st) == 0)
    return nbdedup_fail (EEXIST,
                         "%s: there is a pool already: choose another "
                         "directory",
                         path);
  dir = opendir (path);
  if (dir == NULL)
    return nbdedup_fail (errno, "%s: %s", path, strerror (errno));
  while (empty && (e = readdir (dir)) != NULL)
    empty = strcmp (e->d_name, ".") == 0 || strcmp (e->d_name, "..") == 0 ||
      strcmp (e->d_name, "records") == 0;
  closedir (dir);
  return empty ? 0
               : nbdedup_fail (ENOTEMPTY,
                               "%s: the directory is not empty: choose an "
                               "empty or a new one",
                               path);
}

/* Make the directory if needed. */
static int
prepare_directory (const char *path)
{
  bool made;
  int r;

  made = mkdir (path, 0700) == 0;
  if (!made && errno != EEXIST)
    return nbdedup_fail (errno, "%s: %s", path, strerror (errno));
  r = sync_name (path, made);
  return r == -1 ? -1 : pool_check_empty (path);
}

static int
option_int (json_t *options, const char *name, json_int_t fallback,
            json_int_t *value)
{
  json_t *j = json_object_get (options, name);

  *value = fallback;
  if (j == NULL || json_is_null (j))
    return 0;
  if (!json_is_integer (j))
    return nbdedup_fail (EINVAL, "%s: not a number", name);
  *value = json_integer_value (j);
  return 0;
}

/* Volume defaults given to init become the pool's properties. */
static const char *const init_properties[] = { "compress", "dedup", NULL };

/* The first entry of the pool's history. */
static void
keep_event (struct nbdedup_pool *pool, json_t *options)
{
  CLEANUP_JSON json_t *event = NULL;

  event_find_asker ();
  event = event_new ("init", "{s:I, s:s, s:O*, s:O*, s:O*}", "sector_bytes",
                     (json_int_t) pool->sector_bytes, "hash",
                     hash_name (pool->hash), "block_size",
                     json_object_get (options, "block-size"), "compress",
                     json_object_get (options, "compress"), "dedup",
                     json_object_get (options, "dedup"));
  events_keep (pool->events, event);
}

static int
find_hash (const char *name, uint32_t block_size)
{
  struct hash_choice choice;

  if (name == NULL || strcmp (name, "auto") != 0)
    return hash_by_name (name ? name : "sha256");
  return hash_choose (block_size, &choice) == -1 ? -1 : choice.id;
}

static int
check_options (json_t *options, struct meta_state *state,
               json_int_t *block_size)
{
  const char *key;
  json_int_t sector;
  json_t *value;
  unsigned i;

  json_object_foreach (options, key, value)
    if (strcmp (key, "sector") != 0 && strcmp (key, "hash") != 0 &&
        strcmp (key, "block-size") != 0 && strcmp (key, "compress") != 0 &&
        strcmp (key, "dedup") != 0)
      return nbdedup_fail (EINVAL, "unknown option '%s'", key);
  if (option_int (options, "sector", SECTOR_MIN, &sector) == -1 ||
      pool_check_sector (sector) == -1 ||
      option_int (options, "block-size", 0, block_size) == -1)
    return -1;
  if (*block_size != 0 &&
      check_block_size ((uint64_t) *block_size, (uint32_t) sector) == -1)
    return -1;
  state->hash = find_hash (json_string_value (
                             json_object_get (options, "hash")),
                           (uint32_t) *block_size);
  if (state->hash == -1)
    return -1;
  state->sector_bytes = (uint32_t) sector;
  for (i = 0; init_properties[i]; ++i) {
    value = json_object_get (options, init_properties[i]);
    if (value &&
        pool_property_check (init_properties[i],
                             json_string_value (value) ?: "") == -1)
      return -1;
  }
  return 0;
}

static void
make_uuid (uint8_t uuid[UUID_LEN])
{
  /* This fails only before the kernel's generator is ready. */
  while (getrandom (uuid, UUID_LEN, 0) != UUID_LEN)
    ;
  uuid[6] = (uuid[6] & 0x0f) | 0x40; /* RFC 4122: random */
  uuid[8] = (uuid[8] & 0x3f) | 0x80;
}

/* Properties other than their defaults are set through the open pool. */
static int
set_defaults (const char *path, json_t *options, json_int_t block_size)
{
  struct nbdedup_pool *pool;
  const char *value;
  char number[24];
  unsigned i;
  int r = 0;

  pool = nbdedup_pool_open (path, NULL, "nbdedup init", 0);
  if (pool == NULL)
    return -1;
  {
    WITH_LOCK (&pool->admin);
    for (i = 0; init_properties[i] && r == 0; ++i) {
      value = json_string_value (json_object_get (options, init_properties[i]));
      if (value)
        r = pool_property_set (pool, init_properties[i], value);
    }
    if (block_size != 0 && r == 0) {
      snprintf (number, sizeof number, "%" JSON_INTEGER_FORMAT, block_size);
      r = pool_property_set (pool, "block-size", number);
    }
  }
  keep_event (pool, options);
  return nbdedup_pool_close (pool) == -1 ? -1 : r;
}

/* SQLite takes this file, and gives the WAL the same owner and mode. */
static int
create_empty (const char *path)
{
  CLEANUP_CLOSE int fd = open_owned (path,
                                     O_RDWR | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                                     0600);

  if (fd == -1)
    return nbdedup_fail (errno, "%s: %s", path, strerror (errno));
  return 0;
}

/* pool.db comes last: without it there is no pool.  'path' has no symbolic
 * links in it, because SQLite is opened so as to follow none.
 */
static int
create_files (const char *path, const struct meta_state *state,
              const struct hash_key *key)
{
  CLEANUP_FREE char *records = pool_file (path, "records");
  CLEANUP_FREE char *journal = pool_file (path, "journal");
  CLEANUP_FREE char *db = pool_file (path, "pool.db");
  CLEANUP_FREE char *new_db = pool_file (path, "pool.db.new");
  struct store_header header = {
    .epoch = state->epoch,
    .sector_bytes = state->sector_bytes,
    .hash = key->known ? state->hash : 0,
    .hash_key = *key,
  };

  if (records == NULL || journal == NULL || db == NULL || new_db == NULL)
    return -1;
  memcpy (header.uuid, state->uuid, UUID_LEN);
  if (store_create (records, &header) == -1 ||
      journal_create (journal, state->uuid, state->epoch) == -1 ||
      create_empty (new_db) == -1 || meta_create (new_db, state, key) == -1)
    return -1;
  if (rename (new_db, db) == -1)
    return nbdedup_fail (errno, "%s: %s", db, strerror (errno));
  if (sync_directory (path) == -1)
    return nbdedup_fail (errno, "%s: %s", path, strerror (errno));
  return 0;
}

static void
remove_files (const char *path)
{
  static const char *const names[] = {
    "journal", "pool.db.new", "pool.db.new-wal", "pool.db.new-journal",
    "lock",    NULL,
  };
  unsigned i;

  for (i = 0; names[i]; ++i) {
    CLEANUP_FREE char *p = pool_file (path, names[i]);

    if (p)
      unlink (p);
  }
}

int
nbdedup_pool_create (const char *path, json_t *options)
{
  struct meta_state state = { .epoch = 1, .next_id = 1 };
  struct hash_key key = { .known = false };
  json_int_t block_size = 0;
  bool had_records;
  CLEANUP_FREE char *records = pool_file (path, "records");
  CLEANUP_FREE char *real = NULL;
  struct stat st;
  int err;

  if (records == NULL || check_options (options, &state, &block_size) == -1 ||
      prepare_directory (path) == -1)
    return -1;
  real = realpath (path, NULL);
  if (real == NULL)
    return nbdedup_fail (errno, "%s: %s", path, strerror (errno));
  if (hash_is_keyed (state.hash)) {
    if (hash_key_check_mode (records) == -1)
      return -1;
    hash_key_make (&key);
    state.features_incompat |= FEATURE_INCOMPAT_HASH_KEY;
  }
  had_records = lstat (records, &st) == 0;
  make_uuid (state.uuid);
  if (create_files (real, &state, &key) == -1) {
    err = errno;
    remove_files (real);
    if (!had_records)
      unlink (records);
    errno = err;
    return -1;
  }
  return set_defaults (path, options, block_size);
}
