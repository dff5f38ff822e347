/* SPDX-License-Identifier: BSD-3-Clause */

/* The checksumming VFS: see cksum-vfs.h for what it promises.
 *
 * It treats two kinds of files, the main database and its WAL; all others
 * (rollback journals, temporary files) go straight to "unix-excl".
 *
 * Main database.  SQLite reads and writes whole pages, with two
 * exceptions, which pass unverified: the first 100 bytes when it opens the
 * file, and 16 bytes at offset 24 (the change counter).  Nothing but page
 * size, reserve and cache validity depends on them, and a wrong page size
 * makes every later page fail.  A page that lies past the end of a file
 * that is not empty is SQLITE_IOERR_DATA too: SQLite itself would take it
 * for zeroes, which is how the tail of a truncated file would turn into
 * zeroes in a blob.
 *
 * WAL.  Frame i stands at 32 + i * (24 + page size): a header of 24 bytes,
 * then the page.  SQLite
 *
 *  - writes header and page separately, and splits a page where it has to
 *    sync up to a sector's end, so a page may come in two pieces;
 *  - overwrites a page in place if one transaction writes it twice;
 *  - reads whole frames at recovery (which always happens in this process
 *    first, because the index is in its heap) and when it recomputes its
 *    own checksums;
 *  - reads pages otherwise, for queries and for checkpoints.
 *
 * So every frame that is legitimately read as a page was written or
 * recovered before, and has an entry in the table.  A page without an
 * entry is an error.  Entries of a WAL that was restarted stay until they
 * are overwritten; SQLite does not read those frames.
 *
 * The table belongs to the database, not to the WAL's file handle: the
 * index may outlive the connection that recovered it.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>
#include <xxhash.h>

#include "bytes.h"
#include "cleanup.h"
#include "cksum-vfs.h"
#include "error.h"
#include "lock.h"

#define REAL_VFS_NAME "unix-excl"

#define PAGE_SIZE_MIN 512
#define PAGE_SIZE_MAX 65536

/* SQLite's file format, big-endian. */
#define DB_MAGIC "SQLite format 3"      /* with its NUL: 16 bytes */
#define DB_HEADER_BYTES 100
#define DB_PAGE_SIZE_OFFSET 16
#define DB_RESERVE_OFFSET 20
#define WAL_HEADER_BYTES 32
#define WAL_PAGE_SIZE_OFFSET 8
#define FRAME_HEADER_BYTES 24

/* What the connections of this process to one database share. */
struct shared {
  struct shared *next;          /* protected by databases_lock */
  unsigned refs;                /* protected by databases_lock */
  char *path;                   /* owned; of the main database */

  struct lock lock;             /* protects everything below */
  uint32_t page_size;           /* of the main database; 0: not known yet */
  uint32_t wal_page_size;       /* 0: no WAL header seen yet */
  uint64_t *frames;             /* owned; checksum of each frame's page */
  uint64_t nr_frames;           /* frames with room in the table */
};

/* In 'frames': nothing known about this frame. */
#define FRAME_UNKNOWN 0

static struct lock databases_lock;      /* protects the next two */
static struct shared *databases;
static bool registered;

static sqlite3_vfs *real_vfs;   /* set once, before the VFS is registered */

enum role { ROLE_OTHER, ROLE_MAIN, ROLE_WAL };

/* One open file.  The real VFS's follows it in memory. */
struct cksum_file {
  sqlite3_file base;            /* must be first */
  enum role role;
  struct shared *shared;        /* a reference; NULL for ROLE_OTHER */
  uint8_t *page;                /* owned; PAGE_SIZE_MAX bytes, or NULL:
                                 * one thread at a time uses a file */
};

static_assert (sizeof (struct cksum_file) % 8 == 0,
               "the real VFS's file needs alignment");

static sqlite3_file *
real_file (struct cksum_file *f)
{
  return (sqlite3_file *) (f + 1);
}

