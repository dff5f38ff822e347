/* SPDX-License-Identifier: BSD-3-Clause */

/* Checks, before SQLite opens pool.db, that pool.db, its WAL and the copies of
 * both are whole, and of one moment.
 *
 * A database and a WAL belong together if the database is not older than the
 * WAL's beginning and not newer than its end (meta-stamp.h).  Of all pairs,
 * also of the database of one copy with the WAL of the other, the one that
 * ends with the newest commit counts; a WAL may be assembled from both
 * (cksum-chain.h).  The copy takes part only if "metadata-copy" says that it
 * is current; cksum-mirror.h explains why it then has every answered commit.
 *
 * A loss of power during a checkpoint tears pages of both databases, the first
 * two as well.  The WAL has these pages, so a torn database is accepted.
 *
 * meta_pair_open repairs in an order that a crash can interrupt anywhere: first
 * the WAL, so that no database lacks its frames, then pool.db.  It rewrites a
 * page at the beginning of pool.db.  It renames a pool.db that is missing,
 * short, or of an older moment to pool.db.damaged, and the copy takes its name.
 * It never removes a file of this pool that is newer.
 */

#ifndef NBDEDUP_META_PAIR_H
#define NBDEDUP_META_PAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "meta/meta-mark.h"

/* Paths of the copy and of the mark, malloc'd; NULL with a text. */
extern char *meta_pair_copy_path (const char *db, const struct meta_mark *m);
extern char *meta_pair_mark_path (const char *db);

/* Check that 'copy' may be overwritten with a copy of the pool's 'db'.  It may
 * if it does not exist, or is a copy of this pool; under its usual name also if
 * it is damaged.  0; -1 with a text: EEXIST, EINVAL, or an error of opening it.
 */
extern int meta_pair_may_write (const char *db, const char *copy,
                                const uint8_t uuid[UUID_LEN], bool usual);

/* For reading only: the files to read, without a repair. */
struct meta_pair_choice {
  char *path;       /* owned; of pool.db or of its copy */
  char *stand_in;   /* owned; the other one, if it has the same
                                 * pages; NULL: there is none */
  int wal;          /* owned; read it instead of the WAL; -1:
                                 * none */
  bool without_wal; /* ignore the WAL beside 'path' */
};

struct meta_session;

/* Without changing anything, choose the copy that ends with the newest commit,
 * with a WAL that is whole, or assembled from both in memory.  If both
 * databases are damaged, choose pool.db as it is.
 *
 * 0; -1 with a text.  ESTALE: the readable one is of an older moment than the
 * pool; with 'force' choose it.
 */
extern int meta_pair_choose (const char *db, const struct meta_session *session,
                             bool force, struct meta_pair_choice *choice);
extern void meta_pair_choice_free (struct meta_pair_choice *choice);

/* Choose and repair, and log each step.  A pair of 'session' is preferred to
 * one of another session.  A pair of another pool is not used; nor is pool.db
 * if the mark says that another program wrote to it.  'force': use the copy
 * although there is no mark.
 *
 * 1: neither is usable, and opening pool.db will say why.  The function has
 * changed nothing, and the caller must not either: a copy that is unreadable
 * today may be readable tomorrow.
 *
 * 0: the caller can open pool.db, or gets its error.  *has says what the copy
 * has, *mark is the content of the mark (all zero: none), with the pool's UUID
 * if pool.db has it.  -1 with a text.
 */
enum meta_pair_has {
  META_PAIR_NOTHING, /* nothing for certain */
  META_PAIR_PART,    /* the mark's 'copied' pages, of this moment */
  META_PAIR_ALL,     /* all that pool.db has */
};

extern int meta_pair_open (const char *db, const struct meta_session *session,
                           bool force, struct meta_mark *mark,
                           enum meta_pair_has *has);

#endif /* NBDEDUP_META_PAIR_H */
