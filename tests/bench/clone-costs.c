/* SPDX-License-Identifier: BSD-3-Clause */

/* Measures the cost of snapshots and clones inside the engine, without nbdkit:
 *
 *  clone     of a snapshot of a volume of 1 TiB with GIB (default 1) GiB
 *            written, each 4 KiB block with a pointer of its own: the time, and
 *            the growth of the pool; the same for 1,000 clones at once;
 *
 *  read      4 KiB at depth 1 and DEPTH (default 1000): a volume after this
 *            number of snapshots, with a few blocks changed before each.
 *            "cold" is the first read of each leaf of the map after opening
 *            the pool, "warm" the same reads again;
 *
 *  destroy   references freed per second, of a volume written in image order,
 *            while another volume shares its records, and while none does;
 *
 *  latency   of another volume's random 4 KiB reads and writes while these
 *            references are freed, and without.
 *
 * All figures are medians over ROUNDS (default 3) pools below $TMPDIR (on
 * the disk to measure).  Reads come from a warm page cache.  Run it with
 * "make bench-clones GIB=100 DEPTH=1000 BENCH_ROUNDS=5".
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "rigs/pool-util.h"

#define BLOCK 4096u
#define PIECE (UINT32_C (1) << 20)
#define LEAF 64u /* blocks of a leaf of the map */
#define NR_LEAVES 4000u
#define WARM_PASSES 21
#define NR_CLONES 1000u
#define MAX_ROUNDS 25u
#define MAX_SAMPLES 4000000u

static char directory[PATH_MAX];
struct nbdedup_pool *pool;
static struct rng rng;
static uint64_t written; /* bytes of the large volume */
static unsigned depth;

static double
now (void)
{
  return clock_ns () / 1e9;
}

/* Run a command.  Returns the seconds that it takes. */
static double
timed (const char *command, json_t *args)
{
  double start = now ();

  json_decref (call (command, args));
  return now () - start;
}

static void
open_pool (void)
{
  open_default (directory, "bench-clones");
}

static void
close_pool (void)
{
  if (nbdedup_pool_close (pool) == -1)
    die ("close: %s", nbdedup_error ());
}

static void
create (const char *name, uint64_t size)
{
  timed ("create",
         json_pack ("{s:s, s:I, s:i}", "name", name, "size", (json_int_t) size,
                    "block-size", (int) BLOCK));
}

static void
snapshot (const char *name)
{
  timed ("snapshot", json_pack ("{s:s}", "name", name));
}

/* Write 'distinct' contents, again and again. */
static void
write_image (const char *name, uint64_t len, uint64_t distinct)
{
  struct nbdedup_volume *v = open_volume (name);
  uint8_t *buf = xmalloc (PIECE);
  uint64_t offset, i;

  for (offset = 0; offset < len; offset += PIECE) {
    for (i = 0; i < PIECE / BLOCK; ++i)
      fill_compressible (buf + i * BLOCK, BLOCK,
                         (offset / BLOCK + i) % distinct);
    if (nbdedup_volume_write (v, buf, PIECE, offset) == -1)
      die ("%s: %s", name, nbdedup_error ());
  }
  if (nbdedup_volume_flush (v) == -1)
    die ("%s: %s", name, nbdedup_error ());
  nbdedup_volume_close (v);
  free (buf);
}

/*----------------------------------------------------------------------
 * Figures
 */

enum figure {
  CLONE_MS,
  SNAPSHOT_MS,
  CLONE_BYTES,
  CLONES_S,
  CLONES_BYTES,
  WARM_1,
  WARM_N,
  WARM_RATIO,
  COLD_1,
  COLD_N,
  COLD_RATIO,
  DESTROY_SHARED,
  DESTROY_LAST,
  READ_P99_IDLE,
  READ_P99_SHARED,
  READ_P99_LAST,
  WRITE_P99_IDLE,
  WRITE_P99_SHARED,
  WRITE_P99_LAST,
  NR_FIGURES
};

