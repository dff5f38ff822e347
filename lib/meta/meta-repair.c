/* SPDX-License-Identifier: BSD-3-Clause */

/* Rebuilding of damaged tables of pool.db when no second copy helps.
 *
 * The repair renames a table that cannot be read to its end, and makes a new
 * one with the readable rows: SQLite would have to read the old one to remove
 * it.  That is enough for tables that can be derived or done without:
 *
 *   limbo     the sectors of lost addresses leak until a check finds them:
 *             nothing refers to them
 *   copy      the sectors of lost copies leak, as above
 *   ddt       data with a lost entry are stored again when written again
 *   drift     samples of the past
 *   report    the results of the last recovery and scrub
 *   event     the pool's history
 *   property  lost properties have their defaults again
 *
 * and for automatic indexes, whose tables have all their rows.  Of domain,
 * layer, volume and snapshot no row may be missing; and nothing here can
 * restore the content of leaf, record, count and segment.
 *
 * An error while reading ends SQLite's transaction, so the repair reads damaged
 * tables through a different connection than the writer's.  All is one commit:
 * a crash before it leaves everything as it was.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "meta/meta-conn.h"
#include "meta/meta-index.h"
#include "meta/meta-repair.h"

#define COLUMNS_MAX 24
#define SQL_MAX 512
/* Old tables that may be there already. */
#define ASIDE_MAX 100

static const struct salvage_table {
  const char *name;
  bool may_lose;    /* rows */
  const char *loss; /* what that means; for the log */
} tables[] = {
  { "property", true,
    "the properties that were lost are back at their "
    "defaults" },
  { "domain", false, NULL },
  { "layer", false, NULL },
  { "volume", false, NULL },
  { "snapshot", false, NULL },
  { "limbo", true,
    "some space may stay in use until \"nbdedup check "
    "--repair\" finds it" },
  { "copy", true,
    "the space of some records' copies may stay in use until "
    "\"nbdedup check --repair\" finds it" },
  { "ddt", true, "known data may be stored again when it is written again" },
  { "drift", true, "a part of the drift history is lost" },
  { "report", true, "the reports of the last recovery and scrub are lost" },
  { "event", true, "a part of the pool's history is lost" },
};

struct salvage {
  struct meta_conn *reader, *writer;
  unsigned aside; /* to find a free name */
};

static sqlite3_stmt *
prepare (struct meta_conn *c, const char *fmt, const char *a, const char *b)
{
  sqlite3_stmt *st = NULL;
  char sql[SQL_MAX];

  snprintf (sql, sizeof sql, fmt, a, b);
  if (sqlite3_prepare_v2 (c->db, sql, -1, &st, NULL) != SQLITE_OK)
    meta_fail (c, "preparing to repair");
  return st;
}

static int
run_sql (struct meta_conn *c, const char *fmt, const char *a, const char *b)
{
  char sql[SQL_MAX];

  snprintf (sql, sizeof sql, fmt, a, b);
  if (sqlite3_exec (c->db, sql, NULL, NULL, NULL) != SQLITE_OK)
    return meta_fail (c, "repairing");
  return 0;
}

/* Read every byte of the statement's rows: 0; 1: damaged; -1. */
static int
read_all (struct salvage *s, sqlite3_stmt *st)
{
  int rc, i, n = sqlite3_column_count (st);

  while ((rc = sqlite3_step (st)) == SQLITE_ROW)
    for (i = 0; i < n; ++i)
      sqlite3_column_blob (st, i);
  sqlite3_finalize (st);
  if (rc == SQLITE_DONE)
    return 0;
  meta_fail (s->reader, "reading a table");
  return meta_is_damaged (s->reader) ? 1 : -1;
}

static int
is_table_damaged (struct salvage *s, const char *name)
{
  sqlite3_stmt *st = prepare (s->reader, "SELECT * FROM %s NOT INDEXED", name,
                              NULL);

  return st == NULL ? -1 : read_all (s, st);
}

/* True if SQLite's text about a tree has a failed read that is no damage. */
static bool
has_failed_read (const char *text)
{
  static const char mark[] = "error code=";
  int rc;

  while ((text = strstr (text, mark)) != NULL) {
    text += sizeof mark - 1;
    rc = atoi (text);
    if (rc == SQLITE_IOERR_READ || rc == SQLITE_IOERR_NOMEM ||
        (rc & 0xff) == SQLITE_NOMEM)
      return true;
  }
  return false;
}

/* Check all pages of the table and of its indexes: a query may not read them.
 */
