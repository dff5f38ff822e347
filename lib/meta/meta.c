/* SPDX-License-Identifier: BSD-3-Clause */

/* Connections, transactions, checkpoints.  The tables are in
 * meta-tables.c.
 *
 * A separate thread checkpoints the WAL: a checkpoint inside a commit would
 * stop the fold for up to a second.  A passive checkpoint can starve if
 * commits come faster than it copies.  So meta_throttle makes the fold wait
 * for the checkpoint if the WAL has reached wal_limit, or would reach it with
 * the next fold.
 */

#include <config.h>

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/backoff.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/invariant.h"
#include "base/lock.h"
#include "format/format.h"
#include "meta/meta-conn.h"
#include "meta/meta-copy.h"
#include "meta/meta-files.h"
#include "meta/meta-pair.h"
#include "vfs/cksum-vfs.h"

#define NR_READERS 4
#define FROZEN_CACHE_BYTES (UINT64_C (2) << 20)
/* Checkpoint when the WAL has this many pages; wait for it at the limit. */
#define WAL_PAGES 1024
#define WAL_LIMIT_BYTES (UINT64_C (96) << 20)
#define WAL_LIMIT_BYTES_MIN (UINT64_C (1) << 20)
/* How long the fold waits for readers before it lets the WAL grow further. */
#define READERS_WAIT_MS 100
/* Frozen readers must give way when the WAL is so many times as large as its
 * limit, and so many times as large as pool.db; and how long a fold waits.
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
  bool readonly;                /* constant */
  struct meta_copy *copy;       /* owned; constant; NULL if read-only */
  struct cksum_shared *prepared;        /* owned; NULL unless read-only */
  struct meta_files *files;     /* owned */
  _Atomic uint64_t used_pages;  /* after the last commit, without the free
                                 * pages of pool.db */
  _Atomic uint64_t all_pages;   /* with the free ones */
  uint64_t kept_pages, kept_wal_pages;  /* while closed; the writer's */

  /* Held while copying from the WAL; acquired before 'lock'. */
  struct lock copying;

  struct lock lock;             /* protects everything below */
  pthread_cond_t reader_free;   /* nr_free > 0 and !hold_readers */
  pthread_cond_t all_free;      /* nr_free == NR_READERS */
  pthread_cond_t wake;          /* enough pages to copy, or stop */
  struct meta_conn *free[NR_READERS];
  unsigned nr_free;
  unsigned nr_frozen;           /* readers of meta_frozen_open */
  pthread_cond_t none_frozen;   /* nr_frozen == 0 */
  uint64_t give_way_bytes;      /* not 0: frozen readers must close, because
                                 * the WAL has so many bytes */
  int wal_pages;                /* in the WAL, after the last commit */
  int copied_pages;             /* of them, by checkpoints */
  unsigned wal_begun;           /* how often the WAL was restarted */
  bool hold_readers;            /* meta_reader_get waits */
  bool stop;
};

static void
meta_assert_consistent_locked (struct meta *m)
{
  unsigned i, j;

  assert_held (&m->lock);
  assert (m->nr_free <= NR_READERS);
  for (i = 0; i < m->nr_free; ++i) {
    assert (m->free[i] >= m->readers && m->free[i] < m->readers + NR_READERS);
    for (j = 0; j < i; ++j)
      assert (m->free[i] != m->free[j]);
  }
  assert (m->copied_pages >= 0 && m->copied_pages <= m->wal_pages);
  assert (m->give_way_bytes == 0 || m->nr_frozen > 0);
}

DEFINE_WITH_CONSISTENT (meta)

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

/* SQLite refuses a checkpoint (SQLITE_BUSY, at once) while another one is
 * running, so ours wait for each other.  The wait is no longer than copying
 * the WAL, which the waiting thread would otherwise do itself.
 *
 * A failed checkpoint loses nothing: the WAL still has everything.  But SQLite
 * would sync again next time, although the kernel may have dropped the pages
 * that it failed to write.  So the pool makes no further commit.
 */
