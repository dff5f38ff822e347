/* SPDX-License-Identifier: BSD-3-Clause */

/* The checksumming VFS of a pool opened read-only: it verifies pages and frames
 * as usual, and has no method that could change or create a file.
 *
 * It opens files O_RDONLY, and reads a WAL that a crash left.  If there is none
 * SQLite would create one; the VFS gives it an empty file that exists only in
 * memory.  SQLite takes no locks here (the pool's lock file decides), and each
 * connection has its index of the WAL in its own memory: SQLite does that
 * without shared memory, in exclusive locking mode
 * (https://sqlite.org/wal.html, "Use of WAL Without Shared-Memory").  The VFS
 * opens only the database and its WAL.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include <sqlite3.h>

#include "base/fullio.h"
#include "base/log.h"
#include "vfs/cksum-int.h"
#include "vfs/cksum-vfs.h"

static sqlite3_vfs *real_vfs; /* set once, before the VFS is registered */

static int
readonly_write (sqlite3_file *file, const void *buf, int len,
                sqlite3_int64 offset)
{
  (void) file;
  (void) buf;
  (void) len;
  (void) offset;
  return SQLITE_READONLY;
}

static int
readonly_truncate (sqlite3_file *file, sqlite3_int64 size)
{
  (void) file;
  (void) size;
  return SQLITE_READONLY;
}

static int
readonly_size (sqlite3_file *file, sqlite3_int64 *size)
{
  struct cksum_file *f = (struct cksum_file *) file;

  if (f->role != ROLE_EMPTY)
    return real_size (f, size);
  *size = 0;
  return SQLITE_OK;
}

/* Also for xSync and xUnlock. */
static int
readonly_nothing (sqlite3_file *file, int what)
{
  (void) file;
  (void) what;
  return SQLITE_OK;
}

static int
readonly_check_reserved_lock (sqlite3_file *file, int *result)
{
  (void) file;
  *result = 0;
  return SQLITE_OK;
}

static int
readonly_file_control (sqlite3_file *file, int op, void *arg)
{
  (void) file;
  /* Allow no mapping: reads through it would not be verified. */
  if (op == SQLITE_FCNTL_MMAP_SIZE) {
    *(sqlite3_int64 *) arg = 0;
    return SQLITE_OK;
  }
  return SQLITE_NOTFOUND;
}

static int
readonly_sector_size (sqlite3_file *file)
{
  (void) file;
  return 4096;
}

static int
readonly_device_characteristics (sqlite3_file *file)
{
  (void) file;
  return 0;
}

/* Version 1 has no shared memory. */
const sqlite3_io_methods cksum_readonly_methods = {
  .iVersion = 1,
  .xClose = cksum_close,
  .xRead = cksum_read,
  .xWrite = readonly_write,
  .xTruncate = readonly_truncate,
  .xSync = readonly_nothing,
  .xFileSize = readonly_size,
  .xLock = readonly_nothing,
  .xUnlock = readonly_nothing,
  .xCheckReservedLock = readonly_check_reserved_lock,
  .xFileControl = readonly_file_control,
  .xSectorSize = readonly_sector_size,
  .xDeviceCharacteristics = readonly_device_characteristics,
};

bool
cksum_readonly_read_page (struct cksum_file *f, uint8_t *page,
                          uint32_t page_size, sqlite3_int64 offset)
{
  const int fd = cksum_get_stand_in (f->shared);

  if (fd == -1 ||
      full_pread (fd, page, page_size, (uint64_t) offset) !=
        (int64_t) page_size ||
      !cksum_page_is_right (f->shared, page, page_size, (uint64_t) offset))
    return false;
  if (cksum_is_first_help (f->shared))
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "pool.db: page %" PRIu64 " is damaged in "
                 "one of its two copies: nbdedup reads it from the other one; "
                 "run nbdedup scrub without --read-only to repair such pages",
                 (uint64_t) offset / page_size + 1);
  return true;
}

/*----------------------------------------------------------------------
 * A file descriptor from the caller instead of a file of the real VFS: SQLite
 * does not open /proc/self/fd.
 */

struct given_file {
  sqlite3_file base; /* must be first */
  int fd;            /* not owned */
};

static int
given_close (sqlite3_file *file)
{
  (void) file;
  return SQLITE_OK;
}

