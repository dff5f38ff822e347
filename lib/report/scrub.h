/* SPDX-License-Identifier: BSD-3-Clause */

/* scrub: read and verify everything, and repair what can be repaired. */

#ifndef NBDEDUP_SCRUB_H
#define NBDEDUP_SCRUB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/turn.h"
#include "nbdedup.h"

struct scrubbed; /* the findings of one */

struct scrub_args {
  bool again;     /* check only what the last one of this
                                 * session found damaged */
  bool wanted;    /* report which contents would repair it */
  bool restart;   /* do not resume an interrupted one */
  bool scheduled; /* the server's own (scrubber.h) */
  bool has_rate;  /* else, in a server, scrub-rate applies */
  uint64_t rate;  /* bytes of records a second; 0: no limit */
};

/* The position of a running scrub, for "status"; innermost lock. */
struct scrub_live {
  struct lock lock; /* protects everything below */
  bool running;
  uint64_t begun, records, bytes, errors, total;
};

/* Shared by a pool's scrubs. */
struct scrub_shared {
  struct turn turn;
  struct lock one;       /* one scrub at a time; protects ... */
  struct scrubbed *last; /* ... this, owned; NULL: none yet */
  struct scrub_live live;
  _Atomic uint64_t rate;       /* bytes a second; 0: no limit */
  _Atomic uint64_t interval_s; /* 0: off */
  atomic_uint waiting;         /* users' scrubs that wait for another */
};

/* NULL on failure. */
extern struct scrub_shared *scrub_shared_new (void);
/* NULL is allowed. */
extern void scrub_shared_free (struct scrub_shared *shared);

/* The result is that of "scrub" in command.h.  Waits for a running scrub.  Not
 * under pool->admin.
 */
extern json_t *scrub_run (struct nbdedup_pool *pool,
                          const struct scrub_args *args,
                          nbdedup_progress_fn *progress, void *opaque);

/* If the record at 'addr' is damaged, and 'content' is its content, rewrite
 * it, durably.  1: done; 0: it is not damaged, or does not exist any more, or
 * this is not its content, or no longer compresses to the same bytes; -1.
 */
extern int scrub_offer (struct nbdedup_pool *pool, uint64_t addr,
                        const void *content, uint32_t len);

/* {"running", "begun", "records", "bytes", "errors", "total"} of a scrub that
 * runs or was interrupted; JSON's null: neither.
 */
extern json_t *scrub_progress (struct nbdedup_pool *pool);

#endif /* NBDEDUP_SCRUB_H */
