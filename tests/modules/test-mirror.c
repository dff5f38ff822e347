/* SPDX-License-Identifier: BSD-3-Clause */

/* Cases of the second copy that a pool cannot produce: a write to the copy
 * fails during a read, a change is noticed while the copy becomes current, and
 * single reads fail.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rigs/cksum-rig.h"
#include "rigs/failing-reads.h"
#include "vfs/cksum-mirror.h"
#include "vfs/cksum-vfs.h"

#define PAGE 4096

static bool copy_is_full; /* its file system */
static unsigned nr_lost;
static pthread_mutex_t owner_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool is_waking;

ssize_t
pwrite (int fd, const void *buf, size_t len, off_t offset)
{
  char link[32], path[256] = "";

  snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
  if (copy_is_full && readlink (link, path, sizeof path - 1) > 0 &&
      strcmp (path, other_path) == 0) {
    errno = ENOSPC;
    return -1;
  }
  return syscall (SYS_pwrite64, fd, buf, len, offset);
}

static void
lost (void *opaque, const char *why)
{
  (void) opaque;
  assert (strstr (why, strerror (ENOSPC)) != NULL);
  nr_lost++;
}

static void
distrusted (void *opaque)
{
  (void) opaque;
}

/* As in meta-copy.c: its lock is held while a copy becomes current. */
static void
wake (void *opaque)
{
  (void) opaque;
  atomic_store (&is_waking, true);
  assert (pthread_mutex_lock (&owner_lock) == 0);
  assert (pthread_mutex_unlock (&owner_lock) == 0);
}

static unsigned nr_unreadable;

static void
tell (void *opaque, const struct cksum_page_report *r)
{
  (void) opaque;
  nr_unreadable += r->first == CKSUM_PAGE_UNREADABLE;
}

/* Make a database with a complete copy that is not current yet. */
static struct cksum_mirror *
start (sqlite3 **db)
{
  const struct cksum_mirror_ops ops = { lost, distrusted, wake, NULL };
  struct cksum_mirror *m = cksum_mirror_new (db_path, &ops);
  uint64_t pages;

  assert (m != NULL);
  *db = open_db (db_path, &normal);
  create_table (*db);
  checkpoint (*db);
  assert (cksum_mirror_start (m, other_path, false, false) == 0);
  assert (cksum_mirror_pages (m, *db, &pages) == 0);
  assert (cksum_mirror_copy (m, *db, 1, (unsigned) pages, tell, NULL) == 0);
  assert (cksum_mirror_copy_wal (m, *db) == 0);
  return m;
}

static void
end (struct cksum_mirror *m, sqlite3 *db)
{
  cksum_mirror_stop (m);
  close_db (db);
  cksum_mirror_free (m);
  remove_all ();
}

/* The mirror has gathered a checkpoint's pages, and a scrub writes them. */
static void
test_full_while_read (void)
{
  sqlite3 *db;
  struct cksum_mirror *m = start (&db);
  sqlite3_file *file;
  uint8_t page[PAGE];

  assert (cksum_mirror_trust (m));
  assert (sqlite3_file_control (db, "main", SQLITE_FCNTL_FILE_POINTER, &file) ==
          SQLITE_OK);
  assert (file->pMethods->xRead (file, page, PAGE, PAGE) == SQLITE_OK);
  page[PAGE / 2]++;
  assert (file->pMethods->xWrite (file, page, PAGE, PAGE) == SQLITE_OK);
  copy_is_full = true;
  assert (cksum_mirror_check (m, db, 2, 1, tell, NULL) == 0);
  copy_is_full = false;
  assert (file->pMethods->xSync (file, SQLITE_SYNC_NORMAL) == SQLITE_OK);
  assert (cksum_mirror_state (m) == CKSUM_MIRROR_LOST);
  assert (nr_lost == 1);
  end (m, db);
}

static void *
notice (void *arg)
{
  cksum_mirror_change_begin (arg);
  cksum_mirror_change_end (arg);
  return NULL;
}

static void
test_noticed_while_trusted (void)
{
  sqlite3 *db;
  struct cksum_mirror *m = start (&db);
  pthread_t thread;

  assert (pthread_mutex_lock (&owner_lock) == 0);
  patch_file (db_path, PAGE + 1, "x", 1);
  atomic_store (&is_waking, false);
  assert (pthread_create (&thread, NULL, notice, m) == 0);
  while (!atomic_load (&is_waking))
    usleep (1000);
  alarm (20); /* in case of a deadlock */
  assert (cksum_mirror_trust (m));
  alarm (0);
  assert (pthread_mutex_unlock (&owner_lock) == 0);
  assert (pthread_join (thread, NULL) == 0);
  assert (cksum_mirror_is_touched (m));
  end (m, db);
}

