/* SPDX-License-Identifier: BSD-3-Clause */

/* The order of things inside the engine.
 *
 * test-model and crash-model find out by chance what goes wrong when two
 * things meet; in the tests that use this they are made to meet: a worker is
 * stopped half-way (it needs a reader of pool.db, and we hold them all), a
 * function runs inside a fold's transaction, a reader stays inside quiesce, a
 * process ends right after a flush.  Each case is a bug that "make
 * check-mutants" plants.
 */

#ifndef NBDEDUP_ENGINE_RIG_H
#define NBDEDUP_ENGINE_RIG_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/engine.h"
#include "rigs/pool-util.h"

#define BLOCK 4096u
#define NR_BLOCKS 2048u
#define NR_READERS 4            /* of meta.c: more would wait for ever */
/* What must not happen is given this long to happen. */
#define A_WHILE_MS 300
#define GIVE_UP_MS 60000

#define expect(condition)                                       \
  do {                                                          \
    if (!(condition))                                           \
      die ("%s line %d: not true: %s", __func__, __LINE__,      \
           #condition);                                         \
  } while (0)

/* A pool with one volume, "v". */
extern char directory[PATH_MAX];
extern struct nbdedup_volume *handle;
extern struct volume *volume;
extern uint64_t dirty_max;      /* as open_pool sets it */

/* A new pool; 'nr_workers' as in struct nbdedup_settings. */
extern void start (unsigned nr_workers);

/* Check it, close it, remove it. */
extern void end (void);

extern void open_pool (unsigned nr_workers);
/* As "check --repair" does. */
extern void open_to_repair (void);
extern void attach (void);
/* With one worker. */
extern void open_and_attach (void);
extern void close_pool (void);
extern void reopen_pool (void);

/* Everything is in pool.db, and what it displaced is free. */
extern void settle (void);

/* Contents are numbers; 0 is zeroes, others do not compress. */
extern void fill (uint8_t buf[BLOCK], uint64_t content);
extern void write_blocks (uint64_t block, unsigned nr, uint64_t content);
#define write_block(block, content) write_blocks (block, 1, content)
#define trim_block(block)                                       \
  must (nbdedup_volume_trim (handle, BLOCK, (block) * (uint64_t) BLOCK))
extern void expect_content_at (int line, uint64_t block, uint64_t content);
#define expect_content(block, content) \
  expect_content_at (__LINE__, block, content)

/* Where the block's record is. */
extern uint64_t address_of (uint64_t block);

/* Syncs are counted, by file. */
extern atomic_uint syncs_records, syncs_journal, syncs_wal;
extern atomic_uint crash_at_sync;       /* this one; 0: none */
/* So many of the next reads of "records" fail, behind its header. */
extern atomic_uint fail_reads;

/* Run 'fn' in a process that opens the pool, which is closed here, and then
 * crashes; what it returns.  No thread may have been started before.
 */
extern uint64_t crash_after (uint64_t (*fn) (void));

/* Run 'before', if not NULL, and 'fn' in a process that crashes at the 'nth'
 * sync of 'fn'; false: it has not so many.
 */
extern bool crashes_at_sync (unsigned nth, void (*before) (void),
                             void (*fn) (void));

/* Something that runs beside us. */
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

/* Lookups in pool.db wait while we have these. */
extern struct meta_conn *readers[NR_READERS];
extern void stall (void);
extern void unstall (void);

/* Write a block, and flush until a worker has it and can go no further. */
extern void write_and_stall (struct job *flush, uint64_t block,
                             uint64_t content);

/* The last one has no name. */
struct engine_case {
  const char *name;
  void (*fn) (void);
};
#define CASE(name) { #name, test_##name }

/* Those that argv names; with none, all. */
extern int run_cases (int argc, char *argv[],
                      const struct engine_case *cases);

#endif /* NBDEDUP_ENGINE_RIG_H */
