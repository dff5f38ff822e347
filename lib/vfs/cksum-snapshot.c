/* SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/queue.h>
#include <sys/statvfs.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/lock.h"
#include "base/tempfile.h"
#include "vfs/cksum-int.h"
#include "vfs/cksum-snapshot.h"

/* Look at the file system's free space once for so many saved pages. */
#define PAGES_PER_LOOK 128

/* Where a page of the moment is, instead of the number of a saved page. */
#define IN_DATABASE 0u
#define DAMAGED UINT32_MAX

/* SQLite knows it as a VFS of its own, which opens the database as of its
 * moment.
 */
struct cksum_snapshot {
  sqlite3_vfs vfs; /* constant; its pAppData is the snapshot */
  char name[48];
  struct cksum_shared *shared;      /* a reference */
  LIST_ENTRY (cksum_snapshot) link; /* protected by the list's lock */
  uint32_t page_size;               /* constant */
  uint64_t nr_pages;                /* constant; those beyond are not its own */

  /* Protects everything below.  A thread that saves pages holds the list's lock
   * as well, and only such threads change 'fd' and the table.
   *
   * Not held while a page is read, which may take long: a checkpoint would wait
   * for that with each page that it saves.  It waits for the page that it is
   * about to overwrite.
   */
  struct lock lock;
  struct cond has_read; /* reading == 0 */
  uint64_t reading;     /* a page, from 1; 0: none */
  int fd;               /* owned; -1: it gave way, and no read goes on */
  uint32_t *where;      /* owned; of each page, from 0: IN_DATABASE, DAMAGED, or
                    * the number of the saved page, from 1 */
  uint32_t nr_saved;
  uint64_t gave_way_bytes; /* not 0: it gave way, and no read begins */
};

static sqlite3_vfs *real_vfs; /* set once, before the first snapshot */
static sqlite3_io_methods snapshot_methods;
static sqlite3_vfs snapshot_vfs;

/*----------------------------------------------------------------------
 * Saving pages
 */

static void
give_way_locked (struct cksum_snapshot *n)
{
  WITH_LOCK (&n->lock);
  if (n->gave_way_bytes != 0)
    return;
  n->gave_way_bytes = (uint64_t) n->nr_saved * n->page_size + 1;
  while (n->reading != 0)
    lock_wait (&n->lock, &n->has_read);
  close (n->fd);
  n->fd = -1;
  free (n->where);
  n->where = NULL;
}

/* The saved pages may take half of the space that was free. */
static bool
is_too_large (const struct cksum_snapshot *n)
{
  struct statvfs fs;

  return fstatvfs (n->fd, &fs) == 0 &&
    (uint64_t) n->nr_saved * n->page_size >
    (uint64_t) fs.f_bavail * fs.f_frsize;
}

/* The caller is about to overwrite the page. */
static void
set_where (struct cksum_snapshot *n, uint64_t page, uint32_t where)
{
  WITH_LOCK (&n->lock);
  n->where[page] = where;
  while (n->reading == page + 1)
    lock_wait (&n->lock, &n->has_read);
}

static void
save_page_locked (struct cksum_snapshot *n, uint64_t page, const uint8_t *buf)
{
  if (full_pwrite (n->fd, buf, n->page_size,
                   (uint64_t) n->nr_saved * n->page_size) == -1 ||
      (n->nr_saved % PAGES_PER_LOOK == 0 && is_too_large (n))) {
    give_way_locked (n);
    return;
  }
  set_where (n, page, ++n->nr_saved);
}

void
cksum_snapshots_save (struct cksum_file *f, uint32_t page_size,
                      sqlite3_int64 offset)
{
  struct cksum_snapshots *all = cksum_get_snapshots (f->shared);
  const uint64_t page = (uint64_t) offset / page_size;
  uint8_t *buf = cksum_page_buffer (f);
  struct cksum_snapshot *n;
  bool is_read = false;
  int rc = buf ? SQLITE_OK : SQLITE_IOERR_NOMEM;

  if (all->nr == 0)
    return;
  WITH_LOCK (&all->lock);
  LIST_FOREACH (n, &all->list, link) {
    if (n->fd == -1 || page >= n->nr_pages || n->where[page] != IN_DATABASE)
      continue;
    assert (n->page_size == page_size);
    if (!is_read && buf)
      rc = cksum_db_read_live (f, buf, page_size, offset);
    is_read = true;
    if (rc == SQLITE_OK)
      save_page_locked (n, page, buf);
    else if (rc == SQLITE_IOERR_NOMEM)
      give_way_locked (n);
    else
      set_where (n, page, DAMAGED);
  }
}