/*----------------------------------------------------------------------
 * Shared state
 */

/* The state of the database at path[0 .. len-1]; NULL: no memory. */
static struct shared *
shared_get (const char *path, size_t len)
{
  struct shared *s;

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
  s->refs = 1;
  s->next = databases;
  databases = s;
  return s;
}

static void
shared_put (struct shared *s)
{
  struct shared **p;

  if (s == NULL)
    return;
  WITH_LOCK (&databases_lock);
  assert (s->refs > 0);
  if (--s->refs > 0)
    return;
  for (p = &databases; *p != s; p = &(*p)->next)
    assert (*p != NULL);
  *p = s->next;
  lock_destroy (&s->lock);
  free (s->frames);
  free (s->path);
  free (s);
}

/* Forget all frames from number 'first' on. */
static void
frames_forget_locked (struct shared *s, uint64_t first)
{
  assert_held (&s->lock);
  if (first < s->nr_frames)
    memset (&s->frames[first], 0,
            (s->nr_frames - first) * sizeof s->frames[0]);
}

static void
set_wal_page_size (struct shared *s, uint32_t page_size)
{
  WITH_LOCK (&s->lock);
  if (s->wal_page_size != page_size) {
    frames_forget_locked (s, 0);
    s->wal_page_size = page_size;
  }
}

static uint32_t
get_wal_page_size (struct shared *s)
{
  WITH_LOCK (&s->lock);
  return s->wal_page_size;
}

static uint32_t
get_page_size (struct shared *s)
{
  WITH_LOCK (&s->lock);
  return s->page_size;
}

static void
set_page_size (struct shared *s, uint32_t page_size)
{
  WITH_LOCK (&s->lock);
  s->page_size = page_size;
}

static uint64_t
get_frame (struct shared *s, uint64_t frame)
{
  WITH_LOCK (&s->lock);
  return frame < s->nr_frames ? s->frames[frame] : FRAME_UNKNOWN;
}

static int
set_frame (struct shared *s, uint64_t frame, uint64_t cksum)
{
  uint64_t n, *p;

  WITH_LOCK (&s->lock);
  if (frame >= s->nr_frames) {
    if (cksum == FRAME_UNKNOWN)
      return SQLITE_OK;
    n = s->nr_frames > 0 ? s->nr_frames : 1024;
    while (n <= frame)
      n *= 2;
    p = realloc (s->frames, n * sizeof p[0]);
    if (p == NULL)
      return SQLITE_IOERR_NOMEM;
    memset (&p[s->nr_frames], 0, (n - s->nr_frames) * sizeof p[0]);
    s->frames = p;
    s->nr_frames = n;
  }
  s->frames[frame] = cksum;
  return SQLITE_OK;
}

/*----------------------------------------------------------------------
 * Page sizes and checksums
 */

static bool
is_page_size (uint64_t size)
{
  return size >= PAGE_SIZE_MIN && size <= PAGE_SIZE_MAX &&
    (size & (size - 1)) == 0;
}

/* The page size in a database header, 0 if this is no header of a database
 * whose pages have room for checksums.
 */
static uint32_t
parse_db_header (const uint8_t *h)
{
  uint32_t size;

  if (memcmp (h, DB_MAGIC, sizeof DB_MAGIC) != 0 ||
      h[DB_RESERVE_OFFSET] != CKSUM_RESERVE)
    return 0;
  size = h[DB_PAGE_SIZE_OFFSET] << 8 | h[DB_PAGE_SIZE_OFFSET + 1];
  if (size == 1)
    size = 65536;
  return is_page_size (size) ? size : 0;
}

/* The page size in a WAL header, 0 if there is none. */
static uint32_t
parse_wal_header (const uint8_t *h)
{
  uint32_t size;

  memcpy (&size, h + WAL_PAGE_SIZE_OFFSET, sizeof size);
  size = be32toh (size);
  return is_page_size (size) ? size : 0;
}

