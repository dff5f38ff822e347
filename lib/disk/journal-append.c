/* SPDX-License-Identifier: BSD-3-Clause */

/* Appending to the journal: the place of the next batch.
 *
 * journal_append writes a batch at the head, or at the ring's start with a wrap
 * at the head.  Room for a wrap always stays behind it, so that the ring can
 * continue at its start from any position of the head.  While more than half of
 * the ring is live, and after an append that found no room, the ring grows
 * instead of wrapping: a ring that is trimmed seldom becomes large, one that is
 * trimmed often stays small.
 *
 * After a failed write the content of the file is unknown.  So the failure
 * kills the journal, and a session never uses a number twice.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/statvfs.h>

#include <xxhash.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/xxh3.h"
#include "disk/journal-int.h"

/* The journal's share of its file system, and its size on a small one. */
#define FS_PER_JOURNAL 64
#define JOURNAL_SMALL_BYTES (UINT64_C (2) << 20)

/* How far the journal may grow.  On a small file system it may grow less,
 * because the reserve for a full pool is small there, too.
 */
static uint64_t
ring_end_max (struct journal *j)
{
  struct statvfs fs;
  uint64_t bytes;

  if (fstatvfs (j->fd, &fs) == -1)
    return JOURNAL_MAX_BYTES;
  bytes = (uint64_t) fs.f_blocks * fs.f_frsize / FS_PER_JOURNAL;
  if (bytes < JOURNAL_SMALL_BYTES)
    bytes = JOURNAL_SMALL_BYTES;
  return bytes < JOURNAL_MAX_BYTES ? bytes - bytes % JOURNAL_ALIGN
                                   : JOURNAL_MAX_BYTES;
}

uint64_t
journal_may_grow (struct journal *j)
{
  uint64_t max;
  WITH_LOCK (&j->lock);

  max = ring_end_max (j);
  return max > ring_end (j) ? max - ring_end (j) : 0;
}

/* Extend the ring to 'new_end' or to twice its end, whichever is more.  A crash
 * meanwhile leaves a longer file and the old ring.
 *
 * Returns 0; 1 if the ring cannot grow, because it has its full size or the
 * file system is full (nothing has changed then); -1 on error.
 */
static int
grow_locked (struct journal *j, uint64_t new_end)
{
  struct file_header header = j->pair.header;
  const uint64_t old_end = ring_end (j), max = ring_end_max (j);

  assert_held (&j->lock);
  assert (j->head >= j->tail);

  if (old_end >= max)
    return 1;
  if (new_end < 2 * old_end)
    new_end = 2 * old_end;
  if (new_end > max)
    new_end = max;

  assert (new_end > old_end && new_end % JOURNAL_ALIGN == 0);
  if (full_write_zeroes (j->fd, old_end, new_end) == -1) {
    if (ftruncate (j->fd, old_end) == -1)
      goto fail;
    return 1;
  }
  if (full_sync (j->fd) == -1)
    goto fail;
  header.own64 = new_end;
  if (header_pair_write (&j->pair, j->fd, &header) == -1)
    goto fail;
  return 0;

fail:
  j->dead = true;
  return nbdedup_fail (EIO, "%s: cannot extend it: %s", j->path,
                       strerror (errno));
}

/* Find room for 'size' bytes, at the head or (*wrap) at the ring's start.
 * Returns as journal_append does.
 */
