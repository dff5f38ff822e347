/* SPDX-License-Identifier: BSD-3-Clause */

/* Step 2 of a fold, second part: the changes by the txg and the maps to
 * records, to their counts and to the space that they take.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "core/fold-ahead.h"
#include "core/fold-group.h"
#include "core/fold-index.h"
#include "core/fold-int.h"
#include "format/counts.h"

/* The repair recounts such a record. */
#define COUNT_UNKNOWN (RECORD_REFCOUNT_MAX / 2)

/* Growth by one entry, alone in its row, in pages that are half empty. */
#define COUNTS_ROOM_BYTES 32

struct pass {
  struct fold *f;
  struct meta_conn *c;
  struct group *group;
  struct segment_map *map; /* of the current segment; NULL: untouched */
  bool has_chunks;         /* ... with the allocator's chunks */
  bool copies;             /* only copies may lose references */
  bool tight;              /* table "count" must not grow */
};

/* 1; 0: the map is damaged; -1. */
static int
load_segment (struct pass *p, uint64_t segment)
{
  struct blob b CLEANUP_BLOB = { NULL };
  int r;

  if (p->map && p->map->id == segment)
    return 1;
  assert (p->map == NULL);
  p->has_chunks = false;
  r = meta_segment_get (p->c, segment, &b);
  if (r == -1)
    return -1;
  p->map = r ? segment_map_unpack (segment, p->f->sector_bytes, b.p, b.len)
             : segment_map_new (segment, p->f->sector_bytes);
  return p->map ? 1 : errno == EIO ? 0 : -1;
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
    r = buf == NULL
      ? -1
      : meta_segment_put (p->c, map->id, map->nr_sectors - map->nr_used,
                          segment_map_largest_run (map, &start), buf, len);
  }
  segment_map_free (map);
  p->map = NULL;
  return r;
}

/* The allocator may have added chunks that pool.db does not list yet. */
static int
set_chunks (struct pass *p)
{
  CLEANUP_FREE uint16_t *chunks = NULL;
  unsigned nr, i;

  if (p->has_chunks)
    return 0;
  if (space_get_chunks (p->f->parts->space, p->map->id, &chunks, &nr) == -1)
    return -1;
  for (i = 0; p->f->repairing && i < nr; ++i)
    if (chunks[i] != SEGMENT_CHUNK_LOST)
      segment_map_force_chunk (p->map, i, chunks[i]);
  if (segment_map_set_chunks (p->map, chunks, nr) == -1)
    return -1;
  p->has_chunks = true;
  return 0;
}

/* If the map differs, a repair makes it from the records.  Until then the
 * record's sectors are in use but its slot is not, so give_space leaves them:
 * in a map that shows all sectors as used, because it is not known which are,
 * free slots mean nothing, so no sector of it may become free (mend-tables.c).
 */
static int
take_space (struct pass *p, const struct record *r)
{
  struct fold *f = p->f;
  const unsigned sector = r->ptr.addr % f->segment_sectors;
  const unsigned nr = sectors_of (r->ptr.psize, f->sector_bytes);
  int ret = load_segment (p, r->ptr.addr / f->segment_sectors);

  if (ret == 1 &&
      (set_chunks (p) == -1 ||
       segment_map_set_record (p->map, sector, nr, r->slot) == -1)) {
    if (errno != EIO)
      return -1;
    segment_map_cover (p->map, sector, nr);
    ret = 0;
  }
  return ret == 0 ? fold_note_contradiction (f) : ret == 1 ? 0 : -1;
}

static void
put_back_space (struct pass *p, const struct record *r)
{
  assert (p->map && p->map->id == r->ptr.addr / p->f->segment_sectors);
  if (segment_map_set_record (p->map, r->ptr.addr % p->f->segment_sectors,
                              sectors_of (r->ptr.psize, p->f->sector_bytes),
                              r->slot) == -1)
    abort (); /* give_space cleared them */
}

/* 1; 0: the space maps differ, and nothing is changed; -1. */
static int
give_space (struct pass *p, const struct record *r)
{
  struct fold *f = p->f;
  int ret = load_segment (p, r->ptr.addr / f->segment_sectors);

  assert (r->refcount == 0);
  if (ret != 1)
    return ret;
  if (segment_map_clear_record (p->map, r->ptr.addr % f->segment_sectors,
                                sectors_of (r->ptr.psize, f->sector_bytes),
                                r->slot) == -1)
    return 0;
  if (array_push (&f->unlinked.p, &f->unlinked.nr, r->ptr.addr) == -1)
    return -1;
  if (space_unlink (f->parts->space, r->ptr.addr) == 0)
    return 1;
  f->unlinked.nr--;
  put_back_space (p, r);
  return errno == EIO ? 0 : -1;
}

