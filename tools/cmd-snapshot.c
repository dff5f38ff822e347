/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "tools.h"

int
cmd_snapshot (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool, .min_args = 1, .max_args = 1 };

  options_parse (&opts, argc, argv, NULL, NULL, "NAME@SNAP",
                 "Freeze the present state of volume NAME as the read-only "
                 "snapshot NAME@SNAP. It contains every write that was "
                 "answered, on any connection, and takes no space by itself.",
                 OPTIONS_POOL);
  check_snapshot_name (&opts, opts.args[0]);
  return run_silently (&opts, pack_args (&opts, "{s:s}", "name", opts.args[0]));
}
