/* SPDX-License-Identifier: BSD-3-Clause */

/* A server's watch over its space.  It logs four events, each once: more is
 * used than the property full-warn allows, less is used again, new data was
 * refused, and there is room again.
 *
 * Threads: any.  The caller of watch_look must hold no lock.
 */

#ifndef NBDEDUP_WATCH_H
#define NBDEDUP_WATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

#define WATCH_WARN_DEFAULT 90

struct nbdedup_pool;

struct watch {
  atomic_bool on;        /* a server: events go to the log */
  atomic_uint full_warn; /* per cent */
  atomic_bool full;      /* new data was refused, and there has not
                                 * been room since */
  struct lock lock;      /* protects the rest; taken before all locks
                                 * that capacity.c takes */
  uint64_t last_ms;      /* time of the last check */
  bool warned;
  /* The most that the metadata took in this period, and in the last one. */
  uint64_t metadata_most[2];
  uint64_t period_ms; /* when this period began */
};

/* NULL on failure. */
extern struct watch *watch_new (void);
/* NULL is allowed. */
extern void watch_free (struct watch *watch);

/* Call it after folds, and every few seconds: checks at most once a second,
 * unless 'now' is set.
 */
extern void watch_look (struct nbdedup_pool *pool, bool now);

/* A block of new data was refused for lack of space. */
extern void watch_refused (struct nbdedup_pool *pool);

#endif /* NBDEDUP_WATCH_H */
