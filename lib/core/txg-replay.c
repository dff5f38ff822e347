/* SPDX-License-Identifier: BSD-3-Clause */

/* Replay: apply what the journal holds beyond pool.db in memory, through the
 * same functions as before the crash; one fold makes it durable.
 *
 * A pool that is opened read-only has no fold.  Changes of maps stay in
 * memory, and so do records that the journal carries, unless they are at
 * their places already.  Counts and free space, which no read needs, are not
 * updated, so damage in their tables does not matter.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/xxh3.h"
#include "core/txg-int.h"

struct replay {
  struct txg *t;
  struct replay_report *report;
  /* Addresses of records that a suspect batch names and that are missing. */
  uint64_t *lost; /* owned */
  size_t nr_lost;
  bool sorted;
  bool is_partial; /* not every layer is known */
  bool is_dropped; /* the page cache was: reads of the store
                                 * come from the disk */
};

static int
compare_u64 (const void *a, const void *b)
{
  const uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

  return x < y ? -1 : x > y;
}

static bool
is_lost (struct replay *rp, uint64_t addr)
{
  if (rp->nr_lost == 0)
    return false;
  if (!rp->sorted) {
    qsort (rp->lost, rp->nr_lost, sizeof addr, compare_u64);
    rp->sorted = true;
  }
  return bsearch (&addr, rp->lost, rp->nr_lost, sizeof addr, compare_u64);
}

static int
add_lost (struct replay *rp, uint64_t addr)
{
  rp->sorted = false;
  return array_push (&rp->lost, &rp->nr_lost, addr);
}

static int
note (struct replay_ranges *ranges, uint64_t layer, uint64_t block,
      uint64_t count)
{
  struct replay_range *p = ranges->p;

  assert (ranges->nr <= REPLAY_RANGES_MAX);
  ranges->blocks += count;
  if (ranges->nr > 0) {
    p += ranges->nr - 1;
    if (p->layer == layer && p->block + p->count == block) {
      p->count += count;
      return 0;
    }
  }
  if (ranges->nr == REPLAY_RANGES_MAX)
    return 0;
  return array_push (&ranges->p, &ranges->nr,
                     (struct replay_range) { layer, block, count });
}

static int
lose_blocks (struct replay *rp, struct layer *layer, uint64_t block,
             uint64_t count)
{
  if (note (&rp->report->lost, layer->id, block, count) == -1)
    return -1;
  return txg_apply_lost (rp->t, layer, block, count);
}

/* Did the record's bytes reach the store?  1, 0, -1.  A file that ends
 * before them never had them; a read error proves nothing.
 */
static int
record_is_there (struct txg *t, const struct record *r)
{
  CLEANUP_FREE uint8_t *buf = malloc (r->ptr.psize);
  char why[256];
  int64_t n;

  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "no memory for replay");
  n = store_read_most (t->parts.store, r->ptr.addr, buf, r->ptr.psize);
  if (n == -1) {
    snprintf (why, sizeof why, "%s", nbdedup_error ());
    return nbdedup_fail (EIO,
                         "%s: recovery cannot tell whether this record "
                         "was ever written, and has changed nothing: try again",
                         why);
  }
  return n == r->ptr.psize && xxh3_64 (buf, r->ptr.psize) == r->ptr.cksum;
}

static int
replay_record (struct replay *rp, const struct journal_entry *e, bool suspect)
{
  struct txg *t = rp->t;
  const struct record *r = &e->record;
  uint32_t sector = t->state.sector_bytes;
  uint32_t nr = sectors_of (r->ptr.psize, sector);
  struct placement p = { r->ptr.addr, r->slot, e->chunk_addr };
  int there = 1;

  if (e->data == NULL && suspect) {
    /* A failed sync leaves pages that look written, until they are evicted. */
    if (!rp->is_dropped && !t->parts.readonly &&
        store_drop_cached (t->parts.store) == -1)
      return -1;
    rp->is_dropped = true;
    there = record_is_there (t, r);
    /* Read-only the pointer can stay: a read of it will fail. */
    if (there == -1 && t->parts.readonly)
      there = 1;
    if (there == -1)
      return -1;
  }
  if (!there)
    return add_lost (rp, r->ptr.addr);
  rp->report->records++;
  if (e->over_quota) {
    rp->report->over_quota.blocks++;
    rp->report->over_quota.bytes += r->lsize;
  }
  /* Claim before writing, so as not to overwrite sectors in use.  Only if
   * records are lost may the map show sectors in use that are not.
   */
  if (!t->parts.readonly &&
      space_claim (t->parts.space, &p, nr,
                   t->state.features_compat & FEATURE_COMPAT_RECORDS_LOST) ==
        -1)
    return -1;
  if (t->parts.readonly && (e->data == NULL || record_is_there (t, r) == 1))
    return 0;
  if (e->data) {
    CLEANUP_FREE uint8_t *buf = calloc (nr, sector);

    if (buf == NULL)
      return nbdedup_fail (ENOMEM, "no memory for replay");
    memcpy (buf, e->data, r->ptr.psize);
    if (store_write (t->parts.store, r->ptr.addr, buf, (size_t) nr * sector) ==
        -1)
      return -1;
  }
  return t->parts.readonly ? 0
                           : ddt_replay_record (t->parts.ddt, r, e->chunk_addr);
}

