/* SPDX-License-Identifier: BSD-3-Clause */

/* Transactions and savepoints of one connection. */

#include <config.h>

#include "base/backoff.h"
#include "base/error.h"
#include "meta/meta-conn.h"

static int
simple (struct meta_conn *c, enum meta_stmt which, const char *what)
{
  USING_STMT (st, c, which);

  return meta_run (c, st, what);
}

/* Roll back an open transaction; false: there was no memory for it. */
static bool
roll_back (struct meta_conn *c)
{
  unsigned tries = 0;

  /* After some errors SQLite has rolled back already. */
  while (!sqlite3_get_autocommit (c->db)) {
    sqlite3_stmt *st = meta_stmt (c, ST_ROLLBACK);

    if (st)
      sqlite3_step (st);
    meta_reset (&st);
    if (!sqlite3_get_autocommit (c->db) && !backoff_sleep (&tries))
      return false;
  }
  return true;
}

/* Prepare the statements that end a transaction before it begins, so that they
 * need no memory when memory is short.
 */
static int
begin (struct meta_conn *c, enum meta_stmt which)
{
  if (meta_stmt (c, ST_ROLLBACK) == NULL || meta_stmt (c, ST_COMMIT) == NULL)
    return -1;
  return simple (c, which, "begin");
}

int
meta_begin (struct meta_conn *c)
{
  if (c->sync_failed)
    return nbdedup_fail (EIO, "pool.db: an earlier fdatasync has failed");
  c->write_failed = false;
  if (!roll_back (c))
    return nbdedup_fail (ENOMEM, "pool.db: no memory to end a transaction");
  return begin (c, ST_BEGIN);
}

int
meta_commit (struct meta_conn *c)
{
  if (simple (c, ST_COMMIT, "commit") == -1) {
    int err = errno;

    meta_rollback (c);
    errno = err;
    return -1;
  }
  return 0;
}

/* Without memory the transaction stays open, and meta_begin ends it. */
void
meta_rollback (struct meta_conn *c)
{
  (void) roll_back (c);
}

int
meta_freeze (struct meta_conn *c)
{
  return begin (c, ST_FREEZE);
}

void
meta_unfreeze (struct meta_conn *c)
{
  if (!sqlite3_get_autocommit (c->db) && simple (c, ST_COMMIT, "commit") == -1)
    /* The transaction has written nothing.  If it stayed open, it would hide
     * all later commits from this connection.
     */
    while (!roll_back (c))
      ;
}

int
meta_savepoint (struct meta_conn *c)
{
  return simple (c, ST_SAVEPOINT, "savepoint");
}

int
meta_release (struct meta_conn *c, bool keep)
{
  if (!keep && simple (c, ST_UNDO, "undo") == -1)
    return -1;
  return simple (c, ST_RELEASE, "release");
}
