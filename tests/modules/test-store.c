/* SPDX-License-Identifier: BSD-3-Clause */

/* The backing file.
 *
 * 1. Create, open, write, read back; the epoch over reopens.
 * 2. What store_create must refuse, and the links that it must follow.
 * 3. The header: a flipped byte in one copy is no error, in both it is; a newer
 *    format, an unknown feature, foreign files.
 * 4. Segments: allocate, punch; no room.
 * 5. Garbage addresses.
 * 6. Many threads write, sync and read.
 * 7. drop_cache leaves nothing in the page cache.
 * 8. Calls share a sync, but never one that began before the call; after a
 *    failed sync there is no other.
 * 9. A file system without fallocate.
 *
 * This program replaces fdatasync and fallocate, see below.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <linux/magic.h>

#include <xxhash.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/fullio.h"
#include "disk/store.h"
#include "format/segment.h"

static char dir[] = "store-XXXXXX";

static const struct store_header header = {
  .uuid = "0123456789abcde",
  .epoch = 7,
  .sector_bytes = 4096,
  .features_compat = 0x8000,
  .features_autoclear = 0x10,
};

/* These replace libc's functions. */
static atomic_uint nr_syncs, syncs_began;
static atomic_uint sync_delay_us;
/* A sync waits for this many callers, however slow the machine is. */
static atomic_uint callers_wanted, nr_callers;
static atomic_bool fail_sync, no_fallocate;

int
fdatasync (int fd)
{
  atomic_fetch_add (&syncs_began, 1);
  while (atomic_load (&nr_callers) < atomic_load (&callers_wanted))
    usleep (1000);
  if (atomic_load (&sync_delay_us))
    usleep (atomic_load (&sync_delay_us));
  atomic_fetch_add (&nr_syncs, 1);
  if (atomic_exchange (&fail_sync, false)) {
    errno = EIO;
    return -1;
  }
  return syscall (SYS_fdatasync, fd);
}

int
fallocate (int fd, int mode, off_t offset, off_t len)
{
  if (atomic_load (&no_fallocate)) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return syscall (SYS_fallocate, fd, mode, offset, len);
}

static uint64_t
length_of (struct store *s)
{
  uint64_t length;

  assert (store_length (s, &length) == 0);
  return length;
}

static void
expect_text (const char *text)
{
  if (strstr (nbdedup_error (), text) == NULL) {
    fprintf (stderr, "expected \"%s\", got: %s\n", text, nbdedup_error ());
    abort ();
  }
}

static void
expect_no_open (int err, const char *text)
{
  errno = 0;
  assert (store_open ("records", false) == NULL);
  assert (errno == err);
  expect_text (text);
}

static void
test_basic (void)
{
  struct store *s;
  struct stat st;
  uint8_t buf[8192], back[8192];

  assert (store_create ("records", &header) == 0);
  assert (store_create ("records", &header) == -1 && errno == EEXIST);
  assert (stat ("records", &st) == 0 && st.st_size == STORE_HEADER_BYTES);
  s = store_open ("records", false);
  assert (s);
  assert (memcmp (store_get_header (s)->uuid, header.uuid, UUID_LEN) == 0);
  assert (store_get_header (s)->epoch == 7);
  assert (store_get_header (s)->sector_bytes == 4096);
  assert (store_get_header (s)->features_compat == 0x8000);
  assert (length_of (s) == STORE_HEADER_BYTES);
  assert (fcntl (3, F_GETFD) == -1 || (fcntl (3, F_GETFD) & FD_CLOEXEC));

  assert (store_allocate_segment (s, 0) == 0);
  assert (length_of (s) == SEGMENT_BYTES);
  memset (buf, 'x', sizeof buf);
  assert (store_write (s, 4, buf, sizeof buf) == 0);
  assert (store_write (s, 3, buf, 4096) == -1 && errno == EIO);
  expect_text ("header");
  assert (store_sync (s) == 0);
  assert (store_read (s, 4, back, 8000) == 0);
  assert (memcmp (buf, back, 8000) == 0);
  assert (store_set_epoch (s, 8) == 0);
  assert (store_get_header (s)->epoch == 8);
  assert (store_close (s) == 0);

  s = store_open ("records", true);
  assert (s && store_get_header (s)->epoch == 8);
  assert (store_get_header (s)->features_compat == 0x8000);
  assert (store_get_header (s)->features_autoclear == 0);
  assert (store_read (s, 4, back, sizeof back) == 0);
  assert (memcmp (buf, back, sizeof back) == 0);

  /* Allocating a segment again keeps its data. */
  assert (store_allocate_segment (s, 0) == 0);
  assert (store_read (s, 5, back, 4096) == 0 && back[4095] == 'x');
  assert (store_punch (s, 5, 1) == 0);
  assert (store_read (s, 5, back, 4096) == 0 && back[4095] == 0);
  assert (store_read (s, 4, back, 4096) == 0 && back[4095] == 'x');
  assert (store_punch (s, 3, 2) == -1);
  assert (store_punch (s, 4, 0) == 0);

  /* Past the end, and impossible addresses. */
  assert (store_read (s, 1023, back, 4096) == 0);
  assert (store_read (s, 1023, back, 4097) == -1 && errno == EIO);
  expect_text ("truncated");
  assert (store_read (s, UINT64_MAX, back, 1) == -1 && errno == EIO);
  assert (store_read (s, UINT64_MAX / 4096, back, 1) == -1);
  assert (store_read (s, (uint64_t) INT64_MAX / 4096, back, 1) == -1);
  assert (store_write (s, UINT64_MAX / 2, buf, 4096) == -1);
  assert (store_punch (s, 4, UINT64_MAX) == -1);
  assert (store_allocate_segment (s, UINT64_MAX) == -1 && errno == ENOSPC);
  assert (store_allocate_segment (s, UINT64_MAX / SEGMENT_BYTES) == -1);
  assert (store_close (s) == 0);
  assert (store_close (NULL) == 0);
}

