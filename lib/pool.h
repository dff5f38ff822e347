/* SPDX-License-Identifier: BSD-3-Clause */

/* The open pool: owns every module below it.  Inside lib/ only. */

#ifndef NBDEDUP_POOL_H
#define NBDEDUP_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "control.h"
#include "copies.h"
#include "ddt.h"
#include "journal.h"
#include "lock.h"
#include "map.h"
#include "merge.h"
#include "meta.h"
#include "nbdedup.h"
#include "quiesce.h"
#include "record-cache.h"
#include "scrub.h"
#include "mend.h"
#include "space.h"
#include "store.h"
#include "txg.h"
#include "volume.h"
#include "watch.h"
#include "writeback.h"

struct nbdedup_pool {
  char *path;                   /* owned; absolute */
  char *who;                    /* owned */
  struct nbdedup_settings settings;
  int lock_fd;                  /* -1: none */
  uint32_t sector_bytes;
  int hash;
  uint8_t uuid[UUID_LEN];
  struct meta *meta;
  struct store *store;
  struct space *space;
  struct journal *journal;
  struct map *map;
  struct ddt *ddt;
  struct record_cache *records;
  struct quiesce quiesce;
  struct txg *txg;
  struct writeback *writeback;
  struct reader *readers;       /* read.c's contexts */
  struct volumes *volumes;
  _Atomic uint64_t ddt_quota_bytes;     /* 0: none */
  _Atomic uint64_t over_quota;  /* blocks that were stored without dedup */
  struct watch watch;           /* over its space */
  struct merger *merger;        /* NULL: not started */
  struct control *control;      /* NULL: not a server */
  struct sampler *sampler;      /* NULL: not a server, or no interval */
  struct scrubber *scrubber;    /* NULL: not a server */
  _Atomic (struct copier *) copier;     /* NULL: not a server */

  struct mended mended;         /* maps that were lost */
  struct copies copies;         /* of records */
  _Atomic uint64_t copy_reads;  /* answered from a copy */

  struct lock drift;            /* one computation of drift at a time */
  struct lock scrub;            /* one scrub at a time; protects ... */
  struct scrubbed *scrubbed;    /* ... this, owned; NULL: none yet */
  struct scrub_live scrub_live;
  _Atomic uint64_t scrub_rate;  /* bytes a second; 0: no limit */
  _Atomic uint64_t scrub_interval_s;    /* 0: off */
  atomic_uint scrub_waiting;    /* users' scrubs that wait for another */

  /* One administrative command at a time (reads of figures included:
   * their numbers belong together).
   */
  struct lock admin;

  pthread_t commit_thread;      /* makes old writes durable */
  bool has_commit_thread;
  struct lock commit_lock;      /* protects commit_stop */
  pthread_cond_t commit_wake;
  bool commit_stop;
};

/* The path of a file in the pool directory, malloc'd. */
extern char *pool_file (const char *pool_path, const char *name);

/* Of ddt-cache, for SQLite's page caches: one quarter. */
#define POOL_SHARE_SQLITE 4

/* Opening, in pool.c and pool-readonly.c. */
struct lockfile_holder;
extern int pool_fail_in_use (const char *path,
                             const struct lockfile_holder *holder);
/* Another command has the pool: wait for it.  'tries' counts from 0. */
extern bool pool_wait_for_command (const struct lockfile_holder *holder,
                                   bool server, unsigned tries);
extern int pool_check_state (struct nbdedup_pool *pool,
                             const struct meta_state *state);
struct meta_session;
/* 'path': the journal's. */
extern void pool_ask_journal (const char *path, struct meta_session *session);
extern int pool_check_epoch (const char *path, const char *file,
                             uint64_t epoch, const struct meta_state *state);
/* The files are open: everything that works on them. */
extern int pool_make_modules (struct nbdedup_pool *pool,
                              const struct meta_state *state);
extern int pool_open_readonly (struct nbdedup_pool *pool, bool server);

/* Can a pool's sectors have this size? */
extern int pool_check_sector (json_int_t sector);

#endif /* NBDEDUP_POOL_H */
