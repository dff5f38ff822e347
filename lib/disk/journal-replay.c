/* SPDX-License-Identifier: BSD-3-Clause */

/* Replay of the batches that a crash left in the ring.
 *
 * Proof that replay takes the right batches and no others:
 *
 * Let F be the last number that pool.db has folded, E the epoch of the last
 * session, and n the number that replay expects at a position, first F + 1.
 *
 * (a) Replay takes a batch only if its epoch is E and its number n.  A session
 *     uses each number once (an append that fails kills the journal), so
 *     there is at most one such batch in the file.  The sessions before E
 *     ended with everything folded and a new epoch (journal_set_epoch
 *     refuses while something is live): none of their batches are needed.
 *
 * (b) A torn batch n of session E and the batches after it, n + 1 .., stay in
 *     the ring when replay ends at n.  The next session has another epoch and
 *     writes its own batch n.  The leftovers can never continue it, by (a).
 *     (If a caller appends in the same epoch all the same,
 *     journal_wipe_leftovers_locked first zeroes the leftovers' headers.)
 *
 * (c) Proof of damage.  "durable >= m" in a batch of any session means that m
 *     was on disk.  Then m was folded before, or every later replay finds it,
 *     and it is folded before the next session.  So when replay has found
 *     nothing at n, no batch can have durable >= n; if one has, n was damaged,
 *     and replay searches for its remains.  Likewise "folded" is only ever
 *     what pool.db had durably, so no batch can have folded > F, unless
 *     pool.db went back in time; nor can one have an epoch above E.  Batches of
 *     earlier laps have lower values of all three: they are normal.
 *
 *     One damage can hit the last batch and the only mark behind it, if it
 *     exchanges places in the file.  So "durable" of a header, trailer or mark
 *     of session E counts also if it is valid but for its place, and either
 *     does not exceed the last batch's number, or is between the first batch to
 *     replay and the end of the last one.  Elsewhere, behind the last one, it
 *     may be in the body of a torn batch: a copy of this journal that a client
 *     has written to a volume.
 *
 * (d) A batch is overwritten only after journal_trim, so the batch that
 *     overwrites it has folded >= its number.  If pool.db is too old, replay
 *     finds the proof (c) in that batch.  A mark is written where a batch
 *     could be, and has the same "folded" as that batch would have.
 *
 * (e) Records that need no proof.  "settled >= m" in a valid header of session
 *     E was written after the store had synced the records that the batches up
 *     to m name.  So even if the batch's body is damaged these records are in
 *     the store, and one that does not verify is damaged.  Only session E
 *     counts: leftovers (b) of an earlier session refer to other batches with
 *     these numbers.
 *
 * (f) Sectors that the disk cannot read count as zeroes, so in a batch that (c)
 *     proves they are damage like any other.  Where (c) proves nothing, replay
 *     ends at n only if they cannot hide that n was flushed; else it fails,
 *     and the next try may read them.  They can hide n in two cases:
 *
 *     Replay sees nothing of n or a later batch of session E.  Then n's header
 *     and n's trailer are both unreadable, the one where the walk has ended, or
 *     behind a wrap there, the other in what follows.
 *
 *     It sees such a batch.  Then they are a part of n, or of what may prove n
 *     durable: a batch behind it, or the mark in the page behind the last one.
 *
 *     Elsewhere they cost nothing.  Batches and marks of an earlier lap, and
 *     those behind the log, prove nothing that counts here; and (c) finds a
 *     pool.db that went back in time by any other batch.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/log.h"
#include "disk/journal-int.h"

/* The batch header or trailer at a place of the ring. */
struct place {
  uint64_t position;
  bool trailer; /* it is a trailer, no header */
  bool moved;   /* damage has brought it here */
  struct journal_batch b;
};

/* Call 'fn' for every valid batch header of the ring, of any session and
 * number, and for every valid trailer except those of wholly valid batches;
 * and for those that are in a wrong place.
 */
