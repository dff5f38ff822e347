/* SPDX-License-Identifier: BSD-3-Clause */

/* For each document one row for each clone and one for the fleet, with the same
 * columns; those that do not apply are empty.  In a row of a fleet the classes
 * are sums over its clones, and "logical" includes the golden image.
 */

#include <config.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "drift-report.h"
#include "tools.h"

static void
print_text (const char *text)
{
  if (text[strcspn (text, ",\"\r\n")] == '\0') {
    fputs (text, stdout);
    return;
  }
  putchar ('"');
  for (; *text != '\0'; ++text) {
    if (*text == '"')
      putchar ('"');
    putchar (*text);
  }
  putchar ('"');
}

/* ISO 8601, in UTC, so that rows of different machines, and of summer and
 * winter, can be compared.
 */
static void
print_start (const json_t *document, const char *kind, const char *name)
{
  const time_t t = (time_t) json_size (document, "time");
  char buf[32];
  struct tm tm;

  print_text (json_text (document, "golden"));
  if (gmtime_r (&t, &tm) == NULL ||
      strftime (buf, sizeof buf, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
    buf[0] = '\0';
  printf (",%s,%s,", buf, kind);
  print_text (name);
}

static void
print_classes (uint64_t logical, const struct drift_clone *figures)
{
  unsigned i;

  printf (",%" PRIu64, logical);
  for (i = 0; i < NR_CLASSES; ++i)
    printf (",%" PRIu64, figures->class[i]);
  printf (",%" PRIu64, figures->zero);
}

/* Names change, and another image may get one. */
static void
print_end (const json_t *document)
{
  const json_t *id = json_object_get (document, "golden_id");

  if (id != NULL)
    printf (",%" JSON_INTEGER_FORMAT "\r\n", json_integer_value (id));
  else
    fputs (",\r\n", stdout);
}

static void
print_document (const json_t *document)
{
  struct drift_fleet fleet;
  struct drift_clone row;
  json_t *clone;
  size_t i;

  json_array_foreach (json_object_get (document, "clones"), i, clone) {
    drift_clone_read (document, clone, &row);
    print_start (document, "clone", json_text (clone, "name"));
    print_classes (row.logical, &row);
    printf (",%" PRIu64 ",,,,", row.only_here);
    print_end (document);
  }
  drift_fleet_read (document, &fleet);
  print_start (document, "fleet", "");
  print_classes (fleet.logical, &fleet.clones);
  printf (",,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",", fleet.golden,
          fleet.distinct, fleet.stored);
  if (!isnan (fleet.ratio))
    printf ("%.17g", fleet.ratio);
  print_end (document);
}

void
drift_print_csv (const json_t *documents)
{
  json_t *document;
  unsigned i;
  size_t j;

  fputs ("golden,time,kind,name,logical_bytes", stdout);
  for (i = 0; i < NR_CLASSES; ++i)
    printf (",%s_bytes", drift_classes[i].key);
  fputs (",zero_bytes,only_here_bytes,golden_bytes,distinct_bytes,"
         "stored_bytes,dedup_ratio,golden_id\r\n",
         stdout);
  json_array_foreach (documents, j, document)
    print_document (document);
}
