/* SPDX-License-Identifier: BSD-3-Clause */

/* See plants.h. */

#include <config.h>

#include "data/volume-types.h"
#include "format/format.h"
#include "format/index-row.h"
#include "format/record-row.h"
#include "format/segment.h"
#include "meta/meta-conn.h"
#include "rigs/plants.h"

uint64_t planted_addr;
int64_t planted_delta;

static int
run_plant (void *arg, struct meta_conn *c, struct meta_state *state)
{
  plant_fn **fn = arg;

  (*fn) (c, state);
  return 0;
}

void
plant (plant_fn *fn)
{
  must (txg_run (pool->txg, run_plant, NULL, &fn));
}

uint64_t
features (void)
{
  struct meta_state state;

  txg_get_state (pool->txg, &state);
  return state.features_incompat;
}

/*----------------------------------------------------------------------
 * Records
 */

struct group {
  struct record r[RECORD_GROUP_SECTORS];
  unsigned nr;
};

static void
get_group (struct meta_conn *c, uint64_t group, struct group *g)
{
  struct blob b CLEANUP_BLOB = { NULL };
  size_t off = 0;
  int n;

  g->nr = 0;
  if (meta_record_get (c, group, &b) != 1)
    return;
  while ((n = record_next (group, b.p, b.len, &off, &g->r[g->nr])) == 1)
    g->nr++;
  expect (n == 0);
}

static void
put_group (struct meta_conn *c, uint64_t group, const struct group *g)
{
  uint8_t *buf = xmalloc (RECORD_GROUP_SECTORS * RECORD_ENTRY_MAX);
  size_t len = 0;
  unsigned i;

  for (i = 0; i < g->nr; ++i)
    len += record_pack (&g->r[i], buf + len);
  must (len > 0 ? meta_record_put (c, group, buf, len)
                : meta_record_delete (c, group));
  free (buf);
}

static struct record *
get_planted (struct meta_conn *c, struct group *g)
{
  unsigned i;

  get_group (c, planted_addr / RECORD_GROUP_SECTORS, g);
  for (i = 0; i < g->nr; ++i)
    if (g->r[i].ptr.addr == planted_addr)
      return &g->r[i];
  die ("there is no record at %" PRIu64, planted_addr);
}

void
change_count (struct meta_conn *c, struct meta_state *state)
{
  struct group g;

  (void) state;
  get_planted (c, &g)->refcount += (uint64_t) planted_delta;
  put_group (c, planted_addr / RECORD_GROUP_SECTORS, &g);
}

void
drop_record (struct meta_conn *c, struct meta_state *state)
{
  struct group g;
  struct record *r = get_planted (c, &g);

  (void) state;
  memmove (r, r + 1, (size_t) (g.r + g.nr - (r + 1)) * sizeof *r);
  g.nr--;
  put_group (c, planted_addr / RECORD_GROUP_SECTORS, &g);
}

void
cut_group (struct meta_conn *c, struct meta_state *state)
{
  const uint64_t group = planted_addr / RECORD_GROUP_SECTORS;
  struct group g;
  char sql[200];

  (void) state;
  /* The row gets all counts, so that the fold reads it. */
  get_group (c, group, &g);
  put_group (c, group, &g);
  /* 13: not where an entry ends. */
  snprintf (sql, sizeof sql,
            "UPDATE record SET data = substr (data, 1,"
            " length (data) / 2 + 13) WHERE grp = %" PRIu64,
            group);
  must (meta_exec (c, sql, "a test"));
}

/*----------------------------------------------------------------------
 * Older rows
 */

struct unpacking {
  struct meta_conn *c;
  const char *table, *column;
};

