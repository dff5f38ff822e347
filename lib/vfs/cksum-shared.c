/* SPDX-License-Identifier: BSD-3-Clause */

/* The state that this process's connections to one database share: page sizes,
 * the checksum of each page in its WAL, and those of its own pages.
 *
 * The table of frames belongs to the database, not to the WAL's file
 * handle: SQLite's index may outlive the connection that recovered it.
 * Entries of a WAL that was restarted stay until they are overwritten;
 * SQLite does not read those frames.
 *
 * The table of pages detects pages of an older moment, or of another pool, that
 * another program put in place: their own checksums are valid.  It takes a
 * thousandth of the database's size.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "base/lock.h"
#include "vfs/cksum-int.h"

/* Checksums by number; FRAME_UNKNOWN if there is none. */
#define SUMS_MIN 1024
struct sums {
  uint64_t *p; /* owned */
  size_t nr;   /* numbers that the table has room for */
};

struct cksum_shared {
  struct cksum_shared *next;   /* protected by databases_lock */
  unsigned refs;               /* protected by databases_lock */
  char *path;                  /* owned; of the main database */
  struct cksum_mirror *mirror; /* not owned; constant while it is open */
  _Atomic uint64_t written[CKSUM_WRITTEN]; /* bytes; no lock */
  struct cksum_snapshots snapshots;        /* with a lock of their own */

  struct lock lock;  /* protects everything below */
  int stand_in, wal; /* owned, until it is freed; -1: none */
  bool without_wal;
  bool has_helped;
  uint32_t page_size; /* of the main database; 0: not known yet */
  uint64_t db_size;   /* SQLite's part of the main database */
  bool knows_db_size;
  uint32_t wal_page_size; /* 0: no WAL header seen yet */
  struct sums frames;     /* of each frame's page */
  struct sums pages;      /* of those read or written so far */
};

static struct lock databases_lock; /* protects the next one */
static struct cksum_shared *databases;

void
cksum_shared_init (void)
{
  lock_init (&databases_lock);
}

struct cksum_shared *
cksum_shared_get (const char *path, size_t len)
{
  struct cksum_shared *s;

  WITH_LOCK (&databases_lock);
  for (s = databases; s != NULL; s = s->next) {
    if (strncmp (s->path, path, len) == 0 && s->path[len] == '\0') {
      s->refs++;
      return s;
    }
  }

  s = calloc (1, sizeof *s);
  if (s == NULL)
    return NULL;
  s->path = strndup (path, len);
  if (s->path == NULL) {
    free (s);
    return NULL;
  }
  lock_init (&s->lock);
  lock_init (&s->snapshots.lock);
  s->stand_in = s->wal = -1;
  s->refs = 1;
  s->next = databases;
  databases = s;
  return s;
}

void
cksum_shared_put (struct cksum_shared *s)
{
  struct cksum_shared **p;

  if (s == NULL)
    return;
  WITH_LOCK (&databases_lock);
  assert (s->refs > 0);
  if (--s->refs > 0)
    return;
  for (p = &databases; *p != s; p = &(*p)->next)
    assert (*p != NULL);
  *p = s->next;
  assert (LIST_EMPTY (&s->snapshots.list));
  lock_destroy (&s->snapshots.lock);
  lock_destroy (&s->lock);
  if (s->stand_in != -1)
    close (s->stand_in);
  if (s->wal != -1)
    close (s->wal);
  free (s->frames.p);
  free (s->pages.p);
  free (s->path);
  free (s);
}

struct cksum_shared *
cksum_shared_ref (struct cksum_shared *s)
{
  WITH_LOCK (&databases_lock);
  assert (s->refs > 0);
  s->refs++;
  return s;
}

/* Use the full name, as SQLite will. */
struct cksum_shared *
cksum_shared_get_by_name (const char *path)
{
  sqlite3_vfs *vfs = sqlite3_vfs_find (CKSUM_VFS_NAME);
  struct cksum_shared *s;
  char *full;
  int rc;

  full = malloc ((size_t) vfs->mxPathname + 1);
  if (full == NULL)
    return NULL;
  rc = vfs->xFullPathname (vfs, path, vfs->mxPathname + 1, full);
  s = (rc & 0xff) == SQLITE_OK ? cksum_shared_get (full, strlen (full)) : NULL;
  free (full);
  return s;
}

struct cksum_shared *
cksum_shared_get_mirrored (const char *path, struct cksum_mirror *m)
{
  struct cksum_shared *s = cksum_shared_get_by_name (path);

  if (s != NULL) {
    assert (s->mirror == NULL);
    s->mirror = m;
  }
  return s;
}

void
cksum_count_written (struct cksum_shared *s, enum cksum_written which,
                     uint64_t bytes)
{
  if (s != NULL)
    atomic_fetch_add_explicit (&s->written[which], bytes, memory_order_relaxed);
}

