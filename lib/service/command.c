/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/alert-property.h"
#include "core/engine.h"
#include "core/events.h"
#include "core/pool-property.h"
#include "core/txg.h"
#include "drift/alert.h"
#include "drift/drift-forecast.h"
#include "drift/diff.h"
#include "drift/drift.h"
#include "drift/histogram.h"
#include "drift/history.h"
#include "drift/sampler.h"
#include "meta/meta.h"
#include "report/check.h"
#include "report/compact.h"
#include "report/counters.h"
#include "report/prune.h"
#include "report/recovery.h"
#include "report/rewrite.h"
#include "report/scrub.h"
#include "report/stat.h"
#include "report/status.h"
#include "service/command.h"
#include "service/property-apply.h"
#include "service/service-event.h"
#include "volume/merge.h"
#include "volume/rebase.h"
#include "volume/volume.h"

/* The context of a command. */
struct call {
  struct nbdedup_pool *pool;
  json_t *args;
  nbdedup_progress_fn *progress;
  void *opaque;
};

/* pool->admin.  While a command waits for it, nothing has been done. */

static int
look (void *opaque)
{
  const struct call *c = opaque;

  return c->progress && c->progress (c->opaque, 0, 0) != 0
    ? nbdedup_fail (ECANCELED, "interrupted")
    : 0;
}

static int
take_turn (struct call *c)
{
  return turn_take (&c->pool->admin_turn, &c->pool->admin, look, c);
}

static void
let_others_run (const struct call *c)
{
  turn_give (&c->pool->admin_turn, &c->pool->admin);
}

static int
look_at_nothing (void *opaque)
{
  (void) opaque;
  return 0;
}

/* After let_others_run. */
static void
run_on (const struct call *c)
{
  if (turn_take (&c->pool->admin_turn, &c->pool->admin, look_at_nothing,
                 NULL) == -1)
    abort (); /* it waits for as long as it takes */
}

/* jansson leaves out a piece of a result if there is no memory for it.  The
 * caller must not take the rest for the whole, so this notes the failure.
 */
static _Thread_local bool piece_missing;

static void *
json_memory (size_t size)
{
  void *p = malloc (size);

  if (p == NULL)
    piece_missing = true;
  return p;
}

static void
watch_json_memory (void)
{
  json_set_alloc_funcs (json_memory, free);
}

/* Arguments: absent (or null) leaves the fallback. */

static int
arg_string (const struct call *c, const char *name, const char **value)
{
  json_t *j = json_object_get (c->args, name);

  if (j == NULL || json_is_null (j))
    return 0;
  if (!json_is_string (j))
    return nbdedup_fail (EINVAL, "%s: not a string", name);
  *value = json_string_value (j);
  return 0;
}

static int
need_string (const struct call *c, const char *name, const char **value)
{
  *value = NULL;
  if (arg_string (c, name, value) == -1)
    return -1;
  return *value ? 0 : nbdedup_fail (EINVAL, "%s is missing", name);
}

static int
arg_size (const struct call *c, const char *name, uint64_t *value)
{
  json_t *j = json_object_get (c->args, name);

  if (j == NULL || json_is_null (j))
    return 0;
  if (!json_is_integer (j) || json_integer_value (j) < 0)
    return nbdedup_fail (EINVAL, "%s: not a size", name);
  *value = (uint64_t) json_integer_value (j);
  return 0;
}

static int
need_size (const struct call *c, const char *name, uint64_t *value)
{
  if (json_object_get (c->args, name) == NULL)
    return nbdedup_fail (EINVAL, "%s is missing", name);
  return arg_size (c, name, value);
}

static int
arg_ratio (const struct call *c, const char *name, double *value)
{
  json_t *j = json_object_get (c->args, name);

  if (j == NULL || json_is_null (j))
    return 0;
  if (!json_is_number (j) || json_number_value (j) <= 1)
    return nbdedup_fail (EINVAL, "%s: not a number above 1", name);
  *value = json_number_value (j);
  return 0;
}

