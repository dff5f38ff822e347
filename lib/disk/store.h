/* SPDX-License-Identifier: BSD-3-Clause */

/* The backing file, "records": a header, then segments of sectors.
 *
 * It may be a regular file, a symbolic link to one on another disk, or a
 * block device.  Addresses count sectors from the start of the file; the
 * first STORE_HEADER_BYTES are the header's, so no record has address 0.
 *
 * This is the only module that touches the file.  It knows nothing of
 * what the sectors hold.
 */

#ifndef NBDEDUP_STORE_H
#define NBDEDUP_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/geometry.h"

struct store_header {
  uint8_t uuid[UUID_LEN];       /* the pool's */
  uint64_t epoch;               /* the pool's: see pool.c */
  uint32_t sector_bytes;        /* 512 .. 8192 */
  uint64_t features_incompat;   /* unknown bit: refuse to open */
  uint64_t features_compat;     /* unknown bit: ignore */
  uint64_t features_autoclear;  /* unknown bit: clear before writing */
};

/* Make 'path' (not existing, empty, or a block device without a pool's
 * header) a store and sync it.
 */
extern int store_create (const char *path, const struct store_header *header);

struct store;

/* Open read-write and check the header (either copy will do; a torn or
 * damaged one is repaired by the next store_set_epoch).  Missing, too
 * short, no magic, bad checksum: EIO; newer format or unknown incompatible
 * feature: EINVAL; the text says which and what to do.  'drop_cache':
 * leave nothing in the page cache.
 */
extern struct store *store_open (const char *path, bool drop_cache);
/* The same without a write to the file: what is given to store_write stays
 * in memory, and store_read of that address finds it there.  To be done
 * before other threads read.
 */
extern struct store *store_open_readonly (const char *path, bool drop_cache);
extern int store_close (struct store *store);
extern const struct store_header *store_get_header (struct store *store);

/* Write the header with a new epoch, one copy after the other, and sync. */
extern int store_set_epoch (struct store *store, uint64_t epoch);

/* 'len' bytes from the start of sector 'addr'.  Any 'len' for a read (at
 * the end of the file what is missing is EIO); whole sectors for a write.
 * No lock; any number of threads.  -1: EIO or ENOSPC.
 */
extern int store_read (struct store *store, uint64_t addr,
                       void *buf, size_t len);
extern int store_write (struct store *store, uint64_t addr,
                        const void *buf, size_t len);

/* The same read, but the end of the file is no error: the number of bytes
 * that are there.
 */
extern int64_t store_read_most (struct store *store, uint64_t addr,
                                void *buf, size_t len);

/* fdatasync.  Grouped: concurrent callers share one sync that began after
 * they called.  After one failure every later call fails with EIO
 * (fsyncgate: the kernel may have dropped the dirty pages).
 */
extern int store_sync (struct store *store);

/* What is read from here on is what the disk has: a process that was killed
 * may have left pages in memory that were not written, or that failed to be.
 */
extern int store_read_anew (struct store *store);

/* Really allocate segment 'segment' (fallocate, extending the file; if the
 * file system cannot, zeroes are written).  ENOSPC when it does not fit;
 * on a block device, ENOSPC past its end.
 */
extern int store_allocate_segment (struct store *store, uint64_t segment);

/* Give the sectors' space back to the file system; they read as zeroes.
 * A file system that cannot punch is not an error.
 */
extern int store_punch (struct store *store, uint64_t addr,
                        uint64_t nr_sectors);

/* The file system (or the device) that it lies on.  'free_bytes' of a device
 * is what lies past the segments that are in use, 'nr_segments' of them.
 */
struct store_fs {
  uint64_t dev;                 /* st_dev; of a device its own number */
  uint64_t total_bytes, free_bytes;
};
extern int store_get_fs (struct store *store, uint64_t nr_segments,
                         struct store_fs *fs);

/* What the file takes on its file system now. */
extern uint64_t store_file_bytes (struct store *store);
/* Opened read-only: what store_write holds in memory. */
extern uint64_t store_overlay_bytes (struct store *store);
/* Its length (or the device's size).  One that cannot be read is not 0. */
extern int store_length (struct store *store, uint64_t *length);

#endif /* NBDEDUP_STORE_H */
