/* SPDX-License-Identifier: BSD-3-Clause */

/* The checksumming VFS in ordinary use, and after crashes: each read verifies
 * the checksums and gets the right rows.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#undef NDEBUG

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rigs/cksum-rig.h"
#include "rigs/testutil.h"
#include "vfs/cksum-vfs.h"

/*----------------------------------------------------------------------
 * Ordinary use
 */

static void
test_page_sizes (void)
{
  static const int sizes[] = { 512, 1024, 4096, 16384, 65536 };
  static const char *const modes[] = { "wal", "delete", "truncate" };
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

      /* Programs without the VFS can read a closed database. */
      copy_file (db_path, other_path);
      assert (verify (other_path, &stock, &model) == RIGHT);
      remove_all ();
    }
  }
}

/* SQLite writes pages of a small cache before the commit, undoes savepoints and
 * moves pages.  The checksums stay right.
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
      case 0:
        run (db, "PRAGMA incremental_vacuum (7)");
        break;
      case 1:
        run (db, "VACUUM");
        break;
      case 2:
        run (db, "PRAGMA wal_checkpoint (PASSIVE)");
        break;
      case 3:
        run (db, "PRAGMA wal_checkpoint (TRUNCATE)");
        break;
      case 4:
        run (db, "PRAGMA wal_checkpoint (RESTART)");
        break;
      case 5:
        close_db (db);
        check_file (db_path, setups[i].page_size);
        db = open_db (db_path, &setups[i]);
        run (db, "PRAGMA cache_size = 5");
        break;
      default:
        break;
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
  assert (sqlite3_exec (db, "PRAGMA mmap_size", copy_first_column, value,
                        NULL) == SQLITE_OK);
  assert (strcmp (value, "0") == 0);
  populate (db, &model);
  checkpoint (db);
  assert (verify_db (db, &model) == RIGHT);
  close_db (db);
  remove_all ();
}

/* A creation that is rolled back does not fix the page size, not even for a
 * connection that was open all the time.
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
  assert (sqlite3_open_v2 (db_path, &idle,
                           SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
                           CKSUM_VFS_NAME) == SQLITE_OK);
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
 * Crashes
 */

/* Open a copy of what a crash at this moment would leave. */
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

/*----------------------------------------------------------------------
 * Threads
 */

static atomic_bool stop;
static atomic_uint nr_reads, nr_checkpoints;

/* Move amounts between accounts; the sum stays 0. */
static void *
writer_thread (void *arg)
{
  sqlite3 *db = open_db (db_path, &normal);
  struct rng rng = { 1 };
  char sql[256];
  int i;

  (void) arg;
  /* On a busy machine the others come late. */
  for (i = 0; i < 3000 ||
       (i < 300000 &&
        (atomic_load (&nr_reads) <= 10 || atomic_load (&nr_checkpoints) <= 3));
       ++i) {
    snprintf (sql, sizeof sql,
              "BEGIN IMMEDIATE;"
              "UPDATE a SET n = n + %d, v = randomblob (%d) WHERE k = %d;"
              "UPDATE a SET n = n - %d WHERE k = %d; COMMIT",
              i, (int) rng_below (&rng, 6000), (int) rng_below (&rng, 200), i,
              (int) rng_below (&rng, 200));
    run (db, sql);
  }
  atomic_store (&stop, true);
  close_db (db);
  return NULL;
}

/* Open and close all the time, so that the WAL's users change. */
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
      assert (query_int (db,
                         "SELECT count (*) FROM a WHERE "
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
    writer_thread,
    reader_thread,
    reader_thread,
    checkpointer_thread,
  };
  pthread_t threads[4];
  sqlite3 *db;
  size_t i;

  db = open_db (db_path, &normal);
  run (db,
       "CREATE TABLE a (k INTEGER PRIMARY KEY, n INTEGER, v BLOB);"
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
  cksum_begin ();
  test_page_sizes ();
  test_random_work ();
  test_copies ();
  test_no_mmap ();
  test_crash_copies ();
  test_abandoned_creation ();
  test_threads ();
  cksum_end ();
  return 0;
}
