/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/events.h"
#include "data/volume-types.h"
#include "format/format.h"
#include "service/command.h"
#include "service/service-event.h"

/* Names in one event: those of a command that takes many. */
#define NAMES_MAX 16

void
opened_event (struct nbdedup_pool *pool, uint64_t begin_ns)
{
  const double seconds = (double) (clock_ns () - begin_ns) / 1e9;
  const bool read_only = pool->settings.read_only != NBDEDUP_READ_ONLY_OFF;
  size_t volumes;

  {
    WITH_LOCK (&pool->volumes->lock);
    volumes = pool->volumes->list.nr;
  }
  events_post (pool->events, NBDEDUP_LOG_INFO,
               event_new ("opened", "{s:s, s:f, s:b, s:I}", "version",
                          PACKAGE_VERSION, "seconds", seconds, "read_only",
                          read_only, "volumes", (json_int_t) volumes),
               "opened%s in %.1f s", read_only ? " read-only" : "", seconds);
}

/*----------------------------------------------------------------------
 * Commands
 */

enum when {
  WITHIN, /* the one transaction that changes the pool */
  AFTER,  /* with the figures of the result */
  LONG,   /* the same; an interrupted one did a part */
};

struct event_kind {
  const char *command;
  enum when when;
};

static const struct event_kind kinds[] = {
  { "create", WITHIN },   { "rename", WITHIN }, { "destroy", WITHIN },
  { "snapshot", WITHIN }, { "clone", WITHIN },  { "rollback", WITHIN },
  { "set", AFTER },       { "resize", AFTER },  { "rebase", AFTER },
  { "check", LONG },      { "compact", LONG },  { "prune", LONG },
  { "rewrite", LONG },
};

static const struct event_kind *
find_kind (const char *command, json_t *args)
{
  size_t i;

  if (command_changes (command, args))
    for (i = 0; i < sizeof kinds / sizeof kinds[0]; ++i)
      if (strcmp (kinds[i].command, command) == 0)
        return &kinds[i];
  return NULL;
}

/* The last of the commands that an import consists of tells of it. */
static const char *
event_name (const struct command_event *ce)
{
  return json_object_get (ce->args, "imported") ? "import" : ce->kind->command;
}

/* The argument that is the name of the volume, or of a snapshot. */
static bool
is_name (const char *event, const char *arg)
{
  return strcmp (arg, "name") == 0 ||
    strcmp (arg, strcmp (event, "import") == 0 ? "new" : "old") == 0;
}

/* The argument that the event calls otherwise. */
static const char *
field_name (const char *command, const char *arg)
{
  static const char *const names[][3] = {
    { "rename", "new", "to" },          { "import", "old", "from" },
    { "import", "imported", "bytes" },  { "clone", "snapshot", "origin" },
    { "rebase", "snapshot", "origin" },
  };
  size_t i;

  for (i = 0; i < sizeof names / sizeof names[0]; ++i)
    if (strcmp (names[i][0], command) == 0 && strcmp (names[i][1], arg) == 0)
      return names[i][2];
  return arg;
}

static void
add_names (json_t *event, const json_t *names)
{
  const size_t nr = json_array_size (names);
  json_t *first = json_array ();
  size_t i;

  for (i = 0; i < nr && i < NAMES_MAX; ++i)
    json_array_append (first, json_array_get (names, i));
  json_object_set_new (event, "names", first);
  if (nr > NAMES_MAX)
    json_object_set_new (event, "more_names",
                         json_integer ((json_int_t) (nr - NAMES_MAX)));
}

/* Keys of fields have underscores, as those of results. */
static void
add_field (json_t *event, const char *name, json_t *value)
{
  char key[64];
  char *p;

  snprintf (key, sizeof key, "%s", name);
  for (p = key; *p; ++p)
    if (*p == '-')
      *p = '_';
  json_object_set (event, key, value);
}

static void
add_arg (json_t *event, const char *command, const char *arg, json_t *value)
{
  if (json_array_size (value) == 1) {
    value = json_array_get (value, 0);
    arg = "name";
  }
  if (json_array_size (value) > 1)
    add_names (event, value);
  else if (json_is_string (value) && is_name (command, arg))
    event_add_name (event, json_string_value (value));
  else if (!json_is_null (value))
    add_field (event, field_name (command, arg), value);
}

/* The arguments and the figures of the result; NULL: no memory. */
static json_t *
make_event (const struct command_event *ce, const json_t *result,
            const char *outcome)
{
  CLEANUP_JSON json_t *fields = json_object ();
  const char *key;
  json_t *value;

  if (fields == NULL)
    return NULL;
  json_object_foreach (ce->args, key, value)
    add_arg (fields, event_name (ce), key, value);
  if (outcome)
    json_object_set_new (fields, "outcome", json_string (outcome));
  json_object_foreach ((json_t *) result, key, value)
    if (json_is_integer (value))
      json_object_set (fields, key, value);
  return event_new (event_name (ce), "O", fields);
}

void
command_event_begin (struct command_event *ce, struct nbdedup_pool *pool,
                     const char *command, json_t *args)
{
  *ce = (struct command_event) {
    .pool = pool,
    .kind = find_kind (command, args),
    .args = args,
  };
  /* Monitoring must not wait for a directory of users. */
  if (ce->kind || strcmp (command, "scrub") == 0)
    event_find_asker ();
  if (ce->kind == NULL || ce->kind->when != WITHIN)
    return;
  ce->event = make_event (ce, NULL, NULL);
  ce->kept.text = ce->text = events_text_of (ce->event);
  txg_set_event (&ce->kept);
}

/* A command without a transaction of its own for the event. */
static void
tell_after (struct command_event *ce, int r, const json_t *result)
{
  if (r == -1 && (ce->kind->when != LONG || errno != EINTR))
    return;
  ce->event = make_event (ce, result, r == 0 ? NULL : "interrupted");
  events_keep (ce->pool->events, ce->event);
  events_flush (ce->pool->events);
  event_log (NBDEDUP_LOG_INFO, ce->pool->path, ce->event, NULL);
}

void
command_event_end (struct command_event *ce, int r, const json_t *result)
{
  const int err = errno;
  char text[1024];

  if (ce->kind == NULL)
    return;
  txg_set_event (NULL);
  snprintf (text, sizeof text, "%s", nbdedup_error ());
  if (ce->kind->when != WITHIN)
    tell_after (ce, r, result);
  else if (r == 0 || ce->kept.taken)
    event_log (NBDEDUP_LOG_INFO, ce->pool->path, ce->event, NULL);
  json_decref (ce->event);
  free (ce->text);
  if (r == -1)
    nbdedup_fail (err, "%s", text);
}
