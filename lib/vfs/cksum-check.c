/* SPDX-License-Identifier: BSD-3-Clause */

/* Building the second copy, and comparing both; see cksum-mirror.h.
 *
 * The thread reads the files of the database through a separate connection,
 * which runs no statement meanwhile: opening and closing the files without
 * SQLite would drop its locks.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/iszero.h"
#include "vfs/cksum-mirror-int.h"

#define WAL_PIECE (64 << 10)

/* A file of the connection; our type, because our VFS has opened it. */
static struct cksum_file *
file_of (sqlite3 *db, int op)
{
  sqlite3_file *file = NULL;

  if (sqlite3_file_control (db, "main", op, &file) != SQLITE_OK ||
      file == NULL || file->pMethods == NULL)
    return NULL;
  return (struct cksum_file *) file;
}

static struct cksum_file *
db_of (sqlite3 *db)
{
  return file_of (db, SQLITE_FCNTL_FILE_POINTER);
}

/* NULL: there is no WAL, so the connection has none open. */
static struct cksum_file *
wal_of (sqlite3 *db)
{
  struct cksum_file *f = file_of (db, SQLITE_FCNTL_JOURNAL_POINTER);

  return f != NULL && f->role == ROLE_WAL ? f : NULL;
}

int
cksum_mirror_pages (struct cksum_mirror *m, sqlite3 *db, uint64_t *pages)
{
  struct cksum_file *f = db_of (db);
  uint32_t page_size = cksum_get_page_size (m->shared);
  sqlite3_int64 size;

  if (f == NULL || page_size == 0 || cksum_db_size (f, &size) != SQLITE_OK)
    return nbdedup_fail (EIO, "pool.db: its size cannot be read");
  *pages = ((uint64_t) size + page_size - 1) / page_size;
  return 0;
}

/* The state by the page's own checksum. */
static enum cksum_page_state
page_state (int64_t got, const uint8_t *page, uint32_t page_size,
            uint64_t offset)
{
  if (got != (int64_t) page_size)
    return CKSUM_PAGE_UNREADABLE;
  if (cksum_page_is_good (page, page_size, offset))
    return CKSUM_PAGE_GOOD;
  /* SQLite does not write a page that it has freed at once. */
  return is_zero (page, page_size) ? CKSUM_PAGE_UNUSED : CKSUM_PAGE_BAD;
}

static int64_t
got_of (int rc, uint32_t len)
{
  /* The VFS filled the missing part with zeroes: only the copy has the page. */
  if (rc == SQLITE_IOERR_SHORT_READ)
    return 0;
  return rc == SQLITE_OK ? (int64_t) len : -1;
}

static int64_t
read_first (struct cksum_file *f, uint8_t *page, uint32_t len, uint64_t offset)
{
  return got_of (real_read (f, page, (int) len, (sqlite3_int64) offset), len);
}

/* A failure that passes must not leave a hole in the copy.  A page that the
 * disk cannot read twice stays one: the other pages need their copy all the
 * more.
 */
static int
read_to_copy (struct cksum_file *f, uint8_t *page, uint32_t len,
              uint64_t offset, int64_t *got)
{
  int rc;

  *got = read_first (f, page, len, offset);
  if (*got != -1)
    return 0;
  rc = real_read (f, page, (int) len, (sqlite3_int64) offset);
  *got = got_of (rc, len);
  if (*got != -1 || rc == SQLITE_IOERR_CORRUPTFS) /* EIO and the like */
    return 0;
  return nbdedup_fail (EIO,
                       "pool.db: page %" PRIu64
                       " cannot be read now, so it cannot be copied",
                       offset / len + 1);
}

static int
lost_locked (struct cksum_mirror *m, const char *what)
{
  char why[160];

  snprintf (why, sizeof why, "%s: %s", what, strerror (errno));
  mirror_lose_locked (m, why);
  return nbdedup_fail (EIO, "pool.db's copy: %s", why);
}

static int
check_state (struct cksum_mirror *m, enum cksum_mirror_state wanted)
{
  if (cksum_mirror_state (m) != wanted)
    return nbdedup_fail (EIO, "pool.db's copy: not current");
  return 0;
}

