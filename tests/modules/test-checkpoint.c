/* SPDX-License-Identifier: BSD-3-Clause */

/* A caller copies the WAL into pool.db while the background thread is in the
 * middle of doing so; when the WAL starts again at its beginning; and a WAL that
 * is new.
 *
 * The background thread begins when a commit has left more than 1,024 pages in
 * the WAL.  This program replaces libc's pwrite64, so that the thread's writes
 * to pool.db take long, or fail.
 */

#include <config.h>
/* With it, the names below would be macros for other functions. */
#undef _FILE_OFFSET_BITS

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "core/txg-int.h"
#include "meta/meta-conn.h"
#include "rigs/engine-rig.h"

#define BULK_BYTES (UINT64_C (9) << 20)
#define BULK_GROUP (UINT64_C (1) << 40) /* of records: no pool has so many */
#define OTHER_GROUP (BULK_GROUP + 1)

static atomic_bool writes_wait, writes_fail;
static atomic_uint nr_waiting;
static unsigned syncs_before;

static void
wait_for_the_thread (void)
{
  unsigned ms;

  for (ms = 0; nr_waiting == 0; ++ms) {
    expect (ms < GIVE_UP_MS);
    poll (NULL, 0, 1);
  }
}

ssize_t
pwrite64 (int fd, const void *buf, size_t len, off64_t offset)
{
  if (writes_fail && is_file (fd, "pool.db")) {
    errno = EIO;
    return -1;
  }
  if (writes_wait && is_file (fd, "pool.db")) {
    nr_waiting++;
    while (writes_wait)
      poll (NULL, 0, 1);
  }
  /* The first commit wakes the thread, which must come before the next. */
  else if (writes_wait && is_file (fd, "pool.db-wal") &&
           syncs_wal > syncs_before)
    wait_for_the_thread ();
  return syscall (SYS_pwrite64, fd, buf, len, offset);
}

ssize_t
pwrite (int fd, const void *buf, size_t len, off_t offset)
{
  return pwrite64 (fd, buf, len, offset);
}

static void
let_writes (uint64_t after_ms)
{
  wait_for_the_thread ();
  poll (NULL, 0, (int) after_ms);
  writes_wait = false;
}

/*----------------------------------------------------------------------
 * pool.db alone
 */

static struct meta *meta;
static char db[PATH_MAX + 16];

static uint64_t
bytes_of (const char *suffix)
{
  CLEANUP_FREE char *path = NULL;
  struct stat st;

  expect (asprintf (&path, "%s%s", db, suffix) > 0);
  return stat (path, &st) == 0 ? (uint64_t) st.st_size : 0;
}

/* An empty WAL is still a file, without a header. */
static bool
wal_is_empty (void)
{
  static const uint8_t zeroes[32];
  CLEANUP_FREE char *path = NULL;
  uint8_t header[sizeof zeroes];
  FILE *fp;
  size_t n;

  expect (asprintf (&path, "%s-wal", db) > 0);
  fp = fopen (path, "r");
  expect (fp != NULL);
  n = fread (header, 1, sizeof header, fp);
  fclose (fp);
  return n == 0 || memcmp (header, zeroes, n) == 0;
}

static void
put_bulk (struct meta_conn *c, uint64_t group, size_t len)
{
  char sql[100];

  snprintf (sql, sizeof sql,
            "INSERT OR REPLACE INTO record VALUES (%" PRIu64
            ", zeroblob (%zu))",
            group, len);
  must (meta_exec (c, sql, "a test"));
}

static void
begin_alone (void)
{
  struct meta_state state = { .sector_bytes = 512 };

  make_directory (directory, usual_directory (), "checkpoint");
  snprintf (db, sizeof db, "%s/pool.db", directory);
  must (meta_create (db, &state, NULL));
  meta = meta_open (db, 0, &(struct meta_session) { 0 }, false);
  expect (meta != NULL);
  meta_opened (meta);
}

static void
end_alone (void)
{
  must (meta_close (meta));
  remove_directory (directory);
}

static void
commit_bulk (size_t len)
{
  must (meta_begin (meta_writer (meta)));
  put_bulk (meta_writer (meta), BULK_GROUP, len);
  must (meta_commit (meta_writer (meta)));
}

/* Commit, so that the thread begins to copy, and stop it there for a while.
 * Call 'fn' meanwhile.
 */
static void
meet (void (*fn) (void))
{
  struct job gate;

  begin_alone ();
  nr_waiting = 0;
  syncs_before = UINT_MAX;
  writes_wait = true;
  commit_bulk (BULK_BYTES);
  wait_for_the_thread ();
  job_start (&gate, let_writes, A_WHILE_MS);
  fn ();
  job_end (&gate);
  end_alone ();
}

