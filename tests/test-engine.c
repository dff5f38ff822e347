/* SPDX-License-Identifier: BSD-3-Clause */

/* The order of things inside the engine.
 *
 * test-model and crash-model find out by chance what goes wrong when two
 * things meet; here they are made to meet: a worker is stopped half-way
 * (it needs a reader of pool.db, and we hold them all), a function runs
 * inside a fold's transaction, a reader stays inside quiesce, a process
 * ends right after a flush.  Each case is a bug that "make check-mutants"
 * plants.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cleanup.h"
#include "codec.h"
#include "nbdedup.h"
#include "pool.h"
#include "testutil.h"
#include "writeback-int.h"

#define BLOCK 4096u
#define NR_BLOCKS 2048u
#define NR_READERS 4            /* of meta.c: more would wait for ever */
/* What must not happen is given this long to happen. */
#define A_WHILE_MS 300
#define GIVE_UP_MS 60000
#define KILLED 9                /* exit status */

static char directory[PATH_MAX];
static struct nbdedup_pool *pool;
static struct nbdedup_volume *handle;
static struct volume *volume;

#define must(call)                                              \
  do {                                                          \
    if ((call) != 0)                                            \
      die ("%s line %d: %s: %s", __func__, __LINE__, #call,     \
           nbdedup_error ());                                   \
  } while (0)

#define expect(condition)                                       \
  do {                                                          \
    if (!(condition))                                           \
      die ("%s line %d: not true: %s", __func__, __LINE__,      \
           #condition);                                         \
  } while (0)

/*----------------------------------------------------------------------
 * Syncs are counted, by file: these stand in front of libc's.
 */

static atomic_uint syncs_records, syncs_journal, syncs_wal;
static atomic_uint die_at_sync; /* this one; 0: none */

static int
count_sync (int fd, long call)
{
  char link[32], path[PATH_MAX];
  const char *name;
  ssize_t n;

  snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
  n = readlink (link, path, sizeof path - 1);
  path[n > 0 ? n : 0] = '\0';
  name = strrchr (path, '/');
  if (name && strcmp (name, "/records") == 0)
    syncs_records++;
  else if (name && strcmp (name, "/journal") == 0)
    syncs_journal++;
  else if (name && strcmp (name, "/pool.db-wal") == 0)
    syncs_wal++;
  if (die_at_sync > 0 && --die_at_sync == 0)
    _exit (KILLED);
  return (int) syscall (call, fd);
}

int
fdatasync (int fd)
{
  return count_sync (fd, SYS_fdatasync);
}

int
fsync (int fd)
{
  return count_sync (fd, SYS_fsync);
}

/*----------------------------------------------------------------------
 * A pool with one volume
 */

static json_t *
call (const char *command, json_t *args)
{
  json_t *result = nbdedup_call (pool, command, args);

  json_decref (args);
  if (result == NULL)
    die ("%s: %s", command, nbdedup_error ());
  return result;
}

static uint64_t dirty_max = NBDEDUP_DIRTY_MAX_DEFAULT;

static void
open_pool (unsigned nr_workers)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.nr_workers = nr_workers;
  settings.dirty_max_bytes = dirty_max;
  settings.commit_interval_ms = 1000000;        /* nothing by itself */
  pool = nbdedup_pool_open (directory, &settings, "test-engine", 0);
  if (pool == NULL)
    die ("open: %s", nbdedup_error ());
}

static void
attach (void)
{
  handle = nbdedup_volume_open (pool, "v", 0, -1, NULL);
  if (handle == NULL)
    die ("v: %s", nbdedup_error ());
  volume = handle->volume;
}

static void
start (unsigned nr_workers)
{
  snprintf (directory, sizeof directory, "%s/test-engine-XXXXXX",
            getenv ("TMPDIR") ?: "/tmp");
  if (mkdtemp (directory) == NULL)
    die ("%s: %s", directory, strerror (errno));
  must (nbdedup_pool_create (directory, NULL));
  open_pool (nr_workers);
  json_decref (call ("create",
                     json_pack ("{s:s,s:I,s:i}", "name", "v", "size",
                                (json_int_t) NR_BLOCKS * BLOCK, "block-size",
                                BLOCK)));
  attach ();
}

static void
close_pool (void)
{
  nbdedup_volume_close (handle);
  must (nbdedup_pool_close (pool));
}

static void
verify_pool (void)
{
  json_t *result = call ("check", json_object ()), *text;
  size_t i;

  if (json_integer_value (json_object_get (result, "errors")) != 0) {
    json_array_foreach (json_object_get (result, "problems"), i, text)
      fprintf (stderr, "check: %s\n", json_string_value (text));
    die ("check found errors");
  }
  json_decref (result);
}

