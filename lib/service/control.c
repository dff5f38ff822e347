/* SPDX-License-Identifier: BSD-3-Clause */

/* The server side of control.sock.
 *
 * One thread accepts; each connection has a thread of its own, which
 * serves its requests one after the other.  So a client that is slow,
 * silent or gone occupies only its own thread and the volume that it has
 * open.
 *
 * Life of a connection: the accepting thread makes it and puts it on the
 * list.  Its thread serves it, closes what it has open, sets 'done' and wakes
 * the accepting thread.  Only the accepting thread joins threads and frees
 * connections.  The descriptor stays open until then, so that control_stop
 * can shut it down without hitting another file that got the same number.
 *
 * The server does not trust data from the socket: bytes that are not a frame
 * end the connection, and the reply to a frame that is not a request is an
 * ERROR.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/priority.h"
#include "base/thread.h"
#include "base/turn.h"
#include "format/control-protocol.h"
#include "report/scrub.h"
#include "service/command.h"
#include "service/control-int.h"
#include "service/control.h"

/* When there are so many, a new connection replaces the one that has been idle
 * longest, so silent or slow clients do not block commands.  If none is idle,
 * new ones stay in the socket's queue until one ends or becomes idle: first
 * come, first served.  Each takes a descriptor; a process may have 1024.
 */
#define CONNECTIONS_MAX 256
/* For so long a connection without a request is not idle: its client is about
 * to send the first one.
 */
#define FRESH_MS 1000
/* A client of import or export has up to four connections with the volume, to
 * be faster.  When there are so many, it gets only the first one, which it
 * cannot do without.  They are never idle: a client that reads stdin may take
 * long.
 */
#define VOLUMES_MANY 32
/* Values of 'idle_ms' for a connection that is not idle. */
/* It serves a request, or its client has a volume or a frozen view. */
#define SERVING 0
/* The accepting thread has sent it away: it must end. */
#define SENT_AWAY UINT64_MAX

/* How long clients may take to read their last answers. */
#define STOP_MS 1000

static void
wake (struct control *control)
{
  const uint64_t one = 1;

  /* This fails only if the counter would overflow: the thread is awake then.
   */
  if (write (control->wakefd, &one, sizeof one) == -1)
    return;
}

/*----------------------------------------------------------------------
 * Requests.  Their payload is in conn->buf, followed by a NUL.
 */

static bool
is_printable (char c)
{
  return c >= 0x20 && c <= 0x7e;
}

/* What commands that wait for this one tell their users. */
static void
name_thread (const struct connection *conn)
{
  char name[TURN_NAME_MAX], *p;

  snprintf (name, sizeof name, "%s (PID %ld)",
            conn->who[0] ? conn->who : "another command",
            (long) conn->asker.pid);
  for (p = name; *p; ++p)
    if (!is_printable (*p))
      *p = '?'; /* it may be shown on a terminal */
  turn_set_name (name);
}

static int
serve_hello (struct connection *conn, const struct control_frame *f)
{
  if (f->offset > CONTROL_VERSION || f->length < CONTROL_VERSION) {
    char text[160];

    snprintf (text, sizeof text,
              "control: the server speaks version %d, "
              "the client versions %" PRIu64 " to %" PRIu64 ": use the same "
              "version of nbdedup",
              CONTROL_VERSION, f->offset, f->length);
    return control_reply_error (conn, EPROTONOSUPPORT, text);
  }
  snprintf (conn->who, sizeof conn->who, "%s", (const char *) conn->buf);
  name_thread (conn);
  conn->greeted = true;
  return control_reply (conn, CONTROL_VERSION, 0, NULL, 0);
}

