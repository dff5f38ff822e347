/* SPDX-License-Identifier: BSD-3-Clause */

/* Transaction groups: which changes become durable together, in which order.
 *
 * A worker turns dirty blocks into pointers inside a txg: txg_enter ..
 * txg_leave.  It installs them in the map and the DDT in memory (the open
 * txg), and in the journal's buffer.
 *
 *   flush  writes the buffer to the journal as one batch and syncs it:
 *          one fdatasync, SQLite is not involved.
 *
 *   fold   closes the open txg (a "cut": a moment with no thread inside) and
 *          writes its effects to pool.db in one transaction, which also
 *          stores the number of the last journal batch that it covers:
 *          counts are not idempotent, so replay must know.
 *
 * One thread folds: when the txg is old or holds much memory, when the
 * journal is half full or has no room, or when a thread asks (txg_run).
 *
 * After a failed fdatasync, or a fold that cannot be written, the txg is
 * failed: everything returns EIO until the pool is opened again, which
 * recovers what the journal proves.
 */

#ifndef NBDEDUP_TXG_H
#define NBDEDUP_TXG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/quiesce.h"
#include "core/ddt.h"
#include "core/map.h"
#include "core/notes.h"
#include "disk/journal.h"
#include "disk/room.h"
#include "disk/store.h"
#include "meta/meta.h"
#include "space/space.h"

struct events;
struct moves;
struct txg;

/* The parts that the txg works on; not owned, they outlive it. */
struct txg_parts {
  struct meta *meta;
  struct store *store;
  struct space *space;
  struct journal *journal;
  struct map *map;
  struct ddt *ddt;
  struct quiesce *quiesce;
  struct copies *copies;       /* of records */
  struct moves *moves;         /* NULL: no records move */
  struct notes *notes;         /* NULL: none */
  struct events *events;       /* NULL: none */
  struct index_merges *merges; /* of the hash index; txg_new sets it */
  uint64_t wal_max_bytes;      /* most to allocate to the WAL in advance */
  /* Leaves that one fold frees or moves in the background: bounds its length
   * and its memory.
   */
  unsigned background_rows;
  /* Find a layer by id, NULL if there is none. */
  struct layer *(*find_layer) (void *opaque, uint64_t id);
  /* Call fn for each dying or merging layer. */
  void (*each_background) (void *opaque, void (*fn) (void *, struct layer *),
                           void *arg);
  /* pool.db has nothing left of a dying layer. */
  void (*layer_gone) (void *opaque, struct layer *layer);
  /* Replace damaged pages of the maps (mend.h).  Outside of transactions;
   * 'state' is the row of the last commit, and is changed.  1: done; 0: no
   * page is damaged; -1.
   */
  int (*mend) (void *opaque, struct meta_state *state);
  /* No file may be written: no fold runs, and txg_run fails with EROFS. */
  bool readonly;
  /* pool.db is being repaired: the fold logs an impossible pointer or count
   * and leaves it to the repair.  Otherwise the fold fails.
   */
  bool repairing;
  /* A record's space is about to be reused: forget cached copies of it. */
  void (*forget_record) (void *opaque, uint64_t addr);
  /* These records have reached the number of references that the property
   * "copies" asks for.  In the folding thread.
   */
  void (*reached) (void *opaque, const uint64_t *addrs, size_t nr);
  /* So many batches of the journal have been replayed.  May be NULL. */
  void (*replayed) (void *opaque, uint64_t done, uint64_t total);
  /* A fold has ended, in the folding thread, with no lock held. */
  void (*folded) (void *opaque);
  void *opaque;
};

/* 'budget_bytes' limits the memory of the open and the folding txg. */
extern struct txg *txg_new (const struct txg_parts *parts,
                            const struct meta_state *state,
                            uint64_t budget_bytes);
extern void txg_free (struct txg *txg);

/* The result of a replay. */
struct replay_range {
  uint64_t layer, block, count;
};
#define REPLAY_RANGES_MAX 1000
struct replay_ranges {
  uint64_t blocks;        /* in all */
  struct replay_range *p; /* owned; the first REPLAY_RANGES_MAX */
  size_t nr;
};
struct replay_report {
  uint64_t batches, records, blocks; /* blocks: pointers and holes */
  uint64_t damaged;                  /* batches replayed from their list */
  struct notes_quota over_quota;     /* of the records */
  struct replay_ranges dropped;      /* never flushed: keep their old content */
  struct replay_ranges lost;         /* by damage */
  bool cut_short;                    /* an incomplete batch follows */
};

