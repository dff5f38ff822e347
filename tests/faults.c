/* SPDX-License-Identifier: BSD-3-Clause */

/* Preloaded into a server or a command: makes calls on one file fail, or
 * take long.
 *
 *   FAULT_FILE   base name: journal, records, pool.db, pool.db-wal
 *   FAULT_CALL   write (pwrite and the like), sync (fdatasync, fsync),
 *                fallocate, read (pread and the like)
 *   FAULT_ARM    calls count, and fail, only while this file exists
 *   FAULT_NTH    which of them is the first to fail (from 1)
 *   FAULT_COUNT  how many fail (default 1)
 *   FAULT_ERRNO  with what (default EIO)
 *   FAULT_MS     they take so many milliseconds, and do not fail
 *   FAULT_LOG    a line is appended to this file for each of them
 *
 * A sync that fails syncs nothing, a write that fails writes nothing.
 */

#include <config.h>
/* Else the names below would be those of other functions. */
#undef _FILE_OFFSET_BITS

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static_assert (sizeof (off_t) == 8, "one function for both names");

static const char *file, *which, *arm, *log_path;
static long nth = 1, count = 1;
static int error = EIO;
static long milliseconds;
static atomic_long calls;

static long
number (const char *name, long otherwise)
{
  const char *s = getenv (name);

  return s && s[0] ? atol (s) : otherwise;
}

static void __attribute__ ((constructor))
init (void)
{
  file = getenv ("FAULT_FILE");
  which = getenv ("FAULT_CALL");
  arm = getenv ("FAULT_ARM");
  log_path = getenv ("FAULT_LOG");
  nth = number ("FAULT_NTH", 1);
  count = number ("FAULT_COUNT", 1);
  error = number ("FAULT_ERRNO", EIO);
  milliseconds = number ("FAULT_MS", 0);
}

/* Shall this call on 'fd' fail?  Sets errno.  If it is to take long, it has
 * when this returns.
 */
static bool
fails (int fd, const char *call)
{
  char link[32], path[4096], *base, text[100];
  ssize_t n;
  long nr;
  int out;

  if (file == NULL || which == NULL || strcmp (call, which) != 0)
    return false;
  snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
  n = readlink (link, path, sizeof path - 1);
  if (n <= 0)
    return false;
  path[n] = '\0';
  base = strrchr (path, '/');
  if (base == NULL || strcmp (base + 1, file) != 0)
    return false;
  if (arm && access (arm, F_OK) == -1)
    return false;
  nr = atomic_fetch_add (&calls, 1) + 1;
  if (nr < nth || nr >= nth + count)
    return false;

  if (log_path) {
    out = open (log_path, O_WRONLY|O_CREAT|O_APPEND|O_CLOEXEC, 0666);
    n = milliseconds
      ? snprintf (text, sizeof text, "%s of %.20s takes long\n", call, file)
      : snprintf (text, sizeof text, "%s of %.20s fails with errno %d\n",
                  call, file, error);
    /* The name "write" is ours here, and does the right thing. */
    if (out == -1 || write (out, text, n) != n)
      abort ();
    close (out);
  }
  if (milliseconds) {
    usleep ((useconds_t) milliseconds * 1000);
    return false;
  }
  errno = error;
  return true;
}

#define WRAP(ret, name, call, params, args)                             \
  ret name params;                                                      \
  ret name params                                                       \
  {                                                                     \
    static ret (*real) params;                                          \
                                                                        \
    if (real == NULL)                                                   \
      real = dlsym (RTLD_NEXT, #name);                                  \
    return fails (fd, call) ? -1 : real args;                           \
  }

WRAP (ssize_t, pwrite, "write",
      (int fd, const void *buf, size_t len, off_t offset),
      (fd, buf, len, offset))
WRAP (ssize_t, pwrite64, "write",
      (int fd, const void *buf, size_t len, off_t offset),
      (fd, buf, len, offset))
WRAP (ssize_t, write, "write",
      (int fd, const void *buf, size_t len), (fd, buf, len))
WRAP (ssize_t, pwritev, "write",
      (int fd, const struct iovec *iov, int nr, off_t offset),
      (fd, iov, nr, offset))
WRAP (ssize_t, pwritev64, "write",
      (int fd, const struct iovec *iov, int nr, off_t offset),
      (fd, iov, nr, offset))
WRAP (ssize_t, pread, "read",
      (int fd, void *buf, size_t len, off_t offset), (fd, buf, len, offset))
WRAP (ssize_t, pread64, "read",
      (int fd, void *buf, size_t len, off_t offset), (fd, buf, len, offset))
WRAP (int, fdatasync, "sync", (int fd), (fd))
WRAP (int, fsync, "sync", (int fd), (fd))
WRAP (int, fallocate, "fallocate",
      (int fd, int mode, off_t offset, off_t len), (fd, mode, offset, len))
WRAP (int, fallocate64, "fallocate",
      (int fd, int mode, off_t offset, off_t len), (fd, mode, offset, len))
