/* SPDX-License-Identifier: BSD-3-Clause */

/* Alerts of several golden images in one report: a sample of one changes
 * nothing for the others; what is destroyed leaves the report; a report that is
 * damaged costs only what it said, until the next sample.
 */

#include <config.h>

#include "rigs/history-rig.h"

/* Ask for the alerts: "golden kind" of each, in order. */
static void
expect_alerts (const char *expected)
{
  json_t *result = try ("drift-alerts", NULL, 0), *alert;
  char found[1024] = "";
  size_t i;

  json_array_foreach (json_object_get (result, "alerts"), i, alert) {
    const size_t len = strlen (found);

    snprintf (found + len, sizeof found - len, "%s%s %s", len ? ", " : "",
              json_string_value (json_object_get (alert, "golden")),
              json_string_value (json_object_get (alert, "kind")));
  }
  json_decref (result);
  if (strcmp (found, expected) != 0)
    fatal ("alerts '%s', not '%s'", found, expected);
}

static void
set (const char *property, const char *value, const char *name)
{
  run ("set",
       json_pack ("{s:s, s:s, s:s*}", "property", property, "value", value,
                  "name", name));
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

/* A golden image with one clone, which gets 64 KiB of its own. */
static void
make_fleet (const char *volume, const char *snapshot, const char *clone,
            uint64_t fill)
{
  uint8_t buf[65536];
  struct nbdedup_volume *v;

  make_golden (volume, fill);
  run ("snapshot", json_pack ("{s:s}", "name", snapshot));
  run ("clone", json_pack ("{s:s, s:s}", "snapshot", snapshot, "name", clone));
  v = nbdedup_volume_open (pool, clone, 0, -1, NULL);
  if (v == NULL)
    fatal ("%s", nbdedup_error ());
  fill_random (buf, sizeof buf, fill + 1000);
  must (nbdedup_volume_write (v, buf, sizeof buf, 0));
  nbdedup_volume_close (v);
}

static void
test_others (void)
{
  make_fleet ("gold", "gold@v1", "g1", 1);
  make_fleet ("iron", "iron@v1", "i1", 2);
  set ("drift-alert-ratio", "3", NULL);
  json_decref (record ("gold@v1"));
  expect_alerts ("gold@v1 ratio");
  json_decref (record ("iron@v1"));
  expect_alerts ("iron@v1 ratio, gold@v1 ratio");
  set ("drift-alert-unique", "65535", "g1");
  expect_alerts ("gold@v1 ratio, gold@v1 unique, iron@v1 ratio");
  set ("drift-alert-unique", "65536", "g1");
  expect_alerts ("gold@v1 ratio, iron@v1 ratio");
  must (nbdedup_pool_close (pool));
  open_pool ();
  expect_alerts ("gold@v1 ratio, iron@v1 ratio");
}

static void
test_damage (void)
{
  static const char *const damages[] = {
    "UPDATE report SET value = '[1]' WHERE name = 'drift-alerts'",
    "UPDATE report SET value = '{\"alerts\":' WHERE name = 'drift-alerts'",
    "UPDATE report SET value = '{\"alerts\":7}' WHERE name = 'drift-alerts'",
    "UPDATE report SET value = '{\"alerts\":[7,{},{\"kind\":\"ratio\"},null]}'"
    " WHERE name = 'drift-alerts'",
    "UPDATE report SET value = replace (value, '\"golden\":', '\"golden\":9')"
    " WHERE name = 'drift-alerts'",
    "UPDATE report SET value = replace (value, 'ratio', '') WHERE"
    " name = 'drift-alerts'",
    "DELETE FROM report",
  };
  size_t i;

  for (i = 0; i < sizeof damages / sizeof damages[0]; ++i) {
    closed_sql (damages[i]);
    expect_alerts ("");
    json_decref (try ("status", NULL, 0));
    json_decref (record ("iron@v1"));
    expect_alerts ("iron@v1 ratio");
    json_decref (record (NULL));
    expect_alerts ("gold@v1 ratio, iron@v1 ratio");
  }
  if (check_errors () != 0)
    fatal ("check found errors");
}

static void
test_destroyed (void)
{
  run ("destroy", json_pack ("{s:s}", "name", "g1"));
  expect_alerts ("iron@v1 ratio");
  json_decref (record ("iron@v1"));
  if (closed_sql ("SELECT json_array_length (value, '$.alerts') FROM report"
                  " WHERE name = 'drift-alerts'") != 1)
    fatal ("the report keeps what is destroyed");
}

int
main (void)
{
  history_begin ();
  test_others ();
  test_damage ();
  test_destroyed ();
  history_end ();
  return 0;
}
