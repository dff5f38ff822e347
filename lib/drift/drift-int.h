/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by drift.c (a golden image and its clones), drift-classes.c (the
 * comparison of their contents) and drift-freed.c (the space that destroying
 * them would free).
 */

#ifndef NBDEDUP_DRIFT_INT_H
#define NBDEDUP_DRIFT_INT_H

#include "drift/drift.h"
#include "drift/view.h"
#include "format/hash.h"

/* Members of a clone set are numbered: 0 the golden image, then its clones. */
struct drift_member {
  struct view_name *name; /* not owned */
  uint64_t logical;       /* blocks that are not zero */
  uint64_t own;           /* ... that it does not inherit */
  /* Of clones: blocks of each class, inherited ones left out. */
  uint64_t golden_same, golden_moved, sibling, unique;
};

struct fleet_contents {
  uint64_t distinct, distinct_sectors;
};

/* Progress of several passes, whose lengths become known as they run. */
struct drift_progress {
  const struct view *view; /* of the passes; not owned; NULL: none yet */
  nbdedup_progress_fn *fn; /* or NULL */
  void *opaque;
  uint64_t done, total;
};

/* Fails with EINTR if the user stops it, EBUSY if the pool does (view_check).
 */
extern int drift_progress (struct drift_progress *p, uint64_t done);

/* Wait for another computation of this kind, unless the user stops that, and
 * lock pool->drift.  watch: let work on the view check 'progress'.
 */
extern int
drift_lock (struct nbdedup_pool *pool, struct drift_progress *progress);
extern void drift_unlock (struct nbdedup_pool *pool);
extern void drift_watch (struct view *v, struct drift_progress *progress);

/* The same, and open a view.  Long work checks 'progress', which is borrowed
 * until drift_end.
 */
extern int drift_begin (struct nbdedup_pool *pool, struct view *v,
                        struct drift_progress *progress);
extern void drift_end (struct nbdedup_pool *pool, struct view *v);

/* The blocks behind a document: the golden image and its clones, in the
 * document's order, and the classes of their blocks, where the golden image is
 * number 0 and clone i is i + 1.
 */
struct drift_blocks {
  struct class_map *map;     /* owned */
  struct view_name golden;   /* a copy: a destroyed one has a layer, and is
                                 * at least as large as what stands for it */
  struct view_name **clones; /* owned; the names are the view's */
  uint32_t nr;
};

extern void drift_blocks_free (struct drift_blocks *blocks);

/* The document of one golden image.  Fills in 'blocks' if it is not NULL; the
 * caller must free that also after a failure.
 */
extern json_t *drift_measure (struct view *v, const struct view_name *golden,
                              uint64_t memory_bytes, uint64_t now,
                              struct drift_progress *progress,
                              struct drift_blocks *blocks);

/* Replace 0 by the default; EINVAL if it is too little. */
extern int drift_memory (struct nbdedup_pool *pool, uint64_t *memory_bytes);

/*----------------------------------------------------------------------
 * drift-classes.c
 */

struct classes;
struct class_map;

/* 'members' outlives it. */
extern struct classes *classes_new (struct view *v,
                                    struct drift_member *members, uint32_t nr,
                                    uint64_t memory_bytes);
extern void classes_free (struct classes *c);
/* Add the content that a member has at a block. */
extern int classes_add (struct classes *c, const struct digest *digest,
                        uint32_t sectors, uint32_t who, uint64_t block);
extern uint64_t classes_count (const struct classes *c);
/* Let classes_run tell the map the class of each block. */
extern void classes_set_map (struct classes *c, struct class_map *map);
/* Compare all contents: adds to the members' figures. */
extern int classes_run (struct classes *c, struct fleet_contents *fleet,
                        struct drift_progress *progress);

/*----------------------------------------------------------------------
 * drift-freed.c
 */

struct record_join;

/* Add the references that the background work would drop (0), and those that
 * destroying each of the members 1 .. nr - 1, with its snapshots, would drop,
 * except for the pointers of the members' own layers.
 */
extern int freed_add_members (struct view *v, struct record_join *t,
                              const struct drift_member *members, uint32_t nr,
                              struct drift_progress *progress);

#endif /* NBDEDUP_DRIFT_INT_H */
