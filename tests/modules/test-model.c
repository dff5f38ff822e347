/* SPDX-License-Identifier: BSD-3-Clause */

/* The engine against an array in memory.
 *
 * First several threads, each owning pieces of the volumes; the pieces are not
 * aligned to blocks, so most blocks have several owners whose
 * read-modify-writes race.  Then threads that write equal contents at the
 * same moment.  After each phase every byte, "check", and the figures of
 * "stat" must be what the model says.  At the end one thread works alone, so
 * that the number of records is known exactly.
 *
 * SEED and MODEL_SECONDS (of random load, default 6) come from the
 * environment.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "rigs/pool-util.h"

#define NR_THREADS 8
#define NR_DISKS 4
#define NR_DUPS 40
#define MAX_REQUEST (UINT32_C (1) << 20)

struct disk {
  char name[8];
  const char *dedup, *compress;
  uint32_t block_size;
  uint64_t size, nr_blocks;
  uint8_t *data;    /* the expected content */
  uint64_t *bounds; /* of the pieces; piece i has owner i % N */
  unsigned nr_pieces;
  struct nbdedup_volume *volumes[2];
};

struct nbdedup_pool *pool;
static struct disk disks[NR_DISKS];
static char directory[PATH_MAX];
static uint64_t seed, load_ms;
static atomic_bool stop;
static _Atomic uint64_t nr_requests;
static pthread_barrier_t barrier;

static void
open_pool (const struct nbdedup_settings *settings)
{
  unsigned i, j;

  pool = nbdedup_pool_open (directory, settings, "test-model", 0);
  if (pool == NULL)
    die ("SEED=%" PRIu64 " open: %s", seed, nbdedup_error ());
  for (i = 0; i < NR_DISKS; ++i)
    for (j = 0; disks[i].data && j < 2; ++j) {
      disks[i].volumes[j] = nbdedup_volume_open (pool, disks[i].name, 0, -1,
                                                 NULL);
      if (disks[i].volumes[j] == NULL)
        die ("SEED=%" PRIu64 " %s: %s", seed, disks[i].name, nbdedup_error ());
      if (nbdedup_volume_size (disks[i].volumes[j]) != disks[i].size)
        die ("%s: size is %" PRIu64, disks[i].name,
             nbdedup_volume_size (disks[i].volumes[j]));
    }
}

static void
close_pool (void)
{
  unsigned i, j;

  for (i = 0; i < NR_DISKS; ++i)
    for (j = 0; disks[i].data && j < 2; ++j)
      nbdedup_volume_close (disks[i].volumes[j]);
  must (nbdedup_pool_close (pool));
}

/*----------------------------------------------------------------------
 * Checks while no requests run
 */

static void
compare (const struct disk *d, uint64_t offset, uint64_t len,
         const uint8_t *buf, const char *when)
{
  expect_bytes (when, d->name, d->block_size, offset, len, buf,
                d->data + offset);
}

static void
verify_data (const char *when)
{
  uint8_t *buf = xmalloc (MAX_REQUEST);
  uint64_t offset, n;
  unsigned i;

  for (i = 0; i < NR_DISKS; ++i)
    for (offset = 0; disks[i].data && offset < disks[i].size; offset += n) {
      n = disks[i].size - offset;
      if (n > MAX_REQUEST)
        n = MAX_REQUEST;
      must (nbdedup_volume_read (disks[i].volumes[0], buf, n, offset));
      compare (&disks[i], offset, n, buf, when);
    }
  free (buf);
}

struct figures {
  uint64_t logical[NR_DISKS];
  uint64_t records, record_bytes; /* the minimum */
};

/* Count the figures as nbdedup-stat(1) defines them, by comparing all blocks.
 */