/* The statement has the row's key and its packed data. */
static void
put_unpacked (const struct unpacking *u, sqlite3_stmt *st, const uint8_t *data,
              size_t len)
{
  sqlite3_stmt *put;
  char sql[200];

  snprintf (sql, sizeof sql, "UPDATE %s SET %s = ? WHERE rowid = ?", u->table,
            u->column);
  expect (sqlite3_prepare_v2 (u->c->db, sql, -1, &put, NULL) == SQLITE_OK);
  sqlite3_bind_blob64 (put, 1, data, len, SQLITE_STATIC);
  sqlite3_bind_int64 (put, 2, sqlite3_column_int64 (st, 0));
  expect (sqlite3_step (put) == SQLITE_DONE);
  sqlite3_finalize (put);
}

static void
unpack_record_row (const struct unpacking *u, sqlite3_stmt *st,
                   const uint8_t *row, size_t len)
{
  static uint8_t entries[RECORD_ROW_MAX];

  if (record_row_is_packed (row, len))
    put_unpacked (u, st, entries, record_row_unpack (row, len, entries));
}

static void
unpack_index_row (const struct unpacking *u, sqlite3_stmt *st,
                  const uint8_t *row, size_t len)
{
  uint8_t *entries;

  if (!index_row_is_packed (len))
    return;
  entries = xmalloc (index_row_unpacked_max (len));
  put_unpacked (u, st, entries, index_row_unpack (row, len, entries));
  free (entries);
}

static void
unpack_table (const struct unpacking *u,
              void (*unpack) (const struct unpacking *, sqlite3_stmt *,
                              const uint8_t *, size_t))
{
  sqlite3_stmt *st;
  char sql[200];

  snprintf (sql, sizeof sql, "SELECT rowid, %s FROM %s", u->column, u->table);
  expect (sqlite3_prepare_v2 (u->c->db, sql, -1, &st, NULL) == SQLITE_OK);
  while (sqlite3_step (st) == SQLITE_ROW)
    unpack (u, st, sqlite3_column_blob (st, 1),
            (size_t) sqlite3_column_bytes (st, 1));
  expect (sqlite3_finalize (st) == SQLITE_OK);
}

void
unpack_rows (struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  unpack_table (&(struct unpacking) { c, "record", "data" }, unpack_record_row);
  unpack_table (&(struct unpacking) { c, "ddt", "entries" }, unpack_index_row);
}

/*----------------------------------------------------------------------
 * Index, limbo, totals, maps
 */

struct longest {
  unsigned run;
  uint64_t low;
  struct blob *b;
};

static int
note_row (void *opaque, unsigned run, uint64_t low, const uint8_t *buf,
          size_t len)
{
  struct longest *l = opaque;

  if (len <= l->b->len)
    return 0;
  must (blob_reserve (l->b, len));
  memcpy (l->b->p, buf, len);
  l->b->len = len;
  l->run = run;
  l->low = low;
  return 0;
}

size_t
longest_index_row (struct meta_conn *c, unsigned *run, uint64_t *low,
                   struct blob *b)
{
  struct longest l = { .b = b };

  b->len = 0;
  must (meta_index_scan (c, note_row, &l));
  *run = l.run;
  *low = l.low;
  return b->len;
}

void
empty_index (struct meta_conn *c, struct meta_state *state)
{
  unsigned run;

  (void) state;
  for (run = 0; run < INDEX_RUNS; ++run)
    must (meta_index_delete_run (c, run));
}

void
add_index_entry (struct meta_conn *c, struct meta_state *state)
{
  struct index_entry e = { .prefix = 0, .addr = 77 };
  uint8_t buf[INDEX_ENTRY_LEN];

  (void) state;
  index_entry_pack (&e, buf);
  must (meta_index_put (c, 0, 0, buf, sizeof buf));
}

void
swap_index_entries (struct meta_conn *c, struct meta_state *state)
{
  uint8_t entry[INDEX_ENTRY_LEN];
  struct blob b CLEANUP_BLOB = { NULL };
  uint64_t low;
  unsigned run;

  (void) state;
  expect (longest_index_row (c, &run, &low, &b) >= 2 * INDEX_ENTRY_LEN);
  memcpy (entry, b.p, sizeof entry);
  memcpy (b.p, b.p + INDEX_ENTRY_LEN, sizeof entry);
  memcpy (b.p + INDEX_ENTRY_LEN, entry, sizeof entry);
  must (meta_index_put (c, run, low, b.p, b.len));
}

