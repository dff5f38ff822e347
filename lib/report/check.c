/* SPDX-License-Identifier: BSD-3-Clause */

/* Recount one frozen state of pool.db, in windows of records that fit the
 * memory budget.  A window holds the rows of records, by ascending address.
 * For each window check reads all maps once, looks up their pointers in it,
 * and counts them.
 *
 * With "repair" check runs twice: problems found by the second run were not
 * repaired.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/txg.h"
#include "data/sync.h"
#include "data/volume-types.h"
#include "drift/history.h"
#include "format/segment.h"
#include "meta/meta-index.h"
#include "meta/meta.h"
#include "report/check.h"
#include "report/mend.h"

/* Texts in the result; the count is complete. */
#define PROBLEMS_MAX 100

struct seen {
  struct pointer ptr;
  uint64_t refcount, found;
  uint32_t lsize;
  bool is_copy;
};

struct check {
  struct nbdedup_pool *pool;
  struct meta_conn *c;
  struct meta_state state;
  uint64_t nr_errors;
  json_t *problems; /* owned */
  json_t *repairs;  /* of the check before the repair; or NULL */

  struct seen *window; /* owned; ascending by address */
  size_t nr, max;
  uint64_t first_addr; /* of the window's first group */
  uint64_t next_group; /* first group past the window */
  bool more;           /* there are records past the window */

  uint64_t records, record_bytes, stored_sectors; /* with references */
  uint64_t copy_sectors;                          /* of stored_sectors */
  struct segment_map *map; /* of a segment, by its records */
  uint16_t *slots;         /* owned; the records' slots in summaries */
  size_t nr_slots;

  struct layer_count {
    uint64_t id, branch, seq, pointers, found;
    uint64_t end; /* no pointers may be past it: its size */
    uint32_t block_size;
  } *layers; /* owned; ascending by branch, seq */
  size_t nr_layers;
  bool first_window;

  uint64_t index_entries, stale_entries;
  uint64_t good_entries, indexed;  /* entries with a record; the reverse */
  uint64_t unreferenced, in_limbo; /* records without references */
  struct blob row;

  nbdedup_progress_fn *progress;
  void *opaque;
  uint64_t done;
};

/* Compare two problems by the text before the colon, because figures change. */
static bool
is_of_same (const char *a, const char *b)
{
  size_t n = strcspn (a, ":");

  return n == strcspn (b, ":") && strncmp (a, b, n) == 0;
}

static void
was_not_repaired (struct check *ck, const char *text)
{
  json_t *repair;
  size_t i;

  json_array_foreach (ck->repairs, i, repair)
    if (is_of_same (text,
                    json_string_value (json_object_get (repair, "problem"))))
      json_object_set_new (repair, "repaired", json_false ());
}

static void __attribute__ ((format (printf, 2, 3)))
problem (struct check *ck, const char *fmt, ...)
{
  char text[512];
  va_list ap;

  ck->nr_errors++;
  if (ck->repairs == NULL && json_array_size (ck->problems) >= PROBLEMS_MAX)
    return;
  va_start (ap, fmt);
  vsnprintf (text, sizeof text, fmt, ap);
  va_end (ap);
  if (ck->repairs != NULL)
    was_not_repaired (ck, text);
  if (json_array_size (ck->problems) < PROBLEMS_MAX)
    json_array_append_new (ck->problems, json_string (text));
}

/* Did the last failure have a cause outside of the pool, such as a lack of
 * memory?
 */
static bool
is_no_problem (void)
{
  return errno != EIO;
}

static int
step (struct check *ck)
{
  if (++ck->done % 1024 == 0 && ck->progress &&
      ck->progress (ck->opaque, ck->done, 0) != 0)
    return nbdedup_fail (EINTR, "interrupted");
  return 0;
}

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
    problem (ck, "segment %" PRIu64 ": a summary and a record overlap",
             map->id);
    return;
  }
  for (i = 0; i < ck->nr_slots; ++i)
    if (segment_map_set_slot (map, ck->slots[i]) == -1)
      problem (ck, "%s", nbdedup_error ());
  if (!same_slots (map, row))
    problem (ck,
             "segment %" PRIu64 ": the space map has %" PRIu32
             " slots in use, records take %" PRIu32,
             map->id, row->nr_slots_used, map->nr_slots_used);
}