/* Each read in turn fails.  Returns how many there are. */
static unsigned
blank_with_failing_reads (struct cksum_mirror *m, sqlite3 *db, const char *path,
                          int error)
{
  struct file_bytes before = read_file (db_path), after;
  unsigned nth, nr_refused = 0;
  bool failed = true;
  int r = -1;

  for (nth = 0; failed; ++nth) {
    fail_reads (path, nth, 1, error);
    r = cksum_mirror_blank (m, db);
    failed = reads_have_failed ();
    fail_reads (NULL, 0, 0, 0);
    nr_refused += r == -1;
    after = read_file (db_path);
    assert (after.len == before.len &&
            memcmp (after.data, before.data, after.len) == 0);
    free (after.data);
  }
  assert (r == 0 && nr_refused > 0);
  free (before.data);
  return nth - 1;
}

/* A failed read is no reason to write zeroes over the page. */
static void
test_blank_and_failing_reads (void)
{
  sqlite3 *db;
  struct cksum_mirror *m = start (&db);

  cksum_mirror_stop (m);
  assert (blank_with_failing_reads (m, db, db_path, EIO) > 1);
  assert (blank_with_failing_reads (m, db, db_path, ENOMEM) > 1);
  end (m, db);

  /* Only the copy has the page. */
  m = start (&db);
  assert (cksum_mirror_trust (m));
  patch_file (db_path, PAGE + 1, "x", 1);
  assert (blank_with_failing_reads (m, db, other_path, EIO) > 1);
  end (m, db);
}

/* Nor a reason to take it for lost. */
static void
test_probe_and_failing_reads (void)
{
  sqlite3 *db;
  struct cksum_mirror *m = start (&db);
  uint8_t page[PAGE], right[PAGE];
  unsigned nr;
  int r;

  cksum_mirror_stop (m);
  assert (cksum_page_probe (db, 2, right) == 1);
  for (nr = 1; nr <= 4; ++nr) {
    fail_reads (db_path, 0, nr, EIO);
    r = cksum_page_probe (db, 2, page);
    assert (r == (nr <= 2 ? 1 : -1));
    assert (r == -1 || memcmp (page, right, PAGE) == 0);
  }
  fail_reads (NULL, 0, 0, 0);
  patch_file (db_path, PAGE + 1, "x", 1);
  assert (cksum_page_probe (db, 2, page) == 0);
  end (m, db);
}

static bool
are_equal (void)
{
  struct file_bytes a = read_file (db_path), b = read_file (other_path);
  bool equal = a.len == b.len && memcmp (a.data, b.data, a.len) == 0;

  free (a.data);
  free (b.data);
  return equal;
}

/* Make the copy again while the reads of a page fail. */
static int
copy_with_failing_reads (struct cksum_mirror *m, sqlite3 *db, unsigned page,
                         unsigned failing, int error)
{
  uint64_t pages;
  int r;

  assert (cksum_mirror_start (m, other_path, false, false) == 0);
  assert (cksum_mirror_pages (m, db, &pages) == 0);
  assert (pages > page);
  fail_reads (db_path, page - 1, failing, error);
  r = cksum_mirror_copy (m, db, 1, (unsigned) pages, tell, NULL);
  assert (reads_have_failed ());
  fail_reads (NULL, 0, 0, 0);
  assert (r == -1 || cksum_mirror_copy_wal (m, db) == 0);
  return r;
}

/* The copy has no hole because of a failure that passes. */
static void
test_copy_and_failing_reads (void)
{
  sqlite3 *db;
  struct cksum_mirror *m = start (&db);
  struct model model;

  cksum_mirror_stop (m);
  run (db, "DROP TABLE t");
  populate (db, &model);
  checkpoint (db);
  assert (copy_with_failing_reads (m, db, 2, 1, EIO) == 0 && are_equal ());
  assert (copy_with_failing_reads (m, db, 3, 1, ENOMEM) == 0 && are_equal ());
  assert (copy_with_failing_reads (m, db, 3, 2, ENOMEM) == -1);
  assert (nr_unreadable == 0);
  /* The disk cannot read it. */
  assert (copy_with_failing_reads (m, db, 3, 2, EIO) == 0 && !are_equal ());
  assert (nr_unreadable == 1);
  end (m, db);
}

int
main (void)
{
  cksum_begin ();
  test_full_while_read ();
  test_noticed_while_trusted ();
  test_blank_and_failing_reads ();
  test_probe_and_failing_reads ();
  test_copy_and_failing_reads ();
  cksum_end ();
  return 0;
}