static int
scan_ring (struct journal *j, uint8_t *body,
           int (*fn) (struct journal *j, const struct place *p, void *opaque),
           void *opaque)
{
  const uint64_t end = ring_end (j);
  const uint64_t window_max = 1 << 20;
  CLEANUP_FREE uint8_t *window = NULL;
  uint64_t window_pos = 0, window_len = 0;
  struct place p = { .position = RING_START };
  const uint8_t *buf;
  int r;

  window = malloc (window_max);
  if (window == NULL)
    return nbdedup_fail (ENOMEM, "%s: no memory", j->path);

  while (p.position < end) {
    if (p.position >= window_pos + window_len) {
      window_pos = p.position;
      window_len = end - window_pos < window_max ? end - window_pos
                                                 : window_max;
      /* Zeroes for what the disk cannot read: no header. */
      if (journal_read (j, window_pos, window, window_len) == -1)
        return -1;
    }
    buf = window + (p.position - window_pos);
    p.trailer = batch_unpack_trailer (j, buf, p.position, &p.b);
    p.moved = !p.trailer && !batch_unpack (j, buf, p.position, &p.b);
    if (p.moved && !batch_unpack_moved (j, buf, &p.b)) {
      p.position += JOURNAL_ALIGN;
      continue;
    }
    if (fn (j, &p, opaque) == -1)
      return -1;
    r = p.trailer || p.moved ? 0 : batch_read_body (j, &p.b, body);
    if (r == -1)
      return -1;
    p.position += r == 1 ? batch_size (&p.b) : JOURNAL_ALIGN;
  }
  return 0;
}

/* The highest values in the ring, and the batches that have them. */
struct evidence {
  uint64_t epoch, epoch_by;
  uint64_t durable, durable_by;
  uint64_t folded, folded_by;

  uint64_t of_epoch; /* the highest number in this one */
  uint64_t seq;
  uint64_t end;     /* where that batch ends */
  uint64_t settled; /* the highest value in this one */
  uint64_t begin;   /* position of the first batch to replay */
  bool moved;       /* there are moved ones in this epoch */
};

static int
gather_evidence (struct journal *j, const struct place *p, void *opaque)
{
  const struct journal_batch *b = &p->b;
  struct evidence *e = opaque;

  (void) j;
  if (p->moved) {
    e->moved |= b->epoch == e->of_epoch;
    return 0;
  }
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
  if (b->kind == BATCH_DATA && b->seq > e->seq) {
    e->seq = b->seq;
    e->end = b->position + batch_size (b);
  }
  if (b->settled > e->settled)
    e->settled = b->settled;
  return 0;
}

/* Between the first batch to replay and the end of the last one? */
static bool
is_live (const struct evidence *e, uint64_t position)
{
  return e->begin <= e->end ? position >= e->begin && position < e->end
                            : position >= e->begin || position < e->end;
}

static int
gather_moved (struct journal *j, const struct place *p, void *opaque)
{
  const struct journal_batch *b = &p->b;
  struct evidence *e = opaque;

  (void) j;
  if (!p->moved || b->epoch != e->of_epoch || b->durable <= e->durable ||
      (b->durable > e->seq && !is_live (e, p->position)))
    return 0;
  e->durable = b->durable;
  e->durable_by = b->seq;
  return 0;
}

static int
gather (struct journal *j, uint8_t *body, struct evidence *e)
{
  if (scan_ring (j, body, gather_evidence, e) == -1)
    return -1;
  return e->moved ? scan_ring (j, body, gather_moved, e) : 0;
}

struct search {
  uint64_t epoch, seq;
  bool found;
  struct journal_batch b;
};

static int
match (struct journal *j, const struct place *p, void *opaque)
{
  struct search *s = opaque;

  (void) j;
  if (!p->moved && p->b.kind == BATCH_DATA && p->b.epoch == s->epoch &&
      p->b.seq == s->seq) {
    s->found = true;
    s->b = p->b;
  }
  return 0;
}

/* Find a durable batch by its header or trailer, if its header, its body, or a
 * wrap in front of it is damaged.  Returns 1 and its body, or 0 and its list.
 */
