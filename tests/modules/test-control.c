/* SPDX-License-Identifier: BSD-3-Clause */

/* The control socket: a server in this process, and clients that are correct,
 * wrong, silent, gone, or not clients at all.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/priority.h"
#include "core/engine.h"
#include "core/txg.h"
#include "format/control-protocol.h"
#include "nbdedup.h"
#include "rigs/control-rig.h"
#include "rigs/testutil.h"

/*----------------------------------------------------------------------
 * Raw connections
 */

static int
raw_connect (void)
{
  struct sockaddr_un addr;
  int dirfd = open (pool_path, O_PATH | O_DIRECTORY);
  int fd = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

  assert (dirfd != -1 && fd != -1);
  control_address (dirfd, CONTROL_SOCKET, &addr);
  if (connect (fd, (struct sockaddr *) &addr, sizeof addr) == -1)
    die ("connect: %s", strerror (errno));
  close (dirfd);
  control_set_timeouts (fd, 20, 20);
  return fd;
}

/* Send a request and receive the header of its answer. */
static void
raw_request (int fd, uint16_t type, uint64_t offset, uint64_t length,
             const void *payload, uint32_t payload_len,
             struct control_frame *answer)
{
  const struct control_frame f = {
    .type = type,
    .cookie = 0x1234,
    .offset = offset,
    .length = length,
    .payload = payload_len,
  };

  control_send (fd, &f, payload);
  if (control_recv_header (fd, answer) != 1)
    die ("request %d: no answer: %s", type, strerror (errno));
}

static void
raw_skip (int fd, const struct control_frame *f)
{
  uint8_t *buf = xmalloc (f->payload);

  if (f->payload > 0 && control_recv_bytes (fd, buf, f->payload) != 1)
    die ("an answer was cut off");
  free (buf);
}

static void
raw_expect (int fd, uint16_t type, uint64_t offset, uint64_t length,
            const void *payload, uint32_t payload_len, uint32_t error)
{
  struct control_frame f;

  raw_request (fd, type, offset, length, payload, payload_len, &f);
  if (f.type != (error ? CONTROL_ERROR : CONTROL_REPLY) || f.error != error)
    die ("request %d: answer %d, error %d; expected error %d", type, f.type,
         (int) f.error, (int) error);
  raw_skip (fd, &f);
}

static void
raw_hello (int fd)
{
  raw_expect (fd, CONTROL_HELLO, 1, 1, "test", 4, 0);
}

/* The server must end this connection. */
static void
raw_expect_end (int fd)
{
  struct control_frame f;
  int r;

  while ((r = control_recv_header (fd, &f)) == 1)
    raw_skip (fd, &f);
  if (r == -1 && errno != ECONNRESET)
    die ("the connection should have ended: %s", strerror (errno));
  close (fd);
}

/* The server must still answer. */
static void
expect_alive (void)
{
  struct nbdedup_client *client = nbdedup_client_open (pool_path, NULL, "test",
                                                       NULL);
  json_t *result;

  check (client != NULL, "open a client");
  if (!nbdedup_client_is_served (client))
    die ("the client should have found the server");
  result = nbdedup_client_call (client, "list", NULL, NULL, NULL);
  check (result != NULL, "list");
  check (json_is_array (json_object_get (result, "volumes")), "list's result");
  json_decref (result);
  check (nbdedup_client_close (client) == 0, "close a client");
}

/*----------------------------------------------------------------------
 * Tests
 */

static void
test_socket (void)
{
  char path[sizeof pool_path + 32];
  struct stat st;

  snprintf (path, sizeof path, "%s/%s", pool_path, CONTROL_SOCKET);
  check (stat (path, &st) == 0, "the socket exists");
  if (!S_ISSOCK (st.st_mode) || (st.st_mode & 07777) != 0600)
    die ("the socket has mode %o", (unsigned) st.st_mode);
}