static struct figures
count_figures (void)
{
  struct figures f = { 0 };
  struct content_ref *refs;
  uint64_t i, nr = 0;
  unsigned d;

  for (d = 0; d < NR_DISKS; ++d)
    nr += disks[d].nr_blocks;
  refs = xcalloc (nr, sizeof refs[0]);
  nr = 0;
  for (d = 0; d < NR_DISKS; ++d)
    for (i = 0; disks[d].data && i < disks[d].nr_blocks; ++i) {
      const uint8_t *p = disks[d].data + i * disks[d].block_size;

      if (all_zero (p, disks[d].block_size))
        continue;
      f.logical[d] += disks[d].block_size;
      if (strcmp (disks[d].dedup, "off") == 0) {
        f.records++;
        f.record_bytes += disks[d].block_size;
      }
      else
        refs[nr++] = (struct content_ref) { p, disks[d].block_size };
    }
  nr = distinct_contents (refs, nr);
  f.records += nr;
  for (i = 0; i < nr; ++i)
    f.record_bytes += refs[i].len;
  free (refs);
  return f;
}

static uint64_t
integer (json_t *object, const char *key)
{
  json_t *v = json_object_get (object, key);

  if (!json_is_integer (v))
    die ("stat: no integer %s", key);
  return json_integer_value (v);
}

static void
verify_figures (const char *when, bool exact)
{
  struct figures f = count_figures ();
  json_t *stat = call ("stat", json_object ());
  json_t *figures = json_object_get (stat, "pool"), *v;
  uint64_t n, logical = 0;
  size_t i;
  unsigned d;

  json_array_foreach (json_object_get (stat, "volumes"), i, v)
    for (d = 0; d < NR_DISKS; ++d)
      if (strcmp (json_string_value (json_object_get (v, "name")),
                  disks[d].name) == 0) {
        n = integer (v, "logical_bytes");
        logical += n;
        if (n != f.logical[d] || integer (v, "own_bytes") != n ||
            integer (v, "size") != disks[d].size ||
            integer (v, "block_size") != disks[d].block_size)
          die ("SEED=%" PRIu64 " %s: stat %s: logical_bytes %" PRIu64
               ", expected %" PRIu64 " (own_bytes %" PRIu64 ")",
               seed, when, disks[d].name, n, f.logical[d],
               integer (v, "own_bytes"));
      }
  if (integer (figures, "logical_bytes") != logical)
    die ("%s: stat: logical_bytes is not the sum", when);
  n = integer (figures, "records");
  if (exact ? n != f.records : n < f.records)
    die ("SEED=%" PRIu64 " %s: stat: records %" PRIu64 ", %s %" PRIu64, seed,
         when, n, exact ? "expected" : "but distinct contents are", f.records);
  if (!exact && n > f.records + f.records / 4 + NR_THREADS)
    die ("SEED=%" PRIu64 " %s: stat: %" PRIu64 " records for %" PRIu64
         " contents: too many for a race now and then",
         seed, when, n, f.records);
  n = integer (figures, "record_bytes");
  if (exact ? n != f.record_bytes : n < f.record_bytes)
    die ("SEED=%" PRIu64 " %s: stat: record_bytes %" PRIu64 ", expected "
         "%" PRIu64,
         seed, when, n, f.record_bytes);
  json_decref (stat);
}

static void
verify_pool (const char *when)
{
  json_t *result = call ("check", json_object ());
  json_t *text;
  size_t i;

  if (integer (result, "errors") != 0) {
    json_array_foreach (json_object_get (result, "problems"), i, text)
      fprintf (stderr, "check: %s\n", json_string_value (text));
    die ("SEED=%" PRIu64 " %s: check found errors", seed, when);
  }
  json_decref (result);
  result = call ("scrub", json_object ());
  if (integer (result, "errors") != 0)
    die ("SEED=%" PRIu64 " %s: scrub found errors", seed, when);
  json_decref (result);
}

static void
verify_all (const char *when)
{
  verify_data (when);
  verify_figures (when, false);
  verify_pool (when);
}

/*----------------------------------------------------------------------
 * Random requests
 */

struct extent_check {
  const struct disk *d;
  uint64_t next, end;
  bool compare; /* our own piece: the model does not change */
};

