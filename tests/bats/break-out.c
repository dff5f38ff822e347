/* SPDX-License-Identifier: BSD-3-Clause */

/* A QEMU program that an image has taken over: untrusted.bats replaces
 * qemu-img by it.  It reads its image, then tries to reach what it must not,
 * and prints in one line what it reached: on standard error, or as the image's
 * backing file.  In its own directory there are "secret", a file, "sock", where
 * a server listens, and "parent", the process id of another process.
 *
 * "break-out --without-seccomp COMMAND..." runs a command where no further
 * filters can be installed, as in some containers.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/filter.h>
#include <linux/seccomp.h>

static char found[4096];

static void
reached (const char *what, bool did)
{
  if (did)
    snprintf (found + strlen (found), sizeof found - strlen (found), " %s",
              what);
}

static bool
can_open (const char *file, int flags)
{
  const int fd = open (file, flags, 0600);

  if (fd != -1)
    close (fd);
  return fd != -1;
}

static bool
can_connect (const struct sockaddr_un *addr)
{
  const int fd = socket (AF_UNIX, SOCK_STREAM, 0);

  return fd != -1 &&
    connect (fd, (const struct sockaddr *) addr, sizeof *addr) == 0;
}

static bool
can_fork (void)
{
  const pid_t pid = fork ();

  if (pid == 0)
    _exit (0);
  if (pid > 0)
    waitpid (pid, NULL, 0);
  return pid != -1;
}

static bool
can_open_handle (const char *file)
{
  union {
    struct file_handle handle;
    char space[sizeof (struct file_handle) + MAX_HANDLE_SZ];
  } h;
  int mount;

  h.handle.handle_bytes = MAX_HANDLE_SZ;
  return name_to_handle_at (AT_FDCWD, file, &h.handle, &mount, 0) == 0;
}

/* "...{"driver":"file","filename":"/nbdedup/0/image"}..." */
static bool
can_open_image (const char *node)
{
  static const char key[] = "\"filename\":\"";
  char name[PATH_MAX];
  const char *p = strstr (node, key);

  return p != NULL && sscanf (p + strlen (key), "%4000[^\"]", name) == 1 &&
    can_open (name, O_RDONLY) && !can_open (name, O_RDWR);
}

static void
try_files (const char *secret)
{
  char other[PATH_MAX + 32], self[PATH_MAX + 32];
  int fd;

  reached ("secret", can_open (secret, O_RDONLY));
  reached ("secret-path", can_open (secret, O_PATH));
  reached ("passwd", can_open ("/etc/passwd", O_RDONLY));
  reached ("environ", can_open ("/proc/self/environ", O_RDONLY));
  snprintf (other, sizeof other, "/usr/../%s", secret);
  reached ("dots", can_open (other, O_RDONLY));
  snprintf (other, sizeof other, "/nbdedup/0/%s", strrchr (secret, '/') + 1);
  reached ("neighbour", can_open (other, O_RDONLY));
  snprintf (self, sizeof self, "%.*s/new",
            (int) (strrchr (secret, '/') - secret), secret);
  reached ("new", can_open (self, O_WRONLY | O_CREAT));
  reached ("truncate", truncate (secret, 1) == 0);
  reached ("chmod", chmod (secret, 0666) == 0);
  reached ("link", link (secret, self) == 0);
  reached ("symlink", symlink (secret, self) == 0);
  reached ("rename", rename (secret, self) == 0);
  reached ("mkdir", mkdir (self, 0700) == 0);
  reached ("handle", can_open_handle (secret));
  fd = syscall (SYS_openat2, AT_FDCWD, secret,
                "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                "\0\0\0\0\0\0\0\0",
                24);
  reached ("openat2", fd != -1);
  reached ("unlink", unlink (secret) == 0);
  for (fd = 3; fd < 1024; ++fd)
    reached ("descriptor", fcntl (fd, F_GETFD) != -1);
}

