/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by client.c (the pool) and remote.c (its volumes). */

#ifndef NBDEDUP_CLIENT_INT_H
#define NBDEDUP_CLIENT_INT_H

#include "channel.h"
#include "lock.h"
#include "lockfile.h"
#include "nbdedup.h"

struct nbdedup_client {
  struct nbdedup_pool *pool;    /* owned; NULL: a server has it */
  char *path;                   /* owned */
  char who[CONTROL_WHO_MAX + 1];
  bool readonly;                /* change nothing */

  struct lock lock;             /* protects everything below */
  struct channel_list idle;     /* owned */
};

/* nbdedup_client_open, which waits for a server as long as ever, but for
 * anything else no longer than 'command_ms'.  If it fails with EBUSY,
 * *holder says what is in the way (pid 0: that is not known).
 */
extern struct nbdedup_client *client_open_within
  (const char *path, const struct nbdedup_settings *settings, const char *who,
   bool (*is_unwanted) (void), unsigned command_ms,
   struct lockfile_holder *holder)
  __attribute__ ((nonnull (1, 3, 6), warn_unused_result));

#endif /* NBDEDUP_CLIENT_INT_H */
