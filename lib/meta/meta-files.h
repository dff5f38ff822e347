/* SPDX-License-Identifier: BSD-3-Clause */

/* The files pool.db and pool.db-wal as the file system sees them: what is
 * really allocated of them.  SQLite knows nothing of it: it uses the room,
 * in place, as if it extended the files.
 *
 * Both files are longer than what SQLite has in them.  Of pool.db its header
 * says how many pages it has; of the WAL the first frame whose salts are
 * not the header's ends it.  The VFS (cksum-vfs.c) does not let SQLite
 * truncate them.
 *
 * Threads: meta_files_trim only while no transaction is open and the WAL is
 * empty; all others any, at any time.
 */

#ifndef NBDEDUP_META_FILES_H
#define NBDEDUP_META_FILES_H

#include <stdint.h>

struct meta_copy;
struct meta_files;

/* After SQLite has opened them; 'copy' is told of each change of pool.db.
 * Closing a descriptor of a file drops the
 * process's POSIX locks on it: close after SQLite has.
 */
extern struct meta_files *meta_files_open (const char *db_path,
                                           uint32_t page_bytes,
                                           struct meta_copy *copy);
extern void meta_files_close (struct meta_files *f);

/* Pages that are really allocated; a file system that cannot do that has no
 * end.
 */
extern uint64_t meta_files_db_pages (struct meta_files *f);
extern uint64_t meta_files_wal_pages (struct meta_files *f);

/* Allocate, if there is less.  -1: ENOSPC, EIO. */
extern int meta_files_allocate (struct meta_files *f, uint64_t db_pages,
                                uint64_t wal_pages);

/* Give back what is beyond.  The WAL's header is zero (it was truncated, for
 * SQLite); this is made durable first, or frames that were copied long ago
 * would be a log once more after a loss of power, without the last of them.
 */
extern void meta_files_trim (struct meta_files *f, uint64_t db_pages,
                             uint64_t wal_pages);

#endif /* NBDEDUP_META_FILES_H */
