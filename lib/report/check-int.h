/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the passes of "check --repair": see check-repair.c. */

#ifndef NBDEDUP_CHECK_INT_H
#define NBDEDUP_CHECK_INT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/engine.h"
#include "format/format.h"
#include "format/segment.h"
#include "meta/meta-index.h"
#include "meta/meta.h"

/* A layer, as pool.db has it at this moment. */
struct repair_layer {
  struct meta_layer row;
  uint64_t end;      /* no volume shows blocks past it */
  uint64_t pointers; /* found */
};

struct repair {
  struct nbdedup_pool *pool;
  nbdedup_progress_fn *progress;
  void *opaque;
  uint64_t pieces; /* for progress */

  /* Most rows for one transaction to change, so that it fits in the WAL. */
  unsigned rows;

  uint64_t lost_blocks;
  bool records_are_right; /* each pointer has its record */

  void *arg; /* of this pass */

  /* The rest belongs to one transaction. */
  struct meta_conn *c; /* its writer */
  struct meta_state *state;
  struct repair_layer *layers; /* owned; ascending by branch, seq */
  size_t nr_layers;
  bool more;         /* this pass has not ended */
  bool maps_changed; /* the map's cache is out of date */
  bool records_gone; /* ... and so is the dedup table's */
};

/* Run 'fn' in transactions of folds until it leaves rp->more false, and 'done'
 * (may be NULL) after each; both in the folding thread.  -1: the changes of
 * earlier transactions stay.
 */
extern int repair_pass (struct repair *rp, int (*fn) (struct repair *rp),
                        void (*done) (struct repair *rp), void *arg);
extern struct repair_layer *
repair_find_layer (struct repair *rp, uint64_t branch, uint64_t seq);

/* The passes of other files; check-repair.c has their order. */
extern int repair_copies (struct repair *rp);  /* check-copies.c */
extern int repair_records (struct repair *rp); /* check-records.c */
extern int repair_space (struct repair *rp);   /* check-space.c */
extern int repair_index (struct repair *rp);   /* check-index.c */
extern int repair_limbo (struct repair *rp);

/*----------------------------------------------------------------------
 * What can be derived from the file "records" (check-derive.c)
 */

struct derive;

extern struct derive *derive_new (struct nbdedup_pool *pool);
extern void derive_free (struct derive *d);
/* Drop cached summaries, which may have changed.  Call it at the start of each
 * transaction.
 */
extern void derive_forget (struct derive *d);

/* Check the bytes that the pointer names.  CONTENT_LOST only if they could be
 * read and do not match.
 */
enum content { CONTENT_GOOD, CONTENT_LOST, CONTENT_UNKNOWN };
extern enum content
derive_content (struct derive *d, const struct pointer *ptr, uint32_t lsize);

/* After CONTENT_GOOD: make the record of these bytes if a summary describes
 * it, without references and not indexed.  1, 0, -1 (pool.db cannot be read).
 */
extern int derive_record (struct derive *d, struct meta_conn *c,
                          const struct pointer *ptr, uint32_t lsize,
                          struct record *r);

/* The summary chunks of a segment, from its row or, if that is unusable, by
 * searching the segment: a malloc'd array of their first sectors in the
 * segment (SEGMENT_CHUNK_LOST among them).  1, 0: not known, -1.
 */
extern int derive_chunks (struct derive *d, struct meta_conn *c,
                          uint64_t segment, uint16_t **chunks,
                          unsigned *nr_chunks);

/* A segment's map, from its records and summary chunks.  1; 0: the chunks are
 * not known, or records overlap; -1.
 */
extern int derive_map (struct derive *d, struct meta_conn *c, uint64_t segment,
                       struct segment_map **map);

#endif /* NBDEDUP_CHECK_INT_H */
