/* SPDX-License-Identifier: BSD-3-Clause */

/* Opening and closing a pool.
 *
 * Epochs.  Each session that opens a pool for writing has a number, stored
 * in pool.db, records and journal: a file of another session, restored
 * from a backup alone, is refused.  Advancing it takes three writes, and a
 * crash may come between them, so:
 *
 *   1. pool.db: epoch + 1, "opening"   the other files may be one behind
 *   2. journal, records: epoch + 1
 *   3. pool.db: not "opening"          all must be equal from now on
 */

#include <config.h>

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "core/ddt.h"
#include "core/engine.h"
#include "core/events.h"
#include "core/map.h"
#include "core/moves.h"
#include "core/notes.h"
#include "core/record-cache.h"
#include "core/txg.h"
#include "data/read.h"
#include "data/watch.h"
#include "data/writeback.h"
#include "disk/journal.h"
#include "disk/lockfile.h"
#include "disk/store.h"
#include "drift/sampler.h"
#include "format/hash.h"
#include "meta/meta-index.h"
#include "meta/meta-repair.h"
#include "meta/meta.h"
#include "report/compactor.h"
#include "report/copier.h"
#include "report/mend.h"
#include "report/recovery.h"
#include "report/scrub.h"
#include "report/scrubber.h"
#include "report/stat.h"
#include "report/warmer.h"
#include "service/control.h"
#include "service/hash-key.h"
#include "service/property-apply.h"
#include "service/pool.h"
#include "service/service-event.h"
#include "space/space.h"
#include "volume/lost-leaves.h"
#include "volume/merge.h"
#include "volume/volume-layers.h"
#include "volume/volume.h"

/* 30 s, in tenths. */
#define WAIT_FOR_COMMAND_TRIES 300
#define WAIT_FOR_END_TRIES 20

void
nbdedup_settings_init (struct nbdedup_settings *s)
{
  *s = (struct nbdedup_settings) {
    .ddt_cache_bytes = NBDEDUP_DDT_CACHE_DEFAULT,
    .record_cache_bytes = NBDEDUP_RECORD_CACHE_DEFAULT,
    .dirty_max_bytes = NBDEDUP_DIRTY_MAX_DEFAULT,
    .commit_interval_ms = NBDEDUP_COMMIT_INTERVAL_DEFAULT * 1000,
    .drift_interval_s = NBDEDUP_DRIFT_INTERVAL_DEFAULT,
  };
}

int
pool_check_sector (json_int_t sector)
{
  if (sector < SECTOR_MIN || sector > SECTOR_MAX ||
      (sector & (sector - 1)) != 0)
    return nbdedup_fail (EINVAL,
                         "sector %" JSON_INTEGER_FORMAT ": must be a "
                         "power of two from 512 to 8K",
                         sector);
  return 0;
}

/*----------------------------------------------------------------------
 * Opening
 */

int
pool_fail_in_use (const char *path, const struct lockfile_holder *holder)
{
  if (holder->reader)
    return nbdedup_fail (EBUSY, "%s: in use by %s", path,
                         holder->reader_is_server
                           ? "a server that was started with read-only=on"
                           : "a command that reads it with --read-only");
  return nbdedup_fail (EBUSY, "%s: in use by %s (PID %ld)", path,
                       holder->pid ? holder->who : "another process",
                       (long) holder->pid);
}

/* There is no pool.db in this directory, and no copy. */
static int
fail_no_pool (const char *path)
{
  CLEANUP_FREE char *journal = pool_file (path, "journal");
  struct stat st;

  if (journal && stat (journal, &st) == 0)
    return nbdedup_fail (EIO,
                         "%s: damaged pool: pool.db is missing: run "
                         "nbdedup recover, or restore it from a backup",
                         path);
  return nbdedup_fail (ENOENT, "%s: not a pool; %s", path,
                       pool_check_empty (path) == 0
                         ? "nbdedup init makes one"
                         : "give the directory of one (nbdedup init makes one "
                           "in an empty directory)");
}

