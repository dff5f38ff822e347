/* SPDX-License-Identifier: BSD-3-Clause */

/* The server's sampler: which changes make a sample of a family, how it reports
 * a failure, and that it ends soon.
 */

#include <config.h>

#include <errno.h>
#include <stdatomic.h>

#include "rigs/history-rig.h"

static void
serve (uint64_t interval_s)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.drift_interval_s = interval_s;
  pool = nbdedup_pool_open (directory, &settings, "test-sampler",
                            NBDEDUP_OPEN_SERVER);
  if (pool == NULL)
    fatal ("open: %s", nbdedup_error ());
}

static json_int_t
sampler_count (const char *key)
{
  json_t *info = try ("info", NULL, 0);
  json_t *n = json_object_get (json_object_get (info, "sampler"), key);
  json_int_t count = json_integer_value (n);

  if (!json_is_integer (n))
    fatal ("info has no sampler's \"%s\"", key);
  json_decref (info);
  return count;
}

/* Wait until the count has reached 'n'. */
static void
wait_for_count (const char *key, json_int_t n)
{
  uint64_t end = clock_ms () + 60000;

  while (sampler_count (key) < n) {
    if (clock_ms () > end)
      fatal ("gave up waiting for \"%s\" to become %d", key, (int) n);
    clock_sleep_ms (20);
  }
}

static size_t
nr_samples (const char *name)
{
  json_t *samples = samples_of (name);
  size_t n = json_array_size (samples);

  json_decref (samples);
  return n;
}

static void
change (const char *name, uint64_t seed)
{
  uint8_t buf[4096];
  struct nbdedup_volume *v;

  v = nbdedup_volume_open (pool, name, 0, -1, NULL);
  if (v == NULL)
    fatal ("%s", nbdedup_error ());
  fill_random (buf, sizeof buf, seed);
  must (nbdedup_volume_write (v, buf, sizeof buf, 8192));
  nbdedup_volume_close (v);
}

/* The "unique" of the clone in the last sample. */
static json_int_t
last_unique (const char *golden, const char *clone)
{
  json_t *samples = samples_of (golden), *c;
  json_t *last = json_array_get (samples, json_array_size (samples) - 1);
  json_int_t unique = -1;
  size_t i;

  json_array_foreach (json_object_get (last, "clones"), i, c)
    if (strcmp (json_string_value (json_object_get (c, "name")), clone) == 0)
      unique = json_integer_value (json_object_get (c, "unique"));
  json_decref (samples);
  return unique;
}

/* Each change to a family makes one more sample.  Without a change there is
 * none.
 */
static void
test_interval (void)
{
  json_int_t n, skipped;
  size_t had;

  open_pool ();
  had = nr_samples ("big@v1");
  must (nbdedup_pool_close (pool));
  serve (1);
  wait_for_count ("samples", 2); /* big@v1, silver@v1 */
  wait_for_count ("skipped", 4);
  n = sampler_count ("samples");
  if (n != 2 || nr_samples ("big@v1") != had + 1)
    fatal ("%d samples, nothing having changed", (int) n);

  change ("clone-of-big-7", 77);
  wait_for_count ("samples", ++n);
  if (last_unique ("big@v1", "clone-of-big-7") != 1 ||
      nr_samples ("big@v1") != had + 2)
    fatal ("the sample does not have what was written before it");
  run ("resize",
       json_pack ("{s:s, s:i}", "name", "clone-of-big-8", "size", 2 << 20));
  wait_for_count ("samples", ++n);
  run ("destroy", json_pack ("{s:s}", "name", "clone-of-big-9"));
  wait_for_count ("samples", ++n);
  run ("clone",
       json_pack ("{s:s, s:s}", "snapshot", "big@v1", "name", "another"));
  wait_for_count ("samples", ++n);
  run ("snapshot", json_pack ("{s:s}", "name", "another@a"));
  change ("another", 78);
  wait_for_count ("samples", ++n);
  run ("rollback", json_pack ("{s:s}", "name", "another@a"));
  wait_for_count ("samples", ++n);
  if (last_unique ("big@v1", "another") != 0)
    fatal ("the sample does not show the rollback");

  /* The golden image's own volume is not of the family. */
  change ("big", 79);
  skipped = sampler_count ("skipped");
  wait_for_count ("skipped", skipped + 4);
  if (sampler_count ("samples") != n)
    fatal ("%d samples, expected %d", (int) sampler_count ("samples"), (int) n);
  must (nbdedup_pool_close (pool));
}

