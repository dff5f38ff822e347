/* SPDX-License-Identifier: BSD-3-Clause */

/* Open the kind of image that the user's argument names. */

#include <config.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "image-format.h"
#include "image.h"
#include "tools.h"

bool
image_is_uri (const char *file)
{
  static const char *const schemes[] = {
    "nbd://",       "nbds://",      "nbd+unix://",
    "nbds+unix://", "nbd+vsock://", "nbds+vsock://",
  };
  size_t i;

  for (i = 0; i < sizeof schemes / sizeof schemes[0]; ++i)
    if (strncmp (file, schemes[i], strlen (schemes[i])) == 0)
      return true;
  return false;
}

/* A stream is read as raw.  Refuse one that begins like another format: it is
 * probably a mistake.
 */
static int
check_stream (struct image *image)
{
  uint8_t head[FORMAT_HEAD_LEN];
  const int64_t len = image_file_head (image, head, sizeof head);
  const char *sign;

  if (len == -1)
    return -1;
  sign = image_format_sign (head, len);
  return sign == NULL
    ? 0
    : image_fail (
        "%s: is a %s file, and a stream is read as raw: name the file, "
        "decompressed, or give --format raw to import its bytes as "
        "they are",
        image->name, sign);
}

/* QEMU names Microsoft's older format after the first program that used it. */
static const char *
qemu_format (const char *format)
{
  return format != NULL && strcmp (format, "vhd") == 0 ? "vpc" : format;
}

static bool
is_raw (const char *format)
{
  return format == NULL || strcmp (format, "raw") == 0;
}

void
image_check_source (const struct options *opts, const char *file,
                    const char *format)
{
  if (is_raw (format))
    return;
  if (image_format_check (qemu_format (format)) == -1)
    usage_error (opts, "%s", image_error ());
  if (strcmp (file, "-") == 0)
    usage_error (opts, "standard input is read as raw, not %s: name the file",
                 format);
}

/* The name of a new file decides its format, as for import: QEMU and import
 * would not accept a raw file named .qcow2.
 */
static const char *
target_format (const char *file)
{
  struct stat st;

  if (image_is_uri (file) || strcmp (file, "-") == 0 ||
      (stat (file, &st) == 0 && !S_ISREG (st.st_mode)))
    return NULL;
  return image_format_of_name (file);
}

void
image_check_target (const struct options *opts, const char *file,
                    const char *format)
{
  if (format == NULL)
    format = target_format (file);
  if (is_raw (format))
    return;
  if (image_format_check_written (qemu_format (format)) == -1)
    usage_error (opts, "%s", image_error ());
  if (strcmp (file, "-") == 0)
    usage_error (opts,
                 "standard output is written as raw, not %s: name a "
                 "file",
                 format);
  if (image_is_uri (file))
    usage_error (opts, "%s: is written as raw, not %s: leave --format out",
                 file, format);
}

struct image *
image_open_source (const char *file, const char *format, bool allow_backing,
                   char **detected)
{
  struct image *image;
  bool is_unreadable;
  int r;

  *detected = NULL;
  format = qemu_format (format);
  if (!is_raw (format))
    return image_qemu_source (file, format, allow_backing, &is_unreadable);
  if (image_is_uri (file))
    return image_nbd_source (file, -1, file);
  image = image_file_source (file);
  if (image == NULL || format != NULL)
    return image;
  r = image->is_stream || strcmp (file, "-") == 0
    ? check_stream (image)
    : image_format_detect (file, image_file_fd (image), detected);
  if (r == 0 && *detected == NULL)
    return image;
  image_close (image, true);
  if (r == -1)
    return NULL;
  image = image_qemu_source (file, *detected, allow_backing, &is_unreadable);
  if (image != NULL)
    return image;
  free (*detected);
  *detected = NULL;
  if (is_unreadable)
    image_fail ("%s; with --format raw its bytes are imported as they are",
                image_error ());
  return NULL;
}

/* Is 'st' one of the files of the pool?  Overwriting it would destroy all
 * volumes.
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
check_target (const char *file, const char *format, const char *pool)
{
  struct stat st;

  if (image_is_uri (file) || strcmp (file, "-") == 0 || stat (file, &st) == -1)
    return 0;
  if (S_ISDIR (st.st_mode))
    return image_fail ("%s: Is a directory", file);
  if (is_pool_file (pool, &st))
    return image_fail ("%s: is a file of the pool itself", file);
  if (!is_raw (format) && !S_ISREG (st.st_mode))
    return image_fail ("%s: is not a regular file, so it is written as raw, "
                       "not %s: leave --format out",
                       file, format);
  return 0;
}

struct image *
image_open_target (const char *file, const char *format, const char *pool,
                   uint64_t size)
{
  format = format ? qemu_format (format) : target_format (file);
  if (check_target (file, format, pool) == -1)
    return NULL;
  if (image_is_uri (file))
    return image_nbd_target (file, -1, file, size);
  if (!is_raw (format))
    return image_qemu_target (file, format, size);
  return image_file_target (file, size);
}
