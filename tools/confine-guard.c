/* SPDX-License-Identifier: BSD-3-Clause */

/* The parent's part of confine.h: a thread for each confined program answers
 * the program's opens.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <linux/seccomp.h>

#include "confine.h"
#include "image.h"
#include "tools.h"

struct guard {
  struct confine *confine; /* not owned */
  char *program;           /* owned; the program's file */
  int listener, stopfd;    /* owned */
  pthread_t thread;
  struct seccomp_notif *request; /* owned; of the kernel's sizes */
  struct seccomp_notif_resp *response;
  size_t request_bytes, response_bytes;
  bool reading; /* the program has opened one of the files */
};

/* Read text from the memory of the waiting program; false: there is none. */
static bool
read_name (pid_t pid, uint64_t address, char name[PATH_MAX])
{
  const size_t page = sysconf (_SC_PAGESIZE);
  const size_t first = page - address % page;
  struct iovec local = { name, PATH_MAX }, remote[2];
  ssize_t n;

  /* The next page may not exist. */
  remote[0] = (struct iovec) {
    (void *) (uintptr_t) address,
    first < PATH_MAX ? first : PATH_MAX,
  };
  remote[1] = (struct iovec) {
    (void *) (uintptr_t) (address + remote[0].iov_len),
    PATH_MAX - remote[0].iov_len,
  };
  n = process_vm_readv (pid, &local, 1, remote, 2, 0);
  return n > 0 && memchr (name, '\0', n) != NULL;
}

/* Returns a descriptor for it (owned by the caller), or a negative errno. */
static int
answer_open (struct guard *g, uint64_t address, uint64_t flags)
{
  char name[PATH_MAX];

  if (!read_name (g->request->pid, address, name))
    return -EACCES;
  /* Was the text read from the process that still waits? */
  if (ioctl (g->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &g->request->id) == -1)
    return -EACCES;
  if (*name != '/')
    return -ENOENT; /* relative to a directory: never allowed */
  return confine_open (g->confine, g->program, name, flags, &g->reading);
}

static int
answer (struct guard *g)
{
  const struct seccomp_data *data = &g->request->data;

  switch (data->nr) {
  case SYS_openat:
    return answer_open (g, data->args[1], data->args[2]);
#ifdef SYS_open
  case SYS_open:
    return answer_open (g, data->args[0], data->args[1]);
#endif
  default: /* socket */
    if (g->reading)
      confine_refuse (g->confine, "the network");
    return -EACCES;
  }
}

/* Answer one request.  A signal can withdraw it at any time. */
static void
serve_request (struct guard *g)
{
  struct seccomp_notif_addfd add = { 0 };
  int fd, given = -1;

  memset (g->request, 0, g->request_bytes);
  if (ioctl (g->listener, SECCOMP_IOCTL_NOTIF_RECV, g->request) == -1)
    return;
  fd = answer (g);
  if (fd >= 0) {
    add.id = g->request->id;
    add.srcfd = fd;
    add.newfd_flags = O_CLOEXEC;
    given = ioctl (g->listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add);
    if (given == -1)
      given = -errno;
    close (fd);
  }
  else
    given = fd;
  memset (g->response, 0, g->response_bytes);
  g->response->id = g->request->id;
  if (given >= 0)
    g->response->val = given;
  else
    g->response->error = given;
  ioctl (g->listener, SECCOMP_IOCTL_NOTIF_SEND, g->response);
}

static void *
guard_thread (void *opaque)
{
  struct guard *g = opaque;
  struct pollfd pfd[2] = {
    { .fd = g->listener, .events = POLLIN },
    { .fd = g->stopfd, .events = POLLIN },
  };

  for (;;) {
    if (poll (pfd, 2, -1) == -1)
      continue; /* EINTR */
    if (pfd[1].revents != 0)
      return NULL;
    if (pfd[0].revents & POLLIN)
      serve_request (g);
    else if (pfd[0].revents != 0)
      return NULL; /* the program has ended */
  }
}

/* Receive the child's listener, or -1 and errno. */
static int
receive_listener (int sock)
{
  int listener, err = 0;
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE (sizeof listener)];
  } control;
  struct iovec iov = { &err, sizeof err };
  struct msghdr msg = {
    .msg_iov = &iov,
    .msg_iovlen = 1,
    .msg_control = &control,
    .msg_controllen = sizeof control,
  };
  const struct cmsghdr *header;
  ssize_t n;

  do
    n = recvmsg (sock, &msg, MSG_CMSG_CLOEXEC);
  while (n == -1 && errno == EINTR);
  if (n != sizeof err) {
    errno = n == -1 ? errno : ECHILD;
    return -1;
  }
  header = CMSG_FIRSTHDR (&msg);
  if (header == NULL) {
    errno = err;
    return -1;
  }
  memcpy (&listener, CMSG_DATA (header), sizeof listener);
  return listener;
}

/* The file that exec finds; owned by the caller. */
static char *
find_program (const char *argv0)
{
  const char *path = getenv ("PATH"), *end;
  char *file = NULL;

  if (strchr (argv0, '/') != NULL || path == NULL)
    file = strdup (argv0);
  for (; file == NULL && path != NULL && *path != '\0'; path = end) {
    end = path + strcspn (path, ":");
    if (asprintf (&file, "%.*s/%s", (int) (end - path), path, argv0) == -1)
      break;
    if (access (file, X_OK) == -1) {
      free (file);
      file = NULL;
    }
    end += *end == ':';
  }
  return file != NULL ? file : copy_string (argv0);
}

static int
get_sizes (struct guard *g)
{
  struct seccomp_notif_sizes sizes;

  if (syscall (SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) == -1)
    return -1;
  g->request_bytes = sizes.seccomp_notif > sizeof *g->request
    ? sizes.seccomp_notif
    : sizeof *g->request;
  g->response_bytes = sizes.seccomp_notif_resp > sizeof *g->response
    ? sizes.seccomp_notif_resp
    : sizeof *g->response;
  g->request = check_memory (calloc (1, g->request_bytes));
  g->response = check_memory (calloc (1, g->response_bytes));
  return 0;
}

static void
guard_free (struct guard *g)
{
  if (g->listener != -1)
    close (g->listener);
  if (g->stopfd != -1)
    close (g->stopfd);
  free (g->request);
  free (g->response);
  free (g->program);
  free (g);
}

/* The guard's thread blocks signals, which are for the other threads. */
static int
start_thread (struct guard *g)
{
  sigset_t all, old;
  int err;

  sigfillset (&all);
  pthread_sigmask (SIG_BLOCK, &all, &old);
  err = pthread_create (&g->thread, NULL, guard_thread, g);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  errno = err;
  return err == 0 ? 0 : -1;
}

struct guard *
guard_start (struct confine *c, int sock, const char *argv0)
{
  struct guard *g = check_memory (calloc (1, sizeof *g));

  g->confine = c;
  g->program = find_program (argv0);
  g->listener = receive_listener (sock);
  g->stopfd = eventfd (0, EFD_CLOEXEC);
  if (g->listener != -1 && g->stopfd != -1 && get_sizes (g) == 0 &&
      start_thread (g) == 0)
    return g;
  image_fail ("cannot confine %s (seccomp: %s), so nbdedup does not run it: "
              "use raw images, or Linux 5.9 or later",
              argv0, strerror (errno));
  guard_free (g);
  return NULL;
}

void
guard_stop (struct guard *g)
{
  const uint64_t one = 1;

  if (g == NULL)
    return;
  if (write (g->stopfd, &one, sizeof one) == sizeof one)
    pthread_join (g->thread, NULL);
  guard_free (g);
}
