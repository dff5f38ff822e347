/* SPDX-License-Identifier: BSD-3-Clause */

/* How often threads waited for each lock, and how long they held it.  Only in
 * a build with --enable-lock-counters: "make bench-locks" makes one.  Locks
 * that the same line of the source initializes count together.
 */

#ifndef NBDEDUP_LOCK_COUNTERS_H
#define NBDEDUP_LOCK_COUNTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

struct lock_counters {
  const char *file, *name; /* "data/writeback.c", "&wb->lock" */
  struct lock_counters *next;
  atomic_bool listed;
  _Atomic uint64_t taken;
  _Atomic uint64_t waited; /* of 'taken', another thread held it */
  _Atomic uint64_t wait_ns;
  _Atomic uint64_t held_ns, longest_ns;
};

/* All that were used, in no order.  Atomically prepended, never removed. */
extern _Atomic (struct lock_counters *) lock_counters;

static inline void
lock_counters_add (struct lock_counters *c)
{
  if (atomic_exchange (&c->listed, true))
    return;
  c->next = lock_counters;
  while (!atomic_compare_exchange_weak (&lock_counters, &c->next, c))
    ;
}

static inline void
lock_counters_waited (struct lock_counters *c, uint64_t since)
{
  c->waited++;
  c->wait_ns += clock_ns () - since;
}

static inline void
lock_counters_held (struct lock_counters *c, uint64_t since)
{
  const uint64_t ns = clock_ns () - since;
  uint64_t longest = c->longest_ns;

  c->held_ns += ns;
  while (ns > longest &&
         !atomic_compare_exchange_weak (&c->longest_ns, &longest, ns))
    ;
}

#endif /* NBDEDUP_LOCK_COUNTERS_H */