static int
arg_bool (const struct call *c, const char *name, bool *value)
{
  json_t *j = json_object_get (c->args, name);

  *value = false;
  if (j == NULL || json_is_null (j))
    return 0;
  if (!json_is_boolean (j))
    return nbdedup_fail (EINVAL, "%s: not true or false", name);
  *value = json_is_true (j);
  return 0;
}

static int
run_create (const struct call *c, json_t **result)
{
  struct volume_spec spec = { .name = NULL };

  (void) result;
  if (need_string (c, "name", &spec.name) == -1 ||
      need_size (c, "size", &spec.size) == -1 ||
      arg_size (c, "block-size", &spec.block_size) == -1 ||
      arg_string (c, "compress", &spec.compress) == -1 ||
      arg_string (c, "dedup", &spec.dedup) == -1 ||
      arg_string (c, "domain", &spec.domain) == -1 ||
      arg_string (c, "allow", &spec.allow) == -1 ||
      arg_bool (c, "importing", &spec.importing) == -1)
    return -1;
  /* Only an absent size asks for the default; an explicit 0 is an error. */
  if (json_object_get (c->args, "block-size") && spec.block_size == 0)
    return check_block_size (0, 0);
  return volume_create (c->pool, &spec);
}

static int
run_list (const struct call *c, json_t **result)
{
  *result = list_run (c->pool);
  return *result ? 0 : -1;
}

static int
get_one (const struct call *c, struct volume *v, const char *property,
         json_t *properties)
{
  CLEANUP_FREE char *value = NULL;
  int r;

  r = v ? volume_get (v, property, &value)
        : pool_property_get (c->pool, property, &value);
  if (r == 0)
    json_object_set_new (properties, property, json_string (value));
  return r;
}

/* Does a volume (with a name), or the pool, have it?  'all' is every one. */
static int
check_property (const char *property, const char *name)
{
  const char *const *p = name ? volume_properties : pool_properties;

  assert (property != NULL);
  if (strcmp (property, "all") == 0)
    return 0;
  for (; *p; ++p)
    if (strcmp (property, *p) == 0)
      return 0;
  return nbdedup_fail (EINVAL, "%s has no property '%.64s'",
                       name ? "a volume" : "the pool", property);
}

static int
run_get (const struct call *c, json_t **result)
{
  const char *property, *name = NULL, *const * p;
  CLEANUP_JSON json_t *properties = json_object ();
  struct volume *v = NULL;

  if (need_string (c, "property", &property) == -1 ||
      arg_string (c, "name", &name) == -1)
    return -1;
  if (check_property (property, name) == -1)
    return -1;
  if (name && (v = volumes_find (c->pool->volumes, name)) == NULL)
    return -1;
  if (strcmp (property, "all") != 0) {
    if (get_one (c, v, property, properties) == -1)
      return -1;
  }
  else
    for (p = v ? volume_properties : pool_properties; *p; ++p)
      if (get_one (c, v, *p, properties) == -1)
        return -1;
  *result = json_pack ("{s:O}", "properties", properties);
  return 0;
}

/* The thresholds of alerts take effect at once. */
static int
refresh_alerts (const struct call *c)
{
  int r;

  assert_held (&c->pool->admin);
  let_others_run (c);
  r = alerts_refresh (c->pool);
  run_on (c);
  return r;
}

static int
run_set (const struct call *c, json_t **result)
{
  const char *property, *value, *name = NULL;
  int r;

  (void) result;
  if (need_string (c, "property", &property) == -1 ||
      need_string (c, "value", &value) == -1 ||
      arg_string (c, "name", &name) == -1)
    return -1;
  r = name ? volume_set (c->pool, name, property, value)
           : pool_property_set (c->pool, property, value);
  return r == 0 && alert_property_is (property) ? refresh_alerts (c) : r;
}

