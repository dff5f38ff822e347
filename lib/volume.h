/* SPDX-License-Identifier: BSD-3-Clause */

/* The volumes and snapshots of an open pool, and what is done to them as a
 * whole.  To everything that reads blocks a snapshot is a volume whose
 * layer is frozen; so both are a struct volume.
 *
 * Threads: pool->admin is held by whoever changes the set of volumes or
 * their properties; volumes->lock protects the lists and the counts of
 * clients, for those who only look or attach.  A struct volume lives as
 * long as it is in a list, or somebody is attached, or it is the origin of
 * another.
 */

#ifndef NBDEDUP_VOLUME_H
#define NBDEDUP_VOLUME_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "codec.h"
#include "lock.h"
#include "map.h"
#include "meta.h"
#include "nbdedup.h"

enum dedup_mode { DEDUP_ON, DEDUP_OFF, DEDUP_VERIFY };

struct dirty;

struct volume;

/* Ascending by name. */
struct volume_list {
  struct volume **p;            /* owned, the array */
  size_t nr, cap;
};

struct volume {
  struct nbdedup_pool *pool;    /* not owned */
  uint64_t id;
  char name[META_NAME_MAX + 1]; /* of a snapshot: after the @; changes under
                                 * pool->admin + lock */
  _Atomic (struct layer *) layer;       /* not owned; changes while all
                                         * mutations wait, by
                                         * volume_set_layer */
  uint32_t block_size;
  _Atomic uint64_t size;
  bool tail_dirty;
  bool importing;               /* until it is renamed; under pool->admin */
  uint64_t incarnation;         /* another one after a rollback; family.c */
  _Atomic uint64_t changes;     /* of content and size, in this session */

  bool is_snapshot;
  struct volume *of;            /* snapshot: of this volume; NULL: destroyed */
  uint64_t time;                /* snapshot: when, in seconds */
  struct volume_list snapshots; /* of a volume */
  struct volume *origin;        /* what it is a clone of, a snapshot's volume
                                 * was one of; NULL: nothing */
  unsigned nr_clones;           /* snapshot: volumes whose origin it is */
  unsigned nr_heirs;            /* ... and snapshots */
  unsigned nr_leaving;          /* scratch of ghost.c, under pool->admin */
  char *label;                  /* destroyed snapshot: VOLUME@NAME; owned;
                                 * changes under pool->admin + lock */

  /* Properties: written under the writeback's lock, read by its workers. */
  struct compression compression;
  enum dedup_mode dedup;
  uint64_t domain;
  char *domain_name, *allow;    /* owned; under volumes->lock */

  unsigned nr_clients;          /* under volumes->lock */
  LIST_HEAD (, nbdedup_volume) clients;
  bool exclusive;               /* a client wants to be the only one */
  bool in_list;

  atomic_bool gone;             /* destroyed: ESHUTDOWN */

  /* Under the writeback's lock. */
  TAILQ_HEAD (, dirty) open_list;       /* by sequence */
  TAILQ_HEAD (, dirty) inflight_list;
  TAILQ_HEAD (, range) ranges;  /* mutations under way */
};

struct nbdedup_volume {
  LIST_ENTRY (nbdedup_volume) link;     /* in volume->clients */
  struct volume *volume;        /* counted in nr_clients */
  uint64_t size;                /* when it was opened */
  bool readonly, exclusive, is_admin;
  bool lost;                    /* as struct layer has it */
  int64_t uid;                  /* -1: not known */
  char *tls_identity;           /* owned; NULL: none */
};

struct layers {
  struct layer **p;             /* owned, and what they point to */
  size_t nr, cap;
};

struct volumes {
  struct nbdedup_pool *pool;    /* not owned */
  struct lock lock;             /* protects everything below */
  struct volume_list list;      /* volumes */
  struct volume_list ghosts;    /* destroyed snapshots that are origins, by
                                 * label */
  struct layers layers;         /* all, dying and gone ones too; ascending
                                 * by id */
  size_t nr_gone;               /* of them, since layers_collect */
};