/* Apply what the journal holds beyond pool.db, if anything, and fold it, with
 * 'fn' as for txg_run; 'report' is complete when 'fn' runs.  Before txg_start.
 *
 * If a part cannot be read the replay fails (EIO) and changes nothing,
 * because an unreadable part proves nothing.
 */
extern int txg_replay (struct txg *txg, struct replay_report *report,
                       int (*fn) (void *arg, struct meta_conn *c,
                                  struct meta_state *state),
                       void *arg);

/* Read-only: load what the journal holds beyond pool.db into memory, and keep
 * it there.  0, or -1 (EIO): the journal is damaged, or of another pool.db.
 * 'is_partial': pool.db has lost layers, which the journal may name.
 */
extern int txg_replay_readonly (struct txg *txg, bool is_partial);
/* If that fails, or the journal is NULL: replay what can be replayed; '*last'
 * is the last batch that counts.
 */
extern int txg_follow (struct txg *txg, uint64_t *last);

/* Start and stop the folding thread.  Stopping folds everything first. */
extern int txg_start (struct txg *txg);
extern int txg_stop (struct txg *txg);

/* 0, or -1 with the reason if the txg has failed. */
extern int txg_check (struct txg *txg);
/* Fail the txg: memory and disk may differ from now on. */
extern void txg_fail (struct txg *txg);

/* Wait while the txgs hold more than their budget.  Not inside a txg. */
extern void txg_throttle (struct txg *txg);

/* The caller will change 'nr' blocks, which touch at most 'pages' pages of
 * pool.db (ROOM_*).  Waits for folds while the WAL has no room for them.
 * Returns what the caller gives to txg_return: 'pages', or 0 if a txg that has
 * failed, is stuck or stops takes the changes without room.
 */
extern uint64_t txg_enter (struct txg *txg, unsigned nr, uint64_t pages);
/* What the caller's changes touch, for txg_set_pointer and others: nothing yet.
 * It is inside txg_enter.
 */
extern struct room_touched txg_touch (struct txg *txg);
/* Before txg_leave: the caller knows now what its changes touch, instead of
 * 'pages'.  NULL: they may touch all of it.
 */
extern void txg_return (struct txg *txg, uint64_t pages,
                        const struct room_touched *touched);
extern void txg_leave (struct txg *txg);

/* Inside a txg: log a record that has been written to the store.  The caller
 * must do this before ddt_insert.  'over_quota': notes_add_over_quota has
 * counted it, and a replay is to do so, too.
 */
extern int txg_log_record (struct txg *txg, const struct record *record,
                           uint64_t chunk_addr, bool over_quota);

/* Inside a txg: set a block's pointer, whose reference the caller has taken.
 * Adds the pointers that it displaces to 'touched', if not NULL.
 */
extern int txg_set_pointer (struct txg *txg, struct layer *layer,
                            uint64_t block, const struct pointer *ptr,
                            struct room_touched *touched);
/* The same: set 'count' blocks to holes. */
extern int txg_set_holes (struct txg *txg, struct layer *layer, uint64_t block,
                          uint64_t count, struct room_touched *touched);

/* Inside a txg: mark the content of 'count' blocks as lost (MAP_LOST). */
extern int txg_set_lost (struct txg *txg, struct layer *layer, uint64_t block,
                         uint64_t count);

/* Make everything installed before the call durable. */
extern int txg_flush (struct txg *txg);

/* Run 'fn' inside the transaction of a fold that covers everything
 * installed before the call.  0: all of it is durable.  'fn' may be NULL.  If
 * it fails (-1), the fold undoes only the changes of 'fn', and txg_run returns
 * -1 with its errno and text.  The fold calls 'done' (may be NULL) after the
 * commit and before any later fold, to update memory.
 *
 * 'state' is the row to be stored: 'fn' may take ids from it.
 */
extern int
txg_run (struct txg *txg,
         int (*fn) (void *arg, struct meta_conn *c, struct meta_state *state),
         void (*done) (void *arg), void *arg);

