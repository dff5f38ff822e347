/* SPDX-License-Identifier: BSD-3-Clause */

/* The journal: the flush path.  A preallocated, pre-written file; a ring of
 * batches after one header block.
 *
 * Each batch has a header with the pool's UUID, the epoch of the session
 * that wrote it, its sequence number (from 1, without gaps, over the whole
 * life of the pool), the highest sequence number known durable when it was
 * written, the highest sequence number known folded into pool.db when it
 * was written, the highest one known settled, the length of its body, XXH3
 * of the body, XXH3 of the header.  Batches start at multiples of
 * JOURNAL_ALIGN and never straddle the end of the ring: a batch that does
 * not fit there is written at the start, and a batch of kind WRAP (no body;
 * no number of its own) marks the place if there is room for it.  The body's
 * content belongs to the caller (txg-log.c).
 *
 * A batch is settled if all records that it and the batches before it name
 * are durable: in the store, or carried in a body.  It is durable if it is
 * settled and on the disk.  A batch that says of itself that it is settled
 * needs no proof of its records if it is found whole.
 *
 * What a sync made durable only the next batch would say.  So journal_sync
 * writes a MARK (a header of kind MARK, no body, no number) where the next
 * batches will overwrite it, and does not sync it: it survives a kill, and
 * costs a copy into the page cache.  It stands in another page than the
 * batch that it speaks of, where there is room: one bad page does not hide
 * that there was a batch.
 *
 * Replay begins at the position that pool.db names (the position after the
 * last folded batch, stored in the same transaction as its effects) and
 * follows the numbers.  The first batch that is not valid ends it: it was
 * being written when the power failed.  Not so if the ring holds any valid
 * batch or mark that knows better:
 *
 *  - one that knows the missing one as durable: the journal is damaged.  A
 *    batch's trailer, in sectors of its own, repeats its header, and has a
 *    list: what the caller can do without the body, which is shorter.  So
 *    damage to the header or the trailer costs nothing, and if the body is
 *    damaged the list takes its place.  If both are it is an error (EIO, and
 *    the pool stays closed);
 *
 *  - one that knows more folded than pool.db says: pool.db (or its WAL) is
 *    older than the journal, an error, too.
 *
 * Growth: the file begins small (JOURNAL_MIN_BYTES) and is extended, up to
 * JOURNAL_MAX_BYTES, instead of wrapping, as long as the live part is
 * larger than half of it; the new part is written with zeroes and synced
 * before it is used.
 *
 * Threads: journal_append, journal_sync and journal_trim may be called at
 * any time from any thread.
 */

#ifndef NBDEDUP_JOURNAL_H
#define NBDEDUP_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/geometry.h"

#define JOURNAL_ALIGN 512
#define JOURNAL_HEADER_BYTES 8192       /* two copies, 4 KiB apart */
#define JOURNAL_MIN_BYTES (UINT64_C (256) << 10)
#define JOURNAL_MAX_BYTES (UINT64_C (64) << 20)
/* A batch's body is at most this: also bounds memory at replay. */
#define JOURNAL_BODY_MAX (UINT32_C (4) << 20)

struct journal;

/* Make the file (it must not exist), pre-written and synced. */
extern int journal_create (const char *path, const uint8_t uuid[UUID_LEN],
                           uint64_t epoch);

/* The same in the place of one that cannot be used, if there is one: that is
 * renamed PATH.damaged, or PATH.damaged.2 and so on.  Interrupted, it can be
 * repeated.
 */
extern int journal_replace (const char *path, const uint8_t uuid[UUID_LEN],
                            uint64_t epoch);

/* Open and check the header: missing, short, foreign (uuid NULL: do not
 * compare), damaged: EIO; newer format: EINVAL; the text says what to do.
 * 'epoch' returns the header's.
 */
extern struct journal *journal_open (const char *path,
                                     const uint8_t uuid[UUID_LEN],
                                     uint64_t *epoch);
