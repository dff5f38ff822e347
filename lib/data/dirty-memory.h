/* SPDX-License-Identifier: BSD-3-Clause */

/* The memory of dirty blocks: buffers of their versions, at most dirty-max.
 *
 * Versions come and go at the rate of writes, and the allocator would map and
 * unmap the larger ones each time, so buffers are kept for reuse.
 */

#ifndef NBDEDUP_DIRTY_MEMORY_H
#define NBDEDUP_DIRTY_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/lock.h"

/* One content of a block (writeback-int.h has the rules). */
struct version {
  SLIST_ENTRY (version) link; /* of spare or dropped ones */
  uint8_t *data;              /* owned */

  /* Under the lock of the volume's dirty blocks. */
  uint64_t seq;
  unsigned nr_readers; /* threads that copy from it, without locks */
  bool filling;        /* a thread changes it, without locks */
  bool dropped;        /* not in the table: the last reader puts it */
};

SLIST_HEAD (version_list, version);

/* A thread that waits for room; all zero at first. */
struct dirty_waiter {
  TAILQ_ENTRY (dirty_waiter) link; /* of 'waiters', while 'size' > 0 */
  uint32_t size;
};

TAILQ_HEAD (dirty_waiters, dirty_waiter);

struct dirty_memory {
  uint64_t max; /* constant */

  struct lock lock;       /* protects everything below; innermost, held
                                 * for a few instructions */
  struct cond room;       /* 'bytes' decreased */
  _Atomic uint64_t bytes; /* of all versions; read without the lock */
  /* First come, first served: room that others free is for the first, so small
   * blocks cannot keep a large one waiting.
   */
  struct dirty_waiters waiters;
  uint64_t spare_bytes;
  struct version_list spare[21]; /* by size */
  size_t nr_spare;
  size_t changes; /* for invariant_is_due */
};

extern void dirty_memory_init (struct dirty_memory *m, uint64_t max);
extern void dirty_memory_destroy (struct dirty_memory *m);

/* Get versions with buffers of 'size' bytes, a power of two, as many of 'nr' as
 * there is room for beside those who have waited for longer than the caller.
 * 'waiter' may be NULL; it waits no more if the result is not 0.  Returns how
 * many; 0: there is no room now; -1: the system has no memory.
 */
extern int dirty_memory_get (struct dirty_memory *m, uint32_t size, unsigned nr,
                             struct version **versions,
                             struct dirty_waiter *waiter);

/* Wait, for at most 'ms' milliseconds, until there may be room for a version,
 * or dirty_memory_wake.  The waiter keeps its turn until dirty_memory_get has
 * something for it, or dirty_memory_leave.
 */
extern void dirty_memory_wait (struct dirty_memory *m, uint32_t size,
                               uint64_t ms, struct dirty_waiter *waiter);
extern void
dirty_memory_leave (struct dirty_memory *m, struct dirty_waiter *waiter);
extern void dirty_memory_wake (struct dirty_memory *m);

/* Give back versions of 'size' bytes each; the list is empty then. */
extern void dirty_memory_put (struct dirty_memory *m, struct version_list *list,
                              uint32_t size);

extern void version_free (struct version *version);

#endif /* NBDEDUP_DIRTY_MEMORY_H */
