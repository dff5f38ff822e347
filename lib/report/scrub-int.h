/* SPDX-License-Identifier: BSD-3-Clause */

/* Inside scrub*.c only. */

#ifndef NBDEDUP_SCRUB_INT_H
#define NBDEDUP_SCRUB_INT_H

#include "core/engine.h"
#include "core/fold-summary.h"
#include "data/verify.h"
#include "format/format.h"
#include "format/segment.h"
#include "meta/meta.h"
#include "report/scrub.h"

struct chunk_id {
  uint64_t segment;
  unsigned index;
};

/* Not faster than 'rate' bytes a second, since it was set. */
struct pace {
  uint64_t rate;                /* 0: as fast as it can */
  uint64_t begin_ms, begin_bytes;
};

/* What a scrub found. */
struct scrubbed {
  uint64_t begun, time;         /* when it ended; 0: not yet */
  uint64_t records, bytes;
  uint64_t errors;              /* records that are damaged */
  uint64_t repaired;            /* records that were, and are not any more */
  uint64_t summary_errors;
  uint64_t metadata_errors;     /* of it, what could not be repaired */
  uint64_t *damaged;            /* owned; ascending addresses */
  size_t nr_damaged;
};

struct scrub {
  struct nbdedup_pool *pool;
  const struct scrub_args *args;
  struct verifier v;
  struct scrubbed f;
  uint64_t lost_blocks;
  uint64_t chunk_addr;          /* what 'chunk' is; 0: nothing */
  uint8_t chunk[SUMMARY_CHUNK_MAX];
  struct chunk_id *suspects;    /* owned */
  size_t nr_suspects;
  uint64_t repaired;            /* slots, by one fold */
  json_t *places;               /* owned */
  json_t *metadata;             /* owned; what was wrong there */
  struct record *wanted;        /* owned; the damaged ones, by digest */
  size_t nr_wanted;
  struct blob row, found;       /* of records */
  uint64_t next_group;          /* of records: those before are done */
  uint64_t total;
  uint64_t kept_ms;             /* when the position was kept */
  uint64_t metadata_bytes;      /* read, of both copies */
  struct pace pace;
  nbdedup_progress_fn *progress;
  void *opaque;
};

static inline bool
scrub_is_readonly (const struct scrub *s)
{
  return s->pool->settings.read_only != NBDEDUP_READ_ONLY_OFF;
}

/* -1 (EINTR): stop. */
extern int scrub_go_on (struct scrub *s);

/*----------------------------------------------------------------------
 * scrub-state.c: how far it is, in memory for "status", and in pool.db for the
 * next scrub, also one after a crash.
 */

/* Begin where the last one stopped, if it did. */
extern int scrub_state_load (struct scrub *s);

/* The rows before s->next_group are done: tell "status"; keep it now and then,
 * or, 'now', at once.
 */
extern int scrub_state_note (struct scrub *s, bool now);

/* It is no longer running. */
extern void scrub_state_end (struct scrub *s);

/* It has ended: keep the report instead of how far it is. */
extern int scrub_state_finish (struct scrub *s, const char *report);

/* Wait until it may go on, as args->rate says.  -1 (EINTR): stop. */
extern int scrub_pace (struct scrub *s);

#endif /* NBDEDUP_SCRUB_INT_H */
