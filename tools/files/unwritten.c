/* SPDX-License-Identifier: BSD-3-Clause */

/* The preallocated extents of an ext4 file that were not written yet.  They
 * read as zeroes, so libtsk shows them as holes; but the file has these blocks,
 * and what deleted files left there.
 *
 * The tree of extents: the kernel's Documentation/filesystems/ext4, "ifork".
 * Its root is in the inode, the other nodes are blocks.  A node has a header of
 * three words (0xf30a and the number of entries; the depth in the upper half of
 * the second) and entries of three words each.
 */

#include <config.h>

#include <endian.h>
#include <stdlib.h>

#include "files.h"

#define WORDS_IN_INODE 15
#define MAGIC 0xf30a
#define DEPTH_MAX 5
#define BLOCK_MAX 65536
#define WRITTEN_MAX 32768       /* blocks of a written extent */

struct unwritten {
  TSK_FS_INFO *fs;
  void (*fn) (void *opaque, uint64_t addr, uint64_t nr);
  void *opaque;
};

static void walk_block (struct unwritten *u, uint64_t addr, unsigned depth);

/* 'depth' is what the node must have: so a damaged tree ends. */
static void
walk_node (struct unwritten *u, const uint32_t *words, size_t nr_words,
           unsigned depth)
{
  const unsigned nr = words[0] >> 16;
  const uint32_t *entry = words + 3;
  unsigned i;

  if ((words[0] & 0xffff) != MAGIC || words[1] >> 16 != depth ||
      nr > nr_words / 3 - 1)
    return;
  for (i = 0; i < nr; ++i, entry += 3)
    if (depth > 0)
      walk_block (u, (uint64_t) (entry[2] & 0xffff) << 32 | entry[1],
                  depth - 1);
    else if ((entry[1] & 0xffff) > WRITTEN_MAX)
      u->fn (u->opaque, (uint64_t) (entry[1] >> 16) << 32 | entry[2],
             (entry[1] & 0xffff) - WRITTEN_MAX);
}

static void
walk_block (struct unwritten *u, uint64_t addr, unsigned depth)
{
  const size_t size = u->fs->block_size;
  uint32_t *words;
  size_t i;

  if (size > BLOCK_MAX || (words = malloc (size)) == NULL)
    return;
  if (tsk_fs_read_block (u->fs, addr, (char *) words, size) ==
      (ssize_t) size) {
    for (i = 0; i < size / 4; ++i)
      words[i] = le32toh (words[i]);
    walk_node (u, words, size / 4, depth);
  }
  free (words);
}

void
each_unwritten (TSK_FS_FILE *file,
                void (*fn) (void *opaque, uint64_t addr, uint64_t nr),
                void *opaque)
{
  struct unwritten u = { file->fs_info, fn, opaque };
  const TSK_FS_META *meta = file->meta;
  const uint32_t *words;

  if (meta == NULL ||
      meta->content_type != TSK_FS_META_CONTENT_TYPE_EXT4_EXTENTS ||
      meta->content_len < WORDS_IN_INODE * 4)
    return;
  words = meta->content_ptr;
  if (words[1] >> 16 <= DEPTH_MAX)
    walk_node (&u, words, WORDS_IN_INODE, words[1] >> 16);
}