int
cksum_get_written (const char *path, uint64_t bytes[CKSUM_WRITTEN])
{
  struct cksum_shared *s = cksum_shared_get_by_name (path);
  unsigned i;

  if (s == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (i = 0; i < CKSUM_WRITTEN; ++i)
    bytes[i] = s->written[i];
  cksum_shared_put (s);
  return 0;
}

void
cksum_shared_put_mirrored (struct cksum_shared *s)
{
  if (s != NULL)
    s->mirror = NULL;
  cksum_shared_put (s);
}

struct cksum_mirror *
cksum_get_mirror (struct cksum_shared *s)
{
  return s == NULL ? NULL : s->mirror;
}

struct cksum_snapshots *
cksum_get_snapshots (struct cksum_shared *s)
{
  return &s->snapshots;
}

static void
take_file (int *owned, int fd)
{
  if (fd == -1)
    return;
  if (*owned == -1)
    *owned = fd;
  else /* another pool of this process uses one */
    close (fd);
}

struct cksum_shared *
cksum_readonly_prepare (const char *path, int stand_in, int wal,
                        bool without_wal)
{
  struct cksum_shared *s = cksum_shared_get_by_name (path);

  if (s == NULL) {
    if (stand_in != -1)
      close (stand_in);
    if (wal != -1)
      close (wal);
    return nbdedup_fail_null (ENOMEM, "no memory");
  }
  WITH_LOCK (&s->lock);
  take_file (&s->stand_in, stand_in);
  take_file (&s->wal, wal);
  s->without_wal = without_wal;
  return s;
}

void
cksum_readonly_release (struct cksum_shared *s)
{
  cksum_shared_put (s);
}

int
cksum_get_stand_in (struct cksum_shared *s)
{
  WITH_LOCK (&s->lock);
  return s->stand_in;
}

int
cksum_get_wal (struct cksum_shared *s)
{
  WITH_LOCK (&s->lock);
  return s->wal;
}

bool
cksum_is_without_wal (struct cksum_shared *s)
{
  WITH_LOCK (&s->lock);
  return s->without_wal;
}

bool
cksum_is_first_help (struct cksum_shared *s)
{
  bool first;

  WITH_LOCK (&s->lock);
  first = !s->has_helped;
  s->has_helped = true;
  return first;
}

static uint64_t
sums_get (const struct sums *sums, uint64_t i)
{
  return i < sums->nr ? sums->p[i] : FRAME_UNKNOWN;
}

static int
sums_set (struct sums *sums, uint64_t i, uint64_t sum)
{
  const size_t nr = sums->nr;

  if (i >= nr) {
    if (sum == FRAME_UNKNOWN)
      return SQLITE_OK;
    if (array_reserve (&sums->p, &sums->nr, i < SUMS_MIN ? SUMS_MIN : i + 1,
                       sizeof sums->p[0]) == -1)
      return SQLITE_IOERR_NOMEM;
    memset (&sums->p[nr], 0, (sums->nr - nr) * sizeof sums->p[0]);
  }
  sums->p[i] = sum;
  return SQLITE_OK;
}

/* Forget the checksums from number 'first' on. */
static void
sums_forget (struct sums *sums, uint64_t first)
{
  if (first < sums->nr)
    memset (&sums->p[first], 0, (sums->nr - first) * sizeof sums->p[0]);
}

void
cksum_set_wal_page_size (struct cksum_shared *s, uint32_t page_size)
{
  WITH_LOCK (&s->lock);
  if (s->wal_page_size != page_size) {
    sums_forget (&s->frames, 0);
    s->wal_page_size = page_size;
  }
}

uint32_t
cksum_get_wal_page_size (struct cksum_shared *s)
{
  WITH_LOCK (&s->lock);
  return s->wal_page_size;
}

uint32_t
cksum_get_page_size (struct cksum_shared *s)
{
  WITH_LOCK (&s->lock);
  return s->page_size;
}

void
cksum_set_page_size (struct cksum_shared *s, uint32_t page_size)
{
  WITH_LOCK (&s->lock);
  s->page_size = page_size;
}

bool
cksum_get_db_size (struct cksum_shared *s, uint64_t *size)
{
  WITH_LOCK (&s->lock);
  *size = s->db_size;
  return s->knows_db_size;
}

void
cksum_set_db_size (struct cksum_shared *s, uint64_t size)
{
  WITH_LOCK (&s->lock);
  s->db_size = size;
  s->knows_db_size = true;
}

void
cksum_extend_db_size (struct cksum_shared *s, uint64_t size)
{
  WITH_LOCK (&s->lock);
  if (s->knows_db_size && s->db_size < size)
    s->db_size = size;
}

uint64_t
cksum_get_frame (struct cksum_shared *s, uint64_t frame)
{
  WITH_LOCK (&s->lock);
  return sums_get (&s->frames, frame);
}

int
cksum_set_frame (struct cksum_shared *s, uint64_t frame, uint64_t cksum)
{
  WITH_LOCK (&s->lock);
  return sums_set (&s->frames, frame, cksum);
}

bool
cksum_expect_page (struct cksum_shared *s, uint64_t page, uint64_t cksum)
{
  uint64_t known;

  WITH_LOCK (&s->lock);
  known = sums_get (&s->pages, page);
  /* Without memory the checksum stays unknown. */
  if (known == FRAME_UNKNOWN)
    sums_set (&s->pages, page, cksum);
  return known == FRAME_UNKNOWN || known == cksum;
}

bool
cksum_knows_page (struct cksum_shared *s, uint64_t page)
{
  WITH_LOCK (&s->lock);
  return sums_get (&s->pages, page) != FRAME_UNKNOWN;
}

void
cksum_set_page (struct cksum_shared *s, uint64_t page, uint64_t cksum)
{
  WITH_LOCK (&s->lock);
  sums_set (&s->pages, page, cksum);
}

void
cksum_forget_frames (struct cksum_shared *s, uint64_t size)
{
  uint64_t first = 0;

  WITH_LOCK (&s->lock);
  if (s->wal_page_size != 0 && size > WAL_HEADER_BYTES)
    first = (size - WAL_HEADER_BYTES) / (FRAME_HEADER_BYTES + s->wal_page_size);
  sums_forget (&s->frames, first);
}