static int
run_resize (const struct call *c, json_t **result)
{
  const char *name;
  uint64_t size = 0;
  bool shrink = false;

  (void) result;
  if (need_string (c, "name", &name) == -1 ||
      need_size (c, "size", &size) == -1 ||
      arg_bool (c, "shrink", &shrink) == -1)
    return -1;
  return volume_resize (c->pool, name, size, shrink);
}

static int
run_rename (const struct call *c, json_t **result)
{
  const char *old, *new;
  uint64_t imported; /* for the event */

  (void) result;
  if (need_string (c, "old", &old) == -1 ||
      need_string (c, "new", &new) == -1 ||
      arg_size (c, "imported", &imported) == -1)
    return -1;
  return volume_rename (c->pool, old, new);
}

/* Wait until the references of destroyed volumes have been dropped. */
static int
wait_for_freeing (const struct call *c)
{
  uint64_t total = volumes_freeing_bytes (c->pool->volumes), left;
  int r;

  assert_held (&c->pool->admin);
  while (merge_is_pending (c->pool)) {
    if (txg_check (c->pool->txg) == -1)
      return -1;
    left = volumes_freeing_bytes (c->pool->volumes);
    if (left > total)
      total = left;
    if (c->progress && c->progress (c->opaque, total - left, total) != 0)
      return nbdedup_fail (EINTR,
                           "interrupted: the pool continues to free the "
                           "space in the background");
    /* Each fold does a part; other commands may run in between. */
    let_others_run (c);
    r = txg_run (c->pool->txg, NULL, NULL, NULL);
    run_on (c);
    if (r == -1 || merge_step (c->pool) == -1)
      return -1;
  }
  space_settle (c->pool->space);
  return 0;
}

/* Compute the space that would be freed, which takes as long as drift. */
static int
add_freed (const struct call *c, json_t *victims, json_t *needs,
           json_t **result)
{
  json_t *freed;

  assert_held (&c->pool->admin);
  let_others_run (c);
  freed = drift_freed_run (c->pool, victims, 0, c->progress, c->opaque);
  run_on (c);
  if (freed == NULL)
    return -1;
  *result = json_pack ("{s:O, s:O, s:O}", "destroyed", victims, "freed_bytes",
                       json_object_get (freed, "freed_bytes"), "needs", needs);
  json_decref (freed);
  return 0;
}

/* "name", or "names": several.  The caller frees them. */
static int
need_names (const struct call *c, json_t **names)
{
  json_t *one = json_object_get (c->args, "name"), *name;
  size_t i;

  *names = json_object_get (c->args, "names");
  if (*names && one) /* the history would tell of both */
    return nbdedup_fail (EINVAL, "name and names: give one of the two");
  json_incref (*names);
  if (*names == NULL && one) {
    *names = json_pack ("[O]", one);
    if (*names == NULL)
      return nbdedup_fail (ENOMEM, "no memory");
  }
  if (json_array_size (*names) == 0) {
    json_decref (*names);
    return nbdedup_fail (EINVAL, "name is missing");
  }
  json_array_foreach (*names, i, name)
    if (!json_is_string (name)) {
      json_decref (*names);
      return nbdedup_fail (EINVAL, "name: not a string");
    }
  return 0;
}

static int
run_destroy (const struct call *c, json_t **result)
{
  bool recursive, force, wait, dry_run;
  json_t *names, *destroyed, *needs;
  int r;

  if (arg_bool (c, "recursive", &recursive) == -1 ||
      arg_bool (c, "force", &force) == -1 ||
      arg_bool (c, "wait", &wait) == -1 ||
      arg_bool (c, "dry-run", &dry_run) == -1 || need_names (c, &names) == -1)
    return -1;
  destroyed = json_array ();
  needs = json_array ();
  if (dry_run) {
    r = volume_destroy_dry (c->pool, names, recursive, force, destroyed, needs);
    if (r == 0)
      r = add_freed (c, destroyed, needs, result);
  }
  else {
    r = volume_destroy (c->pool, names, recursive, force, destroyed);
    if (r == 0 && wait)
      r = wait_for_freeing (c);
    if (r == 0)
      *result = json_pack ("{s:O}", "destroyed", destroyed);
  }
  json_decref (names);
  json_decref (destroyed);
  json_decref (needs);
  return r; /* command_run checks for missing pieces */
}

