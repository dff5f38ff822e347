/* SPDX-License-Identifier: BSD-3-Clause */

/* Exports of an NBD server, through libnbd.
 *
 * Threads put their requests on a connection and wait; each connection has
 * a thread that moves its bytes.  There are several connections if the
 * server says that they see the same data (multi-conn).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <libnbd.h>

#include "copy.h"
#include "image.h"
#include "interrupt.h"
#include "tools.h"

#define CONNECTIONS_MAX 4
#define IN_FLIGHT 16 /* over all connections; qemu-nbd has 16 */
#define NBD_GRANULE (64 << 10)

/* The largest round number for the length of a request. */
#define REQUEST_MAX (UINT64_C (1) << 30)

struct connection {
  struct nbd_handle *nbd; /* owned; has a lock of its own */
  int wakefd;             /* owned; there are new requests */
  pthread_t thread;
  bool started;
  atomic_bool stopping;
};

struct nbd_image {
  struct image base;
  struct connection connections[CONNECTIONS_MAX];
  unsigned nr_connections;
  atomic_uint next;   /* connection to use */
  const char *server; /* name for messages */
  bool has_extents, can_zero;

  pthread_mutex_t lock; /* protects the waiting requests */
  pthread_cond_t done;
};

struct request {
  struct nbd_image *image;
  bool done;
  int error;
  uint64_t offset; /* extents: where the next one begins */
};

/* libnbd's text, without the name of its function. */
static int
fail_nbd (const struct image *image)
{
  const char *text = nbd_get_error ();
  const char *colon;

  if (text == NULL)
    text = "the connection failed";
  colon = strstr (text, ": ");
  if (strncmp (text, "nbd_", 4) == 0 && colon != NULL)
    text = colon + 2;
  return image_fail ("%s: %s", image->name, text);
}

/*----------------------------------------------------------------------
 * Connections
 */

static void
wake (struct connection *conn)
{
  const uint64_t one = 1;

  /* This fails only if the counter would overflow: the thread is awake then.
   */
  if (write (conn->wakefd, &one, sizeof one) == -1)
    return;
}

/* The events for poll. */
static short
poll_events (struct nbd_handle *nbd)
{
  const unsigned dir = nbd_aio_get_direction (nbd);

  return (dir & LIBNBD_AIO_DIRECTION_READ ? POLLIN : 0) |
    (dir & LIBNBD_AIO_DIRECTION_WRITE ? POLLOUT : 0);
}

static void
notify (struct nbd_handle *nbd, short revents)
{
  const unsigned dir = nbd_aio_get_direction (nbd);

  /* The next read or write finds an end of file or an error. */
  if ((dir & LIBNBD_AIO_DIRECTION_READ) && (revents & ~POLLOUT))
    nbd_aio_notify_read (nbd);
  else if ((dir & LIBNBD_AIO_DIRECTION_WRITE) && (revents & ~POLLIN))
    nbd_aio_notify_write (nbd);
}

static void *
connection_thread (void *opaque)
{
  struct connection *conn = opaque;
  struct pollfd pfd[2];
  uint64_t count;

  pfd[1] = (struct pollfd) { .fd = conn->wakefd, .events = POLLIN };
  while (!atomic_load (&conn->stopping) && !nbd_aio_is_dead (conn->nbd) &&
         !nbd_aio_is_closed (conn->nbd)) {
    pfd[0] = (struct pollfd) {
      .fd = nbd_aio_get_fd (conn->nbd),
      .events = poll_events (conn->nbd),
    };
    if (poll (pfd, 2, -1) == -1)
      continue; /* EINTR */
    if (pfd[1].revents != 0 && read (conn->wakefd, &count, sizeof count) == -1)
      continue;
    if (pfd[0].revents != 0)
      notify (conn->nbd, pfd[0].revents);
  }
  return NULL;
}