/* pool.db cannot be used, and it has no copy. */
static int
fail_db (const char *db)
{
  const int err = errno;
  struct stat st;

  if (err == EIO && lstat (db, &st) == 0 && S_ISREG (st.st_mode) &&
      access (db, R_OK) == 0)
    return nbdedup_fail (EIO,
                         "%s; nbdedup recover says what is left of the pool",
                         nbdedup_error ());
  errno = err;
  return -1;
}

/* Fail if the pool is in use and waiting would not help. */
static int
probe_lock (const char *path, enum nbdedup_read_only read_only)
{
  struct lockfile_holder holder;
  int r = read_only == NBDEDUP_READ_ONLY_OFF
    ? lockfile_take (path, false, NULL, &holder)
    : lockfile_share (path, false, NULL, &holder);

  if (r == 0 ||
      (errno == EBUSY && !holder.reader_is_server &&
       (!holder.server || lockfile_holder_is_ending (&holder))))
    return 0;
  return errno == EBUSY ? pool_fail_in_use (path, &holder) : -1;
}

int
nbdedup_pool_probe (const char *path, enum nbdedup_read_only read_only)
{
  CLEANUP_FREE char *db = pool_file (path, "pool.db");
  struct stat st;

  if (db == NULL)
    return -1;
  if (stat (path, &st) == -1)
    return nbdedup_fail (errno, "%s: %s%s", path, strerror (errno),
                         errno == ENOENT ? "; nbdedup init makes a pool" : "");
  if (!S_ISDIR (st.st_mode))
    return nbdedup_fail (ENOTDIR, "%s: not a pool: not a directory", path);
  if (stat (db, &st) == -1 && errno == ENOENT && !meta_copy_can_help (db))
    return fail_no_pool (path);
  if (meta_probe (db) == -1 && errno != EINVAL && !meta_copy_can_help (db))
    return fail_db (db);
  return probe_lock (path, read_only);
}

int
pool_check_epoch (const char *path, const char *file, uint64_t epoch,
                  const struct meta_state *state)
{
  if (epoch == state->epoch || (state->opening && epoch + 1 == state->epoch))
    return 0;
  return nbdedup_fail (EIO,
                       "%s/%s: from another time than pool.db (session "
                       "%" PRIu64 ", expected %" PRIu64 "): restore all files "
                       "of the pool from the same backup",
                       path, file, epoch, state->epoch);
}

int
pool_check_state (struct nbdedup_pool *pool, const struct meta_state *state)
{
  if (state->features_incompat & ~(uint64_t) FEATURES_INCOMPAT)
    return nbdedup_fail (EINVAL,
                         "%s: the pool uses features that this "
                         "nbdedup does not know (%" PRIx64 "): upgrade "
                         "nbdedup",
                         pool->path, state->features_incompat);
  if (pool_check_sector (state->sector_bytes) == -1 ||
      hash_name (state->hash) == NULL)
    return nbdedup_fail (EIO,
                         "%s/pool.db: damaged, or its hash (%d) is not "
                         "built into this nbdedup",
                         pool->path, state->hash);
  return 0;
}

void
pool_ask_journal (const char *path, struct meta_session *session)
{
  if (journal_peek (path, session->uuid, &session->epoch) == -1)
    memset (session, 0, sizeof *session);
}

/* Replace the journal, once all other files are known to match. */
static int
begin_journal (struct nbdedup_pool *pool, const char *path,
               const struct store_header *header, struct meta_state *state)
{
  assert (pool->journal == NULL && pool->store != NULL);
  if (pool_check_epoch (pool->path, "records", header->epoch, state) == -1 ||
      journal_replace (path, state->uuid, state->epoch) == -1)
    return -1;
  state->journal_position = 0;
  return 0;
}

