/* SPDX-License-Identifier: BSD-3-Clause */

/* Everything at once.  Clients of several volumes read, write, trim and flush.
 * Other threads make, resize and rename volumes, destroy them under their
 * clients, set properties, and make and destroy golden images and clones.
 * "stat", "status", "list", "check", "scrub" and "drift" run, and the server's
 * sampler and other threads record drift.  Caches are as small as possible.
 *
 * This test does not repeat the checks of data and figures in test-model: it
 * has many kinds of threads.  It is most useful in a build with TSan or ASan.
 * CONCURRENT_SECONDS (default 4) and SEED come from the environment.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>

#include "core/engine.h"
#include "core/txg.h"
#include "modules/concurrent.h"

struct nbdedup_pool *pool;
char directory[PATH_MAX];
uint64_t seed;
atomic_bool stop;
atomic_uint nr_requests, nr_commands, nr_cut_off;
struct steady steady[NR_STEADY];

json_t *
try (const char *command, json_t *args, int error)
{
  json_t *result = nbdedup_call (pool, command, args);

  if (result == NULL && error != ANY_ERROR && (error == 0 || errno != error))
    fatal ("%s: %s", command, nbdedup_error ());
  json_decref (args);
  nr_commands++;
  return result;
}

void
run (const char *command, json_t *args)
{
  json_decref (try (command, args, 0));
}

struct nbdedup_volume *
open_volume (const char *name, unsigned flags)
{
  struct nbdedup_volume *v = nbdedup_volume_open (pool, name, flags, 0, NULL);

  if (v == NULL)
    fatal ("%s: %s", name, nbdedup_error ());
  return v;
}

int
ignore_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  (void) opaque;
  (void) offset;
  (void) len;
  (void) hole;
  return 0;
}

/*----------------------------------------------------------------------
 * Threads that look at the pool, and that set properties
 */

static void
expect_no_errors (const char *command)
{
  json_t *result = try (command, NULL, 0), *text;
  size_t i;

  if (json_integer_value (json_object_get (result, "errors")) != 0) {
    json_array_foreach (json_object_get (result, "problems"), i, text)
      fprintf (stderr, "check: %s\n", json_string_value (text));
    fatal ("%s found errors", command);
  }
  json_decref (result);
}

static void
expect_sum (void)
{
  json_t *stat = try ("stat", json_pack ("{s:b}", "ddt", 1), 0), *volume;
  json_int_t logical = json_integer_value (
    json_object_get (json_object_get (stat, "pool"), "logical_bytes"));
  size_t i;

  json_array_foreach (json_object_get (stat, "volumes"), i, volume)
    logical -= json_integer_value (json_object_get (volume, "logical_bytes"));
  if (logical != 0)
    fatal ("stat: logical_bytes of the pool is not the sum of the volumes'");
  json_decref (stat);
}

static void *
observer (void *arg)
{
  struct rng rng = rng_make (seed, 600);
  unsigned nr;

  (void) arg;
  while (!stop) {
    switch (rng_below (&rng, 24)) {
    case 0:
      expect_no_errors ("check");
      break;
    case 1:
      expect_no_errors ("scrub");
      break;
    case 2 ... 8:
      run ("list", NULL);
      break;
    case 9:
      run ("get", json_pack ("{s:s,s:s}", "property", "all", "name", "s0"));
      run ("get", json_pack ("{s:s}", "property", "all"));
      break;
    case 10 ... 12:
      run ("stat", NULL);
      run ("status", NULL);
      break;
    case 13:
      run ("destroy", json_pack ("{s:s,s:b}", "name", "s1", "dry-run", 1));
      break;
    case 15:
      run ("prune", json_pack ("{s:i}", "percent", 30));
      break;
    case 14:
      nr = 0;
      must (nbdedup_pool_list (pool, count_export, &nr));
      if (nr < NR_STEADY)
        fatal ("%u volumes are listed", nr);
      break;
    default:
      expect_sum ();
    }
    clock_sleep_ms (rng_below (&rng, 3));
  }
  return NULL;
}

static void *
setter (void *arg)
{
  static const struct {
    const char *property, *values[4];
    bool of_pool;
  } knobs[] = {
    { "compress", { "none", "lz4", "zstd", "zstd-9" }, false },
    { "dedup", { "on", "off", "verify", "on" }, false },
    { "allow", { "all", "0", "0,1000", "CN=somebody" }, false },
    { "ddt-quota", { "none", "20000", "none", "100000" }, true },
    { "compress", { "none", "lz4", "zstd", "lz4" }, true },
    { "copies", { "1", "2:1", "3:1", "2:2" }, true },
  };
  struct rng rng = rng_make (seed, 700);
  unsigned k, value;

  (void) arg;
  while (!stop) {
    k = rng_below (&rng, sizeof knobs / sizeof knobs[0]);
    value = rng_below (&rng, 4);
    run ("set",
         json_pack ("{s:s,s:s,s:s*}", "property", knobs[k].property, "value",
                    knobs[k].values[value], "name",
                    knobs[k].of_pool
                      ? NULL
                      : steady[rng_below (&rng, NR_STEADY)].name));
    clock_sleep_ms (rng_below (&rng, 10));
  }
  return NULL;
}