/* Connect to 'uri', or over 'fd', which the function takes over. */
static int
connect_one (struct nbd_image *n, struct connection *conn, const char *uri,
             int fd)
{
  struct nbd_handle *nbd = nbd_create ();
  short revents;
  int r;

  conn->nbd = nbd;
  conn->wakefd = eventfd (0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (nbd == NULL || conn->wakefd == -1 ||
      nbd_add_meta_context (nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) == -1 ||
      /* Buffers are filled, or else not used. */
      nbd_set_pread_initialize (nbd, false) == -1 ||
      nbd_set_uri_allow_local_file (nbd, true) == -1) {
    if (fd != -1)
      close (fd);
    return fail_nbd (&n->base);
  }
  r = uri != NULL ? nbd_aio_connect_uri (nbd, uri)
                  : nbd_aio_connect_socket (nbd, fd);
  if (r == -1)
    return fail_nbd (&n->base);
  while (nbd_aio_is_connecting (nbd)) {
    revents = interrupt_poll (nbd_aio_get_fd (nbd), poll_events (nbd));
    if (revents == 0)
      return image_fail ("interrupted");
    notify (nbd, revents);
  }
  return nbd_aio_is_ready (nbd) ? 0 : fail_nbd (&n->base);
}

static int
start_thread (struct nbd_image *n, struct connection *conn)
{
  const int err = pthread_create (&conn->thread, NULL, connection_thread, conn);

  if (err != 0)
    return image_fail ("%s: cannot start a thread: %s", n->base.name,
                       strerror (err));
  conn->started = true;
  return 0;
}

/*----------------------------------------------------------------------
 * Requests
 */

static int
on_done (void *opaque, int *error)
{
  struct request *req = opaque;

  pthread_mutex_lock (&req->image->lock);
  req->done = true;
  req->error = *error;
  pthread_cond_broadcast (&req->image->done);
  pthread_mutex_unlock (&req->image->lock);
  return 1; /* libnbd retires the command */
}

static struct connection *
next_connection (struct nbd_image *n)
{
  return &n->connections[atomic_fetch_add (&n->next, 1) % n->nr_connections];
}

static int
fail_lost (const struct nbd_image *n)
{
  return image_fail ("%s: %s went away", n->base.name, n->server);
}

#define COMPLETION(req)                                                        \
  ((nbd_completion_callback) { .callback = on_done, .user_data = (req) })

/* Wait for a request; 'cookie' is what libnbd returned for it. */
static int
wait_request (struct nbd_image *n, struct connection *conn, struct request *req,
              int64_t cookie)
{
  if (cookie == -1)
    return nbd_aio_is_dead (conn->nbd) || nbd_aio_is_closed (conn->nbd)
      ? fail_lost (n)
      : fail_nbd (&n->base);
  wake (conn);
  pthread_mutex_lock (&n->lock);
  while (!req->done)
    pthread_cond_wait (&n->done, &n->lock);
  pthread_mutex_unlock (&n->lock);
  if (req->error == ENOTCONN)
    return fail_lost (n);
  if (req->error != 0)
    return image_fail ("%s: %s", n->base.name, strerror (req->error));
  return 0;
}

static int64_t
nbd_read (struct image *image, uint8_t *buf, uint32_t len, uint64_t offset)
{
  struct nbd_image *n = (struct nbd_image *) image;
  struct connection *conn = next_connection (n);
  struct request req = { .image = n };

  if (wait_request (n, conn, &req,
                    nbd_aio_pread (conn->nbd, buf, len, offset,
                                   COMPLETION (&req), 0)) == -1)
    return -1;
  return len;
}

static int
nbd_write (struct image *image, const uint8_t *buf, uint32_t len,
           uint64_t offset)
{
  struct nbd_image *n = (struct nbd_image *) image;
  struct connection *conn = next_connection (n);
  struct request req = { .image = n };

  return wait_request (n, conn, &req,
                       nbd_aio_pwrite (conn->nbd, buf, len, offset,
                                       COMPLETION (&req), 0));
}

static int
write_zeroes (struct nbd_image *n, uint64_t len, uint64_t offset)
{
  static const uint8_t zeroes[COPY_LEN];

  while (len > 0) {
    const uint32_t part = len < sizeof zeroes ? len : sizeof zeroes;

    if (nbd_write (&n->base, zeroes, part, offset) == -1)
      return -1;
    offset += part;
    len -= part;
  }
  return 0;
}

/* No flag forbids the server to make a hole. */
static int
nbd_zeroes (struct image *image, uint64_t len, uint64_t offset)
{
  struct nbd_image *n = (struct nbd_image *) image;
  struct connection *conn = next_connection (n);
  struct request req = { .image = n };

  if (!n->can_zero)
    return write_zeroes (n, len, offset);
  return wait_request (n, conn, &req,
                       nbd_aio_zero (conn->nbd, len, offset, COMPLETION (&req),
                                     0));
}

static int
on_extents (void *opaque, const char *context, uint64_t offset,
            uint32_t *entries, size_t nr_entries, int *error)
{
  struct request *req = opaque;
  size_t i;

  if (*error != 0 || strcmp (context, LIBNBD_CONTEXT_BASE_ALLOCATION) != 0)
    return 0;
  req->offset = offset;
  for (i = 0; i + 1 < nr_entries; i += 2) {
    req->offset += entries[i];
    if (entries[i] != 0 &&
        image_add_extent (&req->image->base, req->offset,
                          entries[i + 1] & LIBNBD_STATE_ZERO))
      break;
  }
  return 0;
}

static int
nbd_extents (struct image *image, uint64_t len, uint64_t offset)
{
  struct nbd_image *n = (struct nbd_image *) image;
  struct connection *conn = next_connection (n);
  struct request req = { .image = n };
  const nbd_extent_callback callback = {
    .callback = on_extents,
    .user_data = &req,
  };

  if (!n->has_extents) {
    image_add_extent (image, image->size, false);
    return 0;
  }
  if (len > REQUEST_MAX)
    len = REQUEST_MAX;
  return wait_request (n, conn, &req,
                       nbd_aio_block_status (conn->nbd, len, offset, callback,
                                             COMPLETION (&req), 0));
}

static int
nbd_flush_all (struct nbd_image *n)
{
  struct connection *conn = &n->connections[0];
  struct request req = { .image = n };

  /* Several connections imply multi-conn: one flush covers all of them. */
  if (nbd_can_flush (conn->nbd) != 1)
    return 0;
  return wait_request (n, conn, &req,
                       nbd_aio_flush (conn->nbd, COMPLETION (&req), 0));
}

/* All requests end with ENOTCONN. */
static void
nbd_cancel (struct image *image)
{
  struct nbd_image *n = (struct nbd_image *) image;
  unsigned i;
  int fd;

  for (i = 0; i < n->nr_connections; ++i) {
    fd = nbd_aio_get_fd (n->connections[i].nbd);
    if (fd != -1)
      shutdown (fd, SHUT_RDWR);
  }
}

/*----------------------------------------------------------------------
 * Open and close
 */

static int
nbd_image_close (struct image *image, bool failed)
{
  struct nbd_image *n = (struct nbd_image *) image;
  unsigned i;
  int r = 0;

  if (!failed)
    r = nbd_flush_all (n);
  for (i = 0; i < n->nr_connections; ++i) {
    struct connection *conn = &n->connections[i];

    if (conn->started) {
      atomic_store (&conn->stopping, true);
      wake (conn);
      pthread_join (conn->thread, NULL);
    }
    if (!failed && r == 0)
      nbd_shutdown (conn->nbd, 0); /* no request is outstanding */
    if (conn->nbd != NULL)
      nbd_close (conn->nbd);
    if (conn->wakefd != -1)
      close (conn->wakefd);
  }
  pthread_cond_destroy (&n->done);
  pthread_mutex_destroy (&n->lock);
  image_free (image);
  return r;
}

static int
source_close (struct image *image, bool failed)
{
  (void) failed;
  return nbd_image_close (image, true);
}

static const struct image_ops source_ops = {
  .read = nbd_read,
  .extents = nbd_extents,
  .cancel = nbd_cancel,
  .close = source_close,
};

static const struct image_ops target_ops = {
  .write = nbd_write,
  .zero = nbd_zeroes,
  .cancel = nbd_cancel,
  .close = nbd_image_close,
};

static int
connect_all (struct nbd_image *n, const char *uri, int fd)
{
  struct nbd_handle *nbd;
  unsigned i, want = 1;
  int64_t size, align;

  n->nr_connections = 1;
  if (connect_one (n, &n->connections[0], uri, fd) == -1)
    return -1;
  nbd = n->connections[0].nbd;
  size = nbd_get_size (nbd);
  if (size == -1)
    return fail_nbd (&n->base);
  n->base.size = size;
  n->has_extents = nbd_can_meta_context (nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) ==
    1;
  n->can_zero = nbd_can_zero (nbd) == 1;
  align = nbd_get_block_size (nbd, LIBNBD_SIZE_PREFERRED);
  if (align > n->base.align && align <= COPY_LEN && COPY_LEN % align == 0)
    n->base.align = align;

  if (uri != NULL && nbd_can_multi_conn (nbd) == 1)
    want = CONNECTIONS_MAX;
  for (i = 1; i < want; ++i) {
    n->nr_connections++;
    if (connect_one (n, &n->connections[i], uri, -1) == -1)
      return -1;
  }
  for (i = 0; i < n->nr_connections; ++i)
    if (start_thread (n, &n->connections[i]) == -1)
      return -1;
  return 0;
}

static struct nbd_image *
nbd_image_new (const struct image_ops *ops, const char *uri, int fd,
               const char *name)
{
  struct nbd_image *n = image_new (sizeof *n, ops, name);
  unsigned i;

  for (i = 0; i < CONNECTIONS_MAX; ++i)
    n->connections[i].wakefd = -1;
  pthread_mutex_init (&n->lock, NULL);
  pthread_cond_init (&n->done, NULL);
  n->server = uri != NULL ? "the NBD server" : "qemu-nbd";
  n->base.in_flight = IN_FLIGHT;
  n->base.granule = NBD_GRANULE;
  if (connect_all (n, uri, fd) == -1) {
    nbd_image_close (&n->base, true);
    return NULL;
  }
  return n;
}

struct image *
image_nbd_source (const char *uri, int fd, const char *name)
{
  struct nbd_image *n = nbd_image_new (&source_ops, uri, fd, name);

  return n == NULL ? NULL : &n->base;
}

struct image *
image_nbd_target (const char *uri, int fd, const char *name, uint64_t size)
{
  struct nbd_image *n = nbd_image_new (&target_ops, uri, fd, name);

  if (n == NULL)
    return NULL;
  if (nbd_is_read_only (n->connections[0].nbd) == 1)
    image_fail ("%s: the NBD server exports it read-only", name);
  else if (n->base.size < size)
    image_fail ("%s: has %" PRIu64 " bytes, the volume %" PRIu64, name,
                n->base.size, size);
  else {
    n->base.stays_partial = true;
    return &n->base;
  }
  nbd_image_close (&n->base, true);
  return NULL;
}
