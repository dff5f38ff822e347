/* SPDX-License-Identifier: BSD-3-Clause */

/* The allocator, against a model (space-model.h).
 *
 * 1. Random reservations, allocations, folds and crashes, for every sector
 *    size, with and without memory for the maps, with and without a puncher,
 *    on a large and a small disk.  Records and chunks in use never overlap; an allocation that
 *    was reserved never fails; at the end everything is free and given
 *    back.
 * 2. A full, fragmented disk: what can be reserved can be allocated.
 * 3. Freed space is used again before the file grows where disk space is short;
 *    else batches lie together, and the file grows by a bounded part.
 * 4. max-size.
 * 5. Chunks whose place a crash forgot.
 * 6. Damaged rows and claims from a damaged journal.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "base/backoff.h"
#include "base/error.h"
#include "format/segment.h"
#include "models/space-model.h"

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__

/* (A sanitizer's cannot be replaced.) */
extern void *__libc_calloc (size_t nr, size_t len);

static volatile bool calloc_fails;

void *
calloc (size_t nr, size_t len)
{
  if (!calloc_fails)
    return __libc_calloc (nr, len);
  errno = ENOMEM;
  return NULL;
}

#endif

/* Maps read by all runs of test_random with little memory.  A single run, with
 * a seed in many, needs none.
 */
static unsigned nr_loads_small;

/* Of the file system, for store_get_fs. */
static unsigned free_percent = 100;

int
fstatvfs (int fd, struct statvfs *fs)
{
  (void) fd;
  memset (fs, 0, sizeof *fs);
  fs->f_frsize = 4096;
  fs->f_blocks = 100 << 20;
  fs->f_bfree = fs->f_bavail = free_percent << 20;
  return 0;
}

static char dir[] = "space-XXXXXX";

#define MAX_RESERVATIONS 64
static struct {
  uint32_t lsize;
  unsigned nr;
} reservations[MAX_RESERVATIONS];
static unsigned nr_reservations;

static void
reserve_some (uint64_t *refused)
{
  uint32_t lsize = 4096 << (rnd (8) ? rnd (5) : rnd (9));
  unsigned nr = 1 + rnd (lsize > 65536 ? 2 : MAX_BATCH);

  if (lsize < sector_bytes)
    lsize = sector_bytes;
  if (nr_reservations == MAX_RESERVATIONS)
    return;
  errno = 0;
  if (space_reserve (space, lsize, nr) == -1) {
    if (errno != ENOSPC)
      fprintf (stderr, "%s\n", nbdedup_error ());
    assert (errno == ENOSPC);
    (*refused)++;
    return;
  }
  reservations[nr_reservations].lsize = lsize;
  reservations[nr_reservations].nr = nr;
  nr_reservations++;
}

/* Allocate a copy, in a segment for which there may be no reservation. */
static void
copy_one (uint32_t size)
{
  const uint64_t segments[] = { rnd (4), rnd (8) };

  errno = 0;
  if (!alloc_apart (size, segments, 1 + rnd (2)))
    assert (errno == ENOSPC);
}

/* Use up a reservation, or release parts of it, as for duplicates and holes. */
static void
use_some (void)
{
  uint32_t sizes[MAX_BATCH], max;
  unsigned i, k, n, dead, way;

  if (nr_reservations == 0)
    return;
  k = rnd (nr_reservations);
  max = reservations[k].lsize / sector_bytes;
  way = rnd (4);
  dead = 0;
  for (n = 0; n < reservations[k].nr;) {
    unsigned want = 1 + rnd (reservations[k].nr - n);

    for (i = 0; i < want; ++i)
      sizes[i] = way == 0 ? max : way == 1 ? 1 : 1 + rnd (max);
    /* Copies pin maps in all segments, so that none has to be read. */
    if (want == 1 && budget > 0 && rnd (4) == 0)
      copy_one (sizes[0]);
    else if (want == 1 && budget > 0 && rnd (4) == 0) {
      if (!alloc_dense (sizes[0]))
        assert (errno == ENOSPC);
    }
    else if (rnd (8) != 0) {
      if (alloc (want, sizes) != want) {
        fprintf (stderr, "promise broken: %s\n", nbdedup_error ());
        abort ();
      }
    }
    else
      dead += want;
    space_unreserve (space, reservations[k].lsize, want);
    n += want;
  }
  reservations[k] = reservations[--nr_reservations];
}

