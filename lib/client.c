/* SPDX-License-Identifier: BSD-3-Clause */

/* The client half of nbdedup.h: the same calls on a pool opened here and
 * on one that a server has open.
 *
 * A connection of control-protocol.h serves one request at a time, so a
 * client has several: those for commands, and, for each open volume, up to
 * CHANNELS_MAX on which the server has the volume open.  They are made when
 * a thread finds none idle.
 */

#include <config.h>

#include <inttypes.h>
#include <sys/queue.h>
#include <time.h>

#include "cleanup.h"
#include "command.h"
#include "control-protocol.h"
#include "error.h"
#include "lock.h"
#include "lockfile.h"
#include "volume.h"

#define CHANNELS_MAX 4

/* How long to wait for another command, or for a server that starts up or
 * goes down, and how often to look.
 */
#define WAIT_MS 30000
#define POLL_MS 100

/* A pool that is busy although its lock is free is not waited for so long:
 * something else is wrong with it.
 */
#define FREE_TRIES_MAX 10

struct channel {
  SLIST_ENTRY (channel) link;
  int fd;                       /* owned */
  uint64_t cookie;              /* of the last request */
};

SLIST_HEAD (channel_list, channel);

struct nbdedup_client {
  struct nbdedup_pool *pool;    /* owned; NULL: a server has it */
  char *path;                   /* owned */
  char who[CONTROL_WHO_MAX + 1];

  struct lock lock;             /* protects everything below */
  struct channel_list idle;     /* owned */
};

struct nbdedup_remote {
  struct nbdedup_client *client;        /* not owned; outlives the remote */
  struct nbdedup_volume *volume;        /* owned; NULL: a server has it */
  char *name;                   /* owned */
  unsigned flags;
  uint64_t size;
  uint32_t block_size;

  struct lock lock;             /* protects everything below */
  pthread_cond_t released;      /* a channel became idle, or was lost */
  struct channel_list idle;     /* owned */
  unsigned nr_channels;         /* idle or in use */
};

/*----------------------------------------------------------------------
 * Channels
 */

static int
server_lost (void)
{
  return nbdedup_fail (EIO, "the server went away");
}

static void
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

/* Take an ERROR's payload over as the failure of this call. */
static int
take_error (struct channel *ch, const struct control_frame *f)
{
  char text[CONTROL_ERROR_MAX + 1];

  if (f->payload > CONTROL_ERROR_MAX ||
      (f->payload > 0 && control_recv_bytes (ch->fd, text, f->payload) != 1)) {
    shutdown (ch->fd, SHUT_RDWR);
    return server_lost ();
  }
  text[f->payload] = 0;
  return nbdedup_fail (f->error > 0 && f->error < 4096 ? (int) f->error : EIO,
                       "%s", text);
}

/* Send a request.  Its cookie is filled in. */
static int
channel_send (struct channel *ch, struct control_frame *f, const void *payload)
{
  f->cookie = ++ch->cookie;
  if (control_send (ch->fd, f, payload) == -1)
    return server_lost ();
  return 0;
}

/* Receive the header of the next REPLY or PROGRESS; an ERROR is taken over
 * as this call's failure.
 */
static int
channel_recv (struct channel *ch, struct control_frame *f)
{
  if (control_recv_header (ch->fd, f) != 1 || f->cookie != ch->cookie) {
    shutdown (ch->fd, SHUT_RDWR);
    return server_lost ();
  }
  switch (f->type) {
  case CONTROL_ERROR:
    return take_error (ch, f);
  case CONTROL_REPLY:
  case CONTROL_PROGRESS:
    return 0;
  default:
    shutdown (ch->fd, SHUT_RDWR);
    return nbdedup_fail (EIO, "the server's answer is not nbdedup's protocol");
  }
}

