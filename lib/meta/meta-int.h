/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by meta.c (opening, readers), meta-wal.c (checkpoints) and
 * meta-pages.c (the room of the files).
 */

#ifndef NBDEDUP_META_INT_H
#define NBDEDUP_META_INT_H

#include <pthread.h>

#include "base/background.h"
#include "base/invariant.h"
#include "base/lock.h"
#include "meta/meta-conn.h"
#include "meta/meta-copy.h"
#include "meta/meta-files.h"

/* The workers of two CPUs (writeback-int.h), and clients' reads; and those that
 * read ahead of a fold.
 */
#define NR_READERS (12 + META_READERS_AHEAD)

/* The WAL is checkpointed when it has so many pages more, or more of them
 * (meta_wal_is_full).
 */
#define META_CHECKPOINT_PAGES_MIN 1024

#define COPIED_PARTLY UINT64_MAX

struct meta {
  char *path; /* owned */
  struct meta_conn writer;
  struct meta_conn readers[NR_READERS];
  struct meta_conn checkpointer; /* the thread's own */
  struct background thread;      /* wakes up to copy enough pages */
  bool opened;                   /* the pool was not refused */
  bool readonly;                 /* constant */
  struct meta_copy *copy;        /* owned; constant; NULL if read-only */
  struct cksum_shared *prepared; /* owned; NULL unless read-only */
  struct meta_files *files;      /* owned */
  _Atomic uint64_t used_pages;   /* after the last commit, without the free
                                 * pages of pool.db */
  _Atomic uint64_t all_pages;    /* with the free ones */
  uint64_t kept_pages, kept_wal_pages; /* while closed; the writer's */

  /* Held while copying from the WAL; acquired before 'lock'. */
  struct lock copying;
  uint64_t copied_commits; /* the number of commits when the last checkpoint
                            * began, if that copied all; or COPIED_PARTLY */

  struct lock lock;        /* protects everything below */
  struct cond reader_free; /* nr_free > 0 and !hold_readers */
  struct cond all_free;    /* nr_free == NR_READERS */
  struct meta_conn *free[NR_READERS];
  unsigned nr_free;
  unsigned nr_frozen;   /* readers of meta_frozen_open */
  uint64_t nr_commits;  /* so far */
  int wal_pages;        /* in the WAL, after the last commit */
  int copied_pages;     /* of them, by checkpoints */
  int checkpoint_pages; /* not copied: then the thread copies them */
  unsigned wal_begun;   /* how often the WAL was restarted */
  bool hold_readers;    /* meta_reader_get waits */
};

/* True whenever the lock is not held. */
extern void meta_assert_consistent_locked (struct meta *m);
DEFINE_WITH_CONSISTENT (meta)

/* Copy the WAL into pool.db up to its last commit; 'hold': past readers that
 * are in it for a moment.  1; 0: readers are in it; -1.
 */
extern int meta_copy_all_locked (struct meta *m, bool hold);

/* The thread that checkpoints, and SQLite's hook that wakes it. */
extern void *meta_checkpoint_thread (void *meta);
extern int meta_wal_hook (void *meta, sqlite3 *db, const char *name, int pages);

/* Count the pages as of the last commit. */
extern int meta_count_pages (struct meta *m);
/* Never cut off pages of pool.db, also not free ones, and none that a snapshot
 * has.
 */
extern void
meta_trim_files (struct meta *m, uint64_t db_pages, uint64_t wal_pages);

#endif /* NBDEDUP_META_INT_H */