static void
unreserve_all (void)
{
  while (nr_reservations > 0) {
    nr_reservations--;
    space_unreserve (space, reservations[nr_reservations].lsize,
                     reservations[nr_reservations].nr);
  }
}

static void
test_random (uint32_t sector, bool small_disk, bool small_memory,
             unsigned rounds)
{
  struct rlimit old, limit;
  struct space_info info;
  uint64_t refused = 0, crashes = 0, folds = 0;
  unsigned round, kill = 10;

  budget = small_memory ? 0 : 1 << 20;
  with_puncher = rnd (2);
  free_percent = rnd (2) * 100;
  start (sector);
  nr_loads = 0;
  assert (getrlimit (RLIMIT_FSIZE, &old) == 0);
  limit = old;
  limit.rlim_cur = (small_disk ? 6 : MAX_SEGMENTS) * (uint64_t) SEGMENT_BYTES;
  assert (setrlimit (RLIMIT_FSIZE, &limit) == 0);

  for (round = 0; round < rounds; ++round) {
    if (rnd (64) == 0)
      drain ((uint64_t) (1 + rnd (8)) * SEGMENT_BYTES / 2);
    if (rnd (32) == 0)
      undrain ();
    if (rnd (100) == 0)
      kill = rnd (4) == 0 ? rnd (100) : rnd (20);
    switch (rnd (16)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
      reserve_some (&refused);
      break;
    case 5:
    case 6:
    case 7:
    case 8:
    case 9:
    case 10:
      use_some ();
      break;
    case 11:
    case 12:
    case 13:
      if (folding) {
        fold_end ();
        folds++;
      }
      else
        fold_begin (nr_in_state (FREE) < 20000 ||
                        live_sectors * sector > limit.rlim_cur / 10 * 9
                      ? 70
                      : kill);
      break;
    case 14:
      if (rnd (16) == 0) {
        nr_reservations = 0;
        crash ();
        crashes++;
      }
      break;
    case 15:
      /* Without a reservation it may fail, and then changes nothing. */
      {
        uint32_t sizes[MAX_BATCH];
        unsigned i, nr = 1 + rnd (MAX_BATCH);

        if (nr_reservations > 0)
          break;
        for (i = 0; i < nr; ++i)
          sizes[i] = 1 + rnd ((1 << 16) / sector);
        if (alloc (nr, sizes) == 0)
          assert (errno == ENOSPC);
      }
      break;
    }
    check_info ();
  }
  if (folding)
    fold_end ();
  undrain ();
  unreserve_all ();
  fold (0);
  fold (100);
  fold (100);
  assert (live_sectors == 0 && nr_in_state (FREE) == MAX_RECORDS);
  space_settle (space);
  space_get_info (space, &info);
  assert (info.nr_segments <= SPACE_SPARE_SEGMENTS);
  assert (info.reserved_bytes == 0);
  assert (info.used_bytes <= STORE_HEADER_BYTES);
  assert (folds > 0);
  /* These numbers depend on the seed. */
  printf ("%u crashes, %u reservations refused\n", (unsigned) crashes,
          (unsigned) refused);
  if (small_memory)
    nr_loads_small += nr_loads;
  close_space ();
  with_puncher = false;
  assert (setrlimit (RLIMIT_FSIZE, &old) == 0);
}

/* Reserve as much as possible, and use it. */
static unsigned
use_all (uint32_t lsize)
{
  uint32_t size = lsize / sector_bytes;
  unsigned i, n;

  for (n = 0; space_reserve (space, lsize, 1) == 0; ++n)
    ;
  assert (errno == ENOSPC);
  for (i = 0; i < n; ++i)
    if (alloc (1, &size) != 1) {
      fprintf (stderr, "sector %u: promise of %u bytes broken, %u of %u\n",
               sector_bytes, lsize, i, n);
      abort ();
    }
  if (n > 0)
    space_unreserve (space, lsize, n);
  return n;
}

