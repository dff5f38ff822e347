/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "tools.h"

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

static void
print_list (const json_t *list)
{
  static const char *const head[] = {
    "NAME", "SIZE", "BLOCK", "LOGICAL", "OWN", "CLIENTS", "ORIGIN",
  };
  struct table *table = table_new ("lrrrrrl");
  json_t *volume, *snapshot;
  size_t i, j;

  for (i = 0; i < sizeof head / sizeof head[0]; ++i)
    table_add (table, "%s", head[i]);
  json_array_foreach (json_object_get (list, "volumes"), i, volume) {
    table_add (table, "%s", json_text (volume, "name"));
    add_sizes (table, volume);
    table_add (table, "%" PRIu64, json_size (volume, "clients"));
    table_add (table, "%s", json_text (volume, "origin"));
    json_array_foreach (json_object_get (volume, "snapshots"), j, snapshot) {
      table_add (table, "%s@%s", json_text (volume, "name"),
                 json_text (snapshot, "name"));
      for (size_t k = 1; k < sizeof head / sizeof head[0]; ++k)
        table_add (table, "-");
    }
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
                 "own writable layer, the attached clients, and the snapshot "
                 "that a clone came from.", OPTIONS_POOL | OPTIONS_JSON);
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