/* Is there a record at this address?  If it was in a damaged batch, the store
 * has its content, and its description is lost.
 */
static int
is_known (struct replay *rp, uint64_t addr)
{
  struct meta_conn *c = meta_writer (rp->t->parts.meta);
  struct blob row CLEANUP_BLOB = { NULL };
  struct record r;

  /* Read-only, a read will tell. */
  if (rp->report->damaged == 0 || rp->t->parts.readonly ||
      ddt_is_new (rp->t->parts.ddt, addr))
    return 1;
  return meta_record_find (c, addr, &row, &r);
}

static int
replay_pointers (struct replay *rp, const struct journal_entry *e,
                 struct layer *layer)
{
  struct txg *t = rp->t;
  uint64_t i, displaced;
  struct pointer ptr;
  int r;

  for (i = 0; i < e->count; ++i) {
    if (pointer_unpack (e->pointers + i * POINTER_LEN, layer->block_size,
                        &ptr) == -1)
      return -1;
    if (is_lost (rp, ptr.addr)) { /* that write never completed */
      if (note (&rp->report->dropped, layer->id, e->block + i, 1) == -1)
        return -1;
      continue;
    }
    r = is_known (rp, ptr.addr);
    if (r == 0)
      r = lose_blocks (rp, layer, e->block + i, 1) == -1 ? -1 : 0;
    if (r == -1)
      return -1;
    if (r == 0)
      continue;
    rp->report->blocks++;
    if (!t->parts.readonly && ddt_ref (t->parts.ddt, ptr.addr, 1) == -1)
      return -1;
    r = map_set (t->parts.map, layer, e->block + i, &ptr, &displaced);
    if (r == -1)
      return -1;
    if (r == 1 && !t->parts.readonly)
      ddt_unref (t->parts.ddt, displaced);
  }
  return 0;
}

static int
replay_map (struct replay *rp, const struct journal_entry *e,
            enum journal_trust trust, struct layer *layer)
{
  switch (e->type) {
  case JE_POINTERS:
    return replay_pointers (rp, e, layer);
  case JE_HOLES:
    rp->report->blocks += e->count;
    return txg_apply_holes (rp->t, layer, e->block, e->count);
  default:
    assert (e->type == JE_LOST);
    return trust == JOURNAL_DAMAGED
      ? lose_blocks (rp, layer, e->block, e->count)
      : txg_apply_lost (rp->t, layer, e->block, e->count);
  }
}

static int
replay_batch (void *opaque, uint64_t seq, enum journal_trust trust,
              const uint8_t *body, size_t len)
{
  struct replay *rp = opaque;
  struct txg *t = rp->t;
  struct journal_entry e;
  struct layer *layer;
  int64_t n;
  size_t off;
  int r;

  rp->report->batches++;
  rp->report->damaged += trust == JOURNAL_DAMAGED;
  for (off = 0; off < len; off += (size_t) n) {
    n = je_unpack (body + off, len - off, &e);
    if (n == -1)
      return -1;
    if (e.type == JE_RECORD) {
      if (replay_record (rp, &e, trust == JOURNAL_SUSPECT) == -1)
        return -1;
      continue;
    }
    layer = t->parts.find_layer (t->parts.opaque, e.layer);
    if (layer == NULL && rp->is_partial)
      continue;
    if (layer == NULL)
      return nbdedup_fail (EIO,
                           "journal: batch %" PRIu64 " names layer %" PRIu64
                           ", which pool.db does not have",
                           seq, e.layer);
    r = replay_map (rp, &e, trust, layer);
    if (r == -1)
      return -1;
  }
  if (t->parts.replayed)
    t->parts.replayed (t->parts.opaque, rp->report->batches,
                       journal_to_replay (t->parts.journal));
  return 0;
}

