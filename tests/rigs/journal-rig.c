/* SPDX-License-Identifier: BSD-3-Clause */

/* See journal-rig.h. */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "base/error.h"
#include "rigs/journal-rig.h"
#include "rigs/testutil.h"

#define SECTOR 512
#define NR_DISK_SECTORS (JOURNAL_MAX_BYTES / SECTOR)

static char dir[] = "journal-XXXXXX";
const uint8_t uuid[UUID_LEN] = "0123456789abcde";

/*----------------------------------------------------------------------
 * A disk that can lose power
 */

struct disk disk;
atomic_bool fail_sync, fail_write;

static bool
power_is_on (void)
{
  if (disk.on && disk.countdown > 0 && --disk.countdown == 0)
    disk.crashed = true;
  return !disk.crashed;
}

static void
note (uint64_t offset, uint64_t len)
{
  if (disk.on && len > 0)
    memset (disk.dirty + offset / SECTOR, 1,
            (offset + len - 1) / SECTOR - offset / SECTOR + 1);
}

struct bad_sectors broken;

/* Where a read of [start, end) meets the first of them, or 'end'. */
static uint64_t
first_bad (uint64_t start, uint64_t end)
{
  uint64_t first = end;

  if (start < broken.end && end > broken.start)
    first = start > broken.start ? start : broken.start;
  if (broken.also && start < broken.also + SECTOR && first > broken.also)
    first = start > broken.also ? start : broken.also;
  return first;
}

ssize_t
pread (int fd, void *buf, size_t len, off_t offset)
{
  const uint64_t start = offset, first = first_bad (start, start + len);

  if (first == start && len > 0) {
    if (broken.times > 0 && --broken.times == 0)
      broken.start = broken.end = 0;
    errno = EIO;
    return -1;
  }
  len = first - start;
  return syscall (SYS_pread64, fd, buf, len, offset);
}

/* False: they are in the way of this write. */
static bool
repair_sectors (uint64_t start, uint64_t end)
{
  if (start >= broken.end || end <= broken.start)
    return true;
  if (start > broken.start || end < broken.end)
    return false;
  broken.start = broken.end = 0;
  return true;
}

ssize_t
pwrite (int fd, const void *buf, size_t len, off_t offset)
{
  if (atomic_load (&fail_write) || !repair_sectors (offset, offset + len)) {
    errno = EIO;
    return -1;
  }
  if (!power_is_on ())
    return len;
  note (offset, len);
  return syscall (SYS_pwrite64, fd, buf, len, offset);
}

ssize_t
pwritev (int fd, const struct iovec *iov, int nr_iov, off_t offset)
{
  size_t len = 0;
  ssize_t r;
  int i;

  for (i = 0; i < nr_iov; ++i)
    len += iov[i].iov_len;
  if (atomic_load (&fail_write) || !repair_sectors (offset, offset + len)) {
    errno = EIO;
    return -1;
  }
  if (!power_is_on ())
    return len;
  if (disk.on && len > 4 && random () % 8 == 0) {
    /* A short write: some of the first buffer. */
    note (offset, iov[0].iov_len / 2 + 1);
    return syscall (SYS_pwrite64, fd, iov[0].iov_base, iov[0].iov_len / 2 + 1,
                    offset);
  }
  note (offset, len);
  r = syscall (SYS_pwritev, fd, iov, nr_iov, offset, 0);
  return r;
}

static int
sync_disk (int fd)
{
  struct stat st;
  uint64_t i;

  if (atomic_load (&fail_sync)) {
    errno = EIO;
    return -1;
  }
  if (!disk.on)
    return syscall (SYS_fdatasync, fd);
  if (!power_is_on ())
    return 0;
  assert (fstat (fd, &st) == 0);
  for (i = 0; i < NR_DISK_SECTORS; ++i)
    if (disk.dirty[i]) {
      assert (pread (fd, disk.stable + i * SECTOR, SECTOR, i * SECTOR) ==
              SECTOR);
      disk.dirty[i] = 0;
    }
  disk.stable_len = st.st_size;
  return 0;
}

int
fdatasync (int fd)
{
  return sync_disk (fd);
}

int
fsync (int fd)
{
  struct stat st;

  assert (fstat (fd, &st) == 0);
  return S_ISREG (st.st_mode) ? sync_disk (fd) : 0;
}

void
disk_start (void)
{
  struct stat st;
  int fd = open ("journal", O_RDONLY);

  assert (fd >= 0 && fstat (fd, &st) == 0);
  disk.stable = calloc (1, JOURNAL_MAX_BYTES);
  disk.dirty = calloc (1, NR_DISK_SECTORS);
  assert (disk.stable && disk.dirty);
  assert (pread (fd, disk.stable, st.st_size, 0) == st.st_size);
  disk.stable_len = st.st_size;
  close (fd);
  disk.on = true;
}

void
disk_stop (void)
{
  free (disk.stable);
  free (disk.dirty);
  memset (&disk, 0, sizeof disk);
}

