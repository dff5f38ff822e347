/* SPDX-License-Identifier: BSD-3-Clause */

/* The client half of nbdedup.h: the same calls on a pool opened here and
 * on one that a server has open; handle.c has its volumes.
 *
 * A connection serves one request at a time, so a client has several for
 * commands, made when a thread finds none idle.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/since.h"
#include "disk/lockfile.h"
#include "report/scrub.h"
#include "service/client-int.h"
#include "service/command.h"
#include "volume/volume.h"

/* How long to wait for another command, or for a server that is starting or
 * ending, and how often to check.
 */
#define WAIT_MS 30000
#define POLL_MS 100

/* The wait for a pool that is busy although its lock is free is shorter:
 * something else is wrong with it.
 */
#define FREE_TRIES_MAX 10

/*----------------------------------------------------------------------
 * Open and close
 */

static int
test_lock (struct nbdedup_client *client, struct lockfile_holder *holder)
{
  return client->readonly ? lockfile_share (client->path, false, NULL, holder)
                          : lockfile_take (client->path, false, NULL, holder);
}

/* Only a command that has not begun gives up: the others must not be left
 * alone.
 */
int
client_look (void *opaque, uint64_t waited_ms, uint64_t longest_ms)
{
  const struct nbdedup_client *client = opaque;
  const struct lockfile_holder *server = &client->server;
  char since[SINCE_MAX], why[256];
  const struct nbdedup_wait wait = {
    .kind = NBDEDUP_WAIT_ANSWER,
    .why = why,
    .who = server->who,
    .pid = server->pid,
    .waited_ms = waited_ms,
    .longest_ms = longest_ms,
  };

  if (client->on_wait == NULL)
    return 0;
  snprintf (why, sizeof why,
            "the pool's server, %s (PID %ld), has not answered%s", server->who,
            (long) server->pid,
            since_text ((time_t) (clock_wall_s () - waited_ms / 1000), since));
  return client->on_wait (&wait) != 0 && longest_ms > 0
    ? nbdedup_fail (EINTR, "interrupted")
    : 0;
}

static void
fail_busy (const struct nbdedup_client *client,
           const struct lockfile_holder *holder)
{
  char since[SINCE_MAX];

  since_text (holder->since, since);
  nbdedup_fail (EBUSY, "pool %s is in use by %s (PID %ld)%s", client->path,
                holder->who, (long) holder->pid, since);
}

/* Try once to open the pool, or to connect to its server.  Returns 1 on
 * success, 0 if it may succeed later (the error text gives the reason, and
 * *holder the process), -1 if it will not.
 */
static int
try_open (struct nbdedup_client *client,
          const struct nbdedup_settings *settings, unsigned *free_tries,
          struct lockfile_holder *holder)
{
  const struct channel_watch watch = { client_look, client };
  struct channel *ch;

  assert (client->pool == NULL && SLIST_EMPTY (&client->idle));
  *holder = (struct lockfile_holder) { 0 };
  client->pool = nbdedup_pool_open (client->path, settings, client->who, 0);
  if (client->pool != NULL)
    return 1;
  if (errno != EBUSY)
    return -1;

  if (test_lock (client, holder) == 0) {
    if (++*free_tries < FREE_TRIES_MAX)
      return 0;
    /* Fail again, for the error text; *holder does not have the reason. */
    client->pool = nbdedup_pool_open (client->path, settings, client->who, 0);
    return client->pool != NULL ? 1 : -1;
  }
  if (errno != EBUSY)
    return -1;
  *free_tries = 0;

