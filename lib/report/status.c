/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/pool-property.h"
#include "core/txg.h"
#include "data/capacity.h"
#include "data/watch.h"
#include "disk/store.h"
#include "drift/alert.h"
#include "meta/meta.h"
#include "report/copier.h"
#include "report/counters.h"
#include "report/recovery.h"
#include "report/scrub.h"
#include "report/status.h"
#include "report/warmer.h"

void
status_add_problem (json_t *status, bool critical, const char *fmt, ...)
{
  const char *level = critical ? "critical" : "warning";
  const char *now = json_string_value (json_object_get (status, "state"));
  char text[1024];
  va_list ap;

  va_start (ap, fmt);
  vsnprintf (text, sizeof text, fmt, ap);
  va_end (ap);
  json_array_append_new (json_object_get (status, "problems"),
                         json_pack ("{s:s, s:o}", "level", level, "text",
                                    nbdedup_json_text (text)));
  if (critical || (now && strcmp (now, "ok") == 0))
    json_object_set_new (status, "state", json_string (level));
}

json_t *
status_report (struct nbdedup_pool *pool, const char *name)
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  CLEANUP_FREE char *text = NULL;
  json_t *document;
  int r = meta_report_get (c, name, &text);

  meta_reader_put (pool->meta, c);
  if (r == -1)
    return NULL;
  if (r == 0)
    return json_null ();
  document = json_loads (text, 0, NULL);
  if (document == NULL)
    return nbdedup_fail_null (EIO,
                              "pool.db: the report of the last %s is "
                              "damaged",
                              name);
  return document;
}

/* A pool that is open read-only has no properties loaded. */
static unsigned
full_warn (struct nbdedup_pool *pool)
{
  CLEANUP_FREE char *value = NULL;

  if (pool->settings.read_only == NBDEDUP_READ_ONLY_OFF)
    return pool->watch->full_warn;
  return pool_property_get (pool, "full-warn", &value) == 0
    ? (unsigned) atoi (value)
    : WATCH_WARN_DEFAULT;
}

static void
add_space (struct nbdedup_pool *pool, json_t *status)
{
  unsigned warn = full_warn (pool);
  struct capacity cap;
  bool full;

  if (capacity_get (pool, &cap) == -1) {
    json_object_set_new (status, "space", json_null ());
    status_add_problem (status, false, "the space in use is unknown: %s",
                        nbdedup_error ());
    return;
  }
  full = pool->watch->full || txg_is_stuck (pool->txg) ||
    cap.min_bytes < CAPACITY_FULL;
  json_object_set_new (
    status, "space",
    json_pack ("{s:I, s:I, s:I, s:I, s:I, s:o, s:f, s:i, s:I, s:I, "
               "s:b}",
               "used_bytes", (json_int_t) cap.used_bytes, "file_bytes",
               (json_int_t) store_file_bytes (pool->store), "metadata_bytes",
               (json_int_t) cap.metadata_bytes, "free_bytes",
               (json_int_t) cap.free_bytes, "metadata_free_bytes",
               (json_int_t) cap.metadata_free_bytes, "max_size",
               cap.max_bytes == 0 ? json_null ()
                                  : json_integer ((json_int_t) cap.max_bytes),
               "used_percent", cap.used_percent, "full_warn", (int) warn,
               "writable_bytes", (json_int_t) cap.likely_bytes,
               "writable_min_bytes", (json_int_t) cap.min_bytes, "full",
               (int) full));
  json_object_set_new (json_object_get (status, "damage"), "damaged_segments",
                       json_integer ((json_int_t) cap.nr_damaged));
  if (full)
    status_add_problem (status, true, "the pool is full and refuses new data");
  else if (cap.used_percent > warn)
    status_add_problem (status, false,
                        "%.0f %% of the space is used, more "
                        "than full-warn (%u %%)",
                        cap.used_percent, warn);
  if (cap.nr_damaged > 0)
    status_add_problem (status, true,
                        "the pool no longer uses %" PRIu64 " "
                        "segments, because their maps are damaged",
                        cap.nr_damaged);
}

/* A read-only pool makes no copy, and knows nothing of one: null. */
static void
add_copy (struct nbdedup_pool *pool, json_t *status)
{
  static const char *const names[] = {
    [META_COPY_OFF] = "off",
    [META_COPY_BUILDING] = "building",
    [META_COPY_CURRENT] = "current",
    [META_COPY_LOST] = "lost",
  };
  struct meta_copy_status copy;

  if (pool->settings.read_only != NBDEDUP_READ_ONLY_OFF) {
    json_object_set_new (status, "metadata_copy", json_null ());
    return;
  }
  meta_copy_get_status (pool->meta, &copy);
  json_object_set_new (status, "metadata_copy",
                       json_pack ("{s:s, s:o, s:I, s:I}", "state",
                                  names[copy.state], "path",
                                  nbdedup_json_text (copy.path), "pages_taken",
                                  (json_int_t) copy.taken, "pages_repaired",
                                  (json_int_t) copy.repaired));
  if (copy.state == META_COPY_LOST)
    status_add_problem (status, false,
                        "%s: there is no second copy of "
                        "pool.db%s%s; nbdedup tries again every minute",
                        copy.path, copy.why[0] ? ": " : "", copy.why);
  if (copy.taken > 0)
    status_add_problem (status, false,
                        "pool.db: %" PRIu64 " pages have been "
                        "damaged since the pool was opened: nbdedup took them "
                        "from the other copy, and wrote %" PRIu64 " of them "
                        "again: check the disk",
                        copy.taken, copy.repaired);
}