static int
checkpoint_locked (struct meta *m, struct meta_conn *c, int mode)
{
  int rc;

  assert_held (&m->copying);
  rc = sqlite3_wal_checkpoint_v2 (c->db, NULL, mode, NULL, NULL);
  if (rc == SQLITE_IOERR_FSYNC)
    m->writer.sync_failed = true;
  return rc;
}

/* The WAL starts again: nothing in it has been copied. */
static void
wal_begins_locked (struct meta *m)
{
  assert_held (&m->lock);
  m->wal_begun++;
  m->wal_pages = m->copied_pages = 0;
}

static bool
wants_checkpoint_locked (const struct meta *m)
{
  return m->wal_pages - m->copied_pages >= WAL_PAGES;
}

/* Copy what the WAL has now, as far as readers allow.  A failure is not lost:
 * the WAL keeps growing, and the commit that cannot extend it reports why.
 */
static void
copy_locked (struct meta *m, struct meta_conn *c)
{
  unsigned begun;
  int pages;

  {
    WITH_LOCK (&m->lock);
    begun = m->wal_begun;
    pages = m->wal_pages;
  }
  checkpoint_locked (m, c, SQLITE_CHECKPOINT_PASSIVE);
  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (meta, m);
  if (m->wal_begun == begun && pages > m->copied_pages)
    m->copied_pages = pages;
}

static void *
checkpoint_thread (void *arg)
{
  struct meta *m = arg;

  for (;;) {
    {
      WITH_LOCK (&m->lock);
      while (!m->stop && !wants_checkpoint_locked (m))
        lock_wait (&m->lock, &m->wake);
      if (m->stop)
        return NULL;
    }
    WITH_LOCK (&m->copying);
    copy_locked (m, &m->checkpointer);
  }
}

static int
wal_hook (void *arg, sqlite3 *db, const char *name, int pages)
{
  struct meta *m = arg;

  (void) db;
  (void) name;
  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (meta, m);
  if (pages < m->wal_pages)
    wal_begins_locked (m);
  m->wal_pages = pages;
  if (wants_checkpoint_locked (m))
    pthread_cond_signal (&m->wake);
  return SQLITE_OK;
}

static int
conn_open_of (struct meta *m, struct meta_conn *c, uint64_t cache_bytes)
{
  return m->readonly ? meta_conn_open_readonly (c, m->path, cache_bytes)
    : meta_conn_open (c, m->path, false, cache_bytes);
}

static int
open_connections (struct meta *m, uint64_t budget)
{
  unsigned i;

  if (conn_open_of (m, &m->writer, budget / 2) == -1)
    return -1;
  for (i = 0; i < NR_READERS; ++i) {
    if (conn_open_of (m, &m->readers[i], budget / 2 / NR_READERS) == -1)
      return -1;
    m->free[m->nr_free++] = &m->readers[i];
  }
  if (m->readonly)
    return 0;
  if (meta_conn_open (&m->checkpointer, m->path, false, 0) == -1)
    return -1;
  sqlite3_wal_hook (m->writer.db, wal_hook, m);
  return 0;
}