static int
renew_index (struct nbdedup_pool *pool, struct meta_state *state)
{
  int r = meta_index_make (meta_writer (pool->meta));

  if (r != 1)
    return r;
  state->index_entries = 0;
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "%s: pool.db: nbdedup emptied the hash "
               "index, which had an older form: known data may be stored again "
               "until \"nbdedup check --repair\" fills it",
               pool->path);
  return 0;
}

static int
open_files (struct nbdedup_pool *pool, unsigned flags, struct meta_state *state)
{
  enum nbdedup_primarycache cache = pool->settings.primarycache;
  CLEANUP_FREE char *db = pool_file (pool->path, "pool.db");
  CLEANUP_FREE char *records = pool_file (pool->path, "records");
  CLEANUP_FREE char *journal = pool_file (pool->path, "journal");
  const struct store_header *header;
  struct meta_session session;
  uint64_t epoch;

  assert (pool->lock_fd != -1); /* no other process has the files open */
  if (db == NULL || records == NULL || journal == NULL)
    return -1;
  /* Ask only a journal that will be used. */
  if (flags & NBDEDUP_OPEN_WITHOUT_JOURNAL)
    memset (&session, 0, sizeof session);
  else
    pool_ask_journal (journal, &session);
  pool->meta = meta_open (db,
                          cache == NBDEDUP_CACHE_NONE
                            ? 0
                            : pool->settings.ddt_cache_bytes /
                              POOL_SHARE_SQLITE,
                          &session, flags & NBDEDUP_OPEN_RECOVER);
  if (pool->meta == NULL ||
      meta_state_get (meta_writer (pool->meta), state) == -1 ||
      meta_copies_get_sectors (meta_writer (pool->meta),
                               &state->copy_sectors) == -1 ||
      pool_check_state (pool, state) == -1)
    return -1;
  pool->store = store_open (records, cache != NBDEDUP_CACHE_ALL);
  if (pool->store == NULL)
    return -1;
  header = store_get_header (pool->store);
  if (memcmp (header->uuid, state->uuid, UUID_LEN) != 0 ||
      header->sector_bytes != state->sector_bytes)
    return nbdedup_fail (EIO, "%s: belongs to another pool", records);
  if ((flags & NBDEDUP_OPEN_WITHOUT_JOURNAL) &&
      begin_journal (pool, journal, header, state) == -1)
    return -1;
  pool->journal = journal_open (journal, state->uuid, &epoch);
  if (pool->journal == NULL ||
      pool_check_epoch (pool->path, "records", header->epoch, state) == -1 ||
      pool_check_epoch (pool->path, "journal", epoch, state) == -1)
    return -1;
  pool->sector_bytes = state->sector_bytes;
  pool->hash = state->hash;
  memcpy (pool->uuid, state->uuid, UUID_LEN);
  return hash_key_find (pool) == -1 ? -1 : renew_index (pool, state);
}

struct epoch {
  const struct nbdedup_pool *pool;
  bool opening;
  unsigned add;
};

static int
put_epoch (void *arg, struct meta_conn *c, struct meta_state *state)
{
  const struct epoch *e = arg;

  /* Add the history table to a pool from before it existed. */
  if (e->opening && meta_history_make (c) == -1)
    return -1;
  if (e->opening && e->pool->hash_key_missing &&
      meta_hash_key_put (c, &e->pool->hash_key) == -1)
    return -1;
  state->epoch += e->add;
  state->opening = e->opening;
  state->features_autoclear = 0; /* none is known yet */
  return 0;
}

