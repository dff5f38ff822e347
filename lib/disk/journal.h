/* SPDX-License-Identifier: BSD-3-Clause */

/* The journal: the flush path.  The file is preallocated and pre-written.  It
 * has one header block and then a ring of batches.
 *
 * The header of a batch has the pool's UUID, the epoch of the session that
 * wrote it, its sequence number (from 1, without gaps, over the whole life of
 * the pool), the highest sequence numbers that were known durable, folded into
 * pool.db, and settled when it was written, the length of its body, XXH3 of the
 * body, and XXH3 of the header.  Batches start at multiples of JOURNAL_ALIGN
 * and never straddle the end of the ring: the journal writes a batch that does
 * not fit there at the start, and marks the place with a batch of kind WRAP (no
 * body, no number).  The caller (txg-log.c) defines the content of the body.
 *
 * A batch is settled if all records that it and the batches before it name
 * are durable: in the store, or carried in a body.  It is durable if it is
 * settled and on the disk.  If the header of an intact batch says that the
 * batch itself is settled, its records need no proof.
 *
 * Only the next batch would record what a sync made durable.  So journal_sync
 * writes a MARK (a header of kind MARK, no body, no number) where the next
 * batches will overwrite it, and does not sync it: the mark survives a kill,
 * and costs one copy into the page cache.  If there is room, the mark is in a
 * different page than the batch that it refers to: then one bad page does not
 * hide that there was a batch.
 *
 * Replay begins at the position that pool.db names (the position after the
 * last folded batch, stored in the same transaction as its effects) and
 * follows the numbers.  It ends at the first invalid batch, which was being
 * written when the power failed, unless a valid batch or mark anywhere in the
 * ring contradicts this:
 *
 *  - One says that the missing batch was durable: the journal is damaged.  A
 *    batch's trailer, in separate sectors, repeats its header, and has a list,
 *    a shorter substitute for the body.  So damage to the header or
 *    the trailer costs nothing, and the list replaces a damaged body.  If
 *    both are damaged replay fails with EIO, and the pool stays closed.
 *
 *  - One says that more was folded than pool.db says: pool.db (or its WAL) is
 *    older than the journal, which is an error, too.
 *
 * A sector that the disk cannot read is such damage where something contradicts
 * the end of the log.  Where nothing does, replay fails if the sector may hide
 * a flushed batch, and else does without it.
 *
 * Growth: the file begins small (JOURNAL_MIN_BYTES).  While the live part is
 * larger than half of it, the journal extends it, up to JOURNAL_MAX_BYTES,
 * instead of wrapping; it writes zeroes to the new part and syncs it before
 * use.
 *
 * Threads: any thread may call journal_append, journal_sync and journal_trim
 * at any time.
 */

#ifndef NBDEDUP_JOURNAL_H
#define NBDEDUP_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/geometry.h"

#define JOURNAL_ALIGN 512
#define JOURNAL_HEADER_BYTES 8192 /* two copies, 4 KiB apart */
#define JOURNAL_MIN_BYTES (UINT64_C (256) << 10)
#define JOURNAL_MAX_BYTES (UINT64_C (64) << 20)
/* The longest body of a batch: also bounds memory at replay. */
#define JOURNAL_BODY_MAX (UINT32_C (4) << 20)

struct journal;

/* Make the file (it must not exist), pre-written and synced. */
extern int
journal_create (const char *path, const uint8_t uuid[UUID_LEN], uint64_t epoch);

/* The same, but first rename an unusable journal, if there is one, to
 * PATH.damaged, or PATH.damaged.2 and so on.  The caller can repeat an
 * interrupted call.
 */
extern int journal_replace (const char *path, const uint8_t uuid[UUID_LEN],
                            uint64_t epoch);

/* Open and check the header; *epoch is the header's.  EIO: missing, too short,
 * damaged, or of another pool ('uuid' NULL: do not compare).  EINVAL: a newer
 * format.  The text says what to do.
 */
extern struct journal *
journal_open (const char *path, const uint8_t uuid[UUID_LEN], uint64_t *epoch);
/* The same without writing to the file: only replay is allowed. */
extern struct journal *journal_open_readonly (const char *path,
                                              const uint8_t uuid[UUID_LEN],
                                              uint64_t *epoch);
