/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by txg.c (the transaction groups), txg-pace.c (the pace of writers),
 * txg-fold.c (folds into pool.db), txg-wal.c (their room in the WAL) and
 * txg-replay.c (replay of the journal).
 */

#ifndef NBDEDUP_TXG_INT_H
#define NBDEDUP_TXG_INT_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "base/invariant.h"
#include "base/lock.h"
#include "core/txg-log.h"
#include "core/txg.h"
#include "core/fold-index.h"
#include "disk/room.h"

/* A txg may always take so many pages (room.h). */
#define FOLD_PAGES_MIN UINT64_C (1024)

/* A thread waits for a fold. */
struct request {
  TAILQ_ENTRY (request) link;
  int (*fn) (void *arg, struct meta_conn *c, struct meta_state *state);
  void (*done) (void *arg);
  void *arg;
  uint64_t pages;          /* that 'fn' changes at most */
  struct txg_event *event; /* not owned; NULL: none */
  bool gives_back;         /* after its fold: room that nothing needs */
  bool expels_readers;     /* ... and frozen readers give way */
  bool finished;
  int result, err;
  char text[512];
};
TAILQ_HEAD (requests, request);

/* How long folds take: by pages of the txg (room.h), the last two. */
struct fold_times {
  uint64_t pages[2], ms[2]; /* without restarts of the WAL */
  uint64_t restart_ms;      /* the last restart of the WAL */
  uint64_t restarted_ms;    /* the same, in this fold; 0: it had none */
};

struct txg {
  struct txg_parts parts;
  size_t budget;
  struct txg_log *log;              /* the journal's buffer; locks by itself */
  struct index_merges merges;       /* the folding thread's */
  struct index_merges *next_merges; /* the same, within a transaction */
  uint64_t merge_after_ms;  /* the same; no room for merges until then */
  uint64_t vacuum_after_ms; /* the same; no VACUUM before */
  uint64_t slow_after_ms;   /* the same; no slow fold is told before */
  struct room *room;        /* of pool.db and its WAL; locks by itself */
  uint64_t limit;           /* the folding thread's: pages of a txg */
  struct fold_times times;  /* the same */
  uint64_t tables_ms;       /* the same; of the last fold's changes */
  unsigned background_rows; /* the same; that a fold may work on */
  bool gives_back;          /* the same; as the requests of this fold */
  bool expels_readers;      /* the same */
  pthread_t thread;
  bool has_thread;

  struct lock lock;      /* protects everything below */
  struct cond may_enter; /* !cutting */
  struct cond all_out;   /* nr_inside == 0 */
  struct cond wake;      /* the folding thread has something to do */
  struct cond folded;    /* a fold ended, or a request did */
  unsigned nr_inside;
  atomic_bool cutting; /* is set under 'lock' */
  bool kicked, more;
  bool hurry;                       /* fold soon: much space is to come back */
  atomic_bool folding;              /* from a cut to the end of its fold */
  atomic_uint_fast64_t cut_ms;      /* when that was */
  atomic_uint_fast64_t expected_ms; /* of this fold */
  atomic_uint_fast64_t rate;        /* pages a second that folds write */
  atomic_uint_fast64_t new_bytes;   /* of the open txg's new records */
  atomic_uint_fast64_t new_bytes_max; /* then a fold is due */
  atomic_uint_fast64_t all_new_bytes; /* of all txgs */
  uint64_t fold_interval_ms;          /* the usual one; tests change it */
  atomic_uint_fast64_t holes;         /* blocks that the open txg has freed */
  atomic_uint_fast64_t late_holes;    /* the same, of late: of all txgs */
  uint64_t forgot_holes_ms;           /* when 'late_holes' became less */
  atomic_bool stop;                   /* is set under 'lock' */
  struct requests requests;           /* not yet taken by a fold */
  struct request notes;         /* the folding thread's: the pool's notes */
  struct request events;        /* the same; the pool's events */
  const struct requests *taken; /* the same; of the fold */
  struct meta_state state;      /* as of the last commit */