static int
run_snapshot (const struct call *c, json_t **result)
{
  json_t *names;
  int r;

  (void) result;
  if (need_names (c, &names) == -1)
    return -1;
  r = volume_snapshot (c->pool, names);
  json_decref (names);
  return r;
}

static int
run_clone (const struct call *c, json_t **result)
{
  bool numbered = json_object_get (c->args, "count") != NULL;
  const char *snapshot, *name;
  uint64_t count = 1, start = 1;
  json_t *names;
  int r;

  if (need_string (c, "snapshot", &snapshot) == -1 ||
      need_string (c, "name", &name) == -1 ||
      (numbered && need_size (c, "count", &count) == -1) ||
      (json_object_get (c->args, "start") &&
       need_size (c, "start", &start) == -1))
    return -1;
  if (!numbered && start != 1)
    return nbdedup_fail (EINVAL, "start needs count");
  names = json_array ();
  r = volume_clone (c->pool, snapshot, name, numbered, start, count, names);
  if (r == 0)
    *result = json_pack ("{s:O}", "clones", names);
  json_decref (names);
  return r;
}

static int
run_rollback (const struct call *c, json_t **result)
{
  const char *name;
  bool force;

  (void) result;
  if (need_string (c, "name", &name) == -1 ||
      arg_bool (c, "force", &force) == -1)
    return -1;
  return volume_rollback (c->pool, name, force);
}

static int
run_rebase (const struct call *c, json_t **result)
{
  const char *name, *snapshot;
  bool dry_run;

  if (need_string (c, "name", &name) == -1 ||
      need_string (c, "snapshot", &snapshot) == -1 ||
      arg_bool (c, "dry-run", &dry_run) == -1)
    return -1;
  *result = rebase_run (c->pool, name, snapshot, dry_run, c->progress,
                        c->opaque);
  return *result ? 0 : -1;
}

static int
run_diff (const struct call *c, json_t **result)
{
  const char *from, *to;

  if (need_string (c, "from", &from) == -1 || need_string (c, "to", &to) == -1)
    return -1;
  let_others_run (c);
  *result = diff_run (c->pool, from, to, c->progress, c->opaque);
  run_on (c);
  return *result ? 0 : -1;
}

/* Drift takes long, and lets other commands run meanwhile (drift.h). */
static int
run_drift (const struct call *c, json_t **result)
{
  struct drift_golden golden = { NULL, 0 };
  uint64_t memory = 0;
  double ratio = 0;
  bool record, forecast;
  int r = 0;

  if (arg_string (c, "name", &golden.name) == -1 ||
      arg_size (c, "memory", &memory) == -1 ||
      arg_bool (c, "record", &record) == -1 ||
      arg_bool (c, "forecast", &forecast) == -1 ||
      arg_ratio (c, "ratio", &ratio) == -1)
    return -1;
  let_others_run (c);
  *result = record
    ? history_drift (c->pool, golden, memory, true, c->progress, c->opaque)
    : drift_run (c->pool, golden, memory, c->progress, c->opaque);
  if (*result && forecast)
    r = drift_forecast_add (c->pool, *result, ratio);
  run_on (c);
  return *result ? r : -1;
}

static int
run_drift_alerts (const struct call *c, json_t **result)
{
  const char *name = NULL;

  if (arg_string (c, "name", &name) == -1)
    return -1;
  *result = alerts_get (c->pool, name);
  return *result ? 0 : -1;
}

