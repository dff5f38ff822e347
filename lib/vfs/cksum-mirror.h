/* SPDX-License-Identifier: BSD-3-Clause */

/* A second copy of a database and of its WAL: RAID 1 below SQLite.
 *
 * Whatever the checksumming VFS writes to the database or to its WAL is
 * written to the copy's file, too, at the same place, and synced, truncated
 * and removed with it.  So the copy is a database and a WAL of their own,
 * byte for byte.  A page that cannot be read, or has the wrong checksum, is
 * read from the copy, verified in the same way, and written over the bad one.
 *
 * States:
 *
 *   OFF       no copy
 *   BUILDING  the copy gets every write, but older pages are missing yet:
 *             it is not read
 *   SYNCED    the copy may be read: see below
 *   LOST      a write to the copy has failed: it gets no more, and is not read
 *
 * In SYNCED, this holds at every moment: a page whose newest committed version
 * is in no durable frame of the WAL is durable in both databases; and each
 * commit that was answered is durable in both WALs.  For
 *
 *  - SQLite answers a commit when xSync of the WAL returns, which here syncs
 *    both; what a crash may leave in one WAL alone was never answered;
 *  - it starts the WAL again only after xSync of the database, here of both,
 *    so a page that a crash left old, new or torn in either database is still
 *    in the WAL, and the next checkpoint writes it to both;
 *  - if the copy misses any write or sync, "lost" makes that durable before
 *    the call returns, thus before SQLite answers the commit, or forgets the
 *    WAL, which the copy does not have.
 *
 * So after a crash both are equal as soon as one checkpoint of the whole WAL
 * is done; and before that a page of the copy is read only if the WAL does not
 * hold it, which is where both are equal already.
 *
 * Something else may write to the database while it is open (cksum-own.h),
 * to its copy, or to both: single pages, or an older pool.db over all of it.
 * What is known of a page decides for it then; of another one, this:
 *
 *  - a file that is of another moment as a whole has no right page.  If it is
 *    the copy, that is lost.
 *  - otherwise a page that is right in itself in only one of them is right;
 *  - if both are, and differ, that of the file that nothing else wrote to is;
 *    if there is no such file, neither is.
 *
 * The first one is *distrusted* if it is of another moment, or if only the
 * copy is untouched: "distrusted" makes that durable before the next change of
 * ours, which might make the first file look new.  When all pages have been
 * compared, and the right ones written over others, both are trusted again.
 *
 * Threads: SQLite's connections, and one thread that builds and checks.  A
 * lock per file makes a write to both one step: no page is copied, repaired or
 * compared between its two writes.
 */

#ifndef NBDEDUP_CKSUM_MIRROR_H
#define NBDEDUP_CKSUM_MIRROR_H

#include <stdbool.h>
#include <stdint.h>

#include <sqlite3.h>

struct cksum_mirror;

enum cksum_mirror_state {
  CKSUM_MIRROR_OFF, CKSUM_MIRROR_BUILDING, CKSUM_MIRROR_SYNCED,
  CKSUM_MIRROR_LOST
};

/* A page that was read from the copy. */
struct cksum_mirror_event {
  bool wal;                     /* 'number' is a frame's, from 0; else the */
  uint64_t number;              /* number of a page, from 1 */
  bool repaired;
};

struct cksum_mirror_ops {
  /* The copy misses something from now on ('why'): remember it durably.  Once
   * for each time that it was BUILDING or SYNCED; with a lock held.
   */
  void (*lost) (void *opaque, const char *why);
  /* The first one is distrusted from now on, or no more (its pages are
   * durable): remember it durably.
   */
  void (*distrusted) (void *opaque);
  /* There is an event to fetch, or the copy was lost, or the first is
   * distrusted.
   */
  void (*wake) (void *opaque);
  void *opaque;
};

/* Make the mirror (OFF) of the database at 'path', before it is opened; NULL:
 * no memory, with a text.  Free it after the last connection was closed; NULL
 * can be freed.
 */
extern struct cksum_mirror *
cksum_mirror_new (const char *path, const struct cksum_mirror_ops *ops);
extern void cksum_mirror_free (struct cksum_mirror *m);

/* Use the files 'copy' and 'copy'-wal from now on, as they are: SYNCED (they
 * are as good as the database), else BUILDING, and 'copy' is emptied unless
 * 'keep'.  -1 with errno and a text; then the mirror is OFF.
 */
extern int cksum_mirror_start (struct cksum_mirror *m, const char *copy,
                               bool synced, bool keep);
/* Close the copy's files: OFF. */
extern void cksum_mirror_stop (struct cksum_mirror *m);
/* From BUILDING to SYNCED; false: it was lost meanwhile. */
extern bool cksum_mirror_trust (struct cksum_mirror *m);
/* Treat the copy as lost (also when it is SYNCED). */
extern void cksum_mirror_lose (struct cksum_mirror *m, const char *why);

