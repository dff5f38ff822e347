/* SPDX-License-Identifier: BSD-3-Clause */

/* "status" of a pool in whatever state, for monitoring: nothing is written
 * and nothing recovered.
 */

#include <config.h>

#include "cleanup.h"
#include "client-int.h"
#include "error.h"
#include "lockfile.h"
#include "status.h"

/* Servers that go down, one after the other, while we ask. */
#define TRIES_MAX 10

/* The server says itself who it is; of those that only read the lock knows
 * no more than that there are some.
 */
static int
add_open (json_t *status, bool is_remote,
          const struct lockfile_holder *holder)
{
  json_t *open;

  if (is_remote)
    open = json_pack ("{s:s, s:O, s:O, s:b}", "by", "server",
                      "who", json_object_get (status, "who"),
                      "pid", json_object_get (status, "pid"),
                      "read_only", 0);
  else if (holder->reader)
    open = json_pack ("{s:s, s:n, s:n, s:b}", "by",
                      holder->reader_is_server ? "server" : "command",
                      "who", "pid", "read_only", 1);
  else
    open = json_null ();
  json_object_del (status, "who");
  json_object_del (status, "pid");
  return json_object_set_new (status, "open", open);
}

static json_t *
try_status (const char *path, const struct nbdedup_settings *settings,
            const char *who, bool (*is_unwanted) (void))
{
  struct lockfile_holder holder = { 0 };
  struct nbdedup_client *client;
  json_t *status;
  int err;

  /* Before we are one of them. */
  if (lockfile_take (path, false, NULL, &holder) == -1 && errno != EBUSY)
    holder = (struct lockfile_holder) { 0 };
  client = nbdedup_client_open (path, settings, who, is_unwanted);
  if (client == NULL)
    return NULL;
  status = nbdedup_client_call (client, "status", NULL, NULL, NULL);
  if (status && add_open (status, nbdedup_client_is_remote (client),
                          &holder) == -1) {
    json_decref (status);
    status = nbdedup_fail_null (ENOMEM, "no memory");
  }
  err = errno;
  (void) nbdedup_client_close (client);         /* nothing was written */
  errno = err;
  if (status && holder.reader)
    status_add_problem (status, false, "the pool is open read-only");
  return status;
}

json_t *
nbdedup_status (const char *path, bool force, const char *who,
                bool (*is_unwanted) (void))
{
  struct nbdedup_settings settings;
  unsigned tries;
  json_t *status;

  nbdedup_settings_init (&settings);
  settings.read_only = force ? NBDEDUP_READ_ONLY_FORCE : NBDEDUP_READ_ONLY_ON;
  for (tries = 1; ; ++tries) {
    status = try_status (path, &settings, who, is_unwanted);
    if (status || errno != ESHUTDOWN || tries == TRIES_MAX)
      return status;
  }
}
