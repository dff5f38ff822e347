/* SPDX-License-Identifier: BSD-3-Clause */

/* Waits until no thread holds an address that it read before.
 *
 * Readers and dedup lookups turn an address into data or into a reference
 * between quiesce_enter and quiesce_leave.  The fold first removes records
 * from every place where they can be found, then calls quiesce_wait, which
 * returns when all threads that entered before have left.  Then the records'
 * space may be reused.
 *
 * Two counters, by the parity of a generation.  quiesce_enter re-checks the
 * generation, so that no thread is counted under a parity for which
 * quiesce_wait has already waited.  All atomics are sequentially consistent.
 *
 * Threads: quiesce_wait by one thread at a time.
 */

#ifndef NBDEDUP_QUIESCE_H
#define NBDEDUP_QUIESCE_H

#include <sched.h>
#include <stdatomic.h>

#include "base/clock.h"

/* Between two looks at the counter. */
#define QUIESCE_PAUSE_NS 100000

struct quiesce {
  atomic_uint generation;
  atomic_uint inside[2];
};

static inline unsigned
quiesce_enter (struct quiesce *q)
{
  unsigned g;

  for (;;) {
    g = atomic_load (&q->generation);
    atomic_fetch_add (&q->inside[g & 1], 1);
    if (atomic_load (&q->generation) == g)
      return g & 1;
    atomic_fetch_sub (&q->inside[g & 1], 1);
  }
}

static inline void
quiesce_leave (struct quiesce *q, unsigned ticket)
{
  atomic_fetch_sub (&q->inside[ticket], 1);
}

static inline void
quiesce_wait (struct quiesce *q)
{
  unsigned g = atomic_fetch_add (&q->generation, 1);

  while (atomic_load (&q->inside[g & 1]) != 0)
    clock_sleep_ns (QUIESCE_PAUSE_NS);
}

#endif /* NBDEDUP_QUIESCE_H */