static void
end (void)
{
  char command[PATH_MAX + 20];

  verify_pool ();
  close_pool ();
  snprintf (command, sizeof command, "rm -rf '%s'", directory);
  if (system (command) != 0)
    die ("%s", command);
}

/* Contents are numbers; 0 is zeroes, others do not compress. */
static void
fill (uint8_t buf[BLOCK], uint64_t content)
{
  if (content == 0)
    memset (buf, 0, BLOCK);
  else
    fill_random (buf, BLOCK, content);
}

static void
write_blocks (uint64_t block, unsigned nr, uint64_t content)
{
  uint8_t *buf = xmalloc (nr * BLOCK);
  unsigned i;

  for (i = 0; i < nr; ++i)
    fill (buf + i * BLOCK, content + i);
  must (nbdedup_volume_write (handle, buf, nr * BLOCK, block * BLOCK));
  free (buf);
}

#define write_block(block, content) write_blocks (block, 1, content)
#define trim_block(block)                                       \
  must (nbdedup_volume_trim (handle, BLOCK, (block) * (uint64_t) BLOCK))

static void
expect_content_at (int line, uint64_t block, uint64_t content)
{
  uint8_t buf[BLOCK], wanted[BLOCK];

  fill (wanted, content);
  if (nbdedup_volume_read (handle, buf, BLOCK, block * BLOCK) == -1)
    die ("line %d: block %" PRIu64 ": %s", line, block, nbdedup_error ());
  if (memcmp (buf, wanted, BLOCK) != 0)
    die ("line %d: block %" PRIu64 " is not what was written (%" PRIu64 ")",
         line, block, content);
}
#define expect_content(block, content) \
  expect_content_at (__LINE__, block, content)

/* Everything is in pool.db, and what it displaced is free. */
static void
settle (void)
{
  must (wb_drain (pool->writeback, NULL));
  must (txg_run (pool->txg, NULL, NULL, NULL));
}

static uint64_t
address_of (uint64_t block)
{
  struct pointer ptr;
  uint8_t state;

  must (map_get (pool->map, volume->layer, block, 1, &state, &ptr));
  expect (state == MAP_POINTER);
  return ptr.addr;
}

/*----------------------------------------------------------------------
 * Something that runs beside us
 */

struct job {
  void (*fn) (uint64_t arg);
  uint64_t arg;
  pthread_t thread;
  atomic_bool done;
};

static void *
job_thread (void *arg)
{
  struct job *j = arg;

  j->fn (j->arg);
  j->done = true;
  return NULL;
}

static void
job_start (struct job *j, void (*fn) (uint64_t), uint64_t arg)
{
  *j = (struct job) { .fn = fn, .arg = arg };
  if (pthread_create (&j->thread, NULL, job_thread, j) != 0)
    die ("pthread_create failed");
}

static void
job_end (struct job *j)
{
  pthread_join (j->thread, NULL);
}

static void
do_flush (uint64_t arg)
{
  (void) arg;
  must (nbdedup_volume_flush (handle));
}

static void
do_fold (uint64_t arg)
{
  (void) arg;
  must (txg_run (pool->txg, NULL, NULL, NULL));
}

static void
do_look (uint64_t block)
{
  struct pointer ptr;           /* not followed */
  uint8_t state;

  must (map_get (pool->map, volume->layer, block, 1, &state, &ptr));
}

/* Lookups in pool.db wait while we have these. */
static struct meta_conn *readers[NR_READERS];

static void
stall (void)
{
  unsigned i;

  for (i = 0; i < NR_READERS; ++i)
    readers[i] = meta_reader_get (pool->meta);
}

static void
unstall (void)
{
  unsigned i;

  for (i = 0; i < NR_READERS; ++i)
    meta_reader_put (pool->meta, readers[i]);
}

static bool
is_inflight (uint64_t block)
{
  struct dirty *d;

  WITH_LOCK (writeback_lock (pool->writeback));
  TAILQ_FOREACH (d, &volume->inflight_list, flink)
    if (d->block == block)
      return true;
  return false;
}

/* Write a block, and flush until a worker has it and can go no further. */
static void
write_and_stall (struct job *flush, uint64_t block, uint64_t content)
{
  unsigned ms;

  stall ();
  write_block (block, content);
  job_start (flush, do_flush, 0);
  for (ms = 0; !is_inflight (block); ++ms) {
    if (ms == GIVE_UP_MS || flush->done)
      die ("no worker took the block");
    poll (NULL, 0, 1);
  }
}

/*----------------------------------------------------------------------
 * Writes
 */

static void
test_flush_waits_for_workers (void)
{
  struct job first, second;

  start (1);
  write_and_stall (&first, 5, 1);
  job_start (&second, do_flush, 0);
  poll (NULL, 0, A_WHILE_MS);
  expect (!first.done && !second.done);
  unstall ();
  job_end (&first);
  job_end (&second);
  expect_content (5, 1);
  end ();
}

