/* SPDX-License-Identifier: BSD-3-Clause */

/* Internals of the second copy: cksum-mirror.c (the effects of SQLite's calls),
 * cksum-check.c (building and comparing) and cksum-distrust.c (files that
 * another program wrote to).
 */

#ifndef NBDEDUP_CKSUM_MIRROR_INT_H
#define NBDEDUP_CKSUM_MIRROR_INT_H

#include <limits.h>
#include <stdatomic.h>

#include "base/lock.h"
#include "vfs/cksum-int.h"
#include "vfs/cksum-mirror.h"
#include "vfs/cksum-own.h"

#define EVENTS_MAX 256

enum { CKSUM_DB, CKSUM_WAL };

/* The state of a database to which only this process should write. */
enum mirror_touch {
  UNTOUCHED,
  NOTICED, /* another program wrote to it; not judged */
  TOUCHED, /* single pages may not be ours */
  FOREIGN, /* as a whole it is of another moment */
};

struct mirror_file {
  struct cksum_mirror *mirror; /* constant */
  /* Held during a write to both files; protects the rest.  Lock order: the
   * database's before the WAL's.
   */
  struct lock lock;
  char path[PATH_MAX];
  int fd;               /* -1: not open */
  bool is_new;          /* its name is not durable yet */
  struct cksum_own own; /* the database's only: each WAL frame's
                                 * checksum is known */
  int failed;           /* errno of writing the gathered bytes, for a
                                 * sync or a reader; else 0 */
  uint8_t *gathered;    /* owned; not written yet */
  size_t nr_gathered;
  uint64_t gathered_at;
  uint8_t *page; /* owned; room for three frames */
};

struct cksum_mirror {
  char *path;                  /* owned; of the database */
  struct cksum_shared *shared; /* a reference */
  struct cksum_mirror_ops ops;
  struct mirror_file files[2];

  /* cksum_mirror_start and cksum_mirror_stop set it with both locks held,
   * mirror_lose_locked with at least one of them.
   */
  atomic_int state;
  _Atomic uint64_t taken, repaired;

  struct cksum_own first; /* the database; its lock is taken inside a
                                 * file's */
  /* The state of the database and of its copy.  Set each with its cksum_own's
   * lock held, except in cksum_mirror_trust and when a copy starts.
   */
  _Atomic enum mirror_touch touch[2];
  _Atomic uint64_t nr_foreign; /* changes that are not ours */
  uint64_t nr_foreign_before;  /* before the copy was begun; with the
                                 * database's file's lock */
  atomic_bool distrusted;      /* at the last call of "distrusted" */

  struct lock events_lock; /* protects the rest */
  struct cksum_mirror_event named[EVENTS_MAX];
  unsigned nr_named, nr_told;
};

/* Write to the first file, and remember the page's checksum; if the write fails
 * the checksum is not known.  If there is a mirror hold the file's lock, which
 * the thread that compares the two holds, too.  SQLite's result code.
 */
extern int cksum_write_first_locked (struct cksum_file *f, const uint8_t *buf,
                                     int len, sqlite3_int64 offset);
/* As real_write; for the database it counts as our own change.  With the file's
 * lock, if there is a mirror.
 */
extern int mirror_write_first_locked (struct cksum_file *f, const uint8_t *buf,
                                      int len, sqlite3_int64 offset);
/* Write to the copy's file; 0, or -1 with errno. */
extern int mirror_write_locked (struct mirror_file *file, const void *buf,
                                size_t len, uint64_t offset);
extern int mirror_sync_locked (struct mirror_file *file);
/* As full_pread. */
extern int64_t mirror_read_locked (struct mirror_file *file, void *buf,
                                   size_t len, uint64_t offset);

/* Callbacks of the two cksum_own. */
extern void mirror_note_first_locked (void *mirror);
extern void mirror_note_copy_locked (void *mirror);

/* With the database's file's lock: check whether another program wrote to one
 * of the two, and judge its state.  A copy of another moment becomes LOST.
 */
extern void mirror_judge_locked (struct cksum_mirror *m, struct cksum_file *f);
/* Only the copy. */
extern void mirror_judge_copy_locked (struct cksum_mirror *m);
/* Call "distrusted" if that has changed; with the database's file's lock. */
extern void mirror_tell_trust_locked (struct cksum_mirror *m);

/* One page, as read from both files. */
struct mirror_page {
  const uint8_t *bytes[2];
  int64_t got[2]; /* as from full_pread */
};

/* Choose the right one: 0, 1, or -1: none, or not known.  With the lock, after
 * both were read and judged.  Its checksum is the expected one from now on.
 */
extern int mirror_choose_locked (struct cksum_mirror *m,
                                 const struct mirror_page *p,
                                 uint32_t page_size, uint64_t offset);

/* With at least one of the locks held; the caller closes that file. */
extern void mirror_lose_locked (struct cksum_mirror *m, const char *why);

#endif /* NBDEDUP_CKSUM_MIRROR_INT_H */
