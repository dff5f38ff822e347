/* SPDX-License-Identifier: BSD-3-Clause */

/* Internals of the checksumming VFS: cksum-vfs.c (the methods that SQLite
 * calls), cksum-readonly.c (the same for files that must not change),
 * cksum-snapshot.c (the same for the database of an earlier moment), cksum-db.c
 * (pages of the main database), cksum-wal.c (frames of the WAL), cksum-shared.c
 * (the state that the connections to one database share), cksum-mirror.c (the
 * second copy) and cksum-distrust.c (when not to trust the first one).
 */

#ifndef NBDEDUP_CKSUM_INT_H
#define NBDEDUP_CKSUM_INT_H

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/queue.h>

#include <sqlite3.h>

#include "base/lock.h"
#include "vfs/cksum-vfs.h"
#include "vfs/wal-format.h"

#define PAGE_SIZE_MIN 512
#define PAGE_SIZE_MAX 65536

#define DB_HEADER_BYTES 100

struct cksum_shared;
struct cksum_mirror;
struct cksum_graft;
struct cksum_snapshot;

enum role {
  ROLE_OTHER,
  ROLE_MAIN,
  ROLE_WAL,
  ROLE_EMPTY, /* read-only: a WAL that does not exist; no
                                 * real file follows */
};

/* One open file.  The real VFS's file follows it in memory. */
struct cksum_file {
  sqlite3_file base; /* must be first */
  enum role role;
  struct cksum_shared *shared;     /* a reference; NULL for ROLE_OTHER */
  uint8_t *page;                   /* owned; PAGE_SIZE_MAX bytes, or NULL:
                                 * one thread at a time uses a file */
  const struct cksum_graft *graft; /* not owned; NULL: none */
  struct cksum_snapshot *snapshot; /* not owned; NULL: read it as it is */
  int (*look) (void *opaque);      /* NULL: none (cksum-vfs.h) */
  void *look_opaque;
};

static_assert (sizeof (struct cksum_file) % 8 == 0,
               "the real VFS's file needs alignment");

static inline sqlite3_file *
real_file (struct cksum_file *f)
{
  return (sqlite3_file *) (f + 1);
}

static inline uint8_t *
cksum_page_buffer (struct cksum_file *f)
{
  if (f->page == NULL)
    f->page = malloc (PAGE_SIZE_MAX);
  return f->page;
}

/* SQLite's own VFS returns SQLITE_IOERR_READ for every failed read.  This
 * function returns SQLITE_IOERR_NOMEM for ENOMEM: callers wait for memory, but
 * an I/O error of a fold stops the pool.
 */
static inline int
real_read (struct cksum_file *f, void *buf, int len, sqlite3_int64 offset)
{
  sqlite3_file *real = real_file (f);
  int rc = real->pMethods->xRead (real, buf, len, offset), err = 0;

  if (rc == SQLITE_IOERR_READ &&
      real->pMethods->xFileControl (real, SQLITE_FCNTL_LAST_ERRNO, &err) ==
        SQLITE_OK &&
      err == ENOMEM)
    return SQLITE_IOERR_NOMEM;
  return rc;
}

static inline int
real_write (struct cksum_file *f, const void *buf, int len,
            sqlite3_int64 offset)
{
  sqlite3_file *real = real_file (f);

  return real->pMethods->xWrite (real, buf, len, offset);
}

static inline int
real_size (struct cksum_file *f, sqlite3_int64 *size)
{
  sqlite3_file *real = real_file (f);

  return real->pMethods->xFileSize (real, size);
}

static inline bool
is_page_size (uint64_t size)
{
  return size >= PAGE_SIZE_MIN && size <= PAGE_SIZE_MAX &&
    (size & (size - 1)) == 0;
}

/*----------------------------------------------------------------------
 * cksum-vfs.c: methods that the read-only VFS has, too
 */

extern int cksum_close (sqlite3_file *file);
/* The connection's main database; NULL with a text: it is not open. */
extern struct cksum_file *cksum_file_of (sqlite3 *db);
extern int
cksum_read (sqlite3_file *file, void *buf, int len, sqlite3_int64 offset);

/*----------------------------------------------------------------------
 * cksum-shared.c.  Threads: all functions lock by themselves.
 */

/* Instead of a frame's checksum: it is not known. */
#define FRAME_UNKNOWN 0

/* Call it once, before all others. */
extern void cksum_shared_init (void);

/* A reference to the state of the database at path[0 .. len-1]; NULL: no
 * memory.  NULL can be put.
 */
