/* SPDX-License-Identifier: BSD-3-Clause */

/* The journal: see journal.h.  All integers are little-endian.
 *
 * File header: a pair (header-pair.h), at offset 0 and 4096; the rest of
 * the first 8 KiB is zero.  Magic "NBDDUPJR", version 1; own32 is zero;
 * own64 is ring_end, where the ring ends in the file.
 *
 * The ring is [8192, ring_end).  A batch starts at a multiple of 512 with
 * its header; its body follows at once, then zeroes up to the next
 * multiple of 512.
 *
 *   OFFSET  SIZE  FIELD
 *      0      4   magic "NBJB"
 *      4      4   kind: 1 data, 2 wrap
 *      8     16   uuid of the pool
 *     24      8   epoch of the session that wrote it
 *     32      8   seq: its number; of a wrap: of the batch at the start
 *     40      8   durable: the highest number known durable, with what its
 *                 batch refers to
 *     48      8   folded: the highest number known folded into pool.db
 *     56      8   position: offset of this header in the file
 *     64      4   length of the body; 0 for a wrap
 *     68      4   zero
 *     72      8   XXH3_64bits of the body
 *     80      8   zero
 *     88      8   XXH3_64bits of bytes 0 .. 87
 *
 * A batch never ends at ring_end: room for a wrap always stays behind it.
 * The position is there because bodies carry the bytes of users: a copy of
 * a journal inside of a journal must not be mistaken for its batches.
 *
 * Why replay takes the right batches and no others
 * ------------------------------------------------
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
 *     leftovers' headers are zeroed first: wipe_leftovers.)
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
 *     the proof (c) right there.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <xxhash.h>

#include "bytes.h"
#include "cleanup.h"
#include "error.h"
#include "fullio.h"
#include "header-pair.h"
#include "journal.h"
#include "lock.h"

#define FS_PER_JOURNAL 64
#define JOURNAL_SMALL_BYTES (UINT64_C (2) << 20)
#define RING_START ((uint64_t) JOURNAL_HEADER_BYTES)

#define BATCH_MAGIC "NBJB"
#define BATCH_HEADER_LEN 96

#define RESTORE "restore all files of the pool from one backup"

enum batch_kind { BATCH_DATA = 1, BATCH_WRAP = 2 };

struct batch {
  enum batch_kind kind;
  uint64_t epoch, seq, durable, folded;
  uint32_t len;
  uint64_t body_hash;
};

struct journal {
  int fd;                       /* constant */
  char *path;                   /* owned; for messages */

  struct lock lock;             /* protects everything below */
  pthread_cond_t cond;          /* a sync ended */
  struct header_pair pair;
  XXH3_state_t *hasher;         /* owned; scratch of journal_append */

  /* folded <= synced <= appended: trim makes the first two one if pool.db
   * was faster than fdatasync.
   *
   * Live is [tail, head), or, if head < tail, [tail, ring_end) and
   * [RING_START, head).  head == tail if and only if nothing is live.
   */
  uint64_t folded, synced, appended;
  uint64_t durable;             /* <= synced: what callers asked for */
  uint64_t tail, head;

  uint64_t replayed_epoch;
  bool replayed;
  bool leftovers;               /* of replayed_epoch: see wipe_leftovers */
  bool want_growth;             /* there was no room at least once */
  bool running;                 /* somebody is in fdatasync */
  bool dead;                    /* for ever */
};

/* Where the ring ends in the file. */
static uint64_t
ring_end (const struct journal *j)
{
  return j->pair.header.own64;
}

static uint64_t
round_up (uint64_t n)
{
  return (n + JOURNAL_ALIGN - 1) & ~(uint64_t) (JOURNAL_ALIGN - 1);
}

/*----------------------------------------------------------------------
 * The file's header
 */

static int
check_header (const char *path, const struct file_header *h)
{
  const uint64_t end = h->own64;

  if (end < JOURNAL_MIN_BYTES || end > JOURNAL_MAX_BYTES ||
      end % JOURNAL_ALIGN != 0)
    return nbdedup_fail (EIO, "%s: damaged header: size %" PRIu64 ": " RESTORE,
                         path, end);
  return 0;
}