static void
test_handshake (void)
{
  int fd;

  /* Any request before HELLO ends the connection. */
  fd = raw_connect ();
  raw_expect (fd, CONTROL_FLUSH, 0, 0, NULL, 0, EPROTO);
  raw_expect_end (fd);

  /* Versions that the server does not speak, then a range with one it does. */
  fd = raw_connect ();
  raw_expect (fd, CONTROL_HELLO, 2, 9, "new", 3, EPROTONOSUPPORT);
  raw_expect (fd, CONTROL_HELLO, 0, 0, "old", 3, EPROTONOSUPPORT);
  raw_expect (fd, CONTROL_HELLO, 0, 9, "any", 3, 0);
  raw_expect (fd, CONTROL_VOLUME_OPEN, 0, 0, "vol", 3, 0);
  close (fd);
}

static void
raw_freeze (int fd, const char *args, uint32_t error)
{
  raw_expect (fd, CONTROL_FREEZE, 0, 0, args, strlen (args), error);
}

/* Frozen moments: wrong requests, too many, and clients that just go. */
static void
test_frozen (void)
{
  const uint8_t clone[8] = { 0 }, range[16] = { 0 };
  int fds[4], fd = raw_connect ();
  unsigned i;

  raw_hello (fd);
  for (i = CONTROL_FROZEN_NEXT; i <= CONTROL_FROZEN_ADVISE; ++i)
    raw_expect (fd, i, 0, 512, clone, 8, EINVAL);
  raw_freeze (fd, "", EINVAL);
  raw_freeze (fd, "{", EINVAL);
  raw_freeze (fd, "[]", EINVAL);
  raw_freeze (fd, "{\"name\": 1}", EINVAL);
  raw_freeze (fd, "{\"memory\": -1}", EINVAL);
  raw_freeze (fd, "{\"memory\": 1}", EINVAL);
  raw_freeze (fd, "{\"name\": \"vol@nonesuch\"}", ENOENT);
  raw_freeze (fd, "{}", 0);
  raw_freeze (fd, "{}", EINVAL);
  raw_expect (fd, CONTROL_VOLUME_OPEN, 0, 0, "vol", 3, EINVAL);
  raw_expect (fd, CONTROL_FROZEN_RUNS, 0, 0, NULL, 0, EINVAL);
  raw_expect (fd, CONTROL_FROZEN_READ, 0, 512, clone, 8, EINVAL);
  raw_expect (fd, CONTROL_FROZEN_READ, 0, 512, clone, 7, EINVAL);
  raw_expect (fd, CONTROL_FROZEN_READ, 0, 0, clone, 8, EINVAL);
  raw_expect (fd, CONTROL_FROZEN_ZERO, 0, 0, clone, 8, EINVAL);
  raw_expect (fd, CONTROL_FROZEN_ZERO, 0, 0, range, 16, EINVAL);
  raw_expect (fd, CONTROL_FROZEN_ZERO, 0, 1000, range, 16, EINVAL);
  raw_expect (fd, CONTROL_FROZEN_ADVISE, 0, 0, NULL, 0, EINVAL);
  raw_expect (fd, CONTROL_FROZEN_NEXT, 0, 0, NULL, 0, 0);
  for (i = 0; i < 4; ++i) {
    fds[i] = raw_connect ();
    raw_hello (fds[i]);
    raw_freeze (fds[i], "{}", i < 3 ? 0 : EBUSY);
  }
  close (fd);
  for (i = 0; i < 4; ++i)
    close (fds[i]);
  expect_alive ();
}