/* The same without a write to the file: to be replayed, nothing else. */
extern struct journal *journal_open_readonly (const char *path,
                                              const uint8_t uuid[UUID_LEN],
                                              uint64_t *epoch);
/* What its header says, without an opinion on the rest: 0, or -1. */
extern int journal_peek (const char *path, uint8_t uuid[UUID_LEN],
                         uint64_t *epoch);
extern void journal_close (struct journal *journal);

/* Write the header with a new epoch and sync; later batches carry it.
 * EINVAL while anything is live: batches of the session before would not be
 * found again.
 */
extern int journal_set_epoch (struct journal *journal, uint64_t epoch);

/* Call 'fn' for each batch after 'folded' (the sequence number that pool.db
 * covers), beginning at file position 'position' (0: the ring's start).
 * Afterwards the journal appends after the last one; everything replayed
 * is live until journal_trim.  Must be called once, before the first
 * append, even if nothing is expected.
 *
 * 'epoch' is the session whose batches are expected.
 */
enum journal_trust {
  JOURNAL_SETTLED,              /* all that it names was durable */
  /* Nothing that is left knows this one as settled, so the records that it
   * names may have been on their way to the disk when the power failed.
   */
  JOURNAL_SUSPECT,
  /* It was durable, and is damaged: this is its list. */
  JOURNAL_DAMAGED,
};
extern int journal_replay (struct journal *journal, uint64_t position,
                           uint64_t folded, uint64_t epoch,
                           int (*fn) (void *opaque, uint64_t seq,
                                      enum journal_trust trust,
                                      const uint8_t *body, size_t len),
                           void *opaque);

/* After the replay: was there a part of a batch behind the last one?  It was
 * being written when the crash came, or it was damaged after a loss of
 * power that left no mark: these cannot be told from each other.
 */
extern bool journal_was_cut_short (struct journal *journal);

/* Opened read-only, where journal_replay has found damage: follow the numbers
 * as far as they lead, whatever the ring proves about what follows.  '*last'
 * is the last batch that 'fn' got.
 */
extern int journal_follow (struct journal *journal, uint64_t position,
                           uint64_t folded, uint64_t epoch,
                           int (*fn) (void *opaque, uint64_t seq,
                                      enum journal_trust trust,
                                      const uint8_t *body, size_t len),
                           void *opaque, uint64_t *last);

/* Append one batch; not durable before journal_sync.  'list' is what replay
 * gives if the body is damaged.  'settled' is the highest number that the
 * caller knows as settled (0: nothing new),
 * JOURNAL_ITSELF: this batch and all before it are.
 *
 * Returns 0 and its number; 1 if there is no room until journal_trim
 * (nothing was written); -1 on error.  After an error the journal is dead:
 * everything fails with EIO.  The one exception is ENOSPC from an empty
 * ring that is too small for the batch and cannot be extended.
 */
extern int journal_append (struct journal *journal,
                           const struct iovec *iov, int nr_iov,
                           const struct iovec *list, uint64_t settled,
                           uint64_t *seq);
#define JOURNAL_ITSELF UINT64_MAX

/* Sync all batches up to 'seq'; those of them that are settled are durable
 * then, and a mark says so.  Grouped as store_sync is; returns at once if
 * they are already.  After one failure: EIO for ever.
 */
extern int journal_sync (struct journal *journal, uint64_t seq);

/* The last number appended, and the position where the next batch will be
 * looked for: what pool.db stores with the effects of all up to it.
 */
extern void journal_get_end (struct journal *journal,
                             uint64_t *seq, uint64_t *position);

/* pool.db covers everything up to 'seq', durably, and names 'position' (as
 * journal_get_end returned them together): that space may be reused.
 */
extern void journal_trim (struct journal *journal, uint64_t seq,
                          uint64_t position);

/* Bytes of live batches, and the size of the ring. */
extern void journal_get_usage (struct journal *journal,
                               uint64_t *live_bytes, uint64_t *ring_bytes);

/* How many bytes it may still take of its file system. */
extern uint64_t journal_may_grow (struct journal *journal);

#endif /* NBDEDUP_JOURNAL_H */