static void
checkpoint (void)
{
  must (meta_checkpoint (meta));
  expect (wal_is_empty ());
  expect (bytes_of ("") >= BULK_BYTES);
}

static void
test_all_is_copied (void)
{
  meet (checkpoint);
}

static void
copy_wal (void)
{
  meta_copy_wal (meta);
  expect (bytes_of ("") >= BULK_BYTES);
}

/* When a command returns, what it did is in pool.db. */
static void
test_what_a_command_did_is_copied (void)
{
  meet (copy_wal);
}

static void
restart_wal (void)
{
  meta_restart_wal (meta, META_EXPEL);
  expect (wal_is_empty ());
}

static void
test_space_of_the_wal_is_given_back (void)
{
  meet (restart_wal);
}

static void
close_it (void)
{
}

static void
test_closing (void)
{
  meet (close_it);
}

/* The number of pages in the WAL before a fold of 'pages' pages. */
static uint64_t
used_before (uint64_t pages)
{
  struct meta_pages p;

  if (meta_wal_is_full (meta, pages))
    meta_restart_wal (meta, META_RESTART);
  meta_get_pages (meta, &p);
  return p.wal_used;
}

/* The WAL of a small pool may have 1 MiB, or its allocated size.  It starts
 * again at its beginning rather than grow, also while a reader is frozen.
 */
static void
test_the_wal_starts_again_at_its_limit (void)
{
  const uint64_t limit = (1 << 20) / META_PAGE_BYTES;
  struct meta_conn *reader;
  struct meta_pages p;
  uint64_t used;

  begin_alone ();
  commit_bulk (limit / 2 * META_PAGE_BYTES);
  meta_get_pages (meta, &p);
  used = p.wal_used;
  expect (used >= limit / 2 && used < limit && p.wal_allocated <= limit);
  expect (used_before (limit - used) == used);
  must (meta_allocate (meta, 0, limit + 1));
  expect (used_before (limit - used + 1) == used);
  reader = meta_frozen_open (meta);
  expect (reader != NULL);
  expect (used_before (limit - used + 2) == 0);
  must (meta_frozen_check (reader));
  meta_frozen_close (meta, reader);
  end_alone ();
}

static struct meta_conn *in_the_wal;

static void
begin_reading (struct meta_conn *c)
{
  struct meta_state state;

  must (meta_freeze (c));
  must (meta_state_get (c, &state));
}

static void
end_reading (uint64_t after_ms)
{
  poll (NULL, 0, (int) after_ms);
  meta_unfreeze (in_the_wal);
  meta_reader_put (meta, in_the_wal);
}

/* A reader that is in the WAL keeps it from being copied for a while. */
static void
test_a_frozen_reader_waits_for_readers (void)
{
  const uint64_t row = 100 * META_PAGE_BYTES;
  struct meta_conn *reader;
  uint64_t all, unused;
  struct job job;

  begin_alone ();
  commit_bulk (META_PAGE_BYTES);
  in_the_wal = meta_reader_get (meta);
  begin_reading (in_the_wal);
  commit_bulk (row);
  job_start (&job, end_reading, A_WHILE_MS);
  reader = meta_frozen_open (meta);
  expect (reader != NULL);
  job_end (&job);
  must (meta_page_counts (reader, &all, &unused));
  expect (all > 100);
  meta_frozen_close (meta, reader);
  end_alone ();
}

static void
spoil (const char *name, uint64_t offset)
{
  static const uint8_t garbage[16] = { 1, 2, 3 };
  CLEANUP_FREE char *path = pool_file (directory, name);
  CLEANUP_CLOSE int fd = open (path, O_WRONLY);

  if (fd != -1)
    expect (pwrite (fd, garbage, sizeof garbage, (off_t) offset) ==
            sizeof garbage);
  else
    expect (errno == ENOENT);
}

/* A page that cannot be copied is no reason to read none of the others. */
static void
test_a_damaged_wal_is_read (void)
{
  const uint64_t frame = 32 + 30 * (24 + META_PAGE_BYTES);
  struct meta_conn *reader;
  uint64_t all, unused;

  begin_alone ();
  commit_bulk (100 * META_PAGE_BYTES);
  spoil ("pool.db-wal", frame + 24 + 1000);
  spoil ("pool.db.copy-wal", frame + 24 + 1000);
  reader = meta_frozen_open (meta);
  expect (reader != NULL);
  must (meta_page_counts (reader, &all, &unused));
  expect (all > 100);
  meta_frozen_close (meta, reader);
  expect (meta_close (meta) == -1);
  remove_directory (directory);
}

/*----------------------------------------------------------------------
 * A whole pool
 */

static int
put_other (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  put_bulk (c, OTHER_GROUP, 2 * BULK_BYTES);
  return 0;
}