/* Undo give_space: the open txg refers to the record. */
static void
take_back (struct pass *p, const struct record *r)
{
  struct fold *f = p->f;

  assert (f->unlinked.nr > 0 &&
          f->unlinked.p[f->unlinked.nr - 1] == r->ptr.addr);
  f->unlinked.nr--;
  space_committed (f->parts->space, r->ptr.addr);
  put_back_space (p, r);
}

static int
add_gone (struct fold *f, const struct record *r)
{
  assert (r->refcount == 0);
  return array_push (&f->gone, &f->nr_gone,
                     (struct space_freed) {
                       r->ptr.addr,
                       sectors_of (r->ptr.psize, f->sector_bytes),
                       r->slot,
                     });
}

/* The record has no reference.  1: it is dead, and in f->gone, so that a
 * rollback finds it; 0: the open txg refers to it; -1: ENOMEM.
 */
static int
kill_record (struct fold *f, const struct record *r)
{
  if (add_gone (f, r) == -1)
    return -1;
  if (ddt_try_kill (f->parts->ddt, r->ptr.addr, &r->digest))
    return 1;
  f->nr_gone--;
  return 0;
}

static int
add_index_op (struct fold *f, const struct record *r, bool add)
{
  struct index_entry *e;

  if (!(r->flags & RECORD_INDEXED))
    return 0;
  e = array_add (&f->index, &f->nr_index, sizeof *e);
  if (e == NULL)
    return -1;
  index_entry_make (&r->digest, r->ptr.addr, e);
  e->removed = !add;
  return 0;
}

static void
count_record (struct fold *f, const struct record *r, int sign)
{
  uint64_t sectors =
    (uint64_t) (sign * (int64_t) sectors_of (r->ptr.psize, f->sector_bytes));

  assert (sign == 1 || sign == -1);
  f->state.stored_sectors += sectors;
  if (r->flags & RECORD_COPY) {
    f->state.copy_sectors += sectors;
    return;
  }
  f->state.records += (uint64_t) sign;
  f->state.record_bytes += (uint64_t) (sign * (int64_t) r->lsize);
}

/* The count was 'old' and has changed: may the record have copies now? */
static int
note_reached (struct fold *f, const struct record *r, uint64_t old)
{
  const struct copies *copies = f->parts->copies;

  if (r->flags & RECORD_COPY || copies_wanted (copies, r->refcount) == 0 ||
      copies_wanted (copies, old) > 0)
    return 0;
  return array_push (&f->reached.p, &f->reached.nr, r->ptr.addr);
}

/* A record of pool.db gains or loses references. */
static int
change_record (struct pass *p, struct record *r, int64_t delta)
{
  struct fold *f = p->f;
  uint64_t old = r->refcount, new = old + (uint64_t) delta;
  int given, killed;

  if ((delta < 0 && (uint64_t) -delta > old) || new > RECORD_REFCOUNT_MAX) {
    nbdedup_fail (EIO,
                  "pool.db: the record at %" PRIu64 " has %" PRIu64 " "
                  "references, so its count cannot change by %" PRId64,
                  r->ptr.addr, old, delta);
    if (fold_note_contradiction (f) == -1)
      return -1;
    new = COUNT_UNKNOWN; /* too high, so that nothing frees it */
  }
  r->refcount = new;
  p->group->write_counts |= new != old;
  p->group->write_row |= p->tight && new < old;
  if ((old > 0) != (new > 0))
    count_record (f, r, new > 0 ? 1 : -1);
  if (note_reached (f, r, old) == -1)
    return -1;
  if (new > 0)
    return old > 0 ? 0 : meta_limbo_delete (p->c, r->ptr.addr);
  given = give_space (p, r);
  if (given == -1)
    return -1;
  if (given == 0) { /* a leak, which check finds */
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "pool.db: the space map does not have "
                 "the record at %" PRIu64 ": run nbdedup check --repair to "
                 "free its space",
                 r->ptr.addr);
    return meta_limbo_put (p->c, r->ptr.addr);
  }
  killed = kill_record (f, r);
  if (killed == -1)
    return -1;
  if (killed == 0) {
    take_back (p, r);
    return meta_limbo_put (p->c, r->ptr.addr);
  }
  if (old == 0 && meta_limbo_delete (p->c, r->ptr.addr) == -1)
    return -1;
  if (add_index_op (f, r, false) == -1)
    return -1;
  group_bury (p->group, r);
  return 0;
}

