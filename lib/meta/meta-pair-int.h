/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by meta-pair.c, which inspects, chooses and repairs, and
 * meta-pair-readonly.c, which chooses what to read and changes nothing.
 */

#ifndef NBDEDUP_META_PAIR_INT_H
#define NBDEDUP_META_PAIR_INT_H

#include "meta/meta-pair.h"
#include "meta/meta-stamp.h"
#include "vfs/cksum-chain.h"

enum { FIRST, SECOND };

/* One of the two databases. */
struct side {
  char *db, *wal;    /* owned */
  int db_fd, wal_fd; /* -1: missing, or cannot be opened */
  bool missing;      /* db does not exist */
  uint64_t size;
  bool begins;             /* starts as SQLite requires to open it */
  bool header, state;      /* pages 1 and 2 are valid */
  bool newer;              /* of a format that is not known here */
  uint64_t pages;          /* according to page 1 */
  struct meta_stamp stamp; /* valid if 'state', or taken over */
};

/* The chain of frames that one WAL's header begins. */
struct log {
  bool there;
  struct cksum_chain chain;
  bool header;  /* it has page 1 */
  bool stamped; /* the next two are valid: it has page 2 */
  struct meta_stamp first, last;
  bool pending_header, pending_valid;
  struct meta_stamp pending;
};

struct pair {
  const struct meta_session *session;
  struct side sides[2];
  bool has_copy; /* the second side takes part */
  struct log logs[2];
  int fds[2]; /* of the WALs */
};

/* The chosen side and log. */
struct choice {
  int side, log; /* -1: none */
  struct meta_stamp end;
  unsigned nr_torn; /* of pages 1 and 2: the log has them */
};

/* Open the existing files of both copies, and the mark; 'force' as in
 * meta_pair_open.  Close the pair also after a failure.
 */
extern int pair_open (struct pair *p, const char *db,
                      const struct meta_session *session, bool force,
                      struct meta_mark *mark);
extern void pair_close (struct pair *p);

/* Choose the database and the log that end with the newest commit (side -1:
 * there are none).  0; 1: a newer format, which meta_probe reports; -1.
 */
extern int
pair_choose (struct pair *p, const struct meta_mark *mark, struct choice *c);

/* True if side i with the chosen log has the chosen pages.  A page that is not
 * in the WAL has not changed since the WAL began.
 */
extern bool
pair_is_of_same_moment (const struct pair *p, int i, const struct choice *c);

/* For a WAL that belongs to neither database: true if the WAL is the wrong
 * file.  Both copies must say so.
 */
extern bool
pair_may_do_without_wal (const struct pair *p, const struct choice *c);

extern int pair_fail_distrusted (int err, const char *db);
extern int pair_fail_other_time (int err, const char *wal);

/* Copy the whole file durably. */
extern int pair_copy_bytes (int from, int to);

#endif /* NBDEDUP_META_PAIR_INT_H */
