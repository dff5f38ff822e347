/* SPDX-License-Identifier: BSD-3-Clause */

/* The report is {"alerts": [ALERT...]}, an ALERT {"kind", "golden" (an id),
 * "clone" (an id; 0: the fleet), "value", "threshold", "since"}.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/events.h"
#include "core/pool-property.h"
#include "core/txg.h"
#include "drift/alert.h"
#include "drift/clone-set.h"
#include "drift/history.h"
#include "meta/meta.h"

#define REPORT "drift-alerts"
#define WEEK_S (7 * 86400)

struct alert_update {
  struct nbdedup_pool *pool; /* not owned */
  double ratio;              /* thresholds; 0: none */
  uint64_t growth;           /* UINT64_MAX: none */
  json_t *goldens;           /* owned; ids of those that were added */
  json_t *found;             /* owned; their alerts */
  json_t *raised, *cleared;  /* owned; of the last alert_update_put */
};

/*----------------------------------------------------------------------
 * Names
 */

struct alert_place {
  char golden[VOLUME_LABEL_MAX];
  char clone[META_NAME_MAX + 1]; /* "": the fleet */
};

static uint64_t
id_in (const json_t *alert, const char *key)
{
  return (uint64_t) json_integer_value (json_object_get (alert, key));
}

/* The present names.  False: it does not exist any more. */
static bool
find_place (struct nbdedup_pool *pool, const struct clone_set *sets, size_t nr,
            const json_t *alert, struct alert_place *place)
{
  const uint64_t golden = id_in (alert, "golden"), id = id_in (alert, "clone");
  struct volumes *vs = pool->volumes;
  size_t i;

  for (i = 0; i < nr && sets[i].golden != golden; ++i)
    ;
  if (i == nr)
    return false;
  snprintf (place->golden, sizeof place->golden, "%s", sets[i].label);
  place->clone[0] = '\0';
  if (id == 0)
    return true;
  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i)
    if (vs->list.p[i]->id == id) {
      snprintf (place->clone, sizeof place->clone, "%s", vs->list.p[i]->name);
      return true;
    }
  return false;
}

/*----------------------------------------------------------------------
 * Texts
 */

static const char *
describe_bytes (double bytes, char buf[32])
{
  static const char *const units[] = {
    "bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB",
  };
  unsigned i;

  for (i = 0; bytes >= 1024 && i < 6; ++i)
    bytes /= 1024;
  snprintf (buf, 32, "%.*f %s", i == 0 || bytes >= 100 ? 0 : 1, bytes,
            units[i]);
  return buf;
}

/* " (destroyed)" needs quotes in a shell. */
static void
describe_command (const char *golden, char *buf, size_t len)
{
  const char *quote = strchr (golden, ' ') ? "'" : "";

  snprintf (buf, len, "nbdedup drift %s%s%s", quote, golden, quote);
}

static void
describe (const json_t *alert, const struct alert_place *place, char *buf,
          size_t len)
{
  const char *kind = json_string_value (json_object_get (alert, "kind"));
  const double value = json_number_value (json_object_get (alert, "value"));
  const double limit = json_number_value (json_object_get (alert, "threshold"));
  char a[32], b[32];

  assert (kind != NULL); /* read_report leaves out what is no alert */
  if (strcmp (kind, "ratio") == 0)
    snprintf (buf, len,
              "%s: the dedup ratio %.2f is below " ALERT_RATIO " (%g)",
              place->golden, value, limit);
  else if (strcmp (kind, "growth") == 0)
    snprintf (buf, len,
              "%s: image and clones have grown by %s in a week, more "
              "than " ALERT_GROWTH " (%s)",
              place->golden, describe_bytes (value, a),
              describe_bytes (limit, b));
  else
    snprintf (buf, len, "%s: %s are unique, more than " ALERT_UNIQUE " (%s)",
              place->clone, describe_bytes (value, a),
              describe_bytes (limit, b));
}

/*----------------------------------------------------------------------
 * Comparing
 */

static int
get_size (struct nbdedup_pool *pool, const char *name, uint64_t *bytes)
{
  CLEANUP_FREE char *value = NULL;

  *bytes = UINT64_MAX;
  if (pool_property_get (pool, name, &value) == -1)
    return -1;
  return strcmp (value, "none") == 0
    ? 0
    : pool_property_parse_size (name, value, bytes);
}

