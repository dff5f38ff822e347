/* SPDX-License-Identifier: BSD-3-Clause */

/* The dedup table: digest -> record, and the references that unfolded
 * writes hold.
 *
 * The durable part is in pool.db: table "ddt" (the hash index, digest ->
 * address), table "record" (address -> digest, sizes, count).  In memory:
 *
 *  - entries: records by digest.  CLEAN ones are an LRU cache of pool.db;
 *    NEW ones are not in pool.db yet and stay until the fold.
 *
 *  - refs: by address, the references that the open and the folding txg
 *    add, and whether the record is dead.
 *
 * Invariants, true whenever ddt->lock is not held:
 *
 *  (1) A record's references are its count in pool.db plus both deltas,
 *      less what the fold subtracts for pointers that it displaces.  Both
 *      deltas are >= 0: a pointer displaced within its own txg cancels its
 *      own reference; the next fold subtracts one displaced later.
 *
 *  (2) A reference is taken under the lock, at the moment of the hit, in
 *      the open txg, by a thread that holds the txg (txg_enter): between
 *      the hit and the pointer's installation no cut can come.
 *
 *  (3) The fold kills a record only under the lock, and only if the open
 *      txg has never taken a reference to it, not even one that it has
 *      dropped: that pointer may be durable in the journal, and a crash
 *      may lose what displaced it.  The record is dead then: every lookup
 *      misses it, even one that read an older state of pool.db.  When no
 *      thread that could have read that state is left (quiesce.h), the
 *      space goes to the allocator and the mark is removed.
 *
 *  (4) Prune takes a record out of the index in the same way: only under the
 *      lock, only if pool.db has one reference to it, and only if the open
 *      txg has never taken another.  Every lookup misses the record from then
 *      on, until no thread is left that could have read an older state.
 *
 * So lookup, reference, free and prune are atomic with respect to each other,
 * and a race costs at most a second record of the same content.
 */

#ifndef NBDEDUP_DDT_H
#define NBDEDUP_DDT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/format.h"
#include "meta/meta-index.h"
#include "meta/meta.h"

struct ddt;

/* The most that the filter takes of the budget. */
#define DDT_FILTER_BUDGET(bytes) ((bytes) / 8 * 7)

/* 'budget_bytes' is for CLEAN entries, and for the filter (ddt-filter.h). */
extern struct ddt *ddt_new (struct meta *meta, uint64_t budget_bytes);
extern void ddt_free (struct ddt *ddt);

/* The entries of the hash index in pool.db, and those that the open and the
 * folding txg add.  Entries that a fold removes count until it is done.  Takes
 * no lock.
 */
extern uint64_t ddt_index_entries (struct ddt *ddt);
/* The pool has been opened: pool.db has so many. */
extern void ddt_set_index_entries (struct ddt *ddt, uint64_t entries);

/* A block that may have a record. */
struct ddt_query {
  const struct digest *digest;
  struct pointer *ptr; /* of its record, if that is found */
  bool found;
};

/* Find records with these digests, and this size and domain, and take a
 * reference to each that is found in the open txg.  Damage in pool.db's index
 * is a miss, never an error.  The caller is inside txg_enter and
 * quiesce_enter.
 */
extern void ddt_lookup (struct ddt *ddt, unsigned nr, struct ddt_query *queries,
                        uint32_t lsize, uint64_t domain);

/* A record that the caller has just written and logged. */
struct ddt_new {
  const struct record *record;
  uint64_t chunk_addr;
  struct pointer *ptr; /* what the caller may refer to */
};

/* Add records, each with one reference in the open txg; without RECORD_INDEXED
 * in its flags no lookup finds it.  If an equal record came first, the function
 * takes a reference to that one, '*ptr' points to it, and the fold frees the
 * new record.  -1: ENOMEM, some may have been added.
 *
 * The caller must have logged the records (txg_log_record): once a record is
 * in the table, another thread can refer to it and flush.
 */
extern int
ddt_insert (struct ddt *ddt, unsigned nr, const struct ddt_new *records);

/* Add a copy of the record at 'copy_of' (copies.h), which the caller has just
 * written.  The journal does not contain it: after a crash it is in pool.db,
 * or its space is free.  The fold decides whether to keep it.  -1: ENOMEM.
 */
extern int ddt_insert_copy (struct ddt *ddt, const struct record *record,
                            uint64_t chunk_addr, uint64_t copy_of);

