/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by fold.c (the txg's changes), fold-deltas.c (pointers that stay apart
 * from their leaves), fold-layers.c (background work on layers) and
 * fold-records.c.
 */

#ifndef NBDEDUP_FOLD_INT_H
#define NBDEDUP_FOLD_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/fold-index.h"
#include "core/fold.h"
#include "format/leaf-delta.h"

struct addrs {
  uint64_t *p; /* owned */
  size_t nr;
};

/* What one fold does to a layer. */
struct layer_delta {
  struct layer *layer;
  int64_t pointers, blocks;
  uint64_t cursor; /* position of the background work */
  bool has_cursor;
  bool pass_done; /* ... which has reached the end */
  bool reaped;    /* dying, and all its rows are gone */
};

/* DELTA_LEAVES leaves of a layer. */
struct area {
  const struct layer *layer;
  uint64_t area;
};

/* What a fold does to a record that moves (moves.h). */
struct move_ref {
  uint32_t nr; /* pointers that name the new one now */
  enum { MOVE_UNKNOWN, MOVE_IS_THERE, MOVE_IS_GONE } state;
};

/* Threads that read ahead; fold-ahead.c. */
struct fold_ahead {
  atomic_bool stop;
  atomic_size_t next;  /* row to read; leaves come first, then changes */
  size_t rows;         /* that the fold has read */
  uint64_t was_read;   /* bytes from the disk, when it last looked */
  unsigned nr_threads; /* that run */
  pthread_t threads[META_READERS_AHEAD];
};

struct fold {
  const struct txg_parts *parts;
  struct room *room; /* not owned */
  struct meta_state base, state;
  uint32_t sector_bytes, segment_sectors;
  unsigned background_rows;  /* maximum, for layers */
  uint64_t background_pages; /* left for background work; room.h */
  unsigned background_done;  /* rows of layers and moves; each attempt */
  uint64_t merge_pages;      /* maximum, for merges of the hash index */

  struct map_change *map_changes;
  size_t nr_map_changes;
  struct ddt_change *changes; /* ascending by address */
  size_t nr_changes;

  unsigned move_rows;         /* leaves that moves may change; 0: no moves */
  bool moves_end;             /* they end with this fold */
  struct move_ref *move_refs; /* one for each move */

  struct fold_ahead ahead;

  /* Made again by each fold_write_tables. */
  struct addrs displaced; /* lost one reference each */
  struct {
    struct area *p; /* owned */
    size_t nr;
  } areas;            /* whose deltas are to be merged */
  size_t area_end;    /* of the map's changes: those of the present area */
  bool area_is_dense; /* it gets new rows of leaves */
  struct {
    const struct layer *layer; /* NULL: it was not read, or may have changed */
    uint64_t area;
    bool dirty; /* the table has an older one */
    size_t len;
    uint8_t buf[DELTA_LEN_MAX];
  } deltas; /* the present area's row */
  bool with_deltas;
  bool has_merged;          /* deltas */
  struct ddt_change *added; /* of moved records; ascending by address */
  size_t nr_added;
  struct addrs moved_leaves; /* numbers of leaves that moves have changed */
  struct meta_leaf_key moves_next; /* moves have not read it */
  bool moves_swept;                /* they have read all */
  struct addrs unlinked;           /* pinned by space_unlink */
  struct addrs inserted;           /* NEW records now in pool.db */
  struct addrs reached; /* records that may have copies from now on */
  struct layer_delta *layers;
  size_t nr_layers;
  struct space_freed *gone;
  size_t nr_gone;
  struct index_entry *index; /* changes of the hash index */
  size_t nr_index;
  struct index_merges merges; /* as they will be */
  struct index_runs runs;     /* after it; valid if 'has_runs' */
  bool has_runs;
  bool has_more;
  bool index_damaged;
  bool repairing;
  bool inconsistent;          /* pool.db's content made it fail */
  uint64_t nr_contradictions; /* tolerated */