static int
end_segment (struct check *ck)
{
  struct segment_map *map = ck->map, *row = NULL;
  struct blob b CLEANUP_BLOB = { NULL };
  int r;

  if (map == NULL)
    return 0;
  r = meta_segment_get (ck->c, map->id, &b);
  if (r == 1)
    row = segment_map_unpack (map->id, map->sector_bytes, b.p, b.len);
  if (row == NULL && r != 0 && is_no_problem ())
    return -1;
  if (row == NULL)
    problem (ck, "segment %" PRIu64 ": %s", map->id,
             r == 0 ? "has records, but no space map" : nbdedup_error ());
  else {
    take_chunks (ck, row);
    if (!same_bits (map, row))
      problem (ck,
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

  if (ck->map && ck->map->id != segment && end_segment (ck) == -1)
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
    problem (ck, "record at %" PRIu64 ": overlaps another", r->ptr.addr);
  return 0;
}

/*----------------------------------------------------------------------
 * Records
 */

static int
check_record (struct check *ck, const struct record *r)
{
  struct seen *s = &ck->window[ck->nr++];

  const uint32_t sectors = sectors_of (r->ptr.psize, ck->state.sector_bytes);

  assert (ck->nr <= ck->max);
  *s = (struct seen) {
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
      problem (ck, "records of group %" PRIu64 ": %s", group,
               n == -1 ? nbdedup_error () : "not in order");
      break;
    }
    last = r.ptr.addr;
    if (check_record (ck, &r) == -1)
      return -1;
  }
  return step (ck);
}

static struct seen *
find_seen (struct check *ck, uint64_t addr)
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
                             lc[k].branch < branch ||
                               (lc[k].branch == branch && lc[k].seq < seq));

  return i < ck->nr_layers && lc[i].branch == branch && lc[i].seq == seq
    ? &lc[i]
    : NULL;
}

static int
compare_layer_counts (const void *a, const void *b)
{
  const struct layer_count *x = a, *y = b;

  if (x->branch != y->branch)
    return x->branch < y->branch ? -1 : 1;
  return x->seq < y->seq ? -1 : x->seq > y->seq;
}

static void
check_pointer (struct check *ck, struct layer_count *lc, uint64_t block,
               const struct pointer *ptr, uint64_t first, uint64_t end)
{
  struct seen *s;

  if (ptr->addr < first || ptr->addr >= end)
    return; /* of another window */
  s = find_seen (ck, ptr->addr);
  if (s == NULL) {
    problem (ck,
             "layer %" PRIu64 " block %" PRIu64 ": points to sector %" PRIu64
             ", where there is no record",
             lc->id, block, ptr->addr);
    return;
  }
  s->found++;
  if (s->ptr.psize != ptr->psize || s->ptr.codec != ptr->codec ||
      s->ptr.cksum != ptr->cksum || s->lsize != lc->block_size)
    problem (ck,
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
  uint64_t first = ck->nr ? ck->window[0].ptr.addr : 0, end, block;
  struct pointer ptr;
  struct leaf leaf;
  unsigned i;

  if (ck->first_window)
    first = 0;
  end = ck->more ? ck->next_group * RECORD_GROUP_SECTORS : UINT64_MAX;
  if (lc == NULL) {
    if (ck->first_window)
      problem (ck,
               "map leaf %" PRIu64 " of branch %" PRIu64 ": there is no "
               "such layer",
               leaf_nr, branch);
    return 0;
  }
  if (leaf_unpack (buf, len, &leaf) == -1) {
    problem (ck, "layer %" PRIu64 " leaf %" PRIu64 ": %s", lc->id, leaf_nr,
             nbdedup_error ());
    return 0;
  }
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (leaf.state[i] != MAP_POINTER)
      continue;
    block = leaf_nr * LEAF_BLOCKS + i;
    if (ck->first_window) {
      lc->found++;
      if (block >= lc->end)
        problem (ck, "layer %" PRIu64 " block %" PRIu64 ": past the end",
                 lc->id, block);
    }
    if (pointer_unpack (leaf.ptr[i], lc->block_size, &ptr) == -1)
      problem (ck, "layer %" PRIu64 " block %" PRIu64 ": %s", lc->id, block,
               nbdedup_error ());
    else
      check_pointer (ck, lc, block, &ptr, first, end);
  }
  return step (ck);
}

