/* SPDX-License-Identifier: BSD-3-Clause */

/* Tables "record" and "count" of pool.db: the records, and those reference
 * counts that are kept apart from them (counts.h).
 */

#include <config.h>

#include <assert.h>

#include "format/counts.h"
#include "format/record-row.h"
#include "meta/meta-conn.h"

/* An older pool that is open read-only has no table "count", nor has another
 * before it is fully open: 1; 0; -1.
 */
static int
has_counts (struct meta_conn *c)
{
  return meta_has_table (c, ST_COUNT_TABLE, &c->has_counts);
}
#define USING_RECORD_STMT(st, c, which)                                        \
  USING_STMT_IF (st, c, has_counts (c), which)

/* Column 0: a row of table "record". */
static int
take_entries (sqlite3_stmt *st, struct blob *b)
{
  const uint8_t *row = sqlite3_column_blob (st, 0);
  const size_t len = (size_t) sqlite3_column_bytes (st, 0);

  if (!record_row_is_packed (row, len))
    return col_blob (st, 0, b);
  if (blob_reserve (b, RECORD_ROW_MAX) == -1)
    return -1;
  b->len = record_row_unpack (row, len, b->p);
  return 0;
}

int
meta_record_get_parts (struct meta_conn *c, uint64_t group, struct blob *b,
                       struct blob *counts)
{
  USING_RECORD_STMT (st, c, ST_RECORD_GET);
  int r;

  b->len = counts->len = 0;
  bind_u64 (st, 1, group);
  r = step_one (c, st, "reading records");
  if (r == 1 && (take_entries (st, b) == -1 || col_blob (st, 1, counts) == -1))
    return -1;
  return r;
}

/* Turn a row of both tables into a group's records. */
static int
take_row (sqlite3_stmt *st, uint64_t group, struct blob *b)
{
  size_t len = (size_t) sqlite3_column_bytes (st, 1);

  if (take_entries (st, b) == -1)
    return -1;
  if (len > 0)
    counts_apply (group, b->p, &b->len, sqlite3_column_blob (st, 1), len);
  return 0;
}

int
meta_record_get (struct meta_conn *c, uint64_t group, struct blob *b)
{
  USING_RECORD_STMT (st, c, ST_RECORD_GET);
  int r;

  b->len = 0;
  bind_u64 (st, 1, group);
  r = step_one (c, st, "reading records");
  return r == 1 && take_row (st, group, b) == -1 ? -1 : r;
}

int
meta_record_find (struct meta_conn *c, uint64_t addr, struct blob *row,
                  struct record *r)
{
  const uint64_t group = addr / RECORD_GROUP_SECTORS;
  size_t off = 0;
  int n = meta_record_get (c, group, row);

  if (n != 1)
    return n;
  while ((n = record_next (group, row->p, row->len, &off, r)) == 1)
    if (r->ptr.addr == addr)
      return 1;
  return n;
}

static int
delete_counts (struct meta_conn *c, uint64_t group)
{
  int r = has_counts (c);

  return r == 1 ? meta_run_key (c, ST_COUNT_DELETE, group, "writing counts")
                : r;
}

static int
put_row (struct meta_conn *c, enum meta_stmt which, uint64_t group,
         const uint8_t *buf, size_t len, const char *doing)
{
  USING_STMT (st, c, which);

  bind_u64 (st, 1, group);
  bind_blob (st, 2, buf, len);
  return meta_run (c, st, doing);
}

int
meta_record_put (struct meta_conn *c, uint64_t group, const uint8_t *buf,
                 size_t len)
{
  uint8_t row[RECORD_ROW_MAX];
  int n;

  assert (len > 0); /* else meta_record_delete */
  n = record_row_pack (group, buf, len, row);
  return n == -1 ||
      put_row (c, ST_RECORD_PUT, group, row, (size_t) n, "writing records") ==
        -1
    ? -1
    : delete_counts (c, group);
}

int
meta_record_delete (struct meta_conn *c, uint64_t group)
{
  return meta_run_key (c, ST_RECORD_DELETE, group, "deleting records") == -1
    ? -1
    : delete_counts (c, group);
}

int
meta_record_delete_range (struct meta_conn *c, uint64_t first, uint64_t last)
{
  USING_STMT (st, c, ST_RECORD_DELETE_RANGE);

  assert (first <= last);
  bind_u64 (st, 1, first);
  bind_u64 (st, 2, last);
  return meta_run (c, st, "deleting records");
}

int
meta_count_get (struct meta_conn *c, uint64_t group, struct blob *counts)
{
  int r = has_counts (c);

  counts->len = 0;
  if (r != 1)
    return r;
  USING_STMT (st, c, ST_COUNT_GET);
  bind_u64 (st, 1, group);
  r = step_one (c, st, "reading counts");
  return r == 1 && col_blob (st, 0, counts) == -1 ? -1 : r;
}

int
meta_count_put (struct meta_conn *c, uint64_t group, const uint8_t *buf,
                size_t len)
{
  assert (len <= COUNTS_LEN_MAX);
  return len == 0
    ? delete_counts (c, group)
    : put_row (c, ST_COUNT_PUT, group, buf, len, "writing counts");
}

static int
lend_row (sqlite3_stmt *st, struct blob *b,
          int (*fn) (void *opaque, uint64_t group, const uint8_t *buf,
                     size_t len),
          void *opaque)
{
  const uint64_t group = col (st, 2);

  return take_row (st, group, b) == -1 ? -1 : fn (opaque, group, b->p, b->len);
}

int
meta_record_scan (struct meta_conn *c, uint64_t first_group,
                  int (*fn) (void *opaque, uint64_t group, const uint8_t *buf,
                             size_t len),
                  void *opaque)
{
  struct blob b CLEANUP_BLOB = { NULL };
  USING_RECORD_STMT (st, c, ST_RECORD_SCAN);

  bind_u64 (st, 1, first_group);
  return SCAN (c, st, "reading records", lend_row (st, &b, fn, opaque));
}

int
meta_count_scan_strays (struct meta_conn *c,
                        int (*fn) (void *opaque, uint64_t group), void *opaque)
{
  int r = has_counts (c);

  if (r != 1)
    return r;
  USING_STMT (st, c, ST_COUNT_SCAN_STRAYS);

  return SCAN (c, st, "reading counts", fn (opaque, col (st, 0)));
}

int
meta_count_delete_strays (struct meta_conn *c)
{
  int r = has_counts (c);

  if (r != 1)
    return r;
  USING_STMT (st, c, ST_COUNT_DELETE_STRAYS);
  return meta_run (c, st, "writing counts");
}
