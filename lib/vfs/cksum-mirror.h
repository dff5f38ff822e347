/* SPDX-License-Identifier: BSD-3-Clause */

/* A second copy of a database and of its WAL: RAID 1 below SQLite.
 *
 * The checksumming VFS writes everything that it writes to the database or to
 * its WAL to the copy's file, too, at the same place, and syncs, truncates and
 * removes both together.  So the copy is a complete database with its WAL, byte
 * for byte.  If a page cannot be read, or has the wrong checksum, the VFS reads
 * it from the copy, verifies it in the same way, and overwrites the bad one.
 *
 * States:
 *
 *   OFF       no copy
 *   BUILDING  the copy gets every write, but still lacks older pages: the VFS
 *             does not read it
 *   SYNCED    the VFS may read the copy: see below
 *   LOST      a write to the copy has failed: the VFS neither writes nor reads
 *             it
 *
 * In SYNCED, this holds at every moment: a page whose newest committed version
 * is in no durable frame of the WAL is durable in both databases; and each
 * commit that was answered is durable in both WALs.  For
 *
 *  - SQLite answers a commit when xSync of the WAL returns, which here syncs
 *    both; a commit that a crash leaves in one WAL alone was never answered;
 *  - SQLite restarts the WAL only after xSync of the database, here of both,
 *    so a page that a crash left old, new or torn in either database is still
 *    in the WAL, and the next checkpoint writes it to both;
 *  - if the copy misses any write or sync, "lost" makes that durable before
 *    the call returns, thus before SQLite answers the commit, or discards the
 *    WAL, which the copy does not have.
 *
 * So after a crash both are equal as soon as one checkpoint of the whole WAL
 * is done; and before that a page of the copy is read only if the WAL does not
 * hold it, which is where both are equal already.
 *
 * Another program may write to the database while it is open (cksum-own.h),
 * to its copy, or to both: single pages, or an older pool.db over all of it.
 * If the checksum of a page is known, it decides; otherwise these rules do:
 *
 *  - A file that is of another moment as a whole has no right page.  If it is
 *    the copy, it becomes LOST.
 *  - Otherwise, if only one file's page has a valid checksum, that page is
 *    right.
 *  - If both have, and the pages differ, the page of the file that no other
 *    program wrote to is right; if there is no such file, neither is.
 *
 * The first file is *distrusted* if it is of another moment, or if only the
 * copy is untouched.  "distrusted" makes that durable before our next change,
 * which might make the first file look new.  When the checking thread has
 * compared all pages, and overwritten the wrong ones, both are trusted again.
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
  CKSUM_MIRROR_OFF,
  CKSUM_MIRROR_BUILDING,
  CKSUM_MIRROR_SYNCED,
  CKSUM_MIRROR_LOST
};

/* A page that the VFS read from the copy. */
struct cksum_mirror_event {
  bool wal;        /* 'number' is a frame's, from 0; else the */
  uint64_t number; /* number of a page, from 1 */
  bool repaired;
};

struct cksum_mirror_ops {
  /* The copy misses a change from now on ('why'): record that durably.  Called
   * once for each time that it was BUILDING or SYNCED, with a lock held.
   */
  void (*lost) (void *opaque, const char *why);
  /* The first file is distrusted from now on, or no longer (its pages are
   * durable): record that durably.
   */
  void (*distrusted) (void *opaque);
  /* There is an event to fetch, or the copy was lost, or the first file is
   * distrusted.
   */
  void (*wake) (void *opaque);
  void *opaque;
};

/* Make the mirror (OFF) of the database at 'path', before opening it; NULL:
 * no memory, with a text.  Free the mirror after closing the last connection;
 * 'm' may be NULL.
 */
extern struct cksum_mirror *
cksum_mirror_new (const char *path, const struct cksum_mirror_ops *ops);
extern void cksum_mirror_free (struct cksum_mirror *m);

/* Use the files 'copy' and 'copy'-wal from now on.  'synced': they equal the
 * database, and the state is SYNCED; else it is BUILDING, and the function
 * empties 'copy' unless 'keep'.  -1 with errno and a text; then the mirror is
 * OFF.
 */
extern int cksum_mirror_start (struct cksum_mirror *m, const char *copy,
                               bool synced, bool keep);
/* Close the copy's files: OFF. */
extern void cksum_mirror_stop (struct cksum_mirror *m);
/* From BUILDING to SYNCED; false: the copy was lost meanwhile. */
extern bool cksum_mirror_trust (struct cksum_mirror *m);
/* Treat the copy as lost (also when it is SYNCED). */
extern void cksum_mirror_lose (struct cksum_mirror *m, const char *why);