/* Read only the header: 0, or -1. */
extern int
journal_peek (const char *path, uint8_t uuid[UUID_LEN], uint64_t *epoch);
extern void journal_close (struct journal *journal);

/* Write the header with a new epoch and sync; later batches carry it.
 * EINVAL while anything is live: replay would no longer find the batches of
 * the previous session.
 */
extern int journal_set_epoch (struct journal *journal, uint64_t epoch);

/* Call 'fn' for each batch after 'folded' (the sequence number that pool.db
 * covers), beginning at file position 'position' (0: the ring's start).
 * Afterwards the journal appends after the last one; everything replayed is
 * live until journal_trim.  Call it once, before the first append, even if no
 * batch is expected.
 *
 * 'epoch' is the session whose batches are expected.
 */
enum journal_trust {
  JOURNAL_SETTLED, /* all records that it names were durable */
  /* There is no proof left that this batch was settled, so the records that it
   * names may not have reached the disk when the power failed.
   */
  JOURNAL_SUSPECT,
  /* The batch was durable, and is damaged: 'fn' gets its list. */
  JOURNAL_DAMAGED,
};
extern int
journal_replay (struct journal *journal, uint64_t position, uint64_t folded,
                uint64_t epoch,
                int (*fn) (void *opaque, uint64_t seq, enum journal_trust trust,
                           const uint8_t *body, size_t len),
                void *opaque);

/* In 'fn' of journal_replay: how many batches there are in all. */
extern uint64_t journal_to_replay (const struct journal *journal);

/* After the replay: true if part of a batch follows the last one.  Either a
 * crash interrupted its write, or it was damaged after a loss of power that
 * left no mark; the two look alike.
 */
extern bool journal_was_cut_short (struct journal *journal);

/* For a journal opened read-only in which journal_replay found damage: follow
 * the numbers as far as they lead, even if the ring proves that more followed.
 * '*last' is the last batch that 'fn' got.
 */
extern int
journal_follow (struct journal *journal, uint64_t position, uint64_t folded,
                uint64_t epoch,
                int (*fn) (void *opaque, uint64_t seq, enum journal_trust trust,
                           const uint8_t *body, size_t len),
                void *opaque, uint64_t *last);

/* Append one batch; it is not durable before journal_sync.  If the body is
 * damaged, replay passes 'list' in its place.  'settled' is the highest number
 * that the caller knows to be settled (0: nothing new; JOURNAL_ITSELF: this
 * batch and all before it).
 *
 * Returns 0 and the batch's number; 1 if there is no room until journal_trim
 * (nothing was written); -1 on error.  After an error the journal is dead:
 * every later call fails with EIO.  The one exception is ENOSPC from an empty
 * ring that is too small for the batch and cannot be extended.
 */
extern int journal_append (struct journal *journal, const struct iovec *iov,
                           int nr_iov, const struct iovec *list,
                           uint64_t settled, uint64_t *seq);
#define JOURNAL_ITSELF UINT64_MAX

/* Sync all batches up to 'seq': the settled ones among them become durable,
 * and a mark records that.  Concurrent calls share syncs as in store_sync; the
 * function returns at once if all are durable.  After one failure every later
 * call fails with EIO.
 */
extern int journal_sync (struct journal *journal, uint64_t seq);

/* The last number appended, and the position where replay would look for the
 * next batch.  pool.db stores both with the effects of all batches up to it.
 */
extern void
journal_get_end (struct journal *journal, uint64_t *seq, uint64_t *position);

/* Tell the journal that pool.db durably covers everything up to 'seq' and names
 * 'position' (journal_get_end returned both together): the journal may reuse
 * that space.
 */
extern void
journal_trim (struct journal *journal, uint64_t seq, uint64_t position);

/* Bytes of live batches, and the size of the ring. */
extern void journal_get_usage (struct journal *journal, uint64_t *live_bytes,
                               uint64_t *ring_bytes);

/* The bytes of the batches that were appended since it was opened. */
extern uint64_t journal_written_bytes (struct journal *journal);

/* How many more bytes of its file system the journal may take. */
extern uint64_t journal_may_grow (struct journal *journal);

#endif /* NBDEDUP_JOURNAL_H */
