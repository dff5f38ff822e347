/* SPDX-License-Identifier: BSD-3-Clause */

/* A connection and its statements.  For meta*.c only. */

#ifndef NBDEDUP_META_CONN_H
#define NBDEDUP_META_CONN_H

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include <sqlite3.h>

#include "format/format.h"
#include "meta/meta.h"

enum meta_stmt {
  ST_BEGIN,
  ST_FREEZE,
  ST_QUICK_CHECK,
  ST_COMMIT,
  ST_ROLLBACK,
  ST_SAVEPOINT,
  ST_RELEASE,
  ST_UNDO,
  ST_PAGE_COUNT,
  ST_FREE_COUNT,
  ST_STATE_GET,
  ST_STATE_PUT,
  ST_PROPERTY_GET,
  ST_PROPERTY_PUT,
  ST_PROPERTY_DELETE,
  ST_REPORT_GET,
  ST_REPORT_PUT,
  ST_DOMAIN_ID,
  ST_DOMAIN_ADD,
  ST_DOMAIN_NAME,
  ST_LAYER_PUT,
  ST_LAYER_GET,
  ST_LAYER_DELETE,
  ST_LAYER_DYING,
  ST_LAYER_REPARENT,
  ST_LAYER_SCAN,
  ST_LAYER_SCAN_DOWN,
  ST_VOLUME_PUT,
  ST_VOLUME_DELETE,
  ST_VOLUME_SCAN,
  ST_VOLUME_SCAN_UP,
  ST_VOLUME_SCAN_DOWN,
  ST_SNAPSHOT_PUT,
  ST_SNAPSHOT_DELETE,
  ST_SNAPSHOT_SCAN,
  ST_SNAPSHOT_SCAN_UP,
  ST_SNAPSHOT_SCAN_DOWN,
  ST_LEAF_GET,
  ST_LEAF_GET_OLD,
  ST_LEAF_PUT,
  ST_LEAF_DELETE,
  ST_LEAF_RESOLVE,
  ST_LEAF_RESOLVE_OLD,
  ST_LEAF_NEXT,
  ST_LEAF_SCAN,
  ST_LEAF_SCAN_OLD,
  ST_LEAF_SCAN_ALL,
  ST_LEAF_SCAN_ALL_OLD,
  ST_LEAF_SCAN_FROM,
  ST_LEAF_SCAN_FROM_OLD,
  ST_DELTA_TABLE,
  ST_DELTA_GET,
  ST_DELTA_PUT,
  ST_DELTA_DELETE,
  ST_DELTA_SCAN,
  ST_RECORD_GET,
  ST_RECORD_GET_OLD,
  ST_RECORD_PUT,
  ST_RECORD_DELETE,
  ST_RECORD_DELETE_RANGE,
  ST_RECORD_SCAN,
  ST_RECORD_SCAN_OLD,
  ST_COUNT_TABLE,
  ST_COUNT_GET,
  ST_COUNT_PUT,
  ST_COUNT_DELETE,
  ST_COUNT_SCAN_STRAYS,
  ST_COUNT_DELETE_STRAYS,
  ST_INDEX_RUN,
  ST_INDEX_GET,
  ST_INDEX_FROM,
  ST_INDEX_RANGE,
  ST_INDEX_PUT,
  ST_INDEX_DELETE,
  ST_INDEX_SCAN,
  ST_SEGMENT_GET,
  ST_SEGMENT_PUT,
  ST_SEGMENT_DELETE,
  ST_SEGMENT_SCAN,
  ST_LIMBO_PUT,
  ST_LIMBO_DELETE,
  ST_LIMBO_SCAN,
  ST_COPIES_GET,
  ST_COPIES_PUT,
  ST_COPIES_DELETE,
  ST_COPIES_SCAN,
  ST_SAMPLE_PUT,
  ST_SAMPLE_DELETE,
  ST_SAMPLE_TIMES,
  ST_SAMPLE_SCAN,
  ST_SAMPLE_SCAN_ALL,
  ST_SAMPLE_NEWEST,
  ST_EVENT_TABLE,
  ST_EVENT_PUT,
  ST_EVENT_LIMIT,
  ST_EVENT_SCAN,
  ST_EVENT_SCAN_DOWN,
  NR_STMTS
};

struct meta_conn {
  sqlite3 *db;
  bool damaged;                    /* the last failure was a damaged page */
  bool write_failed;               /* something but reading or memory failed */
  bool saw_damage;                 /* a failure was a damaged page */
  bool has_counts;                 /* table "count" was seen */
  bool has_deltas;                 /* the same for table "delta" */
  bool readonly;                   /* pool.db is, and does not change */
  struct cksum_snapshot *snapshot; /* owned; NULL unless meta_frozen_open */
  atomic_bool sync_failed; /* the writer's: a sync of pool.db; permanent */
  sqlite3_stmt *stmts[NR_STMTS]; /* prepared at first use */
};

/* Open 'path', which must exist unless 'create'. */
extern int meta_conn_open (struct meta_conn *c, const char *path, bool create,
                           uint64_t cache_bytes);
/* The same without writing to any file. */
extern int meta_conn_open_readonly (struct meta_conn *c, const char *path,
                                    uint64_t cache_bytes);
/* The same for c->snapshot, which the caller has begun. */
extern int meta_conn_open_snapshot (struct meta_conn *c, const char *path,
                                    uint64_t cache_bytes);
