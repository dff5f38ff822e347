/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"
#include "tools.h"

#define ERROR_MAX 1024

/* The length of one query for extents. */
#define WINDOW_LEN (UINT64_C (1) << 30)

static __thread char error_text[ERROR_MAX];

const char *
image_error (void)
{
  return error_text;
}

int
image_fail (const char *fmt, ...)
{
  char text[ERROR_MAX];
  va_list ap;
  char *p;

  /* The old text may be among the arguments. */
  va_start (ap, fmt);
  vsnprintf (text, sizeof text, fmt, ap);
  va_end (ap);
  /* Names may come from an image: make the text one line without control
   * characters for a terminal.
   */
  for (p = text; *p != '\0'; ++p)
    if ((unsigned char) *p < ' ' || *p == 0x7f)
      *p = '?';
  memcpy (error_text, text, sizeof text);
  return -1;
}

void *
image_new (size_t bytes, const struct image_ops *ops, const char *name)
{
  struct image *image = check_memory (calloc (1, bytes));

  image->name = copy_string (name);
  image->ops = ops;
  image->align = 4096;
  image->in_flight = 4;
  return image;
}

void
image_free (struct image *image)
{
  free (image->name);
  free (image);
}

int
image_add_extent (struct image *image, uint64_t end, bool hole)
{
  struct image_extent *last = NULL;

  if (image->nr_extents > 0)
    last = &image->extents[image->nr_extents - 1];
  if (last != NULL && last->hole == hole)
    last->end = end;
  else
    image->extents[image->nr_extents++] = (struct image_extent) {
      .end = end, .hole = hole
    };
  return image->nr_extents == IMAGE_EXTENTS_MAX;
}

int
image_extent (struct image *image, uint64_t offset, uint64_t *end, bool *hole)
{
  const uint64_t left = image->size - offset;
  const struct image_extent *e;

  while (image->next_extent < image->nr_extents &&
         image->extents[image->next_extent].end <= offset)
    image->next_extent++;
  if (image->next_extent == image->nr_extents) {
    image->next_extent = image->nr_extents = 0;
    if (image->ops->extents == NULL)
      image_add_extent (image, image->size, false);
    else if (image->ops->extents (image, left < WINDOW_LEN ? left : WINDOW_LEN,
                                  offset) == -1)
      return -1;
    /* Check it, since it comes from the pool's server or an NBD server. */
    if (image->nr_extents == 0 || image->extents[0].end <= offset)
      return image_fail ("%s: does not say where its holes are", image->name);
  }
  e = &image->extents[image->next_extent];
  *end = e->end < image->size ? e->end : image->size;
  *hole = e->hole;
  return 0;
}

int
image_close (struct image *image, bool failed)
{
  return image == NULL ? 0 : image->ops->close (image, failed);
}
