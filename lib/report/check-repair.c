/* SPDX-License-Identifier: BSD-3-Clause */

/* check --repair: make pool.db consistent again.
 *
 * The repair trusts the first of these, and derives the others:
 *
 *   maps     define which blocks there are.  Blocks in pages that are lost in
 *            all copies are lost (mend.h).  A pointer that nothing describes
 *            makes its block lost, but only if its bytes could be read and do
 *            not match: blocks that can be read stay
 *   records  follow from the maps (their counts) and, where a row is gone,
 *            from the pointers and the summaries in "records"
 *   copies   stay if both they and their primaries are there, and are the
 *            same; others are deleted
 *   space    follows from the records and the summaries' chunks
 *   index    follows from the records
 *   totals   follow from all of them
 *
 * Each pass recounts and writes inside the transactions of folds.  There
 * pool.db has all pointers and counts of one moment, while clients keep
 * access; the next fold adds their later changes.  A pass changes a bounded
 * number of rows at once and continues in the next transaction.  Each leaves
 * pool.db no worse than before, so a repair that is killed can be repeated.
 *
 * A count is never set to less than the pointers that are found in the same
 * transaction.  A record without pointers goes to limbo, and dies as usual.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/log.h"
#include "core/ddt.h"
#include "core/txg.h"
#include "data/volume-types.h"
#include "disk/room.h"
#include "format/leaf-delta.h"
#include "report/check-int.h"
#include "report/check.h"
#include "report/mend.h"
#include "volume/lost-leaves.h"
#include "volume/volume.h"

/* Rows that one transaction changes, and pages that each may take; and the
 * number of rows if there is no room for those.
 */
#define ROWS 128
#define PAGES_PER_ROW ROOM_POINTER_PAGES
#define ROWS_MIN 4

/*----------------------------------------------------------------------
 * Layers of this moment
 */

static int
compare_layers (const void *a, const void *b)
{
  const struct repair_layer *x = a, *y = b;

  if (x->row.branch != y->row.branch)
    return x->row.branch < y->row.branch ? -1 : 1;
  return x->row.seq < y->row.seq ? -1 : x->row.seq > y->row.seq;
}

struct repair_layer *
repair_find_layer (struct repair *rp, uint64_t branch, uint64_t seq)
{
  const struct repair_layer key = { .row = { .branch = branch, .seq = seq } };

  return rp->nr_layers == 0
    ? NULL
    : bsearch (&key, rp->layers, rp->nr_layers, sizeof key, compare_layers);
}

static int
collect_layer (void *opaque, const struct meta_layer *ml)
{
  struct repair *rp = opaque;
  return array_push (&rp->layers, &rp->nr_layers,
                     (struct repair_layer) { .row = *ml, .end = UINT64_MAX });
}

static int
collect_layers (struct repair *rp)
{
  struct volumes *vs = rp->pool->volumes;
  struct repair_layer *l;
  struct volume *v;
  size_t i;

  free (rp->layers);
  rp->layers = NULL;
  rp->nr_layers = 0;
  if (meta_layer_scan (rp->c, collect_layer, rp) == -1)
    return -1;
  if (rp->nr_layers > 0)
    qsort (rp->layers, rp->nr_layers, sizeof *rp->layers, compare_layers);
  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    l = repair_find_layer (rp, v->layer->branch, v->layer->seq);
    if (l != NULL)
      l->end = blocks_of (v->size, v->block_size);
  }
  return 0;
}

/*----------------------------------------------------------------------
 * A pass
 */

struct pass {
  struct repair *rp;
  int (*fn) (struct repair *rp);
  void (*done) (struct repair *rp);
};

/* Runs in the folding thread; again if the transaction has to be repeated. */
static int
run_piece (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct pass *p = arg;
  struct repair *rp = p->rp;

  rp->c = c;
  rp->state = state;
  rp->more = rp->maps_changed = rp->records_gone = false;
  return collect_layers (rp) == -1 ? -1 : p->fn (rp);
}

static void
piece_done (void *arg)
{
  struct pass *p = arg;
  struct repair *rp = p->rp;
  struct index_runs runs;

  if (rp->maps_changed)
    mend_forget_maps (rp->pool);
  /* A lookup that read a row before the commit may still cache what is gone. */
  if (rp->records_gone) {
    quiesce_wait (&rp->pool->quiesce);
    ddt_forget_clean (rp->pool->ddt);
  }
  ddt_forget_filter (rp->pool->ddt);
  if (meta_index_runs (meta_writer (rp->pool->meta), &runs) == 0)
    ddt_set_runs (rp->pool->ddt, &runs);
  if (p->done)
    p->done (rp);
}