static int
serve_command (struct connection *conn, const struct control_frame *f)
{
  CLEANUP_JSON json_t *request = NULL;
  CLEANUP_JSON json_t *result = NULL;
  json_t *args = NULL;
  const char *command;
  json_error_t err;

  errno = 0; /* only errno tells ENOMEM from a bad text */
  request = json_loadb ((const char *) conn->buf, f->payload,
                        JSON_REJECT_DUPLICATES, &err);
  if (request == NULL && errno == ENOMEM)
    return control_reply_error (conn, ENOMEM, "no memory for the command");
  if (request == NULL)
    return control_reply_error (conn, EINVAL,
                                "control: the command is not JSON");
  command = json_string_value (json_object_get (request, "command"));
  args = json_object_get (request, "args");
  if (command == NULL || (args != NULL && !json_is_object (args)))
    return control_reply_error (conn, EINVAL,
                                "control: the command is not an object with "
                                "\"command\" and \"args\"");

  conn->want_progress = f->flags & CONTROL_FLAG_PROGRESS;
  conn->want_awaited = f->flags & CONTROL_FLAG_AWAITED;
  conn->progress_ms = 0;
  /* For the rest of the connection. */
  if (command_is_background (command, args))
    thread_lower_priority ();
  result = command_run (conn->control->pool, command, args, control_progress,
                        conn);
  if (conn->lost)
    return -1;
  if (result == NULL && (errno == EINTR || errno == ECANCELED) &&
      atomic_load (&conn->control->stopping))
    return control_reply_error (conn, errno == EINTR ? EINTR : ESHUTDOWN,
                                "the server is shutting down");
  if (result == NULL)
    return control_reply_failure (conn);
  return control_reply_json (conn, result);
}

static void
close_volume (struct connection *conn)
{
  if (conn->volume == NULL)
    return;
  assert (conn->control->nr_volumes > 0);
  nbdedup_volume_close (conn->volume);
  conn->volume = NULL;
  atomic_fetch_sub (&conn->control->nr_volumes, 1);
}

static int
serve_volume_open (struct connection *conn, const struct control_frame *f)
{
  const char *name = (const char *) conn->buf;

  if (conn->volume != NULL || conn->frozen != NULL)
    return control_reply_error (conn, EINVAL,
                                "control: this connection has a volume open "
                                "already");
  if (f->payload == 0 || f->payload > CONTROL_NAME_MAX ||
      strlen (name) != f->payload)
    return control_reply_error (conn, EINVAL, "control: bad volume name");
  if (f->length &
      ~(uint64_t) (NBDEDUP_VOLUME_READONLY | NBDEDUP_VOLUME_EXCLUSIVE))
    return control_reply_error (conn, EINVAL, "control: unknown volume flags");

  if (atomic_fetch_add (&conn->control->nr_volumes, 1) >= VOLUMES_MANY &&
      (f->flags & CONTROL_FLAG_SPARE)) {
    atomic_fetch_sub (&conn->control->nr_volumes, 1);
    return control_reply_error (conn, EBUSY,
                                "control: there are many imports and exports: "
                                "use the connections that you have");
  }
  conn->volume = nbdedup_volume_open (conn->control->pool, name,
                                      f->length | NBDEDUP_VOLUME_ADMIN,
                                      conn->uid, NULL);
  if (conn->volume == NULL) {
    int err = errno;

    atomic_fetch_sub (&conn->control->nr_volumes, 1);
    errno = err;
    return control_reply_failure (conn);
  }
  return control_reply (conn, nbdedup_volume_size (conn->volume),
                        nbdedup_volume_block_size (conn->volume), NULL, 0);
}

struct extents_state {
  uint8_t *buf;
  uint32_t nr;
};

static int
collect_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  struct extents_state *state = opaque;

  (void) offset; /* extents are in order and without gaps */
  assert (state->nr < CONTROL_EXTENTS_MAX && len > 0);
  put_le64 (state->buf + state->nr * CONTROL_EXTENT_LEN, len);
  put_le64 (state->buf + state->nr * CONTROL_EXTENT_LEN + 8, hole);
  state->nr++;
  return state->nr == CONTROL_EXTENTS_MAX;
}

static int
serve_extents (struct connection *conn, const struct control_frame *f)
{
  struct extents_state state = { .buf = conn->buf };

  if (nbdedup_volume_extents (conn->volume, f->length, f->offset,
                              collect_extent, &state) == -1)
    return control_reply_failure (conn);
  return control_reply (conn, 0, 0, conn->buf, state.nr * CONTROL_EXTENT_LEN);
}

