/* SPDX-License-Identifier: BSD-3-Clause */

/* Drift takes long, and must not disturb others: it calls "progress" often
 * enough, stops at any of these calls and leaves nothing behind, also while it
 * waits for another computation; and changes to the pool after it began do not
 * show.
 *
 * Everything happens inside the calls of "progress" (looks), so at the same
 * places each time.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "drift/drift.h"
#include "format/format.h"
#include "nbdedup.h"
#include "rigs/testutil.h"
#include "service/command.h"

#define BLOCK 4096u
#define LEAF_BYTES (LEAF_BLOCKS * (uint64_t) BLOCK)
#define NR_LEAVES 1500u
#define PER_LEAF 8u /* blocks of each that have data */
#define SIZE (NR_LEAVES * LEAF_BYTES)
#define OWN_LEAVES 300u /* that a clone has written to */

/* There must be at least one look per this many rows. */
#define ROWS_MAX 80u

static char directory[PATH_MAX];
static struct nbdedup_pool *pool;

#define fatal(fmt, ...) die ("line %d: " fmt, __LINE__, ##__VA_ARGS__)

static json_t *
call (const char *command, json_t *args)
{
  json_t *result = nbdedup_call (pool, command, args);

  if (result == NULL)
    fatal ("%s: %s", command, nbdedup_error ());
  json_decref (args);
  return result;
}

static void
run (const char *command, json_t *args)
{
  json_decref (call (command, args));
}

/* Write in the first leaves, from block 'first' of each leaf on. */
static void
fill (const char *name, unsigned nr_leaves, unsigned first, uint64_t seed)
{
  struct nbdedup_volume *v = nbdedup_volume_open (pool, name, 0, -1, NULL);
  uint8_t buf[PER_LEAF * BLOCK];
  unsigned i;

  if (v == NULL)
    fatal ("%s: %s", name, nbdedup_error ());
  for (i = 0; i < nr_leaves; ++i) {
    fill_random (buf, sizeof buf, seed + i);
    if (nbdedup_volume_write (v, buf, sizeof buf,
                              i * LEAF_BYTES + first * BLOCK) == -1)
      fatal ("%s: %s", name, nbdedup_error ());
  }
  nbdedup_volume_close (v);
}

/* Fill a volume with one block of each leaf of the golden image, next to each
 * other: it has few leaves, and their records lie far apart.
 */
static void
scatter (const char *name)
{
  struct nbdedup_volume *v = nbdedup_volume_open (pool, name, 0, -1, NULL);
  uint8_t buf[PER_LEAF * BLOCK];
  unsigned i;

  if (v == NULL)
    fatal ("%s: %s", name, nbdedup_error ());
  for (i = 0; i < NR_LEAVES; ++i) {
    fill_random (buf, sizeof buf, 1 + i);
    if (nbdedup_volume_write (v, buf, BLOCK, i * (uint64_t) BLOCK) == -1)
      fatal ("%s: %s", name, nbdedup_error ());
  }
  nbdedup_volume_close (v);
}

static void
make_pool (void)
{
  struct nbdedup_settings settings;
  static const char *const names[] = { "golden", "alone", "scattered" };
  unsigned i;

  snprintf (directory, sizeof directory, "%s/test-drift-looks-XXXXXX",
            fast_directory ());
  if (mkdtemp (directory) == NULL ||
      nbdedup_pool_create (directory, NULL) == -1)
    fatal ("%s: %s", directory, nbdedup_error ());
  nbdedup_settings_init (&settings);
  settings.drift_interval_s = 0;
  pool = nbdedup_pool_open (directory, &settings, "test-drift-looks", 0);
  if (pool == NULL)
    fatal ("open: %s", nbdedup_error ());
  for (i = 0; i < 3; ++i)
    run ("create",
         json_pack ("{s:s, s:I, s:i, s:s}", "name", names[i], "size",
                    (json_int_t) SIZE, "block-size", (int) BLOCK, "compress",
                    "none"));
  fill ("golden", NR_LEAVES, 0, 1);
  fill ("alone", NR_LEAVES, 0, 1);
  scatter ("scattered");
  run ("snapshot", json_pack ("{s:s}", "name", "golden@v1"));
  run ("snapshot", json_pack ("{s:s}", "name", "alone@v1"));
  run ("clone",
       json_pack ("{s:s, s:s, s:i}", "snapshot", "golden@v1", "name", "web",
                  "count", 3));
  fill ("web1", OWN_LEAVES, PER_LEAF, 100000); /* siblings */
  fill ("web2", OWN_LEAVES, PER_LEAF, 100000);
  fill ("web2", OWN_LEAVES, 0, 200000); /* unique */
  fill ("web3", OWN_LEAVES, 2, 1);      /* moved */
}