static int
insert_record (struct pass *p, const struct ddt_change *ch, int64_t delta)
{
  struct fold *f = p->f;
  struct group *g = p->group;
  struct record r = *ch->record;
  unsigned i;
  int killed;

  if (delta < 0)
    return nbdedup_fail (EIO,
                         "fold: the new record at %" PRIu64 " cannot have "
                         "%" PRId64 " references",
                         ch->addr, delta);
  r.refcount = (uint64_t) delta;
  if (delta == 0) {
    killed = kill_record (f, &r);
    if (killed != 0)
      return killed == 1 ? 0 : -1;
    if (meta_limbo_put (p->c, r.ptr.addr) == -1)
      return -1;
  }
  else {
    count_record (f, &r, 1);
    if (note_reached (f, &r, 0) == -1)
      return -1;
  }
  for (i = 0; i < g->nr && g->records[i].ptr.addr < r.ptr.addr; ++i)
    ;
  if (g->nr == RECORD_GROUP_SECTORS ||
      (i < g->nr && g->records[i].ptr.addr == r.ptr.addr))
    return nbdedup_fail (EIO,
                         "pool.db: a record at %" PRIu64 " already "
                         "exists: run nbdedup check",
                         r.ptr.addr);
  memmove (&g->records[i + 1], &g->records[i],
           (g->nr - i) * sizeof g->records[0]);
  g->records[i] = r;
  g->nr++;
  g->write_row = true;
  if (array_push (&f->inserted.p, &f->inserted.nr, r.ptr.addr) == -1 ||
      add_index_op (f, &r, true) == -1)
    return -1;
  return take_space (p, &r);
}

/* A record is missing.  With 'delta' 0, limbo named it by mistake: no error.
 */
static int
note_missing (struct fold *f, uint64_t addr, int64_t delta)
{
  if (delta == 0)
    return 0;
  nbdedup_fail (EIO, "pool.db: the record at %" PRIu64 " is missing", addr);
  return fold_note_contradiction (f);
}

/* Table "copy" may be wrong, and must not free a record that is no copy. */
static bool
is_copy (const struct record *r, uint64_t addr)
{
  if (r != NULL && r->flags & RECORD_COPY && r->refcount == 1)
    return true;
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "pool.db: table copy names sector %" PRIu64
               ", where there is no copy of a record: run nbdedup check",
               addr);
  return false;
}

/* Positions in the fold's lists, of the DDT's changes, of displaced addresses,
 * and of moved records.  All are ascending: merge them.
 */
struct positions {
  size_t i, j, k;
};

static uint64_t
next_addr (const struct fold *f, const struct positions *at)
{
  uint64_t x = at->i < f->nr_changes ? f->changes[at->i].addr : UINT64_MAX;
  uint64_t y = at->j < f->displaced.nr ? f->displaced.p[at->j] : UINT64_MAX;

  uint64_t z = at->k < f->nr_added ? f->added[at->k].addr : UINT64_MAX;

  x = x < y ? x : y;
  return x < z ? x : z;
}

/* What the next address of the group loses or gets; false: there is none. */
static bool
next_change (const struct fold *f, uint64_t id, struct positions *at,
             uint64_t *addr, const struct ddt_change **ch, int64_t *delta)
{
  *addr = next_addr (f, at);
  if (*addr == UINT64_MAX || *addr / RECORD_GROUP_SECTORS != id)
    return false;
  *ch = NULL;
  *delta = 0;
  if (at->i < f->nr_changes && f->changes[at->i].addr == *addr) {
    *ch = &f->changes[at->i++];
    *delta = (*ch)->delta;
  }
  if (at->k < f->nr_added && f->added[at->k].addr == *addr) {
    /* No two records are new at one address. */
    assert (*ch == NULL || (*ch)->record == NULL ||
            f->added[at->k].record == NULL);
    *delta += f->added[at->k].delta;
    if (f->added[at->k].record)
      *ch = &f->added[at->k];
    at->k++;
  }
  for (; at->j < f->displaced.nr && f->displaced.p[at->j] == *addr; ++at->j)
    --*delta;
  return true;
}

/* A record with this noted count gets a new one, if its own entry need not be
 * read for that: it is not dead now or then, and its copies are right.
 */
static bool
change_noted (const struct pass *p, uint64_t *count, int64_t delta)
{
  const struct copies *copies = p->f->parts->copies;
  const uint64_t old = *count, new = old + (uint64_t) delta;

  if (old == COUNT_SAME || old == COUNT_DEAD || old == 0 ||
      (delta < 0 && (uint64_t) -delta >= old) || new > RECORD_REFCOUNT_MAX ||
      (copies_wanted (copies, new) > 0 && copies_wanted (copies, old) == 0))
    return false;
  assert (new > 0);
  assert ((new > old) == (delta > 0));
  *count = new;
  return true;
}

/* References to records that had others before mostly need the group's counts
 * only, which are much less to read: 1, and '*at' is behind the group; 0, and
 * nothing is changed; -1.
 */
