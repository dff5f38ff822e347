/* SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/fullio.h"

int64_t
full_pread (int fd, void *buf, size_t len, uint64_t offset)
{
  uint8_t *p = buf;
  size_t done = 0;
  ssize_t r;

  if (len > INT64_MAX || offset > INT64_MAX - len) {
    errno = EINVAL;
    return -1;
  }
  while (done < len) {
    r = pread (fd, p + done, len - done, offset + done);
    if (r == -1) {
      if (errno == EINTR)
        continue;
      return -1;
    }
    if (r == 0)
      break;
    done += r;
  }
  return done;
}

int
full_pwrite (int fd, const void *buf, size_t len, uint64_t offset)
{
  const uint8_t *p = buf;
  size_t done = 0;
  ssize_t r;

  if (len > INT64_MAX || offset > INT64_MAX - len) {
    errno = EFBIG;
    return -1;
  }
  while (done < len) {
    r = pwrite (fd, p + done, len - done, offset + done);
    if (r == -1) {
      if (errno == EINTR)
        continue;
      return -1;
    }
    if (r == 0) { /* do not loop for ever */
      errno = EIO;
      return -1;
    }
    done += r;
  }
  return 0;
}

int
full_pwritev (int fd, struct iovec *iov, int nr_iov, uint64_t offset)
{
  ssize_t r;
  size_t n;

  while (nr_iov > 0) {
    if (iov->iov_len == 0) {
      iov++;
      nr_iov--;
      continue;
    }
    r = pwritev (fd, iov, nr_iov < IOV_MAX ? nr_iov : IOV_MAX, offset);
    if (r == -1) {
      if (errno == EINTR)
        continue;
      return -1;
    }
    offset += r;
    while (r > 0) {
      n = (size_t) r < iov->iov_len ? (size_t) r : iov->iov_len;
      iov->iov_base = (char *) iov->iov_base + n;
      iov->iov_len -= n;
      r -= n;
      if (iov->iov_len == 0) {
        iov++;
        nr_iov--;
      }
    }
  }
  return 0;
}

int
full_write_zeroes (int fd, uint64_t offset, uint64_t end)
{
  const uint64_t piece = 256 << 10;
  uint8_t *zeroes = calloc (1, piece);
  uint64_t n;
  int r = 0;

  if (zeroes == NULL)
    return -1;
  for (; offset < end && r == 0; offset += n) {
    n = end - offset < piece ? end - offset : piece;
    r = full_pwrite (fd, zeroes, n, offset);
  }
  free (zeroes);
  return r;
}

static int
repeat (int (*sync) (int fd), int fd)
{
  int r;

  do
    r = sync (fd);
  while (r == -1 && errno == EINTR);
  return r;
}

int
full_datasync (int fd)
{
  return repeat (fdatasync, fd);
}

int
full_sync (int fd)
{
  return repeat (fsync, fd);
}

int
sync_directory (const char *path)
{
  int fd = open (path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int r;

  if (fd == -1)
    return -1;
  r = full_sync (fd);
  close (fd);
  return r;
}

int
sync_directory_of (const char *path)
{
  char *copy = strdup (path);
  int r;

  if (copy == NULL)
    return -1;
  r = sync_directory (dirname (copy));
  free (copy);
  return r;
}
