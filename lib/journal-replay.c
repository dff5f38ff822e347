/* SPDX-License-Identifier: BSD-3-Clause */

/* Replay: what a crash left in the ring.
 *
 * Why it takes the right batches and no others:
 *
 * Let F be what pool.db has folded, E the epoch of the last session, and n
 * the number that is looked for at some position, first F + 1.
 *
 * (a) A batch is taken only if its epoch is E and its number n.  A session
 *     gives each number once (an append that fails kills the journal), so
 *     there is at most one such batch in the file, and the sessions before
 *     E end with everything folded and a new epoch (journal_set_epoch
 *     refuses while something is live): nothing of theirs is wanted.
 *
 * (b) A torn batch n of session E and what was written after it, n + 1 ..,
 *     stay in the ring when replay ends at n.  The next session has another
 *     epoch and writes its own batch n.  The leftovers can never continue
 *     it, by (a).  (If a caller appends in the same epoch all the same, the
 *     leftovers' headers are zeroed first, by
 *     journal_wipe_leftovers_locked.)
 *
 * (c) What proves damage.  "durable >= m" in any batch, of whatever session,
 *     says that m was on disk.  Then m was folded before, or it is found
 *     by every later replay, and folded before the next session.  So when
 *     replay has found nothing at n, no batch can have durable >= n; if one
 *     has, n was damaged.  Likewise "folded" is only ever what pool.db had
 *     durably, so no batch can have folded > F, unless pool.db went back
 *     in time; nor an epoch above E.  Batches of earlier laps have lower
 *     values in all of these: they are normal.
 *
 * (d) A batch is overwritten only after journal_trim, so what overwrites it
 *     has folded >= its number: a pool.db that is too old to know that finds
 *     the proof (c) right there.  A mark is written where a batch could
 *     be, and has as much "folded" as that would have.
 *
 * (e) What needs no proof.  "settled >= m" in a valid header of session E
 *     was written after the store had synced what the batches up to m name:
 *     whatever became of that batch's body, they are there, and one that
 *     does not verify is damaged.  Only session E counts: leftovers (b) of
 *     an earlier one speak of other batches with these numbers.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "fullio.h"
#include "journal-int.h"

/* Call 'fn' for every valid batch header of the ring, whatever its session
 * and number.  The body of a batch that is valid as a whole is skipped.
 */
static int
scan_ring (struct journal *j, uint8_t *body,
           int (*fn) (struct journal *j, uint64_t position,
                      const struct batch *b, void *opaque),
           void *opaque)
{
  const uint64_t end = ring_end (j);
  const uint64_t window_max = 1 << 20;
  CLEANUP_FREE uint8_t *window = NULL;
  uint64_t pos, window_pos = 0, window_len = 0;
  struct batch b;
  int r;

  window = malloc (window_max);
  if (window == NULL)
    return nbdedup_fail (ENOMEM, "%s: no memory", j->path);

  for (pos = RING_START; pos < end; ) {
    if (pos >= window_pos + window_len) {
      window_pos = pos;
      window_len = end - pos < window_max ? end - pos : window_max;
      if (full_pread (j->fd, window, window_len, pos) != (int64_t) window_len)
        return nbdedup_fail (EIO, "%s: reading at %" PRIu64 ": %s: " RESTORE,
                             j->path, pos, strerror (errno));
    }
    if (!batch_unpack (j, window + (pos - window_pos), pos, &b)) {
      pos += JOURNAL_ALIGN;
      continue;
    }
    if (fn (j, pos, &b, opaque) == -1)
      return -1;
    r = batch_read_body (j, pos, &b, body);
    if (r == -1)
      return -1;
    pos += r == 1 ? batch_size (b.len) : JOURNAL_ALIGN;
  }
  return 0;
}

/* What the ring knows: the highest values, and which batch said so. */
struct evidence {
  uint64_t epoch, epoch_by;
  uint64_t durable, durable_by;
  uint64_t folded, folded_by;

