/* SPDX-License-Identifier: BSD-3-Clause */

/* The puncher: what the allocator does while a punch takes long, or fails, and
 * after a crash.  See space-model.h.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <linux/falloc.h>
#include <sys/syscall.h>

#include "base/lock.h"
#include "format/segment.h"
#include "models/space-model.h"

#define SECTOR 512u
#define RECORD_SECTORS 128u
#define NR_SEGMENTS 40u
/* The program hangs: a deadlock. */
#define GIVE_UP_S 120

static char dir[] = "punch-XXXXXX";

/* What fallocate does. */
static struct disk {
  struct lock lock;
  struct cond changed;
  bool hold;       /* a punch waits until this is false */
  unsigned skip;   /* ... but not the next ones */
  bool full;       /* nothing can be allocated during a punch */
  bool ends;       /* the next allocation ends 'hold' */
  int punch_errno; /* not 0: a punch fails so */
  bool forget;     /* a punch frees nothing */
  unsigned nr_allocated;
  bool punching;
  off_t first; /* ... from here on, now or before */
} disk;

static void
release_disk_locked (void)
{
  disk.hold = false;
  cond_broadcast (&disk.changed);
}

static int
allocate (void)
{
  WITH_LOCK (&disk.lock);

  disk.nr_allocated++;
  if (disk.ends)
    release_disk_locked ();
  if (!disk.full || !disk.punching)
    return 0;
  errno = ENOSPC;
  return -1;
}

static void
begin_punch (off_t offset)
{
  WITH_LOCK (&disk.lock);

  if (disk.skip > 0) {
    disk.skip--;
    return;
  }
  disk.punching = true;
  disk.first = offset;
  cond_broadcast (&disk.changed);
  while (disk.hold)
    lock_wait (&disk.lock, &disk.changed);
}

static void
end_punch (void)
{
  WITH_LOCK (&disk.lock);

  disk.punching = false;
  cond_broadcast (&disk.changed);
}

extern int fallocate (int fd, int mode, off_t offset, off_t len);

int
fallocate (int fd, int mode, off_t offset, off_t len)
{
  int r = 0, err;

  if (!(mode & FALLOC_FL_PUNCH_HOLE))
    return allocate () == -1
      ? -1
      : (int) syscall (SYS_fallocate, fd, mode, offset, len);
  begin_punch (offset);
  if (disk.punch_errno != 0) {
    errno = disk.punch_errno;
    r = -1;
  }
  else if (!disk.forget)
    r = (int) syscall (SYS_fallocate, fd, mode, offset, len);
  err = errno;
  end_punch ();
  errno = err;
  return r;
}

static void
hold_punches (void)
{
  WITH_LOCK (&disk.lock);
  disk.hold = true;
}

static void
release_punches (void)
{
  WITH_LOCK (&disk.lock);
  release_disk_locked ();
}

static void *
release_later (void *arg)
{
  poll (NULL, 0, 100);
  release_punches ();
  return arg;
}

static void
wait_for_punch (void)
{
  WITH_LOCK (&disk.lock);
  while (!disk.punching)
    lock_wait (&disk.lock, &disk.changed);
}

static unsigned
nr_allocated (void)
{
  WITH_LOCK (&disk.lock);
  return disk.nr_allocated;
}

/*----------------------------------------------------------------------
 * Records with content
 */

static unsigned
nr_segments (void)
{
  struct space_info info;

  space_get_info (space, &info);
  return (unsigned) info.nr_segments;
}

static void
begin (bool puncher)
{
  with_puncher = puncher;
  budget = 1 << 20;
  start (SECTOR);
}

/* Each record has its address as content. */
static void
write_records (void)
{
  static uint64_t buf[RECORD_SECTORS * SECTOR / 8];
  unsigned i, k;

  for (i = 0; i < MAX_RECORDS; ++i)
    if (records[i].state == ALLOCATED) {
      for (k = 0; k < sizeof buf / 8; ++k)
        buf[k] = records[i].p.addr + 1;
      assert (store_write (store, records[i].p.addr, buf, sizeof buf) == 0);
    }
}

static void
check_records (void)
{
  static uint64_t buf[RECORD_SECTORS * SECTOR / 8];
  unsigned i, k;

  for (i = 0; i < MAX_RECORDS; ++i)
    if (records[i].state == COMMITTED) {
      assert (store_read (store, records[i].p.addr, buf, sizeof buf) == 0);
      for (k = 0; k < sizeof buf / 8; ++k)
        assert (buf[k] == records[i].p.addr + 1);
    }
  check_info ();
}

/* Write and commit records that fill so many segments. */
static void
fill (unsigned nr)
{
  const uint64_t until = live_sectors + (uint64_t) nr * nr_sectors * 31 / 32;
  const uint32_t size = RECORD_SECTORS;

  while (live_sectors < until)
    assert (alloc (1, &size) == 1);
  write_records ();
  fold (0);
}

/* Segments that become empty; the first ones are being punched on return, and
 * the others are in the queue.
 */
static void
hold_up_punches (void)
{
  unsigned i;

  begin (true);
  fill (NR_SEGMENTS);
  hold_punches ();
  for (i = 0; i < MAX_RECORDS; ++i)
    records[i].doomed = records[i].p.addr / nr_sectors <
      SPACE_SPARE_SEGMENTS + 2;
  fold (0);
  wait_for_punch ();
  fold (100);
  assert (nr_segments () > NR_SEGMENTS - SPACE_SPARE_SEGMENTS);
}

