/* SPDX-License-Identifier: BSD-3-Clause */

/* The backing file.
 *
 * Its header is a pair (header-pair.h), at offset 0 and 8192; the rest of
 * the first 16 KiB is zero.  Magic "NBDDUPRC", version 1; own32 is
 * sector_bytes, a power of two, 512 .. 8192; own64 is zero; own is zero, or,
 * in a pool with a keyed hash,
 *
 *   OFFSET  SIZE  FIELD
 *      0      4   the number of the hash
 *      4      4   zero
 *      8     32   its key
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <linux/falloc.h>
#include <linux/fs.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/lock.h"
#include "base/owner.h"
#include "disk/overlay.h"
#include "disk/store.h"
#include "format/header-pair.h"

#define FS_BLOCK_BYTES UINT64_C (4096)

struct store {
  /* Constant after store_open. */
  int fd;
  char *path; /* owned; for messages */
  bool is_device;
  bool drop_cache;
  struct overlay *overlay; /* owned; opened read-only; else NULL */

  _Atomic uint64_t read_bytes, written_bytes; /* no lock */

  /* Only store_open and store_set_epoch change these.  At most one thread may
   * call store_set_epoch at a time.
   */
  struct header_pair pair;
  struct store_header header; /* the content of 'pair' */

  /* Syncs are numbered.  A caller needs one that starts after the call:
   * number 'started' + 1.
   */
  struct lock lock; /* protects the rest; innermost */
  struct cond cond; /* a sync ended */
  uint64_t started, done;
  bool running;
  bool failed; /* permanent */
};

static int
check_header (const char *path, const struct file_header *h)
{
  const uint32_t sector_bytes = h->own32;

  if (sector_bytes < 512 || sector_bytes > 8192 ||
      (sector_bytes & (sector_bytes - 1)) != 0)
    return nbdedup_fail (EIO, "%s: damaged header: sector size %" PRIu32, path,
                         sector_bytes);
  return 0;
}

/* No feature bits are known yet. */
static const struct header_kind header_kind = {
  .magic = "NBDDUPRC",
  .version = 1,
  .copy_distance = STORE_HEADER_BYTES / 2,
  .no_magic = "not a pool's records: no magic: put the right file there, or "
              "restore it from a backup",
  .restore = "restore it from a backup",
  .check = check_header,
};

static void
pack_hash (const struct store_header *h, uint8_t own[HEADER_OWN_LEN])
{
  if (!h->hash_key.known)
    return;
  put_le32 (own, (uint32_t) h->hash);
  memcpy (own + 8, h->hash_key.b, HASH_KEY_LEN);
}
static_assert (8 + HASH_KEY_LEN == HEADER_OWN_LEN, "header layout");

static void
to_file_header (const struct store_header *h, struct file_header *file)
{
  *file = (struct file_header) {
    .own32 = h->sector_bytes,
    .features_incompat = h->features_incompat,
    .features_compat = h->features_compat,
    .features_autoclear = h->features_autoclear,
    .epoch = h->epoch,
  };
  memcpy (file->uuid, h->uuid, UUID_LEN);
  pack_hash (h, file->own);
}

static void
from_file_header (const struct file_header *file, struct store_header *h)
{
  *h = (struct store_header) {
    .sector_bytes = file->own32,
    .features_incompat = file->features_incompat,
    .features_compat = file->features_compat,
    .features_autoclear = file->features_autoclear,
    .epoch = file->epoch,
    .hash = (int) get_le32 (file->own),
  };
  memcpy (h->uuid, file->uuid, UUID_LEN);
  h->hash_key.known = h->hash != 0;
  if (h->hash_key.known)
    memcpy (h->hash_key.b, file->own + 8, HASH_KEY_LEN);
}

/* Open a file or device; refuse everything else without opening it (a
 * FIFO would block, a tape would rewind).  'how': O_RDWR, perhaps with
 * O_CREAT, or O_RDONLY.
 */
