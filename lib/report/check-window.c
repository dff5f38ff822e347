/* SPDX-License-Identifier: BSD-3-Clause */

/* Count the references of one window of records, and compare their sectors with
 * the maps of the segments: see check.c.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "core/engine.h"
#include "data/volume-types.h"
#include "format/layer.h"
#include "format/leaf-delta.h"
#include "report/check-window.h"

/*----------------------------------------------------------------------
 * Space: what the records of a segment take, against its row
 */

static bool
same_bits (const struct segment_map *a, const struct segment_map *b)
{
  return a->nr_used == b->nr_used &&
    memcmp (a->bitmap, b->bitmap, a->nr_sectors / 8) == 0;
}

static bool
same_slots (const struct segment_map *a, const struct segment_map *b)
{
  return a->nr_slots_used == b->nr_slots_used &&
    memcmp (a->slots, b->slots, a->nr_chunks * a->slots_per_chunk / 8) == 0;
}

/* Only the row lists the chunks. */
static void
take_chunks (struct check *ck, const struct segment_map *row)
{
  struct segment_map *map = ck->map;
  size_t i;

  if (segment_map_set_chunks (map, row->chunks, row->nr_chunks) == -1) {
    check_problem (ck, "segment %" PRIu64 ": a summary and a record overlap",
                   map->id);
    return;
  }
  for (i = 0; i < ck->nr_slots; ++i)
    if (segment_map_set_slot (map, ck->slots[i]) == -1)
      check_problem (ck, "%s", nbdedup_error ());
  if (!same_slots (map, row))
    check_problem (ck,
                   "segment %" PRIu64 ": the space map has %" PRIu32
                   " slots in use, records take %" PRIu32,
                   map->id, row->nr_slots_used, map->nr_slots_used);
}

int
check_end_segment (struct check *ck)
{
  struct segment_map *map = ck->map, *row = NULL;
  struct blob b CLEANUP_BLOB = { NULL };
  int r;

  if (map == NULL)
    return 0;
  r = meta_segment_get (ck->c, map->id, &b);
  if (r == 1)
    row = segment_map_unpack (map->id, map->sector_bytes, b.p, b.len);
  if (row == NULL && r != 0 && check_is_no_problem ())
    return -1;
  if (row == NULL)
    check_problem (ck, "segment %" PRIu64 ": %s", map->id,
                   r == 0 ? "has records, but no space map" : nbdedup_error ());
  else {
    take_chunks (ck, row);
    if (!same_bits (map, row))
      check_problem (ck,
                     "segment %" PRIu64 ": the space map has %" PRIu32
                     " sectors in use, records and summaries take %" PRIu32,
                     map->id, row->nr_used, map->nr_used);
  }
  segment_map_free (row);
  segment_map_free (map);
  ck->map = NULL;
  ck->nr_slots = 0;
  return 0;
}

static int
take_sectors (struct check *ck, const struct record *r)
{
  uint32_t per = SEGMENT_BYTES / ck->state.sector_bytes;
  uint64_t segment = r->ptr.addr / per;

  if (ck->map && ck->map->id != segment && check_end_segment (ck) == -1)
    return -1;
  if (ck->map == NULL)
    ck->map = segment_map_new (segment, ck->state.sector_bytes);
  if (ck->map == NULL)
    return -1;
  if (array_push (&ck->slots, &ck->nr_slots, r->slot) == -1)
    return -1;
  if (r->ptr.addr % per + sectors_of (r->ptr.psize, ck->state.sector_bytes) >
        per ||
      segment_map_set (ck->map, r->ptr.addr % per,
                       sectors_of (r->ptr.psize, ck->state.sector_bytes)) == -1)
    check_problem (ck, "record at %" PRIu64 ": overlaps another", r->ptr.addr);
  return 0;
}

/*----------------------------------------------------------------------
 * Records
 */

static int
check_record (struct check *ck, const struct record *r)
{
  struct window_record *s = &ck->window[ck->nr++];

  const uint32_t sectors = sectors_of (r->ptr.psize, ck->state.sector_bytes);

  assert (ck->nr <= ck->max);
  *s = (struct window_record) {
    r->ptr, r->refcount, 0, r->lsize, (r->flags & RECORD_COPY) != 0,
  };
  ck->indexed += (r->flags & RECORD_INDEXED) != 0;
  ck->unreferenced += r->refcount == 0;
  if (r->refcount > 0)
    ck->stored_sectors += sectors;
  if (r->refcount > 0 && s->is_copy)
    ck->copy_sectors += sectors;
  else if (r->refcount > 0) {
    ck->records++;
    ck->record_bytes += r->lsize;
  }
  return take_sectors (ck, r);
}