static uint64_t
page_cksum (const uint8_t *page, uint32_t page_size, uint64_t offset)
{
  return XXH3_64bits_withSeed (page, page_size - CKSUM_RESERVE, offset);
}

static bool
page_is_good (const uint8_t *page, uint32_t page_size, uint64_t offset)
{
  return get_le64 (page + page_size - CKSUM_RESERVE) ==
    page_cksum (page, page_size, offset);
}

/* Never FRAME_UNKNOWN.  Of all bytes: the reserved ones are as SQLite has
 * them in its cache.
 */
static uint64_t
frame_cksum (const uint8_t *page, uint32_t page_size, uint64_t frame)
{
  uint64_t h = XXH3_64bits_withSeed (page, page_size, frame);

  return h == FRAME_UNKNOWN ? 1 : h;
}

static uint8_t *
get_page_buffer (struct cksum_file *f)
{
  if (f->page == NULL)
    f->page = malloc (PAGE_SIZE_MAX);
  return f->page;
}

static int
real_read (struct cksum_file *f, void *buf, int len, sqlite3_int64 offset)
{
  sqlite3_file *real = real_file (f);

  return real->pMethods->xRead (real, buf, len, offset);
}

static int
real_write (struct cksum_file *f, const void *buf, int len,
            sqlite3_int64 offset)
{
  sqlite3_file *real = real_file (f);

  return real->pMethods->xWrite (real, buf, len, offset);
}

static int
real_size (struct cksum_file *f, sqlite3_int64 *size)
{
  sqlite3_file *real = real_file (f);

  return real->pMethods->xFileSize (real, size);
}

/*----------------------------------------------------------------------
 * The main database
 */

/* Find the page size if it is not known yet.
 *
 * Returns SQLITE_OK with *page_size 0 if the file is empty: any page size
 * may still be chosen.
 */
static int
main_page_size (struct cksum_file *f, uint32_t *page_size)
{
  uint8_t header[DB_HEADER_BYTES];
  sqlite3_int64 size;
  int rc;

  *page_size = get_page_size (f->shared);
  if (*page_size != 0)
    return SQLITE_OK;

  rc = real_size (f, &size);
  if (rc != SQLITE_OK || size == 0)
    return rc;
  rc = real_read (f, header, sizeof header, 0);
  if (rc != SQLITE_OK)
    return rc == SQLITE_IOERR_SHORT_READ ? SQLITE_IOERR_DATA : rc;
  *page_size = parse_db_header (header);
  if (*page_size == 0)
    return SQLITE_IOERR_DATA;
  set_page_size (f->shared, *page_size);
  return SQLITE_OK;
}

/* A read that ended early.  It is right only for the empty file; then
 * SQLite takes the zeroes in 'buf' for an empty database.
 */
static int
main_short_read (struct cksum_file *f)
{
  sqlite3_int64 size;
  int rc;

  rc = real_size (f, &size);
  if (rc != SQLITE_OK)
    return rc;
  return size == 0 ? SQLITE_IOERR_SHORT_READ : SQLITE_IOERR_DATA;
}

static int
main_read_page (struct cksum_file *f, uint8_t *page, uint32_t page_size,
                sqlite3_int64 offset)
{
  int rc;

  rc = real_read (f, page, page_size, offset);
  if (rc == SQLITE_IOERR_SHORT_READ)
    return main_short_read (f);
  if (rc != SQLITE_OK)
    return rc;
  if (!page_is_good (page, page_size, offset))
    return SQLITE_IOERR_DATA;
  return SQLITE_OK;
}

/* Any range, through the pages that it lies in.  SQLite does this when a
 * connection still expects another page size.
 */
