/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "startup.h"

/* One report is one write to the pipe: 1 byte of kind, then the text. */
#define REPORT_OPEN 'o'  /* the pool is open */
#define REPORT_ERROR 'e' /* it is not; the text must be printed */
#define REPORT_TOLD 't'  /* it is not; stderr has the text already */
#define REPORT_MAX 1024  /* below PIPE_BUF: written as a whole */

static pid_t first_pid; /* the process that ran .get_ready */
static int pipe_fds[2] = { -1, -1 };
static struct stat first_stderr;

static void
close_pipe (void)
{
  int i;

  for (i = 0; i < 2; ++i) {
    if (pipe_fds[i] != -1)
      close (pipe_fds[i]);
    pipe_fds[i] = -1;
  }
}

/* Exit handler.  Waits only in the first process, and only for as long as
 * another one has the pipe open: after a failure before the fork there is
 * none, and the read returns at once.
 */
static void
wait_for_report (void)
{
  char report[REPORT_MAX + 1];
  ssize_t n;

  if (getpid () != first_pid || pipe_fds[0] == -1)
    return;

  close (pipe_fds[1]);
  pipe_fds[1] = -1;
  do
    n = read (pipe_fds[0], report, sizeof report - 1);
  while (n == -1 && errno == EINTR);
  close_pipe ();

  if (n == 0) {
    /* There is no server, or it died without a report. */
    if (waitpid (-1, NULL, 0) == -1)
      return;
    fprintf (stderr,
             "nbdkit: error: the server ended before it had opened the pool; "
             "its messages are in the system log\n");
  }
  else if (n < 0 || report[0] == REPORT_OPEN)
    return;
  else if (report[0] == REPORT_ERROR) {
    report[n] = '\0';
    fprintf (stderr, "nbdkit: error: %s\n", report + 1);
  }

  /* The only way to change the status from within exit. */
  fflush (NULL);
  _exit (EXIT_FAILURE);
}

int
startup_prepare (void)
{
  static bool registered;

  if (pipe2 (pipe_fds, O_CLOEXEC) == -1) {
    nbdkit_error ("pipe: %s", strerror (errno));
    return -1;
  }
  /* nbdkit puts /dev/null over 0 and 1.  A caller that starts it without them
   * does not read messages.
   */
  if (pipe_fds[0] <= STDERR_FILENO || pipe_fds[1] <= STDERR_FILENO ||
      fstat (STDERR_FILENO, &first_stderr) == -1) {
    close_pipe ();
    return 0;
  }
  first_pid = getpid ();
  /* atexit handlers of a shared object run at dlclose at the latest, so the
   * server never calls into an unloaded plugin.
   */
  if (!registered && atexit (wait_for_report) != 0) {
    nbdkit_error ("atexit: no memory");
    close_pipe ();
    return -1;
  }
  registered = true;
  return 0;
}

void
startup_report (const char *error)
{
  char report[REPORT_MAX];
  struct stat st;
  size_t len = 1;
  ssize_t r;

  if (pipe_fds[1] != -1 && getpid () != first_pid) {
    report[0] = REPORT_OPEN;
    if (error != NULL) {
      bool told = fstat (STDERR_FILENO, &st) == 0 &&
        st.st_dev == first_stderr.st_dev && st.st_ino == first_stderr.st_ino;

      report[0] = told ? REPORT_TOLD : REPORT_ERROR;
      len += strnlen (error, sizeof report - 1);
      memcpy (report + 1, error, len - 1);
    }
    /* If the first process has ended this fails, which does not matter; nbdkit
     * ignores SIGPIPE.
     */
    do
      r = write (pipe_fds[1], report, len);
    while (r == -1 && errno == EINTR);
  }
  close_pipe ();
}