static void
test_snapshots (void)
{
  json_int_t n, most;
  uint64_t begin;
  char name[32];
  unsigned i;

  serve (3600);
  begin = clock_ms ();
  for (i = 0; i < 20; ++i) {
    change ("another", 100 + i);
    snprintf (name, sizeof name, "another@many%u", i);
    run ("snapshot", json_pack ("{s:s}", "name", name));
  }
  /* After a sample the sampler waits a second before the next. */
  most = (json_int_t) (clock_ms () - begin) / 1000 + 1;
  wait_for_count ("samples", 1);
  run ("snapshot", json_pack ("{s:s}", "name", "another@same"));
  /* When all of that is sampled, snapshots without a change make no sample. */
  for (i = 0; i < 20 && sampler_count ("skipped") == 0; ++i) {
    snprintf (name, sizeof name, "another@same%u", i);
    run ("snapshot", json_pack ("{s:s}", "name", name));
    clock_sleep_ms (1500);
  }
  if (i == 20)
    fatal ("each snapshot makes a sample");
  n = sampler_count ("samples");
  if (n > most)
    fatal ("%d samples after a burst of snapshots", (int) n);
  /* A snapshot of a clone's clone. */
  run ("clone",
       json_pack ("{s:s, s:s}", "snapshot", "another@same", "name",
                  "grandchild"));
  change ("grandchild", 81);
  run ("snapshot", json_pack ("{s:s}", "name", "grandchild@x"));
  wait_for_count ("samples", n + 2);
  if (nr_samples ("another@same") != 1 ||
      last_unique ("big@v1", "grandchild") != 1)
    fatal ("a clone's clone was not sampled");
  must (nbdedup_pool_close (pool));
}

static void
test_only_when_asked (void)
{
  json_t *info;

  serve (0);
  info = try ("info", NULL, 0);
  if (!json_is_null (json_object_get (info, "sampler")))
    fatal ("there is a sampler without an interval");
  json_decref (info);
  must (nbdedup_pool_close (pool));
  open_pool ();
  info = try ("info", NULL, 0);
  if (!json_is_null (json_object_get (info, "sampler")))
    fatal ("there is a sampler without a server");
  json_decref (info);
  must (nbdedup_pool_close (pool));
}

/* A server that is always stopped before the interval ends samples as often as
 * any other.
 */
static void
test_restarts (void)
{
  size_t before, after;
  json_int_t last;
  json_t *document, *samples;
  uint64_t end;

  open_pool ();
  document = record ("silver@v1");
  last = json_integer_value (json_object_get (document, "time"));
  json_decref (document);
  before = nr_samples ("silver@v1");
  must (nbdedup_pool_close (pool));
  end = clock_ms () + 60000;
  do {
    serve (5);
    clock_sleep_ms (1500);
    after = nr_samples ("silver@v1");
    samples = samples_of ("silver@v1");
    document = json_array_get (samples, after - 1);
    if (after > before &&
        json_integer_value (json_object_get (document, "time")) < last + 5)
      fatal ("a sample was taken too early");
    json_decref (samples);
    must (nbdedup_pool_close (pool));
  } while (after == before && clock_ms () < end);
  if (after != before + 1)
    fatal ("%zu samples were taken", after - before);
}

static void
test_sampler_error (void)
{
  uint64_t end = clock_ms () + 60000;
  json_t *info;
  bool failed;

  sql ("UPDATE property SET value = 'nonsense' WHERE name = 'drift-keep'");
  serve (1);
  do {
    info = try ("info", NULL, 0);
    failed = json_is_string (
      json_object_get (json_object_get (info, "sampler"), "error"));
    json_decref (info);
    clock_sleep_ms (20);
  } while (!failed && clock_ms () < end);
  if (!failed || sampler_count ("samples") != 0)
    fatal ("a sampler that fails does not say so");
  run ("set",
       json_pack ("{s:s, s:s}", "property", "drift-keep", "value",
                  "all:forever"));
  wait_for_count ("samples", 1);
  wait_for_count ("skipped", 1);
  info = try ("info", NULL, 0);
  if (!json_is_null (
        json_object_get (json_object_get (info, "sampler"), "error")))
    fatal ("a sampler that succeeds has an error");
  json_decref (info);
  must (nbdedup_pool_close (pool));
}

