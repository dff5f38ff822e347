/* SPDX-License-Identifier: BSD-3-Clause */

/* Connections, transactions, checkpoints.  The tables are in
 * meta-tables.c.
 *
 * The WAL is copied into pool.db by a thread of its own: a checkpoint
 * inside a commit stops the fold for up to a second.  A passive
 * checkpoint can starve if commits come faster than it copies; so
 * meta_throttle makes the fold wait for it once the WAL has
 * WAL_LIMIT_BYTES.
 */

#include <config.h>

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "bytes.h"
#include "cksum-vfs.h"
#include "cleanup.h"
#include "error.h"
#include "format.h"
#include "fullio.h"
#include "lock.h"
#include "meta-conn.h"
#include "meta-copy.h"
#include "schema-sql.h"

#define PAGE_BYTES 8192
#define NR_READERS 4
#define FROZEN_CACHE_BYTES (UINT64_C (2) << 20)
/* Checkpoint when the WAL has this many pages; wait for it at the limit. */
#define WAL_PAGES 1024
#define WAL_LIMIT_BYTES (UINT64_C (96) << 20)
#define WAL_LIMIT_BYTES_MIN (UINT64_C (1) << 20)
/* How long the fold waits for readers before it lets the WAL grow on. */
#define READERS_WAIT_MS 100
/* Frozen readers must give way when the WAL has so many times its limit, and
 * so many times what pool.db has; and how long a fold waits for it.
 */
#define FROZEN_LIMITS 16
#define FROZEN_POOLS 2
#define FROZEN_WAIT_MS 1000

struct meta {
  char *path;                   /* owned */
  struct meta_conn writer;
  struct meta_conn readers[NR_READERS];
  struct meta_conn checkpointer;        /* the thread's own */
  pthread_t thread;
  bool has_thread;
  bool opened;                  /* the pool was not refused */
  struct meta_copy *copy;       /* owned; constant */

  struct lock lock;             /* protects everything below */
  pthread_cond_t reader_free;   /* nr_free > 0 and !hold_readers */
  pthread_cond_t all_free;      /* nr_free == NR_READERS */
  pthread_cond_t wake;          /* enough pages to copy, or stop */
  struct meta_conn *free[NR_READERS];
  unsigned nr_free;
  unsigned nr_frozen;           /* readers of their own, in the WAL */
  pthread_cond_t none_frozen;   /* nr_frozen == 0 */
  uint64_t give_way_bytes;      /* of WAL: they must close; 0: no */
  int wal_pages;                /* in the WAL, after the last commit */
  int copied_pages;             /* of them, by the last checkpoint */
  bool hold_readers;            /* none may be taken */
  bool stop;
};

void
blob_free (struct blob *b)
{
  free (b->p);
  memset (b, 0, sizeof *b);
}

int
blob_reserve (struct blob *b, size_t len)
{
  size_t cap = b->cap ? b->cap : 256;
  uint8_t *p;

  if (len <= b->cap)
    return 0;
  while (cap < len)
    cap *= 2;
  p = realloc (b->p, cap);
  if (p == NULL)
    return nbdedup_fail (ENOMEM, "no memory for %zu bytes", cap);
  b->p = p;
  b->cap = cap;
  return 0;
}

int
meta_fail (struct meta_conn *c, const char *what)
{
  int rc = sqlite3_extended_errcode (c->db);
  int err = EIO;

  switch (rc & 0xff) {
  case SQLITE_FULL:
    err = ENOSPC;
    break;
  case SQLITE_NOMEM:
    err = ENOMEM;
    break;
  case SQLITE_BUSY:
    err = EBUSY;
    break;
  }
  c->damaged = rc == SQLITE_IOERR_DATA || rc == SQLITE_IOERR_CORRUPTFS ||
    (rc & 0xff) == SQLITE_CORRUPT;
  c->saw_damage |= c->damaged;
  if (c->damaged)
    return nbdedup_fail (EIO, "pool.db: %s: damaged page", what);
  return nbdedup_fail (err, "pool.db: %s: %s", what, sqlite3_errmsg (c->db));
}