static int
advance_epoch (struct nbdedup_pool *pool)
{
  struct epoch open = { pool, true, 1 }, opened = { pool, false, 0 };
  struct meta_state state;

  /* Replay has read the journal of the epoch before; no client has written. */
  assert (pool->journal != NULL && !pool->commit.runs);
  /* If a session died in this function, finish its epoch and do not begin
   * another: the files would be two behind if this session died, too.  The
   * dead session has appended nothing.
   */
  txg_get_state (pool->txg, &state);
  if (state.opening)
    open.add = 0;
  if (txg_run (pool->txg, put_epoch, NULL, &open) == -1)
    return -1;
  txg_get_state (pool->txg, &state);
  if (journal_set_epoch (pool->journal, state.epoch) == -1 ||
      store_set_epoch (pool->store, state.epoch) == -1 ||
      txg_run (pool->txg, put_epoch, NULL, &opened) == -1)
    return -1;
  /* The session begins with an empty WAL.  If that is lost, the effects of
   * commands are in pool.db (txg.c copies them at once), and the journal shows
   * that there were folds.
   */
  return meta_checkpoint (pool->meta);
}

/* Makes answered writes durable within commit-interval. */
static void *
commit_thread (void *arg)
{
  struct nbdedup_pool *pool = arg;
  uint64_t ms = pool->settings.commit_interval_ms / 2;

  while (background_wait_ms (&pool->commit, ms ? ms : 1)) {
    /* A failure stops the pool; the next write gets the error. */
    if (writeback_drain (pool->writeback, NULL) == 0 &&
        txg_flush (pool->txg) == -1)
      continue;
    watch_look (pool, false);
  }
  return NULL;
}

static int
start_threads (struct nbdedup_pool *pool)
{
  assert (!pool->commit.runs);
  if (txg_start (pool->txg) == -1 ||
      writeback_start (pool->writeback, pool->settings.nr_workers) == -1)
    return -1;
  return background_start (&pool->commit, commit_thread, pool);
}

static int
check_settings (const struct nbdedup_settings *s)
{
  if (s->ddt_cache_bytes < NBDEDUP_DDT_CACHE_MIN)
    return nbdedup_fail (EINVAL, "ddt-cache: at least %" PRIu64 "M",
                         NBDEDUP_DDT_CACHE_MIN >> 20);
  if (s->dirty_max_bytes < NBDEDUP_DIRTY_MAX_MIN)
    return nbdedup_fail (EINVAL, "dirty-max: at least %" PRIu64 "M",
                         NBDEDUP_DIRTY_MAX_MIN >> 20);
  return 0;
}

