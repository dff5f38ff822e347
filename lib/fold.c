/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "error.h"
#include "fold-index.h"
#include "fold-int.h"

void *
vec_add (struct vec *v, size_t size)
{
  size_t cap = v->cap ? v->cap * 2 : 64;
  void *p;

  if (v->nr == v->cap) {
    p = realloc (v->p, cap * size);
    if (p == NULL)
      return nbdedup_fail_null (ENOMEM, "no memory for a fold");
    v->p = p;
    v->cap = cap;
  }
  return (char *) v->p + v->nr++ * size;
}

struct fold *
fold_new (const struct txg_parts *parts, const struct meta_state *state)
{
  struct fold *f = calloc (1, sizeof *f);

  if (f == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for a fold");
  f->parts = parts;
  f->base = f->state = *state;
  f->sector_bytes = state->sector_bytes;
  f->segment_sectors = SEGMENT_BYTES / state->sector_bytes;
  if (map_get_changes (parts->map, &f->map_changes,
                       &f->nr_map_changes) == -1 ||
      ddt_get_changes (parts->ddt, &f->changes, &f->nr_changes) == -1) {
    fold_free (f);
    return NULL;
  }
  return f;
}

void
fold_free (struct fold *f)
{
  if (f == NULL)
    return;
  free (f->map_changes);
  free (f->changes);
  free (f->displaced.p);
  free (f->layers.p);
  free (f->gone.p);
  free (f->unlinked.p);
  free (f->inserted.p);
  free (f->index.p);
  free (f);
}

struct meta_state *
fold_state (struct fold *f)
{
  return &f->state;
}

bool
fold_index_is_damaged (struct fold *f)
{
  return f->index_damaged;
}

bool
fold_has_more (struct fold *f)
{
  return f->has_more;
}

/*----------------------------------------------------------------------
 * Step 1: summaries
 */

static int
compare_by_chunk (const void *a, const void *b)
{
  const struct ddt_change *const *x = a, *const *y = b;

  if ((*x)->chunk_addr != (*y)->chunk_addr)
    return (*x)->chunk_addr < (*y)->chunk_addr ? -1 : 1;
  return (*x)->record->slot < (*y)->record->slot ? -1 : 1;
}

/* Write the slots of 'nr' records of one chunk.  The chunk is read first:
 * its other slots stay as they are, and a torn write cannot hurt them,
 * since they are written back with the same bytes.
 */
static int
write_chunk (struct fold *f, struct ddt_change *const *changes, size_t nr)
{
  size_t len = f->sector_bytes > 4096 ? f->sector_bytes : 4096;
  unsigned per_chunk = len / SUMMARY_SLOT_BYTES;
  uint64_t addr = changes[0]->chunk_addr, offset;
  uint8_t header[SUMMARY_SLOT_BYTES];
  CLEANUP_FREE uint8_t *buf = malloc (len);
  unsigned slot;
  size_t i;

  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a summary");
  summary_header_pack (f->state.uuid, addr,
                       changes[0]->record->slot / per_chunk,
                       f->sector_bytes, header);
  if (store_read (f->parts->store, addr, buf, len) == -1 ||
      memcmp (buf, header, sizeof header) != 0)
    memset (buf, 0, len);       /* a fresh chunk, whatever was there */
  memcpy (buf, header, sizeof header);
  for (i = 0; i < nr; ++i) {
    slot = changes[i]->record->slot % per_chunk;
    offset = addr * f->sector_bytes + slot * SUMMARY_SLOT_BYTES;
    summary_slot_pack (f->state.uuid, offset, changes[i]->record,
                       f->base.fold + 1, f->segment_sectors,
                       buf + slot * SUMMARY_SLOT_BYTES);
  }
  return store_write (f->parts->store, addr, buf, len);
}

int
fold_write_summaries (struct fold *f)
{
  struct ddt_change **new;
  size_t nr = 0, i, j;
  int r = 0;

  new = malloc ((f->nr_changes + 1) * sizeof *new);
  if (new == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a fold");
  for (i = 0; i < f->nr_changes; ++i)
    if (f->changes[i].record)
      new[nr++] = &f->changes[i];
  qsort (new, nr, sizeof *new, compare_by_chunk);
  for (i = 0; i < nr && r == 0; i = j) {
    for (j = i; j < nr && new[j]->chunk_addr == new[i]->chunk_addr; ++j)
      ;
    r = write_chunk (f, new + i, j - i);
  }
  free (new);
  return r;
}

/*----------------------------------------------------------------------
 * Step 2: maps
 */

int
fold_add_displaced (struct fold *f, const uint64_t *addrs, unsigned nr)
{
  uint64_t *p;
  unsigned i;

  for (i = 0; i < nr; ++i) {
    if ((p = vec_add (&f->displaced, sizeof *p)) == NULL)
      return -1;
    *p = addrs[i];
  }
  return 0;
}

struct layer_delta *
fold_delta (struct fold *f, struct layer *layer)
{
  struct layer_delta *ld = f->layers.p;

  if (layer->delta_index < f->layers.nr &&
      ld[layer->delta_index].layer == layer)
    return &ld[layer->delta_index];
  ld = vec_add (&f->layers, sizeof *ld);
  if (ld == NULL)
    return NULL;
  *ld = (struct layer_delta) { .layer = layer };
  layer->delta_index = (unsigned) (f->layers.nr - 1);
  return ld;
}

int
fold_put_leaf (struct meta_conn *c, struct layer *layer, uint64_t leaf_nr,
               const struct leaf *leaf, bool exists)
{
  uint8_t buf[LEAF_LEN_MAX];
  size_t len = leaf_pack (leaf, buf);

  if (len > 0)
    return meta_leaf_put (c, layer->branch, leaf_nr, layer->seq, buf, len);
  return exists ? meta_leaf_delete (c, layer->branch, leaf_nr, layer->seq)
    : 0;
}

static int
fold_leaf (struct fold *f, struct meta_conn *c, const struct map_change *mc)
{
  uint64_t displaced[LEAF_BLOCKS];
  uint8_t buf[LEAF_LEN_MAX];
  struct layer *layer = mc->layer;
  struct layer_delta *ld;
  struct leaf leaf, below;
  int found, pointers, blocks;
  unsigned nr;
  size_t len = 0;

  found = meta_leaf_get (c, layer->branch, mc->leaf, layer->seq, buf, &len);
  if (found == -1 || leaf_unpack (buf, len, &leaf) == -1)
    return -1;
  if (map_needs_below (mc, &leaf)) {
    if (map_get_below (f->parts->map, c, layer, mc->leaf, &below) == -1)
      return -1;
  }
  else                          /* no block's count depends on it */
    memset (below.state, MAP_HOLE, sizeof below.state);
  map_apply (mc, &leaf, &below, displaced, &nr, &pointers, &blocks);
  ld = fold_delta (f, layer);
  if (ld == NULL || fold_add_displaced (f, displaced, nr) == -1)
    return -1;
  ld->pointers += pointers;
  ld->blocks += blocks;
  if (layer_is_pushed (layer))
    return fold_push_leaf (f, c, layer, mc->leaf, &leaf, found);
  return fold_put_leaf (c, layer, mc->leaf, &leaf, found);
}

/* Counters of the layers; a reaped one's row goes. */
static int
fold_layers (struct fold *f, struct meta_conn *c)
{
  struct layer *parent;
  struct layer_delta *ld;
  struct meta_layer l;
  size_t i;

  for (i = 0; i < f->layers.nr; ++i) {
    ld = (struct layer_delta *) f->layers.p + i;
    parent = ld->layer->parent;
    if (ld->reaped) {
      if (meta_layer_delete (c, ld->layer->id) == -1)
        return -1;
      continue;
    }
    l = (struct meta_layer) {
      .id = ld->layer->id, .branch = ld->layer->branch,
      .seq = ld->layer->seq,
      .parent = parent && !ld->layer->dying ? parent->id : 0,
      .overlap = ld->layer->overlap, .block_size = ld->layer->block_size,
      .dying = ld->layer->dying,
      .pointers = ld->layer->pointers + (uint64_t) ld->pointers,
      .blocks = ld->layer->blocks + (uint64_t) ld->blocks,
    };
    if (meta_layer_put (c, &l) == -1)
      return -1;
  }
  return 0;
}

/*----------------------------------------------------------------------
 * Step 2: records, counts, space
 */

/* One group's row in memory, and the segment that it lies in. */
struct group {
  uint64_t id;
  unsigned nr;
  struct record records[RECORD_GROUP_SECTORS];  /* ascending by address */
};

struct pass {
  struct fold *f;
  struct meta_conn *c;
  struct group *group;
  struct blob row;
  struct segment_map *map;      /* of the current segment; NULL: untouched */
  bool has_chunks;              /* ... with the allocator's chunks */
};

static int
load_group (struct pass *p, uint64_t id)
{
  struct group *g = p->group;
  size_t off;
  int n;

  g->id = id;
  g->nr = 0;
  if (meta_record_get (p->c, id, &p->row) == -1)
    return -1;
  for (off = 0; off < p->row.len; off += (size_t) n) {
    if (g->nr == RECORD_GROUP_SECTORS)
      return nbdedup_fail (EIO, "pool.db: records of group %" PRIu64
                           " are damaged", id);
    n = record_unpack (id, p->row.p + off, p->row.len - off,
                       &g->records[g->nr]);
    if (n == -1)
      return -1;
    g->nr++;
  }
  return 0;
}

static int
store_group (struct pass *p)
{
  struct group *g = p->group;
  size_t len = 0;
  unsigned i;

  if (g->nr == 0)
    return meta_record_delete (p->c, g->id);
  if (blob_reserve (&p->row, g->nr * RECORD_ENTRY_MAX) == -1)
    return -1;
  for (i = 0; i < g->nr; ++i)
    len += record_pack (&g->records[i], p->row.p + len);
  return meta_record_put (p->c, g->id, p->row.p, len);
}

static int
load_segment (struct pass *p, uint64_t segment)
{
  struct blob b CLEANUP_BLOB = { NULL };
  int r;

  if (p->map && p->map->id == segment)
    return 0;
  assert (p->map == NULL);
  p->has_chunks = false;
  r = meta_segment_get (p->c, segment, &b);
  if (r == -1)
    return -1;
  p->map = r ? segment_map_unpack (segment, p->f->sector_bytes, b.p, b.len)
    : segment_map_new (segment, p->f->sector_bytes);
  return p->map ? 0 : -1;
}

static int
store_segment (struct pass *p)
{
  CLEANUP_FREE uint8_t *buf = NULL;
  struct segment_map *map = p->map;
  unsigned start;
  size_t len;
  int r;

  if (map == NULL)
    return 0;
  if (segment_map_is_empty (map))
    r = meta_segment_delete (p->c, map->id);
  else {
    buf = segment_map_pack (map, &len);
    r = buf == NULL ? -1 :
      meta_segment_put (p->c, map->id, map->nr_sectors - map->nr_used,
                        segment_map_largest_run (map, &start), buf, len);
  }
  segment_map_free (map);
  p->map = NULL;
  return r;
}

/* The allocator may have added chunks that pool.db does not know yet. */
static int
set_chunks (struct pass *p)
{
  CLEANUP_FREE uint16_t *chunks = NULL;
  unsigned nr;

  if (p->has_chunks)
    return 0;
  if (space_get_chunks (p->f->parts->space, p->map->id, &chunks, &nr) == -1 ||
      segment_map_set_chunks (p->map, chunks, nr) == -1)
    return -1;
  p->has_chunks = true;
  return 0;
}

static int
take_space (struct pass *p, const struct record *r)
{
  struct fold *f = p->f;

  if (load_segment (p, r->ptr.addr / f->segment_sectors) == -1 ||
      set_chunks (p) == -1 || segment_map_set_slot (p->map, r->slot) == -1)
    return -1;
  return segment_map_set (p->map, r->ptr.addr % f->segment_sectors,
                          sectors_of (r->ptr.psize, f->sector_bytes));
}

static int
give_space (struct pass *p, const struct record *r)
{
  struct fold *f = p->f;
  uint64_t *u;

  if (load_segment (p, r->ptr.addr / f->segment_sectors) == -1 ||
      segment_map_clear_slot (p->map, r->slot) == -1 ||
      segment_map_clear (p->map, r->ptr.addr % f->segment_sectors,
                         sectors_of (r->ptr.psize, f->sector_bytes)) == -1)
    return -1;
  if (space_unlink (f->parts->space, r->ptr.addr) == -1 ||
      (u = vec_add (&f->unlinked, sizeof *u)) == NULL)
    return -1;
  *u = r->ptr.addr;
  return 0;
}

static int
add_gone (struct fold *f, const struct record *r)
{
  struct space_freed *g = vec_add (&f->gone, sizeof *g);

  if (g == NULL)
    return -1;
  *g = (struct space_freed) {
    r->ptr.addr, sectors_of (r->ptr.psize, f->sector_bytes), r->slot,
  };
  return 0;
}

static int
add_index_op (struct fold *f, const struct record *r, bool add)
{
  struct fold_index_op *op;

  if (!(r->flags & RECORD_INDEXED))
    return 0;
  op = vec_add (&f->index, sizeof *op);
  if (op == NULL)
    return -1;
  index_entry_make (&r->digest, r->ptr.addr, &op->entry);
  op->add = add;
  return 0;
}

static void
count_record (struct fold *f, const struct record *r, int sign)
{
  f->state.records += (uint64_t) sign;
  f->state.record_bytes += (uint64_t) (sign * (int64_t) r->lsize);
  f->state.stored_sectors +=
    (uint64_t) (sign * (int64_t) sectors_of (r->ptr.psize, f->sector_bytes));
}

/* A record of pool.db gains or loses references. */
static int
change_record (struct pass *p, struct record *r, int64_t delta)
{
  struct fold *f = p->f;
  uint64_t old = r->refcount, new = old + (uint64_t) delta;

  if ((delta < 0 && (uint64_t) -delta > old) || new > RECORD_REFCOUNT_MAX)
    return nbdedup_fail (EIO, "pool.db: record at %" PRIu64 " has %" PRIu64
                         " references, %" PRId64 " more cannot be: run "
                         "nbdedup check", r->ptr.addr, old, delta);
  r->refcount = new;
  if ((old > 0) != (new > 0))
    count_record (f, r, new > 0 ? 1 : -1);
  if (new > 0)
    return old > 0 ? 0 : meta_limbo_delete (p->c, r->ptr.addr);
  if (!ddt_try_kill (f->parts->ddt, r->ptr.addr, &r->digest))
    return meta_limbo_put (p->c, r->ptr.addr);
  if (old == 0 && meta_limbo_delete (p->c, r->ptr.addr) == -1)
    return -1;
  if (add_gone (f, r) == -1 || add_index_op (f, r, false) == -1 ||
      give_space (p, r) == -1)
    return -1;
  r->ptr.addr = 0;              /* to be dropped from the row */
  return 0;
}

static int
insert_record (struct pass *p, const struct ddt_change *ch, int64_t delta)
{
  struct fold *f = p->f;
  struct group *g = p->group;
  struct record r = *ch->record;
  uint64_t *u;
  unsigned i;

  if (delta < 0)
    return nbdedup_fail (EIO, "fold: new record at %" PRIu64 " has %" PRId64
                         " references", ch->addr, delta);
  r.refcount = (uint64_t) delta;
  if (delta == 0) {
    if (ddt_try_kill (f->parts->ddt, r.ptr.addr, &r.digest))
      return add_gone (f, &r);
    if (meta_limbo_put (p->c, r.ptr.addr) == -1)
      return -1;
  }
  else
    count_record (f, &r, 1);
  for (i = 0; i < g->nr && g->records[i].ptr.addr < r.ptr.addr; ++i)
    ;
  if (g->nr == RECORD_GROUP_SECTORS ||
      (i < g->nr && g->records[i].ptr.addr == r.ptr.addr))
    return nbdedup_fail (EIO, "pool.db: there is a record at %" PRIu64
                         " already: run nbdedup check", r.ptr.addr);
  memmove (&g->records[i + 1], &g->records[i],
           (g->nr - i) * sizeof g->records[0]);
  g->records[i] = r;
  g->nr++;
  u = vec_add (&f->inserted, sizeof *u);
  if (u == NULL || add_index_op (f, &r, true) == -1)
    return -1;
  *u = r.ptr.addr;
  return take_space (p, &r);
}

static struct record *
find_in_group (struct group *g, uint64_t addr)
{
  unsigned i;

  for (i = 0; i < g->nr; ++i)
    if (g->records[i].ptr.addr == addr)
      return &g->records[i];
  return NULL;
}

static void
squeeze_group (struct group *g)
{
  unsigned i, n = 0;

  for (i = 0; i < g->nr; ++i)
    if (g->records[i].ptr.addr != 0)
      g->records[n++] = g->records[i];
  g->nr = n;
}

/* Both lists are ascending by address: merge them, a group at a time.
 * Within a group, records that go are dropped before new ones come: the
 * order does not matter, their sectors cannot be the same (freed space is
 * reused only after this fold), but the row's size limit holds throughout.
 */
static int
fold_group (struct pass *p, size_t *pi, size_t *pj)
{
  struct fold *f = p->f;
  const uint64_t *disp = f->displaced.p;
  size_t i = *pi, j = *pj;
  uint64_t addr, id;
  struct record *r;
  int64_t delta;
  const struct ddt_change *ch;

  id = j >= f->displaced.nr ||
    (i < f->nr_changes && f->changes[i].addr < disp[j])
    ? f->changes[i].addr / RECORD_GROUP_SECTORS
    : disp[j] / RECORD_GROUP_SECTORS;
  if (p->map && p->map->id != id * RECORD_GROUP_SECTORS / f->segment_sectors
      && store_segment (p) == -1)
    return -1;
  if (load_group (p, id) == -1)
    return -1;
  for (;;) {
    addr = UINT64_MAX;
    ch = NULL;
    delta = 0;
    if (i < f->nr_changes)
      addr = f->changes[i].addr;
    if (j < f->displaced.nr && disp[j] < addr)
      addr = disp[j];
    if (addr == UINT64_MAX || addr / RECORD_GROUP_SECTORS != id)
      break;
    if (i < f->nr_changes && f->changes[i].addr == addr) {
      ch = &f->changes[i++];
      delta = ch->delta;
    }
    for (; j < f->displaced.nr && disp[j] == addr; ++j)
      delta--;
    if (ch && ch->record) {
      if (insert_record (p, ch, delta) == -1)
        return -1;
      continue;
    }
    r = find_in_group (p->group, addr);
    if (r == NULL)
      return nbdedup_fail (EIO, "pool.db: the record at %" PRIu64
                           " is missing: run nbdedup check", addr);
    if (change_record (p, r, delta) == -1)
      return -1;
  }
  squeeze_group (p->group);
  *pi = i;
  *pj = j;
  return store_group (p);
}

static int
compare_u64 (const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

  return x < y ? -1 : x > y;
}

/* A layer that was written in image order gives its references back in the
 * order of addresses, or nearly.
 */
static void
sort_displaced (struct fold *f)
{
  const uint64_t *p = f->displaced.p;
  size_t i;

  for (i = 1; i < f->displaced.nr && p[i - 1] <= p[i]; ++i)
    ;
  if (i < f->displaced.nr)
    qsort (f->displaced.p, f->displaced.nr, sizeof *p, compare_u64);
}

static int
fold_records (struct fold *f, struct meta_conn *c)
{
  struct pass p = { .f = f, .c = c };
  size_t i = 0, j = 0;
  int r = 0;

  sort_displaced (f);
  p.group = malloc (sizeof *p.group);
  if (p.group == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a fold");
  while (r == 0 && (i < f->nr_changes || j < f->displaced.nr))
    r = fold_group (&p, &i, &j);
  if (r == 0)
    r = store_segment (&p);
  segment_map_free (p.map);
  blob_free (&p.row);
  free (p.group);
  return r;
}

/* Forget what a failed attempt did. */
static void
reset (struct fold *f)
{
  size_t i;

  for (i = 0; i < f->unlinked.nr; ++i)
    space_committed (f->parts->space, ((uint64_t *) f->unlinked.p)[i]);
  f->displaced.nr = f->layers.nr = f->gone.nr = 0;
  f->unlinked.nr = f->inserted.nr = f->index.nr = 0;
  f->has_more = false;
  f->state = f->base;
}

int
fold_write_tables (struct fold *f, struct meta_conn *c, bool with_index)
{
  size_t i;

  reset (f);
  for (i = 0; i < f->nr_map_changes; ++i)
    if (fold_leaf (f, c, &f->map_changes[i]) == -1)
      return -1;
  if (fold_background (f, c) == -1 || fold_layers (f, c) == -1 ||
      fold_records (f, c) == -1)
    return -1;
  if (with_index && fold_index (c, f->index.p, f->index.nr,
                                &f->state.index_entries) == -1) {
    f->index_damaged = meta_is_damaged (c);
    return -1;
  }
  f->state.fold++;
  return 0;
}

/*----------------------------------------------------------------------
 * Step 3
 */

void
fold_finish (struct fold *f)
{
  const struct txg_parts *parts = f->parts;
  const struct space_freed *g;
  struct layer_delta *ld;
  size_t i;

  for (i = 0; i < f->layers.nr; ++i) {
    ld = (struct layer_delta *) f->layers.p + i;
    ld->layer->pointers += (uint64_t) ld->pointers;
    ld->layer->blocks += (uint64_t) ld->blocks;
    if (ld->has_cursor)
      ld->layer->cursor = ld->cursor;
    if (ld->pass_done)
      ld->layer->pass_done = true;
  }
  ddt_fold_done (parts->ddt);
  map_fold_done (parts->map);
  for (i = 0; i < f->layers.nr; ++i) {
    ld = (struct layer_delta *) f->layers.p + i;
    if (ld->reaped) {
      map_forget_layer (parts->map, ld->layer);
      parts->layer_gone (parts->opaque, ld->layer);
    }
  }
  for (i = 0; i < f->inserted.nr; ++i)
    space_committed (parts->space, ((uint64_t *) f->inserted.p)[i]);
  if (f->gone.nr == 0)
    return;
  quiesce_wait (parts->quiesce);
  g = f->gone.p;
  for (i = 0; i < f->gone.nr; ++i) {
    parts->forget_record (parts->opaque, g[i].addr);
    ddt_forget (parts->ddt, g[i].addr);
  }
  space_release (parts->space, g, f->gone.nr);
}