static int
window_group (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct check *ck = opaque;
  uint64_t last = 0;
  struct record r;
  size_t off = 0;
  int n;

  if (ck->nr + RECORD_GROUP_SECTORS > ck->max) {
    assert (ck->nr > 0); /* so each window has a group at least */
    ck->next_group = group;
    ck->more = true;
    return 1;
  }
  while ((n = record_next (group, buf, len, &off, &r)) != 0) {
    if (n == -1 || r.ptr.addr <= last) {
      check_problem (ck, "records of group %" PRIu64 ": %s", group,
                     n == -1 ? nbdedup_error () : "not in order");
      break;
    }
    last = r.ptr.addr;
    if (check_record (ck, &r) == -1)
      return -1;
  }
  return check_step (ck);
}

static struct window_record *
find_in_window (struct check *ck, uint64_t addr)
{
  size_t i = array_position (ck->nr, k, ck->window[k].ptr.addr < addr);

  return i < ck->nr && ck->window[i].ptr.addr == addr ? &ck->window[i] : NULL;
}

/*----------------------------------------------------------------------
 * Maps, and copies
 */

static struct layer_count *
find_layer_count (struct check *ck, uint64_t branch, uint64_t seq)
{
  struct layer_count *lc = ck->layers;
  size_t i = array_position (ck->nr_layers, k,
                             layer_order (lc[k].branch, lc[k].seq, branch,
                                          seq) < 0);

  return i < ck->nr_layers && lc[i].branch == branch && lc[i].seq == seq
    ? &lc[i]
    : NULL;
}

int
check_compare_layers (const void *a, const void *b)
{
  const struct layer_count *x = a, *y = b;

  return layer_order (x->branch, x->seq, y->branch, y->seq);
}

static void
check_pointer (struct check *ck, struct layer_count *lc, uint64_t block,
               const struct pointer *ptr, uint64_t end)
{
  struct window_record *s;

  /* The first record of the window may be the one that is missing. */
  if (ptr->addr < ck->first_addr || ptr->addr >= end)
    return; /* of another window */
  s = find_in_window (ck, ptr->addr);
  if (s == NULL) {
    check_problem (ck,
                   "layer %" PRIu64 " block %" PRIu64
                   ": points to sector %" PRIu64 ", where there is no record",
                   lc->id, block, ptr->addr);
    return;
  }
  s->found++;
  if (s->ptr.psize != ptr->psize || s->ptr.codec != ptr->codec ||
      s->ptr.cksum != ptr->cksum || s->lsize != lc->block_size)
    check_problem (ck,
                   "layer %" PRIu64 " block %" PRIu64 ": the pointer and the "
                   "record at %" PRIu64 " differ",
                   lc->id, block, ptr->addr);
}

static int
check_leaf (void *opaque, uint64_t branch, uint64_t leaf_nr, uint64_t seq,
            const uint8_t *buf, size_t len)
{
  struct check *ck = opaque;
  struct layer_count *lc = find_layer_count (ck, branch, seq);
  uint64_t end, block;
  struct pointer ptr;
  struct leaf leaf;
  unsigned i;

  end = ck->more ? ck->next_group * RECORD_GROUP_SECTORS : UINT64_MAX;
  if (lc == NULL) {
    if (ck->first_window)
      check_problem (ck,
                     "map leaf %" PRIu64 " of branch %" PRIu64 ": there is no "
                     "such layer",
                     leaf_nr, branch);
    return 0;
  }
  if (leaf_unpack (buf, len, &leaf) == -1) {
    check_problem (ck, "layer %" PRIu64 " leaf %" PRIu64 ": %s", lc->id,
                   leaf_nr, nbdedup_error ());
    return 0;
  }
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (leaf.state[i] != MAP_POINTER)
      continue;
    block = leaf_nr * LEAF_BLOCKS + i;
    if (ck->first_window) {
      lc->found++;
      if (block >= lc->end)
        check_problem (ck, "layer %" PRIu64 " block %" PRIu64 ": past the end",
                       lc->id, block);
    }
    if (pointer_unpack (leaf.ptr[i], lc->block_size, &ptr) == -1)
      check_problem (ck, "layer %" PRIu64 " block %" PRIu64 ": %s", lc->id,
                     block, nbdedup_error ());
    else
      check_pointer (ck, lc, block, &ptr, end);
  }
  return check_step (ck);
}

/* Of such a delta no leaf can be read: it names what has no pointer, or is in a
 * row that is not valid (check_leaf reports these), or its leaf has no row.
 */
