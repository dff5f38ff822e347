/* SPDX-License-Identifier: BSD-3-Clause */

/* "status" of a pool in any state, for monitoring: it writes nothing and
 * recovers nothing.
 */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/engine.h"
#include "data/capacity.h"
#include "disk/lockfile.h"
#include "meta/meta.h"
#include "report/scrub.h"
#include "report/status.h"
#include "service/client-int.h"

/* Retries if servers end, one after the other, during the request. */
#define TRIES_MAX 10

/* Most commands end sooner, and servers answer at once.  Monitoring systems
 * give up after ten seconds.
 */
static const struct client_patience patience = {
  .server_s = 5,
  .command_ms = 700,
};

/* A pool that a command has had for so long, with its health unknown, is a
 * problem.
 */
#define BUSY_LONG_S (24 * 60 * 60)

/*----------------------------------------------------------------------
 * A pool that a command has open, or a server is opening: figures that do not
 * need opening it
 */

/* NULL: not known. */
static json_t *
free_bytes (const char *path)
{
  struct statvfs vfs;

  return statvfs (path, &vfs) == -1
    ? NULL
    : json_integer ((json_int_t) ((uint64_t) vfs.f_bavail * vfs.f_frsize));
}

static json_t *
busy_space (const char *path)
{
  CLEANUP_FREE char *records = pool_file (path, "records");
  json_t *file = NULL, *free_for_records = NULL;
  struct stat st;

  /* Only the pool knows the free space of a device. */
  if (records && stat (records, &st) == 0 && S_ISREG (st.st_mode)) {
    file = json_integer ((json_int_t) st.st_blocks * 512);
    free_for_records = free_bytes (records);
  }
  return json_pack ("{s:n, s:o?, s:I, s:o?, s:o?, s:n, s:n, s:n, s:n, s:n, "
                    "s:n}",
                    "used_bytes", "file_bytes", file, "metadata_bytes",
                    (json_int_t) capacity_metadata_bytes (path), "free_bytes",
                    free_for_records, "metadata_free_bytes", free_bytes (path),
                    "max_size", "used_percent", "full_warn", "writable_bytes",
                    "writable_min_bytes", "full");
}

static json_t *
busy_status (const char *path, const struct lockfile_holder *holder)
{
  const struct lockfile_opening *opening = &holder->opening;
  const time_t now = time (NULL), since = holder->since;
  CLEANUP_FREE char *real = realpath (path, NULL);
  json_t *status;

  status = json_pack ("{s:o, s:s, s:[], s:{s:s, s:o, s:I, s:b, s:o?}, s:o?, "
                      "s:n, s:n, s:n, s:n, s:n, s:n, s:n, s:n, s:n}",
                      "pool", nbdedup_json_text (real ? real : path), "state",
                      "busy", "problems", "open", "by",
                      holder->server ? "server" : "command", "who",
                      nbdedup_json_text (holder->who), "pid",
                      (json_int_t) holder->pid, "read_only", 0, "since",
                      since ? json_integer (since) : NULL, "space",
                      busy_space (path), "metadata_copy", "copies", "damage",
                      "recovery", "scrub", "scrub_progress", "drift_alerts",
                      "activity", "queues");
  if (status == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  if (opening->stage[0])
    json_object_set_new (json_object_get (status, "open"), "opening",
                         json_pack ("{s:s, s:I, s:o}", "stage", opening->stage,
                                    "done", (json_int_t) opening->done, "total",
                                    opening->total > 0
                                      ? json_integer (
                                          (json_int_t) opening->total)
                                      : json_null ()));
  if (since && now > since && now - since > BUSY_LONG_S) {
    status_add_problem (status, false,
                        "%s (PID %ld) has had the pool open for "
                        "%ld hours: the pool's health is unknown until it ends",
                        holder->who, (long) holder->pid,
                        (long) (now - since) / 3600);
    json_object_set_new (status, "state", json_string ("warning"));
  }
  return status;
}

/*----------------------------------------------------------------------*/

/* A server reports its own name and PID.  For readers the lock only shows that
 * there are some.
 */
static int
add_open (json_t *status, bool is_remote, const struct lockfile_holder *holder)
{
  json_t *open;

  if (is_remote)
    open = json_pack ("{s:s, s:O, s:O, s:b}", "by", "server", "who",
                      json_object_get (status, "who"), "pid",
                      json_object_get (status, "pid"), "read_only", 0);
  else if (holder->reader)
    open = json_pack ("{s:s, s:n, s:n, s:b}", "by",
                      holder->reader_is_server ? "server" : "command", "who",
                      "pid", "read_only", 1);
  else
    open = json_null ();
  json_object_del (status, "who");
  json_object_del (status, "pid");
  return json_object_set_new (status, "open", open);
}

static json_t *
try_status (const char *path, const struct nbdedup_settings *settings,
            const char *who, nbdedup_wait_fn *on_wait)
{
  struct lockfile_holder holder = { 0 }, in_the_way;
  struct nbdedup_client *client;
  json_t *status;
  int err;

  /* Before this client becomes one of the readers. */
  if (lockfile_take (path, false, NULL, &holder) == -1 && errno != EBUSY)
    holder = (struct lockfile_holder) { 0 };
  client = client_open_within (path, settings, who, on_wait, patience,
                               &in_the_way);
  if (client == NULL)
    return errno == EBUSY && in_the_way.pid != 0 &&
        (!in_the_way.server || in_the_way.opening.stage[0])
      ? busy_status (path, &in_the_way)
      : NULL;
  status = nbdedup_client_call (client, "status", NULL, NULL, NULL);
  if (status &&
      add_open (status, nbdedup_client_is_served (client), &holder) == -1) {
    json_decref (status);
    status = nbdedup_fail_null (ENOMEM, "no memory");
  }
  err = errno;
  (void) nbdedup_client_close (client); /* nothing was written */
  errno = err;
  if (status && holder.reader)
    status_add_problem (status, false, "the pool is open read-only");
  return status;
}

json_t *
nbdedup_status (const char *path, bool force, const char *who,
                nbdedup_wait_fn *on_wait)
{
  struct nbdedup_settings settings;
  unsigned tries;
  json_t *status;

  nbdedup_settings_init (&settings);
  settings.read_only = force ? NBDEDUP_READ_ONLY_FORCE : NBDEDUP_READ_ONLY_ON;
  for (tries = 1;; ++tries) {
    status = try_status (path, &settings, who, on_wait);
    if (status || errno != ESHUTDOWN || tries == TRIES_MAX)
      return status;
  }
}
