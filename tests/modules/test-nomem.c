/* SPDX-License-Identifier: BSD-3-Clause */

/* SQLite gets no memory, once: at its first request, its second, and so on
 * through a whole command.  Either the command succeeds, or it fails and says
 * why; in both cases clients of other volumes notice nothing, and "check"
 * finds nothing.
 *
 * SQLite rolls back the whole transaction after such an error in a statement
 * that writes.
 *
 * A command makes thousands of requests, most of them by the same functions on
 * behalf of the same functions.  Of those the first fails, and then each
 * EACH-th.
 *
 * Also, the kernel has no memory to read pool.db.  This gives ENOMEM, too; the
 * pool stays in use, and the next read succeeds.
 */

#include <config.h>

#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include <sqlite3.h>

#include "base/array.h"
#include "base/iszero.h"
#include "base/mix.h"
#include "rigs/pool-util.h"

#define BLOCK 4096u
#define NR_BLOCKS 512u
#define VOLUME_BYTES ((json_int_t) NR_BLOCKS * BLOCK)
#define EACH 8

static char directory[PATH_MAX];
struct nbdedup_pool *pool;
static struct nbdedup_volume *other;
static uint64_t content = 1000;

/*----------------------------------------------------------------------
 * SQLite's memory
 */

static sqlite3_mem_methods usual;
static atomic_long countdown; /* to the request that fails; 0: none */
static atomic_bool has_failed;
static atomic_uint failing_reads; /* next reads of pool.db's files */

/* The requests of one run in which none fails. */
static struct {
  pthread_mutex_t lock;
  bool is_running;
  bool *is_new; /* owned; by other callers than before */
  size_t nr, cap;
  uint64_t *seen; /* owned; of all runs: a set of callers */
  size_t nr_seen, cap_seen;
} requests = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool
add_callers (void)
{
  void *frames[64];
  const int nr = backtrace (frames, 64);
  uint64_t callers = 0;
  size_t i;
  int j;

  for (j = 0; j < nr; ++j)
    callers = mix_two (callers, (uintptr_t) frames[j]);
  for (i = 0; i < requests.nr_seen; ++i)
    if (requests.seen[i] == callers)
      return false;
  must (array_reserve (&requests.seen, &requests.cap_seen, requests.nr_seen + 1,
                       sizeof callers));
  requests.seen[requests.nr_seen++] = callers;
  return true;
}

static void
note_request (void)
{
  pthread_mutex_lock (&requests.lock);
  if (requests.is_running) {
    must (array_reserve (&requests.is_new, &requests.cap, requests.nr + 1,
                         sizeof *requests.is_new));
    requests.is_new[requests.nr++] = add_callers ();
  }
  pthread_mutex_unlock (&requests.lock);
}

static void
note_requests (bool begin)
{
  pthread_mutex_lock (&requests.lock);
  requests.is_running = begin;
  if (begin)
    requests.nr = 0;
  pthread_mutex_unlock (&requests.lock);
}

/* The first request from 'nth' on that shall fail.  Later runs can make more
 * requests than the one that was noted.
 */
static long
next_request (long nth)
{
  while ((size_t) nth <= requests.nr && nth % EACH != 0 &&
         !requests.is_new[nth - 1])
    nth++;
  return nth;
}

static bool
fails (void)
{
  note_request ();
  if (countdown > 0 && atomic_fetch_sub (&countdown, 1) == 1) {
    has_failed = true;
    return true;
  }
  return false;
}

static void *
failing_malloc (int n)
{
  return fails () ? NULL : usual.xMalloc (n);
}

static void *
failing_realloc (void *p, int n)
{
  return fails () ? NULL : usual.xRealloc (p, n);
}

static void
replace_malloc (void)
{
  sqlite3_mem_methods ours;

  if (sqlite3_config (SQLITE_CONFIG_GETMALLOC, &usual) != SQLITE_OK)
    die ("SQLite was initialised before");
  ours = usual;
  ours.xMalloc = failing_malloc;
  ours.xRealloc = failing_realloc;
  if (sqlite3_config (SQLITE_CONFIG_MALLOC, &ours) != SQLITE_OK)
    die ("SQLite was initialised before");
}

