/* SPDX-License-Identifier: BSD-3-Clause */

/* What the log and the pool's history say about a scrub.  A command prints its
 * own result, so only a server logs the damage that its scrubs find.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/damage.h"
#include "report/scrub-int.h"

/* Damaged places to log, and to keep in the history. */
#define PLACES_MAX 5

void
scrub_tell_begun (const struct scrub *s)
{
  const bool scheduled = s->args->scheduled;

  events_post (s->pool->events, NBDEDUP_LOG_INFO,
               event_new ("scrub-begun", "{s:b, s:b, s:b}", "scheduled",
                          scheduled, "again", s->args->again, "continues",
                          s->next_group > 0),
               "a %sscrub %s%s", scheduled ? "scheduled " : "",
               s->next_group > 0 ? "continues" : "begins",
               scheduled ? " (scrub-interval)" : "");
}

static json_int_t
number (const json_t *result, const char *key)
{
  return json_integer_value (json_object_get (result, key));
}

static void
tell_places (const struct scrub *s, const json_t *result)
{
  const json_t *places = json_object_get (result, "damaged"), *p;
  struct damage_place place;
  char what[128];
  json_int_t heirs;
  size_t i;

  json_array_foreach (places, i, p) {
    if (i == PLACES_MAX)
      break;
    place = damage_place_of (p);
    heirs = number (p, "heirs");
    snprintf (what, sizeof what,
              "are damaged, inherited by %" JSON_INTEGER_FORMAT
              " volume%s or snapshot%s",
              heirs, heirs == 1 ? "" : "s", heirs == 1 ? "" : "s");
    damage_tell (s->pool->events, &place, "scrub",
                 heirs == 0 ? "are damaged" : what, DAMAGE_LOG);
  }
  if (json_array_size (places) > PLACES_MAX)
    events_post (s->pool->events, NBDEDUP_LOG_ERROR,
                 event_new ("damage", "{s:s, s:I}", "found", "scrub", "places",
                            (json_int_t) json_array_size (places)),
                 "%zu other places are damaged: \"nbdedup scrub\" lists them "
                 "all",
                 json_array_size (places) - PLACES_MAX);
}

/* The figures of the result, and the first places. */
static json_t *
make_event (const struct scrub *s, const json_t *result, const char *outcome)
{
  CLEANUP_JSON json_t *fields = json_pack ("{s:s, s:b, s:b, s:I}", "outcome",
                                           outcome, "scheduled",
                                           (int) s->args->scheduled, "again",
                                           (int) s->args->again, "begun",
                                           (json_int_t) s->f.begun);
  CLEANUP_JSON json_t *places = json_deep_copy (
    json_object_get (result, "damaged"));
  const char *key;
  json_t *value;
  size_t i;

  if (fields == NULL)
    return NULL;
  json_object_foreach ((json_t *) result, key, value)
    if (json_is_integer (value))
      json_object_set (fields, key, value);
  while (json_array_size (places) > PLACES_MAX)
    json_array_remove (places, json_array_size (places) - 1);
  json_array_foreach (places, i, value) {
    json_object_del (value, "heirs");
    json_object_del (value, "inherited_by");
  }
  if (json_array_size (places) > 0)
    json_object_set (fields, "damaged", places);
  return event_new ("scrub-ended", "O", fields);
}

static void
post_result (const struct scrub *s, json_t *event, const json_t *result)
{
  const json_int_t summaries = number (result, "summary_errors");
  const json_int_t repaired = number (result, "repaired_records");
  const json_int_t errors = number (result, "errors") - summaries;
  enum nbdedup_log_level level = errors > 0 ? NBDEDUP_LOG_ERROR
    : repaired + summaries > 0              ? NBDEDUP_LOG_WARNING
                                            : NBDEDUP_LOG_INFO;

  if (events_has_thread (s->pool->events))
    tell_places (s, result);
  else
    level = NBDEDUP_LOG_INFO;
  events_post (s->pool->events, level, event,
               "the scrub has ended: %" JSON_INTEGER_FORMAT " records "
               "verified, %" JSON_INTEGER_FORMAT
               " errors, %" JSON_INTEGER_FORMAT
               " records and %" JSON_INTEGER_FORMAT " summaries written again",
               number (result, "records"), errors, repaired, summaries);
}

static void
post_failure (const struct scrub *s, json_t *event, const char *why)
{
  const bool interrupted = errno == EINTR;

  if (event && !interrupted)
    json_object_set_new (event, "error", nbdedup_json_text (why));
  if (interrupted)
    events_post (s->pool->events, NBDEDUP_LOG_INFO, event,
                 "the scrub was interrupted");
  else
    events_post (s->pool->events,
                 s->args->scheduled ? NBDEDUP_LOG_WARNING : NBDEDUP_LOG_INFO,
                 event, "the scrub failed%s: %s",
                 s->args->scheduled ? ", and the server will try again" : "",
                 why);
}

void
scrub_tell_ended (const struct scrub *s, const json_t *result)
{
  const int err = errno;
  json_t *event = make_event (s, result,
                              result           ? "done"
                                : err == EINTR ? "interrupted"
                                               : "failed");
  char why[512];

  snprintf (why, sizeof why, "%s", nbdedup_error ());
  if (!scrub_is_readonly (s))
    events_keep (s->pool->events, event);
  errno = err;
  if (result)
    post_result (s, event, result);
  else
    post_failure (s, event, why);
  events_flush (s->pool->events);
  if (result == NULL)
    nbdedup_fail (err, "%s", why);
}