static int
fold_noted_counts (struct pass *p, uint64_t id, struct positions *at)
{
  struct blob *row = &p->group->counts;
  uint8_t buf[COUNTS_LEN_MAX];
  const struct ddt_change *ch;
  struct positions next = *at;
  struct counts counts;
  uint64_t addr;
  int64_t delta;
  int r;

  if (p->copies || p->f->repairing)
    return 0;
  r = meta_count_get (p->c, id, row);
  if (r != 1 || counts_unpack (id, row->p, row->len, &counts) == -1)
    return r == -1 ? -1 : 0;
  while (next_change (p->f, id, &next, &addr, &ch, &delta))
    if ((ch && ch->record) ||
        !change_noted (p, &counts.of[addr % RECORD_GROUP_SECTORS], delta))
      return 0;
  *at = next;
  return meta_count_put (p->c, id, buf, counts_pack (&counts, buf)) == -1 ? -1
                                                                          : 1;
}

/* Within a group, remove dead records before adding new ones.  Their sectors
 * cannot be the same (freed space is reused only after this fold), so the
 * order matters only for the row's size limit, which always holds this way.
 */
static int
fold_group (struct pass *p, struct positions *at)
{
  struct fold *f = p->f;
  const uint64_t id = next_addr (f, at) / RECORD_GROUP_SECTORS;
  const struct ddt_change *ch;
  struct record *r;
  uint64_t addr;
  int64_t delta;
  int done;

  if (p->map && p->map->id != id * RECORD_GROUP_SECTORS / f->segment_sectors &&
      store_segment (p) == -1)
    return -1;
  done = fold_noted_counts (p, id, at);
  if (done != 0)
    return done == 1 ? 0 : -1;
  if (group_load (p->group, f, p->c, id) == -1)
    return -1;
  while (next_change (f, id, at, &addr, &ch, &delta)) {
    if (ch && ch->record) {
      if (insert_record (p, ch, delta) == -1)
        return -1;
      continue;
    }
    r = group_find (p->group, addr);
    if (p->copies) {
      if (!is_copy (r, addr))
        continue;
      delta = -1; /* also if two rows name it */
    }
    if (r == NULL) {
      if (note_missing (f, addr, delta) == -1)
        return -1;
      continue;
    }
    if (change_record (p, r, delta) == -1)
      return -1;
  }
  return group_store (p->group, f, p->c);
}

static int
compare_u64 (const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

  return x < y ? -1 : x > y;
}

/* A layer that was written in image order drops its references nearly or
 * exactly in the order of addresses.
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

/* New blocks have reserved room for counts, but what gives references back has
 * not.  On a full file system it changes the records' rows, which shrink.
 */
static bool
is_tight (const struct fold *f)
{
  uint64_t nr = f->displaced.nr;
  size_t i;

  for (i = 0; i < f->nr_changes; ++i)
    nr += f->changes[i].delta < 0;
  return nr > 0 &&
    !fold_has_room (f, nr * COUNTS_ROOM_BYTES / META_PAGE_BYTES + 1);
}

/* Apply f->displaced, and, except in a pass over copies, all changes. */
static int
fold_all (struct fold *f, struct meta_conn *c, bool copies)
{
  struct pass p = {
    .f = f,
    .c = c,
    .copies = copies,
    .tight = is_tight (f),
  };
  struct positions at = { 0 };
  int r = 0;

  if (copies) { /* the others are done */
    at.i = f->nr_changes;
    at.k = f->nr_added;
  }
  sort_displaced (f);
  p.group = group_new ();
  if (p.group == NULL)
    return -1;
  while (r == 0 && next_addr (f, &at) != UINT64_MAX) {
    r = fold_group (&p, &at);
    if (!copies)
      fold_ahead_look (f, f->nr_map_changes + at.i);
  }
  /* Each change was made once. */
  assert (
    r == -1 ||
    (at.i == f->nr_changes && at.j == f->displaced.nr && at.k == f->nr_added));
  if (r == 0)
    r = store_segment (&p);
  segment_map_free (p.map);
  group_free (p.group);
  return r;
}

int
fold_records (struct fold *f, struct meta_conn *c)
{
  assert (f->nr_gone == 0 && f->inserted.nr == 0); /* since reset */
  return fold_all (f, c, false);
}

int
fold_release_copies (struct fold *f, struct meta_conn *c, const uint64_t *addrs,
                     size_t nr)
{
  f->displaced.nr = 0; /* they are done */
  if (fold_add_displaced (f, addrs, nr) == -1)
    return -1;
  return fold_all (f, c, true);
}

int
fold_find_record (struct fold *f, struct meta_conn *c, uint64_t addr,
                  struct record *r)
{
  struct group *g = group_new ();
  const struct record *found;
  int ret = -1;

  if (g == NULL)
    return -1;
  if (group_load (g, f, c, addr / RECORD_GROUP_SECTORS) == 0) {
    found = group_find (g, addr);
    ret = found != NULL;
    if (found)
      *r = *found;
  }
  group_free (g);
  return ret;
}
