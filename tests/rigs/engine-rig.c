/* SPDX-License-Identifier: BSD-3-Clause */

/* See engine-rig.h. */

#include <config.h>

#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "core/map.h"
#include "core/txg.h"
#include "data/volume-types.h"
#include "data/writeback-int.h"
#include "data/writeback.h"
#include "format/format.h"
#include "meta/meta.h"
#include "rigs/engine-rig.h"

char directory[PATH_MAX];
struct nbdedup_pool *pool;
struct nbdedup_volume *handle;
struct volume *volume;

/*----------------------------------------------------------------------
 * These functions replace libc's, to count the syncs of each file.
 */

atomic_uint syncs_records, syncs_journal, syncs_wal, syncs_names;
atomic_uint crash_at_sync, fail_syncs, fail_wal_syncs, sync_ms;
void (*_Atomic at_sync_of_records) (void);

/* Compare the name only: the path may have had a symbolic link in it. */
static bool
is_directory (int fd)
{
  const char *slash = strrchr (directory, '/');

  return slash && is_file (fd, slash + 1);
}

static int
count_sync (int fd, long call)
{
  void (*fn) (void);

  if (sync_ms > 0)
    poll (NULL, 0, (int) sync_ms);
  if (is_file (fd, "records")) {
    syncs_records++;
    fn = atomic_exchange (&at_sync_of_records, NULL);
    if (fn)
      fn ();
  }
  else if (is_file (fd, "journal"))
    syncs_journal++;
  else if (is_file (fd, "pool.db-wal")) {
    syncs_wal++;
    if (fail_wal_syncs > 0) {
      fail_wal_syncs--;
      errno = EIO;
      return -1;
    }
  }
  else if (is_directory (fd))
    syncs_names++;
  else if (fail_syncs > 0 && is_file (fd, "pool.db")) {
    fail_syncs--;
    errno = EIO;
    return -1;
  }
  if (crash_at_sync > 0 && --crash_at_sync == 0)
    crash ();
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

atomic_uint fail_reads, reads_records;
void (*_Atomic at_read_of_db) (void);

static ssize_t
maybe_read (int fd, void *buf, size_t len, off_t offset)
{
  if (offset >= STORE_HEADER_BYTES && is_file (fd, "records")) {
    reads_records++;
    if (fail_reads > 0) {
      fail_reads--;
      errno = EIO;
      return -1;
    }
  }
  if (at_read_of_db && is_file (fd, "pool.db"))
    at_read_of_db ();
  return syscall (SYS_pread64, fd, buf, len, offset);
}

ssize_t
pread (int fd, void *buf, size_t len, off_t offset)
{
  return maybe_read (fd, buf, len, offset);
}

/* Its name where a macro makes off_t 64 bits wide. */
ssize_t pread64 (int fd, void *buf, size_t len, off_t offset);

ssize_t
pread64 (int fd, void *buf, size_t len, off_t offset)
{
  return maybe_read (fd, buf, len, offset);
}

/*----------------------------------------------------------------------
 * A pool with one volume
 */

uint64_t dirty_max = NBDEDUP_DIRTY_MAX_DEFAULT;

static void
open_with (unsigned nr_workers, bool repair)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.nr_workers = nr_workers;
  settings.dirty_max_bytes = dirty_max;
  settings.commit_interval_ms = 1000000; /* no commits by time */
  settings.repair = repair;
  pool = nbdedup_pool_open (directory, &settings, "engine-rig", 0);
  if (pool == NULL)
    die ("open: %s", nbdedup_error ());
}

void
open_pool (unsigned nr_workers)
{
  open_with (nr_workers, false);
}

void
open_to_repair (void)
{
  open_with (1, true);
  attach ();
}

void
attach_to (const char *name)
{
  handle = open_volume (name);
  volume = handle->volume;
}

void
attach (void)
{
  attach_to ("v");
}

void
open_and_attach (void)
{
  open_pool (1);
  attach ();
}

void
start (unsigned nr_workers)
{
  make_directory (directory, usual_directory (), "engine-rig");
  must (nbdedup_pool_create (directory, NULL));
  open_pool (nr_workers);
  run ("create",
       json_pack ("{s:s,s:I,s:i}", "name", "v", "size",
                  (json_int_t) NR_BLOCKS * BLOCK, "block-size", BLOCK));
  attach ();
}

void
close_pool (void)
{
  nbdedup_volume_close (handle);
  must (nbdedup_pool_close (pool));
}

void
reopen_pool (void)
{
  close_pool ();
  open_and_attach ();
}

