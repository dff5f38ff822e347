/* SPDX-License-Identifier: BSD-3-Clause */

/* Reading the journal's file.
 *
 * 1. Files that are not a journal, not this pool's, damaged, newer.
 * 2. The last batch cut at every byte, or any byte of it flipped: the log
 *    ends before it, silently.
 * 3. A byte of an earlier batch flipped: if a later batch knows it as durable,
 *    the replay takes its list, or finds its header in another place; otherwise
 *    the log ends there.  The same for the last one, if a mark knows it as
 *    durable.
 * 4. A pool.db that is older than the journal: an error.
 * 5. The remains of a torn log are never taken for its continuation, with a new
 *    epoch or the old one; nor are batches inside of bodies.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <xxhash.h>

#include "base/bytes.h"
#include "base/error.h"
#include "rigs/journal-rig.h"

/* The second page of the ring. */
#define RING_PAGE (JOURNAL_HEADER_BYTES + 4096)

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

  assert (append (j, 100, 1) == 0);
  settled = 0;
  assert (append (j, 0, 2) == 0);
  assert (journal_sync (j, 1) == 0);
  journal_get_end (j, &seq, &pos);
  assert (seq == 2);
  assert (append (j, len, 3) == 0);
  assert (journal_sync (j, 3) == 0);
  journal_get_end (j, &seq, &end);
  assert (seq == 3 && end == pos + 2560);
  journal_close (j);
  expect_last (3);
  assert (first_suspect == 2); /* no batch has more than 1 */
  settled = JOURNAL_ITSELF;

  all = slurp (&all_len);
  for (i = pos; i < pos + 96 + len; ++i) {
    flipped = all[i] ^ (1 << i % 8);
    put (&flipped, 1, i);
    expect_last (2);
    put (all + i, 1, i);
  }
  /* After the body come padding, and the trailer in a sector of its own. */
  for (; i < end - 512; ++i)
    assert (all[i] == 0);
  assert (memcmp (all + i, "NBJT", 4) == 0);
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
  static const uint8_t zeroes[1024];
  struct journal *j = start ();
  uint64_t seq, pos[8], i;
  uint8_t *all, flipped;
  size_t all_len;
  unsigned b;

  /* 1, 2, 3 are durable and 6 knows that; no batch knows of 4 and 5. */
  for (b = 1; b <= 6; ++b) {
    journal_get_end (j, &seq, &pos[b]);
    assert (append (j, 300, b) == 0);
    if (b == 3) {
      assert (journal_sync (j, 3) == 0);
      settled = 0;
    }
  }
  settled = JOURNAL_ITSELF;
  journal_close (j);
  expect_last (6);
  assert (first_suspect == 4);

  all = slurp (&all_len);
  for (b = 1; b <= 5; ++b)
    for (i = pos[b]; i < pos[b] + 96 + 300; ++i) {
      flipped = all[i] ^ 0x20;
      put (&flipped, 1, i);
      expect_last (b <= 3 ? 6 : b - 1);
      /* Damage to a header or a trailer loses nothing. */
      assert (damaged == (b <= 3 && i >= pos[b] + 96 ? b : 0));
      put (all + i, 1, i);
    }
  for (b = 1; b <= 6; ++b) {
    put (zeroes, 512, pos[b] + 512);
    expect_last (6);
    assert (damaged == 0);
    put (all + pos[b] + 512, 512, pos[b] + 512);
  }
  /* Two sectors of a durable batch. */
  put (zeroes, 1024, pos[2]);
  expect_damage ("batch 2 was durable, but is now damaged");
  put (all + pos[2], 1024, pos[2]);
  /* Only the number in the list is wrong. */
  flipped = all[pos[2] + 512 + 104] ^ 1;
  put (&flipped, 1, pos[2] + 512 + 104);
  expect_last (6);
  flipped = all[pos[2] + 100] ^ 1;
  put (&flipped, 1, pos[2] + 100);
  expect_damage ("batch 2 was durable, but is now damaged");
  put (all + pos[2], 1024, pos[2]);
  expect_last (6);

  /* If pool.db says that 2 and 3 are folded they may be damaged. */
  put (zeroes, 1024, pos[3]);
  expect_damage ("batch 3");
  pool.folded = 3;
  pool.position = pos[4];
  expect_last (6);
  put (all + pos[3], 1024, pos[3]);
  free (all);

  /* Impossible positions. */
  pool.position = JOURNAL_MIN_BYTES;
  expect_damage ("position");
  pool.position = 4096;
  expect_damage ("position");
  pool.position = pos[4] + 1;
  expect_damage ("position");
  pool.position = UINT64_MAX - 511;
  expect_damage ("position");
}

