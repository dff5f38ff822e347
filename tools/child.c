/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "confine.h"
#include "image.h"
#include "interrupt.h"
#include "tools.h"

/* The number of the listening socket in socket activation. */
#define LISTEN_FD 3

/* The child's status if exec finds no such program. */
#define STATUS_NOT_FOUND 127

/* The most time from the end of its connections to the end of the child. */
#define END_MS 1000

#define OUTPUT_MAX (256 << 20)

extern char **environ;

static void
close_both (const int fds[2])
{
  if (fds[0] != -1)
    close (fds[0]);
  if (fds[1] != -1)
    close (fds[1]);
}

/* The child moves its descriptors to numbers from here on first: above all
 * that it is about to assign.
 */
#define HIGH_FD 10

/* The arguments of start besides the program. */
struct setup {
  int infd;         /* its standard input; -1: nothing */
  int listenfd;     /* -1: not a server */
  int fd;           /* for CHILD_FD; -1: none */
  int sock;         /* for confine_enter */
  char **env;       /* NULL: this process's */
  char *pid_digits; /* in env: its process id */
  pid_t parent;
};

/* The environment of a confined program: its messages must be in English,
 * because this code parses them.
 */
static void
make_environment (struct setup *s)
{
  static char listen_fds[] = "LISTEN_FDS=1", locale[] = "LC_ALL=C";
  static char listen_pid[] = "LISTEN_PID=0000000000";
  const char *path = getenv ("PATH");
  size_t nr = 0;

  s->env = check_memory (calloc (5, sizeof *s->env));
  s->env[nr++] = make_string ("PATH=%s", path != NULL ? path : "");
  s->env[nr++] = locale;
  if (s->listenfd != -1) {
    s->env[nr++] = listen_fds;
    s->env[nr++] = listen_pid;
  }
  s->pid_digits = listen_pid + strlen ("LISTEN_PID=");
}

static void
free_environment (struct setup *s)
{
  if (s->env != NULL)
    free (s->env[0]);
  free (s->env);
}

static int
move_up (int fd)
{
  return fd == -1 ? -1 : fcntl (fd, F_DUPFD_CLOEXEC, HIGH_FD);
}

/* In the child: put 'fd' at the number 'wanted', or close that. */
static void
place (int fd, int wanted)
{
  if (fd == -1)
    close (wanted);
  else
    dup2 (fd, wanted);
}

static void
enter_confinement (const struct child *child, struct setup *s)
{
  const int listenfd = move_up (s->listenfd), fd = move_up (s->fd);
  const int sock = move_up (s->sock);
  pid_t pid = getpid ();
  int i;

  for (i = 9; i >= 0; --i, pid /= 10)
    s->pid_digits[i] = '0' + pid % 10;
  place (listenfd, LISTEN_FD);
  place (fd, CHILD_FD);
  environ = s->env;
  if (confine_enter (child->confine, sock, CHILD_FD + 1) == -1)
    _exit (1);
}

/* Only async-signal-safe calls, because other threads may hold any lock. */
static void __attribute__ ((noreturn))
run_child (const struct child *child, const char *const argv[], struct setup *s)
{
  int infd = s->infd;

  setpgid (0, 0);
  prctl (PR_SET_PDEATHSIG, SIGTERM);
  if (getppid () != s->parent)
    _exit (1); /* the parent died before the prctl */
  if (infd == -1)
    infd = open ("/dev/null", O_RDONLY);
  if (infd == -1 || dup2 (infd, STDIN_FILENO) == -1 ||
      dup2 (child->outfd, STDOUT_FILENO) == -1 ||
      dup2 (child->errfd, STDERR_FILENO) == -1)
    _exit (1);
  if (child->confine != NULL)
    enter_confinement (child, s);
  execvp (argv[0], (char *const *) argv);
  _exit (errno == ENOENT ? STATUS_NOT_FOUND : 1);
}

static int
fail_start (struct child *child)
{
  image_fail ("cannot start %s: %s", child->program, strerror (errno));
  child_end (child);
  return -1;
}

static int
start (struct child *child, const char *const argv[], struct confine *confine,
       struct setup *s)
{
  int socks[2] = { -1, -1 };