static const char *const figure_names[NR_FIGURES] = {
  "clone of 1 TiB, ms",
  "snapshot of 1 TiB, ms",
  "bytes added by one clone",
  "1,000 clones, s",
  "bytes added by 1,000 clones",
  "warm read at depth 1, us",
  "warm read at full depth, us",
  "  ratio (at most 1.3)",
  "cold read at depth 1, us",
  "cold read at full depth, us",
  "  ratio (at most 5)",
  "destroy, records shared: references/s",
  "destroy, records die: references/s",
  "other volume's read p99, us",
  "  during destroy, records shared",
  "  during destroy, records die",
  "other volume's write p99, us",
  "  during destroy, records shared",
  "  during destroy, records die",
};

static double figures[NR_FIGURES][MAX_ROUNDS];
static unsigned round_nr;

static int
compare_doubles (const void *a, const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;

  return (x > y) - (x < y);
}

static double
quantile (double *samples, size_t nr, double q)
{
  if (nr == 0)
    die ("no samples: the time was too short");
  qsort (samples, nr, sizeof samples[0], compare_doubles);
  return samples[(size_t) (q * (nr - 1))];
}

/*----------------------------------------------------------------------
 * Clones
 */

/* The space of all files of the pool, after everything is written. */
static uint64_t
pool_bytes (void)
{
  char path[PATH_MAX + 300];
  struct dirent *e;
  struct stat st;
  uint64_t n = 0;
  DIR *d;

  close_pool ();
  d = opendir (directory);
  if (d == NULL)
    die ("%s: %s", directory, strerror (errno));
  while ((e = readdir (d)) != NULL) {
    snprintf (path, sizeof path, "%s/%s", directory, e->d_name);
    if (lstat (path, &st) == 0 && S_ISREG (st.st_mode))
      n += (uint64_t) st.st_blocks * 512;
  }
  closedir (d);
  open_pool ();
  return n;
}

static void
bench_clone (void)
{
  uint64_t before, after;

  create ("golden", UINT64_C (1) << 40);
  write_image ("golden", written, 1000);
  figures[SNAPSHOT_MS][round_nr] = 1000 *
    timed ("snapshot", json_pack ("{s:s}", "name", "golden@v1"));
  before = pool_bytes ();
  figures[CLONE_MS][round_nr] = 1000 *
    timed ("clone",
           json_pack ("{s:s, s:s}", "snapshot", "golden@v1", "name", "one"));
  after = pool_bytes ();
  figures[CLONE_BYTES][round_nr] = (double) after - (double) before;
  figures[CLONES_S][round_nr] = timed ("clone",
                                       json_pack ("{s:s, s:s, s:i}", "snapshot",
                                                  "golden@v1", "name", "web",
                                                  "count", (int) NR_CLONES));
  figures[CLONES_BYTES][round_nr] = (double) pool_bytes () - (double) after;
}

/*----------------------------------------------------------------------
 * Depth
 */

static void
make_deep (const char *name, unsigned nr_snapshots)
{
  uint64_t len = (uint64_t) NR_LEAVES * LEAF * BLOCK;
  struct nbdedup_volume *v;
  uint8_t buf[BLOCK];
  char snap[40];
  unsigned i, j;

  create (name, len);
  write_image (name, len, 1000);
  v = open_volume (name);
  /* The first blocks of leaves change; the reads use the others. */
  for (i = 0; i < nr_snapshots; ++i) {
    for (j = 0; j < 20; ++j) {
      fill_compressible (buf, BLOCK, rng_next (&rng));
      if (nbdedup_volume_write (v, buf, BLOCK,
                                rng_below (&rng, NR_LEAVES) * LEAF * BLOCK) ==
          -1)
        die ("%s: %s", name, nbdedup_error ());
    }
    snprintf (snap, sizeof snap, "%s@%u", name, i);
    snapshot (snap);
  }
  nbdedup_volume_close (v);
}