static void
test_create (void)
{
  struct store *s;
  struct stat st;
  int fd;

  /* An empty file is accepted. */
  assert (unlink ("records") == 0);
  fd = open ("records", O_CREAT | O_RDWR, 0600);
  assert (fd >= 0 && close (fd) == 0);
  assert (store_create ("records", &header) == 0);

  /* Through a link it creates the target, or fills it if it is empty. */
  assert (unlink ("records") == 0 && mkdir ("disk2", 0700) == 0);
  assert (symlink ("disk2/data", "records") == 0);
  assert (store_create ("records", &header) == 0);
  assert (lstat ("records", &st) == 0 && S_ISLNK (st.st_mode));
  assert (stat ("disk2/data", &st) == 0 && st.st_size == STORE_HEADER_BYTES);
  s = store_open ("records", false);
  assert (s && store_close (s) == 0);
  assert (truncate ("disk2/data", 0) == 0);
  assert (store_create ("records", &header) == 0);
  s = store_open ("records", false);
  assert (s && store_close (s) == 0);

  /* A link into a directory that does not exist; a directory; a FIFO; no
   * permission to write there.
   */
  assert (unlink ("records") == 0);
  assert (symlink ("nowhere/data", "records") == 0);
  assert (store_create ("records", &header) == -1 && errno == ENOENT);
  expect_no_open (EIO, "missing");
  assert (unlink ("records") == 0 && mkdir ("records", 0700) == 0);
  assert (store_create ("records", &header) == -1 && errno == EISDIR);
  expect_no_open (EIO, "directory");
  assert (rmdir ("records") == 0 && mkfifo ("records", 0600) == 0);
  assert (store_create ("records", &header) == -1 && errno == ENOTBLK);
  expect_text ("neither");
  expect_no_open (EIO, "neither");
  assert (unlink ("records") == 0);

  /* A file with foreign data. */
  fd = open ("records", O_CREAT | O_RDWR, 0600);
  assert (full_pwrite (fd, "hello", 5, 0) == 0 && close (fd) == 0);
  assert (store_create ("records", &header) == -1 && errno == EEXIST);
  assert (stat ("records", &st) == 0 && st.st_size == 5);
  expect_no_open (EIO, "too short");
  assert (truncate ("records", 1 << 20) == 0);
  expect_no_open (EIO, "no magic");
  assert (unlink ("records") == 0);
  expect_no_open (EIO, "missing");
}

static void
put_copy (unsigned copy, const uint8_t buf[512])
{
  int fd = open ("records", O_RDWR);

  assert (full_pwrite (fd, buf, 512, copy * 8192) == 0);
  assert (close (fd) == 0);
}

static void
seal (uint8_t buf[512])
{
  put_le64 (buf + 504, XXH3_64bits (buf, 504));
}

