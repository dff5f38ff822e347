/* SPDX-License-Identifier: BSD-3-Clause */

/* Transaction groups: what becomes durable together, and in which order.
 *
 * A worker that turns dirty blocks into pointers does it inside a txg:
 * txg_enter .. txg_leave.  What it installs goes to the map and the DDT in
 * memory (the open txg), and to the journal's buffer.
 *
 *   flush  writes the buffer to the journal as one batch and syncs it:
 *          one fdatasync, SQLite is not involved.
 *
 *   fold   closes the open txg (a "cut": a moment with no thread inside) and
 *          writes its effects to pool.db in one transaction, which also
 *          stores the number of the last journal batch that it covers:
 *          counts are not idempotent, so replay must know.
 *
 * One thread folds, when the txg is old, or holds much memory, or the
 * journal is half full, or a thread asks (txg_run).
 *
 * After a failed fdatasync, or a fold that cannot be written, the txg is
 * failed: everything answers EIO until the pool is opened again, which
 * brings back what the journal proves.
 */

#ifndef NBDEDUP_TXG_H
#define NBDEDUP_TXG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/quiesce.h"
#include "core/ddt.h"
#include "core/map.h"
#include "disk/journal.h"
#include "disk/room.h"
#include "disk/store.h"
#include "meta/meta.h"
#include "space/space.h"

struct txg;

/* What the txg works on; not owned, outlives it. */
struct txg_parts {
  struct meta *meta;
  struct store *store;
  struct space *space;
  struct journal *journal;
  struct map *map;
  struct ddt *ddt;
  struct quiesce *quiesce;
  struct copies *copies;        /* of records */
  uint64_t wal_max_bytes;       /* what the WAL may be given in advance */
  /* Leaves that one fold gives back or moves in the background: bounds its
   * length, and what it holds in memory.
   */
  unsigned background_rows;
  /* Find a layer by id, NULL if there is none. */
  struct layer *(*find_layer) (void *opaque, uint64_t id);
  /* Call fn for each dying or merging layer. */
  void (*each_background) (void *opaque, void (*fn) (void *, struct layer *),
                           void *arg);
  /* Nothing is left of a dying layer in pool.db. */
  void (*layer_gone) (void *opaque, struct layer *layer);
  /* A page of the maps is damaged: do without it (mend.h).  Outside of
   * transactions; 'state' is the row of the last commit, and is changed.  1:
   * done; 0: none is; -1.
   */
  int (*mend) (void *opaque, struct meta_state *state);
  /* No file may be written: nothing is ever folded, and txg_run is EROFS. */
  bool readonly;
  /* pool.db is being repaired: what a pointer or a count says that cannot be
   * is logged, and left for the repair, where else the fold would fail.
   */
  bool repairing;
  /* A record's space is about to be reused: forget cached copies of it. */
  void (*forget_record) (void *opaque, uint64_t addr);
  /* These records have come to have as many references as the property
   * "copies" says.  In the folding thread.
   */
  void (*reached) (void *opaque, const uint64_t *addrs, size_t nr);
  /* A fold has ended, in the folding thread, with no lock held. */
  void (*folded) (void *opaque);
  void *opaque;
};

/* 'budget_bytes' bounds what the open and the folding txg hold. */
extern struct txg *txg_new (const struct txg_parts *parts,
                            const struct meta_state *state,
                            uint64_t budget_bytes);
extern void txg_free (struct txg *txg);

/* What a replay did. */
struct replay_range {
  uint64_t layer, block, count;
};
#define REPLAY_RANGES_MAX 1000
struct replay_ranges {
  uint64_t blocks;              /* in all */
  struct replay_range *p;       /* owned; the first REPLAY_RANGES_MAX */
  size_t nr;
};
struct replay_report {
  uint64_t batches, records, blocks;    /* blocks: pointers and holes */
  uint64_t damaged;             /* batches whose list stood in */
  struct replay_ranges dropped; /* never flushed: as they were before */
  struct replay_ranges lost;    /* by damage */
  bool cut_short;               /* something follows that is not whole */
};

/* Apply what the journal holds beyond pool.db, and fold it, with 'fn' as
 * txg_run has it, if there was anything; 'report' is complete then.  Before
 * txg_start.
 *
 * What cannot be read is no proof of anything: the replay fails (EIO), and
 * nothing is changed.
 */
extern int txg_replay (struct txg *txg, struct replay_report *report,
                       int (*fn) (void *arg, struct meta_conn *c,
                                  struct meta_state *state),
                       void *arg);

/* Read-only: what the journal holds beyond pool.db comes into memory, and
 * stays there.  0, or -1 (EIO): it is damaged, or not this pool.db's.
 * 'is_partial': pool.db has lost layers, which the journal may name.
 */
