/* SPDX-License-Identifier: BSD-3-Clause */

/* A target of copy_images that stores nothing: it offers the content of damaged
 * records to the pool.
 */

#include <config.h>

#include "image.h"

struct finder_image {
  struct image base;
  struct nbdedup_finder *finder; /* not owned, both */
  struct nbdedup_client *client;
};

static int
offer (void *opaque, uint64_t address, const void *content, uint32_t len)
{
  struct finder_image *f = opaque;

  return nbdedup_client_repair (f->client, address, content, len) == -1 ? -1
                                                                        : 0;
}

static int
finder_write (struct image *image, const uint8_t *buf, uint32_t len,
              uint64_t offset)
{
  struct finder_image *f = (struct finder_image *) image;

  (void) offset; /* a multiple of this image's 'align' */
  if (nbdedup_finder_look (f->finder, buf, len, offer, f) == -1)
    return image_fail ("%s", nbdedup_error ());
  return 0;
}

static int
finder_close (struct image *image, bool failed)
{
  (void) failed;
  image_free (image);
  return 0;
}

static const struct image_ops ops = {
  .write = finder_write,
  .close = finder_close,
};

struct image *
image_finder_new (struct nbdedup_finder *finder, struct nbdedup_client *client)
{
  struct finder_image *f = image_new (sizeof *f, &ops, "scrub");

  f->finder = finder;
  f->client = client;
  f->base.starts_zero = true; /* holes need not be written */
  f->base.align = nbdedup_finder_block_size (finder);
  return &f->base;
}
