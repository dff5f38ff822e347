/* SPDX-License-Identifier: BSD-3-Clause */

/* A volume of the pool, opened here or through its server. */

#include <config.h>

#include "copy.h"
#include "image.h"

struct volume_image {
  struct image base;
  struct nbdedup_handle *remote; /* not owned; outlives the image */
};

static int
fail_engine (void)
{
  return image_fail ("%s", nbdedup_error ());
}

static struct nbdedup_handle *
remote_of (struct image *image)
{
  return ((struct volume_image *) image)->remote;
}

static int64_t
volume_read (struct image *image, uint8_t *buf, uint32_t len, uint64_t offset)
{
  if (nbdedup_handle_read (remote_of (image), buf, len, offset) == -1)
    return fail_engine ();
  return len;
}

static int
volume_write (struct image *image, const uint8_t *buf, uint32_t len,
              uint64_t offset)
{
  if (nbdedup_handle_write (remote_of (image), buf, len, offset) == -1)
    return fail_engine ();
  return 0;
}

static int
on_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  return image_add_extent (opaque, offset + len, hole);
}

static int
volume_extents (struct image *image, uint64_t len, uint64_t offset)
{
  if (nbdedup_handle_extents (remote_of (image), len, offset, on_extent,
                              image) == -1)
    return fail_engine ();
  return 0;
}

static int
volume_close (struct image *image, bool failed)
{
  int r = 0;

  if (!failed && nbdedup_handle_flush (remote_of (image)) == -1)
    r = fail_engine ();
  image_free (image);
  return r;
}

/* Only new volumes are targets, so there is no zero function. */
static const struct image_ops volume_ops = {
  .read = volume_read,
  .write = volume_write,
  .extents = volume_extents,
  .close = volume_close,
};

struct image *
image_volume_new (struct nbdedup_handle *remote, const char *name)
{
  struct volume_image *v = image_new (sizeof *v, &volume_ops, name);

  v->remote = remote;
  v->base.size = nbdedup_handle_size (remote);
  v->base.starts_zero = true;
  v->base.align = nbdedup_handle_block_size (remote);
  /* The engine finds blocks of zeroes itself: skip only whole buffers. */
  v->base.granule = COPY_LEN;
  return &v->base;
}