  uint64_t of_epoch;            /* the highest number in this one */
  uint64_t seq;
  uint64_t settled;             /* the highest value in this one */
};

static int
gather_evidence (struct journal *j, uint64_t position, const struct batch *b,
                 void *opaque)
{
  struct evidence *e = opaque;

  (void) j;
  (void) position;
  if (b->epoch > e->epoch) {
    e->epoch = b->epoch;
    e->epoch_by = b->seq;
  }
  if (b->durable > e->durable) {
    e->durable = b->durable;
    e->durable_by = b->seq;
  }
  if (b->folded > e->folded) {
    e->folded = b->folded;
    e->folded_by = b->seq;
  }
  if (b->epoch != e->of_epoch)
    return 0;
  if (b->kind == BATCH_DATA && b->seq > e->seq)
    e->seq = b->seq;
  if (b->settled > e->settled)
    e->settled = b->settled;
  return 0;
}

/* Follow the numbers from 'seq' + 1 at '*position' to the last valid batch;
 * return its number and the position after it.  'fn' may be NULL.  Batches
 * after 'settled' are suspect.
 */
static int
walk (struct journal *j, uint64_t epoch, uint64_t *seq, uint64_t *position,
      uint64_t settled, uint8_t *body,
      int (*fn) (void *opaque, uint64_t seq, bool suspect,
                 const uint8_t *body, size_t len),
      void *opaque)
{
  uint8_t buf[BATCH_HEADER_LEN];
  uint64_t pos = *position;
  bool wrapped = false;         /* a wrap led to 'pos' */
  struct batch b;
  int64_t n;
  int r;

  for (;;) {
    n = full_pread (j->fd, buf, sizeof buf, pos);
    if (n != (int64_t) sizeof buf)
      return nbdedup_fail (EIO, "%s: reading at %" PRIu64 ": %s: " RESTORE,
                           j->path, pos,
                           n == -1 ? strerror (errno) : "end of file");
    if (!batch_unpack (j, buf, pos, &b) || b.kind == BATCH_MARK ||
        b.epoch != epoch || b.seq != *seq + 1)
      return 0;
    if (b.kind == BATCH_WRAP) {
      if (wrapped)
        return 0;
      wrapped = true;
      pos = RING_START;
      /* *position stays at the wrap until there is a batch behind it. */
      continue;
    }
    r = batch_read_body (j, pos, &b, body);
    if (r == -1)
      return -1;
    if (r == 0)
      return 0;
    if (fn != NULL && fn (opaque, b.seq, b.seq > settled, body, b.len) == -1)
      return -1;
    wrapped = false;
    *seq = b.seq;
    pos += batch_size (b.len);
    *position = pos;
  }
}