/*----------------------------------------------------------------------
 * The file that SQLite reads
 */

/* False: the snapshot gave way. */
static bool
begin_read (struct cksum_snapshot *n, uint64_t page, uint32_t *where)
{
  WITH_LOCK (&n->lock);
  if (n->gave_way_bytes != 0)
    return false;
  assert (n->reading == 0);
  n->reading = page + 1;
  *where = n->where[page];
  return true;
}

static void
end_read (struct cksum_snapshot *n)
{
  WITH_LOCK (&n->lock);
  n->reading = 0;
  cond_signal (&n->has_read);
}

static int
read_page (struct cksum_file *f, uint32_t where, uint8_t *page,
           uint32_t page_size, sqlite3_int64 offset)
{
  const struct cksum_snapshot *n = f->snapshot;

  if (where == IN_DATABASE)
    return cksum_db_read_live (f, page, page_size, offset);
  if (where == DAMAGED)
    return SQLITE_IOERR_DATA;
  if (full_pread (n->fd, page, page_size, (uint64_t) (where - 1) * page_size) !=
      (int64_t) page_size)
    return errno == ENOMEM ? SQLITE_IOERR_NOMEM : SQLITE_IOERR_READ;
  return cksum_page_is_good (page, page_size, (uint64_t) offset)
    ? SQLITE_OK
    : SQLITE_IOERR_DATA;
}

int
cksum_snapshot_read (struct cksum_file *f, uint8_t *page, uint32_t page_size,
                     sqlite3_int64 offset)
{
  struct cksum_snapshot *n = f->snapshot;
  const uint64_t number = (uint64_t) offset / page_size;
  uint32_t where;
  int rc;

  if (page_size != n->page_size || number >= n->nr_pages)
    return SQLITE_IOERR_DATA;
  if (!begin_read (n, number, &where))
    return SQLITE_IOERR_READ;
  rc = read_page (f, where, page, page_size, offset);
  end_read (n);
  return rc;
}

static int
snapshot_size (sqlite3_file *file, sqlite3_int64 *size)
{
  const struct cksum_snapshot *n = ((struct cksum_file *) file)->snapshot;

  *size = (sqlite3_int64) (n->nr_pages * n->page_size);
  return SQLITE_OK;
}

static int
snapshot_device_characteristics (sqlite3_file *file)
{
  (void) file;
  return SQLITE_IOCAP_IMMUTABLE;
}

/* SQLite cannot write to it, but the VFS repairs damaged pages as it reads. */
static int
snapshot_open (sqlite3_vfs *vfs, const char *path, sqlite3_file *file,
               int flags, int *out_flags)
{
  struct cksum_snapshot *n = vfs->pAppData;
  struct cksum_file *f = (struct cksum_file *) file;
  int rc;

  memset (f, 0, sizeof *f);
  real_file (f)->pMethods = NULL;
  if (path == NULL || (flags & SQLITE_OPEN_MAIN_DB) == 0)
    return SQLITE_CANTOPEN;
  rc = real_vfs->xOpen (real_vfs, path, real_file (f),
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_MAIN_DB, NULL);
  if (rc != SQLITE_OK) {
    if (real_file (f)->pMethods != NULL)
      real_file (f)->pMethods->xClose (real_file (f));
    return rc;
  }
  if (out_flags)
    *out_flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_MAIN_DB;
  f->role = ROLE_MAIN;
  f->shared = cksum_shared_ref (n->shared);
  f->snapshot = n;
  f->base.pMethods = &snapshot_methods;
  return SQLITE_OK;
}

void
cksum_snapshot_register (sqlite3_vfs *real, const sqlite3_vfs *readonly)
{
  real_vfs = real;
  snapshot_methods = cksum_readonly_methods;
  snapshot_methods.xFileSize = snapshot_size;
  snapshot_methods.xDeviceCharacteristics = snapshot_device_characteristics;
  snapshot_vfs = *readonly;
  snapshot_vfs.pNext = NULL;
  snapshot_vfs.xOpen = snapshot_open;
}

/*----------------------------------------------------------------------
 * Begin and end
 */

