/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the passes of "check --repair": see check-repair.c. */

#ifndef NBDEDUP_CHECK_INT_H
#define NBDEDUP_CHECK_INT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/engine.h"
#include "format/format.h"
#include "format/segment.h"
#include "meta/meta.h"

/* A layer, as pool.db has it at this moment. */
struct repair_layer {
  struct meta_layer row;
  uint64_t end;                 /* blocks past it are no volume's */
  uint64_t pointers;            /* found */
};

struct repair {
  struct nbdedup_pool *pool;
  nbdedup_progress_fn *progress;
  void *opaque;
  uint64_t pieces;              /* for progress */

  /* Rows that one transaction changes, so that it has room in the WAL. */
  unsigned rows;

  uint64_t lost_blocks;
  bool records_are_right;       /* each pointer has its record */

  void *arg;                    /* what this pass was given */

  /* The following are of one transaction. */
  struct meta_conn *c;          /* its writer */
  struct meta_state *state;
  struct repair_layer *layers;  /* owned; ascending by branch, seq */
  size_t nr_layers;
  bool more;                    /* this pass has not ended */
  bool maps_changed;            /* under the map's cache */
  bool records_gone;            /* ... and the dedup table's */
};

/* Run 'fn' in transactions of folds until it leaves rp->more false; 'done'
 * (may be NULL) after each.  Both in the folding thread.  -1: what was done by
 * earlier ones stays.
 */
extern int repair_pass (struct repair *rp, int (*fn) (struct repair *rp),
                        void (*done) (struct repair *rp), void *arg);
extern struct repair_layer *repair_find_layer (struct repair *rp,
                                               uint64_t branch, uint64_t seq);

/* The passes, in their order. */
extern int repair_leaves (struct repair *rp);
extern int repair_copies (struct repair *rp);   /* check-copies.c */
extern int repair_records (struct repair *rp);  /* check-records.c */
extern int repair_space (struct repair *rp);    /* check-space.c */
extern int repair_index (struct repair *rp);    /* check-index.c */
extern int repair_totals (struct repair *rp);
extern int repair_limbo (struct repair *rp);

/*----------------------------------------------------------------------
 * What "records" itself says (check-derive.c)
 */

struct derive;

extern struct derive *derive_new (struct nbdedup_pool *pool);
extern void derive_free (struct derive *d);
/* Summaries may have changed: at the start of each transaction. */
extern void derive_forget (struct derive *d);

/* The bytes that the pointer names: CONTENT_LOST only if they were read, and
 * are others.
 */
enum content { CONTENT_GOOD, CONTENT_LOST, CONTENT_UNKNOWN };
extern enum content derive_content (struct derive *d,
                                    const struct pointer *ptr,
                                    uint32_t lsize);

/* After CONTENT_GOOD: the record of these bytes, if a summary describes it,
 * with no references, and not indexed.  1, 0, -1 (pool.db cannot be read).
 */
extern int derive_record (struct derive *d, struct meta_conn *c,
                          const struct pointer *ptr, uint32_t lsize,
                          struct record *r);

/* The summary chunks of a segment, by its row or, if that cannot be used, by
 * what looks like a chunk: a malloc'd array of their first sectors in the
 * segment (SEGMENT_CHUNK_LOST among them).  1, 0: that cannot be told, -1.
 */
extern int derive_chunks (struct derive *d, struct meta_conn *c,
                          uint64_t segment, uint16_t **chunks,
                          unsigned *nr_chunks);

/* A segment's map, from its records and summary chunks.  1; 0: that cannot be
 * told, or records overlap; -1.
 */
extern int derive_map (struct derive *d, struct meta_conn *c,
                       uint64_t segment, struct segment_map **map);

#endif /* NBDEDUP_CHECK_INT_H */
