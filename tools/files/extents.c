/* SPDX-License-Identifier: BSD-3-Clause */

/* The extents of an ext4 file.  libtsk shows preallocated ones, which were not
 * written yet and read as zeroes, as holes, although the file has these blocks,
 * and what deleted files left there; and it shows nothing of a file whose tree
 * has more than the root.
 *
 * The tree: the kernel's Documentation/filesystems/ext4, "ifork".  Its root is
 * in the inode, the other nodes are blocks.  A node has a header of three words
 * (0xf30a and the number of entries; the depth in the upper half of the second)
 * and entries of three words each.
 */

#include <config.h>

#include <endian.h>
#include <stdlib.h>

#include "files.h"

#define WORDS_IN_INODE 15
#define MAGIC 0xf30a
#define DEPTH_MAX 5
#define BLOCK_MAX 65536
#define WRITTEN_MAX 32768 /* blocks of a written extent */

struct extents {
  TSK_FS_INFO *fs;
  extent_fn *fn;
  void *opaque;
};

static void walk_block (struct extents *u, uint64_t addr, unsigned depth);

/* In blocks; longer ones are preallocated. */
static unsigned
length_of (unsigned len)
{
  return len > WRITTEN_MAX ? len - WRITTEN_MAX : len;
}

/* 'depth' is what the node must have: so a damaged tree ends. */
static void
walk_node (struct extents *u, const uint32_t *words, size_t nr_words,
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
    else
      u->fn (u->opaque, (uint64_t) (entry[1] >> 16) << 32 | entry[2],
             length_of (entry[1] & 0xffff), false);
}

static void
walk_block (struct extents *u, uint64_t addr, unsigned depth)
{
  const size_t size = u->fs->block_size;
  uint32_t *words;
  size_t i;

  if (size > BLOCK_MAX || (words = malloc (size)) == NULL)
    return;
  if (tsk_fs_read_block (u->fs, addr, (char *) words, size) == (ssize_t) size) {
    for (i = 0; i < size / 4; ++i)
      words[i] = le32toh (words[i]);
    u->fn (u->opaque, addr, 1, true);
    walk_node (u, words, size / 4, depth);
  }
  free (words);
}

bool
each_extent (TSK_FS_FILE *file, extent_fn *fn, void *opaque)
{
  struct extents u = { file->fs_info, fn, opaque };
  const TSK_FS_META *meta = file->meta;
  const uint32_t *words;

  if (meta == NULL ||
      meta->content_type != TSK_FS_META_CONTENT_TYPE_EXT4_EXTENTS ||
      meta->content_len < WORDS_IN_INODE * 4)
    return false;
  words = meta->content_ptr;
  if (words[1] >> 16 <= DEPTH_MAX)
    walk_node (&u, words, WORDS_IN_INODE, words[1] >> 16);
  return true;
}
