/* SPDX-License-Identifier: BSD-3-Clause */

/* The history of drift: recorded samples come back, by golden image, also after
 * renames and destroys; they are thinned as "drift-keep" says; a pool from
 * before there was a history gets one; damage is found.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#include "core/engine.h"
#include "core/txg.h"
#include "data/volume-types.h"
#include "drift/history.h"
#include "format/retention.h"
#include "meta/meta.h"
#include "rigs/history-rig.h"
#include "volume/volume.h"

static void
expect_samples (const char *name, size_t nr)
{
  json_t *samples = samples_of (name);

  if (json_array_size (samples) != nr)
    fatal ("%s has %zu samples, expected %zu", name ? name : "the history",
           json_array_size (samples), nr);
  json_decref (samples);
}

/* Get the newest sample of each golden image.  'names' has the expected names,
 * with a blank after each.  If 'next' is NULL there must be no "next".
 */
static json_t *
newest (uint64_t after, const char *names, json_int_t *next)
{
  json_t *result = try ("drift-history",
                        json_pack ("{s:b, s:I}", "newest", 1, "after",
                                   (json_int_t) after),
                        0);
  json_t *samples = json_incref (json_object_get (result, "samples")), *s;
  json_t *more = json_object_get (result, "next");
  char found[200] = "";
  size_t i, len = 0;

  json_array_foreach (samples, i, s)
    len += (size_t) snprintf (found + len, sizeof found - len, "%s ",
                              json_string_value (
                                json_object_get (s, "golden")));
  if (strcmp (found, names) != 0)
    fatal ("the newest samples are of %s, expected %s", found, names);
  if ((more != NULL) != (next != NULL))
    fatal ("%s part has not been told", next ? "another" : "the last");
  if (next)
    *next = json_integer_value (more);
  json_decref (result);
  return samples;
}

static uint64_t
id_of (const char *snapshot)
{
  struct volume *s;

  WITH_LOCK (&pool->admin);
  s = volumes_find_snapshot (pool->volumes, snapshot);
  if (s == NULL)
    fatal ("%s", nbdedup_error ());
  return s->id;
}

static int64_t
closed_sql (const char *text)
{
  int64_t n;

  must (nbdedup_pool_close (pool));
  n = sql (text);
  open_pool ();
  return n;
}

/*----------------------------------------------------------------------
 * Old samples, written directly
 */

struct puts {
  const struct meta_sample *p;
  size_t nr;
};

static int
put_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  const struct puts *puts = arg;
  struct meta_sample s;
  size_t i;

  for (i = 0; i < puts->nr; ++i) {
    s = puts->p[i];
    s.id = state->next_id++;
    if (meta_sample_put (c, &s) == -1)
      return -1;
  }
  return 0;
}

/* Write a sample, with 'padding' bytes more than the minimum. */
static void
put_sample (const char *golden, uint64_t id, uint64_t time_s, size_t padding)
{
  char *filler = xcalloc (padding + 1, 1);
  struct meta_sample s = { .golden = id, .time = time_s };
  struct puts puts = { &s, 1 };
  json_t *document;
  char *text;

  memset (filler, 'x', padding);
  document = json_pack ("{s:s, s:I, s:s}", "golden", golden, "time",
                        (json_int_t) time_s, "filler", filler);
  text = json_dumps (document, JSON_COMPACT);
  s.data = (const uint8_t *) text;
  s.length = s.len = strlen (text);
  must (txg_run (pool->txg, put_in_transaction, NULL, &puts));
  free (text);
  free (filler);
  json_decref (document);
}

/*----------------------------------------------------------------------*/