/* A worker that is inside a txg has taken references in it: its pointers
 * must be in the same one.
 */
static void
test_fold_waits_for_workers (void)
{
  struct job flush, fold;

  start (1);
  write_and_stall (&flush, 5, 1);
  job_start (&fold, do_fold, 0);
  poll (NULL, 0, A_WHILE_MS);
  expect (!fold.done);
  unstall ();
  job_end (&flush);
  job_end (&fold);
  expect_content (5, 1);
  end ();
}

static void
test_trim_of_what_is_dirty (void)
{
  start (1);
  write_blocks (4, 3, 1);       /* no worker has begun */
  trim_block (5);
  expect_content (5, 0);
  settle ();
  expect_content (4, 1);
  expect_content (5, 0);
  expect_content (6, 3);
  end ();
}

static void
test_trim_of_what_is_being_stored (void)
{
  struct job flush;

  start (1);
  write_block (5, 1);
  settle ();
  expect_content (5, 1);        /* the leaf is in the cache */
  write_and_stall (&flush, 5, 2);
  trim_block (5);
  expect_content (5, 0);
  unstall ();
  job_end (&flush);
  expect_content (5, 0);
  settle ();
  expect_content (5, 0);
  end ();
}

static void
test_partial_write_over_what_is_being_stored (void)
{
  uint8_t buf[BLOCK], found[BLOCK];
  struct job flush;

  start (1);
  write_block (5, 1);
  settle ();
  expect_content (5, 1);
  write_and_stall (&flush, 5, 2);
  memset (buf, 7, 100);
  must (nbdedup_volume_write (handle, buf, 100, 5 * BLOCK + 50));
  unstall ();
  job_end (&flush);
  fill (buf, 2);
  memset (buf + 50, 7, 100);
  must (nbdedup_volume_read (handle, found, BLOCK, 5 * BLOCK));
  expect (memcmp (found, buf, BLOCK) == 0);
  settle ();
  must (nbdedup_volume_read (handle, found, BLOCK, 5 * BLOCK));
  expect (memcmp (found, buf, BLOCK) == 0);
  end ();
}

static void
test_two_versions_of_a_block (void)
{
  struct job first, second;
  struct dirty *d;
  unsigned nr = 0;

  start (2);
  write_and_stall (&first, 5, 1);
  write_block (5, 2);
  job_start (&second, do_flush, 0);     /* the other worker is free */
  poll (NULL, 0, A_WHILE_MS);
  {
    WITH_LOCK (writeback_lock (pool->writeback));
    TAILQ_FOREACH (d, &volume->open_list, vlink)
      nr++;
  }
  expect (nr == 1);             /* it waits for the first version */
  unstall ();
  job_end (&first);
  job_end (&second);
  expect_content (5, 2);
  settle ();
  expect_content (5, 2);
  end ();
}

static int
note_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  uint64_t *data = opaque;

  (void) offset;
  *data += hole ? 0 : len;
  return 0;
}

static void
test_extents_of_dirty_blocks (void)
{
  uint64_t data = 0;

  start (1);
  write_block (5, 1);
  must (nbdedup_volume_extents (handle, NR_BLOCKS * BLOCK, 0, note_extent,
                                &data));
  expect (data == BLOCK);
  end ();
}

/* Of two partial writes to a block that is not in memory, none is lost. */
static atomic_bool stop_writing;

static void
do_partial_writes (uint64_t offset)
{
  uint8_t buf[64], found[64];
  unsigned round;

  for (round = 1; !stop_writing; ++round) {
    memset (buf, (int) (round % 255 + 1), sizeof buf);
    must (nbdedup_volume_write (handle, buf, sizeof buf, offset));
    if (round % 4 == 0)
      must (nbdedup_volume_flush (handle));
    must (nbdedup_volume_read (handle, found, sizeof found, offset));
    expect (memcmp (found, buf, sizeof buf) == 0);
  }
}

static void
test_partial_writes_to_one_block (void)
{
  struct job jobs[4];
  unsigned i;

  start (2);
  stop_writing = false;
  for (i = 0; i < 4; ++i)
    job_start (&jobs[i], do_partial_writes, i * 1000);
  poll (NULL, 0, 1000);
  stop_writing = true;
  for (i = 0; i < 4; ++i)
    job_end (&jobs[i]);
  end ();
}

