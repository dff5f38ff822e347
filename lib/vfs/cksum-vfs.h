/* SPDX-License-Identifier: BSD-3-Clause */

/* An SQLite VFS that checksums every page.
 *
 * Idea: SQLite's own ext/misc/cksumvfs.c (https://sqlite.org/cksumvfs.html),
 * which Debian's library does not contain.  The last 8 bytes of each page
 * of the main database are reserved (SQLITE_FCNTL_RESERVE_BYTES) and hold
 * the little-endian XXH3_64bits_withSeed of the rest of the page, the seed
 * being the page's offset in the file: reading a page that was corrupted,
 * torn, zeroed or written at the wrong place fails with SQLITE_IOERR_DATA.
 * The VFS fills in the checksum when it writes a page to the main database (in
 * a buffer of its own: SQLite's is const), and checks it when it reads one.
 *
 * The WAL has SQLite's own cumulative frame checksums, which are checked
 * only at recovery.  So for each frame written, and each frame read during
 * recovery, the VFS keeps a 64-bit checksum of its page in memory, and
 * checks it whenever SQLite reads that page from the WAL.  The table is
 * shared by all connections of the process to one file.
 *
 * In a page read from the WAL the reserved bytes are not filled in; no code
 * reads them.
 *
 * A page of an older moment has a valid checksum, too.  So while the database
 * is open the VFS also keeps the checksum of each page of the main database
 * that it has read or written: a different page in its place is damaged.
 *
 * Why not the extension itself: Debian's library lacks it, it does not check
 * pages that are read from the WAL after recovery, and it can only report
 * damage, where this VFS reads the page from the second copy.
 */

#ifndef NBDEDUP_CKSUM_VFS_H
#define NBDEDUP_CKSUM_VFS_H

#include <stdbool.h>
#include <stdint.h>

#include <sqlite3.h>

#define CKSUM_VFS_NAME "nbdedup"
#define CKSUM_READONLY_VFS_NAME "nbdedup-readonly"
#define CKSUM_RESERVE 8

/* Register the VFS (once per process; later calls do nothing).  It is a shim
 * over "unix-excl": several connections of one process share a WAL whose
 * index is in heap memory; no other process can open the database.
 *
 * The second one, for SQLITE_OPEN_READONLY, changes no file and makes none,
 * not even a lock.  Each connection must begin with exclusive locking mode.
 *
 * Returns 0, or -1 with errno and a text.
 */
extern int cksum_vfs_register (void);

/* Call 'look' before each read of the connection's database: if it does not
 * return 0, the read fails, with SQLITE_INTERRUPT.  NULL ends that.  So a
 * caller can end a statement in which SQLite calls no progress handler: Debian
 * 12's does not while it checks a tree.  -1 with a text: no such file.
 */
extern int
cksum_set_look (sqlite3 *db, int (*look) (void *opaque), void *opaque);

/* The bytes written to the database, to its WAL, and to the second copy of
 * both, since the first connection to it was opened.  'path' is the
 * database's.  -1: ENOMEM.
 */
enum cksum_written {
  CKSUM_WRITTEN_DB,
  CKSUM_WRITTEN_WAL,
  CKSUM_WRITTEN_COPY,
};
#define CKSUM_WRITTEN 3
extern int cksum_get_written (const char *path, uint64_t bytes[CKSUM_WRITTEN]);

struct cksum_shared;

/* Set how read-only connections to 'path' read it, until the caller releases
 * the result after closing the last connection.
 *
 * 'stand_in' is another database with the same pages, or -1: the VFS reads
 * pages there that are damaged in 'path'.  'wal', if not -1, is read instead of
 * the database's WAL.  The VFS takes over both descriptors.  'without_wal':
 * read as if there were no WAL.
 *
 * NULL with a text; NULL can be released.
 */
extern struct cksum_shared *cksum_readonly_prepare (const char *path,
                                                    int stand_in, int wal,
                                                    bool without_wal);
extern void cksum_readonly_release (struct cksum_shared *shared);

#endif /* NBDEDUP_CKSUM_VFS_H */
