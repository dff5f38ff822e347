/* SPDX-License-Identifier: BSD-3-Clause */

/* Files in one of QEMU's formats.
 *
 * QEMU's own code reads and writes them: qemu-nbd serves the file to us
 * over a private socket, and ends when we disconnect or are killed.  On top
 * of that, an image that is imported is first checked with qemu-img, with
 * all its backing files: QEMU reads what is missing from a truncated qcow2
 * or vmdk file as zeroes.
 */

#include <config.h>

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "child.h"
#include "image-qemu.h"
#include "image.h"
#include "new-file.h"
#include "tools.h"

/* "qemu-img check": the format has no check. */
#define CHECK_UNSUPPORTED 63

/* It knows of leaked clusters: harmless. */
#define CHECK_LEAKS 3

struct qemu_image {
  struct image base;
  struct image *nbd;            /* owned */
  struct child server;
  bool started;
  bool is_new;                  /* new_file is in use */
  struct new_file new_file;
};

/* The name as QEMU takes it for a file's, whatever is in it: names with a
 * colon are something else, unless they begin with a slash.  Owned by the
 * caller.
 */
static char *
qemu_name (const char *file)
{
  char *cwd = NULL, *name;

  if (image_is_uri (file) || *file == '/')
    name = strdup (file);
  else {
    cwd = getcwd (NULL, 0);
    if (cwd == NULL || asprintf (&name, "%s/%s", cwd, file) == -1)
      name = NULL;
    free (cwd);
  }
  if (name == NULL)
    exit (fail ("out of memory"));
  return name;
}

/*----------------------------------------------------------------------
 * qemu-img
 */

/* Run it to its end: 0 if it ran, whatever its status. */
static int
run_program (struct child *child, const char *const argv[])
{
  if (child_start (child, argv) == -1)
    return -1;
  if (child_wait (child) == -1) {
    child_end (child);
    return -1;
  }
  return 0;
}

/* "qemu-img info" of a file and what is behind it: an array (owned by the
 * caller).  'format' may be NULL.
 */
static json_t *
image_info (const char *file, const char *format)
{
  char *name = qemu_name (file), *text = NULL;
  const char *argv[8] = {
    "qemu-img", "info", "--output=json", "--backing-chain",
  };
  unsigned nr = 4;
  json_t *info = NULL;
  struct child child;

  if (format != NULL) {
    argv[nr++] = "-f";
    argv[nr++] = format;
  }
  argv[nr] = name;
  if (run_program (&child, argv) == 0) {
    if (child_exited (&child, 0) && (text = child_output (&child)) != NULL)
      info = json_loads (text, 0, NULL);
    if (!json_is_array (info) || json_array_size (info) == 0) {
      json_decref (info);
      info = NULL;
      child_fail (&child, file);
    }
    child_end (&child);
  }
  free (text);
  free (name);
  return info;
}

char *
image_qemu_detect (const char *file)
{
  json_t *info = image_info (file, NULL);
  char *format;

  if (info == NULL)
    return NULL;
  format = strdup (json_text (json_array_get (info, 0), "format"));
  if (format == NULL)
    exit (fail ("out of memory"));
  json_decref (info);
  return format;
}

static uint32_t
le32_at (const uint8_t *p)
{
  uint32_t i;

  memcpy (&i, p, sizeof i);
  return le32toh (i);
}

/* QEMU 7.2's own check of a vdi file does not look at the file's length. */
static int
check_vdi (const char *file)
{
  uint8_t header[512];
  const int fd = open (file, O_RDONLY | O_CLOEXEC);
  struct stat st;
  uint64_t need;
  bool ok = true;

  if (fd == -1)
    return 0;                   /* not a file, but QEMU can read it */
  if (fstat (fd, &st) == 0 && S_ISREG (st.st_mode) &&
      pread (fd, header, sizeof header, 0) == (ssize_t) sizeof header) {
    need = le32_at (header + 0x158) +
      (uint64_t) le32_at (header + 0x178) * le32_at (header + 0x184);
    ok = (uint64_t) st.st_size >= need;
  }
  close (fd);
  return ok ? 0 : image_fail ("%s: is damaged: the file is shorter than its "
                              "header says", file);
}