/* The sampler ends soon, whatever it is doing. */
static void
test_close (void)
{
  struct rng rng = rng_make (seed_from_environment (), 1);
  uint64_t begin, ms, worst = 0;
  unsigned i;

  for (i = 0; i < 20; ++i) {
    serve (1);
    change ("another", 1000 + i);
    clock_sleep_ms (rng_below (&rng, 300));
    begin = clock_ms ();
    must (nbdedup_pool_close (pool));
    ms = clock_ms () - begin;
    if (ms > worst)
      worst = ms;
  }
  printf ("closing took %u ms at most\n", (unsigned) worst);
  if (worst > 10000)
    fatal ("closing takes long");
}

/* Make a small family and a large one.  The property is set so that it has a
 * row: see test_sampler_error.
 */
static void
make_families (void)
{
  make_golden ("silver", 2);
  run ("snapshot", json_pack ("{s:s}", "name", "silver@v1"));
  run ("clone", json_pack ("{s:s, s:s}", "snapshot", "silver@v1", "name", "s"));
  make_golden ("big", 5);
  run ("snapshot", json_pack ("{s:s}", "name", "big@v1"));
  run ("clone",
       json_pack ("{s:s, s:s, s:i}", "snapshot", "big@v1", "name",
                  "clone-of-big-", "count", 1000));
  run ("set",
       json_pack ("{s:s, s:s}", "property", "drift-keep", "value",
                  "all:12h,hourly:2d,daily:5d"));
  /* The copy would heal the page that test_damaged_page damages. */
  run ("set",
       json_pack ("{s:s, s:s}", "property", "metadata-copy", "value", "off"));
}

static atomic_uint nr_lines; /* of the log, about the damage */

static void
note_log (enum nbdedup_log_level level, const char *line)
{
  if (level == NBDEDUP_LOG_WARNING && strstr (line, "drift sample") &&
      strstr (line, "damaged page"))
    nr_lines++;
  else
    fprintf (stderr, "log: %s\n", line);
}

/* Flip one bit in the first page of the history. */
static void
flip_page (void)
{
  int64_t page = sql ("SELECT rootpage FROM sqlite_master"
                      " WHERE name = 'drift'");
  int64_t at = (page - 1) * sql ("PRAGMA page_size") + 100;
  char path[PATH_MAX + 16];
  FILE *f;
  int c;

  snprintf (path, sizeof path, "%s/pool.db", directory);
  f = fopen (path, "r+");
  if (f == NULL || fseek (f, at, SEEK_SET) != 0 || (c = getc (f)) == EOF ||
      fseek (f, at, SEEK_SET) != 0 || putc (c ^ 1, f) == EOF || fclose (f) != 0)
    fatal ("%s: %s", path, strerror (errno));
}

/* A damaged history is lost, but clients of the server notice nothing. */
static void
test_damaged_page (void)
{
  struct nbdedup_volume *v;
  uint8_t buf[4096];
  unsigned i;

  flip_page ();
  nbdedup_set_log (note_log);
  serve (1);
  for (i = 0; nr_lines == 0; ++i) {
    if (i == 3000)
      fatal ("gave up waiting for a line of the log");
    change ("clone-of-big-7", 1000 + i);
    clock_sleep_ms (20);
  }
  try ("drift", json_pack ("{s:s, s:b}", "name", "big@v1", "record", 1), EIO);
  v = open_volume ("clone-of-big-7");
  fill_random (buf, sizeof buf, 12345);
  must (nbdedup_volume_write (v, buf, sizeof buf, 0));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
  run ("create", json_pack ("{s:s, s:i}", "name", "after", "size", 1 << 20));
  if (nr_lines != 1)
    fatal ("the same was logged %u times", nr_lines);
  must (nbdedup_pool_close (pool));
  nbdedup_set_log (NULL);
  flip_page ();
}

int
main (void)
{
  history_begin ();
  make_families ();
  must (nbdedup_pool_close (pool));
  test_interval ();
  test_snapshots ();
  test_only_when_asked ();
  test_restarts ();
  test_sampler_error ();
  test_close ();
  test_damaged_page ();
  open_pool ();
  history_end ();
  return 0;
}
