/* SPDX-License-Identifier: BSD-3-Clause */

/* The document of "status" as metrics.  What is null there has no sample. */

#include <config.h>

#include <stdio.h>
#include <string.h>

#include "metrics.h"
#include "tools.h"

#define NR(array) (sizeof (array) / sizeof (array)[0])

enum kind {
  NUMBER,
  PERCENT, /* printed as a ratio */
  FLAG,    /* a boolean: 1 or 0 */
};

static const struct metric {
  const char *object, *key; /* in the document */
  enum kind kind;
  const char *name, *type, *help;
} metrics[] = {
  { "space", "used_bytes", NUMBER, "pool_used_bytes", "gauge",
    "Sectors of records that are in use" },
  { "space", "free_bytes", NUMBER, "pool_free_bytes", "gauge",
    "Free space on the file system of the records file" },
  { "space", "metadata_free_bytes", NUMBER, "pool_metadata_free_bytes", "gauge",
    "Free space on the file system of the pool's other files" },
  { "space", "max_size", NUMBER, "pool_max_size_bytes", "gauge",
    "The property max-size, if it is set" },
  { "space", "used_percent", PERCENT, "pool_used_ratio", "gauge",
    "Used part of the space that is nearest to its end" },
  { "space", "full_warn", PERCENT, "pool_full_warn_ratio", "gauge",
    "The property full-warn" },
  { "space", "full", FLAG, "pool_full", "gauge",
    "Whether the pool refuses new data" },
  { "damage", "stopped", FLAG, "pool_stopped", "gauge",
    "Whether the pool stopped after a failed write" },
  { "damage", "damaged_records", NUMBER, "pool_damaged_records", "gauge",
    "Damaged records that the last scrub found" },
  { "damage", "lost_blocks", NUMBER, "pool_lost_blocks", "gauge",
    "Blocks whose content is lost" },
  { "damage", "damaged_segments", NUMBER, "pool_damaged_segments", "gauge",
    "Segments that the pool no longer uses as their maps are damaged" },
  { "scrub", "time", NUMBER, "last_scrub_timestamp_seconds", "gauge",
    "When the last scrub ended" },
  { "scrub", "errors", NUMBER, "last_scrub_errors", "gauge",
    "Errors that it found" },
  { "scrub", "records", NUMBER, "last_scrub_records", "gauge",
    "Records that it verified" },
  { "scrub", "repaired_records", NUMBER, "last_scrub_repaired_records", "gauge",
    "Damaged records that it rewrote" },
  { "scrub", "metadata_errors", NUMBER, "last_scrub_metadata_errors", "gauge",
    "Pages of pool.db that it found damaged in all copies" },
  { "scrub_progress", "running", FLAG, "scrub_running", "gauge",
    "Whether a scrub runs; 0: one was stopped before its end" },
  { "scrub_progress", "records", NUMBER, "scrub_progress_records", "gauge",
    "Records that it has verified so far" },
  { "scrub_progress", "total", NUMBER, "scrub_progress_total_records", "gauge",
    "Records that it has to verify" },
  { "recovery", "time", NUMBER, "last_recovery_timestamp_seconds", "gauge",
    "When the pool was last recovered from a crash" },
  { "recovery", "dropped_blocks", NUMBER, "last_recovery_dropped_blocks",
    "gauge", "Blocks whose writes, not flushed, that recovery dropped" },
  { "recovery", "lost_blocks", NUMBER, "last_recovery_lost_blocks", "gauge",
    "Blocks that damage of the journal cost" },
  { "copies", "waiting", NUMBER, "copies_waiting_records", "gauge",
    "Records that are still to be copied" },
  { "copies", "reads", NUMBER, "copy_reads_total", "counter",
    "Reads of damaged records that a copy answered" },
  { "metadata_copy", "pages_taken", NUMBER, "metadata_pages_taken_total",
    "counter", "Damaged pages of pool.db that were read from the other copy" },
};

static void
print_metric (const struct metric *m, const json_t *value)
{
  if (value == NULL || json_is_null (value))
    return;
  metric_head (m->name, m->type, m->help);
  switch (m->kind) {
  case NUMBER:
    metric_json (m->name, NULL, value);
    break;
  case PERCENT:
    metric_real (m->name, NULL, json_number_value (value) / 100);
    break;
  case FLAG:
    metric_integer (m->name, NULL, json_is_true (value));
    break;
  }
}

/* One sample for each value that it may have: 1 for the present one. */
static void
print_states (const char *name, const char *help, const char *const *states,
              size_t nr, const char *now)
{
  char *labels;
  size_t i;

  metric_head (name, "gauge", help);
  for (i = 0; i < nr; ++i) {
    labels = make_string ("state=\"%s\"", states[i]);
    metric_integer (name, labels, strcmp (states[i], now) == 0);
    free (labels);
  }
}

void
status_metrics_print (const json_t *status)
{
  static const char *const states[] = { "ok", "warning", "critical" };
  static const char *const copies[] = {
    "off",
    "building",
    "current",
    "lost",
  };
  const json_t *copy = json_object_get (status, "metadata_copy");
  const struct metric *m;
  size_t i;

  print_states ("pool_state", "The state that nbdedup status reports", states,
                NR (states), json_text (status, "state"));
  for (i = 0; i < NR (metrics); ++i) {
    m = &metrics[i];
    print_metric (m,
                  json_object_get (json_object_get (status, m->object),
                                   m->key));
  }
  if (json_is_object (copy))
    print_states ("metadata_copy_state", "The second copy of pool.db", copies,
                  NR (copies), json_text (copy, "state"));
}