/* Read one block of each leaf, in the given order.  Returns the median.  A warm
 * read takes little more than reading the clock, so read_leaves_again measures
 * many together.
 */
static double
read_leaves (struct nbdedup_volume *v, const unsigned *order)
{
  double *samples = xcalloc (NR_LEAVES, sizeof samples[0]), start, median;
  uint8_t buf[BLOCK];
  unsigned i;

  for (i = 0; i < NR_LEAVES; ++i) {
    start = now ();
    if (nbdedup_volume_read (v, buf, BLOCK,
                             ((uint64_t) order[i] * LEAF + 7) * BLOCK) == -1)
      die ("read: %s", nbdedup_error ());
    samples[i] = 1e6 * (now () - start);
  }
  median = quantile (samples, NR_LEAVES, 0.5);
  free (samples);
  return median;
}

static double
read_leaves_again (struct nbdedup_volume *v, const unsigned *order)
{
  double samples[WARM_PASSES], start;
  uint8_t buf[BLOCK];
  unsigned i, pass;

  for (pass = 0; pass < WARM_PASSES; ++pass) {
    start = now ();
    for (i = 0; i < NR_LEAVES; ++i)
      if (nbdedup_volume_read (v, buf, BLOCK,
                               ((uint64_t) order[i] * LEAF + 7) * BLOCK) == -1)
        die ("read: %s", nbdedup_error ());
    samples[pass] = 1e6 * (now () - start) / NR_LEAVES;
  }
  return quantile (samples, WARM_PASSES, 0.5);
}

static void
bench_depth_of (const char *name, enum figure cold, enum figure warm)
{
  static unsigned order[NR_LEAVES];
  struct nbdedup_volume *v;
  unsigned i, j, t;

  for (i = 0; i < NR_LEAVES; ++i)
    order[i] = i;
  for (i = NR_LEAVES; i > 1; --i) {
    j = rng_below (&rng, i);
    t = order[i - 1];
    order[i - 1] = order[j];
    order[j] = t;
  }
  close_pool ();
  open_pool ();
  v = open_volume (name);
  figures[cold][round_nr] = read_leaves (v, order);
  figures[warm][round_nr] = read_leaves_again (v, order);
  nbdedup_volume_close (v);
}

static void
bench_depth (void)
{
  make_deep ("flat", 0);
  make_deep ("deep", depth);
  bench_depth_of ("flat", COLD_1, WARM_1);
  bench_depth_of ("deep", COLD_N, WARM_N);
  figures[WARM_RATIO][round_nr] = figures[WARM_N][round_nr] /
    figures[WARM_1][round_nr];
  figures[COLD_RATIO][round_nr] = figures[COLD_N][round_nr] /
    figures[COLD_1][round_nr];
}

/*----------------------------------------------------------------------
 * Destroy
 */

static double
destroy_rate (const char *name)
{
  return written / BLOCK /
    timed ("destroy", json_pack ("{s:s, s:b}", "name", name, "wait", 1));
}

static void
bench_destroy (void)
{
  create ("a", written);
  create ("b", written);
  /* Each block has its own record; both volumes are in the same order. */
  write_image ("a", written, written / BLOCK);
  write_image ("b", written, written / BLOCK);
  close_pool ();
  open_pool ();
  figures[DESTROY_SHARED][round_nr] = destroy_rate ("b");
  figures[DESTROY_LAST][round_nr] = destroy_rate ("a");
}

/*----------------------------------------------------------------------
 * Latency
 */

struct other {
  atomic_bool stop;
  double *reads, *writes; /* owned */
  size_t nr_reads, nr_writes;
};

/* A client with one request at a time, and 200 us of its own work in between.
 */