int
journal_replay (struct journal *journal, uint64_t position,
                uint64_t folded, uint64_t epoch,
                int (*fn) (void *opaque, uint64_t seq, bool suspect,
                           const uint8_t *body, size_t len),
                void *opaque)
{
  struct journal *j = journal;
  struct evidence e = { .of_epoch = epoch };
  CLEANUP_FREE uint8_t *body = NULL;
  uint64_t seq, pos;

  assert (!j->replayed);

  if (position == 0)
    position = RING_START;
  if (position < RING_START || position % JOURNAL_ALIGN != 0 ||
      position > ring_end (j) - JOURNAL_ALIGN)
    return nbdedup_fail (EIO, "%s: pool.db names position %" PRIu64 ", which "
                         "is not in it: " RESTORE, j->path, position);
  body = malloc (JOURNAL_BODY_MAX);
  if (body == NULL)
    return nbdedup_fail (ENOMEM, "%s: no memory", j->path);

  /* What is read from here on is what is on disk: a killed process may
   * have left pages that were not written, or that failed to be.
   */
  if (!j->readonly && fdatasync (j->fd) == -1)
    return nbdedup_fail (EIO, "%s: fdatasync: %s", j->path,
                         strerror (errno));
  posix_fadvise (j->fd, 0, 0, POSIX_FADV_DONTNEED);

  /* Look first, before any effect: nothing is replayed onto a pool.db that
   * is too old, or from a journal with a gap.
   */
  if (scan_ring (j, body, gather_evidence, &e) == -1)
    return -1;
  seq = folded;
  pos = position;
  if (walk (j, epoch, &seq, &pos, 0, body, NULL, NULL) == -1)
    return -1;
  if (e.epoch > epoch)
    return nbdedup_fail (EIO, "%s: batch %" PRIu64 " was written in session "
                         "%" PRIu64 ", but the pool knows only %" PRIu64 ": "
                         "pool.db is older than the journal: " RESTORE,
                         j->path, e.epoch_by, e.epoch, epoch);
  if (e.folded > folded)
    return nbdedup_fail (EIO, "%s: batch %" PRIu64 " knows everything up to "
                         "batch %" PRIu64 " folded into pool.db, which has "
                         "only %" PRIu64 ": pool.db or its WAL is older than "
                         "the journal: " RESTORE,
                         j->path, e.folded_by, e.folded, folded);
  if (e.durable > seq)
    return nbdedup_fail (EIO, "%s: batch %" PRIu64 " at %" PRIu64 " is "
                         "damaged, but was durable when batch %" PRIu64
                         " was written: " RESTORE,
                         j->path, seq + 1, pos, e.durable_by);

  seq = folded;
  pos = position;
  /* What is durable is settled. */
  if (e.settled < e.durable)
    e.settled = e.durable;
  if (walk (j, epoch, &seq, &pos, e.settled, body, fn, opaque) == -1)
    return -1;

  j->folded = j->settled = j->durable = j->told = folded;
  j->synced = j->appended = seq;
  j->tail = position;
  j->head = pos;
  j->replayed_epoch = epoch;
  j->leftovers = e.seq > seq;
  j->replayed = true;
  return 0;
}

bool
journal_was_cut_short (struct journal *journal)
{
  assert (journal->replayed);
  return journal->leftovers;
}

int
journal_follow (struct journal *journal, uint64_t position,
                uint64_t folded, uint64_t epoch,
                int (*fn) (void *opaque, uint64_t seq, bool suspect,
                           const uint8_t *body, size_t len),
                void *opaque, uint64_t *last)
{
  struct journal *j = journal;
  struct evidence e = { .of_epoch = epoch };
  CLEANUP_FREE uint8_t *body = malloc (JOURNAL_BODY_MAX);

  assert (j->readonly);
  *last = folded;
  if (body == NULL)
    return nbdedup_fail (ENOMEM, "%s: no memory", j->path);
  if (position == 0)
    position = RING_START;
  /* What cannot be scanned proves nothing: then batches are suspect. */
  if (scan_ring (j, body, gather_evidence, &e) == -1 && errno == ENOMEM)
    return -1;
  return walk (j, epoch, last, &position, e.settled, body, fn, opaque);
}

static int
wipe_one (struct journal *j, uint64_t position, const struct batch *b,
          void *opaque)
{
  const uint8_t zeroes[BATCH_HEADER_LEN] = { 0 };

  (void) opaque;
  if (b->epoch == j->replayed_epoch && b->seq > j->appended)
    return full_pwrite (j->fd, zeroes, sizeof zeroes, position);
  return 0;
}

int
journal_wipe_leftovers_locked (struct journal *j)
{
  CLEANUP_FREE uint8_t *body = malloc (JOURNAL_BODY_MAX);

  assert_held (&j->lock);
  if (body == NULL)
    return nbdedup_fail (ENOMEM, "%s: no memory", j->path);
  if (scan_ring (j, body, wipe_one, NULL) == -1 || fdatasync (j->fd) == -1) {
    j->dead = true;
    return nbdedup_fail (EIO, "%s: clearing old batches: %s", j->path,
                         strerror (errno));
  }
  j->leftovers = false;
  return 0;
}
