/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "tools.h"

/* A volume in one line, then its snapshots, which have a time and no figures
 * of their own.
 */
static const char *const head[] = {
  "NAME", "SIZE", "BLOCK", "LOGICAL", "OWN", "CLIENTS", "TIME", "ORIGIN",
};
static const char align[] = "lrrrrrll";

enum { COLUMN_TIME = 6 };

static void
add_sizes (struct table *table, const json_t *volume)
{
  char buf[HUMAN_MAX];

  table_add (table, "%s", human_bytes (json_size (volume, "size"), buf));
  table_add (table, "%s", human_bytes (json_size (volume, "block_size"), buf));
  table_add (table, "%s",
             human_bytes (json_size (volume, "logical_bytes"), buf));
  table_add (table, "%s", human_bytes (json_size (volume, "own_bytes"), buf));
}

/* In this machine's time zone, as "ls" has it. */
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

static void
add_snapshots (struct table *table, const json_t *volume)
{
  json_t *snapshot;
  size_t i, column;

  json_array_foreach (json_object_get (volume, "snapshots"), i, snapshot) {
    table_add (table, "%s@%s", json_text (volume, "name"),
               json_text (snapshot, "name"));
    for (column = 1; column < COLUMN_TIME; ++column)
      table_add (table, "-");
    add_time (table, snapshot);
    table_add (table, "-");
  }
}

static void
print_list (const json_t *list)
{
  struct table *table = table_new (align);
  json_t *volume;
  size_t i;

  for (i = 0; i < sizeof head / sizeof head[0]; ++i)
    table_add (table, "%s", head[i]);
  json_array_foreach (json_object_get (list, "volumes"), i, volume) {
    table_add (table, "%s", json_text (volume, "name"));
    add_sizes (table, volume);
    table_add (table, "%" PRIu64, json_size (volume, "clients"));
    table_add (table, "-");
    table_add (table, "%s", json_text (volume, "origin"));
    add_snapshots (table, volume);
  }
  table_print (table);
}

int
cmd_list (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool };
  json_t *list;

  options_parse (&opts, argc, argv, NULL, NULL, "",
                 "List the pool's volumes and snapshots: their size and block "
                 "size, the bytes that are not holes, those of the volume's "
                 "own writable layer, the attached clients, the time of a "
                 "snapshot, and the snapshot that a clone came from.",
                 OPTIONS_READS | OPTIONS_JSON);
  list = run (&opts, NULL);
  if (list == NULL)
    return EXIT_FAILURE;
  if (opts.json)
    print_json (list);
  else
    print_list (list);
  json_decref (list);
  return EXIT_SUCCESS;
}
