/* SPDX-License-Identifier: BSD-3-Clause */

/* The places of the damage that a scrub has found: which volumes and snapshots
 * cannot read which of their blocks.
 *
 * First this finds the rows of the map that have such blocks, then the names
 * that show them (heirs.h).  All that inherit a block are affected, but not
 * those that have written it.  If all have, no name shows the damaged block.
 *
 * Both passes read pool.db at one moment, without the WAL, and hold no lock:
 * the map of a large pool takes minutes.  If that moment cannot be kept, they
 * read in short pieces, and may miss a row that a merge moves meanwhile.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "data/sync.h"
#include "report/scrub-int.h"
#include "volume/heirs.h"

/* Rows to read in a piece. */
#define PIECE_ROWS 64

/* Names in the report of a place. */
#define HEIRS_NAMED 8

/* A row of the map with damaged blocks: bit i, block i. */
struct damaged_row {
  struct meta_leaf_key key;
  uint64_t blocks;
  uint64_t lost; /* those of them that have lost their pointer */
};

struct locate {
  struct scrub *s;
  struct heirs *heirs;      /* owned */
  struct meta_conn *frozen; /* owned; NULL: read in pieces */
  struct meta_conn *c;      /* to read with; NULL: between two pieces */
  struct damaged_row *rows; /* owned */
  size_t nr_rows;
  struct meta_leaf_key next; /* of the scan */
  bool more;
  unsigned left; /* rows of this piece */
};

/*----------------------------------------------------------------------
 * Reading
 */

static void
begin_piece (struct locate *lo)
{
  assert (lo->c == NULL);
  lo->c = lo->frozen ? lo->frozen : meta_reader_get (lo->s->pool->meta);
  lo->left = PIECE_ROWS;
}

static void
end_piece (struct locate *lo)
{
  if (lo->c && lo->c != lo->frozen)
    meta_reader_put (lo->s->pool->meta, lo->c);
  lo->c = NULL;
}

static int
next_piece (struct locate *lo)
{
  end_piece (lo);
  if (scrub_go_on (lo->s) == -1 ||
      (lo->frozen && meta_frozen_check (lo->frozen) == -1))
    return -1;
  begin_piece (lo);
  return 0;
}

/*----------------------------------------------------------------------
 * The rows
 */

static int
compare_u64 (const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

  return x < y ? -1 : x > y;
}

static bool
is_damaged (const struct scrub *s, const struct leaf *leaf, unsigned i)
{
  struct pointer ptr;

  if (leaf->state[i] != MAP_POINTER || s->f.nr_damaged == 0)
    return leaf->state[i] == MAP_LOST;
  /* Only the address is used, so the layer's block size does not matter. */
  (void) pointer_unpack (leaf->ptr[i], BLOCK_SIZE_MAX, &ptr);
  return bsearch (&ptr.addr, s->f.damaged, s->f.nr_damaged, sizeof ptr.addr,
                  compare_u64) != NULL;
}

static int
note_row (void *opaque, const struct meta_leaf_key *key, const uint8_t *buf,
          size_t len)
{
  struct locate *lo = opaque;
  struct damaged_row row = { .key = *key };
  struct leaf leaf;
  unsigned i;

  if (lo->left == 0) {
    lo->next = *key;
    lo->more = true;
    return 1;
  }
  lo->left--;
  if (leaf_unpack (buf, len, &leaf) == -1)
    return -1;
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (is_damaged (lo->s, &leaf, i))
      row.blocks |= UINT64_C (1) << i;
    if (leaf.state[i] == MAP_LOST)
      row.lost |= UINT64_C (1) << i;
  }
  return row.blocks ? array_push (&lo->rows, &lo->nr_rows, row) : 0;
}

static int
find_rows (struct locate *lo)
{
  lo->nr_rows = 0;
  lo->next = (struct meta_leaf_key) { 0 };
  do {
    if (next_piece (lo) == -1)
      return -1;
    lo->more = false;
    if (meta_leaf_scan_from (lo->c, &lo->next, note_row, lo) == -1)
      return -1;
  } while (lo->more);
  return 0;
}

/*----------------------------------------------------------------------
 * The names
 */

/* Who shows a block. */
struct shown_by {
  const char *names[1 + HEIRS_NAMED]; /* not owned */
  uint64_t nr;
};

