/* SPDX-License-Identifier: BSD-3-Clause */

/* How fast background work may go, beside clients that write: folds change
 * fewer leaves for it while they do, and it pauses for most of the time.
 *
 * A pace belongs to one thread.
 */

#ifndef NBDEDUP_PACE_H
#define NBDEDUP_PACE_H

#include <stdbool.h>
#include <stdint.h>

struct nbdedup_pool;

struct pace {
  struct nbdedup_pool *pool; /* not owned */
  uint64_t seen_bytes;       /* txg_new_bytes, at the last look */
  uint64_t looked_ms, rested_ms;
  bool busy; /* clients write */
};

extern void pace_begin (struct pace *p, struct nbdedup_pool *pool);

/* Look whether clients write, at most once a second. */
extern void pace_look (struct pace *p);

/* Let a fold do a part of the moves (compact_step).  Returns how long to pause
 * then, in milliseconds, or -1.
 */
extern int64_t pace_step (struct pace *p);

/* Call it after each small piece of other work: looks, and, while clients
 * write, sleeps as long as the work has taken.
 */
extern void pace_rest (struct pace *p);

#endif /* NBDEDUP_PACE_H */