static void
test_requests_that_are_refused (void)
{
  uint64_t size = NR_BLOCKS * (uint64_t) BLOCK;
  struct nbdedup_volume *readonly;
  uint8_t buf[BLOCK];

  start (1);
  write_block (0, 1);
#define refused(error, call)                                    \
  do {                                                          \
    errno = 0;                                                  \
    expect ((call) == -1);                                      \
    expect (errno == error);                                    \
  } while (0)
  readonly = nbdedup_volume_open (pool, "v", NBDEDUP_VOLUME_READONLY, -1,
                                  NULL);
  expect (readonly != NULL);
  fill (buf, 2);
  refused (EROFS, nbdedup_volume_write (readonly, buf, BLOCK, 0));
  refused (EROFS, nbdedup_volume_zero (readonly, BLOCK, 0));
  refused (EROFS, nbdedup_volume_trim (readonly, BLOCK, 0));
  must (nbdedup_volume_read (readonly, buf, BLOCK, 0));
  must (nbdedup_volume_flush (readonly));
  nbdedup_volume_close (readonly);

  refused (EINVAL, nbdedup_volume_read (handle, buf, BLOCK, size));
  refused (EINVAL, nbdedup_volume_read (handle, buf, 2, size - 1));
  refused (EINVAL, nbdedup_volume_write (handle, buf, 2, size - 1));
  refused (EINVAL, nbdedup_volume_write (handle, buf, 1, UINT64_MAX));
  refused (EINVAL, nbdedup_volume_zero (handle, size, 1));
  refused (EINVAL, nbdedup_volume_trim (handle, UINT64_MAX, BLOCK));
#undef refused
  expect_content (0, 1);
  end ();
}

static void
resize (uint64_t blocks)
{
  nbdedup_volume_close (handle);
  json_decref (call ("resize",
                     json_pack ("{s:s,s:I,s:b}", "name", "v", "size",
                                (json_int_t) blocks * BLOCK, "shrink", 1)));
  attach ();
}

static void
test_what_shrinking_dropped_stays_dropped (void)
{
  start (1);
  write_blocks (0, 20, 1);
  settle ();
  resize (10);
  resize (NR_BLOCKS);
  expect_content (9, 10);
  expect_content (10, 0);
  expect_content (19, 0);
  end ();
}

/*----------------------------------------------------------------------
 * Limits
 */

static void
do_write_all (uint64_t content)
{
  write_blocks (0, NR_BLOCKS, content);
}

static void
test_dirty_max_makes_writers_wait (void)
{
  struct job writer;
  uint64_t bytes;

  dirty_max = NBDEDUP_DIRTY_MAX_MIN;
  start (1);
  dirty_max = NBDEDUP_DIRTY_MAX_DEFAULT;
  expect (NR_BLOCKS * BLOCK > NBDEDUP_DIRTY_MAX_MIN);
  stall ();
  job_start (&writer, do_write_all, 1);
  poll (NULL, 0, A_WHILE_MS);
  {
    WITH_LOCK (writeback_lock (pool->writeback));
    bytes = pool->writeback->bytes;
  }
  expect (!writer.done);
  expect (bytes <= NBDEDUP_DIRTY_MAX_MIN);
  unstall ();
  job_end (&writer);
  expect_content (NR_BLOCKS - 1, NR_BLOCKS);
  end ();
}

static void
test_record_cache_keeps_its_budget (void)
{
  struct record_cache *c = record_cache_new (1 << 20);
  static uint8_t buf[BLOCK];
  unsigned i, nr = 0;

  expect (c != NULL);
  for (i = 0; i < 1000; ++i)
    record_cache_put (c, i + 1, buf, sizeof buf);
  for (i = 0; i < 1000; ++i)
    nr += record_cache_has (c, i + 1);
  expect (nr > 128 && nr * BLOCK <= 1 << 20);
  expect (record_cache_has (c, 1000));
  record_cache_free (c);
}

/*----------------------------------------------------------------------
 * Caches
 */

static void
test_leaf_cache_follows_the_fold (void)
{
  start (1);
  write_block (5, 1);
  settle ();
  expect_content (5, 1);        /* now the leaf is cached */
  trim_block (5);
  settle ();
  expect_content (5, 0);
  write_block (5, 2);
  settle ();
  expect_content (5, 2);
  write_block (5, 3);
  settle ();
  expect_content (5, 3);
  end ();
}

/* A leaf that was looked up before a fold and read in an older state of
 * pool.db does not enter the cache after it.
 */
static void
test_leaf_cache_takes_nothing_old (void)
{
  struct meta_state state;
  struct job look;
  unsigned i;

  start (1);
  write_block (5, 1);
  settle ();
  close_pool ();
  open_pool (1);                /* no leaf is cached */
  attach ();
  write_block (LEAF_BLOCKS * 3, 2);     /* but the segment's map is */
  settle ();
  stall ();
  for (i = 0; i < NR_READERS; ++i) {
    must (meta_freeze (readers[i]));
    must (meta_state_get (readers[i], &state));
  }
  job_start (&look, do_look, 5);
  poll (NULL, 0, A_WHILE_MS);   /* it has looked in memory, and waits */
  trim_block (5);
  must (txg_run (pool->txg, NULL, NULL, NULL));
  unstall ();
  job_end (&look);
  stall ();
  for (i = 0; i < NR_READERS; ++i)
    meta_unfreeze (readers[i]);
  unstall ();
  expect_content (5, 0);
  end ();
}