void
put_limbo (struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  must (meta_limbo_put (c, planted_addr));
}

void
change_totals (struct meta_conn *c, struct meta_state *state)
{
  struct meta_layer l;

  state->records += 3;
  state->record_bytes -= 4096;
  state->stored_sectors += 17;
  state->index_entries -= 2;
  expect (meta_layer_get (c, volume->layer->id, &l) == 1);
  l.pointers += 5;
  l.blocks -= l.blocks < 7 ? l.blocks : 7;
  must (meta_layer_put (c, &l));
}

void
add_foreign_leaf (struct meta_conn *c, struct meta_state *state)
{
  uint8_t buf[LEAF_LEN_MAX];
  size_t len = 0;

  (void) state;
  expect (meta_leaf_get (c, volume->layer->branch, 0, volume->layer->seq, buf,
                         &len) == 1);
  must (meta_leaf_put (c, 12345, 0, 7, buf, len));
}

/*----------------------------------------------------------------------
 * Space maps
 */

static uint64_t
planted_segment (const struct meta_state *state)
{
  return planted_addr / (SEGMENT_BYTES / state->sector_bytes);
}

void
drop_segment (struct meta_conn *c, struct meta_state *state)
{
  must (meta_segment_delete (c, planted_segment (state)));
}

void
spoil_segment (struct meta_conn *c, struct meta_state *state)
{
  struct blob b CLEANUP_BLOB = { NULL };

  expect (meta_segment_get (c, planted_segment (state), &b) == 1);
  b.p[b.len / 2] ^= 1;
  must (meta_segment_put (c, planted_segment (state), 100, 50, b.p, b.len));
}

void
spoil_figures (struct meta_conn *c, struct meta_state *state)
{
  struct blob b CLEANUP_BLOB = { NULL };

  expect (meta_segment_get (c, planted_segment (state), &b) == 1);
  must (meta_segment_put (c, planted_segment (state), 10, 5000, b.p, b.len));
}

static struct segment_map *
get_map (struct meta_conn *c, const struct meta_state *state)
{
  uint64_t segment = planted_segment (state);
  struct blob b CLEANUP_BLOB = { NULL };
  struct segment_map *map;

  expect (meta_segment_get (c, segment, &b) == 1);
  map = segment_map_unpack (segment, state->sector_bytes, b.p, b.len);
  expect (map != NULL);
  return map;
}

static void
put_map (struct meta_conn *c, const struct meta_state *state,
         struct segment_map *map)
{
  unsigned first, len = segment_map_largest_run (map, &first);
  size_t packed_len;
  uint8_t *packed = segment_map_pack (map, &packed_len);

  must (meta_segment_put (c, planted_segment (state),
                          map->nr_sectors - map->nr_used, len, packed,
                          packed_len));
  free (packed);
  segment_map_free (map);
}

void
change_space (struct meta_conn *c, struct meta_state *state)
{
  uint64_t per_segment = SEGMENT_BYTES / state->sector_bytes;
  struct segment_map *map = get_map (c, state);
  struct group g;
  unsigned first;

  if (planted_delta < 0)
    must (segment_map_clear (map, (unsigned) (planted_addr % per_segment),
                             sectors_of (get_planted (c, &g)->ptr.psize,
                                         state->sector_bytes)));
  else if (segment_map_largest_run (map, &first) > 4)
    must (segment_map_set (map, first + 2, 2));
  put_map (c, state, map);
}

void
change_slots (struct meta_conn *c, struct meta_state *state)
{
  struct segment_map *map = get_map (c, state);
  struct group g;
  int free_slot = segment_map_find_slot (map);

  if (free_slot != -1)
    must (segment_map_set_slot (map, (unsigned) free_slot));
  must (segment_map_clear_slot (map, get_planted (c, &g)->slot));
  put_map (c, state, map);
}