extern int txg_replay_readonly (struct txg *txg, bool is_partial);
/* After that, do with it what can be done; '*last' is the last batch that
 * counts.  The journal may be NULL.
 */
extern int txg_follow (struct txg *txg, uint64_t *last);

/* Start and stop the folding thread.  Stopping folds everything first. */
extern int txg_start (struct txg *txg);
extern int txg_stop (struct txg *txg);

/* 0, or -1 with the reason if the txg has failed. */
extern int txg_check (struct txg *txg);
/* It has: memory and disk may differ from now on. */
extern void txg_fail (struct txg *txg);

/* Wait while the txgs hold more than their budget.  Not inside a txg. */
extern void txg_throttle (struct txg *txg);

/* 'nr' blocks will change, which touch at most 'pages' pages of pool.db
 * (ROOM_*): waits for folds while its WAL has no room for that.
 */
extern void txg_enter (struct txg *txg, unsigned nr, uint64_t pages);
extern void txg_leave (struct txg *txg);

/* Inside a txg: a record has been written to the store.  To be called
 * before ddt_insert.
 */
extern int txg_log_record (struct txg *txg, const struct record *record,
                           uint64_t chunk_addr);

/* Inside a txg: the block now has this pointer, whose reference the caller
 * has taken.
 */
extern int txg_set_pointer (struct txg *txg, struct layer *layer,
                            uint64_t block, const struct pointer *ptr);
/* Inside a txg: 'count' blocks are holes now. */
extern int txg_set_holes (struct txg *txg, struct layer *layer,
                          uint64_t block, uint64_t count);

/* Inside a txg: the content of 'count' blocks is lost (MAP_LOST). */
extern int txg_set_lost (struct txg *txg, struct layer *layer,
                         uint64_t block, uint64_t count);

/* Everything installed before the call is durable after it. */
extern int txg_flush (struct txg *txg);

/* Run 'fn' inside the transaction of a fold that covers everything
 * installed before the call; when this returns 0 all is durable.  'fn' may
 * be NULL.  If fn fails (-1), only its own changes are undone, and -1
 * with its errno and text is returned.  'done' (may be NULL) is called
 * after the commit, before any later fold: to update memory.
 *
 * 'state' is the row to be stored: fn may take ids from it.
 */
extern int txg_run (struct txg *txg,
                    int (*fn) (void *arg, struct meta_conn *c,
                               struct meta_state *state),
                    void (*done) (void *arg), void *arg);

/* The same of an 'fn' that changes more than ROOM_FOLD_PAGES / 2 pages, or
 * adds rows: ENOSPC before anything is done if there is no room for that.
 */
extern int txg_run_large (struct txg *txg, uint64_t pages,
                          int (*fn) (void *arg, struct meta_conn *c,
                                     struct meta_state *state),
                          void (*done) (void *arg), void *arg);

/* Look for pages of the maps that are damaged in all copies, and do without
 * them.  A fold that meets one does so by itself.
 */
extern int txg_mend (struct txg *txg);

/* Folds that begin after this are as txg_parts.repairing says. */
extern void txg_set_repairing (struct txg *txg, bool repairing);

/* The state as of the last fold. */
extern void txg_get_state (struct txg *txg, struct meta_state *state);

/* Room for what accepted writes will need in pool.db (room.h); -1: ENOSPC. */
extern int txg_reserve (struct txg *txg, unsigned nr, enum room_use use);
extern void txg_unreserve (struct txg *txg, unsigned nr);

/* Records may have copies from now on (copies.h): that a fold gives back more
 * of them is part of what is promised.  check: -1 (ENOSPC) if there is no room
 * for that.
 */
extern void txg_set_copies (struct txg *txg);
extern int txg_check_copies (struct txg *txg);

/* What pool.db has room for; how many accepted blocks are not yet in it. */
extern uint64_t txg_get_room (struct txg *txg, struct room_pages *pages);

/* How many leaves of holes, and blocks, may be set between txg_enter and
 * txg_leave?
 */
extern uint64_t txg_leaves_at_once (struct txg *txg);
extern uint64_t txg_blocks_at_once (struct txg *txg);

/* Fold all; then give back room that nothing needs. */
extern int txg_make_room (struct txg *txg);

/* Call 'fn', in the folding thread, while the file system has back what the
 * pool keeps of it for pool.db and its WAL: to make a file of which the file
 * system says that there is no room even for its name.  Before clients come.
 */
extern int txg_lend_room (struct txg *txg, void (*fn) (void *arg), void *arg);

/* Folds cannot be written: a file system that does not keep what it
 * allocates is full.  Refuse all data.
 */
extern bool txg_is_stuck (struct txg *txg);

#endif /* NBDEDUP_TXG_H */
