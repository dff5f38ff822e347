/* SPDX-License-Identifier: BSD-3-Clause */

/* Raw images: files, block devices, and streams (standard input and output,
 * and targets that are not seekable).
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "copy.h"
#include "image.h"
#include "interrupt.h"
#include "new-file.h"
#include "tools.h"

/* The unit in which file systems allocate. */
#define FILE_GRANULE 4096
#define DEVICE_GRANULE (64 << 10)
/* How often to try again to open a FIFO, and when to say so. */
#define READER_MS 100
#define READER_SAY_MS 500

struct file_image {
  struct image base;
  int fd;        /* owned */
  uint8_t *head; /* owned; bytes already read from a stream */
  uint32_t head_len, head_used;

  /* A target's. */
  bool is_device;
  bool is_new; /* new_file is in use */
  struct new_file new_file;
};

static const uint8_t zeroes[COPY_LEN];

static int
fail_errno (const struct image *image)
{
  return image_fail ("%s: %s", image->name, strerror (errno));
}

/*----------------------------------------------------------------------
 * Reading
 */

/* Read up to 'len' bytes, of a stream the next ones; fewer only at the end. */
static int64_t
read_some (struct file_image *f, uint8_t *buf, uint32_t len, uint64_t offset)
{
  uint32_t done = 0;
  ssize_t r;

  while (done < len) {
    if (f->base.is_stream) {
      if (!interrupt_poll (f->fd, POLLIN))
        return image_fail ("interrupted");
      r = read (f->fd, buf + done, len - done);
    }
    else
      r = pread (f->fd, buf + done, len - done, offset + done);
    if (r == -1 && (errno == EINTR || errno == EAGAIN))
      continue;
    if (r == -1)
      return fail_errno (&f->base);
    if (r == 0)
      break;
    done += r;
  }
  return done;
}

static int64_t
file_read (struct image *image, uint8_t *buf, uint32_t len, uint64_t offset)
{
  struct file_image *f = (struct file_image *) image;
  uint32_t done;
  int64_t n;

  if (!image->is_stream)
    return read_some (f, buf, len, offset);

  done = f->head_len - f->head_used;
  if (done > len)
    done = len;
  if (done > 0)
    memcpy (buf, f->head + f->head_used, done);
  f->head_used += done;
  n = read_some (f, buf + done, len - done, 0);
  if (n == -1)
    return -1;
  image->size += done + n;
  return done + n;
}

/* No data follows.  A file that was truncated meanwhile looks the same, and the
 * missing part must not count as zeroes.
 */
static int
last_hole (struct file_image *f)
{
  const off_t end = lseek (f->fd, 0, SEEK_END);

  if (end == -1)
    return fail_errno (&f->base);
  if ((uint64_t) end < f->base.size)
    return image_fail ("%s: became shorter while it was read", f->base.name);
  image_add_extent (&f->base, f->base.size, true);
  return 0;
}

static int
file_extents (struct image *image, uint64_t len, uint64_t offset)
{
  struct file_image *f = (struct file_image *) image;
  off_t data, hole;

  (void) len;
  data = lseek (f->fd, offset, SEEK_DATA);
  if (data == -1 && errno == ENXIO)
    return last_hole (f);
  hole = data == -1 ? -1 : lseek (f->fd, data, SEEK_HOLE);
  if (hole == -1) { /* not supported here: all is data */
    image_add_extent (image, image->size, false);
    return 0;
  }
  if ((uint64_t) data > offset)
    image_add_extent (image, data, true);
  image_add_extent (image, hole, false);
  return 0;
}

int64_t
image_file_head (struct image *image, uint8_t *buf, uint32_t len)
{
  struct file_image *f = (struct file_image *) image;
  int64_t n;

  n = read_some (f, buf, len, 0);
  if (n <= 0 || !image->is_stream)
    return n;
  f->head = check_memory (malloc (n));
  memcpy (f->head, buf, n);
  f->head_len = n;
  return n;
}

int
image_file_fd (const struct image *image)
{
  return ((const struct file_image *) image)->fd;
}

/*----------------------------------------------------------------------
 * Writing
 */

