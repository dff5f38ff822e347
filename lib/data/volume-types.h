/* SPDX-License-Identifier: BSD-3-Clause */

/* The type of volumes.  For code that reads blocks a snapshot is a volume
 * whose layer is frozen, so both are a struct volume.
 *
 * Threads: a command that changes the set of volumes or their properties holds
 * pool->admin; volumes->lock protects the lists and the counts of clients, for
 * threads that only look up or attach.  A struct volume lives as long as it is
 * in a list, a client is attached, or it is the origin of another.
 */

#ifndef NBDEDUP_VOLUME_TYPES_H
#define NBDEDUP_VOLUME_TYPES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/lock.h"
#include "data/io-counters.h"
#include "data/writeback.h"
#include "data/writers.h"
#include "format/codec.h"
#include "format/dedup-mode.h"
#include "format/layer.h"
#include "meta/meta.h"
#include "nbdedup.h"

struct volume;

/* Ascending by name. */
struct volume_list {
  struct volume **p; /* owned, the array */
  size_t nr, cap;
};

struct volume {
  /* Constant. */
  struct nbdedup_pool *pool; /* not owned */
  uint64_t id;
  uint32_t block_size;
  uint64_t incarnation; /* a rollback makes a volume with another one;
                                 * clone-set.c */
  bool is_snapshot;
  uint64_t time; /* snapshot: creation, in seconds */

  /* Changed under pool->admin and volumes->lock, read under either. */
  char name[META_NAME_MAX + 1]; /* of a snapshot: after the @ */
  struct volume *of;            /* snapshot: of this volume; NULL: destroyed */
  struct volume_list snapshots; /* of a volume */
  struct volume *origin;        /* the snapshot that it is a clone of (of a
                                 * snapshot: that its volume was); or NULL */
  unsigned nr_clones;           /* snapshot: volumes whose origin it is */
  unsigned nr_heirs;            /* ... and snapshots */
  unsigned counted_clones, counted_heirs; /* scratch of
                                           * volumes-consistent.c */
  bool in_list;
  char *label; /* destroyed snapshot: VOLUME@NAME; owned */

  /* Under pool->admin. */
  uint64_t remains; /* destroyed snapshot: the layer that is still
                                 * exactly its content; 0: none */
  bool tail_dirty;
  bool importing;      /* until it is renamed */
  unsigned nr_leaving; /* scratch of tombstone.c */

  /* Under volumes->lock. */
  unsigned nr_clients;
  LIST_HEAD (, nbdedup_volume) clients;
  bool exclusive;              /* a client has exclusive access */
  struct io_counters *io_past; /* of clients that have left; owned; NULL: none
                                 * has */
  char *domain_name, *allow;   /* properties; owned */

  /* Properties: changed under dirty.lock, read by the writeback's workers. */
  struct compression compression;
  enum dedup_mode dedup;
  uint64_t domain;

  struct dirty_blocks dirty; /* has locks of its own */

  /* Read without a lock. */
  _Atomic (struct layer *) layer; /* not owned; volume_set_layer changes
                                         * it while all mutations wait */
  _Atomic uint64_t size;
  _Atomic uint64_t changes; /* of content and size, in this session */
  atomic_bool gone;         /* destroyed: ESHUTDOWN */
  struct dedup_counters dedup_counters;

  struct writers writers; /* has a lock of its own */
};

#define PEER_NAME_MAX 63

struct nbdedup_volume {
  LIST_ENTRY (nbdedup_volume) link; /* in volume->clients */
  struct volume *volume;            /* counted in nr_clients */
  struct io_counters *io;           /* owned */
  uint64_t size;                    /* when it was opened */
  bool readonly, exclusive, is_admin;
  bool lost;                    /* as in struct layer */
  int64_t uid;                  /* -1: not known */
  char *tls_identity;           /* owned; NULL: none */
  char peer[PEER_NAME_MAX + 1]; /* "": not known */
  atomic_bool writes;           /* it is in volume->writers */
  LIST_ENTRY (nbdedup_volume) writer_link;
};

struct layers {
  struct layer **p; /* owned, and what they point to */
  size_t nr, cap;
};

struct volumes {
  struct nbdedup_pool *pool;     /* not owned */
  struct lock lock;              /* protects everything below */
  struct volume_list list;       /* volumes */
  struct volume_list tombstones; /* destroyed snapshots that are origins */
  struct layers layers;          /* all, dying and gone ones too; ascending
                                 * by id */
  size_t nr_gone;                /* of them, since layers_collect */
  size_t changes;                /* for invariant_is_due */
};

/* "vol", "vol@snap", or a destroyed snapshot's former name.  Under
 * pool->admin or volumes->lock.
 */
#define VOLUME_FULL_NAME_MAX (2 * META_NAME_MAX + 2)
extern void
volume_full_name (const struct volume *v, char name[VOLUME_FULL_NAME_MAX]);

/* The same for users: a destroyed snapshot is marked as such.  Under
 * pool->admin or volumes->lock.
 */
#define VOLUME_DESTROYED " (destroyed)"
#define VOLUME_LABEL_MAX (VOLUME_FULL_NAME_MAX + sizeof VOLUME_DESTROYED - 1)
extern void volume_label (const struct volume *v, char label[VOLUME_LABEL_MAX]);

/* Follows "volume NAME" in the error text if its layer is lost. */
#define VOLUME_LOST_TEXT                                                       \
  "cannot be read: its map is lost to damage in "                              \
  "pool.db: restore the pool from a backup"

#endif /* NBDEDUP_VOLUME_TYPES_H */
