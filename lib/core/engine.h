/* SPDX-License-Identifier: BSD-3-Clause */

/* The open pool: what the rooms of lib/ share of it.  It owns them all; the
 * service makes and frees them (pool.c).
 */

#ifndef NBDEDUP_ENGINE_H
#define NBDEDUP_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/background.h"
#include "base/geometry.h"
#include "base/lock.h"
#include "base/quiesce.h"
#include "base/turn.h"
#include "disk/warm-file.h"
#include "format/copies.h"
#include "format/hash.h"
#include "nbdedup.h"

struct compactor;
struct control;
struct copier;
struct ddt;
struct events;
struct journal;
struct lost_leaves;
struct map;
struct merger;
struct meta;
struct moves;
struct notes;
struct reader;
struct record_cache;
struct sampler;
struct scrub_shared;
struct scrubber;
struct space;
struct store;
struct txg;
struct volume;
struct volumes;
struct warmer;
struct watch;
struct writeback;

struct nbdedup_pool {
  /* Constant while the pool is open.  What they point to has locks of its
   * own.
   */
  char *path;         /* owned; absolute */
  char *who;          /* owned */
  uint64_t opened_ns; /* by clock_ns */
  struct nbdedup_settings settings;
  int lock_fd;      /* -1: none */
  uint64_t told_ms; /* while it is opened: of the last lockfile_tell */
  uint32_t sector_bytes;
  int hash;
  struct hash_key hash_key; /* of a keyed hash; see service/hash-key.h */
  bool hash_key_missing;    /* in pool.db: the opening puts it there */
  uint8_t uuid[UUID_LEN];
  struct meta *meta;
  struct store *store;
  struct space *space;
  struct moves *moves; /* of records */
  struct journal *journal;
  struct map *map;
  struct ddt *ddt;
  struct record_cache *records;
  struct notes *notes;
  struct events *events;
  struct quiesce quiesce;
  struct txg *txg;
  struct writeback *writeback;
  struct volumes *volumes;
  struct watch *watch;      /* of its space */
  struct lost_leaves *lost; /* of the maps */
  struct scrub_shared *scrub;
  struct control *control;      /* NULL: not a server */
  struct scrubber *scrubber;    /* NULL: not a server */
  struct sampler *sampler;      /* NULL: not a server, or no interval */
  struct compactor *compactor;  /* NULL: not a server */
  struct warmer *warmer;        /* NULL: not a server */
  struct warm_stamp warm_stamp; /* of the saved filter; epoch 0: none */
  /* Called under 'admin' when a snapshot of a volume was made.  May be NULL. */
  void (*snapshot_taken) (struct nbdedup_pool *pool, const struct volume *v);

  /* Read without a lock. */
  struct copies copies;             /* of records */
  _Atomic uint64_t ddt_quota_bytes; /* 0: none */
  _Atomic uint64_t copy_reads;      /* answered from a copy */
  /* NULL: not started.  Folds may run before that, so they check. */
  _Atomic (struct merger *) merger;
  _Atomic (struct copier *) copier; /* NULL: not a server */

  struct lock readers_lock; /* protects readers; innermost */
  struct reader *readers;   /* read.c's contexts */

  /* One administrative command at a time, those that only read figures
   * included: their numbers belong together.
   */
  struct lock admin;
  struct turn admin_turn;
  struct lock drift; /* one computation of drift at a time */
  struct turn drift_turn;
  struct lock alerts; /* one comparison with the thresholds at a time,
                                 * until it is stored */

  /* The thread that makes old writes durable. */
  struct background commit;
};

/* The path of a file in the pool directory, malloc'd. */
extern char *pool_file (const char *pool_path, const char *name);

#endif /* NBDEDUP_ENGINE_H */
