/* SPDX-License-Identifier: BSD-3-Clause */

/* drop-table POOL TABLE: make a pool one of an earlier version, which lacked
 * the table.  The pool keeps the room that it has.
 */

#include <config.h>

#include "core/engine.h"
#include "core/txg.h"
#include "meta/meta-conn.h"
#include "rigs/pool-util.h"

struct nbdedup_pool *pool;

static int
drop (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  return meta_exec (c, arg, "dropping a table");
}

int
main (int argc, char *argv[])
{
  char text[100];

  if (argc != 3)
    die ("usage: drop-table POOL TABLE");
  snprintf (text, sizeof text, "DROP TABLE %s", argv[2]);
  open_default (argv[1], "drop-table");
  must (txg_run (pool->txg, drop, NULL, text));
  must (nbdedup_pool_close (pool));
  return 0;
}
