/* SPDX-License-Identifier: BSD-3-Clause */

/* check --repair: records, their counts, and pointers without a record.
 *
 * Work in windows of records, as check does, with one transaction for each:
 * read all maps, and count each pointer into the window for its record.  A
 * pointer without a record, or with a different one, is a stray.  Read the
 * bytes that a stray names.  If they do not match its checksum its block is
 * lost: reads of it fail already.  If they match, rebuild the record from its
 * summary.  If there is no summary, or the disk cannot be read, keep the
 * pointer: then the record at its address does not die, and no space is freed
 * (check-space.c).
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "report/check-int.h"

/* Strays that one transaction handles. */
#define STRAYS_MAX 65536
/* Lines of the log, for rebuilt records. */
#define LOG_LINES_MAX 20

/* A record's row, and its pointers in the maps. */
struct counted {
  struct record r;
  uint64_t equal, other; /* pointers: to this, to its address only */
  bool changed;
};

struct stray {
  uint64_t branch, leaf, seq;
  unsigned index;
  uint32_t lsize;
  struct pointer ptr;
};

struct window {
  struct derive *derive; /* owned */
  uint64_t next_group;   /* of the pass */
  bool records_gone;     /* in this pass */

  /* One transaction's. */
  struct counted *entries; /* owned; ascending by address */
  size_t nr, max, cap;     /* max: of entries to load */
  uint64_t first, end;     /* groups */
  uint64_t *damaged;       /* owned; groups; ascending */
  size_t nr_damaged;
  struct stray *strays; /* owned */
  size_t nr_strays;
  bool collecting;       /* ... are being collected */
  struct counted *fresh; /* owned; made from strays; ascending */
  size_t nr_fresh;
  bool again; /* this window needs another transaction */
  uint64_t lost_blocks;
  uint64_t kept;    /* strays that stay */
  unsigned changes; /* rows */

  uint64_t nr_rebuilt; /* of all transactions */
};

/*----------------------------------------------------------------------
 * Reading
 */

static int
note_damaged_group (struct window *w, uint64_t group)
{
  return array_push (&w->damaged, &w->nr_damaged, group);
}

static int
load_group (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct repair *rp = opaque;
  struct window *w = rp->arg;
  uint64_t last = 0;
  struct record r;
  size_t off = 0;
  int n;

  if (w->nr + RECORD_GROUP_SECTORS > w->max) {
    assert (w->nr > 0); /* so each window has a group at least */
    w->end = group;
    return 1;
  }
  while ((n = record_next (group, buf, len, &off, &r)) != 0) {
    /* Pointers to the records after it lead to them. */
    if (n == -1 || r.ptr.addr <= last)
      return note_damaged_group (w, group);
    last = r.ptr.addr;
    assert (w->nr < w->cap);
    w->entries[w->nr++] = (struct counted) { .r = r };
  }
  return 0;
}

static struct counted *
find_entry (struct window *w, uint64_t addr)
{
  size_t i = array_position (w->nr, k, w->entries[k].r.ptr.addr < addr);

  return i < w->nr && w->entries[i].r.ptr.addr == addr ? &w->entries[i] : NULL;
}

static bool
is_equal (const struct record *r, const struct pointer *ptr, uint32_t lsize)
{
  return r->ptr.psize == ptr->psize && r->ptr.codec == ptr->codec &&
    r->ptr.cksum == ptr->cksum && r->lsize == lsize;
}

static int
compare_strays (const void *a, const void *b)
{
  uint64_t x = ((const struct stray *) a)->ptr.addr;
  uint64_t y = ((const struct stray *) b)->ptr.addr;

  return x < y ? -1 : x > y;
}

static uint64_t
group_of (const struct stray *s)
{
  return s->ptr.addr / RECORD_GROUP_SECTORS;
}

