/* SPDX-License-Identifier: BSD-3-Clause */

/* The journal.
 *
 * 1. Files that are not a journal, not this pool's, damaged, newer.
 * 2. The last batch cut at every byte, or any byte of it flipped: the log
 *    ends before it, silently.
 * 3. A byte of an earlier batch flipped: an error if a later one knows it
 *    as durable, else the end of the log.
 * 4. A pool.db that is older than the journal: an error.
 * 5. What a torn log leaves behind is never taken for its continuation,
 *    with a new epoch or the old one; nor are batches inside of bodies.
 * 6. No room; growth; a full disk; failed writes and syncs.
 * 7. Random appends, syncs, folds, reopens and crashes against a model.  A
 *    crash comes at any write or sync, and keeps any of the sectors written
 *    since the last sync.
 * 8. Many threads.
 *
 * pwrite, pwritev, fdatasync and fsync are this program's own: they keep
 * book of what a power failure would leave.
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
#include <time.h>
#include <unistd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <xxhash.h>

#include "bytes.h"
#include "error.h"
#include "journal.h"

#define SECTOR 512
#define NR_DISK_SECTORS (JOURNAL_MAX_BYTES / SECTOR)

static char dir[] = "journal-XXXXXX";
static const uint8_t uuid[UUID_LEN] = "0123456789abcde";

/*----------------------------------------------------------------------
 * A disk that can lose power
 */

static struct {
  bool on;                      /* keep book */
  bool crashed;                 /* nothing arrives any more */
  uint64_t countdown;           /* calls until then; 0: none */
  uint8_t *stable;              /* as of the last sync */
  uint64_t stable_len;
  uint8_t *dirty;               /* by sector: written since */
} disk;

static atomic_bool fail_sync, fail_write;

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

