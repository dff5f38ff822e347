/* SPDX-License-Identifier: BSD-3-Clause */

/* The format of a file: by its name and its first bytes, never by QEMU's
 * probing.
 *
 * The machine that uses a raw disk decides its first bytes: it can write
 * another format's header there.  So content counts only if the name does not
 * tell the format, and never against the name.
 */

#ifndef NBDEDUP_IMAGE_FORMAT_H
#define NBDEDUP_IMAGE_FORMAT_H

#include <stddef.h>
#include <stdint.h>

/* The signatures of all formats are within so many bytes. */
#define FORMAT_HEAD_LEN 4096

/* The kind of compressed file, or the image format ("qcow2"), that begins like
 * this; NULL for anything else.
 */
extern const char *image_format_sign (const uint8_t *head, size_t len);

/* The format of a file: *format (owned by the caller), NULL: raw. */
extern int image_format_detect (const char *file, int fd, char **format);

/* The format by the file's suffix, as QEMU names it; NULL: not known. */
extern const char *image_format_of_name (const char *file);

/* Is it one of the formats of image files that QEMU reads?  'format' as QEMU
 * names it.
 */
extern int image_format_check (const char *format);
/* And that it writes? */
extern int image_format_check_written (const char *format);

#endif /* NBDEDUP_IMAGE_FORMAT_H */
