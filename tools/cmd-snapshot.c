/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools.h"

/* Both have an '@'. */
static bool
are_of_one_volume (const char *a, const char *b)
{
  const size_t len = strcspn (a, "@");

  return strncmp (a, b, len + 1) == 0;
}

static void
check_names (const struct options *opts)
{
  const char **list = opts->list;
  unsigned i, k;

  for (i = 0; i < opts->nr_args; ++i) {
    check_snapshot_name (opts, list[i]);
    for (k = 0; k < i; ++k)
      if (are_of_one_volume (list[k], list[i]))
        usage_error (opts,
                     "%s and %s are of one volume: name one snapshot of each",
                     list[k], list[i]);
  }
}

int
cmd_snapshot (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool, .min_args = 1, .max_args = argc };
  json_t *names;
  unsigned i;
  int r;

  opts.list = check_memory (calloc ((size_t) argc, sizeof *opts.list));
  options_parse (&opts, argc, argv, NULL, NULL, "NAME@SNAP...",
                 "Freeze the present state of volume NAME as the read-only "
                 "snapshot NAME@SNAP. It contains every write that was "
                 "answered, on any connection, and takes no space by itself. "
                 "Snapshots of several volumes are of the same moment, and "
                 "all are made, or none.",
                 OPTIONS_POOL);
  check_names (&opts);
  names = json_array ();
  for (i = 0; i < opts.nr_args; ++i)
    json_array_append_new (names, pack_args (&opts, "s", opts.list[i]));
  r = run_silently (&opts,
                    opts.nr_args == 1
                      ? pack_args (&opts, "{s:s}", "name", opts.list[0])
                      : pack_args (&opts, "{s:O}", "names", names));
  json_decref (names);
  free (opts.list);
  return r;
}