  memset (child, 0, sizeof *child);
  child->program = argv[0];
  child->confine = confine;
  child->pidfd = -1;
  child->outfd = memfd_create ("stdout", MFD_CLOEXEC);
  child->errfd = memfd_create ("stderr", MFD_CLOEXEC);
  if (child->outfd == -1 || child->errfd == -1 ||
      (confine != NULL &&
       socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks) == -1))
    return fail_start (child);
  s->parent = getpid ();
  s->sock = socks[1];
  if (confine != NULL)
    make_environment (s);
  child->pid = fork ();
  if (child->pid == 0)
    run_child (child, argv, s);
  free_environment (s);
  if (child->pid == -1)
    child->pid = 0;
  else if (confine != NULL) {
    close (socks[1]); /* so that guard_start sees its end */
    socks[1] = -1;
    child->guard = guard_start (confine, socks[0], argv[0]);
  }
  close_both (socks);
  if (child->pid == 0)
    return fail_start (child);
  if (confine != NULL && child->guard == NULL) {
    child_end (child);
    return -1;
  }
  child->pidfd = pidfd_open (child->pid, 0);
  return 0;
}

int
child_start_confined (struct child *child, const char *const argv[],
                      struct confine *confine, int fd)
{
  struct setup s = { .infd = -1, .listenfd = -1, .fd = fd };

  return start (child, argv, confine, &s);
}

int
child_start_input (struct child *child, const char *const argv[],
                   const char *input, size_t len)
{
  const int fd = memfd_create ("stdin", MFD_CLOEXEC);
  struct setup s = { .infd = fd, .listenfd = -1, .fd = -1 };
  int r = -1;

  /* Write all input before starting the child: then neither waits. */
  if (fd == -1 || write_all (fd, input, len) == -1 ||
      lseek (fd, 0, SEEK_SET) == -1)
    image_fail ("cannot start %s: %s", argv[0], strerror (errno));
  else
    r = start (child, argv, NULL, &s);
  if (fd != -1)
    close (fd);
  return r;
}

/* Listen on a socket that no other process can reach, and connect to it: the
 * server finds the connection waiting.
 */
static int
make_sockets (int *listenfd, int *fd)
{
  struct sockaddr_un addr = { .sun_family = AF_UNIX };
  const char *tmp = getenv ("TMPDIR");
  char dir[sizeof addr.sun_path - 8];
  int r = -1, err;

  if (tmp == NULL ||
      snprintf (dir, sizeof dir, "%s/nbdedup.XXXXXX", tmp) >= (int) sizeof dir)
    strcpy (dir, "/tmp/nbdedup.XXXXXX");
  if (mkdtemp (dir) == NULL)
    return image_fail ("%s: %s", dir, strerror (errno));
  sprintf (addr.sun_path, "%s/sock", dir);

  /* The server's socket must not have a number that start assigns. */
  *listenfd = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  *fd = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (*listenfd != -1 && *fd != -1 &&
      bind (*listenfd, (struct sockaddr *) &addr, sizeof addr) == 0 &&
      listen (*listenfd, 1) == 0)
    r = connect (*fd, (struct sockaddr *) &addr, sizeof addr);
  err = errno;
  unlink (addr.sun_path);
  rmdir (dir);
  return r == 0 ? 0 : image_fail ("%s: %s", addr.sun_path, strerror (err));
}

int
child_start_server (struct child *child, const char *const argv[],
                    struct confine *confine, int fd)
{
  struct setup s = { .infd = -1, .fd = fd };
  int connected = -1, r;

  r = make_sockets (&s.listenfd, &connected);
  if (r == 0)
    r = start (child, argv, confine, &s);
  if (s.listenfd != -1)
    close (s.listenfd); /* else the end of the child is not seen */
  if (r == -1 && connected != -1)
    close (connected);
  return r == -1 ? -1 : connected;
}

int
child_wait (struct child *child)
{
  if (child->pid == 0)
    return 0;
  if (child->pidfd != -1 && !interrupt_poll (child->pidfd, POLLIN))
    return image_fail ("interrupted");
  while (waitpid (child->pid, &child->status, 0) == -1)
    if (errno != EINTR) {
      child->status = -1;
      break;
    }
  child->pid = 0;
  return 0;
}

bool
child_exited (const struct child *child, int status)
{
  return child->pid == 0 && WIFEXITED (child->status) &&
    WEXITSTATUS (child->status) == status;
}

static char *
read_all (int fd)
{
  struct stat st;
  char *text;
  ssize_t n;

  if (fstat (fd, &st) == -1 || st.st_size > OUTPUT_MAX)
    return NULL;
  text = malloc (st.st_size + 1);
  if (text == NULL)
    return NULL;
  n = pread (fd, text, st.st_size, 0);
  text[n > 0 ? n : 0] = '\0';
  return text;
}