static int
serve_read (struct connection *conn, const struct control_frame *f)
{
  if (f->length == 0 || f->length > CONTROL_PAYLOAD_MAX)
    return control_reply_error (conn, EINVAL, "control: bad length of a read");
  if (nbdedup_volume_read (conn->volume, conn->buf, f->length, f->offset) == -1)
    return control_reply_failure (conn);
  return control_reply (conn, 0, 0, conn->buf, f->length);
}

static int
serve_repair (struct connection *conn, const struct control_frame *f)
{
  int r = scrub_offer (conn->control->pool, f->offset, conn->buf, f->payload);

  return r == -1 ? control_reply_failure (conn)
                 : control_reply (conn, r, 0, NULL, 0);
}

static int
serve_data (struct connection *conn, const struct control_frame *f)
{
  if (conn->volume == NULL)
    return control_reply_error (conn, EINVAL,
                                "control: this connection has no volume open");
  switch (f->type) {
  case CONTROL_VOLUME_CLOSE:
    close_volume (conn);
    return control_reply (conn, 0, 0, NULL, 0);
  case CONTROL_READ:
    return serve_read (conn, f);
  case CONTROL_WRITE:
    if (f->payload == 0)
      return control_reply_error (conn, EINVAL,
                                  "control: bad length of a write");
    return control_reply_result (conn,
                                 nbdedup_volume_write (conn->volume, conn->buf,
                                                       f->payload, f->offset));
  case CONTROL_FLUSH:
    return control_reply_result (conn, nbdedup_volume_flush (conn->volume));
  case CONTROL_EXTENTS:
    return serve_extents (conn, f);
  default:
    abort (); /* serve_request passes no other type */
  }
}

static int
serve_request (struct connection *conn, const struct control_frame *f)
{
  if (!conn->greeted && f->type != CONTROL_HELLO) {
    control_reply_error (conn, EPROTO, "control: HELLO must come first");
    return -1;
  }
  if (atomic_load (&conn->control->stopping)) {
    control_reply_error (conn, ESHUTDOWN, "the server is shutting down");
    return -1;
  }

  if (f->type != CONTROL_HELLO)
    atomic_store (&conn->used, true);
  switch (f->type) {
  case CONTROL_HELLO:
    return serve_hello (conn, f);
  case CONTROL_COMMAND:
    return serve_command (conn, f);
  case CONTROL_CANCEL:
    return 0; /* too late: the command has been answered */
  case CONTROL_VOLUME_OPEN:
    return serve_volume_open (conn, f);
  case CONTROL_REPAIR:
    return serve_repair (conn, f);
  case CONTROL_VOLUME_CLOSE:
  case CONTROL_READ:
  case CONTROL_WRITE:
  case CONTROL_FLUSH:
  case CONTROL_EXTENTS:
    return serve_data (conn, f);
  case CONTROL_FREEZE:
    return control_serve_freeze (conn, f);
  case CONTROL_FROZEN_NEXT:
  case CONTROL_FROZEN_READ:
  case CONTROL_FROZEN_RUNS:
  case CONTROL_FROZEN_ZERO:
  case CONTROL_FROZEN_ADVISE:
    return control_serve_frozen (conn, f);
  default:
    return control_reply_error (conn, EOPNOTSUPP, "control: unknown request");
  }
}

/*----------------------------------------------------------------------
 * Connections
 */

/* Wait for a frame to begin; 'ms' -1: forever.  control_stop ends the wait. */
bool
control_wait (struct connection *conn, int ms)
{
  struct pollfd pfd = { .fd = conn->fd, .events = POLLIN };
  int r;

  do
    r = poll (&pfd, 1, ms);
  while (r == -1 && errno == EINTR);
  return r == 1;
}

static int
get_buffer (struct connection *conn)
{
  if (conn->buf != NULL)
    return 0;
  conn->borrowed = conn->volume != NULL;
  conn->buf = conn->borrowed ? control_buffer_get (&conn->control->buffers)
                             : malloc (CONTROL_PAYLOAD_MAX + 1);
  return conn->buf == NULL ? -1 : 0;
}

