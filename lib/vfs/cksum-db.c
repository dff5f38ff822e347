/* SPDX-License-Identifier: BSD-3-Clause */

/* The main database: its pages carry their checksums.
 *
 * SQLite reads and writes whole pages, with two exceptions: the first 100
 * bytes when it opens the file, and 16 bytes at offset 24 (the change
 * counter).  The VFS takes these from the verified page, too, or as they are if
 * no page verifies: only page size, reserve and cache validity depend on them,
 * and the VFS still verifies every page.  Reading a page past the end of a
 * non-empty file fails with SQLITE_IOERR_DATA: SQLite itself would read zeroes,
 * and so turn the tail of a truncated file into zeroes in a blob.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <endian.h>
#include <stdint.h>
#include <string.h>

#include <sqlite3.h>

#include "base/bytes.h"
#include "base/xxh3.h"
#include "vfs/cksum-chain.h"
#include "vfs/cksum-int.h"

/* SQLite's file format, big-endian. */
#define DB_PAGE_SIZE_OFFSET 16
#define DB_RESERVE_OFFSET 20
#define DB_PAGE_COUNT_OFFSET 28

uint32_t
cksum_parse_db_header (const uint8_t *h)
{
  uint32_t size;

  if (memcmp (h, CKSUM_DB_MAGIC, sizeof CKSUM_DB_MAGIC) != 0 ||
      h[DB_RESERVE_OFFSET] != CKSUM_RESERVE)
    return 0;
  size = h[DB_PAGE_SIZE_OFFSET] << 8 | h[DB_PAGE_SIZE_OFFSET + 1];
  if (size == 1)
    size = 65536;
  return is_page_size (size) ? size : 0;
}

static uint64_t
page_cksum (const uint8_t *page, uint32_t page_size, uint64_t offset)
{
  return xxh3_64_seeded (page, page_size - CKSUM_RESERVE, offset);
}

bool
cksum_page_is_good (const uint8_t *page, uint32_t page_size, uint64_t offset)
{
  return get_le64 (page + page_size - CKSUM_RESERVE) ==
    page_cksum (page, page_size, offset);
}

bool
cksum_page_is_right (struct cksum_shared *s, const uint8_t *page,
                     uint32_t page_size, uint64_t offset)
{
  return cksum_page_is_good (page, page_size, offset) &&
    cksum_expect_page (s, offset / page_size,
                       get_le64 (page + page_size - CKSUM_RESERVE));
}

void
cksum_page_seal (uint8_t *page, uint32_t page_size, uint64_t offset)
{
  put_le64 (page + page_size - CKSUM_RESERVE,
            page_cksum (page, page_size, offset));
}

/* Find the page size if it is not known yet.
 *
 * Returns SQLITE_OK with *page_size 0 if the file is empty: any page size
 * may still be chosen.
 */
static int
db_page_size (struct cksum_file *f, uint32_t *page_size)
{
  uint8_t header[DB_HEADER_BYTES];
  sqlite3_int64 size;
  int rc;

  *page_size = cksum_get_page_size (f->shared);
  if (*page_size != 0)
    return SQLITE_OK;

  rc = real_size (f, &size);
  if (rc != SQLITE_OK)
    return rc;
  cksum_mirror_size (f, &size);
  if (size == 0)
    return SQLITE_OK;
  rc = real_read (f, header, sizeof header, 0);
  if (rc == SQLITE_OK)
    *page_size = cksum_parse_db_header (header);
  if (*page_size == 0)
    *page_size = cksum_mirror_header (f);
  if (*page_size == 0)
    return rc == SQLITE_OK || rc == SQLITE_IOERR_SHORT_READ ? SQLITE_IOERR_DATA
                                                            : rc;
  cksum_set_page_size (f->shared, *page_size);
  return SQLITE_OK;
}

/* A read ended early.  That is right only for an empty file: then SQLite takes
 * the zeroes in 'buf' for an empty database.
 */
static int
db_short_read (struct cksum_file *f)
{
  sqlite3_int64 size;
  int rc;

  rc = real_size (f, &size);
  if (rc != SQLITE_OK)
    return rc;
  return size == 0 ? SQLITE_IOERR_SHORT_READ : SQLITE_IOERR_DATA;
}

int
cksum_db_read_live (struct cksum_file *f, uint8_t *page, uint32_t page_size,
                    sqlite3_int64 offset)
{
  int rc;

  if (cksum_graft_read (f, page, page_size, (uint64_t) offset))
    return SQLITE_OK;
  rc = real_read (f, page, page_size, offset);
  if (rc == SQLITE_OK &&
      cksum_first_is_right (f->shared, page, page_size, (uint64_t) offset))
    return SQLITE_OK;
  if (cksum_mirror_read_page (f, page, page_size, offset) ||
      cksum_readonly_read_page (f, page, page_size, offset))
    return SQLITE_OK;
  if (rc == SQLITE_IOERR_SHORT_READ)
    return db_short_read (f);
  return rc == SQLITE_OK ? SQLITE_IOERR_DATA : rc;
}

