/* SPDX-License-Identifier: BSD-3-Clause */

/* The journal's file, its syncs and its live part: see journal.h.
 *
 * File header: a pair (header-pair.h), at offset 0 and 4096; the rest of
 * the first 8 KiB is zero.  Magic "NBDDUPJR", version 1; own32 is zero;
 * own64 is ring_end, the end of the ring in the file.  journal-batch.c
 * describes the ring.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/log.h"
#include "base/owner.h"
#include "disk/journal-int.h"

int
journal_fail_dead (struct journal *j)
{
  return nbdedup_fail (EIO,
                       "%s: an earlier write or fdatasync failed: restart "
                       "the server, or run the command again",
                       j->path);
}

void
journal_assert_consistent_locked (struct journal *j)
{
  assert_held (&j->lock);
  assert (j->folded <= j->synced && j->synced <= j->appended);
  assert (j->settled <= j->appended);
  assert (j->durable <= j->synced && j->durable <= j->settled);
  assert (j->told <= j->durable);
  assert (j->head % JOURNAL_ALIGN == 0 && j->tail % JOURNAL_ALIGN == 0);
}

static int
check_header (const char *path, const struct file_header *h)
{
  const uint64_t end = h->own64;

  if (end < JOURNAL_MIN_BYTES || end > JOURNAL_MAX_BYTES ||
      end % JOURNAL_ALIGN != 0)
    return nbdedup_fail (EIO,
                         "%s: damaged header: size %" PRIu64
                         ": " RESTORE_OR_DROP,
                         path, end);
  return 0;
}

/* No feature bits are known yet. */
static const struct header_kind header_kind = {
  .magic = "NBDDUPJR",
  .version = 1,
  .copy_distance = JOURNAL_HEADER_BYTES / 2,
  .no_magic = "is not a journal: no magic: " RESTORE_OR_DROP,
  .restore = RESTORE_OR_DROP,
  .check = check_header,
};

static int
read_header (struct journal *j, const uint8_t *uuid)
{
  struct stat st;

  if (fstat (j->fd, &st) == -1)
    return nbdedup_fail (EIO, "%s: %s", j->path, strerror (errno));
  if (!S_ISREG (st.st_mode))
    return nbdedup_fail (EIO, "%s: is not a regular file: " RESTORE_OR_DROP,
                         j->path);
  if (st.st_size < JOURNAL_HEADER_BYTES)
    return nbdedup_fail (EIO,
                         "%s: too short for a journal (%" PRIu64
                         " bytes): " RESTORE_OR_DROP,
                         j->path, (uint64_t) st.st_size);
  if (header_pair_read (&j->pair, &header_kind, j->fd, j->path) == -1)
    return -1;
  if (uuid != NULL && memcmp (j->pair.header.uuid, uuid, UUID_LEN) != 0)
    return nbdedup_fail (EIO, "%s: belongs to another pool: " RESTORE_OR_DROP,
                         j->path);
  if ((uint64_t) st.st_size < ring_end (j))
    return nbdedup_fail (EIO,
                         "%s: is truncated: %" PRIu64 " bytes, expected "
                         "%" PRIu64 ": " RESTORE_OR_DROP,
                         j->path, (uint64_t) st.st_size, ring_end (j));
  return 0;
}

int
journal_create (const char *path, const uint8_t uuid[UUID_LEN], uint64_t epoch)
{
  struct file_header header = { .epoch = epoch, .own64 = JOURNAL_MIN_BYTES };
  CLEANUP_CLOSE int fd = -1;
  uint8_t buf[HEADER_LEN];
  int err;

  memcpy (header.uuid, uuid, UUID_LEN);
  header_pack (&header_kind, &header, buf);

  fd = open_owned (path, O_RDWR | O_EXCL | O_CLOEXEC, 0600);
  if (fd == -1)
    return nbdedup_fail (errno, "%s: cannot be created: %s", path,
                         strerror (errno));
  if (full_write_zeroes (fd, 0, JOURNAL_MIN_BYTES) == -1 ||
      full_pwrite (fd, buf, sizeof buf, 0) == -1 ||
      full_pwrite (fd, buf, sizeof buf, header_kind.copy_distance) == -1 ||
      full_sync (fd) == -1 || sync_directory_of (path) == -1) {
    err = errno;
    unlink (path);
    return nbdedup_fail (err, "%s: cannot be created: %s", path,
                         strerror (err));
  }
  return 0;
}

