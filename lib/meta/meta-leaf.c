/* SPDX-License-Identifier: BSD-3-Clause */

/* Tables "leaf" and "delta" of pool.db: the maps, and those pointers that are
 * kept apart from them (leaf-delta.h).
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "format/leaf-delta.h"
#include "meta/meta-conn.h"

/* LEAF_DELTAS_SQL says it in SQL. */
_Static_assert (DELTA_LEAVES == 64, "the statements divide by it");

/* A table that is there may get rows at any time, unless the pool is read-only.
 * A damaged page that never had any must not hide the maps of such a pool: a
 * fold cannot replace it.
 */
int
meta_has_deltas (struct meta_conn *c)
{
  struct meta_state state;
  const bool seen = c->has_deltas;
  int r = meta_has_table (c, ST_DELTA_TABLE, &c->has_deltas);

  if (r == 1 && !seen && c->readonly && meta_state_get (c, &state) == 0)
    r = (state.features_incompat & FEATURE_INCOMPAT_DELTAS) != 0;
  c->has_deltas = r == 1;
  return r;
}
#define USING_LEAF_STMT(st, c, which)                                          \
  USING_STMT_IF (st, c, meta_has_deltas (c), which)

void
meta_col_leaf (sqlite3_stmt *st, int i, uint64_t leaf_nr,
               struct meta_leaf *leaf)
{
  const uint8_t *deltas = sqlite3_column_blob (st, i + 1);
  const size_t len = (size_t) sqlite3_column_bytes (st, i + 1);
  size_t first;

  leaf->p = sqlite3_column_blob (st, i);
  leaf->len = (size_t) sqlite3_column_bytes (st, i);
  if (leaf->len == 0 || leaf->len > LEAF_LEN_MAX ||
      (deltas_are_valid (deltas, len) &&
       deltas_of_leaf (deltas, len, leaf_nr, &first) == 0))
    return;
  memcpy (leaf->buf, leaf->p, leaf->len);
  leaf->p = leaf->buf;
  if (deltas_apply (deltas, len, leaf_nr, leaf->buf, &leaf->len) == -1)
    leaf->len = 1;
}

static void
bind_key (sqlite3_stmt *st, uint64_t branch, uint64_t number, uint64_t seq)
{
  bind_u64 (st, 1, branch);
  bind_u64 (st, 2, number);
  bind_u64 (st, 3, seq);
}

static int
run_with_key (struct meta_conn *c, enum meta_stmt which, uint64_t branch,
              uint64_t number, uint64_t seq)
{
  USING_STMT (st, c, which);

  bind_key (st, branch, number, seq);
  return meta_run (c, st, "writing the map");
}

static int
put_row (struct meta_conn *c, enum meta_stmt which, uint64_t branch,
         uint64_t number, uint64_t seq, const uint8_t *buf, size_t len)
{
  USING_STMT (st, c, which);

  bind_key (st, branch, number, seq);
  bind_blob (st, 4, buf, len);
  return meta_run (c, st, "writing the map");
}

/*----------------------------------------------------------------------
 * Deltas
 */

int
meta_deltas_get (struct meta_conn *c, uint64_t branch, uint64_t area,
                 uint64_t seq, uint8_t *row, size_t *len)
{
  int r = meta_has_deltas (c);

  *len = 0;
  if (r != 1)
    return r;
  USING_STMT (st, c, ST_DELTA_GET);
  bind_key (st, branch, area, seq);
  r = step_one (c, st, "reading the map");
  if (r != 1)
    return r;
  *len = (size_t) sqlite3_column_bytes (st, 0);
  if (*len > DELTA_LEN_MAX)
    *len = 1; /* not valid */
  if (*len > 0)
    memcpy (row, sqlite3_column_blob (st, 0), *len);
  return 1;
}

int
meta_deltas_put (struct meta_conn *c, uint64_t branch, uint64_t area,
                 uint64_t seq, const uint8_t *row, size_t len)
{
  return len > 0 ? put_row (c, ST_DELTA_PUT, branch, area, seq, row, len)
                 : run_with_key (c, ST_DELTA_DELETE, branch, area, seq);
}

int
meta_leaf_put_alone (struct meta_conn *c, uint64_t branch, uint64_t leaf,
                     uint64_t seq, const uint8_t *buf, size_t len)
{
  return put_row (c, ST_LEAF_PUT, branch, leaf, seq, buf, len);
}

