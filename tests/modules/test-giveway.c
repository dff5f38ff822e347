/* SPDX-License-Identifier: BSD-3-Clause */

/* The commands that read the pool at one moment (drift, destroy --dry-run, stat
 * --ddt, check, diff) let other commands run, can be interrupted, and give way
 * before the WAL, which cannot start again at its beginning meanwhile, takes
 * all the space.
 *
 * The progress callback runs in the middle of such a command, on its thread.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "core/engine.h"
#include "data/sync.h"
#include "meta/meta.h"
#include "report/check.h"
#include "rigs/pool-util.h"
#include "service/command.h"

#define BLOCK 4096u
#define NR_BLOCKS 65536u
#define NR_CONTENTS 5000u
/* The limit of the WAL while a reader stays, in multiples of pool.db: see
 * lib/meta/meta-wal.c.
 */
#define WAL_POOLS 16

static char directory[PATH_MAX];
struct nbdedup_pool *pool;
static struct nbdedup_volume *other;
static struct rng rng;

static uint64_t
bytes_of (const char *file)
{
  char path[PATH_MAX + 16];
  struct stat st;

  snprintf (path, sizeof path, "%s/%s", directory, file);
  if (stat (path, &st) == -1)
    die ("%s: %s", path, strerror (errno));
  return (uint64_t) st.st_size;
}

static uint64_t
free_bytes (void)
{
  struct statvfs fs;

  if (statvfs (directory, &fs) == -1)
    die ("%s: %s", directory, strerror (errno));
  return (uint64_t) fs.f_bavail * fs.f_frsize;
}

/* Write random blocks, so that much of the map changes, and fold them.  They
 * have few contents, so that pool.db does not grow.
 */
static void
write_some (unsigned nr)
{
  uint8_t buf[BLOCK];
  unsigned i;

  memset (buf, 0, sizeof buf);
  for (i = 0; i < nr; ++i) {
    uint64_t content = rng_below (&rng, NR_CONTENTS);

    memcpy (buf, &content, sizeof content);
    must (nbdedup_volume_write (other, buf, BLOCK,
                                rng_below (&rng, NR_BLOCKS) * BLOCK));
  }
  WITH_LOCK (&pool->admin);
  must (pool_sync (pool));
}

struct during {
  unsigned nr_calls;  /* of the callback */
  unsigned max_folds; /* folds to make, unless told to stop */
  bool interrupt;
  const char *command; /* or NULL */
};

static int
during (void *opaque, uint64_t done, uint64_t total)
{
  struct during *d = opaque;
  unsigned i;

  (void) done;
  (void) total;
  if (d->nr_calls++ > 0)
    return d->interrupt;
  if (d->command)
    run (d->command, json_object ());
  for (i = 0; i < d->max_folds && meta_frozen_check (pool->meta) == 0; ++i)
    write_some (2000);
  return d->interrupt;
}

/* The command must succeed, or fail with 'err'. */
static void
try (const char *command, const char *args_text, struct during *d, int err)
{
  json_t *args = json_loads (args_text, 0, NULL);
  json_t *result = command_run (pool, command, args, during, d);

  json_decref (args);
  if (d->nr_calls == 0)
    die ("%s: no progress", command);
  if (err == 0 && result == NULL)
    die ("%s: %s", command, nbdedup_error ());
  if (err != 0 && (result != NULL || errno != err))
    die ("%s: %s", command, result ? "did not fail" : nbdedup_error ());
  json_decref (result);
}

static const struct {
  const char *command, *args;
} commands[] = {
  { "drift", "{}" },
  { "drift", "{\"name\": \"golden@v1\", \"record\": true}" },
  { "drift-freed", "{\"names\": [\"clone\"]}" },
  { "destroy", "{\"name\": \"clone\", \"dry-run\": true}" },
  { "stat", "{\"ddt\": true}" },
  { "stat", "{\"ddt\": true, \"name\": \"golden@v1\"}" },
  { "check", "{}" },
  { "diff", "{\"from\": \"golden@v1\", \"to\": \"clone@v1\"}" },
};
#define NR_COMMANDS (sizeof commands / sizeof commands[0])