static int
put_in_fold (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  put_bulk (c, BULK_GROUP, BULK_BYTES);
  return 0;
}

static int
delete_both (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  must (meta_record_delete (c, OTHER_GROUP));
  return meta_record_delete (c, BULK_GROUP);
}

static uint64_t
leave_a_wal (void)
{
  writes_fail = true; /* so that nothing is copied */
  write_block (0, 1);
  settle ();
  must (txg_run (pool->txg, put_in_fold, NULL, NULL));
  write_block (1, 2); /* to be replayed */
  do_flush (0);
  return 0;
}

/* A killed process leaves a WAL that wakes the thread at once.  The WAL is
 * smaller than pool.db, so no fold waits until it is copied.  The first open
 * must succeed: a service does not try again.
 */
static void
test_first_open_after_a_kill (void)
{
  struct job gate;

  start (1);
  must (txg_run (pool->txg, put_other, NULL, NULL));
  close_pool ();
  crash_after (leave_a_wal);

  nr_waiting = 0;
  syncs_before = syncs_wal;
  writes_wait = true;
  job_start (&gate, let_writes, A_WHILE_MS);
  open_pool (1);
  job_end (&gate);
  attach ();
  expect_content (0, 1);
  expect_content (1, 2);
  must (txg_run (pool->txg, delete_both, NULL, NULL));
  end ();
}

/* A WAL whose name is not durable is lost when the power fails, with all that
 * was committed in it.  Here pool.db has no copy, which would sync the directory
 * for the name of its own WAL.
 */
static void
test_a_new_wal_keeps_its_name (void)
{
  char wal[PATH_MAX + 16];
  unsigned syncs;

  start (1);
  run ("set",
       json_pack ("{s:s, s:s}", "property", "metadata-copy", "value", "off"));
  close_pool ();
  snprintf (wal, sizeof wal, "%s/pool.db-wal", directory);
  expect (unlink (wal) == 0);
  syncs = syncs_names;
  open_and_attach (); /* commits */
  expect (syncs_names > syncs);
  end ();
}

/* The pool stops, because only the WAL is certain then.  Nothing is damaged, and
 * the advice must not be a repair.
 */
static void
test_a_failed_sync_is_no_damage (void)
{
  start (1);
  write_block (0, 1);
  must (nbdedup_volume_flush (handle));
  must (txg_run (pool->txg, NULL, NULL, NULL));
  fail_syncs = 1;
  (void) meta_restart_wal (pool->meta, META_EXPEL);
  expect (fail_syncs == 0);
  write_block (1, 2);
  expect (txg_run (pool->txg, NULL, NULL, NULL) == -1);
  expect (nbdedup_volume_flush (handle) == -1 && errno == EIO);
  expect (strstr (nbdedup_error (), "restart the server") != NULL);
  expect (strstr (nbdedup_error (), "repair") == NULL);
  nbdedup_volume_close (handle);
  expect (nbdedup_pool_close (pool) == -1);
  open_and_attach ();
  expect_content (0, 1);
  end ();
}

/* Smaller txgs would not sync faster, so their limit must not follow syncs.
 * Only tables that take longer than a fold may, under valgrind, make it smaller:
 * then 'tables_ms' says so, unless another fold came in between.
 */
static void
test_slow_syncs_leave_txgs_large (void)
{
  const uint64_t limit = 4 * FOLD_PAGES_MIN;
  const uint64_t target_ms = 60;
  struct txg_load before, after;
  unsigned i;

  start (1);
  sync_ms = 200;
  for (i = 0; i < 3; ++i) {
    txg_get_load (pool->txg, &before);
    write_blocks (0, NR_BLOCKS, 1 + i * NR_BLOCKS);
    must (nbdedup_volume_flush (handle));
    must (txg_run (pool->txg, NULL, NULL, NULL));
    txg_get_load (pool->txg, &after);
    if (after.folds > before.folds + 1 || pool->txg->tables_ms > target_ms)
      break;
    expect (pool->txg->limit >= limit);
  }
  sync_ms = 0;
  end ();
}

static const struct engine_case cases[] = {
  /* First, because it forks: no thread may run yet. */
  CASE (first_open_after_a_kill),
  CASE (all_is_copied),
  CASE (what_a_command_did_is_copied),
  CASE (space_of_the_wal_is_given_back),
  CASE (the_wal_starts_again_at_its_limit),
  CASE (a_frozen_reader_waits_for_readers),
  CASE (a_damaged_wal_is_read),
  CASE (closing),
  CASE (a_new_wal_keeps_its_name),
  CASE (a_failed_sync_is_no_damage),
  CASE (slow_syncs_leave_txgs_large),
  { NULL, NULL },
};

/* test-checkpoint [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}
