/* SPDX-License-Identifier: BSD-3-Clause */

/* Reading the journal from a disk that has bad sectors.
 *
 * Each test makes a journal, and then lets each sector of the ring, and each
 * page, be unreadable.  What was flushed is replayed, as blocks that are lost
 * if the sector was a part of it, or the replay fails; it never ends early.
 * And it fails only if the sector may hold what was flushed.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/error.h"
#include "base/log.h"
#include "rigs/journal-rig.h"

#define SECTOR JOURNAL_ALIGN
#define PAGE UINT64_C (4096)
#define RING JOURNAL_HEADER_BYTES

static uint64_t
file_end (void)
{
  struct stat st;

  assert (stat ("journal", &st) == 0);
  return st.st_size;
}

static uint64_t
get_head (struct journal *j)
{
  uint64_t seq, position;

  journal_get_end (j, &seq, &position);
  return position;
}

/* pool.db has all of it. */
static void
fold (struct journal *j)
{
  journal_get_end (j, &pool.folded, &pool.position);
  journal_trim (j, pool.folded, pool.position);
}

static void
append_flushed (struct journal *j, uint32_t len, uint64_t seq)
{
  assert (append (j, len, seq) == 0 && journal_sync (j, seq) == 0);
}

/* A loss of power takes the marks. */
static void
lose_marks (void)
{
  static const char zeroes[SECTOR];
  char buf[5];
  uint64_t pos, end = file_end ();
  int fd = open ("journal", O_RDWR);

  assert (fd >= 0);
  for (pos = RING; pos < end; pos += SECTOR) {
    assert (pread (fd, buf, sizeof buf, pos) == sizeof buf);
    if (memcmp (buf, "NBJB\3", 5) == 0)
      assert (pwrite (fd, zeroes, SECTOR, pos) == SECTOR);
  }
  close (fd);
}

static void
flip (uint64_t pos)
{
  uint8_t byte;
  int fd = open ("journal", O_RDWR);

  assert (fd >= 0 && pread (fd, &byte, 1, pos) == 1);
  byte ^= 1;
  assert (pwrite (fd, &byte, 1, pos) == 1);
  close (fd);
}

/* Does [start, start + len) have a part of the bad sectors? */
static bool
hits (uint64_t start, uint64_t len)
{
  return start < broken.end && start + len > broken.start;
}

/* The log may not end before 'last', except by an error. */
static uint64_t last, last_position, last_end;

enum outcome { WHOLE, DAMAGED, FAILED };

static enum outcome
try_replay (void)
{
  struct journal *j = reopen ();
  enum outcome r;

  errno = 0;
  if (replay (j) == 0) {
    assert (replayed == last && first_suspect == 0);
    r = damaged ? DAMAGED : WHOLE;
  }
  else {
    assert (errno == EIO && replayed == pool.folded);
    expect_text ("cannot be read");
    r = FAILED;
  }
  journal_close (j);
  return r;
}

static void
sweep (void (*check) (enum outcome r))
{
  const uint64_t end = file_end ();
  uint64_t len;

  for (len = SECTOR; len <= PAGE; len += PAGE - SECTOR)
    for (broken.start = RING; broken.start < end; broken.start += len) {
      broken.end = broken.start + len;
      check (try_replay ());
    }
  broken = (struct bad_sectors) { .start = 0 };
  assert (try_replay () == WHOLE);
}

/* After an orderly close.  A page may hide a whole batch, a sector cannot. */
static void
check_closed (enum outcome r)
{
  const uint64_t head = pool.position ? pool.position : RING;
  const bool hides_batch = broken.start <= head && broken.end > head + SECTOR;

  assert (r == (hides_batch ? FAILED : WHOLE));
}

static void
test_closed (void)
{
  struct journal *j = start ();
  uint64_t seq;

  journal_close (j);
  last = 0;
  sweep (check_closed);

  /* A ring that was written twice. */
  j = start ();
  for (seq = 1; seq <= 200; ++seq) {
    append_flushed (j, 2000 + seq % 5 * 500, seq);
    if (seq % 10 == 0)
      fold (j);
  }
  assert (pool.position > RING + PAGE);
  journal_close (j);
  last = pool.folded;
  sweep (check_closed);
}

/* Batches of a server that was killed, after two that are folded. */
static void
make_log (void)
{
  struct journal *j = start ();

  append_flushed (j, 3000, 1);
  append_flushed (j, 3000, 2);
  fold (j);
  append_flushed (j, 6000, 3);
  append_flushed (j, 9000, 4);
  last_position = get_head (j);
  append_flushed (j, 7000, 5);
  last_end = get_head (j);
  journal_close (j);
  last = 5;
}

/* The mark proves all of them. */
static void
check_killed (enum outcome r)
{
  const bool live = hits (pool.position, last_end - pool.position);

  assert (r == WHOLE || live);
  assert (r != FAILED || broken.end - broken.start > SECTOR);
}

/* Nothing proves the last one. */
static void
check_power_cut (enum outcome r)
{
  const bool in_last = hits (last_position, last_end - SECTOR - last_position);

  if (broken.end - broken.start > SECTOR)
    check_killed (r);
  else if (in_last)
    assert (r == FAILED);
  else
    assert (r != FAILED);
}