/* No feature bits are known yet. */
static const struct header_kind header_kind = {
  .magic = "NBDDUPJR",
  .version = 1,
  .copy_distance = JOURNAL_HEADER_BYTES / 2,
  .no_magic = "is not a journal: no magic: " RESTORE,
  .restore = RESTORE,
  .check = check_header,
};

static int
read_header (struct journal *j, const uint8_t *uuid)
{
  struct stat st;

  if (fstat (j->fd, &st) == -1)
    return nbdedup_fail (EIO, "%s: %s", j->path, strerror (errno));
  if (!S_ISREG (st.st_mode))
    return nbdedup_fail (EIO, "%s: is not a regular file: " RESTORE, j->path);
  if (st.st_size < JOURNAL_HEADER_BYTES)
    return nbdedup_fail (EIO, "%s: too short for a journal (%" PRIu64
                         " bytes): " RESTORE, j->path,
                         (uint64_t) st.st_size);
  if (header_pair_read (&j->pair, &header_kind, j->fd, j->path) == -1)
    return -1;
  if (uuid != NULL && memcmp (j->pair.header.uuid, uuid, UUID_LEN) != 0)
    return nbdedup_fail (EIO, "%s: belongs to another pool: " RESTORE,
                         j->path);
  if ((uint64_t) st.st_size < ring_end (j))
    return nbdedup_fail (EIO, "%s: is truncated: %" PRIu64 " bytes, expected "
                         "%" PRIu64 ": " RESTORE, j->path,
                         (uint64_t) st.st_size, ring_end (j));
  return 0;
}

/*----------------------------------------------------------------------
 * Creating, opening, growing
 */

int
journal_create (const char *path, const uint8_t uuid[UUID_LEN],
                uint64_t epoch)
{
  struct file_header header = { .epoch = epoch,
                                .own64 = JOURNAL_MIN_BYTES };
  CLEANUP_CLOSE int fd = -1;
  uint8_t buf[HEADER_LEN];
  int err;

  memcpy (header.uuid, uuid, UUID_LEN);
  header_pack (&header_kind, &header, buf);

  fd = open (path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd == -1)
    return nbdedup_fail (errno, "%s: cannot be created: %s",
                         path, strerror (errno));
  if (full_write_zeroes (fd, 0, JOURNAL_MIN_BYTES) == -1 ||
      full_pwrite (fd, buf, sizeof buf, 0) == -1 ||
      full_pwrite (fd, buf, sizeof buf, header_kind.copy_distance) == -1 ||
      fsync (fd) == -1 || sync_directory_of (path) == -1) {
    err = errno;
    unlink (path);
    return nbdedup_fail (err, "%s: cannot be created: %s",
                         path, strerror (err));
  }
  return 0;
}