/*----------------------------------------------------------------------*/

static bool
is_opened (void)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.nr_workers = 1;
  settings.commit_interval_ms = 1000000;
  pool = nbdedup_pool_open (directory, &settings, "test-nomem", 0);
  return pool != NULL;
}

static void
open_pool (void)
{
  if (!is_opened ())
    die ("open: %s", nbdedup_error ());
}

static void
reopen (void)
{
  nbdedup_volume_close (other);
  must (nbdedup_pool_close (pool));
  open_pool ();
  other = open_volume ("other");
}

static void
write_some (struct nbdedup_volume *v, unsigned nr)
{
  static uint8_t buf[BLOCK];
  unsigned i;

  for (i = 0; i < nr; ++i) {
    fill_random (buf, BLOCK, ++content);
    must (nbdedup_volume_write (v, buf, BLOCK,
                                content % NR_BLOCKS * (uint64_t) BLOCK));
  }
}

static json_t *
create_args (const char *name)
{
  return json_pack ("{s:s,s:I,s:i}", "name", name, "size", VOLUME_BYTES,
                    "block-size", BLOCK);
}

static json_t *
name_args (const char *name)
{
  return json_pack ("{s:s}", "name", name);
}

static void
destroy (const char *name)
{
  run ("destroy",
       json_pack ("{s:s,s:b,s:b}", "name", name, "recursive", 1, "force", 1));
}

static void
make_pool (void)
{
  struct nbdedup_volume *v;

  make_directory (directory, fast_directory (), "nomem");
  must (nbdedup_pool_create (directory, NULL));
  open_pool ();
  run ("create", create_args ("other"));
  run ("create", create_args ("golden"));
  v = open_volume ("golden");
  write_some (v, 40);
  nbdedup_volume_close (v);
  run ("snapshot", name_args ("golden@v1"));
  run ("clone",
       json_pack ("{s:s,s:s}", "snapshot", "golden@v1", "name", "clone"));
  v = open_volume ("clone");
  write_some (v, 10);
  nbdedup_volume_close (v);
  other = open_volume ("other");
}

/* Read the block that was written as the 'nr'th. */
static void
expect_block (struct nbdedup_volume *v, uint64_t nr)
{
  uint8_t buf[BLOCK], wanted[BLOCK];

  fill_random (wanted, BLOCK, nr);
  must (nbdedup_volume_read (v, buf, BLOCK, nr % NR_BLOCKS * (uint64_t) BLOCK));
  if (memcmp (buf, wanted, BLOCK) != 0)
    die ("a block is not what was written");
}

/* Clients of another volume. */
static void
use_other (void)
{
  write_some (other, 3);
  must (nbdedup_volume_flush (other));
  expect_block (other, content);
}

/*----------------------------------------------------------------------
 * Commands
 */

static bool
has_volume (const char *name)
{
  json_t *list = call ("list", NULL), *v;
  bool found = false;
  size_t i;

  json_array_foreach (json_object_get (list, "volumes"), i, v)
    found |= strcmp (json_string_value (json_object_get (v, "name")), name) ==
      0;
  json_decref (list);
  return found;
}

static bool
has_snapshot (const char *volume, const char *name)
{
  json_t *list = call ("list", NULL), *v, *s;
  bool found = false;
  size_t i, j;

  json_array_foreach (json_object_get (list, "volumes"), i, v)
    if (strcmp (json_string_value (json_object_get (v, "name")), volume) == 0)
      json_array_foreach (json_object_get (v, "snapshots"), j, s)
        found |= strcmp (json_string_value (json_object_get (s, "name")),
                         name) == 0;
  json_decref (list);
  return found;
}

static void
prepare_nothing (void)
{
}

static json_t *
args_create (void)
{
  return json_pack ("{s:s,s:I,s:s,s:s}", "name", "new", "size", VOLUME_BYTES,
                    "domain", "d", "allow", "1,2,3");
}

static void
after_create (bool done)
{
  if (has_volume ("new") != done)
    die ("create %s, but the list says otherwise", done ? "worked" : "failed");
  if (done)
    destroy ("new");
}

