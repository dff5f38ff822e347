/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <poll.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/turn.h"
#include "service/control-int.h"

#define PROGRESS_INTERVAL_MS 100

int
control_reply (struct connection *conn, uint64_t offset, uint64_t length,
               const void *payload, uint32_t payload_len)
{
  const struct control_frame f = {
    .type = CONTROL_REPLY,
    .cookie = conn->cookie,
    .offset = offset,
    .length = length,
    .payload = payload_len,
  };

  return control_send (conn->fd, &f, payload);
}

int
control_reply_error (struct connection *conn, int err, const char *text)
{
  const struct control_frame f = {
    .type = CONTROL_ERROR,
    .cookie = conn->cookie,
    .payload = strnlen (text, CONTROL_ERROR_MAX),
    .error = err ? err : EIO,
  };

  return control_send (conn->fd, &f, text);
}

int
control_reply_failure (struct connection *conn)
{
  int err = errno;

  return control_reply_error (conn, err, nbdedup_error ());
}

int
control_reply_result (struct connection *conn, int r)
{
  return r == -1 ? control_reply_failure (conn)
                 : control_reply (conn, 0, 0, NULL, 0);
}

int
control_reply_json (struct connection *conn, json_t *json)
{
  CLEANUP_FREE char *text = json_dumps (json, JSON_COMPACT);
  size_t len, done = 0;

  if (text == NULL)
    return control_reply_error (conn, ENOMEM,
                                "control: no memory for the result");
  len = strlen (text);
  if (len > CONTROL_RESULT_MAX)
    return control_reply_error (conn, EFBIG,
                                "control: the result is too large");
  do {
    const size_t n = len - done < CONTROL_PAYLOAD_MAX ? len - done
                                                      : CONTROL_PAYLOAD_MAX;
    const struct control_frame f = {
      .type = CONTROL_REPLY,
      .cookie = conn->cookie,
      .payload = n,
      .flags = done + n < len ? CONTROL_FLAG_MORE : 0,
    };

    if (control_send (conn->fd, &f, text + done) == -1)
      return -1;
    done += n;
  } while (done < len);
  return 0;
}

/* Is the client still connected and waiting?  Peeks at its input, and removes
 * only a CANCEL from it.
 */
static bool
client_waits (struct connection *conn)
{
  uint8_t header[CONTROL_HEADER_LEN];
  struct control_frame f;
  ssize_t r;

  if (conn->lost)
    return false;
  r = recv (conn->fd, header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
  if (r == -1 && (errno == EAGAIN || errno == EINTR))
    return true;
  if (r <= 0) {
    conn->lost = true;
    return false;
  }
  if (r < (ssize_t) sizeof header)
    return true;
  if (control_frame_unpack (header, &f) == -1) {
    conn->lost = true;
    return false;
  }
  if (f.type != CONTROL_CANCEL || f.payload != 0)
    return true; /* sent too early; served afterwards */
  if (control_recv_bytes (conn->fd, header, sizeof header) != 1)
    conn->lost = true;
  return f.cookie != conn->cookie;
}

int
control_progress (void *opaque, uint64_t done, uint64_t total)
{
  struct connection *conn = opaque;
  const char *awaited = conn->want_awaited ? turn_awaited () : NULL;
  const struct control_frame f = {
    .type = CONTROL_PROGRESS,
    .cookie = conn->cookie,
    .offset = done,
    .length = total,
    .payload = awaited ? strlen (awaited) : 0,
  };
  struct pollfd pfd = { .fd = conn->fd, .events = POLLOUT };
  uint64_t now;

  if (atomic_load (&conn->control->stopping) || !client_waits (conn))
    return 1;

  /* Send only if the socket has room: a client that does not read must not
   * block the command.
   */
  now = clock_ms ();
  if ((conn->want_progress || awaited) &&
      now - conn->progress_ms >= PROGRESS_INTERVAL_MS &&
      poll (&pfd, 1, 0) == 1 && (pfd.revents & POLLOUT)) {
    conn->progress_ms = now;
    if (control_send (conn->fd, &f, awaited) == -1) {
      conn->lost = true;
      return 1;
    }
  }
  return 0;
}
