/* SPDX-License-Identifier: BSD-3-Clause */

/* Before SQLite opens pool.db: are pool.db, its WAL and the copies of both
 * whole, and of one moment?
 *
 * A database and a WAL belong together if the database is not older than the
 * WAL's beginning and not newer than its end (meta-stamp.h tells).  Of all
 * pairs, also of the database of one copy with the WAL of the other, the one
 * that ends with the newest commit counts; a WAL may be put together from both
 * (cksum-chain.h).  The copy takes part only if "metadata-copy" says that it
 * is current: see cksum-mirror.h why it then has every commit that was
 * answered.
 *
 * A loss of power amid a checkpoint tears pages of both databases, the first
 * two as well: the WAL has them, and a database is not refused for that.
 *
 * What is found wrong is put right in an order that can be interrupted
 * anywhere: the WAL first, whose frames no database lacks by that; then
 * pool.db.  A page at its beginning is written again; a pool.db that is
 * missing, short, or of an older moment is renamed pool.db.damaged, and the
 * copy takes its name.  Nothing is ever removed that is of this pool and
 * newer.
 */

#ifndef NBDEDUP_META_PAIR_H
#define NBDEDUP_META_PAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "meta/meta-mark.h"

/* Paths of the copy and of the mark, malloc'd; NULL with a text. */
extern char *meta_pair_copy_path (const char *db, const struct meta_mark *m);
extern char *meta_pair_mark_path (const char *db);

/* May 'copy' be made a copy of the pool's 'db', whatever is there now?  It may
 * if there is nothing, or a copy of this pool; under its usual name also what
 * is damaged.  0; -1 with a text: EEXIST, EINVAL, or what opening it says.
 */
extern int meta_pair_may_write (const char *db, const char *copy,
                                const uint8_t uuid[UUID_LEN], bool usual);

/* For reading only: what can be read without repairing it. */
struct meta_pair_choice {
  char *path;                   /* owned; of pool.db or of its copy */
  char *stand_in;               /* owned; the other one, if it has the same
                                 * pages; NULL: there is none */
  int wal;                      /* owned; to be read in its WAL's place; -1:
                                 * none */
  bool without_wal;             /* that beside 'path' is not to be read */
};

struct meta_session;

/* Without changing anything, choose the one of the two copies that ends with
 * the newest commit, with a WAL that is whole, or is put together from both in
 * memory.  If both databases are damaged, that is pool.db, as it is.
 *
 * 0; -1 with a text, ESTALE: what could be read is of an older moment than the
 * pool.  'force': then it is what is chosen.
 */
extern int meta_pair_choose (const char *db,
                             const struct meta_session *session, bool force,
                             struct meta_pair_choice *choice);
extern void meta_pair_choice_free (struct meta_pair_choice *choice);

/* Decide and repair; each step is logged.  A pair of another session loses
 * against one of 'session', and one of another pool is not used; nor is pool.db
 * if the mark says that something else wrote to it.  'force': let the copy take
 * part although there is no mark.
 *
 * 1: neither can be used, and opening pool.db will say why.  Nothing was
 * changed, and nothing may be: a copy that cannot be read today is one that
 * may be read tomorrow.
 *
 * 0: pool.db can be opened, or fails by itself; *has tells what the copy has,
 * *mark what the mark said (all zero: none), with the pool's UUID if pool.db
 * tells it.  -1 with a text.
 */
enum meta_pair_has {
  META_PAIR_NOTHING,            /* that can be told */
  META_PAIR_PART,               /* the mark's 'copied' pages, of this moment */
  META_PAIR_ALL,                /* it is as good as pool.db */
};

extern int meta_pair_open (const char *db,
                           const struct meta_session *session, bool force,
                           struct meta_mark *mark, enum meta_pair_has *has);

#endif /* NBDEDUP_META_PAIR_H */