static struct nbdedup_pool *
pool_new (const char *path, const struct nbdedup_settings *settings,
          const char *who)
{
  struct nbdedup_pool *pool = calloc (1, sizeof *pool);

  if (pool == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  pool->lock_fd = -1;
  pool->opened_ns = clock_ns ();
  lock_init (&pool->admin);
  turn_init (&pool->admin_turn);
  turn_init (&pool->drift_turn);
  lock_init (&pool->drift);
  lock_init (&pool->alerts);
  background_init (&pool->commit, NULL);
  lock_init (&pool->readers_lock);
  pool->watch = watch_new ();
  pool->lost = lost_leaves_new ();
  pool->scrub = scrub_shared_new ();
  pool->notes = notes_new ();
  pool->copies.nr = 1;
  if (settings)
    pool->settings = *settings;
  else
    nbdedup_settings_init (&pool->settings);
  pool->path = realpath (path, NULL);
  pool->who = strdup (who);
  if (pool->path == NULL || pool->who == NULL) {
    nbdedup_fail (errno, "%s: %s", path, strerror (errno));
    nbdedup_pool_close (pool);
    return NULL;
  }
  pool->events = events_new (pool->path);
  if (pool->watch == NULL || pool->lost == NULL || pool->scrub == NULL ||
      pool->notes == NULL || pool->events == NULL) {
    nbdedup_pool_close (pool);
    return nbdedup_fail_null (ENOMEM, "no memory");
  }
  return pool;
}

/* A server waits for a command that has the pool, as commands wait for
 * each other (client.c).  For another server it waits only if that is ending:
 * a service manager that starts the next one as soon as the first one was
 * killed would find the lock still taken.
 */
bool
pool_wait_for_command (const struct lockfile_holder *holder, bool server,
                       unsigned tries)
{
  if (!server || holder->reader_is_server || tries == WAIT_FOR_COMMAND_TRIES ||
      (holder->server &&
       (tries == WAIT_FOR_END_TRIES || !lockfile_holder_is_ending (holder))))
    return false;
  clock_sleep_ms (100);
  return true;
}

static int
take_lock (struct nbdedup_pool *pool, bool server)
{
  struct lockfile_holder holder;
  unsigned tries;

  assert (pool->lock_fd == -1 && pool->meta == NULL);
  for (tries = 0;; ++tries) {
    pool->lock_fd = lockfile_take (pool->path, server, pool->who, &holder);
    if (pool->lock_fd != -1)
      return 0;
    if (errno != EBUSY)
      return -1;
    if (!pool_wait_for_command (&holder, server, tries))
      return pool_fail_in_use (pool->path, &holder);
  }
}

/* The last step that may refuse the pool; then it leaves the pool unchanged. */
static int
replay (struct nbdedup_pool *pool)
{
  assert (pool->merger == NULL && !pool->commit.runs);
  if (recovery_run (pool) == -1)
    return -1;
  /* Not earlier, since the journal may refer to a nameless layer.  This undoes
   * operations that a crash interrupted.
   */
  layers_settle (pool->volumes);
  meta_opened (pool->meta);
  return 0;
}

/* Is there nothing in "records" that damage hides from pool.db, and that a
 * repair could find?
 */
static bool
knows_all_records (struct nbdedup_pool *pool, unsigned flags)
{
  struct meta_state state;
  struct space_info info;

  txg_get_state (pool->txg, &state);
  space_get_info (pool->space, &info);
  return !(flags & NBDEDUP_OPEN_RECOVER) && !pool->settings.repair &&
    !(state.features_compat &
      (FEATURE_COMPAT_LOST | FEATURE_COMPAT_RECORDS_LOST)) &&
    !meta_saw_damage (pool->meta) && info.nr_damaged == 0 && !info.contradicted;
}

static int
open_pool (struct nbdedup_pool *pool, unsigned flags)
{
  bool server = (flags & NBDEDUP_OPEN_SERVER) != 0;
  struct meta_state state;

  if (pool->settings.read_only != NBDEDUP_READ_ONLY_OFF)
    return pool_open_readonly (pool, server);
  if (take_lock (pool, server) == -1)
    return -1;
  lockfile_tell (pool->lock_fd, "loading", 0, 0);
  if (open_files (pool, flags, &state) == -1 ||
      pool_make_modules (pool, &state) == -1)
    return -1;
  warm_offer (pool, &state);
  if (pool_load (pool) == -1 || replay (pool) == -1 ||
      advance_epoch (pool) == -1 || pool_properties_load (pool) == -1 ||
      start_threads (pool) == -1 || volumes_recover (pool->volumes) == -1 ||
      space_start_puncher (pool->space, knows_all_records (pool, flags)) == -1)
    return -1;
  pool->merger = merger_start (pool);
  if (pool->merger == NULL)
    return -1;
  events_open (pool->events, pool->txg);
  return 0;
}

struct start {
  struct nbdedup_pool *pool;
  const char *path;
  int err;
  char text[512];
};

static void
start_control_now (void *arg)
{
  struct start *s = arg;

  s->pool->control = control_start (s->pool, s->path);
  if (s->pool->control == NULL) {
    s->err = errno;
    snprintf (s->text, sizeof s->text, "%s", nbdedup_error ());
  }
}

/* Some file systems (XFS) need room for the socket, even in place of an old
 * one.  Without that room a full pool could not be served.
 */
static int
start_control (struct nbdedup_pool *pool)
{
  CLEANUP_FREE char *path = pool_file (pool->path, "control.sock");
  struct start s = { .pool = pool, .path = path };

  if (path == NULL)
    return -1;
  start_control_now (&s);
  if (pool->control == NULL && s.err == ENOSPC &&
      txg_lend_room (pool->txg, start_control_now, &s) == -1)
    return -1;
  return pool->control ? 0 : nbdedup_fail (s.err, "%s", s.text);
}

static void
tell_sampler (struct nbdedup_pool *pool, const struct volume *v)
{
  sampler_note_snapshot (pool->sampler, v);
}

/* The server works, but slowly, and nothing else says why. */
static void
warn_of_small_cache (struct nbdedup_pool *pool)
{
  const uint64_t wanted = stat_wanted_ddt_cache (pool);

  if (wanted > 0)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: ddt-cache=%" PRIu64 "M is small for %" PRIu64
                 " blocks: new blocks cost reads of pool.db: start the server "
                 "with ddt-cache=%" PRIu64 "M",
                 pool->path, pool->settings.ddt_cache_bytes >> 20,
                 ddt_index_entries (pool->ddt), (wanted >> 20) + 1);
}

