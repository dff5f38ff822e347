/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/priority.h"
#include "drift/frozen.h"
#include "service/control-int.h"

/* Connections with a frozen moment, each of which takes the memory of a drift.
 * They check often whether it must give way, and end it if the client asks for
 * nothing for so long: it may have been stopped.
 */
#define FROZEN_MAX 4
#define FROZEN_LOOK_MS 5
#define FROZEN_IDLE_MS 300000

void
control_close_frozen (struct connection *conn)
{
  if (conn->frozen == NULL)
    return;
  frozen_close (conn->frozen);
  conn->frozen = NULL;
  atomic_fetch_sub (&conn->control->nr_frozen, 1);
}

/* Absent is allowed. */
static bool
is_freezable (const json_t *args)
{
  const json_t *name = json_object_get (args, "name");
  const json_t *memory = json_object_get (args, "memory");

  return json_is_object (args) && (name == NULL || json_is_string (name)) &&
    (memory == NULL ||
     (json_is_integer (memory) && json_integer_value (memory) >= 0));
}

static int
open_frozen (struct connection *conn, const json_t *args)
{
  if (atomic_fetch_add (&conn->control->nr_frozen, 1) >= FROZEN_MAX) {
    atomic_fetch_sub (&conn->control->nr_frozen, 1);
    return control_reply_error (conn, EBUSY,
                                "control: too many commands look at the "
                                "blocks of clones: try again later");
  }
  conn->want_progress = conn->want_awaited = false;
  thread_lower_priority (); /* for the rest of the connection */
  conn->frozen = frozen_open (conn->control->pool,
                              json_string_value (
                                json_object_get (args, "name")),
                              (uint64_t) json_integer_value (
                                json_object_get (args, "memory")),
                              control_progress, conn);
  if (conn->frozen == NULL) {
    int err = errno;

    atomic_fetch_sub (&conn->control->nr_frozen, 1);
    errno = err;
    return control_reply_failure (conn);
  }
  return control_reply (conn, 0, 0, NULL, 0);
}

int
control_serve_freeze (struct connection *conn, const struct control_frame *f)
{
  CLEANUP_JSON json_t *args = json_loadb ((const char *) conn->buf, f->payload,
                                          JSON_REJECT_DUPLICATES, NULL);

  if (conn->volume != NULL || conn->frozen != NULL || conn->lost_moment != NULL)
    return control_reply_error (conn, EINVAL,
                                "control: this connection has a volume or a "
                                "frozen moment already");
  if (!is_freezable (args))
    return control_reply_error (conn, EINVAL,
                                "control: the arguments are not an object "
                                "with \"name\" and \"memory\"");
  return open_frozen (conn, args);
}

/* FROZEN_NEXT or FROZEN_ADVISE. */
static int
serve_frozen_json (struct connection *conn, const struct control_frame *f)
{
  CLEANUP_JSON json_t *document = NULL;

  conn->want_progress = f->flags & CONTROL_FLAG_PROGRESS;
  conn->want_awaited = f->flags & CONTROL_FLAG_AWAITED;
  conn->progress_ms = 0;
  document = f->type == CONTROL_FROZEN_NEXT
    ? frozen_next (conn->frozen, control_progress, conn)
    : frozen_advise (conn->frozen, control_progress, conn);
  if (conn->lost)
    return -1;
  return document == NULL ? control_reply_failure (conn)
                          : control_reply_json (conn, document);
}

static int
serve_frozen_read (struct connection *conn, const struct control_frame *f)
{
  if (f->payload != 8 || f->length == 0 || f->length > CONTROL_PAYLOAD_MAX)
    return control_reply_error (conn, EINVAL, "control: bad length of a read");
  if (frozen_read (conn->frozen, get_le64 (conn->buf), conn->buf, f->length,
                   f->offset) == -1)
    return control_reply_failure (conn);
  return control_reply (conn, 0, 0, conn->buf, f->length);
}

static int
serve_frozen_runs (struct connection *conn, const struct control_frame *f)
{
  struct class_run run;
  uint8_t *p = conn->buf;
  int r = 1;

  while (p - conn->buf < CONTROL_RUNS_MAX * CONTROL_RUN_LEN &&
         (r = frozen_classes (conn->frozen, f->offset, &run)) == 1) {
    put_le64 (p, run.block);
    put_le64 (p + 8, run.nr << 8 | run.class);
    p += CONTROL_RUN_LEN;
  }
  return r == -1 ? control_reply_failure (conn)
                 : control_reply (conn, frozen_size (conn->frozen, f->offset),
                                  0, conn->buf, p - conn->buf);
}

static int
serve_frozen_zero (struct connection *conn, const struct control_frame *f)
{
  const uint8_t *p = conn->buf, *end = p + f->payload;

  if (f->payload % CONTROL_RUN_LEN != 0 ||
      f->payload > CONTROL_RUNS_MAX * CONTROL_RUN_LEN ||
      f->length >= FROZEN_SETS)
    return control_reply_error (conn, EINVAL,
                                "control: bad length, or no such set");
  for (; p < end; p += CONTROL_RUN_LEN)
    if (frozen_zero (conn->frozen, (unsigned) f->length, f->offset,
                     get_le64 (p), get_le64 (p + 8)) == -1)
      return control_reply_failure (conn);
  return control_reply (conn, 0, 0, NULL, 0);
}

int
control_serve_frozen (struct connection *conn, const struct control_frame *f)
{
  if (conn->lost_moment != NULL)
    return control_reply_error (conn, EBUSY, conn->lost_moment);
  if (conn->frozen == NULL)
    return control_reply_error (conn, EINVAL,
                                "control: this connection has no frozen "
                                "moment");
  switch (f->type) {
  case CONTROL_FROZEN_NEXT:
  case CONTROL_FROZEN_ADVISE:
    return serve_frozen_json (conn, f);
  case CONTROL_FROZEN_ZERO:
    return serve_frozen_zero (conn, f);
  case CONTROL_FROZEN_READ:
    return serve_frozen_read (conn, f);
  case CONTROL_FROZEN_RUNS:
    return serve_frozen_runs (conn, f);
  default:
    abort (); /* serve_request passes no other type */
  }
}

bool
control_watch_frozen (struct connection *conn)
{
  const uint64_t begun = clock_ms ();
  const bool had = conn->frozen != NULL;

  while (conn->frozen != NULL && !control_wait (conn, FROZEN_LOOK_MS)) {
    if (frozen_check (conn->frozen) == -1)
      conn->lost_moment = strdup (nbdedup_error ());
    else if (clock_ms () - begun > FROZEN_IDLE_MS)
      conn->lost_moment = strdup ("the command was silent for too long");
    else
      continue;
    control_close_frozen (conn);
  }
  return had && conn->frozen == NULL;
}