/* Count the pages as of the last commit. */
static int
count_pages (struct meta *m)
{
  uint64_t all, unused;

  if (meta_page_counts (&m->writer, &all, &unused) == -1)
    return -1;
  m->used_pages = all > unused ? all - unused : 1;
  m->all_pages = all;
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

static int
start_writing (struct meta *m)
{
  int err;

  m->files = meta_files_open (m->path, META_PAGE_BYTES, m->copy);
  if (m->files == NULL || count_pages (m) == -1 || start_copy (m) == -1)
    return -1;
  err = pthread_create (&m->thread, NULL, checkpoint_thread, m);
  if (err != 0)
    return nbdedup_fail (err, "cannot start a thread: %s", strerror (err));
  m->has_thread = true;
  return 0;
}

static struct meta *
open_meta (const char *path, uint64_t budget_bytes, bool readonly,
           const struct meta_session *session, bool force)
{
  struct meta *m;
  int err;

  if (cksum_vfs_register () == -1)
    return NULL;
  m = calloc (1, sizeof *m);
  if (m == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  lock_init (&m->copying);
  lock_init (&m->lock);
  cond_init (&m->reader_free);
  cond_init (&m->wake);
  cond_init (&m->all_free);
  cond_init (&m->none_frozen);
  m->readonly = readonly;
  m->path = strdup (path);
  if (m->path == NULL) {
    nbdedup_fail (ENOMEM, "no memory");
    goto err;
  }
  if (!readonly) {
    m->copy = meta_copy_new (path, session, force);
    if (m->copy == NULL)
      goto err;
  }
  if (meta_probe (path) == -1 || open_connections (m, budget_bytes) == -1 ||
      (!readonly && (meta_copy_opened (m->copy) == -1 ||
                     start_writing (m) == -1)))
    goto err;
  return m;

 err:
  err = errno;
  meta_close (m);
  errno = err;
  return NULL;
}

struct meta *
meta_open (const char *path, uint64_t budget_bytes,
           const struct meta_session *session, bool force)
{
  return open_meta (path, budget_bytes, false, session, force);
}

/* A WAL that this process may not read is neither missing nor damaged: without
 * it the pool would be of an older moment.
 */
static int
check_wal (const char *path)
{
  CLEANUP_FREE char *wal = NULL;
  CLEANUP_CLOSE int fd = -1;

  if (asprintf (&wal, "%s-wal", path) == -1) {
    wal = NULL;
    return nbdedup_fail (ENOMEM, "no memory");
  }
  fd = open (wal, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd == -1 && errno != ENOENT)
    return nbdedup_fail (errno, "%s: cannot be opened: %s", wal,
                         strerror (errno));
  return 0;
}

struct meta *
meta_open_readonly (const char *path, uint64_t budget_bytes,
                    const struct meta_session *session, bool force)
{
  struct meta_pair_choice choice;
  struct cksum_shared *prepared = NULL;
  struct meta *m = NULL;
  int stand_in = -1, err;

  if (cksum_vfs_register () == -1 || check_wal (path) == -1 ||
      meta_pair_choose (path, session, force, &choice) == -1)
    return NULL;
  if (choice.stand_in)
    stand_in = open (choice.stand_in, O_RDONLY | O_CLOEXEC | O_NOFOLLOW |
                     O_NONBLOCK);
  prepared = cksum_readonly_prepare (choice.path, stand_in, choice.wal,
                                     choice.without_wal);
  choice.wal = -1;              /* the VFS owns it now */
  if (prepared)
    m = open_meta (choice.path, budget_bytes, true, session, false);
  err = errno;
  if (m)
    m->prepared = prepared;
  else
    cksum_readonly_release (prepared);
  meta_pair_choice_free (&choice);
  errno = err;
  return m;
}

void
meta_opened (struct meta *m)
{
  m->opened = true;
  /* The last connection that is closed removes the WAL. */
  sqlite3_db_config (m->writer.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
}

/* Never cut off pages of pool.db, also not free ones. */
static void
trim_files (struct meta *m, uint64_t db_pages, uint64_t wal_pages)
{
  meta_files_trim (m->files, db_pages > m->all_pages ? db_pages
                   : m->all_pages, wal_pages);
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
    else if (m->opened) {
      r = meta_checkpoint (m);
      if (r == 0 && m->kept_wal_pages > 0)
        trim_files (m, m->kept_pages, m->kept_wal_pages);
    }
    /* Then only the WAL is certain: closing must not remove it. */
    if (r == -1)
      sqlite3_db_config (m->writer.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1,
                         NULL);
  }
  for (i = 0; i < NR_READERS; ++i)
    meta_conn_close (&m->readers[i]);
  meta_conn_close (&m->checkpointer);
  meta_conn_close (&m->writer);
  meta_copy_free (m->copy, m->opened && r == 0);
  cksum_readonly_release (m->prepared);
  meta_files_close (m->files);
  pthread_cond_destroy (&m->none_frozen);
  pthread_cond_destroy (&m->all_free);
  pthread_cond_destroy (&m->wake);
  pthread_cond_destroy (&m->reader_free);
  lock_destroy (&m->lock);
  lock_destroy (&m->copying);
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
meta_copy_room (struct meta *m)
{
  meta_copy_retry (m->copy);
}

void
meta_copy_get_status (struct meta *m, struct meta_copy_status *status)
{
  memset (status, 0, sizeof *status);
  if (m->copy)
    meta_copy_status (m->copy, status);
}

int
meta_copy_check (struct meta *m,
                 void (*fn) (void *opaque, bool repaired, const char *text),
                 int (*step) (void *opaque, uint64_t bytes), void *opaque)
{
  /* A read-only pool uses only the copy that was chosen. */
  return m->copy ? meta_copy_compare (m->copy, fn, step, opaque) : 0;
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
  WITH_CONSISTENT (meta, m);
  while (m->nr_free == 0 || m->hold_readers)
    lock_wait (&m->lock, &m->reader_free);
  return m->free[--m->nr_free];
}

void
meta_reader_put (struct meta *m, struct meta_conn *c)
{
  /* A statement that was not reset would keep its view of pool.db open.  That
   * would hide later commits, and keep the WAL from restarting.  The caller
   * must close a view that meta_freeze has opened.
   */
  assert (!sqlite3_get_autocommit (c->db) ||
          sqlite3_txn_state (c->db, NULL) == SQLITE_TXN_NONE);
  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (meta, m);
  assert (m->nr_free < NR_READERS);
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
  if (conn_open_of (m, c, FROZEN_CACHE_BYTES) == -1) {
    free (c);
    return NULL;
  }
  {
    WITH_LOCK (&m->lock);
    m->nr_frozen++;
  }
  /* The first statement that reads determines the moment. */
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
  WITH_CONSISTENT (meta, m);
  assert (m->nr_frozen > 0);
  if (--m->nr_frozen == 0) {
    m->give_way_bytes = 0;
    m->copied_pages = 0;        /* the reader has limited checkpoints */
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
  return nbdedup_fail (EBUSY, "gave way to writes, which changed %" PRIu64 " "
                       "MiB of pool.db meanwhile and need the space: try again "
                       "when clients write less, or free some space",
                       (m->give_way_bytes + (1 << 20) - 1) >> 20);
}

/* Make frozen readers close; true: none is left. */
static bool
expel_frozen (struct meta *m)
{
  unsigned tries;

  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (meta, m);
  if (m->nr_frozen > 0)
    m->give_way_bytes = (uint64_t) m->wal_pages * META_PAGE_BYTES + 1;
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

/* Roll back an open transaction; false: there was no memory for it. */
static bool
roll_back (struct meta_conn *c)
{
  unsigned tries = 0;

  /* After some errors SQLite has rolled back already. */
  while (!sqlite3_get_autocommit (c->db)) {
    sqlite3_stmt *st = meta_stmt (c, ST_ROLLBACK);

    if (st)
      sqlite3_step (st);
    meta_reset (&st);
    if (!sqlite3_get_autocommit (c->db) && !backoff_sleep (&tries))
      return false;
  }
  return true;
}

/* Prepare the statements that end a transaction before it begins, so that they
 * need no memory when memory is short.
 */
static int
begin (struct meta_conn *c, enum meta_stmt which)
{
  if (meta_stmt (c, ST_ROLLBACK) == NULL || meta_stmt (c, ST_COMMIT) == NULL)
    return -1;
  return simple (c, which, "begin");
}

int
meta_begin (struct meta_conn *c)
{
  if (c->sync_failed)
    return nbdedup_fail (EIO, "pool.db: an earlier fdatasync has failed");
  c->write_failed = false;
  if (!roll_back (c))
    return nbdedup_fail (ENOMEM, "pool.db: no memory to end a transaction");
  return begin (c, ST_BEGIN);
}

void
meta_committed (struct meta *m)
{
  /* On failure the counts stay as they were until the next commit. */
  (void) count_pages (m);
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

/* Without memory the transaction stays open, and meta_begin ends it. */
void
meta_rollback (struct meta_conn *c)
{
  (void) roll_back (c);
}

int
meta_freeze (struct meta_conn *c)
{
  return begin (c, ST_FREEZE);
}

void
meta_unfreeze (struct meta_conn *c)
{
  if (!sqlite3_get_autocommit (c->db) &&
      simple (c, ST_COMMIT, "commit") == -1)
    /* The transaction has written nothing.  If it stayed open, it would hide
     * all later commits from this connection.
     */
    while (!roll_back (c))
      ;
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
  /* Use the writer: TRUNCATE waits for readers, not for itself. */
  WITH_LOCK (&m->copying);
  if (checkpoint_locked (m, &m->writer, SQLITE_CHECKPOINT_TRUNCATE) !=
      SQLITE_OK)
    return meta_fail (&m->writer, "checkpoint");
  WITH_LOCK (&m->lock);
  wal_begins_locked (m);
  return 0;
}

/* Let no new reader start, and wait until no thread reads, but at most
 * READERS_WAIT_MS: a check may read for minutes.
 */
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
  WITH_CONSISTENT (meta, m);
  m->hold_readers = false;
  pthread_cond_broadcast (&m->reader_free);
  if (restarted)
    wal_begins_locked (m);
}

bool
meta_is_frozen (struct meta *m)
{
  WITH_LOCK (&m->lock);
  return m->nr_frozen > 0;
}

void
meta_copy_wal (struct meta *m)
{
  WITH_LOCK (&m->copying);
  copy_locked (m, &m->writer);
}

bool
meta_restart_wal (struct meta *m, bool truncate)
{
  int r;

  /* Copy while others read.  Then hold the readers: the WAL restarts only when
   * no reader is inside it, and lookups follow each other so closely that it
   * never would by itself.
   */
  WITH_LOCK (&m->copying);
  copy_locked (m, &m->writer);
  if (meta_is_frozen (m)) {
    /* The WAL cannot restart.  Only a full file system is a reason to expel
     * readers.
     */
    if (!truncate || !expel_frozen (m))
      return false;
    copy_locked (m, &m->writer);
  }
  hold_readers (m);
  r = checkpoint_locked (m, &m->writer, truncate ?
                         SQLITE_CHECKPOINT_TRUNCATE :
                         SQLITE_CHECKPOINT_RESTART);
  let_readers (m, r == SQLITE_OK);
  return r == SQLITE_OK;
}

static uint64_t
pool_bytes (struct meta *m)
{
  struct stat st;

  return stat (m->path, &st) == 0 ? (uint64_t) st.st_size : WAL_LIMIT_BYTES;
}

/* The WAL may be as large as pool.db, within limits: a small pool may be on a
 * small file system.  The WAL's file keeps its size while the pool is open, so
 * the limit applies before the file grows.  Otherwise the fold that was
 * promised most when the WAL was nearly full would determine the size.
 */
static uint64_t
wal_limit (uint64_t pool_bytes)
{
  if (pool_bytes < WAL_LIMIT_BYTES_MIN)
    return WAL_LIMIT_BYTES_MIN;
  return pool_bytes < WAL_LIMIT_BYTES ? pool_bytes : WAL_LIMIT_BYTES;
}

static uint64_t
free_bytes (struct meta *m)
{
  struct statvfs fs;

  return statvfs (m->path, &fs) == -1 ? UINT64_MAX
    : (uint64_t) fs.f_bavail * fs.f_frsize;
}

/* Frozen readers keep the WAL from restarting for as long as a drift takes.
 * The WAL must not fill the file system for them: that would stop clients.
 */
static bool
is_too_large (struct meta *m, uint64_t bytes, uint64_t pool_bytes)
{
  return (bytes >= FROZEN_LIMITS * wal_limit (pool_bytes) &&
          bytes >= FROZEN_POOLS * pool_bytes) || bytes > free_bytes (m);
}

/* True if the WAL can take 'pages' without growing beyond its limit. */
static bool
has_room (struct meta *m, uint64_t pages, uint64_t limit)
{
  return pages * META_PAGE_BYTES <= limit ||
    pages <= meta_files_wal_pages (m->files);
}

void
meta_throttle (struct meta *m, uint64_t need)
{
  uint64_t db = pool_bytes (m), limit = wal_limit (db), pages, bytes;

  {
    WITH_LOCK (&m->lock);
    pages = (uint64_t) m->wal_pages;
  }
  bytes = pages * META_PAGE_BYTES;
  if (pages == 0 || (bytes < limit && has_room (m, pages + need, limit)))
    return;
  if (meta_is_frozen (m) &&
      (!is_too_large (m, bytes, db) || !expel_frozen (m)))
    return;
  meta_restart_wal (m, false);
}

/*----------------------------------------------------------------------
 * Pages
 */

/* Count the pages of the files now. */
static void
get_readonly_pages (struct meta *m, struct meta_pages *pages)
{
  CLEANUP_FREE char *wal = NULL;
  struct meta_conn *c = meta_reader_get (m);
  uint64_t all = 0, unused = 0;
  struct stat st;

  memset (pages, 0, sizeof *pages);
  if (meta_page_counts (c, &all, &unused) == 0 && all > unused) {
    pages->used = all - unused;
    pages->unused = unused;
  }
  meta_reader_put (m, c);
  if (stat (m->path, &st) == 0)
    pages->allocated = (uint64_t) st.st_size / META_PAGE_BYTES;
  if (asprintf (&wal, "%s-wal", m->path) == -1)
    wal = NULL;
  else if (stat (wal, &st) == 0)
    pages->wal_allocated = (uint64_t) st.st_size / META_PAGE_BYTES;
}

void
meta_get_pages (struct meta *m, struct meta_pages *pages)
{
  if (m->readonly) {
    get_readonly_pages (m, pages);
    return;
  }
  pages->used = m->used_pages;
  pages->unused = m->all_pages - pages->used;
  pages->allocated = meta_files_db_pages (m->files);
  pages->wal_allocated = meta_files_wal_pages (m->files);
  WITH_LOCK (&m->lock);
  pages->wal_used = (uint64_t) m->wal_pages;
}

int
meta_allocate (struct meta *m, uint64_t db_pages, uint64_t wal_pages)
{
  return meta_files_allocate (m->files, db_pages, wal_pages);
}

uint64_t
meta_free_pages (struct meta *m)
{
  return free_bytes (m) / META_PAGE_BYTES;
}

void
meta_give_back (struct meta *m, uint64_t db_pages, uint64_t wal_pages)
{
  if (meta_restart_wal (m, true))
    trim_files (m, db_pages, wal_pages);
}

int
meta_vacuum (struct meta *m)
{
  const uint64_t used = m->used_pages;
  uint64_t wal;

  if (meta_is_frozen (m))
    return 0;
  {
    WITH_LOCK (&m->lock);
    wal = (uint64_t) m->wal_pages;
  }
  m->writer.write_failed = false;
  if (meta_allocate (m, 0, wal + used + used / 8 + 16) == -1 ||
      meta_exec (&m->writer, "VACUUM", "vacuum") == -1)
    return -1;
  meta_committed (m);
  return 1;
}

void
meta_set_kept (struct meta *m, uint64_t db_pages, uint64_t wal_pages)
{
  m->kept_pages = db_pages;
  m->kept_wal_pages = wal_pages;
}