static int
run_transaction (struct repair *rp, struct pass *p)
{
  int r;

  if (rp->rows == ROWS) {
    r = txg_run_large (rp->pool->txg, ROWS * PAGES_PER_ROW, run_piece,
                       piece_done, p);
    if (r == 0 || errno != ENOSPC)
      return r;
    rp->rows = ROWS_MIN;
  }
  return txg_run (rp->pool->txg, run_piece, piece_done, p);
}

int
repair_pass (struct repair *rp, int (*fn) (struct repair *rp),
             void (*done) (struct repair *rp), void *arg)
{
  struct pass p = { rp, fn, done };
  int r;

  rp->arg = arg;
  do {
    r = run_transaction (rp, &p);
    if (r == 0 && rp->progress &&
        rp->progress (rp->opaque, ++rp->pieces, 0) != 0)
      r = nbdedup_fail (EINTR, "interrupted");
  } while (r == 0 && rp->more);
  return r;
}

/*----------------------------------------------------------------------
 * Leaves
 */

struct fix {
  uint64_t branch, leaf, seq;
  struct leaf content;
  unsigned nr_lost;
};

struct fixes {
  struct fix *p; /* owned */
  size_t nr;
  uint64_t lost_blocks;
};

/* Compute the correct row; false: it is correct. */
static bool
judge_leaf (struct repair_layer *l, uint64_t leaf_nr, const uint8_t *buf,
            size_t len, struct fix *fix)
{
  struct pointer ptr;
  bool wrong = false;
  unsigned i;

  memset (fix->content.state, MAP_INHERIT, sizeof fix->content.state);
  fix->nr_lost = 0;
  if (l == NULL) /* no layer: no volume can read it */
    return true;
  if (leaf_unpack (buf, len, &fix->content) == -1) {
    for (i = 0; i < LEAF_BLOCKS; ++i) {
      wrong = leaf_nr * LEAF_BLOCKS + i < l->end;
      fix->content.state[i] = wrong ? MAP_LOST : MAP_INHERIT;
      fix->nr_lost += wrong;
    }
    return true;
  }
  for (i = 0; i < LEAF_BLOCKS; ++i)
    if (fix->content.state[i] == MAP_POINTER &&
        pointer_unpack (fix->content.ptr[i], l->row.block_size, &ptr) == -1) {
      fix->content.state[i] = MAP_LOST;
      fix->nr_lost++;
    }
  return fix->nr_lost > 0;
}

/* 1; 0: the row is correct; -1. */
static int
add_fix (struct repair *rp, uint64_t branch, uint64_t leaf, uint64_t seq,
         const uint8_t *buf, size_t len)
{
  struct fixes *fixes = rp->arg;
  struct fix fix = { .branch = branch, .leaf = leaf, .seq = seq };

  if (!judge_leaf (repair_find_layer (rp, branch, seq), leaf, buf, len, &fix))
    return 0;
  return array_push (&fixes->p, &fixes->nr, fix) == -1 ? -1 : 1;
}

static int
judge_row (void *opaque, uint64_t branch, uint64_t leaf, uint64_t seq,
           const uint8_t *buf, size_t len)
{
  struct repair *rp = opaque;
  struct fixes *fixes = rp->arg;
  int r = add_fix (rp, branch, leaf, seq, buf, len);

  if (r != 1 || fixes->nr <= rp->rows)
    return r == -1 ? -1 : 0;
  fixes->nr--;
  rp->more = true;
  return 1;
}

/* Write the rows, which hold no damage any more. */
static int
apply_fixes (struct repair *rp)
{
  struct fixes *fixes = rp->arg;
  uint8_t buf[LEAF_LEN_MAX];
  const struct fix *fix;
  size_t i, len;

  for (i = 0; i < fixes->nr; ++i) {
    fix = &fixes->p[i];
    len = leaf_pack (&fix->content, buf);
    if ((len > 0
           ? meta_leaf_put (rp->c, fix->branch, fix->leaf, fix->seq, buf, len)
           : meta_leaf_delete (rp->c, fix->branch, fix->leaf, fix->seq)) == -1)
      return -1;
    fixes->lost_blocks += fix->nr_lost;
    if (fix->nr_lost > 0)
      rp->state->features_compat |= FEATURE_COMPAT_LOST;
    rp->maps_changed = true;
  }
  return 0;
}

static void
forget_fixes (struct fixes *fixes)
{
  free (fixes->p);
  *fixes = (struct fixes) { .p = NULL };
}

static int
fix_leaves (struct repair *rp)
{
  forget_fixes (rp->arg);
  return meta_leaf_scan_all (rp->c, judge_row, rp) == -1 ? -1
                                                         : apply_fixes (rp);
}

/* Rows of table "delta" that are not valid ('leaf': an area), and leaves that
 * have deltas but no row.
 */
struct bad_deltas {
  struct repair *rp;
  struct meta_leaf_key *rows, *leaves; /* owned */
  size_t nr_rows, nr_leaves;
};