static int
find_damaged (struct journal *j, uint64_t epoch, uint64_t seq,
              struct journal_batch *b, uint8_t *body)
{
  struct search s = { .epoch = epoch, .seq = seq };
  int r;

  if (scan_ring (j, body, match, &s) == -1)
    return -1;
  if (!s.found)
    goto lost;
  *b = s.b;
  r = batch_read_body (j, b, body);
  if (r != 0)
    return r;
  r = batch_read_list (j, b, body);
  if (r != 0)
    return r == 1 ? 0 : -1;
lost:
  if (j->nr_unreadable > 0)
    return nbdedup_fail (EIO,
                         "%s: batch %" PRIu64 " was durable, but is now "
                         "damaged or unreadable in more than one place "
                         "(%" PRIu64 " bytes of the file cannot be read): try "
                         "again, or " RESTORE_OR_DROP,
                         j->path, seq, j->nr_unreadable * JOURNAL_ALIGN);
  return nbdedup_fail (EIO,
                       "%s: batch %" PRIu64 " was durable, but is now "
                       "damaged in more than one place: " RESTORE_OR_DROP,
                       j->path, seq);
}

/* The state of a walk through the log. */
struct log_walk {
  uint64_t epoch;
  const struct evidence *evidence;
  uint64_t seq, position; /* after the last batch */
  uint64_t looked;        /* where a header was read last */
  uint64_t settled;       /* batches after this one are suspect */
  uint64_t durable;       /* the log cannot end before this one */
  uint8_t *body;          /* JOURNAL_BODY_MAX bytes */
  int (*fn) (void *opaque, uint64_t seq, enum journal_trust trust,
             const uint8_t *body, size_t len); /* may be NULL */
  void *opaque;
};

/* Read the next batch.  Returns 1 and its body; 0 if there is no intact one;
 * -1.
 */
static int
read_next (struct journal *j, struct log_walk *w, struct journal_batch *b)
{
  uint8_t buf[BATCH_HEADER_LEN];
  uint64_t pos = w->position;
  bool wrapped = false;

  for (;;) {
    w->looked = pos;
    if (journal_read (j, pos, buf, sizeof buf) == -1)
      return -1;
    if (!batch_unpack (j, buf, pos, b) || b->kind == BATCH_MARK ||
        b->epoch != w->epoch || b->seq != w->seq + 1)
      return 0;
    if (b->kind == BATCH_DATA)
      return batch_read_body (j, b, w->body);
    if (wrapped)
      return 0;
    /* The position stays at the wrap until there is a batch behind it. */
    wrapped = true;
    pos = RING_START;
  }
}

/* Can sectors that the disk cannot read have the header of a batch at
 * 'position', and its trailer?
 */
static bool
hides_batch (const struct journal *j, uint64_t position)
{
  const struct journal_batch longest = {
    .kind = BATCH_DATA,
    .len = JOURNAL_BODY_MAX,
  };
  const uint64_t body = position + JOURNAL_ALIGN;

  return journal_is_unreadable (j, position, body) &&
    journal_is_unreadable (j, body, body + batch_trailer_offset (&longest));
}

/* Can these sectors hide that the next batch was flushed?  See (f). */
static bool
hides_flush (const struct journal *j, const struct log_walk *w)
{
  const struct evidence *e = w->evidence;
  uint64_t end;

  if (e->seq <= w->seq)
    return hides_batch (j, w->looked) ||
      (journal_is_unreadable (j, w->looked, w->looked + JOURNAL_ALIGN) &&
       hides_batch (j, RING_START));
  end = (e->end + MARK_PAGE - 1) / MARK_PAGE * MARK_PAGE + JOURNAL_ALIGN;
  return w->looked < end ? journal_is_unreadable (j, w->looked, end)
                         : journal_is_unreadable (j, w->looked, ring_end (j)) ||
      journal_is_unreadable (j, RING_START, end);
}