void
disk_crash (void)
{
  struct stat st;
  uint64_t i;
  unsigned chance = random () % 5; /* none .. all */
  int fd = open ("journal", O_RDWR);

  assert (fd >= 0 && fstat (fd, &st) == 0);
  for (i = 0; i < NR_DISK_SECTORS; ++i)
    if (disk.dirty[i]) {
      if ((unsigned) random () % 4 < chance &&
          (i + 1) * SECTOR <= (uint64_t) st.st_size) {
        assert (pread (fd, disk.stable + i * SECTOR, SECTOR, i * SECTOR) ==
                SECTOR);
        if ((i + 1) * SECTOR > disk.stable_len)
          disk.stable_len = (i + 1) * SECTOR;
      }
      disk.dirty[i] = 0;
    }
  assert (ftruncate (fd, 0) == 0);
  assert (syscall (SYS_pwrite64, fd, disk.stable, disk.stable_len, 0) ==
          (ssize_t) disk.stable_len);
  close (fd);
  disk.crashed = false;
  disk.countdown = 0;
}

/*----------------------------------------------------------------------
 * Batches whose content follows from their number
 */

uint32_t lens[NR_MAX];
uint64_t settled = JOURNAL_ITSELF;
static uint32_t salts[NR_MAX];

static void
fill (uint8_t *buf, uint64_t seq)
{
  fill_random (buf, lens[seq], mix_two (seq, salts[seq]));
}

static uint8_t body[JOURNAL_BODY_MAX], expected[JOURNAL_BODY_MAX];

int
append (struct journal *j, uint32_t len, uint64_t expect)
{
  struct iovec iov[4];
  unsigned i, nr = 1 + random () % 4;
  uint64_t seq;
  uint32_t off = 0;
  int r;

  assert (expect < NR_MAX);
  lens[expect] = len;
  salts[expect] = random ();
  fill (body, expect);
  for (i = 0; i < nr; ++i) {
    iov[i].iov_base = body + off;
    iov[i].iov_len = i == nr - 1 ? len - off : random () % (len - off + 1);
    off += iov[i].iov_len;
  }
  r = journal_append (j, iov, nr, &(struct iovec) { &expect, sizeof expect },
                      settled, &seq);
  assert (r != 0 || seq == expect);
  return r;
}

uint64_t replayed, first_suspect, damaged;

static int
check_batch (void *opaque, uint64_t seq, enum journal_trust trust,
             const uint8_t *data, size_t len)
{
  const bool suspect = trust == JOURNAL_SUSPECT;

  (void) opaque;
  assert (seq == replayed + 1);
  replayed = seq;
  if (trust == JOURNAL_DAMAGED) {
    assert (damaged == 0);
    assert (len == sizeof seq && memcmp (data, &seq, len) == 0);
    damaged = seq;
    return 0;
  }
  assert (seq < NR_MAX && len == lens[seq]);
  fill (expected, seq);
  assert (memcmp (data, expected, len) == 0);
  if (suspect && first_suspect == 0)
    first_suspect = seq;
  assert (suspect == (first_suspect != 0));
  return 0;
}

struct said pool;

struct journal *
reopen (void)
{
  uint64_t epoch;
  struct journal *j = journal_open ("journal", uuid, &epoch);

  if (j == NULL)
    fprintf (stderr, "%s\n", nbdedup_error ());
  assert (j);
  return j;
}

int
replay (struct journal *j)
{
  replayed = pool.folded;
  first_suspect = damaged = 0;
  return journal_replay (j, pool.position, pool.folded, pool.epoch, check_batch,
                         NULL);
}

void
expect_text (const char *text)
{
  if (strstr (nbdedup_error (), text) == NULL) {
    fprintf (stderr, "expected \"%s\", got: %s\n", text, nbdedup_error ());
    abort ();
  }
}

void
expect_last (uint64_t last)
{
  struct journal *j = reopen ();

  if (replay (j) == -1) {
    fprintf (stderr, "%s\n", nbdedup_error ());
    abort ();
  }
  assert (replayed == last);
  journal_close (j);
}

void
expect_damage (const char *text)
{
  struct journal *j = reopen ();

  errno = 0;
  assert (replay (j) == -1 && errno == EIO);
  expect_text (text);
  assert (replayed == pool.folded); /* and nothing was replayed */
  journal_close (j);
}

struct journal *
start (void)
{
  struct journal *j;
  uint64_t epoch = 0;

  unlink ("journal");
  assert (journal_create ("journal", uuid, 1) == 0);
  pool.folded = pool.position = 0;
  pool.epoch = 1;
  j = journal_open ("journal", uuid, &epoch);
  assert (j && epoch == 1);
  assert (replay (j) == 0 && replayed == 0);
  assert (journal_set_epoch (j, 2) == 0);
  pool.epoch = 2;
  return j;
}

/*----------------------------------------------------------------------*/

void
journal_begin (void)
{
  const char *s = getenv ("SEED");
  const unsigned seed = s ? strtoul (s, NULL, 0) : (unsigned) time (NULL);

  printf ("SEED=%u\n", seed);
  fflush (stdout);
  srandom (seed);
  assert (mkdtemp (dir) != NULL && chdir (dir) == 0);
}

void
journal_end (void)
{
  char cmd[64];

  assert (chdir ("..") == 0);
  snprintf (cmd, sizeof cmd, "rm -rf %s", dir);
  assert (system (cmd) == 0);
}
