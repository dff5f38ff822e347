/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image.h"
#include "interrupt.h"
#include "tools.h"

/* A stream's beginning, for the probe. */
#define HEAD_LEN 4096

int
input_open (struct input *input, const char *file)
{
  const bool is_stdin = strcmp (file, "-") == 0;
  struct stat st;
  off_t end;

  memset (input, 0, sizeof *input);
  input->name = is_stdin ? "standard input" : file;
  input->fd = is_stdin ? fcntl (STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                       : open (file, O_RDONLY | O_CLOEXEC);
  if (input->fd == -1 || fstat (input->fd, &st) == -1)
    goto fail;
  if (S_ISDIR (st.st_mode)) {
    errno = EISDIR;
    goto fail;
  }
  if (is_stdin && isatty (input->fd)) {
    fail ("import: standard input is a terminal: no disk image");
    return -1;
  }

  /* A file that stdin has read from already counts from there: a stream. */
  input->is_stream = (!S_ISREG (st.st_mode) && !S_ISBLK (st.st_mode)) ||
    lseek (input->fd, 0, SEEK_CUR) != 0;
  if (input->is_stream)
    return 0;
  end = lseek (input->fd, 0, SEEK_END);
  if (end == -1)
    goto fail;
  input->size = end;
  input->is_sparse = true;      /* until SEEK_DATA fails */
  posix_fadvise (input->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  return 0;

 fail:
  fail ("import: %s: %s", input->name, strerror (errno));
  return -1;
}

/* Read as much as there is, up to 'len'. */
static int64_t
read_stream (struct input *input, uint8_t *buf, uint32_t len)
{
  uint32_t done = 0;
  ssize_t r;

  while (done < len) {
    if (!interrupt_poll (input->fd, POLLIN))
      return -1;                /* the caller knows about signals */
    r = read (input->fd, buf + done, len - done);
    if (r == -1 && (errno == EINTR || errno == EAGAIN))
      continue;
    if (r == -1) {
      fail ("import: %s: %s", input->name, strerror (errno));
      return -1;
    }
    if (r == 0)
      break;
    done += r;
  }
  return done;
}

int64_t
input_read (struct input *input, uint8_t *buf, uint32_t len, uint64_t offset)
{
  uint32_t done = 0;
  int64_t n;
  ssize_t r;

  if (input->is_stream) {
    done = input->head_len - input->head_used;
    if (done > len)
      done = len;
    if (done > 0)
      memcpy (buf, input->head + input->head_used, done);
    input->head_used += done;
    n = read_stream (input, buf + done, len - done);
    if (n == -1)
      return -1;
    input->size += done + n;
    return done + n;
  }

  while (done < len) {
    r = pread (input->fd, buf + done, len - done, offset + done);
    if (r == -1 && errno == EINTR)
      continue;
    if (r == -1) {
      fail ("import: %s: %s", input->name, strerror (errno));
      return -1;
    }
    if (r == 0)
      break;
    done += r;
  }
  return done;
}

bool
input_is_hole (struct input *input, uint64_t offset, uint32_t len)
{
  off_t data;

  if (!input->is_sparse || offset < input->data_end)
    return false;
  data = lseek (input->fd, offset, SEEK_DATA);
  if (data == -1 && errno != ENXIO) {
    input->is_sparse = false;
    return false;
  }
  if (data == -1 || (uint64_t) data >= offset + len)
    return true;
  /* Ask again behind this data only. */
  data = lseek (input->fd, data, SEEK_HOLE);
  if (data != -1)
    input->data_end = data;
  return false;
}

static const struct magic {
  const char *name;
  uint32_t offset;
  uint32_t len;
  const char *bytes;
  bool is_compressed;
} magics[] = {
  { "qcow2", 0, 4, "QFI\xfb", false },
  { "qed", 0, 4, "QED\0", false },
  { "vmdk", 0, 4, "KDMV", false },
  { "vmdk", 0, 4, "COWD", false },
  { "vmdk", 0, 21, "# Disk DescriptorFile", false },
  { "vhdx", 0, 8, "vhdxfile", false },
  { "vpc", 0, 8, "conectix", false },
  { "vdi", 64, 4, "\x7f\x10\xda\xbe", false },
  { "parallels", 0, 16, "WithoutFreeSpace", false },
  { "parallels", 0, 16, "WithouFreSpacExt", false },
  { "bochs", 0, 26, "Bochs Virtual HD Image\0\0\0\0", false },
  { "gzip", 0, 3, "\x1f\x8b\x08", true },
  { "xz", 0, 6, "\xfd" "7zXZ\0", true },
  { "zstd", 0, 4, "\x28\xb5\x2f\xfd", true },
  { "bzip2", 0, 3, "BZh", true },
  { "lz4", 0, 4, "\x04\x22\x4d\x18", true },
};

/* What it is, if it is none of raw, else NULL.  Guests write the first
 * bytes of a raw disk, so this is a guess; but they rarely write these.
 */
static const char *
probe (struct input *input, bool *is_compressed)
{
  uint8_t buf[HEAD_LEN];
  int64_t len;
  size_t i;

  if (input->is_stream) {
    len = read_stream (input, buf, sizeof buf);
    if (len <= 0)
      return NULL;              /* and so will the first input_read */
    input->head = malloc (len);
    if (input->head == NULL)
      exit (fail ("out of memory"));
    memcpy (input->head, buf, len);
    input->head_len = len;
  }
  else {
    len = input_read (input, buf, sizeof buf, 0);
    if (len == -1)
      return NULL;
  }

  for (i = 0; i < sizeof magics / sizeof magics[0]; ++i) {
    const struct magic *m = &magics[i];

    if (len >= m->offset + m->len &&
        memcmp (buf + m->offset, m->bytes, m->len) == 0) {
      *is_compressed = m->is_compressed;
      return m->name;
    }
  }
  return NULL;
}

int
input_check_format (struct input *input, const char *format)
{
  bool is_compressed = false;
  const char *found;

  if (format != NULL && strcmp (format, "raw") == 0)
    return 0;
  if (format != NULL) {
    fail ("import: format '%s': this version reads raw images only: convert "
          "it with 'qemu-img convert -O raw' first", format);
    return -1;
  }
  found = probe (input, &is_compressed);
  if (found == NULL)
    return 0;
  if (is_compressed)
    fail ("import: %s: is a %s file: decompress it first, or give --format "
          "raw to import its bytes as they are", input->name, found);
  else
    fail ("import: %s: is a %s image, and this version reads raw images only: "
          "convert it with 'qemu-img convert -O raw' first, or give --format "
          "raw to import its bytes as they are", input->name, found);
  return -1;
}

void
input_close (struct input *input)
{
  if (input->fd != -1)
    close (input->fd);
  free (input->head);
}