/* A mark in another page says that the last batch is durable. */
static void
test_mark (void)
{
  static const uint8_t zeroes[4096];
  struct journal *j = start ();
  uint64_t seq, pos, end, i;
  uint8_t *all, flipped;
  size_t len;

  assert (append (j, 700, 1) == 0);
  journal_get_end (j, &seq, &pos);
  assert (append (j, 900, 2) == 0);
  journal_get_end (j, &seq, &end);
  assert (journal_sync (j, 2) == 0);
  expect_last (2);
  assert (first_suspect == 0);
  all = slurp (&len);
  assert (memcmp (all + RING_PAGE, "NBJB\3", 5) == 0);
  for (i = pos; i < pos + 96 + 900; ++i) {
    flipped = all[i] ^ (1 << i % 8);
    put (&flipped, 1, i);
    expect_last (2);
    assert (damaged == (i < pos + 96 ? 0 : 2));
    put (all + i, 1, i);
  }
  put (zeroes, sizeof zeroes, JOURNAL_HEADER_BYTES);
  expect_damage ("batch 1 was durable, but is now damaged");
  put (all, len, 0);
  /* A mark in the place of the next batch is not taken for one. */
  put (all + RING_PAGE, 512, end);
  expect_last (2);
  free (all);

  /* To sync the same batch again changes nothing. */
  assert (journal_sync (j, 2) == 0);
  /* The next batches overwrite the mark, and never wait for it. */
  for (seq = 3; seq < 300; ++seq) {
    uint64_t s, p;

    assert (append (j, random () % 9000, seq) == 0);
    assert (journal_sync (j, seq) == 0);
    expect_last (seq);
    if (seq % 8 == 0) {
      journal_get_end (j, &s, &p);
      journal_trim (j, s, p);
      pool.folded = s;
      pool.position = p;
    }
  }
  journal_close (j);
}

/* The wrap is damaged, the batch behind it is not. */
static void
test_damaged_wrap (void)
{
  static const uint8_t zeroes[512];
  struct journal *j = start ();
  uint64_t seq, pos, end, n;

  for (n = 1;; ++n) {
    journal_get_end (j, &seq, &pos);
    assert (append (j, 20000, n) == 0 && journal_sync (j, n) == 0);
    journal_get_end (j, &seq, &end);
    if (end < pos)
      break;
    journal_trim (j, seq, end);
    pool.folded = seq;
    pool.position = end;
  }
  journal_close (j);
  expect_last (n);
  put (zeroes, 512, pos);
  expect_last (n);
  assert (damaged == 0);
}

/* Batches whose records need no proof. */
static void
test_settled (void)
{
  struct journal *j = start ();
  uint64_t seq, pos;
  uint8_t *all, flipped;
  size_t len;

  settled = 0;
  assert (append (j, 100, 1) == 0 && append (j, 100, 2) == 0);
  expect_last (2);
  assert (first_suspect == 1);
  settled = 1;
  assert (append (j, 100, 3) == 0);
  expect_last (3);
  assert (first_suspect == 2);
  settled = JOURNAL_ITSELF;
  journal_get_end (j, &seq, &pos);
  assert (append (j, 100, 4) == 0);
  expect_last (4);
  assert (first_suspect == 0);
  settled = 0;
  assert (append (j, 100, 5) == 0);
  expect_last (5);
  assert (first_suspect == 5);
  journal_close (j);

  /* The header of 4 is enough. */
  all = slurp (&len);
  flipped = all[pos + 120] ^ 1;
  put (&flipped, 1, pos + 120);
  free (all);
  expect_last (3);
  assert (first_suspect == 0);

  /* In the next session other batches have these numbers. */
  j = reopen ();
  assert (replay (j) == 0 && replayed == 3);
  journal_get_end (j, &pool.folded, &pool.position);
  journal_trim (j, pool.folded, pool.position);
  pool.epoch = 3;
  assert (journal_set_epoch (j, pool.epoch) == 0);
  assert (append (j, 100, 4) == 0);
  journal_close (j);
  expect_last (4);
  assert (first_suspect == 4);
  settled = JOURNAL_ITSELF;
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
  assert (append (j, 10, 5) == 0); /* knows that 2 is folded */
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
  expect_damage ("session 2, but pool.db is still at session 1");

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

/* 'epoch' 2: the caller continues the session of the torn log. */
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

  /* 3 is torn, 4 and 5 are intact.  After a new 3 of the same length they
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

/* A torn batch whose body has copies of batches of the same journal, at
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
    put (after + JOURNAL_HEADER_BYTES + 1536 * b, 1536, pos + 512 + 1536 * b);
  expect_last (5);
  free (before);
  free (after);
}

/* Two pages of the file have changed places: one has the end of the last batch,
 * or all of it, and the mark behind it.
 */
static void
test_exchanged (void)
{
  unsigned nr;

  for (nr = 1; nr < 9; ++nr) {
    struct journal *j = start ();
    uint64_t seq, end, page;
    uint8_t *all;
    size_t len;
    unsigned b;

    for (b = 1; b <= 9; ++b)
      assert (append (j, b < 9 ? 5000 : nr * 700, b) == 0);
    assert (journal_sync (j, 9) == 0);
    journal_get_end (j, &seq, &end);
    journal_close (j);
    all = slurp (&len);
    page = (end + 4095) / 4096 * 4096;
    assert (memcmp (all + page, "NBJB\3", 5) == 0);
    page -= page % 8192;
    put (all + RING_PAGE + 4096, 8192, page);
    put (all + page, 8192, RING_PAGE + 4096);
    expect_damage ("was durable, but is now damaged");
    free (all);
  }
}

/* If the callback fails the replay stops with its error. */
static int
refuse (void *opaque, uint64_t seq, enum journal_trust trust,
        const uint8_t *data, size_t len)
{
  (void) opaque;
  (void) trust;
  (void) data;
  (void) len;
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

int
main (void)
{
  journal_begin ();
  test_files ();
  test_last_batch ();
  test_middle ();
  test_mark ();
  test_damaged_wrap ();
  test_settled ();
  test_stale_pool ();
  test_leftovers (3);
  test_leftovers (2);
  test_copy_inside ();
  test_exchanged ();
  test_refused ();
  journal_end ();
  return 0;
}