static int
main_read_pieces (struct cksum_file *f, uint8_t *buf, int len,
                  sqlite3_int64 offset, uint32_t page_size)
{
  uint8_t *page = get_page_buffer (f);
  uint32_t skip, n;
  int rc;

  if (page == NULL)
    return SQLITE_IOERR_NOMEM;
  while (len > 0) {
    skip = offset % page_size;
    n = page_size - skip;
    if (n > (uint32_t) len)
      n = len;
    rc = main_read_page (f, page, page_size, offset - skip);
    if (rc != SQLITE_OK)
      return rc;
    memcpy (buf, page + skip, n);
    buf += n;
    len -= n;
    offset += n;
  }
  return SQLITE_OK;
}

static int
main_read (struct cksum_file *f, void *buf, int len, sqlite3_int64 offset)
{
  uint32_t page_size;
  int rc;

  if (len < PAGE_SIZE_MIN)
    return real_read (f, buf, len, offset);

  rc = main_page_size (f, &page_size);
  if (rc == SQLITE_OK && page_size == 0)
    return real_read (f, buf, len, offset);
  if (rc == SQLITE_OK) {
    if ((uint32_t) len == page_size && offset % page_size == 0)
      rc = main_read_page (f, buf, page_size, offset);
    else
      rc = main_read_pieces (f, buf, len, offset, page_size);
  }
  /* Nothing unverified may leave, not even with an error. */
  if (rc != SQLITE_OK)
    memset (buf, 0, len);
  return rc;
}

/* SQLite writes nothing but whole pages.  Page 1 tells their size; but a
 * first transaction larger than the cache writes others before it.
 */
static int
main_write (struct cksum_file *f, const void *buf, int len,
            sqlite3_int64 offset)
{
  struct shared *s = f->shared;
  uint8_t *page;
  uint32_t page_size;

  if (!is_page_size (len) || offset % len != 0)
    return SQLITE_IOERR_WRITE;
  if (offset == 0) {
    /* Without room for the checksums they would overwrite content. */
    page_size = parse_db_header (buf);
    if (page_size != (uint32_t) len)
      return SQLITE_IOERR_DATA;
    set_page_size (s, page_size);
  }
  else {
    page_size = get_page_size (s);
    if (page_size == 0) {
      page_size = len;
      set_page_size (s, page_size);
    }
    if (page_size != (uint32_t) len)
      return SQLITE_IOERR_WRITE;
  }

  page = get_page_buffer (f);
  if (page == NULL)
    return SQLITE_IOERR_NOMEM;
  memcpy (page, buf, len - CKSUM_RESERVE);
  put_le64 (page + len - CKSUM_RESERVE, page_cksum (page, len, offset));
  return real_write (f, page, len, offset);
}

/*----------------------------------------------------------------------
 * The WAL
 */

/* Read the page of 'frame' and compare it with the table. */
static int
wal_read_page (struct cksum_file *f, uint8_t *page, uint32_t page_size,
               uint64_t frame)
{
  uint64_t expected, offset;
  int rc;

  expected = get_frame (f->shared, frame);
  if (expected == FRAME_UNKNOWN)
    return SQLITE_IOERR_DATA;
  offset = WAL_HEADER_BYTES + frame * (FRAME_HEADER_BYTES + page_size) +
    FRAME_HEADER_BYTES;
  rc = real_read (f, page, page_size, offset);
  if (rc == SQLITE_IOERR_SHORT_READ)
    return SQLITE_IOERR_DATA;
  if (rc != SQLITE_OK)
    return rc;
  if (frame_cksum (page, page_size, frame) != expected)
    return SQLITE_IOERR_DATA;
  return SQLITE_OK;
}

/* Whole frames are read at recovery: SQLite checks their own checksums
 * and ends the log at the first bad one, and the table learns the pages.
 * What it knows already must not have changed.
 */
