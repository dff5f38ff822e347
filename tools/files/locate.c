/* SPDX-License-Identifier: BSD-3-Clause */

/* Where a file system has an inode: a few fields of the super block and of the
 * group descriptors (the kernel's Documentation/filesystems/ext4, "super" and
 * "group_descr"), or the runs of the MFT, whose entries have one size (NTFS's
 * boot sector, byte 64: clusters, or the negative logarithm of bytes).  FAT has
 * no inodes, and its files are not recorded.
 */

#include <config.h>

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "golden-map.h"

#define SUPER_BLOCK 1024
#define SB_FIRST_DATA_BLOCK 20
#define SB_INODES_PER_GROUP 40
#define SB_REVISION 76
#define SB_INODE_SIZE 88
#define SB_INCOMPAT 96
#define SB_DESC_SIZE 254
#define INCOMPAT_META_BG 0x10
#define INCOMPAT_64BIT 0x80
#define GD_INODE_BITMAP 4
#define GD_INODE_TABLE 8
#define GD_INODE_BITMAP_HI 36
#define GD_INODE_TABLE_HI 40

#define BOOT_ENTRY_SIZE 64
#define MFT 0

static TSK_FS_INFO *fs;
static uint64_t entry_size;  /* 0: places are not known */
static uint64_t descriptors; /* of groups: their first byte in the image */
static uint32_t per_group, descriptor_size;
/* The group that was read last: the first byte of its table of inodes, and its
 * bitmap.
 */
static uint64_t group, table;
static uint8_t *bitmap;  /* owned */
static TSK_FS_FILE *mft; /* owned; NULL: this is not NTFS */

static bool
get (uint64_t at, void *p, size_t len)
{
  return tsk_img_read (fs->img_info, at, p, len) == (ssize_t) len;
}

static void
begin_ext (void)
{
  uint8_t super[1024];
  uint32_t incompat, first, revision;
  uint16_t inode_size, desc_size;

  if (!get (fs->offset + SUPER_BLOCK, super, sizeof super))
    return;
  memcpy (&incompat, super + SB_INCOMPAT, 4);
  memcpy (&first, super + SB_FIRST_DATA_BLOCK, 4);
  memcpy (&revision, super + SB_REVISION, 4);
  memcpy (&per_group, super + SB_INODES_PER_GROUP, 4);
  memcpy (&inode_size, super + SB_INODE_SIZE, 2);
  memcpy (&desc_size, super + SB_DESC_SIZE, 2);
  incompat = le32toh (incompat);
  per_group = le32toh (per_group);
  descriptor_size = incompat & INCOMPAT_64BIT ? le16toh (desc_size) : 32;
  if (incompat & INCOMPAT_META_BG || descriptor_size < 32 || per_group == 0 ||
      per_group > fs->block_size * 8)
    return;
  bitmap = malloc (fs->block_size);
  if (bitmap == NULL)
    return;
  descriptors = fs->offset + ((uint64_t) le32toh (first) + 1) * fs->block_size;
  entry_size = revision == 0 ? 128 : le16toh (inode_size);
}

/* A block number of a group descriptor, as the place in the image. */
static bool
get_place (uint64_t desc, unsigned lo_at, unsigned hi_at, uint64_t *place)
{
  uint32_t lo, hi = 0;

  if (!get (desc + lo_at, &lo, 4) ||
      (descriptor_size >= 64 && !get (desc + hi_at, &hi, 4)))
    return false;
  *place = fs->offset +
    ((uint64_t) le32toh (hi) << 32 | le32toh (lo)) * fs->block_size;
  return true;
}

static bool
read_group (uint64_t nr)
{
  const uint64_t desc = descriptors + nr * descriptor_size;
  uint64_t place;

  if (nr == group)
    return true;
  group = UINT64_MAX;
  if (!get_place (desc, GD_INODE_TABLE, GD_INODE_TABLE_HI, &table) ||
      !get_place (desc, GD_INODE_BITMAP, GD_INODE_BITMAP_HI, &place) ||
      !get (place, bitmap, (per_group + 7) / 8))
    return false;
  group = nr;
  return true;
}

/* libtsk takes an inode for free if the bitmap says so. */
static bool
locate_ext (uint64_t inode, uint64_t *at)
{
  const uint64_t i = (inode - 1) % per_group;

  if (inode == 0 || !read_group ((inode - 1) / per_group) ||
      !(bitmap[i / 8] >> i % 8 & 1))
    return false;
  *at = table + i * entry_size;
  return true;
}

static void
begin_ntfs (void)
{
  int8_t size;
  uint8_t sectors;

  if (!get (fs->offset + BOOT_ENTRY_SIZE, &size, 1) ||
      !get (fs->offset + 13, &sectors, 1) || size < -16)
    return;
  mft = tsk_fs_file_open_meta (fs, NULL, MFT);
  if (mft != NULL)
    entry_size = size < 0 ? UINT64_C (1) << -size
                          : (uint64_t) size * fs->block_size;
}

/* In the runs of the MFT's data. */
static bool
locate_ntfs (uint64_t entry, uint64_t *at)
{
  const TSK_FS_ATTR *data =
    tsk_fs_file_attr_get_type (mft, TSK_FS_ATTR_TYPE_NTFS_DATA, 0, 0);
  const uint64_t offset = entry * entry_size;
  const TSK_FS_ATTR_RUN *run;
  uint64_t first, len;

  if (data == NULL || !(data->flags & TSK_FS_ATTR_NONRES))
    return false;
  for (run = data->nrd.run; run; run = run->next) {
    first = run->offset * fs->block_size;
    len = run->len * fs->block_size;
    if (offset >= first && offset - first < len &&
        entry_size <= len - (offset - first)) {
      *at = fs->offset + run->addr * fs->block_size + (offset - first);
      return true;
    }
  }
  return false;
}

void
locate_begin (TSK_FS_INFO *new)
{
  tsk_fs_file_close (mft);
  mft = NULL;
  free (bitmap);
  bitmap = NULL;
  entry_size = 0;
  group = UINT64_MAX;
  fs = new;
  if (TSK_FS_TYPE_ISEXT (fs->ftype))
    begin_ext ();
  else if (TSK_FS_TYPE_ISNTFS (fs->ftype))
    begin_ntfs ();
}

bool
locate_inode (uint64_t inode, uint64_t *at, uint64_t *len)
{
  *len = entry_size;
  if (entry_size == 0 || inode > fs->last_inum)
    return false;
  return mft != NULL ? locate_ntfs (inode, at) : locate_ext (inode, at);
}