ssize_t
pwrite (int fd, const void *buf, size_t len, off_t offset)
{
  if (atomic_load (&fail_write)) {
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
  if (atomic_load (&fail_write)) {
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

/* Begin to keep book of "journal", which is on disk as it is. */
static void
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

static void
disk_stop (void)
{
  free (disk.stable);
  free (disk.dirty);
  memset (&disk, 0, sizeof disk);
}

/* Lose power: "journal" becomes what was synced and any of the rest. */
static void
disk_crash (void)
{
  struct stat st;
  uint64_t i;
  unsigned chance = random () % 5;      /* none .. all */
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

#define NR_MAX 100000
static uint32_t lens[NR_MAX], salts[NR_MAX];

static void
fill (uint8_t *buf, uint64_t seq)
{
  uint64_t x = XXH3_64bits_withSeed (&seq, sizeof seq, salts[seq]);
  uint32_t i;

  for (i = 0; i < lens[seq]; ++i) {
    if (i % 8 == 0)
      x = x * UINT64_C (6364136223846793005) + 1442695040888963407;
    buf[i] = x >> (56 - i % 8 * 4);
  }
}

static uint8_t body[JOURNAL_BODY_MAX], expected[JOURNAL_BODY_MAX];

static int
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
  r = journal_append (j, iov, nr, &seq);
  assert (r != 0 || seq == expect);
  return r;
}

/* What replay gave. */
static uint64_t replayed, first_suspect;

static int
check_batch (void *opaque, uint64_t seq, bool suspect, const uint8_t *data,
             size_t len)
{
  (void) opaque;
  assert (seq == replayed + 1);
  assert (seq < NR_MAX && len == lens[seq]);
  fill (expected, seq);
  assert (memcmp (data, expected, len) == 0);
  replayed = seq;
  if (suspect && first_suspect == 0)
    first_suspect = seq;
  assert (suspect == (first_suspect != 0));
  return 0;
}

/* pool.db: what it says at the moment. */
static struct {
  uint64_t folded, position, epoch;
} pool;

static struct journal *
reopen (void)
{
  uint64_t epoch;
  struct journal *j = journal_open ("journal", uuid, &epoch);

  if (j == NULL)
    fprintf (stderr, "%s\n", nbdedup_error ());
  assert (j);
  return j;
}

static int
replay (struct journal *j)
{
  replayed = pool.folded;
  first_suspect = 0;
  return journal_replay (j, pool.position, pool.folded, pool.epoch,
                         check_batch, NULL);
}

static void
expect_text (const char *text)
{
  if (strstr (nbdedup_error (), text) == NULL) {
    fprintf (stderr, "expected \"%s\", got: %s\n", text, nbdedup_error ());
    abort ();
  }
}

/* The journal must replay up to 'last'. */
static void
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

static void
expect_damage (const char *text)
{
  struct journal *j = reopen ();

  errno = 0;
  assert (replay (j) == -1 && errno == EIO);
  expect_text (text);
  assert (replayed == pool.folded);     /* and nothing was replayed */
  journal_close (j);
}

/* A new journal, open, in session 2. */
static struct journal *
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

static uint8_t *
slurp (size_t *len)
{
  struct stat st;
  int fd = open ("journal", O_RDONLY);
  uint8_t *buf;

  assert (fd >= 0 && fstat (fd, &st) == 0);
  buf = malloc (st.st_size);
  assert (buf && read (fd, buf, st.st_size) == st.st_size);
  close (fd);
  *len = st.st_size;
  return buf;
}

static void
put (const void *buf, size_t len, uint64_t offset)
{
  int fd = open ("journal", O_RDWR);

  assert (fd >= 0);
  assert (syscall (SYS_pwrite64, fd, buf, len, offset) == (ssize_t) len);
  close (fd);
}

/*----------------------------------------------------------------------
 * Tests
 */

static void
expect_no_open (int err, const char *text)
{
  uint64_t epoch;

  errno = 0;
  assert (journal_open ("journal", uuid, &epoch) == NULL && errno == err);
  expect_text (text);
}

static void
seal (uint8_t buf[512])
{
  put_le64 (buf + 504, XXH3_64bits (buf, 504));
}

static void
test_files (void)
{
  const uint8_t other[UUID_LEN] = "x";
  struct journal *j;
  uint8_t good[512], bad[512];
  uint64_t epoch;
  size_t len;
  uint8_t *all;
  unsigned i, copy;

  expect_no_open (EIO, "missing");
  assert (journal_create ("nowhere/journal", uuid, 1) == -1);
  assert (errno == ENOENT);
  assert (journal_create ("journal", uuid, 41) == 0);
  assert (journal_create ("journal", uuid, 1) == -1 && errno == EEXIST);
  assert (journal_open ("journal", other, &epoch) == NULL && errno == EIO);
  expect_text ("another pool");
  j = journal_open ("journal", NULL, &epoch);
  assert (j && epoch == 41);
  assert (journal_set_epoch (j, 42) == 0);
  journal_close (j);
  j = journal_open ("journal", uuid, &epoch);
  assert (j && epoch == 42);
  journal_close (j);
  journal_close (NULL);

  all = slurp (&len);
  assert (len == JOURNAL_MIN_BYTES);
  assert (memcmp (all, all + 4096, 512) == 0);
  memcpy (good, all, 512);
  free (all);
  for (i = 0; i < 512; ++i)
    for (copy = 0; copy < 2; ++copy) {
      memcpy (bad, good, 512);
      bad[i] ^= 1 << i % 8;
      put (bad, 512, copy * 4096);
      j = journal_open ("journal", uuid, &epoch);
      assert (j && epoch == 42);
      journal_close (j);
      put (bad, 512, !copy * 4096);
      expect_no_open (EIO, i < 8 ? "no magic" : "damaged");
      put (good, 512, 0);
      put (good, 512, 4096);
    }
  memcpy (bad, good, 512);
  put_le32 (bad + 8, 3);
  seal (bad);
  put (bad, 512, 4096);
  expect_no_open (EINVAL, "newer nbdedup (format 3; this one knows 1)");
  memcpy (bad, good, 512);
  put_le64 (bad + 16, 1);
  seal (bad);
  put (bad, 512, 4096);
  expect_no_open (EINVAL, "feature 0x1");
  memcpy (bad, good, 512);
  put_le64 (bad + 64, JOURNAL_MAX_BYTES * 2);
  seal (bad);
  put (bad, 512, 4096);
  expect_no_open (EIO, "damaged header");
  put (good, 512, 4096);

  assert (truncate ("journal", JOURNAL_MIN_BYTES - 1) == 0);
  expect_no_open (EIO, "truncated");
  assert (truncate ("journal", 100) == 0);
  expect_no_open (EIO, "too short");
  assert (unlink ("journal") == 0 && mkdir ("journal", 0700) == 0);
  expect_no_open (EIO, "directory");
  assert (rmdir ("journal") == 0 && mkfifo ("journal", 0600) == 0);
  expect_no_open (EIO, "not a regular file");
  assert (unlink ("journal") == 0);
}

static void
test_last_batch (void)
{
  struct journal *j = start ();
  uint64_t seq, pos, end, i;
  const uint32_t len = 1700;
  uint8_t *all, zero = 0, flipped;
  size_t all_len;

  assert (append (j, 100, 1) == 0 && append (j, 0, 2) == 0);
  assert (journal_sync (j, 1) == 0);
  journal_get_end (j, &seq, &pos);
  assert (seq == 2);
  assert (append (j, len, 3) == 0);
  assert (journal_sync (j, 3) == 0);
  journal_get_end (j, &seq, &end);
  assert (seq == 3 && end == pos + 2048);
  journal_close (j);
  expect_last (3);
  assert (first_suspect == 2);  /* nobody asked for more than 1 */

  all = slurp (&all_len);
  for (i = pos; i < pos + 96 + len; ++i) {
    flipped = all[i] ^ (1 << i % 8);
    put (&flipped, 1, i);
    expect_last (2);
    put (all + i, 1, i);
  }
  /* What follows the body is padding. */
  for (; i < end; ++i)
    assert (all[i] == 0);
  for (i = pos + 96 + len - 1; i >= pos; --i) {
    put (&zero, 1, i);
    if (all[pos + 96 + len - 1] != 0 || i < pos + 96)
      expect_last (2);
  }
  free (all);
}

static void
test_middle (void)
{
  struct journal *j = start ();
  uint64_t seq, pos[8], i;
  uint8_t *all, flipped;
  size_t all_len;
  unsigned b;

  /* 1, 2, 3 durable; 6 knows that; 4 and 5 are known to nobody. */
  for (b = 1; b <= 6; ++b) {
    journal_get_end (j, &seq, &pos[b]);
    assert (append (j, 300, b) == 0);
    if (b == 3)
      assert (journal_sync (j, 3) == 0);
  }
  journal_close (j);
  expect_last (6);
  assert (first_suspect == 4);

  all = slurp (&all_len);
  for (b = 1; b <= 5; ++b)
    for (i = pos[b]; i < pos[b] + 96 + 300; ++i) {
      flipped = all[i] ^ 0x20;
      put (&flipped, 1, i);
      if (b <= 3)
        expect_damage ("but was durable");
      else
        expect_last (b - 1);
      put (all + i, 1, i);
    }
  expect_last (6);

  /* 2 and 3 are folded, says pool.db: they may be damaged. */
  flipped = all[pos[3]] ^ 1;
  put (&flipped, 1, pos[3]);
  expect_damage ("batch 3");
  pool.folded = 3;
  pool.position = pos[4];
  expect_last (6);
  put (all + pos[3], 1, pos[3]);
  free (all);

  /* Positions that cannot be. */
  pool.position = JOURNAL_MIN_BYTES;
  expect_damage ("position");
  pool.position = 4096;
  expect_damage ("position");
  pool.position = pos[4] + 1;
  expect_damage ("position");
  pool.position = UINT64_MAX - 511;
  expect_damage ("position");
}

static void
test_stale_pool (void)
{
  struct journal *j = start ();
  uint64_t seq, pos2, pos4;

  assert (append (j, 10, 1) == 0 && append (j, 10, 2) == 0);
  journal_get_end (j, &seq, &pos2);
  assert (append (j, 10, 3) == 0 && append (j, 10, 4) == 0);
  journal_get_end (j, &seq, &pos4);
  journal_trim (j, 2, pos2);
  assert (append (j, 10, 5) == 0);      /* knows that 2 is folded */
  assert (journal_sync (j, 5) == 0);
  journal_close (j);

  pool.folded = 2;
  pool.position = pos2;
  expect_last (5);
  pool.folded = 4;
  pool.position = pos4;
  expect_last (5);
  pool.folded = 0;
  pool.position = 0;
  expect_damage ("older than the journal");
  pool.folded = 2;
  pool.position = pos2;
  pool.epoch = 1;
  expect_damage ("session 2, but the pool knows only 1");

  /* The same after many laps, when the old batches are gone. */
  j = start ();
  for (seq = 1; seq <= 1000; ++seq) {
    uint64_t s, p;

    assert (append (j, 1000, seq) == 0);
    if (seq % 50 == 0) {
      assert (journal_sync (j, seq) == 0);
      journal_get_end (j, &s, &p);
      journal_trim (j, s, p);
      if (seq == 500) {
        pool.folded = s;
        pool.position = p;
      }
    }
  }
  journal_close (j);
  expect_damage ("older than the journal");
}

/* 'epoch' 2: the caller goes on in the session of the torn log. */
static void
test_leftovers (uint64_t epoch)
{
  struct journal *j = start ();
  uint64_t seq, pos[6];
  uint8_t *all, flipped;
  size_t len;
  unsigned b;

  for (b = 1; b <= 5; ++b) {
    journal_get_end (j, &seq, &pos[b]);
    assert (append (j, 300, b) == 0);
  }
  journal_close (j);
  all = slurp (&len);
  flipped = all[pos[3] + 200] ^ 1;
  put (&flipped, 1, pos[3] + 200);
  free (all);

  /* 3 is torn, 4 and 5 are there.  A new 3 of the same length makes them
   * look like its continuation.
   */
  j = reopen ();
  assert (replay (j) == 0 && replayed == 2);
  assert (journal_set_epoch (j, epoch) == -1 && errno == EINVAL);
  journal_get_end (j, &seq, &pool.position);
  pool.folded = seq;
  journal_trim (j, pool.folded, pool.position);
  if (epoch != 2)
    assert (journal_set_epoch (j, epoch) == 0);
  pool.epoch = epoch;
  assert (append (j, 300, 3) == 0);
  assert (journal_sync (j, 3) == 0);
  journal_close (j);
  expect_last (3);
}

/* A torn batch whose body holds copies of batches of this very journal, at
 * multiples of 512 in the file, with numbers that would prove damage.
 */
static void
test_copy_inside (void)
{
  struct journal *j = start ();
  uint64_t seq, pos;
  uint8_t *before, *after;
  size_t len;
  unsigned b;

  for (b = 1; b <= 5; ++b)
    assert (append (j, 500, b) == 0);
  assert (journal_sync (j, 5) == 0);
  journal_get_end (j, &seq, &pos);
  before = slurp (&len);
  for (b = 6; b <= 20; ++b) {
    assert (append (j, 500, b) == 0);
    assert (journal_sync (j, b) == 0);
  }
  journal_close (j);
  after = slurp (&len);

  put (before, len, 0);
  for (b = 0; b < 20; ++b)
    put (after + JOURNAL_HEADER_BYTES + 1024 * b, 1024, pos + 512 + 1024 * b);
  expect_last (5);
  free (before);
  free (after);
}

static void
test_room (void)
{
  struct rlimit old, limit;
  static uint64_t ends[4000];
  struct journal *j = start ();
  uint64_t live, ring, seq, pos, k, n = 0;
  int r;

  /* Without folding it grows to its full size and then has no room. */
  journal_get_usage (j, &live, &ring);
  assert (live == 0 && ring == JOURNAL_MIN_BYTES - JOURNAL_HEADER_BYTES);
  while ((r = append (j, 1000000, ++n)) == 0)
    ;
  assert (r == 1);
  journal_get_usage (j, &live, &ring);
  assert (ring == JOURNAL_MAX_BYTES - JOURNAL_HEADER_BYTES);
  assert (live == (n - 1) * 1000448 && ring - live < 1000448 + 512);
  assert (append (j, 1000000, n) == 1);
  assert (journal_sync (j, n - 1) == 0);
  journal_close (j);
  expect_last (n - 1);

  j = reopen ();
  assert (replay (j) == 0);
  assert (append (j, 1000000, n) == 1);
  journal_get_end (j, &seq, &pos);
  journal_trim (j, seq, pos);
  assert (journal_set_epoch (j, 3) == 0);
  pool.folded = seq;
  pool.position = pos;
  pool.epoch = 3;
  assert (append (j, JOURNAL_BODY_MAX, n) == 0);
  assert (append (j, JOURNAL_BODY_MAX, n + 1) == 0);
  journal_close (j);
  expect_last (n + 1);

  /* A full disk: the ring stays small, and goes round. */
  j = start ();
  signal (SIGXFSZ, SIG_IGN);
  assert (getrlimit (RLIMIT_FSIZE, &old) == 0);
  limit = old;
  limit.rlim_cur = JOURNAL_MIN_BYTES + 50000;
  assert (setrlimit (RLIMIT_FSIZE, &limit) == 0);
  errno = 0;
  assert (append (j, 300000, 1) == -1 && errno == ENOSPC);
  for (n = 1; n < 4000; ++n) {
    lens[n] = random () % 30000;
    while ((r = append (j, lens[n], n)) == 1) {
      /* Fold some of what is live: up to a number whose end is known. */
      k = pool.folded + 1 + random () % (n - 1 - pool.folded);
      journal_trim (j, k, ends[k]);
      pool.folded = k;
      pool.position = ends[k];
    }
    assert (r == 0);
    journal_get_end (j, &seq, &ends[n]);
    assert (seq == n);
    if (random () % 16 == 0) {
      journal_close (j);
      j = reopen ();
      assert (replay (j) == 0 && replayed == n);
    }
  }
  assert (setrlimit (RLIMIT_FSIZE, &old) == 0);
  journal_get_usage (j, &live, &ring);
  assert (ring == JOURNAL_MIN_BYTES - JOURNAL_HEADER_BYTES);
  assert (append (j, 300000, n) == 0 || append (j, 300000, n) == 1);
  journal_close (j);
}

static void
test_failures (void)
{
  struct journal *j = start ();

  assert (append (j, 100, 1) == 0 && journal_sync (j, 1) == 0);
  assert (append (j, 100, 2) == 0);
  atomic_store (&fail_sync, true);
  assert (journal_sync (j, 2) == -1 && errno == EIO);
  expect_text ("fdatasync");
  atomic_store (&fail_sync, false);
  assert (journal_sync (j, 2) == -1 && errno == EIO);
  assert (journal_sync (j, 1) == -1 && errno == EIO);
  assert (append (j, 100, 3) == -1 && errno == EIO);
  assert (journal_set_epoch (j, 9) == -1 && errno == EIO);
  journal_close (j);

  j = start ();
  assert (append (j, 100, 1) == 0);
  atomic_store (&fail_write, true);
  assert (append (j, 100, 2) == -1 && errno == EIO);
  atomic_store (&fail_write, false);
  assert (append (j, 100, 2) == -1 && errno == EIO);
  assert (journal_sync (j, 1) == -1 && errno == EIO);
  journal_close (j);
}

/* A fn that fails stops the replay with its error. */
static int
refuse (void *opaque, uint64_t seq, bool suspect, const uint8_t *data,
        size_t len)
{
  (void) opaque; (void) suspect; (void) data; (void) len;
  return seq == 2 ? nbdedup_fail (ENOMEM, "enough") : 0;
}

static void
test_refused (void)
{
  struct journal *j = start ();

  assert (append (j, 1, 1) == 0 && append (j, 1, 2) == 0);
  journal_close (j);
  j = reopen ();
  assert (journal_replay (j, 0, 0, 2, refuse, NULL) == -1);
  assert (errno == ENOMEM);
  expect_text ("enough");
  journal_close (j);
}

static uint32_t
random_len (void)
{
  switch (random () % 64) {
  case 0: return random () % 300000;
  case 1: case 2: case 3: case 4: return random () % 40000;
  case 5: return 0;
  case 6: return 512 - 96;
  case 7: return 512 - 96 + 1;
  default: return random () % 3000;
  }
}

/* What must be there at the next replay (in the page cache, if nothing
 * crashed), what must be there after a power failure, and the last number
 * that can be there at all.
 */
static uint64_t cached, durable, last;

/* One session: returns with the power lost or the journal closed. */
static void
session (unsigned nr_steps)
{
  struct journal *j = reopen ();
  uint64_t seq, pos, cut_seq = 0, cut_pos = 0, epoch;
  bool closed = false, cut = false;
  unsigned i;
  int r;

  r = replay (j);
  if (r == -1)
    fprintf (stderr, "%s\n", nbdedup_error ());
  assert (r == 0);
  assert (replayed >= cached && cached >= durable);
  assert (replayed <= last);
  journal_get_end (j, &seq, &pos);
  assert (seq == replayed);
  if (!disk.crashed) {
    durable = seq;
    last = seq;
  }

  /* Everything is folded, then a new session begins. */
  if (!disk.crashed) {
    pool.folded = seq;
    pool.position = pos;
    journal_trim (j, seq, pos);
  }
  epoch = pool.epoch + 1;
  if (disk.crashed || journal_set_epoch (j, epoch) == -1)
    goto out;
  if (!disk.crashed)
    pool.epoch = epoch;

  for (i = 0; i < nr_steps && !disk.crashed; ++i) {
    switch (random () % 16) {
    default:
      r = append (j, random_len (), seq + 1);
      assert (r != -1);
      if (r == 1) {
        /* No room: fold all. */
        journal_get_end (j, &cut_seq, &cut_pos);
        cut = true;
        goto trim;
      }
      seq++;
      if (last < seq)
        last = seq;
      break;
    case 0: case 1:
      assert (journal_sync (j, seq) == 0);
      if (!disk.crashed && durable < seq)
        durable = seq;
      break;
    case 2:                     /* a fold begins */
      if (!cut) {
        journal_get_end (j, &cut_seq, &cut_pos);
        assert (cut_seq == seq);
        cut = true;
      }
      break;
    case 3: case 4:             /* and ends */
    trim:
      if (cut && !disk.crashed) {
        pool.folded = cut_seq;
        pool.position = cut_pos;
        journal_trim (j, cut_seq, cut_pos);
        if (durable < cut_seq)
          durable = cut_seq;
        cut = false;
      }
      break;
    }
  }
  if (!disk.crashed && random () % 4 == 0)
    closed = true;
 out:
  journal_close (j);
  if (closed)
    cached = seq;
  else {
    disk_crash ();
    cached = durable;
  }
}

static void
test_random (unsigned nr_sessions)
{
  unsigned i;

  for (i = 0; i < nr_sessions; ++i) {
    /* A fresh one from time to time, so that growth is tried too. */
    if (i % 25 == 0) {
      if (i > 0)
        disk_stop ();
      journal_close (start ());
      cached = durable = last = 0;
      disk_start ();
    }
    if (random () % 2)
      disk.countdown = 1 + random () % 300;
    session (1 + random () % 400);
  }
  disk_stop ();
}

/*----------------------------------------------------------------------
 * Threads
 */

#define NR_THREADS 6

static struct journal *shared;
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool stop;
static uint64_t thread_seq;

static void *
appender (void *arg)
{
  uint8_t buf[2000];
  struct iovec iov = { .iov_base = buf };
  uint64_t seq;
  unsigned i, seed = (uintptr_t) arg;
  int r;

  memset (buf, seed, sizeof buf);
  for (i = 0; i < 300; ++i) {
    iov.iov_len = rand_r (&seed) % sizeof buf;
    do
      r = journal_append (shared, &iov, 1, &seq);
    while (r == 1);
    assert (r == 0);
    if (i % 3 == 0)
      assert (journal_sync (shared, seq) == 0);
    pthread_mutex_lock (&order);
    if (seq > thread_seq)
      thread_seq = seq;
    pthread_mutex_unlock (&order);
  }
  return NULL;
}

static void *
trimmer (void *arg)
{
  uint64_t seq, pos, live, ring;

  (void) arg;
  while (!atomic_load (&stop)) {
    journal_get_end (shared, &seq, &pos);
    usleep (500);
    journal_trim (shared, seq, pos);
    pool.folded = seq;
    pool.position = pos;
    journal_get_usage (shared, &live, &ring);
    assert (live <= ring);
  }
  return NULL;
}

static int
count_batch (void *opaque, uint64_t seq, bool suspect, const uint8_t *data,
             size_t len)
{
  size_t i;

  (void) opaque; (void) suspect;
  assert (seq == ++replayed);
  for (i = 1; i < len; ++i)
    assert (data[i] == data[0]);
  return 0;
}

static void
test_threads (void)
{
  pthread_t threads[NR_THREADS + 1];
  unsigned i;

  shared = start ();
  for (i = 0; i < NR_THREADS; ++i)
    assert (pthread_create (&threads[i], NULL, appender,
                            (void *) (uintptr_t) (i + 1)) == 0);
  assert (pthread_create (&threads[i], NULL, trimmer, NULL) == 0);
  for (i = 0; i < NR_THREADS; ++i)
    assert (pthread_join (threads[i], NULL) == 0);
  atomic_store (&stop, true);
  assert (pthread_join (threads[i], NULL) == 0);
  assert (thread_seq == NR_THREADS * 300);
  journal_close (shared);

  shared = reopen ();
  replayed = pool.folded;
  assert (journal_replay (shared, pool.position, pool.folded, pool.epoch,
                          count_batch, NULL) == 0);
  assert (replayed == thread_seq);
  journal_close (shared);
}

int
main (void)
{
  const char *s = getenv ("SEED"), *n = getenv ("ROUNDS");
  const unsigned seed = s ? strtoul (s, NULL, 0) : (unsigned) time (NULL);
  char cmd[64];

  printf ("SEED=%u\n", seed);
  fflush (stdout);
  srandom (seed);
  assert (mkdtemp (dir) != NULL && chdir (dir) == 0);
  test_files ();
  test_last_batch ();
  test_middle ();
  test_stale_pool ();
  test_leftovers (3);
  test_leftovers (2);
  test_copy_inside ();
  test_room ();
  test_failures ();
  test_refused ();
  test_random (n ? strtoul (n, NULL, 0) : 150);
  test_threads ();
  assert (chdir ("..") == 0);
  snprintf (cmd, sizeof cmd, "rm -rf %s", dir);
  assert (system (cmd) == 0);
  return 0;
}