/* Make block 0's record die, and another one take its address: block 'b'
 * of the result has it, and content 'b' + 1000.
 */
static uint64_t
reuse_address_of_block_0 (void)
{
  uint64_t addr = address_of (0), b;

  write_block (0, 2);
  settle ();
  for (b = 100; b < 200; ++b) {
    write_block (b, b + 1000);
    settle ();
    if (address_of (b) == addr)
      return b;
  }
  die ("the space of a dead record is not used again");
}

static void
test_record_cache_forgets (void)
{
  uint64_t b;

  start (1);
  write_block (0, 1);
  settle ();
  expect_content (0, 1);        /* now the record is cached */
  expect (record_cache_has (pool->records, address_of (0)));
  b = reuse_address_of_block_0 ();
  expect_content (b, b + 1000);
  end ();
}

static void
test_index_forgets (void)
{
  struct meta_state before, after;

  start (1);
  write_block (0, 1);
  settle ();
  txg_get_state (pool->txg, &before);
  expect (before.index_entries == 1);
  reuse_address_of_block_0 ();
  txg_get_state (pool->txg, &after);
  expect (after.index_entries == after.records);
  write_block (1, 1);           /* an address for this hash was known once */
  settle ();
  expect_content (1, 1);
  end ();
}

/*----------------------------------------------------------------------
 * Records, references, space
 */

static void
test_equal_blocks_in_one_batch (void)
{
  uint8_t *buf = xmalloc (32 * BLOCK);
  uint64_t i;

  start (1);
  for (i = 0; i < 32; ++i)
    fill (buf + i * BLOCK, 1);
  must (nbdedup_volume_write (handle, buf, 32 * BLOCK, 0));
  settle ();
  for (i = 1; i < 32; ++i)
    expect (address_of (i) == address_of (0));
  verify_pool ();
  must (nbdedup_volume_trim (handle, 31 * BLOCK, 0));
  settle ();
  expect_content (31, 1);
  free (buf);
  end ();
}

static void
test_overwriting_before_the_fold (void)
{
  struct meta_state state;
  unsigned i;

  start (1);
  for (i = 1; i <= 5; ++i) {
    write_block (0, i);
    must (wb_drain (pool->writeback, NULL));
  }
  settle ();
  txg_get_state (pool->txg, &state);
  expect (state.records == 1);
  expect_content (0, 5);
  end ();
}

static int
set_domain (const char *domain)
{
  json_t *args = json_pack ("{s:s,s:s,s:s}", "property", "domain", "value",
                            domain, "name", "v");
  json_t *result = nbdedup_call (pool, "set", args);

  json_decref (args);
  json_decref (result);
  return result ? 0 : -1;
}

/* What is stored already is shared within the old domain. */
static void
test_domain_of_a_volume_with_data (void)
{
  start (1);
  nbdedup_volume_close (handle);
  must (set_domain ("red"));    /* empty: it may */
  attach ();
  write_block (0, 1);
  nbdedup_volume_close (handle);
  expect (set_domain ("blue") == -1 && errno == EBUSY);
  attach ();
  trim_block (0);
  nbdedup_volume_close (handle);
  must (set_domain ("blue"));
  attach ();
  end ();
}

static void
do_set_domain (uint64_t arg)
{
  (void) arg;
  must (set_domain ("red"));
}

/* Who attaches when it was seen to be empty would write in the old one. */
static void
test_nobody_attaches_while_the_domain_is_set (void)
{
  struct job set;

  start (1);
  nbdedup_volume_close (handle);
  txg_enter (pool->txg);        /* so it can look, but not go on */
  job_start (&set, do_set_domain, 0);
  poll (NULL, 0, A_WHILE_MS);
  expect (!set.done);
  expect (nbdedup_volume_open (pool, "v", 0, -1, NULL) == NULL);
  expect (errno == EBUSY);
  txg_leave (pool->txg);
  job_end (&set);
  attach ();
  end ();
}

/* Compressing must save a sector; else it only costs. */
static void
test_compressed_only_if_that_saves_a_sector (void)
{
  static const struct {
    unsigned zeroes;
    bool compressed;
  } cases[] = { { 0, false }, { 200, false }, { 450, false }, { 700, true } };
  uint8_t buf[BLOCK];
  struct pointer ptr;
  uint8_t state;
  unsigned i;

  start (1);
  for (i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    fill (buf, i + 1);
    memset (buf + 1000, 0, cases[i].zeroes);
    must (nbdedup_volume_write (handle, buf, BLOCK, i * BLOCK));
    must (wb_drain (pool->writeback, NULL));
    must (map_get (pool->map, volume->layer, i, 1, &state, &ptr));
    expect (state == MAP_POINTER);
    expect ((ptr.codec != CODEC_NONE) == cases[i].compressed);
    expect (cases[i].compressed ? ptr.psize <= BLOCK - 512
            : ptr.psize == BLOCK);
  }
  end ();
}

