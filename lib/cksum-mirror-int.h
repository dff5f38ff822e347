/* SPDX-License-Identifier: BSD-3-Clause */

/* Inside of the second copy: cksum-mirror.c (what SQLite's calls do to it),
 * cksum-check.c (building and comparing) and cksum-distrust.c (what something
 * else wrote to).
 */

#ifndef NBDEDUP_CKSUM_MIRROR_INT_H
#define NBDEDUP_CKSUM_MIRROR_INT_H

#include <limits.h>
#include <stdatomic.h>

#include "cksum-int.h"
#include "cksum-mirror.h"
#include "cksum-own.h"
#include "lock.h"

#define EVENTS_MAX 256

enum { CKSUM_DB, CKSUM_WAL };

struct mirror_file {
  /* Held during a write to both files, it protects the rest.  The
   * database's before the WAL's.
   */
  struct lock lock;
  char path[PATH_MAX];
  int fd;                       /* -1: not open */
  bool is_new;                  /* its name is not durable yet */
  struct cksum_own own;         /* the database's; of the WAL each frame's
                                 * checksum is known */
  bool is_foreign;              /* something else wrote to it */
  uint8_t *gathered;            /* owned; not written yet */
  size_t nr_gathered;
  uint64_t gathered_at;
  uint8_t *page;                /* owned; room for two frames */
};

struct cksum_mirror {
  char *path;                   /* owned; of the database */
  struct cksum_shared *shared;  /* a reference */
  struct cksum_mirror_ops ops;
  struct mirror_file files[2];

  /* OFF, BUILDING and the way back are set with both locks held; LOST with
   * one of them.
   */
  atomic_int state;
  _Atomic uint64_t taken, repaired;

  struct cksum_own first;       /* the database */
  /* Set with the lock of 'first', which is taken inside of a file's. */
  _Atomic uint64_t nr_foreign;  /* changes that are not ours */
  atomic_bool distrusted;

  struct lock events_lock;      /* protects the rest */
  struct cksum_mirror_event named[EVENTS_MAX];
  unsigned nr_named, nr_told;
};

/* What the first one gets; a page is what was written last, and if that failed
 * nothing is known of it.  With the file's lock, if there is a copy: what
 * compares the two has it, too.  SQLite's result code.
 */
extern int cksum_write_first (struct cksum_file *f, const uint8_t *buf,
                              int len, sqlite3_int64 offset);
/* As real_write; for the database a change of ours.  With the file's lock. */
extern int mirror_write_first (struct cksum_file *f, const uint8_t *buf,
                               int len, sqlite3_int64 offset);
/* What the copy's file gets; 0, or -1 with errno. */
extern int mirror_write_locked (struct mirror_file *file, const void *buf,
                                size_t len, uint64_t offset);
extern int mirror_sync_locked (struct mirror_file *file);
/* As full_pread.  A copy that something else wrote to is lost by that. */
extern int64_t mirror_read_locked (struct cksum_mirror *m,
                                   struct mirror_file *file, void *buf,
                                   size_t len, uint64_t offset);

/* Something else wrote to the database; with the lock of 'first'. */
extern void mirror_distrust (void *mirror);
/* With at least one of the locks held; the caller closes that file. */
extern void mirror_lose (struct cksum_mirror *m, const char *why);

#endif /* NBDEDUP_CKSUM_MIRROR_INT_H */