static int
check_deltas (void *opaque, const struct meta_leaf_key *key, const uint8_t *row,
              size_t len)
{
  struct check *ck = opaque;
  uint8_t buf[LEAF_LEN_MAX];
  uint64_t leaf;
  size_t first, n;
  int r;

  if (len == 0 || !deltas_are_valid (row, len)) {
    check_problem (ck,
                   "changes of branch %" PRIu64 ", seq %" PRIu64
                   ", area %" PRIu64 ": not valid",
                   key->branch, key->seq, key->leaf);
    return check_step (ck);
  }
  for (leaf = key->leaf * DELTA_LEAVES; leaf < (key->leaf + 1) * DELTA_LEAVES;
       ++leaf) {
    if (deltas_of_leaf (row, len, leaf, &first) == 0)
      continue;
    r = meta_leaf_get (ck->c, key->branch, leaf, key->seq, buf, &n);
    if (r == -1)
      return -1;
    if (r == 0)
      check_problem (ck,
                     "changes of branch %" PRIu64 ", seq %" PRIu64
                     ": there is no leaf %" PRIu64,
                     key->branch, key->seq, leaf);
  }
  return check_step (ck);
}

int
check_collect_layer (void *opaque, const struct meta_layer *ml)
{
  struct check *ck = opaque;

  return array_push (&ck->layers, &ck->nr_layers,
                     (struct layer_count) {
                       .id = ml->id,
                       .branch = ml->branch,
                       .seq = ml->seq,
                       .pointers = ml->pointers,
                       .block_size = ml->block_size,
                       .end = UINT64_MAX,
                     });
}

/* Where each volume's and snapshot's own pointers must end. */
void
check_set_ends (struct check *ck)
{
  struct volumes *vs = ck->pool->volumes;
  struct layer_count *lc;
  struct volume *v;
  struct layer *l;
  size_t i;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i) {
    v = vs->list.p[i];
    l = v->layer;
    lc = find_layer_count (ck, l->branch, l->seq);
    if (lc == NULL)
      check_problem (ck, "volume %s: its layer %" PRIu64 " is missing", v->name,
                     l->id);
    else if (!v->tail_dirty)
      lc->end = blocks_of (v->size, v->block_size);
  }
}

/* The record at an address: 1, 0, -1. */
int
check_get_record (struct check *ck, uint64_t addr, struct record *r)
{
  uint64_t group = addr / RECORD_GROUP_SECTORS;
  size_t off = 0;
  int n = meta_record_get (ck->c, group, &ck->row);

  if (n == -1)
    return -1;
  while (n == 1 && record_next (group, ck->row.p, ck->row.len, &off, r) == 1)
    if (r->ptr.addr == addr)
      return 1;
  return 0;
}

/* A copy in this window: table "copy" has a reference to it. */
static void
check_copy (struct check *ck, const struct record *primary, uint64_t addr)
{
  struct window_record *s = find_in_window (ck, addr);

  if (s != NULL)
    s->found++;
  if (s == NULL || !s->is_copy)
    check_problem (ck,
                   "copies of the record at %" PRIu64 ": at %" PRIu64 " there "
                   "is none",
                   primary->ptr.addr, addr);
  else if (s->ptr.psize != primary->ptr.psize ||
           s->ptr.codec != primary->ptr.codec ||
           s->ptr.cksum != primary->ptr.cksum || s->lsize != primary->lsize)
    check_problem (ck,
                   "copies of the record at %" PRIu64 ": the one at %" PRIu64
                   " differs",
                   primary->ptr.addr, addr);
}

static int
check_copies (void *opaque, uint64_t addr, const uint64_t *copies, unsigned nr)
{
  struct check *ck = opaque;
  uint64_t end = ck->more ? ck->next_group * RECORD_GROUP_SECTORS : UINT64_MAX;
  struct record r;
  unsigned i;
  int found = check_get_record (ck, addr, &r);

  if (found == -1)
    return -1;
  if (ck->first_window && nr == 0)
    check_problem (ck,
                   "copies of the record at %" PRIu64 ": the row is damaged",
                   addr);
  if (ck->first_window && (!found || r.flags & RECORD_COPY))
    check_problem (ck,
                   "copies of the record at %" PRIu64 ": there is no such "
                   "record",
                   addr);
  r.ptr.addr = addr;
  for (i = 0; found && i < nr; ++i)
    if (copies[i] >= ck->first_addr && copies[i] < end)
      check_copy (ck, &r, copies[i]);
  return check_step (ck);
}

int
check_window (struct check *ck)
{
  size_t i;

  ck->nr = 0;
  ck->more = false;
  ck->first_addr = ck->next_group * RECORD_GROUP_SECTORS;
  if (meta_record_scan (ck->c, ck->next_group, window_group, ck) == -1 ||
      meta_leaf_scan_all (ck->c, check_leaf, ck) == -1 ||
      meta_copies_scan (ck->c, 0, check_copies, ck) == -1 ||
      (ck->first_window && meta_deltas_scan (ck->c, check_deltas, ck) == -1))
    return -1;
  for (i = 0; i < ck->nr; ++i)
    if (ck->window[i].found != ck->window[i].refcount)
      check_problem (ck,
                     "record at %" PRIu64 ": %" PRIu64 " references counted, "
                     "%" PRIu64 " found",
                     ck->window[i].ptr.addr, ck->window[i].refcount,
                     ck->window[i].found);
  ck->first_window = false;
  return 0;
}
