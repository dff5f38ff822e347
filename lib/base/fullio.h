/* SPDX-License-Identifier: BSD-3-Clause */

/* pread, pwrite and fdatasync that handle EINTR and short transfers, and
 * syncing of directories.
 */

#ifndef NBDEDUP_FULLIO_H
#define NBDEDUP_FULLIO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Returns the bytes read: less than 'len' only at the end of the file;
 * -1 with errno on error (no text recorded).
 */
extern int64_t full_pread (int fd, void *buf, size_t len, uint64_t offset);

/* Returns 0, or -1 with errno (no text recorded). */
extern int full_pwrite (int fd, const void *buf, size_t len, uint64_t offset);

/* The same for all of 'iov', which the function modifies. */
extern int
full_pwritev (int fd, struct iovec *iov, int nr_iov, uint64_t offset);

/* Write zeroes over [offset, end).  0, or -1 with errno (no text recorded). */
extern int full_write_zeroes (int fd, uint64_t offset, uint64_t end);

/* fdatasync and fsync, retried after EINTR: an interrupted call has reported no
 * disk error, so none is lost.
 */
extern int full_datasync (int fd);
extern int full_sync (int fd);

/* fsync a directory, or the one that holds 'path': makes new, renamed and
 * removed names durable.  0, or -1 with errno (no text recorded).
 */
extern int sync_directory (const char *path);
extern int sync_directory_of (const char *path);

#endif /* NBDEDUP_FULLIO_H */
