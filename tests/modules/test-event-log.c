/* SPDX-License-Identifier: BSD-3-Clause */

/* The events of a server: which ones it logs, and that a log that takes nothing
 * delays no thread but its own.  And the warning of a ddt-cache that is small.
 */

#include <config.h>

#include <fcntl.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "core/damage.h"
#include "core/events.h"
#include "core/txg.h"
#include "data/watch.h"
#include "rigs/engine-rig.h"

/*----------------------------------------------------------------------
 * The log
 */

#define LINES_MAX 4096

static struct lock lock; /* protects everything below */
static char *lines[LINES_MAX];
static unsigned nr_lines;

static atomic_bool is_deaf;   /* log_event does not return */
static atomic_uint nr_inside; /* threads in log_event */
static pthread_t logger;      /* of the last event */

static void
log_event (const struct nbdedup_event *event)
{
  char *line = nbdedup_event_line (event);

  nr_inside++;
  while (is_deaf)
    poll (NULL, 0, 1);
  WITH_LOCK (&lock);
  expect (line && nr_lines < LINES_MAX);
  lines[nr_lines++] = line;
  logger = pthread_self ();
  nr_inside--;
}

static unsigned
nr_with (const char *text)
{
  unsigned i, nr = 0;

  WITH_LOCK (&lock);
  for (i = 0; i < nr_lines; ++i)
    nr += strstr (lines[i], text) != NULL;
  return nr;
}

static void
wait_for (const char *text, unsigned nr)
{
  const uint64_t end = clock_ms () + GIVE_UP_MS;

  while (nr_with (text) != nr) {
    if (clock_ms () > end)
      die ("%u lines with \"%s\", expected %u", nr_with (text), text, nr);
    poll (NULL, 0, 1);
  }
}

static void
forget_lines (void)
{
  WITH_LOCK (&lock);
  while (nr_lines > 0)
    free (lines[--nr_lines]);
}

/*----------------------------------------------------------------------*/

static void
open_server_as (enum nbdedup_read_only read_only)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.read_only = read_only;
  settings.drift_interval_s = 0;
  settings.record_cache_bytes = 0;
  pool = nbdedup_pool_open (directory, &settings, "test-event-log",
                            NBDEDUP_OPEN_SERVER);
  if (pool == NULL)
    die ("open: %s", nbdedup_error ());
}

static void
open_server (void)
{
  open_server_as (NBDEDUP_READ_ONLY_OFF);
  attach ();
}

static void
start_server (void)
{
  forget_lines ();
  start (1);
  write_blocks (0, 8, 1);
  close_pool ();
  open_server ();
}

static void
test_opened (void)
{
  start_server ();
  wait_for ("event=opened", 1);
  expect (nr_with ("recovered") == 0 && nr_with ("read_only") == 0);
  close_pool ();
  open_server_as (NBDEDUP_READ_ONLY_ON);
  wait_for ("read_only=true volumes=1", 1);
  json_decref (call ("history", NULL));
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
}

static uint64_t
write_some (void)
{
  write_blocks (0, 8, 100);
  must (nbdedup_volume_flush (handle));
  return 0;
}

static void
test_recovered (void)
{
  forget_lines ();
  start (1);
  close_pool ();
  crash_after (write_some);
  open_server ();
  wait_for ("event=recovered pool=", 1);
  expect (nr_with ("batches=1 records=8 blocks=8") == 1);
  wait_for ("event=opened", 1);
  end ();
}

/* Threads that must not wait do not, however long the log takes nothing.  What
 * is too much is dropped, and counted.
 */
static void
test_deaf (void)
{
  const unsigned nr = 3000;
  unsigned i, ms;

  start_server ();
  wait_for ("event=opened", 1);
  is_deaf = true;
  for (i = 0; i < nr; ++i) {
    events_post (pool->events, NBDEDUP_LOG_INFO, event_new ("room", NULL),
                 "room %u", i);
    /* Then nothing takes the others before all are posted. */
    for (ms = 0; i == 0 && nr_inside == 0; ++ms) {
      expect (ms < GIVE_UP_MS);
      poll (NULL, 0, 1);
    }
  }
  errno = ENOSPC;
  watch_refused (pool);
  expect (errno == ENOSPC);
  write_blocks (0, 8, 200);
  must (nbdedup_volume_flush (handle));
  settle ();
  expect (nr_inside == 1);
  is_deaf = false;
  wait_for ("event=events-dropped", 1);
  expect (nr_with ("event=room") >= 1024 && nr_with ("event=room") < nr);
  expect (nr_with ("\"room 0\"") == 1 && nr_with ("\"room 1023\"") == 1);
  expect (!pthread_equal (logger, pthread_self ()));
  end ();
}