/* Lose the leaf's pointers: how many; or -1. */
static int
lose_pointers (struct meta_conn *c, uint64_t branch, uint64_t leaf_nr,
               uint64_t seq)
{
  uint8_t buf[LEAF_LEN_MAX];
  struct leaf leaf;
  int nr = 0, r;
  unsigned i;
  {
    USING_STMT (st, c, ST_LEAF_GET_OLD);

    bind_key (st, branch, leaf_nr, seq);
    r = step_one (c, st, "reading the map");
    if (r != 1)
      return r;
    if (leaf_unpack (sqlite3_column_blob (st, 0),
                     (size_t) sqlite3_column_bytes (st, 0), &leaf) == -1)
      return 0; /* it is not valid by itself */
  }
  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (leaf.state[i] == MAP_POINTER) {
      leaf.state[i] = MAP_LOST;
      nr++;
    }
  if (nr > 0 &&
      meta_leaf_put_alone (c, branch, leaf_nr, seq, buf,
                           leaf_pack (&leaf, buf)) == -1)
    return -1;
  return nr;
}

int
meta_deltas_lose (struct meta_conn *c, const struct meta_leaf_key *key,
                  int (*lost) (void *opaque, const struct meta_leaf_key *key,
                               unsigned blocks),
                  void *opaque)
{
  struct meta_leaf_key k = *key;
  int nr;

  for (k.leaf = key->leaf * DELTA_LEAVES;
       k.leaf < (key->leaf + 1) * DELTA_LEAVES; ++k.leaf) {
    nr = lose_pointers (c, k.branch, k.leaf, k.seq);
    if (nr == -1 || (nr > 0 && lost && lost (opaque, &k, (unsigned) nr) == -1))
      return -1;
  }
  return run_with_key (c, ST_DELTA_DELETE, key->branch, key->leaf, key->seq);
}

/* Before the leaf gets a new row, or none.  While it is not known which leaves
 * the area's row belongs to, none of them can be read, and the new row could
 * not be read either.
 */
static int
drop_deltas (struct meta_conn *c, uint64_t branch, uint64_t leaf, uint64_t seq)
{
  const uint64_t area = leaf / DELTA_LEAVES;
  uint8_t row[DELTA_LEN_MAX];
  size_t len, left;
  int r = meta_deltas_get (c, branch, area, seq, row, &len);

  if (r != 1)
    return r;
  if (!deltas_are_valid (row, len))
    return nbdedup_fail (EIO,
                         "pool.db: the deltas of map leaf %" PRIu64
                         " are not valid: run nbdedup check --repair",
                         leaf);
  left = deltas_drop (row, len, leaf);
  return left == len ? 0 : meta_deltas_put (c, branch, area, seq, row, left);
}

int
meta_deltas_lose_invalid (struct meta_conn *c, const struct meta_leaf_key *key)
{
  uint8_t row[DELTA_LEN_MAX];
  size_t len;
  int r = meta_deltas_get (c, key->branch, key->leaf, key->seq, row, &len);

  if (r != 1 || deltas_are_valid (row, len))
    return r == -1 ? -1 : 0;
  return meta_deltas_lose (c, key, NULL, NULL) == -1 ? -1 : 1;
}

int
meta_deltas_merge (struct meta_conn *c, uint64_t branch, uint64_t area,
                   uint64_t seq)
{
  uint8_t row[DELTA_LEN_MAX], buf[LEAF_LEN_MAX];
  size_t len, leaf_len, first;
  struct leaf unpacked;
  uint64_t leaf;
  int r = meta_deltas_get (c, branch, area, seq, row, &len);

  if (r != 1 || !deltas_are_valid (row, len))
    return r == -1 ? -1 : 0;
  for (leaf = area * DELTA_LEAVES; leaf < (area + 1) * DELTA_LEAVES; ++leaf) {
    if (deltas_of_leaf (row, len, leaf, &first) == 0)
      continue;
    r = meta_leaf_get (c, branch, leaf, seq, buf, &leaf_len);
    if (r == 1 && leaf_unpack (buf, leaf_len, &unpacked) == -1)
      return 0; /* the repair needs both rows */
    if (r == 1)
      r = meta_leaf_put_alone (c, branch, leaf, seq, buf, leaf_len);
    if (r == -1)
      return -1;
  }
  return meta_deltas_put (c, branch, area, seq, NULL, 0);
}

int
meta_deltas_scan (struct meta_conn *c,
                  int (*fn) (void *opaque, const struct meta_leaf_key *key,
                             const uint8_t *row, size_t len),
                  void *opaque)
{
  struct meta_leaf_key key;
  int r = meta_has_deltas (c);

  if (r != 1)
    return r;
  USING_STMT (st, c, ST_DELTA_SCAN);
  return SCAN (c, st, "reading the maps", ({
                 key = (struct meta_leaf_key) { col (st, 0), col (st, 1),
                                                col (st, 2) };
                 fn (opaque, &key, sqlite3_column_blob (st, 3),
                     (size_t) sqlite3_column_bytes (st, 3));
               }));
}

