/* SPDX-License-Identifier: BSD-3-Clause */

/* nbdedup-files: which file, or what else, owns which bytes of a disk image.
 *
 * A helper of "nbdedup drift --files", which starts it confined (confine.h) and
 * answers its reads: see protocol.h.  It is a program of its own because it
 * parses what guests wrote, and because it links The Sleuth Kit's library
 * (libtsk), which is under the Common Public License 1.0 and the IBM Public
 * License 1.0.  The source here is under nbdedup's licence.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "golden-map.h"

#define PARTS_MAX 256

/* What begins at a place of the image, before libtsk looks at it. */
static const struct {
  unsigned offset, len;
  const char *magic;
  const char *pseudo; /* NULL: a file system that libtsk reads */
  TSK_FS_TYPE_ENUM type;
  const char *name;
} signatures[] = {
  { 0, 6, "LUKS\xba\xbe", PSEUDO_ENCRYPTED, 0, "LUKS" },
  { 3, 8, "-FVE-FS-", PSEUDO_ENCRYPTED, 0, "BitLocker" },
  { 4086, 10, "SWAPSPACE2", PSEUDO_SWAP, 0, NULL },
  { 512, 8, "LABELONE", PSEUDO_UNKNOWN, 0, "an LVM physical volume" },
  { 0, 4, "XFSB", PSEUDO_UNKNOWN, 0, "XFS" },
  { 65600, 8, "_BHRfS_M", PSEUDO_UNKNOWN, 0, "btrfs" },
  { 4096, 4, "\xfc\x4e\x2b\xa9", PSEUDO_UNKNOWN, 0, "a member of an MD RAID" },
  { 1024, 4, "\x10\x20\xf5\xf2", PSEUDO_UNKNOWN, 0, "F2FS" },
  { 0, 4, "hsqs", PSEUDO_UNKNOWN, 0, "SquashFS" },
  { 1080, 2, "\x53\xef", NULL, TSK_FS_TYPE_EXT_DETECT, "ext" },
  { 3, 8, "NTFS    ", NULL, TSK_FS_TYPE_NTFS_DETECT, "NTFS" },
  { 3, 8, "EXFAT   ", NULL, TSK_FS_TYPE_FAT_DETECT, "exFAT" },
  { 54, 3, "FAT", NULL, TSK_FS_TYPE_FAT_DETECT, "FAT" },
  { 82, 5, "FAT32", NULL, TSK_FS_TYPE_FAT_DETECT, "FAT" },
};

struct part {
  uint64_t offset, size;
  unsigned number;    /* as Linux counts; 0: not partitioned */
  const char *pseudo; /* what all of it is; NULL: 'fs' */
  TSK_FS_INFO *fs;    /* owned */
  bool is_root;
};

static struct part parts[PARTS_MAX];
static unsigned nr_parts;
static TSK_IMG_INFO image_info, *image;

static ssize_t
image_read (TSK_IMG_INFO *img, TSK_OFF_T offset, char *buf, size_t len)
{
  size_t done = 0, n;

  if (offset < 0 || offset >= img->size)
    return -1;
  if (len > (uint64_t) (img->size - offset))
    len = img->size - offset;
  for (; done < len; done += n) {
    n = len - done < FILES_READ_MAX ? len - done : FILES_READ_MAX;
    if (!read_image (offset + done, buf + done, n))
      return -1;
  }
  return len;
}

static void
image_close (TSK_IMG_INFO *img)
{
  (void) img;
}

static void
image_stat (TSK_IMG_INFO *img, FILE *f)
{
  (void) img;
  (void) f;
}

/*----------------------------------------------------------------------
 * Partitions
 */

static const char *
part_name (const struct part *part, char buf[64])
{
  if (part->number == 0)
    return "the disk";
  snprintf (buf, 64, "partition %u", part->number);
  return buf;
}

/* Which signature is at the start of these bytes?  -1: none. */
static int
find_signature (uint64_t offset, uint64_t size)
{
  char buf[16];
  size_t i;

  for (i = 0; i < sizeof signatures / sizeof signatures[0]; ++i)
    if (signatures[i].offset + sizeof buf <= size &&
        tsk_img_read (image, offset + signatures[i].offset, buf,
                      signatures[i].len) == (ssize_t) signatures[i].len &&
        memcmp (buf, signatures[i].magic, signatures[i].len) == 0)
      return i;
  return -1;
}

static bool
has_file (TSK_FS_INFO *fs, const char *path)
{
  TSK_INUM_T inode;

  return tsk_fs_path2inum (fs, path, &inode, NULL) == 0;
}

/* Features of ext4 of which libtsk knows nothing (ext4's documentation:
 * "super block").
 */
#define SB_INCOMPAT 0x460
#define SB_RO_COMPAT 0x464
#define INCOMPAT_INLINE_DATA 0x8000
#define RO_COMPAT_BIGALLOC 0x200

static uint32_t
read_le32 (uint64_t offset)
{
  uint8_t b[4] = { 0 };

  tsk_img_read (image, offset, (char *) b, sizeof b);
  return b[0] | b[1] << 8 | b[2] << 16 | (uint32_t) b[3] << 24;
}

/* May the file system be read?  With bigalloc its map of free space would be
 * taken for another one's.
 */