static void
test_dead_or_referred_to (void)
{
  struct record record = {
    .ptr = { .addr = 12345, .psize = BLOCK }, .lsize = BLOCK, .domain = 77,
    .flags = RECORD_INDEXED,
  };
  struct ddt *ddt;
  struct pointer ptr;

  start (1);
  ddt = ddt_new (pool->meta, 1 << 20);
  expect (ddt != NULL);
  fill_random (&record.digest, sizeof record.digest, 1);

  /* The folding txg gives up the last reference, the open one has a new
   * one: the record lives.
   */
  must (ddt_insert (ddt, &record, 1, &ptr));
  ddt_cut (ddt);
  expect (ddt_lookup (ddt, &record.digest, BLOCK, 77, &ptr) == 1);
  expect (ptr.addr == record.ptr.addr);
  expect (!ddt_try_kill (ddt, record.ptr.addr, &record.digest));
  ddt_fold_done (ddt);

  /* Even if that one was given back: the journal may have it. */
  ddt_unref (ddt, record.ptr.addr);
  expect (!ddt_try_kill (ddt, record.ptr.addr, &record.digest));
  ddt_cut (ddt);

  /* Nobody wants it: it dies, and is found no more. */
  expect (ddt_try_kill (ddt, record.ptr.addr, &record.digest));
  expect (ddt_lookup (ddt, &record.digest, BLOCK, 77, &ptr) == 0);
  ddt_fold_done (ddt);
  ddt_forget (ddt, record.ptr.addr);
  ddt_free (ddt);
  end ();
}

static void
test_space_waits_for_readers (void)
{
  unsigned ticket;
  struct job fold;

  start (1);
  write_block (0, 1);
  settle ();
  ticket = quiesce_enter (&pool->quiesce);
  write_block (0, 2);           /* its lookup is inside later, and leaves */
  must (wb_drain (pool->writeback, NULL));
  job_start (&fold, do_fold, 0);
  poll (NULL, 0, A_WHILE_MS);
  expect (!fold.done);
  quiesce_leave (&pool->quiesce, ticket);
  job_end (&fold);
  expect_content (0, 2);
  end ();
}

/* What is so inside the transaction, when nothing is committed yet. */
struct inside {
  uint64_t fold;                /* before, in pool.db */
  uint64_t free_bytes, live_bytes;
  unsigned records_syncs;
  bool disturbed;               /* by a fold that came by itself */
};

static int
look_inside (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct inside *in = arg;
  struct space_info space;
  uint64_t live, ring;

  (void) c;
  if (state->fold != in->fold + 1) {
    in->disturbed = true;
    return 0;
  }
  space_get_info (pool->space, &space);
  journal_get_usage (pool->journal, &live, &ring);
  expect (space.free_bytes <= in->free_bytes);
  expect (live >= in->live_bytes);
  expect (syncs_records > in->records_syncs);
  return 0;
}

static void
test_nothing_is_given_up_before_the_commit (void)
{
  struct inside in = { .disturbed = true };
  struct meta_state state;
  struct space_info space;
  uint64_t ring, live, content = 1;
  unsigned tries;

  start (1);
  write_blocks (0, 256, content);
  settle ();
  for (tries = 0; in.disturbed; ++tries) {
    expect (tries < 10);
    txg_get_state (pool->txg, &state);
    content += 1000;
    write_blocks (0, 256, content);
    must (nbdedup_volume_flush (handle));
    /* ... and more, which is not flushed. */
    write_blocks (256, 256, content + 300);
    must (wb_drain (pool->writeback, NULL));
    space_get_info (pool->space, &space);
    journal_get_usage (pool->journal, &live, &ring);
    in = (struct inside) {
      .fold = state.fold, .free_bytes = space.free_bytes,
      .live_bytes = live, .records_syncs = syncs_records,
    };
    must (txg_run (pool->txg, look_inside, NULL, &in));
  }
  expect (live > 0);
  space_get_info (pool->space, &space);
  expect (space.free_bytes > in.free_bytes);
  journal_get_usage (pool->journal, &live, &ring);
  expect (live == 0);
  expect_content (255, content + 255);
  end ();
}

/* After a fold the journal's batches are given up: the commit itself must
 * be durable, not only the next checkpoint.
 */