static int
wal_read_frame (struct cksum_file *f, uint8_t *buf, uint32_t page_size,
                uint64_t frame, sqlite3_int64 offset)
{
  uint64_t expected, found;
  int rc;

  rc = real_read (f, buf, FRAME_HEADER_BYTES + page_size, offset);
  if (rc != SQLITE_OK)
    return rc;
  found = frame_cksum (buf + FRAME_HEADER_BYTES, page_size, frame);
  expected = get_frame (f->shared, frame);
  if (expected == FRAME_UNKNOWN)
    return set_frame (f->shared, frame, found);
  return found == expected ? SQLITE_OK : SQLITE_IOERR_DATA;
}

/* The header, or the checksum in it alone. */
static int
wal_read_header (struct cksum_file *f, uint8_t *buf, int len,
                 sqlite3_int64 offset)
{
  int rc;

  rc = real_read (f, buf, len, offset);
  if (rc == SQLITE_OK && offset == 0 && len == WAL_HEADER_BYTES &&
      parse_wal_header (buf) > 0)
    set_wal_page_size (f->shared, parse_wal_header (buf));
  return rc;
}

static int
wal_read (struct cksum_file *f, void *buf, int len, sqlite3_int64 offset)
{
  uint32_t page_size, frame_size, start;
  uint64_t frame;
  uint8_t *page;
  int rc;

  if (offset < WAL_HEADER_BYTES)
    return wal_read_header (f, buf, len, offset);
  page_size = get_wal_page_size (f->shared);
  if (page_size == 0)
    return SQLITE_IOERR_DATA;
  frame_size = FRAME_HEADER_BYTES + page_size;
  frame = (offset - WAL_HEADER_BYTES) / frame_size;
  start = (offset - WAL_HEADER_BYTES) % frame_size;

  if (start == 0 && (uint32_t) len == frame_size)
    rc = wal_read_frame (f, buf, page_size, frame, offset);
  else if (start + len <= FRAME_HEADER_BYTES)
    return real_read (f, buf, len, offset);
  else if (start < FRAME_HEADER_BYTES || start + len > frame_size)
    return SQLITE_IOERR_DATA;   /* SQLite has no such reads */
  else if ((uint32_t) len == page_size)
    rc = wal_read_page (f, buf, page_size, frame);
  else {
    /* A connection that still expects smaller pages. */
    page = get_page_buffer (f);
    if (page == NULL)
      return SQLITE_IOERR_NOMEM;
    rc = wal_read_page (f, page, page_size, frame);
    if (rc == SQLITE_OK)
      memcpy (buf, page + start - FRAME_HEADER_BYTES, len);
  }
  if (rc != SQLITE_OK && rc != SQLITE_IOERR_SHORT_READ)
    memset (buf, 0, len);
  return rc;
}

/* How a write, from 'offset' to before 'end', meets the page of a frame. */
struct frame_part {
  uint64_t frame;
  uint64_t start;               /* first byte of its page in the file */
  uint64_t end;
  bool touched;                 /* the write changes some of the page */
  bool whole;                   /* ... all of it */
  bool last;                    /* ... its last byte */
};

static struct frame_part
get_frame_part (uint64_t frame, uint32_t page_size,
                uint64_t offset, uint64_t end)
{
  struct frame_part part = { .frame = frame };

  part.start = WAL_HEADER_BYTES + frame * (FRAME_HEADER_BYTES + page_size) +
    FRAME_HEADER_BYTES;
  part.end = part.start + page_size;
  part.touched = offset < part.end && end > part.start;
  part.whole = offset <= part.start && end >= part.end;
  part.last = part.touched && end >= part.end;
  return part;
}

/* A page arrived in pieces, of which the last one has just been written.
 * Learn it as it is in the file.
 */
