/* SPDX-License-Identifier: BSD-3-Clause */

/* The effects of SQLite's calls on the second copy; see cksum-mirror.h.  The
 * code of the thread that builds and checks it is in cksum-check.c.
 *
 * SQLite writes a frame of the WAL in two pieces.  The copy gathers adjacent
 * pieces into one write, which a sync issues at the latest.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/owner.h"
#include "vfs/cksum-mirror-int.h"

#define GATHER_BYTES (256 << 10)

struct cksum_mirror *
cksum_mirror_new (const char *path, const struct cksum_mirror_ops *ops)
{
  struct cksum_mirror *m = calloc (1, sizeof *m);
  unsigned i;

  if (m == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  m->ops = *ops;
  m->path = strdup (path);
  lock_init (&m->events_lock);
  cksum_own_init (&m->first, mirror_note_first_locked, m);
  for (i = 0; i < 2; ++i) {
    lock_init (&m->files[i].lock);
    cksum_own_init (&m->files[i].own, mirror_note_copy_locked, m);
    m->files[i].mirror = m;
    m->files[i].fd = -1;
    m->files[i].gathered = malloc (GATHER_BYTES);
    m->files[i].page = malloc (3 * (FRAME_HEADER_BYTES + PAGE_SIZE_MAX));
  }
  m->shared = cksum_shared_get_mirrored (path, m);
  if (m->path == NULL || m->shared == NULL || m->files[0].gathered == NULL ||
      m->files[0].page == NULL || m->files[1].gathered == NULL ||
      m->files[1].page == NULL) {
    cksum_mirror_free (m);
    return nbdedup_fail_null (ENOMEM, "no memory");
  }
  return m;
}

void
cksum_mirror_free (struct cksum_mirror *m)
{
  unsigned i;

  if (m == NULL)
    return;
  cksum_mirror_stop (m);
  cksum_shared_put_mirrored (m->shared);
  for (i = 0; i < 2; ++i) {
    cksum_own_destroy (&m->files[i].own);
    lock_destroy (&m->files[i].lock);
    free (m->files[i].gathered);
    free (m->files[i].page);
  }
  cksum_own_destroy (&m->first);
  lock_destroy (&m->events_lock);
  free (m->path);
  free (m);
}

/*----------------------------------------------------------------------
 * States
 */

enum cksum_mirror_state
cksum_mirror_state (struct cksum_mirror *m)
{
  return (enum cksum_mirror_state) atomic_load (&m->state);
}

static bool
is_written (struct cksum_mirror *m)
{
  enum cksum_mirror_state state = cksum_mirror_state (m);

  return state == CKSUM_MIRROR_BUILDING || state == CKSUM_MIRROR_SYNCED;
}

static void
close_locked (struct mirror_file *file)
{
  assert_held (&file->lock);
  if (file->fd != -1)
    close (file->fd);
  file->fd = -1;
  cksum_own_unwatch (&file->own);
  file->nr_gathered = 0;
  file->failed = 0;
  file->is_new = false;
}

/* Remove the copy's names at once, if possible: closing the files then frees
 * the space of a full disk, and no later process can take them for current.
 */
void
mirror_lose_locked (struct cksum_mirror *m, const char *why)
{
  int state = atomic_load (&m->state);

  assert (lock_is_held (&m->files[CKSUM_DB].lock) ||
          lock_is_held (&m->files[CKSUM_WAL].lock));
  do {
    if (state != CKSUM_MIRROR_BUILDING && state != CKSUM_MIRROR_SYNCED)
      return;
  } while (
    !atomic_compare_exchange_weak (&m->state, &state, CKSUM_MIRROR_LOST));
  m->ops.lost (m->ops.opaque, why);
  /* Keep the copy if another program wrote to the first file: the administrator
   * may need both.
   */
  cksum_own_look (&m->first);
  if (m->touch[0] == UNTOUCHED) {
    unlink (m->files[CKSUM_DB].path);
    unlink (m->files[CKSUM_WAL].path);
    /* Even if "lost" has failed, this makes the loss durable before SQLite
     * answers the commit.
     */
    (void) sync_directory_of (m->files[CKSUM_DB].path);
  }
  m->ops.wake (m->ops.opaque);
}

