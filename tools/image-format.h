/* SPDX-License-Identifier: BSD-3-Clause */

/* Which format a file has: by its name and its first bytes, never by what
 * QEMU makes of it.
 *
 * What a raw disk begins with is up to the machine that uses it: it can
 * write another format's header there.  So content decides only where the
 * name says nothing, and never against the name.
 */

#ifndef NBDEDUP_IMAGE_FORMAT_H
#define NBDEDUP_IMAGE_FORMAT_H

#include <stddef.h>
#include <stdint.h>

/* Where the signs of all formats are. */
#define FORMAT_HEAD_LEN 4096

/* What begins like a compressed file, or like an image ("qcow2"): NULL for
 * anything else.
 */
extern const char *image_format_sign (const uint8_t *head, size_t len);

/* The format of a file: *format (owned by the caller), NULL: raw. */
extern int image_format_detect (const char *file, int fd, char **format);

/* What the file's suffix says, as QEMU calls it; NULL: nothing. */
extern const char *image_format_of_name (const char *file);

/* Is it one of the formats of image files that QEMU reads?  'format' as QEMU
 * calls it.
 */
extern int image_format_check (const char *format);

#endif /* NBDEDUP_IMAGE_FORMAT_H */