struct journal *
journal_open (const char *path, const uint8_t uuid[UUID_LEN],
              uint64_t *epoch)
{
  struct journal *j;
  int err;

  j = calloc (1, sizeof *j);
  if (j == NULL)
    return nbdedup_fail_null (ENOMEM, "%s: no memory", path);
  lock_init (&j->lock);
  cond_init (&j->cond);
  j->path = strdup (path);
  j->hasher = XXH3_createState ();
  /* O_NONBLOCK: a FIFO in its place must not make us wait. */
  j->fd = open (path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  err = errno;
  if (j->path == NULL || j->hasher == NULL) {
    nbdedup_fail (ENOMEM, "%s: no memory", path);
    goto fail;
  }
  if (j->fd == -1) {
    if (err == ENOENT)
      nbdedup_fail (EIO, "%s: is missing: " RESTORE, path);
    else
      nbdedup_fail (err == EISDIR || err == ENXIO ? EIO : err,
                    "%s: %s", path, strerror (err));
    goto fail;
  }
  if (read_header (j, uuid) == -1)
    goto fail;
  *epoch = j->pair.header.epoch;
  return j;

 fail:
  err = errno;
  journal_close (j);
  errno = err;
  return NULL;
}

void
journal_close (struct journal *journal)
{
  if (journal == NULL)
    return;
  assert (!journal->running);
  if (journal->fd != -1)
    close (journal->fd);
  XXH3_freeState (journal->hasher);
  pthread_cond_destroy (&journal->cond);
  lock_destroy (&journal->lock);
  free (journal->path);
  free (journal);
}

static int
fail_dead (struct journal *j)
{
  return nbdedup_fail (EIO, "%s: a write or fdatasync failed before: stop, and "
                       "open the pool again", j->path);
}

int
journal_set_epoch (struct journal *journal, uint64_t epoch)
{
  WITH_LOCK (&journal->lock);

  if (journal->dead)
    return fail_dead (journal);
  /* See (a) above. */
  if (journal->appended != journal->folded)
    return nbdedup_fail (EINVAL, "%s: a new session cannot begin before batch "
                         "%" PRIu64 " is folded", journal->path,
                         journal->appended);
  if (header_pair_set_epoch (&journal->pair, journal->fd, epoch) == -1) {
    journal->dead = true;
    return nbdedup_fail (EIO, "%s: writing the header: %s",
                         journal->path, strerror (errno));
  }
  return 0;
}

/* How far the journal may grow: on a small file system less, because the
 * reserve that keeps a full pool going is small there, too.
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

/* Let the ring end at 'new_end' or, if that is more, where it becomes
 * twice as large.  A crash in here leaves a longer file and the old ring.
 *
 * Returns 0, 1 if it cannot grow (it has its full size, or the file system
 * is full: nothing has changed then), -1 on error.
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

  if (full_write_zeroes (j->fd, old_end, new_end) == -1) {
    if (ftruncate (j->fd, old_end) == -1)
      goto fail;
    return 1;
  }
  if (fsync (j->fd) == -1)
    goto fail;
  header.own64 = new_end;
  if (header_pair_write (&j->pair, j->fd, &header) == -1)
    goto fail;
  return 0;

 fail:
  j->dead = true;
  return nbdedup_fail (EIO, "%s: extending it: %s", j->path,
                       strerror (errno));
}

/*----------------------------------------------------------------------
 * Batches
 */

static void
batch_pack (const struct journal *j, const struct batch *b,
            uint64_t position, uint8_t buf[BATCH_HEADER_LEN])
{
  memset (buf, 0, BATCH_HEADER_LEN);
  memcpy (buf, BATCH_MAGIC, 4);
  put_le32 (buf + 4, b->kind);
  memcpy (buf + 8, j->pair.header.uuid, UUID_LEN);
  put_le64 (buf + 24, b->epoch);
  put_le64 (buf + 32, b->seq);
  put_le64 (buf + 40, b->durable);
  put_le64 (buf + 48, b->folded);
  put_le64 (buf + 56, position);
  put_le32 (buf + 64, b->len);
  put_le64 (buf + 72, b->body_hash);
  put_le64 (buf + 88, XXH3_64bits (buf, 88));
}
static_assert (8 + UUID_LEN == 24 && 88 + 8 == BATCH_HEADER_LEN &&
               BATCH_HEADER_LEN <= JOURNAL_ALIGN, "batch header layout");

/* What it takes in the ring. */
static uint64_t
batch_size (uint32_t len)
{
  return round_up (BATCH_HEADER_LEN + (uint64_t) len);
}

/* Is there a valid batch header at 'buf', which was read from 'position'?
 * It is valid if and only if all of this holds.  Nothing is said about its
 * body.
 */
static bool
batch_unpack (const struct journal *j, const uint8_t *buf,
              uint64_t position, struct batch *b)
{
  if (memcmp (buf, BATCH_MAGIC, 4) != 0 ||
      get_le64 (buf + 88) != XXH3_64bits (buf, 88) ||
      memcmp (buf + 8, j->pair.header.uuid, UUID_LEN) != 0 ||
      get_le64 (buf + 56) != position ||
      get_le32 (buf + 68) != 0 || get_le64 (buf + 80) != 0)
    return false;
  switch (get_le32 (buf + 4)) {
  case BATCH_DATA: b->kind = BATCH_DATA; break;
  case BATCH_WRAP: b->kind = BATCH_WRAP; break;
  default: return false;
  }
  b->epoch = get_le64 (buf + 24);
  b->seq = get_le64 (buf + 32);
  b->durable = get_le64 (buf + 40);
  b->folded = get_le64 (buf + 48);
  b->len = get_le32 (buf + 64);
  b->body_hash = get_le64 (buf + 72);
  if (b->seq == 0 || b->len > JOURNAL_BODY_MAX)
    return false;
  if (b->kind == BATCH_WRAP)
    return b->len == 0;
  return position + batch_size (b->len) + JOURNAL_ALIGN <=
    ring_end (j);
}

/* Read the body of batch 'b' at 'position' into 'body' (JOURNAL_BODY_MAX
 * bytes) and check it.  Returns 1 if it is right, 0 if not, -1 on error.
 */
static int
batch_read_body (struct journal *j, uint64_t position, const struct batch *b,
                 uint8_t *body)
{
  const int64_t r =
    full_pread (j->fd, body, b->len, position + BATCH_HEADER_LEN);

  if (r == -1 || r < b->len)
    return nbdedup_fail (EIO, "%s: reading %" PRIu32 " bytes at %" PRIu64
                         ": %s: " RESTORE, j->path, b->len, position,
                         r == -1 ? strerror (errno) : "end of file");
  return XXH3_64bits (body, b->len) == b->body_hash;
}

/*----------------------------------------------------------------------
 * Replay
 */

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
  if (b->epoch == e->of_epoch && b->seq > e->seq)
    e->seq = b->seq;
  return 0;
}