static int
are_trees_damaged (struct salvage *s, const char *name)
{
  sqlite3_stmt *st = prepare (s->reader, "PRAGMA quick_check (%s)", name, NULL);
  const char *text;
  int rc, r;

  if (st == NULL)
    return -1;
  rc = sqlite3_step (st);
  text = rc == SQLITE_ROW ? (const char *) sqlite3_column_text (st, 0) : NULL;
  if (text == NULL) {
    meta_fail (s->reader, "checking a table");
    r = rc != SQLITE_ROW && meta_is_damaged (s->reader) ? 1 : -1;
  }
  else if (has_failed_read (text))
    r = nbdedup_fail (EIO, "pool.db: table %s cannot be read: try again", name);
  else
    r = strcmp (text, "ok") != 0;
  sqlite3_finalize (st);
  return r;
}

/* Look twice: SQLite reports some reads that the disk failed once as damage. */
static int
is_damaged (struct salvage *s, const char *name)
{
  unsigned tries = 2;
  int r;

  do {
    r = is_table_damaged (s, name);
    if (r == 0)
      r = are_trees_damaged (s, name);
  } while (r == 1 && --tries > 0);
  return r;
}

static int
has_table (struct salvage *s, const char *name)
{
  sqlite3_stmt *st = prepare (s->writer,
                              "SELECT 1 FROM sqlite_schema WHERE "
                              "name = '%s'",
                              name, NULL);
  int rc;

  if (st == NULL)
    return -1;
  rc = sqlite3_step (st);
  sqlite3_finalize (st);
  return rc == SQLITE_ROW ? 1 : 0;
}

/*----------------------------------------------------------------------
 * Rebuilding
 */

/* Rename the table, and make an empty one with the same columns. */
static int
begin_afresh (struct salvage *s, const char *name)
{
  sqlite3_stmt *st = prepare (s->writer,
                              "SELECT sql FROM sqlite_schema WHERE "
                              "type = 'table' AND name = '%s'",
                              name, NULL);
  CLEANUP_FREE char *sql = NULL;
  char aside[64];
  int r;

  if (st == NULL)
    return -1;
  if (sqlite3_step (st) == SQLITE_ROW)
    sql = strdup ((const char *) sqlite3_column_text (st, 0));
  sqlite3_finalize (st);
  if (sql == NULL)
    return nbdedup_fail (EIO, "pool.db: no table %s", name);
  do {
    snprintf (aside, sizeof aside, "damaged_%u_%s", s->aside++, name);
    r = has_table (s, aside);
  } while (r == 1 && s->aside < ASIDE_MAX);
  if (r != 0 ||
      run_sql (s->writer, "ALTER TABLE %s RENAME TO %s", name, aside) == -1)
    return -1;
  if (sqlite3_exec (s->writer->db, sql, NULL, NULL, NULL) != SQLITE_OK)
    return meta_fail (s->writer, "making a table again");
  return 0;
}

static sqlite3_stmt *
prepare_insert (struct salvage *s, const char *name, int columns)
{
  char marks[2 * COLUMNS_MAX + 1] = "";
  int i;

  if (columns < 1 || columns > COLUMNS_MAX)
    return NULL;
  for (i = 0; i < columns; ++i)
    memcpy (marks + 2 * i, i ? ",?" : " ?", 3);
  return prepare (s->writer, "INSERT OR IGNORE INTO %s VALUES (%s)", name,
                  marks);
}

static int
insert_row (struct salvage *s, sqlite3_stmt *from, sqlite3_stmt *to)
{
  int i, rc;

  sqlite3_reset (to);
  for (i = 0; i < sqlite3_column_count (from); ++i)
    sqlite3_bind_value (to, i + 1, sqlite3_column_value (from, i));
  rc = sqlite3_step (to);
  sqlite3_reset (to);
  return rc == SQLITE_DONE ? 0 : meta_fail (s->writer, "repairing");
}

/* Copy rows in this order until one cannot be read: 0: all, 1: not all, -1. */
static int
copy_rows (struct salvage *s, const char *name, const char *order)
{
  sqlite3_stmt *from = prepare (s->reader,
                                "SELECT * FROM %s NOT INDEXED "
                                "ORDER BY 1 %s",
                                name, order),
               *to;
  int rc, r = 0;

  if (from == NULL)
    return -1;
  to = prepare_insert (s, name, sqlite3_column_count (from));
  if (to == NULL)
    r = -1;
  while (r == 0 && (rc = sqlite3_step (from)) == SQLITE_ROW)
    r = insert_row (s, from, to);
  if (r == 0 && rc != SQLITE_DONE) {
    meta_fail (s->reader, "reading a table");
    r = meta_is_damaged (s->reader) ? 1 : -1;
  }
  sqlite3_finalize (from);
  sqlite3_finalize (to);
  return r;
}

