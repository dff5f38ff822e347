/* SPDX-License-Identifier: BSD-3-Clause */

/* A fold's part of the moves (moves.h): let pointers name the new records.
 *
 * This runs behind the txg's changes of the maps and before those of records,
 * so it sees each pointer that there is, and the counts change once.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "core/fold-int.h"
#include "core/moves.h"

/* Rows that one fold may read without changing them. */
#define SCAN_ROWS 65536

/* A row to change after the scan: a scan must not write its table. */
struct moved_row {
  struct meta_leaf_key key;
  struct leaf content;
};

struct sweep {
  struct fold *f;
  struct meta_conn *c;
  const struct moves_batch *batch;
  struct moved_row *rows; /* owned */
  size_t nr_rows;
  unsigned max_rows, scanned;
};

/* The address and the form of what is stored there must be the same. */
static struct move *
find_move (const struct moves_batch *batch, const struct leaf *leaf, unsigned i)
{
  struct pointer ptr;
  struct move *move;

  if (leaf->state[i] != MAP_POINTER)
    return NULL;
  move = moves_find (batch, pointer_addr (leaf->ptr[i]));
  if (move == NULL ||
      pointer_unpack (leaf->ptr[i], move->record.lsize, &ptr) == -1)
    return NULL;
  return move->old.cksum == ptr.cksum && move->old.psize == ptr.psize &&
      move->old.codec == ptr.codec
    ? move
    : NULL;
}

static bool
names_moved (const struct moves_batch *batch, const struct leaf *leaf)
{
  unsigned i;

  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (find_move (batch, leaf, i))
      return true;
  return false;
}

/* A row of no layer has references that nothing has counted: if it moved, it
 * would take them from others.
 */
static bool
is_of_a_layer (const struct sweep *s, const struct meta_leaf_key *key)
{
  const struct txg_parts *parts = s->f->parts;
  const struct layer *l = parts->find_layer (parts->opaque, key->seq);

  return l != NULL && l->branch == key->branch && l->seq == key->seq;
}

/* A row that cannot be read keeps its pointers; others report it. */
static int
scan_row (void *opaque, const struct meta_leaf_key *key, const uint8_t *buf,
          size_t len)
{
  struct sweep *s = opaque;
  struct leaf leaf;
  struct moved_row *row;

  assert (s->nr_rows <= s->max_rows);
  if (s->nr_rows >= s->max_rows || s->scanned++ >= SCAN_ROWS) {
    s->f->moves_next = *key;
    s->f->moves_swept = false;
    return 1;
  }
  if (leaf_unpack (buf, len, &leaf) == -1 || !names_moved (s->batch, &leaf) ||
      !is_of_a_layer (s, key))
    return 0;
  row = array_add (&s->rows, &s->nr_rows, sizeof *row);
  if (row == NULL)
    return -1;
  row->key = *key;
  row->content = leaf;
  return 0;
}

/* Clients may have dropped all references to the new record, after folds have
 * moved some to it: then its sectors are free, or another's.  The old one stays
 * for those that are left.
 */
static int
is_there (struct sweep *s, const struct move *move, struct move_ref *ref)
{
  const struct record *new = &move->record;
  struct record r;
  int found;

  if (!move->inserted || ref->state == MOVE_IS_THERE)
    return 1;
  if (ref->state == MOVE_IS_GONE)
    return 0;
  found = fold_find_record (s->f, s->c, new->ptr.addr, &r);
  if (found == -1)
    return -1;
  found = found && r.refcount > 0 && !(r.flags & RECORD_COPY) &&
    r.ptr.cksum == new->ptr.cksum &&r.ptr.psize ==
      new->ptr.psize &&r.ptr.codec == new->ptr.codec &&r.lsize ==
      new->lsize &&r.domain ==
      new->domain &&memcmp (&r.digest, &new->digest, sizeof r.digest) == 0;
  ref->state = found ? MOVE_IS_THERE : MOVE_IS_GONE;
  return found;
}

static int
change_row (struct sweep *s, struct moved_row *row)
{
  struct fold *f = s->f;
  uint8_t buf[LEAF_LEN_MAX];
  const struct move *move;
  struct move_ref *ref;
  unsigned i, nr = 0;
  int r;

  for (i = 0; i < LEAF_BLOCKS; ++i) {
    move = find_move (s->batch, &row->content, i);
    if (move == NULL)
      continue;
    ref = &f->move_refs[move - s->batch->p];
    r = is_there (s, move, ref);
    if (r == -1 || (r == 1 && fold_add_displaced (f, &move->old.addr, 1) == -1))
      return -1;
    if (r == 0)
      continue;
    pointer_pack (&move->record.ptr, row->content.ptr[i]);
    ref->nr++;
    nr++;
  }
  if (nr == 0)
    return 0;
  if (array_push (&f->moved_leaves.p, &f->moved_leaves.nr, row->key.leaf) == -1)
    return -1;
  return meta_leaf_put (s->c, row->key.branch, row->key.leaf, row->key.seq, buf,
                        leaf_pack (&row->content, buf));
}

