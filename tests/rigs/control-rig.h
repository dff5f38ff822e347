/* SPDX-License-Identifier: BSD-3-Clause */

/* A pool with a server in this process, for clients of its control socket.
 *
 * OFD locks are per open file, so the pool is also "in use" for the client
 * functions of this process.
 */

#ifndef NBDEDUP_CONTROL_RIG_H
#define NBDEDUP_CONTROL_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "nbdedup.h"

#define VOLUME_SIZE (UINT64_C (32) << 20)

extern char pool_path[4096];
extern struct nbdedup_pool *pool; /* the server's */

/* End the program unless 'ok'. */
extern void check (bool ok, const char *what);

/* A new pool without volumes, whose path is longer than a socket's may be. */
extern void make_control_pool (void);
extern void remove_control_pool (void);

extern void start_server (void);
/* Fails if that takes long. */
extern void stop_server (void);

/* A command with a name and, if it is not 0, a size. */
extern int call (struct nbdedup_client *client, const char *command,
                 const char *name, uint64_t size);
/* "check" must find nothing in the client's pool. */
extern void expect_sound (struct nbdedup_client *client);

#endif /* NBDEDUP_CONTROL_RIG_H */
