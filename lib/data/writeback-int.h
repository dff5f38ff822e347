/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by writeback.c (the dirty blocks), writeback-consistent.c (their
 * invariants) and write.c (the workers).
 */

#ifndef NBDEDUP_WRITEBACK_INT_H
#define NBDEDUP_WRITEBACK_INT_H

#include <sys/queue.h>

#include "base/hashtable.h"
#include "base/invariant.h"
#include "core/engine.h"
#include "format/codec.h"
#include "format/dedup-mode.h"

struct dirty {
  struct hashtable_link link;   /* in wb->table */
  TAILQ_ENTRY (dirty) queue;    /* in wb->queue or wb->urgent, if open */
  TAILQ_ENTRY (dirty) vlink;    /* in the volume's open_list */
  TAILQ_ENTRY (dirty) flink;    /* in the volume's inflight_list */
  struct volume *volume;
  uint64_t block;
  uint8_t *open;                /* owned; NULL: no open version */
  uint8_t *inflight;            /* owned; NULL: none */
  uint64_t open_seq, inflight_seq;
  bool urgent;                  /* the open version is in wb->urgent */
  bool superseded;              /* a hole followed the inflight version */
};

TAILQ_HEAD (dirty_list, dirty);

/* The most that one worker takes at once: neighbours in the queue become
 * neighbours in the store, written with one call.
 */
#define BATCH_BLOCKS 64
#define BATCH_BYTES (1u << 20)

struct dirty_batch {
  struct volume *volume;
  struct compression compression;
  enum dedup_mode dedup;
  uint64_t domain;
  unsigned nr;
  struct dirty *blocks[BATCH_BLOCKS];
};

struct writeback {
  struct nbdedup_pool *pool;    /* not owned */
  uint64_t max;
  pthread_t *threads;           /* owned */
  unsigned nr_threads;

  struct lock lock;             /* protects everything below, and the dirty
                                 * lists, ranges and properties of volumes */
  pthread_cond_t work;          /* a worker can take a batch, or must stop */
  pthread_cond_t room;          /* 'bytes' decreased */
  pthread_cond_t installed;     /* a version was installed or dropped */
  pthread_cond_t range_free;    /* a range ended */
  struct hashtable table;       /* by volume and block */
  struct dirty_list queue, urgent;
  uint64_t bytes;               /* of all versions */
  uint64_t seq;
  _Atomic uint32_t slack_record;        /* size of a record of the slack, 0:
                                         * none is held (writeback.c) */
  bool stop;
  struct {                      /* buffers for reuse, by size */
    uint8_t **p;
    size_t nr, cap;
  } spare[21];
  uint64_t spare_bytes;
  size_t changes;               /* for invariant_is_due */
};

/* writeback-consistent.c: true whenever the lock is not held. */
extern void writeback_assert_consistent_locked (struct writeback *wb);
DEFINE_WITH_CONSISTENT (writeback)

/* Take the next batch; 0: stop. */
extern int writeback_take (struct writeback *wb, struct dirty_batch *batch);

/* Is this inflight version still to be installed? */
static inline bool
is_wanted_locked (const struct dirty *d)
{
  return !d->superseded;
}

/* Drop the batch's versions: they are installed, or lost because the txg has
 * failed.
 */
extern void writeback_done_locked (struct writeback *wb,
                                   struct dirty_batch *batch);

/* write.c: turn a batch's versions into pointers and install them. */
extern void *write_worker (void *writeback);

#endif /* NBDEDUP_WRITEBACK_INT_H */