static int
find_bad_deltas (void *opaque, const struct meta_leaf_key *key,
                 const uint8_t *row, size_t len)
{
  struct bad_deltas *bad = opaque;
  struct repair *rp = bad->rp;
  struct meta_leaf_key k = *key;
  uint8_t buf[LEAF_LEN_MAX];
  size_t first, n;
  int r;

  if (bad->nr_rows > rp->rows / DELTA_LEAVES || bad->nr_leaves >= rp->rows) {
    rp->more = true;
    return 1;
  }
  if (len == 0 || !deltas_are_valid (row, len))
    return array_push (&bad->rows, &bad->nr_rows, *key);
  for (k.leaf = key->leaf * DELTA_LEAVES;
       k.leaf < (key->leaf + 1) * DELTA_LEAVES; ++k.leaf) {
    if (deltas_of_leaf (row, len, k.leaf, &first) == 0)
      continue;
    r = meta_leaf_get (rp->c, k.branch, k.leaf, k.seq, buf, &n);
    if (r == -1 ||
        (r == 0 && array_push (&bad->leaves, &bad->nr_leaves, k) == -1))
      return -1;
  }
  return 0;
}

static int
note_lost (void *opaque, const struct meta_leaf_key *key, unsigned blocks)
{
  struct repair *rp = opaque;
  struct fixes *fixes = rp->arg;

  if (repair_find_layer (rp, key->branch, key->seq) == NULL)
    return 0;
  fixes->lost_blocks += blocks;
  return array_push (&fixes->p, &fixes->nr,
                     (struct fix) {
                       .branch = key->branch,
                       .leaf = key->leaf,
                       .seq = key->seq,
                       .nr_lost = blocks,
                     });
}

static int
fix_deltas (struct repair *rp)
{
  struct bad_deltas bad = { .rp = rp };
  const struct meta_leaf_key *k;
  int r;

  forget_fixes (rp->arg);
  r = meta_deltas_scan (rp->c, find_bad_deltas, &bad);
  for (k = bad.rows; k < bad.rows + bad.nr_rows && r == 0; ++k) {
    r = meta_deltas_lose (rp->c, k, note_lost, rp);
    rp->state->features_compat |= FEATURE_COMPAT_LOST;
    rp->maps_changed = true;
  }
  for (k = bad.leaves; k < bad.leaves + bad.nr_leaves && r == 0; ++k)
    r = meta_leaf_delete (rp->c, k->branch, k->leaf, k->seq);
  free (bad.rows);
  free (bad.leaves);
  return r;
}

static void
leaves_done (struct repair *rp)
{
  struct fixes *fixes = rp->arg;
  const struct fix *fix;
  struct layer *layer;
  size_t i;

  rp->lost_blocks += fixes->lost_blocks;
  for (i = 0; i < fixes->nr; ++i) {
    fix = &fixes->p[i];
    layer = fix->nr_lost == 0
      ? NULL
      : volumes_find_layer (rp->pool->volumes,
                            repair_find_layer (rp, fix->branch, fix->seq)
                              ->row.id);
    if (layer)
      (void) lost_leaves_note (rp->pool->lost, layer, fix->leaf, 1, 0);
  }
}

static int
repair_leaves (struct repair *rp)
{
  struct fixes fixes = { .p = NULL };
  int r = repair_pass (rp, fix_deltas, leaves_done, &fixes);

  if (r == 0)
    r = repair_pass (rp, fix_leaves, leaves_done, &fixes);
  free (fixes.p);
  return r;
}

/*----------------------------------------------------------------------
 * Totals, and counts of layers
 */

struct right_blocks {
  uint64_t layer, blocks;
};

struct totals {
  uint64_t records, record_bytes, stored_sectors, index_entries;
  uint64_t copy_sectors;
  struct right_blocks *blocks; /* owned; of layers whose count is wrong */
  size_t nr_blocks;
  struct repair *rp;
};

static int
add_group (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct totals *t = opaque;
  struct record r;
  uint32_t sectors;
  size_t off = 0;

  /* check counts in the same way */
  while (record_next (group, buf, len, &off, &r) == 1) {
    if (r.refcount == 0)
      continue;
    sectors = sectors_of (r.ptr.psize, t->rp->state->sector_bytes);
    t->stored_sectors += sectors;
    if (r.flags & RECORD_COPY) {
      t->copy_sectors += sectors;
      continue;
    }
    t->records++;
    t->record_bytes += r.lsize;
  }
  return 0;
}

static int
add_leaf (void *opaque, uint64_t branch, uint64_t leaf_nr, uint64_t seq,
          const uint8_t *buf, size_t len)
{
  struct totals *t = opaque;
  struct repair_layer *l = repair_find_layer (t->rp, branch, seq);
  struct leaf leaf;
  unsigned i;

  (void) leaf_nr;
  if (l == NULL || leaf_unpack (buf, len, &leaf) == -1)
    return 0;
  for (i = 0; i < LEAF_BLOCKS; ++i)
    l->pointers += leaf.state[i] == MAP_POINTER;
  return 0;
}

