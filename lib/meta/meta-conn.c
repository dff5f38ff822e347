/* SPDX-License-Identifier: BSD-3-Clause */

/* A connection to pool.db: opening and errors; and creating the file. */

#include <config.h>

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/backoff.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "format/format.h"
#include "meta/meta-conn.h"
#include "meta/schema-sql.h"
#include "vfs/cksum-chain.h"
#include "vfs/cksum-snapshot.h"
#include "vfs/cksum-vfs.h"

/* The first allocation, enough for most rows. */
#define BLOB_MIN 256

void
blob_free (struct blob *b)
{
  free (b->p);
  memset (b, 0, sizeof *b);
}

int
blob_reserve (struct blob *b, size_t len)
{
  return array_reserve (&b->p, &b->cap, len < BLOB_MIN ? BLOB_MIN : len, 1);
}

int
blob_reserve_patient (struct blob *b, size_t len)
{
  return array_grow (&b->p, &b->cap, len < BLOB_MIN ? BLOB_MIN : len, 1,
                     patient_realloc);
}

/* SQLite has only one text for all file errors, so add the system's. */
static int
fail_file (struct meta_conn *c, int err, const char *what, int rc)
{
  int system = sqlite3_system_errno (c->db);

  return nbdedup_fail (err, "pool.db: %s: %s (%d%s%s)", what,
                       sqlite3_errmsg (c->db), rc, system ? ", " : "",
                       system ? strerror (system) : "");
}

/* A file that cannot be opened or written is not damaged: a repair would not
 * help.
 */
static bool
is_failed_write (int rc)
{
  switch (rc & 0xff) {
  case SQLITE_IOERR:
    return rc != SQLITE_IOERR_READ && rc != SQLITE_IOERR_SHORT_READ;
  case SQLITE_READONLY:
  case SQLITE_CANTOPEN:
    return true;
  default:
    return false;
  }
}

int
meta_frozen_check (struct meta_conn *c)
{
  const uint64_t bytes = c->snapshot ? cksum_snapshot_gave_way (c->snapshot)
                                     : 0;

  if (bytes == 0)
    return 0;
  return nbdedup_fail (EBUSY,
                       "gave way to writes, which changed %" PRIu64 " "
                       "MiB of pool.db meanwhile and need the space: try again "
                       "when clients write less, or free some space",
                       (bytes + (1 << 20) - 1) >> 20);
}