static void
test_bad_requests (void)
{
  static const char *const commands[] = {
    "",
    "{",
    "[]",
    "1",
    "{\"command\": 1}",
    "{\"command\":\"list\",\"args\":1}",
    "{\"command\":\"nonesuch\",\"args\":{}}",
    "{\"args\":{}}",
    "{\"command\":\"create\",\"args\":{\"name\":\"x\"}}",
    "{\"command\":\"list\",\"command\":\"list\"}",
    "{\"command\":\"snapshot\",\"args\":{\"names\":[]}}",
    "{\"command\":\"snapshot\",\"args\":"
    "{\"name\":\"vol@a\",\"names\":[\"vol@b\"]}}",
  };
  char *big = xcalloc (1, CONTROL_PAYLOAD_MAX);
  struct control_frame f;
  int fd = raw_connect ();
  unsigned i;

  raw_hello (fd);
  raw_expect (fd, 999, 0, 0, "x", 1, EOPNOTSUPP);
  for (i = 0; i < sizeof commands / sizeof commands[0]; ++i) {
    raw_request (fd, CONTROL_COMMAND, 0, 0, commands[i], strlen (commands[i]),
                 &f);
    if (f.type != CONTROL_ERROR || f.error == 0)
      die ("'%s' was accepted", commands[i]);
    raw_skip (fd, &f);
  }
  memset (big, '[', CONTROL_PAYLOAD_MAX);
  raw_expect (fd, CONTROL_COMMAND, 0, 0, big, CONTROL_PAYLOAD_MAX, EINVAL);

  /* Data requests: no volume, bad volume, bad ranges. */
  for (i = CONTROL_VOLUME_CLOSE; i <= CONTROL_EXTENTS; ++i)
    if (i != CONTROL_WRITE + 1) /* no type */
      raw_expect (fd, i, 0, 512, "x", 1, EINVAL);
  raw_expect (fd, CONTROL_WRITE + 1, 0, 512, NULL, 0, EOPNOTSUPP);
  raw_expect (fd, CONTROL_VOLUME_OPEN, 0, 0, NULL, 0, EINVAL);
  raw_expect (fd, CONTROL_VOLUME_OPEN, 0, 0, "v\0l", 3, EINVAL);
  raw_expect (fd, CONTROL_VOLUME_OPEN, 0, 0, big, 5000, EINVAL);
  raw_expect (fd, CONTROL_VOLUME_OPEN, 0, 1 << 20, "vol", 3, EINVAL);
  raw_expect (fd, CONTROL_VOLUME_OPEN, 0, 0, "nonesuch", 8, ENOENT);
  raw_expect (fd, CONTROL_VOLUME_OPEN, 0, 0, "vol", 3, 0);
  raw_expect (fd, CONTROL_VOLUME_OPEN, 0, 0, "vol", 3, EINVAL);
  raw_expect (fd, CONTROL_READ, 0, 0, NULL, 0, EINVAL);
  raw_expect (fd, CONTROL_READ, 0, CONTROL_PAYLOAD_MAX + 1, NULL, 0, EINVAL);
  raw_expect (fd, CONTROL_READ, VOLUME_SIZE - 1, 2, NULL, 0, EINVAL);
  raw_expect (fd, CONTROL_READ, UINT64_MAX, 2, NULL, 0, EINVAL);
  raw_expect (fd, CONTROL_WRITE, VOLUME_SIZE - 1, 0, "ab", 2, EINVAL);
  raw_expect (fd, CONTROL_WRITE, 0, 0, NULL, 0, EINVAL);
  raw_expect (fd, CONTROL_EXTENTS, UINT64_MAX, UINT64_MAX, NULL, 0, EINVAL);
  raw_expect (fd, CONTROL_FLUSH, 0, 0, NULL, 0, 0);

  /* A CANCEL with nothing to cancel has no answer. */
  f = (struct control_frame) { .type = CONTROL_CANCEL };
  control_send (fd, &f, NULL);
  raw_expect (fd, CONTROL_VOLUME_CLOSE, 0, 0, NULL, 0, 0);
  raw_expect (fd, CONTROL_VOLUME_CLOSE, 0, 0, NULL, 0, EINVAL);
  close (fd);

  /* A payload that is too large cannot be skipped. */
  fd = raw_connect ();
  raw_hello (fd);
  {
    uint8_t header[CONTROL_HEADER_LEN];

    f = (struct control_frame) {
      .type = CONTROL_WRITE,
      .payload = CONTROL_PAYLOAD_MAX + 1,
    };
    control_frame_pack (&f, header);
    if (send (fd, header, sizeof header, 0) != sizeof header)
      die ("send: %s", strerror (errno));
  }
  raw_expect_end (fd);
  free (big);
}