/*----------------------------------------------------------------------
 * Cases
 */

/* Neither the fold nor an allocation waits for a punch, and what is allocated
 * meanwhile is not punched.
 */
static void
test_slow (void)
{
  unsigned before;

  hold_up_punches ();
  /* The queue has room for these. */
  before = nr_allocated ();
  fill (NR_SEGMENTS / 2);
  assert (nr_allocated () == before);
  /* Not for these. */
  fill (NR_SEGMENTS);
  assert (nr_allocated () > before);
  release_punches ();
  space_settle (space);
  check_records ();
  fold (100);
  space_settle (space);
  assert (nr_segments () == SPACE_SPARE_SEGMENTS);
  assert (store_file_bytes (store) <=
          (SPACE_SPARE_SEGMENTS + 1) * (uint64_t) SEGMENT_BYTES);
  close_space ();
}

/* A disk is full until a punch has ended: reservations wait for it. */
static void
test_full (void)
{
  unsigned n, before;

  hold_up_punches ();
  before = nr_segments ();
  disk.full = disk.ends = true;
  for (n = 0; nr_segments () <= before; ++n)
    assert (space_reserve (space, 65536, 1) == 0);
  disk.full = disk.ends = false;
  space_unreserve (space, 65536, n);
  space_settle (space);
  check_info ();
  close_space ();
}

/* The file keeps its space, and the segments are used again. */
static void
test_failing (void)
{
  begin (true);
  fill (NR_SEGMENTS);
  disk.punch_errno = EIO;
  fold (100);
  space_settle (space);
  assert (nr_segments () == SPACE_SPARE_SEGMENTS);
  fill (NR_SEGMENTS);
  disk.punch_errno = 0;
  check_records ();
  assert (length_of (store) <= (NR_SEGMENTS + 2) * (uint64_t) SEGMENT_BYTES);
  close_space ();
}

/* The puncher is in the middle of its work. */
static void
test_close (void)
{
  pthread_t thread;

  hold_up_punches ();
  assert (pthread_create (&thread, NULL, release_later, NULL) == 0);
  close_space ();
  pthread_join (thread, NULL);
  with_puncher = false;
  open_space ();
  assert (store_file_bytes (store) < SEGMENT_BYTES);
  close_space ();
}

/* Make a file in which most segments were free when a crash came; records are
 * left in the middle, and past them there is more.
 */
static void
make_leftovers (void)
{
  unsigned i;

  begin (false);
  fill (NR_SEGMENTS);
  for (i = 0; i < MAX_RECORDS; ++i)
    records[i].doomed = records[i].p.addr / nr_sectors != NR_SEGMENTS / 2;
  disk.forget = true;
  fold (0);
  close_space ();
  disk.forget = false;
  open_space ();
  assert (nr_segments () == 1);
  assert (store_file_bytes (store) >= NR_SEGMENTS * (uint64_t) SEGMENT_BYTES);
}

static void
test_leftovers (void)
{
  make_leftovers ();
  assert (space_start_puncher (space, true) == 0);
  while (store_file_bytes (store) > 2 * (uint64_t) SEGMENT_BYTES)
    poll (NULL, 0, 5);
  check_records ();
  fill (NR_SEGMENTS);
  check_records ();
  close_space ();
}

/* Clients need room while the end of the file is punched, or, after that, what
 * is in front of the records.
 */
static void
test_leftovers_are_busy (unsigned skip)
{
  pthread_t thread;
  unsigned n;

  make_leftovers ();
  hold_punches ();
  disk.skip = skip;
  assert (space_start_puncher (space, true) == 0);
  wait_for_punch ();
  assert (pthread_create (&thread, NULL, release_later, NULL) == 0);
  for (n = 0; nr_segments () < NR_SEGMENTS; ++n)
    assert (space_reserve (space, 65536, 1) == 0);
  pthread_join (thread, NULL);
  space_settle (space);
  check_records ();
  space_unreserve (space, 65536, n);
  close_space ();
}

/* A repair may find records there. */
static void
test_leftovers_stay (void)
{
  make_leftovers ();
  assert (space_start_puncher (space, false) == 0);
  space_stop_puncher (space);
  assert (store_file_bytes (store) >= NR_SEGMENTS * (uint64_t) SEGMENT_BYTES);
  close_space ();
}

/* "check --repair" holds a segment: not before its punch has ended. */
static void
test_hold (void)
{
  pthread_t thread;
  uint64_t punched;

  hold_up_punches ();
  punched = (uint64_t) disk.first / SEGMENT_BYTES;
  assert (pthread_create (&thread, NULL, release_later, NULL) == 0);
  assert (space_hold (space, punched) == 0);
  pthread_join (thread, NULL);
  space_settle (space);
  check_info ();
  close_space ();
}

int
main (void)
{
  char cmd[64];

  alarm (GIVE_UP_S);
  lock_init (&disk.lock);
  cond_init (&disk.changed);
  assert (mkdtemp (dir) != NULL && chdir (dir) == 0);
  test_slow ();
  test_full ();
  test_failing ();
  test_close ();
  test_leftovers ();
  test_leftovers_are_busy (0);
  test_leftovers_are_busy (1);
  test_leftovers_stay ();
  test_hold ();
  forget_rows ();
  assert (chdir ("..") == 0);
  snprintf (cmd, sizeof cmd, "rm -rf %s", dir);
  assert (system (cmd) == 0);
  return 0;
}