/* Events that wait are told before the pool is closed. */
static void
test_closed (void)
{
  start_server ();
  wait_for ("event=opened", 1);
  events_post (pool->events, NBDEDUP_LOG_INFO, event_new ("room", NULL),
               "the last one");
  close_pool ();
  expect (nr_with ("the last one") == 1);
  remove_directory (directory);
}

static void
set_full_warn (unsigned percent)
{
  WITH_LOCK (&pool->watch->lock);
  pool->watch->full_warn = percent;
}

/* Each once, with the hysteresis of watch.h. */
static void
test_full (void)
{
  start_server ();
  watch_refused (pool);
  watch_refused (pool);
  wait_for ("event=full", 1);
  watch_look (pool, true);
  watch_look (pool, true);
  wait_for ("event=room", 1);
  set_full_warn (0); /* anything is more */
  watch_look (pool, true);
  watch_look (pool, true);
  wait_for ("event=nearly-full", 1);
  set_full_warn (100);
  watch_look (pool, true);
  watch_look (pool, true);
  wait_for ("event=below-full-warn", 1);
  expect (nr_with ("event=full") == 1 && nr_with ("event=room") == 1);
  expect (nr_with ("event=nearly-full") == 1);
  expect (nr_with ("full_warn=100") == 1);
  end ();
}

static void
take_long (void)
{
  poll (NULL, 0, 3100);
}

static void
test_slow_fold (void)
{
  char text[20];
  unsigned i, nr = 0;

  start_server ();
  write_block (9, 300);
  settle ();
  expect (nr_with ("event=slow-fold") == 0);
  at_sync_of_records = take_long;
  write_block (9, 301);
  settle ();
  wait_for ("event=slow-fold", 1);
  for (i = 3; i < 10; ++i) { /* 3.1, and what else the fold took */
    snprintf (text, sizeof text, " seconds=%u.", i);
    nr += nr_with (text);
  }
  expect (nr == 1);
  /* Not again so soon. */
  at_sync_of_records = take_long;
  write_block (9, 302);
  settle ();
  close_pool ();
  expect (nr_with ("event=slow-fold") == 1);
  remove_directory (directory);
}

static void
spoil_record (uint64_t addr)
{
  CLEANUP_FREE char *path = pool_file (directory, "records");
  int fd = open (path, O_RDWR | O_CLOEXEC);
  const char byte = 'x';

  expect (fd >= 0 && pwrite (fd, &byte, 1, (off_t) addr * 512 + 7) == 1);
  close (fd);
}

static json_t *
damages (void)
{
  json_t *result = call ("history", NULL), *damaged = json_array (), *e;
  size_t i;

  json_array_foreach (json_object_get (result, "history"), i, e)
    if (strcmp (json_string_value (json_object_get (e, "event")), "damage") ==
        0)
      json_array_append (damaged, e);
  json_decref (result);
  return damaged;
}

/* Damage that a read meets is told once, with its place, and kept. */
static void
test_damaged_read (void)
{
  json_t *damaged;
  char buf[BLOCK];

  start_server ();
  spoil_record (address_of (3));
  expect (nbdedup_volume_read (handle, buf, BLOCK, 3 * BLOCK) == -1 &&
          errno == EIO);
  expect (nbdedup_volume_read (handle, buf, 1, 3 * BLOCK) == -1);
  must (nbdedup_volume_read (handle, buf, BLOCK, 4 * BLOCK));
  wait_for ("event=damage", 1);
  expect (nr_with ("found=read offset=12288 length=4096 volume=v") == 1);
  close_pool ();
  expect (nr_with ("event=damage") == 1);
  open_server ();
  damaged = damages ();
  expect (json_array_size (damaged) == 1 &&
          number (json_array_get (damaged, 0), "offset") == 3 * BLOCK);
  json_decref (damaged);
  close_pool ();
  remove_directory (directory);
}

