/* SPDX-License-Identifier: BSD-3-Clause */

/* The pool's history in pool.db. */

#include <config.h>

#include <errno.h>

#include "meta/meta-conn.h"

int
meta_event_put (struct meta_conn *c, uint64_t time, const char *text)
{
  USING_STMT (put, c, ST_EVENT_PUT);
  int rc;

  bind_u64 (put, 1, time);
  rc = sqlite3_bind_text (put, 2, text, -1, SQLITE_STATIC);
  assert (rc == SQLITE_OK || rc == SQLITE_NOMEM);
  if (meta_run (c, put, "writing the history") == -1)
    return -1;
  return meta_run_key (c, ST_EVENT_LIMIT, META_EVENTS_MAX,
                       "writing the history");
}

/* 1: the pool has the table; 0: it has not; -1. */
static int
has_events (struct meta_conn *c)
{
  USING_STMT (st, c, ST_EVENT_TABLE);

  return step_one (c, st, "reading the history");
}

static int
scan (struct meta_conn *c, enum meta_stmt which, uint64_t *last,
      int (*fn) (void *opaque, uint64_t id, const char *text), void *opaque)
{
  USING_STMT (st, c, which);

  if (which == ST_EVENT_SCAN_DOWN)
    bind_u64 (st, 1, *last);
  return SCAN (c, st, "reading the history", ({
                 const char *text = (const char *) sqlite3_column_text (st, 1);

                 *last = col (st, 0);
                 text ? fn (opaque, *last, text)
                      : meta_fail (c, "reading the history");
               }));
}

int
meta_event_scan (struct meta_conn *c,
                 int (*fn) (void *opaque, uint64_t id, const char *text),
                 void *opaque)
{
  uint64_t last = 0;
  int r = has_events (c);

  if (r != 1)
    return r;
  if (scan (c, ST_EVENT_SCAN, &last, fn, opaque) == 0)
    return 0;
  if (errno != EIO)
    return -1;
  return scan (c, ST_EVENT_SCAN_DOWN, &last, fn, opaque) == 0 || errno == EIO
    ? 1
    : -1;
}