static bool
is_foreign (struct mirror_file *file)
{
  return file == &file->mirror->files[CKSUM_DB] &&
    file->mirror->touch[1] == FOREIGN;
}

static void
lose_errno_locked (struct cksum_mirror *m, struct mirror_file *file,
                   const char *what)
{
  char why[160];

  assert_held (&file->lock);
  snprintf (why, sizeof why, "%s: %s", what,
            is_foreign (file) ? "another program wrote to it"
                              : strerror (errno));
  mirror_lose_locked (m, why);
  close_locked (file);
}

void
cksum_mirror_lose (struct cksum_mirror *m, const char *why)
{
  WITH_LOCK (&m->files[CKSUM_DB].lock);
  WITH_LOCK (&m->files[CKSUM_WAL].lock);
  mirror_lose_locked (m, why);
  close_locked (&m->files[CKSUM_DB]);
  close_locked (&m->files[CKSUM_WAL]);
}

/* Do not acquire the lock of 'first': a thread that notices a change holds it
 * while it calls "wake", and our caller may hold the lock that "wake" needs.
 */
bool
cksum_mirror_trust (struct cksum_mirror *m)
{
  enum mirror_touch touched = TOUCHED;
  int state = CKSUM_MIRROR_BUILDING;

  if (!atomic_compare_exchange_strong (&m->state, &state, CKSUM_MIRROR_SYNCED))
    return false;
  /* The copy was made from the first file, so comparing would find nothing,
   * unless there were changes since copying began.
   */
  if (m->nr_foreign == m->nr_foreign_before)
    atomic_compare_exchange_strong (&m->touch[0], &touched, UNTOUCHED);
  return true;
}

void
cksum_mirror_stop (struct cksum_mirror *m)
{
  WITH_LOCK (&m->files[CKSUM_DB].lock);
  WITH_LOCK (&m->files[CKSUM_WAL].lock);
  atomic_store (&m->state, CKSUM_MIRROR_OFF);
  close_locked (&m->files[CKSUM_DB]);
  close_locked (&m->files[CKSUM_WAL]);
}

static int
open_locked (struct mirror_file *file)
{
  struct stat st;

  assert_held (&file->lock);
  if (file->fd != -1)
    return 0;
  file->is_new = access (file->path, F_OK) == -1;
  file->fd = open_owned (file->path,
                         O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK |
                           O_NOCTTY,
                         0600);
  if (file->fd == -1)
    return -1;
  if (fstat (file->fd, &st) == -1 || !S_ISREG (st.st_mode)) {
    close_locked (file);
    errno = ENOTSUP;
    return -1;
  }
  return 0;
}

static int
start_locked (struct cksum_mirror *m, bool synced, bool keep)
{
  struct mirror_file *db = &m->files[CKSUM_DB];
  struct mirror_file *wal = &m->files[CKSUM_WAL];

  if (open_locked (db) == -1)
    return -1;
  if (synced)
    goto done;
  /* Create the files now, so that a failure to do so is reported now. */
  if (open_locked (wal) == -1 || ftruncate (wal->fd, 0) == -1 ||
      (!keep && ftruncate (db->fd, 0) == -1))
    return -1;
  /* The names may not be durable even if the files existed: an attempt just
   * before, or a crashed process, may have created them.
   */
  db->is_new = wal->is_new = true;
done:
  m->nr_foreign_before = m->nr_foreign;
  cksum_own_watch (&m->first, m->path);
  cksum_own_watch (&db->own, db->path);
  m->touch[1] = UNTOUCHED;
  return 0;
}