static int
find_room_locked (struct journal *j, uint64_t size, bool *wrap)
{
  int r;

  assert_held (&j->lock);
  assert (size > 0 && size % JOURNAL_ALIGN == 0);
  *wrap = false;

  if (j->head < j->tail) {
    /* Strictly less: head == tail means empty. */
    if (j->head + size < j->tail)
      return 0;
    j->want_growth = true;
    return 1;
  }

  if (j->want_growth ||
      (j->head + size + JOURNAL_ALIGN > ring_end (j) &&
       j->head - j->tail > (ring_end (j) - RING_START) / 2)) {
    j->want_growth = false;
    if (grow_locked (j, 0) == -1)
      return -1;
  }
  if (j->head + size + JOURNAL_ALIGN <= ring_end (j))
    return 0;
  if (RING_START + size < j->tail) {
    *wrap = true;
    return 0;
  }
  r = grow_locked (j, j->head + size + JOURNAL_ALIGN);
  if (r == -1)
    return -1;
  if (r == 0 && j->head + size + JOURNAL_ALIGN <= ring_end (j))
    return 0;
  if (j->head != j->tail)
    return 1;
  /* Nothing is live, so waiting does not help.  In a ring of the full size
   * one side of the head has room for any batch, so this ring could not grow.
   */
  return nbdedup_fail (ENOSPC,
                       "%s: no room to extend it for a batch of %" PRIu64
                       " bytes: free some space on its file system",
                       j->path, size);
}

static int
write_failed_locked (struct journal *j)
{
  const int err = errno;

  assert_held (&j->lock);
  j->dead = true;
  return nbdedup_fail (err == ENOSPC || err == EDQUOT ? ENOSPC : EIO,
                       "%s: writing batch %" PRIu64 ": %s", j->path,
                       j->appended + 1, strerror (err));
}

/* Mark the place from which the ring continues at its start. */
static int
write_wrap_locked (struct journal *j)
{
  const struct journal_batch b = {
    .kind = BATCH_WRAP,
    .epoch = j->pair.header.epoch,
    .seq = j->appended + 1,
    .durable = j->durable,
    .folded = j->folded,
    .settled = j->settled,
    .position = j->head,
    .body_hash = XXH3_64bits (NULL, 0),
  };
  uint8_t buf[JOURNAL_ALIGN] = { 0 };

  batch_pack (j, &b, buf);
  return full_pwrite (j->fd, buf, sizeof buf, j->head);
}

/* The place of a mark, or 0 if there is no room.  The mark overwrites nothing
 * live, and the next batch goes to the same place as without it.
 */
static uint64_t
mark_position_locked (const struct journal *j)
{
  const uint64_t end = j->head < j->tail ? j->tail : ring_end (j);
  const uint64_t next = (j->head + MARK_PAGE - 1) & ~(uint64_t) (MARK_PAGE - 1);

  if (next + JOURNAL_ALIGN <= end)
    return next;
  return j->head + JOURNAL_ALIGN <= end ? j->head : 0;
}

void
journal_mark_locked (struct journal *j)
{
  const struct journal_batch b = {
    .kind = BATCH_MARK,
    .epoch = j->pair.header.epoch,
    .seq = j->appended,
    .durable = j->durable,
    .folded = j->folded,
    .settled = j->settled,
    .position = mark_position_locked (j),
    .body_hash = XXH3_64bits (NULL, 0),
  };
  uint8_t buf[JOURNAL_ALIGN] = { 0 };

  assert_held (&j->lock);
  if (j->told >= j->durable || b.position == 0)
    return;
  batch_pack (j, &b, buf);
  /* Ignore a failure: nothing depends on the mark, and the next sync or batch
   * will report an error of the disk.
   */
  if (full_pwrite (j->fd, buf, sizeof buf, b.position) == 0)
    j->told = j->durable;
}

/* A batch in memory. */
struct pieces {
  struct iovec *all; /* owned; in the order of the file */
  int nr_all;
  const struct iovec *body, *list; /* parts of 'all' */
  int nr_body;
  uint8_t header[BATCH_HEADER_LEN], trailer[BATCH_TRAILER_LEN];
};

/* Put the pieces of batch 'b' in order.  Its header and trailer are not packed
 * yet.
 */
