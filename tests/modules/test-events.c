/* SPDX-License-Identifier: BSD-3-Clause */

/* The events of a pool: the history agrees with the pool wherever a process is
 * killed, is bounded, stops no command, and a deaf log delays none.
 */

#include <config.h>

#include <fcntl.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/events.h"
#include "core/txg.h"
#include "data/volume-types.h"
#include "meta/meta-conn.h"
#include "rigs/page-rig.h"
#include "service/command.h"
#include "volume/volume.h"

/*----------------------------------------------------------------------
 * The history
 */

static json_t *
history (void)
{
  json_t *result = call ("history", NULL);
  json_t *events = json_incref (json_object_get (result, "history"));

  expect (json_is_array (events));
  json_decref (result);
  return events;
}

static bool
has_text (const json_t *event, const char *key, const char *text)
{
  const char *value = json_string_value (json_object_get (event, key));

  return value && strcmp (value, text) == 0;
}

/* The number of events of this name, with this value of 'key', if not NULL. */
static unsigned
count (const char *name, const char *key, const char *value)
{
  CLEANUP_JSON json_t *events = history ();
  json_t *event;
  unsigned nr = 0;
  size_t i;

  json_array_foreach (events, i, event)
    nr += has_text (event, "event", name) &&
      (key == NULL || has_text (event, key, value));
  return nr;
}

static void
snapshot (const char *name)
{
  run ("snapshot", json_pack ("{s:s}", "name", name));
}

static bool
exists (const char *name)
{
  WITH_LOCK (&pool->admin);
  return (strchr (name, '@') ? volumes_find_snapshot (pool->volumes, name)
                             : volumes_find (pool->volumes, name)) != NULL;
}

static void
test_commands (void)
{
  CLEANUP_JSON json_t *events = NULL;
  json_t *e;

  start (1);
  snapshot ("v@a");
  run ("clone",
       json_pack ("{s:s, s:s, s:i}", "snapshot", "v@a", "name", "c", "count",
                  2));
  run ("destroy",
       json_pack ("{s:[s, s], s:b}", "names", "c1", "c2", "recursive", 1));
  /* What fails, or changes nothing, is no event. */
  expect (nbdedup_call (pool, "snapshot", NULL) == NULL);
  json_decref (call ("list", NULL));
  json_decref (call ("check", NULL));
  reopen_pool ();
  events = history ();
  expect (json_array_size (events) == 5);
  expect (has_text (json_array_get (events, 0), "event", "init"));
  e = json_array_get (events, 1);
  expect (has_text (e, "event", "create") && has_text (e, "volume", "v") &&
          number (e, "block_size") == BLOCK && number (e, "uid") == getuid ());
  e = json_array_get (events, 2);
  expect (has_text (e, "event", "snapshot") && has_text (e, "volume", "v") &&
          has_text (e, "snapshot", "a") && number (e, "pid") == getpid ());
  e = json_array_get (events, 3);
  expect (has_text (e, "origin", "v@a") && number (e, "count") == 2);
  e = json_array_get (events, 4);
  expect (json_array_size (json_object_get (e, "names")) == 2 &&
          json_is_true (json_object_get (e, "recursive")));
  end ();
}

static int
put_property (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  return meta_property_put (c, "full-warn", "8");
}

static int
fail_after_a_change (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  must (meta_property_put (c, "full-warn", "7"));
  return nbdedup_fail (EBUSY, "a test");
}

/* A command that fails in its transaction leaves no event there. */
static void
test_failed (void)
{
  struct txg_event event = { .text = "{\"time\":1,\"event\":\"set\"}" };

  start (1);
  txg_set_event (&event);
  expect (txg_run (pool->txg, fail_after_a_change, NULL, NULL) == -1);
  expect (!event.taken && count ("set", NULL, NULL) == 0);
  settle (); /* without a function of its own */
  expect (!event.taken && count ("set", NULL, NULL) == 0);
  must (txg_run (pool->txg, put_property, NULL, NULL));
  expect (event.taken && count ("set", NULL, NULL) == 1);
  must (txg_run (pool->txg, put_property, NULL, NULL));
  txg_set_event (NULL);
  expect (count ("set", NULL, NULL) == 1);
  end ();
}

static int
stop_at_once (void *opaque, uint64_t done, uint64_t total)
{
  (void) opaque;
  (void) done;
  (void) total;
  return 1;
}