int
cksum_mirror_start (struct cksum_mirror *m, const char *copy, bool synced,
                    bool keep)
{
  struct mirror_file *db = &m->files[CKSUM_DB];
  struct mirror_file *wal = &m->files[CKSUM_WAL];

  WITH_LOCK (&db->lock);
  WITH_LOCK (&wal->lock);
  atomic_store (&m->state, CKSUM_MIRROR_OFF);
  close_locked (db);
  close_locked (wal);
  if (strlen (copy) >= sizeof db->path)
    return nbdedup_fail (ENAMETOOLONG, "%s: %s", copy, strerror (ENAMETOOLONG));
  snprintf (db->path, sizeof db->path, "%s", copy);
  snprintf (wal->path, sizeof wal->path, "%s-wal", copy);
  if (start_locked (m, synced, keep) == -1) {
    nbdedup_fail (errno, "%s: %s", copy, strerror (errno));
    close_locked (db);
    close_locked (wal);
    return -1;
  }
  atomic_store (&m->state,
                synced ? CKSUM_MIRROR_SYNCED : CKSUM_MIRROR_BUILDING);
  return 0;
}

/*----------------------------------------------------------------------
 * Events
 */

static void
put_event (struct cksum_mirror *m, const struct cksum_mirror_event *e)
{
  unsigned i;

  m->taken++;
  m->repaired += e->repaired;
  {
    WITH_LOCK (&m->events_lock);
    /* Report a page that the disk always fails to read only once. */
    for (i = 0; i < m->nr_named; ++i)
      if (m->named[i].wal == e->wal && m->named[i].number == e->number)
        return;
    if (m->nr_named == EVENTS_MAX)
      return;
    m->named[m->nr_named++] = *e;
  }
  m->ops.wake (m->ops.opaque);
}

int
cksum_mirror_next_event (struct cksum_mirror *m,
                         struct cksum_mirror_event *event)
{
  WITH_LOCK (&m->events_lock);
  if (m->nr_told == m->nr_named)
    return 0;
  *event = m->named[m->nr_told++];
  return 1;
}

void
cksum_mirror_get_counts (struct cksum_mirror *m, uint64_t *taken,
                         uint64_t *repaired)
{
  *taken = m->taken;
  *repaired = m->repaired;
}

/*----------------------------------------------------------------------
 * Writing
 */

/* Call it before a change of the copy; -1 with EIO: the copy is not ours any
 * more.  The number of tries is limited, in case another program writes again
 * and again.
 */
static int
begin_own_locked (struct mirror_file *file)
{
  unsigned tries = 0;

  assert_held (&file->lock);
  for (;;) {
    cksum_own_begin (&file->own);
    if (is_foreign (file))
      break;
    if (file->mirror->touch[1] != NOTICED || tries++ == 10 ||
        file != &file->mirror->files[CKSUM_DB])
      return 0;
    cksum_own_cancel (&file->own);
    mirror_judge_copy_locked (file->mirror);
  }
  cksum_own_cancel (&file->own);
  errno = EIO;
  return -1;
}

/* Record the checksums of the pages; only for the database. */
static void
note_written_locked (struct mirror_file *file, const uint8_t *buf, size_t len,
                     uint64_t offset)
{
  uint32_t page_size = cksum_get_page_size (file->mirror->shared);
  size_t i;

  if (file != &file->mirror->files[CKSUM_DB] || page_size == 0)
    return;
  for (i = page_size; i <= len; i += page_size)
    cksum_own_wrote_locked (&file->own, (offset + i) / page_size - 1,
                            get_le64 (buf + i - CKSUM_RESERVE));
}

static int
write_own_locked (struct mirror_file *file, const uint8_t *buf, size_t len,
                  uint64_t offset)
{
  int r;

  assert_held (&file->lock);
  if (begin_own_locked (file) == -1)
    return -1;
  r = full_pwrite (file->fd, buf, len, offset);
  if (r == 0) {
    note_written_locked (file, buf, len, offset);
    cksum_count_written (file->mirror->shared, CKSUM_WRITTEN_COPY, len);
  }
  cksum_own_end (&file->own);
  return r;
}

