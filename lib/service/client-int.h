/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by client.c (the pool) and handle.c (its volumes). */

#ifndef NBDEDUP_CLIENT_INT_H
#define NBDEDUP_CLIENT_INT_H

#include "base/lock.h"
#include "disk/lockfile.h"
#include "nbdedup.h"
#include "service/channel.h"

struct nbdedup_client {
  struct nbdedup_pool *pool; /* owned; NULL: a server has it */
  char *path;                /* owned */
  char who[CONTROL_WHO_MAX + 1];
  bool readonly;    /* change nothing */
  unsigned greet_s; /* time limit for a server's greeting */
  nbdedup_wait_fn *on_wait;
  struct lockfile_holder server; /* if 'pool' is NULL */

  struct lock lock;         /* protects everything below */
  struct channel_list idle; /* owned */
};

/* A new connection for this client; ESHUTDOWN: nothing has been done. */
extern struct channel *client_channel_new (struct nbdedup_client *client);

/* A channel_watch's 'look', which calls the client's on_wait.  'opaque' is the
 * client.
 */
extern int client_look (void *opaque, uint64_t waited_ms, uint64_t longest_ms);

/* Receive the result of a request, JSON in one or several REPLYs; NULL: its
 * failure.  'on_wait' may be NULL.
 */
extern json_t *client_recv_json (struct channel *ch, nbdedup_wait_fn *on_wait,
                                 nbdedup_progress_fn *progress, void *opaque);

/* nbdedup_client_open with time limits for waiting for a server and for
 * another command.  If it fails with EBUSY, *holder is the process that has
 * the pool (pid 0: not known).
 */
struct client_patience {
  unsigned server_s, command_ms;
};
extern struct nbdedup_client *
client_open_within (const char *path, const struct nbdedup_settings *settings,
                    const char *who, nbdedup_wait_fn *on_wait,
                    struct client_patience patience,
                    struct lockfile_holder *holder)
  __attribute__ ((nonnull (1, 3, 6), warn_unused_result));

#endif /* NBDEDUP_CLIENT_INT_H */
