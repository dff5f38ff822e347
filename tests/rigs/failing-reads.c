/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rigs/failing-reads.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *unreadable; /* not owned */
static unsigned good_reads, failing_reads;
static int read_error;

void
fail_reads (const char *file, unsigned good, unsigned failing, int error)
{
  pthread_mutex_lock (&lock);
  unreadable = file;
  good_reads = good;
  failing_reads = failing;
  read_error = error;
  pthread_mutex_unlock (&lock);
}

bool
reads_have_failed (void)
{
  bool r;

  pthread_mutex_lock (&lock);
  r = failing_reads == 0;
  pthread_mutex_unlock (&lock);
  return r;
}

static bool
is_unreadable (int fd)
{
  char link[32], path[4096] = "";
  const char *base;

  snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
  if (unreadable == NULL || readlink (link, path, sizeof path - 1) <= 0)
    return false;
  base = strrchr (path, '/');
  return strcmp (path, unreadable) == 0 ||
    (base && strcmp (base + 1, unreadable) == 0);
}

/* The error, or 0. */
static int
judge_read (int fd)
{
  int error = 0;

  pthread_mutex_lock (&lock);
  if (failing_reads > 0 && is_unreadable (fd)) {
    if (good_reads > 0)
      good_reads--;
    else {
      failing_reads--;
      error = read_error;
    }
  }
  pthread_mutex_unlock (&lock);
  return error;
}

static ssize_t
read_or_fail (int fd, void *buf, size_t len, off_t offset)
{
  const int error = judge_read (fd);

  if (error == 0)
    return syscall (SYS_pread64, fd, buf, len, offset);
  errno = error;
  return -1;
}

ssize_t
pread (int fd, void *buf, size_t len, off_t offset)
{
  return read_or_fail (fd, buf, len, offset);
}

/* Its name where a macro makes off_t 64 bits wide. */
ssize_t pread64 (int fd, void *buf, size_t len, off_t offset);

ssize_t
pread64 (int fd, void *buf, size_t len, off_t offset)
{
  return read_or_fail (fd, buf, len, offset);
}
