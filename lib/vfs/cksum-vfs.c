/* SPDX-License-Identifier: BSD-3-Clause */

/* The methods of the checksumming VFS that SQLite calls; see cksum-vfs.h.
 *
 * The VFS handles two kinds of files, the main database (cksum-db.c) and its
 * WAL (cksum-wal.c).  It passes all others (rollback journals, temporary files)
 * to "unix-excl", and also everything but reads, writes, truncations and the
 * names of files.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>

#include "base/error.h"
#include "base/lock.h"
#include "vfs/cksum-int.h"
#include "vfs/cksum-vfs.h"

#define REAL_VFS_NAME "unix-excl"

static struct lock register_lock; /* protects the next one */
static bool registered;

static sqlite3_vfs *real_vfs; /* set once, before the VFS is registered */

/*----------------------------------------------------------------------
 * File methods
 */

int
cksum_close (sqlite3_file *file)
{
  struct cksum_file *f = (struct cksum_file *) file;
  sqlite3_file *real = real_file (f);
  int rc = SQLITE_OK;

  if (f->role != ROLE_EMPTY)
    rc = real->pMethods->xClose (real);
  cksum_shared_put (f->shared);
  f->shared = NULL;
  free (f->page);
  f->page = NULL;
  f->base.pMethods = NULL;
  return rc;
}

int
cksum_read (sqlite3_file *file, void *buf, int len, sqlite3_int64 offset)
{
  struct cksum_file *f = (struct cksum_file *) file;

  switch (f->role) {
  case ROLE_MAIN:
    return cksum_db_read (f, buf, len, offset);
  case ROLE_WAL:
    return cksum_wal_read (f, buf, len, offset);
  case ROLE_EMPTY:
    memset (buf, 0, len);
    return SQLITE_IOERR_SHORT_READ;
  default:
    return real_read (f, buf, len, offset);
  }
}

static int
cksum_write (sqlite3_file *file, const void *buf, int len, sqlite3_int64 offset)
{
  struct cksum_file *f = (struct cksum_file *) file;

  switch (f->role) {
  case ROLE_MAIN:
    return cksum_db_write (f, buf, len, offset);
  case ROLE_WAL:
    return cksum_wal_write (f, buf, len, offset);
  default:
    return real_write (f, buf, len, offset);
  }
}

/* pool.db and its WAL keep their blocks, which were promised to later
 * transactions (meta-files.h).
 */
static int
truncate_but_keep (struct cksum_file *f, sqlite3_int64 size)
{
  sqlite3_int64 now;
  bool keep;
  int rc;

  rc = real_size (f, &now);
  if (rc != SQLITE_OK)
    return rc;
  if (f->role == ROLE_WAL)
    keep = size == 0 && now >= WAL_HEADER_BYTES;
  else {
    cksum_set_db_size (f->shared, (uint64_t) size);
    keep = size > 0 && size < now;
  }
  return cksum_mirror_truncate (f, size, keep);
}

static int
cksum_truncate (sqlite3_file *file, sqlite3_int64 size)
{
  struct cksum_file *f = (struct cksum_file *) file;
  int rc;

  rc = f->role == ROLE_OTHER ? cksum_mirror_truncate (f, size, false)
                             : truncate_but_keep (f, size);
  if (rc != SQLITE_OK)
    return rc;
  if (f->role == ROLE_WAL)
    cksum_forget_frames (f->shared, size);
  else if (f->role == ROLE_MAIN && size == 0)
    cksum_set_page_size (f->shared, 0); /* SQLite may choose any again */
  return SQLITE_OK;
}

static int
cksum_sync (sqlite3_file *file, int flags)
{
  return cksum_mirror_sync ((struct cksum_file *) file, flags);
}

static int
cksum_file_size (sqlite3_file *file, sqlite3_int64 *size)
{
  struct cksum_file *f = (struct cksum_file *) file;

  return f->role == ROLE_MAIN ? cksum_db_size (f, size) : real_size (f, size);
}

static int
cksum_lock (sqlite3_file *file, int level)
{
  sqlite3_file *real = real_file ((struct cksum_file *) file);

  return real->pMethods->xLock (real, level);
}

static int
cksum_unlock (sqlite3_file *file, int level)
{
  sqlite3_file *real = real_file ((struct cksum_file *) file);

  return real->pMethods->xUnlock (real, level);
}

static int
cksum_check_reserved_lock (sqlite3_file *file, int *result)
{
  sqlite3_file *real = real_file ((struct cksum_file *) file);

  return real->pMethods->xCheckReservedLock (real, result);
}

static int
cksum_file_control (sqlite3_file *file, int op, void *arg)
{
  sqlite3_file *real = real_file ((struct cksum_file *) file);

  /* Allow no mapping: reads through it would not be verified. */
  if (op == SQLITE_FCNTL_MMAP_SIZE) {
    *(sqlite3_int64 *) arg = 0;
    return SQLITE_OK;
  }
  return real->pMethods->xFileControl (real, op, arg);
}