/* The number of our threads that have this nice value. */
static unsigned
threads_with (int value)
{
  DIR *d = opendir ("/proc/self/task");
  struct dirent *e;
  unsigned nr = 0;

  assert (d != NULL);
  while ((e = readdir (d)) != NULL) {
    errno = 0;
    if (e->d_name[0] != '.' &&
        getpriority (PRIO_PROCESS, (id_t) atoi (e->d_name)) == value &&
        errno == 0)
      nr++;
  }
  closedir (d);
  return nr;
}

static void
expect_nice (unsigned nr, int value)
{
  const uint64_t start = clock_ms ();

  while (threads_with (value) != nr) {
    if (clock_ms () - start > 20000)
      die ("%u threads have nice value %d, expected %u", threads_with (value),
           value, nr);
    usleep (10000);
  }
}

static void
raw_command (int fd, const char *command)
{
  raw_expect (fd, CONTROL_COMMAND, 0, 0, command, strlen (command), 0);
}

/* Every server has these: sampler, scrubber, copier, compactor, puncher and
 * warmer.
 */
#define NR_LOW 6

/* These threads leave the CPUs to others: those of every server, and the
 * connections that have asked for drift, once or more often.
 */
static void
test_nice (void)
{
  const int ours = getpriority (PRIO_PROCESS, 0);
  const int low = ours + PRIORITY_STEP > 19 ? 19 : ours + PRIORITY_STEP;
  int other, fd[4];
  unsigned nr, i;

  if (low == ours) {
    printf ("no priority is below ours\n");
    return;
  }
  expect_nice (NR_LOW, low); /* they may still be starting */

  other = raw_connect ();
  raw_hello (other);
  raw_command (other, "{\"command\":\"list\"}");
  raw_expect (other, CONTROL_VOLUME_OPEN, 0, 0, "vol", 3, 0);
  raw_expect (other, CONTROL_WRITE, 0, 0, "data", 4, 0);
  for (nr = 0; nr < 4; ++nr) {
    fd[nr] = raw_connect ();
    raw_hello (fd[nr]);
  }
  if (threads_with (low) != NR_LOW)
    die ("who never asked for drift has a low priority");

  raw_command (fd[0], "{\"command\":\"drift\"}");
  if (threads_with (low) != NR_LOW + 1)
    die ("drift has the priority of others");
  raw_command (fd[1],
               "{\"command\":\"drift-freed\","
               "\"args\":{\"names\":[\"vol\"]}}");
  raw_command (fd[0], "{\"command\":\"drift\"}");
  raw_command (other, "{\"command\":\"stat\"}");
  if (threads_with (low) != NR_LOW + 2)
    die ("%u threads have a low priority", threads_with (low));
  raw_command (fd[2],
               "{\"command\":\"destroy\","
               "\"args\":{\"name\":\"vol\",\"dry-run\":true}}");
  if (threads_with (low) != NR_LOW + 3)
    die ("destroy --dry-run has the priority of others");
  raw_command (fd[3], "{\"command\":\"stat\",\"args\":{\"ddt\":true}}");
  if (threads_with (low) != NR_LOW + 4)
    die ("stat --ddt has the priority of others");

  /* The low priority ends with the connection. */
  for (i = 0; i < nr; ++i)
    close (fd[i]);
  expect_nice (NR_LOW, low);
  close (other);
}

/* Random bytes, and proper frames with random contents. */
static void
test_garbage (uint64_t seed)
{
  struct rng rng = rng_make (seed, 1);
  uint8_t buf[2000];
  unsigned i, j;

  for (i = 0; i < 200; ++i) {
    int fd = raw_connect ();
    const unsigned nr = 1 + rng_below (&rng, 20);

    if (rng_percent (&rng, 80))
      raw_hello (fd);
    for (j = 0; j < nr; ++j) {
      struct control_frame f = {
        .type = rng_below (&rng, 14),
        .flags = rng_next (&rng),
        .cookie = rng_next (&rng),
        .offset = rng_percent (&rng, 50) ? rng_next (&rng)
                                         : rng_below (&rng, VOLUME_SIZE),
        .length = rng_below (&rng, 3000),
        .payload = rng_below (&rng, sizeof buf),
      };

      fill_random (buf, sizeof buf, rng_next (&rng));
      if (rng_percent (&rng, 10)) {
        if (send (fd, buf, f.payload, MSG_NOSIGNAL) == -1)
          break;
      }
      else if (control_send (fd, &f, buf) == -1)
        break;
      /* Discard the answers, so that they do not fill the socket. */
      while (recv (fd, buf, sizeof buf, MSG_DONTWAIT) > 0)
        ;
    }
    close (fd);
  }
  expect_alive ();
}