static int
check_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  struct extent_check *c = opaque;

  if (offset != c->next || len == 0 || offset + len > c->end)
    die ("SEED=%" PRIu64 " volume %s: extent of %" PRIu64 " bytes at %" PRIu64
         ", expected one at %" PRIu64,
         seed, c->d->name, len, offset, c->next);
  c->next = offset + len;
  if (hole && c->compare && !all_zero (c->d->data + offset, len))
    die ("SEED=%" PRIu64 " volume %s: %" PRIu64 " bytes at %" PRIu64
         " are called a hole but have data",
         seed, c->d->name, len, offset);
  return 0;
}

static void
ask_extents (struct disk *d, struct nbdedup_volume *v, uint64_t offset,
             uint64_t len, bool own)
{
  struct extent_check c = {
    .d = d,
    .next = offset,
    .end = offset + len,
    .compare = own,
  };

  must (nbdedup_volume_extents (v, len, offset, check_extent, &c));
  if (c.next != c.end)
    die ("SEED=%" PRIu64 " volume %s: extents end at %" PRIu64 ", not %" PRIu64,
         seed, d->name, c.next, c.end);
}

static void
request (struct disk *d, uint64_t offset, uint64_t len, uint8_t *buf,
         struct rng *rng)
{
  struct nbdedup_volume *v = d->volumes[rng_below (rng, 2)];
  unsigned n = rng_below (rng, 100);

  if (n < 50) {
    fill_content (buf, len, d->block_size, NR_DUPS, rng);
    must (nbdedup_volume_write (v, buf, len, offset));
    memcpy (d->data + offset, buf, len);
  }
  else if (n < 57) {
    must (nbdedup_volume_zero (v, len, offset));
    memset (d->data + offset, 0, len);
  }
  else if (n < 64) {
    must (nbdedup_volume_trim (v, len, offset));
    memset (d->data + offset, 0, len);
  }
  else if (n < 92) {
    must (nbdedup_volume_read (v, buf, len, offset));
    compare (d, offset, len, buf, "while others write");
  }
  else if (n < 95)
    ask_extents (d, v, offset, len, true);
  else if (n < 96)
    ask_extents (d, v, rng_below (rng, d->size / 2), d->size / 2, false);
  else if (n < 97)
    must (nbdedup_volume_cache (v, len, offset));
  else if (n < 99)
    must (nbdedup_volume_flush_range (v, len, offset));
  else
    must (nbdedup_volume_flush (v));
  atomic_fetch_add (&nr_requests, 1);
}

/* Pieces of odd lengths: some of many blocks, some of a few bytes. */
static void
cut_pieces (struct disk *d, struct rng *rng)
{
  uint64_t at = 0, len;
  unsigned max = 64;

  d->bounds = xcalloc (max, sizeof d->bounds[0]);
  d->nr_pieces = 0;
  while (at < d->size) {
    if (d->nr_pieces + 2 > max) {
      max *= 2;
      d->bounds = realloc (d->bounds, max * sizeof d->bounds[0]);
      if (d->bounds == NULL)
        die ("out of memory");
    }
    d->bounds[d->nr_pieces++] = at;
    switch (rng_below (rng, 4)) {
    case 0:
      len = rng_between (rng, 1, 700);
      break;
    case 1:
      len = rng_between (rng, 1, d->block_size);
      break;
    case 2:
      len = rng_between (rng, 1, 3 * (uint64_t) d->block_size);
      break;
    default:
      len = rng_between (rng, 1, 200000);
    }
    at = at + len < d->size ? at + len : d->size;
  }
  d->bounds[d->nr_pieces] = d->size;
}

static void *
random_load (void *arg)
{
  unsigned id = (uintptr_t) arg, piece;
  struct rng rng = rng_make (seed, 100 + id);
  uint8_t *buf = xmalloc (MAX_REQUEST);
  uint64_t lo, hi, offset, len;

  while (!atomic_load (&stop)) {
    struct disk *d = &disks[rng_below (&rng, NR_DISKS)];

    piece = rng_below (&rng, d->nr_pieces / NR_THREADS) * NR_THREADS + id;
    lo = d->bounds[piece];
    hi = d->bounds[piece + 1];
    offset = lo;
    len = hi - lo;
    if (rng_percent (&rng, 60)) {
      offset = lo + rng_below (&rng, hi - lo);
      len = rng_between (&rng, 1, hi - offset);
    }
    request (d, offset, len < MAX_REQUEST ? len : MAX_REQUEST, buf, &rng);
  }
  free (buf);
  return NULL;
}

