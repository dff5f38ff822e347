/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/invariant.h"
#include "base/lock.h"
#include "base/mix.h"
#include "disk/room.h"
#include "format/format.h"
#include "format/leaf-delta.h"

/* The growth of pool.db by one block, without split pages: record 56, index
 * entry 16, leaf row 56 bytes, in pages and rows that are half empty.
 */
#define GROWTH_BYTES 512
/* Pages that a block's change can split: one of the leaves, one of the counts.
 * Entries of the index fill pages of their own.
 */
#define SPLIT_PAGES 2
#define GROWTH_SLACK 16

/* Allocate up to so many pages more than are needed at the moment, so that few
 * writes need a system call; fewer when there was no room for more.
 */
#define STEP_PAGES 256

/* What the changes of the last so many pages touched says what those touch that
 * are not known yet.
 */
#define RECENT_PAGES 16384

/* What the open txg has touched: as much as there are places for.  What is
 * forgotten counts twice, which only makes the txg smaller.
 */
#define NR_SEEN 32768u

enum kind { LEAF, AREA, DELTAS, GROUP, COUNT };

struct room {
  struct room_ops ops;
  uint64_t wal_max;
  atomic_uint copies;             /* most copies of a record, itself included */
  _Atomic uint64_t seen[NR_SEEN]; /* hashes; some of older generations */
  _Atomic uint64_t generation;    /* of the open txg */

  struct lock lock;        /* protects everything below */
  uint64_t step, wal_step; /* STEP_PAGES, or less */
  uint64_t reserved;       /* blocks, accepted and not yet installed */
  uint64_t open, folding;  /* blocks in the txgs */
  uint64_t open_pages, folding_pages; /* the most that they can touch */
  uint64_t open_most, folding_most;   /* the same before room_return */
  uint64_t open_unknown; /* those of open_pages that no room_return was for */
  uint64_t limit;        /* of what open_pages will be after room_return */
  uint64_t open_limit;   /* the same, of the open txg (room_stretch) */
  /* Pages of the last changes: with which they entered, and which they touched.
   */
  uint64_t recent_entered, recent_touched;
};

/* True whenever the lock is not held: no txg has more than what it had before
 * room_return.
 */
static void
room_assert_consistent_locked (struct room *room)
{
  assert_held (&room->lock);
  assert (room->open_pages <= room->open_most);
  assert (room->open_unknown <= room->open_pages);
  assert (room->recent_touched <= room->recent_entered);
  assert (room->folding_pages <= room->folding_most);
  assert (room->copies >= 1 && room->copies <= COPIES_MAX);
  assert (room->step <= STEP_PAGES && room->wal_step <= STEP_PAGES);
}
DEFINE_WITH_CONSISTENT (room)