/* Rename it to an unused name.  The pool's lock excludes other processes. */
static int
put_aside (const char *path)
{
  char aside[PATH_MAX];
  unsigned i = 1;
  struct stat st;

  if (lstat (path, &st) == -1 && errno == ENOENT) {
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: the journal was missing: nbdedup "
                 "begins a new one, and the writes flushed after the last fold "
                 "are lost",
                 path);
    return 0;
  }
  snprintf (aside, sizeof aside, "%s.damaged", path);
  while (lstat (aside, &st) == 0)
    snprintf (aside, sizeof aside, "%s.damaged.%u", path, ++i);
  if (rename (path, aside) == -1)
    return nbdedup_fail (errno, "%s: cannot be renamed: %s", path,
                         strerror (errno));
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "%s: nbdedup renamed it %s and begins a "
               "new journal: the writes flushed after the last fold are lost",
               path, aside);
  return 0;
}

int
journal_replace (const char *path, const uint8_t uuid[UUID_LEN], uint64_t epoch)
{
  CLEANUP_FREE char *new_path = NULL;

  if (asprintf (&new_path, "%s.new", path) == -1) {
    new_path = NULL;
    return nbdedup_fail (ENOMEM, "%s: no memory", path);
  }
  if (unlink (new_path) == -1 && errno != ENOENT)
    return nbdedup_fail (errno, "%s: %s", new_path, strerror (errno));
  if (journal_create (new_path, uuid, epoch) == -1 || put_aside (path) == -1)
    return -1;
  if (rename (new_path, path) == -1 || sync_directory_of (path) == -1)
    return nbdedup_fail (errno, "%s: cannot be renamed: %s", new_path,
                         strerror (errno));
  return 0;
}