/* All threads write the same contents at the same time, each into every
 * NR_THREADS-th block; then they overwrite some of them.
 */
static void *
equal_load (void *arg)
{
  unsigned id = (uintptr_t) arg, i, round;
  struct rng rng = rng_make (seed, 200 + id);
  uint8_t *buf = xmalloc (MAX_REQUEST);

  for (round = 0;; ++round) {
    uint64_t content = seed * 1000 + round;

    /* Set it between two barriers, so that all see it in the same round. */
    pthread_barrier_wait (&barrier);
    if (id == 0 && clock_ms () > load_ms)
      atomic_store (&stop, true);
    pthread_barrier_wait (&barrier);
    if (atomic_load (&stop))
      break;
    for (i = 0; i < 40; ++i) {
      /* The same volume and content for all, but not the same block. */
      struct disk *d = &disks[(content + i) % NR_DISKS];
      uint64_t n = rng_below (&rng, d->nr_blocks / NR_THREADS - 1);
      uint64_t offset = (n * NR_THREADS + id) * d->block_size;

      if (rng_percent (&rng, 70))
        fill_compressible (buf, d->block_size, content + i / 10);
      else
        fill_content (buf, d->block_size, d->block_size, NR_DUPS, &rng);
      if (rng_percent (&rng, 8))
        memset (buf, 0, d->block_size);
      must (
        nbdedup_volume_write (d->volumes[id % 2], buf, d->block_size, offset));
      memcpy (d->data + offset, buf, d->block_size);
      if (rng_percent (&rng, 3))
        must (nbdedup_volume_flush (d->volumes[id % 2]));
      if (rng_percent (&rng, 10)) {
        must (nbdedup_volume_trim (d->volumes[0], d->block_size, offset));
        memset (d->data + offset, 0, d->block_size);
      }
      atomic_fetch_add (&nr_requests, 1);
    }
  }
  free (buf);
  return NULL;
}

/* Half of the threads overwrite whole blocks of one volume, so that space is
 * freed and used again all the time; the others read large pieces of it.
 * Each block that they read must be a version of the same block.
 */
static void
fill_version (uint8_t *buf, const struct disk *d, uint64_t block,
              uint64_t version)
{
  fill_compressible (buf, d->block_size, seed ^ (block << 32) ^ version);
  memcpy (buf, &block, 8);
  memcpy (buf + 8, &version, 8);
}

static void
check_versions (const struct disk *d, uint64_t block, unsigned nr,
                const uint8_t *buf, uint8_t *expected)
{
  uint64_t b, version;

  for (; nr > 0; --nr, ++block, buf += d->block_size) {
    memcpy (&b, buf, 8);
    memcpy (&version, buf + 8, 8);
    fill_version (expected, d, block, version);
    if (b != block || memcmp (buf, expected, d->block_size) != 0)
      die ("SEED=%" PRIu64 " volume %s: block %" PRIu64 " was read as no "
           "version of it (%" PRIu64 " %" PRIu64 ")",
           seed, d->name, block, b, version);
  }
}