/* The bytes that fail here come from an earlier write, and the caller may be a
 * reader.  So remember the failure for the next sync: otherwise the copy would
 * lack these bytes and still count as current.
 */
static int
flush_locked (struct mirror_file *file)
{
  size_t n = file->nr_gathered;

  assert_held (&file->lock);
  file->nr_gathered = 0;
  if (n > 0 &&
      write_own_locked (file, file->gathered, n, file->gathered_at) == -1)
    file->failed = errno;
  if (file->failed == 0)
    return 0;
  errno = file->failed;
  return -1;
}

int
mirror_write_locked (struct mirror_file *file, const void *buf, size_t len,
                     uint64_t offset)
{
  assert_held (&file->lock);
  if (open_locked (file) == -1)
    return -1;
  if (file->nr_gathered > 0 &&
      (offset != file->gathered_at + file->nr_gathered ||
       file->nr_gathered + len > GATHER_BYTES) &&
      flush_locked (file) == -1)
    return -1;
  if (len > GATHER_BYTES)
    return write_own_locked (file, buf, len, offset);
  if (file->nr_gathered == 0)
    file->gathered_at = offset;
  memcpy (file->gathered + file->nr_gathered, buf, len);
  file->nr_gathered += len;
  return 0;
}

int64_t
mirror_read_locked (struct mirror_file *file, void *buf, size_t len,
                    uint64_t offset)
{
  assert_held (&file->lock);
  if (file->fd == -1 || flush_locked (file) == -1)
    return -1;
  return full_pread (file->fd, buf, len, offset);
}

int
mirror_sync_locked (struct mirror_file *file)
{
  assert_held (&file->lock);
  if (file->fd == -1)
    return 0; /* nothing was written */
  if (flush_locked (file) == -1 || full_datasync (file->fd) == -1)
    return -1;
  /* Keep the database in the page cache, because it is read; drop its copy.
   * The WAL's copy stays: its writes need not begin and end with a page, and
   * would read what they leave of one.
   */
  if (file == &file->mirror->files[CKSUM_DB])
    posix_fadvise (file->fd, 0, 0, POSIX_FADV_DONTNEED);
  if (file->is_new && sync_directory_of (file->path) == -1)
    return -1;
  file->is_new = false;
  return 0;
}

static struct mirror_file *
mirror_file (struct cksum_mirror *m, struct cksum_file *f)
{
  return &m->files[f->role == ROLE_WAL ? CKSUM_WAL : CKSUM_DB];
}

/* A change of the first file needs the lock of the file, if there is a mirror;
 * SQLite's other files have no copy.
 */
static void
assert_mirrored_locked (struct cksum_mirror *m, struct cksum_file *f)
{
  if (m != NULL && f->role != ROLE_OTHER)
    assert_held (&mirror_file (m, f)->lock);
}

/* True if the copy's file may be used.  If a write to the copy's other file has
 * lost the copy, close this one now.
 */
static bool
is_usable_locked (struct cksum_mirror *m, struct mirror_file *file)
{
  assert_held (&file->lock);
  if (is_written (m))
    return true;
  close_locked (file);
  return false;
}

/* The same before a change of the database.  Without a copy, nothing could
 * distinguish the other program's pages from ours afterwards.
 */
static int
begin_first_locked (struct cksum_mirror *m, struct cksum_file *f)
{
  unsigned tries = 0;

  assert_held (&m->files[CKSUM_DB].lock);
  for (;;) {
    cksum_own_begin (&m->first);
    if (m->touch[0] != NOTICED || tries++ == 10)
      break;
    cksum_own_cancel (&m->first);
    mirror_judge_locked (m, f);
  }
  if (m->touch[0] != FOREIGN || cksum_mirror_state (m) == CKSUM_MIRROR_SYNCED)
    return SQLITE_OK;
  cksum_own_cancel (&m->first);
  return SQLITE_IOERR_WRITE;
}