/* On a disk that cannot grow, everything that can be reserved can be allocated:
 * when it is new, has holes everywhere, or is full except for one hole per
 * segment.
 */
static void
test_promise (uint32_t sector)
{
  struct rlimit old, limit;
  uint32_t size = 49152 / sector, lsize, r;
  const uint32_t least = sector < 4096 ? 4096 : sector;
  uint64_t s;
  unsigned total;

  budget = 0;
  assert (getrlimit (RLIMIT_FSIZE, &old) == 0);
  limit = old;
  limit.rlim_cur = 5 * (uint64_t) SEGMENT_BYTES;
  start (sector);
  assert (setrlimit (RLIMIT_FSIZE, &limit) == 0);

  for (lsize = least; lsize <= 1 << 20; lsize *= 2) {
    total = use_all (lsize);
    assert (total >= (lsize == 1 << 20 ? 10 : (14 << 20) / lsize));
    fold (0);
    fold (100);
  }

  while (alloc (1, &size) == 1)
    ;
  assert (errno == ENOSPC);
  fold (0);
  fold (40);
  for (lsize = 1 << 20, total = 0; lsize >= least; lsize /= 2)
    total += use_all (lsize);
  /* A good part of the free 40 % can be reserved. */
  assert (total > 50);

  fold (0);
  fold (100);
  while (alloc (1, &size) == 1)
    ;
  fold (0);
  /* Free two neighbours in the middle of each segment: 96 KiB. */
  for (s = nr_sectors / 2; s < 5 * (uint64_t) nr_sectors; s += nr_sectors) {
    r = owner[s];
    assert (r != 0 && r != CHUNK_OWNER);
    records[r - 1].doomed = true;
    r = owner[records[r - 1].p.addr + size];
    if (r != 0 && r != CHUNK_OWNER)
      records[r - 1].doomed = true;
  }
  fold (0);
  for (lsize = 1 << 20; lsize >= least; lsize /= 2)
    use_all (lsize);

  fold (0);
  fold (100);
  close_space ();
  assert (setrlimit (RLIMIT_FSIZE, &old) == 0);
}

/* A new pool, and the sizes of a batch of records of 16 KiB. */
static void
start_blocks (uint32_t sector, uint32_t sizes[MAX_BATCH])
{
  unsigned i;

  budget = 1 << 20;
  start (sector);
  for (i = 0; i < MAX_BATCH; ++i)
    sizes[i] = 16384 / sector;
}

/* A disk image is overwritten at random, several times its size. */
static void
test_reuse (uint32_t sector, bool plenty)
{
  struct space_info info;
  uint32_t sizes[MAX_BATCH];
  unsigned i, round, want;
  const uint32_t lsize = 16384;
  const uint64_t image = 24 * (uint64_t) SEGMENT_BYTES;
  /* The free runs that may stay unused. */
  const unsigned left = plenty ? 24 / 4 + (64 << 20) / SEGMENT_BYTES + 1 : 0;

  free_percent = plenty ? 26 : 25;
  start_blocks (sector, sizes);
  for (round = 0; round < 12; ++round) {
    while (live_sectors * sector < image) {
      want = 1 + rnd (MAX_BATCH);
      assert (space_reserve (space, lsize, want) == 0);
      assert (alloc (want, sizes) == want);
      space_unreserve (space, lsize, want);
    }
    fold (0);
    space_get_info (space, &info);
    /* The image, its slots, the unusable ends, the reservation of one batch,
     * and the spare segments.
     */
    if (info.nr_segments > 24 * 21 / 20 + 1 + SPACE_SPARE_SEGMENTS + 1 + left) {
      fprintf (stderr, "sector %u round %u: %" PRIu64 " segments\n", sector,
               round, info.nr_segments);
      abort ();
    }
    fold (30);
  }

  /* The same after a reopen, when no slots are known. */
  fold (0);
  space_get_info (space, &info);
  i = info.nr_segments;
  close_space ();
  open_space ();
  while (live_sectors * sector < image - image / 20) {
    want = 1 + rnd (8);
    assert (alloc (want, sizes) == want);
  }
  space_get_info (space, &info);
  assert (info.nr_segments <= i);
  fold (0);

  /* And it shrinks. */
  fold (100);
  space_get_info (space, &info);
  assert (info.nr_segments == SPACE_SPARE_SEGMENTS);
  assert (store_file_bytes (store) <=
          (SPACE_SPARE_SEGMENTS + 1) * (uint64_t) SEGMENT_BYTES);
  close_space ();
}