int
cksum_mirror_copy (struct cksum_mirror *m, sqlite3 *db, uint64_t first,
                   unsigned nr,
                   void (*fn) (void *opaque, const struct cksum_page_report *r),
                   void *opaque)
{
  struct mirror_file *file = &m->files[CKSUM_DB];
  uint32_t page_size = cksum_get_page_size (m->shared);
  struct cksum_file *f = db_of (db);
  struct cksum_page_report r = { .second = CKSUM_PAGE_UNUSED };
  uint64_t offset;
  int64_t got;
  unsigned i;

  if (f == NULL || page_size == 0)
    return nbdedup_fail (EIO, "pool.db: not open");
  for (i = 0; i < nr; ++i) {
    offset = (first + i - 1) * page_size;
    {
      WITH_LOCK (&file->lock);
      if (check_state (m, CKSUM_MIRROR_BUILDING) == -1)
        return -1;
      if (read_to_copy (f, file->page, page_size, offset, &got) == -1)
        return -1;
      /* Copy a bad page as it is: the copy's must not look better. */
      if (got == (int64_t) page_size &&
          mirror_write_locked (file, file->page, page_size, offset) == -1)
        return lost_locked (m, "writing");
      r.first = page_state (got, file->page, page_size, offset);
    }
    r.number = first + i;
    if (r.first == CKSUM_PAGE_BAD ||
        (r.first == CKSUM_PAGE_UNREADABLE && got == -1))
      fn (opaque, &r);
  }
  return 0;
}

int
cksum_mirror_sync_copy (struct cksum_mirror *m)
{
  struct mirror_file *file = &m->files[CKSUM_DB];

  WITH_LOCK (&file->lock);
  if (mirror_sync_locked (file) == -1)
    return lost_locked (m, "syncing");
  return 0;
}

int
cksum_mirror_copy_wal (struct cksum_mirror *m, sqlite3 *db)
{
  struct mirror_file *file = &m->files[CKSUM_WAL];
  struct cksum_file *f = wal_of (db);
  sqlite3_int64 size = 0;
  uint64_t offset;
  uint32_t n;

  for (offset = 0; f != NULL; offset += n) {
    WITH_LOCK (&file->lock);
    if (check_state (m, CKSUM_MIRROR_BUILDING) == -1)
      return -1;
    if (real_size (f, &size) != SQLITE_OK)
      return nbdedup_fail (EIO, "pool.db-wal: its size cannot be read");
    if (offset >= (uint64_t) size)
      break;
    n = (uint64_t) size - offset < WAL_PIECE
      ? (uint32_t) ((uint64_t) size - offset)
      : WAL_PIECE;
    if (read_first (f, file->page, n, offset) != (int64_t) n)
      return nbdedup_fail (EIO, "pool.db-wal: cannot be read");
    if (mirror_write_locked (file, file->page, n, offset) == -1)
      return lost_locked (m, "writing");
  }
  {
    WITH_LOCK (&file->lock);
    if (mirror_sync_locked (file) == -1)
      return lost_locked (m, "syncing");
  }
  if (cksum_mirror_sync_copy (m) == -1)
    return -1;
  return check_state (m, CKSUM_MIRROR_BUILDING);
}

/* Write the good page over the bad one. */
static bool
repair_locked (struct cksum_mirror *m, struct cksum_file *f,
               struct mirror_file *file, const struct cksum_page_report *r,
               const uint8_t *first, const uint8_t *second, uint32_t len,
               uint64_t offset)
{
  if (r->first == CKSUM_PAGE_GOOD && r->second != CKSUM_PAGE_GOOD)
    return mirror_write_locked (file, first, len, offset) == 0;
  /* If the first file is distrusted, write the copy's zeroes too: the copy has
   * everything that was written.
   */
  if ((r->second == CKSUM_PAGE_GOOD && r->first != CKSUM_PAGE_GOOD) ||
      (r->second == CKSUM_PAGE_UNUSED && r->first == CKSUM_PAGE_BAD &&
       cksum_mirror_is_distrusted (m)))
    return mirror_write_first_locked (f, second, (int) len,
                                      (sqlite3_int64) offset) == SQLITE_OK;
  return false;
}

static void
read_both_locked (struct cksum_mirror *m, struct cksum_file *f,
                  uint32_t page_size, uint64_t offset, struct mirror_page *p)
{
  struct mirror_file *file = &m->files[CKSUM_DB];
  uint8_t *one = file->page, *two = file->page + page_size;

  assert_held (&file->lock);
  p->bytes[0] = one;
  p->bytes[1] = two;
  p->got[0] = read_first (f, one, page_size, offset);
  p->got[1] = cksum_mirror_state (m) == CKSUM_MIRROR_SYNCED
    ? mirror_read_locked (file, two, page_size, offset)
    : -1;
  mirror_judge_locked (m, f);
}

/* Only the chosen page is good, and the other one if it is the same. */
static void
look_at_both_locked (struct cksum_mirror *m, const struct mirror_page *p,
                     uint32_t page_size, uint64_t offset,
                     struct cksum_page_report *r)
{
  enum cksum_page_state state[2] = {
    page_state (p->got[0], p->bytes[0], page_size, offset),
    page_state (p->got[1], p->bytes[1], page_size, offset),
  };
  bool both = state[0] == CKSUM_PAGE_GOOD && state[1] == CKSUM_PAGE_GOOD;
  bool same = both && memcmp (p->bytes[0], p->bytes[1], page_size) == 0;
  int side = mirror_choose_locked (m, p, page_size, offset), i;

