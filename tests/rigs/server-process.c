/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "rigs/server-process.h"
#include "rigs/testutil.h"

static pid_t
start (const char *const *argv, int out, const char *preload)
{
  pid_t parent = getpid ();
  pid_t pid = fork ();

  if (pid == -1)
    die ("fork: %s", strerror (errno));
  if (pid > 0)
    return pid;

  /* The parent has other threads, so call only functions that are safe after
   * such a fork.  No other thread of the parent changes the environment.
   */
  if (prctl (PR_SET_PDEATHSIG, SIGKILL) == -1 || getppid () != parent)
    _exit (126);
  if (dup2 (out, STDOUT_FILENO) == -1 || dup2 (out, STDERR_FILENO) == -1)
    _exit (126);
  if (preload && preload[0])
    setenv ("LD_PRELOAD", preload, 1);
  execvp (argv[0], (char *const *) argv);
  _exit (127);
}

pid_t
process_start (const char *const *argv, const char *log, const char *preload)
{
  int fd = open (log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  pid_t pid;

  if (fd == -1)
    die ("%s: %s", log, strerror (errno));
  pid = start (argv, fd, preload);
  close (fd);
  return pid;
}

static int
exit_status (int status)
{
  return WIFEXITED (status) ? WEXITSTATUS (status) : 128 + WTERMSIG (status);
}

int
process_wait (pid_t pid, unsigned seconds, const char *what)
{
  uint64_t end = clock_ms () + seconds * UINT64_C (1000);
  int status;
  pid_t r;

  for (;;) {
    r = waitpid (pid, &status, WNOHANG);
    if (r == pid)
      return exit_status (status);
    if (r == -1 && errno != EINTR)
      die ("waitpid: %s", strerror (errno));
    if (clock_ms () > end) {
      kill (pid, SIGKILL);
      waitpid (pid, &status, 0);
      die ("%s has not ended after %u seconds", what, seconds);
    }
    poll (NULL, 0, 2);
  }
}

struct nbd_handle *
server_connect (struct server_process *server, const char *name,
                unsigned seconds)
{
  uint64_t end = clock_ms () + seconds * UINT64_C (1000);
  struct nbd_handle *nbd;

  for (;;) {
    nbd = nbd_create ();
    if (nbd == NULL)
      die ("nbd_create: %s", nbd_get_error ());
    if (nbd_set_export_name (nbd, name) == -1 ||
        nbd_add_meta_context (nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) == -1)
      die ("%s", nbd_get_error ());
    if (nbd_connect_unix (nbd, server->socket) == 0)
      return nbd;

    if (server_has_ended (server)) {
      nbd_close (nbd);
      return NULL;
    }
    if (nbd_get_errno () != ENOENT && nbd_get_errno () != ECONNREFUSED) {
      fprintf (stderr, "connecting to %s: %s\n", name, nbd_get_error ());
      nbd_close (nbd);
      return NULL;
    }
    if (clock_ms () > end) {
      fprintf (stderr, "the server does not listen after %u seconds\n",
               seconds);
      nbd_close (nbd);
      return NULL;
    }
    nbd_close (nbd);
    poll (NULL, 0, 2);
  }
}

void
server_kill (struct server_process *server)
{
  int status;

  if (server->pid == 0)
    return;
  kill (server->pid, SIGKILL);
  if (waitpid (server->pid, &status, 0) == -1)
    die ("waitpid: %s", strerror (errno));
  if (!WIFSIGNALED (status) || WTERMSIG (status) != SIGKILL)
    die ("the server had ended by itself, with status %d",
         exit_status (status));
  server->pid = 0;
  unlink (server->socket);
}

bool
server_ends_within (struct server_process *server, unsigned ms)
{
  siginfo_t info;

  for (;; --ms) {
    info.si_pid = 0;
    if (waitid (P_PID, server->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid != 0)
      return true;
    if (ms == 0)
      return false;
    poll (NULL, 0, 1);
  }
}

int
server_has_ended (struct server_process *server)
{
  int status;

  if (server->pid == 0)
    return 1;
  if (waitpid (server->pid, &status, WNOHANG) != server->pid)
    return 0;
  fprintf (stderr, "the server ended by itself, with status %d\n",
           exit_status (status));
  server->pid = 0;
  unlink (server->socket);
  return 1;
}

char *
command_output (const char *const *argv, unsigned seconds, const char *preload,
                const atomic_bool *stop, int *status)
{
  size_t len = 0, max = 65536;
  char *text = xmalloc (max);
  int fds[2];
  pid_t pid;
  ssize_t r;
  uint64_t end = clock_ms () + seconds * UINT64_C (1000);
  struct pollfd p;

  if (pipe2 (fds, O_CLOEXEC) == -1)
    die ("pipe: %s", strerror (errno));
  pid = start (argv, fds[1], preload);
  close (fds[1]);

  for (;;) {
    p = (struct pollfd) { .fd = fds[0], .events = POLLIN };
    if (stop && atomic_load (stop)) {
      kill (pid, SIGKILL);
      break;
    }
    if (poll (&p, 1, stop ? 2 : 100) > 0) {
      r = read (fds[0], text + len, max - 1 - len);
      if (r == 0)
        break;
      if (r > 0)
        len += r;
      if (len == max - 1) {
        max *= 2;
        text = realloc (text, max);
        if (text == NULL)
          die ("out of memory");
      }
    }
    if (clock_ms () > end) {
      kill (pid, SIGKILL);
      die ("%s %s %s %s: not done after %u seconds", argv[0],
           argv[1] ? argv[1] : "", argv[1] && argv[2] ? argv[2] : "",
           argv[1] && argv[2] && argv[3] ? argv[3] : "", seconds);
    }
  }
  close (fds[0]);
  text[len] = '\0';
  *status = process_wait (pid, seconds, argv[0]);
  return text;
}
