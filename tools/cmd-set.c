/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "properties.h"
#include "tools.h"

/* Sizes may have a suffix; the engine takes bytes.  The engine checks values
 * that are not sizes (for example "none").
 */
static bool
is_size_property (const char *property)
{
  static const char *const names[] = {
    "sector",    "block-size",         "max-size",
    "ddt-quota", "drift-alert-growth", "drift-alert-unique",
  };
  size_t i;

  for (i = 0; i < sizeof names / sizeof names[0]; ++i)
    if (strcmp (property, names[i]) == 0)
      return true;
  return false;
}

int
cmd_set (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool, .min_args = 1, .max_args = 2 };
  const char *equals, *value, *why;
  char bytes[24];
  char *property;
  uint64_t size;
  json_t *args;

  options_parse (&opts, argc, argv, NULL, NULL, "PROPERTY=VALUE [NAME]",
                 "Change a property of volume NAME, or of the pool. A change "
                 "of compress or dedup affects new writes only." PROPERTIES_DOC,
                 OPTIONS_POOL);
  equals = strchr (opts.args[0], '=');
  if (equals == NULL || equals == opts.args[0])
    usage_error (&opts, "'%s' is not PROPERTY=VALUE", opts.args[0]);
  property = check_memory (strndup (opts.args[0], equals - opts.args[0]));

  value = equals + 1;
  if (is_size_property (property) && *value >= '0' && *value <= '9') {
    why = parse_size (value, &size);
    if (why != NULL)
      usage_error (&opts, "%s '%s': %s", property, value, why);
    snprintf (bytes, sizeof bytes, "%" PRIu64, size);
    value = bytes;
  }
  args = pack_args (&opts, "{s:s, s:s, s:s*}", "property", property, "value",
                    value, "name", opts.args[1]);
  free (property);
  return run_silently (&opts, args);
}