#define CROWD 300 /* more than the server takes */

/* A command succeeds although many clients are connected and silent, or have
 * sent half a request.  A client that the server disconnected meanwhile
 * connects again.
 */
static void
test_crowd (void)
{
  static const uint8_t half[CONTROL_HEADER_LEN / 2];
  struct nbdedup_client *client;
  json_t *result;
  int fds[CROWD];
  unsigned i;

  client = nbdedup_client_open (pool_path, NULL, "test", NULL);
  check (client != NULL, "open a client");
  for (i = 0; i < CROWD; ++i) {
    fds[i] = raw_connect ();
    raw_hello (fds[i]);
    if (i % 2 && send (fds[i], half, sizeof half, MSG_NOSIGNAL) == -1)
      die ("%s", strerror (errno));
    if (i % 20 == 0)
      expect_alive ();
  }
  expect_alive ();
  result = nbdedup_client_call (client, "list", NULL, NULL, NULL);
  check (result != NULL, "a command of a client that was idle");
  json_decref (result);
  check (nbdedup_client_close (client) == 0, "close a client");
  for (i = 0; i < CROWD; ++i)
    close (fds[i]);
  expect_alive ();
}

/* Send VOLUME_OPEN; returns the error of the answer. */
static uint32_t
raw_open_volume (int fd, uint16_t flags)
{
  const struct control_frame f = {
    .type = CONTROL_VOLUME_OPEN,
    .flags = flags,
    .cookie = 0x1234,
    .payload = 3,
  };
  struct control_frame answer;

  control_send (fd, &f, "vol");
  if (control_recv_header (fd, &answer) != 1)
    die ("no answer to VOLUME_OPEN: %s", strerror (errno));
  raw_skip (fd, &answer);
  return answer.error;
}

#define VOLUMES 60 /* more than there are buffers */

/* Imports and exports may take long, and wait for each other, as "export" and
 * "import" in one pipeline do.  So all of them are served; only those that have
 * a connection already get no other.  Clients that have stopped in the middle
 * of a request do not stop the others.
 */
static void
test_crowd_with_volumes (void)
{
  const struct control_frame f = {
    .type = CONTROL_WRITE,
    .payload = CONTROL_PAYLOAD_MAX,
  };
  uint8_t header[CONTROL_HEADER_LEN];
  int fds[VOLUMES];
  unsigned i;

  control_frame_pack (&f, header);
  for (i = 0; i < VOLUMES; ++i) {
    fds[i] = raw_connect ();
    raw_hello (fds[i]);
    if (raw_open_volume (fds[i], 0) != 0)
      die ("only %u volumes may be open", i);
  }
  for (i = 0; i < 20; ++i)
    if (send (fds[i], header, sizeof header, MSG_NOSIGNAL) == -1)
      die ("%s", strerror (errno));
  for (i = 20; i < VOLUMES; ++i)
    raw_expect (fds[i], CONTROL_WRITE, 0, 0, "data", 4, 0);
  close (fds[0]);
  fds[0] = raw_connect ();
  raw_hello (fds[0]);
  if (raw_open_volume (fds[0], CONTROL_FLAG_SPARE) != EBUSY)
    die ("one client may have any number of connections");
  expect_alive ();

  for (i = 0; i < VOLUMES; ++i)
    close (fds[i]);
  expect_alive ();

  /* With few of them, one may have several. */
  fds[0] = raw_connect ();
  raw_hello (fds[0]);
  /* The server may still have to close the volumes of the others. */
  for (i = 0; raw_open_volume (fds[0], CONTROL_FLAG_SPARE) != 0; ++i) {
    if (i == 1000)
      die ("a server with time to spare refuses a spare connection");
    usleep (10000);
  }
  close (fds[0]);
}