/* Limit the transaction to groups before this one; strays are in order. */
static void
end_before (struct window *w, uint64_t group)
{
  w->end = group;
  w->nr = array_position (w->nr, k,
                          w->entries[k].r.ptr.addr <
                            group * RECORD_GROUP_SECTORS);
  w->nr_strays = array_position (w->nr_strays, k,
                                 group_of (&w->strays[k]) < group);
  w->nr_damaged = array_position (w->nr_damaged, k, w->damaged[k] < group);
}

/* There are too many strays: keep those of the first groups; if all are of one
 * group, handle the ones collected first.
 */
static void
shrink_strays (struct window *w)
{
  uint64_t group;

  assert (w->nr_strays == STRAYS_MAX);
  qsort (w->strays, w->nr_strays, sizeof *w->strays, compare_strays);
  group = group_of (&w->strays[STRAYS_MAX / 2]);
  if (group > group_of (&w->strays[0]))
    end_before (w, group);
  else
    w->again = true;
}

static int
count_pointer (struct repair *rp, struct stray *s)
{
  struct window *w = rp->arg;
  struct counted *e = find_entry (w, s->ptr.addr);

  if (e != NULL && is_equal (&e->r, &s->ptr, s->lsize)) {
    e->equal++;
    return 0;
  }
  if (e != NULL)
    e->other++;
  w->kept++;
  if (w->collecting && w->nr_strays == STRAYS_MAX && !w->again)
    shrink_strays (w);
  if (!w->collecting || w->nr_strays == STRAYS_MAX || group_of (s) >= w->end)
    return 0;
  return array_push (&w->strays, &w->nr_strays, *s);
}

static int
count_leaf (void *opaque, uint64_t branch, uint64_t leaf_nr, uint64_t seq,
            const uint8_t *buf, size_t len)
{
  struct repair *rp = opaque;
  struct window *w = rp->arg;
  const struct repair_layer *l = repair_find_layer (rp, branch, seq);
  struct stray s = { .branch = branch, .leaf = leaf_nr, .seq = seq };
  struct leaf leaf;
  uint64_t group;
  unsigned i;

  if (l == NULL || leaf_unpack (buf, len, &leaf) == -1)
    return nbdedup_fail (EIO,
                         "pool.db: map leaf %" PRIu64 " of branch %" PRIu64
                         " is damaged again",
                         leaf_nr, branch);
  s.lsize = l->row.block_size;
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (leaf.state[i] != MAP_POINTER)
      continue;
    if (pointer_unpack (leaf.ptr[i], s.lsize, &s.ptr) == -1)
      return -1;
    group = s.ptr.addr / RECORD_GROUP_SECTORS;
    s.index = i;
    if (group >= w->first && group < w->end && count_pointer (rp, &s) == -1)
      return -1;
  }
  return 0;
}

/* Count the references of table "copy"; repair_copies has made sure that they
 * name copies.
 */
static int
count_copies (void *opaque, uint64_t addr, const uint64_t *copies, unsigned nr)
{
  struct repair *rp = opaque;
  struct window *w = rp->arg;
  struct counted *e;
  unsigned i;

  (void) addr;
  for (i = 0; i < nr; ++i) {
    e = find_entry (w, copies[i]);
    if (e != NULL)
      e->equal++;
  }
  return 0;
}

static int
count_all (struct repair *rp)
{
  return meta_leaf_scan_all (rp->c, count_leaf, rp) == -1
    ? -1
    : meta_copies_scan (rp->c, 0, count_copies, rp);
}

/*----------------------------------------------------------------------
 * Strays
 */

/* Strays come in order: only the last fresh record can have this address. */
static const struct counted *
last_fresh (const struct window *w)
{
  return w->nr_fresh > 0 ? &w->fresh[w->nr_fresh - 1] : NULL;
}