int
mirror_write_first_locked (struct cksum_file *f, const uint8_t *buf, int len,
                           sqlite3_int64 offset)
{
  struct cksum_mirror *m = cksum_get_mirror (f->shared);
  int rc;

  assert_mirrored_locked (m, f);
  if (m == NULL || f->role != ROLE_MAIN)
    return real_write (f, buf, len, offset);
  rc = begin_first_locked (m, f);
  if (rc != SQLITE_OK)
    return rc;
  rc = real_write (f, buf, len, offset);
  if (rc == SQLITE_OK)
    cksum_own_wrote_locked (&m->first, (uint64_t) (offset / len),
                            get_le64 (buf + len - CKSUM_RESERVE));
  cksum_own_end (&m->first);
  return rc;
}

int
cksum_write_first_locked (struct cksum_file *f, const uint8_t *buf, int len,
                          sqlite3_int64 offset)
{
  int rc;

  assert_mirrored_locked (cksum_get_mirror (f->shared), f);
  rc = mirror_write_first_locked (f, buf, len, offset);
  if (f->role == ROLE_MAIN)
    cksum_set_page (f->shared, (uint64_t) (offset / len),
                    rc != SQLITE_OK ? FRAME_UNKNOWN
                                    : get_le64 (buf + len - CKSUM_RESERVE));
  return rc;
}

static int
mirror_write (struct cksum_file *f, const void *buf, int len,
              sqlite3_int64 offset)
{
  struct cksum_mirror *m = cksum_get_mirror (f->shared);
  struct mirror_file *file;
  int rc;

  if (m == NULL)
    return cksum_write_first_locked (f, buf, len, offset);
  file = mirror_file (m, f);
  WITH_LOCK (&file->lock);
  rc = cksum_write_first_locked (f, buf, len, offset);
  if (rc == SQLITE_OK && is_usable_locked (m, file) &&
      mirror_write_locked (file, buf, (size_t) len, (uint64_t) offset) == -1)
    lose_errno_locked (m, file, "writing");
  return rc;
}

int
cksum_mirror_write (struct cksum_file *f, const void *buf, int len,
                    sqlite3_int64 offset)
{
  const int rc = mirror_write (f, buf, len, offset);

  if (rc == SQLITE_OK)
    cksum_count_written (f->shared,
                         f->role == ROLE_WAL ? CKSUM_WRITTEN_WAL
                                             : CKSUM_WRITTEN_DB,
                         (uint64_t) len);
  return rc;
}

/* SQLite takes an interrupted sync for a failed one, so repeat it. */
static int
sync_real (sqlite3_file *real, int flags)
{
  int rc, err;

  do {
    err = 0;
    rc = real->pMethods->xSync (real, flags);
  } while (rc == SQLITE_IOERR_FSYNC &&
           real->pMethods->xFileControl (real, SQLITE_FCNTL_LAST_ERRNO, &err) ==
             SQLITE_OK &&
           err == EINTR);
  return rc;
}

