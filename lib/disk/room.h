/* SPDX-License-Identifier: BSD-3-Clause */

/* Room for metadata.  Before the pool accepts a write it allocates, in pool.db
 * and in its WAL, what the write's fold will need.  So the fold cannot fail for
 * lack of space, whatever happens to the file system in between.
 *
 * The unit is a page of pool.db.  There are two guarantees:
 *
 *  - Growth: blocks that were accepted and not yet folded let pool.db grow
 *    by growth (n) pages at most.  The file has that many more pages than are
 *    in use.
 *
 *  - The fold: a transaction writes each page that it changes once to the
 *    WAL.  The WAL has room for all pages that the open and the folding txg
 *    change together (replay folds both at once).  Changes without room wait
 *    for the fold: txgs become small when space is short.
 *
 * The number of pages that a change touches is bounded per block
 * (ROOM_*_PAGES), and by the pages that pool.db has and may grow by.  The
 * second bound makes the guarantee affordable for a small pool on a small
 * file system.
 *
 * New data never gets a part of both: overwriting, trimming and destroying
 * need some pages before they free any.
 *
 * Threads: any; all functions lock (room->lock, innermost but for meta's).
 */

#ifndef NBDEDUP_ROOM_H
#define NBDEDUP_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "format/copies.h"

struct room;

/* Pages that one block's change touches, without its own leaf.  A row that
 * grows or shrinks changes its page, and sometimes also the two neighbours, a
 * new page and the parent: SQLite balances a page that is full, or two thirds
 * empty.  That cannot happen for each of many rows, so these numbers exceed
 * the average cost, not the worst case of one row.
 *
 *   new pointer    ddt 3 and record 1, or count 1
 *   old pointer    record 4 (a group's row may have two overflow pages),
 *                  count 1, ddt 3, segment 2
 */
#define ROOM_POINTER_PAGES 10 /* to remove an old pointer */
#define ROOM_BLOCK_PAGES (4 + ROOM_POINTER_PAGES)
/* The row of a leaf, and the deltas of its area (leaf-delta.h). */
#define ROOM_ROW_PAGES 4
#define ROOM_DELTA_PAGES 2
#define ROOM_LEAF_PAGES (ROOM_ROW_PAGES + ROOM_DELTA_PAGES)
/* Rows of so many leaves, from a multiple of it on, are neighbours if their
 * branch has no other layer.  At most they fill 3 pages, or 9 that are a
 * third full: each row beside one that is counted takes half a page more.
 */
#define ROOM_AREA_LEAVES 16
/* A leaf whose blocks all lose their pointers. */
#define ROOM_HOLES_PAGES (ROOM_ROW_PAGES + 64 * ROOM_POINTER_PAGES)
/* The same, when it is known what many changes together touch (room_return):
 * a group that gets new records, or loses some (its row 3, count 1, segment 2,
 * and balancing); a group whose records get references (count); an index entry
 * that is taken out of the runs, and those that come in a run of their own.
 */
#define ROOM_GROUP_PAGES 12
#define ROOM_COUNT_PAGES 4
#define ROOM_CANCEL_PAGES 3
#define ROOM_ENTRIES_PER_PAGE 128
/* A fold usually writes a tenth of what it may write, because many changes
 * share their pages.  If the file system has so many times as many free pages,
 * the fold begins with room for this share behind the WAL's content.
 */
#define ROOM_AMPLE_TIMES 4
#define ROOM_AMPLE_SHARE 8
#define ROOM_SMALL_POOL_TIMES 4
/* State, layers, and the changes of a small command. */
#define ROOM_FOLD_PAGES 48

/* The WAL always has room for this many pages, if pool.db has as many, and for
 * more if records have copies.  That is enough to give back one leaf, or for
 * ROOM_BATCH_BLOCKS blocks, each in a different leaf.
 */
#define ROOM_WAL_MIN_PAGES (ROOM_HOLES_PAGES + ROOM_FOLD_PAGES)
#define ROOM_BATCH_BLOCKS                                                      \
  (ROOM_HOLES_PAGES / (ROOM_BLOCK_PAGES + ROOM_LEAF_PAGES))
/* Pages by which pool.db may always grow, if it has four times as many. */
#define ROOM_GROWTH_MIN_PAGES 256

/* Why pool.db grows. */
enum room_use {
  ROOM_NEW,       /* new data */
  ROOM_OVERWRITE, /* data that replace other data */
};

/* What changes that have entered a txg touch, and no change of that txg has
 * touched before.
 */
struct room_touched {
  struct room *room; /* not owned; NULL: no change was before */
  uint64_t leaves;
  uint64_t neighbours;     /* leaves beside one of those */
  uint64_t areas;          /* that may have deltas of these leaves */
  uint64_t groups;         /* that get new records, or lose some */
  uint64_t counts;         /* groups whose records get references */
  uint64_t added, removed; /* entries of the index */
  /* For the functions below: */
  bool has_leaf;
  uint64_t last_layer, last_leaf, last_group, last_counted;
};

/* Its first use is behind room_enter, and its last before the cut. */
extern struct room_touched room_touch (struct room *room);

/* The txg changes this leaf.  'alone': its branch has no other layer. */
extern void room_touch_leaf (struct room_touched *touched, uint64_t layer,
                             uint64_t leaf, bool alone);

/* The txg adds a record at this address; drops a reference to one, which may
 * die; adds a reference to one.
 */