extern enum cksum_mirror_state cksum_mirror_state (struct cksum_mirror *m);

/* 1 and the oldest event, 0: none; those that had no room are only counted. */
extern int cksum_mirror_next_event (struct cksum_mirror *m,
                                    struct cksum_mirror_event *event);
/* Pages read from the copy; of them, those that were written back. */
extern void cksum_mirror_get_counts (struct cksum_mirror *m, uint64_t *taken,
                                     uint64_t *repaired);

/* Around a change of the database's file that goes not through the VFS. */
extern void cksum_mirror_change_begin (struct cksum_mirror *m);
extern void cksum_mirror_change_end (struct cksum_mirror *m);

/* The database is there by now: notice what something else writes to it, also
 * while there is no copy.
 */
extern void cksum_mirror_watch (struct cksum_mirror *m);
extern bool cksum_mirror_is_distrusted (struct cksum_mirror *m);
/* Did something else write to one of the two, that are not compared yet? */
extern bool cksum_mirror_is_touched (struct cksum_mirror *m);
/* How often something else wrote to either since the copy is written. */
extern uint64_t cksum_mirror_foreign_changes (struct cksum_mirror *m);

/*----------------------------------------------------------------------
 * For the thread that builds and checks.  'db' is a connection of its own.
 */

/* Pages of the database, as its file has them; -1 with a text. */
extern int cksum_mirror_pages (struct cksum_mirror *m, sqlite3 *db,
                               uint64_t *pages);

/* Look whether something else wrote to either: is the first one distrusted? */
extern bool cksum_mirror_look (struct cksum_mirror *m, sqlite3 *db);

/* What the two copies of one page are. */
enum cksum_page_state {
  CKSUM_PAGE_GOOD,
  CKSUM_PAGE_UNUSED,            /* never written: zeroes */
  CKSUM_PAGE_BAD,               /* wrong checksum */
  CKSUM_PAGE_UNREADABLE,        /* the disk failed, or the file is short */
};

struct cksum_page_report {
  uint64_t number;              /* as in an event */
  bool wal;
  enum cksum_page_state first, second;
  bool differ;                  /* both good, but not the same */
  bool repaired;
};

/* Copy up to 'nr' pages from page 'first' (from 1) on, as they are.  Bad ones
 * are told to 'fn', for nothing can be done about them.  -1: the copy is lost,
 * or no memory.
 */
extern int cksum_mirror_copy (struct cksum_mirror *m, sqlite3 *db,
                              uint64_t first, unsigned nr,
                              void (*fn) (void *opaque,
                                          const struct cksum_page_report *r),
                              void *opaque);
/* Sync what was written to the copy of the database. */
extern int cksum_mirror_sync_copy (struct cksum_mirror *m);
/* Copy the WAL, then sync both files of the copy. */
extern int cksum_mirror_copy_wal (struct cksum_mirror *m, sqlite3 *db);

/* Compare up to 'nr' pages from page 'first' on, and write the good one over
 * the bad one; each page that is not good, and the same, in both is told.
 * 0; -1 with a text: not SYNCED, or no memory.
 */
extern int cksum_mirror_check (struct cksum_mirror *m, sqlite3 *db,
                               uint64_t first, unsigned nr,
                               void (*fn) (void *opaque,
                                           const struct cksum_page_report *r),
                               void *opaque);
/* The same for the frames of the WAL. */
extern int cksum_mirror_check_wal (struct cksum_mirror *m, sqlite3 *db,
                                   void (*fn) (void *opaque,
                                               const struct
                                               cksum_page_report *r),
                                   void *opaque);

/* After all pages were compared, and each was good in the end: sync them, and
 * trust both again, unless something else wrote to one since there were
 * 'changes'.  1; 0: not yet; -1 with a text.
 */
extern int cksum_mirror_trust_both (struct cksum_mirror *m, sqlite3 *db,
                                    uint64_t changes);

/* Write zeroes over each page that no copy has: nothing refers to them any
 * more.  -1 with a text.
 */
extern int cksum_mirror_blank (struct cksum_mirror *m, sqlite3 *db);
/* The same for this page alone, in whatever thread uses 'db'. */
extern int cksum_page_blank (sqlite3 *db, uint64_t number);

/* Read a page of the main database, with 'db' outside of transactions: 1; 0:
 * what was read of it is right in no copy; -1: a copy could not be read, which
 * proves nothing.
 */
extern int cksum_page_probe (sqlite3 *db, uint64_t number, uint8_t *page);

#endif /* NBDEDUP_CKSUM_MIRROR_H */