static int
go_on (void *opaque)
{
  (void) opaque;
  return 0;
}

static void
wrong_blocks (void *opaque, uint64_t layer, uint64_t stored, uint64_t found)
{
  struct totals *t = opaque;

  (void) stored;
  /* If there is no memory, the check that follows reports it. */
  (void) array_push (&t->blocks, &t->nr_blocks,
                     (struct right_blocks) { layer, found });
}

static int
put_layers (struct repair *rp, struct totals *t)
{
  struct repair_layer *l;
  size_t i, j;
  bool wrong;

  for (i = 0; i < rp->nr_layers; ++i) {
    l = &rp->layers[i];
    wrong = l->row.pointers != l->pointers;
    l->row.pointers = l->pointers;
    for (j = 0; j < t->nr_blocks; ++j)
      if (t->blocks[j].layer == l->row.id) {
        l->row.blocks = t->blocks[j].blocks;
        wrong = true;
      }
    if (wrong && meta_layer_put (rp->c, &l->row) == -1)
      return -1;
  }
  return 0;
}

static int
find_wrong_blocks (struct totals *t)
{
  struct recount *rc = recount_new (t->rp->pool);
  int r = rc ? recount_blocks (rc, t->rp->c, go_on, wrong_blocks, t) : -1;

  recount_free (rc);
  return r;
}

static int
fix_totals (struct repair *rp)
{
  struct totals *t = rp->arg;
  struct meta_state *state = rp->state;

  free (t->blocks);
  *t = (struct totals) { .rp = rp };
  if (meta_count_delete_strays (rp->c) == -1 ||
      meta_record_scan (rp->c, 0, add_group, t) == -1 ||
      meta_index_count (rp->c, &t->index_entries) == -1 ||
      meta_leaf_scan_all (rp->c, add_leaf, t) == -1 ||
      find_wrong_blocks (t) == -1 || put_layers (rp, t) == -1)
    return -1;
  state->records = t->records;
  state->record_bytes = t->record_bytes;
  state->stored_sectors = t->stored_sectors;
  state->index_entries = t->index_entries;
  state->copy_sectors = t->copy_sectors;
  return meta_copies_put_sectors (rp->c, t->copy_sectors);
}

static void
totals_done (struct repair *rp)
{
  const struct repair_layer *l;
  struct layer *layer;
  size_t i;

  for (i = 0; i < rp->nr_layers; ++i) {
    l = &rp->layers[i];
    layer = volumes_find_layer (rp->pool->volumes, l->row.id);
    if (layer == NULL)
      continue;
    layer->pointers = l->row.pointers;
    layer->blocks = l->row.blocks;
  }
}

static int
repair_totals (struct repair *rp)
{
  struct totals t = { .rp = rp };
  int r = repair_pass (rp, fix_totals, totals_done, &t);

  free (t.blocks);
  return r;
}

/*----------------------------------------------------------------------*/

/* A pass that fails, because a page cannot be read, must not prevent the
 * others.
 */
static int
run_passes (struct repair *rp)
{
  static int (*const passes[]) (struct repair *rp) = {
    repair_leaves, repair_copies, repair_records, repair_space,
    repair_index,  repair_limbo,  repair_totals,
  };
  size_t i;

  /* Nothing can be counted while a part of the maps cannot be read. */
  if (txg_mend (rp->pool->txg) == -1) {
    if (txg_check (rp->pool->txg) == -1)
      return -1;
    nbdedup_log (NBDEDUP_LOG_ERROR, "%s: check --repair: %s", rp->pool->path,
                 nbdedup_error ());
  }
  for (i = 0; i < sizeof passes / sizeof passes[0]; ++i) {
    if (passes[i](rp) == 0)
      continue;
    if (errno != EIO || txg_check (rp->pool->txg) == -1)
      return -1;
    nbdedup_log (NBDEDUP_LOG_ERROR, "%s: check --repair: %s", rp->pool->path,
                 nbdedup_error ());
  }
  /* In this fold records without references die, and their space is freed. */
  return txg_run (rp->pool->txg, NULL, NULL, NULL);
}

int
check_repair (struct nbdedup_pool *pool, uint64_t *lost_blocks,
              nbdedup_progress_fn *progress, void *opaque)
{
  struct repair rp = {
    .pool = pool,
    .progress = progress,
    .opaque = opaque,
    .rows = ROWS,
  };
  int r, err;

  assert_held (&pool->admin);
  r = run_passes (&rp);
  err = errno;
  free (rp.layers);
  errno = err;
  *lost_blocks = rp.lost_blocks;
  return r;
}
