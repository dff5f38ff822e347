/* SPDX-License-Identifier: BSD-3-Clause */

/* Concurrent scans of the map, each with its own statement. */

#include <config.h>

#include <stdlib.h>

#include "base/error.h"
#include "meta/meta-conn.h"

struct meta_cursor {
  struct meta_conn *c; /* not owned */
  sqlite3_stmt *st;    /* owned */
  struct meta_leaf leaf;
};

#define WHERE                                                                  \
  " WHERE leaf.branch = ? AND leaf.seq BETWEEN ? AND ?"                        \
  " ORDER BY leaf.leaf, leaf.seq"
static const char sql[] = LEAF_DELTAS_SQL ("leaf.leaf, leaf.seq, ", WHERE);
static const char old_sql[] = LEAF_OLD_SQL ("leaf.leaf, leaf.seq, ", WHERE);

struct meta_cursor *
meta_leaf_cursor (struct meta_conn *c, uint64_t branch, uint64_t first,
                  uint64_t last)
{
  const int has = meta_has_deltas (c);
  struct meta_cursor *cursor;

  if (has == -1)
    return NULL;
  cursor = calloc (1, sizeof *cursor);
  if (cursor == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  cursor->c = c;
  if (sqlite3_prepare_v2 (c->db, has ? sql : old_sql, -1, &cursor->st, NULL) !=
        SQLITE_OK ||
      sqlite3_bind_int64 (cursor->st, 1, (sqlite3_int64) branch) != SQLITE_OK ||
      sqlite3_bind_int64 (cursor->st, 2, (sqlite3_int64) first) != SQLITE_OK ||
      sqlite3_bind_int64 (cursor->st, 3, (sqlite3_int64) last) != SQLITE_OK) {
    meta_fail (c, "reading the map");
    meta_cursor_free (cursor);
    return NULL;
  }
  return cursor;
}

int
meta_cursor_next (struct meta_cursor *cursor, struct meta_leaf_row *row)
{
  sqlite3_stmt *st = cursor->st;

  switch (sqlite3_step (st)) {
  case SQLITE_ROW:
    row->leaf = (uint64_t) sqlite3_column_int64 (st, 0);
    row->seq = (uint64_t) sqlite3_column_int64 (st, 1);
    meta_col_leaf (st, 2, row->leaf, &cursor->leaf);
    row->buf = cursor->leaf.p;
    row->len = cursor->leaf.len;
    return 1;
  case SQLITE_DONE:
    return 0;
  default:
    return meta_fail (cursor->c, "reading the map");
  }
}

void
meta_cursor_free (struct meta_cursor *cursor)
{
  if (cursor == NULL)
    return;
  sqlite3_finalize (cursor->st);
  free (cursor);
}