static int
get_ratio (struct nbdedup_pool *pool, double *ratio)
{
  CLEANUP_FREE char *value = NULL;

  return pool_property_get (pool, ALERT_RATIO, &value) == -1
    ? -1
    : alert_parse_ratio (value, ratio);
}

static int
add (struct alert_update *u, const char *kind, uint64_t golden, uint64_t clone,
     json_t *value, json_t *threshold, uint64_t time_s)
{
  json_t *alert = json_pack ("{s:s, s:I, s:I, s:o, s:o, s:I}", "kind", kind,
                             "golden", (json_int_t) golden, "clone",
                             (json_int_t) clone, "value", value, "threshold",
                             threshold, "since", (json_int_t) time_s);

  return alert && json_array_append_new (u->found, alert) == 0
    ? 0
    : nbdedup_fail (ENOMEM, "no memory for alerts");
}

static uint64_t
size_in (const json_t *object, const char *key)
{
  const json_int_t n = json_integer_value (json_object_get (object, key));

  return n > 0 ? (uint64_t) n : 0;
}

/* The sample to compare with: the last one that is a week old, else the first.
 */
struct baseline {
  uint64_t before_s, now_s;
  uint64_t after; /* the id before it; UINT64_MAX: none */
  bool is_old;
  uint64_t time_s, stored;
};

static int
choose_baseline (void *opaque, uint64_t id, uint64_t time_s, bool asked)
{
  struct baseline *b = opaque;
  const bool is_old = time_s <= b->before_s;

  (void) asked;
  if (time_s < b->now_s &&
      (b->after == UINT64_MAX ||
       (is_old && (!b->is_old || time_s >= b->time_s)))) {
    b->after = id - 1;
    b->time_s = time_s;
    b->is_old = is_old;
  }
  return 0;
}

static int
read_baseline (void *opaque, json_t *document)
{
  struct baseline *b = opaque;

  /* If the chosen one is damaged, the next is a guess as good as any. */
  b->time_s = size_in (document, "time");
  b->stored = size_in (json_object_get (document, "fleet"),
                       "distinct_stored_bytes");
  return 1;
}

static int
compare_growth (struct alert_update *u, uint64_t golden, const json_t *document)
{
  struct baseline b = {
    .now_s = size_in (document, "time"),
    .after = UINT64_MAX,
  };
  const uint64_t stored = size_in (json_object_get (document, "fleet"),
                                   "distinct_stored_bytes");
  struct meta_conn *c;
  double growth;
  int r;

  if (u->growth == UINT64_MAX)
    return 0;
  b.before_s = b.now_s < WEEK_S ? 0 : b.now_s - WEEK_S;
  c = meta_reader_get (u->pool->meta);
  r = meta_sample_times (c, golden, choose_baseline, &b);
  meta_reader_put (u->pool->meta, c);
  if (r == -1 || b.after == UINT64_MAX)
    return r;
  b.stored = UINT64_MAX;
  if (history_each (u->pool, golden, b.after, read_baseline, &b) == -1)
    return -1;
  if (b.stored >= stored || b.time_s >= b.now_s)
    return 0;
  growth = (double) (stored - b.stored);
  if (b.now_s - b.time_s > WEEK_S)
    growth *= (double) WEEK_S / (double) (b.now_s - b.time_s);
  return growth <= (double) u->growth
    ? 0
    : add (u, "growth", golden, 0, json_integer ((json_int_t) growth),
           json_integer ((json_int_t) u->growth), b.now_s);
}

static int
compare_ratio (struct alert_update *u, uint64_t golden, const json_t *document)
{
  const json_t *ratio = json_object_get (json_object_get (document, "fleet"),
                                         "dedup_ratio");

  if (!json_is_number (ratio) || json_number_value (ratio) >= u->ratio)
    return 0;
  return add (u, "ratio", golden, 0, json_real (json_number_value (ratio)),
              json_real (u->ratio), size_in (document, "time"));
}

/* A clone's threshold; UINT64_MAX: none. */
static int
unique_limit (struct meta_conn *c, uint64_t volume, uint64_t pools,
              uint64_t *bytes)
{
  CLEANUP_FREE char *value = NULL;

  if (alert_volume_get (c, volume, &value) == -1)
    return -1;
  *bytes = strcmp (value, ALERT_DEFAULT) == 0 ? pools : UINT64_MAX;
  if (strcmp (value, ALERT_DEFAULT) == 0 || strcmp (value, "none") == 0)
    return 0;
  return pool_property_parse_size (ALERT_UNIQUE, value, bytes);
}

