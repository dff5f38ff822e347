/* SPDX-License-Identifier: BSD-3-Clause */

/* Opening a pool without a write to any of its files: on a read-only medium,
 * without write permission, or because damage prevents opening it otherwise.
 *
 * There is no session: no epoch, no fold, no threads.  The journal's effects
 * are applied in memory, and reads use the same functions as otherwise.  Data
 * that no read needs (counts, the hash index, free space, limbo, samples) is
 * not read, so damage to it has no effect.
 *
 * A read must return correct data or an error.  Damage to maps or records
 * shows when they are read.  Damage to the journal, or files of different
 * times, would not: pool.db would return data from before the last flushes.
 * So such a pool is refused, unless the user asks for old data
 * (NBDEDUP_READ_ONLY_FORCE).
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "core/engine.h"
#include "core/notes.h"
#include "core/txg.h"
#include "disk/journal.h"
#include "disk/lockfile.h"
#include "disk/store.h"
#include "format/hash.h"
#include "meta/meta.h"
#include "service/hash-key.h"
#include "service/pool.h"
#include "volume/volume.h"

struct opening {
  struct nbdedup_pool *pool;
  struct meta_state state;
  bool is_stale;   /* flushed data may be missing */
  bool is_partial; /* rows of pool.db are missing */
};

/* The time of the last write to pool.db, by the files' times. */
static void
describe_time (const struct nbdedup_pool *pool, char *buf, size_t len)
{
  static const char *const names[] = { "pool.db", "pool.db-wal" };
  struct stat st;
  time_t last = 0;
  struct tm tm;
  unsigned i;

  for (i = 0; i < 2; ++i) {
    CLEANUP_FREE char *path = pool_file (pool->path, names[i]);

    if (path && stat (path, &st) == 0 && st.st_mtime > last)
      last = st.st_mtime;
  }
  if (localtime_r (&last, &tm) == NULL ||
      strftime (buf, len, "%Y-%m-%d %H:%M:%S", &tm) == 0)
    snprintf (buf, len, "an unknown time");
}

/* For the reason of the last failure, pool.db and the journal together may not
 * be the newest state.
 */
static int
doubt (struct opening *o)
{
  CLEANUP_FREE char *text = strdup (nbdedup_error ());
  char time[64];

  if (errno == ENOMEM || text == NULL)
    return -1;
  if (o->pool->settings.read_only == NBDEDUP_READ_ONLY_FORCE) {
    nbdedup_log (NBDEDUP_LOG_WARNING, "%s", text);
    o->is_stale = true;
    return 0;
  }
  describe_time (o->pool, time, sizeof time);
  return nbdedup_fail (EIO,
                       "%s; or use --read-only=force, or a server with "
                       "read-only=force, to read the state of %s, in which "
                       "flushed data may be missing",
                       text, time);
}

static int
share_lock (struct nbdedup_pool *pool, bool server)
{
  struct lockfile_holder holder;
  unsigned tries;

  for (tries = 0;; ++tries) {
    if (lockfile_share (pool->path, server, &pool->lock_fd, &holder) == 0)
      return 0;
    if (errno != EBUSY)
      return -1;
    if (!pool_wait_for_command (&holder, server, tries))
      return pool_fail_in_use (pool->path, &holder);
  }
}

/* Table "state" is lost.  Its data about the journal has no other source; only
 * scrub needs the hash.
 */
static void
state_from_header (struct meta_state *state, const struct store_header *h)
{
  memset (state, 0, sizeof *state);
  memcpy (state->uuid, h->uuid, UUID_LEN);
  state->epoch = h->epoch;
  state->sector_bytes = h->sector_bytes;
  state->hash = h->hash ? h->hash : HASH_SHA256;
}

static int
open_journal (struct opening *o)
{
  struct nbdedup_pool *pool = o->pool;
  CLEANUP_FREE char *path = pool_file (pool->path, "journal");
  uint64_t epoch;

  if (path == NULL)
    return -1;
  pool->journal = journal_open_readonly (path, o->state.uuid, &epoch);
  if (pool->journal == NULL)
    /* Go on without a damaged journal, but not without one that this user may
     * not read.
     */
    return errno == EACCES || errno == EPERM ? -1 : doubt (o);
  if (pool_check_epoch (pool->path, "journal", epoch, &o->state) == -1)
    return doubt (o);
  return 0;
}

