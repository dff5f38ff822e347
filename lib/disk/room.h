/* SPDX-License-Identifier: BSD-3-Clause */

/* Room for metadata: what accepted writes will need in pool.db and in its
 * WAL is really allocated before they are accepted, so that the fold that
 * brings them there cannot fail for lack of space, whatever happens to the
 * file system in between.
 *
 * Everything is counted in pages of pool.db.  Two things are promised:
 *
 *  - growth: blocks that were accepted and not yet folded let pool.db grow
 *    by growth (n) pages at the most.  The file has so many more than are in
 *    use;
 *
 *  - the fold: a transaction writes each page that it changes once to the
 *    WAL.  The WAL has room for all that the open and the folding txg
 *    change together (replay folds both at once).  What has no room waits
 *    for the fold: txgs get small when space is short.
 *
 * How many pages a change touches is a bound per block (ROOM_*_PAGES), but
 * never more than pool.db has and may grow by: that is what makes the
 * promise affordable for a small pool on a small file system.
 *
 * A part of both is never promised to new data.  Overwriting, trimming and
 * destroying need some pages before they give any back.
 *
 * Threads: any; it locks by itself (room->lock, innermost but for meta's).
 */

#ifndef NBDEDUP_ROOM_H
#define NBDEDUP_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "format/copies.h"

struct room;

/* Pages that one block's change touches; its own leaf is counted apart.  A
 * row that grows or shrinks changes its page, now and then also the two
 * neighbours, a new page and the one above: SQLite balances a page that is
 * full, or two thirds empty.  That cannot happen with each of many rows, so
 * these are above what it comes to, not what one row can cost.
 *
 *   new pointer    ddt 3, record 1
 *   old pointer    record 4 (a group's row may have two overflow pages),
 *                  ddt 3, segment 2
 */
#define ROOM_POINTER_PAGES 9    /* an old pointer goes */
#define ROOM_BLOCK_PAGES (4 + ROOM_POINTER_PAGES)
#define ROOM_LEAF_PAGES 4
/* A leaf whose blocks all lose their pointers. */
#define ROOM_HOLES_PAGES (ROOM_LEAF_PAGES + 64 * ROOM_POINTER_PAGES)
/* State, layers, what a small command changes. */
#define ROOM_FOLD_PAGES 48

/* The WAL has room for so many pages always, if pool.db has as many, and more
 * if there are copies: for a leaf that is given back, or ROOM_BATCH_BLOCKS,
 * each in a leaf of its own.
 */
#define ROOM_WAL_MIN_PAGES (ROOM_HOLES_PAGES + ROOM_FOLD_PAGES)
#define ROOM_BATCH_BLOCKS \
  (ROOM_HOLES_PAGES / (ROOM_BLOCK_PAGES + ROOM_LEAF_PAGES))
/* Pages that pool.db may always grow by, if it has four times as many. */
#define ROOM_GROWTH_MIN_PAGES 256

/* Who grows pool.db? */
enum room_use {
  ROOM_NEW,                     /* new data */
  ROOM_OVERWRITE,               /* data that take the place of others */
};

/* What pool.db and its WAL have. */
struct room_pages {
  uint64_t used;                /* pool.db's pages, without free ones */
  uint64_t allocated;           /* what its file has room for */
  uint64_t wal_allocated;       /* what the WAL's file has room for */
};

struct room_ops {
  void (*get) (void *opaque, struct room_pages *pages);
  /* Really allocate, if there is less: pages of pool.db and of the WAL.
   * -1: ENOSPC, or what else is wrong.
   */
  int (*allocate) (void *opaque, uint64_t db_pages, uint64_t wal_pages);
  /* Give back what is beyond.  May wait for readers of the WAL. */
  void (*give_back) (void *opaque, uint64_t db_pages, uint64_t wal_pages);
  void *opaque;
};

/* The WAL is never given more than 'wal_max' pages. */
extern struct room *room_new (const struct room_ops *ops, uint64_t wal_max);
extern void room_free (struct room *room);

/* Records have up to so many copies, themselves included (copies.h): one that
 * dies takes them with it, and what a change touches is so many times what
 * ROOM_*_PAGES say.  It is never less again.
 */
extern void room_set_copies (struct room *room, unsigned nr);
/* Allocate what that keeps; -1: ENOSPC. */
extern int room_check_copies (struct room *room, unsigned nr);
extern unsigned room_get_copies (struct room *room);

/* What a pool with so many pages in use keeps always, also while it is
 * closed: pages of pool.db in all, and of its WAL.
 */
extern uint64_t room_kept_pages (uint64_t used);
extern uint64_t room_kept_wal_pages (uint64_t used, unsigned copies);

/* Allocate what is kept.  False: the file system has no room for it. */
extern bool room_keep (struct room *room);

/* Give back what nothing that is accepted needs: others may want it, or the
 * pool's own records.  In the folding thread, between folds.
 */
extern void room_give_back (struct room *room);

/* Before 'nr' blocks are accepted; -1: ENOSPC.  room_unreserve when they are
 * installed or dropped.
 */
extern int room_reserve (struct room *room, unsigned nr, enum room_use use);
extern void room_unreserve (struct room *room, unsigned nr);

/* Is there room for a command that lets pool.db grow by 'pages'?  -1:
 * ENOSPC.
 */
extern int room_check (struct room *room, uint64_t pages);

/* 'nr' blocks' changes, 'pages' in all, go into the open txg.  False: they
 * have to wait for a fold.
 */
extern bool room_enter (struct room *room, unsigned nr, uint64_t pages);

/* Pages that both files together lack for 'nr' new blocks, in a pool whose
 * records have up to so many copies.
 */
extern uint64_t room_missing (const struct room_pages *pages, uint64_t nr,
                              unsigned copies);
/* What there is, and how many blocks are accepted and not yet folded. */
extern uint64_t room_get (struct room *room, struct room_pages *pages);

/* How much may go into the open txg at once: leaves of holes, blocks? */
extern uint64_t room_leaves_at_once (struct room *room);
extern uint64_t room_blocks_at_once (struct room *room);

/* The open txg is folded now; that fold has been committed. */
extern void room_cut (struct room *room);
extern void room_folded (struct room *room);

/* Pages that the fold may write, with 'extra' ones for commands. */
extern uint64_t room_fold_pages (struct room *room, uint64_t extra);

/* How many leaves may the fold give back, beside the txg's changes? */
extern unsigned room_background_leaves (struct room *room, uint64_t extra,
                                        unsigned max);

#endif /* NBDEDUP_ROOM_H */
