/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the files of the helper nbdedup-files. */

#ifndef NBDEDUP_FILES_H
#define NBDEDUP_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsk/libtsk.h>

#include "protocol.h"

/*----------------------------------------------------------------------
 * talk.c: the parent
 */

extern void send_text (enum files_type type, const char *text, size_t len);
/* A package whose list is this one of the golden image. */
extern void send_same_package (uint64_t number);
extern void send_note (const char *fmt, ...)
  __attribute__ ((format (printf, 1, 2)));
extern void send_extent (uint64_t offset, uint64_t len);
extern void send_done (void);
/* True, or false: they cannot be read. */
extern bool read_image (uint64_t offset, void *buf, uint32_t len);

/* End the program: the parent takes nothing of what was sent for true. */
extern void give_up (const char *why) __attribute__ ((noreturn));

/*----------------------------------------------------------------------
 * claim.c: each sector of the ranges belongs to the first that claims it
 */

extern void read_ranges (void);
/* Send what the owner gets of these bytes. */
extern void claim (const char *owner, uint64_t offset, uint64_t len);
/* Call 'fn' with each part of these bytes that has no owner yet.  'fn' may
 * claim it.
 */
extern void
each_unclaimed (uint64_t offset, uint64_t len,
                void (*fn) (void *opaque, uint64_t offset, uint64_t len),
                void *opaque);

/*----------------------------------------------------------------------
 * extents.c
 */

typedef void
extent_fn (void *opaque, uint64_t addr, uint64_t nr, bool is_metadata);

/* Call 'fn' with each extent of the file, and (is_metadata) with the blocks
 * that list them.  False: its file system has no extents.
 */
extern bool each_extent (TSK_FS_FILE *file, extent_fn *fn, void *opaque);

/*----------------------------------------------------------------------
 * tree.c
 */

struct map_dir;
struct map_file;

/* A file or directory; valid until the next call.  NULL: there is none. */
extern const struct map_file *tree_file (TSK_FS_INFO *fs, uint64_t inode);

/* The names in a directory, without "." and "..".  The caller frees 'owned'.
 * NULL: it cannot be read (tsk_error_get_errstr).
 */
extern const struct map_dir *
tree_dir (TSK_FS_INFO *fs, uint64_t inode, struct map_dir **owned);

/*----------------------------------------------------------------------
 * file-system.c
 */

/* 'prefix' begins the paths; "" for the only file system, or the root's. */
extern void
own_file_system (TSK_FS_INFO *fs, uint64_t size, const char *prefix);

#endif /* NBDEDUP_FILES_H */
