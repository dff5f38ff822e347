/* SPDX-License-Identifier: BSD-3-Clause */

/* The volumes and snapshots of an open pool, and the commands on them.
 * volume-types.h has the types.
 */

#ifndef NBDEDUP_VOLUME_H
#define NBDEDUP_VOLUME_H

#include <stdbool.h>
#include <stdint.h>

#include "data/volume-types.h"
#include "meta/meta.h"
#include "nbdedup.h"

extern struct volumes *volumes_new (struct nbdedup_pool *pool);
/* No client may be attached. */
extern void volumes_free (struct volumes *volumes);
/* Read them all from pool.db. */
extern int volumes_load (struct volumes *volumes, struct meta_conn *c);
/* For a pool that is opened read-only: read those that damage has left.  Names
 * whose map is lost are listed, but cannot be opened; the log says what is
 * missing.  1: something is, 0, -1.
 */
extern int volumes_salvage (struct volumes *volumes, struct meta_conn *c);
/* Finish shrinks that a crash interrupted.  The log names those that damage, or
 * lack of room, keeps unfinished.  -1: the txg has failed.
 */
extern int volumes_recover (struct volumes *volumes);

extern struct layer *volumes_find_layer (void *volumes, uint64_t id);
extern void volumes_each_background (void *volumes,
                                     void (*fn) (void *, struct layer *),
                                     void *arg);
extern void volumes_layer_gone (void *volumes, struct layer *layer);

/* A volume.  Borrowed while pool->admin is held; NULL and ENOENT. */
extern struct volume *volumes_find (struct volumes *volumes, const char *name);
/* A snapshot, "vol@snap"; and either. */
extern struct volume *
volumes_find_snapshot (struct volumes *volumes, const char *name);
extern struct volume *
volumes_find_any (struct volumes *volumes, const char *name);
/* The layer with these numbers, and the name of its volume or snapshot, or of
 * one above it.  NULL: there is none.
 */
extern struct layer *volumes_describe_layer (struct volumes *volumes,
                                             uint64_t branch, uint64_t seq,
                                             char name[VOLUME_FULL_NAME_MAX]);
/* The value of "origin"; NULL if it is not a clone. */
extern json_t *volume_origin_json (const struct volume *v);

/* Commands; under pool->admin. */
struct volume_spec {
  const char *name;
  uint64_t size;
  uint64_t block_size;
  const char *compress, *dedup, *domain, *allow;
  bool importing;
};
extern int
volume_create (struct nbdedup_pool *pool, const struct volume_spec *spec);
extern int volume_resize (struct nbdedup_pool *pool, const char *name,
                          uint64_t size, bool shrink);
extern int
volume_rename (struct nbdedup_pool *pool, const char *old, const char *new);
/* Destroy volumes and snapshots, all or none; add the names to 'destroyed', an
 * array.
 */
extern int volume_destroy (struct nbdedup_pool *pool, const json_t *names,
                           bool recursive, bool force, json_t *destroyed);
/* Only report what that would destroy (drift.h: what it would free), and which
 * options it would need: 'needs' (an array) gets {"option", "why"}.
 */
extern int volume_destroy_dry (struct nbdedup_pool *pool, const json_t *names,
                               bool recursive, bool force, json_t *destroyed,
                               json_t *needs);
/* Make all the snapshots ("vol@snap"), each of another volume, at one moment,
 * or none.
 */
#define VOLUME_SNAPSHOTS_MAX 1000
extern int volume_snapshot (struct nbdedup_pool *pool, const json_t *names);
/* Make 'count' clones, all or none: NAME, or with 'numbered' NAME<start> and
 * following.
 */
#define VOLUME_CLONES_MAX 100000
extern int volume_clone (struct nbdedup_pool *pool, const char *snapshot,
                         const char *name, bool numbered, uint64_t start,
                         uint64_t count, json_t *names);
extern int
volume_rollback (struct nbdedup_pool *pool, const char *name, bool force);
extern int volume_set (struct nbdedup_pool *pool, const char *name,
                       const char *property, const char *value);
/* The value as a malloc'd string; 0, or -1 (EINVAL: no such property). */
extern int volume_get (struct volume *v, const char *property, char **value);
extern const char *const volume_properties[];

/* Layers that are being freed, and merged. */
extern void volumes_count_background (struct volumes *volumes,
                                      unsigned *nr_freeing,
                                      unsigned *nr_merging);

/* Blocks of the references that dying layers still hold, in bytes, and of those
 * that merging ones may drop, at most.
 */
extern uint64_t volumes_freeing_bytes (struct volumes *volumes);

/* Fail with EINVAL, and the rule as text, if no volume can have this name. */
extern int volume_check_name (const char *name);

#endif /* NBDEDUP_VOLUME_H */