static int
wal_learn_page (struct cksum_file *f, const struct frame_part *part,
                uint32_t page_size)
{
  uint8_t *page = get_page_buffer (f);
  int rc;

  if (page == NULL)
    return SQLITE_IOERR_NOMEM;
  rc = real_read (f, page, page_size, part->start);
  if (rc == SQLITE_IOERR_SHORT_READ)    /* the first piece is missing */
    return SQLITE_IOERR_WRITE;
  if (rc != SQLITE_OK)
    return rc;
  return set_frame (f->shared, part->frame,
                    frame_cksum (page, page_size, part->frame));
}

/* Pages are unknown from before the write until it has succeeded: a write
 * that fails half way leaves neither the old page nor the new one.
 */
static int
wal_write_frames (struct cksum_file *f, const uint8_t *buf, int len,
                  uint64_t offset, uint32_t page_size)
{
  uint32_t frame_size = FRAME_HEADER_BYTES + page_size;
  uint64_t end = offset + len;
  uint64_t first = (offset - WAL_HEADER_BYTES) / frame_size;
  uint64_t last = (end - 1 - WAL_HEADER_BYTES) / frame_size;
  struct frame_part part;
  uint64_t i;
  int rc;

  for (i = first; i <= last; ++i) {
    part = get_frame_part (i, page_size, offset, end);
    if (part.touched)
      set_frame (f->shared, i, FRAME_UNKNOWN);
  }
  rc = real_write (f, buf, len, offset);
  for (i = first; i <= last && rc == SQLITE_OK; ++i) {
    part = get_frame_part (i, page_size, offset, end);
    if (part.whole)
      rc = set_frame (f->shared, i,
                      frame_cksum (buf + (part.start - offset), page_size, i));
    else if (part.last)
      rc = wal_learn_page (f, &part, page_size);
  }
  return rc;
}

static int
wal_write (struct cksum_file *f, const void *buf, int len,
           sqlite3_int64 offset)
{
  uint32_t page_size;
  int rc;

  if (len <= 0)
    return SQLITE_OK;
  if (offset < WAL_HEADER_BYTES) {
    /* The header comes alone and whole. */
    if (offset != 0 || len != WAL_HEADER_BYTES || parse_wal_header (buf) == 0)
      return SQLITE_IOERR_WRITE;
    rc = real_write (f, buf, len, offset);
    if (rc == SQLITE_OK)
      set_wal_page_size (f->shared, parse_wal_header (buf));
    return rc;
  }
  page_size = get_wal_page_size (f->shared);
  if (page_size == 0)
    return SQLITE_IOERR_WRITE;
  return wal_write_frames (f, buf, len, offset, page_size);
}

static void
wal_truncated (struct shared *s, uint64_t size)
{
  uint64_t first = 0;

  WITH_LOCK (&s->lock);
  if (s->wal_page_size != 0 && size > WAL_HEADER_BYTES)
    first = (size - WAL_HEADER_BYTES) /
      (FRAME_HEADER_BYTES + s->wal_page_size);
  frames_forget_locked (s, first);
}

/*----------------------------------------------------------------------
 * File methods
 */

static int
cksum_close (sqlite3_file *file)
{
  struct cksum_file *f = (struct cksum_file *) file;
  sqlite3_file *real = real_file (f);
  int rc;

  rc = real->pMethods->xClose (real);
  shared_put (f->shared);
  f->shared = NULL;
  free (f->page);
  f->page = NULL;
  f->base.pMethods = NULL;
  return rc;
}

static int
cksum_read (sqlite3_file *file, void *buf, int len, sqlite3_int64 offset)
{
  struct cksum_file *f = (struct cksum_file *) file;

  switch (f->role) {
  case ROLE_MAIN: return main_read (f, buf, len, offset);
  case ROLE_WAL: return wal_read (f, buf, len, offset);
  default: return real_read (f, buf, len, offset);
  }
}

static int
cksum_write (sqlite3_file *file, const void *buf, int len,
             sqlite3_int64 offset)
{
  struct cksum_file *f = (struct cksum_file *) file;

  switch (f->role) {
  case ROLE_MAIN: return main_write (f, buf, len, offset);
  case ROLE_WAL: return wal_write (f, buf, len, offset);
  default: return real_write (f, buf, len, offset);
  }
}

