/* SPDX-License-Identifier: BSD-3-Clause */

/* The present figures, as text.  Bytes first: after a trim the ratio gets worse
 * although more space is free, and administrators pay for bytes.
 */

#include <config.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "drift-report.h"
#include "tools.h"

static void
add_bytes (struct table *table, uint64_t bytes)
{
  char buf[HUMAN_MAX];

  table_add (table, "%s", drift_bytes (bytes, buf, sizeof buf));
}

static void
add_row (struct table *table, const char *name, const struct drift_clone *row)
{
  char bytes[HUMAN_MAX], percent[PERCENT_MAX];
  unsigned i;

  table_add (table, "%s", name);
  add_bytes (table, row->logical);
  for (i = 0; i < NR_CLASSES; ++i)
    table_add (table, "%s %5s",
               drift_bytes (row->class[i], bytes, sizeof bytes),
               drift_percent (row->class[i], row->logical, percent));
  add_bytes (table, row->zero);
}

static void
print_clones (const json_t *document, const struct drift_fleet *fleet)
{
  json_t *clones = json_sorted (json_object_get (document, "clones")), *clone;
  struct table *table = table_new ("lrrrrrrr");
  struct drift_clone row;
  size_t i;

  table_add (table, "CLONE");
  table_add (table, "LOGICAL");
  for (i = 0; i < NR_CLASSES; ++i)
    table_add (table, "%s", drift_classes[i].head);
  table_add (table, "ZERO");
  table_add (table, "ONLY-HERE");
  json_array_foreach (clones, i, clone) {
    drift_clone_read (document, clone, &row);
    add_row (table, json_text (clone, "name"), &row);
    add_bytes (table, row.only_here);
  }
  json_decref (clones);
  if (fleet->nr_clones > 1) {
    add_row (table, "all clones", &fleet->clones);
    /* Neither figure includes data that two clones share, so the sum would be
     * too small.
     */
    table_add (table, "-");
  }
  table_print (table);
}

/* "golden@v1 and 6 clones: 11.4 GiB logical, ..." */
static void
print_summary (const json_t *document, const struct drift_fleet *fleet)
{
  char logical[HUMAN_MAX], distinct[HUMAN_MAX], stored[HUMAN_MAX];
  char percent[PERCENT_MAX], nr[32] = "no";
  unsigned i;

  if (fleet->nr_clones > 0)
    snprintf (nr, sizeof nr, "%zu", fleet->nr_clones);
  printf ("%s and %s clone%s: %s logical, %s distinct (%s stored)\n",
          json_text (document, "golden"), nr, fleet->nr_clones == 1 ? "" : "s",
          human_bytes (fleet->logical, logical),
          human_bytes (fleet->distinct, distinct),
          human_bytes (fleet->stored, stored));
  if (fleet->clones.logical == 0)
    return;
  printf ("the clones' %s:", human_bytes (fleet->clones.logical, logical));
  for (i = 0; i < NR_CLASSES; ++i)
    printf ("%s %s %s", i == 0 ? "" : ",",
            drift_percent (fleet->clones.class[i], fleet->clones.logical,
                           percent),
            drift_classes[i].phrase);
  putchar ('\n');
}

static void
print_document (const json_t *document)
{
  struct drift_fleet fleet;

  drift_fleet_read (document, &fleet);
  print_summary (document, &fleet);
  if (json_object_get (document, "golden_merged"))
    printf ("the destroyed snapshot has merged with a clone: the oldest state "
            "that all of\nits clones still have in common stands for it\n");
  if (fleet.nr_clones > 0) {
    putchar ('\n');
    print_clones (document, &fleet);
  }
  if (!isnan (fleet.ratio))
    printf ("\ndedup ratio %.2f\n", fleet.ratio);
  if (fleet.nr_clones > 0)
    drift_write_outlook (stdout, document);
}

void
drift_print (const json_t *documents)
{
  json_t *document;
  size_t i;

  if (json_array_size (documents) == 0)
    printf ("no golden images: no volume is a clone of a snapshot\n");
  json_array_foreach (documents, i, document) {
    if (i > 0)
      putchar ('\n');
    print_document (document);
  }
}

static bool
has_name (const json_t *names, const char *name)
{
  json_t *other;
  size_t i;

  json_array_foreach (names, i, other)
    if (strcmp (json_string_value (other), name) == 0)
      return true;
  return false;
}

void
drift_print_freed (const json_t *freed, const json_t *asked)
{
  const json_t *names = json_object_get (freed, "names");
  char buf[HUMAN_MAX];
  json_t *name;
  size_t i, others = 0;

  printf ("destroying ");
  json_array_foreach (asked, i, name)
    printf ("%s%s", i == 0 ? "" : ", ", json_string_value (name));
  json_array_foreach (names, i, name)
    others += !has_name (asked, json_string_value (name));
  if (others > 0)
    printf (" (and %zu snapshot%s)", others, others == 1 ? "" : "s");
  printf (" gives back %s (stored)\n",
          human_bytes (json_size (freed, "freed_bytes"), buf));
}