static void *
overwrite_load (void *arg)
{
  unsigned id = (uintptr_t) arg, i, n;
  struct rng rng = rng_make (seed, 400 + id);
  struct disk *d = &disks[1];
  uint64_t nr = d->size / d->block_size, block, version;
  uint8_t *buf = xmalloc (4 * MAX_REQUEST), *one = xmalloc (d->block_size);

  for (block = id; block < nr; block += NR_THREADS) {
    fill_version (one, d, block, 0);
    must (nbdedup_volume_write (d->volumes[0], one, d->block_size,
                                block * d->block_size));
    memcpy (d->data + block * d->block_size, one, d->block_size);
  }
  pthread_barrier_wait (&barrier);
  for (version = 1; !atomic_load (&stop); ++version) {
    if (id % 2 == 0) {
      n = 4 * MAX_REQUEST / d->block_size;
      n = n < nr ? n : nr;
      block = rng_below (&rng, nr - n + 1);
      must (nbdedup_volume_read (d->volumes[1], buf, n * d->block_size,
                                 block * d->block_size));
      check_versions (d, block, n, buf, one);
    }
    else
      for (i = 0; i < 8; ++i) {
        /* Each odd thread owns every NR_THREADS / 2-th block. */
        block = rng_below (&rng, nr / (NR_THREADS / 2)) * (NR_THREADS / 2) +
          id / 2;
        fill_version (one, d, block, version);
        must (nbdedup_volume_write (d->volumes[0], one, d->block_size,
                                    block * d->block_size));
        memcpy (d->data + block * d->block_size, one, d->block_size);
      }
    atomic_fetch_add (&nr_requests, 1);
  }
  free (buf);
  free (one);
  return NULL;
}

/* stat makes a fold, so metadata is written, and space reused, while requests
 * run.
 */
static void *
keep_folding (void *arg)
{
  (void) arg;
  while (!atomic_load (&stop)) {
    json_decref (call ("stat", json_object ()));
    clock_sleep_ms (3);
  }
  return NULL;
}

static void
run_threads (void *(*fn) (void *), bool with_folds)
{
  pthread_t threads[NR_THREADS], folder;
  uintptr_t i;

  atomic_store (&stop, false);
  for (i = 0; i < NR_THREADS; ++i)
    if (pthread_create (&threads[i], NULL, fn, (void *) i) != 0)
      die ("pthread_create failed");
  if (with_folds && pthread_create (&folder, NULL, keep_folding, NULL) != 0)
    die ("pthread_create failed");
  if (fn != equal_load) {
    while (clock_ms () < load_ms)
      clock_sleep_ms (20);
    atomic_store (&stop, true);
  }
  for (i = 0; i < NR_THREADS; ++i)
    pthread_join (threads[i], NULL);
  if (with_folds)
    pthread_join (folder, NULL);
}

/* With one thread and one worker each content has exactly one record. */
static void
alone (void)
{
  struct rng rng = rng_make (seed, 300);
  uint8_t *buf = xmalloc (MAX_REQUEST);
  unsigned i;

  for (i = 0; i < 3000; ++i) {
    struct disk *d = &disks[rng_below (&rng, NR_DISKS)];
    uint64_t offset = rng_below (&rng, d->size);
    uint64_t len = rng_between (&rng, 1, 3 * (uint64_t) d->block_size);

    if (rng_percent (&rng, 60))
      offset -= offset % d->block_size;
    if (len > d->size - offset)
      len = d->size - offset;
    if (len > MAX_REQUEST)
      len = MAX_REQUEST;
    request (d, offset, len, buf, &rng);
    if (i % 1000 == 999) {
      verify_figures ("one thread", true);
      verify_pool ("one thread");
    }
  }
  free (buf);
}

/*----------------------------------------------------------------------
 * The phases
 */

static void
create_disk (struct disk *d, char name, uint32_t block_size, uint64_t size,
             const char *dedup, const char *compress)
{
  d->name[0] = name;
  d->name[1] = '\0';
  d->block_size = block_size;
  d->size = size;
  d->nr_blocks = (size + block_size - 1) / block_size;
  d->dedup = dedup;
  d->compress = compress;
  json_decref (
    call ("create",
          json_pack ("{s:s, s:I, s:i, s:s, s:s}", "name", d->name, "size",
                     (json_int_t) size, "block-size", (int) block_size, "dedup",
                     dedup, "compress", compress)));
  d->data = xcalloc (d->nr_blocks, block_size);
}