static void
add_heir (struct shown_by blocks[LEAF_BLOCKS], const struct heir *heir,
          uint64_t shown)
{
  unsigned i;

  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (shown >> i & 1 && blocks[i].nr++ <= HEIRS_NAMED)
      blocks[i].names[blocks[i].nr - 1] = heir->name;
}

static void
add_place (struct scrub *s, const struct shown_by *by, uint64_t offset,
           uint32_t length)
{
  json_t *place = json_pack ("{s:s, s:I, s:I}", "name", by->names[0], "offset",
                             (json_int_t) offset, "length",
                             (json_int_t) length);
  json_t *named = json_array ();
  uint64_t i;

  for (i = 1; i < by->nr && i <= HEIRS_NAMED; ++i)
    json_array_append_new (named, json_string (by->names[i]));
  if (by->nr > 1) {
    json_object_set_new (place, "heirs",
                         json_integer ((json_int_t) by->nr - 1));
    json_object_set (place, "inherited_by", named);
  }
  json_array_append_new (s->places, place);
  json_decref (named);
}

static int
place_row (struct locate *lo, const struct damaged_row *row)
{
  struct shown_by blocks[LEAF_BLOCKS] = { { .nr = 0 } };
  const uint32_t block_size = heirs_begin (lo->heirs, &row->key, row->blocks);
  struct heir *heir;
  uint64_t shown;
  unsigned i;
  int r;

  while ((r = heirs_next (lo->heirs, lo->c, &heir, &shown)) == 1) {
    add_heir (blocks, heir, shown);
    if (--lo->left == 0 && next_piece (lo) == -1)
      return -1;
  }
  /* 0: the pool is freeing it. */
  for (i = 0; i < LEAF_BLOCKS && r == 0 && block_size > 0; ++i) {
    if (!(row->blocks >> i & 1))
      continue;
    if (blocks[i].nr == 0) {
      lo->s->hidden_blocks++;
      continue;
    }
    lo->s->lost_blocks += row->lost >> i & 1;
    add_place (lo->s, &blocks[i],
               (row->key.leaf * LEAF_BLOCKS + i) * block_size, block_size);
  }
  return r;
}

static int
place_rows (struct locate *lo)
{
  struct scrub *s = lo->s;
  const struct heir *names;
  size_t i, nr;

  heirs_forget (lo->heirs);
  json_array_clear (s->places);
  s->lost_blocks = s->hidden_blocks = 0;
  for (i = 0; i < lo->nr_rows; ++i)
    if (place_row (lo, &lo->rows[i]) == -1)
      return -1;
  names = heirs_all (lo->heirs, &nr);
  for (i = 0; i < nr; ++i)
    if (names[i].was_found)
      json_array_append_new (s->affected, json_string (names[i].name));
  return 0;
}

/*----------------------------------------------------------------------*/

static int
look (void *opaque)
{
  return scrub_go_on (opaque);
}

/* Without a frozen reader the places are found as well. */
static int
open_moment (struct locate *lo)
{
  struct nbdedup_pool *pool = lo->s->pool;

  if (pool_sync_for_view (pool) == -1 ||
      turn_take (&pool->admin_turn, &pool->admin, look, lo->s) == -1)
    return -1;
  lo->heirs = heirs_new (pool);
  if (lo->heirs)
    lo->frozen = meta_frozen_open (pool->meta);
  turn_give (&pool->admin_turn, &pool->admin);
  return lo->heirs ? 0 : -1;
}

static int
locate (struct locate *lo)
{
  int r = find_rows (lo);

  if (r == 0)
    r = place_rows (lo);
  end_piece (lo);
  return r;
}

static void
close_frozen (struct locate *lo)
{
  if (lo->frozen)
    meta_frozen_close (lo->s->pool->meta, lo->frozen);
  lo->frozen = NULL;
}

int
scrub_locate (struct scrub *s)
{
  struct locate lo = { .s = s };
  int r = open_moment (&lo);

  if (r == 0)
    r = locate (&lo);
  /* The reader had to give way. */
  if (r == -1 && lo.frozen && meta_frozen_check (lo.frozen) == -1) {
    close_frozen (&lo);
    r = locate (&lo);
  }
  close_frozen (&lo);
  heirs_free (lo.heirs);
  free (lo.rows);
  return r;
}
