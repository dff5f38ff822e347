/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>
#include <string.h>

#include "drift-files.h"

#define FILES_SHOWN 15
#define PACKAGES_SHOWN 8

static uint64_t
bytes_of (const json_t *entry)
{
  return json_size (entry, "sibling") + json_size (entry, "unique");
}

static void
add_row (struct table *table, const json_t *entry, const char *key)
{
  char buf[HUMAN_MAX];

  table_add (table, "  %s", json_text (entry, key));
  table_add (table, "%s", human_bytes (json_size (entry, "unique"), buf));
  table_add (table, "%s", human_bytes (json_size (entry, "sibling"), buf));
}

/* The first entries of a list, and how many more there are. */
static void
print_list (const json_t *list, const char *key, const char *head, size_t shown)
{
  const size_t nr = json_array_size (list);
  struct table *table = table_new ("lrr");
  json_t *entry;
  size_t i;

  table_add (table, "  %s", head);
  table_add (table, "UNIQUE");
  table_add (table, "SIBLING");
  json_array_foreach (list, i, entry)
    if (i < shown)
      add_row (table, entry, key);
  table_print (table);
  if (nr > shown)
    printf ("  ... and %zu more: --json shows all\n", nr - shown);
}

static const json_t *
find_package (const json_t *clone, const char *name)
{
  json_t *entry;
  size_t i;

  json_array_foreach (json_object_get (clone, "packages"), i, entry)
    if (strcmp (json_text (entry, "package"), name) == 0)
      return entry;
  return NULL;
}

/* How many clones have a package's data together with others? */
static size_t
count_sharing (const json_t *document, const char *name)
{
  json_t *clone;
  size_t i, nr = 0;

  json_array_foreach (json_object_get (document, "clones"), i, clone)
    nr += json_size (find_package (clone, name), "sibling") > 0;
  return nr;
}

static void
print_packages (const json_t *document, const json_t *clone)
{
  const json_t *packages = json_object_get (clone, "packages");
  const size_t nr = json_array_size (packages);
  char buf[HUMAN_MAX];
  json_t *entry;
  size_t i, sharing;

  if (nr == 0)
    return;
  printf ("  packages:");
  json_array_foreach (packages, i, entry) {
    if (i == PACKAGES_SHOWN)
      break;
    printf ("%s %s %s", i > 0 ? "," : "", json_text (entry, "package"),
            human_bytes (bytes_of (entry), buf));
    sharing = json_size (entry, "sibling") == 0
      ? 0
      : count_sharing (document, json_text (entry, "package"));
    if (sharing > 1)
      printf (" (the same on %zu clones)", sharing);
  }
  if (nr > PACKAGES_SHOWN)
    printf (", and %zu more", nr - PACKAGES_SHOWN);
  putchar ('\n');
}

static void
print_notes (const json_t *clone)
{
  json_t *line;
  size_t i;

  json_array_foreach (json_object_get (clone, "notes"), i, line)
    printf ("  note: %s\n", json_string_value (line));
}

static void
print_clone (const json_t *document, const json_t *clone)
{
  const json_t *files = json_object_get (clone, "files");

  if (json_array_size (files) == 0) {
    printf ("\n%s has nothing that %s lacks\n", json_text (clone, "name"),
            json_text (document, "golden"));
    return;
  }
  printf ("\n%s, why:\n", json_text (clone, "name"));
  print_list (json_object_get (clone, "causes"), "cause", "CAUSE", 100);
  print_packages (document, clone);
  putchar ('\n');
  print_list (files, "path", "PATH", FILES_SHOWN);
  print_notes (clone);
}

void
drift_files_print (const json_t *documents)
{
  json_t *document, *clone;
  size_t i, j;

  json_array_foreach (documents, i, document) {
    if (json_array_size (documents) > 1)
      printf ("\n%s\n", json_text (document, "golden"));
    json_array_foreach (json_object_get (document, "clones"), j, clone)
      print_clone (document, clone);
  }
}