/* The segments that hold the records of one batch. */
static unsigned
count_segments (unsigned nr, const struct placement *place)
{
  unsigned i, j, n = 0;

  for (i = 0; i < nr; ++i) {
    for (j = 0; j < i; ++j)
      if (place[j].addr / nr_sectors == place[i].addr / nr_sectors)
        break;
    n += j == i;
  }
  return n;
}

static unsigned
count_runs (uint32_t size, const struct placement *place)
{
  unsigned i, n = 1;

  for (i = 1; i < MAX_BATCH; ++i)
    n += place[i].addr != place[i - 1].addr + size;
  return n;
}

/* One record in four is free, all over 32 segments: a batch begins a new
 * segment, except for what fills a run of 64 KiB; if it may not, its records
 * lie in the sparsest ones.
 */
static void
test_together (uint32_t sector)
{
  const uint32_t size = 16384 / sector;
  uint32_t sizes[MAX_BATCH];
  struct placement place[MAX_BATCH], all[8 * MAX_BATCH];
  struct space_info before, info;
  unsigned i;

  start_blocks (sector, sizes);
  free_percent = 0;
  while (live_sectors * sector < 32 * (uint64_t) SEGMENT_BYTES)
    assert (alloc (1, &size) == 1);
  fold (0);
  fold (25);
  space_get_info (space, &before);

  do /* the last segment had room */
    assert (space_alloc (space, MAX_BATCH, sizes, place) == 0);
  while (count_runs (size, place) <= 6);
  assert (count_segments (MAX_BATCH, place) <= 3);
  for (i = 0; i < 8; ++i)
    assert (space_alloc (space, MAX_BATCH, sizes, all + i * MAX_BATCH) == 0);
  assert (count_segments (8 * MAX_BATCH, all) <= 11);
  space_get_info (space, &info);
  assert (info.nr_segments == before.nr_segments);

  free_percent = 100;
  assert (space_alloc (space, MAX_BATCH, sizes, place) == 0);
  assert (count_runs (size, place) <= 6);
  space_get_info (space, &info);
  assert (info.nr_segments == before.nr_segments + 1);
  close_space ();
}

/* Batches that are written in order leave nothing free between them. */
static void
test_dense (uint32_t sector)
{
  uint32_t sizes[MAX_BATCH];
  struct space_info info;

  start_blocks (sector, sizes);
  free_percent = 100;
  while (live_sectors * sector < 32 * (uint64_t) SEGMENT_BYTES)
    assert (alloc (MAX_BATCH, sizes) == MAX_BATCH);
  space_get_info (space, &info);
  assert (info.nr_segments <= 34);
  fold (0);
  fold (100);
  close_space ();
}

static void
test_max (uint32_t sector)
{
  struct space_info info;
  uint32_t size = 65536 / sector;
  unsigned n = 0, again = 0;
  const uint64_t max = 20 << 20;

  budget = 1 << 20;
  start (sector);
  space_set_max (space, max);
  while (space_reserve (space, 65536, 1) == 0) {
    assert (alloc (1, &size) == 1);
    space_unreserve (space, 65536, 1);
    n++;
  }
  assert (errno == ENOSPC && strstr (nbdedup_error (), "max-size"));
  space_get_info (space, &info);
  assert (info.used_bytes <= max && info.used_bytes >= max - 200000);
  fold (50);
  while (space_reserve (space, 65536, 1) == 0) {
    assert (alloc (1, &size) == 1);
    space_unreserve (space, 65536, 1);
    again++;
  }
  assert (again > n / 4 && again < n * 3 / 4);
  space_set_max (space, 0);
  assert (space_reserve (space, 65536, 1) == 0);
  space_unreserve (space, 65536, 1);
  fold (100);
  close_space ();
}

