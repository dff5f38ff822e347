/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by writeback.c (the dirty blocks), writeback-write.c (how a write
 * becomes one), writeback-queue.c (what workers
 * take and finish), writeback-drain.c, writeback-consistent.c (the invariants)
 * and write.c (the workers).
 *
 * Copies run without a lock.  Why each of them is safe:
 *
 *  - A new version is filled before it is published: only its writer knows it.
 *
 *  - A write to part of an open version marks it 'filling' and waits until
 *    'nr_readers' is 0.  While it is marked no reader begins to copy from it
 *    and no worker takes it.  No other writer and no hole comes near, because
 *    they would need the writer's range.
 *
 *  - A reader counts itself in 'nr_readers'.  A version that leaves the table
 *    meanwhile is 'dropped', and its last reader gives back the buffer.  A
 *    worker may take an open version with readers: neither changes it.
 *
 *  - An inflight version is immutable, and its worker alone drops it.
 *
 * When the txg fails, what its worker cannot install stays, as "kept": a read
 * must not go back behind a write that was answered.  No drain waits for it.
 */

#ifndef NBDEDUP_WRITEBACK_INT_H
#define NBDEDUP_WRITEBACK_INT_H

#include <sys/queue.h>

#include "base/hashtable.h"
#include "base/invariant.h"
#include "core/engine.h"
#include "data/dirty-memory.h"
#include "data/volume-types.h"
#include "format/codec.h"
#include "format/dedup-mode.h"

/* All under the volume's lock. */
struct dirty {
  struct hashtable_link link; /* in the volume's table */
  TAILQ_ENTRY (dirty) queue;  /* in the volume's queue or urgent, if open */
  TAILQ_ENTRY (dirty) vlink;  /* in the volume's open_list */
  TAILQ_ENTRY (dirty) flink;  /* in the volume's inflight_list or kept_list */
  uint64_t block;
  struct version *open;     /* owned; NULL: no open version */
  struct version *inflight; /* owned; NULL: none */
  bool urgent;              /* the open version is in the urgent queue */
  bool superseded;          /* a hole followed the inflight version; set
                                 * under the volume's install lock, too */
  bool kept;                /* the inflight version will not be installed, and
                             * is the last */
};

/* Workers finish 64 at a time, and requests add some. */
#define DIRTY_SPARES_MAX 1024

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

/* There are more workers than CPUs, so that all CPUs compute while some workers
 * wait for a disk: in a large pool one in a hundred lookups of new blocks reads
 * about ten pages of the hash index, which takes longer than all else.  Each
 * scattered duplicate reads five, and a disk answers several readers at once.
 */
#define WORKERS_PER_CPU 2
#define WORKERS_WAITING_MIN 6
#define WORKERS_MAX 16
#define WAIT_SHARES 1024

/* What workers do while no thread waits for them depends on how much of
 * dirty-max is taken, in eighths.  Beyond DIRTY_BEGIN they begin.  Up to
 * DIRTY_YIELD each of them lets other threads have its processor every few
 * blocks.  Up to DIRTY_ALL only half of the usual number compute: the clients
 * and nbdkit's threads need processors as well, and the blocks can wait.
 */
#define DIRTY_BEGIN 2
#define DIRTY_YIELD 3
#define DIRTY_ALL 4

/* The bytes that a worker hashes or compresses before it yields the processor.
 * Each yield costs two microseconds or more, even if no other thread wants the
 * processor.
 */
#define YIELD_BYTES (32u << 10)
/* The most that a worker writes with one call.  The page cache keeps what one
 * call writes in one folio, if the file system has large ones (ext4 from Linux
 * 6.16 on), and each later write to it, and each sync, visits all of its
 * blocks; workers that write meanwhile spin on the file's lock.  With 1 MiB a
 * sequential write took a third more processor time.
 */
#define WRITE_BYTES_MAX (128u << 10)

/* Room that only overwrites may use, when there is no other.  Without it a
 * full pool could not accept any, since the new record is written before the
 * old one's space is free.  In records of the size that is being written: a
 * larger size would cost room in every segment (space.c, the promise).
 */
#define SLACK_RECORDS 2

struct worker;