/* The same for an 'fn' that changes more than ROOM_FOLD_PAGES / 2 pages, or
 * adds rows.  If there is no room it fails with ENOSPC and changes nothing.
 */
extern int txg_run_large (struct txg *txg, uint64_t pages,
                          int (*fn) (void *arg, struct meta_conn *c,
                                     struct meta_state *state),
                          void (*done) (void *arg), void *arg);

/* An event for the pool's history (events.h) that belongs to the transaction of
 * a command.
 */
struct txg_event {
  const char *text; /* not owned; NULL: none.  The command's 'fn'
                                 * may set it */
  bool taken;       /* by a transaction that is durable now */
};
/* The next successful transaction of txg_run, or txg_replay, with an 'fn', in
 * this thread, takes 'event'.  It must stay valid until the call with NULL.
 */
extern void txg_set_event (struct txg_event *event);

/* Wait until no record moves; none does until release.  (moves_hold and
 * moves_release, with the fold that it takes.)
 */
extern int txg_hold_moves (struct txg *txg);
extern void txg_release_moves (struct txg *txg);

/* The bytes of all new records since the pool was opened. */
extern uint64_t txg_new_bytes (struct txg *txg);

/* For 'fn' of txg_run: the merges to pass to fold_index. */
extern struct index_merges *txg_index_merges (struct txg *txg);
/* For 'done' of txg_run: merge all runs of the hash index, over some folds, so
 * that nothing is left of removed entries.
 */
extern void txg_shrink_index (struct txg *txg);
/* The same: is that under way or to come, and is there room for it? */
extern bool txg_is_shrinking_index (struct txg *txg);

/* Find and replace pages of the maps that are damaged in all copies.  A fold
 * that meets such a page does so by itself.
 */
extern int txg_mend (struct txg *txg);

/* Set txg_parts.repairing for the folds that begin after this. */
extern void txg_set_repairing (struct txg *txg, bool repairing);

/* For figures; waits for no fold. */
struct txg_load {
  uint64_t folds, fold_ms; /* since it was opened; how long they took */
  uint64_t merge_entries;  /* of the hash index, left to merge */
  uint64_t pending_bytes;  /* memory of the open and the folding txg */
  uint64_t pending_max_bytes;
};
extern void txg_get_load (struct txg *txg, struct txg_load *load);

/* The state as of the last fold. */
extern void txg_get_state (struct txg *txg, struct meta_state *state);

/* Reserve the room that accepted writes will need in pool.db (room.h).
 * -1: ENOSPC.
 */
extern int txg_reserve (struct txg *txg, unsigned nr, enum room_use use);
extern void txg_unreserve (struct txg *txg, unsigned nr);

/* Records may have copies from now on (copies.h): the promised room includes
 * that a fold frees more records.  check: -1 (ENOSPC) if there is no room for
 * that.
 */
extern void txg_set_copies (struct txg *txg);
extern int txg_check_copies (struct txg *txg);

/* The room of pool.db; returns how many accepted blocks it does not have yet.
 */
extern uint64_t txg_get_room (struct txg *txg, struct room_pages *pages);

/* The most leaves of holes, and blocks, to set between txg_enter and
 * txg_leave.
 */
extern uint64_t txg_leaves_at_once (struct txg *txg);
extern uint64_t txg_blocks_at_once (struct txg *txg);

/* Fold everything, then free room that is not needed.  'urgent': clients cannot
 * write without it, so frozen readers give way.
 */
extern int txg_make_room (struct txg *txg, bool urgent);

/* Release the space that the pool keeps for pool.db and its WAL, and call
 * 'fn' in the folding thread meanwhile: it can then make a file although the
 * file system had no room even for its name.  Before clients attach.
 */
extern int txg_lend_room (struct txg *txg, void (*fn) (void *arg), void *arg);

/* Folds cannot be written, because a file system that does not keep its
 * allocations is full.  The caller must refuse all data.
 */
extern bool txg_is_stuck (struct txg *txg);

/* It is stuck, and holds more than its budget: only a fold makes it smaller.
 * The caller must refuse holes, too.
 */
extern bool txg_is_overfull (struct txg *txg);

/* Does a fold wait for the threads inside of the txg? */
extern bool txg_is_cutting (const struct txg *txg);

#endif /* NBDEDUP_TXG_H */