/* The journal has only the last one of a segment's many records. */
static void
test_lost_chunks (uint32_t sector)
{
  uint32_t one = 1;
  unsigned i, last = 0, n = 3 * spc;

  budget = 0;
  start (sector);
  n = 3 * spc;
  if (n > nr_sectors / 2)
    n = nr_sectors / 2;
  for (i = 0; i < n; ++i)
    assert (alloc (1, &one) == 1);
  for (i = 0; i < MAX_RECORDS; ++i)
    if (records[i].state == ALLOCATED &&
        records[i].p.slot / spc >= records[last].p.slot / spc)
      last = i;
  assert (records[last].p.slot > spc);

  close_space ();
  for (i = 0; i < MAX_RECORDS; ++i)
    if (i != last && records[i].state == ALLOCATED)
      drop (i);
  open_space ();
  assert (space_claim (space, &records[last].p, 1, false) == 0);
  /* Allocate more records between folds and reopens.  They go to the known
   * chunk, and then to lost chunks, which are placed again.
   */
  for (i = 0; i < 20; ++i)
    assert (alloc (1, &one) == 1);
  fold (0);
  for (i = 0; i < n; ++i)
    assert (alloc (1, &one) == 1);
  fold (10);
  close_space ();
  open_space ();
  for (i = 0; i < n; ++i)
    assert (alloc (1, &one) == 1);
  fold (0);
  fold (100);
  close_space ();
}

/* The map shows some of a record's sectors as used by another: neither is given
 * to a third, and the death of the one frees nothing of the other.
 */
static void
test_unclear_claim (void)
{
  const uint64_t base = 9 * 8192;
  struct placement p = { base + 100, 1, base };
  struct space_info info;
  uint64_t used;

  assert (space_claim (space, &p, 10, true) == 0);
  space_get_info (space, &info);
  used = info.used_bytes;
  p = (struct placement) { base + 104, 2, base };
  assert (space_claim (space, &p, 10, true) == 0);
  space_get_info (space, &info);
  assert (info.used_bytes == used + 4 * 512);
  release (p.addr, 10, 2);
  space_get_info (space, &info);
  assert (info.used_bytes == used + 4 * 512);
  release (base + 100, 10, 1);
  space_get_info (space, &info);
  assert (info.used_bytes == used - 6 * 512);
}

