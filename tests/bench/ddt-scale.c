/* SPDX-License-Identifier: BSD-3-Clause */

/* What the dedup table costs as it grows.
 *
 * A pool gets as many records as MILLIONS says (default "1 5 10"), through the
 * engine's own code from the dedup table down: lookup, allocation, journal,
 * map, fold, summaries.  Only what comes before is left out: the blocks, their
 * digests and their compression.  Digests are made of numbers, every record
 * takes a sector, and its data stay a hole in "records".
 *
 * At each size it measures, with a thread on each processor, and others that
 * take their places while they wait for the disk (as in writeback-queue.c):
 *
 *  image order   new blocks, one after the other;
 *
 *  scattered     new blocks, each in a leaf of the map of its own;
 *
 *  runs of N     duplicates: N blocks in the order in which they came first;
 *
 *  returned      references given back, in image order and scattered, until
 *                the fold has counted them;
 *
 *  longest       batch of 64 blocks (a request of 256 KiB) of all the above;
 *
 *  disk          longest read of 4 KiB, past the page cache, from another file
 *                meanwhile: how long the disk lets a reader wait;
 *
 *  open          after a clean close, and after the process was killed with
 *                BLOCKS blocks behind the last fold;
 *
 * and for each record: bytes in pool.db, on all disks, and in memory; for each
 * new block in image order since the last size: bytes that the device read and
 * wrote.
 *
 * bench-ddt limits the page cache (MEMORY=1G).  The pool is below $TMPDIR, or in
 * the directory POOL.  That one is kept, and the next run goes on with its
 * records.  Each size gives a line, and an object that is appended to the file
 * JSON.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/waiting.h"
#include "core/ddt.h"
#include "core/engine.h"
#include "core/txg.h"
#include "data/volume-types.h"
#include "disk/room.h"
#include "rigs/pool-util.h"
#include "space/space.h"

#define BLOCK 4096u
#define SECTOR 512u
#define BATCH 64u
#define MAX_CPUS 16u
#define MAX_THREADS (2 * MAX_CPUS)
/* "v" has the records in image order, "w" all else. */
#define VOLUME_BYTES (UINT64_C (1) << 40)
#define VOLUME_BLOCKS (VOLUME_BYTES / BLOCK)
#define SCATTER 64u /* one block of each leaf */

struct nbdedup_pool *pool;
static char directory[PATH_MAX];
static unsigned nr_threads;
static uint64_t nr_probe;     /* blocks of each measurement */
static uint64_t nr_v, nr_w;   /* blocks of "v", and leaves of "w", so far */
static uint64_t next_content; /* of the scattered blocks */

/* Places of threads that compute. */
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t place_free = PTHREAD_COND_INITIALIZER;
static int free_places;

static void
change_places (int by)
{
  pthread_mutex_lock (&places_lock);
  free_places += by;
  if (free_places > 0)
    pthread_cond_signal (&place_free);
  pthread_mutex_unlock (&places_lock);
}

static void
take_place (void)
{
  pthread_mutex_lock (&places_lock);
  while (free_places <= 0)
    pthread_cond_wait (&place_free, &places_lock);
  free_places--;
  pthread_mutex_unlock (&places_lock);
}

static void
begin_wait (void *opaque)
{
  (void) opaque;
  change_places (1);
}

/* It does not wait for a place in the middle of a batch. */
static void
end_wait (void *opaque)
{
  (void) opaque;
  change_places (-1);
}

/* The records' data are holes, so the file must not be allocated. */
int
fallocate (int fd, int mode, off_t offset, off_t len)
{
  struct stat st;

  if (mode != 0)
    return (int) syscall (SYS_fallocate, fd, mode, offset, len);
  if (fstat (fd, &st) == -1)
    return -1;
  return st.st_size >= offset + len ? 0 : ftruncate (fd, offset + len);
}

static double
now (void)
{
  return clock_ns () / 1e9;
}