  for (i = 0; i < 2; ++i)
    if (state[i] == CKSUM_PAGE_GOOD && i != side && !(same && side != -1))
      state[i] = CKSUM_PAGE_BAD;
  r->first = state[0];
  r->second = state[1];
  r->differ = both && !same && side == -1;
}

static bool
is_worth_telling (const struct cksum_page_report *r)
{
  if (r->first == r->second &&
      (r->first == CKSUM_PAGE_GOOD || r->first == CKSUM_PAGE_UNUSED))
    return r->differ;
  return true;
}

int
cksum_mirror_check (
  struct cksum_mirror *m, sqlite3 *db, uint64_t first, unsigned nr,
  void (*fn) (void *opaque, const struct cksum_page_report *r), void *opaque)
{
  struct mirror_file *file = &m->files[CKSUM_DB];
  uint32_t page_size = cksum_get_page_size (m->shared);
  struct cksum_file *f = db_of (db);
  struct cksum_page_report r;
  struct mirror_page both;
  uint64_t offset;
  unsigned i;

  if (f == NULL || page_size == 0)
    return nbdedup_fail (EIO, "pool.db: not open");
  for (i = 0; i < nr; ++i) {
    offset = (first + i - 1) * page_size;
    r = (struct cksum_page_report) { .number = first + i };
    {
      WITH_LOCK (&file->lock);
      if (check_state (m, CKSUM_MIRROR_SYNCED) == -1)
        return -1;
      read_both_locked (m, f, page_size, offset, &both);
      if (check_state (m, CKSUM_MIRROR_SYNCED) == -1)
        return -1;
      look_at_both_locked (m, &both, page_size, offset, &r);
      r.repaired = repair_locked (m, f, file, &r, both.bytes[0], both.bytes[1],
                                  page_size, offset);
    }
    if (is_worth_telling (&r))
      fn (opaque, &r);
  }
  return 0;
}

int
cksum_mirror_trust_both (struct cksum_mirror *m, sqlite3 *db, uint64_t changes)
{
  struct mirror_file *file = &m->files[CKSUM_DB];
  struct cksum_file *f = db_of (db);

  if (f == NULL || cksum_mirror_sync (f, SQLITE_SYNC_NORMAL) != SQLITE_OK)
    return nbdedup_fail (EIO, "pool.db: it cannot be synced");
  {
    WITH_LOCK (&file->lock);
    mirror_judge_locked (m, f);
    if (cksum_mirror_state (m) != CKSUM_MIRROR_SYNCED)
      return 0;
    WITH_LOCK (&m->first.lock);
    WITH_LOCK (&file->own.lock);
    if (m->nr_foreign - m->nr_foreign_before != changes)
      return 0;
    m->touch[0] = m->touch[1] = UNTOUCHED;
  }
  {
    WITH_LOCK (&file->lock);
    mirror_tell_trust_locked (m);
  }
  return 1;
}

bool
cksum_mirror_look (struct cksum_mirror *m, sqlite3 *db)
{
  struct cksum_file *f = db_of (db);

  WITH_LOCK (&m->files[CKSUM_DB].lock);
  if (f != NULL)
    mirror_judge_locked (m, f);
  return cksum_mirror_is_distrusted (m);
}

/* Neither page is right: fail unless it is certain that it is lost. */
static int
judge_loss (struct cksum_mirror *m, const struct mirror_page *p,
            uint32_t page_size, uint64_t number)
{
  unsigned i;

  if (m->touch[0] == FOREIGN || m->touch[1] == FOREIGN)
    goto unknown;
  for (i = 0; i < 2; ++i)
    if (p->got[i] == (int64_t) page_size &&
        cksum_page_is_good (p->bytes[i], page_size, (number - 1) * page_size) &&
        cksum_mirror_is_touched (m))
      goto unknown;
  if (p->got[0] == -1 ||
      (p->got[1] == -1 && cksum_mirror_state (m) == CKSUM_MIRROR_SYNCED))
    return nbdedup_fail (EIO,
                         "pool.db: page %" PRIu64 " cannot be read: try "
                         "again when the disk can read it",
                         number);
  return 0;

unknown:
  return nbdedup_fail (EIO,
                       "pool.db: another program wrote to it, and page %" PRIu64
                       " cannot be trusted: restore a backup",
                       number);
}

