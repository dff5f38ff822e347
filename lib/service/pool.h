/* SPDX-License-Identifier: BSD-3-Clause */

/* Opening a pool: what pool.c, pool-create.c and pool-readonly.c share. */

#ifndef NBDEDUP_POOL_H
#define NBDEDUP_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

struct nbdedup_pool;
struct meta_state;

/* Of ddt-cache, for SQLite's page caches: one quarter. */
#define POOL_SHARE_SQLITE 4

/* Opening, in pool.c and pool-readonly.c. */
struct lockfile_holder;
extern int pool_fail_in_use (const char *path,
                             const struct lockfile_holder *holder);
/* Another command has the pool: wait for it.  'tries' counts from 0. */
extern bool pool_wait_for_command (const struct lockfile_holder *holder,
                                   bool server, unsigned tries);
extern int pool_check_state (struct nbdedup_pool *pool,
                             const struct meta_state *state);
struct meta_session;
/* 'path': the journal's. */
extern void pool_ask_journal (const char *path, struct meta_session *session);
extern int pool_check_epoch (const char *path, const char *file,
                             uint64_t epoch, const struct meta_state *state);
/* The files are open: everything that works on them. */
extern int pool_make_modules (struct nbdedup_pool *pool,
                              const struct meta_state *state);
extern int pool_open_readonly (struct nbdedup_pool *pool, bool server);

/* Can a pool's sectors have this size? */
extern int pool_check_sector (json_int_t sector);

#endif /* NBDEDUP_POOL_H */