static struct journal *
open_journal (const char *path, const uint8_t *uuid, bool readonly,
              uint64_t *epoch)
{
  struct journal *j;
  struct stat st;
  int err;

  j = calloc (1, sizeof *j);
  if (j == NULL)
    return nbdedup_fail_null (ENOMEM, "%s: no memory", path);
  lock_init (&j->lock);
  cond_init (&j->cond);
  j->path = strdup (path);
  j->hasher = XXH3_createState ();
  /* O_NONBLOCK: do not wait for a FIFO in its place.  O_NOFOLLOW: of the
   * pool's files only "records" may be elsewhere.
   */
  j->fd = open (path,
                (readonly ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW |
                  O_NONBLOCK | O_NOCTTY);
  err = errno;
  if (j->path == NULL || j->hasher == NULL) {
    nbdedup_fail (ENOMEM, "%s: no memory", path);
    goto fail;
  }
  if (j->fd == -1) {
    if (err == ENOENT)
      nbdedup_fail (EIO, "%s: is missing: " RESTORE_OR_DROP, path);
    else
      nbdedup_fail (err == EISDIR || err == ENXIO ? EIO : err, "%s: %s", path,
                    err == ELOOP ? "not a regular file" : strerror (err));
    goto fail;
  }
  if (fstat (j->fd, &st) == -1) {
    nbdedup_fail (EIO, "%s: %s", path, strerror (errno));
    goto fail;
  }
  if (!S_ISREG (st.st_mode)) {
    nbdedup_fail (EIO, "%s: not a regular file", path);
    goto fail;
  }
  if (read_header (j, uuid) == -1)
    goto fail;
  j->readonly = readonly;
  *epoch = j->pair.header.epoch;
  return j;

fail:
  err = errno;
  journal_close (j);
  errno = err;
  return NULL;
}

struct journal *
journal_open (const char *path, const uint8_t uuid[UUID_LEN], uint64_t *epoch)
{
  return open_journal (path, uuid, false, epoch);
}

struct journal *
journal_open_readonly (const char *path, const uint8_t uuid[UUID_LEN],
                       uint64_t *epoch)
{
  return open_journal (path, uuid, true, epoch);
}

int
journal_peek (const char *path, uint8_t uuid[UUID_LEN], uint64_t *epoch)
{
  struct journal *j = open_journal (path, NULL, true, epoch);

  if (j == NULL)
    return -1;
  memcpy (uuid, j->pair.header.uuid, UUID_LEN);
  journal_close (j);
  return 0;
}

void
journal_close (struct journal *journal)
{
  if (journal == NULL)
    return;
  assert (!journal->running);
  if (journal->fd != -1)
    close (journal->fd);
  free (journal->unreadable);
  XXH3_freeState (journal->hasher);
  cond_destroy (&journal->cond);
  lock_destroy (&journal->lock);
  free (journal->path);
  free (journal);
}

int
journal_set_epoch (struct journal *journal, uint64_t epoch)
{
  WITH_LOCK (&journal->lock);
  WITH_CONSISTENT (journal, journal);

  assert (!journal->readonly);
  if (journal->dead)
    return journal_fail_dead (journal);
  /* See (a) in journal-replay.c. */
  if (journal->appended != journal->folded)
    return nbdedup_fail (EINVAL,
                         "%s: a new session cannot begin before batch "
                         "%" PRIu64 " is folded",
                         journal->path, journal->appended);
  /* The sync of the header covers this, too.  Batches that the page cache puts
   * beside an unreadable sector could not be written otherwise.
   */
  if (journal_zero_unreadable_locked (journal) == -1) {
    journal->dead = true;
    return -1;
  }
  if (header_pair_set_epoch (&journal->pair, journal->fd, epoch) == -1) {
    journal->dead = true;
    return nbdedup_fail (EIO, "%s: writing the header: %s", journal->path,
                         strerror (errno));
  }
  return 0;
}

int
journal_sync (struct journal *journal, uint64_t seq)
{
  struct journal *j = journal;
  uint64_t covers;
  int r, err;

  assert (!j->readonly);
  lock_acquire (&j->lock);
  assert (seq <= j->appended);
  while (j->synced < seq && !j->dead) {
    if (j->running) { /* until: running is false */
      lock_wait (&j->lock, &j->cond);
      continue;
    }
    j->running = true;
    covers = j->appended;
    lock_release (&j->lock);

    r = full_datasync (j->fd);
    err = errno;

    lock_acquire (&j->lock);
    assert (covers <= j->appended);
    j->running = false;
    if (r == -1)
      j->dead = true;
    else if (covers > j->synced)
      j->synced = covers;
    cond_broadcast (&j->cond);
    if (r == -1) {
      lock_release (&j->lock);
      return nbdedup_fail (EIO,
                           "%s: fdatasync: %s: restart the server, or run "
                           "the command again",
                           j->path, strerror (err));
    }
  }
  r = j->dead ? -1 : 0;
  if (r == 0) {
    /* A batch that is not settled may name records that the store has not
     * synced.
     */
    covers = j->synced < j->settled ? j->synced : j->settled;
    if (j->durable < covers)
      j->durable = covers;
    journal_mark_locked (j);
  }
  journal_assert_consistent_locked (j);
  lock_release (&j->lock);
  return r == 0 ? 0 : journal_fail_dead (j);
}

void
journal_get_end (struct journal *journal, uint64_t *seq, uint64_t *position)
{
  WITH_LOCK (&journal->lock);

  assert (journal->replayed);
  *seq = journal->appended;
  *position = journal->head;
}

void
journal_trim (struct journal *journal, uint64_t seq, uint64_t position)
{
  WITH_LOCK (&journal->lock);
  WITH_CONSISTENT (journal, journal);

  assert (!journal->readonly && position % JOURNAL_ALIGN == 0);
  assert (seq <= journal->appended);
  assert (seq < journal->appended || position == journal->head);
  if (seq < journal->folded)
    return; /* a later call was faster */
  journal->folded = seq;
  journal->tail = position;
  /* The batch's effects are durable, even if the batch itself is not. */
  if (journal->synced < seq)
    journal->synced = seq;
  if (journal->settled < seq)
    journal->settled = seq;
  if (journal->durable < seq)
    journal->durable = seq;
}

void
journal_get_usage (struct journal *journal, uint64_t *live_bytes,
                   uint64_t *ring_bytes)
{
  WITH_LOCK (&journal->lock);
  const uint64_t ring = ring_end (journal) - RING_START;

  *live_bytes = journal->head >= journal->tail
    ? journal->head - journal->tail
    : ring - (journal->tail - journal->head);
  assert (*live_bytes <= ring);
  *ring_bytes = ring;
}

uint64_t
journal_written_bytes (struct journal *journal)
{
  WITH_LOCK (&journal->lock);
  return journal->written_bytes;
}
