/* SPDX-License-Identifier: BSD-3-Clause */

/* A view of a pool, a snapshot of its metadata: the layers, volumes and
 * snapshots of one moment, and a reader of pool.db that stays there.  Long
 * computations that must be exact work on a view; the pool serves clients
 * meanwhile, and the view holds no lock.
 *
 * A view contains all writes answered before it was opened.  Of writes during
 * the opening that no flush covers, it may contain a later one without an
 * earlier one, as after a crash.
 *
 * Everything comes from pool.db, which is consistent by itself.  State that
 * is only in memory, of a merge or a rebase under way, affects no content and
 * no uncounted reference.
 *
 * Memory: about 200 bytes for each layer and each name.
 *
 * A view belongs to one thread.
 */

#ifndef NBDEDUP_VIEW_H
#define NBDEDUP_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/codec.h"
#include "format/format.h"
#include "meta/meta.h"

struct nbdedup_pool;

struct view_layer {
  uint64_t id, branch, seq;
  uint64_t overlap; /* blocks of the parent that show through */
  uint64_t pointers, blocks;
  uint32_t block_size;
  bool dying;
  bool is_orphan;                        /* its parent is missing */
  struct view_layer *parent;             /* not owned; NULL: none */
  struct view_layer *children, *sibling; /* dying ones left out */
  unsigned nr_names, nr_children;

  /* view-reclaim.c */
  bool dead, is_touched;
  struct view_layer *heir, *old_heir; /* the layer that it merges with */
  bool was_dead;
};

/* A volume or a snapshot. */
struct view_name {
  uint64_t id;
  char *name;                 /* owned; "vol", "vol@snap", "vol@snap
                                 * (destroyed)" */
  struct view_layer *layer;   /* NULL: destroyed */
  struct view_layer *remains; /* destroyed: the layer that is still its
                                 * content; NULL: none */
  uint64_t size, time;
  uint64_t origin_id;             /* 0: none */
  uint64_t volume_id;             /* of a snapshot; 0: destroyed */
  struct compression compression; /* of a volume */
  uint64_t domain;                /* the same */
  bool is_snapshot;
  struct view_name *origin;            /* not owned */
  bool is_origin;                      /* of any other */
  size_t first_snapshot, nr_snapshots; /* of a volume, in view->names */
};

struct view {
  struct meta *meta; /* not owned; the pool's, and 'dir' */
  const char *dir;
  uint32_t sector_bytes;
  struct meta_conn *c;       /* owned; frozen */
  struct view_layer *layers; /* owned; ascending by id */
  size_t nr_layers;
  struct view_name *names; /* owned; volumes by name, then snapshots */
  size_t nr_names;

  /* Set by the caller.  Functions that read many rows, or sort, call it now
   * and then, and fail with its error if it returns -1.  May be NULL.
   */
  int (*look) (void *opaque);
  void *opaque;  /* of look; not owned */
  uint64_t rows; /* read so far; view_look counts */
};

/* Open a view of this moment.  Under pool->admin; the caller has called
 * pool_sync_for_view before it took that, so the view has everything answered
 * until then.  -1: EIO, ENOMEM, EBUSY if other readers keep the WAL from being
 * copied, or an error of making a file.
 */
extern int view_open (struct nbdedup_pool *pool, struct view *v);
/* EBUSY: the pool needs the space that keeping this moment takes while clients
 * write; close the view.  Work on a view checks every few milliseconds.
 */
extern int view_check (const struct view *v);
/* Accepts an all-zero struct. */
extern void view_close (struct view *v);

/* Call it for each row read.  -1: stop, with the error of 'look'. */
extern int view_look (struct view *v);

/* A volume or a snapshot that is not destroyed; NULL: ENOENT. */
extern struct view_name *view_find (struct view *v, const char *name);

/* Is it a volume that was cloned from the snapshot, directly or through
 * others?  1, 0, -1 (EIO).
 */
extern int view_is_clone_of (const struct view *v,
                             const struct view_name *volume,
                             const struct view_name *golden);

/*----------------------------------------------------------------------
 * view-walk.c: the map of a volume or snapshot, leaf by leaf
 */

struct walk;

/* Walk the layers from 'top' down to the one above 'bottom' (NULL: down to the
 * lowest), as 'top' shows them.  NULL: EIO, ENOMEM.
 */
extern struct walk *walk_new (struct view *v, struct view_layer *top,
                              const struct view_layer *bottom);
extern void walk_free (struct walk *w);
/* The next leaf for which these layers have a row, ascending: 1 and
 *
 *   leaf_nr   its number
 *   leaf      MAP_INHERIT: none of these layers has the block
 *   top       bit i: the top layer itself has block i
 *
 * 0: none is left; -1: EIO.
 */
extern int
walk_next (struct walk *w, uint64_t *leaf_nr, struct leaf *leaf, uint64_t *top);

/*----------------------------------------------------------------------
 * view-reclaim.c: which references destroying some names would drop
 */

/* Find the layers that no name holds, which the pool is freeing anyway.  Call
 * it once, before the other two.
 */
extern void reclaim_begin (struct view *v);

/* Call 'fn' with the address of each pointer that the background work is
 * dropping at this moment.
 */
extern int reclaim_background (struct view *v,
                               int (*fn) (void *opaque, uint64_t addr),
                               void *opaque);

/* The same for each that destroying these names would drop in addition.  The
 * view is unchanged afterwards.  'known' may be the own layer of a volume
 * among them: all of it goes with the name, so it need not be read again.
 */
extern int reclaim_without (struct view *v, struct view_name *const *names,
                            size_t nr, const struct view_layer *known,
                            int (*fn) (void *opaque, uint64_t addr),
                            void *opaque);

#endif /* NBDEDUP_VIEW_H */
