/* SPDX-License-Identifier: BSD-3-Clause */

/* scrub: read and verify everything, and repair what can be repaired. */

#ifndef NBDEDUP_SCRUB_H
#define NBDEDUP_SCRUB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "nbdedup.h"

struct scrubbed;                /* what one found */

struct scrub_args {
  bool again;                   /* look at what the last one of this session
                                 * found damaged, and at nothing else */
  bool wanted;                  /* tell which contents would repair it */
  bool restart;                 /* do not go on where one was stopped */
  bool scheduled;               /* the server's own (scrubber.h) */
  bool has_rate;                /* else as scrub-rate says, in a server */
  uint64_t rate;                /* bytes of records a second; 0: no limit */
};

/* How far one is that runs, for "status"; innermost lock. */
struct scrub_live {
  struct lock lock;             /* protects everything below */
  bool running;
  uint64_t begun, records, bytes, errors, total;
};

/* What a pool's scrubs share. */
struct scrub_shared {
  struct lock one;              /* one scrub at a time; protects ... */
  struct scrubbed *last;        /* ... this, owned; NULL: none yet */
  struct scrub_live live;
  _Atomic uint64_t rate;        /* bytes a second; 0: no limit */
  _Atomic uint64_t interval_s;  /* 0: off */
  atomic_uint waiting;          /* users' scrubs that wait for another */
};

/* NULL on failure. */
extern struct scrub_shared *scrub_shared_new (void);
/* NULL is allowed. */
extern void scrub_shared_free (struct scrub_shared *shared);

/* The result as command.h says.  Waits for one that is under way.  Not under
 * pool->admin.
 */
extern json_t *scrub_run (struct nbdedup_pool *pool,
                          const struct scrub_args *args,
                          nbdedup_progress_fn *progress, void *opaque);

/* If the record at 'addr' is damaged, and 'content' is its content, write
 * it again, durably.  1: done; 0: it was not damaged, or is no more, or this
 * is not its content, or cannot be brought into its stored form; -1.
 */
extern int scrub_offer (struct nbdedup_pool *pool, uint64_t addr,
                        const void *content, uint32_t len);

/* {"running", "begun", "records", "bytes", "errors", "total"} of
 * one that runs, or was stopped before its end; JSON's null: neither.
 */
extern json_t *scrub_progress (struct nbdedup_pool *pool);

#endif /* NBDEDUP_SCRUB_H */
