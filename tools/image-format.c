/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image-format.h"
#include "image.h"
#include "tools.h"

#define VPC_MARK "conectix"
#define VPC_FOOTER_LEN 512

static const struct magic {
  const char *name;
  uint32_t offset;
  uint32_t len;
  const char *bytes;
} magics[] = {
  { "qcow", 0, 8, "QFI\xfb\0\0\0\1" },
  { "qcow2", 0, 4, "QFI\xfb" },
  { "qed", 0, 4, "QED\0" },
  { "vmdk", 0, 4, "KDMV" },
  { "vmdk", 0, 4, "COWD" },
  { "vmdk", 0, 21, "# Disk DescriptorFile" },
  { "vhdx", 0, 8, "vhdxfile" },
  { "vpc", 0, 8, VPC_MARK },
  { "vdi", 64, 4, "\x7f\x10\xda\xbe" },
  { "parallels", 0, 16, "WithoutFreeSpace" },
  { "parallels", 0, 16, "WithouFreSpacExt" },
  { "bochs", 0, 26, "Bochs Virtual HD Image\0\0\0\0" },
  { "gzip", 0, 3, "\x1f\x8b\x08" },
  { "xz", 0, 6,
    "\xfd"
    "7zXZ\0" },
  { "zstd", 0, 4, "\x28\xb5\x2f\xfd" },
  { "bzip2", 0, 3, "BZh" },
  { "lz4", 0, 4, "\x04\x22\x4d\x18" },
};

/* QEMU's other drivers, for servers, tests, or whole trees of files, are not
 * formats of an image file.
 */
static const char *const formats[] = {
  "qcow2", "qcow",      "qed",   "vmdk",  "vdi", "vhdx",
  "vpc",   "parallels", "bochs", "cloop", "dmg", "luks",
};

/* QEMU does not make the last ones, or only with a secret. */
#define NR_WRITTEN 8

/* Formats by name.  A disk named *.img is usually raw, but some distributors
 * use that name for other formats: then the user must say which.
 */
static const struct suffix {
  const char *suffix;
  const char *format;
  bool is_sure; /* whatever the file begins with */
} suffixes[] = {
  { ".raw", "raw", true },
  { ".dd", "raw", true },
  { ".iso", "raw", true },
  { ".img", "raw", false },
  { ".qcow2", "qcow2", false },
  { ".qcow", "qcow", false },
  { ".qed", "qed", false },
  { ".vmdk", "vmdk", false },
  { ".vdi", "vdi", false },
  { ".vhdx", "vhdx", false },
  { ".vhd", "vpc", false },
  { ".vpc", "vpc", false },
  { ".parallels", "parallels", false },
  { ".cloop", "cloop", false },
  { ".dmg", "dmg", false },
};

const char *
image_format_sign (const uint8_t *head, size_t len)
{
  size_t i;

  for (i = 0; i < sizeof magics / sizeof magics[0]; ++i) {
    const struct magic *m = &magics[i];

    if (len >= m->offset + m->len &&
        memcmp (head + m->offset, m->bytes, m->len) == 0)
      return m->name;
  }
  return NULL;
}

static bool
is_format (const char *name)
{
  size_t i;

  for (i = 0; i < sizeof formats / sizeof formats[0]; ++i)
    if (strcmp (name, formats[i]) == 0)
      return true;
  return false;
}

int
image_format_check (const char *format)
{
  return is_format (format)
    ? 0
    : image_fail ("'%s' is not an image format: must be raw, qcow2, vmdk, vdi, "
                  "vhdx, vpc, qed, qcow, parallels, bochs, cloop or dmg",
                  format);
}

int
image_format_check_written (const char *format)
{
  size_t i;

  for (i = 0; i < NR_WRITTEN; ++i)
    if (strcmp (format, formats[i]) == 0)
      return 0;
  return image_fail ("'%s' is not an image format that can be written: must be "
                     "raw, qcow2, vmdk, vdi, vhdx, vpc, qed, qcow or parallels",
                     format);
}

static const struct suffix *
find_suffix (const char *file)
{
  const size_t len = strlen (file);
  size_t i, n;

  for (i = 0; i < sizeof suffixes / sizeof suffixes[0]; ++i) {
    n = strlen (suffixes[i].suffix);
    if (len > n && strcasecmp (file + len - n, suffixes[i].suffix) == 0)
      return &suffixes[i];
  }
  return NULL;
}

const char *
image_format_of_name (const char *file)
{
  const struct suffix *suffix = find_suffix (file);

  return suffix ? suffix->format : NULL;
}

/* Files of fixed size have their signature only at the end. */
static bool
has_vpc_footer (int fd, off_t size)
{
  char mark[sizeof VPC_MARK - 1];

  return size >= VPC_FOOTER_LEN &&
    pread (fd, mark, sizeof mark, size - VPC_FOOTER_LEN) ==
    (ssize_t) sizeof mark &&
    memcmp (mark, VPC_MARK, sizeof mark) == 0;
}

/* 'sign' NULL: no known format begins like this. */
static int
judge (const char *file, const char *sign, char **format)
{
  const struct suffix *suffix = find_suffix (file);

  if (suffix != NULL && suffix->is_sure)
    return 0;
  if (sign != NULL && !is_format (sign))
    return image_fail ("%s: is a %s file: decompress it first, or give "
                       "--format raw to take its bytes as they are",
                       file, sign);
  if (sign == NULL)
    sign = "raw";
  if (suffix != NULL && strcmp (suffix->format, sign) != 0)
    return image_fail ("%s: its name says %s, its content looks like %s: say "
                       "which it is: --format %s, or --format %s",
                       file, suffix->format, sign, suffix->format, sign);
  if (strcmp (sign, "raw") != 0)
    *format = copy_string (sign);
  return 0;
}

int
image_format_detect (const char *file, int fd, char **format)
{
  uint8_t head[FORMAT_HEAD_LEN];
  const char *sign;
  struct stat st;
  ssize_t n;

  *format = NULL;
  if (fstat (fd, &st) == -1)
    return image_fail ("%s: %s", file, strerror (errno));
  if (!S_ISREG (st.st_mode))
    return 0; /* a device has no format */
  do
    n = pread (fd, head, sizeof head, 0);
  while (n == -1 && errno == EINTR);
  if (n == -1)
    return image_fail ("%s: %s", file, strerror (errno));
  sign = image_format_sign (head, n);
  if (sign == NULL && has_vpc_footer (fd, st.st_size)) {
    const struct suffix *suffix = find_suffix (file);

    if (suffix != NULL && strcmp (suffix->format, "vpc") == 0)
      sign = "vpc";
  }
  return judge (file, sign, format);
}