extern void room_touch_new (struct room_touched *touched, uint64_t addr);
extern void room_touch_lost (struct room_touched *touched, uint64_t addr);
extern void room_touch_ref (struct room_touched *touched, uint64_t addr);
/* Pages that they touch. */
extern uint64_t room_touched_pages (const struct room_touched *touched);

/* The pages of pool.db and its WAL. */
struct room_pages {
  uint64_t used;          /* pool.db's pages, without free ones */
  uint64_t allocated;     /* room in its file */
  uint64_t wal_allocated; /* room in the WAL's file */
};

struct room_ops {
  void (*get) (void *opaque, struct room_pages *pages);
  /* Allocate disk space up to so many pages of pool.db and of the WAL.  -1:
   * ENOSPC or another error.
   */
  int (*allocate) (void *opaque, uint64_t db_pages, uint64_t wal_pages);
  /* Free the pages beyond these.  May wait for readers of the WAL. */
  void (*give_back) (void *opaque, uint64_t db_pages, uint64_t wal_pages);
  /* Free pages of the file system. */
  uint64_t (*get_free) (void *opaque);
  void *opaque;
};

/* The WAL never gets more than 'wal_max' pages in advance, or a quarter more
 * while pool.db is so small that all it can become has room in that.
 */
extern struct room *room_new (const struct room_ops *ops, uint64_t wal_max);
extern void room_free (struct room *room);

/* Records have up to 'nr' copies, themselves included (copies.h).  A record
 * that dies takes its copies with it, so a change touches 'nr' times
 * ROOM_*_PAGES.  The number never decreases.
 */
extern void room_set_copies (struct room *room, unsigned nr);
/* Allocate the kept pages for 'nr' copies; -1: ENOSPC. */
extern int room_check_copies (struct room *room, unsigned nr);
extern unsigned room_get_copies (struct room *room);

/* The total pages of pool.db, and the pages of its WAL, that a pool with so
 * many pages in use always keeps, also while it is closed.
 */
extern uint64_t room_kept_pages (uint64_t used);
extern uint64_t room_kept_wal_pages (uint64_t used, unsigned copies);

/* Can a fold write all that pool.db may become? */
extern bool room_is_small (struct room *room);

/* Allocate the kept pages.  False: the file system has no room for them. */
extern bool room_keep (struct room *room);

/* Free the pages that no accepted block needs, for other users of the file
 * system and for the pool's own records.  Call it in the folding thread,
 * between folds.
 */
extern void room_give_back (struct room *room);

/* Call it before accepting 'nr' blocks; -1: ENOSPC.  Call room_unreserve when
 * they are installed or dropped.
 */
extern int room_reserve (struct room *room, unsigned nr, enum room_use use);
extern void room_unreserve (struct room *room, unsigned nr);

/* Check that a command may let pool.db grow by 'pages'.  -1: ENOSPC. */
extern int room_check (struct room *room, uint64_t pages);

/* The open txg takes no more when its changes touch 'pages' pages, so that its
 * fold ends soon.  Changes that are not known yet (room_return) count by what
 * the last ones touched.  Returns the limit, which is at most half of what the
 * WAL may have; or ROOM_SMALL_POOL_TIMES as much as the WAL, if pool.db has at
 * most half as many pages as that.
 */
extern uint64_t room_set_limit (struct room *room, uint64_t pages);
/* The open txg, and no other, may take 'pages' beyond the limit. */
extern void room_stretch (struct room *room, uint64_t pages);
/* The pages that count now, and the limit. */
extern uint64_t room_open_pages (struct room *room, uint64_t *limit);
/* Add the changes of 'nr' blocks, 'pages' in all, to the open txg.  False:
 * they must wait for a fold.
 */
extern bool room_enter (struct room *room, unsigned nr, uint64_t pages);
/* Changes that have entered the open txg with 'pages' are known now, except for
 * what the fold displaces in pool.db.  What they do not touch is free for
 * others while the file system has room for it.  NULL: they may touch all of
 * it.  Call it before the cut of that txg, and once.
 */
extern void room_return (struct room *room, uint64_t pages,
                         const struct room_touched *touched);

/* Pages that both files together lack for 'nr' new blocks, in a pool whose
 * records have up to 'copies' copies.
 */
extern uint64_t
room_missing (const struct room_pages *pages, uint64_t nr, unsigned copies);
/* The pages, and the number of blocks accepted and not yet folded. */
extern uint64_t room_get (struct room *room, struct room_pages *pages);

/* How many leaves of holes, or blocks, may enter the open txg at once. */
extern uint64_t room_leaves_at_once (struct room *room);
extern uint64_t room_blocks_at_once (struct room *room);

/* Call room_cut when the open txg becomes the folding one, and room_folded
 * when that fold has committed.
 */
extern void room_cut (struct room *room);
extern void room_folded (struct room *room);

/* Pages of the txg that is folded; the same with those that were returned. */
extern uint64_t room_folding_pages (struct room *room);
extern uint64_t room_folding_most (struct room *room);
/* Pages for which the WAL should have room behind its content, for the fold and
 * 'extra' pages for commands.  If the fold needs more, and the file system is
 * full by then, the WAL has it from its start.
 */
extern uint64_t room_fold_pages (struct room *room, uint64_t extra);

/* Pages that the fold may touch in addition to the txg's changes and 'extra'
 * ones for commands, while records have no copies: UINT64_MAX, or as many as
 * the WAL has room for.
 */
extern uint64_t room_background_pages (struct room *room, uint64_t extra);

#endif /* NBDEDUP_ROOM_H */