char *
child_output (struct child *child)
{
  return read_all (child->outfd);
}

/* "qemu-nbd: Failed to blk_new_open 'disk': Image is ..." -> "Image is ...":
 * the caller's message has the name already.
 */
static const char *
without_prefix (const struct child *child, const char *text)
{
  static const char *const prefixes[] = {
    "Failed to blk_new_open '",
    "Could not open '",
  };
  const size_t len = strlen (child->program);
  const char *end;
  size_t i;

  if (strncmp (text, child->program, len) == 0 &&
      strncmp (text + len, ": ", 2) == 0)
    text += len + 2;
  for (i = 0; i < sizeof prefixes / sizeof prefixes[0]; ++i)
    if (strncmp (text, prefixes[i], strlen (prefixes[i])) == 0 &&
        (end = strstr (text + strlen (prefixes[i]), "': ")) != NULL)
      return end + 3;
  return text;
}

/* Advice for a missing program. */
static const char *
advice (const char *program)
{
  return strcmp (program, "gnuplot") == 0
    ? "install gnuplot (Debian's gnuplot-nox)"
    : strstr (program, "nbdedup-files") != NULL
    ? "build and install it, with The Sleuth Kit's library"
    : "install qemu-utils, or use raw images";
}

bool
child_overran (const struct child *child)
{
  struct pollfd pfd = { .fd = child->pidfd, .events = POLLIN };
  siginfo_t info = { 0 };

  return child->confine != NULL && child->pidfd != -1 &&
    poll (&pfd, 1, END_MS) == 1 &&
    waitid (P_PIDFD, child->pidfd, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
    (info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED) &&
    info.si_status == SIGXCPU;
}

int
child_fail_overrun (const struct child *child, const char *name)
{
  return image_fail ("%s: kept %s busy for more than %" PRIu64 " s, so it is "
                     "damaged or malicious: convert it to raw on another "
                     "machine",
                     name, child->program,
                     confine_cpu_seconds (child->confine));
}

/* The line that says why, NULL: none; 'text' is changed.  That qemu-img cannot
 * remove the file that it failed to make, which is not its to remove, comes
 * first and says nothing.
 */
static const char *
first_reason (const struct child *child, char *text)
{
  const char *why = NULL;
  char *line;

  while ((line = strsep (&text, "\n")) != NULL) {
    if (*line == '\0')
      continue;
    if (why == NULL || strncmp (why, "Error when deleting", 19) == 0)
      why = without_prefix (child, line);
  }
  return why;
}

int
child_fail (struct child *child, const char *name)
{
  const char *why;
  char *text;

  if (child_exited (child, STATUS_NOT_FOUND))
    return image_fail ("%s: needs %s, which is not installed: %s", name,
                       child->program, advice (child->program));
  text = read_all (child->errfd);
  why = text == NULL ? NULL : first_reason (child, text);
  if (why != NULL) {
    /* QEMU's text is only about its locks: replace it. */
    if (strstr (why, "Failed to get shared \"write\" lock") != NULL)
      image_fail ("%s: is in use by another process: shut down the guest, or "
                  "stop the process that has it open",
                  name);
    else
      image_fail ("%s: %s", name, why);
  }
  else if (child->pid == 0 && WIFSIGNALED (child->status) &&
           WTERMSIG (child->status) == SIGXCPU && child->confine != NULL)
    child_fail_overrun (child, name);
  else if (child->pid == 0 && WIFSIGNALED (child->status))
    image_fail ("%s: %s was killed by signal %d", name, child->program,
                WTERMSIG (child->status));
  else if (child->pid == 0)
    image_fail ("%s: %s ended with status %d", name, child->program,
                WEXITSTATUS (child->status));
  else
    image_fail ("%s: %s does not answer", name, child->program);
  free (text);
  return -1;
}

void
child_end (struct child *child)
{
  if (child->pid != 0) {
    kill (child->pid, SIGKILL);
    waitpid (child->pid, &child->status, 0);
    child->pid = 0;
  }
  guard_stop (child->guard);
  child->guard = NULL;
  if (child->pidfd != -1)
    close (child->pidfd);
  if (child->outfd != -1)
    close (child->outfd);
  if (child->errfd != -1)
    close (child->errfd);
  child->pidfd = child->outfd = child->errfd = -1;
}