/* Start the sampler first, because clients' snapshots wake it.  A read-only
 * server takes no samples and has no socket in the pool; there may be several
 * such servers.
 */
static int
start_server (struct nbdedup_pool *pool)
{
  uint64_t interval_s = pool->settings.drift_interval_s;

  if (events_start (pool->events) == -1)
    return -1;
  pool->warmer = warmer_start (pool);
  if (pool->settings.read_only != NBDEDUP_READ_ONLY_OFF)
    return 0;
  assert (pool->merger != NULL && pool->control == NULL);
  warn_of_small_cache (pool);
  pool->watch->on = true;
  if (interval_s > 0) {
    pool->sampler = sampler_start (pool, interval_s);
    if (pool->sampler == NULL)
      return -1;
    pool->snapshot_taken = tell_sampler;
  }
  pool->scrubber = scrubber_start (pool);
  if (pool->scrubber == NULL)
    return -1;
  pool->copier = copier_start (pool);
  if (pool->copier == NULL)
    return -1;
  pool->compactor = compactor_start (pool);
  return pool->compactor ? start_control (pool) : -1;
}

/* Repairable reasons for which a pool did not open. */
struct damage {
  bool any;
  bool contradicted; /* a map that can be read says that the space
                                 * of a record in the journal is in use */
};

/* Repair tables that are derived or dispensable: damage to them must not keep
 * a pool closed.
 */
static int
repair_tables (const char *path, bool force)
{
  CLEANUP_FREE char *db = pool_file (path, "pool.db");
  CLEANUP_FREE char *journal = pool_file (path, "journal");
  struct lockfile_holder holder;
  CLEANUP_CLOSE int lock_fd = lockfile_take (path, false, "nbdedup", &holder);
  struct meta_session session;
  struct meta *meta;
  int r;

  if (db == NULL || journal == NULL || lock_fd == -1)
    return -1;
  lockfile_tell (lock_fd, "repair", 0, 0);
  pool_ask_journal (journal, &session);
  meta = meta_open (db, 0, &session, force);
  if (meta == NULL)
    return -1;
  r = meta_repair (meta, false);
  if (r > 0) {
    warm_forget (path);
    meta_opened (meta);
  }
  return meta_close (meta) == -1 ? -1 : r;
}

/* Rebuild tables that follow from others, for the same reason. */
static int
mend_derived (const char *path, const struct nbdedup_settings *settings,
              const char *who, bool compare)
{
  struct nbdedup_pool *pool = pool_new (path, settings, who);
  struct meta_state state;
  int r = -1, maps;

  if (pool == NULL)
    return -1;
  if (take_lock (pool, false) == 0) {
    lockfile_tell (pool->lock_fd, "repair", 0, 0);
    if (open_files (pool, 0, &state) == 0)
      r = mend_tables (pool, &state);
  }
  if (r != -1) {
    maps = mend_space_maps (pool, &state, compare);
    r = maps == -1 && r == 0 ? -1 : r + (maps > 0 ? maps : 0);
  }
  if (r > 0) {
    warm_forget (path);
    meta_opened (pool->meta);
  }
  nbdedup_pool_close (pool);
  return r;
}