static void
test_record (void)
{
  json_t *document, *plain, *all, *samples;

  expect_samples (NULL, 0);
  json_decref (newest (0, "", NULL));
  make_golden ("gold", 1);
  make_golden ("silver", 2);
  run ("snapshot", json_pack ("{s:s}", "name", "gold@v1"));
  run ("snapshot", json_pack ("{s:s}", "name", "silver@v1"));
  run ("clone",
       json_pack ("{s:s, s:s, s:i}", "snapshot", "gold@v1", "name", "g",
                  "count", 3));
  run ("clone", json_pack ("{s:s, s:s}", "snapshot", "silver@v1", "name", "s"));
  /* drift records only on request. */
  plain = try ("drift", json_pack ("{s:s}", "name", "gold@v1"), 0);
  expect_samples (NULL, 0);
  expect_samples ("gold@v1", 0);
  document = record ("gold@v1");
  json_object_del (plain, "time");
  samples = samples_of ("gold@v1");
  if (json_array_size (samples) != 1 ||
      !json_equal (json_array_get (samples, 0), document))
    fatal ("what was recorded does not come back");
  json_object_del (document, "time");
  if (!json_equal (document, plain))
    fatal ("drift says something else when it is recorded");
  json_decref (samples);
  json_decref (document);
  json_decref (plain);

  all = record (NULL);
  if (json_array_size (json_object_get (all, "goldens")) != 2)
    fatal ("not both golden images are recorded");
  expect_samples ("gold@v1", 2);
  expect_samples ("silver@v1", 1);
  samples = samples_of (NULL);
  if (json_array_size (samples) != 3 ||
      !json_equal (json_array_get (samples, 1),
                   json_array_get (json_object_get (all, "goldens"), 0)))
    fatal ("the samples of all are not in the order of recording");
  json_decref (samples);
  json_decref (all);

  try ("drift", json_pack ("{s:s, s:b}", "name", "gold@v2", "record", 1),
       ENOENT);
  try ("drift-history", json_pack ("{s:s}", "name", "gold@v2"), ENOENT);
  try ("drift-history", json_pack ("{s:s}", "name", "gold"), EINVAL);
  try ("drift-history", json_pack ("{s:s}", "after", "x"), EINVAL);
  expect_samples (NULL, 3);
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
test_interrupted (void)
{
  if (history_drift (pool, (struct drift_golden) { NULL, 0 }, 0, true,
                     stop_at_once, NULL) != NULL ||
      errno != EINTR)
    fatal ("drift was not interrupted");
  if (history_get (pool, (struct drift_golden) { NULL, 0 }, 0, stop_at_once,
                   NULL) != NULL ||
      errno != EINTR || history_newest (pool, 0, stop_at_once, NULL) != NULL ||
      errno != EINTR)
    fatal ("drift-history was not interrupted");
  expect_samples (NULL, 3);
}

/* The samples of an id are those of that image, whatever it was called. */
static void
expect_samples_of_id (uint64_t id, size_t nr)
{
  json_t *result = try ("drift-history",
                        json_pack ("{s:I}", "id", (json_int_t) id), 0);
  json_t *samples = json_object_get (result, "samples"), *s;
  size_t i;

  if (json_array_size (samples) != nr)
    fatal ("snapshot %" PRIu64 " has %zu samples, expected %zu", id,
           json_array_size (samples), nr);
  json_array_foreach (samples, i, s)
    if ((uint64_t) json_integer_value (json_object_get (s, "golden_id")) != id)
      fatal ("a sample of snapshot %" PRIu64 " has another id", id);
  json_decref (result);
}

/* Samples belong to an id, because names change. */
static void
test_names (void)
{
  json_t *samples, *last;

  samples = samples_of ("gold@v1");
  run ("rename", json_pack ("{s:s, s:s}", "old", "gold", "new", "brass"));
  expect_samples ("brass@v1", 2);
  /* The newest is the last one, but for the name. */
  last = newest (0, "brass@v1 silver@v1 ", NULL);
  json_object_set_new (json_array_get (samples, 1), "golden",
                       json_string ("brass@v1"));
  if (!json_equal (json_array_get (last, 0), json_array_get (samples, 1)))
    fatal ("the newest sample is not the last one of the history");
  json_decref (last);
  json_decref (samples);
  try ("drift-history",
       json_pack ("{s:b, s:s}", "newest", 1, "name", "brass@v1"), EINVAL);
  try ("drift-history", json_pack ("{s:s}", "name", "iron@v1"), ENOENT);
  json_decref (record ("brass@v1"));
  /* Another golden image takes the old name. */
  make_golden ("gold", 3);
  run ("snapshot", json_pack ("{s:s}", "name", "gold@v1"));
  expect_samples ("gold@v1", 0);
  expect_samples ("brass@v1", 3);
  json_decref (record ("gold@v1"));
  expect_samples ("gold@v1", 1);
  expect_samples_of_id (id_of ("gold@v1"), 1);
  expect_samples_of_id (id_of ("brass@v1"), 3);
  expect_samples_of_id (1000000, 0);
  try ("drift-history", json_pack ("{s:b, s:i}", "newest", 1, "id", 1), EINVAL);
  try ("drift-history", json_pack ("{s:s, s:i}", "name", "gold@v1", "id", 1),
       EINVAL);
  /* A snapshot without clones is no golden image. */
  json_decref (newest (0, "brass@v1 silver@v1 ", NULL));

  run ("destroy",
       json_pack ("{s:s, s:b, s:b, s:b}", "name", "gold", "recursive", 1,
                  "force", 1, "wait", 1));
  run ("destroy",
       json_pack ("{s:s, s:b, s:b, s:b}", "name", "brass", "recursive", 1,
                  "force", 1, "wait", 1));
  /* No clone remembers the second gold, so its name is looked up in the
   * documents, of which two are of brass.  Clones remember brass.
   */
  expect_samples ("gold@v1", 3);
  expect_samples ("brass@v1", 3);
  expect_samples ("brass@v1 (destroyed)", 3);
  expect_samples (NULL, 5);
  json_decref (newest (0, "brass@v1 (destroyed) silver@v1 ", NULL));
  json_decref (record ("brass@v1"));
  expect_samples ("brass@v1", 4);
  must (nbdedup_pool_close (pool));
  open_pool ();
  expect_samples (NULL, 6);
  samples = samples_of ("silver@v1");
  if (json_array_size (samples) != 1)
    fatal ("the history is not what it was before the pool was closed");
  json_decref (samples);
}

/*----------------------------------------------------------------------
 * Thinning
 */

static void
test_thinned (void)
{
  const uint64_t now = (uint64_t) time (NULL), hour = 3600;
  enum { NR = 200 };
  struct retention_sample t[NR + 1];
  struct retention_policy policy;
  uint64_t golden = id_of ("silver@v1"), other;
  size_t i, left = 0;
  json_t *samples, *value;
  const char *keep;

  value = try ("get", json_pack ("{s:s}", "property", "drift-keep"), 0);
  keep = json_string_value (
    json_object_get (json_object_get (value, "properties"), "drift-keep"));
  if (strcmp (keep, RETENTION_DEFAULT))
    fatal ("drift-keep is not the default");
  json_decref (value);
  try ("set",
       json_pack ("{s:s, s:s}", "property", "drift-keep", "value",
                  "all:1d,hourly:1d"),
       EINVAL);
  run ("set",
       json_pack ("{s:s, s:s}", "property", "drift-keep", "value",
                  "all:12h,hourly:2d,daily:5d"));

  /* Every 50 minutes for 7 days; another golden image keeps its samples. */
  run ("snapshot", json_pack ("{s:s}", "name", "silver@v2"));
  other = id_of ("silver@v2");
  must (retention_policy_parse ("all:12h,hourly:2d,daily:5d", &policy));
  closed_sql ("DELETE FROM drift");
  for (i = 0; i < NR; ++i) {
    t[i] = (struct retention_sample) {
      .id = i,
      .time = now - 7 * 24 * hour + i * 50 * 60,
    };
    put_sample ("silver@v1", golden, t[i].time, 10);
    put_sample ("silver@v2", other, t[i].time, 10);
  }
  expect_samples ("silver@v1", NR);
  json_decref (record ("silver@v1"));
  samples = samples_of ("silver@v1");
  t[NR] = (struct retention_sample) { .id = NR, .asked = true };
  t[NR].time = (uint64_t) json_integer_value (
    json_object_get (json_array_get (samples, json_array_size (samples) - 1),
                     "time"));
  retention_apply (&policy, t[NR].time, t, NR + 1);
  for (i = 0; i <= NR; ++i)
    if (!t[i].drop) {
      if ((uint64_t) json_integer_value (
            json_object_get (json_array_get (samples, left), "time")) !=
          t[i].time)
        fatal ("sample %zu that is left is of another time", left);
      left++;
    }
  if (left != json_array_size (samples) || left > 80 || left < 50)
    fatal ("%zu samples are left, expected %zu", json_array_size (samples),
           left);
  expect_samples ("silver@v2", NR);
  json_decref (samples);
}

/* The sample that was recorded last comes last, whatever its time. */
static void
test_clock_set_back (void)
{
  uint64_t golden = id_of ("silver@v2"), last;
  uint64_t future = (uint64_t) time (NULL) + 86400;
  json_t *samples;
  size_t n;

  put_sample ("silver@v2", golden, future, 0);
  json_decref (record ("silver@v2"));
  samples = samples_of ("silver@v2");
  n = json_array_size (samples);
  if (n < 2 ||
      (uint64_t) json_integer_value (
        json_object_get (json_array_get (samples, n - 2), "time")) != future ||
      (uint64_t) json_integer_value (
        json_object_get (json_array_get (samples, n - 1), "time")) >= future)
    fatal ("samples are not told in the order in which they were recorded");
  json_decref (samples);
  if (history_last (pool, golden, &last) != 1 || last >= future)
    fatal ("the last sample is not the newest");
  if (history_last (pool, 999999, &last) != 0)
    fatal ("a snapshot that does not exist has a sample");
}

/*----------------------------------------------------------------------
 * Large documents, long histories
 */

static void
test_large (void)
{
  json_t *document, *samples;

  make_golden ("big", 5);
  run ("snapshot", json_pack ("{s:s}", "name", "big@v1"));
  run ("clone",
       json_pack ("{s:s, s:s, s:i}", "snapshot", "big@v1", "name",
                  "clone-of-big-", "count", 1000));
  document = record ("big@v1");
  samples = samples_of ("big@v1");
  if (!json_equal (json_array_get (samples, 0), document))
    fatal ("a large document does not come back");
  json_decref (samples);
  json_decref (document);
  if (closed_sql ("SELECT count(*) FROM drift WHERE codec = 1 AND"
                  " length > 100000 AND length (data) < length / 4") != 1)
    fatal ("a large document is not compressed");
}

static void
test_parts (void)
{
  enum { NR = 45 };
  uint64_t golden = id_of ("big@v1"), after = 0, expected = 1;
  unsigned parts = 0;
  json_t *result, *samples, *s;
  json_int_t next;
  size_t i;

  closed_sql ("DELETE FROM drift");
  for (i = 1; i <= NR; ++i) {
    put_sample ("big@v1", golden, i, 1 << 20);
    put_sample ("silver@v1", id_of ("silver@v1"), i, 10);
  }
  do {
    result = try ("drift-history",
                  json_pack ("{s:s, s:I}", "name", "big@v1", "after",
                             (json_int_t) after),
                  0);
    samples = json_object_get (result, "samples");
    if (json_array_size (samples) > 17)
      fatal ("a part has %zu MiB", json_array_size (samples));
    json_array_foreach (samples, i, s)
      if ((uint64_t) json_integer_value (json_object_get (s, "time")) !=
          expected++)
        fatal ("part %u: a sample is missing", parts);
    after = (uint64_t) json_integer_value (json_object_get (result, "next"));
    json_decref (result);
    parts++;
  } while (after != 0);
  if (parts != 3 || expected != NR + 1)
    fatal ("%u parts, and %" PRIu64 " samples", parts, expected - 1);

  put_sample ("silver@v1", id_of ("silver@v1"), NR + 1, 20 << 20);
  json_decref (newest (0, "silver@v1 ", &next));
  result = newest ((uint64_t) next, "big@v1 ", NULL);
  if (json_integer_value (
        json_object_get (json_array_get (result, 0), "time")) != NR)
    fatal ("the newest sample in another part is not the newest");
  json_decref (result);
}

/*----------------------------------------------------------------------
 * Older pools, damage
 */

static void
test_made_before (void)
{
  closed_sql ("DROP TABLE drift");
  if (closed_sql ("SELECT count(*) FROM sqlite_schema WHERE name IN"
                  " ('drift', 'drift_golden')") != 2)
    fatal ("a pool without the table was not given one");
  expect_samples (NULL, 0);
  json_decref (record ("silver@v1"));
  must (nbdedup_pool_close (pool));
  open_pool ();
  expect_samples ("silver@v1", 1);
  if (check_errors () != 0)
    fatal ("check found errors in a pool that was given a history");
}

static void
test_damage (void)
{
  static const char *const damages[] = {
    "UPDATE drift SET length = length + 1",
    "UPDATE drift SET length = 0",
    "UPDATE drift SET length = -1",
    "UPDATE drift SET codec = 9",
    "UPDATE drift SET codec = 1 - codec",
    "UPDATE drift SET codec = 4294967296 + codec",
    "UPDATE drift SET data = x''",
    "UPDATE drift SET codec = 0, length = 3, data = x'5b315d'",
    "UPDATE drift SET codec = 0, length = 3, data = x'7b317d'",
    "UPDATE drift SET time = time + 1",
  };
  size_t i;

  for (i = 0; i < sizeof damages / sizeof damages[0]; ++i) {
    closed_sql ("DELETE FROM drift");
    json_decref (record ("silver@v1"));
    json_decref (record ("silver@v2"));
    if (check_errors () != 0)
      fatal ("check found errors");
    closed_sql (damages[i]);
    try ("drift-history", json_pack ("{s:s}", "name", "silver@v1"), EIO);
    if (strstr (nbdedup_error (), "pool.db: the drift sample") == NULL)
      fatal ("%s: %s", damages[i], nbdedup_error ());
    if (check_errors () != 2)
      fatal ("%s: check does not find it", damages[i]);
  }
  closed_sql ("UPDATE drift SET codec = 0, length = 25, golden = 1 << 40,"
              " time = 5,"
              " data = CAST ('{\"golden\":\"x@y\",\"time\":5}' AS BLOB)");
  if (check_errors () != 2)
    fatal ("check does not find samples of snapshots that never were");
  closed_sql ("DELETE FROM drift");
  if (check_errors () != 0)
    fatal ("check found errors at the end");
}

int
main (void)
{
  history_begin ();
  test_record ();
  test_interrupted ();
  test_names ();
  test_thinned ();
  test_clock_set_back ();
  test_large ();
  test_parts ();
  test_made_before ();
  test_damage ();
  history_end ();
  return 0;
}