static void *
use_other (void *arg)
{
  struct timespec ts = { 0, 200 * 1000 };
  struct other *o = arg;
  struct nbdedup_volume *v = open_volume ("other");
  struct rng r = rng_make (now () * 1e6, 1);
  uint64_t nr = nbdedup_volume_size (v) / BLOCK, offset;
  uint8_t buf[BLOCK];
  double start;
  int ret;

  while (!atomic_load (&o->stop) && o->nr_reads < MAX_SAMPLES) {
    offset = rng_below (&r, nr) * BLOCK;
    if (rng_percent (&r, 70)) {
      start = now ();
      ret = nbdedup_volume_read (v, buf, BLOCK, offset);
      o->reads[o->nr_reads++] = 1e6 * (now () - start);
    }
    else {
      fill_compressible (buf, BLOCK, rng_next (&r));
      start = now ();
      ret = nbdedup_volume_write (v, buf, BLOCK, offset);
      o->writes[o->nr_writes++] = 1e6 * (now () - start);
    }
    if (ret == -1)
      die ("other: %s", nbdedup_error ());
    nanosleep (&ts, NULL);
  }
  nbdedup_volume_close (v);
  return NULL;
}

static void
measure_other (void (*meanwhile) (void), enum figure reads, enum figure writes)
{
  struct other o = {
    .reads = xcalloc (MAX_SAMPLES, sizeof (double)),
    .writes = xcalloc (MAX_SAMPLES, sizeof (double)),
  };
  pthread_t thread;

  if (pthread_create (&thread, NULL, use_other, &o) != 0)
    die ("pthread_create failed");
  meanwhile ();
  atomic_store (&o.stop, true);
  pthread_join (thread, NULL);
  figures[reads][round_nr] = quantile (o.reads, o.nr_reads, 0.99);
  figures[writes][round_nr] = quantile (o.writes, o.nr_writes, 0.99);
  free (o.reads);
  free (o.writes);
}

static void
nothing (void)
{
  clock_sleep_ms (3000);
}

static void
destroy_shared (void)
{
  destroy_rate ("y");
}

static void
destroy_last (void)
{
  destroy_rate ("x");
}

static void
bench_latency (void)
{
  create ("x", written);
  create ("y", written);
  create ("other", 256 << 20);
  write_image ("other", 256 << 20, 65536);
  write_image ("x", written, written / BLOCK);
  write_image ("y", written, written / BLOCK);
  measure_other (nothing, READ_P99_IDLE, WRITE_P99_IDLE);
  measure_other (destroy_shared, READ_P99_SHARED, WRITE_P99_SHARED);
  measure_other (destroy_last, READ_P99_LAST, WRITE_P99_LAST);
}

static void
run_round (void)
{

  make_directory (directory, getenv ("TMPDIR") ?: "/var/tmp", "bench-clones");
  if (nbdedup_pool_create (directory, NULL) == -1)
    die ("create: %s", nbdedup_error ());
  open_pool ();
  bench_clone ();
  bench_depth ();
  bench_destroy ();
  bench_latency ();
  check_pool ();
  close_pool ();
  remove_directory (directory);
}

int
main (void)
{
  unsigned rounds = number_from_environment ("ROUNDS", 3), i, r;

  written = number_from_environment ("GIB", 1) << 30;
  depth = number_from_environment ("DEPTH", 1000);
  if (rounds < 1 || rounds > MAX_ROUNDS || written == 0)
    die ("ROUNDS is 1 .. %u, GIB at least 1", MAX_ROUNDS);
  rng = rng_make (seed_from_environment (), 0);
  for (round_nr = 0; round_nr < rounds; ++round_nr)
    run_round ();
  for (i = 0; i < NR_FIGURES; ++i) {
    printf ("%-40s", figure_names[i]);
    for (r = 0; r < rounds; ++r)
      printf (" %12.2f", figures[i][r]);
    printf ("   median %12.2f\n", quantile (figures[i], rounds, 0.5));
  }
  return 0;
}
