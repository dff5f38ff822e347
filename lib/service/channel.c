/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <poll.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "service/channel.h"

/* How long to wait between calls of channel_watch's 'look'. */
#define LOOK_MS 100

int
channel_lost (void)
{
  return nbdedup_fail (EIO, "the server went away");
}

void
channel_free (struct channel *ch)
{
  int err = errno;

  if (ch == NULL)
    return;
  if (ch->fd != -1)
    close (ch->fd);
  free (ch);
  errno = err;
}

/* Wait until the server has sent something, or went away. */
static int
await (const struct channel *ch, const struct channel_watch *watch,
       uint64_t longest_ms)
{
  struct pollfd pfd = { .fd = ch->fd, .events = POLLIN };
  const uint64_t begun = clock_ms ();
  uint64_t waited_ms;

  while (poll (&pfd, 1, LOOK_MS) <= 0) {
    waited_ms = clock_ms () - begun;
    if (longest_ms > 0 && waited_ms >= longest_ms)
      return nbdedup_fail (EAGAIN, "the server does not answer");
    if (watch != NULL &&
        watch->look (watch->opaque, waited_ms, longest_ms) == -1)
      return -1;
  }
  return 0;
}

/* Fail with the errno and text of an ERROR's payload. */
static int
take_error (struct channel *ch, const struct control_frame *f)
{
  char text[CONTROL_ERROR_MAX + 1];

  if (f->payload > CONTROL_ERROR_MAX ||
      (f->payload > 0 && control_recv_bytes (ch->fd, text, f->payload) != 1)) {
    shutdown (ch->fd, SHUT_RDWR);
    return channel_lost ();
  }
  text[f->payload] = 0;
  return nbdedup_fail (f->error > 0 && f->error < 4096 ? (int) f->error : EIO,
                       "%s", text);
}

bool
channel_is_closed (const struct channel *ch)
{
  struct pollfd pfd = { .fd = ch->fd, .events = POLLIN };

  /* Nothing is expected from it. */
  return poll (&pfd, 1, 0) == 1;
}

int
channel_send (struct channel *ch, struct control_frame *f, const void *payload)
{
  f->cookie = ++ch->cookie;
  if (control_send (ch->fd, f, payload) == -1)
    return channel_lost ();
  return 0;
}

int
channel_recv (struct channel *ch, struct control_frame *f)
{
  if (ch->watch != NULL && await (ch, ch->watch, 0) == -1) {
    shutdown (ch->fd, SHUT_RDWR);
    return -1;
  }
  if (control_recv_header (ch->fd, f) != 1 || f->cookie != ch->cookie) {
    shutdown (ch->fd, SHUT_RDWR);
    return channel_lost ();
  }
  switch (f->type) {
  case CONTROL_ERROR:
    return take_error (ch, f);
  case CONTROL_REPLY:
  case CONTROL_PROGRESS:
    return 0;
  default:
    shutdown (ch->fd, SHUT_RDWR);
    return nbdedup_fail (EIO,
                         "the server's answer does not follow nbdedup's "
                         "protocol");
  }
}

int
channel_request (struct channel *ch, struct control_frame *f,
                 const void *payload, void *answer, uint32_t len)
{
  assert (f->payload == 0 || payload != NULL);
  assert (len == 0 || answer != NULL);
  if (channel_send (ch, f, payload) == -1 || channel_recv (ch, f) == -1)
    return -1;
  if (f->type != CONTROL_REPLY || f->payload != len ||
      (len > 0 && control_recv_bytes (ch->fd, answer, len) != 1)) {
    shutdown (ch->fd, SHUT_RDWR);
    return channel_lost ();
  }
  return 0;
}

/* The handshake.  A server that rejects the client sends an ERROR without a
 * cookie and closes, without reading the HELLO.  So read the ERROR even if
 * sending fails.
 */
static int
channel_greet (struct channel *ch, const char *who, uint64_t longest_ms,
               const struct channel_watch *watch)
{
  struct control_frame f = {
    .type = CONTROL_HELLO,
    .offset = CONTROL_VERSION,
    .length = CONTROL_VERSION,
    .payload = strlen (who),
    .cookie = ++ch->cookie,
  };

  control_send (ch->fd, &f, who);
  if (await (ch, watch, longest_ms) == -1)
    return -1;
  if (control_recv_header (ch->fd, &f) != 1)
    return channel_lost ();
  if (f.type == CONTROL_ERROR)
    return take_error (ch, &f);
  if (f.type != CONTROL_REPLY || f.payload != 0 || f.cookie != ch->cookie ||
      f.offset != CONTROL_VERSION)
    return nbdedup_fail (EPROTO,
                         "the server's answer does not follow "
                         "nbdedup's protocol");
  return 0;
}

/* If the server has not accepted many others, this waits until there is room in
 * the queue.
 */
static int
channel_connect (struct channel *ch, const struct sockaddr_un *addr,
                 uint64_t longest_ms, const struct channel_watch *watch)
{
  const uint64_t begun = clock_ms ();
  uint64_t waited_ms;

  control_set_timeouts (ch->fd, 0, 1);
  while (connect (ch->fd, (const struct sockaddr *) addr, sizeof *addr) == -1) {
    if (errno != EAGAIN && errno != EINTR)
      return nbdedup_fail (errno, "%s: cannot connect to the server: %s",
                           CONTROL_SOCKET, strerror (errno));
    waited_ms = clock_ms () - begun;
    if (waited_ms >= longest_ms)
      return nbdedup_fail (EAGAIN, "the server does not answer");
    if (watch != NULL &&
        watch->look (watch->opaque, waited_ms, longest_ms) == -1)
      return -1;
  }
  return 0;
}

struct channel *
channel_new (const char *path, const char *who, unsigned timeout_s,
             const struct channel_watch *watch)
{
  CLEANUP_CLOSE int dirfd = open (path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  const uint64_t longest_ms = UINT64_C (1000) * timeout_s;
  struct channel *ch = malloc (sizeof *ch);
  struct sockaddr_un addr;

  if (ch == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for a connection");
  ch->cookie = 0;
  ch->watch = NULL;
  ch->fd = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (dirfd == -1 || ch->fd == -1) {
    nbdedup_fail (errno, "%s: %s", path, strerror (errno));
    channel_free (ch);
    return NULL;
  }
  control_address (dirfd, CONTROL_SOCKET, &addr);
  if (channel_connect (ch, &addr, longest_ms, watch) == -1) {
    channel_free (ch);
    return NULL;
  }
  control_set_timeouts (ch->fd, timeout_s, timeout_s);
  if (channel_greet (ch, who, longest_ms, watch) == -1) {
    channel_free (ch);
    return NULL;
  }
  /* Commands may take any time. */
  control_set_timeouts (ch->fd, 0, 0);
  return ch;
}

void
channel_list_free (struct channel_list *list)
{
  struct channel *ch;

  while ((ch = SLIST_FIRST (list)) != NULL) {
    SLIST_REMOVE_HEAD (list, link);
    channel_free (ch);
  }
}
