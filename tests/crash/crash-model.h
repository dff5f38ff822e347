/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the files of crash-model: crash-model.c has the rounds of kill -9,
 * crash-power.c those of power loss, crash-load.c the requests, crash-admin.c
 * the commands, crash-metadata.c and crash-repair.c damage.
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

/* From the command line.  Servers preload 'libraries', and in rounds of power
 * loss commands do so, too.
 */
extern const char *plugin, *nbdedup, *dir, *server_script;
extern const char *powercut, *preload;
extern char *libraries, *pool, *log_path, *undo_path;

extern struct block_model *models[NR_VOLUMES];
extern struct server_process server;
extern unsigned round_nr;
extern uint64_t seed;           /* of this round, or of all rounds */
extern atomic_bool killing;     /* threads must end; errors are expected */
extern atomic_bool cut_is_near; /* errors are expected */
extern _Atomic uint64_t total_ops, total_bytes;

/*----------------------------------------------------------------------
 * crash-model.c
 */

/* End a test that has failed, after its reason was printed. */
extern _Noreturn void give_up (void);

/* True if the server may have been killed. */
extern bool is_dying (void);

extern void start_server (struct rng *rng);

/* Stop the server by SIGTERM, which must succeed. */
extern void stop_server (void);
/* Serve the pool read-only, and verify. */
extern void verify_readonly (void);

/* make_volumes makes the volumes, of 'min' to 'max' sectors, and their models;
 * 'make' runs the command.
 */
extern void make_pool (struct rng *rng);
extern void make_volume (struct rng *rng, const char *const *args);
extern void
make_volumes (struct rng *rng, uint64_t min, uint64_t max,
              void (*make) (struct rng *rng, const char *const *args));
extern void free_volumes (void);

/*----------------------------------------------------------------------
 * crash-load.c
 */

extern struct nbd_handle *connect_to (const char *name);

/* Sometimes make the running server keep more or fewer copies of records.  The
 * choices have a generator of their own.
 */
extern void change_copies (uint64_t round);
/* At the end: the copies in pool.db must have the bytes of their records. */
extern void verify_copies (void);

/* Read a whole volume, and its extents, and compare them with the model, which
 * adopts the data.
 */
extern void verify_volume (struct block_model *m);
extern void verify (void);

/* Send requests from several threads, and run commands, until the server is
 * killed (or, in a few rounds, stopped).  All processes are gone when it
 * returns.  In rounds of power loss the caller then calls cut_power.
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
#define MUST_RUN(...) must_run ((const char *const[]) { __VA_ARGS__, NULL })

/* The JSON that a command prints, a new reference.  It must succeed. */
extern json_t *command_json (const char *const *args);
#define COMMAND_JSON(...)                                                      \
  command_json ((const char *const[]) { __VA_ARGS__, "--json", NULL })

/* Run commands on the fourth volume until 'killing' or 'stop_administration'.
 */
extern void *administrate (void *rng);
extern atomic_bool stop_administration;

/* The effects of commands that exited 0 must last, and the content of the
 * fourth volume must be right.
 */
extern void check_scratch (void);
extern void forget_scratch (void);
/* Destroy the volumes that interrupted imports have left. */
extern void destroy_imports (void);
/* After check_scratch: the content of the fourth volume, or NULL. */
extern const struct block_model *scratch_model (void);

/* When each block has one state: the figures of "stat" must be right. */
extern void check_stat (void);

/* Grow or shrink a volume that has no client. */
extern void resize_volume (struct block_model *m, struct rng *rng);

/*----------------------------------------------------------------------
 * crash-power.c
 */

/* Run one round, with 'seed'. */
extern void power_round (void);

/* When all processes are gone: lose what was not synced.  In rounds of kill -9
 * this does nothing.
 */
extern void cut_power (struct rng *rng);

/* Remove all files of the last round. */
extern void remove_pool (void);

/*----------------------------------------------------------------------
 * crash-metadata.c
 */

/* Sometimes damage a copy, while the pool is closed. */
extern void damage_metadata (struct rng *rng);
/* Repair it before the next damage, with the server running. */
extern void mend_metadata (void);

/* Keep the present pool.db and its WAL, as older files for lose_metadata. */
extern void keep_metadata (void);
/* Remove or damage them, or replace them by the older ones.  '*needed': no mark
 * says any more that the copy is current, so only "recover" helps.  False:
 * there is no copy.
 */
extern bool lose_metadata (struct rng *rng, bool older, bool *needed);

/*----------------------------------------------------------------------
 * crash-repair.c
 */

/* Sometimes damage the pool while it is closed, and interrupt its repair.  The
 * choices have a generator of their own.
 */
extern bool repair_sometimes (uint64_t round);

/* True if all rounds are rounds of repair. */
extern bool repairs_only (void);
/* Run one round, with 'seed'. */
extern void repair_round (void);

/* Print how many there were. */
extern void print_repairs (void);

#endif /* NBDEDUP_CRASH_MODEL_H */
