/* SPDX-License-Identifier: BSD-3-Clause */

/* A layer: the part of a volume that was written between two snapshots.
 *
 * A volume is a stack of layers.  Writes change only the top one, the volume's
 * head; the others are frozen, and shared by all layers above them.  A block
 * that a layer has no entry for is inherited from its parent, if the block is
 * below the layer's overlap; past the overlap it is a hole.
 *
 * A branch is a number that layers share.  Layers of one branch on top of
 * each other without a gap are a run: their rows for one leaf are
 * neighbours in pool.db, and one range scan, from the highest seq down to
 * the base's, finds all their rows (resolve.c).  So a run must contain
 * no row of a layer that is not in it: a new layer joins its parent's
 * branch only if the parent has the highest seq there (volume-layers.c).
 *
 * Life of a layer:
 *
 *   head      a volume's; takes writes
 *   frozen    a snapshot's, or nameless and other layers inherit from it
 *   merging   nameless, with one child: takes over the child's rows, then
 *             its place (merge.h)
 *   dying     nothing refers to it: the fold drops its references, then its
 *             row
 *   gone      has no row; the struct stays until no reader can hold it
 *
 * The pool's registry owns the layers, and frees those that are gone, many at
 * a time (layers_collect).  To follow these pointers a thread must hold
 * pool->admin, be the folding thread, or be inside quiesce.  A layer that a
 * struct volume points to stays as long as that struct does, also if the
 * volume was destroyed.
 *
 * Writers: the fields below "fold" belong to the folding thread.  The
 * structure changes only in txg_run's 'done' callbacks, hence also in that
 * thread, while the thread that waits for it holds pool->admin.  So a thread
 * that holds admin sees a stable structure.
 */

#ifndef NBDEDUP_LAYER_H
#define NBDEDUP_LAYER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum merge_state {
  MERGE_NONE,
  MERGE_TRIM, /* drop entries not visible in the child */
  MERGE_PUSH, /* move the child's rows here */
};

struct layer {
  uint64_t id, branch, seq;
  uint32_t block_size;

  /* Any thread reads these.  A change of parent and overlap does not change the
   * content, in whichever order a thread sees the two changes (merge.c).
   */
  _Atomic (struct layer *) parent; /* not owned; NULL: none */
  _Atomic uint64_t overlap;        /* blocks of the parent that show through */
  _Atomic (struct layer *) base;   /* lowest layer of the run */
  _Atomic uint64_t run_overlap;    /* least overlap down to the base, without
                                 * the base's */
  atomic_bool frozen;              /* set and cleared by map_freeze, map_thaw */

  bool lost;              /* opened read-only: its row, or that of a
                                 * layer below it, cannot be read */
  atomic_uint nr_structs; /* struct volumes whose 'layer' it is */

  /* Changed under volumes->lock, together with the structure. */
  bool dying, gone;
  unsigned nr_children;  /* layers that inherit, without dying ones */
  unsigned nr_names;     /* volumes and snapshots, and holds */
  struct layer *merging; /* the child, while it is merged */
  enum merge_state merge_state;
  unsigned counted_children, counted_names; /* scratch of
                                             * volumes-consistent.c */

  /* fold */
  _Atomic uint64_t pointers;     /* own ones, as of the last fold */
  _Atomic uint64_t blocks;       /* not holes, inherited ones included */
  uint64_t cursor;               /* leaves below are trimmed, pushed, reaped */
  atomic_bool pass_done;         /* the merge state's work is done */
  _Atomic uint64_t trim_overlap; /* the overlap that the trim uses */
  unsigned delta_index;          /* a hint of fold.c */

  /* Under the map's lock: see map.c. */
  uint64_t own_key, resolved_key;
  bool unstable;
};

/* Add 'change' to one of the two counts above.  If damage made the count too
 * small, the result is 0: the count can be computed again.
 */
static inline uint64_t
layer_count (uint64_t count, int64_t change)
{
  return change < 0 && (uint64_t) -change > count ? 0
                                                  : count + (uint64_t) change;
}

/* More blocks than any volume has: all of the parent shows through. */
#define LAYER_OVERLAP_ALL ((uint64_t) INT64_MAX)

/* Compare two layers by (branch, seq): less than, equal to or greater than 0.
 * Those of one run are neighbours in this order.
 */
static inline int
layer_order (uint64_t branch, uint64_t seq, uint64_t other_branch,
             uint64_t other_seq)
{
  if (branch != other_branch)
    return branch < other_branch ? -1 : 1;
  return seq < other_seq ? -1 : seq > other_seq;
}

/* True if the fold writes changes of this layer directly to its parent. */
static inline bool
layer_is_pushed (struct layer *l)
{
  struct layer *parent = l->parent;

  return parent && parent->merging == l && parent->merge_state == MERGE_PUSH;
}

/* The pointers that a name has itself.  While folds push the rows of its layer
 * to the parent it has the parent's, too, which takes the layer's place.  Some
 * of these its own are still to replace, so the number is the most that there
 * may be.
 */
static inline uint64_t
layer_own_pointers (struct layer *l)
{
  const uint64_t blocks = l->blocks;
  uint64_t n = l->pointers;

  if (!layer_is_pushed (l))
    return n;
  n += l->parent->pointers;
  return n < blocks ? n : blocks;
}

#endif /* NBDEDUP_LAYER_H */
