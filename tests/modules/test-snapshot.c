/* SPDX-License-Identifier: BSD-3-Clause */

/* Snapshots of the main database (vfs/cksum-snapshot.h): several at once read
 * the content of their moments while checkpoints change pages, each page takes
 * space once, and writes never fail for a snapshot.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#undef NDEBUG

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "rigs/cksum-rig.h"
#include "rigs/testutil.h"
#include "vfs/cksum-snapshot.h"
#include "vfs/cksum-vfs.h"

#define PAGE 4096
#define NR_SNAPSHOTS 4

/* The file system is nearly full, or files without a name have no room. */
static bool is_nearly_full, is_full;

int
fstatvfs (int fd, struct statvfs *fs)
{
  (void) fd;
  memset (fs, 0, sizeof *fs);
  fs->f_frsize = PAGE;
  fs->f_bavail = is_nearly_full ? 100 : 1000000;
  return 0;
}

ssize_t
pwrite (int fd, const void *buf, size_t len, off_t offset)
{
  static ssize_t (*real) (int, const void *, size_t, off_t);
  struct stat st;

  if (real == NULL)
    real = (ssize_t (*) (int, const void *, size_t, off_t)) dlsym (RTLD_NEXT,
                                                                   "pwrite");
  if (is_full && fstat (fd, &st) == 0 && st.st_nlink == 0) {
    errno = ENOSPC;
    return -1;
  }
  return real (fd, buf, len, offset);
}

struct moment {
  struct cksum_snapshot *snapshot; /* NULL: none */
  sqlite3 *db;
  struct model model;
};

/* A connection in the WAL can keep a checkpoint from copying all of it. */
static void
begin (struct moment *m, sqlite3 *db, const struct model *model)
{
  int rc, frames, copied;

  do {
    rc = sqlite3_wal_checkpoint_v2 (db, NULL, SQLITE_CHECKPOINT_PASSIVE,
                                    &frames, &copied);
    assert (rc == SQLITE_OK || rc == SQLITE_BUSY);
  } while (rc != SQLITE_OK || copied != frames);
  m->snapshot = cksum_snapshot_begin (db_path);
  assert (m->snapshot != NULL);
  assert (sqlite3_open_v2 (db_path, &m->db, SQLITE_OPEN_READONLY,
                           cksum_snapshot_vfs (m->snapshot)) == SQLITE_OK);
  sqlite3_extended_result_codes (m->db, 1);
  run (m->db, "PRAGMA cache_size = 3");
  m->model = *model;
}

static void
end (struct moment *m)
{
  close_db (m->db);
  cksum_snapshot_end (m->snapshot);
  m->snapshot = NULL;
}

static void
write_some (sqlite3 *db, struct model *model, unsigned version)
{
  unsigned n;

  run (db, "BEGIN");
  for (n = random_u64 () % 60; n > 0; --n)
    put_row (db, model, random_u64 () % NR_ROWS,
             random_u64 () % 3 == 0 ? 0 : version);
  run (db, "COMMIT");
}

/* Several snapshots of different moments; the database grows, shrinks, and is
 * copied as a whole by VACUUM.
 */
static void
test_moments (int page_size)
{
  struct setup setup = normal;
  struct moment moments[NR_SNAPSHOTS] = { { NULL } }, *m;
  struct model model;
  sqlite3 *db;
  unsigned round;

  setup.page_size = page_size;
  setup.auto_vacuum = 2;
  db = open_db (db_path, &setup);
  populate (db, &model);
  for (round = 3; round < 400; ++round) {
    m = &moments[random_u64 () % NR_SNAPSHOTS];
    switch (random_u64 () % 8) {
    case 0:
      if (m->snapshot)
        end (m);
      else
        begin (m, db, &model);
      break;
    case 1:
      run (db, "PRAGMA wal_checkpoint (PASSIVE)");
      break;
    case 2:
      run (db, "PRAGMA wal_checkpoint (TRUNCATE)");
      break;
    case 3:
      run (db,
           random_u64 () % 4 == 0 ? "VACUUM" : "PRAGMA incremental_vacuum (9)");
      break;
    case 4:
      if (m->snapshot)
        assert (verify_db (m->db, &m->model) == RIGHT);
      break;
    default:
      write_some (db, &model, round);
    }
  }
  for (m = moments; m < moments + NR_SNAPSHOTS; ++m)
    if (m->snapshot) {
      assert (cksum_snapshot_gave_way (m->snapshot) == 0);
      assert (verify_db (m->db, &m->model) == RIGHT);
      end (m);
    }
  assert (verify_db (db, &model) == RIGHT);
  close_db (db);
  remove_all ();
}

