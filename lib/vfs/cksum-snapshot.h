/* SPDX-License-Identifier: BSD-3-Clause */

/* Snapshots of the main database that do not need its WAL.
 *
 * A reader in SQLite's WAL keeps the WAL from starting again, so that one
 * command that reads for minutes lets the WAL grow by all that is written
 * meanwhile.  A snapshot reads the database without a WAL, as an immutable file
 * (https://sqlite.org/uri.html, "immutable").  Before a checkpoint overwrites a
 * page for the first time, the VFS saves the page's content to a file of the
 * snapshot.  So a snapshot takes at most the size of the database, however long
 * it lives, and the WAL keeps its bound.  The saved pages have no use after a
 * crash, and the file has no name.
 *
 * A snapshot gives way if its file cannot be written, or has more bytes than
 * the file system has left: writes to the database never fail for it.
 *
 * Threads: each function may be called from any thread.  A snapshot has one
 * connection, which one thread at a time uses.
 */

#ifndef NBDEDUP_CKSUM_SNAPSHOT_H
#define NBDEDUP_CKSUM_SNAPSHOT_H

#include <stdint.h>

struct cksum_snapshot;

/* A snapshot of the database at 'path' as its file is now.  Until the function
 * returns the caller must prevent checkpoints, and the last one must have
 * copied all that was committed when it began.  NULL with a text: ENOMEM, or
 * the file cannot be made.
 */
extern struct cksum_snapshot *cksum_snapshot_begin (const char *path);
/* After its connections are closed.  NULL is allowed. */
extern void cksum_snapshot_end (struct cksum_snapshot *n);

/* The name of the VFS with which SQLite opens 'path', SQLITE_OPEN_READONLY, as
 * of the snapshot; valid until the snapshot ends.
 */
extern const char *cksum_snapshot_vfs (const struct cksum_snapshot *n);

/* The bytes that it had saved when it gave way, at least 1; then all reads
 * fail.  0: it is whole.
 */
extern uint64_t cksum_snapshot_gave_way (struct cksum_snapshot *n);

/* Let all snapshots of the database give way, and so free their space; or only
 * those that have become too large for the file system since they saved a page.
 */
extern void cksum_snapshots_give_way (const char *path);
extern void cksum_snapshots_look (const char *path);

/* The most pages that a snapshot of the database has: its file must not become
 * shorter.  0: there is no snapshot; UINT64_MAX: no memory to look.
 */
extern uint64_t cksum_snapshots_pages (const char *path);

#endif /* NBDEDUP_CKSUM_SNAPSHOT_H */