extern enum cksum_mirror_state cksum_mirror_state (struct cksum_mirror *m);

/* 1 and the oldest event, 0: none.  Events without room are only counted. */
extern int cksum_mirror_next_event (struct cksum_mirror *m,
                                    struct cksum_mirror_event *event);
/* Pages read from the copy, and how many of them were written back. */
extern void cksum_mirror_get_counts (struct cksum_mirror *m, uint64_t *taken,
                                     uint64_t *repaired);

/* Call these around a change of the database's file that bypasses the VFS. */
extern void cksum_mirror_change_begin (struct cksum_mirror *m);
extern void cksum_mirror_change_end (struct cksum_mirror *m);

/* Call it when the database exists: from now on notice other programs' writes
 * to it, also while there is no copy.
 */
extern void cksum_mirror_watch (struct cksum_mirror *m);
extern bool cksum_mirror_is_distrusted (struct cksum_mirror *m);
/* True if another program wrote to one of the two, and they are not compared
 * yet.
 */
extern bool cksum_mirror_is_touched (struct cksum_mirror *m);
/* How often other programs wrote to either since the copy was begun. */
extern uint64_t cksum_mirror_foreign_changes (struct cksum_mirror *m);

/*----------------------------------------------------------------------
 * For the thread that builds and checks.  'db' is a connection of its own.
 */

/* The number of pages in the database's file; -1 with a text. */
extern int
cksum_mirror_pages (struct cksum_mirror *m, sqlite3 *db, uint64_t *pages);

/* Check whether another program wrote to either; true if the first file is
 * distrusted.
 */
extern bool cksum_mirror_look (struct cksum_mirror *m, sqlite3 *db);

/* The state of one copy of a page. */
enum cksum_page_state {
  CKSUM_PAGE_GOOD,
  CKSUM_PAGE_UNUSED,     /* never written: zeroes */
  CKSUM_PAGE_BAD,        /* wrong checksum */
  CKSUM_PAGE_UNREADABLE, /* the disk failed, or the file is short */
};

struct cksum_page_report {
  uint64_t number; /* as in an event */
  bool wal;
  enum cksum_page_state first, second;
  bool differ; /* both good, but not the same */
  bool repaired;
};

/* Copy up to 'nr' pages from page 'first' (from 1) on, as they are.  Report bad
 * ones, which cannot be repaired, to 'fn'.  -1: the copy is lost, or a page
 * could not be read for another reason than the disk's: try again later.
 */
extern int
cksum_mirror_copy (struct cksum_mirror *m, sqlite3 *db, uint64_t first,
                   unsigned nr,
                   void (*fn) (void *opaque, const struct cksum_page_report *r),
                   void *opaque);
/* Sync the copy of the database. */
extern int cksum_mirror_sync_copy (struct cksum_mirror *m);
/* Copy the WAL, then sync both files of the copy. */
extern int cksum_mirror_copy_wal (struct cksum_mirror *m, sqlite3 *db);

/* Compare up to 'nr' pages from page 'first' on, and write the good one over
 * the bad one.  Report each page to 'fn' unless both copies are good and equal.
 * 0; -1 with a text: not SYNCED, or no memory.
 */
extern int cksum_mirror_check (
  struct cksum_mirror *m, sqlite3 *db, uint64_t first, unsigned nr,
  void (*fn) (void *opaque, const struct cksum_page_report *r), void *opaque);
/* The same for the frames of the WAL. */
extern int cksum_mirror_check_wal (
  struct cksum_mirror *m, sqlite3 *db,
  void (*fn) (void *opaque, const struct cksum_page_report *r), void *opaque);

/* Call it when all pages have been compared, and each was good in the end: sync
 * them, and trust both files again, unless another program wrote to one since
 * cksum_mirror_foreign_changes returned 'changes'.  1; 0: not yet; -1 with a
 * text.
 */
extern int
cksum_mirror_trust_both (struct cksum_mirror *m, sqlite3 *db, uint64_t changes);

/* Write zeroes over each page that is damaged in all copies; nothing may refer
 * to such a page any more.  -1 with a text: writing failed, or a copy could not
 * be read, which proves nothing.
 */
extern int cksum_mirror_blank (struct cksum_mirror *m, sqlite3 *db);
/* The same for this page alone, in the thread that uses 'db'. */
extern int cksum_page_blank (sqlite3 *db, uint64_t number);

/* Read a page of the main database, with 'db' outside of transactions.  1; 0:
 * the page is right in no copy; -1: a copy could not be read, which proves
 * nothing.
 */
extern int cksum_page_probe (sqlite3 *db, uint64_t number, uint8_t *page);

#endif /* NBDEDUP_CKSUM_MIRROR_H */
