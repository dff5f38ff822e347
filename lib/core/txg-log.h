/* SPDX-License-Identifier: BSD-3-Clause */

/* The journal's buffer: entries installed and not yet written to the journal.
 *
 * A small flush carries the bytes of its new records inside its batch, as
 * ZFS's intent log does, so that one fdatasync covers everything; a large
 * one syncs the store first, and appends its batch then.  (INLINE_MAX in
 * txg-log.c has the numbers.)
 *
 * Invariant: a batch that an answered flush covers is settled (journal.h),
 * and a header on the disk records this: its own, or that of a batch that
 * the same sync covered.  So replay need not guess about it: anything in it
 * that does not verify is damaged.  Only a batch written because the buffer
 * was full, or because a fold began, may be unsettled, until the next flush.
 *
 * How a thread knows.  All records ever added form one stream, and so do all
 * other entries; a "place" is a pair of offsets in these.  A record is added
 * after it was written to the store, and a pointer after its record.  So:
 *
 *  - a place that was taken under the lock before store_sync was called is
 *    durable after it (grouped or not: that sync began later);
 *
 *  - the part of both streams before a place is complete: its pointers'
 *    records are in it, too, or in pool.db.  A flush writes up to its place,
 *    and leaves later entries to other threads;
 *
 *  - batches hold the streams in order.  The batches that exist when a place
 *    is taken hold nothing behind it: that sync settles all of them.
 *
 * If another thread wrote this thread's entries during its sync, in a batch
 * that also holds later ones (the buffer was full, a fold began), one more
 * sync settles that batch, and an empty batch records this.
 *
 * Threads: any; it locks by itself.
 */

#ifndef NBDEDUP_TXG_LOG_H
#define NBDEDUP_TXG_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "disk/journal.h"
#include "disk/store.h"
#include "format/format.h"

struct txg_log;

extern struct txg_log *txg_log_new (struct journal *journal,
                                    struct store *store, uint32_t sector_bytes);
extern void txg_log_free (struct txg_log *log);

extern int txg_log_add_record (struct txg_log *log, const struct record *r,
                               uint64_t chunk_addr, bool over_quota);
extern int txg_log_add_pointer (struct txg_log *log, uint64_t layer,
                                uint64_t block, const struct pointer *ptr);
extern int txg_log_add_holes (struct txg_log *log, uint64_t layer,
                              uint64_t block, uint64_t count);

extern int txg_log_add_lost (struct txg_log *log, uint64_t layer,
                             uint64_t block, uint64_t count);

/* 0: everything added before the call is durable.  1: the journal has no
 * room; only a fold makes it durable.  -1: error.
 */
extern int txg_log_flush (struct txg_log *log);

/* At a cut: write the buffer to the journal, unsynced, or drop it if the
 * journal is full (the fold covers it).  Stores the position that the fold
 * covers.
 */
extern int txg_log_cut (struct txg_log *log, uint64_t *seq, uint64_t *position);
/* The fold of that cut is durable.  True: it holds entries that no batch has,
 * because the journal had no room for them.
 */
extern bool txg_log_folded (struct txg_log *log);

/* The buffer is full, because the journal has no room for it until a fold. */
extern bool txg_log_waits_for_room (struct txg_log *log);

/* Memory held. */
extern size_t txg_log_bytes (struct txg_log *log);

#endif /* NBDEDUP_TXG_LOG_H */
