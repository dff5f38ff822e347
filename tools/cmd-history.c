/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>
#include <time.h>

#include "base/cleanup.h"
#include "tools.h"

/* Scripts get UTC in the form of ISO 8601, people their own time. */
static json_t *
utc_time (time_t seconds)
{
  char text[64];
  struct tm tm;

  if (gmtime_r (&seconds, &tm) == NULL ||
      strftime (text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
    return json_null ();
  return json_string (text);
}

static const char *
local_time (time_t seconds, char buf[64])
{
  struct tm tm;

  if (localtime_r (&seconds, &tm) == NULL ||
      strftime (buf, 64, "%Y-%m-%d %H:%M:%S", &tm) == 0)
    return "-";
  return buf;
}

static void
print_as_json (json_t *result)
{
  json_t *event;
  size_t i;

  json_array_foreach (json_object_get (result, "history"), i, event) {
    json_object_set_new (event, "time",
                         check_memory (
                           utc_time ((time_t) json_size (event, "time"))));
    if (json_object_get (event, "begun"))
      json_object_set_new (event, "begun",
                           check_memory (
                             utc_time ((time_t) json_size (event, "begun"))));
  }
  print_json (result);
}

/* The fields that have no column of their own. */
static char *
other_fields (json_t *event)
{
  static const char *const columns[] = { "event", "by", "uid", "pid" };
  const struct nbdedup_event rest = { .message = "", .fields = event };
  size_t i;

  for (i = 0; i < sizeof columns / sizeof columns[0]; ++i)
    json_object_del (event, columns[i]);
  return check_memory (nbdedup_event_line (&rest));
}

static void
add_event (struct table *table, json_t *event)
{
  const json_t *uid = json_object_get (event, "uid");
  CLEANUP_FREE char *fields = NULL;
  char buf[64];

  table_add (table, "%s", local_time ((time_t) json_size (event, "time"), buf));
  if (uid && !json_object_get (event, "by"))
    table_add (table, "%" JSON_INTEGER_FORMAT, json_integer_value (uid));
  else
    table_add (table, "%s", json_text (event, "by"));
  table_add (table, "%s", json_text (event, "event"));
  fields = other_fields (event);
  table_add (table, "%s", fields);
}

static void
print_as_table (const json_t *result)
{
  const json_t *history = json_object_get (result, "history");
  struct table *table;
  json_t *event;
  size_t i;

  if (json_array_size (history) == 0)
    return;
  table = table_new ("llll");
  table_add (table, "TIME");
  table_add (table, "BY");
  table_add (table, "EVENT");
  table_add (table, "FIELDS");
  json_array_foreach (history, i, event)
    add_event (table, event);
  table_print (table);
}

int
cmd_history (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool };
  json_t *result;

  options_parse (&opts, argc, argv, NULL, NULL, "",
                 "Show the events that have changed the pool, oldest first: "
                 "commands with the user who asked for them, recoveries, "
                 "damage and scrubs. The pool keeps the newest 10,000.",
                 OPTIONS_READS | OPTIONS_JSON);
  result = run (&opts, NULL);
  if (result == NULL)
    return EXIT_FAILURE;
  if (json_is_true (json_object_get (result, "incomplete")))
    note ("history: a part cannot be read, because pool.db is damaged: run "
          "nbdedup check --repair, or nbdedup scrub");
  if (opts.json)
    print_as_json (result);
  else
    print_as_table (result);
  json_decref (result);
  return EXIT_SUCCESS;
}