/* Nothing proves that the log goes on.  May it end here? */
static int
check_end (struct journal *j, const struct log_walk *w)
{
  if (!hides_flush (j, w))
    return 0;
  return nbdedup_fail (EIO,
                       "%s: %" PRIu64 " bytes cannot be read, and batch "
                       "%" PRIu64 ", which may have been flushed, may be "
                       "there: try again, or " RESTORE_OR_DROP,
                       j->path, j->nr_unreadable * JOURNAL_ALIGN, w->seq + 1);
}

/* Follow the numbers to the last batch. */
static int
walk (struct journal *j, struct log_walk *w)
{
  enum journal_trust trust;
  struct journal_batch b;
  int r;

  assert (w->durable <= w->settled); /* a durable batch is settled */
  for (;;) {
    r = read_next (j, w, &b);
    if (r == -1)
      return -1;
    trust = w->seq + 1 > w->settled ? JOURNAL_SUSPECT : JOURNAL_SETTLED;
    if (r == 0) {
      if (w->seq >= w->durable)
        return check_end (j, w);
      r = find_damaged (j, w->epoch, w->seq + 1, &b, w->body);
      if (r == -1)
        return -1;
      if (r == 0)
        trust = JOURNAL_DAMAGED;
    }
    if (w->fn != NULL &&
        w->fn (w->opaque, b.seq, trust, w->body,
               trust == JOURNAL_DAMAGED ? b.list_len : b.len) == -1)
      return -1;
    w->seq = b.seq;
    w->position = b.position + batch_size (&b);
  }
}

/* Is pool.db, which has folded the batches up to 'folded', older than the
 * journal?
 */
static int
check_age (const struct journal *j, const struct evidence *e, uint64_t folded)
{
  if (e->epoch > e->of_epoch)
    return nbdedup_fail (EIO,
                         "%s: batch %" PRIu64 " was written in session %" PRIu64
                         ", but pool.db is still at session %" PRIu64
                         ": pool.db is older than the journal: " RESTORE,
                         j->path, e->epoch_by, e->epoch, e->of_epoch);
  if (e->folded > folded)
    return nbdedup_fail (EIO,
                         "%s: batch %" PRIu64 " says that pool.db has all "
                         "batches up to %" PRIu64 ", but pool.db has only "
                         "those up to %" PRIu64 ": pool.db or its WAL is older "
                         "than the journal: " RESTORE,
                         j->path, e->folded_by, e->folded, folded);
  return 0;
}

int
journal_replay (struct journal *journal, uint64_t position, uint64_t folded,
                uint64_t epoch,
                int (*fn) (void *opaque, uint64_t seq, enum journal_trust trust,
                           const uint8_t *body, size_t len),
                void *opaque)
{
  struct journal *j = journal;
  struct evidence e = { .of_epoch = epoch };
  CLEANUP_FREE uint8_t *body = NULL;
  struct log_walk w = { .epoch = epoch, .evidence = &e };

  assert (!j->replayed);
  if (position == 0)
    position = RING_START;
  if (position < RING_START || position % JOURNAL_ALIGN != 0 ||
      position > ring_end (j) - JOURNAL_ALIGN)
    return nbdedup_fail (EIO,
                         "%s: pool.db names position %" PRIu64 ", which "
                         "this journal does not have: " RESTORE_OR_DROP,
                         j->path, position);
  body = malloc (JOURNAL_BODY_MAX);
  if (body == NULL)
    return nbdedup_fail (ENOMEM, "%s: no memory", j->path);

  /* Make later reads return what is on disk: a killed process may have left
   * pages in the page cache that were not written, or whose write failed.
   */
  if (!j->readonly && full_datasync (j->fd) == -1)
    return nbdedup_fail (EIO, "%s: fdatasync: %s", j->path, strerror (errno));
  posix_fadvise (j->fd, 0, 0, POSIX_FADV_DONTNEED);

  /* Scan before any effect: never replay onto a pool.db that is too old, or
   * from a journal with a gap.
   */
  e.begin = position;
  if (gather (j, body, &e) == -1 || check_age (j, &e, folded) == -1)
    return -1;

  w.seq = folded;
  w.position = position;
  w.durable = e.durable;
  /* A durable batch is settled. */
  w.settled = e.settled > e.durable ? e.settled : e.durable;
  w.body = body;
  if (walk (j, &w) == -1)
    return -1;
  j->to_replay = w.seq - folded;
  w.seq = folded;
  w.position = position;
  w.fn = fn;
  w.opaque = opaque;
  if (walk (j, &w) == -1)
    return -1;
  if (j->nr_unreadable > 0)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: %" PRIu64 " bytes cannot be read: %s: the disk may be "
                 "failing",
                 j->path, j->nr_unreadable * JOURNAL_ALIGN, strerror (EIO));

  j->folded = j->settled = j->durable = j->told = folded;
  j->synced = j->appended = w.seq;
  j->tail = position;
  j->head = w.position;
  j->replayed_epoch = epoch;
  j->leftovers = e.seq > w.seq;
  j->replayed = true;
  return 0;
}

