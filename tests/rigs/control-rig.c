/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rigs/control-rig.h"
#include "rigs/testutil.h"

char pool_path[4096];
struct nbdedup_pool *pool;
static char dir[4096];

void
check (bool ok, const char *what)
{
  if (!ok)
    die ("%s: errno %d, %s", what, errno, nbdedup_error ());
}

void
start_server (void)
{
  pool = nbdedup_pool_open (pool_path, NULL, program_invocation_short_name,
                            NBDEDUP_OPEN_SERVER);
  check (pool != NULL, "open the pool");
}

void
stop_server (void)
{
  const uint64_t start = clock_ms ();

  check (nbdedup_pool_close (pool) == 0, "close the pool");
  if (clock_ms () - start > 10000)
    die ("closing took %" PRIu64 " ms", clock_ms () - start);
}

int
call (struct nbdedup_client *client, const char *command, const char *name,
      uint64_t size)
{
  json_t *args = json_pack ("{s:s}", "name", name), *result;

  if (size > 0)
    json_object_set_new (args, "size", json_integer ((json_int_t) size));
  result = nbdedup_client_call (client, command, args, NULL, NULL);
  json_decref (args);
  json_decref (result);
  return result ? 0 : -1;
}

void
expect_sound (struct nbdedup_client *client)
{
  json_t *result = nbdedup_client_call (client, "check", NULL, NULL, NULL);

  check (result != NULL, "check");
  if (json_integer_value (json_object_get (result, "errors")) != 0) {
    json_dumpf (result, stderr, JSON_INDENT (2));
    die ("the pool has errors");
  }
  json_decref (result);
}

void
make_control_pool (void)
{
  /* A path that is longer than a socket's may be. */
  snprintf (dir, sizeof dir, "%s/nbdedup-control.XXXXXX",
            getenv ("TMPDIR") ? getenv ("TMPDIR") : "/tmp");
  if (mkdtemp (dir) == NULL)
    die ("%s: %s", dir, strerror (errno));
  snprintf (pool_path, sizeof pool_path, "%.3000s/%0100d", dir, 0);
  check (nbdedup_pool_create (pool_path, NULL) == 0, "make a pool");
}

void
remove_control_pool (void)
{
  char cmd[sizeof dir + 16];

  snprintf (cmd, sizeof cmd, "rm -rf '%.4000s'", dir);
  if (system (cmd) != 0)
    die ("%s failed", cmd);
}
