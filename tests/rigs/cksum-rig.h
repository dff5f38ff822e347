/* SPDX-License-Identifier: BSD-3-Clause */

/* A database of known content, accessed with the checksumming VFS.  A row's
 * bytes follow from its key and its version.
 */

#ifndef NBDEDUP_CKSUM_RIG_H
#define NBDEDUP_CKSUM_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sqlite3.h>

#define NR_ROWS 400
#define WAL_HEADER 32
#define FRAME_HEADER 24

/* A directory with two databases; a test leaves it empty. */
extern char db_path[64], wal_path[80], other_path[64], other_wal[80];

extern void cksum_begin (void);
extern void cksum_end (void);

extern uint64_t random_u64 (void);

/* The caller frees 'data'.  NULL: there is no such file. */
struct file_bytes {
  uint8_t *data;
  size_t len;
};

extern struct file_bytes read_file (const char *path);
extern void write_file (const char *path, const void *data, size_t len);

/* Change bytes of a file that may be open, without truncating it. */
extern void
patch_file (const char *path, uint64_t offset, const void *data, size_t len);
extern void copy_file (const char *from, const char *to);
extern void remove_all (void);

/* The expected content: the version of each row; 0: no row. */
struct model {
  unsigned version[NR_ROWS];
};

struct setup {
  int page_size;
  const char *journal_mode;
  const char *synchronous;
  const char *parameters; /* of the URI */
  const char *vfs;
  int auto_vacuum;
};

extern const struct setup normal;
extern const struct setup stock; /* without our VFS */

extern sqlite3 *
open_with (const char *path, const struct setup *setup, int *rcp);
extern sqlite3 *open_db (const char *path, const struct setup *setup);
extern void run (sqlite3 *db, const char *sql);
extern void close_db (sqlite3 *db);
extern void checkpoint (sqlite3 *db);
extern int64_t query_int (sqlite3 *db, const char *sql);

extern void create_table (sqlite3 *db);
extern void
put_row (sqlite3 *db, struct model *model, unsigned key, unsigned version);

/* Make a table that has interior, leaf, overflow and free pages. */
extern void populate (sqlite3 *db, struct model *model);

enum verdict { RIGHT, FAILED, WRONG };

extern bool is_damage_code (int rc);

/* Read every page in use and every trunk page of the free list. */
extern enum verdict verify_integrity (sqlite3 *db);

/* Compare the content with the model. */
extern enum verdict verify_db (sqlite3 *db, const struct model *model);

/* The same with a new connection, so that no cache hides damage. */
extern enum verdict
verify (const char *path, const struct setup *setup, const struct model *model);

/* Check that every page of the closed file has the checksum of cksum-vfs.h.
 * The function computes it with code of its own.
 */
extern void check_file (const char *path, size_t page_size);

#endif /* NBDEDUP_CKSUM_RIG_H */