/* {NAME: bytes}: what is unique in each clone. */
static json_t *
unique_by_name (const json_t *document)
{
  const uint64_t block_size = size_in (document, "block_size");
  json_t *by_name = json_object (), *clone;
  size_t i;

  json_array_foreach (json_object_get (document, "clones"), i, clone)
    json_object_set_new (by_name,
                         json_string_value (json_object_get (clone, "name")),
                         json_integer ((json_int_t) (size_in (clone, "unique") *
                                                     block_size)));
  return by_name;
}

struct clone_member {
  uint64_t id, unique;
};

/* Take the ids first: pool.db must not be read under volumes->lock. */
static int
find_members (struct alert_update *u, const json_t *document,
              struct clone_member **members, size_t *nr)
{
  CLEANUP_JSON json_t *by_name = unique_by_name (document);
  struct volumes *vs = u->pool->volumes;
  const json_t *unique;
  size_t i;

  *nr = 0;
  *members = calloc (json_object_size (by_name) + 1, sizeof **members);
  if (*members == NULL)
    return nbdedup_fail (ENOMEM, "no memory for alerts");
  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i) {
    unique = json_object_get (by_name, vs->list.p[i]->name);
    if (unique)
      (*members)[(*nr)++] = (struct clone_member) {
        vs->list.p[i]->id, (uint64_t) json_integer_value (unique)
      };
  }
  return 0;
}

static int
compare_unique (struct alert_update *u, uint64_t golden, const json_t *document)
{
  CLEANUP_FREE struct clone_member *members = NULL;
  struct meta_conn *c;
  uint64_t pools, limit;
  size_t i, nr;
  int r;

  if (get_size (u->pool, ALERT_UNIQUE, &pools) == -1 ||
      find_members (u, document, &members, &nr) == -1)
    return -1;
  c = meta_reader_get (u->pool->meta);
  for (i = 0, r = 0; i < nr && r == 0; ++i) {
    r = unique_limit (c, members[i].id, pools, &limit);
    if (r == 0 && members[i].unique > limit)
      r = add (u, "unique", golden, members[i].id,
               json_integer ((json_int_t) members[i].unique),
               json_integer ((json_int_t) limit), size_in (document, "time"));
  }
  meta_reader_put (u->pool->meta, c);
  return r;
}

/*----------------------------------------------------------------------
 * Updates
 */

