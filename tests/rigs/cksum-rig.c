/* SPDX-License-Identifier: BSD-3-Clause */

/* See cksum-rig.h. */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#undef NDEBUG

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/bytes.h"
#include "base/fullio.h"
#include "rigs/cksum-rig.h"
#include "rigs/testutil.h"
#include "vfs/cksum-vfs.h"

static char dir[] = "/tmp/nbdedup-cksum-XXXXXX";
char db_path[64], wal_path[80], other_path[64], other_wal[80];

uint64_t
random_u64 (void)
{
  static struct rng rng = { 1 };

  return rng_next (&rng);
}

/*----------------------------------------------------------------------
 * Files
 */

struct file_bytes
read_file (const char *path)
{
  struct file_bytes c = { NULL, 0 };
  struct stat st;
  int fd = open (path, O_RDONLY);

  if (fd == -1) {
    assert (errno == ENOENT);
    return c;
  }
  assert (fstat (fd, &st) == 0);
  c.len = st.st_size;
  c.data = malloc (c.len + 1);
  assert (c.data != NULL);
  assert (full_pread (fd, c.data, c.len, 0) == (int64_t) c.len);
  close (fd);
  return c;
}

void
write_file (const char *path, const void *data, size_t len)
{
  int fd = open (path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

  assert (fd != -1);
  assert (full_pwrite (fd, data, len, 0) == 0);
  close (fd);
}

void
patch_file (const char *path, uint64_t offset, const void *data, size_t len)
{
  int fd = open (path, O_WRONLY);

  assert (fd != -1);
  assert (full_pwrite (fd, data, len, offset) == 0);
  close (fd);
}

void
copy_file (const char *from, const char *to)
{
  struct file_bytes c = read_file (from);

  unlink (to);
  if (c.data)
    write_file (to, c.data, c.len);
  free (c.data);
}

void
remove_all (void)
{
  char path[512];
  struct dirent *d;
  DIR *dp = opendir (dir);

  assert (dp != NULL);
  while ((d = readdir (dp)) != NULL) {
    if (d->d_name[0] == '.')
      continue;
    snprintf (path, sizeof path, "%s/%s", dir, d->d_name);
    assert (unlink (path) == 0);
  }
  closedir (dp);
}

/*----------------------------------------------------------------------
 * The database
 */

const struct setup normal = {
  4096, "wal", "normal", "", CKSUM_VFS_NAME, 0,
};
const struct setup stock = {
  4096, "delete", "normal", "", "unix", 0,
};

sqlite3 *
open_with (const char *path, const struct setup *setup, int *rcp)
{
  int reserve = CKSUM_RESERVE, rc;
  char uri[256], sql[256];
  sqlite3 *db;

  snprintf (uri, sizeof uri, "file:%s%s", path, setup->parameters);
  rc = sqlite3_open_v2 (uri, &db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
                          SQLITE_OPEN_URI,
                        setup->vfs);
  assert (db != NULL);
  sqlite3_extended_result_codes (db, 1);
  if (rc == SQLITE_OK) {
    sqlite3_busy_timeout (db, 20000);
    sqlite3_file_control (db, "main", SQLITE_FCNTL_RESERVE_BYTES, &reserve);
    snprintf (sql, sizeof sql,
              "PRAGMA page_size = %d; PRAGMA auto_vacuum = %d;"
              "PRAGMA journal_mode = %s; PRAGMA synchronous = %s;"
              "PRAGMA wal_autocheckpoint = 0; PRAGMA secure_delete = off;",
              setup->page_size, setup->auto_vacuum, setup->journal_mode,
              setup->synchronous);
    rc = sqlite3_exec (db, sql, NULL, NULL, NULL);
  }
  *rcp = rc;
  return db;
}

sqlite3 *
open_db (const char *path, const struct setup *setup)
{
  int rc;
  sqlite3 *db = open_with (path, setup, &rc);

  if (rc != SQLITE_OK)
    fprintf (stderr, "%s: %s\n", path, sqlite3_errmsg (db));
  assert (rc == SQLITE_OK);
  return db;
}

void
run (sqlite3 *db, const char *sql)
{
  int rc = sqlite3_exec (db, sql, NULL, NULL, NULL);

  if (rc != SQLITE_OK)
    fprintf (stderr, "%s: %s (%d)\n", sql, sqlite3_errmsg (db), rc);
  assert (rc == SQLITE_OK);
}

void
close_db (sqlite3 *db)
{
  assert (sqlite3_close (db) == SQLITE_OK);
}

/* One row in eight has overflow pages. */
static size_t
row_len (unsigned key, unsigned version)
{
  unsigned h = key * 2654435761u ^ version * 40503u;

  return h % 8 == 0 ? 1000 + h % 20011 : 10 + h % 311;
}

static void
row_fill (unsigned key, unsigned version, uint8_t *buf, size_t len)
{
  fill_random (buf, len, (uint64_t) key << 32 | version);
}

#define ROW_MAX 32768

void
put_row (sqlite3 *db, struct model *model, unsigned key, unsigned version)
{
  uint8_t buf[ROW_MAX];
  size_t len = row_len (key, version);
  sqlite3_stmt *st;
  const char *sql = version == 0
    ? "DELETE FROM t WHERE k = ?1"
    : "INSERT INTO t VALUES (?1, ?2, ?3) ON CONFLICT (k) DO UPDATE "
      "SET s = excluded.s, v = excluded.v";

  assert (sqlite3_prepare_v2 (db, sql, -1, &st, NULL) == SQLITE_OK);
  sqlite3_bind_int (st, 1, key);
  if (version != 0) {
    assert (len <= sizeof buf);
    row_fill (key, version, buf, len);
    sqlite3_bind_int64 (st, 2, (int64_t) key * 1000003 % 4096);
    sqlite3_bind_blob (st, 3, buf, len, SQLITE_STATIC);
  }
  assert (sqlite3_step (st) == SQLITE_DONE);
  assert (sqlite3_finalize (st) == SQLITE_OK);
  model->version[key] = version;
}

void
create_table (sqlite3 *db)
{
  run (db,
       "CREATE TABLE t (k INTEGER PRIMARY KEY, s INTEGER, v BLOB);"
       "CREATE INDEX ts ON t (s, k)");
}

void
populate (sqlite3 *db, struct model *model)
{
  unsigned k;

  memset (model, 0, sizeof *model);
  create_table (db);
  run (db, "BEGIN");
  for (k = 0; k < NR_ROWS; ++k)
    put_row (db, model, k, 1);
  run (db, "COMMIT; BEGIN");
  for (k = 0; k < NR_ROWS; k += 3)
    put_row (db, model, k, 0);
  run (db, "COMMIT; BEGIN");
  for (k = 1; k < NR_ROWS; k += 7)
    put_row (db, model, k, 2);
  run (db, "COMMIT");
}

bool
is_damage_code (int rc)
{
  return rc == SQLITE_IOERR_DATA || rc == SQLITE_IOERR_SHORT_READ ||
    (rc & 0xff) == SQLITE_CORRUPT || rc == SQLITE_NOTADB;
}

static enum verdict
failed (sqlite3 *db, int rc)
{
  if (!is_damage_code (rc))
    fprintf (stderr, "unexpected error %d: %s\n", rc, sqlite3_errmsg (db));
  assert (is_damage_code (rc));
  return FAILED;
}

/* Compare the rows with the model. */
static enum verdict
verify_rows (sqlite3 *db, const struct model *model)
{
  uint8_t expected[ROW_MAX];
  sqlite3_stmt *st;
  unsigned k = 0, key;
  size_t len;
  int rc;

  rc = sqlite3_prepare_v2 (db, "SELECT k, v FROM t ORDER BY k", -1, &st, NULL);
  if (rc == SQLITE_ERROR) /* no such table */
    return WRONG;
  if (rc != SQLITE_OK)
    return failed (db, rc);
  while ((rc = sqlite3_step (st)) == SQLITE_ROW) {
    while (k < NR_ROWS && model->version[k] == 0)
      k++;
    key = sqlite3_column_int (st, 0);
    if (k == NR_ROWS || key != k)
      goto wrong;
    len = row_len (k, model->version[k]);
    row_fill (k, model->version[k], expected, len);
    /* NULL: SQLite cannot read the blob, and the next step fails. */
    if (sqlite3_column_blob (st, 1) == NULL) {
      rc = sqlite3_errcode (db);
      sqlite3_finalize (st);
      return failed (db, rc);
    }
    if ((size_t) sqlite3_column_bytes (st, 1) != len ||
        memcmp (sqlite3_column_blob (st, 1), expected, len) != 0)
      goto wrong;
    k++;
  }
  sqlite3_finalize (st);
  if (rc != SQLITE_DONE)
    return failed (db, rc);
  while (k < NR_ROWS && model->version[k] == 0)
    k++;
  return k == NR_ROWS ? RIGHT : WRONG;

wrong:
  sqlite3_finalize (st);
  return WRONG;
}

static enum verdict
verify_index (sqlite3 *db, const struct model *model)
{
  sqlite3_stmt *st;
  unsigned key, n = 0, k, expected = 0;
  int rc;

  rc = sqlite3_prepare_v2 (db,
                           "SELECT s, k FROM t INDEXED BY ts "
                           "ORDER BY s, k",
                           -1, &st, NULL);
  if (rc != SQLITE_OK)
    return failed (db, rc);
  while ((rc = sqlite3_step (st)) == SQLITE_ROW) {
    key = sqlite3_column_int (st, 1);
    if (key >= NR_ROWS || model->version[key] == 0 ||
        sqlite3_column_int64 (st, 0) != (int64_t) key * 1000003 % 4096) {
      sqlite3_finalize (st);
      return WRONG;
    }
    n++;
  }
  sqlite3_finalize (st);
  if (rc != SQLITE_DONE)
    return failed (db, rc);
  for (k = 0; k < NR_ROWS; ++k)
    expected += model->version[k] != 0;
  return n == expected ? RIGHT : WRONG;
}

enum verdict
verify_integrity (sqlite3 *db)
{
  sqlite3_stmt *st;
  bool ok;
  int rc;

  rc = sqlite3_prepare_v2 (db, "PRAGMA integrity_check", -1, &st, NULL);
  if (rc != SQLITE_OK)
    return failed (db, rc);
  rc = sqlite3_step (st);
  ok = rc == SQLITE_ROW &&
    strcmp ((const char *) sqlite3_column_text (st, 0), "ok") == 0;
  sqlite3_finalize (st);
  if (rc != SQLITE_ROW)
    return failed (db, rc);
  return ok ? RIGHT : FAILED;
}

enum verdict
verify_db (sqlite3 *db, const struct model *model)
{
  enum verdict v;

  v = verify_rows (db, model);
  if (v == RIGHT)
    v = verify_index (db, model);
  if (v == RIGHT)
    v = verify_integrity (db);
  return v;
}

enum verdict
verify (const char *path, const struct setup *setup, const struct model *model)
{
  enum verdict v;
  int rc;
  sqlite3 *db = open_with (path, setup, &rc);

  v = rc == SQLITE_OK ? verify_db (db, model) : failed (db, rc);
  sqlite3_close (db);
  return v;
}

int64_t
query_int (sqlite3 *db, const char *sql)
{
  sqlite3_stmt *st;
  int64_t r;

  assert (sqlite3_prepare_v2 (db, sql, -1, &st, NULL) == SQLITE_OK);
  assert (sqlite3_step (st) == SQLITE_ROW);
  r = sqlite3_column_int64 (st, 0);
  assert (sqlite3_finalize (st) == SQLITE_OK);
  return r;
}

void
checkpoint (sqlite3 *db)
{
  assert (sqlite3_wal_checkpoint_v2 (db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL,
                                     NULL) == SQLITE_OK);
}

void
check_file (const char *path, size_t page_size)
{
  struct file_bytes c = read_file (path);
  size_t i;

  assert (c.len > 0 && c.len % page_size == 0);
  assert (c.data[20] == CKSUM_RESERVE);
  for (i = 0; i < c.len; i += page_size)
    assert (get_le64 (c.data + i + page_size - 8) ==
            XXH3_64bits_withSeed (c.data + i, page_size - 8, i));
  free (c.data);
}

/*----------------------------------------------------------------------*/

void
cksum_begin (void)
{
  assert (mkdtemp (dir) != NULL);
  sprintf (db_path, "%s/pool.db", dir);
  sprintf (wal_path, "%s-wal", db_path);
  sprintf (other_path, "%s/other.db", dir);
  sprintf (other_wal, "%s-wal", other_path);

  assert (cksum_vfs_register () == 0);
  assert (cksum_vfs_register () == 0);
  assert (sqlite3_vfs_find (CKSUM_VFS_NAME) != NULL);
  assert (sqlite3_vfs_find (NULL) != sqlite3_vfs_find (CKSUM_VFS_NAME));
}

void
cksum_end (void)
{
  assert (rmdir (dir) == 0);
}
