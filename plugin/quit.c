/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "listeners.h"
#include "quit.h"

/* The signals on which nbdkit quits. */
static const int quit_signals[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM };
#define NR_SIGNALS (sizeof quit_signals / sizeof quit_signals[0])

static struct sigaction nbdkit_actions[NR_SIGNALS]; /* nbdkit's own */
static bool replaced[NR_SIGNALS]; /* the plugin's action is set */

/* The handler writes the signal's number, quit_stop 0. */
static int pipe_fds[2] = { -1, -1 };
static pthread_t thread;
static bool thread_runs;
static const char *private_name; /* borrowed */

/* The gate.  'lock' protects these. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static enum { GATE_OPEN, GATE_HOLD, GATE_REFUSE } gate;
static unsigned nr_inside; /* running requests */

bool
quit_request_begin (void)
{
  bool r;

  pthread_mutex_lock (&lock);
  while (gate == GATE_HOLD)
    pthread_cond_wait (&changed, &lock);
  r = gate == GATE_OPEN;
  if (r)
    nr_inside++;
  pthread_mutex_unlock (&lock);
  if (!r)
    errno = ESHUTDOWN;
  return r;
}

void
quit_request_end (const bool *began)
{
  int err = errno; /* it may be the request's result */

  if (*began) {
    pthread_mutex_lock (&lock);
    assert (nr_inside > 0);
    if (--nr_inside == 0 && gate == GATE_HOLD)
      pthread_cond_broadcast (&changed);
    pthread_mutex_unlock (&lock);
  }
  errno = err;
}

static void
gate_hold (void)
{
  pthread_mutex_lock (&lock);
  gate = GATE_HOLD;
  while (nr_inside > 0)
    pthread_cond_wait (&changed, &lock);
  pthread_mutex_unlock (&lock);
}

static void
gate_refuse (void)
{
  pthread_mutex_lock (&lock);
  gate = GATE_REFUSE;
  pthread_cond_broadcast (&changed);
  pthread_mutex_unlock (&lock);
}

/* Is it a connection to a client of nbdkit?  nbdkit tells plugins about peers,
 * not about descriptors.  So this is true for all stream connections of the
 * process, except the engine's private ones and stderr.
 */
static bool
is_client (int fd)
{
  struct stat st, st_stderr;
  struct sockaddr_un addr;
  socklen_t len;
  const char *base;
  int i;

  if (fstat (fd, &st) == -1 || !S_ISSOCK (st.st_mode))
    return false;
  if (fstat (STDERR_FILENO, &st_stderr) == 0 && st.st_dev == st_stderr.st_dev &&
      st.st_ino == st_stderr.st_ino)
    return false;

  len = sizeof i;
  if (getsockopt (fd, SOL_SOCKET, SO_TYPE, &i, &len) == -1 || i != SOCK_STREAM)
    return false;
  len = sizeof i;
  if (getsockopt (fd, SOL_SOCKET, SO_ACCEPTCONN, &i, &len) == -1 || i != 0)
    return false;

  memset (&addr, 0, sizeof addr);
  len = sizeof addr - 1; /* so that the path ends */
  if (getsockname (fd, (struct sockaddr *) &addr, &len) == -1)
    return false;
  if (addr.sun_family != AF_UNIX)
    return true;
  base = strrchr (addr.sun_path, '/');
  base = base != NULL ? base + 1 : addr.sun_path;
  return strcmp (base, private_name) != 0;
}

static void
shut_client (int fd)
{
  if (is_client (fd)) {
    nbdkit_debug ("dedup: quitting: shutting the connection on fd %d", fd);
    shutdown (fd, SHUT_RDWR);
  }
}

/* nbdkit's threads then read the end of the stream, and close. */
static void
shut_clients (void)
{
  if (each_descriptor (shut_client) == -1)
    nbdkit_error ("/proc/self/fd: %s: the server will tell clients that it is "
                  "shutting down",
                  strerror (errno));
}

static void
call_nbdkit (int signal)
{
  size_t i;

  for (i = 0; i < NR_SIGNALS; ++i)
    if (quit_signals[i] == signal) {
      if ((nbdkit_actions[i].sa_flags & SA_SIGINFO) != 0)
        nbdkit_actions[i].sa_sigaction (signal, NULL, NULL);
      else
        nbdkit_actions[i].sa_handler (signal);
    }
}

static void *
wait_for_signal (void *arg)
{
  uint8_t byte;
  ssize_t n;

  (void) arg;
  do
    n = read (pipe_fds[0], &byte, 1);
  while (n == -1 && errno == EINTR);
  if (n != 1 || byte == 0)
    return NULL;

  gate_hold ();
  shut_clients ();
  call_nbdkit (byte);
  gate_refuse ();
  return NULL;
}

static void
handle_signal (int signal)
{
  int err = errno;
  uint8_t byte = signal;
  ssize_t n;

  /* The pipe is full only after many signals; one is enough. */
  n = write (pipe_fds[1], &byte, 1);
  (void) n;
  errno = err;
}

static bool
is_handled (const struct sigaction *action)
{
  return (action->sa_flags & SA_SIGINFO) != 0 ||
    (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

int
quit_start (const char *private_socket)
{
  struct sigaction action = { .sa_handler = handle_signal,
                              .sa_flags = SA_RESTART };
  sigset_t all, before;
  size_t i;
  int err;

  private_name = private_socket;
  sigemptyset (&action.sa_mask);
  if (pipe2 (pipe_fds, O_CLOEXEC) == -1) {
    nbdkit_error ("cannot wait for signals: pipe: %s", strerror (errno));
    return -1;
  }
  if (fcntl (pipe_fds[1], F_SETFL, O_NONBLOCK) == -1) {
    nbdkit_error ("cannot wait for signals: fcntl: %s", strerror (errno));
    return -1;
  }

  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &before);
  err = pthread_create (&thread, NULL, wait_for_signal, NULL);
  pthread_sigmask (SIG_SETMASK, &before, NULL);
  if (err != 0) {
    nbdkit_error ("cannot wait for signals: pthread_create: %s",
                  strerror (err));
    return -1;
  }
  thread_runs = true;

  for (i = 0; i < NR_SIGNALS; ++i) {
    if (sigaction (quit_signals[i], NULL, &nbdkit_actions[i]) == -1 ||
        !is_handled (&nbdkit_actions[i]))
      continue;
    replaced[i] = sigaction (quit_signals[i], &action, NULL) == 0;
  }
  return 0;
}

void
quit_stop (void)
{
  uint8_t stop = 0;
  size_t i;
  ssize_t n;

  for (i = 0; i < NR_SIGNALS; ++i)
    if (replaced[i])
      sigaction (quit_signals[i], &nbdkit_actions[i], NULL);
  if (thread_runs) {
    /* If the pipe is full, the thread has read a signal, and ends. */
    n = write (pipe_fds[1], &stop, 1);
    (void) n;
    pthread_join (thread, NULL);
    thread_runs = false;
  }
  for (i = 0; i < 2; ++i) {
    if (pipe_fds[i] != -1)
      close (pipe_fds[i]);
    pipe_fds[i] = -1;
  }
}
