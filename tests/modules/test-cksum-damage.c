/* SPDX-License-Identifier: BSD-3-Clause */

/* The checksumming VFS and damage: a reader may get an error or the right rows.
 * The test fails if it gets other rows.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#undef NDEBUG

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rigs/cksum-rig.h"
#include "vfs/cksum-vfs.h"

/*----------------------------------------------------------------------
 * Damage to the main database
 */

/* True if reading the file fails.  It must not give wrong rows. */
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
  0,   1,   2,   3,   4,    5,    7,    8,    11,   12,   14,   18,  20,
  21,  24,  28,  32,  36,   44,   56,   60,   92,   96,   100,  101, 103,
  105, 108, 110, 512, 2048, 3000, 4000, 4087, 4088, 4091, 4095,
};
#define NR_POSITIONS (sizeof page_positions / sizeof page_positions[0])

static void
test_damaged_database (void)
{
  struct model model;
  struct file_bytes good;
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
    assert (silent == 0 || silent == tried); /* all, or a free page */
    silent_pages += silent > 0;
  }
  assert (silent_pages <= nr_free);
  assert (silent_pages < nr_pages / 2);

  /* A page is zeroed, or replaced by another page, in whole or by half. */
  for (page = 0; page < nr_pages; ++page) {
    size_t from = random_u64 () % nr_pages;

    memcpy (bad, good.data, good.len);
    memset (bad + page * 4096, 0, 4096);
    write_file (other_path, bad, good.len);
    silent = !fails (other_path, &model);
    silent_pages -= silent; /* the same pages as above */

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

  /* The file is cut short, between pages and within them.  SQLite takes a file
   * of 0 or 1 byte (a workaround for some file system) for a new database,
   * which meta.c must refuse.
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

  /* A longer file does no harm. */
  memcpy (bad, good.data, good.len);
  memset (bad + good.len, 0x55, 8192);
  write_file (other_path, bad, good.len + 5000);
  assert (!fails (other_path, &model));

  free (bad);
  free (good.data);
  remove_all ();
}

/* A page that is damaged while the database is open is found, and so is one
 * that a truncation cut off.
 */
static void
test_damage_while_open (void)
{
  struct model model;
  struct file_bytes good;
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

/* An older version of a page has a right checksum.  If it replaces the page of
 * an open database it is found all the same.
 */
static void
test_older_pages_while_open (void)
{
  struct file_bytes old, new;
  unsigned key, found = 0;
  struct model model;
  size_t offset;
  sqlite3 *db;

  db = open_db (db_path, &normal);
  populate (db, &model);
  checkpoint (db);
  old = read_file (db_path);
  for (key = 0; key < NR_ROWS; key += 7)
    if (model.version[key] > 0)
      put_row (db, &model, key, model.version[key] + 1);
  checkpoint (db);
  new = read_file (db_path);
  for (offset = 0; offset < old.len && offset < new.len; offset += 4096) {
    if (memcmp (old.data + offset, new.data + offset, 4096) == 0)
      continue;
    patch_file (db_path, offset, old.data + offset, 4096);
    assert (verify (db_path, &normal, &model) == FAILED);
    patch_file (db_path, offset, new.data + offset, 4096);
    found++;
  }
  assert (found > 20);
  assert (verify (db_path, &normal, &model) == RIGHT);
  close_db (db);
  free (old.data);
  free (new.data);
  remove_all ();
}

/* SQLite itself reads a page past the end of the file as zeroes, even if it is
 * part of a blob.
 */
static void
test_blob_cut_off (void)
{
  sqlite3 *db, *fresh;
  sqlite3_stmt *st;
  struct stat sb;

  db = open_db (db_path, &normal);
  run (db,
       "CREATE TABLE b (v BLOB);"
       "INSERT INTO b VALUES (randomblob (40000))");
  checkpoint (db);
  assert (stat (db_path, &sb) == 0);
  assert (truncate (db_path, sb.st_size - 4096) == 0);

  fresh = open_db (db_path, &normal);
  assert (sqlite3_prepare_v2 (fresh, "SELECT max (v) FROM b", -1, &st, NULL) ==
          SQLITE_OK);
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
check_checkpoint_refuses (sqlite3 *db, const struct file_bytes *wal,
                          const struct model *model)
{
  size_t last = (wal->len - WAL_HEADER) / (FRAME_HEADER + 4096) - 1;
  size_t offset = WAL_HEADER + last * (FRAME_HEADER + 4096) + FRAME_HEADER + 77;
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
  struct file_bytes wal;
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

    /* The frame has the page of another frame. */
    from = (frame + 1 + random_u64 () % (nr_frames - 1)) % nr_frames;
    offset = WAL_HEADER + frame * frame_size + FRAME_HEADER;
    patch_file (wal_path, offset,
                wal.data + WAL_HEADER + from * frame_size + FRAME_HEADER, 4096);
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

/* Pages of a WAL that this process recovered and did not write are verified. */
static void
test_damage_after_recovery (void)
{
  struct model model;
  struct file_bytes wal;
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
    case WRONG:
      abort ();
    case FAILED:
      failures++;
      break;
    case RIGHT:
      break; /* an older version of its page */
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
 * Files that are not our databases
 */

static void
test_foreign_files (void)
{
  struct model model, empty;
  struct file_bytes c;
  uint8_t garbage[8192];
  int reserve = 0, rc;
  sqlite3 *db;
  size_t i;

  /* No room for checksums: an error, not a read without verification. */
  rc = sqlite3_open_v2 (db_path, &db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, "unix");
  assert (rc == SQLITE_OK);
  populate (db, &model);
  close_db (db);
  assert (verify (db_path, &stock, &model) == RIGHT);
  db = open_with (db_path, &normal, &rc);
  if (rc == SQLITE_OK)
    rc = sqlite3_exec (db, "SELECT * FROM t", NULL, NULL, NULL);
  assert (rc == SQLITE_IOERR_DATA);
  sqlite3_close (db);
  assert (verify (db_path, &stock, &model) == RIGHT); /* nor harm */
  remove_all ();

  /* Written by a program that does not know the checksums. */
  db = open_db (db_path, &stock);
  populate (db, &model);
  close_db (db);
  c = read_file (db_path);
  assert (c.data[20] == CKSUM_RESERVE);
  free (c.data);
  assert (verify (db_path, &normal, &model) == FAILED);
  remove_all ();

  /* A new database without the reserve cannot be written. */
  rc = sqlite3_open_v2 (db_path, &db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
                        CKSUM_VFS_NAME);
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

int
main (void)
{
  cksum_begin ();
  test_damage_after_recovery ();
  test_damaged_database ();
  test_damage_while_open ();
  test_older_pages_while_open ();
  test_blob_cut_off ();
  test_damaged_wal ();
  test_foreign_files ();
  cksum_end ();
  return 0;
}
