/* SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "fullio.h"

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
    if (r == 0) {               /* would loop for ever */
      errno = EIO;
      return -1;
    }
    done += r;
  }
  return 0;
}

int
sync_directory (const char *path)
{
  int fd = open (path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int r;

  if (fd == -1)
    return -1;
  r = fsync (fd);
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