/*----------------------------------------------------------------------
 * Leaves
 */

int
meta_leaf_get (struct meta_conn *c, uint64_t branch, uint64_t leaf,
               uint64_t seq, uint8_t *buf, size_t *len)
{
  USING_LEAF_STMT (st, c, ST_LEAF_GET);
  struct meta_leaf row;
  int r;

  bind_key (st, branch, leaf, seq);
  r = step_one (c, st, "reading the map");
  if (r != 1)
    return r;
  meta_col_leaf (st, 0, leaf, &row);
  if (row.len > LEAF_LEN_MAX)
    return nbdedup_fail (EIO, "pool.db: a map leaf of %zu bytes", row.len);
  if (row.len)
    memcpy (buf, row.p, row.len);
  *len = row.len;
  return 1;
}

int
meta_leaf_put (struct meta_conn *c, uint64_t branch, uint64_t leaf,
               uint64_t seq, const uint8_t *buf, size_t len)
{
  return drop_deltas (c, branch, leaf, seq) == -1
    ? -1
    : meta_leaf_put_alone (c, branch, leaf, seq, buf, len);
}

int
meta_leaf_delete (struct meta_conn *c, uint64_t branch, uint64_t leaf,
                  uint64_t seq)
{
  return drop_deltas (c, branch, leaf, seq) == -1
    ? -1
    : run_with_key (c, ST_LEAF_DELETE, branch, leaf, seq);
}

int
meta_leaf_scan (struct meta_conn *c, uint64_t branch, uint64_t first,
                int (*fn) (void *opaque, uint64_t leaf, uint64_t seq,
                           const uint8_t *buf, size_t len),
                void *opaque)
{
  USING_LEAF_STMT (st, c, ST_LEAF_SCAN);
  struct meta_leaf row;

  bind_u64 (st, 1, branch);
  bind_u64 (st, 2, first);
  return SCAN (c, st, "reading the map", ({
                 meta_col_leaf (st, 2, col (st, 0), &row);
                 fn (opaque, col (st, 0), col (st, 1), row.p, row.len);
               }));
}

int
meta_leaf_resolve (struct meta_conn *c, uint64_t branch, uint64_t leaf,
                   uint64_t first, uint64_t last,
                   int (*fn) (void *opaque, uint64_t seq, const uint8_t *buf,
                              size_t len),
                   void *opaque)
{
  USING_LEAF_STMT (st, c, ST_LEAF_RESOLVE);
  struct meta_leaf row;

  bind_u64 (st, 1, branch);
  bind_u64 (st, 2, leaf);
  bind_u64 (st, 3, first);
  bind_u64 (st, 4, last);
  return SCAN (c, st, "reading the map", ({
                 meta_col_leaf (st, 1, leaf, &row);
                 fn (opaque, col (st, 0), row.p, row.len);
               }));
}

int
meta_leaf_next (struct meta_conn *c, uint64_t branch, uint64_t first,
                uint64_t *leaf)
{
  USING_STMT (st, c, ST_LEAF_NEXT);
  int r;

  bind_u64 (st, 1, branch);
  bind_u64 (st, 2, first);
  r = step_one (c, st, "reading the map");
  if (r == 1)
    *leaf = col (st, 0);
  return r;
}

int
meta_leaf_scan_all (struct meta_conn *c,
                    int (*fn) (void *opaque, uint64_t branch, uint64_t leaf,
                               uint64_t seq, const uint8_t *buf, size_t len),
                    void *opaque)
{
  USING_LEAF_STMT (st, c, ST_LEAF_SCAN_ALL);
  struct meta_leaf row;

  return SCAN (c, st, "reading the maps", ({
                 meta_col_leaf (st, 3, col (st, 1), &row);
                 fn (opaque, col (st, 0), col (st, 1), col (st, 2), row.p,
                     row.len);
               }));
}

int
meta_leaf_scan_from (struct meta_conn *c, const struct meta_leaf_key *first,
                     int (*fn) (void *opaque, const struct meta_leaf_key *key,
                                const uint8_t *buf, size_t len),
                     void *opaque)
{
  USING_LEAF_STMT (st, c, ST_LEAF_SCAN_FROM);
  struct meta_leaf_key key;
  struct meta_leaf row;

  bind_key (st, first->branch, first->leaf, first->seq);
  return SCAN (c, st, "reading the maps", ({
                 key = (struct meta_leaf_key) { col (st, 0), col (st, 1),
                                                col (st, 2) };
                 meta_col_leaf (st, 3, key.leaf, &row);
                 fn (opaque, &key, row.p, row.len);
               }));
}
