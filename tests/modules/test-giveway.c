/* SPDX-License-Identifier: BSD-3-Clause */

/* The commands that read the pool at one moment (drift, destroy --dry-run, stat
 * --ddt, check, diff) let other commands run, can be interrupted, do not keep
 * the WAL from starting again at its beginning, and give way when clients need
 * the space.
 *
 * The progress callback runs in the middle of such a command, on its thread.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>

#include "base/error.h"
#include "core/engine.h"
#include "core/txg.h"
#include "data/sync.h"
#include "meta/meta.h"
#include "report/check.h"
#include "rigs/pool-util.h"
#include "service/command.h"

#define BLOCK 4096u
#define NR_BLOCKS 65536u
#define NR_CONTENTS 5000u

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
  unsigned nr_calls; /* of the callback */
  unsigned nr_folds; /* to make */
  bool needs_room;   /* then a client needs space */
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
  for (i = 0; i < d->nr_folds; ++i)
    write_some (2000);
  if (d->needs_room)
    must (txg_make_room (pool->txg, true));
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

/* Writes beside a command make the WAL no larger than writes alone.  After so
 * many folds it would be more than ten times as large if a reader were in it.
 */
static void
test_writes_go_on (void)
{
  const struct during d = { .nr_folds = 20 };
  uint64_t wal;

  write_some (2000);
  write_some (2000);
  wal = bytes_of ("pool.db-wal");
  each (d, 0);
  if (bytes_of ("pool.db-wal") > wal * 2)
    die ("the WAL has grown from %" PRIu64 " to %" PRIu64 " bytes", wal,
         bytes_of ("pool.db-wal"));
}

/* What a command has saved takes space, which clients may need. */
static void
test_gives_way (const char *command)
{
  struct during d = { .nr_folds = 5, .needs_room = true };

  try (command, "{}", &d, EBUSY);
  if (strstr (nbdedup_error (), "gave way to writes") == NULL)
    die ("not clear: %s", nbdedup_error ());
}

static unsigned nr_pages_read, pages_to_read;

static int
look (void *opaque)
{
  (void) opaque;
  return ++nr_pages_read < pages_to_read ? 0 : nbdedup_fail (EINTR, "stop");
}

static void
no_problem (void *opaque, const char *text)
{
  (void) opaque;
  die ("a problem: %s", text);
}

/* SQLite's own check of a tree cannot be interrupted, so its reads are. */
static void
test_pages (void)
{
  struct meta_conn *c = meta_frozen_open (pool->meta);
  unsigned all;

  must (c ? 0 : -1);
  pages_to_read = UINT_MAX;
  must (meta_quick_check (c, no_problem, look, NULL));
  meta_frozen_close (pool->meta, c);
  all = nr_pages_read;

  c = meta_frozen_open (pool->meta);
  must (c ? 0 : -1);
  nr_pages_read = 0;
  pages_to_read = 10;
  if (meta_quick_check (c, no_problem, look, NULL) != -1 || errno != EINTR)
    die ("not interrupted");
  meta_frozen_close (pool->meta, c);
  if (nr_pages_read != pages_to_read || all < 10 * pages_to_read)
    die ("%u pages, and then %u", all, nr_pages_read);
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
  test_pages ();
  test_writes_go_on ();
  test_gives_way ("drift");
  test_gives_way ("check");
  nbdedup_volume_close (other);
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
  return 0;
}