static void
make_disks (struct rng *rng)
{
  static const uint32_t sizes[] = { 8192, 16384, 65536, 131072 };
  uint32_t large = sizes[rng_below (rng, 4)];
  unsigned i;

  open_default (directory, "test-model");
  for (i = 0; i < NR_DISKS; ++i) {
    free (disks[i].data);
    free (disks[i].bounds);
    memset (&disks[i], 0, sizeof disks[i]);
  }
#define SIZE(mib) ((UINT64_C (mib) << 20) - 512 * rng_between (rng, 1, 300))
  create_disk (&disks[0], 'a', 4096, SIZE (6), "on", "lz4");
  create_disk (&disks[1], 'b', large, SIZE (12), "on", "zstd");
  create_disk (&disks[2], 'c', 4096, SIZE (4), "verify", "none");
  create_disk (&disks[3], 'd', large, SIZE (8),
               rng_percent (rng, 50) ? "off" : "on", "zstd-9");
#undef SIZE
  for (i = 0; i < NR_DISKS; ++i)
    cut_pieces (&disks[i], rng);
  must (nbdedup_pool_close (pool));
}

static void
make_pool (const char *parent, int sector)
{
  json_t *options = json_pack ("{s:i}", "sector", sector);

  make_directory (directory, parent, "test-model");
  must (nbdedup_pool_create (directory, options));
  json_decref (options);
}

static void
remove_pool (void)
{
  remove_directory (directory);
}

int
main (void)
{
  uint64_t ms = 1000 * number_from_environment ("MODEL_SECONDS", 6);
  struct nbdedup_settings settings;
  struct rng rng;

  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 "\n", seed);
  fflush (stdout);
  rng = rng_make (seed, 0);
  pthread_barrier_init (&barrier, NULL, NR_THREADS);

  make_pool (getenv ("TMPDIR") ?: "/tmp", 512 << rng_below (&rng, 4));
  make_disks (&rng);

  /* Everything small: waits, evictions, folds. */
  nbdedup_settings_init (&settings);
  settings.ddt_cache_bytes = NBDEDUP_DDT_CACHE_MIN;
  settings.dirty_max_bytes = NBDEDUP_DIRTY_MAX_MIN;
  settings.record_cache_bytes = 1 << 20;
  settings.commit_interval_ms = 200;
  settings.nr_workers = 4;
  open_pool (&settings);
  load_ms = clock_ms () + ms / 3;
  run_threads (random_load, true);
  verify_all ("after random requests");
  load_ms = clock_ms () + ms / 6;
  run_threads (equal_load, true);
  verify_all ("after equal contents");
  close_pool ();

  settings.primarycache = NBDEDUP_CACHE_NONE;
  open_pool (&settings);
  verify_all ("after reopening");
  load_ms = clock_ms () + ms / 6;
  run_threads (random_load, true);
  verify_all ("after random requests without caches");
  close_pool ();

  open_pool (NULL);
  verify_all ("after reopening again");
  load_ms = clock_ms () + ms / 6;
  run_threads (random_load, false);
  load_ms = clock_ms () + ms / 6;
  run_threads (equal_load, false);
  verify_all ("with default settings");
  close_pool ();
  open_pool (NULL);
  verify_all ("at the end");
  close_pool ();
  remove_pool ();

  make_pool (fast_directory (), 512);
  make_disks (&rng);
  nbdedup_settings_init (&settings);
  settings.nr_workers = 1;
  settings.commit_interval_ms = 100;
  open_pool (&settings);
  alone ();
  verify_data ("one thread");
  close_pool ();
  open_pool (&settings);
  verify_data ("one thread, reopened");
  verify_figures ("one thread, reopened", true);
  close_pool ();

  settings.nr_workers = 4;
  settings.primarycache = NBDEDUP_CACHE_METADATA;
  settings.ddt_cache_bytes = NBDEDUP_DDT_CACHE_MIN;
  settings.dirty_max_bytes = NBDEDUP_DIRTY_MAX_MIN;
  open_pool (&settings);
  load_ms = clock_ms () + ms / 4;
  run_threads (overwrite_load, true);
  verify_all ("after overwriting");
  close_pool ();
  remove_pool ();

  printf ("%" PRIu64 " requests\n", (uint64_t) nr_requests);
  return 0;
}