struct writeback {
  struct nbdedup_pool *pool;  /* not owned */
  struct dirty_memory memory; /* has a lock of its own */
  pthread_t *threads;         /* owned */
  unsigned nr_threads;
  unsigned nr_at_once;           /* workers that may compute at the same time */
  atomic_uint nr_busy;           /* workers that have a batch */
  atomic_uint nr_waiting;        /* of these, for a disk */
  atomic_uint nr_drains;         /* threads that wait for versions */
  atomic_uint sleeps;            /* the share of waits that slept, of
                                 * WAIT_SHARES */
  _Atomic uint32_t slack_record; /* size of a record of the slack, 0:
                                         * none is held (writeback.c); changed
                                         * under the lock */
  atomic_bool stop;

  struct lock lock;           /* protects everything below, and the places of
                                 * volumes in these lists */
  struct cond work;           /* a volume is ready, or workers must stop */
  struct volume_queue active; /* volumes with a version */
  size_t nr_active;
  struct volume_queue ready[READY_LEVELS];
};

/* writeback-consistent.c: true whenever the lock is not held. */
extern void dirty_blocks_assert_consistent_locked (struct dirty_blocks *db);
DEFINE_WITH_CONSISTENT (dirty_blocks)
extern void writeback_assert_consistent_locked (struct writeback *wb);
DEFINE_WITH_CONSISTENT (writeback)

/* May a worker take the open version of a block?  One version of a block is in
 * flight at a time, so that they are installed in order.
 */
static inline bool
is_takeable_locked (const struct dirty *d)
{
  return d->open && d->inflight == NULL && !d->open->filling;
}

/* Is this inflight version still to be installed?  The caller holds the
 * volume's install lock.
 */
static inline bool
is_wanted_locked (const struct dirty *d)
{
  return !d->superseded;
}

/* writeback.c.  Drop a version: its record needs no room any more.  The caller
 * gives 'list' to dirty_memory_put without the lock.
 */
extern void drop_version_locked (struct dirty_blocks *db,
                                 struct version *version,
                                 struct version_list *list);
extern void unreserve (struct writeback *wb, struct volume *v, unsigned nr);

/* Does the volume take writes?  -1: no. */
extern int writeback_can_accept (struct writeback *wb, struct volume *v);

extern struct dirty *find_dirty_locked (struct volume *v, uint64_t block);
extern void
drop_if_empty_locked (struct writeback *wb, struct volume *v, struct dirty *d);

/* writeback-write.c.  Give back the room that is held for overwrites. */
extern void release_slack (struct writeback *wb);

/* writeback-queue.c.  Let workers look at a volume: a version became takeable,
 * or urgent.
 */
extern void
make_ready_locked (struct writeback *wb, struct volume *v, enum ready level);

/* Are more than so many eighths of dirty-max taken? */
static inline bool
is_dirty_beyond (const struct writeback *wb, unsigned eighths)
{
  return wb->memory.bytes > wb->memory.max / 8 * eighths;
}

/* Workers wait while too little is dirty; call it when more is. */
extern void wake_worker (struct writeback *wb);

/* A worker calls it between blocks, without a lock. */
extern void worker_yield (struct writeback *wb);

/* For waiting.h; 'writeback' is a struct writeback. */
extern void worker_waits (void *writeback);
extern void worker_has_waited (void *writeback);

/* Add or remove the place of an open version in the queues. */
extern void queue_open_locked (struct volume *v, struct dirty *d);
extern void unqueue_open_locked (struct volume *v, struct dirty *d);
extern void make_urgent_locked (struct volume *v, struct dirty *d);

/* The volume has its first version, or none any more. */
extern void
set_active_locked (struct writeback *wb, struct volume *v, bool active);

/* Take the next batch; 0: stop.  The volume stays until writeback_unpin. */
extern int writeback_take (struct writeback *wb, struct dirty_batch *batch);
extern void writeback_unpin (struct volume *v);

/* The worker is done with the batch: drop its versions, if they are installed.
 * Otherwise the txg has failed, and those that clients see stay to be read.
 */
extern void writeback_done (struct writeback *wb, struct dirty_batch *batch,
                            bool installed);

/* write.c: a thread that turns batches' versions into pointers and installs
 * them.  It frees its worker.
 */
extern void *write_worker (void *worker);

/* NULL: ENOMEM, or the hash is not available.  Call it before anything depends
 * on the thread: OpenSSL sets itself up only once, and if that fails for lack
 * of memory it stays so.
 */
extern struct worker *worker_new (struct writeback *wb);
extern void worker_free (struct worker *worker);

#endif /* NBDEDUP_WRITEBACK_INT_H */
