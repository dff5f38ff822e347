/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "tools.h"

int
cmd_rename (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool, .min_args = 2, .max_args = 2 };

  options_parse (&opts, argc, argv, NULL, NULL, "OLD NEW\nNAME@OLD NAME@NEW",
                 "Rename a volume or a snapshot. Attached clients stay "
                 "attached; new ones must use the new name. Clones keep their "
                 "origin, under its new name.",
                 OPTIONS_POOL);
  return run_silently (&opts,
                       pack_args (&opts, "{s:s, s:s}", "old", opts.args[0],
                                  "new", opts.args[1]));
}
