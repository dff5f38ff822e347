/* SPDX-License-Identifier: BSD-3-Clause */

/* One function per query or change of pool.db that the engine needs. */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "format/format.h"
#include "meta/meta-conn.h"
#include "vfs/cksum-vfs.h"

#define LEAF_SQL(which, columns, rest)                                         \
  [which] = LEAF_DELTAS_SQL (columns, rest),                                   \
  [which##_OLD] = LEAF_OLD_SQL (columns, rest)

static const char *const sql[NR_STMTS] = {
  [ST_BEGIN] = "BEGIN IMMEDIATE",
  [ST_FREEZE] = "BEGIN",
  [ST_QUICK_CHECK] = "PRAGMA quick_check",
  [ST_COMMIT] = "COMMIT",
  [ST_ROLLBACK] = "ROLLBACK",
  [ST_SAVEPOINT] = "SAVEPOINT op",
  [ST_RELEASE] = "RELEASE op",
  [ST_UNDO] = "ROLLBACK TO op",
  [ST_PAGE_COUNT] = "PRAGMA page_count",
  [ST_FREE_COUNT] = "PRAGMA freelist_count",
  [ST_STATE_GET] =
    "SELECT uuid, epoch, opening, features_incompat, features_compat,"
    " features_autoclear, sector_bytes, hash, folded, journal_position,"
    " fold, next_id, records, record_bytes, stored_sectors, index_entries"
    " FROM state",
  [ST_STATE_PUT] = "INSERT OR REPLACE INTO state VALUES"
                   " (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
  [ST_PROPERTY_GET] = "SELECT value FROM property WHERE name = ?",
  [ST_PROPERTY_PUT] = "INSERT OR REPLACE INTO property VALUES (?, ?)",
  [ST_PROPERTY_DELETE] = "DELETE FROM property WHERE name = ?",
  [ST_REPORT_GET] = "SELECT value FROM report WHERE name = ?",
  [ST_REPORT_PUT] = "INSERT OR REPLACE INTO report VALUES (?, ?)",
  [ST_DOMAIN_ID] = "SELECT id FROM domain WHERE name = ?",
  [ST_DOMAIN_ADD] = "INSERT INTO domain (name) VALUES (?)",
  [ST_DOMAIN_NAME] = "SELECT name FROM domain WHERE id = ?",
  [ST_LAYER_PUT] =
    "INSERT OR REPLACE INTO layer VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
  [ST_LAYER_GET] =
    "SELECT id, branch, seq, parent, overlap, block_size, flags, pointers,"
    " blocks FROM layer WHERE id = ?",
  [ST_LAYER_REPARENT] = "UPDATE layer SET parent = ? WHERE parent = ?",
  [ST_LAYER_DELETE] = "DELETE FROM layer WHERE id = ?",
  [ST_LAYER_DYING] = "UPDATE layer SET flags = flags | 1 WHERE id = ?",
  [ST_LAYER_SCAN] =
    "SELECT id, branch, seq, parent, overlap, block_size, flags, pointers,"
    " blocks FROM layer ORDER BY id",
  [ST_LAYER_SCAN_DOWN] =
    "SELECT id, branch, seq, parent, overlap, block_size, flags, pointers,"
    " blocks FROM layer WHERE id > ? ORDER BY id DESC",
  [ST_VOLUME_PUT] =
    "INSERT OR REPLACE INTO volume"
    " (id, name, layer, size, flags, compress, dedup, domain, allow, origin)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
  [ST_VOLUME_DELETE] = "DELETE FROM volume WHERE id = ?",
  [ST_VOLUME_SCAN] =
    "SELECT id, name, layer, size, flags, compress, dedup, domain, allow,"
    " origin FROM volume ORDER BY name",
  [ST_VOLUME_SCAN_UP] =
    "SELECT id, name, layer, size, flags, compress, dedup, domain, allow,"
    " origin FROM volume ORDER BY id",
  [ST_VOLUME_SCAN_DOWN] =
    "SELECT id, name, layer, size, flags, compress, dedup, domain, allow,"
    " origin FROM volume WHERE id > ? ORDER BY id DESC",
  [ST_SNAPSHOT_PUT] = "INSERT OR REPLACE INTO snapshot"
                      " (id, volume, name, layer, size, time, origin)"
                      " VALUES (?, ?, ?, ?, ?, ?, ?)",
  [ST_SNAPSHOT_DELETE] = "DELETE FROM snapshot WHERE id = ?",
  [ST_SNAPSHOT_SCAN] = "SELECT id, volume, name, layer, size, time, origin"
                       " FROM snapshot ORDER BY volume, name",
  [ST_SNAPSHOT_SCAN_UP] = "SELECT id, volume, name, layer, size, time, origin"
                          " FROM snapshot ORDER BY id",
  [ST_SNAPSHOT_SCAN_DOWN] = "SELECT id, volume, name, layer, size, time, origin"
                            " FROM snapshot WHERE id > ? ORDER BY id DESC",
  LEAF_SQL (ST_LEAF_GET, "",
            " WHERE leaf.branch = ? AND leaf.leaf = ? AND leaf.seq = ?"),
  [ST_LEAF_PUT] = "INSERT OR REPLACE INTO leaf VALUES (?, ?, ?, ?)",
  [ST_LEAF_DELETE] =
    "DELETE FROM leaf WHERE branch = ? AND leaf = ? AND seq = ?",
  LEAF_SQL (ST_LEAF_RESOLVE, "leaf.seq, ",
            " WHERE leaf.branch = ? AND leaf.leaf = ?"
            " AND leaf.seq BETWEEN ? AND ? ORDER BY leaf.seq DESC"),
  [ST_LEAF_NEXT] = "SELECT leaf FROM leaf WHERE branch = ? AND leaf >= ?"
                   " ORDER BY leaf LIMIT 1",
  LEAF_SQL (ST_LEAF_SCAN, "leaf.leaf, leaf.seq, ",
            " WHERE leaf.branch = ? AND leaf.leaf >= ?"
            " ORDER BY leaf.leaf, leaf.seq"),
  LEAF_SQL (ST_LEAF_SCAN_ALL, "leaf.branch, leaf.leaf, leaf.seq, ",
            " ORDER BY leaf.branch, leaf.leaf, leaf.seq"),
  LEAF_SQL (ST_LEAF_SCAN_FROM, "leaf.branch, leaf.leaf, leaf.seq, ",
            " WHERE (leaf.branch, leaf.leaf, leaf.seq) >= (?, ?, ?)"
            " ORDER BY leaf.branch, leaf.leaf, leaf.seq"),
  [ST_DELTA_TABLE] = "SELECT 1 FROM sqlite_schema WHERE name = 'delta'",
  [ST_DELTA_GET] =
    "SELECT data FROM delta WHERE branch = ? AND area = ? AND seq = ?",
  [ST_DELTA_PUT] = "INSERT OR REPLACE INTO delta VALUES (?, ?, ?, ?)",
  [ST_DELTA_DELETE] =
    "DELETE FROM delta WHERE branch = ? AND area = ? AND seq = ?",
  [ST_DELTA_SCAN] = "SELECT branch, area, seq, data FROM delta",
  [ST_RECORD_GET] = "SELECT record.data, count.data FROM record LEFT JOIN count"
                    " ON count.grp = record.grp WHERE record.grp = ?",
  [ST_RECORD_GET_OLD] = "SELECT data, NULL FROM record WHERE grp = ?",
  [ST_RECORD_PUT] = "INSERT OR REPLACE INTO record VALUES (?, ?)",
  [ST_RECORD_DELETE] = "DELETE FROM record WHERE grp = ?",
  [ST_RECORD_DELETE_RANGE] = "DELETE FROM record WHERE grp BETWEEN ? AND ?",
  [ST_RECORD_SCAN] =
    "SELECT record.data, count.data, record.grp FROM record LEFT JOIN count"
    " ON count.grp = record.grp WHERE record.grp >= ? ORDER BY record.grp",
  [ST_RECORD_SCAN_OLD] =
    "SELECT data, NULL, grp FROM record WHERE grp >= ? ORDER BY grp",
  [ST_COUNT_TABLE] = "SELECT 1 FROM sqlite_schema WHERE name = 'count'",
  [ST_COUNT_GET] = "SELECT data FROM count WHERE grp = ?",
  [ST_COUNT_PUT] = "INSERT OR REPLACE INTO count VALUES (?, ?)",
  [ST_COUNT_DELETE] = "DELETE FROM count WHERE grp = ?",
  [ST_COUNT_SCAN_STRAYS] =
    "SELECT grp FROM count WHERE grp NOT IN (SELECT grp FROM record)",
  [ST_COUNT_DELETE_STRAYS] =
    "DELETE FROM count WHERE grp NOT IN (SELECT grp FROM record)",
  [ST_INDEX_RUN] = "SELECT key FROM ddt WHERE key >= ? ORDER BY key LIMIT 1",
  [ST_INDEX_GET] = "SELECT key, entries FROM ddt WHERE key BETWEEN ? AND ?"
                   " ORDER BY key DESC LIMIT 1",
  [ST_INDEX_FROM] = "SELECT key, entries FROM ddt WHERE key BETWEEN ? AND ?"
                    " ORDER BY key LIMIT 1",
  [ST_INDEX_RANGE] = "SELECT key, entries FROM ddt WHERE key BETWEEN ifnull ("
                     "(SELECT max (key) FROM ddt WHERE key BETWEEN ?1 AND ?2),"
                     " ?2) AND ?3 ORDER BY key",
  [ST_INDEX_PUT] = "INSERT OR REPLACE INTO ddt VALUES (?, ?)",
  [ST_INDEX_DELETE] = "DELETE FROM ddt WHERE key BETWEEN ? AND ?",
  [ST_INDEX_SCAN] = "SELECT key, entries FROM ddt WHERE key >= 0 ORDER BY key",
  [ST_SEGMENT_GET] = "SELECT map FROM segment WHERE id = ?",
  [ST_SEGMENT_PUT] = "INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?)",
  [ST_SEGMENT_DELETE] = "DELETE FROM segment WHERE id = ?",
  [ST_SEGMENT_SCAN] =
    "SELECT id, nr_free, largest_run FROM segment ORDER BY id",
  [ST_LIMBO_PUT] = "INSERT OR REPLACE INTO limbo VALUES (?)",
  [ST_LIMBO_DELETE] = "DELETE FROM limbo WHERE addr = ?",
  [ST_LIMBO_SCAN] = "SELECT addr FROM limbo ORDER BY addr",
  [ST_COPIES_GET] = "SELECT data FROM copy WHERE addr = ?",
  [ST_COPIES_PUT] = "INSERT OR REPLACE INTO copy VALUES (?, ?)",
  [ST_COPIES_DELETE] = "DELETE FROM copy WHERE addr = ?",
  [ST_COPIES_SCAN] =
    "SELECT addr, data FROM copy WHERE addr >= ? ORDER BY addr",
  [ST_SAMPLE_PUT] =
    "INSERT INTO drift (id, golden, time, codec, length, flags, data)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)",
  [ST_SAMPLE_DELETE] = "DELETE FROM drift WHERE id = ?",
  [ST_SAMPLE_TIMES] =
    "SELECT id, time, flags FROM drift WHERE golden = ? ORDER BY id",
  [ST_SAMPLE_SCAN] =
    "SELECT id, golden, time, codec, length, flags, data FROM drift"
    " WHERE golden = ? AND id > ? ORDER BY id",
  [ST_SAMPLE_SCAN_ALL] =
    "SELECT id, golden, time, codec, length, flags, data FROM drift"
    " WHERE id > ? ORDER BY id",
  [ST_SAMPLE_NEWEST] =
    "SELECT id, golden, time, codec, length, flags, data FROM drift"
    " WHERE golden = ? ORDER BY id DESC LIMIT 1",
  [ST_EVENT_TABLE] = "SELECT 1 FROM sqlite_schema WHERE name = 'event'",
  [ST_EVENT_PUT] = "INSERT INTO event (time, data) VALUES (?, ?)",
  [ST_EVENT_LIMIT] =
    "DELETE FROM event WHERE id <= (SELECT max (id) FROM event) - ?",
  [ST_EVENT_SCAN] = "SELECT id, data FROM event ORDER BY id",
  [ST_EVENT_SCAN_DOWN] =
    "SELECT id, data FROM event WHERE id > ? ORDER BY id DESC",
};

sqlite3_stmt *
meta_stmt (struct meta_conn *c, enum meta_stmt which)
{
  if (c->stmts[which] == NULL &&
      sqlite3_prepare_v3 (c->db, sql[which], -1, SQLITE_PREPARE_PERSISTENT,
                          &c->stmts[which], NULL) != SQLITE_OK) {
    meta_fail (c, sql[which]);
    return NULL;
  }
  return c->stmts[which];
}

int
meta_has_table (struct meta_conn *c, enum meta_stmt which, bool *seen)
{
  int r;

  if (*seen)
    return 1;
  USING_STMT (st, c, which);
  r = step_one (c, st, "reading the list of tables");
  *seen = r == 1;
  return r;
}

static void
bind_text (sqlite3_stmt *st, int i, const char *s)
{
  int rc = sqlite3_bind_text (st, i, s, -1, SQLITE_STATIC);

  assert (rc == SQLITE_OK || rc == SQLITE_NOMEM);
}

static const char *
col_text (sqlite3_stmt *st, int i)
{
  const char *s = (const char *) sqlite3_column_text (st, i);

  return s ? s : "";
}

int
meta_run_key (struct meta_conn *c, enum meta_stmt which, uint64_t key,
              const char *what)
{
  USING_STMT (st, c, which);

  bind_u64 (st, 1, key);
  return meta_run (c, st, what);
}

int
meta_state_get (struct meta_conn *c, struct meta_state *s)
{
  USING_STMT (st, c, ST_STATE_GET);
  int r = step_one (c, st, "reading the state");

  if (r != 1)
    return r == -1 ? -1 : nbdedup_fail (EIO, "pool.db: the state is missing");
  if (sqlite3_column_bytes (st, 0) != UUID_LEN)
    return nbdedup_fail (EIO, "pool.db: the UUID is damaged");
  memcpy (s->uuid, sqlite3_column_blob (st, 0), UUID_LEN);
  s->epoch = col (st, 1);
  s->opening = col (st, 2) != 0;
  s->features_incompat = col (st, 3);
  s->features_compat = col (st, 4);
  s->features_autoclear = col (st, 5);
  s->sector_bytes = (uint32_t) col (st, 6);
  s->hash = (int) col (st, 7);
  s->folded = col (st, 8);
  s->journal_position = col (st, 9);
  s->fold = col (st, 10);
  s->next_id = col (st, 11);
  s->records = col (st, 12);
  s->record_bytes = col (st, 13);
  s->stored_sectors = col (st, 14);
  s->index_entries = col (st, 15);
  s->copy_sectors = 0; /* meta_copies_get_sectors */
  return 0;
}

int
meta_state_put (struct meta_conn *c, const struct meta_state *s)
{
  USING_STMT (st, c, ST_STATE_PUT);

  bind_blob (st, 1, s->uuid, UUID_LEN);
  bind_u64 (st, 2, s->epoch);
  bind_u64 (st, 3, s->opening);
  bind_u64 (st, 4, s->features_incompat);
  bind_u64 (st, 5, s->features_compat);
  bind_u64 (st, 6, s->features_autoclear);
  bind_u64 (st, 7, s->sector_bytes);
  bind_u64 (st, 8, (uint64_t) s->hash);
  bind_u64 (st, 9, s->folded);
  bind_u64 (st, 10, s->journal_position);
  bind_u64 (st, 11, s->fold);
  bind_u64 (st, 12, s->next_id);
  bind_u64 (st, 13, s->records);
  bind_u64 (st, 14, s->record_bytes);
  bind_u64 (st, 15, s->stored_sectors);
  bind_u64 (st, 16, s->index_entries);
  return meta_run (c, st, "writing the state");
}

static int
get_count (struct meta_conn *c, enum meta_stmt which, uint64_t *count)
{
  USING_STMT (st, c, which);
  int r = step_one (c, st, "counting pages");

  if (r == 1)
    *count = col (st, 0);
  return r == 1 ? 0 : -1;
}

int
meta_page_counts (struct meta_conn *c, uint64_t *all, uint64_t *unused)
{
  if (get_count (c, ST_PAGE_COUNT, all) == -1)
    return -1;
  return get_count (c, ST_FREE_COUNT, unused);
}

static int
col_dup (sqlite3_stmt *st, int i, char **out)
{
  *out = strdup (col_text (st, i));
  return *out ? 0 : nbdedup_fail (ENOMEM, "no memory");
}

/* For the two tables of a text by name. */
static int
text_get (struct meta_conn *c, enum meta_stmt which, const char *name,
          char **value, const char *doing)
{
  USING_STMT (st, c, which);
  int r;

  bind_text (st, 1, name);
  r = step_one (c, st, doing);
  if (r == 1 && col_dup (st, 0, value) == -1)
    return -1;
  return r;
}

static int
text_put (struct meta_conn *c, enum meta_stmt which, const char *name,
          const char *value, const char *doing)
{
  USING_STMT (st, c, which);

  bind_text (st, 1, name);
  bind_text (st, 2, value);
  return meta_run (c, st, doing);
}

int
meta_property_get (struct meta_conn *c, const char *name, char **value)
{
  return text_get (c, ST_PROPERTY_GET, name, value, "reading a property");
}

int
meta_property_put (struct meta_conn *c, const char *name, const char *value)
{
  return text_put (c, ST_PROPERTY_PUT, name, value, "writing a property");
}

int
meta_property_delete (struct meta_conn *c, const char *name)
{
  USING_STMT (st, c, ST_PROPERTY_DELETE);

  bind_text (st, 1, name);
  return meta_run (c, st, "deleting a property");
}

/* A row of table "property", though it is none: damage to that table is
 * repaired row by row.  No command asks for a property of this name.
 */
static const char hash_key_name[] = "hash-key";

int
meta_hash_key_get (struct meta_conn *c, struct hash_key *key)
{
  char *text = NULL;
  int r = meta_property_get (c, hash_key_name, &text);

  if (r == 1 && !hash_key_parse (text, key))
    r = 0;
  free (text);
  return r;
}

int
meta_hash_key_put (struct meta_conn *c, const struct hash_key *key)
{
  char text[HASH_KEY_TEXT];

  hash_key_format (key, text);
  return meta_property_put (c, hash_key_name, text);
}

int
meta_report_get (struct meta_conn *c, const char *name, char **value)
{
  return text_get (c, ST_REPORT_GET, name, value, "reading a report");
}

int
meta_report_put (struct meta_conn *c, const char *name, const char *value)
{
  return text_put (c, ST_REPORT_PUT, name, value, "writing a report");
}

int
meta_domain_id (struct meta_conn *c, const char *name, uint64_t *id)
{
  USING_STMT (find, c, ST_DOMAIN_ID);
  USING_STMT (add, c, ST_DOMAIN_ADD);
  int r;

  *id = 0;
  if (*name == '\0')
    return 0;
  bind_text (find, 1, name);
  r = step_one (c, find, "reading a domain");
  if (r == 1)
    *id = col (find, 0);
  if (r != 0)
    return r == -1 ? -1 : 0;
  bind_text (add, 1, name);
  if (meta_run (c, add, "adding a domain") == -1)
    return -1;
  *id = (uint64_t) sqlite3_last_insert_rowid (c->db);
  return 0;
}

int
meta_domain_name (struct meta_conn *c, uint64_t id, char **name)
{
  USING_STMT (st, c, ST_DOMAIN_NAME);
  int r;

  bind_u64 (st, 1, id);
  r = id == 0 ? 0 : step_one (c, st, "reading a domain");
  if (r == 1)
    return col_dup (st, 0, name);
  if (r == -1)
    return -1;
  *name = strdup ("");
  return *name ? 0 : nbdedup_fail (ENOMEM, "no memory");
}

#define LAYER_DYING 1

int
meta_layer_put (struct meta_conn *c, const struct meta_layer *l)
{
  USING_STMT (st, c, ST_LAYER_PUT);

  bind_u64 (st, 1, l->id);
  bind_u64 (st, 2, l->branch);
  bind_u64 (st, 3, l->seq);
  if (l->parent)
    bind_u64 (st, 4, l->parent);
  bind_u64 (st, 5, l->overlap);
  bind_u64 (st, 6, l->block_size);
  bind_u64 (st, 7, l->dying ? LAYER_DYING : 0);
  bind_u64 (st, 8, l->pointers);
  bind_u64 (st, 9, l->blocks);
  return meta_run (c, st, "writing a layer");
}

int
meta_layer_delete (struct meta_conn *c, uint64_t id)
{
  return meta_run_key (c, ST_LAYER_DELETE, id, "deleting a layer");
}

int
meta_layer_set_dying (struct meta_conn *c, uint64_t id)
{
  return meta_run_key (c, ST_LAYER_DYING, id, "writing a layer");
}

void
meta_col_layer (sqlite3_stmt *st, struct meta_layer *l)
{
  l->id = col (st, 0);
  l->branch = col (st, 1);
  l->seq = col (st, 2);
  l->parent = col (st, 3);
  l->overlap = col (st, 4);
  l->block_size = (uint32_t) col (st, 5);
  l->dying = (col (st, 6) & LAYER_DYING) != 0;
  l->pointers = col (st, 7);
  l->blocks = col (st, 8);
}

int
meta_layer_get (struct meta_conn *c, uint64_t id, struct meta_layer *l)
{
  USING_STMT (st, c, ST_LAYER_GET);
  int r;

  bind_u64 (st, 1, id);
  r = step_one (c, st, "reading a layer");
  if (r == 1)
    meta_col_layer (st, l);
  return r;
}

int
meta_layer_need (struct meta_conn *c, uint64_t id, struct meta_layer *l)
{
  int r = meta_layer_get (c, id, l);

  if (r == 0)
    return nbdedup_fail (EIO,
                         "pool.db: layer %" PRIu64 " is missing: run "
                         "nbdedup check",
                         id);
  return r == -1 ? -1 : 0;
}

int
meta_layer_reparent (struct meta_conn *c, uint64_t old, uint64_t new)
{
  USING_STMT (st, c, ST_LAYER_REPARENT);

  bind_u64 (st, 1, new);
  bind_u64 (st, 2, old);
  return meta_run (c, st, "writing a layer");
}

int
meta_layer_scan (struct meta_conn *c,
                 int (*fn) (void *opaque, const struct meta_layer *l),
                 void *opaque)
{
  USING_STMT (st, c, ST_LAYER_SCAN);
  struct meta_layer l;

  return SCAN (c, st, "reading the layers", ({
                 meta_col_layer (st, &l);
                 fn (opaque, &l);
               }));
}

#define VOLUME_TAIL_DIRTY 1
#define VOLUME_IMPORTING 2

int
meta_volume_put (struct meta_conn *c, const struct meta_volume *v)
{
  USING_STMT (st, c, ST_VOLUME_PUT);

  bind_u64 (st, 1, v->id);
  bind_text (st, 2, v->name);
  bind_u64 (st, 3, v->layer);
  bind_u64 (st, 4, v->size);
  bind_u64 (st, 5,
            (v->tail_dirty ? VOLUME_TAIL_DIRTY : 0) |
              (v->importing ? VOLUME_IMPORTING : 0));
  bind_text (st, 6, v->compress);
  bind_text (st, 7, v->dedup);
  bind_u64 (st, 8, v->domain);
  bind_text (st, 9, v->allow);
  if (v->origin)
    bind_u64 (st, 10, v->origin);
  return meta_run (c, st, "writing a volume");
}

int
meta_volume_delete (struct meta_conn *c, uint64_t id)
{
  return meta_run_key (c, ST_VOLUME_DELETE, id, "deleting a volume");
}

void
meta_col_volume (sqlite3_stmt *st, struct meta_volume *v)
{
  v->id = col (st, 0);
  snprintf (v->name, sizeof v->name, "%s", col_text (st, 1));
  v->layer = col (st, 2);
  v->size = col (st, 3);
  v->tail_dirty = (col (st, 4) & VOLUME_TAIL_DIRTY) != 0;
  v->importing = (col (st, 4) & VOLUME_IMPORTING) != 0;
  snprintf (v->compress, sizeof v->compress, "%s", col_text (st, 5));
  snprintf (v->dedup, sizeof v->dedup, "%s", col_text (st, 6));
  v->domain = col (st, 7);
  v->allow = col_text (st, 8);
  v->origin = col (st, 9);
}

int
meta_volume_scan (struct meta_conn *c,
                  int (*fn) (void *opaque, const struct meta_volume *v),
                  void *opaque)
{
  USING_STMT (st, c, ST_VOLUME_SCAN);
  struct meta_volume v;

  return SCAN (c, st, "reading the volumes", ({
                 meta_col_volume (st, &v);
                 fn (opaque, &v);
               }));
}

int
meta_snapshot_put (struct meta_conn *c, const struct meta_snapshot *s)
{
  USING_STMT (st, c, ST_SNAPSHOT_PUT);

  bind_u64 (st, 1, s->id);
  if (s->volume)
    bind_u64 (st, 2, s->volume);
  bind_text (st, 3, s->name);
  if (s->layer)
    bind_u64 (st, 4, s->layer);
  bind_u64 (st, 5, s->size);
  bind_u64 (st, 6, s->time);
  if (s->origin)
    bind_u64 (st, 7, s->origin);
  return meta_run (c, st, "writing a snapshot");
}

int
meta_snapshot_delete (struct meta_conn *c, uint64_t id)
{
  return meta_run_key (c, ST_SNAPSHOT_DELETE, id, "deleting a snapshot");
}

void
meta_col_snapshot (sqlite3_stmt *st, struct meta_snapshot *s)
{
  s->id = col (st, 0);
  s->volume = col (st, 1);
  s->name = col_text (st, 2);
  s->layer = col (st, 3);
  s->size = col (st, 4);
  s->time = col (st, 5);
  s->origin = col (st, 6);
}

int
meta_snapshot_scan (struct meta_conn *c,
                    int (*fn) (void *opaque, const struct meta_snapshot *s),
                    void *opaque)
{
  USING_STMT (st, c, ST_SNAPSHOT_SCAN);
  struct meta_snapshot s;

  return SCAN (c, st, "reading the snapshots", ({
                 meta_col_snapshot (st, &s);
                 fn (opaque, &s);
               }));
}

struct quick_check {
  int (*look) (void *opaque);
  void *opaque;
  int err; /* of 'look'; 0: none */
  char text[512];
};

/* SQLite goes on with other pages, which then cannot be read either. */
static int
look_before_read (void *opaque)
{
  struct quick_check *q = opaque;

  if (q->err == 0 && q->look (q->opaque) == -1) {
    q->err = errno;
    snprintf (q->text, sizeof q->text, "%s", nbdedup_error ());
  }
  return q->err;
}

int
meta_quick_check (struct meta_conn *c,
                  void (*fn) (void *opaque, const char *text),
                  int (*look) (void *opaque), void *opaque)
{
  struct quick_check q = { look, opaque, 0, "" };
  int r;
  USING_STMT (st, c, ST_QUICK_CHECK);

  if (cksum_set_look (c->db, look_before_read, &q) == -1)
    return -1;
  r = SCAN (c, st, "checking", ({
              if (q.err == 0 && strcmp (col_text (st, 0), "ok") != 0)
                fn (opaque, col_text (st, 0));
              0;
            }));
  cksum_set_look (c->db, NULL, NULL);
  if (q.err != 0)
    return nbdedup_fail (q.err, "%s", q.text);
  /* Then pages that could not be read are not damaged. */
  return meta_frozen_check (c) == -1 ? -1 : r;
}

/* Read a blob by integer key: 1, 0: no row, -1. */
static int
blob_get (struct meta_conn *c, enum meta_stmt which, uint64_t key,
          const char *what, struct blob *b)
{
  USING_STMT (st, c, which);
  int r;

  b->len = 0;
  bind_u64 (st, 1, key);
  r = step_one (c, st, what);
  if (r == 1 && col_blob (st, 0, b) == -1)
    return -1;
  return r;
}

int
meta_segment_get (struct meta_conn *c, uint64_t segment, struct blob *b)
{
  return blob_get (c, ST_SEGMENT_GET, segment, "reading the space map", b);
}

int
meta_segment_put (struct meta_conn *c, uint64_t segment, uint32_t nr_free,
                  uint32_t largest_run, const uint8_t *buf, size_t len)
{
  USING_STMT (st, c, ST_SEGMENT_PUT);

  bind_u64 (st, 1, segment);
  bind_u64 (st, 2, nr_free);
  bind_u64 (st, 3, largest_run);
  bind_blob (st, 4, buf, len);
  return meta_run (c, st, "writing the space map");
}

int
meta_segment_delete (struct meta_conn *c, uint64_t segment)
{
  return meta_run_key (c, ST_SEGMENT_DELETE, segment, "writing the space map");
}

int
meta_segment_scan (struct meta_conn *c,
                   int (*fn) (void *opaque, uint64_t segment, uint32_t nr_free,
                              uint32_t largest_run),
                   void *opaque)
{
  USING_STMT (st, c, ST_SEGMENT_SCAN);

  return SCAN (c, st, "reading the space map",
               fn (opaque, col (st, 0), (uint32_t) col (st, 1),
                   (uint32_t) col (st, 2)));
}

int
meta_limbo_put (struct meta_conn *c, uint64_t addr)
{
  return meta_run_key (c, ST_LIMBO_PUT, addr, "writing limbo");
}

int
meta_limbo_delete (struct meta_conn *c, uint64_t addr)
{
  return meta_run_key (c, ST_LIMBO_DELETE, addr, "writing limbo");
}

int
meta_limbo_scan (struct meta_conn *c, int (*fn) (void *opaque, uint64_t addr),
                 void *opaque)
{
  USING_STMT (st, c, ST_LIMBO_SCAN);

  return SCAN (c, st, "reading limbo", fn (opaque, col (st, 0)));
}