static int
cksum_sector_size (sqlite3_file *file)
{
  sqlite3_file *real = real_file ((struct cksum_file *) file);

  return real->pMethods->xSectorSize (real);
}

static int
cksum_device_characteristics (sqlite3_file *file)
{
  sqlite3_file *real = real_file ((struct cksum_file *) file);

  return real->pMethods->xDeviceCharacteristics (real);
}

static int
cksum_shm_map (sqlite3_file *file, int region, int size, int extend,
               void volatile **result)
{
  sqlite3_file *real = real_file ((struct cksum_file *) file);

  return real->pMethods->xShmMap (real, region, size, extend, result);
}

static int
cksum_shm_lock (sqlite3_file *file, int offset, int n, int flags)
{
  sqlite3_file *real = real_file ((struct cksum_file *) file);

  return real->pMethods->xShmLock (real, offset, n, flags);
}

static void
cksum_shm_barrier (sqlite3_file *file)
{
  sqlite3_file *real = real_file ((struct cksum_file *) file);

  real->pMethods->xShmBarrier (real);
}

static int
cksum_shm_unmap (sqlite3_file *file, int delete)
{
  sqlite3_file *real = real_file ((struct cksum_file *) file);

  return real->pMethods->xShmUnmap (real, delete);
}

struct cksum_file *
cksum_file_of (sqlite3 *db)
{
  struct cksum_file *f = NULL;

  if (sqlite3_file_control (db, "main", SQLITE_FCNTL_FILE_POINTER, &f) !=
        SQLITE_OK ||
      f == NULL || f->base.pMethods == NULL)
    return nbdedup_fail_null (EIO, "pool.db: not open");
  return f;
}

int
cksum_set_look (sqlite3 *db, int (*look) (void *opaque), void *opaque)
{
  struct cksum_file *f = cksum_file_of (db);

  if (f == NULL)
    return -1;
  f->look = look;
  f->look_opaque = opaque;
  return 0;
}

/* Version 2 has no xFetch: SQLite does not map the database. */
static const sqlite3_io_methods cksum_methods = {
  .iVersion = 2,
  .xClose = cksum_close,
  .xRead = cksum_read,
  .xWrite = cksum_write,
  .xTruncate = cksum_truncate,
  .xSync = cksum_sync,
  .xFileSize = cksum_file_size,
  .xLock = cksum_lock,
  .xUnlock = cksum_unlock,
  .xCheckReservedLock = cksum_check_reserved_lock,
  .xFileControl = cksum_file_control,
  .xSectorSize = cksum_sector_size,
  .xDeviceCharacteristics = cksum_device_characteristics,
  .xShmMap = cksum_shm_map,
  .xShmLock = cksum_shm_lock,
  .xShmBarrier = cksum_shm_barrier,
  .xShmUnmap = cksum_shm_unmap,
};

/*----------------------------------------------------------------------
 * VFS methods
 */

size_t
cksum_wal_path_len (const char *path)
{
  size_t len = strlen (path);

  return len > 4 && strcmp (path + len - 4, "-wal") == 0 ? len - 4 : 0;
}

static int
cksum_open (sqlite3_vfs *vfs, const char *path, sqlite3_file *file, int flags,
            int *out_flags)
{
  struct cksum_file *f = (struct cksum_file *) file;
  sqlite3_file *real = real_file (f);
  size_t len = 0;
  int rc;

  (void) vfs;
  memset (f, 0, sizeof *f);
  real->pMethods = NULL;
  if (path != NULL && (flags & SQLITE_OPEN_MAIN_DB)) {
    f->role = ROLE_MAIN;
    len = strlen (path);
  }
  else if (path != NULL && (flags & SQLITE_OPEN_WAL)) {
    f->role = ROLE_WAL;
    len = cksum_wal_path_len (path);
    if (len == 0) /* SQLite never uses another name */
      return SQLITE_CANTOPEN;
  }
  if (f->role != ROLE_OTHER) {
    f->shared = cksum_shared_get (path, len);
    if (f->shared == NULL)
      return SQLITE_NOMEM;
  }

  rc = real_vfs->xOpen (real_vfs, path, real, flags, out_flags);
  if (rc != SQLITE_OK) {
    if (real->pMethods != NULL)
      real->pMethods->xClose (real);
    cksum_shared_put (f->shared);
    f->shared = NULL;
    return rc;
  }
  f->base.pMethods = &cksum_methods;
  return SQLITE_OK;
}

