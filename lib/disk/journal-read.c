/* SPDX-License-Identifier: BSD-3-Clause */

/* Reading the ring from a disk that has bad sectors.
 *
 * Replay reads all of the ring, most of which holds nothing that counts.  So a
 * sector that cannot be read must cost no more than itself: a read that fails
 * is repeated in smaller pieces, and what still fails reads as zeroes, which
 * are no header.  The journal notes these sectors; journal-replay.c decides
 * whether one of them can hold what counts.
 *
 * A sector that was noted is not read again: all passes over the ring see the
 * same.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fullio.h"
#include "disk/journal-int.h"

/* The page cache mostly reads such pieces, or nothing. */
#define PIECE_BYTES UINT64_C (4096)
/* A disk with more bad sectors than this has failed.  To try all sectors of a
 * large ring could take hours.
 */
#define UNREADABLE_MAX ((UINT64_C (1) << 20) / JOURNAL_ALIGN)

static uint64_t
smaller (uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

static int
fail_read (const struct journal *j, uint64_t position, size_t len,
           const char *why)
{
  return nbdedup_fail (EIO, "%s: reading %zu bytes at %" PRIu64 ": %s", j->path,
                       len, position, why);
}

/* 0; 1: the disk cannot read all of it; -1: another error. */
static int
read_at_once (struct journal *j, uint64_t position, uint8_t *buf, size_t len)
{
  const int64_t r = full_pread (j->fd, buf, len, position);

  if (r == (int64_t) len)
    return 0;
  if (r == -1 && errno == EIO)
    return 1;
  return fail_read (j, position, len,
                    r == -1 ? strerror (errno) : "end of file");
}

static int
note_unreadable (struct journal *j, uint64_t sector)
{
  if (j->unreadable == NULL) {
    j->unreadable = calloc (ring_end (j) / JOURNAL_ALIGN, 1);
    if (j->unreadable == NULL)
      return nbdedup_fail (ENOMEM, "%s: no memory", j->path);
  }
  if (j->nr_unreadable == UNREADABLE_MAX)
    return fail_read (j, sector * JOURNAL_ALIGN, JOURNAL_ALIGN, strerror (EIO));
  j->unreadable[sector] = 1;
  j->nr_unreadable++;
  return 0;
}

/* Read a part of one sector.  Returns as journal_read does. */
static int
read_sector (struct journal *j, uint64_t position, uint8_t *buf, size_t len)
{
  const uint64_t sector = position / JOURNAL_ALIGN;
  int r = 1;

  assert ((position + len - 1) / JOURNAL_ALIGN == sector);
  if (!journal_is_unreadable (j, position, position + len)) {
    r = read_at_once (j, position, buf, len);
    if (r == 1 && note_unreadable (j, sector) == -1)
      return -1;
  }
  if (r == 1)
    memset (buf, 0, len);
  return r;
}

/* Read a part of one piece.  Returns as journal_read does. */
static int
read_piece (struct journal *j, uint64_t position, uint8_t *buf, size_t len)
{
  uint64_t done, n;
  int r = 1, all = 0;

  if (!journal_is_unreadable (j, position, position + len))
    r = read_at_once (j, position, buf, len);
  if (r != 1)
    return r;
  for (done = 0; done < len; done += n) {
    n = smaller (len - done, JOURNAL_ALIGN - (position + done) % JOURNAL_ALIGN);
    r = read_sector (j, position + done, buf + done, n);
    if (r == -1)
      return -1;
    all |= r;
  }
  return all;
}

int
journal_read (struct journal *j, uint64_t position, void *buf, size_t len)
{
  uint64_t done, n;
  int r = 1, all = 0;

  /* A damaged pool.db can name any position. */
  if (position < RING_START || len > ring_end (j) ||
      position > ring_end (j) - len)
    return fail_read (j, position, len, "not in the ring");
  if (!journal_is_unreadable (j, position, position + len))
    r = read_at_once (j, position, buf, len);
  if (r != 1)
    return r;
  for (done = 0; done < len; done += n) {
    n = smaller (len - done, PIECE_BYTES - (position + done) % PIECE_BYTES);
    r = read_piece (j, position + done, (uint8_t *) buf + done, n);
    if (r == -1)
      return -1;
    all |= r;
  }
  return all;
}

bool
journal_is_unreadable (const struct journal *j, uint64_t start, uint64_t end)
{
  const uint64_t first = start / JOURNAL_ALIGN;

  end = smaller (end, ring_end (j));
  return j->unreadable && start < end &&
    memchr (j->unreadable + first, 1, (end - 1) / JOURNAL_ALIGN - first + 1);
}

int
journal_zero_unreadable_locked (struct journal *j)
{
  const uint64_t nr = ring_end (j) / JOURNAL_ALIGN;
  uint64_t first, last;

  assert_held (&j->lock);
  assert (!j->readonly && j->head == j->tail); /* nothing there counts */
  for (first = 0; j->unreadable && first < nr; first = last + 1) {
    for (last = first; last < nr && j->unreadable[last]; ++last)
      ;
    if (last > first &&
        full_write_zeroes (j->fd, first * JOURNAL_ALIGN,
                           last * JOURNAL_ALIGN) == -1)
      return nbdedup_fail (EIO,
                           "%s: %" PRIu64 " bytes at %" PRIu64 " cannot be "
                           "read, nor written: %s: run \"nbdedup recover "
                           "--without-journal\", which loses nothing now",
                           j->path, (last - first) * JOURNAL_ALIGN,
                           first * JOURNAL_ALIGN, strerror (errno));
  }
  free (j->unreadable);
  j->unreadable = NULL;
  j->nr_unreadable = 0;
  return 0;
}