/* The journal has been replayed.  pool.db's counts end with the fold before it.
 */
static void
count_over_quota (const struct replay *rp)
{
  const struct notes_quota *q = &rp->report->over_quota;

  if (rp->t->parts.notes)
    notes_add_over_quota (rp->t->parts.notes, q->blocks, q->bytes);
}

static int
touch_limbo (void *opaque, uint64_t addr)
{
  struct txg *t = opaque;

  return ddt_ref (t->parts.ddt, addr, 0);
}

int
txg_replay (struct txg *t, struct replay_report *report,
            int (*fn) (void *arg, struct meta_conn *c,
                       struct meta_state *state),
            void *arg)
{
  struct meta_conn *c = meta_writer (t->parts.meta);
  struct replay rp = { .t = t, .report = report };
  int r;

  assert (!t->has_thread && !t->parts.readonly);
  *report = (struct replay_report) { .batches = 0 };
  r = meta_limbo_scan (c, touch_limbo, t);
  if (r == 0)
    r = journal_replay (t->parts.journal, t->state.journal_position,
                        t->state.folded, t->state.epoch, replay_batch, &rp);
  free (rp.lost);
  if (r == -1)
    return -1;
  count_over_quota (&rp);
  report->cut_short = journal_was_cut_short (t->parts.journal);
  if (txg_pending_bytes (t) == 0 && report->batches == 0)
    return 0;
  return txg_run (t, report->batches > 0 ? fn : NULL, NULL, arg);
}

/*----------------------------------------------------------------------
 * Read-only
 */

/* Update the counts of a layer by a changed leaf, as a fold would. */
static int
count_leaf (struct txg *t, struct meta_conn *c, const struct map_change *mc)
{
  struct layer *layer = mc->layer;
  uint64_t displaced[LEAF_BLOCKS];
  uint8_t buf[LEAF_LEN_MAX];
  struct leaf leaf, below;
  int pointers, blocks;
  unsigned nr;
  size_t len = 0;

  if (meta_leaf_get (c, layer->branch, mc->leaf, layer->seq, buf, &len) == -1 ||
      leaf_unpack (buf, len, &leaf) == -1)
    return -1;
  memset (below.state, MAP_HOLE, sizeof below.state);
  if (map_needs_below (mc, &leaf) &&
      map_get_below (t->parts.map, c, layer, mc->leaf, &below) == -1)
    return -1;
  map_apply (mc, &leaf, &below, displaced, &nr, &pointers, &blocks);
  layer->pointers = layer_count (layer->pointers, pointers);
  layer->blocks = layer_count (layer->blocks, blocks);
  return 0;
}

/* Update the figures of volumes by the replayed changes.  This skips a leaf
 * that cannot be read: its replayed blocks are known, and the blocks that they
 * displaced are not.
 */
static int
count_changes (struct txg *t)
{
  struct meta_conn *c = meta_writer (t->parts.meta);
  struct map_change *changes;
  size_t nr, i;
  int r = 0;

  assert (t->parts.readonly); /* else a fold counts */
  map_cut (t->parts.map);
  if (map_get_changes (t->parts.map, &changes, &nr) == -1)
    return -1;
  for (i = 0; i < nr && r == 0; ++i)
    if (count_leaf (t, c, &changes[i]) == -1 && errno != EIO)
      r = -1;
  free (changes);
  return r;
}

int
txg_replay_readonly (struct txg *t, bool is_partial)
{
  struct replay_report report = { .batches = 0 };
  struct replay rp = {
    .t = t,
    .report = &report,
    .is_partial = is_partial,
  };
  int r;

  r = journal_replay (t->parts.journal, t->state.journal_position,
                      t->state.folded, t->state.epoch, replay_batch, &rp);
  free (report.dropped.p);
  free (report.lost.p);
  free (rp.lost);
  if (r == -1)
    return -1;
  count_over_quota (&rp);
  return count_changes (t);
}

int
txg_follow (struct txg *t, uint64_t *last)
{
  struct replay_report report = { .batches = 0 };
  struct replay rp = { .t = t, .report = &report, .is_partial = true };
  int r;

  *last = t->state.folded;
  if (t->parts.journal == NULL)
    return 0;
  /* This replays the entries before the damage again, with the same result. */
  r = journal_follow (t->parts.journal, t->state.journal_position,
                      t->state.folded, t->state.epoch, replay_batch, &rp, last);
  free (report.dropped.p);
  free (report.lost.p);
  free (rp.lost);
  if (r == -1 && errno == ENOMEM)
    return -1;
  count_over_quota (&rp);
  return count_changes (t);
}