int
cksum_mirror_sync (struct cksum_file *f, int flags)
{
  struct cksum_mirror *m = cksum_get_mirror (f->shared);
  sqlite3_file *real = real_file (f);
  struct mirror_file *file;
  int rc;

  if (m == NULL || f->role == ROLE_OTHER)
    return sync_real (real, flags);
  file = mirror_file (m, f);
  {
    WITH_LOCK (&file->lock);
    /* Let both disks write at the same time. */
    if (is_usable_locked (m, file) && file->fd != -1) {
      if (flush_locked (file) == -1)
        lose_errno_locked (m, file, "writing");
      else
        sync_file_range (file->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
  }
  rc = sync_real (real, flags);
  WITH_LOCK (&file->lock);
  if (rc == SQLITE_OK && is_usable_locked (m, file) &&
      mirror_sync_locked (file) == -1)
    lose_errno_locked (m, file, "syncing");
  return rc;
}

static void
cut_written_locked (struct cksum_mirror *m, struct cksum_own *own,
                    uint64_t size)
{
  uint32_t page_size = cksum_get_page_size (m->shared);

  if (page_size > 0)
    cksum_own_cut_locked (own, size / page_size);
}

/* 'exactly', for the database: also extend the file.  SQLite does not write
 * pages that it has freed, but its header counts them.
 */
static int
truncate_locked (struct mirror_file *file, uint64_t size, bool exactly)
{
  struct stat st;
  int r;

  assert_held (&file->lock);
  /* A missing file needs no truncation. */
  if (file->fd == -1 && access (file->path, F_OK) == -1)
    return 0;
  if (open_locked (file) == -1 || flush_locked (file) == -1 ||
      fstat (file->fd, &st) == -1)
    return -1;
  if ((uint64_t) st.st_size <= size &&
      !(exactly && (uint64_t) st.st_size < size))
    return 0;
  if (begin_own_locked (file) == -1)
    return -1;
  r = ftruncate (file->fd, (off_t) size);
  cut_written_locked (file->mirror, &file->own, size);
  cksum_own_end (&file->own);
  return r;
}

static int
truncate_first_locked (struct cksum_file *f, sqlite3_int64 size, bool keep)
{
  static const uint8_t zeroes[WAL_HEADER_BYTES];
  struct cksum_mirror *m = cksum_get_mirror (f->shared);
  sqlite3_file *real = real_file (f);
  int rc;

  assert_mirrored_locked (m, f);
  if (keep)
    return f->role == ROLE_WAL ? real_write (f, zeroes, sizeof zeroes, 0)
                               : SQLITE_OK;
  if (m == NULL || f->role != ROLE_MAIN)
    return real->pMethods->xTruncate (real, size);
  rc = begin_first_locked (m, f);
  if (rc != SQLITE_OK)
    return rc;
  rc = real->pMethods->xTruncate (real, size);
  cut_written_locked (m, &m->first, (uint64_t) size);
  cksum_own_end (&m->first);
  return rc;
}

int
cksum_mirror_truncate (struct cksum_file *f, sqlite3_int64 size, bool keep)
{
  struct cksum_mirror *m = cksum_get_mirror (f->shared);
  struct mirror_file *file;
  int rc;

  if (m == NULL || f->role == ROLE_OTHER)
    return truncate_first_locked (f, size, keep);
  file = mirror_file (m, f);
  WITH_LOCK (&file->lock);
  rc = truncate_first_locked (f, size, keep);
  if (rc == SQLITE_OK && is_usable_locked (m, file) &&
      truncate_locked (file, (uint64_t) size, f->role == ROLE_MAIN) == -1)
    lose_errno_locked (m, file, "truncating");
  return rc;
}

void
cksum_mirror_wal_removed (struct cksum_mirror *m)
{
  struct mirror_file *file = &m->files[CKSUM_WAL];

  WITH_LOCK (&file->lock);
  if (!is_usable_locked (m, file))
    return;
  close_locked (file);
  if (unlink (file->path) == -1 && errno != ENOENT)
    lose_errno_locked (m, file, "removing");
}

/*----------------------------------------------------------------------
 * Reading
 */

/* Overwrite the bad page with the copy's.  Leave a page that the disk cannot
 * read to a scrub: the write might fail later, in a sync that clients wait
 * for.  The lock keeps checkpoints from writing the page meanwhile.
 */
static bool
repair_locked (struct cksum_file *f, const uint8_t *good, int len,
               uint64_t offset, int read_rc)
{
  if (read_rc != SQLITE_OK && read_rc != SQLITE_IOERR_SHORT_READ)
    return false;
  return mirror_write_first_locked (f, good, len, (sqlite3_int64) offset) ==
    SQLITE_OK;
}

/* The result that full_pread would return; a short read counts as 0. */
static int64_t
got_first (int rc, uint32_t page_size)
{
  return rc == SQLITE_OK            ? (int64_t) page_size
    : rc == SQLITE_IOERR_SHORT_READ ? 0
                                    : -1;
}

bool
cksum_mirror_read_page (struct cksum_file *f, uint8_t *page, uint32_t page_size,
                        sqlite3_int64 offset)
{
  struct cksum_mirror *m = cksum_get_mirror (f->shared);
  struct cksum_mirror_event e = {
    .number = (uint64_t) offset / page_size + 1,
  };
  struct mirror_page both;
  struct mirror_file *file;
  int rc, side;

  if (m == NULL)
    return false;
  file = &m->files[CKSUM_DB];
  {
    WITH_LOCK (&file->lock);
    /* Read again: a checkpoint may have written the page meanwhile. */
    rc = real_read (f, page, (int) page_size, offset);
    both = (struct mirror_page) {
      { page, file->page },
      { got_first (rc, page_size), -1 },
    };
    if (cksum_mirror_state (m) == CKSUM_MIRROR_SYNCED)
      both.got[1] = mirror_read_locked (file, file->page, page_size,
                                        (uint64_t) offset);
    mirror_judge_locked (m, f);
    side = mirror_choose_locked (m, &both, page_size, (uint64_t) offset);
    if (side <= 0)
      return side == 0;
    memcpy (page, file->page, page_size);
    e.repaired = repair_locked (f, page, (int) page_size, (uint64_t) offset,
                                rc);
  }
  put_event (m, &e);
  return true;
}

bool
cksum_mirror_read_frame (struct cksum_file *f, uint8_t *page,
                         uint32_t page_size, uint64_t frame)
{
  struct cksum_mirror *m = cksum_get_mirror (f->shared);
  struct cksum_mirror_event e = { .wal = true, .number = frame };
  uint64_t offset = cksum_frame_offset (frame, page_size) + FRAME_HEADER_BYTES;
  struct mirror_file *file;
  uint64_t expected;
  int rc;

  if (m == NULL)
    return false;
  file = &m->files[CKSUM_WAL];
  {
    WITH_LOCK (&file->lock);
    expected = cksum_get_frame (f->shared, frame);
    if (!is_usable_locked (m, file) || expected == FRAME_UNKNOWN)
      return false;
    rc = real_read (f, page, (int) page_size, (sqlite3_int64) offset);
    if (rc == SQLITE_OK &&
        cksum_frame_cksum (page, page_size, frame) == expected)
      return true;
    if (mirror_read_locked (file, page, page_size, offset) !=
          (int64_t) page_size ||
        cksum_frame_cksum (page, page_size, frame) != expected)
      return false;
    e.repaired = repair_locked (f, page, (int) page_size, offset, rc);
  }
  put_event (m, &e);
  return true;
}

uint32_t
cksum_mirror_header (struct cksum_file *f)
{
  struct cksum_mirror *m = cksum_get_mirror (f->shared);
  struct mirror_file *file;
  uint8_t header[DB_HEADER_BYTES];

  if (m == NULL)
    return 0;
  file = &m->files[CKSUM_DB];
  WITH_LOCK (&file->lock);
  if (cksum_mirror_state (m) != CKSUM_MIRROR_SYNCED ||
      mirror_read_locked (file, header, sizeof header, 0) != sizeof header)
    return 0;
  return cksum_parse_db_header (header);
}

void
cksum_mirror_size (struct cksum_file *f, sqlite3_int64 *size)
{
  struct cksum_mirror *m = cksum_get_mirror (f->shared);
  struct mirror_file *file;
  struct stat st;

  if (m == NULL || f->role != ROLE_MAIN)
    return;
  file = &m->files[CKSUM_DB];
  WITH_LOCK (&file->lock);
  if (cksum_mirror_state (m) == CKSUM_MIRROR_SYNCED &&
      flush_locked (file) == 0 && fstat (file->fd, &st) == 0 &&
      st.st_size > *size)
    *size = st.st_size;
}