static void
test_damage (void)
{
  struct placement p;
  uint32_t size = 100;
  unsigned i, k;
  uint64_t bad;

  budget = 0;
  start (512);
  assert (space_add_segment (space, 0, 0, 0) == -1 && errno == EIO);
  assert (strstr (nbdedup_error (), "truncated"));
  for (i = 0; i < 300; ++i)
    assert (alloc (1, &size) == 1);
  fold (30);
  close_space ();
  open_space ();
  assert (space_add_segment (space, 0, 0, 0) == -1 && errno == EIO);
  assert (space_add_segment (space, 1000, 0, 0) == -1 && errno == EIO);
  assert (space_add_segment (space, UINT64_MAX, 0, 0) == -1);

  /* A damaged row takes only its own segment out of use. */
  for (k = 0; records[k].state != COMMITTED; ++k)
    ;
  bad = records[k].p.addr / nr_sectors;
  damaged_segment = bad;
  for (i = 0; i < 100; ++i) {
    assert (alloc (1, &size) == 1);
  }
  for (i = 0; i < MAX_RECORDS; ++i)
    if (records[i].state == ALLOCATED)
      assert (records[i].p.addr / nr_sectors != bad);
  assert (space_unlink (space, records[k].p.addr) == -1 && errno == EIO);
  assert (space_unlink (space, UINT64_MAX) == -1 && errno == EIO);
  damaged_segment = -1;

  /* Impossible claims. */
#define BAD(a, s, c, n)                                                        \
  do {                                                                         \
    p = (struct placement) { .addr = a, .slot = s, .chunk_addr = c };          \
    errno = 0;                                                                 \
    assert (space_claim (space, &p, n, false) == -1 && errno == EIO);          \
  } while (0)
  BAD (UINT64_MAX, 1, UINT64_MAX, 1);
  BAD (UINT64_MAX / 2, 1, UINT64_MAX / 2, 1);
  BAD (5 * 8192 + 100, 1, 5 * 8192, 0);
  BAD (5 * 8192 + 100, 1, 5 * 8192, 8192);
  BAD (5 * 8192 + 100, 1, 5 * 8192, UINT32_MAX);
  BAD (5 * 8192 + 100, 1, 6 * 8192, 1);
  BAD (5 * 8192 + 100, 1, 5 * 8192 + 1, 1);
  BAD (5 * 8192 + 100, 64, 5 * 8192, 1);
  BAD (5 * 8192 + 100, 65535, 5 * 8192, 1);
  BAD (5 * 8192 + 0, 1, 5 * 8192, 1);
  BAD (0, 1, 1024, 1);
  BAD (1024, 1, 0, 1);
  p = (struct placement) { .addr = 9 * 8192 + 100,
                           .slot = 1,
                           .chunk_addr = 9 * 8192 };
  assert (space_claim (space, &p, 10, false) == 0);
  assert (length_of (store) == 10 * (uint64_t) SEGMENT_BYTES);
  release (p.addr, 10, 1);
  test_unclear_claim ();
  close_space ();
}

/* Space that was chosen for a batch that failed for lack of memory is punched,
 * and not written to afterwards.
 */
static void
test_no_memory (void)
{
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
  uint32_t size = 4000;
  struct space_info info;
  void *volatile probe;
  unsigned i;

  /* valgrind calls a calloc of its own: then nothing fails here. */
  calloc_fails = true;
  probe = calloc (1, 1);
  calloc_fails = false;
  free (probe);
  if (probe)
    return;

  budget = 1 << 20;
  start (512);
  for (i = 0; i < 2 * (SPACE_SPARE_SEGMENTS + 2); ++i)
    assert (alloc (1, &size) == 1);
  backoff_is_off = calloc_fails = true;
  assert (alloc (1, &size) == 0 && errno == ENOMEM);
  backoff_is_off = calloc_fails = false;
  fold (100);
  space_get_info (space, &info);
  assert (info.nr_segments == SPACE_SPARE_SEGMENTS);
  assert (alloc (1, &size) == 1);
  check_info ();
  fold (100);
  close_space ();
#endif
}

int
main (void)
{
  const char *s = getenv ("SEED"), *n = getenv ("ROUNDS");
  const unsigned seed = s ? strtoul (s, NULL, 0) : (unsigned) time (NULL);
  const unsigned rounds = n ? strtoul (n, NULL, 0) : 1500;
  uint32_t sector;
  char cmd[64];
  unsigned i;

  printf ("SEED=%u\n", seed);
  fflush (stdout);
  srandom (seed);
  signal (SIGXFSZ, SIG_IGN);
  assert (mkdtemp (dir) != NULL && chdir (dir) == 0);
  for (sector = 512; sector <= 8192; sector *= 2) {
    for (i = 0; i < 4; ++i)
      test_random (sector, i & 1, i & 2, rounds);
    test_promise (sector);
    test_reuse (sector, false);
    test_reuse (sector, true);
    test_together (sector);
    test_dense (sector);
    test_max (sector);
    test_lost_chunks (sector);
  }
  assert (nr_loads_small > 0);
  test_damage ();
  test_no_memory ();
  forget_rows ();
  assert (chdir ("..") == 0);
  snprintf (cmd, sizeof cmd, "rm -rf %s", dir);
  assert (system (cmd) == 0);
  return 0;
}