static int
make_file (struct cksum_snapshot *n, const char *path)
{
  const char *slash = strrchr (path, '/');
  CLEANUP_FREE char *dir = slash ? strndup (path, (size_t) (slash - path) + 1)
                                 : strdup (".");

  if (dir == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  n->fd = tempfile_open (dir);
  return n->fd == -1 ? -1 : 0;
}

static int
get_size (struct cksum_snapshot *n, const char *path)
{
  uint64_t size;

  n->page_size = cksum_get_page_size (n->shared);
  if (n->page_size == 0 || !cksum_get_db_size (n->shared, &size))
    return nbdedup_fail (EIO, "%s: its size is not known", path);
  n->nr_pages = size / n->page_size;
  assert (n->nr_pages < DAMAGED);
  n->where = calloc (n->nr_pages, sizeof *n->where);
  return n->where ? 0 : nbdedup_fail (ENOMEM, "no memory");
}

static void
free_snapshot (struct cksum_snapshot *n)
{
  const int err = errno;

  if (n->fd != -1)
    close (n->fd);
  cksum_shared_put (n->shared);
  cond_destroy (&n->has_read);
  lock_destroy (&n->lock);
  free (n->where);
  free (n);
  errno = err;
}

struct cksum_snapshot *
cksum_snapshot_begin (const char *path)
{
  struct cksum_snapshot *n = calloc (1, sizeof *n);
  struct cksum_snapshots *all;

  if (n == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  lock_init (&n->lock);
  cond_init (&n->has_read);
  n->fd = -1;
  n->vfs = snapshot_vfs;
  n->vfs.zName = n->name;
  n->vfs.pAppData = n;
  snprintf (n->name, sizeof n->name, "%s-snapshot-%p", CKSUM_VFS_NAME,
            (void *) n);
  n->shared = cksum_shared_get_by_name (path);
  if (n->shared == NULL || sqlite3_vfs_register (&n->vfs, 0) != SQLITE_OK) {
    free_snapshot (n);
    return nbdedup_fail_null (ENOMEM, "no memory");
  }
  if (get_size (n, path) == -1 || make_file (n, path) == -1) {
    sqlite3_vfs_unregister (&n->vfs);
    free_snapshot (n);
    return NULL;
  }
  all = cksum_get_snapshots (n->shared);
  WITH_LOCK (&all->lock);
  LIST_INSERT_HEAD (&all->list, n, link);
  all->nr++;
  return n;
}

void
cksum_snapshot_end (struct cksum_snapshot *n)
{
  struct cksum_snapshots *all;

  if (n == NULL)
    return;
  all = cksum_get_snapshots (n->shared);
  {
    WITH_LOCK (&all->lock);
    LIST_REMOVE (n, link);
    assert (all->nr > 0);
    all->nr--;
  }
  sqlite3_vfs_unregister (&n->vfs);
  free_snapshot (n);
}

const char *
cksum_snapshot_vfs (const struct cksum_snapshot *n)
{
  return n->name;
}

uint64_t
cksum_snapshot_gave_way (struct cksum_snapshot *n)
{
  WITH_LOCK (&n->lock);
  return n->gave_way_bytes;
}

/* Call 'fn' for each snapshot of the database, with the list's lock held.
 * False: no memory for that.
 */
static bool
each_locked (const char *path,
             void (*fn) (struct cksum_snapshot *n, void *opaque), void *opaque)
{
  struct cksum_shared *s = cksum_shared_get_by_name (path);
  struct cksum_snapshots *all;
  struct cksum_snapshot *n;

  if (s == NULL)
    return false;
  all = cksum_get_snapshots (s);
  {
    WITH_LOCK (&all->lock);
    LIST_FOREACH (n, &all->list, link)
      fn (n, opaque);
  }
  cksum_shared_put (s);
  return true;
}

static void
give_way (struct cksum_snapshot *n, void *opaque)
{
  (void) opaque;
  give_way_locked (n);
}

static void
give_way_if_too_large (struct cksum_snapshot *n, void *opaque)
{
  (void) opaque;
  if (n->fd != -1 && is_too_large (n))
    give_way_locked (n);
}

static void
get_most_pages (struct cksum_snapshot *n, void *opaque)
{
  uint64_t *most = opaque;

  if (*most < n->nr_pages)
    *most = n->nr_pages;
}

void
cksum_snapshots_give_way (const char *path)
{
  each_locked (path, give_way, NULL);
}

void
cksum_snapshots_look (const char *path)
{
  each_locked (path, give_way_if_too_large, NULL);
}

uint64_t
cksum_snapshots_pages (const char *path)
{
  uint64_t most = 0;

  return each_locked (path, get_most_pages, &most) ? most : UINT64_MAX;
}