/* A client of the server's socket: "nbdedup", while a server has the pool. */
static void
use_remote (struct nbdedup_client *client, uint8_t *buf, struct rng *rng)
{
  unsigned i = rng_below (rng, NR_STEADY);
  struct nbdedup_handle *r;

  r = nbdedup_client_volume_open (client, steady[i].name,
                                  NBDEDUP_VOLUME_READONLY);
  if (r == NULL) {
    if (errno != EACCES) /* see setter */
      fatal ("%s: %s", steady[i].name, nbdedup_error ());
    return;
  }
  for (i = rng_below (rng, 10); i > 0; --i)
    must (nbdedup_handle_read (r, buf, MAX_REQUEST,
                               rng_below (rng, STEADY_BYTES - MAX_REQUEST)));
  must (nbdedup_handle_extents (r, STEADY_BYTES, 0, ignore_extent, NULL));
  nbdedup_handle_close (r);
}

static void *
remote (void *arg)
{
  unsigned id = (uintptr_t) arg;
  struct rng rng = rng_make (seed, 800 + id);
  uint8_t *buf = xmalloc (MAX_REQUEST);
  struct nbdedup_client *client;
  json_t *result;

  while (!stop) {
    client = nbdedup_client_open (directory, NULL, "test-concurrent", NULL);
    if (client == NULL || !nbdedup_client_is_served (client))
      fatal ("client: %s", nbdedup_error ());
    result = nbdedup_client_call (client, "list", NULL, NULL, NULL);
    if (result == NULL)
      fatal ("list: %s", nbdedup_error ());
    json_decref (result);
    nr_commands++;
    use_remote (client, buf, &rng);
    must (nbdedup_client_close (client));
    clock_sleep_ms (rng_below (&rng, 5));
  }
  free (buf);
  return NULL;
}

/* Fold at any time, beside any command. */
static void *
folder (void *arg)
{
  struct rng rng = rng_make (seed, 900);

  (void) arg;
  while (!stop) {
    must (txg_run (pool->txg, NULL, NULL, NULL));
    clock_sleep_ms (rng_below (&rng, 4));
  }
  return NULL;
}

/*----------------------------------------------------------------------*/

static void
open_pool (enum nbdedup_primarycache primarycache)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.ddt_cache_bytes = NBDEDUP_DDT_CACHE_MIN;
  settings.dirty_max_bytes = NBDEDUP_DIRTY_MAX_MIN;
  settings.record_cache_bytes = 256 << 10;
  settings.commit_interval_ms = 20;
  settings.nr_workers = 3;
  settings.drift_interval_s = 1;
  settings.primarycache = primarycache;
  pool = nbdedup_pool_open (directory, &settings, "test-concurrent",
                            NBDEDUP_OPEN_SERVER);
  if (pool == NULL)
    fatal ("open: %s", nbdedup_error ());
}

static void
make_pool (void)
{
  unsigned i;

  make_directory (directory, fast_directory (), "test-concurrent");
  must (nbdedup_pool_create (directory, NULL));
  open_pool (NBDEDUP_CACHE_ALL);
  for (i = 0; i < NR_STEADY; ++i) {
    snprintf (steady[i].name, sizeof steady[i].name, "s%u", i);
    steady[i].block_size = 4096 << (2 * i);
    steady[i].data = xcalloc (STEADY_BYTES, 1);
    run ("create",
         json_pack ("{s:s,s:I,s:i}", "name", steady[i].name, "size",
                    (json_int_t) STEADY_BYTES, "block-size",
                    (int) steady[i].block_size));
  }
  run ("create",
       json_pack ("{s:s,s:I}", "name", "m0", "size",
                  (json_int_t) MOVING_BYTES));
  make_golden ();
  must (nbdedup_pool_close (pool));
}

/* Makes the library format log lines, with names that change meanwhile. */
static void
ignore_line (enum nbdedup_log_level level, const char *line)
{
  (void) level;
  (void) line;
}

static void
run_all (uint64_t ms)
{
  static const struct {
    void *(*fn) (void *);
    unsigned nr;
  } kinds[] = {
    { writer, NR_WRITERS }, { guest, NR_GUESTS }, { destroyer, 2 },
    { mover, 1 },           { follower, 2 },      { observer, 1 },
    { setter, 1 },          { remote, 2 },        { folder, 1 },
    { cloner, 2 },          { measurer, 1 },      { herder, 2 },
    { drifter, 1 },
  };
  pthread_t threads[32];
  unsigned nr = 0, i;
  uintptr_t id;

  stop = false;
  for (i = 0; i < sizeof kinds / sizeof kinds[0]; ++i)
    for (id = 0; id < kinds[i].nr; ++id)
      if (pthread_create (&threads[nr++], NULL, kinds[i].fn, (void *) id) != 0)
        die ("pthread_create failed");
  clock_sleep_ms (ms);
  stop = true;
  while (nr > 0)
    pthread_join (threads[--nr], NULL);
}

static void
end_pool (void)
{
  verify_data ("at the end of a phase");
  expect_no_errors ("check");
  expect_no_errors ("scrub");
  must (nbdedup_pool_close (pool));
}

int
main (void)
{
  uint64_t ms = 1000 * number_from_environment ("CONCURRENT_SECONDS", 4);
  static const enum nbdedup_primarycache caches[] = {
    NBDEDUP_CACHE_ALL,
    NBDEDUP_CACHE_METADATA,
    NBDEDUP_CACHE_NONE,
  };
  unsigned i;

  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 "\n", seed);
  fflush (stdout);
  nbdedup_set_log (ignore_line);
  make_pool ();
  for (i = 0; i < 3; ++i) {
    open_pool (caches[i]);
    verify_data ("after opening");
    run_all (ms / 3);
    end_pool ();
  }
  remove_directory (directory);
  for (i = 0; i < NR_STEADY; ++i)
    free (steady[i].data);
  printf ("%u requests, %u commands, %u clients cut off\n", nr_requests,
          nr_commands, nr_cut_off);
  return 0;
}