/* A fleet of damaged blocks does not flood the log. */
static void
test_many_places (void)
{
  unsigned i, nr = 0;

  start_server ();
  for (i = 0; i < 1000; ++i)
    nr += events_is_new_place (pool->events, 1 + i % 2, i / 4);
  expect (nr == EVENTS_PLACES_MAX);
  end ();
}

static void
test_scrubs (void)
{
  json_t *result;

  start_server ();
  spoil_record (address_of (0));
  spoil_record (address_of (2));
  result = call ("scrub", NULL);
  expect (number (result, "errors") == 2);
  json_decref (result);
  wait_for ("event=scrub-ended", 1);
  expect (nr_with ("event=scrub-begun") == 1);
  expect (nr_with ("event=damage") == 2);
  expect (nr_with ("found=scrub offset=8192 length=4096 volume=v") == 1);
  expect (nr_with ("outcome=done") == 1);
  expect (nr_with ("damaged=v:0:4096,v:8192:4096") == 1);
  close_pool ();
  remove_directory (directory);
}

static uint64_t nr_entries; /* that pool.db shall say it has */
static unsigned nr_warnings;
static char warning[512]; /* the last one */

static int
put_entries (void *opaque, struct meta_conn *c, struct meta_state *state)
{
  (void) opaque;
  (void) c;
  state->index_entries = nr_entries;
  return 0;
}

static void
note_warning (enum nbdedup_log_level level, const char *line)
{
  if (strstr (line, "ddt-cache") == NULL)
    return;
  nr_warnings++;
  expect (level == NBDEDUP_LOG_WARNING);
  snprintf (warning, sizeof warning, "%s", line);
}

/* The ddt-cache that "stat" wants, 0: no word of it. */
static uint64_t
wanted_cache (void)
{
  json_t *stat = call ("stat", NULL);
  const json_t *ddt = json_object_get (json_object_get (stat, "pool"), "ddt");
  const json_int_t wanted = json_integer_value (
    json_object_get (ddt, "cache_wanted_bytes"));

  json_decref (stat);
  return (uint64_t) wanted;
}

static void
reopen_with_entries (uint64_t nr)
{
  nr_entries = nr;
  must (txg_run (pool->txg, put_entries, NULL, NULL));
  close_pool ();
  open_server ();
}

static void
test_small_cache (void)
{
  nbdedup_set_log (note_warning);
  nr_warnings = 0;
  start_server ();
  expect (wanted_cache () == 0);
  /* Eight bits for each, and a few fewer. */
  reopen_with_entries (220000000);
  expect (wanted_cache () == 0 && nr_warnings == 0);
  reopen_with_entries (221000000);
  expect (wanted_cache () > 0 && nr_warnings == 1);
  reopen_with_entries (400000000);
  expect (wanted_cache () == 914285715 && nr_warnings == 2);
  expect (strstr (warning, "ddt-cache=384M is small for 400000000 blocks: ") &&
          strstr (warning, ": start the server with ddt-cache=872M"));
  /* No cache is what the administrator asked for. */
  pool->settings.primarycache = NBDEDUP_CACHE_NONE;
  expect (wanted_cache () == 0);
  pool->settings.primarycache = NBDEDUP_CACHE_ALL;
  close_pool ();
  /* A command has no cache that matters. */
  open_pool (1);
  expect (wanted_cache () == 0 && nr_warnings == 2);
  must (nbdedup_pool_close (pool));
  nbdedup_set_log (NULL);
  remove_directory (directory);
}

int
main (int argc, char *argv[])
{
  static const struct engine_case cases[] = {
    CASE (opened), CASE (recovered),   CASE (deaf),         CASE (closed),
    CASE (full),   CASE (slow_fold),   CASE (damaged_read), CASE (many_places),
    CASE (scrubs), CASE (small_cache), { NULL, NULL },
  };

  lock_init (&lock);
  nbdedup_set_event_log (log_event);
  return run_cases (argc, argv, cases);
}