static void
test_header (void)
{
  uint8_t good[512], bad[512], newer[512];
  struct store *s;
  unsigned i, copy;
  int fd;

  assert (store_create ("records", &header) == 0);
  fd = open ("records", O_RDONLY);
  assert (full_pread (fd, good, 512, 0) == 512 && close (fd) == 0);

  for (i = 0; i < 512; ++i) {
    memcpy (bad, good, 512);
    bad[i] ^= 1 << i % 8;
    for (copy = 0; copy < 2; ++copy) {
      put_copy (copy, bad);
      s = store_open ("records", false);
      assert (s && store_get_header (s)->epoch == 7);
      if (i % 64 == 0) {
        /* Setting the epoch repairs it, and writes the damaged copy first. */
        assert (store_set_epoch (s, 7) == 0);
        fd = open ("records", O_RDONLY);
        assert (full_pread (fd, bad, 512, copy * 8192) == 512);
        assert (close (fd) == 0);
        assert (memcmp (bad, good, 32) == 0 && bad[32] == 0);
        memcpy (bad, good, 512);
        bad[i] ^= 1 << i % 8;
        put_copy (!copy, good);
      }
      assert (store_close (s) == 0);
      put_copy (!copy, bad);
      put_copy (copy, bad);
      expect_no_open (EIO, i < 8 ? "no magic" : "damaged");
      put_copy (copy, good);
      put_copy (!copy, good);
    }
  }

  /* The newer of two valid copies. */
  memcpy (newer, good, 512);
  put_le64 (newer + 56, 8);
  seal (newer);
  for (copy = 0; copy < 2; ++copy) {
    put_copy (copy, newer);
    put_copy (!copy, good);
    s = store_open ("records", false);
    assert (s && store_get_header (s)->epoch == 8);
    assert (store_close (s) == 0);
  }

  memcpy (bad, good, 512);
  put_le32 (bad + 8, 2);
  seal (bad);
  put_copy (0, good);
  put_copy (1, bad);
  expect_no_open (EINVAL, "newer nbdedup (format 2; this one knows 1)");
  put_copy (0, bad);
  expect_no_open (EINVAL, "newer nbdedup (format 2; this one knows 1)");
  memcpy (bad, good, 512);
  put_le64 (bad + 16, 4);
  seal (bad);
  put_copy (0, bad);
  put_copy (1, good);
  expect_no_open (EINVAL, "feature 0x4");
  memcpy (bad, good, 512);
  put_le32 (bad + 12, 1000);
  seal (bad);
  put_copy (0, bad);
  expect_no_open (EIO, "sector size");
  memcpy (bad, good, 512);
  bad[40] ^= 1;
  seal (bad);
  put_copy (0, bad);
  expect_no_open (EIO, "different pools");
  put_copy (0, good);

  assert (truncate ("records", STORE_HEADER_BYTES - 1) == 0);
  expect_no_open (EIO, "too short");
  assert (truncate ("records", 0) == 0);
  expect_no_open (EIO, "too short");
  assert (unlink ("records") == 0);
}

static void
test_full (void)
{
  struct rlimit old, limit;
  struct store *s;
  uint8_t buf[4096] = { 1 };
  uint64_t length, before;

  assert (store_create ("records", &header) == 0);
  s = store_open ("records", false);
  assert (s && store_allocate_segment (s, 2) == 0);
  assert (length_of (s) == 3 * (uint64_t) SEGMENT_BYTES);
  before = store_file_bytes (s);
  assert (before >= SEGMENT_BYTES && before < 2 * SEGMENT_BYTES);
  assert (store_punch (s, 2048, 1024) == 0);
  assert (store_file_bytes (s) <= before);

  signal (SIGXFSZ, SIG_IGN);
  assert (getrlimit (RLIMIT_FSIZE, &old) == 0);
  limit = old;
  limit.rlim_cur = 4 * (uint64_t) SEGMENT_BYTES + 12345;
  assert (setrlimit (RLIMIT_FSIZE, &limit) == 0);
  assert (store_allocate_segment (s, 3) == 0);
  length = length_of (s);
  assert (store_allocate_segment (s, 4) == -1 && errno == ENOSPC);
  expect_text ("no room");
  assert (length_of (s) == length);
  assert (store_allocate_segment (s, 1) == 0);
  assert (store_write (s, 8 * 1024, buf, sizeof buf) == -1);
  assert (errno == ENOSPC);
  assert (setrlimit (RLIMIT_FSIZE, &old) == 0);
  assert (store_allocate_segment (s, 4) == 0);
  assert (store_close (s) == 0);
  assert (unlink ("records") == 0);
}

