/* SPDX-License-Identifier: BSD-3-Clause */

/* The files of a golden image, so that the helpers for its clones need not
 * parse again what a clone inherits.
 *
 * The helper for the golden image records them; its parent keeps the records,
 * and gives them, with the ranges of bytes where a clone differs, to the
 * helpers for the clones.  A file is the golden image's if its inode (or entry
 * of the MFT), at the same place, and the blocks that list its extents are
 * outside of these ranges; so are the names in a directory whose other blocks
 * are outside, too.  libtsk would find the same in the same bytes.
 *
 * The records are in this machine's byte order, and each begins at a multiple
 * of eight bytes.  A record of a file system comes before those of its files
 * and directories.
 */

#ifndef NBDEDUP_GOLDEN_MAP_H
#define NBDEDUP_GOLDEN_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsk/libtsk.h>

enum map_kind {
  RECORD_FILE_SYSTEM = 1,
  RECORD_FILE,
  RECORD_DIR,
  RECORD_LIST,
};

struct map_record {
  uint32_t kind;
  uint32_t len;   /* of all of it, a multiple of 8 */
  uint64_t inode; /* of a file system: its first byte */
};

struct map_file_system {
  struct map_record record;
  uint32_t type, block_size;
  uint64_t last_block, last_inode;
};

/* Blocks of the file system.  'is_metadata': they list other blocks. */
struct map_run {
  uint64_t addr, nr, is_metadata;
};

struct map_file {
  struct map_record record;
  uint64_t at, at_len; /* where in the image its inode is; 0, 0: the
                                 * place is not known, or the inode does not
                                 * have all of it, so it is not recorded */
  uint64_t size;
  uint32_t sequence; /* of the MFT's entry */
  uint32_t is_dir;
  uint64_t nr_runs;
  struct map_run runs[];
};

struct map_name {
  uint64_t inode;
  uint32_t sequence;
  uint16_t is_virtual; /* no file, but a part of a FAT file system */
  uint16_t len;        /* of the text, which ends with a zero byte;
                                 * the next name begins at a multiple of 8 */
  char text[];
};

struct map_dir {
  struct map_record record;
  uint64_t nr_names; /* the names follow */
};

/* dpkg's list of a package's files: the number of its PACKAGE message. */
struct map_list {
  struct map_record record;
  uint64_t number;
};

/* Of a name, with its text and padding. */
static inline size_t
map_name_size (size_t len)
{
  return (sizeof (struct map_name) + len + 1 + 7) / 8 * 8;
}

static inline const struct map_name *
map_first_name (const struct map_dir *dir)
{
  return (const struct map_name *) (dir + 1);
}

static inline const struct map_name *
map_next_name (const struct map_name *name)
{
  return (const struct map_name *) ((const char *) name +
                                    map_name_size (name->len));
}

/* This program records, or has the golden image's records. */
extern void golden_map_record (void);
extern void golden_map_open (void);

/* The next calls are about this file system. */
extern void golden_map_begin (TSK_FS_INFO *fs);

/* NULL: there is none, or it has changed, or this program records. */
extern const struct map_file *golden_map_file (uint64_t inode);
extern const struct map_dir *golden_map_dir (uint64_t inode);
/* The number of the golden image's list, if all of the file is the same.
 * False: it is not.
 */
extern bool golden_map_list (uint64_t inode, uint64_t *number);

/* Add a record, if this program records. */
extern void golden_map_add_file (const struct map_file *file);
extern void golden_map_add_dir (const struct map_dir *dir);
extern void golden_map_add_list (uint64_t inode, uint64_t number);
/* All records are there. */
extern void golden_map_end (void);

/*----------------------------------------------------------------------
 * locate.c
 */

/* Where in the image is the inode, or the MFT's entry?  False: its place is
 * not known, or it is free.  The first call for a file system is locate_begin.
 */
extern void locate_begin (TSK_FS_INFO *fs);
extern bool locate_inode (uint64_t inode, uint64_t *at, uint64_t *len);

#endif /* NBDEDUP_GOLDEN_MAP_H */