/* Does the record overlap another? */
static bool
overlaps (struct repair *rp, const struct window *w, const struct record *r)
{
  uint32_t sector = rp->state->sector_bytes;
  const struct counted *last = last_fresh (w);
  size_t i = array_position (w->nr, k, w->entries[k].r.ptr.addr < r->ptr.addr);

  if (last &&
      last->r.ptr.addr + sectors_of (last->r.ptr.psize, sector) > r->ptr.addr)
    return true;
  if (i > 0 &&
      w->entries[i - 1].r.ptr.addr +
          sectors_of (w->entries[i - 1].r.ptr.psize, sector) >
        r->ptr.addr)
    return true;
  if (i < w->nr && w->entries[i].r.ptr.addr == r->ptr.addr)
    i++;
  return i < w->nr &&
    r->ptr.addr + sectors_of (r->ptr.psize, sector) > w->entries[i].r.ptr.addr;
}

/* Set RECORD_INDEXED if the hash index has an entry for it. */
static int
set_indexed (struct repair *rp, struct record *r)
{
  struct index_runs runs;
  struct index_entry e;
  int sum;

  index_entry_make (&r->digest, r->ptr.addr, &e);
  if (meta_index_runs (rp->c, &runs) == -1 ||
      meta_index_sum (rp->c, &runs, &e, &sum) == -1)
    return -1;
  if (sum > 0)
    r->flags |= RECORD_INDEXED;
  return 0;
}

static int
add_fresh (struct repair *rp, struct window *w, const struct record *r)
{
  /* merge_fresh needs them in order. */
  assert (w->nr_fresh == 0 || last_fresh (w)->r.ptr.addr < r->ptr.addr);
  if (array_push (&w->fresh, &w->nr_fresh,
                  (struct counted) { .r = *r, .changed = true }) == -1)
    return -1;
  if (w->nr_rebuilt++ < LOG_LINES_MAX)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: check --repair: the record at %" PRIu64
                 " was restored from its summary",
                 rp->pool->path, r->ptr.addr);
  return 0;
}

/* Merge both lists, which are in order, and have no address in common. */
static int
merge_fresh (struct window *w)
{
  size_t i = w->nr, j = w->nr_fresh, k = w->nr + w->nr_fresh;

  if (array_reserve (&w->entries, &w->cap, k, sizeof *w->entries) == -1)
    return -1;
  w->nr = k;
  while (j > 0)
    w->entries[--k] = i > 0 &&
        w->entries[i - 1].r.ptr.addr > w->fresh[j - 1].r.ptr.addr
      ? w->entries[--i]
      : w->fresh[--j];
  return 0;
}

/* The bytes are right, but pool.db has no record of them, or a different one
 * without references.
 */
static int
rebuild_record (struct repair *rp, struct window *w, const struct stray *s)
{
  struct counted *e = find_entry (w, s->ptr.addr);
  const struct counted *last = last_fresh (w);
  struct record r;
  int found;

  if (last && last->r.ptr.addr == s->ptr.addr)
    return 0;
  if (e != NULL && (e->equal > 0 || is_equal (&e->r, &s->ptr, s->lsize)))
    return 0;
  found = derive_record (w->derive, rp->c, &s->ptr, s->lsize, &r);
  if (found != 1)
    return found;
  if (overlaps (rp, w, &r))
    return 0;
  if (set_indexed (rp, &r) == -1)
    return -1;
  if (e == NULL)
    return add_fresh (rp, w, &r);
  r.refcount = e->r.refcount;
  e->r = r;
  e->changed = true;
  rp->records_gone = true; /* this replaced a record */
  return 0;
}

static int
lose_block (struct repair *rp, struct window *w, const struct stray *s)
{
  uint8_t buf[LEAF_LEN_MAX];
  struct leaf leaf;
  size_t len = 0;

  if (meta_leaf_get (rp->c, s->branch, s->leaf, s->seq, buf, &len) != 1 ||
      leaf_unpack (buf, len, &leaf) == -1)
    return -1;
  leaf.state[s->index] = MAP_LOST;
  len = leaf_pack (&leaf, buf);
  rp->maps_changed = true;
  rp->state->features_compat |= FEATURE_COMPAT_LOST;
  w->lost_blocks++;
  return meta_leaf_put (rp->c, s->branch, s->leaf, s->seq, buf, len);
}