/*----------------------------------------------------------------------
 * Looks
 */

struct looks {
  uint64_t nr;      /* so far */
  uint64_t stop_at; /* 0: never */
  uint64_t act_at;  /* 0: never */
  unsigned files;   /* maximum of open files without a name */
  void (*act) (void);
};

/* The number of open files that have no name any more. */
static unsigned
nameless_files (void)
{
  DIR *d = opendir ("/proc/self/fd");
  struct dirent *e;
  char path[PATH_MAX];
  unsigned nr = 0;
  ssize_t n;

  if (d == NULL)
    fatal ("/proc/self/fd: %s", strerror (errno));
  while ((e = readdir (d)) != NULL) {
    n = readlinkat (dirfd (d), e->d_name, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    nr += strstr (path, " (deleted)") != NULL;
  }
  closedir (d);
  return nr;
}

static int
on_look (void *opaque, uint64_t done, uint64_t total)
{
  struct looks *l = opaque;
  unsigned files;

  if (done > total)
    fatal ("%" PRIu64 " of %" PRIu64 " are done", done, total);
  files = nameless_files ();
  if (files > l->files)
    l->files = files;
  ++l->nr;
  if (l->nr == l->act_at)
    l->act ();
  return l->nr == l->stop_at;
}

static unsigned
names_in_pool (void)
{
  DIR *d = opendir (directory);
  unsigned nr = 0;

  if (d == NULL)
    fatal ("%s: %s", directory, strerror (errno));
  while (readdir (d))
    nr++;
  closedir (d);
  return nr;
}

/* Remove the members that differ between any two runs. */
static json_t *
strip (json_t *result)
{
  json_t *ddt = json_object_get (json_object_get (result, "pool"), "ddt");
  json_t *document;
  size_t i;

  json_object_del (result, "time");
  json_array_foreach (json_object_get (result, "goldens"), i, document)
    json_object_del (document, "time");
  if (ddt)
    json_object_set (result, "pool", json_object_get (ddt, "histogram"));
  return result;
}

/* Stop a command at each look in turn: it must fail, say so, and leave nothing
 * behind.  It must look at least 'least' times.
 */
static void
stop_everywhere (const char *command, json_t *args, uint64_t least)
{
  const unsigned files = nameless_files (), names = names_in_pool ();
  struct looks looks = { 0 };
  json_t *result = command_run (pool, command, args, on_look, &looks), *again;
  uint64_t nr = looks.nr, i;

  if (result == NULL)
    fatal ("%s: %s", command, nbdedup_error ());
  strip (result);
  if (nr < least)
    fatal ("%s looks up %" PRIu64 " times, expected %" PRIu64, command, nr,
           least);
  for (i = 1; i <= nr; ++i) {
    looks = (struct looks) { .stop_at = i };
    errno = 0;
    if (command_run (pool, command, args, on_look, &looks) != NULL ||
        errno != EINTR || !strstr (nbdedup_error (), "interrupted"))
      fatal ("%s was not interrupted at look %" PRIu64 " of %" PRIu64, command,
             i, nr);
    if (looks.nr != i)
      fatal ("%s goes on at look %" PRIu64, command, i);
    if (nameless_files () != files || names_in_pool () != names)
      fatal ("%s, interrupted at look %" PRIu64 ", leaves files", command, i);
  }
  looks = (struct looks) { 0 };
  again = command_run (pool, command, args, on_look, &looks);
  if (again == NULL || !json_equal (result, strip (again)))
    fatal ("%s says something else after interruptions:\n%s\nbefore:\n%s",
           command,
           again ? json_dumps (again, JSON_INDENT (1)) : nbdedup_error (),
           json_dumps (result, JSON_INDENT (1)));
  json_decref (again);
  json_decref (result);
  json_decref (args);
}

/* The least number of rows that drift reads: leaves of the golden image and of
 * the clones, and groups of records of 4 KiB.
 */
#define GOLDEN_ROWS NR_LEAVES
#define CLONE_ROWS (3 * OWN_LEAVES)
#define RECORD_ROWS (NR_LEAVES * PER_LEAF * BLOCK / 512 / RECORD_GROUP_SECTORS)

static void
test_stop (void)
{
  const uint64_t rows = GOLDEN_ROWS + CLONE_ROWS + RECORD_ROWS;

  stop_everywhere ("drift",
                   json_pack ("{s:s, s:I}", "name", "golden@v1", "memory",
                              (json_int_t) DRIFT_MEMORY_MIN),
                   rows / ROWS_MAX);
  stop_everywhere ("drift", json_object (), rows / ROWS_MAX);
  stop_everywhere ("drift-freed", json_pack ("{s:[s]}", "names", "alone"),
                   (GOLDEN_ROWS + RECORD_ROWS) / ROWS_MAX);
  /* The snapshot would merge with the volume, which hides nothing: drift-freed
   * reads much, and finds nothing.
   */
  stop_everywhere ("drift-freed", json_pack ("{s:[s]}", "names", "alone@v1"),
                   2 * GOLDEN_ROWS / ROWS_MAX);
  stop_everywhere ("drift-freed", json_pack ("{s:[s]}", "names", "scattered"),
                   RECORD_ROWS / ROWS_MAX);
  stop_everywhere ("destroy",
                   json_pack ("{s:s, s:b, s:b}", "name", "alone", "recursive",
                              1, "dry-run", 1),
                   GOLDEN_ROWS / ROWS_MAX);
  stop_everywhere ("stat", json_pack ("{s:b}", "ddt", 1), 2);
  stop_everywhere ("stat",
                   json_pack ("{s:s, s:b}", "name", "golden@v1", "ddt", 1),
                   GOLDEN_ROWS / ROWS_MAX);
}

/* drift must use temporary files, or test_stop would not test them. */
static void
test_pieces (void)
{
  json_t *args = json_pack ("{s:s, s:I}", "name", "golden@v1", "memory",
                            (json_int_t) DRIFT_MEMORY_MIN);
  struct looks looks = { 0 };
  json_t *result = command_run (pool, "drift", args, on_look, &looks);

  if (result == NULL)
    fatal ("drift: %s", nbdedup_error ());
  if (looks.files <= nameless_files ())
    fatal ("drift has sorted all in memory");
  json_decref (result);
  json_decref (args);
}

/*----------------------------------------------------------------------
 * Waiting for another computation
 */

static struct {
  pthread_t thread;
  sem_t is_inside, may_go_on;
  json_t *result;
} other;

static int
hold (void *opaque, uint64_t done, uint64_t total)
{
  uint64_t *nr = opaque;

  (void) done;
  (void) total;
  if (++*nr == 1) {
    sem_post (&other.is_inside);
    sem_wait (&other.may_go_on);
  }
  return 0;
}

static void *
hold_drift (void *arg)
{
  uint64_t nr = 0;

  other.result = command_run (pool, "drift", arg, hold, &nr);
  return NULL;
}

static void
stop_waiting (const char *command, json_t *args)
{
  struct looks looks = { .stop_at = 3 };

  if (command_run (pool, command, args, on_look, &looks) != NULL ||
      errno != EINTR || looks.nr != 3)
    fatal ("%s waits for another computation, and cannot be interrupted",
           command);
  json_decref (args);
}

static void
test_waiting (void)
{
  json_t *args = json_pack ("{s:s}", "name", "golden@v1");

  sem_init (&other.is_inside, 0, 0);
  sem_init (&other.may_go_on, 0, 0);
  if (pthread_create (&other.thread, NULL, hold_drift, args) != 0)
    fatal ("pthread_create failed");
  sem_wait (&other.is_inside);
  stop_waiting ("drift", json_object ());
  stop_waiting ("drift-freed", json_pack ("{s:[s]}", "names", "web1"));
  stop_waiting ("stat", json_pack ("{s:b}", "ddt", 1));
  sem_post (&other.may_go_on);
  pthread_join (other.thread, NULL);
  if (other.result == NULL)
    fatal ("drift: %s", nbdedup_error ());
  json_decref (other.result);
  json_decref (args);
}

/*----------------------------------------------------------------------
 * Changes meanwhile
 */

static unsigned nr_acts;

/* Change much.  All of it is in pool.db when this returns. */
static void
change_everything (void)
{
  char name[32];

  nr_acts++;
  fill ("web1", OWN_LEAVES / 2, 3, 1000000 * nr_acts);
  fill ("web3", 10, 20, 1000000 * nr_acts);
  snprintf (name, sizeof name, "web1@s%u", nr_acts);
  run ("snapshot", json_pack ("{s:s}", "name", name));
  run ("rollback", json_pack ("{s:s}", "name", name));
  snprintf (name, sizeof name, "golden@t%u", nr_acts);
  run ("snapshot", json_pack ("{s:s}", "name", name));
  run ("destroy",
       json_pack ("{s:s, s:b, s:b}", "name", "web2", "force", 1, "wait", 1));
  run ("clone",
       json_pack ("{s:s, s:s}", "snapshot", "golden@v1", "name", "web2"));
  fill ("web2", OWN_LEAVES, PER_LEAF, 3000000 * nr_acts);
  run ("clone",
       json_pack ("{s:s, s:s}", "snapshot", "golden@v1", "name", name + 7));
}

static void
test_view (void)
{
  json_t *args = json_pack ("{s:s}", "name", "golden@v1");
  json_t *before, *during;
  struct looks looks = { 0 };
  uint64_t nr, i;

  before = command_run (pool, "drift", args, on_look, &looks);
  nr = looks.nr;
  for (i = 1; i <= nr; i += nr / 6) {
    json_decref (before);
    before = strip (call ("drift", json_incref (args)));
    looks = (struct looks) { .act_at = i, .act = change_everything };
    during = command_run (pool, "drift", args, on_look, &looks);
    if (during == NULL)
      fatal ("drift, with changes at look %" PRIu64 ": %s", i,
             nbdedup_error ());
    if (!json_equal (before, strip (during)))
      fatal ("what changed at look %" PRIu64 " of %" PRIu64 " shows:\n%s\n"
             "before:\n%s",
             i, nr, json_dumps (during, JSON_INDENT (1)),
             json_dumps (before, JSON_INDENT (1)));
    json_decref (during);
    during = strip (call ("drift", json_incref (args)));
    if (json_equal (before, during))
      fatal ("nothing has changed");
    json_decref (during);
  }
  json_decref (before);
  json_decref (args);
}

struct calls {
  uint64_t nr, act_at;
};

/* A check does not know how much there is to do. */
static int
on_call (void *opaque, uint64_t done, uint64_t total)
{
  struct calls *calls = opaque;

  (void) done;
  (void) total;
  if (++calls->nr == calls->act_at)
    change_everything ();
  return 0;
}

/* A check reads the state at which it began. */
static void
test_check (void)
{
  struct calls calls = { 0 };
  json_t *result;
  uint64_t nr, i;

  json_decref (command_run (pool, "check", NULL, on_call, &calls));
  nr = calls.nr;
  if (nr < 6)
    fatal ("a check looks %" PRIu64 " times", nr);
  for (i = 1; i <= nr; i += nr / 6) {
    calls = (struct calls) { .act_at = i };
    result = command_run (pool, "check", NULL, on_call, &calls);
    if (result == NULL)
      fatal ("check, with changes at look %" PRIu64 ": %s", i,
             nbdedup_error ());
    if (json_integer_value (json_object_get (result, "errors")) != 0)
      fatal ("what changed at look %" PRIu64 " is an error: %s", i,
             json_dumps (result, JSON_INDENT (1)));
    json_decref (result);
  }
}

int
main (void)
{
  char command[PATH_MAX + 20];
  json_t *result;

  alarm (600); /* to wait for ever is a failure */
  make_pool ();
  test_pieces ();
  test_stop ();
  test_waiting ();
  test_view ();
  test_check ();
  result = call ("check", NULL);
  if (json_integer_value (json_object_get (result, "errors")) != 0)
    fatal ("check found errors");
  json_decref (result);
  if (nbdedup_pool_close (pool) == -1)
    fatal ("close: %s", nbdedup_error ());
  snprintf (command, sizeof command, "rm -rf '%s'", directory);
  if (system (command) != 0)
    fatal ("%s", command);
  return 0;
}