static int
open_records (const char *path, int how, struct stat *st)
{
  int flags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK | how;
  bool existed = true;
  int fd, err;

  if (stat (path, st) == -1) {
    if (errno != ENOENT || !(how & O_CREAT))
      return -1;
    existed = false;
  }
  if (existed && !S_ISREG (st->st_mode) && !S_ISBLK (st->st_mode)) {
    errno = S_ISDIR (st->st_mode) ? EISDIR : ENOTBLK;
    return -1;
  }
  if (existed && S_ISBLK (st->st_mode) && (how & O_ACCMODE) == O_RDWR)
    /* For a device O_EXCL means: fail while it is mounted. */
    flags = (flags & ~O_CREAT) | O_EXCL;
  fd = (flags & O_CREAT) ? open_owned (path, flags, 0600) : open (path, flags);
  if (fd == -1)
    return -1;
  if (fstat (fd, st) == -1)
    err = errno;
  else if (!S_ISREG (st->st_mode) && !S_ISBLK (st->st_mode))
    err = ENOTBLK;
  else
    return fd;
  close (fd);
  errno = err;
  return -1;
}

static const char *
open_error (int err)
{
  switch (err) {
  case ENOTBLK:
    return "neither a file nor a block device";
  case EBUSY:
    return "the device is mounted or otherwise in use";
  default:
    return strerror (err);
  }
}

/* The length of a file or the size of a device. */
static int
get_length (int fd, bool is_device, uint64_t *length)
{
  struct stat st;

  if (is_device)
    return ioctl (fd, BLKGETSIZE64, length);
  if (fstat (fd, &st) == -1)
    return -1;
  *length = st.st_size;
  return 0;
}

static int
create_in (int fd, bool is_device, const char *path,
           const struct store_header *header)
{
  CLEANUP_FREE uint8_t *buf = NULL;
  struct file_header file_header;
  uint64_t length;
  unsigned i;

  buf = calloc (1, STORE_HEADER_BYTES);
  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "%s: no memory", path);
  if (get_length (fd, is_device, &length) == -1)
    return nbdedup_fail (errno, "%s: %s", path, strerror (errno));

  if (!is_device && length > 0)
    return nbdedup_fail (EEXIST,
                         "%s: exists already and is not empty: "
                         "remove it first if it is not needed",
                         path);
  if (is_device) {
    if (length < SEGMENT_BYTES)
      return nbdedup_fail (ENOSPC,
                           "%s: the device has only %" PRIu64 " bytes: "
                           "at least %" PRIu32 " are needed",
                           path, length, SEGMENT_BYTES);
    if (full_pread (fd, buf, STORE_HEADER_BYTES, 0) != STORE_HEADER_BYTES)
      return nbdedup_fail (EIO, "%s: the device cannot be read: %s", path,
                           strerror (errno));
    for (i = 0; i < 2; ++i)
      if (header_state (&header_kind, buf + i * header_kind.copy_distance) !=
          COPY_NO_MAGIC)
        return nbdedup_fail (EEXIST,
                             "%s: the device belongs to a pool "
                             "already: erase its first 16 KiB if it "
                             "is not needed",
                             path);
    memset (buf, 0, STORE_HEADER_BYTES);
  }

  to_file_header (header, &file_header);
  header_pack (&header_kind, &file_header, buf);
  header_pack (&header_kind, &file_header, buf + header_kind.copy_distance);
  if (full_pwrite (fd, buf, STORE_HEADER_BYTES, 0) == -1 ||
      full_sync (fd) == -1)
    return nbdedup_fail (errno, "%s: writing the header: %s", path,
                         strerror (errno));
  return 0;
}

