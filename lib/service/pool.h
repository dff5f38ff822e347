/* SPDX-License-Identifier: BSD-3-Clause */

/* Opening a pool: shared by the pool-*.c files. */

#ifndef NBDEDUP_POOL_H
#define NBDEDUP_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

struct nbdedup_pool;
struct meta_state;

/* SQLite's page caches get one part in so many of ddt-cache. */
#define POOL_SHARE_SQLITE 8

/* Opening, in pool.c and pool-readonly.c. */
struct lockfile_holder;
extern int
pool_fail_in_use (const char *path, const struct lockfile_holder *holder);
/* Wait for another command that has the pool.  'tries' counts from 0. */
extern bool pool_wait_for_command (const struct lockfile_holder *holder,
                                   bool server, unsigned tries);
extern int
pool_check_state (struct nbdedup_pool *pool, const struct meta_state *state);
struct meta_session;
/* 'path' is the journal's. */
extern void pool_ask_journal (const char *path, struct meta_session *session);
extern int pool_check_epoch (const char *path, const char *file, uint64_t epoch,
                             const struct meta_state *state);
/* The files are open: make all modules that use them. */
extern int
pool_make_modules (struct nbdedup_pool *pool, const struct meta_state *state);
/* Load from pool.db what they need before the journal is replayed. */
extern int pool_load (struct nbdedup_pool *pool);
extern int pool_open_readonly (struct nbdedup_pool *pool, bool server);

/* Fail unless a pool can be made in this directory, which exists: EEXIST: it
 * is a pool; ENOTEMPTY.
 */
extern int pool_check_empty (const char *path);

/* Fail unless a pool's sectors can have this size. */
extern int pool_check_sector (json_int_t sector);

#endif /* NBDEDUP_POOL_H */