static void
try_network (const char *sock)
{
  struct sockaddr_un un = { .sun_family = AF_UNIX };
  int pair[2];

  if (strlen (sock) < sizeof un.sun_path)
    strcpy (un.sun_path, sock);
  reached ("unix", can_connect (&un));
  reached ("tcp", socket (AF_INET, SOCK_STREAM, 0) != -1);
  reached ("udp", socket (AF_INET, SOCK_DGRAM, 0) != -1);
  reached ("netlink", socket (AF_NETLINK, SOCK_RAW, 0) != -1);
  reached ("pair", socketpair (AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  reached ("io_uring",
           syscall (SYS_io_uring_setup, 4, found) != -1 || errno != ENOSYS);
}

static void
try_processes (const char *parent)
{
  const pid_t pid = atoi (parent);

  reached ("fork", can_fork ());
  reached ("kill", kill (pid, 0) == 0);
  reached ("owner", fcntl (STDERR_FILENO, F_SETOWN, pid) == 0);
  reached ("ptrace", ptrace (PTRACE_SEIZE, pid, NULL, NULL) == 0);
  reached ("unshare", unshare (CLONE_NEWUSER) == 0);
  reached ("chroot", chroot ("/") == 0);
  reached ("environment", getenv ("HOME") != NULL);
}

static void
try_limits (void)
{
  struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };

  reached ("limits", setrlimit (RLIMIT_DATA, &limit) == 0);
  reached ("memory",
           mmap (NULL, (size_t) 1 << 40, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                 0) != MAP_FAILED);
  getrlimit (RLIMIT_CPU, &limit);
  reached ("time", limit.rlim_max == RLIM_INFINITY);
  getrlimit (RLIMIT_FSIZE, &limit);
  reached ("output", limit.rlim_max == RLIM_INFINITY);
}

/* A file in this program's directory.  A confined program still knows its own
 * path.
 */
static void
beside (char path[PATH_MAX], const char *name)
{
  const ssize_t n = readlink ("/proc/self/exe", path, PATH_MAX - 100);

  path[n > 0 ? n : 0] = '\0';
  if (strrchr (path, '/') != NULL)
    strcpy (strrchr (path, '/') + 1, name);
}

static int
without_seccomp (char *argv[])
{
  struct sock_filter code[] = {
    BPF_STMT (BPF_LD | BPF_W | BPF_ABS, offsetof (struct seccomp_data, nr)),
    BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, SYS_seccomp, 0, 1),
    BPF_STMT (BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    BPF_STMT (BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = { sizeof code / sizeof code[0], code };

  if (prctl (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
      prctl (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0)
    execvp (argv[0], argv);
  perror ("break-out");
  return 1;
}

int
main (int argc, char *argv[])
{
  char secret[PATH_MAX], sock[PATH_MAX], parent[PATH_MAX], pid[32] = "";
  const char *result;

  if (argc > 2 && strcmp (argv[1], "--without-seccomp") == 0)
    return without_seccomp (argv + 2);
  beside (secret, "secret");
  beside (sock, "sock");
  beside (parent, "parent");
  if (readlink (parent, pid, sizeof pid - 1) == -1)
    strcpy (pid, "1");
  if (argc > 1 && strncmp (argv[argc - 1], "json:", 5) == 0) {
    reached ("no-image", !can_open_image (argv[argc - 1]));
    reached ("usr", can_open ("/usr/bin/env", O_RDONLY));
  }
  try_network (sock);
  try_processes (pid);
  try_files (secret);
  try_limits ();
  result = *found != '\0' ? found : " nothing";
  if (argc > 1 && strcmp (argv[1], "info") == 0) {
    printf ("{\"backing-filename\":\"reached:%s\"}\n", result);
    return 0;
  }
  fprintf (stderr, "reached:%s\n", result);
  /* For a server nbdedup reports only what was refused. */
  if (strstr (argv[0], "qemu-nbd") != NULL && *found != '\0')
    pause ();
  return 1;
}