static void
prepare_volume (void)
{
  struct nbdedup_volume *v;

  if (has_volume ("new"))
    return;
  run ("create", create_args ("new"));
  v = open_volume ("new");
  write_some (v, 20);
  nbdedup_volume_close (v);
}

static uint64_t unflushed; /* a block that only memory has */

static void
write_unflushed (const char *name)
{
  struct nbdedup_volume *v = open_volume (name);

  write_some (v, 1);
  unflushed = content;
  nbdedup_volume_close (v);
}

static void
expect_unflushed (const char *name)
{
  struct nbdedup_volume *v = open_volume (name);

  must (nbdedup_volume_flush (v));
  expect_block (v, unflushed);
  nbdedup_volume_close (v);
}

static void
prepare_destroy (void)
{
  prepare_volume ();
  write_unflushed ("new");
}

static json_t *
args_destroy (void)
{
  return name_args ("new");
}

static void
after_destroy (bool done)
{
  if (has_volume ("new") == done)
    die ("destroy %s, but the list says otherwise", done ? "worked" : "failed");
  if (!done)
    expect_unflushed ("new");
}

static json_t *
args_snapshot (void)
{
  return name_args ("other@s");
}

static void
after_snapshot (bool done)
{
  if (has_snapshot ("other", "s") != done)
    die ("snapshot %s, but the list says otherwise",
         done ? "worked" : "failed");
  if (done)
    destroy ("other@s");
}

static json_t *
args_clone (void)
{
  return json_pack ("{s:s,s:s}", "snapshot", "golden@v1", "name", "new");
}

static json_t *
args_rename (void)
{
  return json_pack ("{s:s,s:s}", "old", "new", "new", "renamed");
}

static void
after_rename (bool done)
{
  if (has_volume ("renamed") != done || has_volume ("new") == done)
    die ("rename %s, but the list says otherwise", done ? "worked" : "failed");
  if (done)
    destroy ("renamed");
}

static json_t *
args_set (void)
{
  return json_pack ("{s:s,s:s,s:s}", "property", "compress", "value", "zstd-3",
                    "name", "golden");
}

static json_t *
args_set_pool (void)
{
  return json_pack ("{s:s,s:s}", "property", "drift-keep", "value", "all:1d");
}

static json_t *
args_resize (void)
{
  return json_pack ("{s:s,s:I}", "name", "golden", "size", 2 * VOLUME_BYTES);
}

#define SMALL_BYTES (VOLUME_BYTES / 2 + BLOCK / 2)

static void
prepare_shrink (void)
{
  struct nbdedup_volume *v;
  uint8_t buf[BLOCK];

  if (has_volume ("new"))
    destroy ("new");
  run ("create", create_args ("new"));
  v = open_volume ("new");
  fill_random (buf, BLOCK, ++content);
  must (nbdedup_volume_write (v, buf, BLOCK, VOLUME_BYTES / 2));
  must (nbdedup_volume_write (v, buf, BLOCK, VOLUME_BYTES - BLOCK));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
}

static json_t *
args_shrink (void)
{
  return json_pack ("{s:s,s:I,s:b}", "name", "new", "size", SMALL_BYTES,
                    "shrink", 1);
}

/* If the volume has become smaller the dropped blocks must not come back. */
static void
after_shrink (bool done)
{
  struct nbdedup_volume *v = open_volume ("new");
  bool shrunk = nbdedup_volume_size (v) == (uint64_t) SMALL_BYTES;
  uint8_t buf[BLOCK];

  nbdedup_volume_close (v);
  if (done && !shrunk)
    die ("resize worked, but the volume is not smaller");
  if (!shrunk)
    return;
  run ("resize", json_pack ("{s:s,s:I}", "name", "new", "size", VOLUME_BYTES));
  v = open_volume ("new");
  must (nbdedup_volume_read (v, buf, BLOCK, VOLUME_BYTES - BLOCK));
  if (!is_zero (buf, BLOCK))
    die ("what was cut off is there again");
  must (nbdedup_volume_read (v, buf, BLOCK, VOLUME_BYTES / 2));
  if (!is_zero (buf + BLOCK / 2, BLOCK / 2))
    die ("the end of the last block is there again");
  nbdedup_volume_close (v);
}

