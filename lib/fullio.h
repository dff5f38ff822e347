/* SPDX-License-Identifier: BSD-3-Clause */

/* pread and pwrite that finish (EINTR and short transfers are handled), and
 * directories.
 */

#ifndef NBDEDUP_FULLIO_H
#define NBDEDUP_FULLIO_H

#include <stddef.h>
#include <stdint.h>

/* Returns the bytes read: less than 'len' only at the end of the file;
 * -1 with errno on error (no text recorded).
 */
extern int64_t full_pread (int fd, void *buf, size_t len, uint64_t offset);

/* Returns 0, or -1 with errno (no text recorded). */
extern int full_pwrite (int fd, const void *buf, size_t len, uint64_t offset);

/* fsync a directory, or the one that holds 'path': makes new, renamed and
 * removed names durable.  0, or -1 with errno (no text recorded).
 */
extern int sync_directory (const char *path);
extern int sync_directory_of (const char *path);

#endif /* NBDEDUP_FULLIO_H */
