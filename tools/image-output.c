/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <linux/fs.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image.h"
#include "interrupt.h"
#include "tools.h"
#include "transfer.h"

#define HOLE_LEN 4096

static int
fail_output (const struct output *output)
{
  fail ("export: %s: %s", output->name, strerror (errno));
  return -1;
}

/* Is 'st' one of the files of the pool?  To overwrite it would be the end
 * of all volumes.
 */
static bool
is_pool_file (const char *pool, const struct stat *st)
{
  DIR *dir = opendir (pool);
  struct dirent *entry;
  struct stat other;
  bool found = false;

  if (dir == NULL)
    return false;
  while (!found && (entry = readdir (dir)) != NULL)
    if (fstatat (dirfd (dir), entry->d_name, &other, 0) == 0)
      found = (st->st_dev == other.st_dev && st->st_ino == other.st_ino) ||
        (S_ISBLK (st->st_mode) && S_ISBLK (other.st_mode) &&
         st->st_rdev == other.st_rdev);
  closedir (dir);
  return found;
}

static int
open_stdout (struct output *output)
{
  output->name = "standard output";
  output->is_stream = true;
  output->fd = fcntl (STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (output->fd == -1)
    return fail_output (output);
  if (isatty (output->fd)) {
    fail ("export: standard output is a terminal: redirect it");
    return -1;
  }
  return 0;
}

/* What was not there is made, so that we know that we made it. */
static int
open_file (struct output *output, const char *file)
{
  output->name = output->file = file;
  output->fd = open (file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  output->is_new = output->fd != -1;
  if (output->fd == -1 && errno == EEXIST)
    output->fd = open (file, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (output->fd == -1)
    return fail_output (output);
  return 0;
}

static int
check_device (const struct output *output, uint64_t size)
{
  const off_t end = lseek (output->fd, 0, SEEK_END);

  if (end == -1)
    return fail_output (output);
  if ((uint64_t) end < size) {
    fail ("export: %s: the device has %" PRIu64 " bytes, the volume %" PRIu64,
          output->name, (uint64_t) end, size);
    return -1;
  }
  return 0;
}

int
output_open (struct output *output, const char *file, const char *pool,
             uint64_t size)
{
  struct stat st;

  memset (output, 0, sizeof *output);
  output->fd = -1;
  output->zeroes = calloc (1, TRANSFER_LEN);
  if (output->zeroes == NULL) {
    fail ("out of memory");
    return -1;
  }
  if (strcmp (file, "-") == 0)
    return open_stdout (output);
  if (open_file (output, file) == -1)
    return -1;
  if (fstat (output->fd, &st) == -1)
    return fail_output (output);
  if (is_pool_file (pool, &st)) {
    fail ("export: %s: is a file of the pool itself", file);
    return -1;
  }
  output->is_device = S_ISBLK (st.st_mode);
  output->is_stream = !S_ISREG (st.st_mode) && !output->is_device;
  if (output->is_device)
    return check_device (output, size);
  if (S_ISREG (st.st_mode) &&
      (ftruncate (output->fd, 0) == -1 || ftruncate (output->fd, size) == -1))
    return fail_output (output);
  return 0;
}

static int
write_all (struct output *output, const uint8_t *buf, uint32_t len,
           uint64_t offset)
{
  ssize_t r;

  while (len > 0) {
    if (output->is_stream) {
      /* A reader that sleeps must not keep us from noticing a signal. */
      if (!interrupt_poll (output->fd, POLLOUT))
        return -1;
      r = write (output->fd, buf, len);
    }
    else
      r = pwrite (output->fd, buf, len, offset);
    if (r == -1) {
      if (errno == EINTR || errno == EAGAIN)
        continue;
      return fail_output (output);
    }
    buf += r;
    offset += r;
    len -= r;
  }
  return 0;
}

/* In a file, zeroes stay holes, in units that file systems allocate. */
int
output_write (struct output *output, const uint8_t *buf, uint32_t len,
              uint64_t offset)
{
  uint32_t start = 0, end;

  if (output->is_stream || output->is_device)
    return write_all (output, buf, len, offset);

#define PIECE(at) (len - (at) < HOLE_LEN ? len - (at) : HOLE_LEN)
  while (start < len) {
    /* From start to end there is data. */
    for (end = start; end < len; end += PIECE (end))
      if (transfer_is_zero (buf + end, PIECE (end)))
        break;
    if (end > start &&
        write_all (output, buf + start, end - start, offset + start) == -1)
      return -1;
    start = end < len ? end + PIECE (end) : len;
  }
#undef PIECE
  return 0;
}

int
output_zero (struct output *output, uint32_t len, uint64_t offset)
{
  uint64_t range[2] = { offset, len };

  if (!output->is_stream) {
    if (!output->is_device)
      return 0;                 /* a hole since ftruncate */
    if (ioctl (output->fd, BLKZEROOUT, range) == 0)
      return 0;
  }
  return write_all (output, output->zeroes, len, offset);
}

/* The name of a new file must survive too. */
static int
sync_directory (const char *file)
{
  char *copy = strdup (file);
  int fd, r = -1;

  if (copy == NULL)
    return -1;
  fd = open (dirname (copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd != -1) {
    /* Some file systems cannot sync directories. */
    r = fsync (fd) == -1 && errno != EINVAL ? -1 : 0;
    close (fd);
  }
  free (copy);
  return r;
}

int
output_close (struct output *output, bool failed)
{
  int r = 0;

  if (output->fd != -1) {
    /* Pipes have nothing to sync. */
    if (!failed && fsync (output->fd) == -1 &&
        errno != EINVAL && errno != EROFS && errno != ENOTSUP)
      r = fail_output (output);
    if (close (output->fd) == -1 && !failed && r == 0)
      r = fail_output (output);
    if (r == 0 && !failed && output->is_new &&
        sync_directory (output->file) == -1)
      r = fail_output (output);
    if ((failed || r == -1) && output->is_new)
      unlink (output->file);
  }
  free (output->zeroes);
  return r;
}