static int
check_one (const char *file, const char *format)
{
  char *name = qemu_name (file);
  const char *const argv[] = {
    "qemu-img", "check", "--output=json", "-f", format, name, NULL,
  };
  char *text = NULL;
  json_t *found = NULL;
  struct child child;
  int r = -1;

  if (run_program (&child, argv) == 0) {
    text = child_output (&child);
    if (text != NULL)
      found = json_loads (text, 0, NULL);
    if (child_exited (&child, 0) || child_exited (&child, CHECK_LEAKS) ||
        child_exited (&child, CHECK_UNSUPPORTED))
      r = 0;
    else if (json_size (found, "corruptions") > 0)
      image_fail ("%s: is damaged: 'qemu-img check' finds %" PRIu64
                  " errors", file, json_size (found, "corruptions"));
    else
      child_fail (&child, file);
    child_end (&child);
  }
  if (r == 0 && strcmp (format, "vdi") == 0)
    r = check_vdi (file);
  json_decref (found);
  free (text);
  free (name);
  return r;
}

/* Check the image and its backing files. */
static int
check_chain (const char *file, const char *format)
{
  json_t *info = image_info (file, format), *entry;
  size_t i;
  int r = 0;

  if (info == NULL)
    return -1;
  json_array_foreach (info, i, entry) {
    format = json_text (entry, "format");
    r = strcmp (format, "raw") == 0 ? 0 :
      check_one (i == 0 ? file : json_text (entry, "filename"), format);
    if (r == -1)
      break;
  }
  json_decref (info);
  return r;
}

/* Make an empty image in a file that exists; 'name' is for messages. */
static int
create_image (const char *name, const char *file, const char *format,
              uint64_t size)
{
  const bool is_vpc = strcmp (format, "vpc") == 0;
  char bytes[32];
  const char *argv[10] = { "qemu-img", "create", "-q", "-f", format };
  unsigned nr = 5;
  struct child child;
  int r;

  /* Else the size is rounded up to one that has a CHS geometry. */
  if (is_vpc) {
    argv[nr++] = "-o";
    argv[nr++] = "force_size=on";
  }
  snprintf (bytes, sizeof bytes, "%" PRIu64, size);
  argv[nr++] = file;
  argv[nr] = bytes;
  if (run_program (&child, argv) == -1)
    return -1;
  r = child_exited (&child, 0) ? 0 : child_fail (&child, name);
  child_end (&child);
  return r;
}

/*----------------------------------------------------------------------
 * The image: what the server serves
 */

static struct image *
nbd_of (struct image *image)
{
  return ((struct qemu_image *) image)->nbd;
}

static int64_t
qemu_read (struct image *image, uint8_t *buf, uint32_t len, uint64_t offset)
{
  struct image *nbd = nbd_of (image);

  return nbd->ops->read (nbd, buf, len, offset);
}

static int
qemu_write (struct image *image, const uint8_t *buf, uint32_t len,
            uint64_t offset)
{
  struct image *nbd = nbd_of (image);

  return nbd->ops->write (nbd, buf, len, offset);
}

static int
qemu_extents (struct image *image, uint64_t len, uint64_t offset)
{
  struct image *nbd = nbd_of (image);
  uint64_t end = offset;
  bool hole;

  /* What is known there of this range; it may be less. */
  (void) len;
  if (image_extent (nbd, offset, &end, &hole) == -1)
    return -1;
  image_add_extent (image, end, hole);
  return 0;
}

static void
qemu_cancel (struct image *image)
{
  struct image *nbd = nbd_of (image);

  nbd->ops->cancel (nbd);
}