static int
blank_page (struct cksum_mirror *m, struct cksum_file *f, uint64_t number)
{
  struct mirror_file *file = &m->files[CKSUM_DB];
  uint32_t page_size = cksum_get_page_size (m->shared);
  uint64_t offset = (number - 1) * page_size;
  struct mirror_page both;

  WITH_LOCK (&file->lock);
  read_both_locked (m, f, page_size, offset, &both);
  if (mirror_choose_locked (m, &both, page_size, offset) != -1)
    return 0;
  /* A page whose read failed may be intact, and in use. */
  if (judge_loss (m, &both, page_size, number) == -1)
    return -1;
  memset (file->page, 0, page_size);
  cksum_page_seal (file->page, page_size, offset);
  if (cksum_write_first_locked (f, file->page, (int) page_size,
                                (sqlite3_int64) offset) != SQLITE_OK)
    return nbdedup_fail (EIO, "pool.db: writing page %" PRIu64, number);
  if (cksum_mirror_state (m) == CKSUM_MIRROR_SYNCED &&
      mirror_write_locked (file, file->page, page_size, offset) == -1)
    return lost_locked (m, "writing");
  return 0;
}

int
cksum_mirror_blank (struct cksum_mirror *m, sqlite3 *db)
{
  uint64_t number, pages = 0;

  if (cksum_mirror_pages (m, db, &pages) == -1)
    return -1;
  for (number = 1; number <= pages; ++number)
    if (blank_page (m, db_of (db), number) == -1)
      return -1;
  return 0;
}

int
cksum_page_blank (sqlite3 *db, uint64_t number)
{
  struct cksum_file *f = db_of (db);
  struct cksum_mirror *m = f == NULL ? NULL : cksum_get_mirror (f->shared);

  return m == NULL ? nbdedup_fail (EIO, "pool.db: not open")
                   : blank_page (m, f, number);
}

int
cksum_page_probe (sqlite3 *db, uint64_t number, uint8_t *page)
{
  struct cksum_file *f = db_of (db);
  struct cksum_mirror *m = f == NULL ? NULL : cksum_get_mirror (f->shared);
  uint32_t page_size = f == NULL ? 0 : cksum_get_page_size (f->shared);
  uint64_t offset = (number - 1) * page_size;
  struct mirror_page both;
  int side;

  if (m == NULL || page_size == 0)
    return nbdedup_fail (EIO, "pool.db: not open");
  if (cksum_db_read (f, page, (int) page_size, (sqlite3_int64) offset) ==
      SQLITE_OK)
    return 1;
  WITH_LOCK (&m->files[CKSUM_DB].lock);
  read_both_locked (m, f, page_size, offset, &both);
  /* The read above may have failed for a passing reason. */
  side = mirror_choose_locked (m, &both, page_size, offset);
  if (side == -1)
    return judge_loss (m, &both, page_size, number);
  memcpy (page, both.bytes[side], page_size);
  return 1;
}

static enum cksum_page_state
frame_state (int64_t got, const uint8_t *page, uint32_t page_size,
             uint64_t frame, uint64_t expected)
{
  if (got != (int64_t) page_size)
    return CKSUM_PAGE_UNREADABLE;
  return cksum_frame_cksum (page, page_size, frame) == expected
    ? CKSUM_PAGE_GOOD
    : CKSUM_PAGE_BAD;
}

int
cksum_mirror_check_wal (struct cksum_mirror *m, sqlite3 *db,
                        void (*fn) (void *opaque,
                                    const struct cksum_page_report *r),
                        void *opaque)
{
  struct mirror_file *file = &m->files[CKSUM_WAL];
  uint32_t page_size = cksum_get_wal_page_size (m->shared);
  struct cksum_file *f = wal_of (db);
  uint8_t *one = file->page, *two = file->page + page_size;
  struct cksum_page_report r;
  sqlite3_int64 size;
  uint64_t frame, offset, expected;

  for (frame = 0; f != NULL && page_size > 0; ++frame) {
    r = (struct cksum_page_report) { .number = frame, .wal = true };
    offset = cksum_frame_offset (frame, page_size) + FRAME_HEADER_BYTES;
    {
      WITH_LOCK (&file->lock);
      if (check_state (m, CKSUM_MIRROR_SYNCED) == -1)
        return -1;
      /* The table does not know frames that SQLite would not read. */
      expected = cksum_get_frame (m->shared, frame);
      if (real_size (f, &size) != SQLITE_OK || expected == FRAME_UNKNOWN ||
          offset + page_size > (uint64_t) size)
        break;
      r.first = frame_state (read_first (f, one, page_size, offset), one,
                             page_size, frame, expected);
      r.second = frame_state (mirror_read_locked (file, two, page_size, offset),
                              two, page_size, frame, expected);
      r.repaired = repair_locked (m, f, file, &r, one, two, page_size, offset);
    }
    if (is_worth_telling (&r))
      fn (opaque, &r);
  }
  return 0;
}