/* No reader is in the WAL, and nothing can be written through a snapshot. */
static void
test_the_wal_is_free (void)
{
  struct moment m;
  struct model model;
  sqlite3 *db = open_db (db_path, &normal);
  int frames, copied;

  populate (db, &model);
  begin (&m, db, &model);
  run (m.db, "BEGIN");
  assert (query_int (m.db, "SELECT count (*) FROM t") > 0);
  write_some (db, &model, 3);
  assert (sqlite3_wal_checkpoint_v2 (db, NULL, SQLITE_CHECKPOINT_TRUNCATE,
                                     &frames, &copied) == SQLITE_OK);
  assert (frames == 0 && copied == 0);
  assert (verify_db (m.db, &m.model) == RIGHT);
  assert (sqlite3_exec (m.db, "DELETE FROM t", NULL, NULL, NULL) ==
          SQLITE_READONLY);
  run (m.db, "ROLLBACK");
  end (&m);
  close_db (db);
  remove_all ();
}

/* All reads fail, and the database is as it should be. */
static void
expect_gone (struct moment *m, sqlite3 *db, const struct model *model)
{
  sqlite3_stmt *st;

  assert (cksum_snapshot_gave_way (m->snapshot) > 0);
  assert (sqlite3_prepare_v2 (m->db, "SELECT max (length (v)) FROM t", -1, &st,
                              NULL) == SQLITE_OK);
  assert (sqlite3_step (st) != SQLITE_ROW);
  sqlite3_finalize (st);
  assert (verify_db (db, model) == RIGHT);
  end (m);
  run (db, "PRAGMA wal_checkpoint (TRUNCATE)");
  assert (verify_db (db, model) == RIGHT);
}

/* Change all pages. */
static void
rewrite (sqlite3 *db, struct model *model, unsigned version)
{
  unsigned k;

  run (db, "BEGIN");
  for (k = 0; k < NR_ROWS; ++k)
    put_row (db, model, k, version);
  run (db, "COMMIT; PRAGMA wal_checkpoint (PASSIVE)");
}

static void
test_gives_way (void)
{
  struct moment m, other;
  struct model model;
  sqlite3 *db = open_db (db_path, &normal);
  uint64_t bytes;
  unsigned i;

  populate (db, &model);
  begin (&m, db, &model);
  begin (&other, db, &model);
  for (i = 3; i < 13; ++i)
    rewrite (db, &model, i);
  assert (verify_db (m.db, &m.model) == RIGHT);
  cksum_snapshots_give_way (db_path);
  /* Each page once, of a database that has become larger since. */
  bytes = cksum_snapshot_gave_way (m.snapshot);
  assert (bytes > 20 * PAGE &&
          bytes <= (uint64_t) query_int (db, "PRAGMA page_count") * PAGE);
  rewrite (db, &model, 20);
  assert (cksum_snapshot_gave_way (m.snapshot) == bytes);
  expect_gone (&m, db, &model);
  expect_gone (&other, db, &model);

  begin (&m, db, &model);
  is_full = true;
  rewrite (db, &model, 21);
  is_full = false;
  assert (cksum_snapshot_gave_way (m.snapshot) == 1);
  expect_gone (&m, db, &model);

  begin (&m, db, &model);
  is_nearly_full = true;
  rewrite (db, &model, 22);
  is_nearly_full = false;
  assert (cksum_snapshot_gave_way (m.snapshot) > 100 * PAGE);
  expect_gone (&m, db, &model);

  begin (&m, db, &model);
  rewrite (db, &model, 23);
  assert (verify_db (m.db, &m.model) == RIGHT);
  end (&m);
  close_db (db);
  remove_all ();
}

/* What cannot be read cannot be saved: the snapshot says so, as the database
 * would have.
 */