  /* Figures of txg_get_load. */
  _Atomic uint64_t nr_folds, fold_ms, merge_entries;

  bool index_is_lost;         /* a part of it cannot be mended; for folds */
  atomic_bool stuck;          /* folds cannot be written now */
  atomic_bool failed;         /* permanently */
  atomic_bool no_memory;      /* ... for lack of memory */
  atomic_bool inconsistent;   /* ... because of pool.db's content */
  atomic_bool repairing;      /* as in txg_parts */
  atomic_bool index_in_place; /* fold_index_is_in_place, of the last fold */
};

/* True whenever the lock is not held:
 *
 *  (1) There is one fold at a time, and no cut within it.
 *
 *  (2) A request in the list has neither been answered nor failed.
 *
 *  (3) Without a folding thread there is at most one request: that of the
 *      thread that folds by itself.
 *
 * Checking (2) visits every request that waits for a fold: cheap, but too
 * much for each write, so (2) is one of the expensive checks.
 */
extern void txg_assert_consistent_locked (struct txg *t);
DEFINE_WITH_CONSISTENT (txg)

/* Fold all accepted changes and answer the waiting requests; in the folding
 * thread, or before it runs.  -1: the txg has failed.
 */
extern int txg_fold (struct txg *t);
/* In the folding thread, after a fold or when nothing is to be done: free room
 * that nothing needs, if that is wanted.
 */
extern void txg_give_back (struct txg *t);

/* In txg-pace.c, by any thread: wait while a fold runs, if the open txg would
 * be full before it ends, or too much of the budget is in use; and let the open
 * txg's limit grow while a fold is slow.
 */
extern void txg_pace (struct txg *t, size_t bytes);
extern void txg_stretch (struct txg *t);
/* The pause of a writer, when a fold that is expected to take 'expected_ms' has
 * run for 'age_ms', and the open txg has 'pages' of 'limit'.
 */
extern uint64_t txg_pause_ms (uint64_t expected_ms, uint64_t age_ms,
                              uint64_t pages, uint64_t limit);
/* By the folding thread: a fold begins; it is about to restart the WAL; that
 * has taken 'ms'; the fold of so many pages has, all in all.
 */
extern void txg_expect_fold (struct txg *t);
extern void txg_expect_restart (struct txg *t);
extern void txg_restarted (struct txg *t, uint64_t ms);
extern void txg_note_fold (struct txg *t, uint64_t pages, uint64_t ms);

/* By the folding thread alone, in txg-wal.c.  Make room in the WAL for a fold
 * and its commands, which change 'extra' pages: behind the WAL's content, or
 * from its start.
 */
extern void txg_prepare_wal (struct txg *t, uint64_t extra);
/* Pages of the WAL that merges of the hash index may fill, at most 'wanted'.
 * Merges can wait, and must not use the room promised to the fold: they need
 * room behind that, or a file system that is not nearly full.
 */
extern uint64_t txg_merge_room (struct txg *t, uint64_t extra, uint64_t wanted);
/* They did not fit, and what they have written is in the way of others. */
extern void txg_postpone_merges (struct txg *t);
extern uint64_t txg_wal_pages (struct txg *t);
extern bool txg_wal_is_too_large (struct txg *t);

/* Of the blocks that were freed, half are late ones no more, every few seconds.
 */
extern void txg_forget_holes_locked (struct txg *t);

/* Keep allocated only what the next open needs. */
extern void txg_keep_room (struct txg *t);
/* Do layers wait for folds? */
extern bool txg_has_background (struct txg *t);

/* Memory of the open and the folding txg. */
extern size_t txg_pending_bytes (struct txg *t);

/* Set 'count' blocks to holes in memory, without a journal entry. */
extern int txg_apply_holes (struct txg *t, struct layer *layer, uint64_t block,
                            uint64_t count);
/* The same, but mark them as lost. */
extern int txg_apply_lost (struct txg *t, struct layer *layer, uint64_t block,
                           uint64_t count);

#endif /* NBDEDUP_TXG_INT_H */