  if (!holder->server) {
    if (holder->reader_is_server)
      return nbdedup_fail (EBUSY,
                           "pool %s is in use by a server that was "
                           "started with read-only=on: stop that server first, "
                           "or use --read-only",
                           client->path);
    if (holder->reader)
      nbdedup_fail (EBUSY,
                    "pool %s is in use by a command that reads it with "
                    "--read-only",
                    client->path);
    else if (holder->pid == 0)
      nbdedup_fail (EBUSY, "pool %s is in use by another process",
                    client->path);
    else
      fail_busy (client, holder);
    return 0;
  }
  client->server = *holder;
  ch = channel_new (client->path, client->who, client->greet_s, &watch);
  if (ch != NULL) {
    SLIST_INSERT_HEAD (&client->idle, ch, link);
    return 1;
  }
  if (errno == EBUSY) /* too many clients: with its text */
    return 0;
  if (errno != ENOENT && errno != ECONNREFUSED && errno != EIO &&
      errno != EAGAIN && errno != ESHUTDOWN)
    return -1;
  if (errno == EAGAIN)
    nbdedup_fail (EBUSY,
                  "pool %s is in use by %s (PID %ld), which does not answer on "
                  "%s: it is stopped, or too busy: see what it does, and try "
                  "again",
                  client->path, holder->who, (long) holder->pid,
                  CONTROL_SOCKET);
  else
    nbdedup_fail (EBUSY, "pool %s is in use by %s (PID %ld), which %s on %s",
                  client->path, holder->who, (long) holder->pid,
                  errno == ENOENT || errno == ECONNREFUSED
                    ? "is starting or ending: it does not listen"
                    : "does not answer",
                  CONTROL_SOCKET);
  return 0;
}

static void
client_free (struct nbdedup_client *client)
{
  channel_list_free (&client->idle);
  lock_destroy (&client->lock);
  free (client->path);
  free (client);
}

/* Ask on_wait whether to go on; the error text of try_open has the reason. */
static int
keep_waiting (nbdedup_wait_fn *on_wait, const struct lockfile_holder *holder,
              uint64_t waited_ms, uint64_t longest_ms)
{
  CLEANUP_FREE char *why = strdup (nbdedup_error ());
  const struct nbdedup_wait wait = {
    .kind = NBDEDUP_WAIT_POOL,
    .why = why ? why : "no memory",
    .who = holder->who,
    .pid = holder->pid,
    .waited_ms = waited_ms,
    .longest_ms = longest_ms,
  };

  switch (on_wait ? on_wait (&wait) : 0) {
  case 0:
    return 0;
  case EDEADLK:
    return nbdedup_fail (EDEADLK,
                         "%s, which waits for this command at the "
                         "other end of a pipe: start a server for the pool, or "
                         "use a file instead of the pipe",
                         wait.why);
  default:
    return nbdedup_fail (EINTR, "interrupted");
  }
}

struct nbdedup_client *
client_open_within (const char *path, const struct nbdedup_settings *settings,
                    const char *who, nbdedup_wait_fn *on_wait,
                    struct client_patience patience,
                    struct lockfile_holder *holder)
{
  struct nbdedup_client *client = calloc (1, sizeof *client);
  const uint64_t begun = clock_ms ();
  uint64_t waited_ms, longest_ms;
  unsigned free_tries = 0;
  int r, err;

  *holder = (struct lockfile_holder) { 0 };

  if (client == NULL || (client->path = strdup (path)) == NULL) {
    free (client);
    return nbdedup_fail_null (ENOMEM, "no memory for a client");
  }
  snprintf (client->who, sizeof client->who, "%s", who);
  client->greet_s = patience.server_s;
  client->on_wait = on_wait;
  client->readonly = settings && settings->read_only != NBDEDUP_READ_ONLY_OFF;
  lock_init (&client->lock);
  SLIST_INIT (&client->idle);

  for (;;) {
    r = try_open (client, settings, &free_tries, holder);
    if (r == 1)
      return client;
    waited_ms = clock_ms () - begun;
    longest_ms = holder->server ? patience.server_s * 1000
                                : patience.command_ms;
    if (r == -1 || waited_ms >= longest_ms ||
        keep_waiting (on_wait, holder, waited_ms, longest_ms) == -1)
      break;
    clock_sleep_ms (POLL_MS);
  }
  err = errno;
  client_free (client);
  errno = err;
  return NULL;
}

struct nbdedup_client *
nbdedup_client_open (const char *path, const struct nbdedup_settings *settings,
                     const char *who, nbdedup_wait_fn *on_wait)
{
  struct lockfile_holder holder;

  return client_open_within (path, settings, who, on_wait,
                             (struct client_patience) { CONTROL_TIMEOUT_S,
                                                        WAIT_MS },
                             &holder);
}

