/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/array.h"
#include "tools.h"

enum { KEY_TREE = 0x2000 };

#define NAME_LEN_MAX 255 /* of a volume */

static const struct argp_option options[] = {
  { "tree", KEY_TREE, NULL, 0,
    "Each clone below the snapshot that it came from", 0 },
  { 0 }
};

struct list_options {
  struct options common; /* first: parsers get a pointer to it */
  bool tree;
};

static const char *const head[] = {
  "NAME", "SIZE", "BLOCK", "LOGICAL", "OWN", "CLIENTS", "TIME", "ORIGIN",
};
static const char align[] = "lrrrrrll";

enum { NR_COLUMNS = sizeof head / sizeof head[0] };

/* A line of the list: a volume, a snapshot, or a snapshot that was destroyed
 * while its clones live.
 */
struct entry {
  char *name;             /* owned; "volume", "volume@snapshot" */
  const json_t *volume;   /* a snapshot's: its own; NULL: destroyed */
  const json_t *snapshot; /* NULL: a volume */
  const char *below;      /* the name of the entry that it is below, or
                                 * NULL; borrowed */
  struct entry *parent, *child, *next;
};

struct entries {
  struct entry *p; /* owned */
  size_t nr;
};

static struct entry *
add_entry (struct entries *list, const char *fmt, ...)
{
  struct entry *e = check_memory (array_add (&list->p, &list->nr, sizeof *e));
  va_list ap;

  va_start (ap, fmt);
  e->name = make_string_va (fmt, ap);
  va_end (ap);
  return e;
}

static void
free_entries (struct entries *list)
{
  size_t i;

  for (i = 0; i < list->nr; ++i)
    free (list->p[i].name);
  free (list->p);
}

/* desk2 comes before desk10; each snapshot follows its volume. */
static int
compare_names (const char *a, const char *b)
{
  const size_t len_a = strcspn (a, "@"), len_b = strcspn (b, "@");
  char volume_a[NAME_LEN_MAX + 1], volume_b[NAME_LEN_MAX + 1];
  int r;

  snprintf (volume_a, sizeof volume_a, "%.*s", (int) len_a, a);
  snprintf (volume_b, sizeof volume_b, "%.*s", (int) len_b, b);
  r = strverscmp (volume_a, volume_b);
  return r ? r : strverscmp (a + len_a, b + len_b);
}

static int
compare_entries (const void *a, const void *b)
{
  return compare_names (((const struct entry *) a)->name,
                        ((const struct entry *) b)->name);
}

static void
sort_entries (struct entries *list)
{
  if (list->nr > 0) /* if 0, p is NULL */
    qsort (list->p, list->nr, sizeof *list->p, compare_entries);
}

static void
collect (struct entries *list, const json_t *volumes)
{
  const json_t *volume, *snapshot;
  struct entry *e;
  size_t i, j;

  json_array_foreach (volumes, i, volume) {
    e = add_entry (list, "%s", json_text (volume, "name"));
    e->volume = volume;
    e->below = json_string_value (json_object_get (volume, "origin"));
    json_array_foreach (json_object_get (volume, "snapshots"), j, snapshot) {
      e = add_entry (list, "%s@%s", json_text (volume, "name"),
                     json_text (snapshot, "name"));
      e->volume = volume;
      e->snapshot = snapshot;
      e->below = json_text (volume, "name");
    }
  }
  sort_entries (list);
}

/*----------------------------------------------------------------------
 * The tree
 */

static struct entry *
find (const struct entries *list, size_t nr, const char *name)
{
  const struct entry key = { .name = (char *) name };

  return bsearch (&key, list->p, nr, sizeof *list->p, compare_entries);
}

/* Sorted, equal ones are neighbours; the one that is kept says what it is
 * below, if one of them does.
 */
static void
drop_repeated (struct entries *list)
{
  size_t i, kept = 0;

  for (i = 0; i < list->nr; ++i)
    if (kept > 0 && strcmp (list->p[i].name, list->p[kept - 1].name) == 0) {
      if (list->p[kept - 1].below == NULL)
        list->p[kept - 1].below = list->p[i].below;
      free (list->p[i].name);
    }
    else
      list->p[kept++] = list->p[i];
  list->nr = kept;
}

/* Add a line for each destroyed origin, above all that descends from it. */
static void
add_destroyed (struct entries *list, const json_t *destroyed)
{
  const size_t nr = list->nr;
  const json_t *snapshot;
  const char *below;
  struct entry *e;
  size_t i;

  json_array_foreach (destroyed, i, snapshot) {
    e = add_entry (list, "%s", json_text (snapshot, "name"));
    e->below = json_string_value (json_object_get (snapshot, "origin"));
  }
  /* A server of another version may not tell. */
  for (i = 0; i < nr; ++i) {
    below = list->p[i].below;
    if (below != NULL && find (list, nr, below) == NULL)
      add_entry (list, "%s", below);
  }
  sort_entries (list);
  drop_repeated (list);
}