int
store_create (const char *path, const struct store_header *header)
{
  CLEANUP_CLOSE int fd = -1;
  CLEANUP_FREE char *real = NULL;
  struct stat st;
  bool created;
  int err;

  assert (header->sector_bytes >= 512 && header->sector_bytes <= 8192);

  /* If 'path' is a dangling symbolic link, open_records makes its target. */
  created = stat (path, &st) == -1 && errno == ENOENT;
  fd = open_records (path, O_RDWR | O_CREAT, &st);
  if (fd == -1)
    return nbdedup_fail (errno, "%s: cannot be created: %s", path,
                         open_error (errno));
  real = realpath (path, NULL);
  if (real == NULL) {
    err = nbdedup_fail (errno, "%s: %s", path, strerror (errno));
    return err;
  }

  if (create_in (fd, S_ISBLK (st.st_mode), path, header) == -1)
    goto undo;
  /* Make the name durable too: in the directory of the file itself and, if
   * 'path' is a link, in that of the link.
   */
  if (sync_directory_of (real) == -1 || sync_directory_of (path) == -1) {
    nbdedup_fail (errno, "%s: syncing its directory: %s", path,
                  strerror (errno));
    goto undo;
  }
  return 0;

undo:
  err = errno;
  if (created)
    unlink (real);
  else if (S_ISREG (st.st_mode) && st.st_size == 0)
    err = ftruncate (fd, 0) == -1 ? EIO : err;
  errno = err;
  return -1;
}

static int
read_header (struct store *store)
{
  uint64_t length;

  if (get_length (store->fd, store->is_device, &length) == -1)
    return nbdedup_fail (errno, "%s: %s", store->path, strerror (errno));
  if (length < STORE_HEADER_BYTES)
    return nbdedup_fail (EIO,
                         "%s: too short for a pool's records (%" PRIu64
                         " bytes): restore it from a backup",
                         store->path, length);
  if (header_pair_read (&store->pair, &header_kind, store->fd, store->path) ==
      -1)
    return -1;
  from_file_header (&store->pair.header, &store->header);
  return 0;
}

static struct store *
open_store (const char *path, bool drop_cache, bool readonly)
{
  struct store *store;
  struct stat st;
  int err;

  store = calloc (1, sizeof *store);
  if (store == NULL)
    return nbdedup_fail_null (ENOMEM, "%s: no memory", path);
  lock_init (&store->lock);
  cond_init (&store->cond);
  store->fd = -1;
  store->drop_cache = drop_cache;
  store->path = strdup (path);
  if (store->path == NULL) {
    nbdedup_fail (ENOMEM, "%s: no memory", path);
    goto fail;
  }

  if (readonly) {
    store->overlay = overlay_new ();
    if (store->overlay == NULL)
      goto fail;
  }
  store->fd = open_records (path, readonly ? O_RDONLY : O_RDWR, &st);
  if (store->fd == -1) {
    if (errno == ENOENT)
      nbdedup_fail (EIO,
                    "%s: is missing: put it back, or restore it from a "
                    "backup",
                    path);
    else
      nbdedup_fail (errno == EISDIR || errno == ENOTBLK ? EIO : errno, "%s: %s",
                    path, open_error (errno));
    goto fail;
  }
  store->is_device = S_ISBLK (st.st_mode);
  if (drop_cache)
    /* No readahead, because nothing would drop its pages. */
    posix_fadvise (store->fd, 0, 0, POSIX_FADV_RANDOM);
  if (read_header (store) == -1)
    goto fail;
  return store;

fail:
  err = errno;
  store_close (store);
  errno = err;
  return NULL;
}

struct store *
store_open (const char *path, bool drop_cache)
{
  return open_store (path, drop_cache, false);
}

struct store *
store_open_readonly (const char *path, bool drop_cache)
{
  return open_store (path, drop_cache, true);
}

