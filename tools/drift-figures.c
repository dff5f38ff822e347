/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "drift-report.h"
#include "tools.h"

const struct drift_class drift_classes[NR_CLASSES] = {
  [CLASS_GOLDEN_SAME] = { "golden_same", "SAME", "as in the golden image" },
  [CLASS_GOLDEN_MOVED] = { "golden_moved", "MOVED", "moved" },
  [CLASS_SIBLING] = { "sibling", "SIBLING", "only among siblings" },
  [CLASS_UNIQUE] = { "unique", "UNIQUE", "unique" },
};

static uint64_t
blocks (const json_t *document, const json_t *object, const char *key)
{
  return json_size (object, key) * json_size (document, "block_size");
}

void
drift_clone_read (const json_t *document, const json_t *clone,
                  struct drift_clone *figures)
{
  unsigned i;

  figures->logical = blocks (document, clone, "logical");
  figures->zero = blocks (document, clone, "zero");
  for (i = 0; i < NR_CLASSES; ++i)
    figures->class[i] = blocks (document, clone, drift_classes[i].key);
  figures->only_here = json_size (clone, "only_here_bytes");
}

void
drift_fleet_read (const json_t *document, struct drift_fleet *figures)
{
  const json_t *fleet = json_object_get (document, "fleet");
  const json_t *ratio = json_object_get (fleet, "dedup_ratio");
  struct drift_clone *sum = &figures->clones;
  struct drift_clone one;
  json_t *clone;
  size_t i, j;

  memset (figures, 0, sizeof *figures);
  figures->golden = blocks (document, document, "golden_blocks");
  figures->logical = blocks (document, fleet, "logical");
  figures->distinct = blocks (document, fleet, "distinct");
  figures->stored = json_size (fleet, "distinct_stored_bytes");
  figures->ratio = json_is_number (ratio) ? json_number_value (ratio) : NAN;
  json_array_foreach (json_object_get (document, "clones"), i, clone) {
    drift_clone_read (document, clone, &one);
    figures->nr_clones++;
    sum->logical += one.logical;
    sum->zero += one.zero;
    for (j = 0; j < NR_CLASSES; ++j)
      sum->class[j] += one.class[j];
  }
}

uint64_t
drift_diverged (const struct drift_clone *figures)
{
  return figures->class[CLASS_SIBLING] + figures->class[CLASS_UNIQUE];
}

bool
drift_same_golden (const json_t *a, const json_t *b)
{
  const json_t *id = json_object_get (a, "golden_id");
  const json_t *other = json_object_get (b, "golden_id");

  return id != NULL && other != NULL
    ? json_equal (id, other)
    : strcmp (json_text (a, "golden"), json_text (b, "golden")) == 0;
}

/* Clones are sorted by name; otherwise the search only takes longer. */
const json_t *
drift_find_clone (const json_t *document, const char *name)
{
  const json_t *clones = json_object_get (document, "clones");
  size_t low = 0, high = json_array_size (clones), i;
  json_t *clone;
  int r;

  while (low < high) {
    i = low + (high - low) / 2;
    clone = json_array_get (clones, i);
    r = strcmp (name, json_text (clone, "name"));
    if (r == 0)
      return clone;
    if (r < 0)
      high = i;
    else
      low = i + 1;
  }
  json_array_foreach (clones, i, clone)
    if (strcmp (json_text (clone, "name"), name) == 0)
      return clone;
  return NULL;
}

struct ranked {
  json_t *clone;
  uint64_t diverged;
};

static int
compare_ranked (const void *pa, const void *pb)
{
  const struct ranked *a = pa, *b = pb;

  if (a->diverged != b->diverged)
    return a->diverged > b->diverged ? -1 : 1;
  return strverscmp (json_text (a->clone, "name"),
                     json_text (b->clone, "name"));
}