/* It was torn.  Where nothing else is bad, that is the end. */
static void
check_torn (enum outcome r)
{
  const uint64_t mark = (last_end + PAGE - 1) / PAGE * PAGE;

  if (hits (last_position, mark + SECTOR - last_position))
    assert (r == FAILED);
  else if (broken.end - broken.start == SECTOR)
    assert (r != FAILED);
}

static void
test_log (void)
{
  make_log ();
  sweep (check_killed);
  lose_marks ();
  sweep (check_power_cut);
  flip (last_position + 1000);
  last = 4;
  sweep (check_torn);
}

/* The last batch is in front of all others. */
static void
check_wrapped (enum outcome r)
{
  const bool live = hits (pool.position, file_end ()) || hits (RING, last_end);

  assert (r == WHOLE || live);
}

static void
test_wrapped (void)
{
  struct journal *j = start ();
  uint64_t seq, end, position;

  for (seq = 1;; ++seq) {
    end = get_head (j);
    append_flushed (j, 20000, seq);
    if (get_head (j) < end)
      break;
    if (seq % 2 == 0)
      fold (j);
  }
  last = seq;
  last_end = get_head (j);
  journal_close (j);
  sweep (check_wrapped);
  lose_marks ();
  sweep (check_wrapped);
  /* The wrap is all that leads to it. */
  position = end;
  broken = (struct bad_sectors) { .start = position, .end = position + SECTOR };
  assert (try_replay () == FAILED);
  /* There may be one, and all of the batch behind it is hidden, too. */
  broken.start = RING;
  broken.end = last_end;
  broken.also = position;
  assert (try_replay () == FAILED);
  broken = (struct bad_sectors) { .start = 0 };
}

/* An empty batch says that the records of the one before are durable. */
static void
check_settled (enum outcome r)
{
  assert (r == WHOLE || hits (pool.position, last_end - pool.position));
}

static void
test_settled (void)
{
  struct journal *j = start ();

  settled = 0;
  assert (append (j, 5000, 1) == 0);
  settled = JOURNAL_ITSELF;
  append_flushed (j, 0, 2);
  last = 2;
  last_end = get_head (j);
  journal_close (j);
  sweep (check_settled);
  lose_marks ();
  sweep (check_settled);
}

/* An error that does not come again, or seldom, costs nothing. */
static void
test_transient (void)
{
  make_log ();
  for (broken.start = RING; broken.start < last_end; broken.start += SECTOR) {
    const uint64_t at = broken.start;
    unsigned times;

    for (times = 1; times <= 2; ++times) {
      broken = (struct bad_sectors) { .start = at,
                                      .end = at + SECTOR,
                                      .times = times };
      assert (try_replay () == WHOLE);
    }
    broken.start = at;
  }
  broken = (struct bad_sectors) { .start = 0 };
}

/* The next session writes to the sectors before it needs them: a batch beside
 * them could not be written otherwise.
 */
static void
test_repaired (void)
{
  struct journal *j = start ();
  uint64_t seq;

  append_flushed (j, 3000, 1);
  fold (j);
  journal_close (j);
  broken = (struct bad_sectors) { .start = RING + 10 * PAGE,
                                  .end = RING + 12 * PAGE };
  j = reopen ();
  assert (replay (j) == 0 && replayed == 1 && broken.end > 0);
  pool.epoch++;
  assert (journal_set_epoch (j, pool.epoch) == 0);
  assert (broken.end == 0);
  for (seq = 2; seq < 100; ++seq) {
    append_flushed (j, 3000, seq);
    fold (j);
  }
  journal_close (j);
  expect_last (pool.folded);

  /* A disk that cannot write them either. */
  broken = (struct bad_sectors) { .start = RING + 10 * PAGE,
                                  .end = RING + 12 * PAGE };
  j = reopen ();
  assert (replay (j) == 0);
  broken.start -= PAGE;
  pool.epoch++;
  assert (journal_set_epoch (j, pool.epoch) == -1 && errno == EIO);
  expect_text ("8192 bytes at 49152 cannot be read, nor written");
  assert (append (j, 1, pool.folded + 1) == -1);
  journal_close (j);
  broken = (struct bad_sectors) { .start = 0 };
}

/* A disk that reads hardly anything: the replay gives up. */
static void
test_too_many (void)
{
  struct journal *j = start ();
  uint64_t seq;

  for (seq = 1; file_end () < 4 << 20; ++seq)
    append_flushed (j, 100000, seq);
  fold (j);
  journal_close (j);
  last = pool.folded;
  broken = (struct bad_sectors) { .start = RING, .end = RING + (1 << 20) };
  assert (!hits (pool.position, 4 << 20));
  assert (try_replay () == WHOLE);
  broken.end += SECTOR;
  j = reopen ();
  errno = 0;
  assert (replay (j) == -1 && errno == EIO);
  expect_text ("reading 512 bytes at");
  journal_close (j);
  broken = (struct bad_sectors) { .start = 0 };
}

int
main (void)
{
  journal_begin ();
  log_hush (true);
  test_closed ();
  test_log ();
  test_wrapped ();
  test_settled ();
  test_transient ();
  test_repaired ();
  test_too_many ();
  journal_end ();
  return 0;
}