/* Repair the pool only if all data that cannot be derived is there.  Otherwise
 * the pool is refused, and unchanged.
 */
static bool
repair_damage (const char *path, const struct nbdedup_settings *settings,
               const char *who, bool contradicted)
{
  int tables = repair_tables (path, false);

  return tables != -1 &&
    (mend_derived (path, settings, who, contradicted) > 0 || tables > 0);
}

/* Note the damage to space maps that replay and its fold have found. */
static void
look_at_maps (struct nbdedup_pool *pool, struct damage *damage)
{
  struct space_info info;

  if (pool->space == NULL)
    return;
  space_get_info (pool->space, &info);
  damage->contradicted = info.contradicted;
  damage->any |= info.nr_damaged > 0 || info.contradicted;
}

static struct nbdedup_pool *
try_open (const char *path, const struct nbdedup_settings *settings,
          const char *who, unsigned flags, struct damage *damage)
{
  struct nbdedup_pool *pool = pool_new (path, settings, who);
  char text[512];
  int err;

  *damage = (struct damage) { .any = false };
  if (pool == NULL)
    return NULL;
  if (open_pool (pool, flags) == 0 &&
      (!(flags & NBDEDUP_OPEN_SERVER) || start_server (pool) == 0)) {
    if (pool->settings.read_only == NBDEDUP_READ_ONLY_OFF)
      lockfile_tell (pool->lock_fd, NULL, 0, 0);
    return pool;
  }
  err = errno;
  snprintf (text, sizeof text, "%s", nbdedup_error ());
  damage->any = pool->meta && meta_saw_damage (pool->meta);
  look_at_maps (pool, damage);
  nbdedup_pool_close (pool);
  return nbdedup_fail_null (err, "%s", text);
}

/* Only an attempt tells what of a pool can be read. */
static bool
can_read (const char *path, enum nbdedup_read_only read_only)
{
  struct nbdedup_settings settings;
  struct nbdedup_pool *pool;
  struct damage damage;

  nbdedup_settings_init (&settings);
  settings.read_only = read_only;
  log_hush (true);
  pool = try_open (path, &settings, "nbdedup", 0, &damage);
  (void) nbdedup_pool_close (pool);
  log_hush (false);
  return pool != NULL;
}

/* The pool did not open for writing, with this error.  Add what can be done
 * without that.
 */
static void
fail_open (const char *path, int err, const char *text, bool server,
           bool only_reads)
{
  const char *advice = "";

  if (err == EIO && can_read (path, NBDEDUP_READ_ONLY_ON))
    advice = "; intact data can still be read (--read-only, or a server with "
             "read-only=on)";
  else if (err == EIO && can_read (path, NBDEDUP_READ_ONLY_FORCE))
    advice = "; data can still be read, in an older state "
             "(--read-only=force, or a server with read-only=force)";
  else if ((err == EACCES || err == EPERM || err == EROFS) &&
           (server || only_reads) && can_read (path, NBDEDUP_READ_ONLY_ON))
    advice = server ? "; to only read the pool, use read-only=on"
                    : "; to only read the pool, use --read-only";
  nbdedup_fail (err, "%s%s", text, advice);
}