/* A read-only pool, or a command, makes none: null. */
static void
add_copies (struct nbdedup_pool *pool, json_t *status)
{
  json_t *copies = copier_status (pool->copier);
  uint64_t reads = pool->copy_reads;

  json_object_set_new (status, "copies", copies ? copies : json_null ());
  if (reads > 0)
    status_add_problem (status, false,
                        "%" PRIu64 " reads of damaged records "
                        "were answered from copies since the pool was opened: "
                        "run nbdedup scrub",
                        reads);
}

static void
add_warm (struct nbdedup_pool *pool, json_t *status)
{
  json_t *warm = warmer_status (pool->warmer);

  json_object_set_new (status, "warm", warm ? warm : json_null ());
}

static json_int_t
number (const json_t *report, const char *key)
{
  return json_integer_value (json_object_get (report, key));
}

/* NULL: a null, and a problem more. */
static json_t *
get_report (json_t *status, const char *key, json_t *report)
{
  if (report == NULL) {
    status_add_problem (status, false, "%s", nbdedup_error ());
    report = json_null ();
  }
  json_object_set_new (status, key, report);
  return report;
}

/* A scrub knows the present damage.  A recovery's report counts only until the
 * next scrub.
 */
static void
add_reports (struct nbdedup_pool *pool, json_t *status)
{
  const json_t *recovery = get_report (status, "recovery",
                                       recovery_report (pool));
  const json_t *scrub = get_report (status, "scrub",
                                    status_report (pool, SCRUB_REPORT));
  json_t *damage = json_object_get (status, "damage");
  const json_t *progress = get_report (status, "scrub_progress",
                                       scrub_progress (pool));
  json_int_t lost = number (scrub, "lost_blocks"), dropped = 0;
  json_int_t summaries = number (scrub, "summary_errors");
  json_int_t pages = number (scrub, "metadata_errors");
  json_int_t repaired = number (scrub, "repaired_records");
  json_int_t records = number (scrub, "errors") - lost - summaries - pages;

  if (number (recovery, "time") >= number (scrub, "time")) {
    lost += number (recovery, "lost_blocks");
    dropped = number (recovery, "dropped_blocks");
  }
  json_object_set_new (damage, "lost_blocks", json_integer (lost));
  json_object_set_new (damage, "damaged_records", json_integer (records));
  if (records > 0)
    status_add_problem (status, true,
                        "the last scrub found %" JSON_INTEGER_FORMAT
                        " damaged records",
                        records);
  if (lost > 0)
    status_add_problem (status, true,
                        "the content of %" JSON_INTEGER_FORMAT
                        " blocks is lost",
                        lost);
  if (pages > 0)
    status_add_problem (status, true,
                        "the last scrub found %" JSON_INTEGER_FORMAT
                        " damaged pages of pool.db that "
                        "have no good copy: run nbdedup check --repair",
                        pages);
  if (summaries > 0)
    status_add_problem (status, false,
                        "the last scrub found and rewrote %" JSON_INTEGER_FORMAT
                        " damaged summaries",
                        summaries);
  if (repaired > 0)
    status_add_problem (status, false,
                        "the last scrub found and rewrote %" JSON_INTEGER_FORMAT
                        " damaged record%s: check the "
                        "disk",
                        repaired, repaired == 1 ? "" : "s");
  if (number (progress, "errors") > 0)
    status_add_problem (status, true,
                        "the unfinished scrub has found %" JSON_INTEGER_FORMAT
                        " damaged records",
                        number (progress, "errors"));
  if (dropped > 0)
    status_add_problem (status, false,
                        "the last recovery dropped the writes "
                        "of %" JSON_INTEGER_FORMAT " blocks, which had not "
                        "been flushed",
                        dropped);
}

static void
add_alerts (struct nbdedup_pool *pool, json_t *status)
{
  CLEANUP_JSON json_t *result = alerts_get (pool, NULL);
  json_t *alerts = json_object_get (result, "alerts"), *alert;
  size_t i;

  if (result == NULL) {
    status_add_problem (status, false, "%s", nbdedup_error ());
    json_object_set_new (status, "drift_alerts", json_null ());
    return;
  }
  json_object_set (status, "drift_alerts", alerts);
  json_array_foreach (alerts, i, alert)
    status_add_problem (status, false, "%s: see %s",
                        json_string_value (json_object_get (alert, "text")),
                        json_string_value (json_object_get (alert, "command")));
}

static void
add_tables (struct nbdedup_pool *pool, json_t *status)
{
  struct meta_state state;

  txg_get_state (pool->txg, &state);
  if (state.features_compat & FEATURE_COMPAT_RECORDS_LOST)
    status_add_problem (status, false,
                        "pool.db: a part of the list of records "
                        "was damaged in all copies: space freed there stays in "
                        "use until you run nbdedup check --repair");
}

json_t *
status_run (struct nbdedup_pool *pool)
{
  bool stopped = txg_check (pool->txg) == -1;
  json_t *status = json_pack ("{s:o, s:s, s:I, s:s, s:[], s:{s:b}}", "pool",
                              nbdedup_json_text (pool->path), "who", pool->who,
                              "pid", (json_int_t) getpid (), "state", "ok",
                              "problems", "damage", "stopped", (int) stopped);

  if (status == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  if (stopped)
    status_add_problem (status, true, "%s", nbdedup_error ());
  add_tables (pool, status);
  add_space (pool, status);
  add_copy (pool, status);
  add_copies (pool, status);
  add_warm (pool, status);
  add_reports (pool, status);
  add_alerts (pool, status);
  json_object_set_new (status, "activity", counters_activity (pool));
  json_object_set_new (status, "queues", counters_queues (pool));
  return status;
}
