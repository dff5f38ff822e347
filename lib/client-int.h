/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by client.c (the pool) and remote.c (its volumes). */

#ifndef NBDEDUP_CLIENT_INT_H
#define NBDEDUP_CLIENT_INT_H

#include "channel.h"
#include "lock.h"
#include "nbdedup.h"

struct nbdedup_client {
  struct nbdedup_pool *pool;    /* owned; NULL: a server has it */
  char *path;                   /* owned */
  char who[CONTROL_WHO_MAX + 1];
  bool readonly;                /* change nothing */

  struct lock lock;             /* protects everything below */
  struct channel_list idle;     /* owned */
};

#endif /* NBDEDUP_CLIENT_INT_H */