extern struct volumes *volumes_new (struct nbdedup_pool *pool);
/* Nobody may be attached. */
extern void volumes_free (struct volumes *volumes);
/* Read them all from pool.db. */
extern int volumes_load (struct volumes *volumes, struct meta_conn *c);
/* For a pool that is opened read-only: those that are left after damage.
 * Names whose blocks cannot be found any more are listed, but cannot be
 * opened; the log says what is missing.  1: something is, 0, -1.
 */
extern int volumes_salvage (struct volumes *volumes, struct meta_conn *c);
/* Finish what a crash interrupted (a shrink). */
extern int volumes_recover (struct volumes *volumes);

extern struct layer *volumes_find_layer (void *volumes, uint64_t id);
extern void volumes_each_background (void *volumes,
                                     void (*fn) (void *, struct layer *),
                                     void *arg);
extern void volumes_layer_gone (void *volumes, struct layer *layer);

/* What "volume NAME" goes on with if its layer is lost. */
#define VOLUME_LOST_TEXT "cannot be read: damage in pool.db has cost its " \
  "map: restore the pool from a backup"

/* A volume.  Borrowed while pool->admin is held; NULL and ENOENT. */
extern struct volume *volumes_find (struct volumes *volumes,
                                    const char *name);
/* A snapshot, "vol@snap"; and either. */
extern struct volume *volumes_find_snapshot (struct volumes *volumes,
                                             const char *name);
extern struct volume *volumes_find_any (struct volumes *volumes,
                                        const char *name);
/* "vol", "vol@snap", or what a destroyed snapshot was called. */
#define VOLUME_FULL_NAME_MAX (2 * META_NAME_MAX + 2)
extern void volume_full_name (const struct volume *v,
                              char name[VOLUME_FULL_NAME_MAX]);
/* The layer with these numbers, and the name of the volume or snapshot whose
 * it is, or of one that stands on it.  NULL: there is none.
 */
extern struct layer *
volumes_describe_layer (struct volumes *volumes, uint64_t branch,
                        uint64_t seq, char name[VOLUME_FULL_NAME_MAX]);
/* What "origin" reads: NULL if it is no clone. */
extern json_t *volume_origin_json (const struct volume *v);

/* Commands; under pool->admin. */
struct volume_spec {
  const char *name;
  uint64_t size;
  uint64_t block_size;
  const char *compress, *dedup, *domain, *allow;
  bool importing;
};
extern int volume_create (struct nbdedup_pool *pool,
                          const struct volume_spec *spec);
extern int volume_resize (struct nbdedup_pool *pool, const char *name,
                          uint64_t size, bool shrink);
extern int volume_rename (struct nbdedup_pool *pool, const char *old,
                          const char *new);
/* Volumes and snapshots, all or none.  'destroyed' (an array) gets what was
 * destroyed.
 */
extern int volume_destroy (struct nbdedup_pool *pool, const json_t *names,
                           bool recursive, bool force, json_t *destroyed);
/* Only say what that would destroy (drift.h: what it would free), with the
 * options that it would need: 'needs' (an array) gets {"option", "why"}.
 */
extern int volume_destroy_dry (struct nbdedup_pool *pool, const json_t *names,
                               bool recursive, bool force, json_t *destroyed,
                               json_t *needs);
extern int volume_snapshot (struct nbdedup_pool *pool, const char *name);
/* 'count' clones, all or none: NAME, or with 'numbered' NAME<start> and
 * following.
 */
#define VOLUME_CLONES_MAX 100000
extern int volume_clone (struct nbdedup_pool *pool, const char *snapshot,
                         const char *name, bool numbered, uint64_t start,
                         uint64_t count, json_t *names);
extern int volume_rollback (struct nbdedup_pool *pool, const char *name,
                            bool force);
extern int volume_set (struct nbdedup_pool *pool, const char *name,
                       const char *property, const char *value);
/* The value as a malloc'd string; 0, or -1 (EINVAL: no such property). */
extern int volume_get (struct volume *v, const char *property, char **value);
extern const char *const volume_properties[];

/* Blocks of the references that dying layers still hold, in bytes. */
extern uint64_t volumes_freeing_bytes (struct volumes *volumes);

extern int dedup_parse (const char *name, enum dedup_mode *mode);
extern const char *dedup_name (enum dedup_mode mode);
/* Is this a volume's name?  EINVAL with the rule if not. */
extern int volume_check_name (const char *name);

#endif /* NBDEDUP_VOLUME_H */