static int
cksum_truncate (sqlite3_file *file, sqlite3_int64 size)
{
  struct cksum_file *f = (struct cksum_file *) file;
  sqlite3_file *real = real_file (f);
  int rc;

  rc = real->pMethods->xTruncate (real, size);
  if (rc != SQLITE_OK)
    return rc;
  if (f->role == ROLE_WAL)
    wal_truncated (f->shared, size);
  else if (f->role == ROLE_MAIN && size == 0)
    set_page_size (f->shared, 0);       /* any may be chosen again */
  return SQLITE_OK;
}

static int
cksum_sync (sqlite3_file *file, int flags)
{
  sqlite3_file *real = real_file ((struct cksum_file *) file);

  return real->pMethods->xSync (real, flags);
}

static int
cksum_file_size (sqlite3_file *file, sqlite3_int64 *size)
{
  return real_size ((struct cksum_file *) file, size);
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

  /* What is read through a mapping is not verified: there is none. */
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

/* The length of the database's path if 'path' is the name of a WAL, else
 * 0.
 */
static size_t
wal_path_len (const char *path)
{
  size_t len = strlen (path);

  return len > 4 && strcmp (path + len - 4, "-wal") == 0 ? len - 4 : 0;
}

static int
cksum_open (sqlite3_vfs *vfs, const char *path, sqlite3_file *file,
            int flags, int *out_flags)
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
    len = wal_path_len (path);
    if (len == 0)               /* SQLite's name for it never differs */
      return SQLITE_CANTOPEN;
  }
  if (f->role != ROLE_OTHER) {
    f->shared = shared_get (path, len);
    if (f->shared == NULL)
      return SQLITE_NOMEM;
  }

  rc = real_vfs->xOpen (real_vfs, path, real, flags, out_flags);
  if (rc != SQLITE_OK) {
    if (real->pMethods != NULL)
      real->pMethods->xClose (real);
    shared_put (f->shared);
    f->shared = NULL;
    return rc;
  }
  f->base.pMethods = &cksum_methods;
  return SQLITE_OK;
}

static int
cksum_delete (sqlite3_vfs *vfs, const char *path, int sync_dir)
{
  size_t len = wal_path_len (path);
  struct shared *s;
  int rc;

  (void) vfs;
  rc = real_vfs->xDelete (real_vfs, path, sync_dir);
  if (len > 0) {
    s = shared_get (path, len);
    if (s != NULL)
      wal_truncated (s, 0);
    shared_put (s);
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

static void
(*cksum_dl_sym (sqlite3_vfs *vfs, void *handle, const char *symbol)) (void)
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
init_databases_lock (void)
{
  lock_init (&databases_lock);
}

int
cksum_vfs_register (void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  int rc;

  pthread_once (&once, init_databases_lock);
  WITH_LOCK (&databases_lock);
  if (registered)
    return 0;

  real_vfs = sqlite3_vfs_find (REAL_VFS_NAME);
  if (real_vfs == NULL || real_vfs->iVersion < 2)
    return nbdedup_fail (ENOSYS, "SQLite %s: has no VFS \"%s\"; nbdedup needs "
                         "SQLite 3.40 or later for Unix",
                         sqlite3_libversion (), REAL_VFS_NAME);
  cksum_vfs.szOsFile = sizeof (struct cksum_file) + real_vfs->szOsFile;
  cksum_vfs.mxPathname = real_vfs->mxPathname;
  rc = sqlite3_vfs_register (&cksum_vfs, 0);
  if (rc != SQLITE_OK)
    return nbdedup_fail (ENOMEM, "SQLite: registering the VFS \"%s\": %s",
                         CKSUM_VFS_NAME, sqlite3_errstr (rc));
  registered = true;
  return 0;
}