/* At replay: add a record from the journal, without references yet. */
extern int ddt_replay_record (struct ddt *ddt, const struct record *record,
                              uint64_t chunk_addr);

/* Is there a NEW record at 'addr'?  (pool.db may have it, too.) */
extern bool ddt_is_new (struct ddt *ddt, uint64_t addr);

/* Add 'delta' references in the open txg; with 0 the next fold only checks
 * whether the record still has any.
 */
extern int ddt_ref (struct ddt *ddt, uint64_t addr, int64_t delta);
/* Drop one: a pointer of the open txg was displaced. */
extern void ddt_unref (struct ddt *ddt, uint64_t addr);

/*----------------------------------------------------------------------
 * For the fold (txg.c)
 */

/* A change that the folding txg makes. */
struct ddt_change {
  uint64_t addr;
  int64_t delta;
  struct record *record; /* NEW: borrowed until ddt_fold_done */
  uint64_t chunk_addr;
  uint64_t copy_of; /* a copy of this record; 0: not a copy */
};

/* With no thread inside the txg: the open txg becomes the folding one. */
extern void ddt_cut (struct ddt *ddt);

/* The folding txg's changes, ascending by address, in a malloc'd array. */
extern int
ddt_get_changes (struct ddt *ddt, struct ddt_change **changes, size_t *nr);

/* The fold found no reference to the record.  True: the record is dead now.
 * False: the open txg refers to it; it stays, with count 0, and the next fold
 * checks again.
 */
extern bool
ddt_try_kill (struct ddt *ddt, uint64_t addr, const struct digest *digest);

/* The transaction in which the record died was rolled back: it is there again.
 * The next attempt may leave it alone, if it does less in the background, and
 * then any thread may take a reference.
 */
extern void ddt_revive (struct ddt *ddt, uint64_t addr);

/* In a fold's transaction, after the fold's own changes: pool.db has one
 * reference to this record, and an entry in the index, which the caller is
 * about to remove.  True: no lookup finds the record until ddt_end_prune.
 * False: the open txg refers to it, or it is new, or there is no memory; its
 * entry must stay.
 */
extern bool
ddt_try_prune (struct ddt *ddt, uint64_t addr, const struct digest *digest);
/* These were pruned, and no thread is left that could have read a state of
 * pool.db in which they are in the index (quiesce_wait); or the transaction was
 * rolled back.
 */
extern void ddt_end_prune (struct ddt *ddt, const uint64_t *addrs, size_t nr);

/* In a fold's transaction: the caller is about to add an entry for this digest
 * to the index.
 */
extern void ddt_expect (struct ddt *ddt, const struct digest *digest);

/* The folding txg is in pool.db: turn its NEW entries into CLEAN ones.
 * 'index_entries' is what the hash index has now.
 */
extern void ddt_fold_done (struct ddt *ddt, uint64_t index_entries);

/* Lookups read these runs of the hash index from now on: none at first.  A fold
 * that changes the index calls it after its commit.  A lookup of a run that is
 * not there any more finds nothing.
 */
extern void ddt_set_runs (struct ddt *ddt, const struct index_runs *runs);

/* No thread can reach this dead record any more: remove the mark.  The fold
 * calls it right before space_release.
 */
extern void ddt_forget (struct ddt *ddt, uint64_t addr);

/* A repair removed records from pool.db: drop the CLEAN entries. */
extern void ddt_forget_clean (struct ddt *ddt);
/* A repair may have added entries to the hash index. */
extern void ddt_forget_filter (struct ddt *ddt);

/* Memory of the open and folding txgs. */
extern size_t ddt_pending_bytes (struct ddt *ddt);

/* The filter from one session to the next: the functions of ddt-filter.h. */
struct warm_file;
struct warm_writer;
extern void ddt_offer_filter (struct ddt *ddt, struct warm_file *file);
extern void ddt_stop_filter (struct ddt *ddt);
extern void ddt_save_filter (struct ddt *ddt, struct warm_writer *w);
extern bool ddt_filter_is_unchanged (struct ddt *ddt);

struct ddt_info {
  uint64_t hits, misses;
  uint64_t cache_bytes;   /* the filter included */
  uint64_t filter_bytes;  /* 0: there is none yet */
  uint64_t filter_memory; /* of it, complete or not */
};
extern void ddt_get_info (struct ddt *ddt, struct ddt_info *info);

#endif /* NBDEDUP_DDT_H */