static void
test_commit_is_synced (void)
{
  unsigned i, syncs;

  start (1);
  for (i = 1; i <= 5; ++i) {
    write_block (0, i);
    must (wb_drain (pool->writeback, NULL));
    syncs = syncs_wal;
    must (txg_run (pool->txg, NULL, NULL, NULL));
    expect (syncs_wal > syncs);
  }
  end ();
}

/*----------------------------------------------------------------------
 * Flush and replay
 */

static void
test_flush_syncs_records_and_journal (void)
{
  unsigned records, journal;

  start (1);
  records = syncs_records;
  journal = syncs_journal;
  write_blocks (0, 256, 1);     /* too much for the journal to carry */
  must (nbdedup_volume_flush (handle));
  expect (syncs_records > records);
  expect (syncs_journal > journal);
  journal = syncs_journal;
  write_block (0, 1000);        /* the journal carries it */
  must (nbdedup_volume_flush (handle));
  expect (syncs_journal > journal);
  journal = syncs_journal;
  trim_block (1);
  must (nbdedup_volume_flush_range (handle, BLOCK, BLOCK));
  expect (syncs_journal > journal);
  end ();
}

/* One copy is whole at any moment. */
static void
test_copies_of_a_header_are_synced_apart (void)
{
  struct meta_state state;
  unsigned syncs;

  start (1);
  settle ();
  txg_get_state (pool->txg, &state);
  syncs = syncs_journal;
  must (journal_set_epoch (pool->journal, state.epoch));
  expect (syncs_journal == syncs + 2);
  syncs = syncs_records;
  must (store_set_epoch (pool->store, state.epoch));
  expect (syncs_records >= syncs + 1);
  end ();
}

/* Run 'fn' in a process that has the pool open and ends without closing
 * it; it tells us the address of a block.
 */
static uint64_t
crash_after (uint64_t (*fn) (void))
{
  _Atomic uint64_t *shared;
  int status;
  pid_t pid;

  shared = mmap (NULL, sizeof *shared, PROT_READ|PROT_WRITE,
                 MAP_SHARED|MAP_ANONYMOUS, -1, 0);
  expect (shared != MAP_FAILED);
  fflush (stdout);
  pid = fork ();
  expect (pid != -1);
  if (pid == 0) {
    open_pool (1);
    attach ();
    *shared = fn ();
    _exit (0);
  }
  expect (waitpid (pid, &status, 0) == pid);
  expect (WIFEXITED (status) && WEXITSTATUS (status) == 0);
  return *shared;
}

static uint64_t
overwrite_a_lot (void)
{
  write_blocks (0, 64, 1000);
  must (nbdedup_volume_flush (handle));
  return address_of (7);
}

static uint64_t
overwrite_twice (void)
{
  write_blocks (0, 64, 1000);
  must (nbdedup_volume_flush (handle));
  write_blocks (0, 2, 2000);
  trim_block (3);
  must (nbdedup_volume_flush (handle));
  return 1;
}

/* The last batch is in the journal, and all of its records but one are in
 * place: that is what a loss of power during a flush may leave.  The block
 * has its old content.
 */
static void
test_replay_of_a_record_that_never_arrived (void)
{
  CLEANUP_FREE char *path = NULL;
  static const uint8_t zeroes[BLOCK];
  uint64_t addr;
  FILE *f;

  start (1);
  write_blocks (0, 64, 1);
  settle ();
  close_pool ();
  addr = crash_after (overwrite_a_lot);
  path = pool_file (directory, "records");
  f = fopen (path, "r+");
  expect (f != NULL);
  expect (fseeko (f, (off_t) addr * 512, SEEK_SET) == 0);
  expect (fwrite (zeroes, sizeof zeroes, 1, f) == 1);
  expect (fclose (f) == 0);
  open_pool (1);
  attach ();
  expect_content (6, 1006);
  expect_content (7, 8);
  expect_content (63, 1063);
  end ();
}

static void
test_replay_of_two_batches (void)
{
  unsigned i;

  start (1);
  write_blocks (0, 64, 1);
  settle ();
  close_pool ();
  crash_after (overwrite_twice);
  for (i = 0; i < 2; ++i) {     /* the second time nothing is left to do */
    open_pool (1);
    attach ();
    expect_content (0, 2000);
    expect_content (1, 2001);
    expect_content (2, 1002);
    expect_content (3, 0);
    expect_content (63, 1063);
    verify_pool ();
    if (i == 0)
      close_pool ();
  }
  end ();
}

/* A process that dies at the 'nth' sync of opening the pool: false when
 * there are not so many.
 */
static bool
is_killed_while_opening (unsigned nth)
{
  int status;
  pid_t pid;

  fflush (stdout);
  pid = fork ();
  expect (pid != -1);
  if (pid == 0) {
    die_at_sync = nth;
    open_pool (1);
    _exit (0);
  }
  expect (waitpid (pid, &status, 0) == pid && WIFEXITED (status));
  expect (WEXITSTATUS (status) == 0 || WEXITSTATUS (status) == KILLED);
  return WEXITSTATUS (status) == KILLED;
}