static int
file_write (struct image *image, const uint8_t *buf, uint32_t len,
            uint64_t offset)
{
  struct file_image *f = (struct file_image *) image;
  ssize_t r;

  while (len > 0) {
    if (image->is_stream) {
      /* A reader that sleeps must not delay the reaction to a signal. */
      if (!interrupt_poll (f->fd, POLLOUT))
        return image_fail ("interrupted");
      r = write (f->fd, buf, len);
    }
    else
      r = pwrite (f->fd, buf, len, offset);
    if (r == -1) {
      if (errno == EINTR || errno == EAGAIN)
        continue;
      return fail_errno (image);
    }
    buf += r;
    offset += r;
    len -= r;
  }
  return 0;
}

/* For a stream or a device; a new file is zero already. */
static int
file_zero (struct image *image, uint64_t len, uint64_t offset)
{
  struct file_image *f = (struct file_image *) image;
  uint64_t range[2] = { offset, len };

  /* The kernel discards if the device then reads as zeroes; else it writes
   * them.  The units are sectors.
   */
  if (f->is_device && ioctl (f->fd, BLKZEROOUT, range) == 0)
    return 0;
  while (len > 0) {
    const uint32_t n = len < sizeof zeroes ? len : sizeof zeroes;

    if (file_write (image, zeroes, n, offset) == -1)
      return -1;
    offset += n;
    len -= n;
  }
  return 0;
}

/*----------------------------------------------------------------------
 * Open and close
 */

static int
file_close (struct image *image, bool failed)
{
  struct file_image *f = (struct file_image *) image;
  int r = 0;

  if (f->fd != -1) {
    /* Pipes have nothing to sync. */
    if (!failed && new_file_sync (f->fd) == -1 && errno != EINVAL &&
        errno != EROFS && errno != ENOTSUP)
      r = fail_errno (image);
    if (close (f->fd) == -1 && !failed && r == 0)
      r = fail_errno (image);
  }
  if (f->is_new) {
    if (!failed && r == 0)
      r = new_file_commit (&f->new_file);
    new_file_free (&f->new_file);
  }
  free (f->head);
  image_free (image);
  return r;
}

static int
source_close (struct image *image, bool failed)
{
  (void) failed;
  return file_close (image, true);
}

static const struct image_ops source_ops = {
  .read = file_read,
  .extents = file_extents,
  .close = source_close,
};

static const struct image_ops target_ops = {
  .write = file_write,
  .zero = file_zero,
  .close = file_close,
};

static int
fail_kind (const char *file, mode_t mode)
{
  return S_ISDIR (mode)
    ? image_fail ("%s: Is a directory", file)
    : image_fail ("%s: is a %s, not a disk image: give a file, a block device, "
                  "or '-' and redirect standard input",
                  file,
                  S_ISFIFO (mode)     ? "FIFO"
                    : S_ISSOCK (mode) ? "socket"
                                      : "character device");
}

int
image_file_open (const char *file, struct stat *st)
{
  int fd;

  if (stat (file, st) == -1)
    return image_fail ("%s: %s", file, strerror (errno));
  if (!S_ISREG (st->st_mode) && !S_ISBLK (st->st_mode))
    return fail_kind (file, st->st_mode);
  /* O_NONBLOCK, because the name may be that of a FIFO by now. */
  fd = open (file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd == -1 || fstat (fd, st) == -1)
    image_fail ("%s: %s", file, strerror (errno));
  else if (!S_ISREG (st->st_mode) && !S_ISBLK (st->st_mode))
    fail_kind (file, st->st_mode);
  else if (fcntl (fd, F_SETFL, 0) == -1)
    image_fail ("%s: %s", file, strerror (errno));
  else
    return fd;
  if (fd != -1)
    close (fd);
  return -1;
}