static int
db_read_page (struct cksum_file *f, uint8_t *page, uint32_t page_size,
              sqlite3_int64 offset)
{
  return f->snapshot ? cksum_snapshot_read (f, page, page_size, offset)
                     : cksum_db_read_live (f, page, page_size, offset);
}

/* Read any range, page by page.  SQLite does this when a connection still
 * expects another page size.
 */
static int
db_read_pieces (struct cksum_file *f, uint8_t *buf, int len,
                sqlite3_int64 offset, uint32_t page_size)
{
  uint8_t *page = cksum_page_buffer (f);
  uint32_t skip, n;
  int rc;

  if (page == NULL)
    return SQLITE_IOERR_NOMEM;
  while (len > 0) {
    skip = offset % page_size;
    n = page_size - skip;
    if (n > (uint32_t) len)
      n = len;
    rc = db_read_page (f, page, page_size, offset - skip);
    if (rc != SQLITE_OK)
      return rc;
    memcpy (buf, page + skip, n);
    buf += n;
    len -= n;
    offset += n;
  }
  return SQLITE_OK;
}

int
cksum_db_read (struct cksum_file *f, void *buf, int len, sqlite3_int64 offset)
{
  uint32_t page_size;
  int rc;

  if (f->look && f->look (f->look_opaque) != 0)
    return SQLITE_INTERRUPT;
  rc = db_page_size (f, &page_size);
  if (rc == SQLITE_OK && page_size == 0)
    return real_read (f, buf, len, offset);
  if (rc == SQLITE_OK) {
    if ((uint32_t) len == page_size && offset % page_size == 0)
      rc = db_read_page (f, buf, page_size, offset);
    else
      rc = db_read_pieces (f, buf, len, offset, page_size);
  }
  /* sqlite3_open does not return extended error codes yet.  The first statement
   * meets the damage again, and returns one.
   */
  if (rc != SQLITE_OK && len < PAGE_SIZE_MIN)
    return real_read (f, buf, len, offset);
  /* Never return unverified data, not even with an error. */
  if (rc != SQLITE_OK)
    memset (buf, 0, len);
  return rc;
}

/* SQLite writes only whole pages.  Page 1 has their size, but a first
 * transaction larger than the cache writes other pages before it.
 */
int
cksum_db_write (struct cksum_file *f, const void *buf, int len,
                sqlite3_int64 offset)
{
  struct cksum_shared *s = f->shared;
  uint8_t *page;
  uint32_t page_size;
  int rc;

  if (!is_page_size (len) || offset % len != 0)
    return SQLITE_IOERR_WRITE;
  if (offset == 0) {
    /* In a page without room for it the checksum would overwrite content. */
    page_size = cksum_parse_db_header (buf);
    if (page_size != (uint32_t) len)
      return SQLITE_IOERR_DATA;
    cksum_set_page_size (s, page_size);
  }
  else {
    page_size = cksum_get_page_size (s);
    if (page_size == 0) {
      page_size = len;
      cksum_set_page_size (s, page_size);
    }
    if (page_size != (uint32_t) len)
      return SQLITE_IOERR_WRITE;
  }

  cksum_snapshots_save (f, page_size, offset);
  page = cksum_page_buffer (f);
  if (page == NULL)
    return SQLITE_IOERR_NOMEM;
  memcpy (page, buf, len - CKSUM_RESERVE);
  cksum_page_seal (page, page_size, offset);
  rc = cksum_mirror_write (f, page, len, offset);
  if (rc == SQLITE_OK)
    cksum_extend_db_size (s, (uint64_t) offset + len);
  return rc;
}

/* When the WAL is empty SQLite takes the file's size for the database's, and
 * writes it into the next commit.  So return the size in the header, which the
 * checkpoints have written.
 */
int
cksum_db_size (struct cksum_file *f, sqlite3_int64 *size)
{
  uint8_t *page = cksum_page_buffer (f);
  uint64_t known;
  uint32_t page_size, count = 0;
  int rc;

  rc = real_size (f, size);
  if (rc != SQLITE_OK)
    return rc;
  cksum_mirror_size (f, size);
  if (*size == 0)
    return SQLITE_OK;
  if (page == NULL)
    return SQLITE_IOERR_NOMEM;
  if (!cksum_get_db_size (f->shared, &known)) {
    known = (uint64_t) *size;
    rc = db_page_size (f, &page_size);
    if (rc == SQLITE_OK && page_size > 0) {
      rc = db_read_page (f, page, page_size, 0);
      if (rc == SQLITE_OK)
        memcpy (&count, page + DB_PAGE_COUNT_OFFSET, sizeof count);
    }
    if (rc == SQLITE_IOERR_NOMEM)
      return rc;
    /* If page 1 is damaged, SQLite's next read of it fails. */
    if (be32toh (count) > 0)
      known = (uint64_t) be32toh (count) * page_size;
    cksum_set_db_size (f->shared, known);
  }
  /* A truncated file may be smaller than its header says. */
  if ((uint64_t) *size > known)
    *size = (sqlite3_int64) known;
  return SQLITE_OK;
}
