/* SPDX-License-Identifier: BSD-3-Clause */

/* The journal's buffer: what was installed and not yet written there.
 *
 * A small flush carries the bytes of its new records inside its batch, as
 * ZFS's intent log does, so that one fdatasync covers everything; a large
 * one syncs the store first.  (INLINE_MAX in txg-log.c has the numbers.)
 *
 * Invariant: before a batch counts as durable, every record that it names
 * is durable too, in the batch or in the store.  A record named in an
 * earlier batch and not carried there was synced by the flush of whoever
 * comes first after it: "store_wanted" says up to which batch the store
 * must be synced.
 *
 * Threads: any; it locks by itself.
 */

#ifndef NBDEDUP_TXG_LOG_H
#define NBDEDUP_TXG_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "format.h"
#include "journal.h"
#include "store.h"

struct txg_log;

extern struct txg_log *txg_log_new (struct journal *journal,
                                    struct store *store,
                                    uint32_t sector_bytes);
extern void txg_log_free (struct txg_log *log);

extern int txg_log_add_record (struct txg_log *log, const struct record *r,
                               uint64_t chunk_addr);
extern int txg_log_add_pointer (struct txg_log *log, uint64_t layer,
                                uint64_t block, const struct pointer *ptr);
extern int txg_log_add_holes (struct txg_log *log, uint64_t layer,
                              uint64_t block, uint64_t count);

/* Everything added before the call is durable: 0.  1: the journal has no
 * room; only a fold makes it durable.  -1.
 */
extern int txg_log_flush (struct txg_log *log);

/* At a cut: write the buffer to the journal, unsynced, or drop it if the
 * journal is full (the fold covers it).  Returns the position that the
 * fold covers.
 */
extern int txg_log_cut (struct txg_log *log, uint64_t *seq,
                        uint64_t *position);
/* The fold of that cut is durable. */
extern void txg_log_folded (struct txg_log *log);

/* Memory held. */
extern size_t txg_log_bytes (struct txg_log *log);

#endif /* NBDEDUP_TXG_LOG_H */