/*----------------------------------------------------------------------
 * Blocks
 */

struct block {
  uint64_t block, content;
};

static void
digest_of (uint64_t content, struct digest *digest)
{
  struct rng rng = rng_make (content, 1);
  uint64_t word;
  size_t i;

  for (i = 0; i < sizeof *digest; i += sizeof word) {
    word = rng_next (&rng);
    memcpy ((uint8_t *) digest + i, &word,
            sizeof *digest - i < sizeof word ? sizeof *digest - i
                                             : sizeof word);
  }
}

static void
new_record (const struct digest *digest, const struct placement *p,
            struct record *r)
{
  *r = (struct record) {
    .ptr = { .addr = p->addr, .psize = SECTOR, .codec = CODEC_LZ4 },
    .lsize = BLOCK,
    .slot = p->slot,
    .flags = RECORD_INDEXED,
    .digest = *digest,
  };
}

/* What a worker does with a batch (write.c), without its data. */
static void
write_batch (struct layer *layer, const struct block *blocks, unsigned nr)
{
  struct digest digests[BATCH];
  struct pointer ptrs[BATCH];
  struct placement place[BATCH];
  uint32_t nr_sectors[BATCH];
  unsigned missing[BATCH], nr_missing = 0, i, ticket;
  uint64_t leaf, last = UINT64_MAX, leaves = 0, pages;
  struct ddt_query queries[BATCH];
  struct record records[BATCH];
  struct ddt_new new[BATCH];
  struct room_touched touched;

  for (i = 0; i < nr; ++i) {
    digest_of (blocks[i].content, &digests[i]);
    queries[i] = (struct ddt_query) { &digests[i], &ptrs[i], false };
    leaf = blocks[i].block / LEAF_BLOCKS;
    leaves += leaf != last;
    last = leaf;
  }
  must (txg_reserve (pool->txg, nr, ROOM_NEW));
  must (space_reserve (pool->space, BLOCK, nr));
  txg_throttle (pool->txg);
  pages = nr * ROOM_BLOCK_PAGES + leaves * ROOM_LEAF_PAGES;
  pages = txg_enter (pool->txg, nr, pages);
  touched = txg_touch (pool->txg);
  ticket = quiesce_enter (&pool->quiesce);
  ddt_lookup (pool->ddt, nr, queries, BLOCK, 0);
  for (i = 0; i < nr; ++i)
    if (!queries[i].found) {
      nr_sectors[nr_missing] = 1;
      missing[nr_missing++] = i;
    }
  quiesce_leave (&pool->quiesce, ticket);
  if (nr_missing > 0)
    must (space_alloc (pool->space, nr_missing, nr_sectors, place));
  for (i = 0; i < nr_missing; ++i) {
    new_record (&digests[missing[i]], &place[i], &records[i]);
    new[i] = (struct ddt_new) { &records[i], place[i].chunk_addr,
                                &ptrs[missing[i]] };
    must (txg_log_record (pool->txg, &records[i], place[i].chunk_addr, false));
  }
  must (ddt_insert (pool->ddt, nr_missing, new));
  for (i = 0; i < nr_missing; ++i)
    room_touch_new (&touched, ptrs[missing[i]].addr);
  for (i = 0; i < nr; ++i) {
    room_touch_ref (&touched, ptrs[i].addr);
    must (
      txg_set_pointer (pool->txg, layer, blocks[i].block, &ptrs[i], &touched));
  }
  txg_return (pool->txg, pages, &touched);
  txg_leave (pool->txg);
  txg_unreserve (pool->txg, nr);
  space_unreserve (pool->space, BLOCK, nr);
}

/*----------------------------------------------------------------------
 * Many of them, with all processors
 */

struct work {
  struct layer *layer;
  uint64_t nr;
  void (*choose) (const struct work *work, uint64_t i, struct block *b);
  bool holes;
  unsigned run; /* length of a run of duplicates */
  uint64_t seed;

