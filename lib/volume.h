/* SPDX-License-Identifier: BSD-3-Clause */

/* The volumes of an open pool, and what is done to them as a whole.
 *
 * Threads: pool->admin is held by whoever changes the set of volumes or
 * their properties; volumes->lock protects the list and the counts of
 * clients, for those who only look or attach.  A struct volume lives as
 * long as it is in the list or somebody is attached.
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

struct volume {
  TAILQ_ENTRY (volume) link;    /* in volumes->list, by name */
  struct nbdedup_pool *pool;    /* not owned */
  uint64_t id;
  char name[META_NAME_MAX + 1]; /* changes under pool->admin + lock */
  struct layer *layer;          /* not owned */
  uint32_t block_size;
  _Atomic uint64_t size;
  bool tail_dirty;

  /* Properties: written under the writeback's lock, read by its workers. */
  struct compression compression;
  enum dedup_mode dedup;
  uint64_t domain;
  char *domain_name, *allow;    /* owned; under volumes->lock */

  unsigned nr_clients;          /* under volumes->lock */
  bool exclusive;               /* a client wants to be the only one */
  bool in_list;

  atomic_bool gone;             /* destroyed: ESHUTDOWN */

  /* Under the writeback's lock. */
  TAILQ_HEAD (, dirty) open_list;       /* by sequence */
  TAILQ_HEAD (, dirty) inflight_list;
  TAILQ_HEAD (, range) ranges;  /* mutations under way */
};

struct nbdedup_volume {
  struct volume *volume;        /* counted in nr_clients */
  uint64_t size;                /* when it was opened */
  bool readonly, exclusive;
};

struct layers {
  struct layer **p;             /* owned, and what they point to */
  size_t nr, cap;
};

struct volumes {
  struct nbdedup_pool *pool;    /* not owned */
  struct lock lock;             /* protects everything below */
  TAILQ_HEAD (, volume) list;
  struct layers layers;         /* all, dying ones too, until closed */
};

extern struct volumes *volumes_new (struct nbdedup_pool *pool);
/* Nobody may be attached. */
extern void volumes_free (struct volumes *volumes);
/* Read them all from pool.db. */
extern int volumes_load (struct volumes *volumes, struct meta_conn *c);
/* Finish what a crash interrupted (a shrink). */
extern int volumes_recover (struct volumes *volumes);

extern struct layer *volumes_find_layer (void *volumes, uint64_t id);
extern void volumes_each_dying (void *volumes,
                                void (*fn) (void *, struct layer *),
                                void *arg);
extern void volumes_layer_gone (void *volumes, struct layer *layer);

/* Borrowed while pool->admin is held; NULL and ENOENT. */
extern struct volume *volumes_find (struct volumes *volumes,
                                    const char *name);

/* Commands; under pool->admin. */
struct volume_spec {
  const char *name;
  uint64_t size;
  uint64_t block_size;
  const char *compress, *dedup, *domain, *allow;
};
extern int volume_create (struct nbdedup_pool *pool,
                          const struct volume_spec *spec);
extern int volume_resize (struct nbdedup_pool *pool, const char *name,
                          uint64_t size, bool shrink);
extern int volume_rename (struct nbdedup_pool *pool, const char *old,
                          const char *new);
/* How many stored bytes would destroying it free: those of records that
 * nothing else refers to.  (volume-freed.c)
 */
extern int volume_freed_bytes (struct nbdedup_pool *pool, const char *name,
                               uint64_t *bytes);
extern int volume_destroy (struct nbdedup_pool *pool, const char *name,
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
