/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>
#include <string.h>

#include "properties.h"
#include "tools.h"

static void
print_properties (const struct options *opts, json_t *properties)
{
  const bool all = strcmp (opts->args[0], "all") == 0;
  struct table *table = table_new ("ll");
  const char *key;
  json_t *value;

  if (all) {
    table_add (table, "PROPERTY");
    table_add (table, "VALUE");
  }
  json_object_foreach (properties, key, value) {
    const char *text = json_string_value (value);

    if (all) {
      table_add (table, "%s", key);
      table_add (table, "%s", text ? text : "-");
    }
    else
      printf ("%s\n", text ? text : "-");
  }
  table_print (table);
}

int
cmd_get (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool, .min_args = 1, .max_args = 2 };
  json_t *result;

  options_parse (
    &opts, argc, argv, NULL, NULL, "PROPERTY|all [NAME]",
    "Show a property's value, or all properties, of volume NAME, "
    "or of the pool. Sizes are bytes, as 'set' takes them." PROPERTIES_DOC,
    OPTIONS_READS | OPTIONS_JSON);
  result = run (&opts,
                pack_args (&opts, "{s:s, s:s*}", "property", opts.args[0],
                           "name", opts.args[1]));
  if (result == NULL)
    return EXIT_FAILURE;
  if (opts.json)
    print_json (result);
  else
    print_properties (&opts, json_object_get (result, "properties"));
  json_decref (result);
  return EXIT_SUCCESS;
}