#define PLACES 256 /* as many connections as the server takes */

static atomic_uint nr_waits;

static int
count_waits (const struct nbdedup_wait *wait)
{
  if (wait->kind != NBDEDUP_WAIT_ANSWER)
    die ("waits for another reason: %s", wait->why);
  /* Else a busy machine is late to answer its request. */
  if (wait->longest_ms > 0)
    nr_waits++;
  return 0;
}

static void *
list_thread (void *done)
{
  struct nbdedup_client *client = nbdedup_client_open (pool_path, NULL, "test",
                                                       count_waits);
  json_t *result;

  check (client != NULL, "open a client of a server that was full");
  result = nbdedup_client_call (client, "list", NULL, NULL, NULL);
  check (result != NULL, "list, when the server was full");
  json_decref (result);
  check (nbdedup_client_close (client) == 0, "close a client");
  atomic_store ((atomic_bool *) done, true);
  return NULL;
}

/* When no connection is idle, others wait; the server takes one that has just
 * come for none of the idle ones.
 */
static void
test_full (void)
{
  const struct control_frame hello = {
    .type = CONTROL_HELLO,
    .offset = 1,
    .length = 1,
  };
  struct control_frame answer;
  atomic_bool done = false;
  pthread_t thread;
  int fds[PLACES], next;
  unsigned i;

  for (i = 0; i < PLACES; ++i) {
    fds[i] = raw_connect ();
    raw_hello (fds[i]);
    if (raw_open_volume (fds[i], 0) != 0)
      die ("only %u volumes may be open", i);
  }
  if (pthread_create (&thread, NULL, list_thread, &done) != 0)
    die ("no thread");
  while (nr_waits < 2)
    usleep (10000);
  if (atomic_load (&done))
    die ("the server takes more connections than it should");
  close (fds[0]);
  pthread_join (thread, NULL);

  fds[0] = raw_connect ();
  raw_hello (fds[0]);
  next = raw_connect ();
  control_send (next, &hello, NULL);
  /* It is not answered yet, nor has it replaced the other one. */
  if (poll (&(struct pollfd) { .fd = next, .events = POLLIN }, 1, 200) != 0)
    die ("the server takes a connection in place of one that is fresh");
  raw_command (fds[0], "{\"command\":\"list\"}");
  if (control_recv_header (next, &answer) != 1)
    die ("nothing came after the end of the wait: %s", strerror (errno));
  raw_skip (next, &answer);
  raw_command (next, "{\"command\":\"list\"}");
  close (next);
  for (i = 0; i < PLACES; ++i)
    close (fds[i]);
  expect_alive ();
}

/* A client with a frozen moment waits, perhaps stopped, and the moment has
 * given way: its connection is as idle as others.
 */
static void
test_full_with_lost_moment (void)
{
  int fds[PLACES];
  unsigned i;

  for (i = 0; i < PLACES; ++i) {
    fds[i] = raw_connect ();
    raw_hello (fds[i]);
    if (i == 0)
      raw_freeze (fds[0], "{}", 0);
    else if (raw_open_volume (fds[i], 0) != 0)
      die ("only %u volumes may be open", i);
  }
  check (txg_make_room (pool->txg, true) == 0, "make room");
  expect_alive ();
  raw_expect_end (fds[0]);
  for (i = 1; i < PLACES; ++i)
    close (fds[i]);
  expect_alive ();
}

/* A file in place of the socket was not left by a server. */
static void
test_foreign_file (void)
{
  char path[sizeof pool_path + 32];
  struct stat st;
  FILE *f;

  stop_server ();
  snprintf (path, sizeof path, "%s/%s", pool_path, CONTROL_SOCKET);
  f = fopen (path, "w");
  check (f != NULL && fclose (f) == 0, "make a file");
  if (nbdedup_pool_open (pool_path, NULL, "test", NBDEDUP_OPEN_SERVER) ||
      errno != EEXIST || stat (path, &st) == -1)
    die ("a file that is not the server's: %s", nbdedup_error ());
  unlink (path);
  start_server ();
}