static void
put_buffer (struct connection *conn)
{
  if (conn->buf != NULL && conn->borrowed)
    control_buffer_put (&conn->control->buffers, conn->buf);
  else
    free (conn->buf);
  conn->buf = NULL;
}

static int
serve_one (struct connection *conn)
{
  struct control_frame f;
  int r;

  r = control_recv_header (conn->fd, &f);
  if (r != 1) {
    conn->cookie = 0;
    if (r == -1 && errno == EPROTO)
      control_reply_error (conn, EPROTO,
                           "control: the client does not speak nbdedup's "
                           "protocol");
    return -1;
  }
  conn->cookie = f.cookie;

  if (get_buffer (conn) == -1) {
    control_reply_error (conn, ENOMEM, "control: no memory for a buffer");
    return -1;
  }
  if (f.payload > 0 && control_recv_bytes (conn->fd, conn->buf, f.payload) != 1)
    return -1;
  conn->buf[f.payload] = 0;
  if (atomic_exchange (&conn->idle_ms, SERVING) == SENT_AWAY)
    return -1;
  return serve_request (conn, &f);
}

/* The connection is idle again, unless it has a volume or a frozen moment. */
static void
end_request (struct connection *conn)
{
  if (conn->frozen != NULL)
    return;
  put_buffer (conn);
  if (conn->volume != NULL)
    return;
  atomic_store (&conn->idle_ms, clock_ms ());
  if (atomic_load (&conn->control->full))
    wake (conn->control);
}

static bool
wait_for_request (struct connection *conn)
{
  /* A client that was stopped may never send another one. */
  if (control_watch_frozen (conn))
    end_request (conn);
  return control_wait (conn, conn->greeted ? -1 : CONTROL_TIMEOUT_S * 1000);
}

static void *
connection_thread (void *opaque)
{
  struct connection *conn = opaque;
  struct control *control = conn->control;

  event_set_asker (&conn->asker);
  while (wait_for_request (conn))
    if (serve_one (conn) == -1)
      break;
    else
      end_request (conn);

  close_volume (conn);
  control_close_frozen (conn);
  free (conn->lost_moment);
  put_buffer (conn);
  shutdown (conn->fd, SHUT_RDWR);
  atomic_store (&conn->done, true);
  wake (control);
  return NULL;
}

/* Send the reason to a client that is not served, if that does not block. */
static void
turn_away (int fd, int err, const char *text)
{
  struct connection conn = { .fd = fd };

  control_set_timeouts (fd, 1, 1);
  control_reply_error (&conn, err, text);
  close (fd);
}

/* The connection that has been idle longest, and since when.  NULL: none, or,
 * with *since, none until FRESH_MS after that.
 */
static struct connection *
find_idle (struct control *control, uint_fast64_t *since)
{
  const uint64_t now = clock_ms ();
  struct connection *conn, *longest = NULL;
  uint_fast64_t ms, fresh = SENT_AWAY;

  *since = SENT_AWAY;
  LIST_FOREACH (conn, &control->connections, link) {
    ms = atomic_load (&conn->idle_ms);
    if (ms == SERVING || ms == SENT_AWAY)
      continue;
    if (!atomic_load (&conn->used) && now - ms < FRESH_MS) {
      if (ms < fresh)
        fresh = ms;
    }
    else if (ms < *since) {
      longest = conn;
      *since = ms;
    }
  }
  if (longest == NULL && fresh != SENT_AWAY)
    *since = fresh;
  return longest;
}

/* Close the connection that has been idle longest.  Its client notices before
 * it sends its next request, and connects again (client.c).
 */
static bool
make_room (struct control *control)
{
  struct connection *longest;
  uint_fast64_t since;

  do {
    longest = find_idle (control, &since);
    if (longest == NULL)
      return false;
  } while (
    !atomic_compare_exchange_strong (&longest->idle_ms, &since, SENT_AWAY));
  shutdown (longest->fd, SHUT_RDWR);
  return true;
}

/* When another connection may be accepted: in so many milliseconds; -1: not
 * before one ends or becomes idle, which wakes the thread.
 */
