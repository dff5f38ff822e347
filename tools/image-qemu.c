/* SPDX-License-Identifier: BSD-3-Clause */

/* Files in one of QEMU's formats.
 *
 * QEMU's own code reads and writes them: qemu-nbd serves the file to this
 * process over a private socket, and ends when the process disconnects or is
 * killed.  Before an import qemu-img checks the image with all its backing
 * files, because QEMU reads the missing part of a truncated qcow2 or vmdk file
 * as zeroes.  All these programs are confined (confine.h).
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child.h"
#include "confine.h"
#include "image-chain.h"
#include "image.h"
#include "new-file.h"
#include "tools.h"

/* To write, QEMU needs some MiB, and a table of the disk's blocks. */
#define TARGET_MEMORY (UINT64_C (2) << 30)

struct qemu_image {
  struct image base;
  struct image *nbd; /* owned */
  struct child server;
  bool started;
  struct chain *chain; /* owned; of a source */

  /* A target's. */
  struct confine *confine; /* owned */
  int fd;                  /* owned; the new file; -1: none */
  bool is_new;             /* new_file is in use */
  struct new_file new_file;
};

/* A name that QEMU always takes for a file's: one with a colon would mean a
 * protocol, unless it begins with a slash.  Owned by the caller.
 */
static char *
qemu_name (const char *file)
{
  char *cwd, *name;

  if (*file == '/')
    return copy_string (file);
  cwd = check_memory (getcwd (NULL, 0));
  name = make_string ("%s/%s", cwd, file);
  free (cwd);
  return name;
}

/* A program failed.  The user knows nothing of the file under which a target
 * is made, and the target's name stands in the message already.
 */
static int
fail_child (struct qemu_image *q, struct child *child)
{
  char *text, *temp, *found;
  size_t len;

  child_fail (child, q->base.name);
  if (!q->is_new)
    return -1;
  text = copy_string (image_error ());
  temp = qemu_name (q->new_file.temp);
  len = strlen (temp);
  found = strstr (text, temp);
  if (found != NULL && strncmp (found + len, ": ", 2) == 0)
    image_fail ("%.*s%s", (int) (found - text), text, found + len + 2);
  else if (found != NULL)
    image_fail ("%.*s%s%s", (int) (found - text), text, q->base.name,
                found + len);
  free (temp);
  free (text);
  return -1;
}

/* Make an empty image in a file that exists. */
static int
create_image (struct qemu_image *q, const char *file, const char *format,
              uint64_t size)
{
  const bool is_vpc = strcmp (format, "vpc") == 0;
  char bytes[32];
  const char *argv[10] = { "qemu-img", "create", "-q", "-f", format };
  unsigned nr = 5;
  struct child child;
  int r = -1;

  /* Otherwise QEMU rounds the size up to one that has a CHS geometry. */
  if (is_vpc) {
    argv[nr++] = "-o";
    argv[nr++] = "force_size=on";
  }
  snprintf (bytes, sizeof bytes, "%" PRIu64, size);
  argv[nr++] = file;
  argv[nr] = bytes;
  if (child_start_confined (&child, argv, q->confine, -1) == -1)
    return image_fail ("%s: %s", q->base.name, image_error ());
  if (child_wait (&child) == 0)
    r = child_exited (&child, 0) ? 0 : fail_child (q, &child);
  child_end (&child);
  return r;
}

/*----------------------------------------------------------------------
 * The image: the server's export
 */

static struct image *
nbd_of (struct image *image)
{
  return ((struct qemu_image *) image)->nbd;
}

/* A request failed: report it if the server has used up its CPU time. */
static int
fail_request (struct image *image)
{
  const struct qemu_image *q = (struct qemu_image *) image;

  return child_overran (&q->server)
    ? child_fail_overrun (&q->server, image->name)
    : -1;
}

static int64_t
qemu_read (struct image *image, uint8_t *buf, uint32_t len, uint64_t offset)
{
  struct image *nbd = nbd_of (image);
  const int64_t n = nbd->ops->read (nbd, buf, len, offset);

  return n == -1 ? fail_request (image) : n;
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

  /* Add the first extent of this range; it may be shorter. */
  (void) len;
  if (image_extent (nbd, offset, &end, &hole) == -1)
    return fail_request (image);
  image_add_extent (image, end, hole);
  return 0;
}

static void
qemu_cancel (struct image *image)
{
  struct image *nbd = nbd_of (image);

  nbd->ops->cancel (nbd);
}

/* Wait for the server, which ends by itself after the disconnect, once it has
 * written all data.
 */
static int
end_server (struct qemu_image *q)
{
  if (child_wait (&q->server) == -1)
    return -1;
  return child_exited (&q->server, 0) ? 0 : fail_child (q, &q->server);
}

static int
sync_file (const char *name, const char *file)
{
  const int fd = open (file, O_RDWR | O_CLOEXEC);
  int r = 0;

  if (fd == -1 || new_file_sync (fd) == -1)
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
  chain_close (q->chain);
  confine_free (q->confine);
  if (q->fd != -1)
    close (q->fd);
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

/* Fail with the server's own reason. */
static int
server_failed (struct qemu_image *q)
{
  if (child_wait (&q->server) == -1)
    return -1;
  return q->chain != NULL ? chain_server_failed (q->chain, &q->server)
                          : fail_child (q, &q->server);
}

/* The server has been started, and 'fd' is connected to it. */
static int
open_nbd (struct qemu_image *q, int fd, uint64_t size)
{
  if (fd == -1)
    return -1;
  q->started = true;
  q->nbd = q->is_new ? image_nbd_target (NULL, fd, q->base.name, size)
                     : image_nbd_source (NULL, fd, q->base.name);
  if (q->nbd == NULL)
    return server_failed (q);
  q->base.size = q->nbd->size;
  q->base.align = q->nbd->align;
  q->base.granule = q->nbd->granule;
  q->base.in_flight = q->nbd->in_flight;
  return 0;
}

static struct qemu_image *
qemu_image_new (const struct image_ops *ops, const char *file)
{
  struct qemu_image *q = image_new (sizeof *q, ops, file);

  q->fd = -1;
  return q;
}

struct image *
image_qemu_source (const char *file, const char *format, bool allow_backing,
                   bool *is_unreadable)
{
  struct qemu_image *q = qemu_image_new (&source_ops, file);

  q->chain = chain_open (file, format, allow_backing, is_unreadable);
  if (q->chain != NULL && chain_check (q->chain) == 0 &&
      open_nbd (q, chain_serve (q->chain, &q->server), 0) == 0)
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
  int r;

  q->is_new = true;
  q->fd = new_file_open (&q->new_file, file);
  if (q->fd == -1)
    return -1;
  name = qemu_name (q->new_file.temp);
  argv[4] = name;
  q->confine = confine_new ();
  confine_file (q->confine, name, q->fd, true);
  confine_limits (q->confine, TARGET_MEMORY, 0);
  r = create_image (q, name, format, size);
  if (r == 0)
    r = open_nbd (q, child_start_server (&q->server, argv, q->confine, -1),
                  size);
  free (name);
  q->base.starts_zero = true;
  return r;
}

struct image *
image_qemu_target (const char *file, const char *format, uint64_t size)
{
  struct qemu_image *q = qemu_image_new (&target_ops, file);

  if (open_target (q, file, format, size) == 0)
    return &q->base;
  qemu_close (&q->base, true);
  return NULL;
}