  uint64_t first_block, first_content, nr_contents;
  atomic_uint_fast64_t next;
  atomic_uint_fast64_t longest_ns;
};

static double longest; /* ms, at this size */

static void
note_longest (struct work *work, uint64_t ns)
{
  uint64_t old = work->longest_ns;

  while (old < ns &&
         !atomic_compare_exchange_weak (&work->longest_ns, &old, ns))
    ;
}

static void
remove_batch (struct layer *layer, const struct block *blocks, unsigned nr)
{
  const uint64_t most = txg_blocks_at_once (pool->txg);
  struct room_touched touched;
  uint64_t pages;
  unsigned i, j, n;

  for (i = 0; i < nr; i += n) {
    n = nr - i < most ? nr - i : (unsigned) most;
    pages = n * (ROOM_BLOCK_PAGES + ROOM_LEAF_PAGES);
    txg_throttle (pool->txg);
    pages = txg_enter (pool->txg, n, pages);
    touched = txg_touch (pool->txg);
    for (j = i; j < i + n; ++j)
      must (txg_set_holes (pool->txg, layer, blocks[j].block, 1, &touched));
    txg_return (pool->txg, pages, &touched);
    txg_leave (pool->txg);
  }
}

static void *
work_thread (void *arg)
{
  struct work *work = arg;
  struct block blocks[BATCH];
  uint64_t first, start;
  unsigned i, nr;

  waiting_set (&(struct waiting) { begin_wait, end_wait, NULL });
  while ((first = atomic_fetch_add (&work->next, BATCH)) < work->nr) {
    nr = work->nr - first < BATCH ? (unsigned) (work->nr - first) : BATCH;
    for (i = 0; i < nr; ++i)
      work->choose (work, first + i, &blocks[i]);
    take_place ();
    start = clock_ns ();
    if (work->holes)
      remove_batch (work->layer, blocks, nr);
    else
      write_batch (work->layer, blocks, nr);
    note_longest (work, clock_ns () - start);
    change_places (1);
  }
  return NULL;
}

/* Blocks a second, 'fold': until all are folded. */
static double
do_work (struct work *work, bool fold)
{
  pthread_t threads[MAX_THREADS];
  double start = now (), seconds;
  unsigned i;

  for (i = 0; i < nr_threads; ++i)
    if (pthread_create (&threads[i], NULL, work_thread, work) != 0)
      die ("pthread_create failed");
  for (i = 0; i < nr_threads; ++i)
    pthread_join (threads[i], NULL);
  if (fold)
    must (txg_run (pool->txg, NULL, NULL, NULL));
  seconds = now () - start;
  if (work->longest_ns / 1e6 > longest)
    longest = work->longest_ns / 1e6;
  return work->nr / seconds;
}

static void
choose_next (const struct work *work, uint64_t i, struct block *b)
{
  b->block = work->first_block + i;
  b->content = work->first_content + i;
}

static void
choose_scattered (const struct work *work, uint64_t i, struct block *b)
{
  b->block = (work->first_block + i) * SCATTER;
  b->content = work->first_content + i;
}

static void
choose_run (const struct work *work, uint64_t i, struct block *b)
{
  struct rng rng = rng_make (work->seed, i / work->run);
  uint64_t last = work->nr_contents - work->run;

  b->block = work->first_block + i;
  b->content = rng_below (&rng, last + 1) + i % work->run;
}

/* Each block once, in an order that is not that of the image. */
static void
choose_any (const struct work *work, uint64_t i, struct block *b)
{
  b->block = work->first_block + i * UINT64_C (2654435761) % work->nr;
  b->content = 0;
}

/*----------------------------------------------------------------------
 * The pool
 */

static struct nbdedup_volume *v, *w;

static void
open_volumes (void)
{
  v = open_volume ("v");
  w = open_volume ("w");
}