extern struct cksum_shared *cksum_shared_get (const char *path, size_t len);
/* The same by any name of the file; and one reference more. */
extern struct cksum_shared *cksum_shared_get_by_name (const char *path);
extern struct cksum_shared *cksum_shared_ref (struct cksum_shared *s);
extern void cksum_shared_put (struct cksum_shared *s);

/* The bytes of the main database's file that SQLite uses; the rest is allocated
 * room (meta-files.h).  Get: false if not known yet.
 */
extern bool cksum_get_db_size (struct cksum_shared *s, uint64_t *size);
extern void cksum_set_db_size (struct cksum_shared *s, uint64_t size);
/* Raise the size to at least 'size', if it is known. */
extern void cksum_extend_db_size (struct cksum_shared *s, uint64_t size);
/* The same for a mirror, which then belongs to the database until it is put:
 * no connection may be open at either time.
 */
extern struct cksum_shared *
cksum_shared_get_mirrored (const char *path, struct cksum_mirror *m);
extern void cksum_shared_put_mirrored (struct cksum_shared *s);
/* For cksum_get_written; NULL is allowed. */
extern void cksum_count_written (struct cksum_shared *s,
                                 enum cksum_written which, uint64_t bytes);
/* NULL: there is none. */
extern struct cksum_mirror *cksum_get_mirror (struct cksum_shared *s);

/* The database's snapshots (cksum-snapshot.h). */
struct cksum_snapshots {
  struct lock lock; /* protects the list; held while a page is saved */
  LIST_HEAD (, cksum_snapshot) list;
  atomic_uint nr; /* of the list */
};
extern struct cksum_snapshots *cksum_get_snapshots (struct cksum_shared *s);

/* The arguments of cksum_readonly_prepare; -1: no stand-in. */
extern int cksum_get_stand_in (struct cksum_shared *s);
extern bool cksum_is_without_wal (struct cksum_shared *s);
/* The file to read instead of the WAL; -1: none. */
extern int cksum_get_wal (struct cksum_shared *s);
/* True for the first call only, so that the log does not get every page. */
extern bool cksum_is_first_help (struct cksum_shared *s);

/* Page sizes; 0: not known yet.  A new one for the WAL discards all frames'
 * checksums.
 */
extern uint32_t cksum_get_page_size (struct cksum_shared *s);
extern void cksum_set_page_size (struct cksum_shared *s, uint32_t page_size);
extern uint32_t cksum_get_wal_page_size (struct cksum_shared *s);
extern void
cksum_set_wal_page_size (struct cksum_shared *s, uint32_t page_size);

/* The checksum of a frame's page.  Set: SQLITE_OK or SQLITE_IOERR_NOMEM;
 * FRAME_UNKNOWN needs no memory.
 */
extern uint64_t cksum_get_frame (struct cksum_shared *s, uint64_t frame);
extern int
cksum_set_frame (struct cksum_shared *s, uint64_t frame, uint64_t cksum);

/* True if this is the checksum that the page, counted from 0, had when it was
 * last written, or first read.  If neither has happened, remember it.
 */
extern bool
cksum_expect_page (struct cksum_shared *s, uint64_t page, uint64_t cksum);
extern bool cksum_knows_page (struct cksum_shared *s, uint64_t page);
/* Pass FRAME_UNKNOWN if a write has failed. */
extern void
cksum_set_page (struct cksum_shared *s, uint64_t page, uint64_t cksum);

/* The WAL was cut to 'size' bytes. */
extern void cksum_forget_frames (struct cksum_shared *s, uint64_t size);

/*----------------------------------------------------------------------
 * Pages and frames.
 */

/* The page size in a database header; 0 unless it is the header of a database
 * whose pages have room for checksums.
 */
extern uint32_t cksum_parse_db_header (const uint8_t *h);
extern bool
cksum_page_is_good (const uint8_t *page, uint32_t page_size, uint64_t offset);
/* Good, and not an older version that another program put in its place. */
extern bool cksum_page_is_right (struct cksum_shared *s, const uint8_t *page,
                                 uint32_t page_size, uint64_t offset);
/* The same for a page of the first file.  If another program may have written
 * to that file, a page whose checksum is not known is not right.
 */
extern bool cksum_first_is_right (struct cksum_shared *s, const uint8_t *page,
                                  uint32_t page_size, uint64_t offset);