static void
prepare_snapshot (void)
{
  if (!has_snapshot ("golden", "r"))
    run ("snapshot", name_args ("golden@r"));
  write_unflushed ("golden");
}

static void
after_rollback (bool done)
{
  if (!done)
    expect_unflushed ("golden");
}

static json_t *
args_rollback (void)
{
  return name_args ("golden@r");
}

static json_t *
args_drift (void)
{
  return json_pack ("{s:s,s:b}", "name", "golden@v1", "record", 1);
}

static json_t *
args_none (void)
{
  return json_object ();
}

static void
after_nothing (bool done)
{
  (void) done;
}

static const struct {
  const char *command;
  void (*prepare) (void);
  json_t *(*args) (void);
  void (*after) (bool done);
} commands[] = {
  { "create", prepare_nothing, args_create, after_create },
  { "destroy", prepare_destroy, args_destroy, after_destroy },
  { "snapshot", prepare_nothing, args_snapshot, after_snapshot },
  { "clone", prepare_nothing, args_clone, after_create },
  { "rename", prepare_volume, args_rename, after_rename },
  { "set", prepare_nothing, args_set, after_nothing },
  { "set", prepare_nothing, args_set_pool, after_nothing },
  { "resize", prepare_nothing, args_resize, after_nothing },
  { "resize", prepare_shrink, args_shrink, after_shrink },
  { "rollback", prepare_snapshot, args_rollback, after_rollback },
  { "drift", prepare_nothing, args_drift, after_nothing },
  { "stat", prepare_nothing, args_none, after_nothing },
  { "list", prepare_nothing, args_none, after_nothing },
};
#define NR_COMMANDS (sizeof commands / sizeof commands[0])

/* Fail request 'nth' of a command; 0: none, and note them.  False: it makes
 * fewer requests.
 */
static bool
try_command (size_t i, long nth)
{
  json_t *args, *result;
  bool failed;

  /* Reopen, so that all statements must be prepared. */
  reopen ();
  commands[i].prepare ();
  args = commands[i].args ();
  /* So that the command has something to fold. */
  write_some (other, 1);
  has_failed = false;
  note_requests (nth == 0);
  countdown = nth;
  result = nbdedup_call (pool, commands[i].command, args);
  countdown = 0;
  note_requests (false);
  failed = has_failed;
  if (result == NULL && (errno != ENOMEM || nbdedup_error ()[0] == '\0'))
    die ("request %ld: %s failed with %d: %s", nth, commands[i].command, errno,
         nbdedup_error ());
  if (result == NULL && !failed)
    die ("%s failed by itself: %s", commands[i].command, nbdedup_error ());
  commands[i].after (result != NULL);
  json_decref (result);
  json_decref (args);
  use_other ();
  check_pool ();
  return failed;
}

static json_t *
all_properties (void)
{
  json_t *all = json_array (), *list = call ("list", NULL), *v;
  json_t *name;
  size_t i;

  json_array_foreach (json_object_get (list, "volumes"), i, v) {
    name = json_object_get (v, "name");
    json_array_append_new (all,
                           call ("get",
                                 json_pack ("{s:s, s:O}", "property", "all",
                                            "name", name)));
    json_array_append (all, name);
    json_array_append (all, json_object_get (v, "origin"));
  }
  json_decref (list);
  return all;
}

/* Fail request 'nth' of opening the pool; 0 and false: as above.  The whole pool must open, or nothing, and then the next open must succeed.
 */
static bool
try_open (long nth, json_t *list)
{
  json_t *now;
  bool failed;

  write_some (other, 1);
  must (nbdedup_volume_flush (other));
  nbdedup_volume_close (other);
  must (nbdedup_pool_close (pool));
  has_failed = false;
  note_requests (nth == 0);
  countdown = nth;
  if (!is_opened ()) {
    countdown = 0;
    if (errno != ENOMEM || !has_failed)
      die ("request %ld: open failed with %d: %s", nth, errno,
           nbdedup_error ());
    open_pool ();
  }
  countdown = 0;
  note_requests (false);
  failed = has_failed;
  now = all_properties ();
  if (!json_equal (now, list))
    die ("request %ld: a volume has other properties after it", nth);
  json_decref (now);
  other = open_volume ("other");
  use_other ();
  check_pool ();
  return failed;
}

