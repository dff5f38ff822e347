/* SPDX-License-Identifier: BSD-3-Clause */

/* The order of events inside the engine.
 *
 * test-model and crash-model find races by chance.  The tests that use this
 * rig force them: they stop a worker half-way (it needs a reader of pool.db,
 * and the test holds them all), run a function inside a fold's transaction,
 * keep a reader inside quiesce, or end a process right after a flush.  Each
 * case is a bug that "make check-mutants" plants.
 */

#ifndef NBDEDUP_ENGINE_RIG_H
#define NBDEDUP_ENGINE_RIG_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/engine.h"
#include "core/record-cache.h"
#include "meta/meta.h"
#include "rigs/pool-util.h"

#define BLOCK 4096u
#define NR_BLOCKS 2048u
#define NR_READERS (12 + META_READERS_AHEAD) /* one more would wait for ever */
/* How long to wait for an event that must not happen. */
#define A_WHILE_MS 300
#define GIVE_UP_MS 60000

#define expect(condition)                                                      \
  do {                                                                         \
    if (!(condition))                                                          \
      die ("%s line %d: not true: %s", __func__, __LINE__, #condition);        \
  } while (0)

/* A pool with one volume, "v". */
extern char directory[PATH_MAX];
extern struct nbdedup_volume *handle;
extern struct volume *volume;
extern uint64_t dirty_max; /* as open_pool sets it */

/* Make a pool.  'nr_workers' is as in struct nbdedup_settings. */
extern void start (unsigned nr_workers);

/* Check, close and remove the pool. */
extern void end (void);

extern void open_pool (unsigned nr_workers);
/* As "check --repair" does. */
extern void open_to_repair (void);
extern void attach (void);
extern void attach_to (const char *name);
/* With one worker. */
extern void open_and_attach (void);
extern void close_pool (void);
extern void reopen_pool (void);

/* Move everything to pool.db, and free the space of what it replaced. */
extern void settle (void);

/* A content is a number.  0 is zeroes; others do not compress. */
extern void fill (uint8_t buf[BLOCK], uint64_t content);
extern void write_blocks (uint64_t block, unsigned nr, uint64_t content);
#define write_block(block, content) write_blocks (block, 1, content)
#define trim_block(block)                                                      \
  must (nbdedup_volume_trim (handle, BLOCK, (block) * (uint64_t) BLOCK))
extern void expect_content_at (int line, uint64_t block, uint64_t content);
#define expect_content(block, content)                                         \
  expect_content_at (__LINE__, block, content)

/* The record cache has the block then: one that is not compressed comes there at
 * its second read.
 */
#define expect_and_cache(block, content)                                       \
  do {                                                                         \
    expect_content (block, content);                                           \
    expect_content (block, content);                                           \
    expect (record_cache_has (pool->records, address_of (block)));             \
  } while (0)

/* The address of the block's record. */
extern uint64_t address_of (uint64_t block);

/* The number of syncs of each file, and of the directory. */
extern atomic_uint syncs_records, syncs_journal, syncs_wal, syncs_names;
extern atomic_uint crash_at_sync; /* counts down; 0: do not crash */
/* The number of syncs of pool.db, and of its WAL, that fail next; how long each
 * sync takes.
 */
extern atomic_uint fail_syncs, fail_wal_syncs, sync_ms;
/* Called once, in the thread that syncs "records". */
extern void (*_Atomic at_sync_of_records) (void);
/* The number of reads of "records" that fail next, except in its header. */
extern atomic_uint fail_reads;
/* The number of reads of "records", except of its header. */
extern atomic_uint reads_records;
/* Called before each read of pool.db, in the thread that reads. */
extern void (*_Atomic at_read_of_db) (void);

/* Run 'fn' in a child process that opens the pool and crashes after 'fn'.
 * Returns the value of 'fn'.  The pool must be closed in this process, which
 * must not have started a thread.
 */
extern uint64_t crash_after (uint64_t (*fn) (void));

/* Run 'before', if not NULL, and 'fn' in a child process that crashes at the
 * 'nth' sync of 'fn'.  False: 'fn' has fewer syncs.
 */
extern bool
crashes_at_sync (unsigned nth, void (*before) (void), void (*fn) (void));

/* A function that runs in a thread of its own. */
struct job {
  void (*fn) (uint64_t arg);
  uint64_t arg;
  pthread_t thread;
  atomic_bool done;
};

extern void job_start (struct job *j, void (*fn) (uint64_t), uint64_t arg);
extern void job_end (struct job *j);
extern void do_flush (uint64_t arg);
extern void do_fold (uint64_t arg);
/* The thread that folds. */
extern pthread_t find_folder (void);
/* A fold begins, and stays in its transaction until it is released. */
extern void fold_hold (struct job *fold);
extern void fold_release (struct job *fold);

/* Lookups in pool.db wait while the test holds these. */
extern struct meta_conn *readers[NR_READERS];
extern void stall (void);
extern void unstall (void);

/* Stall, write a block and start to flush it.  Returns when a worker has taken
 * the block and waits for a reader.
 */
extern void
write_and_stall (struct job *flush, uint64_t block, uint64_t content);

/* The last one of an array has no name. */
struct engine_case {
  const char *name;
  void (*fn) (void);
};
#define CASE(name) { #name, test_##name }

/* Run the cases that argv names; without names, all. */
extern int run_cases (int argc, char *argv[], const struct engine_case *cases);

#endif /* NBDEDUP_ENGINE_RIG_H */
