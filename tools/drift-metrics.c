/* SPDX-License-Identifier: BSD-3-Clause */

/* All samples of one metric must follow its head, so each metric needs a walk
 * through all documents.
 */

#include <config.h>

#include <string.h>

#include "drift-metrics.h"
#include "drift-report.h"
#include "metrics.h"
#include "tools.h"

struct sample {
  const json_t *document;
  struct drift_fleet fleet;
};

/*----------------------------------------------------------------------
 * Of a golden image
 */

static double
get_time (const struct sample *s)
{
  return json_size (s->document, "time");
}

static double
get_clones (const struct sample *s)
{
  return s->fleet.nr_clones;
}

static double
get_golden (const struct sample *s)
{
  return s->fleet.golden;
}

static double
get_logical (const struct sample *s)
{
  return s->fleet.logical;
}

static double
get_distinct (const struct sample *s)
{
  return s->fleet.distinct;
}

static double
get_stored (const struct sample *s)
{
  return s->fleet.stored;
}

static double
get_ratio (const struct sample *s)
{
  return s->fleet.ratio;
}

static const struct fleet_metric {
  const char *name, *help;
  double (*get) (const struct sample *s);
} fleet_metrics[] = {
  { "drift_sample_timestamp_seconds",
    "When the newest sample of the golden image was taken", get_time },
  { "drift_clones", "Clones that it found", get_clones },
  { "drift_golden_bytes", "Blocks of the golden image that are not zero",
    get_golden },
  { "drift_logical_bytes",
    "Blocks of the golden image and its clones that are not zero",
    get_logical },
  { "drift_distinct_bytes", "Different contents among them, before compression",
    get_distinct },
  { "drift_distinct_stored_bytes", "Sectors that these take", get_stored },
  { "drift_dedup_ratio", "Logical bytes by distinct bytes", get_ratio },
};

#define NR(array) (sizeof (array) / sizeof (array)[0])

static void
print_fleet_metric (const struct fleet_metric *m, const struct sample *samples,
                    size_t nr)
{
  char *labels;
  size_t i;

  metric_head (m->name, "gauge", m->help);
  for (i = 0; i < nr; ++i) {
    labels = make_string ("golden=\"%s\"",
                          json_text (samples[i].document, "golden"));
    metric_real (m->name, labels, m->get (&samples[i]));
    free (labels);
  }
}

/*----------------------------------------------------------------------
 * Of a clone
 */

static void
print_class (const char *labels, const char *class, uint64_t bytes)
{
  char *all = make_string ("%s,class=\"%s\"", labels, class);

  metric_integer ("drift_clone_bytes", all, bytes);
  free (all);
}

static void
print_classes (const struct drift_clone *figures, const char *labels)
{
  unsigned i;

  for (i = 0; i < NR_CLASSES; ++i)
    print_class (labels, drift_classes[i].key, figures->class[i]);
  print_class (labels, "zero", figures->zero);
}

static void
print_only_here (const struct drift_clone *figures, const char *labels)
{
  metric_integer ("drift_clone_only_here_bytes", labels, figures->only_here);
}

/* 'clone' NULL: all clones. */
static void
print_clones (const struct sample *samples, size_t nr, const char *clone,
              void (*print) (const struct drift_clone *figures,
                             const char *labels))
{
  struct drift_clone figures;
  const json_t *list;
  json_t *one;
  char *labels;
  size_t i, j;

  for (i = 0; i < nr; ++i) {
    list = json_object_get (samples[i].document, "clones");
    json_array_foreach (list, j, one) {
      if (clone != NULL && strcmp (clone, json_text (one, "name")) != 0)
        continue;
      labels = make_string ("golden=\"%s\",clone=\"%s\"",
                            json_text (samples[i].document, "golden"),
                            json_text (one, "name"));
      drift_clone_read (samples[i].document, one, &figures);
      print (&figures, labels);
      free (labels);
    }
  }
}

/*----------------------------------------------------------------------*/

static bool
is_asked (const json_t *document, const char *golden, const char *clone)
{
  if (golden != NULL)
    return strcmp (json_text (document, "golden"), golden) == 0;
  return clone == NULL || drift_find_clone (document, clone) != NULL;
}

void
drift_metrics_print (const json_t *documents, const char *name)
{
  const bool is_golden = name != NULL && strchr (name, '@') != NULL;
  const char *golden = is_golden ? name : NULL;
  const char *clone = is_golden ? NULL : name;
  struct sample *samples;
  json_t *document;
  size_t nr = 0, i;

  samples = check_memory (
    calloc (json_array_size (documents) + 1, sizeof *samples));
  json_array_foreach (documents, i, document)
    if (is_asked (document, golden, clone)) {
      samples[nr].document = document;
      drift_fleet_read (document, &samples[nr++].fleet);
    }
  if (nr > 0) {
    for (i = 0; i < NR (fleet_metrics); ++i)
      print_fleet_metric (&fleet_metrics[i], samples, nr);
    metric_head ("drift_clone_bytes", "gauge", "What a clone's blocks are");
    print_clones (samples, nr, clone, print_classes);
    metric_head ("drift_clone_only_here_bytes", "gauge",
                 "What destroying this clone alone would give back");
    print_clones (samples, nr, clone, print_only_here);
  }
  free (samples);
}
