/* SPDX-License-Identifier: BSD-3-Clause */

/* The backing file, "records": a header, then segments of sectors.
 *
 * It may be a regular file, a symbolic link to one on another disk, or a
 * block device.  Addresses count sectors from the start of the file; the
 * first STORE_HEADER_BYTES are the header's, so no record has address 0.
 *
 * This is the only module that touches the file.  It does not interpret the
 * content of the sectors.
 */

#ifndef NBDEDUP_STORE_H
#define NBDEDUP_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/geometry.h"
#include "format/hash.h"

struct store_header {
  uint8_t uuid[UUID_LEN];      /* the pool's */
  uint64_t epoch;              /* the pool's: see pool.c */
  uint32_t sector_bytes;       /* 512 .. 8192 */
  uint64_t features_incompat;  /* unknown bit: refuse to open */
  uint64_t features_compat;    /* unknown bit: ignore */
  uint64_t features_autoclear; /* unknown bit: clear before writing */
  /* Of a pool with a keyed hash; else 0 and not known. */
  int hash;
  struct hash_key hash_key;
};

/* Make 'path' (not existing, empty, or a block device without a pool's
 * header) a store and sync it.
 */
extern int store_create (const char *path, const struct store_header *header);

struct store;

/* Open read-write and check the header.  One valid copy is enough; the next
 * store_set_epoch repairs the other.  EIO: missing, too short, no magic, or a
 * bad checksum.  EINVAL: a newer format, or an unknown incompatible feature.
 * The text says which, and what to do.  'drop_cache': leave nothing in the page
 * cache.
 */
extern struct store *store_open (const char *path, bool drop_cache);
/* The same without writing to the file: store_write keeps its data in memory,
 * and store_read of that address finds them there.  Call store_write only
 * before other threads read.
 */
extern struct store *store_open_readonly (const char *path, bool drop_cache);
extern int store_close (struct store *store);
extern const struct store_header *store_get_header (struct store *store);

/* The next store_set_epoch writes this key, too. */
extern void
store_set_hash (struct store *store, int hash, const struct hash_key *key);
/* Write the header with a new epoch, one copy after the other, and sync. */
extern int store_set_epoch (struct store *store, uint64_t epoch);

/* Read or write 'len' bytes from the start of sector 'addr'.  A read may have
 * any 'len', and fails with EIO past the end of the file; a write has whole
 * sectors.  No lock; any number of threads.  -1: EIO or ENOSPC.
 */
extern int
store_read (struct store *store, uint64_t addr, void *buf, size_t len);
extern int
store_write (struct store *store, uint64_t addr, const void *buf, size_t len);
/* The same from several places, which the function modifies; not read-only. */
extern int store_writev (struct store *store, uint64_t addr, struct iovec *iov,
                         int nr_iov);

/* The same read, but up to the end of the file: returns the number of bytes
 * read.
 */
extern int64_t
store_read_most (struct store *store, uint64_t addr, void *buf, size_t len);

/* The bytes that store_read and store_write have moved since it was opened. */
extern void store_get_traffic (struct store *store, uint64_t *read_bytes,
                               uint64_t *written_bytes);

/* fdatasync.  Concurrent callers share one sync that began after they called.
 * After one failure every later call fails with EIO (fsyncgate: the kernel may
 * have dropped the dirty pages).
 */
extern int store_sync (struct store *store);

/* Make later reads return what the disk has.  A killed process may have left
 * pages in the page cache that were not written, or whose write failed.
 */
extern int store_drop_cached (struct store *store);

/* Allocate disk space for segment 'segment' with fallocate, extending the
 * file; if the file system cannot, write zeroes.  ENOSPC if it does not fit, or
 * lies past the end of a block device.
 */
extern int store_allocate_segment (struct store *store, uint64_t segment);

/* Punch a hole: free the sectors' space, and let them read as zeroes.  No
 * error if the file system cannot do that.
 */
extern int
store_punch (struct store *store, uint64_t addr, uint64_t nr_sectors);

/* The file system, or the device, that holds the store.  On a device
 * 'free_bytes' is the space past the 'nr_segments' segments in use.
 */
struct store_fs {
  uint64_t dev; /* st_dev; the number of a device itself */
  uint64_t total_bytes, free_bytes;
};
extern int
store_get_fs (struct store *store, uint64_t nr_segments, struct store_fs *fs);

/* Is it a block device, and no file? */
extern bool store_is_device (struct store *store);
/* The bytes that the file takes on its file system. */
extern uint64_t store_file_bytes (struct store *store);
/* Opened read-only: the bytes that store_write keeps in memory. */
extern uint64_t store_overlay_bytes (struct store *store);
/* The length of the file, or the size of the device.  0; -1: not known. */
extern int store_length (struct store *store, uint64_t *length);

#endif /* NBDEDUP_STORE_H */
