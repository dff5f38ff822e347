/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by scrub*.c. */

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

/* Limits the speed to 'rate' bytes a second, since that was set. */
struct rate_limit {
  uint64_t rate; /* 0: as fast as it can */
  uint64_t begin_ms, begin_bytes;
};

/* The findings of a scrub. */
struct scrubbed {
  uint64_t begun, time; /* 'time': of its end; 0: not yet */
  uint64_t records, bytes;
  uint64_t errors;   /* records that are damaged */
  uint64_t repaired; /* records that were, and are repaired */
  uint64_t summary_errors;
  uint64_t metadata_errors; /* those that could not be repaired */
  uint64_t *damaged;        /* owned; ascending addresses */
  size_t nr_damaged;
};

struct scrub {
  struct nbdedup_pool *pool;
  const struct scrub_args *args;
  struct verifier v;
  struct scrubbed f;
  uint64_t lost_blocks, hidden_blocks;
  uint64_t chunk_addr; /* of 'chunk'; 0: that is empty */
  uint8_t chunk[SUMMARY_CHUNK_MAX];
  struct chunk_id *suspects; /* owned */
  size_t nr_suspects;
  uint64_t repaired;     /* slots, by one fold */
  json_t *places;        /* owned */
  json_t *affected;      /* owned; names */
  json_t *metadata;      /* owned; texts of its errors */
  struct record *wanted; /* owned; the damaged ones, by digest */
  size_t nr_wanted;
  struct blob row, found; /* of records */
  uint64_t next_group;    /* of records: those before it are done */
  uint64_t total;
  uint64_t kept_ms;        /* when the position was last stored */
  uint64_t metadata_bytes; /* read, of both copies */
  struct rate_limit limit;
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
 * scrub-state.c: the position of a scrub, in memory for "status", and in
 * pool.db for the next scrub, also after a crash.
 */

/* Begin where the last one stopped, if it did. */
extern int scrub_state_load (struct scrub *s);

/* The rows before s->next_group are done: update "status", and store the
 * position now and then, or, with 'now', at once.
 */
extern int scrub_state_note (struct scrub *s, bool now);

/* The scrub is no longer running. */
extern void scrub_state_end (struct scrub *s);

/* The scrub is complete: store the report and delete the position. */
extern int scrub_state_finish (struct scrub *s, const char *report);

/*----------------------------------------------------------------------
 * scrub-places.c: find the volumes and snapshots that cannot read damaged
 * records, or blocks that have lost their pointers: s->places, s->affected and
 * the counts.  Not under pool->admin.
 */

extern int scrub_locate (struct scrub *s);

/*----------------------------------------------------------------------
 * scrub-events.c
 */

extern void scrub_tell_begun (const struct scrub *s);
/* 'result' NULL: it failed, or was interrupted; keeps that error.  Outside of
 * all locks: it waits until the event is in the history.
 */
extern void scrub_tell_ended (const struct scrub *s, const json_t *result);

/*----------------------------------------------------------------------*/

/* Wait until the rate allows the scrub to go on.  -1 (EINTR): stop. */
extern int scrub_pace (struct scrub *s);

#endif /* NBDEDUP_SCRUB_INT_H */
