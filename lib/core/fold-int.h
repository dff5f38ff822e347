/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by fold.c (what the txg changed), fold-layers.c (what happens to
 * layers in the background) and fold-records.c.
 */

#ifndef NBDEDUP_FOLD_INT_H
#define NBDEDUP_FOLD_INT_H

#include "core/fold.h"

struct addrs {
  uint64_t *p;                  /* owned */
  size_t nr;
};

/* What one fold does to a layer. */
struct layer_delta {
  struct layer *layer;
  int64_t pointers, blocks;
  uint64_t cursor;              /* background work got this far */
  bool has_cursor;
  bool pass_done;               /* ... and to the end */
  bool reaped;                  /* dying, and nothing is left of it */
};

struct fold {
  const struct txg_parts *parts;
  struct meta_state base, state;
  uint32_t sector_bytes, segment_sectors;
  unsigned background_rows;     /* for layers, at the most */

  struct map_change *map_changes;
  size_t nr_map_changes;
  struct ddt_change *changes;   /* ascending by address */
  size_t nr_changes;

  /* Made again by each fold_write_tables. */
  struct addrs displaced;       /* lost one reference each */
  struct addrs unlinked;        /* pinned by space_unlink */
  struct addrs inserted;        /* NEW records now in pool.db */
  struct addrs reached;         /* records that may have copies now */
  struct layer_delta *layers;
  size_t nr_layers;
  struct space_freed *gone;
  size_t nr_gone;
  struct fold_index_op *index;
  size_t nr_index;
  bool has_more;
  bool index_damaged;
  bool repairing;
  bool inconsistent;            /* it failed for what pool.db says */
  uint64_t nr_contradictions;   /* that it tolerates */

  bool copies_damaged;          /* the table: do without it */
  bool copies_failed;           /* ... since the last attempt */
  bool looked_at_copies;        /* for such as are too many: ... */
  unsigned copies_wanted;       /* ... for which time, ... */
  uint64_t copies_cursor;       /* ... how far; 0: to the end */
};

/* These addresses lose one reference each. */
extern int fold_add_displaced (struct fold *f, const uint64_t *addrs,
                               size_t nr);
/* The layer's delta, made if needed; valid until the next is made.  NULL:
 * no memory.
 */
extern struct layer_delta *fold_delta (struct fold *f, struct layer *layer);

/* Write a leaf's row: an empty one is deleted if it 'exists'. */
extern int fold_put_leaf (struct meta_conn *c, struct layer *layer,
                          uint64_t leaf_nr, const struct leaf *leaf,
                          bool exists);

/* A merging child's leaf moves to its parent.  'exists': the child has a
 * row for it.
 */
extern int fold_push_leaf (struct fold *f, struct meta_conn *c,
                           struct layer *child, uint64_t leaf_nr,
                           const struct leaf *leaf, bool exists);

/* Add the txg's records, and count references; those without die. */
extern int fold_records (struct fold *f, struct meta_conn *c);

/* A bounded part of what dying and merging layers wait for. */
extern int fold_background (struct fold *f, struct meta_conn *c);

/* The record at 'addr', as the transaction has it: 1, 0, -1. */
extern int fold_find_record (struct fold *f, struct meta_conn *c,
                             uint64_t addr, struct record *r);

/* These copies, each once, lose the reference that table "copy" had.  What is
 * not a copy stays as it is.
 */
extern int fold_release_copies (struct fold *f, struct meta_conn *c,
                                const uint64_t *addrs, size_t nr);

/* fold-copies.c: what has happened to the records that have copies, or may
 * have some; after fold_records.
 */
extern int fold_copies (struct fold *f, struct meta_conn *c);

#endif /* NBDEDUP_FOLD_INT_H */
