/* SPDX-License-Identifier: BSD-3-Clause */

/* The counters of a server.  Only a server has any, so this opens no pool, but
 * for the moment in which a server ends between two steps.
 */

#include <config.h>

#include <assert.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "disk/lockfile.h"
#include "service/client-int.h"

/* As for "status". */
static const struct client_patience patience = {
  .server_s = 5,
  .command_ms = 700,
};

/* No process has the pool, if it is one. */
static int
fail_closed (const char *path)
{
  if (nbdedup_pool_probe (path, NBDEDUP_READ_ONLY_ON) == -1 && errno != EBUSY)
    return -1;
  return nbdedup_fail (ENOTCONN,
                       "no server has pool %s open, so there are no "
                       "counters",
                       path);
}

/* 0: a server has the pool, or is starting or ending. */
static int
check_server (const char *path)
{
  struct lockfile_holder holder;

  if (lockfile_take (path, false, NULL, &holder) == 0 || errno != EBUSY)
    return fail_closed (path);
  if (holder.server)
    return 0;
  if (holder.reader)
    return nbdedup_fail (ENOTCONN,
                         "pool %s is open read-only, by a process "
                         "that does not listen on control.sock, so there are "
                         "no counters",
                         path);
  return nbdedup_fail (ENOTCONN,
                       "no server has pool %s open, but %s (PID "
                       "%ld), so there are no counters",
                       path, holder.who[0] ? holder.who : "another process",
                       (long) holder.pid);
}

json_t *
nbdedup_counters (const char *path, const char *who, nbdedup_wait_fn *on_wait)
{
  struct nbdedup_settings settings;
  struct lockfile_holder holder;
  struct nbdedup_client *client;
  json_t *result = NULL;
  int err;

  if (check_server (path) == -1)
    return NULL;
  nbdedup_settings_init (&settings);
  settings.read_only = NBDEDUP_READ_ONLY_ON;
  client = client_open_within (path, &settings, who, on_wait, patience,
                               &holder);
  if (client == NULL)
    return NULL;
  if (nbdedup_client_is_served (client)) {
    result = nbdedup_client_call (client, "counters", NULL, NULL, NULL);
    if (result == NULL && errno == ESHUTDOWN)
      fail_closed (path);
  }
  else
    nbdedup_fail (ENOTCONN, "the server of pool %s has just ended", path);
  err = errno;
  (void) nbdedup_client_close (client); /* nothing was written */
  errno = err;
  assert (result != NULL || errno != 0);
  return result;
}