struct alert_update *
alert_update_new (struct nbdedup_pool *pool)
{
  struct alert_update *u = calloc (1, sizeof *u);

  if (u == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for alerts");
  lock_acquire (&pool->alerts);
  u->pool = pool;
  u->goldens = json_array ();
  u->found = json_array ();
  u->raised = json_array ();
  u->cleared = json_array ();
  if (u->goldens == NULL || u->found == NULL || u->raised == NULL ||
      u->cleared == NULL)
    nbdedup_fail (ENOMEM, "no memory for alerts");
  else if (get_ratio (pool, &u->ratio) == 0 &&
           get_size (pool, ALERT_GROWTH, &u->growth) == 0)
    return u;
  alert_update_free (u);
  return NULL;
}

void
alert_update_free (struct alert_update *u)
{
  if (u == NULL)
    return;
  json_decref (u->goldens);
  json_decref (u->found);
  json_decref (u->raised);
  json_decref (u->cleared);
  lock_release (&u->pool->alerts);
  free (u);
}

int
alert_update_add (struct alert_update *u, uint64_t golden,
                  const json_t *document)
{
  assert_held (&u->pool->alerts);
  if (json_array_append_new (u->goldens, json_integer ((json_int_t) golden)) ==
      -1)
    return nbdedup_fail (ENOMEM, "no memory for alerts");
  if (compare_ratio (u, golden, document) == -1 ||
      compare_growth (u, golden, document) == -1)
    return -1;
  return compare_unique (u, golden, document);
}

static bool
is_kind (const json_t *kind)
{
  const char *text = json_string_value (kind);

  return text &&
    (strcmp (text, "ratio") == 0 || strcmp (text, "growth") == 0 ||
     strcmp (text, "unique") == 0);
}

static bool
is_alert (const json_t *alert)
{
  return is_kind (json_object_get (alert, "kind")) &&
    json_is_integer (json_object_get (alert, "golden")) &&
    json_is_integer (json_object_get (alert, "clone")) &&
    json_is_number (json_object_get (alert, "value")) &&
    json_is_number (json_object_get (alert, "threshold")) &&
    json_is_integer (json_object_get (alert, "since"));
}

/* What is damaged is left out: the next samples find it again. */
static json_t *
read_report (struct meta_conn *c)
{
  CLEANUP_FREE char *text = NULL;
  CLEANUP_JSON json_t *report = NULL;
  json_t *alerts = json_array (), *alert;
  size_t i;

  if (alerts == NULL || meta_report_get (c, REPORT, &text) == -1) {
    json_decref (alerts);
    return alerts ? NULL : nbdedup_fail_null (ENOMEM, "no memory for alerts");
  }
  report = text ? json_loads (text, 0, NULL) : NULL;
  json_array_foreach (json_object_get (report, "alerts"), i, alert)
    if (is_alert (alert))
      json_array_append (alerts, alert);
  return alerts;
}

uint64_t
alert_update_bytes (const struct alert_update *u)
{
  /* What is stored for other images, too, is rewritten. */
  CLEANUP_FREE char *found = json_dumps (u->found, JSON_COMPACT);
  CLEANUP_JSON json_t *stored = NULL;
  CLEANUP_FREE char *text = NULL;
  struct meta_conn *c = meta_reader_get (u->pool->meta);

  assert_held (&u->pool->alerts);
  stored = read_report (c);
  meta_reader_put (u->pool->meta, c);
  text = json_dumps (stored, JSON_COMPACT);
  return (found ? strlen (found) : 0) + (text ? strlen (text) : 0);
}

/* What makes it the same alert. */
static void
describe_key (const json_t *alert, char key[96])
{
  snprintf (key, 96, "%.32s %" PRIu64 " %" PRIu64,
            json_string_value (json_object_get (alert, "kind")),
            id_in (alert, "golden"), id_in (alert, "clone"));
}

static json_t *
index_alerts (const json_t *alerts)
{
  json_t *by_key = json_object (), *alert;
  char key[96];
  size_t i;

  json_array_foreach (alerts, i, alert) {
    describe_key (alert, key);
    json_object_set (by_key, key, alert);
  }
  return by_key;
}

static json_t *
find_alert (const json_t *by_key, const json_t *alert)
{
  char key[96];

  describe_key (alert, key);
  return json_object_get (by_key, key);
}

static bool
has_golden (const json_t *goldens, const json_t *alert)
{
  json_t *id;
  size_t i;

  json_array_foreach (goldens, i, id)
    if ((uint64_t) json_integer_value (id) == id_in (alert, "golden"))
      return true;
  return false;
}

/* The alerts that stand from now on: those found, and the stored ones of other
 * images that still exist.
 */
static json_t *
merge (struct alert_update *u, const json_t *stored)
{
  CLEANUP_JSON json_t *found = index_alerts (u->found);
  CLEANUP_JSON json_t *before = index_alerts (stored);
  json_t *next = json_copy (u->found), *alert, *now;
  CLEANUP_FREE struct clone_set *sets = NULL;
  struct alert_place place;
  size_t nr, i;

  json_array_clear (u->raised);
  json_array_clear (u->cleared);
  if (clone_sets_get (u->pool->volumes, &sets, &nr) == -1) {
    json_decref (next);
    return NULL;
  }
  json_array_foreach (stored, i, alert) {
    now = find_alert (found, alert);
    if (now)
      json_object_set (now, "since", json_object_get (alert, "since"));
    else if (has_golden (u->goldens, alert))
      json_array_append (u->cleared, alert);
    else if (find_place (u->pool, sets, nr, alert, &place))
      json_array_append (next, alert);
  }
  json_array_foreach (u->found, i, alert)
    if (!find_alert (before, alert))
      json_array_append (u->raised, alert);
  return next;
}

int
alert_update_put (struct alert_update *u, struct meta_conn *c)
{
  CLEANUP_JSON json_t *stored = read_report (c), *report = NULL, *next = NULL;
  CLEANUP_FREE char *text = NULL;

  if (stored == NULL || (next = merge (u, stored)) == NULL)
    return -1;
  if (json_equal (stored, next))
    return 0;
  report = json_pack ("{s:O}", "alerts", next);
  text = report ? json_dumps (report, JSON_COMPACT) : NULL;
  return text ? meta_report_put (c, REPORT, text)
              : nbdedup_fail (ENOMEM, "no memory for alerts");
}

static json_t *
alert_event (const char *name, const json_t *alert,
             const struct alert_place *place)
{
  return event_new (name, "{s:O, s:s, s:s*, s:O, s:O}", "kind",
                    json_object_get (alert, "kind"), "golden", place->golden,
                    "volume", *place->clone ? place->clone : NULL, "value",
                    json_object_get (alert, "value"), "threshold",
                    json_object_get (alert, "threshold"));
}

void
alert_update_log (const struct alert_update *u)
{
  CLEANUP_FREE struct clone_set *sets = NULL;
  char text[1024], command[VOLUME_LABEL_MAX + 32];
  struct alert_place place;
  json_t *alert;
  size_t nr, i;

  assert_held (&u->pool->alerts);
  if (clone_sets_get (u->pool->volumes, &sets, &nr) == -1)
    return;
  json_array_foreach (u->raised, i, alert)
    if (find_place (u->pool, sets, nr, alert, &place)) {
      describe (alert, &place, text, sizeof text);
      describe_command (place.golden, command, sizeof command);
      events_post (u->pool->events, NBDEDUP_LOG_WARNING,
                   alert_event ("drift-alert", alert, &place), "%s: see %s",
                   text, command);
    }
  json_array_foreach (u->cleared, i, alert)
    if (find_place (u->pool, sets, nr, alert, &place))
      events_post (u->pool->events, NBDEDUP_LOG_INFO,
                   alert_event ("drift-alert-over", alert, &place),
                   "%s: the alert of drift-alert-%s is over",
                   *place.clone ? place.clone : place.golden,
                   json_string_value (json_object_get (alert, "kind")));
}

/*----------------------------------------------------------------------*/

static int
put_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  return alert_update_put (arg, c);
}