/* Follow the numbers from 'seq' + 1 at '*position' to the last valid batch;
 * return its number and the position after it.  'fn' may be NULL.  Batches
 * after 'durable' are suspect.
 */
static int
walk (struct journal *j, uint64_t epoch, uint64_t *seq, uint64_t *position,
      uint64_t durable, uint8_t *body,
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
    if (!batch_unpack (j, buf, pos, &b) || b.epoch != epoch ||
        b.seq != *seq + 1)
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
    if (fn != NULL && fn (opaque, b.seq, b.seq > durable, body, b.len) == -1)
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
  if (fdatasync (j->fd) == -1)
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
  if (walk (j, epoch, &seq, &pos, e.durable, body, fn, opaque) == -1)
    return -1;

  j->folded = j->durable = folded;
  j->synced = j->appended = seq;
  j->tail = position;
  j->head = pos;
  j->replayed_epoch = epoch;
  j->leftovers = e.seq > seq;
  j->replayed = true;
  return 0;
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

/* Batches of the replayed session that come after the end of the log: if
 * the next ones had the same epoch, these could be taken for theirs.  They
 * never can when the session has a new one, as pool.c makes it.
 */
static int
wipe_leftovers_locked (struct journal *j)
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

/*----------------------------------------------------------------------
 * Appending
 */

/* Find room for 'size' bytes: '*wrap' says that it is at the ring's start
 * and not at the head.  Returns as journal_append.
 */
static int
find_room_locked (struct journal *j, uint64_t size, bool *wrap)
{
  int r;

  assert_held (&j->lock);
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
  /* Nothing is live, nothing can be waited for.  In a ring of the full size
   * one side of the head has room for any batch, so it could not grow.
   */
  return nbdedup_fail (ENOSPC, "%s: no room to extend it for a batch of %"
                       PRIu64 " bytes: free some space on its file system",
                       j->path, size);
}

static int
write_failed_locked (struct journal *j)
{
  const int err = errno;

  assert_held (&j->lock);
  j->dead = true;
  return nbdedup_fail (err == ENOSPC || err == EDQUOT ? ENOSPC : EIO,
                       "%s: writing batch %" PRIu64 ": %s",
                       j->path, j->appended + 1, strerror (err));
}

/* Mark the place where the ring goes on at its start. */
static int
write_wrap_locked (struct journal *j)
{
  const struct batch b = {
    .kind = BATCH_WRAP, .epoch = j->pair.header.epoch, .seq = j->appended + 1,
    .durable = j->durable, .folded = j->folded,
    .body_hash = XXH3_64bits (NULL, 0),
  };
  uint8_t buf[JOURNAL_ALIGN] = { 0 };

  batch_pack (j, &b, j->head, buf);
  return full_pwrite (j->fd, buf, sizeof buf, j->head);
}

int
journal_append (struct journal *journal, const struct iovec *iov, int nr_iov,
                uint64_t *seq)
{
  static const uint8_t zeroes[JOURNAL_ALIGN];
  struct journal *j = journal;
  CLEANUP_FREE struct iovec *all = NULL;
  uint8_t buf[BATCH_HEADER_LEN];
  struct batch b = { .kind = BATCH_DATA };
  uint64_t len = 0, size, pos;
  bool wrap;
  int i, r;

  for (i = 0; i < nr_iov; ++i)
    len += iov[i].iov_len;
  assert (len <= JOURNAL_BODY_MAX);
  size = batch_size (len);

  all = malloc ((nr_iov + 2) * sizeof *all);
  if (all == NULL)
    return nbdedup_fail (ENOMEM, "%s: no memory", j->path);
  for (i = 0; i < nr_iov; ++i)
    all[i + 1] = iov[i];
  all[0].iov_base = buf;
  all[0].iov_len = sizeof buf;
  all[nr_iov + 1].iov_base = (void *) zeroes;
  all[nr_iov + 1].iov_len = size - BATCH_HEADER_LEN - len;

  {
    WITH_LOCK (&j->lock);

    assert (j->replayed);
    if (j->dead)
      return fail_dead (j);
    if (j->leftovers && j->pair.header.epoch == j->replayed_epoch &&
        wipe_leftovers_locked (j) == -1)
      return -1;
    r = find_room_locked (j, size, &wrap);
    if (r != 0)
      return r;

    pos = j->head;
    if (wrap) {
      if (write_wrap_locked (j) == -1)
        return write_failed_locked (j);
      pos = RING_START;
    }
    XXH3_64bits_reset (j->hasher);
    for (i = 0; i < nr_iov; ++i)
      XXH3_64bits_update (j->hasher, iov[i].iov_base, iov[i].iov_len);
    b.epoch = j->pair.header.epoch;
    b.seq = j->appended + 1;
    b.durable = j->durable;
    b.folded = j->folded;
    b.len = len;
    b.body_hash = XXH3_64bits_digest (j->hasher);
    batch_pack (j, &b, pos, buf);
    if (full_pwritev (j->fd, all, nr_iov + 2, pos) == -1)
      return write_failed_locked (j);

    j->head = pos + size;
    *seq = ++j->appended;
  }
  return 0;
}

int
journal_sync (struct journal *journal, uint64_t seq)
{
  struct journal *j = journal;
  uint64_t covers;
  int r, err;

  lock_acquire (&j->lock);
  assert (seq <= j->appended);
  while (j->synced < seq && !j->dead) {
    if (j->running) {           /* until: running is false */
      lock_wait (&j->lock, &j->cond);
      continue;
    }
    j->running = true;
    covers = j->appended;
    lock_release (&j->lock);

    do
      r = fdatasync (j->fd);
    while (r == -1 && errno == EINTR);
    err = errno;

    lock_acquire (&j->lock);
    j->running = false;
    if (r == -1)
      j->dead = true;
    else if (covers > j->synced)
      j->synced = covers;
    pthread_cond_broadcast (&j->cond);
    if (r == -1) {
      lock_release (&j->lock);
      return nbdedup_fail (EIO, "%s: fdatasync: %s: stop, and open the pool "
                           "again", j->path, strerror (err));
    }
  }
  r = j->dead ? -1 : 0;
  /* Only what callers asked for counts as durable: a batch that the sync
   * covered by chance may name records that the store has not synced.
   */
  if (r == 0 && j->durable < seq)
    j->durable = seq;
  lock_release (&j->lock);
  return r == 0 ? 0 : fail_dead (j);
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

  assert (seq <= journal->appended);
  assert (seq < journal->appended || position == journal->head);
  if (seq < journal->folded)
    return;                     /* an older news came late */
  journal->folded = seq;
  journal->tail = position;
  /* Its effects are durable, wherever the batch itself is. */
  if (journal->synced < seq)
    journal->synced = seq;
  if (journal->durable < seq)
    journal->durable = seq;
}

void
journal_get_usage (struct journal *journal, uint64_t *live_bytes,
                   uint64_t *ring_bytes)
{
  WITH_LOCK (&journal->lock);
  const uint64_t ring = ring_end (journal) - RING_START;

  *live_bytes = journal->head >= journal->tail ?
    journal->head - journal->tail : ring - (journal->tail - journal->head);
  *ring_bytes = ring;
}