int
nbdedup_client_close (struct nbdedup_client *client)
{
  int r = 0, err;

  if (client == NULL)
    return 0;
  if (client->pool != NULL)
    r = nbdedup_pool_close (client->pool);
  err = errno;
  client_free (client);
  errno = err;
  return r;
}

bool
nbdedup_client_is_served (struct nbdedup_client *client)
{
  return client->pool == NULL;
}

/*----------------------------------------------------------------------
 * Commands
 */

/* The command waits for another one: a PROGRESS frame says for which. */
static int
tell_awaited (struct channel *ch, const struct control_frame *f,
              nbdedup_wait_fn *on_wait, uint64_t waited_ms)
{
  char text[CONTROL_ERROR_MAX + 1];
  const struct nbdedup_wait wait = {
    .kind = NBDEDUP_WAIT_TURN,
    .why = text,
    .who = "",
    .waited_ms = waited_ms,
  };

  if (f->payload > CONTROL_ERROR_MAX ||
      control_recv_bytes (ch->fd, text, f->payload) != 1)
    return -1;
  text[f->payload] = 0;
  if (on_wait != NULL)
    on_wait (&wait); /* 'progress' may cancel */
  return 0;
}

/* The server's result may come in several frames; collect them in *text.
 * Other frames before it are progress.
 */
static int
recv_result (struct channel *ch, nbdedup_wait_fn *on_wait,
             nbdedup_progress_fn *progress, void *opaque, char **text,
             size_t *len)
{
  const uint64_t begun = clock_ms ();
  struct control_frame f;
  bool cancelled = false;
  size_t cap = 0;

  assert (*text == NULL && *len == 0);
  for (;;) {
    if (channel_recv (ch, &f) == -1)
      return -1;
    if (f.type == CONTROL_PROGRESS) {
      struct control_frame cancel = {
        .type = CONTROL_CANCEL,
        .cookie = ch->cookie,
      };

      if (f.payload != 0 &&
          tell_awaited (ch, &f, on_wait, clock_ms () - begun) == -1)
        break;
      if (progress == NULL || cancelled ||
          progress (opaque, f.offset, f.length) == 0)
        continue;
      cancelled = true;
      if (control_send (ch->fd, &cancel, NULL) == -1)
        break;
      continue;
    }

    if (f.payload > CONTROL_RESULT_MAX - *len)
      break;
    if (array_reserve (text, &cap, *len + f.payload + 1, 1) == -1) {
      shutdown (ch->fd, SHUT_RDWR);
      return -1;
    }
    if (f.payload > 0 &&
        control_recv_bytes (ch->fd, *text + *len, f.payload) != 1)
      break;
    *len += f.payload;
    if (!(f.flags & CONTROL_FLAG_MORE))
      return 0;
  }
  shutdown (ch->fd, SHUT_RDWR);
  return channel_lost ();
}

json_t *
client_recv_json (struct channel *ch, nbdedup_wait_fn *on_wait,
                  nbdedup_progress_fn *progress, void *opaque)
{
  CLEANUP_FREE char *answer = NULL;
  size_t len = 0;
  json_t *result;

  if (recv_result (ch, on_wait, progress, opaque, &answer, &len) == -1)
    return NULL;
  errno = 0;
  result = json_loadb (answer, len, JSON_REJECT_DUPLICATES, NULL);
  if (result == NULL && errno == ENOMEM)
    nbdedup_fail (ENOMEM, "no memory for the server's answer");
  else if (result == NULL)
    nbdedup_fail (EIO, "the server's answer is not JSON");
  return result;
}