uint64_t
journal_to_replay (const struct journal *journal)
{
  return journal->to_replay;
}

bool
journal_was_cut_short (struct journal *journal)
{
  assert (journal->replayed);
  return journal->leftovers;
}

int
journal_follow (struct journal *journal, uint64_t position, uint64_t folded,
                uint64_t epoch,
                int (*fn) (void *opaque, uint64_t seq, enum journal_trust trust,
                           const uint8_t *body, size_t len),
                void *opaque, uint64_t *last)
{
  struct journal *j = journal;
  struct evidence e = { .of_epoch = epoch };
  CLEANUP_FREE uint8_t *body = malloc (JOURNAL_BODY_MAX);
  struct log_walk w = {
    .epoch = epoch,
    .evidence = &e,
    .seq = folded,
    .body = body,
    .fn = fn,
    .opaque = opaque,
  };
  int r;

  assert (j->readonly);
  *last = folded;
  if (body == NULL)
    return nbdedup_fail (ENOMEM, "%s: no memory", j->path);
  w.position = e.begin = position == 0 ? RING_START : position;
  /* A failed scan proves nothing: then all batches are suspect. */
  if (gather (j, body, &e) == -1 && errno == ENOMEM)
    return -1;
  w.durable = e.durable;
  w.settled = e.settled > e.durable ? e.settled : e.durable;
  r = walk (j, &w);
  *last = w.seq;
  return r;
}

static int
wipe_one (struct journal *j, const struct place *p, void *opaque)
{
  static const uint8_t zeroes[JOURNAL_ALIGN];
  const uint64_t trailer = p->b.position + batch_trailer_offset (&p->b);

  (void) opaque;
  if (p->moved || p->b.epoch != j->replayed_epoch || p->b.seq <= j->appended)
    return 0;
  if (full_pwrite (j->fd, zeroes, sizeof zeroes, p->position) == -1)
    return -1;
  /* The scan does not report the trailer of an intact batch. */
  return p->b.kind == BATCH_DATA && trailer != p->position
    ? full_pwrite (j->fd, zeroes, sizeof zeroes, trailer)
    : 0;
}

int
journal_wipe_leftovers_locked (struct journal *j)
{
  CLEANUP_FREE uint8_t *body = malloc (JOURNAL_BODY_MAX);

  assert_held (&j->lock);
  assert (j->replayed && !j->readonly);
  if (body == NULL)
    return nbdedup_fail (ENOMEM, "%s: no memory", j->path);
  if (scan_ring (j, body, wipe_one, NULL) == -1 ||
      full_datasync (j->fd) == -1 || j->nr_unreadable > 0) {
    if (j->nr_unreadable > 0) /* there may be more of them */
      errno = EIO;
    j->dead = true;
    return nbdedup_fail (EIO, "%s: clearing old batches: %s", j->path,
                         strerror (errno));
  }
  j->leftovers = false;
  return 0;
}