static int
run_drift_history (const struct call *c, json_t **result)
{
  struct drift_golden golden = { NULL, 0 };
  uint64_t after = 0;
  bool newest;

  if (arg_string (c, "name", &golden.name) == -1 ||
      arg_size (c, "id", &golden.id) == -1 ||
      arg_size (c, "after", &after) == -1 ||
      arg_bool (c, "newest", &newest) == -1)
    return -1;
  if (newest && (golden.name || golden.id))
    return nbdedup_fail (EINVAL,
                         "%s: cannot be used with newest, which "
                         "covers all golden images",
                         golden.name ? "name" : "id");
  if (golden.name && golden.id)
    return nbdedup_fail (EINVAL, "name and id: only one can be used");
  let_others_run (c);
  *result = newest
    ? history_newest (c->pool, after, c->progress, c->opaque)
    : history_get (c->pool, golden, after, c->progress, c->opaque);
  run_on (c);
  return *result ? 0 : -1;
}

static int
run_drift_freed (const struct call *c, json_t **result)
{
  json_t *names = json_object_get (c->args, "names");
  uint64_t memory = 0;

  if (json_array_size (names) == 0)
    return nbdedup_fail (EINVAL, "names: not an array of names");
  if (arg_size (c, "memory", &memory) == -1)
    return -1;
  let_others_run (c);
  *result = drift_freed_run (c->pool, names, memory, c->progress, c->opaque);
  run_on (c);
  return *result ? 0 : -1;
}

static int
run_stat (const struct call *c, json_t **result)
{
  const char *name = NULL;
  bool ddt;
  int r = 0;

  if (arg_string (c, "name", &name) == -1 || arg_bool (c, "ddt", &ddt) == -1)
    return -1;
  *result = stat_run (c->pool, name);
  if (*result == NULL)
    return -1;
  if (ddt) {
    /* This takes long, as drift does. */
    let_others_run (c);
    r = histogram_add (c->pool, name, *result, c->progress, c->opaque);
    run_on (c);
  }
  if (r == -1) {
    json_decref (*result);
    *result = NULL;
  }
  return r;
}

/* Other commands run beside a check, unless it repairs. */
static int
run_check (const struct call *c, json_t **result)
{
  bool repair;

  if (arg_bool (c, "repair", &repair) == -1)
    return -1;
  if (!repair)
    let_others_run (c);
  *result = check_run (c->pool, repair, c->progress, c->opaque);
  if (!repair)
    run_on (c);
  return *result ? 0 : -1;
}

/* Scrub takes long, and lets other commands run meanwhile. */
static int
run_scrub (const struct call *c, json_t **result)
{
  struct scrub_args args = { .again = false };

  args.has_rate = json_object_get (c->args, "rate") != NULL;
  if (arg_bool (c, "again", &args.again) == -1 ||
      arg_bool (c, "wanted", &args.wanted) == -1 ||
      arg_bool (c, "restart", &args.restart) == -1 ||
      arg_size (c, "rate", &args.rate) == -1)
    return -1;
  let_others_run (c);
  *result = scrub_run (c->pool, &args, c->progress, c->opaque);
  run_on (c);
  return *result ? 0 : -1;
}

/* Prune takes long, and lets other commands run between its steps. */
static int
run_prune (const struct call *c, json_t **result)
{
  struct prune_args args = { .has_age = false };

  args.has_age = json_object_get (c->args, "age") != NULL;
  if (arg_size (c, "age", &args.age_s) == -1 ||
      arg_size (c, "percent", &args.percent) == -1 ||
      arg_bool (c, "dry-run", &args.dry_run) == -1)
    return -1;
  if (args.has_age == (json_object_get (c->args, "percent") != NULL))
    return nbdedup_fail (EINVAL, "either an age or a percentage is needed");
  if (!args.has_age && (args.percent == 0 || args.percent > 100))
    return nbdedup_fail (EINVAL, "percent: must be from 1 to 100");
  let_others_run (c);
  *result = prune_run (c->pool, &args, c->progress, c->opaque);
  run_on (c);
  return *result ? 0 : -1;
}

static int
run_compact (const struct call *c, json_t **result)
{
  let_others_run (c);
  *result = compact_run (c->pool, c->progress, c->opaque);
  run_on (c);
  return *result ? 0 : -1;
}

