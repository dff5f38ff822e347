/* SPDX-License-Identifier: BSD-3-Clause */

/* A layer: the part of a volume that was written between two snapshots.
 *
 * A volume is a stack of layers.  Only the top one, the volume's head, is
 * written; the others are frozen, and shared by everything that stands on
 * them.  What a layer does not say about a block it inherits from its
 * parent, if the block is below its overlap; past that it is a hole.
 *
 * A branch is a number that layers share.  Layers of one branch that stand
 * on each other without a gap are a run: their rows for one leaf are
 * neighbours in pool.db, and one range scan, from the highest seq down to
 * the base's, finds all that they say (resolve.c).  So a run must contain
 * no row of a layer that is not in it: a new layer joins its parent's
 * branch only if the parent has the highest seq there (volume-layers.c).
 *
 * Life of a layer:
 *
 *   head      a volume's; takes writes
 *   frozen    a snapshot's, or nameless and still inherited from
 *   merging   nameless, with one child: takes over the child's rows, then
 *             its place (merge.h)
 *   dying     nothing refers to it: its references go back, then its row
 *
 *   gone      its row is, too; the struct stays until no reader can hold it
 *
 * Owned by the pool's registry, which frees those that are gone, many at a
 * time (layers_collect).  To follow these pointers hold pool->admin, be the
 * folding thread, or be inside quiesce; a layer that a struct volume points to
 * stays as long as that struct does, also if the volume was destroyed.
 *
 * Who writes what: the fields that say "fold" belong to the folding thread.
 * The structure changes only in txg_run's 'done' callbacks, hence also in
 * that thread, while pool->admin is held by the one who waits for it;
 * a thread that holds admin reads it as it is.
 */

#ifndef NBDEDUP_LAYER_H
#define NBDEDUP_LAYER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum merge_state {
  MERGE_NONE,
  MERGE_TRIM,                   /* drop what the child does not show */
  MERGE_PUSH,                   /* the child's rows move here */
};

struct layer {
  uint64_t id, branch, seq;
  uint32_t block_size;

  /* Read by everybody.  When parent and overlap change the content does
   * not, in whichever order they are seen (merge.c).
   */
  _Atomic (struct layer *) parent;      /* not owned; NULL: none */
  _Atomic uint64_t overlap;     /* blocks of the parent that show through */
  _Atomic (struct layer *) base;        /* lowest layer of the run */
  _Atomic uint64_t run_overlap; /* least overlap down to the base, its own
                                 * left out */
  atomic_bool frozen;           /* set and cleared by map_freeze, map_thaw */

  bool dying, gone;             /* under volumes->lock */
  bool lost;                    /* opened read-only: it, or what it stands
                                 * on, has no row that can be read */
  unsigned nr_children;         /* layers that inherit, dying ones not */
  unsigned nr_names;            /* volumes and snapshots, and holds */
  atomic_uint nr_structs;       /* struct volumes whose 'layer' it is */
  struct layer *merging;        /* the child, while it is merged */
  enum merge_state merge_state;

  /* fold */
  _Atomic uint64_t pointers;    /* own ones, as of the last fold */
  _Atomic uint64_t blocks;      /* not holes, inherited ones included */
  uint64_t cursor;              /* leaves below are trimmed, pushed, reaped */
  atomic_bool pass_done;        /* the merge state's work is done */
  _Atomic uint64_t trim_overlap; /* what the trim goes by: the child's, then */
  unsigned delta_index;         /* a hint of fold.c */

  /* Under the map's lock: see map.c. */
  uint64_t own_key, resolved_key;
  bool unstable;
};

/* One of the two counts above, changed.  They can be counted again, so one
 * that damage has made too small stops nothing.
 */
static inline uint64_t
layer_count (uint64_t count, int64_t change)
{
  return change < 0 && (uint64_t) -change > count ? 0 :
    count + (uint64_t) change;
}

/* More blocks than any volume has: everything shows through. */
#define LAYER_OVERLAP_ALL ((uint64_t) INT64_MAX)

/* Does what is folded into this layer go to its parent at once? */
static inline bool
layer_is_pushed (struct layer *l)
{
  struct layer *parent = l->parent;

  return parent && parent->merging == l &&
    parent->merge_state == MERGE_PUSH;
}

#endif /* NBDEDUP_LAYER_H */