static int
gather (const struct journal_batch *b, const struct iovec *body, int nr_body,
        const struct iovec *list, struct pieces *pieces)
{
  static const uint8_t zeroes[JOURNAL_ALIGN];
  const uint64_t trailer = batch_trailer_offset (b);
  struct iovec *p;
  int i;

  p = pieces->all = malloc ((nr_body + 5) * sizeof *p);
  if (p == NULL)
    return -1;
  *p++ = (struct iovec) { pieces->header, BATCH_HEADER_LEN };
  pieces->body = p;
  pieces->nr_body = nr_body;
  for (i = 0; i < nr_body; ++i)
    *p++ = body[i];
  *p++ = (struct iovec) {
    (void *) zeroes,
    trailer - BATCH_HEADER_LEN - b->len,
  };
  *p++ = (struct iovec) { pieces->trailer, BATCH_TRAILER_LEN };
  pieces->list = p;
  *p++ = *list;
  *p++ = (struct iovec) {
    (void *) zeroes,
    batch_size (b) - trailer - BATCH_TRAILER_LEN - b->list_len,
  };
  pieces->nr_all = (int) (p - pieces->all);
  return 0;
}

/* Fill in the rest of 'b', which has a length and a place, and pack it. */
static void
seal_locked (struct journal *j, struct journal_batch *b, uint64_t settled,
             struct pieces *pieces)
{
  int i;

  assert_held (&j->lock);
  XXH3_64bits_reset (j->hasher);
  for (i = 0; i < pieces->nr_body; ++i)
    xxh3_64_update (j->hasher, pieces->body[i].iov_base,
                    pieces->body[i].iov_len);
  b->epoch = j->pair.header.epoch;
  b->seq = j->appended + 1;
  b->durable = j->durable;
  b->folded = j->folded;
  b->settled = settled == JOURNAL_ITSELF ? b->seq
    : settled > j->settled               ? settled
                                         : j->settled;
  assert (b->settled <= b->seq);
  b->body_hash = XXH3_64bits_digest (j->hasher);
  batch_pack (j, b, pieces->header);
  batch_pack_trailer (j, b, xxh3_64 (pieces->list->iov_base, b->list_len),
                      pieces->trailer);
}

/* Find a place for 'b', and write it there.  Returns as journal_append does. */
static int
append_locked (struct journal *j, struct journal_batch *b, uint64_t settled,
               struct pieces *pieces)
{
  const uint64_t size = batch_size (b);
  bool wrap;
  int r;

  assert_held (&j->lock);
  assert (j->replayed && !j->readonly);
  if (j->dead)
    return journal_fail_dead (j);
  if (j->leftovers && j->pair.header.epoch == j->replayed_epoch &&
      journal_wipe_leftovers_locked (j) == -1)
    return -1;
  r = find_room_locked (j, size, &wrap);
  if (r != 0)
    return r;

  b->position = j->head;
  if (wrap) {
    if (write_wrap_locked (j) == -1)
      return write_failed_locked (j);
    b->position = RING_START;
  }
  /* Room for a wrap always stays behind a batch. */
  assert (b->position + size + JOURNAL_ALIGN <= ring_end (j));
  seal_locked (j, b, settled, pieces);
  if (full_pwritev (j->fd, pieces->all, pieces->nr_all, b->position) == -1)
    return write_failed_locked (j);

  j->head = b->position + size;
  j->written_bytes += size;
  j->appended++;
  j->settled = b->settled;
  j->told = b->durable;
  return 0;
}

int
journal_append (struct journal *journal, const struct iovec *iov, int nr_iov,
                const struct iovec *list, uint64_t settled, uint64_t *seq)
{
  struct journal_batch b = { .kind = BATCH_DATA };
  struct pieces pieces;
  uint64_t len = 0;
  int i, r;

  for (i = 0; i < nr_iov; ++i)
    len += iov[i].iov_len;
  assert (len <= JOURNAL_BODY_MAX && list->iov_len <= JOURNAL_BODY_MAX);
  b.len = (uint32_t) len;
  b.list_len = (uint32_t) list->iov_len;
  if (gather (&b, iov, nr_iov, list, &pieces) == -1)
    return nbdedup_fail (ENOMEM, "%s: no memory", journal->path);

  {
    WITH_LOCK (&journal->lock);
    WITH_CONSISTENT (journal, journal);
    r = append_locked (journal, &b, settled, &pieces);
  }
  if (r == 0)
    *seq = b.seq;
  free (pieces.all);
  return r;
}
