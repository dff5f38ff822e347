/* SPDX-License-Identifier: BSD-3-Clause */

/* The WAL, whose pages' checksums are in memory.
 *
 * Frame i is at offset 32 + i * (24 + page size): a header of 24 bytes,
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
 * So SQLite has written or recovered every frame before it reads the frame as
 * a page, and the table has an entry for it.  A page without an entry is an
 * error.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <sqlite3.h>

#include "base/xxh3.h"
#include "vfs/cksum-int.h"

#define WAL_PAGE_SIZE_OFFSET 8 /* SQLite's file format, big-endian */

/* The page size in a WAL header, 0 if there is none. */
static uint32_t
parse_wal_header (const uint8_t *h)
{
  uint32_t size;

  memcpy (&size, h + WAL_PAGE_SIZE_OFFSET, sizeof size);
  size = be32toh (size);
  return is_page_size (size) ? size : 0;
}

/* The checksum of all bytes.  The reserved ones are those in SQLite's cache. */
uint64_t
cksum_frame_cksum (const uint8_t *page, uint32_t page_size, uint64_t frame)
{
  uint64_t h = xxh3_64_seeded (page, page_size, frame);

  return h == FRAME_UNKNOWN ? 1 : h;
}

/* Read the page of 'frame' and compare it with the table. */
static int
wal_read_page (struct cksum_file *f, uint8_t *page, uint32_t page_size,
               uint64_t frame)
{
  uint64_t expected, offset;
  int rc;

  expected = cksum_get_frame (f->shared, frame);
  if (expected == FRAME_UNKNOWN)
    return SQLITE_IOERR_DATA;
  offset = cksum_frame_offset (frame, page_size) + FRAME_HEADER_BYTES;
  rc = real_read (f, page, page_size, offset);
  if (rc == SQLITE_OK && cksum_frame_cksum (page, page_size, frame) == expected)
    return SQLITE_OK;
  if (cksum_mirror_read_frame (f, page, page_size, frame))
    return SQLITE_OK;
  return rc == SQLITE_OK || rc == SQLITE_IOERR_SHORT_READ ? SQLITE_IOERR_DATA
                                                          : rc;
}

/* SQLite reads whole frames at recovery, checks their own checksums, and ends
 * the log at the first bad one.  The table learns these pages; those that it
 * knows already must not have changed.
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
  found = cksum_frame_cksum (buf + FRAME_HEADER_BYTES, page_size, frame);
  expected = cksum_get_frame (f->shared, frame);
  if (expected == FRAME_UNKNOWN)
    return cksum_set_frame (f->shared, frame, found);
  return found == expected ? SQLITE_OK : SQLITE_IOERR_DATA;
}

/* Read the header, or only the checksum in it. */
static int
wal_read_header (struct cksum_file *f, uint8_t *buf, int len,
                 sqlite3_int64 offset)
{
  int rc;

  rc = real_read (f, buf, len, offset);
  if (rc == SQLITE_OK && offset == 0 && len == WAL_HEADER_BYTES &&
      parse_wal_header (buf) > 0)
    cksum_set_wal_page_size (f->shared, parse_wal_header (buf));
  return rc;
}

int
cksum_wal_read (struct cksum_file *f, void *buf, int len, sqlite3_int64 offset)
{
  uint32_t page_size, frame_size, start;
  uint64_t frame;
  uint8_t *page;
  int rc;

  if (offset < WAL_HEADER_BYTES)
    return wal_read_header (f, buf, len, offset);
  page_size = cksum_get_wal_page_size (f->shared);
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
    return SQLITE_IOERR_DATA; /* SQLite has no such reads */
  else if ((uint32_t) len == page_size)
    rc = wal_read_page (f, buf, page_size, frame);
  else {
    /* The connection still expects smaller pages. */
    page = cksum_page_buffer (f);
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

/* The part of a frame's page that a write from 'offset' to 'end' changes. */
struct frame_part {
  uint64_t frame;
  uint64_t start; /* first byte of its page in the file */
  uint64_t end;
  bool touched; /* the write changes some of the page */
  bool whole;   /* ... all of it */
  bool last;    /* ... its last byte */
};

static struct frame_part
get_frame_part (uint64_t frame, uint32_t page_size, uint64_t offset,
                uint64_t end)
{
  struct frame_part part = { .frame = frame };

  part.start = cksum_frame_offset (frame, page_size) + FRAME_HEADER_BYTES;
  part.end = part.start + page_size;
  part.touched = offset < part.end && end > part.start;
  part.whole = offset <= part.start && end >= part.end;
  part.last = part.touched && end >= part.end;
  return part;
}

/* SQLite has written the last piece of a page: learn the whole page from the
 * file.
 */
static int
wal_learn_page (struct cksum_file *f, const struct frame_part *part,
                uint32_t page_size)
{
  uint8_t *page = cksum_page_buffer (f);
  int rc;

  if (page == NULL)
    return SQLITE_IOERR_NOMEM;
  rc = real_read (f, page, page_size, part->start);
  if (rc == SQLITE_IOERR_SHORT_READ) /* the first piece is missing */
    return SQLITE_IOERR_WRITE;
  if (rc != SQLITE_OK)
    return rc;
  return cksum_set_frame (f->shared, part->frame,
                          cksum_frame_cksum (page, page_size, part->frame));
}

/* Make the pages unknown before the write, until it has succeeded: a write that
 * fails half way leaves neither the old page nor the new one.
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
      cksum_set_frame (f->shared, i, FRAME_UNKNOWN);
  }
  rc = cksum_mirror_write (f, buf, len, offset);
  for (i = first; i <= last && rc == SQLITE_OK; ++i) {
    part = get_frame_part (i, page_size, offset, end);
    if (part.whole)
      rc = cksum_set_frame (f->shared, i,
                            cksum_frame_cksum (buf + (part.start - offset),
                                               page_size, i));
    else if (part.last)
      rc = wal_learn_page (f, &part, page_size);
  }
  return rc;
}

int
cksum_wal_write (struct cksum_file *f, const void *buf, int len,
                 sqlite3_int64 offset)
{
  uint32_t page_size;
  int rc;

  if (len <= 0)
    return SQLITE_OK;
  if (offset < WAL_HEADER_BYTES) {
    /* SQLite writes the header whole and in its own write. */
    if (offset != 0 || len != WAL_HEADER_BYTES || parse_wal_header (buf) == 0)
      return SQLITE_IOERR_WRITE;
    rc = cksum_mirror_write (f, buf, len, offset);
    if (rc == SQLITE_OK)
      cksum_set_wal_page_size (f->shared, parse_wal_header (buf));
    return rc;
  }
  page_size = cksum_get_wal_page_size (f->shared);
  if (page_size == 0)
    return SQLITE_IOERR_WRITE;
  return wal_write_frames (f, buf, len, offset, page_size);
}