bool
meta_is_damaged (struct meta_conn *c)
{
  return c->damaged;
}

int
meta_blank_damage (struct meta *m)
{
  return meta_copy_blank (m->copy);
}

bool
meta_saw_damage (struct meta *m)
{
  bool saw = m->writer.saw_damage;
  unsigned i;

  for (i = 0; i < NR_READERS; ++i)
    saw |= m->readers[i].saw_damage;
  return saw;
}

void
meta_reset (sqlite3_stmt **st)
{
  if (*st) {
    sqlite3_reset (*st);
    sqlite3_clear_bindings (*st);
  }
}

int
meta_run (struct meta_conn *c, sqlite3_stmt *st, const char *what)
{
  if (sqlite3_step (st) != SQLITE_DONE)
    return meta_fail (c, what);
  return 0;
}

static int
exec (struct meta_conn *c, const char *sql, const char *what)
{
  if (sqlite3_exec (c->db, sql, NULL, NULL, NULL) != SQLITE_OK)
    return meta_fail (c, what);
  return 0;
}

void
meta_conn_close (struct meta_conn *c)
{
  unsigned i;

  for (i = 0; i < NR_STMTS; ++i)
    sqlite3_finalize (c->stmts[i]);
  sqlite3_close (c->db);
  memset (c, 0, sizeof *c);
}