uint64_t
crash_after (uint64_t (*fn) (void))
{
  _Atomic uint64_t *shared;
  uint64_t result;
  pid_t pid;

  shared = mmap (NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  expect (shared != MAP_FAILED);
  fflush (stdout);
  pid = fork ();
  if (pid == 0) {
    open_pool (1);
    attach ();
    *shared = fn ();
    crash ();
  }
  expect_crash (pid);
  result = *shared;
  munmap (shared, sizeof *shared);
  return result;
}

bool
crashes_at_sync (unsigned nth, void (*before) (void), void (*fn) (void))
{
  int status;
  pid_t pid;

  fflush (stdout);
  pid = fork ();
  expect (pid != -1);
  if (pid == 0) {
    if (before)
      before ();
    crash_at_sync = nth;
    fn ();
    _exit (0);
  }
  expect (waitpid (pid, &status, 0) == pid);
  expect (WIFSIGNALED (status) || WEXITSTATUS (status) == 0);
  return WIFSIGNALED (status);
}

void
end (void)
{
  check_pool ();
  close_pool ();
  remove_directory (directory);
}

void
fill (uint8_t buf[BLOCK], uint64_t content)
{
  if (content == 0)
    memset (buf, 0, BLOCK);
  else
    fill_random (buf, BLOCK, content);
}

void
write_blocks (uint64_t block, unsigned nr, uint64_t content)
{
  uint8_t *buf = xmalloc (nr * BLOCK);
  unsigned i;

  for (i = 0; i < nr; ++i)
    fill (buf + i * BLOCK, content + i);
  must (nbdedup_volume_write (handle, buf, nr * BLOCK, block * BLOCK));
  free (buf);
}

void
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

void
settle (void)
{
  must (writeback_drain (pool->writeback, NULL));
  must (txg_run (pool->txg, NULL, NULL, NULL));
}

uint64_t
address_of (uint64_t block)
{
  struct pointer ptr;
  uint8_t state;

  must (map_get (pool->map, volume->layer, block, 1, &state, &ptr));
  expect (state == MAP_POINTER);
  return ptr.addr;
}

/*----------------------------------------------------------------------
 * A function that runs in a thread of its own
 */

static void *
job_thread (void *arg)
{
  struct job *j = arg;

  j->fn (j->arg);
  j->done = true;
  return NULL;
}

void
job_start (struct job *j, void (*fn) (uint64_t), uint64_t arg)
{
  *j = (struct job) { .fn = fn, .arg = arg };
  if (pthread_create (&j->thread, NULL, job_thread, j) != 0)
    die ("pthread_create failed");
}

void
job_end (struct job *j)
{
  pthread_join (j->thread, NULL);
}

void
do_flush (uint64_t arg)
{
  (void) arg;
  must (nbdedup_volume_flush (handle));
}

void
do_fold (uint64_t arg)
{
  (void) arg;
  must (txg_run (pool->txg, NULL, NULL, NULL));
}

static atomic_bool fold_is_held, let_fold_go;

static int
wait_in_fold (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) c;
  (void) state;
  fold_is_held = true;
  while (!let_fold_go)
    poll (NULL, 0, 1);
  return 0;
}

static void
do_held_fold (uint64_t arg)
{
  (void) arg;
  must (txg_run (pool->txg, wait_in_fold, NULL, NULL));
}

static int
who_folds (void *folder, struct meta_conn *c, struct meta_state *state)
{
  (void) c;
  (void) state;
  *(pthread_t *) folder = pthread_self ();
  return 0;
}

pthread_t
find_folder (void)
{
  pthread_t folder;

  must (txg_run (pool->txg, who_folds, NULL, &folder));
  return folder;
}

void
fold_hold (struct job *fold)
{
  fold_is_held = let_fold_go = false;
  job_start (fold, do_held_fold, 0);
  while (!fold_is_held)
    poll (NULL, 0, 1);
}

void
fold_release (struct job *fold)
{
  let_fold_go = true;
  job_end (fold);
}

struct meta_conn *readers[NR_READERS];

void
stall (void)
{
  unsigned i;

  for (i = 0; i < NR_READERS; ++i)
    readers[i] = meta_reader_get (pool->meta);
}

void
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

  WITH_LOCK (&volume->dirty.lock);
  TAILQ_FOREACH (d, &volume->dirty.inflight_list, flink)
    if (d->block == block)
      return true;
  return false;
}

void
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

/*----------------------------------------------------------------------*/

int
run_cases (int argc, char *argv[], const struct engine_case *cases)
{
  const struct engine_case *c;
  int j;

  for (c = cases; c->name; ++c) {
    for (j = 1; j < argc && strcmp (argv[j], c->name) != 0; ++j)
      ;
    if (argc > 1 && j == argc)
      continue;
    printf ("%s\n", c->name);
    fflush (stdout);
    c->fn ();
  }
  return 0;
}