static void
try_opens (long step)
{
  json_t *list;
  long nth, nr = 0;

  run ("set",
       json_pack ("{s:s,s:s,s:s}", "property", "allow", "value", "1,2", "name",
                  "golden"));
  list = all_properties ();
  printf ("open");
  fflush (stdout);
  try_open (0, list);
  for (nth = 1; try_open (nth, list); nth = next_request (nth + step))
    nr++;
  printf (": %ld of %ld requests\n", nr, nth - 1);
  json_decref (list);
}

/* Reads of pool.db, its WAL and their copies fail. */
static ssize_t
maybe_read (int fd, void *buf, size_t len, off_t offset)
{
  if (failing_reads > 0 && strncmp (name_of_fd (fd), "pool.db", 7) == 0) {
    failing_reads--;
    errno = ENOMEM;
    return -1;
  }
  return syscall (SYS_pread64, fd, buf, len, offset);
}

ssize_t
pread (int fd, void *buf, size_t len, off_t offset)
{
  return maybe_read (fd, buf, len, offset);
}

/* SQLite's name of pread. */
ssize_t pread64 (int fd, void *buf, size_t len, off_t offset);

ssize_t
pread64 (int fd, void *buf, size_t len, off_t offset)
{
  return maybe_read (fd, buf, len, offset);
}

static void
try_read (struct nbdedup_volume *v)
{
  uint8_t buf[BLOCK];

  failing_reads = UINT_MAX;
  errno = 0;
  if (nbdedup_volume_read (v, buf, BLOCK, 0) != -1)
    die ("a read needs nothing of pool.db");
  failing_reads = 0;
  if (errno != ENOMEM)
    die ("a read without memory failed with %d: %s", errno, nbdedup_error ());
}

/* A client's read and an open fail; a fold waits until there is memory again.
 */
static void
test_reads_of_files (void)
{
  struct nbdedup_volume *v;
  uint8_t buf[BLOCK];

  printf ("read\n");
  reopen ();
  v = open_volume ("golden");
  try_read (v);
  must (nbdedup_volume_read (v, buf, BLOCK, 0));
  nbdedup_volume_close (v);

  nbdedup_volume_close (other);
  must (nbdedup_pool_close (pool));
  failing_reads = UINT_MAX;
  if (is_opened () || errno != ENOMEM)
    die ("open without memory: %d: %s", errno, nbdedup_error ());
  failing_reads = 0;
  open_pool ();
  other = open_volume ("other");

  write_some (other, 3);
  failing_reads = 6;
  run ("snapshot", name_args ("other@read"));
  if (failing_reads != 0)
    die ("a fold needs nothing of pool.db");
  use_other ();
  check_pool ();
}

static void
print_log (enum nbdedup_log_level level, const char *line)
{
  (void) level;
  printf ("  log: %s\n", line);
}

/* test-nomem [COMMAND... | read | open] */
int
main (int argc, char *argv[])
{
  /* Where everything is slow, fail only some of the requests. */
  const long step = (long) sweep_step ();
  size_t i;
  long nth, nr;
  int j;

  replace_malloc ();
  if (getenv ("VERBOSE"))
    nbdedup_set_log (print_log);
  make_pool ();
  for (i = 0; i < NR_COMMANDS; ++i) {
    for (j = 1; j < argc && strcmp (argv[j], commands[i].command) != 0; ++j)
      ;
    if (argc > 1 && j == argc)
      continue;
    printf ("%s", commands[i].command);
    fflush (stdout);
    try_command (i, 0);
    nr = 0;
    for (nth = 1; try_command (i, nth); nth = next_request (nth + step))
      nr++;
    printf (": %ld of %ld requests\n", nr, nth - 1);
    fflush (stdout);
  }
  if (argc == 1 || strcmp (argv[1], "read") == 0)
    test_reads_of_files ();
  if (argc == 1 || strcmp (argv[1], "open") == 0)
    try_opens (step);
  nbdedup_volume_close (other);
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
  return 0;
}