static int
compare_added (const void *a, const void *b)
{
  const struct ddt_change *x = a, *y = b;

  return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/* The references that the new records gain.  Several moves may go to one. */
static int
collect_added (struct fold *f, const struct moves_batch *batch)
{
  struct move *move;
  size_t i;

  assert (f->nr_added == 0); /* each attempt begins without */
  for (i = 0; i < batch->nr; ++i) {
    move = &batch->p[i];
    if (f->move_refs[i].nr > 0 &&
        array_push (&f->added, &f->nr_added,
                    (struct ddt_change) {
                      .addr = move->record.ptr.addr,
                      .delta = f->move_refs[i].nr,
                      .record = move->inserted ? NULL : &move->record,
                      .chunk_addr = move->chunk_addr,
                    }) == -1)
      return -1;
  }
  if (f->nr_added > 0)
    qsort (f->added, f->nr_added, sizeof *f->added, compare_added);
  return 0;
}

int
fold_moves (struct fold *f, struct meta_conn *c)
{
  struct moves *m = f->parts->moves;
  struct sweep s = { .f = f, .c = c };
  size_t i;
  int r;

  f->moves_swept = false;
  f->moves_next = m ? m->next : (struct meta_leaf_key) { 0 };
  /* A repair judges what is in the tables now. */
  if (f->repairing)
    f->moves_end = m && m->under_way;
  /* Layers come first.  A row takes more room here than there. */
  if (f->move_rows == 0 || fold_background_leaves (f) == 0 || f->repairing ||
      f->has_more)
    return 0;
  assert (m != NULL && m->under_way && f->move_refs != NULL);
  s.batch = &m->batch;
  s.max_rows = (fold_background_leaves (f) + 1) / 2;
  if (s.max_rows > f->move_rows)
    s.max_rows = f->move_rows;
  f->moves_swept = true;
  memset (f->move_refs, 0, s.batch->nr * sizeof *f->move_refs);
  r = meta_leaf_scan_from (c, &m->next, scan_row, &s);
  for (i = 0; i < s.nr_rows && r == 0; ++i)
    r = change_row (&s, &s.rows[i]);
  f->background_done += (unsigned) s.nr_rows;
  free (s.rows);
  return r == -1 ? -1 : collect_added (f, s.batch);
}

int
fold_moves_begin (struct fold *f)
{
  struct moves *m = f->parts->moves;

  if (m == NULL || !m->under_way)
    return 0;
  f->moves_end = m->end;
  f->move_rows = f->moves_end ? 0 : m->rows;
  if (f->move_rows == 0)
    return 0;
  f->move_refs = calloc (m->batch.nr + 1, sizeof *f->move_refs);
  return f->move_refs ? 0 : nbdedup_fail (ENOMEM, "no memory for a fold");
}

int
fold_moves_new (const struct fold *f, struct ddt_change **new, size_t *nr)
{
  struct moves *m = f->parts->moves;
  struct move *move;
  size_t i;

  *new = NULL;
  *nr = 0;
  for (i = 0; f->move_rows > 0 && i < m->batch.nr; ++i) {
    move = &m->batch.p[i];
    if (!move->inserted &&
        array_push (new, nr,
                    (struct ddt_change) {
                      .addr = move->record.ptr.addr,
                      .record = &move->record,
                      .chunk_addr = move->chunk_addr,
                    }) == -1)
      return -1;
  }
  return 0;
}

static bool
is_moved (void *opaque, uint64_t addr)
{
  return moves_find (opaque, addr) != NULL;
}

void
fold_moves_committed (struct fold *f)
{
  struct moves *m = f->parts->moves;
  size_t i;

  if (f->move_rows == 0)
    return;
  assert (m->under_way);
  for (i = 0; i < m->batch.nr; ++i)
    if (f->move_refs[i].nr > 0 && !m->batch.p[i].inserted) {
      m->batch.p[i].inserted = true;
      m->moved++;
      m->moved_bytes += m->batch.p[i].record.ptr.psize;
    }
  m->next = f->moves_next;
  m->rows = 0; /* the compactor allows more */
  if (f->moved_leaves.nr > 0)
    map_forget_pointers (f->parts->map, f->moved_leaves.p, f->moved_leaves.nr,
                         is_moved, &m->batch);
}

void
fold_moves_finish (struct fold *f)
{
  struct moves *m = f->parts->moves;

  if (!f->moves_end && !f->moves_swept)
    return;
  assert (m != NULL && m->under_way);
  room_unreserve (f->room, m->batch.reserved);
  moves_give_back (m, &m->batch);
  m->under_way = false;
}