/* Other commands run meanwhile. */
static int
run_rewrite (const struct call *c, json_t **result)
{
  struct rewrite_args args = { .name = NULL };

  if (need_string (c, "name", &args.name) == -1 ||
      arg_bool (c, "dedup", &args.dedup) == -1)
    return -1;
  let_others_run (c);
  *result = rewrite_run (c->pool, &args, c->progress, c->opaque);
  run_on (c);
  return *result ? 0 : -1;
}

static int
run_recovery (const struct call *c, json_t **result)
{
  json_t *report = recovery_report (c->pool);

  if (report)
    *result = json_pack ("{s:o}", "recovery", report);
  return *result ? 0 : -1;
}

static int
run_history (const struct call *c, json_t **result)
{
  *result = events_get (c->pool->events, c->pool->meta);
  return *result ? 0 : -1;
}

static int
run_status (const struct call *c, json_t **result)
{
  *result = status_run (c->pool);
  return *result ? 0 : -1;
}

static int
run_counters (const struct call *c, json_t **result)
{
  *result = counters_run (c->pool);
  return *result ? 0 : -1;
}

static int
run_info (const struct call *c, json_t **result)
{
  char uuid[2 * UUID_LEN + 1];
  unsigned i;

  for (i = 0; i < UUID_LEN; ++i)
    snprintf (uuid + 2 * i, 3, "%02x", c->pool->uuid[i]);
  *result = json_pack ("{s:s, s:I, s:s, s:i, s:o}", "who", c->pool->who, "pid",
                       (json_int_t) getpid (), "uuid", uuid, "format",
                       FORMAT_VERSION, "sampler",
                       sampler_json (c->pool->sampler));
  return 0;
}

static const struct {
  const char *name;
  int (*run) (const struct call *c, json_t **result);
  const char *args[8]; /* NULL-terminated: the known members */
} commands[] = {
  { "create",
    run_create,
    { "name", "size", "block-size", "compress", "dedup", "domain", "allow",
      "importing" } },
  { "list", run_list, { NULL } },
  { "get", run_get, { "property", "name" } },
  { "set", run_set, { "property", "value", "name" } },
  { "resize", run_resize, { "name", "size", "shrink" } },
  { "rename", run_rename, { "old", "new", "imported" } },
  { "destroy",
    run_destroy,
    { "name", "names", "recursive", "force", "wait", "dry-run" } },
  { "snapshot", run_snapshot, { "name", "names" } },
  { "clone", run_clone, { "snapshot", "name", "count", "start" } },
  { "rollback", run_rollback, { "name", "force" } },
  { "rebase", run_rebase, { "name", "snapshot", "dry-run" } },
  { "diff", run_diff, { "from", "to" } },
  { "drift", run_drift, { "name", "memory", "record", "forecast", "ratio" } },
  { "drift-alerts", run_drift_alerts, { "name" } },
  { "drift-history", run_drift_history, { "name", "id", "after", "newest" } },
  { "drift-freed", run_drift_freed, { "names", "memory" } },
  { "stat", run_stat, { "name", "ddt" } },
  { "check", run_check, { "repair" } },
  { "scrub", run_scrub, { "again", "wanted", "restart", "rate" } },
  { "compact", run_compact, { NULL } },
  { "prune", run_prune, { "age", "percent", "dry-run" } },
  { "rewrite", run_rewrite, { "name", "dedup" } },
  { "recovery", run_recovery, { NULL } },
  { "status", run_status, { NULL } },
  { "counters", run_counters, { NULL } },
  { "history", run_history, { NULL } },
  { "info", run_info, { NULL } },
};

static int
check_args (const char *command, const char *const *known, json_t *args)
{
  const char *key;
  json_t *value;
  unsigned i;

  if (args && !json_is_object (args))
    return nbdedup_fail (EINVAL, "%s: arguments are not an object", command);
  json_object_foreach (args, key, value) {
    for (i = 0; i < 8 && known[i]; ++i)
      if (strcmp (known[i], key) == 0)
        break;
    if (i == 8 || known[i] == NULL)
      return nbdedup_fail (EINVAL, "%s: unknown argument '%.64s'", command,
                           key);
  }
  return 0;
}