static int
room_in_ms (struct control *control)
{
  const uint64_t now = clock_ms ();
  uint_fast64_t since;

  if (control->nr_connections < CONNECTIONS_MAX)
    return 0;
  atomic_store (&control->full, true);
  if (find_idle (control, &since) != NULL)
    return 0;
  if (since == SENT_AWAY)
    return -1;
  return now < since + FRESH_MS ? (int) (since + FRESH_MS - now) : 1;
}

static void
accept_one (struct control *control)
{
  struct connection *conn;
  struct ucred cred;
  socklen_t len = sizeof cred;
  int fd;

  if (control->nr_connections >= CONNECTIONS_MAX && !make_room (control))
    return; /* the one that was idle is no longer */
  fd = accept4 (control->listenfd, NULL, NULL, SOCK_CLOEXEC);
  if (fd == -1) {
    /* Out of descriptors or memory: the client stays in the queue, and
     * poll would return at once.
     */
    if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN)
      clock_sleep_ms (100);
    return;
  }
  if (getsockopt (fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == -1 ||
      (cred.uid != 0 && cred.uid != geteuid ())) {
    turn_away (fd, EACCES,
               "control: only the server's own user and root "
               "may use this pool");
    return;
  }
  conn = calloc (1, sizeof *conn);
  if (conn == NULL) {
    turn_away (fd, ENOMEM, "control: the server has no memory");
    return;
  }
  conn->control = control;
  conn->fd = fd;
  conn->uid = cred.uid;
  conn->asker = (struct event_asker) { .uid = cred.uid, .pid = cred.pid };
  conn->idle_ms = clock_ms ();
  control_set_timeouts (fd, CONTROL_TIMEOUT_S, CONTROL_TIMEOUT_S);
  if (thread_start (&conn->thread, connection_thread, conn) == -1) {
    turn_away (fd, EAGAIN, "control: the server cannot start a thread");
    free (conn);
    return;
  }
  LIST_INSERT_HEAD (&control->connections, conn, link);
  control->nr_connections++;
}

/* Free the connections that have ended, or, 'all', wait for each. */
static void
reap (struct control *control, bool all)
{
  struct connection *conn, *next;

  for (conn = LIST_FIRST (&control->connections); conn; conn = next) {
    next = LIST_NEXT (conn, link);
    if (!all && !atomic_load (&conn->done))
      continue;
    pthread_join (conn->thread, NULL);
    close (conn->fd);
    LIST_REMOVE (conn, link);
    assert (control->nr_connections > 0);
    control->nr_connections--;
    free (conn);
  }
}

/* End all connections.  They accept no more requests.  A client whose request
 * is not being served gets an error, and may send it elsewhere.  A client that
 * does not read its answers is disconnected.
 */
static void
end_connections (struct control *control)
{
  const uint64_t deadline = clock_ms () + STOP_MS;
  struct pollfd pfd = { .fd = control->wakefd, .events = POLLIN };
  struct connection *conn;
  uint64_t count, now;

  LIST_FOREACH (conn, &control->connections, link)
    shutdown (conn->fd, SHUT_RD);
  for (;;) {
    reap (control, false);
    now = clock_ms ();
    if (LIST_EMPTY (&control->connections) || now >= deadline)
      break;
    if (poll (&pfd, 1, deadline - now) == 1 &&
        read (control->wakefd, &count, sizeof count) == -1)
      continue; /* not readable any more: fine */
  }
  LIST_FOREACH (conn, &control->connections, link)
    shutdown (conn->fd, SHUT_RDWR);
  reap (control, true);
  assert (control->nr_connections == 0);
}

static void *
accept_thread (void *opaque)
{
  struct control *control = opaque;
  struct pollfd pfd[2] = {
    { .fd = control->listenfd, .events = POLLIN },
    { .fd = control->wakefd, .events = POLLIN },
  };
  uint64_t count;
  int ms;

  while (!atomic_load (&control->stopping)) {
    atomic_store (&control->full, false);
    ms = room_in_ms (control);
    pfd[0].events = ms == 0 ? POLLIN : 0;
    if (poll (pfd, 2, ms == 0 ? -1 : ms) <= 0)
      continue;
    if ((pfd[1].revents & POLLIN) &&
        read (control->wakefd, &count, sizeof count) == -1)
      continue;
    reap (control, false);
    if (ms == 0 && (pfd[0].revents & POLLIN))
      accept_one (control);
  }

  end_connections (control);
  return NULL;
}

