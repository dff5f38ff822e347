/* SPDX-License-Identifier: BSD-3-Clause */

/* The checksumming VFS.
 *
 * A database of known content (a row's bytes follow from its key and its
 * version) goes through ordinary use, crashes and damage.  After damage a
 * reader may get an error or the right rows; other rows fail the test.
 */

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
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>
#include <xxhash.h>

#include "bytes.h"
#include "cksum-vfs.h"
#include "error.h"
#include "fullio.h"

#define NR_ROWS 400
#define WAL_HEADER 32
#define FRAME_HEADER 24

static char dir[] = "/tmp/nbdedup-cksum-XXXXXX";
static char db_path[64], wal_path[80], other_path[64], other_wal[80];

static uint64_t random_state = 88172645463325252;

static uint64_t
random_u64 (void)
{
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state * UINT64_C (0x2545f4914f6cdd1d);
}

/*----------------------------------------------------------------------
 * Files
 */

struct content {
  uint8_t *data;
  size_t len;
};

static struct content
read_file (const char *path)
{
  struct content c = { NULL, 0 };
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

static void
write_file (const char *path, const void *data, size_t len)
{
  int fd = open (path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

  assert (fd != -1);
  assert (full_pwrite (fd, data, len, 0) == 0);
  close (fd);
}

/* Change bytes of a file that may be open, without truncating it. */
static void
patch_file (const char *path, uint64_t offset, const void *data, size_t len)
{
  int fd = open (path, O_WRONLY);

  assert (fd != -1);
  assert (full_pwrite (fd, data, len, offset) == 0);
  close (fd);
}

static void
copy_file (const char *from, const char *to)
{
  struct content c = read_file (from);

  unlink (to);
  if (c.data)
    write_file (to, c.data, c.len);
  free (c.data);
}

static void
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

/* What must be in it: the version of each row, 0: no row. */
struct model {
  unsigned version[NR_ROWS];
};

struct setup {
  int page_size;
  const char *journal_mode;
  const char *synchronous;
  const char *parameters;       /* of the URI */
  const char *vfs;
  int auto_vacuum;
};

static const struct setup normal = {
  4096, "wal", "normal", "", CKSUM_VFS_NAME, 0,
};

static sqlite3 *
open_with (const char *path, const struct setup *setup, int *rcp)
{
  int reserve = CKSUM_RESERVE, rc;
  char uri[256], sql[256];
  sqlite3 *db;

  snprintf (uri, sizeof uri, "file:%s%s", path, setup->parameters);
  rc = sqlite3_open_v2 (uri, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
                        SQLITE_OPEN_URI, setup->vfs);
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

static sqlite3 *
open_db (const char *path, const struct setup *setup)
{
  int rc;
  sqlite3 *db = open_with (path, setup, &rc);

  if (rc != SQLITE_OK)
    fprintf (stderr, "%s: %s\n", path, sqlite3_errmsg (db));
  assert (rc == SQLITE_OK);
  return db;
}

static void
run (sqlite3 *db, const char *sql)
{
  int rc = sqlite3_exec (db, sql, NULL, NULL, NULL);

  if (rc != SQLITE_OK)
    fprintf (stderr, "%s: %s (%d)\n", sql, sqlite3_errmsg (db), rc);
  assert (rc == SQLITE_OK);
}

static void
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
  uint64_t x = ((uint64_t) key << 32 | version) + 1;
  size_t i;

  for (i = 0; i < len; ++i) {
    if (i % 8 == 0) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
    }
    buf[i] = x >> (i % 8 * 8);
  }
}

#define ROW_MAX 32768

static void
put_row (sqlite3 *db, struct model *model, unsigned key, unsigned version)
{
  uint8_t buf[ROW_MAX];
  size_t len = row_len (key, version);
  sqlite3_stmt *st;
  const char *sql = version == 0 ? "DELETE FROM t WHERE k = ?1" :
    "INSERT INTO t VALUES (?1, ?2, ?3) ON CONFLICT (k) DO UPDATE "
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

static void
create_table (sqlite3 *db)
{
  run (db, "CREATE TABLE t (k INTEGER PRIMARY KEY, s INTEGER, v BLOB);"
       "CREATE INDEX ts ON t (s, k)");
}

/* Interior, leaf, overflow and free pages. */
static void
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

enum verdict { RIGHT, FAILED, WRONG };

static bool
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

/* Is this the content that the model says? */
static enum verdict
verify_rows (sqlite3 *db, const struct model *model)
{
  uint8_t expected[ROW_MAX];
  sqlite3_stmt *st;
  unsigned k = 0, key;
  size_t len;
  int rc;

  rc = sqlite3_prepare_v2 (db, "SELECT k, v FROM t ORDER BY k", -1, &st, NULL);
  if (rc == SQLITE_ERROR)       /* no such table */
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
    /* NULL for a blob that could not be read: the next step fails. */
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

  rc = sqlite3_prepare_v2 (db, "SELECT s, k FROM t INDEXED BY ts "
                           "ORDER BY s, k", -1, &st, NULL);
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

/* Reads every page in use and every trunk of the free list. */
static enum verdict
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

static enum verdict
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

/* With a connection of its own, so that no cache hides anything. */
static enum verdict
verify (const char *path, const struct setup *setup, const struct model *model)
{
  enum verdict v;
  int rc;
  sqlite3 *db = open_with (path, setup, &rc);

  v = rc == SQLITE_OK ? verify_db (db, model) : failed (db, rc);
  sqlite3_close (db);
  return v;
}

static int64_t
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

static void
checkpoint (sqlite3 *db)
{
  assert (sqlite3_wal_checkpoint_v2 (db, NULL, SQLITE_CHECKPOINT_TRUNCATE,
                                     NULL, NULL) == SQLITE_OK);
}

/* Every page of the closed file has the checksum of cksum-vfs.h, computed
 * here, not there.
 */
static void
check_file (const char *path, size_t page_size)
{
  struct content c = read_file (path);
  size_t i;

  assert (c.len > 0 && c.len % page_size == 0);
  assert (c.data[20] == CKSUM_RESERVE);
  for (i = 0; i < c.len; i += page_size)
    assert (get_le64 (c.data + i + page_size - 8) ==
            XXH3_64bits_withSeed (c.data + i, page_size - 8, i));
  free (c.data);
}

/*----------------------------------------------------------------------
 * Ordinary use
 */

static void
test_page_sizes (void)
{
  static const int sizes[] = { 512, 1024, 4096, 16384, 65536 };
  static const char *const modes[] = { "wal", "delete", "truncate" };
  static const struct setup stock = {
    4096, "delete", "normal", "", "unix", 0,
  };
  struct setup setup = normal;
  struct model model;
  size_t i, j;
  sqlite3 *db;

  for (i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    for (j = 0; j < sizeof modes / sizeof modes[0]; ++j) {
      setup.page_size = sizes[i];
      setup.journal_mode = modes[j];
      db = open_db (db_path, &setup);
      populate (db, &model);
      assert (query_int (db, "PRAGMA page_size") == sizes[i]);
      assert (verify_db (db, &model) == RIGHT);
      assert (verify (db_path, &setup, &model) == RIGHT);
      close_db (db);
      assert (access (wal_path, F_OK) == -1);
      check_file (db_path, sizes[i]);
      assert (verify (db_path, &setup, &model) == RIGHT);

      /* Others can read a closed database. */
      copy_file (db_path, other_path);
      assert (verify (other_path, &stock, &model) == RIGHT);
      remove_all ();
    }
  }
}

/* A small cache writes pages before the commit, savepoints are undone,
 * pages move: whatever SQLite does, every read verifies.
 */
static void
test_random_work (void)
{
  static const struct setup setups[] = {
    { 4096, "wal", "normal", "", CKSUM_VFS_NAME, 0 },
    { 1024, "wal", "full", "?psow=0", CKSUM_VFS_NAME, 2 },
    { 4096, "wal", "full", "?psow=0", CKSUM_VFS_NAME, 1 },
    { 512, "wal", "extra", "?psow=0", CKSUM_VFS_NAME, 1 },
    { 1024, "delete", "normal", "", CKSUM_VFS_NAME, 2 },
    { 8192, "persist", "full", "", CKSUM_VFS_NAME, 1 },
  };
  struct model model, before, at_savepoint;
  unsigned round, n;
  sqlite3 *db;
  size_t i;

  for (i = 0; i < sizeof setups / sizeof setups[0]; ++i) {
    memset (&model, 0, sizeof model);
    db = open_db (db_path, &setups[i]);
    run (db, "PRAGMA cache_size = 5");
    create_table (db);
    for (round = 1; round < 80; ++round) {
      before = model;
      run (db, "BEGIN");
      for (n = random_u64 () % 60; n > 0; --n)
        put_row (db, &model, random_u64 () % NR_ROWS,
                 random_u64 () % 3 == 0 ? 0 : round);
      at_savepoint = model;
      run (db, "SAVEPOINT x");
      for (n = random_u64 () % 60; n > 0; --n)
        put_row (db, &model, random_u64 () % NR_ROWS,
                 random_u64 () % 3 == 0 ? 0 : round + 1000);
      if (random_u64 () % 2 == 0) {
        run (db, "ROLLBACK TO x");
        model = at_savepoint;
      }
      for (n = random_u64 () % 20; n > 0; --n)
        put_row (db, &model, random_u64 () % NR_ROWS, round + 2000);
      if (random_u64 () % 3 == 0) {
        run (db, "ROLLBACK");
        model = before;
      }
      else
        run (db, "COMMIT");

      switch (random_u64 () % 10) {
      case 0: run (db, "PRAGMA incremental_vacuum (7)"); break;
      case 1: run (db, "VACUUM"); break;
      case 2: run (db, "PRAGMA wal_checkpoint (PASSIVE)"); break;
      case 3: run (db, "PRAGMA wal_checkpoint (TRUNCATE)"); break;
      case 4: run (db, "PRAGMA wal_checkpoint (RESTART)"); break;
      case 5:
        close_db (db);
        check_file (db_path, setups[i].page_size);
        db = open_db (db_path, &setups[i]);
        run (db, "PRAGMA cache_size = 5");
        break;
      default: break;
      }
      if (round % 8 == 0) {
        assert (verify_db (db, &model) == RIGHT);
        assert (verify (db_path, &setups[i], &model) == RIGHT);
      }
    }
    assert (verify_db (db, &model) == RIGHT);
    close_db (db);
    check_file (db_path, setups[i].page_size);
    assert (verify (db_path, &setups[i], &model) == RIGHT);
    remove_all ();
  }
}

/* VACUUM INTO and the backup interface make verifiable databases too. */
static void
test_copies (void)
{
  struct model model;
  sqlite3_backup *backup;
  sqlite3 *db, *copy;
  char sql[128];

  db = open_db (db_path, &normal);
  populate (db, &model);
  snprintf (sql, sizeof sql, "VACUUM INTO '%s'", other_path);
  run (db, sql);
  assert (verify (other_path, &normal, &model) == RIGHT);
  check_file (other_path, 4096);
  unlink (other_path);

  copy = open_db (other_path, &normal);
  backup = sqlite3_backup_init (copy, "main", db, "main");
  assert (backup != NULL);
  assert (sqlite3_backup_step (backup, -1) == SQLITE_DONE);
  assert (sqlite3_backup_finish (backup) == SQLITE_OK);
  close_db (copy);
  assert (verify (other_path, &normal, &model) == RIGHT);
  check_file (other_path, 4096);
  close_db (db);
  remove_all ();
}

static int
copy_first_column (void *opaque, int n, char **values, char **names)
{
  (void) n;
  (void) names;
  snprintf (opaque, 32, "%s", values[0] ? values[0] : "");
  return 0;
}

static void
test_no_mmap (void)
{
  char value[32] = "";
  struct model model;
  sqlite3 *db;

  db = open_db (db_path, &normal);
  run (db, "PRAGMA mmap_size = 100000000");
  assert (sqlite3_exec (db, "PRAGMA mmap_size", copy_first_column,
                        value, NULL) == SQLITE_OK);
  assert (strcmp (value, "0") == 0);
  populate (db, &model);
  checkpoint (db);
  assert (verify_db (db, &model) == RIGHT);
  close_db (db);
  remove_all ();
}

/*----------------------------------------------------------------------
 * Crashes
 */

/* What a crash at this moment would leave, opened somewhere else. */
static void
test_crash_copies (void)
{
  struct setup setup = normal;
  struct model model;
  unsigned round, n;
  sqlite3 *db;
  int psow;

  for (psow = 0; psow < 2; ++psow) {
    setup.parameters = psow ? "" : "?psow=0";
    setup.synchronous = "full";
    db = open_db (db_path, &setup);
    populate (db, &model);
    for (round = 3; round < 30; ++round) {
      run (db, "BEGIN");
      for (n = random_u64 () % 40; n > 0; --n)
        put_row (db, &model, random_u64 () % NR_ROWS,
                 random_u64 () % 4 == 0 ? 0 : round);
      run (db, "COMMIT");
      if (round % 6 == 0)
        run (db, "PRAGMA wal_checkpoint (PASSIVE)");

      copy_file (db_path, other_path);
      copy_file (wal_path, other_wal);
      assert (verify (other_path, &setup, &model) == RIGHT);
      assert (access (other_wal, F_OK) == -1);
      check_file (other_path, 4096);
    }
    close_db (db);
    remove_all ();
  }
}

/* Pages of a WAL that this process recovered, not wrote, are verified. */
static void
test_damage_after_recovery (void)
{
  struct model model;
  struct content wal;
  sqlite3 *db, *recovered;
  size_t frame, offset;
  unsigned failures = 0, nr = 0;
  uint8_t b;

  db = open_db (db_path, &normal);
  populate (db, &model);
  copy_file (db_path, other_path);
  copy_file (wal_path, other_wal);
  close_db (db);

  recovered = open_db (other_path, &normal);
  assert (verify_db (recovered, &model) == RIGHT);
  wal = read_file (other_wal);
  for (frame = 0; WAL_HEADER + (frame + 1) * (FRAME_HEADER + 4096) <= wal.len;
       ++frame) {
    offset = WAL_HEADER + frame * (FRAME_HEADER + 4096) + FRAME_HEADER +
      random_u64 () % 4096;
    b = wal.data[offset] ^ 1 << random_u64 () % 8;
    patch_file (other_wal, offset, &b, 1);
    switch (verify (other_path, &normal, &model)) {
    case WRONG: abort ();
    case FAILED: failures++; break;
    case RIGHT: break;          /* an older version of its page */
    }
    nr++;
    patch_file (other_wal, offset, &wal.data[offset], 1);
  }
  assert (failures > nr / 4);
  assert (verify (other_path, &normal, &model) == RIGHT);
  close_db (recovered);
  free (wal.data);
  remove_all ();
}

/*----------------------------------------------------------------------
 * Damage to the main database
 */

/* The file as it is now must not give wrong rows. */
static bool
fails (const char *path, const struct model *model)
{
  enum verdict v;

  unlink (other_wal);
  v = verify (path, &normal, model);
  assert (v != WRONG);
  return v == FAILED;
}

static const size_t page_positions[] = {
  0, 1, 2, 3, 4, 5, 7, 8, 11, 12, 14, 18, 20, 21, 24, 28, 32, 36, 44, 56, 60,
  92, 96, 100, 101, 103, 105, 108, 110, 512, 2048, 3000, 4000, 4087, 4088,
  4091, 4095,
};
#define NR_POSITIONS (sizeof page_positions / sizeof page_positions[0])

static void
test_damaged_database (void)
{
  struct model model;
  struct content good;
  size_t page, nr_pages, i, nr_free, silent_pages = 0;
  unsigned silent, tried;
  sqlite3 *db;
  uint8_t *bad;

  db = open_db (db_path, &normal);
  populate (db, &model);
  checkpoint (db);
  nr_free = query_int (db, "PRAGMA freelist_count");
  assert (nr_free > 10);
  close_db (db);
  good = read_file (db_path);
  nr_pages = good.len / 4096;
  bad = malloc (good.len + 8192);
  assert (bad != NULL);

  /* One bit. */
  for (page = 0; page < nr_pages; ++page) {
    silent = tried = 0;
    for (i = 0; i < NR_POSITIONS + 2; ++i) {
      size_t at = i < NR_POSITIONS ? page_positions[i] : random_u64 () % 4096;

      /* All positions on a sample of the pages and on the first ones. */
      if (page > 8 && i < NR_POSITIONS && (i + page) % 6 != 0)
        continue;
      memcpy (bad, good.data, good.len);
      bad[page * 4096 + at] ^= 1 << random_u64 () % 8;
      write_file (other_path, bad, good.len);
      silent += !fails (other_path, &model);
      tried++;
    }
    assert (silent == 0 || silent == tried);    /* all, or a free page */
    silent_pages += silent > 0;
  }
  assert (silent_pages <= nr_free);
  assert (silent_pages < nr_pages / 2);

  /* Zeroed, another page's content, an older half. */
  for (page = 0; page < nr_pages; ++page) {
    size_t from = random_u64 () % nr_pages;

    memcpy (bad, good.data, good.len);
    memset (bad + page * 4096, 0, 4096);
    write_file (other_path, bad, good.len);
    silent = !fails (other_path, &model);
    silent_pages -= silent;     /* the same pages as above */

    if (from == page)
      continue;
    memcpy (bad, good.data, good.len);
    memcpy (bad + page * 4096, good.data + from * 4096, 4096);
    write_file (other_path, bad, good.len);
    assert (fails (other_path, &model) || silent);

    memcpy (bad, good.data, good.len);
    memcpy (bad + page * 4096 + 2048, good.data + from * 4096 + 2048, 2048);
    write_file (other_path, bad, good.len);
    assert (fails (other_path, &model) || silent ||
            memcmp (bad, good.data, good.len) == 0);
  }
  assert (silent_pages == 0);

  /* Cut short, in pages and within them.  A file of 0 or 1 byte (SQLite's
   * workaround for some file system) is a new database, which meta.c must
   * refuse.
   */
  for (i = 2; i < good.len; i += 1 + random_u64 () % 6000) {
    write_file (other_path, good.data, i);
    if (!fails (other_path, &model))
      assert (nr_pages - i / 4096 <= nr_free);
  }
  for (page = 1; page < nr_pages; ++page) {
    write_file (other_path, good.data, page * 4096);
    assert (fails (other_path, &model) || nr_pages - page <= nr_free);
  }

  /* Longer does no harm. */
  memcpy (bad, good.data, good.len);
  memset (bad + good.len, 0x55, 8192);
  write_file (other_path, bad, good.len + 5000);
  assert (!fails (other_path, &model));

  free (bad);
  free (good.data);
  remove_all ();
}

/* A page that has rotted while the database is open is found too; so is
 * one at the place of which the file ends now.
 */
static void
test_damage_while_open (void)
{
  struct model model;
  struct content good;
  size_t page, nr_pages, offset, nr_free;
  unsigned silent = 0;
  sqlite3 *db;
  uint8_t b;

  db = open_db (db_path, &normal);
  populate (db, &model);
  checkpoint (db);
  nr_free = query_int (db, "PRAGMA freelist_count");
  good = read_file (db_path);
  nr_pages = good.len / 4096;
  for (page = 0; page < nr_pages; ++page) {
    enum verdict v;

    offset = page * 4096 + random_u64 () % 4096;
    b = good.data[offset] ^ 1 << random_u64 () % 8;
    patch_file (db_path, offset, &b, 1);
    v = verify (db_path, &normal, &model);
    assert (v != WRONG);
    silent += v == RIGHT;
    patch_file (db_path, offset, &good.data[offset], 1);
  }
  assert (silent <= nr_free);
  assert (truncate (db_path, good.len / 2) == 0);
  assert (verify (db_path, &normal, &model) == FAILED);
  patch_file (db_path, 0, good.data, good.len);
  assert (verify (db_path, &normal, &model) == RIGHT);
  close_db (db);
  free (good.data);
  remove_all ();
}

/* SQLite takes a page past the end of the file for zeroes, even if it is
 * part of a blob.
 */
static void
test_blob_cut_off (void)
{
  sqlite3 *db, *fresh;
  sqlite3_stmt *st;
  struct stat sb;

  db = open_db (db_path, &normal);
  run (db, "CREATE TABLE b (v BLOB);"
       "INSERT INTO b VALUES (randomblob (40000))");
  checkpoint (db);
  assert (stat (db_path, &sb) == 0);
  assert (truncate (db_path, sb.st_size - 4096) == 0);

  fresh = open_db (db_path, &normal);
  assert (sqlite3_prepare_v2 (fresh, "SELECT max (v) FROM b", -1, &st, NULL)
          == SQLITE_OK);
  assert (is_damage_code (sqlite3_step (st)));
  assert (is_damage_code (sqlite3_finalize (st)));
  close_db (fresh);
  sqlite3_close (db);
  remove_all ();
}

/*----------------------------------------------------------------------
 * Damage to the WAL
 */

/* A checkpoint of a damaged frame fails and leaves the database alone. */
static void
check_checkpoint_refuses (sqlite3 *db, const struct content *wal,
                          const struct model *model)
{
  size_t last = (wal->len - WAL_HEADER) / (FRAME_HEADER + 4096) - 1;
  size_t offset = WAL_HEADER + last * (FRAME_HEADER + 4096) + FRAME_HEADER +
    77;
  uint8_t b = wal->data[offset] ^ 4;
  int rc;

  patch_file (wal_path, offset, &b, 1);
  rc = sqlite3_wal_checkpoint_v2 (db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL,
                                  NULL);
  assert (rc == SQLITE_IOERR_DATA);
  patch_file (wal_path, offset, &wal->data[offset], 1);
  checkpoint (db);
  assert (verify (db_path, &normal, model) == RIGHT);
}

static void
test_damaged_wal (void)
{
  static const size_t positions[] = {
    0, 1, 3, 5, 8, 12, 16, 20, 28, 100, 108, 2000, 4000, 4087, 4090, 4095,
  };
  static const size_t frame_size = FRAME_HEADER + 4096;
  struct model model;
  struct content wal;
  size_t frame, nr_frames, offset, from, i;
  unsigned failures = 0, silent;
  enum verdict v;
  sqlite3 *db;
  uint8_t b;

  db = open_db (db_path, &normal);
  populate (db, &model);
  wal = read_file (wal_path);
  nr_frames = (wal.len - WAL_HEADER) / frame_size;
  assert (nr_frames > 50);

  for (frame = 0; frame < nr_frames; ++frame) {
    silent = 0;
    for (i = 0; i < sizeof positions / sizeof positions[0]; ++i) {
      if (frame > 10 && (i + frame) % 4 != 0)
        continue;
      offset = WAL_HEADER + frame * frame_size + FRAME_HEADER + positions[i];
      b = wal.data[offset] ^ 1 << random_u64 () % 8;
      patch_file (wal_path, offset, &b, 1);
      v = verify (db_path, &normal, &model);
      assert (v != WRONG);
      failures += v == FAILED;
      silent += v == RIGHT;
      patch_file (wal_path, offset, &wal.data[offset], 1);
    }

    /* The page of another frame, and nothing at all. */
    from = (frame + 1 + random_u64 () % (nr_frames - 1)) % nr_frames;
    offset = WAL_HEADER + frame * frame_size + FRAME_HEADER;
    patch_file (wal_path, offset,
                wal.data + WAL_HEADER + from * frame_size + FRAME_HEADER,
                4096);
    v = verify (db_path, &normal, &model);
    assert (v != WRONG);
    assert (v == FAILED || silent > 0 ||
            memcmp (wal.data + WAL_HEADER + from * frame_size + FRAME_HEADER,
                    wal.data + offset, 4096) == 0);
    patch_file (wal_path, offset, &wal.data[offset], 4096);
  }
  assert (failures > nr_frames);

  /* The file ends early. */
  assert (truncate (wal_path, wal.len / 2) == 0);
  assert (verify (db_path, &normal, &model) == FAILED);
  patch_file (wal_path, 0, wal.data, wal.len);
  assert (verify (db_path, &normal, &model) == RIGHT);

  check_checkpoint_refuses (db, &wal, &model);
  free (wal.data);
  close_db (db);
  remove_all ();
}

/*----------------------------------------------------------------------
 * Files that are no databases of ours
 */

static void
test_foreign_files (void)
{
  static const struct setup stock = {
    4096, "delete", "normal", "", "unix", 0,
  };
  struct model model, empty;
  struct content c;
  uint8_t garbage[8192];
  int reserve = 0, rc;
  sqlite3 *db;
  size_t i;

  /* No room for checksums: an error, not a read without verification. */
  rc = sqlite3_open_v2 (db_path, &db, SQLITE_OPEN_READWRITE |
                        SQLITE_OPEN_CREATE, "unix");
  assert (rc == SQLITE_OK);
  populate (db, &model);
  close_db (db);
  assert (verify (db_path, &stock, &model) == RIGHT);
  db = open_with (db_path, &normal, &rc);
  if (rc == SQLITE_OK)
    rc = sqlite3_exec (db, "SELECT * FROM t", NULL, NULL, NULL);
  assert (rc == SQLITE_IOERR_DATA);
  sqlite3_close (db);
  assert (verify (db_path, &stock, &model) == RIGHT);   /* nor harm */
  remove_all ();

  /* Written by somebody who does not know the checksums. */
  db = open_db (db_path, &stock);
  populate (db, &model);
  close_db (db);
  c = read_file (db_path);
  assert (c.data[20] == CKSUM_RESERVE);
  free (c.data);
  assert (verify (db_path, &normal, &model) == FAILED);
  remove_all ();

  /* A new one without the reserve cannot be written. */
  rc = sqlite3_open_v2 (db_path, &db, SQLITE_OPEN_READWRITE |
                        SQLITE_OPEN_CREATE, CKSUM_VFS_NAME);
  assert (rc == SQLITE_OK);
  sqlite3_extended_result_codes (db, 1);
  sqlite3_file_control (db, "main", SQLITE_FCNTL_RESERVE_BYTES, &reserve);
  assert (sqlite3_exec (db, "CREATE TABLE t (x)", NULL, NULL, NULL) ==
          SQLITE_IOERR_DATA);
  sqlite3_close (db);
  remove_all ();

  /* Garbage of several lengths. */
  for (i = 2; i <= sizeof garbage; i += 1 + i / 3) {
    size_t j;

    for (j = 0; j < sizeof garbage; ++j)
      garbage[j] = random_u64 () >> 56;
    write_file (db_path, garbage, i);
    assert (verify (db_path, &normal, &model) == FAILED);
    unlink (wal_path);
  }
  remove_all ();

  /* An empty file is a new database. */
  memset (&empty, 0, sizeof empty);
  write_file (db_path, "", 0);
  db = open_db (db_path, &normal);
  create_table (db);
  assert (verify_db (db, &empty) == RIGHT);
  close_db (db);
  check_file (db_path, 4096);
  remove_all ();
}

/* A creation that never commits leaves room for another page size, also
 * for a connection that was open all the time.
 */
static void
test_abandoned_creation (void)
{
  struct setup setup = normal;
  struct model model;
  sqlite3 *db, *idle;
  unsigned k;

  setup.journal_mode = "delete";
  setup.page_size = 1024;
  assert (sqlite3_open_v2 (db_path, &idle, SQLITE_OPEN_READWRITE |
                           SQLITE_OPEN_CREATE, CKSUM_VFS_NAME) == SQLITE_OK);
  db = open_db (db_path, &setup);
  run (db, "PRAGMA cache_size = 5; BEGIN");
  create_table (db);
  for (k = 0; k < NR_ROWS; ++k)
    put_row (db, &model, k, 1);
  run (db, "ROLLBACK");
  close_db (db);

  setup.page_size = 4096;
  memset (&model, 0, sizeof model);
  db = open_db (db_path, &setup);
  run (db, "PRAGMA cache_size = 5; BEGIN");
  create_table (db);
  for (k = 0; k < NR_ROWS; ++k)
    put_row (db, &model, k, 1);
  run (db, "COMMIT");
  assert (verify_db (db, &model) == RIGHT);
  assert (verify_db (idle, &model) == RIGHT);
  close_db (idle);
  close_db (db);
  check_file (db_path, 4096);
  remove_all ();
}

/*----------------------------------------------------------------------
 * Threads
 */

static atomic_bool stop;
static atomic_uint nr_reads, nr_checkpoints;

/* Moves amounts between accounts; the sum stays 0. */
static void *
writer_thread (void *arg)
{
  sqlite3 *db = open_db (db_path, &normal);
  uint64_t x = 12345;
  char sql[256];
  int i;

  (void) arg;
  for (i = 0; i < 3000; ++i) {
    x = x * UINT64_C (6364136223846793005) + 1442695040888963407;
    snprintf (sql, sizeof sql,
              "BEGIN IMMEDIATE;"
              "UPDATE a SET n = n + %d, v = randomblob (%d) WHERE k = %d;"
              "UPDATE a SET n = n - %d WHERE k = %d; COMMIT",
              i, (int) (x >> 40) % 6000, (int) (x >> 33) % 200,
              i, (int) (x >> 50) % 200);
    run (db, sql);
  }
  atomic_store (&stop, true);
  close_db (db);
  return NULL;
}

/* Opens and closes all the time, so that the WAL's users change. */
static void *
reader_thread (void *arg)
{
  sqlite3 *db;
  int i;

  (void) arg;
  while (!atomic_load (&stop)) {
    db = open_db (db_path, &normal);
    for (i = 0; i < 5; ++i) {
      assert (query_int (db, "SELECT sum (n) FROM a") == 0);
      assert (query_int (db, "SELECT count (*) FROM a WHERE "
                         "length (v) >= 0") == 200);
      atomic_fetch_add (&nr_reads, 1);
    }
    close_db (db);
  }
  return NULL;
}

static void *
checkpointer_thread (void *arg)
{
  sqlite3 *db = open_db (db_path, &normal);
  int mode = SQLITE_CHECKPOINT_PASSIVE, rc;

  (void) arg;
  sqlite3_busy_timeout (db, 0);
  while (!atomic_load (&stop)) {
    rc = sqlite3_wal_checkpoint_v2 (db, NULL, mode, NULL, NULL);
    assert (rc == SQLITE_OK || (rc & 0xff) == SQLITE_BUSY ||
            (rc & 0xff) == SQLITE_LOCKED);
    atomic_fetch_add (&nr_checkpoints, rc == SQLITE_OK);
    mode = (mode + 1) % (SQLITE_CHECKPOINT_TRUNCATE + 1);
    usleep (2000);
  }
  close_db (db);
  return NULL;
}

static void
test_threads (void)
{
  static void *(*const fns[]) (void *) = {
    writer_thread, reader_thread, reader_thread, checkpointer_thread,
  };
  pthread_t threads[4];
  sqlite3 *db;
  size_t i;

  db = open_db (db_path, &normal);
  run (db, "CREATE TABLE a (k INTEGER PRIMARY KEY, n INTEGER, v BLOB);"
       "WITH RECURSIVE i (x) AS (VALUES (0) UNION ALL SELECT x + 1 FROM i "
       "WHERE x < 199) INSERT INTO a SELECT x, 0, zeroblob (100) FROM i");
  close_db (db);

  for (i = 0; i < 4; ++i)
    assert (pthread_create (&threads[i], NULL, fns[i], NULL) == 0);
  for (i = 0; i < 4; ++i)
    assert (pthread_join (threads[i], NULL) == 0);
  assert (atomic_load (&nr_reads) > 10);
  assert (atomic_load (&nr_checkpoints) > 3);

  db = open_db (db_path, &normal);
  assert (query_int (db, "SELECT sum (n) FROM a") == 0);
  assert (verify_integrity (db) == RIGHT);
  close_db (db);
  check_file (db_path, 4096);
  remove_all ();
}

int
main (void)
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

  test_page_sizes ();
  test_random_work ();
  test_copies ();
  test_no_mmap ();
  test_crash_copies ();
  test_damage_after_recovery ();
  test_damaged_database ();
  test_damage_while_open ();
  test_blob_cut_off ();
  test_damaged_wal ();
  test_foreign_files ();
  test_abandoned_creation ();
  test_threads ();

  assert (rmdir (dir) == 0);
  return 0;
}