static int
open_source (struct file_image *f, const char *file, bool is_stdin)
{
  struct stat st;
  off_t end;

  if (!is_stdin) {
    f->fd = image_file_open (file, &st);
    if (f->fd == -1)
      return -1;
  }
  else {
    f->fd = fcntl (STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    if (f->fd == -1 || fstat (f->fd, &st) == -1)
      return fail_errno (&f->base);
  }
  if (S_ISDIR (st.st_mode)) {
    errno = EISDIR;
    return fail_errno (&f->base);
  }
  if (is_stdin && isatty (f->fd))
    return image_fail ("standard input is a terminal, not a disk image: "
                       "redirect it");

  /* If stdin's file has been read from already, the rest is a stream. */
  f->base.is_stream = (!S_ISREG (st.st_mode) && !S_ISBLK (st.st_mode)) ||
    lseek (f->fd, 0, SEEK_CUR) != 0;
  if (f->base.is_stream)
    return 0;
  end = lseek (f->fd, 0, SEEK_END);
  if (end == -1)
    return fail_errno (&f->base);
  f->base.size = end;
  posix_fadvise (f->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  return 0;
}

struct image *
image_file_source (const char *file)
{
  const bool is_stdin = strcmp (file, "-") == 0;
  struct file_image *f = image_new (sizeof *f, &source_ops,
                                    is_stdin ? "standard input" : file);

  f->fd = -1;
  if (open_source (f, file, is_stdin) == -1) {
    source_close (&f->base, true);
    return NULL;
  }
  return &f->base;
}

static int
open_stdout (struct file_image *f)
{
  f->base.is_stream = true;
  f->fd = fcntl (STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (f->fd == -1)
    return fail_errno (&f->base);
  if (isatty (f->fd))
    return image_fail ("standard output is a terminal: redirect it");
  return 0;
}

/* Wait until another process reads the FIFO; a signal ends the wait.  (open
 * waits too, but begins again after a signal.)
 */
static int
open_fifo (struct file_image *f, const char *file)
{
  uint64_t waited_ms = 0;

  while ((f->fd = open (file, O_WRONLY | O_CLOEXEC | O_NONBLOCK)) == -1) {
    if (errno != ENXIO)
      return fail_errno (&f->base);
    interrupt_wait (READER_MS);
    if (interrupted ())
      return image_fail ("interrupted");
    waited_ms += READER_MS;
    if (waited_ms == READER_SAY_MS)
      note ("export: waiting: no process reads the FIFO %s", file);
  }
  return 0; /* it stays O_NONBLOCK: file_write polls */
}

/* An existing target that is not a regular file is written in place. */
static int
open_special (struct file_image *f, const char *file, const struct stat *st,
              uint64_t size)
{
  off_t end;

  if (S_ISFIFO (st->st_mode)) {
    f->base.is_stream = true;
    return open_fifo (f, file);
  }
  f->fd = open (file, O_WRONLY | O_CLOEXEC);
  if (f->fd == -1)
    return fail_errno (&f->base);
  f->is_device = S_ISBLK (st->st_mode);
  f->base.is_stream = !f->is_device;
  if (!f->is_device)
    return 0;
  end = lseek (f->fd, 0, SEEK_END);
  if (end == -1)
    return fail_errno (&f->base);
  if ((uint64_t) end < size)
    return image_fail ("%s: the device has %" PRIu64
                       " bytes, the volume %" PRIu64,
                       file, (uint64_t) end, size);
  f->base.granule = DEVICE_GRANULE;
  f->base.stays_partial = true;
  return 0;
}

static int
open_target (struct file_image *f, const char *file, uint64_t size)
{
  struct stat st;

  if (strcmp (file, "-") == 0)
    return open_stdout (f);
  if (stat (file, &st) == 0 && !S_ISREG (st.st_mode))
    return open_special (f, file, &st, size);
  f->is_new = true;
  f->fd = new_file_open (&f->new_file, file);
  if (f->fd == -1)
    return -1;
  f->base.starts_zero = true;
  f->base.granule = FILE_GRANULE;
  return ftruncate (f->fd, size) == -1 ? fail_errno (&f->base) : 0;
}

struct image *
image_file_target (const char *file, uint64_t size)
{
  struct file_image *f = image_new (sizeof *f, &target_ops,
                                    strcmp (file, "-") == 0 ? "standard output"
                                                            : file);

  f->fd = -1;
  if (open_target (f, file, size) == -1) {
    file_close (&f->base, true);
    return NULL;
  }
  return &f->base;
}
