/* SPDX-License-Identifier: BSD-3-Clause */

/* Writing the journal.
 *
 * 1. No room; growth; a full disk; failed writes and syncs.
 * 2. Random appends, syncs, folds, reopens and crashes against a model.  A
 *    crash comes at any write or sync, and keeps any of the sectors written
 *    since the last sync.  Some sectors may be unreadable then.
 * 3. Many threads.
 *
 * SEED and ROUNDS come from the environment.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include "base/error.h"
#include "base/log.h"
#include "rigs/journal-rig.h"

static void
test_room (void)
{
  struct rlimit old, limit;
  static uint64_t ends[4000];
  struct journal *j = start ();
  uint64_t live, ring, seq, pos, k, n = 0;
  int r;

  /* Without folds the journal grows to its full size and then has no room. */
  journal_get_usage (j, &live, &ring);
  assert (live == 0 && ring == JOURNAL_MIN_BYTES - JOURNAL_HEADER_BYTES);
  while ((r = append (j, 1000000, ++n)) == 0)
    ;
  assert (r == 1);
  journal_get_usage (j, &live, &ring);
  assert (ring == JOURNAL_MAX_BYTES - JOURNAL_HEADER_BYTES);
  assert (live == (n - 1) * 1000960 && ring - live < 1000960 + 512);
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

  /* A full disk: the ring stays small, and is used round and round. */
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
      /* Fold some live batches: up to a number whose end is known. */
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

static uint32_t
random_len (void)
{
  switch (random () % 64) {
  case 0:
    return random () % 300000;
  case 1:
  case 2:
  case 3:
  case 4:
    return random () % 40000;
  case 5:
    return 0;
  case 6:
    return 512 - 96;
  case 7:
    return 512 - 96 + 1;
  default:
    return random () % 3000;
  }
}

/* The last batch that the next replay must find (in the page cache, if nothing
 * crashed), that it must find after a power failure, and that it can find.
 */
static uint64_t cached, durable, last;
/* The last one whose records need no proof. */
static uint64_t vouched;

/* If the disk cannot read some sectors, the replay finds what it must, or
 * fails.
 */
static void
replay_with_bad_sectors (void)
{
  const uint64_t nr = disk.stable_len / JOURNAL_ALIGN;
  struct journal *j;
  uint64_t epoch;
  unsigned i;

  for (i = 0; i < 4; ++i) {
    const uint64_t head = pool.position ? pool.position : JOURNAL_HEADER_BYTES;
    uint64_t first = random () % nr;

    /* Half of them where they count. */
    if (i % 2 == 0)
      first = head / JOURNAL_ALIGN + random () % 64;
    broken.start = first * JOURNAL_ALIGN;
    broken.end = broken.start + (1 + random () % 8) * JOURNAL_ALIGN;
    if (random () % 2) {
      broken.start -= broken.start % 4096;
      broken.end = broken.start + 4096;
    }
    if (broken.start < JOURNAL_HEADER_BYTES)
      continue;
    j = journal_open_readonly ("journal", uuid, &epoch);
    assert (j);
    errno = 0;
    if (replay (j) == 0) {
      assert (replayed >= cached && replayed <= last);
      assert (first_suspect == 0 || first_suspect > vouched);
    }
    else
      assert (errno == EIO && replayed == pool.folded);
    journal_close (j);
  }
  broken = (struct bad_sectors) { .start = 0 };
}

/* One session: returns with the power lost or the journal closed. */
static void
session (unsigned nr_steps)
{
  struct journal *j;
  uint64_t seq, pos, cut_seq = 0, cut_pos = 0, epoch, settled_seq = 0;
  bool closed = false, cut = false;
  unsigned i;
  int r;

  replay_with_bad_sectors ();
  j = reopen ();
  r = replay (j);
  if (r == -1)
    fprintf (stderr, "%s\n", nbdedup_error ());
  assert (r == 0);
  assert (replayed >= cached && cached >= durable);
  assert (replayed <= last);
  assert (first_suspect == 0 || first_suspect > vouched);
  journal_get_end (j, &seq, &pos);
  assert (seq == replayed);
  if (!disk.crashed) {
    durable = seq;
    last = seq;
  }

  /* Fold everything, then begin a new session. */
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
      settled = random () % 4 ? JOURNAL_ITSELF : 0;
      r = append (j, random_len (), seq + 1);
      assert (r != -1);
      if (r == 1) {
        /* No room: fold all. */
        journal_get_end (j, &cut_seq, &cut_pos);
        cut = true;
        goto trim;
      }
      seq++;
      if (settled == JOURNAL_ITSELF)
        settled_seq = seq;
      if (last < seq)
        last = seq;
      break;
    case 0:
    case 1:
      assert (journal_sync (j, seq) == 0);
      if (!disk.crashed && durable < seq)
        durable = seq;
      if (!disk.crashed && vouched < settled_seq)
        vouched = settled_seq;
      break;
    case 2: /* a fold begins */
      if (!cut) {
        journal_get_end (j, &cut_seq, &cut_pos);
        assert (cut_seq == seq);
        cut = true;
      }
      break;
    case 3:
    case 4: /* and ends */
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
    /* Make a new journal from time to time, so that growth is tested, too. */
    if (i % 25 == 0) {
      if (i > 0)
        disk_stop ();
      journal_close (start ());
      cached = durable = last = vouched = 0;
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
      r = journal_append (shared, &iov, 1, &(struct iovec) { NULL, 0 },
                          JOURNAL_ITSELF, &seq);
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
count_batch (void *opaque, uint64_t seq, enum journal_trust trust,
             const uint8_t *data, size_t len)
{
  size_t i;

  (void) opaque;
  (void) trust;
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
  const char *n = getenv ("ROUNDS");

  journal_begin ();
  log_hush (true);
  test_room ();
  test_failures ();
  test_random (n ? strtoul (n, NULL, 0) : 150);
  test_threads ();
  journal_end ();
  return 0;
}