static void
close_pool (void)
{
  nbdedup_volume_close (v);
  nbdedup_volume_close (w);
  if (nbdedup_pool_close (pool) == -1)
    die ("close: %s", nbdedup_error ());
}

static void
make_pool (void)
{
  static const char *const names[] = { "v", "w" };
  unsigned i;

  must (nbdedup_pool_create (directory, NULL));
  open_default (directory, "ddt-scale");
  for (i = 0; i < 2; ++i)
    run ("create",
         json_pack ("{s:s, s:I, s:i}", "name", names[i], "size",
                    (json_int_t) VOLUME_BYTES, "block-size", (int) BLOCK));
}

/* Does POOL have the pool of an earlier run? */
static bool
has_pool (void)
{
  char path[PATH_MAX + 16];

  snprintf (path, sizeof path, "%s/pool.db", directory);
  return access (path, F_OK) == 0;
}

static void
count_blocks (void)
{
  nr_v = v->volume->layer->blocks;
  nr_w = w->volume->layer->blocks;
  next_content += nr_w;
}

/* Bytes on disk of the files whose names begin with 'prefix'. */
static uint64_t
bytes_of (const char *prefix)
{
  DIR *dir = opendir (directory);
  const struct dirent *d;
  uint64_t bytes = 0;
  struct stat st;

  if (dir == NULL)
    die ("%s: %s", directory, strerror (errno));
  while ((d = readdir (dir)) != NULL)
    if (strncmp (d->d_name, prefix, strlen (prefix)) == 0 &&
        fstatat (dirfd (dir), d->d_name, &st, 0) == 0 && S_ISREG (st.st_mode))
      bytes += (uint64_t) st.st_blocks * 512;
  closedir (dir);
  return bytes;
}

/* A figure of /proc/self/FILE, "NAME: NUMBER". */
static uint64_t
proc_figure (const char *file, const char *name)
{
  FILE *fp = fopen (file, "r");
  const size_t len = strlen (name);
  uint64_t n = 0;
  char line[256];

  while (fp != NULL && fgets (line, sizeof line, fp) != NULL)
    if (strncmp (line, name, len) == 0 && line[len] == ':')
      n = strtoull (line + len + 1, NULL, 10);
  if (fp != NULL)
    fclose (fp);
  return n;
}

/*----------------------------------------------------------------------
 * The disk alone
 */

/* Reads a file of its own all the time. */
#define DISK_BLOCKS 1024u
#define DISK_PAUSE_MS 5
static struct {
  int fd; /* -1: not on this file system */
  bool runs;
  pthread_t thread;
  atomic_bool stop;
  uint64_t longest_ns;
  atomic_uint_fast64_t bytes; /* that it has read */
} disk = { .fd = -1 };