/* A request whose REPLY has exactly 'len' bytes of payload. */
static int
channel_request (struct channel *ch, struct control_frame *f,
                 const void *payload, void *answer, uint32_t len)
{
  if (channel_send (ch, f, payload) == -1 || channel_recv (ch, f) == -1)
    return -1;
  if (f->type != CONTROL_REPLY || f->payload != len ||
      (len > 0 && control_recv_bytes (ch->fd, answer, len) != 1)) {
    shutdown (ch->fd, SHUT_RDWR);
    return server_lost ();
  }
  return 0;
}

/* The handshake.  A server that turns us away says so and closes without
 * having read our HELLO: its ERROR is worth reading even if sending
 * fails, and has no cookie.
 */
static int
channel_greet (struct channel *ch, const char *who)
{
  struct control_frame f = {
    .type = CONTROL_HELLO, .offset = CONTROL_VERSION,
    .length = CONTROL_VERSION, .payload = strlen (who),
    .cookie = ++ch->cookie,
  };

  control_send (ch->fd, &f, who);
  if (control_recv_header (ch->fd, &f) != 1)
    return server_lost ();
  if (f.type == CONTROL_ERROR)
    return take_error (ch, &f);
  if (f.type != CONTROL_REPLY || f.payload != 0 || f.cookie != ch->cookie ||
      f.offset != CONTROL_VERSION)
    return nbdedup_fail (EPROTO, "the server's answer is not nbdedup's "
                         "protocol");
  return 0;
}

/* Connect to the server of pool directory 'path'.  ENOENT, ECONNREFUSED
 * (nobody listens) and EIO (lost while greeting) may pass; others do not.
 */