static int
add_newest (struct alert_update *u, uint64_t golden)
{
  CLEANUP_JSON json_t *newest = history_newest_of (u->pool, golden);

  if (newest == NULL)
    return errno == ENOENT ? 0 : -1;
  return alert_update_add (u, golden, newest);
}

int
alerts_refresh (struct nbdedup_pool *pool)
{
  struct alert_update *u = alert_update_new (pool);
  CLEANUP_FREE struct clone_set *sets = NULL;
  size_t nr, i;
  int r = -1;

  if (u && clone_sets_get (pool->volumes, &sets, &nr) == 0) {
    for (i = 0, r = 0; i < nr && r == 0; ++i)
      r = add_newest (u, sets[i].golden);
    if (r == 0)
      r = txg_run_large (pool->txg,
                         alert_update_bytes (u) / META_PAGE_BYTES + 8,
                         put_in_transaction, NULL, u);
    if (r == 0)
      alert_update_log (u);
  }
  alert_update_free (u);
  return r;
}

static json_t *
alert_json (const json_t *alert, const struct alert_place *place)
{
  char text[1024], command[VOLUME_LABEL_MAX + 32];

  describe (alert, place, text, sizeof text);
  describe_command (place->golden, command, sizeof command);
  return json_pack ("{s:O, s:s, s:s*, s:O, s:O, s:O, s:s, s:s}", "kind",
                    json_object_get (alert, "kind"), "golden", place->golden,
                    "clone", *place->clone ? place->clone : NULL, "value",
                    json_object_get (alert, "value"), "threshold",
                    json_object_get (alert, "threshold"), "since",
                    json_object_get (alert, "since"), "text", text, "command",
                    command);
}

json_t *
alerts_get (struct nbdedup_pool *pool, const char *name)
{
  CLEANUP_FREE struct clone_set *sets = NULL;
  CLEANUP_JSON json_t *stored = NULL;
  struct meta_conn *c = meta_reader_get (pool->meta);
  struct alert_place place;
  json_t *result, *alert;
  size_t nr, i;

  stored = read_report (c);
  meta_reader_put (pool->meta, c);
  if (stored == NULL || clone_sets_get (pool->volumes, &sets, &nr) == -1)
    return NULL;
  result = json_array ();
  json_array_foreach (stored, i, alert)
    if (find_place (pool, sets, nr, alert, &place) &&
        (name == NULL || strcmp (name, place.golden) == 0))
      json_array_append_new (result, alert_json (alert, &place));
  return json_pack ("{s:o}", "alerts", result);
}