#define NR_THREADS 8

static struct store *shared;

static void *
writer (void *arg)
{
  const unsigned me = (uintptr_t) arg;
  uint8_t buf[8192], back[8192];
  unsigned i;

  for (i = 0; i < 200; ++i) {
    memset (buf, me * 31 + i, sizeof buf);
    assert (store_write (shared, 4 + me * 100 + i % 50 * 2, buf, sizeof buf) ==
            0);
    assert (store_read (shared, 4 + me * 100 + i % 50 * 2, back, sizeof back) ==
            0);
    assert (memcmp (buf, back, sizeof buf) == 0);
    if (i % 4 == 0)
      assert (store_sync (shared) == 0);
  }
  return NULL;
}

/* The number of the file's pages in the page cache. */
static unsigned
cached_pages (void)
{
  unsigned char vec[SEGMENT_BYTES / 4096];
  unsigned i, n = 0;
  int fd = open ("records", O_RDONLY);
  void *p = mmap (NULL, SEGMENT_BYTES, PROT_READ, MAP_SHARED, fd, 0);

  assert (p != MAP_FAILED && mincore (p, SEGMENT_BYTES, vec) == 0);
  for (i = 0; i < sizeof vec; ++i)
    n += vec[i] & 1;
  assert (munmap (p, SEGMENT_BYTES) == 0 && close (fd) == 0);
  return n;
}

static void
test_threads (void)
{
  pthread_t threads[NR_THREADS];
  struct statfs fs;
  bool can_drop;
  unsigned i;

  assert (store_create ("records", &header) == 0);
  /* On tmpfs the page cache is the file. */
  assert (statfs ("records", &fs) == 0);
  can_drop = fs.f_type != TMPFS_MAGIC && fs.f_type != RAMFS_MAGIC;
  shared = store_open ("records", true);
  assert (shared && store_allocate_segment (shared, 0) == 0);
  for (i = 0; i < NR_THREADS; ++i)
    assert (
      pthread_create (&threads[i], NULL, writer, (void *) (uintptr_t) i) == 0);
  for (i = 0; i < NR_THREADS; ++i)
    assert (pthread_join (threads[i], NULL) == 0);
  assert (store_sync (shared) == 0);
  assert (!can_drop || cached_pages () <= 4); /* the header's */
  {
    uint8_t buf[100];

    /* Reads drop their pages from the cache, whatever their alignment. */
    assert (store_read (shared, 10, buf, sizeof buf) == 0);
    assert (store_read (shared, 99, buf, 1) == 0);
    assert (!can_drop || cached_pages () <= 4);
  }
  assert (store_close (shared) == 0);
  assert (unlink ("records") == 0);
}

static void *
syncer (void *arg)
{
  unsigned began;

  (void) arg;
  usleep (1000 * (random () % 20));
  atomic_fetch_add (&nr_callers, 1);
  began = atomic_load (&syncs_began);
  assert (store_sync (shared) == 0);
  /* A sync has begun after the call, and ended before the return. */
  assert (atomic_load (&nr_syncs) > began);
  return NULL;
}

static void *
failing_syncer (void *arg)
{
  (void) arg;
  assert (store_sync (shared) == -1 && errno == EIO);
  expect_text ("fdatasync");
  return NULL;
}

static void
test_sync (void)
{
  pthread_t threads[NR_THREADS * 4];
  unsigned i, before;

  assert (store_create ("records", &header) == 0);
  shared = store_open ("records", false);
  assert (shared);
  before = atomic_load (&nr_syncs);
  atomic_store (&sync_delay_us, 50000);
  atomic_store (&callers_wanted, NR_THREADS * 4);
  for (i = 0; i < NR_THREADS * 4; ++i)
    assert (pthread_create (&threads[i], NULL, syncer, NULL) == 0);
  for (i = 0; i < NR_THREADS * 4; ++i)
    assert (pthread_join (threads[i], NULL) == 0);
  assert (atomic_load (&nr_syncs) - before <= NR_THREADS);

  atomic_store (&fail_sync, true);
  before = atomic_load (&nr_syncs);
  for (i = 0; i < NR_THREADS; ++i)
    assert (pthread_create (&threads[i], NULL, failing_syncer, NULL) == 0);
  for (i = 0; i < NR_THREADS; ++i)
    assert (pthread_join (threads[i], NULL) == 0);
  assert (atomic_load (&nr_syncs) == before + 1);
  failing_syncer (NULL);
  assert (atomic_load (&nr_syncs) == before + 1);
  atomic_store (&sync_delay_us, 0);
  assert (store_close (shared) == 0);
  assert (unlink ("records") == 0);
}