static void
interrupt (const char *command, json_t *args)
{
  expect (command_run (pool, command, args, stop_at_once, NULL) == NULL &&
          errno == EINTR);
  expect (strstr (nbdedup_error (), "interrupted") != NULL);
  json_decref (args);
}

/* A long command that was interrupted did a part; another one that failed did
 * nothing.
 */
static void
test_interrupted (void)
{
  start (1);
  write_blocks (0, 64, 1);
  settle ();
  interrupt ("rewrite", json_pack ("{s:s}", "name", "v"));
  interrupt ("scrub", NULL);
  expect (count ("rewrite", "outcome", "interrupted") == 1);
  expect (count ("scrub-ended", "outcome", "interrupted") == 1);
  expect (nbdedup_call (pool, "rewrite", NULL) == NULL);
  expect (nbdedup_call (pool, "resize", NULL) == NULL);
  expect (count ("rewrite", NULL, NULL) == 1);
  expect (count ("resize", NULL, NULL) == 0);
  end ();
}

/* More names than an event has, and a text that is too long. */
static void
test_long (void)
{
  CLEANUP_JSON json_t *events = NULL;
  json_t *names = json_array (), *event, *e;
  char name[16], *text;
  unsigned i;

  start (1);
  for (i = 0; i < 20; ++i) {
    snprintf (name, sizeof name, "n%u", i);
    run ("create", json_pack ("{s:s, s:i}", "name", name, "size", 1 << 20));
    json_array_append_new (names, json_string (name));
  }
  run ("destroy", json_pack ("{s:o}", "names", names));
  text = xcalloc (EVENTS_TEXT_MAX + 1, 1);
  memset (text, 'x', EVENTS_TEXT_MAX);
  event = event_new ("set", "{s:s}", "value", text);
  events_keep (pool->events, event);
  json_decref (event);
  free (text);
  reopen_pool ();
  events = history ();
  e = json_array_get (events, 22);
  expect (json_array_size (json_object_get (e, "names")) == 16 &&
          number (e, "more_names") == 4);
  e = json_array_get (events, 23);
  expect (has_text (e, "event", "set") &&
          json_is_true (json_object_get (e, "cut")) &&
          json_object_get (e, "value") == NULL);
  end ();
}

/*----------------------------------------------------------------------
 * Crashes
 */

static void
do_open (void)
{
  open_and_attach ();
}

static void
do_snapshot (void)
{
  snapshot ("v@s");
}

static void
do_destroy (void)
{
  run ("destroy", json_pack ("{s:s}", "name", "v@s"));
}

static void
do_set (void)
{
  run ("set",
       json_pack ("{s:s, s:s, s:s}", "property", "compress", "value", "zstd",
                  "name", "v"));
}

/* Kill a process at each sync of the command: after that, the history has the
 * event if and only if the command was done.
 */
static void
kill_command (void (*fn) (void), const char *event, bool done_exists)
{
  bool killed = true, done = false, before = false;
  unsigned nth;

  for (nth = 1; killed; ++nth) {
    expect (!done);
    killed = crashes_at_sync (nth, do_open, fn);
    open_and_attach ();
    done = exists ("v@s") == done_exists;
    if (count (event, "snapshot", "s") != done)
      die ("%s was killed at sync %u: it is%s done, and the history has %u",
           event, nth, done ? "" : " not", count (event, "snapshot", "s"));
    before |= killed && !done;
    expect (killed || done);
    close_pool ();
    if (done)
      break;
  }
  expect (before && done);
}

static void
test_killed_within_a_command (void)
{
  start (1);
  close_pool ();
  kill_command (do_snapshot, "snapshot", true);
  kill_command (do_destroy, "destroy", false);
  open_and_attach ();
  end ();
}

/* An event that comes after its command is never there without it; both are
 * there when the command has been answered.
 */
static void
test_killed_before_the_event (void)
{
  CLEANUP_JSON json_t *value = NULL;
  bool killed = true, is_set, alone = false;
  unsigned nth, nr;

  start (1);
  close_pool ();
  for (nth = 1; killed; ++nth) {
    killed = crashes_at_sync (nth, do_open, do_set);
    open_and_attach ();
    value = call ("get",
                  json_pack ("{s:s, s:s}", "property", "compress", "name",
                             "v"));
    is_set = has_text (json_object_get (value, "properties"), "compress",
                       "zstd");
    json_decref (value);
    value = NULL;
    nr = count ("set", NULL, NULL);
    expect (is_set || nr == 0);
    expect (killed || nr > 0);
    alone |= is_set && nr == 0;
    close_pool ();
    if (nr > 0)
      break;
  }
  expect (alone);
  open_and_attach ();
  end ();
}

