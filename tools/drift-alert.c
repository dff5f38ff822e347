/* SPDX-License-Identifier: BSD-3-Clause */

/* The present alerts, as text and as metrics. */

#include <config.h>

#include <stdio.h>
#include <string.h>

#include "drift-metrics.h"
#include "drift-report.h"
#include "metrics.h"
#include "tools.h"

void
drift_print_alerts (const json_t *alerts)
{
  char since[64];
  json_t *alert, *document;
  size_t i;

  json_array_foreach (alerts, i, alert) {
    document = check_memory (
      json_pack ("{s:O}", "time", json_object_get (alert, "since")));
    printf ("%s (since %s): see %s\n", json_text (alert, "text"),
            drift_time (document, "%Y-%m-%d %H:%M", since, sizeof since),
            json_text (alert, "command"));
    json_decref (document);
  }
}

static bool
is_asked (const json_t *alert, const char *name)
{
  return name == NULL ||
    strcmp (json_text (alert, strchr (name, '@') ? "golden" : "clone"), name) ==
    0;
}

/* Names need no escaping (drift-metrics.c). */
void
drift_alert_metrics_print (const json_t *alerts, const char *name)
{
  const char *clone;
  bool head = false;
  json_t *alert;
  char *labels;
  size_t i;

  json_array_foreach (alerts, i, alert) {
    if (!is_asked (alert, name))
      continue;
    if (!head)
      metric_head ("drift_alert", "gauge",
                   "The newest sample is beyond a threshold; the command "
                   "nbdedup drift NAME@SNAP explains it");
    head = true;
    clone = json_string_value (json_object_get (alert, "clone"));
    labels = make_string ("golden=\"%s\"%s%s%s,kind=\"%s\"",
                          json_text (alert, "golden"), clone ? ",clone=\"" : "",
                          clone ? clone : "", clone ? "\"" : "",
                          json_text (alert, "kind"));
    metric_integer ("drift_alert", labels, 1);
    free (labels);
  }
}