int
meta_conn_open (struct meta_conn *c, const char *path, bool create,
                uint64_t cache_bytes)
{
  int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
  int reserve = CKSUM_RESERVE, rc;
  char sql[64];

  if (create)
    flags |= SQLITE_OPEN_CREATE;
  rc = sqlite3_open_v2 (path, &c->db, flags, CKSUM_VFS_NAME);
  if (rc != SQLITE_OK || c->db == NULL) {
    nbdedup_fail (EIO, "%s: cannot be opened: %s", path, sqlite3_errstr (rc));
    meta_conn_close (c);
    return -1;
  }
  sqlite3_extended_result_codes (c->db, 1);
  sqlite3_busy_timeout (c->db, 1000);
  sqlite3_db_config (c->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
  /* A pool that is refused stays as it is, its WAL too (meta_opened). */
  sqlite3_db_config (c->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !create, NULL);
  if (create) {
    sqlite3_file_control (c->db, "main", SQLITE_FCNTL_RESERVE_BYTES,
                          &reserve);
    snprintf (sql, sizeof sql, "PRAGMA page_size = %d", PAGE_BYTES);
    if (exec (c, sql, "page size") == -1)
      goto err;
  }
  snprintf (sql, sizeof sql, "PRAGMA cache_size = -%" PRIu64,
            cache_bytes / 1024 < 128 ? 128 : cache_bytes / 1024);
  /* FULL: each commit syncs the WAL.  NORMAL would lose folds whose
   * journal space was already reused.
   */
  if (exec (c, sql, "cache size") == -1 ||
      exec (c, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
            "PRAGMA wal_autocheckpoint = 0; PRAGMA temp_store = MEMORY;"
            "PRAGMA journal_size_limit = 100663296;"
            "PRAGMA foreign_keys = OFF;", "opening") == -1)
    goto err;
  return 0;

 err:
  meta_conn_close (c);
  return -1;
}

int
meta_create (const char *path, const struct meta_state *state)
{
  struct meta_conn c = { NULL };
  char sql[96];
  int r = -1;

  if (cksum_vfs_register () == -1 || meta_conn_open (&c, path, true, 0) == -1)
    return -1;
  snprintf (sql, sizeof sql,
            "PRAGMA application_id = %d; PRAGMA user_version = %d",
            FORMAT_APPLICATION_ID, FORMAT_VERSION);
  if (exec (&c, "BEGIN IMMEDIATE", "creating") == -1 ||
      exec (&c, schema_sql, "schema") == -1 ||
      meta_history_make (&c) == -1 ||
      exec (&c, sql, "version") == -1 ||
      meta_state_put (&c, state) == -1 ||
      /* The hash index begins as one empty row from prefix 0 on. */
      meta_index_put (&c, 0, (const uint8_t *) "", 0) == -1 ||
      exec (&c, "COMMIT", "creating") == -1 ||
      sqlite3_wal_checkpoint_v2 (c.db, NULL, SQLITE_CHECKPOINT_TRUNCATE,
                                 NULL, NULL) != SQLITE_OK)
    goto out;
  r = 0;
 out:
  meta_conn_close (&c);
  return r;
}

/* https://sqlite.org/fileformat2.html, section 1.3. */
int
meta_probe (const char *path)
{
  /* Not to hang on what is no file. */
  CLEANUP_CLOSE int fd = open (path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  uint8_t h[100];
  uint32_t id, version;
  struct stat st;

  if (fd == -1 || fstat (fd, &st) == -1)
    return nbdedup_fail (errno == ENOENT ? ENOENT : EIO, "%s: %s", path,
                         strerror (errno));
  if (!S_ISREG (st.st_mode))
    return nbdedup_fail (EIO, "%s: not a regular file", path);
  if (full_pread (fd, h, sizeof h, 0) != sizeof h ||
      memcmp (h, "SQLite format 3", 16) != 0)
    return nbdedup_fail (EIO, "%s: damaged: it does not begin like a "
                         "database; restore it from a backup", path);
  id = be32toh (*(uint32_t *) (h + 68));
  version = be32toh (*(uint32_t *) (h + 60));
  if (id != FORMAT_APPLICATION_ID)
    return nbdedup_fail (EIO, "%s: not the database of a nbdedup pool",
                         path);
  if (version > FORMAT_VERSION)
    return nbdedup_fail (EINVAL, "%s: the pool was made by a newer nbdedup "
                         "(format %" PRIu32 ", this one knows %d): upgrade "
                         "nbdedup", path, version, FORMAT_VERSION);
  if (version == 0 || h[20] != CKSUM_RESERVE)
    return nbdedup_fail (EIO, "%s: damaged header; restore it from a backup",
                         path);
  return 0;
}

/* A failed checkpoint loses nothing: the WAL has it all still.  But SQLite
 * would sync again next time, as if the kernel had kept the pages whose
 * writing failed: it may have dropped them.  So there is no next commit.
 */
static int
checkpoint (struct meta *m, struct meta_conn *c, int mode)
{
  int rc = sqlite3_wal_checkpoint_v2 (c->db, NULL, mode, NULL, NULL);

  if (rc == SQLITE_IOERR_FSYNC)
    m->writer.sync_failed = true;
  return rc;
}

static bool
wants_checkpoint_locked (const struct meta *m)
{
  return m->wal_pages - m->copied_pages >= WAL_PAGES;
}

static void *
checkpoint_thread (void *arg)
{
  struct meta *m = arg;
  int pages;

  for (;;) {
    {
      WITH_LOCK (&m->lock);
      while (!m->stop && !wants_checkpoint_locked (m))
        lock_wait (&m->lock, &m->wake);
      if (m->stop)
        return NULL;
      pages = m->wal_pages;
    }
    /* A failure is not lost: the WAL keeps growing, and the commit that
     * cannot extend it reports why.
     */
    checkpoint (m, &m->checkpointer, SQLITE_CHECKPOINT_PASSIVE);
    WITH_LOCK (&m->lock);
    m->copied_pages = pages;
  }
}

static int
wal_hook (void *arg, sqlite3 *db, const char *name, int pages)
{
  struct meta *m = arg;

  (void) db;
  (void) name;
  WITH_LOCK (&m->lock);
  if (pages < m->wal_pages)
    m->copied_pages = 0;        /* it began anew */
  m->wal_pages = pages;
  if (wants_checkpoint_locked (m))
    pthread_cond_signal (&m->wake);
  return SQLITE_OK;
}

static int
open_connections (struct meta *m, uint64_t budget)
{
  unsigned i;

  if (meta_conn_open (&m->writer, m->path, false, budget / 2) == -1)
    return -1;
  for (i = 0; i < NR_READERS; ++i) {
    if (meta_conn_open (&m->readers[i], m->path, false,
                   budget / 2 / NR_READERS) == -1)
      return -1;
    m->free[m->nr_free++] = &m->readers[i];
  }
  if (meta_conn_open (&m->checkpointer, m->path, false, 0) == -1)
    return -1;
  sqlite3_wal_hook (m->writer.db, wal_hook, m);
  return 0;
}

static int
start_copy (struct meta *m)
{
  struct meta_conn c = { NULL };

  if (meta_conn_open (&c, m->path, false, 0) == -1)
    return -1;
  if (meta_copy_start (m->copy, &c) == -1)
    return -1;
  return 0;
}

struct meta *
meta_open (const char *path, uint64_t budget_bytes, uint64_t epoch,
           bool force)
{
  struct meta *m;
  int err;

  if (cksum_vfs_register () == -1)
    return NULL;
  m = calloc (1, sizeof *m);
  if (m == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  lock_init (&m->lock);
  cond_init (&m->reader_free);
  cond_init (&m->wake);
  cond_init (&m->all_free);
  cond_init (&m->none_frozen);
  m->path = strdup (path);
  if (m->path == NULL) {
    nbdedup_fail (ENOMEM, "no memory");
    goto err;
  }
  m->copy = meta_copy_new (path, epoch, force);
  if (m->copy == NULL || meta_probe (path) == -1 ||
      open_connections (m, budget_bytes) == -1 || start_copy (m) == -1)
    goto err;
  err = pthread_create (&m->thread, NULL, checkpoint_thread, m);
  if (err != 0) {
    nbdedup_fail (err, "cannot start a thread: %s", strerror (err));
    goto err;
  }
  m->has_thread = true;
  return m;

 err:
  err = errno;
  meta_close (m);
  errno = err;
  return NULL;
}

void
meta_opened (struct meta *m)
{
  m->opened = true;
  /* The last one to be closed removes the WAL. */
  sqlite3_db_config (m->writer.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
}

int
meta_close (struct meta *m)
{
  unsigned i;
  int r = 0;

  if (m == NULL)
    return 0;
  meta_copy_stop (m->copy);
  if (m->has_thread) {
    {
      WITH_LOCK (&m->lock);
      assert (m->nr_free == NR_READERS && m->nr_frozen == 0);
      m->stop = true;
      pthread_cond_signal (&m->wake);
    }
    pthread_join (m->thread, NULL);
    if (m->writer.sync_failed)
      r = nbdedup_fail (EIO, "pool.db: an earlier fdatasync has failed");
    else if (m->opened)
      r = meta_checkpoint (m);
    /* The WAL is all that is sure then: closing must not remove it. */
    if (r == -1)
      sqlite3_db_config (m->writer.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1,
                         NULL);
  }
  for (i = 0; i < NR_READERS; ++i)
    meta_conn_close (&m->readers[i]);
  meta_conn_close (&m->checkpointer);
  meta_conn_close (&m->writer);
  meta_copy_free (m->copy, m->opened && r == 0);
  pthread_cond_destroy (&m->none_frozen);
  pthread_cond_destroy (&m->all_free);
  pthread_cond_destroy (&m->wake);
  pthread_cond_destroy (&m->reader_free);
  lock_destroy (&m->lock);
  free (m->path);
  free (m);
  return r;
}

int
meta_copy_check_value (struct meta *m, const char *value)
{
  return meta_copy_try (m->copy, value);
}

int
meta_copy_set (struct meta *m, const char *value)
{
  return meta_copy_configure (m->copy, value);
}

void
meta_copy_get_status (struct meta *m, struct meta_copy_status *status)
{
  meta_copy_status (m->copy, status);
}

int
meta_copy_check (struct meta *m,
                 void (*fn) (void *opaque, bool repaired, const char *text),
                 void *opaque)
{
  return meta_copy_compare (m->copy, fn, opaque);
}

struct meta_conn *
meta_writer (struct meta *m)
{
  return &m->writer;
}

struct meta_conn *
meta_reader_get (struct meta *m)
{
  WITH_LOCK (&m->lock);
  while (m->nr_free == 0 || m->hold_readers)
    lock_wait (&m->lock, &m->reader_free);
  return m->free[--m->nr_free];
}

void
meta_reader_put (struct meta *m, struct meta_conn *c)
{
  WITH_LOCK (&m->lock);
  m->free[m->nr_free++] = c;
  pthread_cond_signal (&m->reader_free);
  if (m->nr_free == NR_READERS)
    pthread_cond_signal (&m->all_free);
}

struct meta_conn *
meta_frozen_open (struct meta *m)
{
  struct meta_conn *c = calloc (1, sizeof *c);
  struct meta_state state;

  if (c == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  if (meta_conn_open (c, m->path, false, FROZEN_CACHE_BYTES) == -1) {
    free (c);
    return NULL;
  }
  {
    WITH_LOCK (&m->lock);
    m->nr_frozen++;
  }
  /* The moment is that of the first statement that reads. */
  if (meta_freeze (c) == -1 || meta_state_get (c, &state) == -1) {
    meta_frozen_close (m, c);
    return NULL;
  }
  return c;
}

void
meta_frozen_close (struct meta *m, struct meta_conn *c)
{
  meta_unfreeze (c);
  meta_conn_close (c);
  free (c);
  WITH_LOCK (&m->lock);
  if (--m->nr_frozen == 0) {
    m->give_way_bytes = 0;
    m->copied_pages = 0;        /* checkpoints went no further than it */
    pthread_cond_broadcast (&m->none_frozen);
    pthread_cond_signal (&m->wake);
  }
}

int
meta_frozen_check (struct meta *m)
{
  WITH_LOCK (&m->lock);
  if (m->give_way_bytes == 0)
    return 0;
  return nbdedup_fail (EBUSY, "gave way to writes: what they changed in "
                       "pool.db meanwhile, %" PRIu64 " MiB, takes too much "
                       "space: try again when less is written, or free some",
                       (m->give_way_bytes + (1 << 20) - 1) >> 20);
}

/* Is none left? */
static bool
expel_frozen (struct meta *m)
{
  unsigned tries;

  WITH_LOCK (&m->lock);
  if (m->nr_frozen > 0)
    m->give_way_bytes = (uint64_t) m->wal_pages * PAGE_BYTES + 1;
  for (tries = 0; m->nr_frozen > 0 && tries < FROZEN_WAIT_MS; ++tries)
    lock_wait_ms (&m->lock, &m->none_frozen, 1);
  return m->nr_frozen == 0;
}

static int
simple (struct meta_conn *c, enum meta_stmt which, const char *what)
{
  USING_STMT (st, c, which);

  return meta_run (c, st, what);
}

int
meta_begin (struct meta_conn *c)
{
  if (c->sync_failed)
    return nbdedup_fail (EIO, "pool.db: an earlier fdatasync has failed");
  return simple (c, ST_BEGIN, "begin");
}

int
meta_commit (struct meta_conn *c)
{
  if (simple (c, ST_COMMIT, "commit") == -1) {
    int err = errno;

    meta_rollback (c);
    errno = err;
    return -1;
  }
  return 0;
}

void
meta_rollback (struct meta_conn *c)
{
  /* Some errors have rolled back already. */
  if (!sqlite3_get_autocommit (c->db)) {
    sqlite3_stmt *st = meta_stmt (c, ST_ROLLBACK);

    if (st)
      sqlite3_step (st);
    meta_reset (&st);
  }
}

int
meta_freeze (struct meta_conn *c)
{
  return simple (c, ST_FREEZE, "begin");
}

void
meta_unfreeze (struct meta_conn *c)
{
  if (!sqlite3_get_autocommit (c->db))
    simple (c, ST_COMMIT, "commit");
}

int
meta_savepoint (struct meta_conn *c)
{
  return simple (c, ST_SAVEPOINT, "savepoint");
}

int
meta_release (struct meta_conn *c, bool keep)
{
  if (!keep && simple (c, ST_UNDO, "undo") == -1)
    return -1;
  return simple (c, ST_RELEASE, "release");
}

int
meta_checkpoint (struct meta *m)
{
  /* Through the writer: TRUNCATE waits for readers, not for itself. */
  if (checkpoint (m, &m->writer, SQLITE_CHECKPOINT_TRUNCATE) != SQLITE_OK)
    return meta_fail (&m->writer, "checkpoint");
  WITH_LOCK (&m->lock);
  m->wal_pages = m->copied_pages = 0;
  return 0;
}

/* Until nobody reads, or READERS_WAIT_MS: a check may read for minutes. */
static void
hold_readers (struct meta *m)
{
  unsigned tries;

  WITH_LOCK (&m->lock);
  m->hold_readers = true;
  for (tries = 0; m->nr_free < NR_READERS && tries < READERS_WAIT_MS; ++tries)
    lock_wait_ms (&m->lock, &m->all_free, 1);
}

static void
let_readers (struct meta *m, bool restarted)
{
  WITH_LOCK (&m->lock);
  m->hold_readers = false;
  pthread_cond_broadcast (&m->reader_free);
  if (restarted)
    m->wal_pages = m->copied_pages = 0;
}

static bool
is_frozen (struct meta *m)
{
  WITH_LOCK (&m->lock);
  return m->nr_frozen > 0;
}

void
meta_copy_wal (struct meta *m)
{
  checkpoint (m, &m->writer, SQLITE_CHECKPOINT_PASSIVE);
}

void
meta_restart_wal (struct meta *m, bool truncate)
{
  int r;

  /* Copy while others read; then nobody may be inside the WAL for the
   * moment in which it begins anew: lookups come so close after each other
   * that it never would by itself.
   */
  meta_copy_wal (m);
  if (is_frozen (m)) {
    /* It cannot.  Only a full file system is worth more than a reader. */
    if (!truncate || !expel_frozen (m))
      return;
    meta_copy_wal (m);
  }
  hold_readers (m);
  r = checkpoint (m, &m->writer, truncate ? SQLITE_CHECKPOINT_TRUNCATE
                  : SQLITE_CHECKPOINT_RESTART);
  let_readers (m, r == SQLITE_OK);
}

static uint64_t
pool_bytes (struct meta *m)
{
  struct stat st;

  return stat (m->path, &st) == 0 ? (uint64_t) st.st_size : WAL_LIMIT_BYTES;
}

/* The WAL may be as large as pool.db, within limits: a small pool may live
 * on a small file system.
 */
static uint64_t
wal_limit (uint64_t pool_bytes)
{
  if (pool_bytes < WAL_LIMIT_BYTES_MIN)
    return WAL_LIMIT_BYTES_MIN;
  return pool_bytes < WAL_LIMIT_BYTES ? pool_bytes : WAL_LIMIT_BYTES;
}

/* Frozen readers keep the WAL from beginning anew for as long as a drift
 * takes.  It must not fill the file system for them: that would stop
 * clients.
 */
static bool
is_too_large (struct meta *m, uint64_t bytes, uint64_t pool_bytes)
{
  struct statvfs fs;

  if (bytes >= FROZEN_LIMITS * wal_limit (pool_bytes) &&
      bytes >= FROZEN_POOLS * pool_bytes)
    return true;
  return statvfs (m->path, &fs) == 0 &&
    bytes > (uint64_t) fs.f_bavail * fs.f_frsize;
}

void
meta_throttle (struct meta *m)
{
  uint64_t db = pool_bytes (m), bytes;

  {
    WITH_LOCK (&m->lock);
    bytes = (uint64_t) m->wal_pages * PAGE_BYTES;
  }
  if (bytes < wal_limit (db))
    return;
  if (is_frozen (m) &&
      (!is_too_large (m, bytes, db) || !expel_frozen (m)))
    return;
  meta_restart_wal (m, false);
}