/* The end of a connection closes its volume. */
static void
test_volume_goes_with_connection (struct nbdedup_client *client)
{
  struct nbdedup_handle *handle;
  int fd = raw_connect (), r = -1;
  unsigned i;

  check (call (client, "create", "gone", 1 << 20) == 0, "create");
  raw_hello (fd);
  raw_expect (fd, CONTROL_VOLUME_OPEN, 0, 0, "gone", 4, 0);
  check (call (client, "destroy", "gone", 0) == -1 && errno == EBUSY,
         "destroy a volume in use");

  close (fd);
  for (i = 0; r == -1 && i < 100; ++i) {
    poll (NULL, 0, 100);
    r = call (client, "destroy", "gone", 0);
  }
  check (r == 0, "destroy after the connection's end");

  /* A close takes effect at once. */
  check (call (client, "create", "gone", 1 << 20) == 0, "create again");
  handle = nbdedup_client_volume_open (client, "gone", 0);
  check (handle != NULL, "open");
  nbdedup_handle_close (handle);
  check (call (client, "destroy", "gone", 0) == 0, "destroy after close");
}

/* Closing the pool does not wait for clients that are silent, half a frame
 * behind, or do not read their answers.
 */
static void
test_stop (void)
{
  const uint8_t half[CONTROL_HEADER_LEN / 2] = { 0 };
  struct control_frame f = { .type = CONTROL_READ, .length = 1 << 20 };
  struct nbdedup_client *client;
  struct nbdedup_handle *handle;
  int silent = raw_connect (), begun = raw_connect ();
  int deaf = raw_connect (), with_volume = raw_connect ();
  char byte;
  unsigned i;

  client = nbdedup_client_open (pool_path, NULL, "test", NULL);
  check (client != NULL, "open a client");
  handle = nbdedup_client_volume_open (client, "vol", 0);
  check (handle != NULL, "open a volume");

  raw_hello (begun);
  if (send (begun, half, sizeof half, 0) != sizeof half)
    die ("send: %s", strerror (errno));
  raw_hello (with_volume);
  raw_expect (with_volume, CONTROL_VOLUME_OPEN, 0, 0, "vol", 3, 0);
  raw_hello (deaf);
  raw_expect (deaf, CONTROL_VOLUME_OPEN, 0, 0, "vol", 3, 0);
  for (i = 0; i < 8; ++i)
    control_send (deaf, &f, NULL);

  stop_server ();
  check (nbdedup_handle_read (handle, &byte, 1, 0) == -1 && errno == EIO,
         "read without a server");
  nbdedup_handle_close (handle);
  check (nbdedup_client_call (client, "list", NULL, NULL, NULL) == NULL,
         "list without a server");
  nbdedup_client_close (client);
  close (silent);
  close (begun);
  close (deaf);
  close (with_volume);
}

int
main (void)
{
  const uint64_t seed = seed_from_environment ();
  struct nbdedup_client *client;

  printf ("SEED=%" PRIu64 "\n", seed);
  fflush (stdout);
  alarm (300);
  signal (SIGPIPE, SIG_IGN);

  make_control_pool ();

  start_server ();
  client = nbdedup_client_open (pool_path, NULL, "test", NULL);
  check (client != NULL, "open a client");
  check (call (client, "create", "vol", VOLUME_SIZE) == 0, "create");

  test_socket ();
  test_handshake ();
  test_bad_requests ();
  test_frozen ();
  test_volume_goes_with_connection (client);
  test_nice ();
  test_garbage (seed);
  check (nbdedup_client_close (client) == 0, "close a client");
  test_crowd ();
  test_crowd_with_volumes ();
  test_full ();
  test_full_with_lost_moment ();
  test_foreign_file ();
  test_stop ();

  client = nbdedup_client_open (pool_path, NULL, "test", NULL);
  check (client != NULL && !nbdedup_client_is_served (client),
         "open the pool as a client");
  expect_sound (client);
  check (nbdedup_client_close (client) == 0, "close the pool");
  remove_control_pool ();
  return EXIT_SUCCESS;
}