static int
given_read (sqlite3_file *file, void *buf, int len, sqlite3_int64 offset)
{
  const struct given_file *g = (struct given_file *) file;
  int64_t n = full_pread (g->fd, buf, (size_t) len, (uint64_t) offset);

  if (n == -1)
    return errno == ENOMEM ? SQLITE_IOERR_NOMEM : SQLITE_IOERR_READ;
  memset ((uint8_t *) buf + n, 0, (size_t) (len - n));
  return n == len ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

static int
given_size (sqlite3_file *file, sqlite3_int64 *size)
{
  const struct given_file *g = (struct given_file *) file;
  struct stat st;

  if (fstat (g->fd, &st) == -1)
    return SQLITE_IOERR_FSTAT;
  *size = st.st_size;
  return SQLITE_OK;
}

/* The methods that the functions above call. */
static const sqlite3_io_methods given_methods = {
  .iVersion = 1,
  .xClose = given_close,
  .xRead = given_read,
  .xFileSize = given_size,
};

/*----------------------------------------------------------------------
 * Opening
 */

/* True only if there is certainly no such file: an existing WAL must be read.
 */
static bool
is_missing (const char *path)
{
  struct stat st;

  return stat (path, &st) == -1 && errno == ENOENT;
}

static int
readonly_open (sqlite3_vfs *vfs, const char *path, sqlite3_file *file,
               int flags, int *out_flags)
{
  struct cksum_file *f = (struct cksum_file *) file;
  sqlite3_file *real = real_file (f);
  const int type = flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL);
  size_t len = path ? strlen (path) : 0;
  int rc;

  (void) vfs;
  memset (f, 0, sizeof *f);
  real->pMethods = NULL;
  if (len == 0 || type == 0)
    return SQLITE_CANTOPEN;
  if (out_flags)
    *out_flags = SQLITE_OPEN_READONLY | type;
  f->role = type == SQLITE_OPEN_WAL ? ROLE_WAL : ROLE_MAIN;
  if (f->role == ROLE_WAL) {
    len = cksum_wal_path_len (path);
    if (len == 0)
      return SQLITE_CANTOPEN;
  }
  f->shared = cksum_shared_get (path, len);
  if (f->shared == NULL)
    return SQLITE_NOMEM;
  if (f->role == ROLE_WAL && cksum_get_wal (f->shared) != -1) {
    *(struct given_file *) real = (struct given_file) {
      .base.pMethods = &given_methods,
      .fd = cksum_get_wal (f->shared),
    };
    f->base.pMethods = &cksum_readonly_methods;
    return SQLITE_OK;
  }
  if (f->role == ROLE_WAL &&
      (cksum_is_without_wal (f->shared) || is_missing (path))) {
    f->role = ROLE_EMPTY;
    f->base.pMethods = &cksum_readonly_methods;
    return SQLITE_OK;
  }
  /* Do not open it as a WAL: if this process is root, "unix-excl" would give a
   * WAL to the database's owner, and so set its time of change.
   */
  rc = real_vfs->xOpen (real_vfs, path, real,
                        SQLITE_OPEN_READONLY |
                          (f->role == ROLE_WAL ? SQLITE_OPEN_SUPER_JOURNAL
                                               : SQLITE_OPEN_MAIN_DB),
                        NULL);
  if (rc != SQLITE_OK) {
    if (real->pMethods != NULL)
      real->pMethods->xClose (real);
    cksum_shared_put (f->shared);
    f->shared = NULL;
    return rc;
  }
  f->base.pMethods = &cksum_readonly_methods;
  return SQLITE_OK;
}

static int
readonly_delete (sqlite3_vfs *vfs, const char *path, int sync_dir)
{
  (void) vfs;
  (void) path;
  (void) sync_dir;
  return SQLITE_READONLY;
}

/* SQLite checks for a WAL before it reads page 1, which may be torn if the WAL
 * has it.  An assembled WAL exists, whatever file is beside pool.db.
 */
static int
readonly_access (sqlite3_vfs *vfs, const char *path, int flags, int *result)
{
  size_t len = cksum_wal_path_len (path);
  struct cksum_shared *shared;

  (void) vfs;
  if (len > 0) {
    shared = cksum_shared_get (path, len);
    if (shared == NULL)
      return SQLITE_IOERR_NOMEM;
    *result = cksum_get_wal (shared) != -1;
    cksum_shared_put (shared);
    if (*result)
      return SQLITE_OK;
  }
  return real_vfs->xAccess (real_vfs, path, flags, result);
}

int
cksum_readonly_register (sqlite3_vfs *real, const sqlite3_vfs *writable)
{
  static sqlite3_vfs readonly_vfs;

  assert (real->szOsFile >= (int) sizeof (struct given_file));
  real_vfs = real;
  readonly_vfs = *writable;
  readonly_vfs.pNext = NULL;
  readonly_vfs.zName = CKSUM_READONLY_VFS_NAME;
  readonly_vfs.xOpen = readonly_open;
  readonly_vfs.xDelete = readonly_delete;
  readonly_vfs.xAccess = readonly_access;
  cksum_snapshot_register (real, &readonly_vfs);
  return sqlite3_vfs_register (&readonly_vfs, 0);
}