static void
test_no_fallocate (void)
{
  struct store *s;
  uint8_t buf[8192], back[8192];

  assert (store_create ("records", &header) == 0);
  s = store_open ("records", false);
  assert (s);
  atomic_store (&no_fallocate, true);
  memset (buf, 'y', sizeof buf);

  /* Segment 1 has data in the middle and nothing else. */
  assert (store_write (s, 1024 + 500, buf, sizeof buf) == 0);
  assert (store_sync (s) == 0);
  assert (store_allocate_segment (s, 1) == 0);
  assert (store_sync (s) == 0);
  assert (length_of (s) == 2 * (uint64_t) SEGMENT_BYTES);
  assert (store_file_bytes (s) >= SEGMENT_BYTES);
  assert (store_file_bytes (s) < SEGMENT_BYTES + SEGMENT_BYTES / 2);
  assert (store_read (s, 1024 + 500, back, sizeof back) == 0);
  assert (memcmp (buf, back, sizeof buf) == 0);

  /* Segment 0 has the header. */
  assert (store_allocate_segment (s, 0) == 0);
  assert (store_allocate_segment (s, 0) == 0);
  assert (store_sync (s) == 0);
  assert (store_file_bytes (s) >= 2 * (uint64_t) SEGMENT_BYTES);
  assert (length_of (s) == 2 * (uint64_t) SEGMENT_BYTES);
  assert (store_punch (s, 1024, 1024) == 0);
  atomic_store (&no_fallocate, false);
  assert (store_read (s, 1024 + 500, back, sizeof back) == 0);
  assert (store_close (s) == 0);
  s = store_open ("records", false);
  assert (s && store_close (s) == 0);
  assert (unlink ("records") == 0);
}

/* Writes stay in memory, and the file does not change. */
static void
test_readonly (void)
{
  uint8_t buf[8192], back[8192];
  struct stat before, after;
  struct store *s;
  unsigned i;

  assert (store_create ("records", &header) == 0);
  s = store_open ("records", false);
  assert (s && store_allocate_segment (s, 0) == 0);
  memset (buf, 'x', sizeof buf);
  assert (store_write (s, 4, buf, sizeof buf) == 0 && store_close (s) == 0);
  assert (chmod ("records", 0400) == 0 && stat ("records", &before) == 0);

  s = store_open_readonly ("records", true);
  assert (s && store_overlay_bytes (s) == 0);
  memset (buf, 'y', sizeof buf);
  for (i = 100; i < 400; i += 2)
    assert (store_write (s, i, buf, sizeof buf) == 0);
  memset (buf, 'z', sizeof buf);
  assert (store_write (s, 100, buf, 4096) == 0); /* overwrites */
  assert (store_write (s, 3, buf, 4096) == -1 && errno == EIO);
  assert (store_overlay_bytes (s) > 149 * sizeof buf + 4096);
  assert (store_overlay_bytes (s) < 151 * (sizeof buf + 100));
  assert (store_read (s, 4, back, sizeof back) == 0 && back[0] == 'x');
  assert (store_read (s, 100, back, 4000) == 0);
  assert (memcmp (buf, back, 4000) == 0);
  assert (store_read (s, 398, back, sizeof back) == 0 && back[8191] == 'y');
  assert (store_close (s) == 0);

  assert (stat ("records", &after) == 0);
  assert (before.st_size == after.st_size);
  assert (before.st_mtim.tv_sec == after.st_mtim.tv_sec &&
          before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
  assert (unlink ("records") == 0);
}

int
main (void)
{
  assert (mkdtemp (dir) != NULL && chdir (dir) == 0);
  test_basic ();
  test_create ();
  test_header ();
  test_full ();
  test_threads ();
  test_sync ();
  test_no_fallocate ();
  test_readonly ();
  assert (chdir ("..") == 0);
  {
    char cmd[64];

    snprintf (cmd, sizeof cmd, "rm -rf %s", dir);
    assert (system (cmd) == 0);
  }
  return 0;
}