static uint64_t
answer_and_write (void)
{
  snapshot ("v@late");
  do_set ();
  write_blocks (0, 8, 1);
  must (nbdedup_volume_flush (handle));
  return 0;
}

/* Answered commands are there; so is the recovery that followed, once. */
static void
test_killed_after_answers (void)
{
  start (1);
  close_pool ();
  crash_after (answer_and_write);
  open_and_attach ();
  expect (count ("snapshot", "snapshot", "late") == 1);
  expect (count ("set", "property", "compress") == 1);
  expect (count ("recovered", NULL, NULL) == 1);
  reopen_pool ();
  expect (count ("recovered", NULL, NULL) == 1);
  end ();
}

/* No command, after which folds would go on by themselves. */
static uint64_t
only_write (void)
{
  write_blocks (0, 8, 1);
  must (nbdedup_volume_flush (handle));
  return 0;
}

/* A recovery that is killed at any sync is in the history once. */
static void
test_killed_while_recovering (void)
{
  bool killed = true;
  unsigned nth, nr = 0;

  start (1);
  close_pool ();
  for (nth = 1; killed; ++nth) {
    crash_after (only_write);
    killed = crashes_at_sync (nth, NULL, do_open);
    open_and_attach ();
    if (count ("recovered", NULL, NULL) != ++nr)
      die ("killed at sync %u: %u recoveries of %u", nth,
           count ("recovered", NULL, NULL), nr);
    close_pool ();
  }
  open_and_attach ();
  end ();
}

/*----------------------------------------------------------------------
 * Bounds, and tables that cannot be written
 */

#define MANY 100000u

static int
put_many (void *arg, struct meta_conn *c, struct meta_state *state)
{
  char text[64];
  unsigned i;

  (void) arg;
  (void) state;
  for (i = 0; i < MANY; ++i) {
    snprintf (text, sizeof text, "{\"time\":%u,\"event\":\"room\"}", i);
    must (meta_event_put (c, i, text));
  }
  return 0;
}

static void
test_many (void)
{
  CLEANUP_JSON json_t *events = NULL;

  start (1);
  must (txg_run_large (pool->txg, 1000, put_many, NULL, NULL));
  events = history ();
  expect (json_array_size (events) == META_EVENTS_MAX);
  expect (number (json_array_get (events, 0), "time") ==
          MANY - META_EVENTS_MAX);
  snapshot ("v@a");
  reopen_pool ();
  json_decref (events);
  events = history ();
  expect (json_array_size (events) == META_EVENTS_MAX);
  expect (number (json_array_get (events, 0), "time") ==
          MANY - META_EVENTS_MAX + 1);
  expect (has_text (json_array_get (events, META_EVENTS_MAX - 1), "event",
                    "snapshot"));
  end ();
}

static int
drop_table (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  return meta_exec (c, "DROP TABLE event", "a test");
}

/* The table is gone: commands succeed, and their events wait, but not more of
 * them than there are places for.
 */
static void
test_without_the_table (void)
{
  char name[16];
  unsigned i;

  start (1);
  must (txg_run (pool->txg, drop_table, NULL, NULL));
  snapshot ("v@a");
  do_set ();
  expect (count ("snapshot", NULL, NULL) == 1);
  expect (count ("set", NULL, NULL) == 1);
  for (i = 0; i < EVENTS_WAITING_MAX; ++i) {
    snprintf (name, sizeof name, "v@%u", i);
    snapshot (name);
  }
  expect (count ("set", NULL, NULL) == 0);
  expect (count ("snapshot", NULL, NULL) == EVENTS_WAITING_MAX);
  /* The pool is opened: it has the table again, and what waited is lost. */
  reopen_pool ();
  expect (exists ("v@127") && count ("snapshot", NULL, NULL) == 0);
  snapshot ("v@b");
  expect (count ("snapshot", NULL, NULL) == 1);
  end ();
}

/*----------------------------------------------------------------------
 * A full file system
 */

static atomic_bool is_full;

int fallocate64 (int fd, int mode, off_t offset, off_t len);

/* Its name where a macro makes off_t 64 bits wide, and the other one. */
int
fallocate64 (int fd, int mode, off_t offset, off_t len)
{
  if (is_full && (mode & FALLOC_FL_PUNCH_HOLE) == 0) {
    errno = ENOSPC;
    return -1;
  }
  return (int) syscall (SYS_fallocate, fd, mode, offset, len);
}