/* Copy the rows from both ends up to the damage. */
static int
salvage_table (struct salvage *s, const struct salvage_table *t)
{
  int r;

  if (begin_afresh (s, t->name) == -1)
    return -1;
  r = copy_rows (s, t->name, "ASC");
  if (r == 1) {
    if (!t->may_lose)
      return nbdedup_fail (EIO,
                           "pool.db: table %s: damaged page; restore the "
                           "pool from a backup",
                           t->name);
    r = copy_rows (s, t->name, "DESC") == -1 ? -1 : 1;
  }
  if (r == -1)
    return -1;
  nbdedup_log (r ? NBDEDUP_LOG_ERROR : NBDEDUP_LOG_WARNING,
               "pool.db: table %s was damaged: nbdedup made it again%s%s",
               t->name, r ? ": " : " with all its rows", r ? t->loss : "");
  return 0;
}

/* Make the new tables fit the others: count the hash index's entries. */
static int
finish (struct salvage *s)
{
  char number[24];
  uint64_t sum;

  if (meta_index_count (s->writer, &sum) == -1)
    return -1;
  snprintf (number, sizeof number, "%" PRId64, (int64_t) sum);
  return run_sql (s->writer, "UPDATE state SET index_entries = %s", number,
                  NULL);
}

/* True if all tables that keep their names can be read. */
static bool
is_rest_whole (struct salvage *s)
{
  static const char *const others[] = { "leaf", "delta", "record", "count",
                                        "segment" };
  size_t i;

  for (i = 0; i < sizeof others / sizeof others[0]; ++i)
    if (has_table (s, others[i]) != 0 && is_table_damaged (s, others[i]) != 0)
      return false;
  return true;
}

/* Forget the old tables, and write a database without them.  VACUUM reads also
 * the damaged pages, which only the old tables use, so blank them first; while
 * the old tables are there the next repair tries again.  VACUUM takes as much
 * room in the WAL as pool.db has.  If this fails, the old tables only disturb
 * "check".
 */
static void
drop_old (struct salvage *s, struct meta *m)
{
  struct meta_conn *c = s->writer;

  if (!is_rest_whole (s))
    return;
  if (meta_checkpoint (m) == -1 || meta_blank_damage (m) == -1 ||
      sqlite3_db_config (c->db, SQLITE_DBCONFIG_DEFENSIVE, 0, NULL) !=
        SQLITE_OK ||
      run_sql (c, "PRAGMA writable_schema = ON", NULL, NULL) == -1 ||
      run_sql (c,
               "DELETE FROM sqlite_schema WHERE tbl_name LIKE "
               "'damaged!_%%' ESCAPE '!'",
               NULL, NULL) == -1 ||
      run_sql (c, "PRAGMA writable_schema = RESET", NULL, NULL) == -1 ||
      run_sql (c, "VACUUM", NULL, NULL) == -1)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "pool.db: the damaged pages could not be "
                 "removed: %s",
                 nbdedup_error ());
}

/* SQLite refuses to copy a WAL whose pages are far beyond the end of pool.db,
 * as they are after the file was cut.
 */
static void
extend_file (struct meta *m)
{
  struct meta_pages pages;

  meta_committed (m);
  meta_get_pages (m, &pages);
  /* If this fails, the checkpoint may fail too, and says so. */
  (void) meta_allocate (m, pages.used + pages.unused, 0);
}

static int
salvage_tables (struct salvage *s, unsigned *nr)
{
  size_t i;
  int r;

  for (i = 0; i < sizeof tables / sizeof tables[0]; ++i) {
    r = has_table (s, tables[i].name);
    if (r == 0)
      continue; /* an old pool has no drift */
    if (r == 1)
      r = is_damaged (s, tables[i].name);
    if (r == 1) {
      r = salvage_table (s, &tables[i]);
      ++*nr;
    }
    if (r == -1)
      return -1;
  }
  return *nr > 0 ? finish (s) : 0;
}

/* True if there are tables that a repair has renamed. */
static bool
has_old (struct salvage *s)
{
  sqlite3_stmt *st = prepare (s->writer,
                              "SELECT 1 FROM sqlite_schema WHERE "
                              "name LIKE 'damaged!_%%' ESCAPE '!'",
                              NULL, NULL);
  bool found = st != NULL && sqlite3_step (st) == SQLITE_ROW;

  sqlite3_finalize (st);
  return found;
}

int
meta_repair (struct meta *m, bool shared)
{
  struct salvage s = {
    .reader = meta_reader_get (m),
    .writer = meta_writer (m),
  };
  unsigned nr = 0;
  int r = -1, err;

  /* Otherwise references to a table would follow the renamed one. */
  if (run_sql (s.writer, "PRAGMA legacy_alter_table = ON", NULL, NULL) == 0 &&
      meta_begin (s.writer) == 0) {
    r = salvage_tables (&s, &nr);
    if (r == 0 && nr > 0) {
      r = meta_commit (s.writer);
      if (r == 0)
        extend_file (m);
    }
    else {
      err = errno;
      meta_rollback (s.writer);
      errno = err;
    }
  }
  meta_reader_put (m, s.reader);
  if (r == 0 && !shared && has_old (&s))
    drop_old (&s, m);
  return r == -1 ? -1 : (int) nr;
}