/* Write the checksum into the page. */
extern void
cksum_page_seal (uint8_t *page, uint32_t page_size, uint64_t offset);
/* The checksum of a frame's page; never FRAME_UNKNOWN. */
extern uint64_t
cksum_frame_cksum (const uint8_t *page, uint32_t page_size, uint64_t frame);

static inline uint64_t
cksum_frame_offset (uint64_t frame, uint32_t page_size)
{
  return WAL_HEADER_BYTES + frame * (FRAME_HEADER_BYTES + page_size);
}

/*----------------------------------------------------------------------
 * cksum-mirror.c.  Without a copy these call the real VFS only.
 */

extern int cksum_mirror_write (struct cksum_file *f, const void *buf, int len,
                               sqlite3_int64 offset);
extern int cksum_mirror_sync (struct cksum_file *f, int flags);
/* 'keep': do not shorten the first file, to keep its room.  A WAL without a
 * header counts as empty, and a database's header has its number of pages.
 */
extern int
cksum_mirror_truncate (struct cksum_file *f, sqlite3_int64 size, bool keep);
extern void cksum_mirror_wal_removed (struct cksum_mirror *m);

/* Read from the copy a page, or a frame's page, that is not right in the first
 * file; false if the copy cannot help.  Changes 'page' in any case.
 */
extern bool cksum_mirror_read_page (struct cksum_file *f, uint8_t *page,
                                    uint32_t page_size, sqlite3_int64 offset);
extern bool cksum_mirror_read_frame (struct cksum_file *f, uint8_t *page,
                                     uint32_t page_size, uint64_t frame);
/* The page size according to the copy's header, or 0. */
extern uint32_t cksum_mirror_header (struct cksum_file *f);
/* Set *size to the copy's size, if that is larger. */
extern void cksum_mirror_size (struct cksum_file *f, sqlite3_int64 *size);

/*----------------------------------------------------------------------
 * cksum-db.c, cksum-wal.c: SQLite's result codes.
 */

extern int
cksum_db_read (struct cksum_file *f, void *buf, int len, sqlite3_int64 offset);
/* A whole page as it is now, also for a file of a snapshot. */
extern int cksum_db_read_live (struct cksum_file *f, uint8_t *page,
                               uint32_t page_size, sqlite3_int64 offset);
extern int cksum_db_write (struct cksum_file *f, const void *buf, int len,
                           sqlite3_int64 offset);
extern int cksum_db_size (struct cksum_file *f, sqlite3_int64 *size);
extern int
cksum_wal_read (struct cksum_file *f, void *buf, int len, sqlite3_int64 offset);
extern int cksum_wal_write (struct cksum_file *f, const void *buf, int len,
                            sqlite3_int64 offset);

/*----------------------------------------------------------------------
 * cksum-graft.c
 */

/* True if there is a substitute for this page, which is then in 'page'. */
extern bool cksum_graft_read (const struct cksum_file *f, uint8_t *page,
                              uint32_t page_size, uint64_t offset);

/*----------------------------------------------------------------------
 * cksum-vfs.c, cksum-readonly.c
 */

/* The length of the database's path if 'path' is the name of a WAL, else
 * 0.
 */
extern size_t cksum_wal_path_len (const char *path);

/* Read a page of a read-only database from its stand-in; false if that cannot
 * help.  Changes 'page' in any case.
 */
extern bool cksum_readonly_read_page (struct cksum_file *f, uint8_t *page,
                                      uint32_t page_size, sqlite3_int64 offset);

/* Its methods, for files of which only some differ. */
extern const sqlite3_io_methods cksum_readonly_methods;

/* Register the read-only VFS, on the same 'real' one.  It inherits from
 * 'writable' the methods that it does not replace.  SQLite's result code.
 */
extern int
cksum_readonly_register (sqlite3_vfs *real, const sqlite3_vfs *writable);

/*----------------------------------------------------------------------
 * cksum-snapshot.c
 */

/* Call it once, before all others.  'real' opens the files; the VFS of a
 * snapshot inherits the other methods from 'readonly'.
 */
extern void
cksum_snapshot_register (sqlite3_vfs *real, const sqlite3_vfs *readonly);

/* Read a whole page as of the moment of f->snapshot. */
extern int cksum_snapshot_read (struct cksum_file *f, uint8_t *page,
                                uint32_t page_size, sqlite3_int64 offset);

/* Save this page for the snapshots that lack it: before it is overwritten. */
extern void cksum_snapshots_save (struct cksum_file *f, uint32_t page_size,
                                  sqlite3_int64 offset);

#endif /* NBDEDUP_CKSUM_INT_H */