static int
open_meta (struct opening *o, const char *db)
{
  struct nbdedup_pool *pool = o->pool;
  const uint64_t budget = pool->settings.primarycache == NBDEDUP_CACHE_NONE
    ? 0
    : pool->settings.ddt_cache_bytes / POOL_SHARE_SQLITE;
  CLEANUP_FREE char *journal = pool_file (pool->path, "journal");
  struct meta_session session;

  if (journal == NULL)
    return -1;
  pool_ask_journal (journal, &session);
  pool->meta = meta_open_readonly (db, budget, &session, false);
  if (pool->meta == NULL && errno == ESTALE && doubt (o) == 0)
    pool->meta = meta_open_readonly (db, budget, &session, true);
  return pool->meta ? 0 : -1;
}

static int
open_files (struct opening *o)
{
  struct nbdedup_pool *pool = o->pool;
  enum nbdedup_primarycache cache = pool->settings.primarycache;
  CLEANUP_FREE char *db = pool_file (pool->path, "pool.db");
  CLEANUP_FREE char *records = pool_file (pool->path, "records");
  struct meta_state *state = &o->state;
  const struct store_header *header;
  bool has_state;

  if (db == NULL || records == NULL)
    return -1;
  if (open_meta (o, db) == -1)
    return -1;
  has_state = meta_state_get (meta_writer (pool->meta), state) == 0;
  if (!has_state && doubt (o) == -1)
    return -1;
  pool->store = store_open_readonly (records, cache != NBDEDUP_CACHE_ALL);
  if (pool->store == NULL)
    return -1;
  header = store_get_header (pool->store);
  if (!has_state)
    state_from_header (state, header);
  /* Only a figure of "stat": damage to it is no reason to refuse the pool. */
  (void) meta_copies_get_sectors (meta_writer (pool->meta),
                                  &state->copy_sectors);
  notes_load (pool->notes, meta_writer (pool->meta));
  if (pool_check_state (pool, state) == -1)
    return -1;
  if (memcmp (header->uuid, state->uuid, UUID_LEN) != 0 ||
      header->sector_bytes != state->sector_bytes)
    return nbdedup_fail (EIO, "%s: belongs to another pool", records);
  pool->sector_bytes = state->sector_bytes;
  pool->hash = state->hash;
  memcpy (pool->uuid, state->uuid, UUID_LEN);
  if (hash_key_find (pool) == -1)
    return -1;
  if (pool_check_epoch (pool->path, "records", header->epoch, state) == -1 &&
      doubt (o) == -1)
    return -1;
  /* Without the state it is not known which batches are folded. */
  return has_state ? open_journal (o) : 0;
}

/* Replay what can be replayed; the rest is missing. */
static int
replay (struct opening *o)
{
  struct nbdedup_pool *pool = o->pool;
  uint64_t last = o->state.folded;
  char time[64];

  if (pool->journal && txg_replay_readonly (pool->txg, o->is_partial) == 0)
    journal_get_end (pool->journal, &last, &(uint64_t) { 0 });
  else if ((pool->journal && doubt (o) == -1) ||
           txg_follow (pool->txg, &last) == -1)
    return -1;
  if (last > o->state.folded)
    nbdedup_log (NBDEDUP_LOG_INFO,
                 "%s: nbdedup keeps the journal's batches %" PRIu64
                 " to %" PRIu64 " and %" PRIu64 " KiB of records in "
                 "memory; figures of the whole pool, and drift, do not include "
                 "them",
                 pool->path, o->state.folded + 1, last,
                 (store_overlay_bytes (pool->store) + 1023) / 1024);
  if (!o->is_stale)
    return 0;
  describe_time (pool, time, sizeof time);
  nbdedup_log (
    NBDEDUP_LOG_WARNING,
    "%s: opened in the state of fold %" PRIu64
    " (pool.db was last written at %s) and the journal up to batch %" PRIu64
    ": reads may return old data, and data flushed later is "
    "missing",
    pool->path, o->state.fold, time, last);
  return 0;
}

int
pool_open_readonly (struct nbdedup_pool *pool, bool server)
{
  struct opening o = { .pool = pool };
  int r;

  if (share_lock (pool, server) == -1 || open_files (&o) == -1 ||
      pool_make_modules (pool, &o.state) == -1)
    return -1;
  r = volumes_salvage (pool->volumes, meta_writer (pool->meta));
  if (r == -1)
    return -1;
  o.is_partial = r == 1;
  return replay (&o);
}
