/* SPDX-License-Identifier: BSD-3-Clause */

/* A target of copy_images that stores nothing: the engine counts the data. */

#include <config.h>

#include <errno.h>
#include <unistd.h>

#include "image.h"
#include "tools.h"

#define IN_FLIGHT_MAX 16 /* that copy_images has threads for */

struct estimate_image {
  struct image base;
  struct nbdedup_estimate *engine; /* not owned */
};

/* copy_images cuts at multiples of 1 MiB, and of this target's 'align', so the
 * engine gets whole blocks of every size.
 */
static int
estimate_write (struct image *image, const uint8_t *buf, uint32_t len,
                uint64_t offset)
{
  struct estimate_image *e = (struct estimate_image *) image;

  if (nbdedup_estimate_add (e->engine, buf, len, offset) == 0)
    return 0;
  if (errno == ENOSPC)
    return image_fail ("%s: give more with --memory, or leave --exact out",
                       nbdedup_error ());
  return image_fail ("%s", nbdedup_error ());
}

static int
estimate_close (struct image *image, bool failed)
{
  (void) failed;
  image_free (image);
  return 0;
}

static const struct image_ops ops = {
  .write = estimate_write,
  .close = estimate_close,
};

struct image *
image_estimate_new (struct nbdedup_estimate *engine,
                    const struct nbdedup_estimate_settings *settings)
{
  struct estimate_image *e = image_new (sizeof *e, &ops, "estimate");
  const long cpus = sysconf (_SC_NPROCESSORS_ONLN);
  size_t i;

  e->engine = engine;
  e->base.starts_zero = true; /* holes need not be written */
  for (i = 0; i < settings->nr_block_sizes; ++i)
    if (e->base.align < settings->block_sizes[i])
      e->base.align = settings->block_sizes[i];
  /* One thread waits for the disk while another one counts. */
  if (cpus > 0 && cpus * 2 > e->base.in_flight)
    e->base.in_flight = cpus * 2 < IN_FLIGHT_MAX ? cpus * 2 : IN_FLIGHT_MAX;
  return &e->base;
}