static json_t *
remote_call (struct channel *ch, const char *command, json_t *args,
             nbdedup_wait_fn *on_wait, nbdedup_progress_fn *progress,
             void *opaque)
{
  CLEANUP_JSON json_t *request = NULL;
  CLEANUP_FREE char *text = NULL;
  struct control_frame f = {
    .type = CONTROL_COMMAND,
    .flags = (progress ? CONTROL_FLAG_PROGRESS : 0) |
      (on_wait ? CONTROL_FLAG_AWAITED : 0),
  };

  errno = 0; /* jansson does not report why it fails */
  request = json_pack ("{s:s, s:O*}", "command", command, "args", args);
  if (request != NULL)
    text = json_dumps (request, JSON_COMPACT);
  if (text == NULL && errno == ENOMEM)
    return nbdedup_fail_null (ENOMEM, "no memory for the arguments");
  if (text == NULL)
    return nbdedup_fail_null (EINVAL,
                              "the arguments cannot be written as JSON");
  if (strlen (text) > CONTROL_PAYLOAD_MAX)
    return nbdedup_fail_null (EINVAL,
                              "the arguments take more than the %u KiB that "
                              "a server accepts: give fewer at once",
                              CONTROL_PAYLOAD_MAX >> 10);
  f.payload = strlen (text);
  if (channel_send (ch, &f, text) == -1) {
    /* A server does not run a request that did not arrive in full. */
    nbdedup_fail (ESHUTDOWN, "the server went away");
    return NULL;
  }
  return client_recv_json (ch, on_wait, progress, opaque);
}

static struct channel *
take_idle (struct nbdedup_client *client)
{
  struct channel *ch;

  assert (client->pool == NULL); /* else it needs no server */
  WITH_LOCK (&client->lock);
  ch = SLIST_FIRST (&client->idle);
  if (ch != NULL)
    SLIST_REMOVE_HEAD (&client->idle, link);
  return ch;
}

struct channel *
client_channel_new (struct nbdedup_client *client)
{
  const struct channel_watch watch = { client_look, client };
  struct channel *ch = channel_new (client->path, client->who, client->greet_s,
                                    &watch);

  if (ch == NULL && (errno == ENOENT || errno == ECONNREFUSED || errno == EIO))
    nbdedup_fail (ESHUTDOWN, "the server went away"); /* it was there */
  return ch;
}

/* Get a channel for a command; ESHUTDOWN: nothing has been done. */
static struct channel *
channel_get (struct nbdedup_client *client)
{
  struct channel *ch;

  while ((ch = take_idle (client)) != NULL && channel_is_closed (ch))
    channel_free (ch);
  if (ch != NULL)
    return ch;
  return client_channel_new (client);
}

/* Free a channel that failed, because its state is unknown.  Keeps errno. */
static void
channel_put (struct nbdedup_client *client, struct channel *ch, bool failed)
{
  const int err = errno;

  if (failed)
    channel_free (ch);
  else {
    WITH_LOCK (&client->lock);
    SLIST_INSERT_HEAD (&client->idle, ch, link);
  }
  errno = err;
}

bool
nbdedup_command_changes (const char *command, json_t *args)
{
  return command_changes (command, args);
}

json_t *
nbdedup_client_call (struct nbdedup_client *client, const char *command,
                     json_t *args, nbdedup_progress_fn *progress, void *opaque)
{
  const struct channel_watch watch = { client_look, client };
  struct channel *ch;
  json_t *result;

  if (client->readonly && command_changes (command, args))
    return nbdedup_fail_null (EROFS,
                              "this changes the pool, which --read-only "
                              "forbids");
  if (client->pool != NULL)
    return command_run (client->pool, command, args, progress, opaque);

  ch = channel_get (client);
  if (ch == NULL)
    return NULL;
  ch->watch = &watch;
  result = remote_call (ch, command, args, client->on_wait, progress, opaque);
  ch->watch = NULL;
  channel_put (client, ch, result == NULL);
  return result;
}

int
nbdedup_client_repair (struct nbdedup_client *client, uint64_t address,
                       const void *content, uint32_t len)
{
  struct control_frame f = {
    .type = CONTROL_REPAIR,
    .offset = address,
    .payload = len,
  };
  struct channel *ch;
  int r;

  if (client->pool != NULL)
    return scrub_offer (client->pool, address, content, len);
  if (len > CONTROL_PAYLOAD_MAX)
    return nbdedup_fail (EINVAL, "no record is that large");
  ch = channel_get (client);
  if (ch == NULL)
    return -1;
  r = channel_request (ch, &f, content, NULL, 0);
  channel_put (client, ch, r == -1);
  return r == -1 ? -1 : f.offset == 1;
}

int
nbdedup_volume_check_name (const char *name)
{
  return volume_check_name (name);
}
