/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by volume.c (the list), volume-admin.c and volume-resize.c (commands),
 * volume-layers.c (the layers) and volumes-consistent.c (the invariants).
 */

#ifndef NBDEDUP_VOLUME_INT_H
#define NBDEDUP_VOLUME_INT_H

#include "base/invariant.h"
#include "volume/volume.h"

/* volumes-consistent.c: true whenever the lock is not held. */
extern void volumes_assert_consistent_locked (struct volumes *vs);
DEFINE_WITH_CONSISTENT (volumes)

/* May a volume (or a domain) have this name? */
extern bool volume_is_name (const char *s);

/* Split "vol@snap".  EINVAL: not a snapshot's name. */
struct snapshot_name {
  char volume[META_NAME_MAX + 1], snapshot[META_NAME_MAX + 1];
};
extern int snapshot_name_parse (const char *s, struct snapshot_name *name);

/* A volume that is not in the list yet; the caller owns it. */
extern struct volume *volume_new (struct nbdedup_pool *pool,
                                  const struct meta_volume *mv,
                                  const char *domain_name, struct layer *layer);
extern struct volume *snapshot_new (struct volume *of,
                                    const struct meta_snapshot *ms,
                                    struct layer *layer);
extern void volume_free (struct volume *v);
/* Set its layer.  The layer's struct lives as long as the volume's. */
extern void volume_set_layer (struct volume *v, struct layer *layer);
/* Free it unless it is still needed.  With volumes->lock held. */
extern void volume_release_locked (struct volume *v);

/* NULL: none.  With volumes->lock held. */
extern void volume_set_origin_locked (struct volume *v, struct volume *origin);

/* volume-admin.c: store the volume's row.  Under pool->admin. */
extern int volume_put (struct nbdedup_pool *pool, struct meta_volume *mv);
/* Can a volume have this size?  -1: EINVAL. */
extern int volume_check_size (uint64_t size);

/* volume-resize.c: drop what an unfinished shrink has left behind the volume's
 * end, if anything.
 * Under pool->admin, before a command that could show it.
 */
extern int volume_clean_tail (struct volume *v);

extern void volume_to_meta (const struct volume *v, struct meta_volume *mv);
extern void snapshot_to_meta (const struct volume *s, struct meta_snapshot *ms);

/* Tombstones (tombstone.c) to delete. */
struct tombstones {
  struct volume **p; /* owned, the array */
  size_t nr;
};
/* Collect those kept only for volumes in 'leaving', whose origin is about to
 * change or which are about to be destroyed.
 */
extern int tombstones_collect (struct volume *const *leaving, size_t nr,
                               struct tombstones *tombstones);
/* Delete their rows; and drop the structs, after the commit and after the
 * volumes in 'leaving' have let go of them.
 */
extern int
tombstones_delete (const struct tombstones *tombstones, struct meta_conn *c);
extern void
tombstones_drop_locked (struct volumes *vs, struct tombstones *tombstones);
/* 'layer' takes the place of 'child': update the rows; and, after the commit,
 * the structs.
 */
extern int tombstones_put_merge (struct volumes *vs, struct meta_conn *c,
                                 const struct layer *layer,
                                 const struct layer *child);
extern void tombstones_merge_locked (struct volumes *vs,
                                     const struct layer *layer,
                                     const struct layer *child);

/* After a command that has failed: while 'gone' is set, nothing else tells
 * whether a client is alone.  With volumes->lock held.
 */
extern bool volume_has_exclusive_client_locked (const struct volume *v);

/* Its clients, for an error text: "2 clients (uid 1000, uid 0)".  With
 * volumes->lock held.
 */
extern void
volume_describe_clients_locked (const struct volume *v, char *buf, size_t len);

/* The growth of pool.db by a command: it may split a page of each table and
 * index that it adds a row to (ROW_PAGES); and ROWS_PER_PAGE volumes, with
 * their layers, names and index entries, fill a page, which may stay half
 * empty.
 */
#define ROW_PAGES 12
#define ROWS_PER_PAGE 8

/* Room for 'nr' more volumes, so that list_insert cannot fail. */
extern int volumes_reserve (struct volumes *vs, size_t nr);

/* With volumes->lock held. */
extern struct volume *
list_find (const struct volume_list *list, const char *name);
/* Make room, so that list_insert cannot fail. */
extern int list_reserve (struct volume_list *list, size_t nr);
extern void list_insert (struct volume_list *list, struct volume *v);
extern void list_remove (struct volume_list *list, struct volume *v);

#endif /* NBDEDUP_VOLUME_INT_H */