struct room *
room_new (const struct room_ops *ops, uint64_t wal_max)
{
  struct room *room = calloc (1, sizeof *room);

  if (room == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  room->ops = *ops;
  room->wal_max = wal_max < ROOM_WAL_MIN_PAGES * COPIES_MAX
    ? ROOM_WAL_MIN_PAGES * COPIES_MAX
    : wal_max;
  room->copies = 1;
  room->limit = room->open_limit = UINT64_MAX;
  room->step = room->wal_step = STEP_PAGES;
  lock_init (&room->lock);
  return room;
}

void
room_free (struct room *room)
{
  if (room == NULL)
    return;
  lock_destroy (&room->lock);
  free (room);
}

void
room_set_copies (struct room *room, unsigned nr)
{
  WITH_LOCK (&room->lock);
  WITH_CONSISTENT (room, room);
  if (nr <= room->copies)
    return;
  /* What has entered is multiplied as what will be, for room_return. */
  room->open_pages = room->open_pages / room->copies * nr;
  room->open_most = room->open_most / room->copies * nr;
  room->open_unknown = room->open_unknown / room->copies * nr;
  room->copies = nr;
}

int
room_check_copies (struct room *room, unsigned nr)
{
  struct room_pages p;

  assert (nr >= 1 && nr <= COPIES_MAX);
  WITH_LOCK (&room->lock);
  room->ops.get (room->ops.opaque, &p);
  return room->ops.allocate (room->ops.opaque, 0,
                             room_kept_wal_pages (p.used, nr));
}

unsigned
room_get_copies (struct room *room)
{
  return room->copies;
}

static uint64_t
min_u64 (uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

/* The growth of pool.db by 'nr' blocks, in any number of folds.  A page splits
 * at most once before new bytes must fill it again.
 */
static uint64_t
growth (uint64_t nr, uint64_t used)
{
  return min_u64 (SPLIT_PAGES * nr,
                  used + GROWTH_SLACK + nr * GROWTH_BYTES / META_PAGE_BYTES);
}

static uint64_t
kept_growth (uint64_t used)
{
  return min_u64 (ROOM_GROWTH_MIN_PAGES, used / 4 + 4);
}

uint64_t
room_kept_pages (uint64_t used)
{
  return used + kept_growth (used);
}

static uint64_t
wal_min (unsigned copies)
{
  return (uint64_t) ROOM_HOLES_PAGES * copies + ROOM_FOLD_PAGES;
}

uint64_t
room_kept_wal_pages (uint64_t used, unsigned copies)
{
  /* Overwriting may use the growth that is kept for it, and needs room in the
   * WAL for these pages as well.
   */
  return min_u64 (wal_min (copies), used + 2 * kept_growth (used));
}

static uint64_t
blocks_locked (const struct room *room)
{
  return room->reserved + room->open + room->folding;
}

/* Pages that pool.db may have when all accepted blocks, and 'nr' more, are
 * folded.
 */
static uint64_t
after_locked (const struct room *room, unsigned nr, uint64_t used)
{
  return used + growth (blocks_locked (room) + nr, used);
}

/* Pages that a fold of 'pages' may write: not more than pool.db will have. */
static uint64_t
bound_locked (struct room *room, uint64_t pages, uint64_t used)
{
  assert_held (&room->lock);
  return min_u64 (pages + ROOM_FOLD_PAGES,
                  used + growth (room->open + room->folding, used) +
                    kept_growth (used));
}

bool
room_keep (struct room *room)
{
  struct room_pages p;

  room->ops.get (room->ops.opaque, &p);
  return room->ops.allocate (room->ops.opaque, room_kept_pages (p.used),
                             room_kept_wal_pages (p.used, room->copies)) == 0;
}

void
room_give_back (struct room *room)
{
  const struct room_ops *ops = &room->ops;
  struct room_pages p;
  uint64_t after, wal;

  WITH_LOCK (&room->lock);
  WITH_CONSISTENT (room, room);
  ops->get (ops->opaque, &p);
  after = after_locked (room, 0, p.used);
  wal = bound_locked (room, room->open_most + room->folding_most, p.used);
  if (wal < room_kept_wal_pages (after, room->copies))
    wal = room_kept_wal_pages (after, room->copies);
  ops->give_back (ops->opaque, room_kept_pages (after), wal);
}

/* Allocate 'need' pages, and up to '*step' more if there is room. */
static int
allocate_step (struct room *room, bool wal, uint64_t need, uint64_t max,
               uint64_t *step)
{
  const struct room_ops *ops = &room->ops;
  uint64_t more = min_u64 (need + min_u64 (*step, need / 4), max);

  if (more > need) {
    if (ops->allocate (ops->opaque, wal ? 0 : more, wal ? more : 0) == 0) {
      *step = min_u64 (*step * 2, STEP_PAGES);
      return 0;
    }
    *step /= 2;
  }
  if (ops->allocate (ops->opaque, wal ? 0 : need, wal ? need : 0) == -1)
    return -1;
  if (*step == 0)
    *step = 1;
  return 0;
}

/* Allocate 'need' pages for pool.db. */
static int
grow_locked (struct room *room, uint64_t need, const struct room_pages *p)
{
  assert_held (&room->lock);
  return need <= p->allocated
    ? 0
    : allocate_step (room, false, need, UINT64_MAX, &room->step);
}

/* Reserve so that after all folds the pool has the kept pages of its new size.
 * Otherwise clients could not even overwrite a pool that grew while the file
 * system was full.
 */
static int
reserve_new_locked (struct room *room, unsigned nr, const struct room_pages *p)
{
  uint64_t after = after_locked (room, nr, p->used);
  uint64_t wal = room_kept_wal_pages (after, room->copies);

  assert_held (&room->lock);
  if (grow_locked (room, room_kept_pages (after), p) == -1)
    return -1;
  return wal <= p->wal_allocated
    ? 0
    : room->ops.allocate (room->ops.opaque, 0, wal);
}

/* Overwriting uses the kept pages, and leaves half of those in pool.db to
 * operations that free space.  The WAL has room for the fold of one batch
 * alone, also after pool.db has grown for all accepted blocks.  So the pool can
 * fold all of them, a batch at a time if necessary.
 */
static int
reserve_overwrite_locked (struct room *room, unsigned nr,
                          const struct room_pages *p)
{
  uint64_t after = after_locked (room, nr, p->used);
  uint64_t wal = min_u64 (after + kept_growth (p->used),
                          wal_min (room->copies));

  assert_held (&room->lock);
  if (grow_locked (room, after + kept_growth (p->used) / 2, p) == -1)
    return -1;
  return wal <= p->wal_allocated
    ? 0
    : room->ops.allocate (room->ops.opaque, 0, wal);
}

int
room_reserve (struct room *room, unsigned nr, enum room_use use)
{
  struct room_pages p;

  WITH_LOCK (&room->lock);
  room->ops.get (room->ops.opaque, &p);
  if ((use == ROOM_NEW ? reserve_new_locked (room, nr, &p)
                       : reserve_overwrite_locked (room, nr, &p)) == -1)
    return -1;
  room->reserved += nr;
  return 0;
}

void
room_unreserve (struct room *room, unsigned nr)
{
  WITH_LOCK (&room->lock);
  WITH_CONSISTENT (room, room);
  assert (room->reserved >= nr);
  room->reserved -= nr;
}

uint64_t
room_missing (const struct room_pages *p, uint64_t nr, unsigned copies)
{
  uint64_t after = p->used + growth (nr, p->used);
  uint64_t need = room_kept_pages (after);
  uint64_t wal = room_kept_wal_pages (after, copies);

  return (need > p->allocated ? need - p->allocated : 0) +
    (wal > p->wal_allocated ? wal - p->wal_allocated : 0);
}

uint64_t
room_get (struct room *room, struct room_pages *p)
{
  WITH_LOCK (&room->lock);
  room->ops.get (room->ops.opaque, p);
  return blocks_locked (room);
}

int
room_check (struct room *room, uint64_t pages)
{
  struct room_pages p;

  WITH_LOCK (&room->lock);
  WITH_CONSISTENT (room, room);
  room->ops.get (room->ops.opaque, &p);
  return grow_locked (room,
                      room_kept_pages (after_locked (room, 0, p.used)) + pages,
                      &p);
}

/* The fold of a small pool can write all that pool.db may become, which is a
 * little more than twice of what it is (growth).
 */
static bool
is_small (const struct room *room, uint64_t used)
{
  return used <= room->wal_max / 2;
}

bool
room_is_small (struct room *room)
{
  struct room_pages p;

  room->ops.get (room->ops.opaque, &p);
  return is_small (room, p.used);
}

static bool
is_ample (const struct room *room, uint64_t pages)
{
  return room->ops.get_free (room->ops.opaque) >= ROOM_AMPLE_TIMES * pages;
}

/* Allocate room for 'pages' in the WAL, up to its maximum. */
static bool
extend_wal_locked (struct room *room, uint64_t pages,
                   const struct room_pages *p)
{
  const uint64_t max = is_small (room, p->used) ? room->wal_max / 4 * 5
                                                : room->wal_max;

  if (pages <= p->wal_allocated)
    return true;
  return pages <= max &&
    allocate_step (room, true, pages, max, &room->wal_step) == 0;
}

/* A txg that took more than half of the WAL would leave no room for the next
 * until it is folded.  But what changes touch is counted in pages that SQLite
 * may have to balance, each for itself.  In a small pool the same pages count
 * many times: a fold of 4,000 blocks that were overwritten at random, in a
 * volume of 1 GiB, counts 36,000 pages, and writes 730 of the 800 that pool.db
 * has.
 */
static uint64_t
limit_max (const struct room *room, uint64_t used)
{
  return is_small (room, used) ? ROOM_SMALL_POOL_TIMES * room->wal_max
                               : room->wal_max / 2;
}

uint64_t
room_set_limit (struct room *room, uint64_t pages)
{
  struct room_pages p;

  WITH_LOCK (&room->lock);
  room->ops.get (room->ops.opaque, &p);
  room->limit = room->open_limit = min_u64 (pages, limit_max (room, p.used));
  return room->limit;
}

void
room_stretch (struct room *room, uint64_t pages)
{
  WITH_LOCK (&room->lock);
  if (room->limit >= room->wal_max)
    return;
  if (pages > room->wal_max - room->limit)
    pages = room->wal_max - room->limit;
  room->open_limit = room->limit + pages;
}

/* Pages that the WAL must have for 'pages' more.  Those that were returned are
 * needed if the fold displaces much in pool.db, which is not known here.  That
 * is rare: it is enough that the file system has room for them.
 */
static uint64_t
needed_locked (struct room *room, uint64_t pages, const struct room_pages *p)
{
  const uint64_t most =
    bound_locked (room, room->open_most + room->folding_most + pages, p->used);

  if (most <= p->wal_allocated || !is_ample (room, most - p->wal_allocated))
    return most;
  return bound_locked (room, room->open_pages + room->folding_pages + pages,
                       p->used);
}

/* Pages that the open txg will probably have after room_return, if 'pages' more
 * enter.  Those of batches that other threads work on are not known yet.  If
 * they counted in full, a limit of a few batches would end the txg while nearly
 * nothing is in it.  A fold of so little tells nothing about the rate of folds,
 * so the limit would stay.
 */
static uint64_t
probable_pages_locked (const struct room *room, uint64_t pages)
{
  const uint64_t unknown = room->open_unknown + pages;

  return room->open_pages - room->open_unknown +
    (room->recent_entered == 0
       ? unknown
       : unknown * room->recent_touched / room->recent_entered);
}

uint64_t
room_open_pages (struct room *room, uint64_t *limit)
{
  WITH_LOCK (&room->lock);
  *limit = room->open_limit;
  return probable_pages_locked (room, 0);
}

bool
room_enter (struct room *room, unsigned nr, uint64_t pages)
{
  bool is_alone;
  struct room_pages p;

  WITH_LOCK (&room->lock);
  WITH_CONSISTENT (room, room);
  pages *= room->copies;
  is_alone = room->open_most + room->folding_most == 0;
  room->ops.get (room->ops.opaque, &p);
  room->open += nr;
  /* A batch that is alone has room: see reserve_overwrite_locked. */
  if ((room->open_pages > 0 &&
       probable_pages_locked (room, pages) > room->open_limit) ||
      (!is_alone &&
       !extend_wal_locked (room, needed_locked (room, pages, &p), &p))) {
    room->open -= nr;
    return false;
  }
  room->open_pages += pages;
  room->open_most += pages;
  room->open_unknown += pages;
  return true;
}

/*----------------------------------------------------------------------
 * What changes touch
 */

struct room_touched
room_touch (struct room *room)
{
  return (struct room_touched) { .room = room };
}

/* Two threads may both be the first.  The one that comes second returns pages
 * while the first still has all of its own, so that they cover both.
 */
static bool
has_seen (struct room *room, enum kind kind, uint64_t a, uint64_t b, bool note)
{
  uint64_t hash;

  if (room == NULL)
    return false;
  hash = mix_two (mix_two (mix_two (room->generation, kind), a), b);
  if (room->seen[hash % NR_SEEN] == hash)
    return true;
  if (note)
    room->seen[hash % NR_SEEN] = hash;
  return false;
}

void
room_touch_leaf (struct room_touched *t, uint64_t layer, uint64_t leaf,
                 bool alone)
{
  if (t->has_leaf && t->last_leaf == leaf && t->last_layer == layer)
    return;
  t->has_leaf = true;
  t->last_layer = layer;
  t->last_leaf = leaf;
  if (has_seen (t->room, LEAF, layer, leaf, true))
    return;
  if (!has_seen (t->room, DELTAS, layer, leaf / DELTA_LEAVES, true))
    t->areas++;
  if (alone && has_seen (t->room, AREA, layer, leaf / ROOM_AREA_LEAVES, true))
    t->neighbours++;
  else
    t->leaves++;
}

static void
touch_group (struct room_touched *t, uint64_t addr)
{
  const uint64_t group = addr / RECORD_GROUP_SECTORS;

  if ((t->groups == 0 || group != t->last_group) &&
      !has_seen (t->room, GROUP, group, 0, true))
    t->groups++;
  t->last_group = group;
}

void
room_touch_new (struct room_touched *t, uint64_t addr)
{
  t->added++;
  touch_group (t, addr);
}

void
room_touch_lost (struct room_touched *t, uint64_t addr)
{
  t->removed++;
  touch_group (t, addr);
}

void
room_touch_ref (struct room_touched *t, uint64_t addr)
{
  const uint64_t group = addr / RECORD_GROUP_SECTORS;

  if ((t->counts == 0 || group != t->last_counted) &&
      !has_seen (t->room, GROUP, group, 0, false) &&
      !has_seen (t->room, COUNT, group, 0, true))
    t->counts++;
  t->last_counted = group;
}

uint64_t
room_touched_pages (const struct room_touched *t)
{
  return t->leaves * ROOM_ROW_PAGES + (t->neighbours + 1) / 2 +
    t->areas * ROOM_DELTA_PAGES + t->groups * ROOM_GROUP_PAGES +
    t->counts * ROOM_COUNT_PAGES + t->removed * ROOM_CANCEL_PAGES +
    (t->added + ROOM_ENTRIES_PER_PAGE - 1) / ROOM_ENTRIES_PER_PAGE;
}

static void
note_touched_locked (struct room *room, uint64_t entered, uint64_t touched)
{
  room->recent_entered += entered;
  room->recent_touched += touched;
  if (room->recent_entered > RECENT_PAGES) {
    room->recent_entered /= 2;
    room->recent_touched /= 2;
  }
}

void
room_return (struct room *room, uint64_t pages, const struct room_touched *t)
{
  uint64_t touched = t ? room_touched_pages (t) : pages;

  assert (t == NULL || t->room == NULL || t->room == room);
  touched = min_u64 (touched, pages);
  WITH_LOCK (&room->lock);
  WITH_CONSISTENT (room, room);
  assert (pages * room->copies <= room->open_unknown);
  room->open_unknown -= pages * room->copies;
  room->open_pages -= (pages - touched) * room->copies;
  note_touched_locked (room, pages, touched);
}

/* How many items that touch 'pages' pages each can enter at once. */
static uint64_t
at_once (struct room *room, uint64_t pages)
{
  struct room_pages p;
  uint64_t n;

  assert (pages > 0);
  WITH_LOCK (&room->lock);
  room->ops.get (room->ops.opaque, &p);
  /* No limit if the WAL has room for all of pool.db. */
  if (p.wal_allocated >= bound_locked (room, UINT64_MAX / 2, p.used))
    return UINT64_MAX;
  n = p.wal_allocated < ROOM_FOLD_PAGES
    ? 0
    : (p.wal_allocated - ROOM_FOLD_PAGES) / (pages * room->copies);
  return n > 0 ? n : 1;
}

uint64_t
room_leaves_at_once (struct room *room)
{
  return at_once (room, ROOM_HOLES_PAGES);
}

uint64_t
room_blocks_at_once (struct room *room)
{
  return at_once (room, ROOM_BLOCK_PAGES + ROOM_LEAF_PAGES);
}

void
room_cut (struct room *room)
{
  WITH_LOCK (&room->lock);
  WITH_CONSISTENT (room, room);
  assert (room->folding == 0 && room->folding_pages == 0);
  room->folding = room->open;
  room->folding_pages = room->open_pages;
  room->folding_most = room->open_most;
  room->open = room->open_pages = room->open_most = room->open_unknown = 0;
  room->open_limit = room->limit;
  room->generation++;
}

void
room_folded (struct room *room)
{
  WITH_LOCK (&room->lock);
  WITH_CONSISTENT (room, room);
  assert (room->generation > 0); /* room_cut came before */
  room->folding = room->folding_pages = room->folding_most = 0;
}

uint64_t
room_folding_pages (struct room *room)
{
  WITH_LOCK (&room->lock);
  return room->folding_pages;
}

uint64_t
room_folding_most (struct room *room)
{
  WITH_LOCK (&room->lock);
  return room->folding_most;
}

uint64_t
room_fold_pages (struct room *room, uint64_t extra)
{
  struct room_pages p;
  uint64_t counted, pages;

  WITH_LOCK (&room->lock);
  counted = room->folding_pages + extra;
  room->ops.get (room->ops.opaque, &p);
  pages = bound_locked (room, counted, p.used);
  return is_ample (room, pages)
    ? min_u64 (pages, counted / ROOM_AMPLE_SHARE + ROOM_FOLD_PAGES)
    : pages;
}

uint64_t
room_background_pages (struct room *room, uint64_t extra)
{
  struct room_pages p;
  uint64_t pages, n;

  WITH_LOCK (&room->lock);
  room->ops.get (room->ops.opaque, &p);
  if (p.wal_allocated >= bound_locked (room, UINT64_MAX / 2, p.used))
    return UINT64_MAX;
  pages = room->folding_most + extra + ROOM_FOLD_PAGES;
  if (pages > p.wal_allocated) /* the file system has the rest */
    pages = room->folding_pages + extra + ROOM_FOLD_PAGES;
  n = p.wal_allocated > pages ? (p.wal_allocated - pages) / room->copies : 0;
  if (n < ROOM_HOLES_PAGES && room->folding_pages == 0)
    n = ROOM_HOLES_PAGES; /* a leaf alone has room in the kept pages */
  return n;
}