/* Keep no more strays than the transaction can write: the rest would have to be
 * judged again.
 */
static void
limit_strays (struct repair *rp, struct window *w)
{
  unsigned groups = 0;
  size_t i;

  qsort (w->strays, w->nr_strays, sizeof *w->strays, compare_strays);
  for (i = 0; i < w->nr_strays; ++i)
    if ((i == 0 || group_of (&w->strays[i]) != group_of (&w->strays[i - 1])) &&
        groups++ == rp->rows) {
      end_before (w, group_of (&w->strays[i]));
      break;
    }
}

static int
judge_strays (struct repair *rp, struct window *w)
{
  const struct counted *last;
  struct stray *s;
  size_t i;

  limit_strays (rp, w);
  for (i = 0; i < w->nr_strays; ++i) {
    s = &w->strays[i];
    last = last_fresh (w);
    if (last && last->r.ptr.addr == s->ptr.addr &&
        is_equal (&last->r, &s->ptr, s->lsize))
      continue; /* another block of the same record */
    switch (derive_content (w->derive, &s->ptr, s->lsize)) {
    case CONTENT_GOOD:
      if (rebuild_record (rp, w, s) == -1)
        return -1;
      break;
    case CONTENT_LOST:
      if (w->lost_blocks == rp->rows)
        w->again = true;
      else if (lose_block (rp, w, s) == -1)
        return -1;
      break;
    case CONTENT_UNKNOWN:
      break;
    }
  }
  return merge_fresh (w);
}

/*----------------------------------------------------------------------
 * Writing
 */

/* Set the count by the maps.  A record without references goes to limbo, where
 * a fold frees it.
 */
static int
set_count (struct repair *rp, struct counted *e)
{
  uint64_t found = e->equal + e->other;

  if (found == 0 && meta_limbo_put (rp->c, e->r.ptr.addr) == -1)
    return -1;
  if (e->r.refcount == found)
    return 0;
  if (e->r.refcount == 0 && meta_limbo_delete (rp->c, e->r.ptr.addr) == -1)
    return -1;
  e->r.refcount = found;
  e->changed = true;
  return 0;
}

static bool
is_group_damaged (const struct window *w, uint64_t group)
{
  size_t i = array_position (w->nr_damaged, k, w->damaged[k] < group);

  return i < w->nr_damaged && w->damaged[i] == group;
}

/* Write one group's entries, [*i, ...), if any has changed. */
static int
put_group (struct repair *rp, struct window *w, uint64_t group, size_t *i)
{
  CLEANUP_FREE uint8_t *buf = NULL;
  bool changed = is_group_damaged (w, group);
  size_t j, len = 0;

  rp->records_gone |= changed;
  for (j = *i;
       j < w->nr && w->entries[j].r.ptr.addr / RECORD_GROUP_SECTORS == group;
       ++j) {
    if (set_count (rp, &w->entries[j]) == -1)
      return -1;
    changed |= w->entries[j].changed;
  }
  if (changed && j > *i) {
    buf = malloc ((j - *i) * RECORD_ENTRY_MAX);
    if (buf == NULL)
      return nbdedup_fail (ENOMEM, "no memory to repair");
    for (; *i < j; ++*i)
      len += record_pack (&w->entries[*i].r, buf + len);
    if (meta_record_put (rp->c, group, buf, len) == -1)
      return -1;
  }
  else if (changed && meta_record_delete (rp->c, group) == -1)
    return -1;
  *i = j;
  w->changes += changed;
  return 0;
}

/* Write groups of entries, and damaged ones that have none, in order; as many
 * as one transaction may change.
 */