json_t *
drift_by_divergence (const json_t *document)
{
  const json_t *list = json_object_get (document, "clones");
  const size_t nr = json_array_size (list);
  struct ranked *ranked = check_memory (calloc (nr + 1, sizeof *ranked));
  json_t *sorted = check_memory (json_array ()), *clone;
  struct drift_clone figures;
  size_t i;

  json_array_foreach (list, i, clone) {
    drift_clone_read (document, clone, &figures);
    ranked[i] = (struct ranked) { clone, drift_diverged (&figures) };
  }
  qsort (ranked, nr, sizeof *ranked, compare_ranked);
  for (i = 0; i < nr; ++i)
    json_array_append (sorted, ranked[i].clone);
  free (ranked);
  return sorted;
}

const char *
drift_percent (uint64_t part, uint64_t whole, char buf[PERCENT_MAX])
{
  const double percent = whole == 0 ? 0 : part * 100.0 / whole;

  if (whole == 0)
    strcpy (buf, "-");
  else if (part > 0 && percent < 0.5)
    strcpy (buf, "<1 %");
  else if (part < whole && percent >= 99.5)
    strcpy (buf, ">99 %");
  else
    snprintf (buf, PERCENT_MAX, "%.0f %%", percent);
  return buf;
}

const char *
drift_bytes (uint64_t bytes, char *buf, size_t len)
{
  char human[HUMAN_MAX];
  char *unit;

  human_bytes (bytes, human);
  unit = strchr (human, ' ');
  *unit++ = '\0';
  snprintf (buf, len, "%s%.1s", human, unit);
  return buf;
}

const char *
drift_time (const json_t *document, const char *format, char *buf, size_t len)
{
  const time_t t = (time_t) json_size (document, "time");
  struct tm tm;

  if (localtime_r (&t, &tm) == NULL || strftime (buf, len, format, &tm) == 0)
    snprintf (buf, len, "-");
  return buf;
}

/*----------------------------------------------------------------------
 * Histories
 */

json_t *
drift_newest (const json_t *history)
{
  return json_array_get (history, json_array_size (history) - 1);
}

static json_t *
find_history (const json_t *histories, const json_t *document)
{
  json_t *history;
  size_t i;

  json_array_foreach (histories, i, history)
    if (drift_same_golden (drift_newest (history), document))
      return history;
  return NULL;
}

/* Behind those of the same name. */
static void
insert_by_name (json_t *histories, json_t *history)
{
  const char *name = json_text (drift_newest (history), "golden");
  json_t *other;
  size_t i;

  json_array_foreach (histories, i, other)
    if (strcmp (json_text (drift_newest (other), "golden"), name) > 0)
      break;
  json_array_insert (histories, i, history);
}

json_t *
drift_histories (const json_t *samples)
{
  json_t *found = check_memory (json_array ());
  json_t *histories = check_memory (json_array ());
  json_t *document, *history;
  size_t i;

  json_array_foreach (samples, i, document) {
    history = find_history (found, document);
    if (history == NULL) {
      history = check_memory (json_array ());
      json_array_append_new (found, history);
    }
    json_array_append (history, document);
  }
  json_array_foreach (found, i, history)
    insert_by_name (histories, history);
  json_decref (found);
  return histories;
}

/* The documents are nearly always in order. */
json_t *
drift_by_time (const json_t *history)
{
  json_t *sorted = check_memory (json_array ());
  json_t *document;
  size_t i, j;

  json_array_foreach (history, i, document) {
    for (j = i; j > 0; --j)
      if (json_size (json_array_get (sorted, j - 1), "time") <=
          json_size (document, "time"))
        break;
    json_array_insert (sorted, j, document);
  }
  return sorted;
}

json_t *
drift_documents (json_t *answer)
{
  json_t *goldens = json_object_get (answer, "goldens");
  json_t *documents;

  if (goldens != NULL)
    return json_incref (goldens);
  documents = check_memory (json_array ());
  json_array_append (documents, answer);
  return documents;
}