struct nbdedup_pool *
nbdedup_pool_open (const char *path, const struct nbdedup_settings *settings,
                   const char *who, unsigned flags)
{
  struct nbdedup_pool *pool;
  char text[1024];
  struct damage damage;
  const uint64_t begin_ns = clock_ns ();
  bool read_only;
  int err;

  if ((settings && check_settings (settings) == -1))
    return NULL;
  read_only = settings && settings->read_only != NBDEDUP_READ_ONLY_OFF;
  if (!(flags & NBDEDUP_OPEN_RECOVER) &&
      nbdedup_pool_probe (path,
                          settings ? settings->read_only
                                   : NBDEDUP_READ_ONLY_OFF) == -1)
    return NULL;
  /* If this fails, the code below fails, with the error text. */
  if (flags & NBDEDUP_OPEN_RECOVER)
    repair_tables (path, true);
  if (settings && settings->repair && !read_only &&
      repair_tables (path, false) == -1 && errno == EIO)
    nbdedup_log (NBDEDUP_LOG_ERROR, "%s: check --repair: %s", path,
                 nbdedup_error ());
  pool = try_open (path, settings, who, flags, &damage);
  err = errno;
  snprintf (text, sizeof text, "%s", nbdedup_error ());
  if (pool == NULL && !read_only && damage.any &&
      repair_damage (path, settings, who, damage.contradicted)) {
    pool = try_open (path, settings, who, flags, &damage);
    if (pool == NULL)
      return NULL;
  }
  if (pool != NULL && (flags & NBDEDUP_OPEN_SERVER))
    opened_event (pool, begin_ns);
  if (pool == NULL && !read_only)
    fail_open (path, err, text, (flags & NBDEDUP_OPEN_SERVER) != 0,
               settings && settings->only_reads);
  return pool;
}

/*----------------------------------------------------------------------
 * Closing
 */

int
nbdedup_pool_close (struct nbdedup_pool *pool)
{
  bool was_open; /* and may have writes that are not durable */
  int r = 0;

  if (pool == NULL)
    return 0;
  was_open = pool->commit.runs;
  sampler_cancel (pool->sampler);
  scrubber_cancel (pool->scrubber);
  copier_cancel (pool->copier);
  compactor_cancel (pool->compactor);
  warmer_cancel (pool->warmer);
  control_free (pool->control);
  sampler_free (pool->sampler);
  scrubber_free (pool->scrubber);
  copier_stop (pool->copier);
  compactor_free (pool->compactor);
  warmer_stop (pool->warmer);
  merger_stop (pool->merger);
  background_stop (&pool->commit);
  if (pool->writeback) {
    if (was_open && writeback_drain (pool->writeback, NULL) == -1)
      r = -1;
    writeback_stop (pool->writeback);
  }
  events_stop (pool->events);
  if (pool->txg && txg_stop (pool->txg) == -1)
    r = -1;
  if (r == 0 && pool->merger) /* it was open for writing, and is durable */
    warm_save (pool);
  warmer_free (pool->warmer);
  copier_free (pool->copier); /* folds used it, ... */
  merger_free (pool->merger); /* ... and woke this one */
  moves_free (pool->moves);
  writeback_free (pool->writeback);
  txg_free (pool->txg);
  volumes_free (pool->volumes);
  record_cache_free (pool->records);
  readers_free (pool);
  ddt_free (pool->ddt);
  map_free (pool->map);
  space_destroy (pool->space);
  journal_close (pool->journal);
  if (pool->store && store_close (pool->store) == -1)
    r = -1;
  if (meta_close (pool->meta) == -1)
    r = -1;
  if (pool->lock_fd != -1)
    close (pool->lock_fd);
  free (pool->path);
  free (pool->who);
  background_destroy (&pool->commit);
  lock_destroy (&pool->readers_lock);
  lock_destroy (&pool->alerts);
  lock_destroy (&pool->drift);
  lock_destroy (&pool->admin);
  turn_destroy (&pool->admin_turn);
  turn_destroy (&pool->drift_turn);
  lost_leaves_free (pool->lost);
  scrub_shared_free (pool->scrub);
  notes_free (pool->notes);
  events_free (pool->events);
  watch_free (pool->watch);
  free (pool);
  return r;
}
