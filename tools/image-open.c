/* SPDX-License-Identifier: BSD-3-Clause */

/* From what the user named to the kind of image that it is. */

#include <config.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "image-qemu.h"
#include "image.h"
#include "tools.h"

/* Where the signs of all formats are. */
#define HEAD_LEN 4096

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

bool
image_is_uri (const char *file)
{
  static const char *const schemes[] = {
    "nbd://", "nbds://", "nbd+unix://", "nbds+unix://", "nbd+vsock://",
    "nbds+vsock://",
  };
  size_t i;

  for (i = 0; i < sizeof schemes / sizeof schemes[0]; ++i)
    if (strncmp (file, schemes[i], strlen (schemes[i])) == 0)
      return true;
  return false;
}

/* What a file's beginning looks like, or NULL: raw. */
static const struct magic *
find_magic (const uint8_t *head, int64_t len)
{
  size_t i;

  for (i = 0; i < sizeof magics / sizeof magics[0]; ++i) {
    const struct magic *m = &magics[i];

    if (len >= m->offset + m->len &&
        memcmp (head + m->offset, m->bytes, m->len) == 0)
      return m;
  }
  return NULL;
}

/* The format of a raw image's content, as QEMU sees it: 1 and *format
 * (owned by the caller), 0: raw, -1.  QEMU is asked only about what is
 * probably not raw, so raw images do without it.
 */
static int
detect (struct image *image, const char *file, char **format)
{
  uint8_t head[HEAD_LEN];
  const int64_t len = image_file_head (image, head, sizeof head);
  const struct magic *m;

  if (len == -1)
    return -1;
  m = find_magic (head, len);
  if (m == NULL)
    return 0;
  if (m->is_compressed)
    return image_fail ("%s: is a %s file: decompress it first, or give "
                       "--format raw to import its bytes as they are",
                       image->name, m->name);
  if (strcmp (file, "-") == 0 || image->is_stream)
    return image_fail ("%s: is a %s image, and a stream is read as raw: name "
                       "the file, or give --format raw to import its bytes "
                       "as they are", image->name, m->name);
  *format = image_qemu_detect (file);
  if (*format == NULL)
    return image_fail ("%s; with --format raw its bytes are imported as they "
                       "are", image_error ());
  if (strcmp (*format, "raw") != 0)
    return 1;
  free (*format);
  *format = NULL;
  return 0;
}

/* QEMU calls Microsoft's older format after the program that had it first. */
static const char *
qemu_format (const char *format)
{
  return format != NULL && strcmp (format, "vhd") == 0 ? "vpc" : format;
}

struct image *
image_open_source (const char *file, const char *format, char **detected)
{
  struct image *image;
  int r;

  *detected = NULL;
  format = qemu_format (format);
  if (format != NULL && strcmp (format, "raw") != 0) {
    if (strcmp (file, "-") != 0)
      return image_qemu_source (file, format);
    image_fail ("standard input is read as raw, not %s: name the file",
                format);
    return NULL;
  }
  if (image_is_uri (file))
    return image_nbd_source (file, -1, file);
  image = image_file_source (file);
  if (image == NULL || format != NULL)
    return image;
  r = detect (image, file, detected);
  if (r == 0)
    return image;
  image_close (image, true);
  return r == -1 ? NULL : image_qemu_source (file, *detected);
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
check_target (const char *file, const char *format, const char *pool)
{
  const bool is_uri = image_is_uri (file), is_stdout = strcmp (file, "-") == 0;
  const bool is_raw = format == NULL || strcmp (format, "raw") == 0;
  struct stat st;
  bool exists;

  if (!is_raw && (is_uri || is_stdout))
    return image_fail ("%s: is written as raw, not %s",
                       is_stdout ? "standard output" : file, format);
  exists = !is_uri && !is_stdout && stat (file, &st) == 0;
  if (!exists)
    return 0;
  if (S_ISDIR (st.st_mode))
    return image_fail ("%s: Is a directory", file);
  if (is_pool_file (pool, &st))
    return image_fail ("%s: is a file of the pool itself", file);
  if (!is_raw && !S_ISREG (st.st_mode))
    return image_fail ("%s: is no file, hence is written as raw, not %s",
                       file, format);
  return 0;
}

struct image *
image_open_target (const char *file, const char *format, const char *pool,
                   uint64_t size)
{
  format = qemu_format (format);
  if (check_target (file, format, pool) == -1)
    return NULL;
  if (image_is_uri (file))
    return image_nbd_target (file, -1, file, size);
  if (format != NULL && strcmp (format, "raw") != 0)
    return image_qemu_target (file, format, size);
  return image_file_target (file, size);
}