/*----------------------------------------------------------------------
 * Start and stop
 */

/* Remove the socket of a killed server.  Any other file of that name is not
 * the pool's.
 */
static int
remove_socket (struct control *control, const char *path)
{
  struct stat st;

  if (fstatat (control->dirfd, CONTROL_SOCKET, &st, AT_SYMLINK_NOFOLLOW) == -1)
    return errno == ENOENT
      ? 0
      : nbdedup_fail (errno, "%s: %s", path, strerror (errno));
  if (!S_ISSOCK (st.st_mode))
    return nbdedup_fail (EEXIST,
                         "%s: not a socket, so it is not removed: move "
                         "it out of the way",
                         path);
  if (unlinkat (control->dirfd, CONTROL_SOCKET, 0) == -1)
    return nbdedup_fail (errno, "%s: cannot remove the stale socket: %s", path,
                         strerror (errno));
  return 0;
}

/* Listen on CONTROL_SOCKET in control->dirfd.  bind makes the file with the
 * mode that the socket has.
 */
static int
listen_in_dir (struct control *control, const char *path)
{
  struct sockaddr_un addr;

  if (remove_socket (control, path) == -1)
    return -1;
  control->listenfd = socket (AF_UNIX,
                              SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (control->listenfd == -1)
    return nbdedup_fail (errno, "%s: socket: %s", path, strerror (errno));
  control_address (control->dirfd, CONTROL_SOCKET, &addr);
  if (fchmod (control->listenfd, 0600) == -1 ||
      bind (control->listenfd, (struct sockaddr *) &addr, sizeof addr) == -1)
    return nbdedup_fail (errno, "%s: cannot bind: %s", path, strerror (errno));
  control->bound = true;
  if (listen (control->listenfd, CONNECTIONS_MAX) == -1)
    return nbdedup_fail (errno, "%s: cannot listen: %s", path,
                         strerror (errno));
  return 0;
}

static void
close_and_free (struct control *control)
{
  if (control->bound)
    unlinkat (control->dirfd, CONTROL_SOCKET, 0);
  if (control->listenfd != -1)
    close (control->listenfd);
  if (control->dirfd != -1)
    close (control->dirfd);
  if (control->wakefd != -1)
    close (control->wakefd);
  control_buffers_destroy (&control->buffers);
  free (control);
}

/* The library's threads block all signals, which are for the program. */
static int
start_thread (struct control *control)
{
  sigset_t all, old;
  int r;

  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  r = thread_start (&control->thread, accept_thread, control);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  return r;
}

struct control *
control_start (struct nbdedup_pool *pool, const char *path)
{
  CLEANUP_FREE char *dir = strdup (path);
  struct control *control = calloc (1, sizeof *control);
  char *slash;
  int err;

  if (dir == NULL || control == NULL) {
    free (control);
    return nbdedup_fail_null (ENOMEM, "control: no memory");
  }
  slash = strrchr (dir, '/');
  assert (slash && strcmp (slash + 1, CONTROL_SOCKET) == 0);
  slash[slash == dir] = 0; /* "/" keeps its slash */

  control->pool = pool;
  control->listenfd = -1;
  LIST_INIT (&control->connections);
  control_buffers_init (&control->buffers);
  control->wakefd = eventfd (0, EFD_CLOEXEC | EFD_NONBLOCK);
  control->dirfd = open (dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (control->wakefd == -1 || control->dirfd == -1)
    nbdedup_fail (errno, "%s: %s", path, strerror (errno));
  else if (listen_in_dir (control, path) == 0 && start_thread (control) == 0)
    return control;

  err = errno;
  close_and_free (control);
  errno = err;
  return NULL;
}

void
control_free (struct control *control)
{
  if (control == NULL)
    return;
  atomic_store (&control->stopping, true);
  wake (control);
  pthread_join (control->thread, NULL);
  close_and_free (control);
}
