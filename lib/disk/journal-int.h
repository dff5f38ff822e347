/* SPDX-License-Identifier: BSD-3-Clause */

/* Internals of the journal, shared by journal.c (the file and what is durable),
 * journal-append.c (room in the ring), journal-replay.c (recovery after a
 * crash), journal-read.c (bad sectors) and journal-batch.c (the format of a
 * batch).
 */

#ifndef NBDEDUP_JOURNAL_INT_H
#define NBDEDUP_JOURNAL_INT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <xxhash.h>

#include "base/invariant.h"
#include "base/lock.h"
#include "disk/journal.h"
#include "format/header-pair.h"

#define RING_START ((uint64_t) JOURNAL_HEADER_BYTES)

/* A mark is in a different page than the batch that it refers to. */
#define MARK_PAGE 4096

#define RESTORE "restore all files of the pool from one backup"
/* The advice if only the journal is damaged. */
#define RESTORE_OR_DROP                                                        \
  RESTORE ", or run \"nbdedup recover "                                        \
          "--without-journal\", which gives up the last flushed writes"

struct journal {
  int fd;        /* constant */
  char *path;    /* owned; for messages */
  bool readonly; /* constant */

  struct lock lock; /* protects everything below */
  struct cond cond; /* a sync ended */
  struct header_pair pair;
  XXH3_state_t *hasher; /* owned; scratch of journal_append */

  /* folded <= synced <= appended: if pool.db was faster than fdatasync,
   * journal_trim raises 'synced' to 'folded'.
   *
   * Live is [tail, head), or, if head < tail, [tail, ring_end) and
   * [RING_START, head).  head == tail if and only if nothing is live.
   */
  uint64_t folded, synced, appended;
  uint64_t settled; /* <= appended: reported by callers */
  uint64_t durable; /* <= synced, <= settled */
  uint64_t told;    /* <= durable: recorded in the ring */
  uint64_t tail, head;

  /* The sectors of the file that the replay could not read: a byte for each. */
  uint8_t *unreadable; /* owned; NULL: it could read all */
  uint64_t nr_unreadable;

  uint64_t replayed_epoch;
  uint64_t to_replay; /* batches of the replay */
  bool replayed;
  bool leftovers;         /* of replayed_epoch, after the log */
  uint64_t written_bytes; /* of batches, since it was opened */
  bool want_growth;       /* an append has found no room */
  bool running;           /* a thread is in fdatasync */
  bool dead;              /* permanent */
};

/* The numbers are in the order that the struct says.  True whenever the lock is
 * not held.
 */
extern void journal_assert_consistent_locked (struct journal *j);
DEFINE_WITH_CONSISTENT (journal)

/* Where the ring ends in the file. */
static inline uint64_t
ring_end (const struct journal *j)
{
  return j->pair.header.own64;
}

/* Fail because of an earlier failure. */
extern int journal_fail_dead (struct journal *j);

/*----------------------------------------------------------------------
 * journal-batch.c
 */

#define BATCH_HEADER_LEN 96
#define BATCH_TRAILER_LEN 104

enum batch_kind { BATCH_DATA = 1, BATCH_WRAP = 2, BATCH_MARK = 3 };

struct journal_batch {
  enum batch_kind kind;
  uint64_t epoch, seq, durable, folded, settled;
  uint64_t position; /* of its header */
  uint32_t len, list_len;
  uint64_t body_hash;
};

/* The bytes that a batch takes in the ring, and its trailer's offset in them.
 */
extern uint64_t batch_size (const struct journal_batch *b);
extern uint64_t batch_trailer_offset (const struct journal_batch *b);

extern void batch_pack (const struct journal *j, const struct journal_batch *b,
                        uint8_t buf[BATCH_HEADER_LEN]);
extern void
batch_pack_trailer (const struct journal *j, const struct journal_batch *b,
                    uint64_t list_hash, uint8_t buf[BATCH_TRAILER_LEN]);

/* True if 'buf', which was read from 'position', has a valid batch header.
 * The function does not check the body.
 */
extern bool batch_unpack (const struct journal *j, const uint8_t *buf,
                          uint64_t position, struct journal_batch *b);
/* The same for a trailer, which repeats the header of its batch. */
extern bool batch_unpack_trailer (const struct journal *j, const uint8_t *buf,
                                  uint64_t position, struct journal_batch *b);

/* True if 'buf' has a header or a trailer that is valid but for its place: the
 * fields are what the pool wrote, somewhere else.
 */
extern bool batch_unpack_moved (const struct journal *j, const uint8_t *buf,
                                struct journal_batch *b);

/* Read the body of a batch into 'body' (JOURNAL_BODY_MAX bytes) and check it.
 * Returns 1 if it is valid, 0 if not or if the disk cannot read it, -1 on
 * error.
 */
extern int batch_read_body (struct journal *j, const struct journal_batch *b,
                            uint8_t *body);
/* The same for its list; also 0 if the trailer is not valid. */
extern int batch_read_list (struct journal *j, const struct journal_batch *b,
                            uint8_t *list);

/*----------------------------------------------------------------------
 * journal-read.c
 */

/* Read 'len' bytes of the ring.  Returns 0; 1 if the disk cannot read some
 * sectors (EIO), of which the buffer has zeroes; -1 on any other error, or if
 * these sectors are too many.
 */
extern int
journal_read (struct journal *j, uint64_t position, void *buf, size_t len);

/* Has journal_read met such a sector in [start, end)? */
extern bool
journal_is_unreadable (const struct journal *j, uint64_t start, uint64_t end);

/* Write zeroes to all of these sectors, so that the disk can replace them, and
 * forget them.  Does not sync.  Nothing may be live.
 */
extern int journal_zero_unreadable_locked (struct journal *j);

/*----------------------------------------------------------------------
 * journal-append.c
 */

/* Record in the ring what is durable, unless the ring says it already.  Does
 * not sync.
 */
extern void journal_mark_locked (struct journal *j);

/*----------------------------------------------------------------------
 * journal-replay.c
 */

/* Zero the headers of the replayed session's batches after the end of the log:
 * if new batches had the same epoch, replay could take these for them.  With
 * a new epoch, which pool.c makes, it cannot.
 */
extern int journal_wipe_leftovers_locked (struct journal *j);

#endif /* NBDEDUP_JOURNAL_INT_H */