/* In the pool's directory, so on its disk, but without a name there. */
static void
disk_open (void)
{
  char path[PATH_MAX + 16];
  uint8_t *block = aligned_alloc (BLOCK, BLOCK);
  unsigned i;

  snprintf (path, sizeof path, "%s/ddt-scale-disk", directory);
  disk.fd = open (path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
  if (block == NULL || (disk.fd == -1 && errno != EINVAL))
    die ("%s: %s", path, strerror (errno));
  unlink (path);
  fill_random (block, BLOCK, 1);
  for (i = 0; disk.fd != -1 && i < DISK_BLOCKS; ++i)
    if (pwrite (disk.fd, block, BLOCK, i * (off_t) BLOCK) != BLOCK)
      die ("%s: %s", path, strerror (errno));
  free (block);
}

static void *
disk_thread (void *arg)
{
  struct rng rng = rng_make (1, 0);
  uint8_t *block = aligned_alloc (BLOCK, BLOCK);
  uint64_t start, ns;

  (void) arg;
  while (block && !disk.stop) {
    start = clock_ns ();
    if (pread (disk.fd, block, BLOCK,
               (off_t) (rng_below (&rng, DISK_BLOCKS) * BLOCK)) != BLOCK)
      die ("cannot read beside the pool: %s", strerror (errno));
    ns = clock_ns () - start;
    if (ns > disk.longest_ns)
      disk.longest_ns = ns;
    disk.bytes += BLOCK;
    poll (NULL, 0, DISK_PAUSE_MS);
  }
  free (block);
  return NULL;
}

static void
disk_start (void)
{
  disk.longest_ns = 0;
  disk.bytes = 0;
  disk.stop = false;
  disk.runs = disk.fd != -1 &&
    pthread_create (&disk.thread, NULL, disk_thread, NULL) == 0;
}

/* Returns the longest, in milliseconds. */
static double
disk_stop (void)
{
  disk.stop = true;
  if (disk.runs)
    pthread_join (disk.thread, NULL);
  return disk.longest_ns / 1e6;
}

/*----------------------------------------------------------------------
 * One size
 */

static const char *const columns[] = {
  "millions",      "image",        "scattered",
  "run1",          "run10",        "run100",
  "run1000",       "returned",     "returned_scattered",
  "longest_ms",    "disk_ms",      "open_s",
  "open_killed_s", "pooldb_bytes", "disk_bytes",
  "rss_mib",       "read_bytes",   "written_bytes",
};
#define NR_COLUMNS (sizeof columns / sizeof columns[0])

static double
fill (uint64_t nr)
{
  struct work work = {
    .layer = v->volume->layer,
    .nr = nr,
    .choose = choose_next,
    .first_block = nr_v,
    .first_content = nr_v,
  };
  double rate = do_work (&work, false);

  nr_v += nr;
  return rate;
}

static double
scatter (void)
{
  struct work work = {
    .layer = w->volume->layer,
    .nr = nr_probe,
    .choose = choose_scattered,
    .first_block = nr_w,
    .first_content = next_content,
  };
  double rate = do_work (&work, false);

  next_content += nr_probe;
  nr_w += nr_probe;
  return rate;
}

/* Duplicates are in the second half of "w", and do not stay. */
static double
duplicates (unsigned run)
{
  struct work work = {
    .layer = w->volume->layer,
    .nr = nr_probe,
    .choose = choose_run,
    .run = run,
    .seed = nr_v + run,
    .first_block = VOLUME_BLOCKS / 2,
    .nr_contents = nr_v,
  };

  return do_work (&work, false);
}

static double
give_back (void (*choose) (const struct work *, uint64_t, struct block *))
{
  struct work work = {
    .layer = w->volume->layer,
    .nr = nr_probe,
    .choose = choose,
    .holes = true,
    .first_block = VOLUME_BLOCKS / 2,
  };

  return do_work (&work, true);
}

static double
time_open (void)
{
  double start = now ();

  open_default (directory, "ddt-scale");
  start = now () - start;
  open_volumes ();
  return start;
}

/* A process that opens the pool, writes, flushes, and is killed. */
static void
be_killed (void)
{
  pid_t pid = fork ();
  int status;

  if (pid == -1)
    die ("fork: %s", strerror (errno));
  if (pid == 0) {
    time_open ();
    fill (nr_probe);
    must (txg_flush (pool->txg));
    raise (SIGKILL);
  }
  if (waitpid (pid, &status, 0) == -1 || !WIFSIGNALED (status) ||
      WTERMSIG (status) != SIGKILL)
    die ("the process that was to be killed failed");
  nr_v += nr_probe;
}

static void
measure (uint64_t millions)
{
  const char *json = getenv ("JSON");
  double f[NR_COLUMNS] = { (double) millions };
  const uint64_t goal = millions * 1000000;
  uint64_t nr = goal > nr_v ? goal - nr_v : 0, read, written, rss;
  unsigned i, k = 1;
  FILE *fp;

  longest = 0;
  disk_start ();
  read = proc_figure ("/proc/self/io", "read_bytes");
  written = proc_figure ("/proc/self/io", "write_bytes");
  if (nr > nr_probe)
    fill (nr - nr_probe);
  f[k++] = fill (nr_probe);
  read = proc_figure ("/proc/self/io", "read_bytes") - read - disk.bytes;
  written = proc_figure ("/proc/self/io", "write_bytes") - written;
  f[k++] = scatter ();
  for (i = 1; i <= 1000; i *= 10)
    f[k++] = duplicates (i);
  must (txg_run (pool->txg, NULL, NULL, NULL));
  f[k++] = give_back (choose_next);
  duplicates (1);
  must (txg_run (pool->txg, NULL, NULL, NULL));
  f[k++] = give_back (choose_any);
  f[k++] = longest;
  f[k++] = disk_stop ();
  rss = proc_figure ("/proc/self/status", "VmRSS");
  close_pool ();
  f[k++] = time_open ();
  close_pool ();
  be_killed ();
  f[k++] = time_open ();
  f[k++] = (double) bytes_of ("pool.db") / (nr_v + nr_w);
  f[k++] = (double) bytes_of ("") / (nr_v + nr_w);
  if (nr < nr_probe)
    nr = nr_probe;
  f[k++] = rss / 1024.0;
  f[k++] = (double) read / nr;
  f[k++] = (double) written / nr;

  for (i = 0; i < NR_COLUMNS; ++i)
    printf ("%*.*f",
            (int) strlen (columns[i]) < 9 ? 10 : (int) strlen (columns[i]) + 1,
            f[i] < 100 ? 2 : 0, f[i]);
  printf ("\n");
  fflush (stdout);
  if (json == NULL || *json == 0)
    return;
  fp = fopen (json, "a");
  if (fp == NULL)
    die ("%s: %s", json, strerror (errno));
  for (i = 0; i < NR_COLUMNS; ++i)
    fprintf (fp, "%s\"%s\": %.3f", i == 0 ? "{" : ", ", columns[i], f[i]);
  fprintf (fp, "}\n");
  if (fclose (fp) != 0)
    die ("%s: %s", json, strerror (errno));
}

int
main (void)
{
  const char *given = getenv ("POOL"), *sizes = getenv ("MILLIONS");
  const char *probe = getenv ("BLOCKS");
  const long cpus = sysconf (_SC_NPROCESSORS_ONLN);
  char *end;
  unsigned i;

  nr_probe = probe && *probe ? strtoull (probe, NULL, 10) : 200000;
  free_places = 1;
  if (cpus > 1)
    free_places = (int) (cpus < (long) MAX_CPUS ? cpus : (long) MAX_CPUS);
  nr_threads = 2 * (unsigned) free_places;
  if (given && *given)
    snprintf (directory, sizeof directory, "%s", given);
  else
    make_directory (directory, usual_directory (), "ddt-scale");
  /* As the plugin does. */
  mallopt (M_ARENA_MAX, 2);
  mallopt (M_MMAP_THRESHOLD, 128 << 10);
  mallopt (M_TRIM_THRESHOLD, 256 << 10);
  next_content = UINT64_C (1) << 48; /* none of "v" */
  if (has_pool ())
    open_default (directory, "ddt-scale");
  else
    make_pool ();
  disk_open ();
  open_volumes ();
  count_blocks ();
  for (i = 0; i < NR_COLUMNS; ++i)
    printf ("%*s",
            (int) strlen (columns[i]) < 9 ? 10 : (int) strlen (columns[i]) + 1,
            columns[i]);
  printf ("\n");
  if (sizes == NULL || *sizes == 0)
    sizes = "1 5 10";
  for (; *sizes; sizes = end) {
    measure (strtoull (sizes, &end, 10));
    if (end == sizes)
      die ("MILLIONS: %s: not a number", sizes);
  }
  close_pool ();
  if (given == NULL || *given == 0)
    remove_directory (directory);
  return 0;
}