static bool
check_features (const struct part *part)
{
  char name[64];

  if (read_le32 (part->offset + SB_RO_COMPAT) & RO_COMPAT_BIGALLOC) {
    send_note ("%s: ext4 with bigalloc: its files cannot be seen",
               part_name (part, name));
    return false;
  }
  if (read_le32 (part->offset + SB_INCOMPAT) & INCOMPAT_INLINE_DATA)
    send_note ("%s: ext4 with inline_data: some bytes may be attributed to the "
               "wrong file",
               part_name (part, name));
  return true;
}

static void
identify (struct part *part)
{
  const int i = find_signature (part->offset, part->size);
  char name[64];

  if (i == -1) {
    part->pseudo = PSEUDO_UNKNOWN;
    send_note ("%s: no known file system", part_name (part, name));
    return;
  }
  part->pseudo = signatures[i].pseudo;
  if (part->pseudo != NULL) {
    if (signatures[i].name != NULL)
      send_note ("%s: %s%s: its files cannot be seen", part_name (part, name),
                 signatures[i].name,
                 strcmp (part->pseudo, PSEUDO_ENCRYPTED) == 0 ? ", encrypted"
                                                              : "");
    return;
  }
  if (signatures[i].type == TSK_FS_TYPE_EXT_DETECT && !check_features (part)) {
    part->pseudo = PSEUDO_UNKNOWN;
    return;
  }
  part->fs = tsk_fs_open_img (image, part->offset, signatures[i].type);
  if (part->fs == NULL) {
    part->pseudo = PSEUDO_UNKNOWN;
    send_note ("%s: looks like %s, but cannot be read: %.200s",
               part_name (part, name), signatures[i].name,
               tsk_error_get_errstr ());
    return;
  }
  part->is_root = has_file (part->fs, "/etc/fstab") ||
    has_file (part->fs, "/etc/os-release") ||
    has_file (part->fs, "/Windows/System32");
}

static void
add_part (uint64_t offset, uint64_t size, unsigned number)
{
  if (nr_parts == PARTS_MAX || offset >= (uint64_t) image->size || size == 0)
    return;
  if (size > image->size - offset)
    size = image->size - offset;
  parts[nr_parts] = (struct part) { .offset = offset,
                                    .size = size,
                                    .number = number };
  identify (&parts[nr_parts++]);
}

/* Partition tables are small; an extended partition is none, but contains
 * others.
 */
#define TABLE_MAX (UINT64_C (128) << 10)

static void
read_table (TSK_VS_INFO *vs)
{
  const TSK_VS_PART_INFO *p;
  unsigned logical = 5, number;
  uint64_t offset, size;

  for (p = vs->part_list; p; p = p->next) {
    if (p->start > (uint64_t) image->size / vs->block_size)
      continue;
    offset = vs->offset + p->start * vs->block_size;
    size = p->len > (uint64_t) image->size / vs->block_size
      ? (uint64_t) image->size
      : p->len * vs->block_size;
    if (p->flags & TSK_VS_PART_FLAG_ALLOC) {
      number = vs->vstype == TSK_VS_TYPE_DOS && p->table_num > 0
        ? logical++
        : (unsigned) p->slot_num + 1;
      add_part (offset, size, number);
    }
    else if ((p->flags & TSK_VS_PART_FLAG_META) && size <= TABLE_MAX)
      claim (PSEUDO_METADATA, offset, size);
  }
}

static void
find_parts (void)
{
  TSK_VS_INFO *vs;

  if (find_signature (0, image->size) == -1 &&
      (vs = tsk_vs_open (image, 0, TSK_VS_TYPE_DETECT)) != NULL) {
    read_table (vs);
    tsk_vs_close (vs);
  }
  else
    add_part (0, image->size, 0);
}

/*----------------------------------------------------------------------
 * Owners
 */

/* Paths begin with "pNUMBER:" unless it is clear whose they are: those of the
 * only file system, or of the only one with an operating system.
 */
static void
set_prefix (const struct part *part, char prefix[16])
{
  unsigned i, roots = 0, systems = 0;

  for (i = 0; i < nr_parts; ++i) {
    systems += parts[i].fs != NULL;
    roots += parts[i].is_root;
  }
  if (systems == 1 || (roots == 1 && part->is_root))
    *prefix = '\0';
  else
    snprintf (prefix, 16, "p%u:", part->number);
}

int
main (int argc, char **argv)
{
  char prefix[16];
  unsigned i;

  if (argc != 2 && argc != 3)
    give_up ("run by \"nbdedup drift --files\" only");
  read_ranges ();
  if (argc == 3 && strcmp (argv[2], FILES_MAKE_MAP) == 0)
    golden_map_record ();
  else if (argc == 3)
    golden_map_open ();
  image = tsk_img_open_external (&image_info, strtoull (argv[1], NULL, 10), 512,
                                 image_read, image_close, image_stat);
  if (image == NULL)
    give_up (tsk_error_get_errstr () ? tsk_error_get_errstr ()
                                     : "cannot open the image");
  find_parts ();
  for (i = 0; i < nr_parts; ++i) {
    if (parts[i].fs == NULL)
      claim (parts[i].pseudo, parts[i].offset, parts[i].size);
    else {
      set_prefix (&parts[i], prefix);
      own_file_system (parts[i].fs, parts[i].size, prefix);
    }
  }
  golden_map_end ();
  send_done ();
  return EXIT_SUCCESS;
}
