/* SPDX-License-Identifier: BSD-3-Clause */

/* What the files of crash-model share: crash-model.c has the rounds of
 * kill -9, crash-power.c those of power loss, crash-load.c the requests,
 * crash-admin.c the commands, crash-metadata.c and crash-repair.c damage.
 */

#ifndef NBDEDUP_CRASH_MODEL_H
#define NBDEDUP_CRASH_MODEL_H

#include <jansson.h>

#include "models/block-model.h"
#include "rigs/server-process.h"
#include "rigs/testutil.h"

#define NR_VOLUMES 3
#define NR_DUPS 24

#define PICK(a) a[rng_below (rng, sizeof a / sizeof a[0])]

/* From the command line.  'libraries' is what servers and, under power
 * loss, commands preload.
 */
extern const char *plugin, *nbdedup, *dir, *server_script;
extern const char *powercut, *preload;
extern char *libraries, *pool, *log_path, *undo_path;

extern struct block_model *models[NR_VOLUMES];
extern struct server_process server;
extern unsigned round_nr;
extern uint64_t seed;           /* repeats this round, or all of them */
extern atomic_bool killing;     /* the threads shall end; errors are right */
extern atomic_bool cut_is_near; /* errors are right */
extern _Atomic uint64_t total_ops, total_bytes;

/*----------------------------------------------------------------------
 * crash-model.c
 */

/* The test has failed, and the reason is printed. */
extern _Noreturn void give_up (void);

/* May the server have been killed? */
extern bool is_dying (void);

extern void start_server (struct rng *rng);

/* Stop it by SIGTERM, which must succeed. */
extern void stop_server (void);
/* Serve it read-only, and verify. */
extern void verify_readonly (void);

/* Make the volumes, of 'min' to 'max' sectors, and their models; 'make' runs
 * the command.
 */
extern void make_pool (struct rng *rng);
extern void make_volume (struct rng *rng, const char *const *args);
extern void make_volumes (struct rng *rng, uint64_t min, uint64_t max,
                          void (*make) (struct rng *rng,
                                        const char *const *args));
extern void free_volumes (void);

/*----------------------------------------------------------------------
 * crash-load.c
 */

extern struct nbd_handle *connect_to (const char *name);

/* Sometimes: let the server keep more copies of records, or fewer; for that
 * it is running.  Choices of their own, beside those of the round.
 */
extern void change_copies (uint64_t round);
/* At the end: what pool.db calls a copy has the bytes of its record. */
extern void verify_copies (void);

/* Read all of a volume, and its extents, and compare.  Adopt what is there.
 */
extern void verify_volume (struct block_model *m);
extern void verify (void);

/* Requests by several threads, and commands, until the server is killed
 * (or, in a few rounds, stopped).  All processes are gone then; what the
 * power would take with it is the caller's.
 */
extern void load (struct rng *rng);

/*----------------------------------------------------------------------
 * crash-admin.c
 */

/* Run "nbdedup -p POOL ARG..." (up to the first NULL); returns its exit
 * status and output.
 */
extern int run_command (char **output, const char *const *args);
extern void must_run (const char *const *args);
#define MUST_RUN(...) must_run ((const char *const []) { __VA_ARGS__, NULL })

/* What it prints, a new reference; it must succeed. */
extern json_t *command_json (const char *const *args);
#define COMMAND_JSON(...)                                               \
  command_json ((const char *const []) { __VA_ARGS__, "--json", NULL })

/* Commands on the fourth volume, until 'killing' or 'stop_administration'.
 */
extern void *administrate (void *rng);
extern atomic_bool stop_administration;

/* What a command that exited 0 did is still so; and what the fourth volume
 * contains is right.
 */
extern void check_scratch (void);
extern void forget_scratch (void);
/* Volumes that imports have left which were cut off. */
extern void destroy_imports (void);
/* After check_scratch: what it contains, or NULL. */
extern const struct block_model *scratch_model (void);

/* When each block has one state: does "stat" count as we do? */
extern void check_stat (void);

/* Grow or shrink a volume that has no client. */
extern void resize_volume (struct block_model *m, struct rng *rng);

/*----------------------------------------------------------------------
 * crash-power.c
 */

/* One, with 'seed'. */
extern void power_round (void);

/* All processes are gone: now what was not synced.  Not in rounds of kill -9.
 */
extern void cut_power (struct rng *rng);

/* All files of the last round. */
extern void remove_pool (void);

/*----------------------------------------------------------------------
 * crash-metadata.c
 */

/* Sometimes, while the pool is closed. */
extern void damage_metadata (struct rng *rng);
/* Before the next damage, with the server running. */
extern void mend_metadata (void);

/* Keep pool.db and its WAL as they are: later they are of an older moment. */
extern void keep_metadata (void);
/* Lose or spoil them, or put those in their place.  '*needed': nothing tells
 * now that the copy is current, so only "recover" helps.  False: there is no
 * copy.
 */
extern bool lose_metadata (struct rng *rng, bool older, bool *needed);

/*----------------------------------------------------------------------
 * crash-repair.c
 */

/* Sometimes, while the pool is closed: damage, and repair that is cut off.
 * Choices of their own, beside those of the round.
 */
extern bool repair_sometimes (uint64_t round);

/* Shall all rounds be those of repair? */
extern bool repairs_only (void);
/* One, with 'seed'. */
extern void repair_round (void);

/* How many there were. */
extern void print_repairs (void);

#endif /* NBDEDUP_CRASH_MODEL_H */