static int
put_groups (struct repair *rp, struct window *w)
{
  size_t i = 0, d = 0;
  uint64_t group;

  while (i < w->nr || d < w->nr_damaged) {
    group = i < w->nr ? w->entries[i].r.ptr.addr / RECORD_GROUP_SECTORS
                      : UINT64_MAX;
    if (d < w->nr_damaged && w->damaged[d] <= group)
      group = w->damaged[d++];
    if (w->changes >= rp->rows) {
      w->end = group;
      return 0;
    }
    if (put_group (rp, w, group, &i) == -1)
      return -1;
  }
  assert (w->changes <= rp->rows);
  return 0;
}

/*----------------------------------------------------------------------*/

static void
reset (struct window *w)
{
  free (w->damaged);
  free (w->strays);
  free (w->fresh);
  w->damaged = NULL;
  w->strays = NULL;
  w->fresh = NULL;
  w->nr = w->nr_damaged = w->nr_strays = w->nr_fresh = 0;
  w->again = false;
  derive_forget (w->derive);
  w->lost_blocks = w->kept = 0;
  w->changes = 0;
  w->first = w->next_group;
  w->end = UINT64_MAX;
}

/* Count the pointers to each record as they are now. */
static int
count_again (struct repair *rp, struct window *w)
{
  size_t i;

  for (i = 0; i < w->nr; ++i)
    w->entries[i].equal = w->entries[i].other = 0;
  w->collecting = false;
  w->kept = 0;
  return count_all (rp);
}

static int
fix_window (struct repair *rp)
{
  struct window *w = rp->arg;

  reset (w);
  w->collecting = true;
  if (meta_record_scan (rp->c, w->first, load_group, rp) == -1 ||
      count_all (rp) == -1)
    return -1;
  /* The dedup table in memory may have records that pool.db has not. */
  rp->records_gone = w->nr_strays > 0;
  if (w->nr_strays > 0 &&
      (judge_strays (rp, w) == -1 || count_again (rp, w) == -1))
    return -1;
  if (put_groups (rp, w) == -1)
    return -1;
  rp->more = w->again || w->end < UINT64_MAX;
  return 0;
}

static void
window_done (struct repair *rp)
{
  struct window *w = rp->arg;

  rp->lost_blocks += w->lost_blocks;
  if (w->kept > 0)
    rp->records_are_right = false;
  if (!w->again)
    w->next_group = w->end;
  w->records_gone |= rp->records_gone;
}

/* Until the dedup table forgot a removed record workers may have found it.  By
 * the second pass their pointers are in the maps, and as strays they restore
 * the record, before its space is free.
 */
static int
run_passes (struct repair *rp, struct window *w)
{
  bool again = false;

  do {
    w->next_group = 0;
    w->records_gone = false;
    rp->records_are_right = true;
    if (repair_pass (rp, fix_window, window_done, w) == -1) {
      rp->records_are_right = false;
      return -1;
    }
    again = !again && w->records_gone;
  } while (again);
  return 0;
}

int
repair_records (struct repair *rp)
{
  struct window w = {
    .max = rp->pool->settings.ddt_cache_bytes / 16 / sizeof *w.entries,
  };
  int r = -1;

  if (w.max < 2 * RECORD_GROUP_SECTORS)
    w.max = 2 * RECORD_GROUP_SECTORS;
  w.cap = w.max;
  w.entries = malloc (w.cap * sizeof *w.entries);
  w.derive = derive_new (rp->pool);
  if (w.entries == NULL)
    nbdedup_fail (ENOMEM, "no memory to repair");
  else if (w.derive != NULL)
    r = run_passes (rp, &w);
  if (w.nr_rebuilt > LOG_LINES_MAX)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: check --repair: %" PRIu64 " records "
                 "were restored from their summaries",
                 rp->pool->path, w.nr_rebuilt);
  derive_free (w.derive);
  free (w.entries);
  free (w.damaged);
  free (w.strays);
  free (w.fresh);
  return r;
}