int
store_close (struct store *store)
{
  int r = 0;

  if (store == NULL)
    return 0;
  assert (!store->running);
  if (store->fd != -1) {
    if (store->drop_cache)
      posix_fadvise (store->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (close (store->fd) == -1)
      r = nbdedup_fail (EIO, "%s: closing: %s", store->path, strerror (errno));
  }
  overlay_free (store->overlay);
  cond_destroy (&store->cond);
  lock_destroy (&store->lock);
  free (store->path);
  free (store);
  return r;
}

const struct store_header *
store_get_header (struct store *store)
{
  return &store->header;
}

void
store_set_hash (struct store *store, int hash, const struct hash_key *key)
{
  assert (key->known && hash != 0);
  store->header.hash = hash;
  store->header.hash_key = *key;
  pack_hash (&store->header, store->pair.header.own);
}

int
store_set_epoch (struct store *store, uint64_t epoch)
{
  int r;

  assert (store->overlay == NULL); /* read-write */
  r = header_pair_set_epoch (&store->pair, store->fd, epoch);
  from_file_header (&store->pair.header, &store->header);
  if (r == -1)
    return nbdedup_fail (EIO, "%s: writing the header: %s", store->path,
                         strerror (errno));
  return 0;
}

/* Sector 'addr' and 'len' bytes as a file offset; addresses may come from
 * a damaged disk.
 */
static int
get_offset (struct store *store, uint64_t addr, uint64_t len, uint64_t *offset)
{
  const uint64_t sector = store->header.sector_bytes;

  if (addr > (INT64_MAX - SEGMENT_BYTES) / sector ||
      len > INT64_MAX - SEGMENT_BYTES - addr * sector)
    return nbdedup_fail (EIO, "%s: sector %" PRIu64 " cannot exist",
                         store->path, addr);
  *offset = addr * sector;
  return 0;
}

/* Drop the pages of a range.  The kernel skips partly covered pages, hence the
 * rounding.
 */
static void
drop_pages (struct store *store, uint64_t offset, uint64_t len)
{
  const uint64_t start = offset & ~(FS_BLOCK_BYTES - 1);
  const uint64_t end = (offset + len + FS_BLOCK_BYTES - 1) &
    ~(FS_BLOCK_BYTES - 1);

  posix_fadvise (store->fd, start, end - start, POSIX_FADV_DONTNEED);
}

int64_t
store_read_most (struct store *store, uint64_t addr, void *buf, size_t len)
{
  uint64_t offset = 0;
  int64_t r;

  if (get_offset (store, addr, len, &offset) == -1)
    return -1;
  if (store->overlay && overlay_get (store->overlay, addr, buf, len))
    return (int64_t) len;
  r = full_pread (store->fd, buf, len, offset);
  if (r == -1)
    return nbdedup_fail (EIO, "%s: reading %zu bytes at sector %" PRIu64 ": %s",
                         store->path, len, addr, strerror (errno));
  atomic_fetch_add_explicit (&store->read_bytes, (uint64_t) r,
                             memory_order_relaxed);
  if (store->drop_cache)
    drop_pages (store, offset, len);
  return r;
}

int
store_read (struct store *store, uint64_t addr, void *buf, size_t len)
{
  const int64_t r = store_read_most (store, addr, buf, len);

  if (r == -1)
    return -1;
  if ((size_t) r < len)
    return nbdedup_fail (EIO,
                         "%s: reading %zu bytes at sector %" PRIu64
                         ": the file ends there (is it truncated?)",
                         store->path, len, addr);
  return 0;
}

static bool
is_full (int err)
{
  return err == ENOSPC || err == EDQUOT || err == EFBIG;
}

static int
begin_write (struct store *store, uint64_t addr, size_t len, uint64_t *offset)
{
  assert (len > 0 && len % store->header.sector_bytes == 0);
  if (get_offset (store, addr, len, offset) == -1)
    return -1;
  if (*offset < STORE_HEADER_BYTES)
    return nbdedup_fail (EIO, "%s: sector %" PRIu64 " belongs to the header",
                         store->path, addr);
  return 0;
}

int
store_writev (struct store *store, uint64_t addr, struct iovec *iov, int nr_iov)
{
  uint64_t offset = 0;
  size_t len = 0;
  int i;

  assert (store->overlay == NULL);
  for (i = 0; i < nr_iov; ++i)
    len += iov[i].iov_len;
  if (begin_write (store, addr, len, &offset) == -1)
    return -1;
  if (full_pwritev (store->fd, iov, nr_iov, offset) == -1)
    return nbdedup_fail (is_full (errno) ? ENOSPC : EIO,
                         "%s: writing %zu bytes at sector %" PRIu64 ": %s",
                         store->path, len, addr, strerror (errno));
  atomic_fetch_add_explicit (&store->written_bytes, len, memory_order_relaxed);
  return 0;
}

int
store_write (struct store *store, uint64_t addr, const void *buf, size_t len)
{
  struct iovec iov = { (void *) buf, len }; /* only read */
  uint64_t offset = 0;

  if (store->overlay == NULL)
    return store_writev (store, addr, &iov, 1);
  if (begin_write (store, addr, len, &offset) == -1)
    return -1;
  return overlay_put (store->overlay, addr, buf, len);
}

void
store_get_traffic (struct store *store, uint64_t *read_bytes,
                   uint64_t *written_bytes)
{
  *read_bytes = store->read_bytes;
  *written_bytes = store->written_bytes;
}

int
store_sync (struct store *store)
{
  uint64_t need, number;
  int r, err;

  lock_acquire (&store->lock);
  need = store->started + 1;
  while (store->done < need && !store->failed) {
    if (store->running) { /* until: running is false */
      lock_wait (&store->lock, &store->cond);
      continue;
    }
    store->running = true;
    number = ++store->started;
    lock_release (&store->lock);

    r = full_datasync (store->fd);
    err = errno;
    if (r == 0 && store->drop_cache)
      /* The pages are clean now.  This visits only cached ones. */
      posix_fadvise (store->fd, 0, 0, POSIX_FADV_DONTNEED);

    lock_acquire (&store->lock);
    assert (number > store->done && number == store->started);
    store->running = false;
    if (r == -1)
      store->failed = true;
    else
      store->done = number;
    cond_broadcast (&store->cond);
    if (r == -1) {
      lock_release (&store->lock);
      return nbdedup_fail (EIO,
                           "%s: fdatasync: %s: restart the server, or run "
                           "the command again",
                           store->path, strerror (err));
    }
  }
  r = store->done >= need ? 0 : -1;
  lock_release (&store->lock);
  if (r == -1)
    return nbdedup_fail (EIO,
                         "%s: an earlier fdatasync failed: restart the "
                         "server, or run the command again",
                         store->path);
  return 0;
}

int
store_drop_cached (struct store *store)
{
  if (store_sync (store) == -1)
    return -1;
  posix_fadvise (store->fd, 0, 0, POSIX_FADV_DONTNEED);
  return 0;
}

/* Emulate fallocate: write zeroes into every hole of [offset, end).  Existing
 * data stay: at replay the segment can hold records.
 */
static int
allocate_by_hand (struct store *store, uint64_t offset, uint64_t end)
{
  uint64_t length;
  off_t hole, data;

  assert (offset < end && !store->is_device);
  if (get_length (store->fd, false, &length) == -1)
    return -1;
  while (offset < end && offset < length) {
    hole = lseek (store->fd, offset, SEEK_HOLE);
    if (hole == -1 || (uint64_t) hole >= length)
      break; /* only data up to the end */
    if ((uint64_t) hole >= end)
      return 0;
    data = lseek (store->fd, hole, SEEK_DATA);
    if (data == -1 || (uint64_t) data > length)
      data = length;
    offset = (uint64_t) data < end ? (uint64_t) data : end;
    if (full_write_zeroes (store->fd, hole, offset) == -1)
      return -1;
  }
  if (length < end)
    return full_write_zeroes (store->fd, length > offset ? length : offset,
                              end);
  return 0;
}

int
store_allocate_segment (struct store *store, uint64_t segment)
{
  uint64_t offset, length;
  int r, err;

  if (segment >= INT64_MAX / SEGMENT_BYTES)
    return nbdedup_fail (ENOSPC, "%s: segment %" PRIu64 " cannot exist",
                         store->path, segment);
  offset = segment * SEGMENT_BYTES;
  if (get_length (store->fd, store->is_device, &length) == -1)
    return nbdedup_fail (EIO, "%s: %s", store->path, strerror (errno));
  if (store->is_device) {
    if (offset + SEGMENT_BYTES > length)
      return nbdedup_fail (ENOSPC, "%s: the device is full", store->path);
    return 0;
  }

  do
    r = fallocate (store->fd, 0, offset, SEGMENT_BYTES);
  while (r == -1 && errno == EINTR);
  if (r == -1 && (errno == EOPNOTSUPP || errno == ENOSYS))
    r = allocate_by_hand (store, offset, offset + SEGMENT_BYTES);
  if (r == 0)
    return 0;

  err = errno;
  /* Free the part that was allocated past the old end: it is useless. */
  if (length < offset + SEGMENT_BYTES && ftruncate (store->fd, length) == -1)
    err = errno;
  if (is_full (err))
    return nbdedup_fail (ENOSPC,
                         "%s: no room for %" PRIu32 " more bytes: %s: "
                         "free some space on its file system",
                         store->path, SEGMENT_BYTES, strerror (err));
  return nbdedup_fail (EIO, "%s: allocating segment %" PRIu64 ": %s",
                       store->path, segment, strerror (err));
}

int
store_punch (struct store *store, uint64_t addr, uint64_t nr_sectors)
{
  uint64_t offset = 0, len;
  int r;

  if (nr_sectors > INT64_MAX / store->header.sector_bytes)
    return nbdedup_fail (EIO, "%s: %" PRIu64 " sectors cannot exist",
                         store->path, nr_sectors);
  len = nr_sectors * store->header.sector_bytes;
  if (get_offset (store, addr, len, &offset) == -1)
    return -1;
  if (offset < STORE_HEADER_BYTES)
    return nbdedup_fail (EIO, "%s: sector %" PRIu64 " belongs to the header",
                         store->path, addr);
  if (len == 0 || store->overlay)
    return 0;

  /* On a block device this discards or writes zeroes. */
  do
    r = fallocate (store->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                   offset, len);
  while (r == -1 && errno == EINTR);
  if (r == -1 && errno == EIO)
    return nbdedup_fail (EIO,
                         "%s: giving back %" PRIu64 " bytes at sector "
                         "%" PRIu64 ": %s",
                         store->path, len, addr, strerror (errno));
  return 0;
}

int
store_get_fs (struct store *store, uint64_t nr_segments, struct store_fs *fs)
{
  struct statvfs vfs;
  struct stat st;
  uint64_t used;

  if (fstat (store->fd, &st) == -1 || fstatvfs (store->fd, &vfs) == -1)
    return nbdedup_fail (EIO, "%s: %s", store->path, strerror (errno));
  if (store->is_device) {
    used = nr_segments * SEGMENT_BYTES;
    fs->dev = st.st_rdev;
    if (store_length (store, &fs->total_bytes) == -1)
      return -1;
    fs->free_bytes = fs->total_bytes > used ? fs->total_bytes - used : 0;
    return 0;
  }
  fs->dev = st.st_dev;
  /* Count as df does: space that only root may use is neither used nor free. */
  fs->free_bytes = (uint64_t) vfs.f_bavail * vfs.f_frsize;
  fs->total_bytes = (uint64_t) (vfs.f_blocks - vfs.f_bfree + vfs.f_bavail) *
    vfs.f_frsize;
  return 0;
}

bool
store_is_device (struct store *store)
{
  return store->is_device;
}

uint64_t
store_file_bytes (struct store *store)
{
  uint64_t length;
  struct stat st;

  if (store->is_device)
    return get_length (store->fd, true, &length) == -1 ? 0 : length;
  if (fstat (store->fd, &st) == -1)
    return 0;
  return (uint64_t) st.st_blocks * 512;
}

uint64_t
store_overlay_bytes (struct store *store)
{
  return store->overlay ? overlay_bytes (store->overlay) : 0;
}

int
store_length (struct store *store, uint64_t *length)
{
  if (get_length (store->fd, store->is_device, length) == -1)
    return nbdedup_fail (EIO, "%s: reading its length: %s", store->path,
                         strerror (errno));
  return 0;
}