/* Twice at the same place, wherever that is. */
static void
test_killed_while_opening (void)
{
  unsigned nth;
  bool killed = true;

  start (1);
  write_blocks (0, 64, 1);
  settle ();
  close_pool ();
  for (nth = 1; killed; ++nth) {
    crash_after (overwrite_twice);
    killed = is_killed_while_opening (nth);
    is_killed_while_opening (nth);
    open_pool (1);
    attach ();
    expect_content (0, 2000);
    expect_content (2, 1002);
    expect_content (3, 0);
    expect_content (63, 1063);
    verify_pool ();
    close_pool ();
  }
  expect (nth > 5);
  open_pool (1);
  attach ();
  end ();
}

static int
count_one (void *opaque, uint64_t addr)
{
  unsigned *nr = opaque;

  (void) addr;
  ++*nr;
  return 0;
}

/* Records of pool.db without references. */
static unsigned
count_limbo (void)
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  unsigned nr = 0;

  must (meta_limbo_scan (c, count_one, &nr));
  meta_reader_put (pool->meta, c);
  return nr;
}

/* While a fold takes away the last reference to a record, the next txg
 * refers to it: it stays, without a reference in pool.db.
 */
static uint64_t
refer_during_the_fold (void)
{
  uint64_t before, now, position;
  struct job fold;
  unsigned ms;

  write_block (0, 1);
  settle ();
  expect_content (0, 1);
  trim_block (0);
  journal_get_end (pool->journal, &before, &position);
  {
    /* After the cut, the fold asks for the dying layers. */
    WITH_LOCK (&pool->volumes->lock);
    job_start (&fold, do_fold, 0);
    for (ms = 0, now = before; now == before; ++ms) {
      expect (ms < GIVE_UP_MS);
      poll (NULL, 0, 1);
      journal_get_end (pool->journal, &now, &position);
    }
    write_block (1, 1);
    must (wb_drain (pool->writeback, volume));
  }
  job_end (&fold);
  expect_content (1, 1);
  return count_limbo ();
}

static void
test_record_that_only_a_crash_leaves (void)
{
  struct meta_state state;

  start (1);
  close_pool ();
  expect (crash_after (refer_during_the_fold) == 1);
  open_pool (1);
  attach ();
  expect_content (0, 0);
  expect_content (1, 0);        /* was not flushed */
  settle ();
  expect (count_limbo () == 0);
  txg_get_state (pool->txg, &state);
  expect (state.records == 0 && state.index_entries == 0);
  end ();
}

#define TEST(name) { #name, test_##name }
static const struct {
  const char *name;
  void (*fn) (void);
} tests[] = {
  /* These fork: no thread may have been started before. */
  TEST (replay_of_a_record_that_never_arrived),
  TEST (replay_of_two_batches),
  TEST (killed_while_opening),
  TEST (record_that_only_a_crash_leaves),
  TEST (flush_waits_for_workers),
  TEST (fold_waits_for_workers),
  TEST (trim_of_what_is_dirty),
  TEST (trim_of_what_is_being_stored),
  TEST (partial_write_over_what_is_being_stored),
  TEST (two_versions_of_a_block),
  TEST (extents_of_dirty_blocks),
  TEST (partial_writes_to_one_block),
  TEST (requests_that_are_refused),
  TEST (what_shrinking_dropped_stays_dropped),
  TEST (dirty_max_makes_writers_wait),
  TEST (record_cache_keeps_its_budget),
  TEST (leaf_cache_follows_the_fold),
  TEST (leaf_cache_takes_nothing_old),
  TEST (record_cache_forgets),
  TEST (index_forgets),
  TEST (equal_blocks_in_one_batch),
  TEST (overwriting_before_the_fold),
  TEST (domain_of_a_volume_with_data),
  TEST (nobody_attaches_while_the_domain_is_set),
  TEST (compressed_only_if_that_saves_a_sector),
  TEST (dead_or_referred_to),
  TEST (space_waits_for_readers),
  TEST (nothing_is_given_up_before_the_commit),
  TEST (commit_is_synced),
  TEST (flush_syncs_records_and_journal),
  TEST (copies_of_a_header_are_synced_apart),
};

/* test-engine [NAME...] */
int
main (int argc, char *argv[])
{
  size_t i;
  int j;

  for (i = 0; i < sizeof tests / sizeof tests[0]; ++i) {
    for (j = 1; j < argc && strcmp (argv[j], tests[i].name) != 0; ++j)
      ;
    if (argc > 1 && j == argc)
      continue;
    printf ("%s\n", tests[i].name);
    fflush (stdout);
    tests[i].fn ();
  }
  return 0;
}
