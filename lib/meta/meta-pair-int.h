/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by meta-pair.c, which looks, chooses, and puts right, and
 * meta-pair-readonly.c, which chooses what is read and changes nothing.
 */

#ifndef NBDEDUP_META_PAIR_INT_H
#define NBDEDUP_META_PAIR_INT_H

#include "meta/meta-pair.h"
#include "meta/meta-stamp.h"
#include "vfs/cksum-chain.h"

#define PAGE_BYTES 8192

enum { FIRST, SECOND };

/* One of the two databases. */
struct side {
  char *db, *wal;               /* owned */
  int db_fd, wal_fd;            /* -1: not there, or not to be opened */
  bool missing;                 /* db is not there */
  uint64_t size;
  bool begins;                  /* as SQLite's do, to be opened at all */
  bool header, state;           /* are pages 1 and 2 right? */
  bool newer;                   /* not of a format that is known here */
  uint64_t pages;               /* that page 1 says */
  struct meta_stamp stamp;      /* valid if 'state', or taken over */
};

/* What one WAL's header begins. */
struct log {
  bool there;
  struct cksum_chain chain;
  bool header;                  /* it has page 1 */
  bool stamped;                 /* the next two are valid: it has page 2 */
  struct meta_stamp first, last;
  bool pending_header, pending_valid;
  struct meta_stamp pending;
};

struct pair {
  const struct meta_session *session;
  struct side sides[2];
  bool has_copy;                /* the second side takes part */
  struct log logs[2];
  int fds[2];                   /* of the WALs */
};

/* Side and log that were chosen. */
struct choice {
  int side, log;                /* -1: none */
  struct meta_stamp end;
  unsigned nr_torn;             /* of pages 1 and 2: the log has them */
};

/* Open what there is of both copies, and the mark; 'force' as meta_pair_open
 * has it.  Also after a failure the pair is to be closed.
 */
extern int pair_open (struct pair *p, const char *db,
                      const struct meta_session *session, bool force,
                      struct meta_mark *mark);
extern void pair_close (struct pair *p);

/* The database and the log that end with the newest commit (side -1: there are
 * none).  0; 1: of a newer format, meta_probe says so; -1.
 */
extern int pair_choose (struct pair *p, const struct meta_mark *mark,
                        struct choice *c);

/* Has side i, with the chosen log, the chosen pages?  One that is not in the
 * WAL has not changed since the WAL began.
 */
extern bool pair_is_of_same_moment (const struct pair *p, int i,
                                    const struct choice *c);

/* A WAL that belongs to neither: is it the one that is out of place?  Both
 * copies must say so.
 */
extern bool pair_may_do_without_wal (const struct pair *p,
                                     const struct choice *c);

extern int pair_fail_distrusted (int err, const char *db);
extern int pair_fail_other_time (int err, const char *wal);

/* All of it, durably. */
extern int pair_copy_bytes (int from, int to);

#endif /* NBDEDUP_META_PAIR_INT_H */