static int
collect_layer (void *opaque, const struct meta_layer *ml)
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
static void
set_ends (struct check *ck)
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
      problem (ck, "volume %s: its layer %" PRIu64 " is missing", v->name,
               l->id);
    else if (!v->tail_dirty)
      lc->end = blocks_of (v->size, v->block_size);
  }
}

/* The record at an address: 1, 0, -1. */
static int
get_record (struct check *ck, uint64_t addr, struct record *r)
{
  uint64_t group = addr / RECORD_GROUP_SECTORS;
  size_t off = 0;
  int n = meta_record_get (ck->c, group, &ck->row);

  if (n != 1)
    return n;
  while (record_next (group, ck->row.p, ck->row.len, &off, r) == 1)
    if (r->ptr.addr == addr)
      return 1;
  return 0;
}

/* A copy in this window: table "copy" has a reference to it. */
static void
check_copy (struct check *ck, const struct record *primary, uint64_t addr)
{
  struct seen *s = find_seen (ck, addr);

  if (s != NULL)
    s->found++;
  if (s == NULL || !s->is_copy)
    problem (ck,
             "copies of the record at %" PRIu64 ": at %" PRIu64 " there "
             "is none",
             primary->ptr.addr, addr);
  else if (s->ptr.psize != primary->ptr.psize ||
           s->ptr.codec != primary->ptr.codec ||
           s->ptr.cksum != primary->ptr.cksum || s->lsize != primary->lsize)
    problem (ck,
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
  int found = get_record (ck, addr, &r);

  if (found == -1)
    return -1;
  if (ck->first_window && nr == 0)
    problem (ck, "copies of the record at %" PRIu64 ": the row is damaged",
             addr);
  if (ck->first_window && (!found || r.flags & RECORD_COPY))
    problem (ck,
             "copies of the record at %" PRIu64 ": there is no such "
             "record",
             addr);
  r.ptr.addr = addr;
  for (i = 0; found && i < nr; ++i)
    if (copies[i] >= ck->first_addr && copies[i] < end)
      check_copy (ck, &r, copies[i]);
  return step (ck);
}

static int
check_window (struct check *ck)
{
  size_t i;

  ck->nr = 0;
  ck->more = false;
  ck->first_addr = ck->next_group * RECORD_GROUP_SECTORS;
  if (meta_record_scan (ck->c, ck->next_group, window_group, ck) == -1 ||
      meta_leaf_scan_all (ck->c, check_leaf, ck) == -1 ||
      meta_copies_scan (ck->c, 0, check_copies, ck) == -1)
    return -1;
  for (i = 0; i < ck->nr; ++i)
    if (ck->window[i].found != ck->window[i].refcount)
      problem (ck,
               "record at %" PRIu64 ": %" PRIu64 " references counted, "
               "%" PRIu64 " found",
               ck->window[i].ptr.addr, ck->window[i].refcount,
               ck->window[i].found);
  ck->first_window = false;
  return 0;
}

/*----------------------------------------------------------------------
 * Index, totals
 */

/* Does the record that an entry names exist, with a matching digest? */
static int
check_index_entry (struct check *ck, const struct index_entry *e)
{
  struct record r;
  int found = get_record (ck, e->addr, &r);

  return found == 1
    ? r.flags & RECORD_INDEXED && index_entry_matches (e, &r.digest)
    : found;
}

/* Each address in limbo must have a record, without references. */
static int
check_limbo (void *opaque, uint64_t addr)
{
  struct check *ck = opaque;
  struct record r;
  int found = get_record (ck, addr, &r);

  if (found == 1 && r.refcount == 0)
    ck->in_limbo++;
  else if (found != -1)
    problem (ck,
             "limbo, sector %" PRIu64 ": there is no record without "
             "references",
             addr);
  return found == -1 ? -1 : step (ck);
}

/* The order of the entries of each row. */
static int
check_index_row (void *opaque, unsigned run, uint64_t low, const uint8_t *buf,
                 size_t len)
{
  struct check *ck = opaque;
  struct index_entry e, last = { .prefix = low };
  size_t off;

  for (off = 0; off + INDEX_ENTRY_LEN <= len; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (buf + off, &e);
    if (e.prefix < last.prefix ||
        (off > 0 && index_entry_compare (&last, &e) >= 0))
      problem (ck, "hash index, run %u, row %016" PRIx64 ": not in order", run,
               low);
    last = e;
  }
  return step (ck);
}

/* Each entry that some run adds and no other removes must have its record.  One
 * that is removed more often than added, or added twice, is stale, too.
 */
static int
check_index (struct check *ck)
{
  struct index_cursor *cu;
  struct index_runs runs;
  struct index_entry e;
  int r = -1, sum, found;

  if (meta_index_scan (ck->c, check_index_row, ck) == -1 ||
      meta_index_runs (ck->c, &runs) == -1)
    return -1;
  cu = meta_index_cursor (ck->c, &runs, 0);
  if (cu == NULL)
    return -1;
  while ((r = meta_index_cursor_next (cu, &e, &sum)) == 1) {
    ck->index_entries += (uint64_t) (int64_t) sum;
    found = sum > 0 ? check_index_entry (ck, &e) : 0;
    if (found == -1 || step (ck) == -1) {
      r = -1;
      break;
    }
    ck->good_entries += found == 1;
    if (found == 1 ? sum > 1 : sum != 0)
      ck->stale_entries++;
  }
  meta_index_cursor_free (cu);
  return r;
}

static void
check_total (struct check *ck, const char *what, uint64_t stored,
             uint64_t found)
{
  if (stored != found)
    problem (ck, "%s: %" PRIu64 " stored, %" PRIu64 " found", what, stored,
             found);
}

static int
check_segment_row (void *opaque, uint64_t segment, uint32_t nr_free,
                   uint32_t largest_run)
{
  struct check *ck = opaque;
  struct segment_map *map = NULL;
  unsigned start;
  int r;

  ck->row.len = 0;
  r = meta_segment_get (ck->c, segment, &ck->row);
  if (r == 1)
    map = segment_map_unpack (segment, ck->state.sector_bytes, ck->row.p,
                              ck->row.len);
  if (map == NULL && is_no_problem ())
    return -1;
  if (map == NULL)
    problem (ck, "segment %" PRIu64 ": %s", segment, nbdedup_error ());
  else if ((uint32_t) (map->nr_sectors - map->nr_used) != nr_free ||
           segment_map_largest_run (map, &start) != largest_run)
    problem (ck, "segment %" PRIu64 ": its count of free space is wrong",
             segment);
  else if (segment_map_is_empty (map))
    problem (ck, "segment %" PRIu64 ": has a space map, but no record",
             segment);
  segment_map_free (map);
  return 0;
}

static int
stray_counts (void *opaque, uint64_t group)
{
  problem (opaque, "counts of group %" PRIu64 ": there are no records", group);
  return step (opaque);
}

static int
step_through (void *opaque)
{
  return step (opaque);
}

static void
wrong_blocks (void *opaque, uint64_t layer, uint64_t stored, uint64_t found)
{
  problem (opaque,
           "layer %" PRIu64 ": %" PRIu64 " blocks counted, %" PRIu64 " found",
           layer, stored, found);
}

static void
quick_check_problem (void *opaque, const char *text)
{
  problem (opaque, "pool.db: %s", text);
}

static void
wrong_sample (void *opaque, const char *text)
{
  problem (opaque, "%s", text);
}

static int
check_all (struct check *ck)
{
  size_t i;

  if (meta_quick_check (ck->c, quick_check_problem, ck) == -1) {
    if (is_no_problem ())
      return -1;
    problem (ck, "%s", nbdedup_error ());
  }
  if (meta_state_get (ck->c, &ck->state) == -1 ||
      meta_copies_get_sectors (ck->c, &ck->state.copy_sectors) == -1 ||
      meta_layer_scan (ck->c, collect_layer, ck) == -1)
    return -1;
  if (ck->nr_layers > 0)
    qsort (ck->layers, ck->nr_layers, sizeof *ck->layers, compare_layer_counts);
  set_ends (ck);
  ck->first_window = true;
  do
    if (check_window (ck) == -1)
      return -1;
  while (ck->more);
  if (end_segment (ck) == -1)
    return -1;
  for (i = 0; i < ck->nr_layers; ++i)
    if (ck->layers[i].found != ck->layers[i].pointers)
      problem (ck,
               "layer %" PRIu64 ": %" PRIu64 " pointers counted, %" PRIu64
               " found",
               ck->layers[i].id, ck->layers[i].pointers, ck->layers[i].found);
  if (check_blocks (ck->pool, ck->c, step_through, wrong_blocks, ck) == -1 ||
      meta_segment_scan (ck->c, check_segment_row, ck) == -1 ||
      meta_count_scan_strays (ck->c, stray_counts, ck) == -1 ||
      check_index (ck) == -1 ||
      meta_limbo_scan (ck->c, check_limbo, ck) == -1 ||
      history_check (ck->c, ck->state.next_id, step_through, wrong_sample,
                     ck) == -1)
    return -1;
  if (ck->in_limbo < ck->unreferenced)
    problem (ck,
             "limbo: %" PRIu64 " records have no references, %" PRIu64
             " of them are in it",
             ck->unreferenced, ck->in_limbo);
  check_total (ck, "records", ck->state.records, ck->records);
  check_total (ck, "record bytes", ck->state.record_bytes, ck->record_bytes);
  check_total (ck, "stored sectors", ck->state.stored_sectors,
               ck->stored_sectors);
  check_total (ck, "sectors of copies", ck->state.copy_sectors,
               ck->copy_sectors);
  check_total (ck, "hash index entries", ck->state.index_entries,
               ck->index_entries);
  return 0;
}

/* The numbers of items checked, which prove that the check has read them. */
static json_t *
list_checked (const struct check *ck)
{
  uint64_t references = 0;
  size_t i;

  for (i = 0; i < ck->nr_layers; ++i)
    references += ck->layers[i].found;
  return json_pack ("{s:I, s:I, s:I, s:I}", "layers",
                    (json_int_t) ck->nr_layers, "references",
                    (json_int_t) references, "records",
                    (json_int_t) ck->records, "index_entries",
                    (json_int_t) ck->index_entries);
}

/* One check; its result is that of command.h, without "repair". */
static json_t *
check_once (struct nbdedup_pool *pool, json_t *repairs,
            nbdedup_progress_fn *progress, void *opaque)
{
  struct check ck = {
    .pool = pool,
    .progress = progress,
    .opaque = opaque,
    .repairs = repairs,
  };
  json_t *result = NULL;
  int r, err;

  assert_held (&pool->admin);
  if (pool_sync (pool) == -1)
    return NULL;
  /* A sixteenth of the metadata budget, on top of the caches': they are
   * mostly empty in an offline check, and a server has slack.
   */
  ck.max = pool->settings.ddt_cache_bytes / 16 / sizeof *ck.window;
  if (ck.max < 2 * RECORD_GROUP_SECTORS)
    ck.max = 2 * RECORD_GROUP_SECTORS;
  ck.window = malloc (ck.max * sizeof *ck.window);
  ck.problems = json_array ();
  ck.c = meta_reader_get (pool->meta);
  if (ck.window == NULL || ck.problems == NULL)
    nbdedup_fail (ENOMEM, "no memory to check");
  else if (meta_freeze (ck.c) == 0) {
    r = check_all (&ck);
    err = errno;
    /* Unreadable data is a problem found, not a failed check. */
    if (r == -1 && err == EIO) {
      problem (&ck, "%s", nbdedup_error ());
      r = 0;
    }
    meta_unfreeze (ck.c);
    if (r == 0)
      result = json_pack ("{s:I, s:O, s:o, s:I, s:I}", "errors",
                          (json_int_t) ck.nr_errors, "problems", ck.problems,
                          "checked", list_checked (&ck), "stale_index_entries",
                          (json_int_t) ck.stale_entries,
                          "missing_index_entries",
                          (json_int_t) (ck.indexed > ck.good_entries
                                          ? ck.indexed - ck.good_entries
                                          : 0));
    errno = err;
  }
  meta_reader_put (pool->meta, ck.c);
  segment_map_free (ck.map);
  blob_free (&ck.row);
  free (ck.window);
  free (ck.layers);
  free (ck.slots);
  json_decref (ck.problems);
  return result;
}

static json_int_t
get_number (const json_t *result, const char *key)
{
  return json_integer_value (json_object_get (result, key));
}

static json_t *
list_repairs (const json_t *result)
{
  json_t *repairs = json_array (), *text;
  size_t i;

  json_array_foreach (json_object_get (result, "problems"), i, text)
    json_array_append_new (repairs,
                           json_pack ("{s:O, s:b}", "problem", text, "repaired",
                                      1));
  return repairs;
}

static int
forget_loss (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) c;
  state->features_compat &= ~(uint64_t) FEATURE_COMPAT_RECORDS_LOST;
  return 0;
}