  bool copies_damaged;    /* the table is; the fold does not use it */
  bool copies_failed;     /* ... since the last attempt */
  bool looked_at_copies;  /* a search for surplus copies ran: ... */
  unsigned copies_wanted; /* ... its number, ... */
  uint64_t copies_cursor; /* ... its position; 0: the end */
};

/* These addresses lose one reference each. */
extern int
fold_add_displaced (struct fold *f, const uint64_t *addrs, size_t nr);
/* The layer's delta, created if needed; valid until the next is created.
 * NULL: no memory.
 */
extern struct layer_delta *fold_delta (struct fold *f, struct layer *layer);

/* The tables contradict each other, as the error text says.  0: a repair is
 * running and corrects them; -1: the fold fails, because the pool must not
 * rely on them.
 */
extern int fold_note_contradiction (struct fold *f);

/* Write a leaf's row, or, if the leaf is empty and the row 'exists', delete
 * the row.
 */
extern int fold_put_leaf (struct meta_conn *c, struct layer *layer,
                          uint64_t leaf_nr, const struct leaf *leaf,
                          bool exists);

/* Move a merging child's leaf to its parent.  'exists': the child has a row
 * for the leaf.
 */
extern int fold_push_leaf (struct fold *f, struct meta_conn *c,
                           struct layer *child, uint64_t leaf_nr,
                           const struct leaf *leaf, bool exists);

/* fold-deltas.c.  begin: before the first leaf; look: before the map's change
 * 'i'.  put: write a change of a leaf, which has a row, as deltas: 1; 0: the
 * leaf needs a new row; -1.  They reach the table with flush, which must come
 * before a new row of a leaf, and after the last change.  merge: after all else
 * that changes maps.
 */
extern int fold_deltas_begin (struct fold *f, struct meta_conn *c);
extern int fold_deltas_look (struct fold *f, struct meta_conn *c, size_t i);
extern int fold_put_deltas (struct fold *f, struct meta_conn *c,
                            const struct map_change *mc, unsigned nr_displaced);
extern int fold_flush_deltas (struct fold *f, struct meta_conn *c);
extern int fold_merge_deltas (struct fold *f, struct meta_conn *c);
/* While a repair runs: before a change of a leaf, lose what deltas that are not
 * valid have made unreadable.
 */
extern int fold_repair_deltas (struct fold *f, struct meta_conn *c,
                               const struct map_change *mc);

/* Add the txg's records and update all counts; records that have no
 * reference die.
 */
extern int fold_records (struct fold *f, struct meta_conn *c);

/* Leaves that background work may change, whatever they have. */
extern unsigned fold_background_leaves (const struct fold *f);

/* Can pool.db have 'pages' more than the fold needs?  What the folds before
 * this one have freed may be the room, once it is given back.
 */
extern bool fold_has_room (const struct fold *f, uint64_t pages);

/* Do a bounded part of the work on dying and merging layers. */
extern int fold_background (struct fold *f, struct meta_conn *c);

/* fold-moves.c.  begin: with fold_new; new: the records that this fold may
 * insert, in a malloc'd array; then a part of the work, before fold_records;
 * and after the commit, committed before quiesce_wait, finish at the end.
 */
extern int fold_moves_begin (struct fold *f);
extern int
fold_moves_new (const struct fold *f, struct ddt_change **new, size_t *nr);
extern int fold_moves (struct fold *f, struct meta_conn *c);
extern void fold_moves_committed (struct fold *f);
extern void fold_moves_finish (struct fold *f);

/* The record at 'addr', as the transaction sees it: 1, 0, -1. */
extern int fold_find_record (struct fold *f, struct meta_conn *c, uint64_t addr,
                             struct record *r);

/* Drop the reference that table "copy" has to each of these copies.  Records
 * that are not copies do not change.
 */
extern int fold_release_copies (struct fold *f, struct meta_conn *c,
                                const uint64_t *addrs, size_t nr);

/* fold-copies.c: update the copies of the records that have or may have some;
 * after fold_records.
 */
extern int fold_copies (struct fold *f, struct meta_conn *c);

#endif /* NBDEDUP_FOLD_INT_H */