bool
command_changes (const char *command, json_t *args)
{
  static const char *const reading[] = {
    "list",        "get",     "diff",  "drift-alerts", "drift-history",
    "drift-freed", "stat",    "scrub", "recovery",     "status",
    "counters",    "history", "info",
  };
  size_t i;

  for (i = 0; i < sizeof reading / sizeof reading[0]; ++i)
    if (strcmp (reading[i], command) == 0)
      return false;
  if (strcmp (command, "check") == 0)
    return json_is_true (json_object_get (args, "repair"));
  if (strcmp (command, "drift") == 0)
    return json_is_true (json_object_get (args, "record"));
  if (strcmp (command, "destroy") == 0 || strcmp (command, "rebase") == 0 ||
      strcmp (command, "prune") == 0)
    return !json_is_true (json_object_get (args, "dry-run"));
  return true;
}

json_t *
command_run (struct nbdedup_pool *pool, const char *command, json_t *args,
             nbdedup_progress_fn *progress, void *opaque)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  struct call c = { pool, args, progress, opaque };
  struct command_event event;
  json_t *result = NULL;
  bool missing;
  size_t i;
  int r;

  pthread_once (&once, watch_json_memory);
  for (i = 0; i < sizeof commands / sizeof commands[0]; ++i)
    if (strcmp (commands[i].name, command) == 0)
      break;
  if (i == sizeof commands / sizeof commands[0])
    return nbdedup_fail_null (EINVAL, "unknown command '%.64s'", command);
  if (check_args (command, commands[i].args, args) == -1)
    return NULL;
  if (pool->settings.read_only != NBDEDUP_READ_ONLY_OFF &&
      command_changes (command, args))
    return nbdedup_fail_null (EROFS, "the pool is open read-only");
  command_event_begin (&event, pool, command, args);
  piece_missing = false;
  /* Monitoring must not wait for the end of a check. */
  if (commands[i].run == run_status || commands[i].run == run_counters ||
      commands[i].run == run_history)
    r = commands[i].run (&c, &result);
  else if ((r = take_turn (&c)) == 0) {
    r = commands[i].run (&c, &result);
    turn_give (&pool->admin_turn, &pool->admin); /* has it, or has it again */
  }
  assert (r == 0 || r == -1);
  missing = piece_missing; /* the event may miss pieces */
  command_event_end (&event, r, result);
  if (r == -1 && !missing)
    return NULL;
  if (result == NULL) {
    piece_missing = false;
    result = json_object ();
    missing |= piece_missing;
  }
  if (missing) {
    json_decref (result);
    return nbdedup_fail_null (ENOMEM, "no memory for the whole result%s",
                              !command_changes (command, args) ? ""
                                : r == -1 ? ", and the command may be done"
                                          : ", but the command is done");
  }
  return result;
}

bool
command_is_background (const char *command, json_t *args)
{
  return strcmp (command, "drift") == 0 || strcmp (command, "scrub") == 0 ||
    strcmp (command, "diff") == 0 || strcmp (command, "drift-freed") == 0 ||
    strcmp (command, "compact") == 0 || strcmp (command, "prune") == 0 ||
    strcmp (command, "rewrite") == 0 ||
    (strcmp (command, "check") == 0 &&
     !json_is_true (json_object_get (args, "repair"))) ||
    (strcmp (command, "destroy") == 0 &&
     json_is_true (json_object_get (args, "dry-run"))) ||
    (strcmp (command, "stat") == 0 &&
     json_is_true (json_object_get (args, "ddt")));
}

json_t *
nbdedup_call (struct nbdedup_pool *pool, const char *command, json_t *args)
{
  return command_run (pool, command, args, NULL, NULL);
}
