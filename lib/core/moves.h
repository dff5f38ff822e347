/* SPDX-License-Identifier: BSD-3-Clause */

/* Records that move to other sectors, for two ends: the segments that they
 * leave become empty, and go back to the file system (report/compact.h); or
 * their content is stored in another form, or they give way to an equal record
 * (report/rewrite.h).
 *
 * Nothing about it is stored.  One batch of moves goes on at a time:
 *
 *  1. A compaction chooses segments that are mostly free (space_drain), and
 *     writes a copy of each of their records to a new place
 *     (space_alloc_dense).  A rewrite drains those segments that have its
 *     records, and writes these in their new form.  Neither pool.db nor the
 *     journal knows what was written: a crash leaves it as free space.
 *
 *  2. Folds read the maps, a part of the leaves each, and let pointers to the
 *     old records name the new ones instead (fold-moves.c).  In the same
 *     transaction each such pointer counts as one reference more to the new
 *     record, which the first of them inserts, and as one less to the old.  So
 *     counts and maps are exact at any time, and old records die as others do.
 *     A fold writes the summaries of all that it may insert, and syncs
 *     "records", before its transaction, as for a client's new records.
 *
 *  3. When all leaves were read the batch ends: new records that no pointer
 *     names give their space back, and the segments take records again, or,
 *     empty, are punched.
 *
 * Concurrent requests of clients need no special care.  A block that is
 * written has another pointer, so its old record dies without a move.  A
 * duplicate takes a reference to either record; if that is to the old one,
 * behind the folds, the record stays where it is.
 *
 * An address in a segment that is being drained names one record only, until
 * the batch ends; so a pointer that names a moved record's address is one to
 * that record.
 *
 * The new record has the digest, the size and the domain of the old.  It may be
 * one that pool.db has had before the batch ("inserted" from the start): then
 * each fold makes sure that it is still there before it adds references.
 *
 * Frozen layers change, too: only in which of two equal records they name.  A
 * thread that keeps an address beyond quiesce_leave, because a frozen layer
 * has it, must hold the moves back (moves_hold).
 *
 * Threads: while a batch is under way it belongs to the folding thread, else to
 * the one that has the lock 'one'.
 */

#ifndef NBDEDUP_MOVES_H
#define NBDEDUP_MOVES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/turn.h"
#include "format/format.h"
#include "meta/meta.h"
#include "space/space.h"

/* Of one batch. */
#define MOVES_MAX 16384u
#define MOVES_SEGMENTS_MAX 1024u

/* A record, as it is in its new place, without references. */
struct move {
  struct record record;
  uint64_t chunk_addr;
  struct pointer old; /* to the one that it replaces */
  bool inserted;      /* pool.db has had the new one */
};

struct moves_batch {
  struct move *p; /* owned; ascending by old.addr */
  size_t nr;
  uint64_t *segments; /* owned; they are being drained */
  unsigned nr_segments;
  unsigned reserved; /* blocks, in pool.db (room.h) */
};

struct moves {
  struct space *space; /* not owned */
  uint32_t sector_bytes;
  struct moves_batch batch;
  struct meta_leaf_key next; /* the first leaf that folds have not read */
  atomic_bool under_way;
  atomic_bool end; /* ... without reading the rest */
  /* What the next fold may do: leaves to change.  0: leave the batch alone. */
  atomic_uint rows;

  /* In all batches: records, and segments that were empty at the end. */
  atomic_uint_fast64_t moved, moved_bytes, emptied;
  _Atomic uint64_t not_before_ms; /* begin no batch */

  struct turn turn;
  struct lock one;  /* one thread compacts at a time; outermost */
  struct lock lock; /* protects 'held', and the beginning of a
                                 * batch; innermost */
  unsigned held;
};

/* 'space' outlives it.  NULL: ENOMEM. */
extern struct moves *moves_new (struct space *space, uint32_t sector_bytes);
/* After the last fold.  NULL is allowed. */
extern void moves_free (struct moves *m);

/* Begin a batch; the moves own it then.  False: some thread holds the moves
 * back.
 */
extern bool moves_begin (struct moves *m, const struct moves_batch *batch);
/* Give back what is left of a batch: by the thread that owns it. */
extern void moves_give_back (struct moves *m, struct moves_batch *batch);

/* From the next fold that begins after hold, until release, no record moves.
 * Any thread, any number at a time.
 */
extern void moves_hold (struct moves *m);
extern void moves_release (struct moves *m);
extern bool moves_are_held (struct moves *m);

/* Space is short: the next fold ends the batch.  NULL is allowed. */
extern void moves_give_way (struct moves *m);

/* The move of the record at this address, or NULL. */
extern struct move *moves_find (const struct moves_batch *batch, uint64_t addr);

#endif /* NBDEDUP_MOVES_H */