static void
each (struct during what, int err)
{
  size_t i;

  for (i = 0; i < NR_COMMANDS; ++i) {
    struct during d = what;

    try (commands[i].command, commands[i].args, &d, err);
  }
}

static void
make_volumes (void)
{
  struct nbdedup_volume *v;
  uint8_t buf[BLOCK];
  unsigned i;

  run ("create",
       json_pack ("{s:s,s:i,s:i}", "name", "golden", "size",
                  (int) (16384 * BLOCK), "block-size", (int) BLOCK));
  run ("create",
       json_pack ("{s:s,s:i,s:i}", "name", "other", "size",
                  (int) (NR_BLOCKS * BLOCK), "block-size", (int) BLOCK));
  v = open_volume ("golden");
  memset (buf, 0, sizeof buf);
  for (i = 1; i <= 16384; ++i) {
    memcpy (buf, &i, sizeof i);
    must (nbdedup_volume_write (v, buf, BLOCK, (i - 1) * BLOCK));
  }
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
  run ("snapshot", json_pack ("{s:s}", "name", "golden@v1"));
  run ("clone",
       json_pack ("{s:s,s:s}", "snapshot", "golden@v1", "name", "clone"));
  v = open_volume ("clone");
  must (nbdedup_volume_write (v, "clone", 5, 0));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
  run ("snapshot", json_pack ("{s:s}", "name", "clone@v1"));
  other = open_volume ("other");
}

/* These commands hold no lock that other commands need. */
static void
test_others_come_in (void)
{
  const struct during d = { .command = "list" };

  each (d, 0);
}

static void
test_interrupt (void)
{
  const struct during d = { .interrupt = true };

  each (d, EINTR);
}

/* A WAL of moderate size is no reason to give up. */
static void
test_writes_go_on (void)
{
  const struct during d = { .max_folds = 1 };

  each (d, 0);
}

/* But one reader must not fill the disk.  It gives way when the WAL has reached
 * its limit, and not before: a drift of a large pool takes long, and clients
 * write meanwhile.  The WAL's file has room for one fold more, which writes
 * each page of pool.db once, and those by which it may grow.  Afterwards the
 * WAL starts again at its beginning.
 */
static void
test_gives_way (const char *command)
{
  struct during d = { .max_folds = 200 };
  uint64_t wal, db = bytes_of ("pool.db");
  unsigned i, nr_same;

  try (command, "{}", &d, EBUSY);
  if (strstr (nbdedup_error (), "gave way to writes") == NULL)
    die ("not clear: %s", nbdedup_error ());
  wal = bytes_of ("pool.db-wal");
  if (wal < WAL_POOLS * db && wal < free_bytes ())
    die ("the reader gave way to a WAL of %" PRIu64 " bytes", wal);
  if (wal > (WAL_POOLS + 2) * bytes_of ("pool.db"))
    die ("the WAL has grown to %" PRIu64 " bytes", wal);
  /* Not necessarily with the first fold: a checkpoint may be under way. */
  for (i = 0, nr_same = 0; nr_same < 3; ++i) {
    if (i == 100)
      die ("the WAL grows on after the reader is gone");
    wal = bytes_of ("pool.db-wal");
    write_some (2000);
    nr_same = bytes_of ("pool.db-wal") == wal ? nr_same + 1 : 0;
  }
}

int
main (void)
{

  rng = rng_make (1, 1);
  make_directory (directory, fast_directory (), "test-giveway");
  must (nbdedup_pool_create (directory, NULL));
  open_default (directory, "test-giveway");
  make_volumes ();
  test_others_come_in ();
  test_interrupt ();
  test_writes_go_on ();
  test_gives_way ("drift");
  test_gives_way ("check");
  nbdedup_volume_close (other);
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
  return 0;
}