/* Several destroyed snapshots may have had one name. */
static bool
is_below (const struct entry *e, const struct entry *top)
{
  while (e != NULL && e != top)
    e = e->parent;
  return e != NULL;
}

/* Backwards, so that children are in the order of the list. */
static void
link_entries (struct entries *list)
{
  struct entry *e, *parent;
  size_t i;

  for (i = list->nr; i-- > 0;) {
    e = &list->p[i];
    parent = e->below ? find (list, list->nr, e->below) : NULL;
    if (parent && !is_below (parent, e)) {
      e->parent = parent;
      e->next = e->parent->child;
      e->parent->child = e;
    }
  }
}

/* The one that follows in the tree. */
static const struct entry *
next_in_tree (const struct entry *e, unsigned *depth)
{
  if (e->child) {
    ++*depth;
    return e->child;
  }
  while (e->next == NULL && e->parent) {
    --*depth;
    e = e->parent;
  }
  return e->next;
}

/*----------------------------------------------------------------------*/

/* In this machine's time zone, like "ls". */
static void
add_time (struct table *table, const json_t *snapshot)
{
  const time_t t = (time_t) json_size (snapshot, "time");
  char buf[32];
  struct tm tm;

  if (localtime_r (&t, &tm) == NULL ||
      strftime (buf, sizeof buf, "%Y-%m-%d %H:%M:%S", &tm) == 0)
    table_add (table, "-");
  else
    table_add (table, "%s", buf);
}

/* More than one client writes, which is nearly always a mistake. */
static void
add_clients (struct table *table, const json_t *of)
{
  const uint64_t clients = json_size (of, "clients");
  const uint64_t writers = json_size (of, "writers");

  if (writers > 1)
    table_add (table, "%" PRIu64 " (%" PRIu64 " write)", clients, writers);
  else
    table_add (table, "%" PRIu64, clients);
}

static void
add_origin (struct table *table, const json_t *volume)
{
  if (!json_is_true (json_object_get (volume, "importing")))
    table_add (table, "%s", json_text (volume, "origin"));
  else if (json_size (volume, "clients") > 0)
    table_add (table, "- (is being imported)");
  else
    table_add (table, "- (unfinished import: remove it with nbdedup destroy)");
}

static void
add_line (struct table *table, const struct entry *e, unsigned depth)
{
  const json_t *of = e->snapshot ? e->snapshot : e->volume;
  char buf[HUMAN_MAX];
  unsigned i;

  table_add (table, "%*s%s", (int) (2 * depth), "", e->name);
  if (e->volume == NULL) {
    for (i = 1; i < NR_COLUMNS; ++i)
      table_add (table, "-");
    return;
  }
  table_add (table, "%s", human_bytes (json_size (of, "size"), buf));
  table_add (table, "%s",
             human_bytes (json_size (e->volume, "block_size"), buf));
  table_add (table, "%s", human_bytes (json_size (of, "logical_bytes"), buf));
  table_add (table, "%s", human_bytes (json_size (of, "own_bytes"), buf));
  add_clients (table, of);
  if (e->snapshot) {
    add_time (table, e->snapshot);
    table_add (table, "-");
  }
  else {
    table_add (table, "-");
    add_origin (table, e->volume);
  }
}

static void
print_list (const json_t *result, bool tree)
{
  struct table *table = table_new (align);
  struct entries list = { NULL };
  const struct entry *e;
  unsigned depth;
  size_t i;

  for (i = 0; i < NR_COLUMNS; ++i)
    table_add (table, "%s", head[i]);
  collect (&list, json_object_get (result, "volumes"));
  if (tree) {
    add_destroyed (&list, json_object_get (result, "destroyed"));
    link_entries (&list);
  }
  for (i = 0; i < list.nr; ++i) {
    depth = 0;
    if (tree && list.p[i].parent)
      continue; /* its line is below that */
    for (e = &list.p[i]; e; e = tree ? next_in_tree (e, &depth) : NULL)
      add_line (table, e, depth);
  }
  table_print (table);
  free_entries (&list);
}

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct list_options *opts = state->input;

  (void) arg;
  if (key != KEY_TREE)
    return ARGP_ERR_UNKNOWN;
  opts->tree = true;
  return 0;
}

int
cmd_list (int argc, char **argv, const char *pool)
{
  struct list_options opts = { .common = { .pool = pool } };
  json_t *list;

  options_parse (&opts.common, argc, argv, options, parse, "",
                 "List the pool's volumes and snapshots: their size and block "
                 "size, the bytes that are not holes, those of their own "
                 "layer, the attached clients, the time of a snapshot, and "
                 "the snapshot that a clone came from.",
                 OPTIONS_READS | OPTIONS_JSON);
  if (opts.tree && opts.common.json)
    usage_error (&opts.common, "--tree or --json, not both");
  list = run (&opts.common, NULL);
  if (list == NULL)
    return EXIT_FAILURE;
  if (opts.common.json)
    print_json (list);
  else
    print_list (list, opts.tree);
  json_decref (list);
  return EXIT_SUCCESS;
}