static void
test_damage (void)
{
  static const uint8_t garbage[16] = { 1, 2, 3 };
  struct moment m;
  struct model model;
  sqlite3 *db = open_db (db_path, &normal);
  struct file_bytes file;
  uint64_t page, nr;

  populate (db, &model);
  begin (&m, db, &model);
  file = read_file (db_path);
  nr = file.len / PAGE;
  for (page = 2; page < nr; ++page) /* not those of the schema and the roots */
    patch_file (db_path, page * PAGE + 100, garbage, sizeof garbage);
  assert (verify_db (m.db, &m.model) == FAILED);
  for (page = 2; page < nr; page += 2)
    patch_file (db_path, page * PAGE + 100, file.data + page * PAGE + 100,
                sizeof garbage);
  free (file.data);
  /* The connection has all pages in its cache, so it can change them. */
  rewrite (db, &model, 3);
  assert (cksum_snapshot_gave_way (m.snapshot) == 0);
  assert (verify_db (m.db, &m.model) == FAILED);
  assert (query_int (m.db, "SELECT count (*) FROM sqlite_schema") == 2);
  end (&m);
  close_db (db);
  remove_all ();
}

/*----------------------------------------------------------------------
 * Threads
 */

static pthread_mutex_t checkpointing = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool stop;
static atomic_uint nr_moments;

/* Read one moment after the other, each several times. */
static void *
reader_thread (void *arg)
{
  sqlite3 *own = open_db (db_path, &normal);
  const struct model none = { { 0 } };
  struct moment m;
  int64_t sum;
  unsigned i;

  (void) arg;
  while (!atomic_load (&stop)) {
    pthread_mutex_lock (&checkpointing);
    begin (&m, own, &none);
    pthread_mutex_unlock (&checkpointing);
    sum = query_int (m.db, "SELECT sum (n * k) FROM a");
    for (i = 0; i < 5; ++i) {
      assert (query_int (m.db, "SELECT sum (n) FROM a") == 0);
      assert (query_int (m.db, "SELECT sum (n * k) FROM a") == sum);
    }
    assert (verify_integrity (m.db) == RIGHT);
    assert (cksum_snapshot_gave_way (m.snapshot) == 0);
    end (&m);
    atomic_fetch_add (&nr_moments, 1);
  }
  close_db (own);
  return NULL;
}

static void
test_threads (void)
{
  pthread_t threads[2];
  sqlite3 *db = open_db (db_path, &normal);
  char sql[256];
  unsigned i;

  run (db,
       "CREATE TABLE a (k INTEGER PRIMARY KEY, n INTEGER, v BLOB);"
       "WITH RECURSIVE i (x) AS (VALUES (0) UNION ALL SELECT x + 1 FROM i "
       "WHERE x < 199) INSERT INTO a SELECT x, 0, zeroblob (100) FROM i");
  for (i = 0; i < 2; ++i)
    assert (pthread_create (&threads[i], NULL, reader_thread, NULL) == 0);
  for (i = 0; i < 2000 || (i < 300000 && atomic_load (&nr_moments) < 10); ++i) {
    snprintf (sql, sizeof sql,
              "BEGIN IMMEDIATE;"
              "UPDATE a SET n = n + %u, v = randomblob (%u) WHERE k = %u;"
              "UPDATE a SET n = n - %u WHERE k = %u; COMMIT",
              i, (unsigned) (random_u64 () % 6000),
              (unsigned) (random_u64 () % 200), i,
              (unsigned) (random_u64 () % 200));
    run (db, sql);
    if (i % 3 == 0) {
      pthread_mutex_lock (&checkpointing);
      run (db, "PRAGMA wal_checkpoint (PASSIVE)");
      pthread_mutex_unlock (&checkpointing);
    }
  }
  atomic_store (&stop, true);
  for (i = 0; i < 2; ++i)
    assert (pthread_join (threads[i], NULL) == 0);
  assert (atomic_load (&nr_moments) >= 10);
  assert (verify_integrity (db) == RIGHT);
  close_db (db);
  remove_all ();
}

int
main (void)
{
  cksum_begin ();
  test_moments (512);
  test_moments (4096);
  test_moments (65536);
  test_the_wal_is_free ();
  test_gives_way ();
  test_damage ();
  test_threads ();
  cksum_end ();
  return 0;
}
