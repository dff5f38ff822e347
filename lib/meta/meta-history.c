/* SPDX-License-Identifier: BSD-3-Clause */

/* Samples of drift in pool.db. */

#include <config.h>

#include <inttypes.h>

#include "base/error.h"
#include "meta/meta-conn.h"
#include "meta/schema-drift-sql.h"

#define SAMPLE_ASKED 1

int
meta_history_make (struct meta_conn *c)
{
  if (sqlite3_exec (c->db, schema_drift_sql, NULL, NULL, NULL) != SQLITE_OK)
    return meta_fail (c, "making the drift history");
  return 0;
}

int
meta_sample_put (struct meta_conn *c, const struct meta_sample *s)
{
  USING_STMT (st, c, ST_SAMPLE_PUT);

  bind_u64 (st, 1, s->id);
  bind_u64 (st, 2, s->golden);
  bind_u64 (st, 3, s->time);
  bind_u64 (st, 4, s->codec);
  bind_u64 (st, 5, s->length);
  bind_u64 (st, 6, s->asked ? SAMPLE_ASKED : 0);
  bind_blob (st, 7, s->data, s->len);
  return meta_run (c, st, "writing the drift history");
}

int
meta_sample_delete (struct meta_conn *c, uint64_t id)
{
  return meta_run_key (c, ST_SAMPLE_DELETE, id, "writing the drift history");
}

int
meta_sample_times (struct meta_conn *c, uint64_t golden,
                   int (*fn) (void *opaque, uint64_t id, uint64_t time,
                              bool asked),
                   void *opaque)
{
  USING_STMT (st, c, ST_SAMPLE_TIMES);

  bind_u64 (st, 1, golden);
  return SCAN (c, st, "reading the drift history",
               fn (opaque, col (st, 0), col (st, 1),
                   (col (st, 2) & SAMPLE_ASKED) != 0));
}

/* Call 'fn' with a row "id, golden, time, codec, length, flags, data". */
static int
lend_sample (sqlite3_stmt *st,
             int (*fn) (void *opaque, const struct meta_sample *s),
             void *opaque)
{
  const struct meta_sample s = {
    .id = col (st, 0),
    .golden = col (st, 1),
    .time = col (st, 2),
    .codec = col (st, 3),
    .length = col (st, 4),
    .asked = (col (st, 5) & SAMPLE_ASKED) != 0,
    .data = sqlite3_column_blob (st, 6),
    .len = (size_t) sqlite3_column_bytes (st, 6),
  };

  return fn (opaque, &s);
}

int
meta_sample_scan (struct meta_conn *c, uint64_t golden, uint64_t after,
                  int (*fn) (void *opaque, const struct meta_sample *s),
                  void *opaque)
{
  USING_STMT (st, c, golden ? ST_SAMPLE_SCAN : ST_SAMPLE_SCAN_ALL);

  if (golden)
    bind_u64 (st, 1, golden);
  bind_u64 (st, golden ? 2 : 1, after);
  return SCAN (c, st, "reading the drift history",
               lend_sample (st, fn, opaque));
}

int
meta_sample_newest (struct meta_conn *c, uint64_t golden,
                    int (*fn) (void *opaque, const struct meta_sample *s),
                    void *opaque)
{
  USING_STMT (st, c, ST_SAMPLE_NEWEST);

  bind_u64 (st, 1, golden);
  return SCAN (c, st, "reading the drift history",
               lend_sample (st, fn, opaque));
}