static int
cksum_delete (sqlite3_vfs *vfs, const char *path, int sync_dir)
{
  size_t len = cksum_wal_path_len (path);
  struct cksum_shared *s;
  int rc;

  (void) vfs;
  rc = real_vfs->xDelete (real_vfs, path, sync_dir);
  if (len > 0) {
    s = cksum_shared_get (path, len);
    if (s != NULL) {
      cksum_forget_frames (s, 0);
      if ((rc == SQLITE_OK || rc == SQLITE_IOERR_DELETE_NOENT) &&
          cksum_get_mirror (s) != NULL)
        cksum_mirror_wal_removed (cksum_get_mirror (s));
    }
    cksum_shared_put (s);
  }
  return rc;
}

static int
cksum_access (sqlite3_vfs *vfs, const char *path, int flags, int *result)
{
  (void) vfs;
  return real_vfs->xAccess (real_vfs, path, flags, result);
}

static int
cksum_full_pathname (sqlite3_vfs *vfs, const char *path, int len, char *out)
{
  (void) vfs;
  return real_vfs->xFullPathname (real_vfs, path, len, out);
}

static void *
cksum_dl_open (sqlite3_vfs *vfs, const char *path)
{
  (void) vfs;
  return real_vfs->xDlOpen (real_vfs, path);
}

static void
cksum_dl_error (sqlite3_vfs *vfs, int len, char *msg)
{
  (void) vfs;
  real_vfs->xDlError (real_vfs, len, msg);
}

static void (*cksum_dl_sym (sqlite3_vfs *vfs, void *handle,
                            const char *symbol)) (void)
{
  (void) vfs;
  return real_vfs->xDlSym (real_vfs, handle, symbol);
}

static void
cksum_dl_close (sqlite3_vfs *vfs, void *handle)
{
  (void) vfs;
  real_vfs->xDlClose (real_vfs, handle);
}

static int
cksum_randomness (sqlite3_vfs *vfs, int len, char *buf)
{
  (void) vfs;
  return real_vfs->xRandomness (real_vfs, len, buf);
}

static int
cksum_sleep (sqlite3_vfs *vfs, int us)
{
  (void) vfs;
  return real_vfs->xSleep (real_vfs, us);
}

static int
cksum_current_time (sqlite3_vfs *vfs, double *now)
{
  (void) vfs;
  return real_vfs->xCurrentTime (real_vfs, now);
}

static int
cksum_get_last_error (sqlite3_vfs *vfs, int len, char *msg)
{
  (void) vfs;
  return real_vfs->xGetLastError (real_vfs, len, msg);
}

static int
cksum_current_time_int64 (sqlite3_vfs *vfs, sqlite3_int64 *now)
{
  (void) vfs;
  return real_vfs->xCurrentTimeInt64 (real_vfs, now);
}

static sqlite3_vfs cksum_vfs = {
  .iVersion = 2,
  .zName = CKSUM_VFS_NAME,
  .xOpen = cksum_open,
  .xDelete = cksum_delete,
  .xAccess = cksum_access,
  .xFullPathname = cksum_full_pathname,
  .xDlOpen = cksum_dl_open,
  .xDlError = cksum_dl_error,
  .xDlSym = cksum_dl_sym,
  .xDlClose = cksum_dl_close,
  .xRandomness = cksum_randomness,
  .xSleep = cksum_sleep,
  .xCurrentTime = cksum_current_time,
  .xGetLastError = cksum_get_last_error,
  .xCurrentTimeInt64 = cksum_current_time_int64,
};

static void
init_locks (void)
{
  lock_init (&register_lock);
  cksum_shared_init ();
}

int
cksum_vfs_register (void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  int rc;

  pthread_once (&once, init_locks);
  WITH_LOCK (&register_lock);
  if (registered)
    return 0;

  /* sqlite3_vfs_find calls this first, but does not report its failure. */
  rc = sqlite3_initialize ();
  if (rc != SQLITE_OK)
    return nbdedup_fail (rc == SQLITE_NOMEM ? ENOMEM : EIO, "SQLite: %s",
                         sqlite3_errstr (rc));
  real_vfs = sqlite3_vfs_find (REAL_VFS_NAME);
  if (real_vfs == NULL || real_vfs->iVersion < 2)
    return nbdedup_fail (ENOSYS,
                         "SQLite %s: has no VFS \"%s\"; nbdedup needs "
                         "SQLite 3.40 or later for Unix",
                         sqlite3_libversion (), REAL_VFS_NAME);
  cksum_vfs.szOsFile = sizeof (struct cksum_file) + real_vfs->szOsFile;
  cksum_vfs.mxPathname = real_vfs->mxPathname;
  rc = sqlite3_vfs_register (&cksum_vfs, 0);
  if (rc == SQLITE_OK)
    rc = cksum_readonly_register (real_vfs, &cksum_vfs);
  if (rc != SQLITE_OK)
    return nbdedup_fail (ENOMEM, "SQLite: registering the VFS \"%s\": %s",
                         CKSUM_VFS_NAME, sqlite3_errstr (rc));
  registered = true;
  return 0;
}