/* Every pointer has its record again, and every count has been recounted. */
static int
end_repair (struct nbdedup_pool *pool, const json_t *result)
{
  struct meta_state state;

  assert_held (&pool->admin);
  txg_get_state (pool->txg, &state);
  if (get_number (result, "errors") > 0 ||
      !(state.features_compat & FEATURE_COMPAT_RECORDS_LOST))
    return 0;
  return txg_run (pool->txg, forget_loss, NULL, NULL);
}

/* A repair replaces maps of segments, so no reader may keep dead records in
 * them (space_keep_begin); none can begin before pool->admin is released.
 */
static int
free_kept (struct nbdedup_pool *pool)
{
  assert_held (&pool->admin);
  space_keep_give_way (pool->space);
  return txg_run (pool->txg, NULL, NULL, NULL);
}

static json_t *
check_and_repair (struct nbdedup_pool *pool, nbdedup_progress_fn *progress,
                  void *opaque)
{
  json_t *result, *first, *repairs, *places;
  uint64_t lost = 0;

  result = check_once (pool, NULL, progress, opaque);
  if (result == NULL)
    return NULL;
  first = result;
  repairs = list_repairs (first);
  if (get_number (first, "errors") > 0 ||
      get_number (first, "stale_index_entries") > 0 ||
      get_number (first, "missing_index_entries") > 0)
    result = free_kept (pool) == -1 ||
        check_repair (pool, &lost, progress, opaque) == -1
      ? NULL
      : check_once (pool, repairs, progress, opaque);
  else
    json_incref (result);
  places = json_array ();
  lost += mend_take (pool, places);
  if (result != NULL)
    json_object_update_new (result,
                            json_pack ("{s:I, s:I, s:O, s:O, s:b}", "found",
                                       get_number (first, "errors"),
                                       "lost_blocks", (json_int_t) lost, "lost",
                                       places, "repairs", repairs,
                                       "try_offline",
                                       get_number (result, "errors") > 0 &&
                                         !pool->settings.repair));
  json_decref (places);
  json_decref (first);
  json_decref (repairs);
  if (result != NULL && end_repair (pool, result) == -1) {
    json_decref (result);
    return NULL;
  }
  return result;
}

json_t *
check_run (struct nbdedup_pool *pool, bool repair,
           nbdedup_progress_fn *progress, void *opaque)
{
  json_t *result;

  assert_held (&pool->admin);
  if (!repair)
    return check_once (pool, NULL, progress, opaque);
  /* Set it before the first fold, which may meet the damage. */
  txg_set_repairing (pool->txg, true);
  result = check_and_repair (pool, progress, opaque);
  txg_set_repairing (pool->txg, pool->settings.repair);
  return result;
}
