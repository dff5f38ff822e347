/* SPDX-License-Identifier: BSD-3-Clause */

/* Table "copy" of pool.db: which records have copies (copies.h). */

#include <config.h>

#include "base/bytes.h"
#include "format/format.h"
#include "meta/meta-conn.h"

#define ADDR_BYTES 8
#define TOTAL 0 /* no record has this address */

/* An older pool that is open read-only has no such table. */
static bool
has_table (struct meta_conn *c)
{
  return sqlite3_table_column_metadata (c->db, NULL, "copy", NULL, NULL, NULL,
                                        NULL, NULL, NULL) == SQLITE_OK;
}

/* Returns how many; 0 if these are not addresses. */
static unsigned
unpack (const uint8_t *p, size_t len, uint64_t copies[COPIES_BESIDE])
{
  unsigned i, nr = (unsigned) (len / ADDR_BYTES);

  if (len % ADDR_BYTES != 0 || len / ADDR_BYTES > COPIES_BESIDE)
    return 0;
  for (i = 0; i < nr; ++i) {
    copies[i] = get_le64 (p + i * ADDR_BYTES);
    if (copies[i] == 0 || copies[i] > ADDR_MAX)
      return 0;
  }
  return nr;
}

int
meta_copies_get (struct meta_conn *c, uint64_t addr,
                 uint64_t copies[COPIES_BESIDE], unsigned *nr)
{
  int r;

  *nr = 0;
  if (!has_table (c))
    return 0;
  USING_STMT (st, c, ST_COPIES_GET);
  bind_u64 (st, 1, addr);
  r = step_one (c, st, "reading of copies");
  if (r == 1)
    *nr = unpack (sqlite3_column_blob (st, 0),
                  (size_t) sqlite3_column_bytes (st, 0), copies);
  return r;
}

static int
delete_row (struct meta_conn *c, uint64_t addr)
{
  return meta_run_key (c, ST_COPIES_DELETE, addr, "writing of copies");
}

static int
put_row (struct meta_conn *c, uint64_t addr, const uint64_t *values,
         unsigned nr)
{
  uint8_t buf[COPIES_BESIDE * ADDR_BYTES];
  unsigned i;
  USING_STMT (st, c, ST_COPIES_PUT);

  for (i = 0; i < nr; ++i)
    put_le64 (buf + i * ADDR_BYTES, values[i]);
  bind_u64 (st, 1, addr);
  bind_blob (st, 2, buf, nr * ADDR_BYTES);
  return meta_run (c, st, "writing of copies");
}

int
meta_copies_put (struct meta_conn *c, uint64_t addr,
                 const uint64_t copies[COPIES_BESIDE], unsigned nr)
{
  assert (addr != TOTAL && nr <= COPIES_BESIDE);
  return nr == 0 ? delete_row (c, addr) : put_row (c, addr, copies, nr);
}

int
meta_copies_scan (struct meta_conn *c, uint64_t first,
                  int (*fn) (void *opaque, uint64_t addr,
                             const uint64_t *copies, unsigned nr),
                  void *opaque)
{
  uint64_t copies[COPIES_BESIDE];

  if (!has_table (c))
    return 0;
  USING_STMT (st, c, ST_COPIES_SCAN);
  bind_u64 (st, 1, first == TOTAL ? 1 : first);
  return SCAN (c, st, "reading of copies", ({
                 unsigned nr = unpack (sqlite3_column_blob (st, 1),
                                       (size_t) sqlite3_column_bytes (st, 1),
                                       copies);
                 fn (opaque, col (st, 0), copies, nr);
               }));
}

int
meta_copies_get_sectors (struct meta_conn *c, uint64_t *sectors)
{
  int r;

  *sectors = 0;
  if (!has_table (c))
    return 0;
  USING_STMT (st, c, ST_COPIES_GET);
  bind_u64 (st, 1, TOTAL);
  r = step_one (c, st, "reading of copies");
  if (r == 1 && sqlite3_column_bytes (st, 0) == ADDR_BYTES)
    *sectors = get_le64 (sqlite3_column_blob (st, 0));
  return r == -1 ? -1 : 0;
}

int
meta_copies_put_sectors (struct meta_conn *c, uint64_t sectors)
{
  return sectors == 0 ? delete_row (c, TOTAL) : put_row (c, TOTAL, &sectors, 1);
}