/* It ends by itself once we have disconnected, after it has written what
 * is still to be written.
 */
static int
end_server (struct qemu_image *q)
{
  if (child_wait (&q->server) == -1)
    return -1;
  return child_exited (&q->server, 0) ? 0 : child_fail (&q->server,
                                                        q->base.name);
}

static int
sync_file (const char *name, const char *file)
{
  const int fd = open (file, O_RDWR | O_CLOEXEC);
  int r = 0;

  if (fd == -1 || fsync (fd) == -1)
    r = image_fail ("%s: %s", name, strerror (errno));
  if (fd != -1)
    close (fd);
  return r;
}

static int
qemu_close (struct image *image, bool failed)
{
  struct qemu_image *q = (struct qemu_image *) image;
  int r = image_close (q->nbd, failed);

  if (!failed && r == 0)
    r = end_server (q);
  if (q->started)
    child_end (&q->server);
  if (q->is_new) {
    if (!failed && r == 0)
      r = sync_file (image->name, q->new_file.temp);
    if (!failed && r == 0)
      r = new_file_commit (&q->new_file);
    new_file_free (&q->new_file);
  }
  image_free (image);
  return r;
}

static int
source_close (struct image *image, bool failed)
{
  (void) failed;
  return qemu_close (image, true);
}

/* A new image has zeroes already: no zero. */
static const struct image_ops source_ops = {
  .read = qemu_read,
  .extents = qemu_extents,
  .cancel = qemu_cancel,
  .close = source_close,
};

static const struct image_ops target_ops = {
  .write = qemu_write,
  .cancel = qemu_cancel,
  .close = qemu_close,
};

/* Start the server and connect. */
static int
open_nbd (struct qemu_image *q, const char *const argv[], bool writable,
          uint64_t size)
{
  const int fd = child_start_server (&q->server, argv);

  if (fd == -1)
    return -1;
  q->started = true;
  q->nbd = writable ? image_nbd_target (NULL, fd, q->base.name, size)
                    : image_nbd_source (NULL, fd, q->base.name);
  if (q->nbd == NULL)
    /* It knows better why. */
    return child_wait (&q->server) == -1 ? -1 :
      child_fail (&q->server, q->base.name);
  q->base.size = q->nbd->size;
  q->base.align = q->nbd->align;
  q->base.granule = q->nbd->granule;
  q->base.in_flight = q->nbd->in_flight;
  return 0;
}

struct image *
image_qemu_source (const char *file, const char *format)
{
  struct qemu_image *q = image_new (sizeof *q, &source_ops, file);
  char *name = qemu_name (file);
  const char *const argv[] = {
    "qemu-nbd", "--read-only", "--format", format, name, NULL,
  };
  int r;

  r = check_chain (file, format);
  if (r == 0)
    r = open_nbd (q, argv, false, 0);
  free (name);
  if (r == 0)
    return &q->base;
  qemu_close (&q->base, true);
  return NULL;
}

static int
open_target (struct qemu_image *q, const char *file, const char *format,
             uint64_t size)
{
  const char *argv[6] = { "qemu-nbd", "--discard=unmap", "--format", format };
  char *name;
  int fd, r;

  q->is_new = true;
  fd = new_file_open (&q->new_file, file);
  if (fd == -1)
    return -1;
  close (fd);
  name = qemu_name (q->new_file.temp);
  argv[4] = name;
  r = create_image (file, name, format, size);
  if (r == 0)
    r = open_nbd (q, argv, true, size);
  free (name);
  q->base.starts_zero = true;
  return r;
}

struct image *
image_qemu_target (const char *file, const char *format, uint64_t size)
{
  struct qemu_image *q = image_new (sizeof *q, &target_ops, file);

  if (open_target (q, file, format, size) == 0)
    return &q->base;
  qemu_close (&q->base, true);
  return NULL;
}
