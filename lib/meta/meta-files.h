/* SPDX-License-Identifier: BSD-3-Clause */

/* The disk space allocated for the files pool.db and pool.db-wal.  SQLite is
 * not aware of it: it uses the room in place, as if it extended the files.
 *
 * Both files are longer than SQLite's content.  The header of pool.db has its
 * number of pages; the WAL ends at the first frame whose salts differ from
 * the header's.  The VFS (cksum-vfs.c) does not let SQLite truncate the files.
 *
 * Threads: meta_files_trim only while no transaction is open and the WAL is
 * empty; any thread may call the others at any time.
 */

#ifndef NBDEDUP_META_FILES_H
#define NBDEDUP_META_FILES_H

#include <stdint.h>

struct meta_copy;
struct meta_files;

/* Call it after SQLite has opened the files.  'copy' learns of each change of
 * pool.db.  Closing a descriptor of a file drops the process's POSIX locks on
 * it, so call meta_files_close after SQLite has closed them.
 */
extern struct meta_files *meta_files_open (const char *db_path,
                                           uint32_t page_bytes,
                                           struct meta_copy *copy);
extern void meta_files_close (struct meta_files *f);

/* Allocated pages; unlimited on a file system that cannot allocate. */
extern uint64_t meta_files_db_pages (struct meta_files *f);
extern uint64_t meta_files_wal_pages (struct meta_files *f);

/* Allocate at least so many pages.  -1: ENOSPC, EIO. */
extern int meta_files_allocate (struct meta_files *f, uint64_t db_pages,
                                uint64_t wal_pages);

/* Free the pages beyond these.  The WAL's header is zero (for SQLite the WAL
 * was truncated).  The function first makes that durable.  Otherwise, after a
 * loss of power, frames that were checkpointed long ago could be a log again,
 * without the last of them.
 */
extern void
meta_files_trim (struct meta_files *f, uint64_t db_pages, uint64_t wal_pages);

#endif /* NBDEDUP_META_FILES_H */