int
fallocate (int fd, int mode, off_t offset, off_t len)
{
  return fallocate64 (fd, mode, offset, len);
}

static uint64_t
used_pages (void)
{
  struct meta_pages p;

  meta_get_pages (pool->meta, &p);
  return p.used;
}

/* Events take no page of what the pool keeps for freeing space: they wait. */
static void
test_no_room (void)
{
  const unsigned nr = 100;
  uint64_t before;
  unsigned i;

  start (1);
  reopen_pool ();
  before = used_pages ();
  is_full = true;
  for (i = 0; i < nr; ++i)
    do_set ();
  expect (used_pages () == before);
  expect (count ("set", NULL, NULL) == nr);
  is_full = false;
  reopen_pool ();
  expect (used_pages () > before);
  expect (count ("set", NULL, NULL) == nr);
  end ();
}

/*----------------------------------------------------------------------
 * Damage
 */

#define SOME 1000

static int
put_some (void *arg, struct meta_conn *c, struct meta_state *state)
{
  char text[200];
  unsigned i;

  (void) arg;
  (void) state;
  for (i = 0; i < SOME; ++i) {
    snprintf (text, sizeof text,
              "{\"time\":%u,\"event\":\"room\",\"x\":"
              "\"%0100u\"}",
              i, i);
    must (meta_event_put (c, i, text));
  }
  return 0;
}

static void
make_events (void)
{
  must (txg_run_large (pool->txg, 100, put_some, NULL, NULL));
}

/* Read the history of a pool with a damaged page: the others' events, in
 * order.  Returns how many there are.
 */
static size_t
read_damaged (void)
{
  CLEANUP_JSON json_t *result = call ("history", NULL);
  json_t *event;
  json_int_t last = -1;
  size_t i, nr = 0;

  expect (json_is_true (json_object_get (result, "incomplete")));
  json_array_foreach (json_object_get (result, "history"), i, event)
    if (has_text (event, "event", "room")) {
      expect (number (event, "time") > last);
      last = number (event, "time");
      nr++;
    }
  return nr;
}

static void
open_read_only (void)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.read_only = NBDEDUP_READ_ONLY_ON;
  pool = nbdedup_pool_open (directory, &settings, "test-events", 0);
  if (pool == NULL)
    die ("read-only: %s", nbdedup_error ());
}

/* A damaged page costs its events.  Commands still work, and a repair keeps
 * the others.
 */
static void
test_damaged_page (void)
{
  uint32_t page;
  size_t nr;

  start_sample (make_events);
  page = some_page ("event", PAGE_BOTTOM);
  if (page == 0)
    return; /* without dbstat it is not known */
  begin ();
  damage_page (page);
  open_read_only ();
  nr = read_damaged ();
  expect (nr > SOME / 2 && nr < SOME);
  must (nbdedup_pool_close (pool));
  open_and_attach ();
  expect (read_damaged () == nr);
  snapshot ("v@a");
  expect (count ("snapshot", NULL, NULL) == 1);
  close_pool ();
  open_to_repair ();
  json_decref (repair_pool ());
  expect (count ("room", NULL, NULL) == nr && exists ("v@a"));
  snapshot ("v@b");
  check_pool ();
  close_pool ();
  end_sample ();
}

/* A pool of an earlier version: read-only it has no history; writing begins
 * one.
 */
static void
test_old_pool (void)
{
  CLEANUP_JSON json_t *result = NULL;

  start (1);
  must (txg_run (pool->txg, drop_table, NULL, NULL));
  close_pool ();
  open_read_only ();
  result = call ("history", NULL);
  expect (json_is_array (json_object_get (result, "history")) &&
          json_array_size (json_object_get (result, "history")) == 0 &&
          !json_object_get (result, "incomplete"));
  must (nbdedup_pool_close (pool));
  open_and_attach ();
  snapshot ("v@a");
  reopen_pool ();
  expect (count ("snapshot", NULL, NULL) == 1);
  end ();
}

int
main (int argc, char *argv[])
{
  static const struct engine_case cases[] = {
    CASE (commands),
    CASE (failed),
    CASE (interrupted),
    CASE (long),
    CASE (killed_within_a_command),
    CASE (killed_before_the_event),
    CASE (killed_after_answers),
    CASE (killed_while_recovering),
    CASE (many),
    CASE (without_the_table),
    CASE (no_room),
    CASE (old_pool),
    CASE (damaged_page),
    { NULL, NULL },
  };

  return run_cases (argc, argv, cases);
}