extern void meta_conn_close (struct meta_conn *c);

/* Run SQL that returns nothing; 'what' is for the error. */
extern int meta_exec (struct meta_conn *c, const char *sql, const char *what);

/* The prepared statement; NULL: the error is recorded. */
extern sqlite3_stmt *meta_stmt (struct meta_conn *c, enum meta_stmt which);

/* Record SQLite's error as ours; returns -1. */
extern int meta_fail (struct meta_conn *c, const char *what);

/* Step a statement that returns no row, and reset it. */
extern int meta_run (struct meta_conn *c, sqlite3_stmt *st, const char *what);
/* The same for a statement whose only parameter is a key. */
extern int meta_run_key (struct meta_conn *c, enum meta_stmt which,
                         uint64_t key, const char *what);

/* Is the table there that 'which' asks for?  1; 0; -1.  A statement asks,
 * because a connection learns of a new table only when it runs one.  '*seen':
 * it was there before.
 */
extern int
meta_has_table (struct meta_conn *c, enum meta_stmt which, bool *seen);
/* USING_STMT of 'which', or of 'which'_OLD if 'has' is 0; -1: it fails. */
#define USING_STMT_IF(st, c, has, which)                                       \
  __attribute__ ((cleanup (meta_reset))) sqlite3_stmt *st = ({                 \
    const int _has = (has);                                                    \
    _has == -1 ? NULL : meta_stmt (c, _has ? which : which##_OLD);             \
  });                                                                          \
  if (st == NULL)                                                              \
  return -1

/* Rows of table "leaf" with the deltas that each has; and those of an older
 * pool (meta_has_deltas).
 */
#define LEAF_DELTAS_SQL(columns, rest)                                         \
  "SELECT " columns "leaf.data, delta.data FROM leaf LEFT JOIN delta"          \
  " ON delta.branch = leaf.branch AND delta.area = leaf.leaf / 64"             \
  " AND delta.seq = leaf.seq" rest
#define LEAF_OLD_SQL(columns, rest)                                            \
  "SELECT " columns "leaf.data, NULL FROM leaf" rest

/* A leaf as it is with its deltas. */
struct meta_leaf {
  const uint8_t *p; /* 'buf', or SQLite's until the next step */
  size_t len;
  uint8_t buf[LEAF_LEN_MAX];
};
/* Column 'i' of the row is the leaf's data, and the next one its area's deltas.
 * A leaf whose deltas are not valid is not valid either.
 */
extern void meta_col_leaf (sqlite3_stmt *st, int i, uint64_t leaf_nr,
                           struct meta_leaf *leaf);

/* Read a row of a statement that selects all columns (meta-tables.c). */
extern void meta_col_layer (sqlite3_stmt *st, struct meta_layer *l);
extern void meta_col_volume (sqlite3_stmt *st, struct meta_volume *v);
extern void meta_col_snapshot (sqlite3_stmt *st, struct meta_snapshot *s);

/* Reset and unbind the statement when the scope ends. */
extern void meta_reset (sqlite3_stmt **st);
#define USING_STMT(st, conn, which)                                            \
  __attribute__ ((cleanup (meta_reset)))                                       \
  sqlite3_stmt *st = meta_stmt (conn, which);                                  \
  if (st == NULL)                                                              \
  return -1

/* Binding fails only for lack of memory, or for a wrong index, which is a bug.
 */
static inline void
bind_u64 (sqlite3_stmt *st, int i, uint64_t v)
{
  int rc = sqlite3_bind_int64 (st, i, (sqlite3_int64) v);

  assert (rc == SQLITE_OK);
}

static inline void
bind_blob (sqlite3_stmt *st, int i, const void *p, size_t len)
{
  /* A NULL pointer would bind NULL instead of an empty blob. */
  int rc = sqlite3_bind_blob64 (st, i, len ? p : "", len, SQLITE_STATIC);

  assert (rc == SQLITE_OK || rc == SQLITE_NOMEM);
}

static inline uint64_t
col (sqlite3_stmt *st, int i)
{
  return (uint64_t) sqlite3_column_int64 (st, i);
}

static inline int
col_blob (sqlite3_stmt *st, int i, struct blob *b)
{
  size_t len = (size_t) sqlite3_column_bytes (st, i);
  const void *p = sqlite3_column_blob (st, i);

  if (blob_reserve (b, len) == -1)
    return -1;
  if (len)
    memcpy (b->p, p, len);
  b->len = len;
  return 0;
}

/* Step: 1: a row, 0: no row, -1. */
static inline int
step_one (struct meta_conn *c, sqlite3_stmt *st, const char *what)
{
  switch (sqlite3_step (st)) {
  case SQLITE_ROW:
    return 1;
  case SQLITE_DONE:
    return 0;
  default:
    return meta_fail (c, what);
  }
}

/* Evaluate 'call' for each row: 0 to go on, 1 to stop, -1 to fail. */
#define SCAN(c, st, what, call)                                                \
  ({                                                                           \
    int _r, _f = 0;                                                            \
    while ((_r = step_one (c, st, what)) == 1)                                 \
      if ((_f = (call)) != 0)                                                  \
        break;                                                                 \
    _r == -1 || _f == -1 ? -1 : 0;                                             \
  })

#endif /* NBDEDUP_META_CONN_H */