static struct channel *
channel_new (const char *path, const char *who)
{
  CLEANUP_CLOSE int dirfd = open (path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  struct channel *ch = malloc (sizeof *ch);
  struct sockaddr_un addr;

  if (ch == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for a connection");
  ch->cookie = 0;
  ch->fd = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (dirfd == -1 || ch->fd == -1) {
    nbdedup_fail (errno, "%s: %s", path, strerror (errno));
    channel_free (ch);
    return NULL;
  }
  control_set_timeouts (ch->fd, CONTROL_TIMEOUT_S, CONTROL_TIMEOUT_S);
  control_address (dirfd, CONTROL_SOCKET, &addr);
  if (connect (ch->fd, (struct sockaddr *) &addr, sizeof addr) == -1) {
    nbdedup_fail (errno, "%s/%s: cannot connect to the server: %s",
                  path, CONTROL_SOCKET, strerror (errno));
    channel_free (ch);
    return NULL;
  }
  if (channel_greet (ch, who) == -1) {
    channel_free (ch);
    return NULL;
  }
  /* Commands may take for ever. */
  control_set_timeouts (ch->fd, 0, 0);
  return ch;
}

static void
channel_list_free (struct channel_list *list)
{
  struct channel *ch;

  while ((ch = SLIST_FIRST (list)) != NULL) {
    SLIST_REMOVE_HEAD (list, link);
    channel_free (ch);
  }
}

/*----------------------------------------------------------------------
 * Open and close
 */

/* Get at the pool once.  Returns 1 if it worked, 0 if it may work later
 * (the text says what is in the way), -1 if it will not.
 */
static int
try_open (struct nbdedup_client *client,
          const struct nbdedup_settings *settings, unsigned *free_tries)
{
  struct lockfile_holder holder = { 0 };
  struct channel *ch;

  client->pool = nbdedup_pool_open (client->path, settings, client->who, 0);
  if (client->pool != NULL)
    return 1;
  if (errno != EBUSY)
    return -1;

  if (lockfile_take (client->path, false, NULL, &holder) == 0) {
    if (++*free_tries < FREE_TRIES_MAX)
      return 0;
    /* Say again why; nothing of that is in the holder. */
    client->pool = nbdedup_pool_open (client->path, settings, client->who, 0);
    return client->pool != NULL ? 1 : -1;
  }
  if (errno != EBUSY)
    return -1;
  *free_tries = 0;

  if (!holder.server) {
    if (holder.pid == 0)
      nbdedup_fail (EBUSY, "pool %s is in use by another process",
                    client->path);
    else
      nbdedup_fail (EBUSY, "pool %s is in use by %s (PID %ld)", client->path,
                    holder.who, (long) holder.pid);
    return 0;
  }
  ch = channel_new (client->path, client->who);
  if (ch != NULL) {
    SLIST_INSERT_HEAD (&client->idle, ch, link);
    return 1;
  }
  if (errno != ENOENT && errno != ECONNREFUSED && errno != EIO &&
      errno != EAGAIN && errno != ESHUTDOWN)
    return -1;
  nbdedup_fail (EBUSY, "pool %s is in use by %s (PID %ld), which does not "
                "answer on %s", client->path, holder.who, (long) holder.pid,
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

static uint64_t
now_ms (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * UINT64_C (1000) + ts.tv_nsec / 1000000;
}

struct nbdedup_client *
nbdedup_client_open (const char *path, const struct nbdedup_settings *settings,
                     const char *who)
{
  struct nbdedup_client *client = calloc (1, sizeof *client);
  const uint64_t deadline = now_ms () + WAIT_MS;
  unsigned free_tries = 0;
  int r, err;

  if (client == NULL || (client->path = strdup (path)) == NULL) {
    free (client);
    return nbdedup_fail_null (ENOMEM, "no memory for a client");
  }
  snprintf (client->who, sizeof client->who, "%s", who);
  lock_init (&client->lock);
  SLIST_INIT (&client->idle);

  for (;;) {
    r = try_open (client, settings, &free_tries);
    if (r == 1)
      return client;
    if (r == -1 || now_ms () >= deadline)
      break;
    nanosleep (&(struct timespec) { .tv_nsec = POLL_MS * 1000000 }, NULL);
  }
  err = errno;
  client_free (client);
  errno = err;
  return NULL;
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
nbdedup_client_is_remote (struct nbdedup_client *client)
{
  return client->pool == NULL;
}

/*----------------------------------------------------------------------
 * Commands
 */

/* The server's result may come in several frames; collect them in *text.
 * Other frames before it are progress.
 */
static int
recv_result (struct channel *ch, nbdedup_progress_fn *progress, void *opaque,
             char **text, size_t *len)
{
  struct control_frame f;
  bool cancelled = false;
  char *p;

  for (;;) {
    if (channel_recv (ch, &f) == -1)
      return -1;
    if (f.type == CONTROL_PROGRESS) {
      struct control_frame cancel = {
        .type = CONTROL_CANCEL, .cookie = ch->cookie,
      };

      if (f.payload == 0 && (progress == NULL || cancelled ||
                             progress (opaque, f.offset, f.length) == 0))
        continue;
      cancelled = true;
      if (f.payload != 0 || control_send (ch->fd, &cancel, NULL) == -1)
        break;
      continue;
    }

    if (f.payload > CONTROL_RESULT_MAX - *len)
      break;
    p = realloc (*text, *len + f.payload + 1);
    if (p == NULL) {
      shutdown (ch->fd, SHUT_RDWR);
      return nbdedup_fail (ENOMEM, "no memory for the server's answer");
    }
    *text = p;
    if (f.payload > 0 &&
        control_recv_bytes (ch->fd, *text + *len, f.payload) != 1)
      break;
    *len += f.payload;
    if (!(f.flags & CONTROL_FLAG_MORE))
      return 0;
  }
  shutdown (ch->fd, SHUT_RDWR);
  return server_lost ();
}

static json_t *
remote_call (struct channel *ch, const char *command, json_t *args,
             nbdedup_progress_fn *progress, void *opaque)
{
  CLEANUP_JSON json_t *request = NULL;
  CLEANUP_FREE char *text = NULL;
  CLEANUP_FREE char *answer = NULL;
  struct control_frame f = {
    .type = CONTROL_COMMAND, .flags = progress ? CONTROL_FLAG_PROGRESS : 0,
  };
  size_t len = 0;
  json_t *result;

  request = json_pack ("{s:s, s:O*}", "command", command, "args", args);
  if (request != NULL)
    text = json_dumps (request, JSON_COMPACT);
  if (text == NULL)
    return nbdedup_fail_null (EINVAL, "%s: the arguments have no JSON form",
                              command);
  if (strlen (text) > CONTROL_COMMAND_MAX)
    return nbdedup_fail_null (EINVAL, "%s: the arguments are too long",
                              command);
  f.payload = strlen (text);
  if (channel_send (ch, &f, text) == -1) {
    /* What did not arrive in full was not done. */
    nbdedup_fail (ESHUTDOWN, "the server went away");
    return NULL;
  }
  if (recv_result (ch, progress, opaque, &answer, &len) == -1)
    return NULL;
  result = json_loadb (answer, len, JSON_REJECT_DUPLICATES, NULL);
  if (result == NULL)
    nbdedup_fail (EIO, "%s: the server's answer is not JSON", command);
  return result;
}

json_t *
nbdedup_client_call (struct nbdedup_client *client, const char *command,
                     json_t *args, nbdedup_progress_fn *progress,
                     void *opaque)
{
  struct channel *ch = NULL;
  json_t *result;
  int err;

  if (client->pool != NULL)
    return command_run (client->pool, command, args, progress, opaque);

  {
    WITH_LOCK (&client->lock);
    ch = SLIST_FIRST (&client->idle);
    if (ch != NULL)
      SLIST_REMOVE_HEAD (&client->idle, link);
  }
  if (ch == NULL) {
    ch = channel_new (client->path, client->who);
    if (ch == NULL)
      return NULL;
  }
  result = remote_call (ch, command, args, progress, opaque);
  err = errno;
  if (result == NULL)
    channel_free (ch);          /* in whatever state it is */
  else {
    WITH_LOCK (&client->lock);
    SLIST_INSERT_HEAD (&client->idle, ch, link);
  }
  errno = err;
  return result;
}

/*----------------------------------------------------------------------
 * Volumes
 */

int
nbdedup_volume_check_name (const char *name)
{
  return volume_check_name (name);
}

static struct channel *
volume_channel_new (struct nbdedup_client *client, const char *name,
                    unsigned flags, uint64_t *size, uint32_t *block_size)
{
  struct control_frame f = {
    .type = CONTROL_VOLUME_OPEN, .length = flags, .payload = strlen (name),
  };
  struct channel *ch = channel_new (client->path, client->who);

  if (ch == NULL)
    return NULL;
  if (channel_request (ch, &f, name, NULL, 0) == -1) {
    channel_free (ch);
    return NULL;
  }
  if (f.length == 0 || f.length > UINT32_MAX) {
    channel_free (ch);
    server_lost ();
    return NULL;
  }
  *size = f.offset;
  *block_size = f.length;
  return ch;
}

/* An idle channel, a new one, or, with CHANNELS_MAX in use, the next that
 * becomes idle.
 */
static struct channel *
channel_get (struct nbdedup_remote *remote)
{
  const unsigned max =
    remote->flags & NBDEDUP_VOLUME_EXCLUSIVE ? 1 : CHANNELS_MAX;
  struct channel *ch;
  uint64_t size;
  uint32_t block_size;

  {
    WITH_LOCK (&remote->lock);
    /* Until one is idle or may be made. */
    while (SLIST_EMPTY (&remote->idle) && remote->nr_channels >= max)
      lock_wait (&remote->lock, &remote->released);
    ch = SLIST_FIRST (&remote->idle);
    if (ch != NULL) {
      SLIST_REMOVE_HEAD (&remote->idle, link);
      return ch;
    }
    remote->nr_channels++;
  }

  ch = volume_channel_new (remote->client, remote->name, remote->flags,
                           &size, &block_size);
  if (ch != NULL && size != remote->size) {
    /* Resized since: the offsets that the caller knows may not exist. */
    channel_free (ch);
    ch = NULL;
    nbdedup_fail (EIO, "%s: was resized meanwhile", remote->name);
  }
  if (ch == NULL) {
    const int err = errno;

    WITH_LOCK (&remote->lock);
    remote->nr_channels--;
    pthread_cond_signal (&remote->released);
    errno = err;
  }
  return ch;
}

/* A channel after a failure is only kept if it still knows where frames
 * begin; one that does not was shut down, and fails again at once.
 */
static void
channel_put (struct nbdedup_remote *remote, struct channel *ch)
{
  const int err = errno;

  {
    WITH_LOCK (&remote->lock);
    SLIST_INSERT_HEAD (&remote->idle, ch, link);
    pthread_cond_signal (&remote->released);
  }
  errno = err;
}

struct nbdedup_remote *
nbdedup_client_volume_open (struct nbdedup_client *client, const char *name,
                            unsigned flags)
{
  struct nbdedup_remote *remote = calloc (1, sizeof *remote);
  struct channel *ch;
  int err;

  if (remote == NULL || (remote->name = strdup (name)) == NULL) {
    free (remote);
    return nbdedup_fail_null (ENOMEM, "no memory for a volume");
  }
  remote->client = client;
  remote->flags = flags;
  lock_init (&remote->lock);
  cond_init (&remote->released);
  SLIST_INIT (&remote->idle);

  if (client->pool != NULL) {
    remote->volume = nbdedup_volume_open (client->pool, name,
                                          flags | NBDEDUP_VOLUME_ADMIN,
                                          geteuid (), NULL);
    if (remote->volume != NULL) {
      remote->size = nbdedup_volume_size (remote->volume);
      remote->block_size = nbdedup_volume_block_size (remote->volume);
      return remote;
    }
  }
  else if (strlen (name) > CONTROL_NAME_MAX)
    nbdedup_fail (EINVAL, "the volume name is too long");
  else {
    ch = volume_channel_new (client, name, flags, &remote->size,
                             &remote->block_size);
    if (ch != NULL) {
      SLIST_INSERT_HEAD (&remote->idle, ch, link);
      remote->nr_channels = 1;
      return remote;
    }
  }
  err = errno;
  nbdedup_remote_close (remote);
  errno = err;
  return NULL;
}

void
nbdedup_remote_close (struct nbdedup_remote *remote)
{
  struct channel *ch;

  if (remote == NULL)
    return;
  if (remote->volume != NULL)
    nbdedup_volume_close (remote->volume);

  /* Wait for the server's answer: who destroys the volume next must not
   * find it in use.
   */
  SLIST_FOREACH (ch, &remote->idle, link) {
    struct control_frame f = { .type = CONTROL_VOLUME_CLOSE };

    channel_request (ch, &f, NULL, NULL, 0);
  }
  channel_list_free (&remote->idle);
  pthread_cond_destroy (&remote->released);
  lock_destroy (&remote->lock);
  free (remote->name);
  free (remote);
}

uint64_t
nbdedup_remote_size (struct nbdedup_remote *remote)
{
  return remote->size;
}

uint32_t
nbdedup_remote_block_size (struct nbdedup_remote *remote)
{
  return remote->block_size;
}

/* One request on any channel, the answer 'len' bytes. */
static int
remote_request (struct nbdedup_remote *remote, struct control_frame *f,
                const void *payload, void *answer, uint32_t len)
{
  struct channel *ch = channel_get (remote);
  int r;

  if (ch == NULL)
    return -1;
  r = channel_request (ch, f, payload, answer, len);
  channel_put (remote, ch);
  return r;
}

int
nbdedup_remote_read (struct nbdedup_remote *remote, void *buf, uint32_t len,
                     uint64_t offset)
{
  uint8_t *p = buf;

  if (remote->volume != NULL)
    return nbdedup_volume_read (remote->volume, buf, len, offset);

  while (len > 0) {
    const uint32_t n = len < CONTROL_PAYLOAD_MAX ? len : CONTROL_PAYLOAD_MAX;
    struct control_frame f = {
      .type = CONTROL_READ, .offset = offset, .length = n,
    };

    if (remote_request (remote, &f, NULL, p, n) == -1)
      return -1;
    p += n;
    offset += n;
    len -= n;
  }
  return 0;
}

int
nbdedup_remote_write (struct nbdedup_remote *remote, const void *buf,
                      uint32_t len, uint64_t offset)
{
  const uint8_t *p = buf;

  if (remote->volume != NULL)
    return nbdedup_volume_write (remote->volume, buf, len, offset);

  while (len > 0) {
    const uint32_t n = len < CONTROL_PAYLOAD_MAX ? len : CONTROL_PAYLOAD_MAX;
    struct control_frame f = {
      .type = CONTROL_WRITE, .offset = offset, .payload = n,
    };

    if (remote_request (remote, &f, p, NULL, 0) == -1)
      return -1;
    p += n;
    offset += n;
    len -= n;
  }
  return 0;
}

int
nbdedup_remote_zero (struct nbdedup_remote *remote, uint64_t len,
                     uint64_t offset)
{
  struct control_frame f = {
    .type = CONTROL_ZERO, .offset = offset, .length = len,
  };

  if (remote->volume != NULL)
    return nbdedup_volume_zero (remote->volume, len, offset);
  return remote_request (remote, &f, NULL, NULL, 0);
}

int
nbdedup_remote_flush (struct nbdedup_remote *remote)
{
  struct control_frame f = { .type = CONTROL_FLUSH };

  if (remote->volume != NULL)
    return nbdedup_volume_flush (remote->volume);
  return remote_request (remote, &f, NULL, NULL, 0);
}

/* Ask once; returns the extents in 'buf' (owned by the caller) and their
 * number in *nr.
 */
static uint8_t *
request_extents (struct nbdedup_remote *remote, uint64_t len, uint64_t offset,
                 uint32_t *nr)
{
  struct control_frame f = {
    .type = CONTROL_EXTENTS, .offset = offset, .length = len,
  };
  struct channel *ch = channel_get (remote);
  uint8_t *buf = NULL;

  if (ch == NULL)
    return NULL;
  if (channel_send (ch, &f, NULL) == 0 && channel_recv (ch, &f) == 0) {
    *nr = f.payload / CONTROL_EXTENT_LEN;
    buf = malloc (f.payload);
    if (f.type != CONTROL_REPLY || buf == NULL || *nr == 0 ||
        f.payload % CONTROL_EXTENT_LEN != 0 ||
        control_recv_bytes (ch->fd, buf, f.payload) != 1) {
      free (buf);
      buf = NULL;
      shutdown (ch->fd, SHUT_RDWR);
      server_lost ();
    }
  }
  channel_put (remote, ch);
  return buf;
}

int
nbdedup_remote_extents (struct nbdedup_remote *remote, uint64_t len,
                        uint64_t offset,
                        int (*fn) (void *opaque, uint64_t offset,
                                   uint64_t len, bool hole),
                        void *opaque)
{
  if (remote->volume != NULL)
    return nbdedup_volume_extents (remote->volume, len, offset, fn, opaque);

  while (len > 0) {
    uint32_t nr = 0, i;
    CLEANUP_FREE uint8_t *buf = request_extents (remote, len, offset, &nr);

    if (buf == NULL)
      return -1;
    for (i = 0; i < nr; ++i) {
      const uint64_t n = get_le64 (buf + i * CONTROL_EXTENT_LEN);
      const bool hole = get_le64 (buf + i * CONTROL_EXTENT_LEN + 8) & 1;
      int r;

      if (n == 0 || n > len)
        return nbdedup_fail (EIO, "%s: the server's extents make no sense",
                             remote->name);
      r = fn (opaque, offset, n, hole);
      if (r != 0)
        return r == -1 ? -1 : 0;
      offset += n;
      len -= n;
    }
  }
  return 0;
}