int
meta_fail (struct meta_conn *c, const char *what)
{
  int rc = sqlite3_extended_errcode (c->db);
  int err = EIO;

  if (meta_frozen_check (c) == -1)
    return -1;
  switch (rc == SQLITE_IOERR_NOMEM ? SQLITE_NOMEM : rc & 0xff) {
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
  if (is_failed_write (rc) && err == EIO && !c->damaged)
    c->write_failed = true;
  c->saw_damage |= c->damaged;
  if (c->damaged)
    return nbdedup_fail (EIO, "pool.db: %s: damaged page", what);
  if ((rc & 0xff) == SQLITE_IOERR)
    return fail_file (c, err, what, rc);
  return nbdedup_fail (err, "pool.db: %s: %s", what, sqlite3_errmsg (c->db));
}

bool
meta_is_damaged (struct meta_conn *c)
{
  return c->damaged;
}

bool
meta_has_write_failed (struct meta_conn *c)
{
  return c->write_failed || c->sync_failed;
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

int
meta_exec (struct meta_conn *c, const char *sql, const char *what)
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
  cksum_snapshot_end (c->snapshot);
  memset (c, 0, sizeof *c);
}

int
meta_conn_open (struct meta_conn *c, const char *path, bool create,
                uint64_t cache_bytes)
{
  /* SQLite always opens the WAL with O_NOFOLLOW. */
  int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX |
    SQLITE_OPEN_NOFOLLOW;
  int reserve = CKSUM_RESERVE, persist = !create, rc;
  char sql[64];

  assert (c->db == NULL);
  if (create)
    flags |= SQLITE_OPEN_CREATE;
  rc = sqlite3_open_v2 (path, &c->db, flags, CKSUM_VFS_NAME);
  if (rc != SQLITE_OK || c->db == NULL) {
    nbdedup_fail (rc == SQLITE_NOMEM ? ENOMEM : EIO, "%s: cannot be opened: %s",
                  path, sqlite3_errstr (rc));
    meta_conn_close (c);
    return -1;
  }
  sqlite3_extended_result_codes (c->db, 1);
  sqlite3_busy_timeout (c->db, 1000);
  sqlite3_db_config (c->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
  /* Do not change a pool that is refused, nor its WAL (meta_opened). */
  sqlite3_db_config (c->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !create, NULL);
  /* A closed pool keeps the WAL's room. */
  sqlite3_file_control (c->db, "main", SQLITE_FCNTL_PERSIST_WAL, &persist);
  if (create) {
    sqlite3_file_control (c->db, "main", SQLITE_FCNTL_RESERVE_BYTES, &reserve);
    snprintf (sql, sizeof sql, "PRAGMA page_size = %d", META_PAGE_BYTES);
    if (meta_exec (c, sql, "page size") == -1)
      goto err;
  }
  snprintf (sql, sizeof sql, "PRAGMA cache_size = -%" PRIu64,
            cache_bytes / 1024 < 128 ? 128 : cache_bytes / 1024);
  /* FULL: each commit syncs the WAL.  NORMAL would lose folds whose
   * journal space was already reused.
   */
  if (meta_exec (c, sql, "cache size") == -1 ||
      meta_exec (c,
                 "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                 "PRAGMA wal_autocheckpoint = 0; PRAGMA temp_store = MEMORY;"
                 "PRAGMA journal_size_limit = -1;"
                 /* Otherwise Debian's SQLite writes pages that become free. */
                 "PRAGMA secure_delete = OFF;"
                 "PRAGMA foreign_keys = OFF;",
                 "opening") == -1)
    goto err;
  return 0;

err:
  meta_conn_close (c);
  return -1;
}

/* The connection writes nothing, so it needs no sync and no checkpoint. */
static int
open_without_writing (struct meta_conn *c, const char *path, const char *vfs,
                      uint64_t cache_bytes)
{
  char sql[64];
  int rc;

  assert (c->db == NULL);
  rc = sqlite3_open_v2 (path, &c->db,
                        SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, vfs);
  if (rc != SQLITE_OK || c->db == NULL) {
    nbdedup_fail (rc == SQLITE_NOMEM ? ENOMEM : EIO, "%s: cannot be opened: %s",
                  path, sqlite3_errstr (rc));
    meta_conn_close (c);
    return -1;
  }
  sqlite3_extended_result_codes (c->db, 1);
  sqlite3_db_config (c->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
  sqlite3_db_config (c->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
  snprintf (sql, sizeof sql, "PRAGMA cache_size = -%" PRIu64,
            cache_bytes / 1024 < 128 ? 128 : cache_bytes / 1024);
  /* In exclusive mode SQLite's index of the WAL needs no shared memory. */
  if (meta_exec (c,
                 "PRAGMA locking_mode = EXCLUSIVE;"
                 "PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = OFF;",
                 "opening") == -1 ||
      meta_exec (c, sql, "cache size") == -1) {
    meta_conn_close (c);
    return -1;
  }
  return 0;
}

int
meta_conn_open_readonly (struct meta_conn *c, const char *path,
                         uint64_t cache_bytes)
{
  c->readonly = true;
  return open_without_writing (c, path, CKSUM_READONLY_VFS_NAME, cache_bytes);
}

int
meta_conn_open_snapshot (struct meta_conn *c, const char *path,
                         uint64_t cache_bytes)
{
  return open_without_writing (c, path, cksum_snapshot_vfs (c->snapshot),
                               cache_bytes);
}

int
meta_create (const char *path, const struct meta_state *state,
             const struct hash_key *key)
{
  struct meta_conn c = { NULL };
  char sql[96];
  int r = -1;

  if (cksum_vfs_register () == -1 || meta_conn_open (&c, path, true, 0) == -1)
    return -1;
  snprintf (sql, sizeof sql,
            "PRAGMA application_id = %d; PRAGMA user_version = %d",
            FORMAT_APPLICATION_ID, FORMAT_VERSION);
  if (meta_exec (&c, "BEGIN IMMEDIATE", "creating") == -1 ||
      meta_exec (&c, schema_sql, "schema") == -1 ||
      meta_history_make (&c) == -1 || meta_exec (&c, sql, "version") == -1 ||
      meta_state_put (&c, state) == -1 ||
      (key && key->known && meta_hash_key_put (&c, key) == -1) ||
      meta_exec (&c, "COMMIT", "creating") == -1)
    goto out;
  if (sqlite3_wal_checkpoint_v2 (c.db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL,
                                 NULL) != SQLITE_OK)
    meta_fail (&c, "checkpoint");
  else
    r = 0;
out:
  meta_conn_close (&c);
  return r;
}

/* https://sqlite.org/fileformat2.html, section 1.3. */
int
meta_probe (const char *path)
{
  /* O_NONBLOCK: do not hang if this is a FIFO or a device. */
  CLEANUP_CLOSE int fd = open (path,
                               O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  uint8_t h[100];
  uint32_t id, version;
  struct stat st;
  int64_t n;

  if (fd == -1 && errno == ELOOP)
    return nbdedup_fail (EIO, "%s: is a symbolic link: only records may be one",
                         path);
  if (fd == -1 || fstat (fd, &st) == -1)
    return nbdedup_fail (errno == ENOENT ? ENOENT : EIO, "%s: %s", path,
                         errno == ENOENT
                           ? "is missing: restore it from a backup"
                           : strerror (errno));
  if (!S_ISREG (st.st_mode))
    return nbdedup_fail (EIO, "%s: not a regular file", path);
  n = full_pread (fd, h, sizeof h, 0);
  if (n == -1)
    return nbdedup_fail (EIO, "%s: %s", path, strerror (errno));
  if (n != sizeof h || memcmp (h, CKSUM_DB_MAGIC, sizeof CKSUM_DB_MAGIC) != 0)
    return nbdedup_fail (EIO,
                         "%s: damaged: it does not begin like a "
                         "database; restore it from a backup",
                         path);
  id = be32toh (*(uint32_t *) (h + 68));
  version = be32toh (*(uint32_t *) (h + 60));
  if (id != FORMAT_APPLICATION_ID)
    return nbdedup_fail (EIO, "%s: not the database of an nbdedup pool", path);
  if (version > FORMAT_VERSION)
    return nbdedup_fail (EINVAL,
                         "%s: the pool was made by a newer nbdedup "
                         "(format %" PRIu32 ", this one knows %d): upgrade "
                         "nbdedup",
                         path, version, FORMAT_VERSION);
  if (version == 0 || h[20] != CKSUM_RESERVE)
    return nbdedup_fail (EIO, "%s: damaged header; restore it from a backup",
                         path);
  return 0;
}
