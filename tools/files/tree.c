/* SPDX-License-Identifier: BSD-3-Clause */

/* Files and directories of a file system: as the golden image's records have
 * them, or as libtsk finds them.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "golden-map.h"

#define NAME_MAX_LEN 4096

/* Of tree_file, while it is built. */
static struct map_file *built; /* owned */
static size_t built_cap;       /* in bytes */

/* Room for 'len' bytes in the buffer; it never shrinks. */
static void *
get_room (void *buf, size_t *cap, size_t len)
{
  while (*cap < len) {
    *cap = *cap ? *cap * 2 : 1024;
    buf = realloc (buf, *cap);
    if (buf == NULL)
      give_up ("out of memory");
  }
  return buf;
}

/*----------------------------------------------------------------------
 * Files
 */

static void
add_run (void *opaque, uint64_t addr, uint64_t nr, bool is_metadata)
{
  const uint64_t i = built->nr_runs;

  (void) opaque;
  built = get_room (built, &built_cap,
                    sizeof *built + (i + 1) * sizeof built->runs[0]);
  built->runs[i] = (struct map_run) { addr, nr, is_metadata };
  built->nr_runs++;
}

/* The runs of all attributes; false: other entries of the MFT have some. */
static bool
add_attributes (TSK_FS_FILE *file)
{
  const int nr = tsk_fs_file_attr_getsize (file);
  const TSK_FS_ATTR_RUN *run;
  const TSK_FS_ATTR *attr;
  bool is_whole = true;
  int i;

  for (i = 0; i < nr; ++i) {
    attr = tsk_fs_file_attr_get_idx (file, i);
    if (attr == NULL)
      continue;
    if (attr->type == TSK_FS_ATTR_TYPE_NTFS_ATTRLIST)
      is_whole = false;
    if (!(attr->flags & TSK_FS_ATTR_NONRES))
      continue;
    for (run = attr->nrd.run; run; run = run->next)
      if (!(run->flags &
            (TSK_FS_ATTR_RUN_FLAG_FILLER | TSK_FS_ATTR_RUN_FLAG_SPARSE)))
        add_run (NULL, run->addr, run->len,
                 attr->type == TSK_FS_ATTR_TYPE_UNIX_INDIR);
  }
  return is_whole;
}

static void
build_file (TSK_FS_FILE *file)
{
  const uint64_t inode = file->meta->addr;
  uint64_t at, len;
  bool is_whole = true;

  built = get_room (built, &built_cap, sizeof *built);
  *built = (struct map_file) {
    .record = { .kind = RECORD_FILE, .inode = inode },
    .size = file->meta->size > 0 ? file->meta->size : 0,
    .sequence = file->meta->seq,
    .is_dir = file->meta->type == TSK_FS_META_TYPE_DIR,
  };
  if (!each_extent (file, add_run, NULL))
    is_whole = add_attributes (file);
  if (is_whole && locate_inode (inode, &at, &len)) {
    built->at = at;
    built->at_len = len;
  }
  built->record.len = sizeof *built + built->nr_runs * sizeof built->runs[0];
}

const struct map_file *
tree_file (TSK_FS_INFO *fs, uint64_t inode)
{
  const struct map_file *known = golden_map_file (inode);
  TSK_FS_FILE *file;
  bool is_there;

  if (known != NULL)
    return known;
  file = tsk_fs_file_open_meta (fs, NULL, inode);
  if (file == NULL)
    return NULL;
  is_there = file->meta != NULL && file->meta->flags & TSK_FS_META_FLAG_ALLOC;
  if (is_there) {
    build_file (file);
    golden_map_add_file (built);
  }
  tsk_fs_file_close (file);
  return is_there ? built : NULL;
}

/*----------------------------------------------------------------------
 * Directories
 */

struct building {
  struct map_dir *dir; /* owned */
  size_t len, cap;     /* in bytes */
};

static bool
is_wanted (const TSK_FS_NAME *name)
{
  return name != NULL && name->name != NULL &&
    name->flags & TSK_FS_NAME_FLAG_ALLOC && !TSK_FS_ISDOT (name->name) &&
    name->type != TSK_FS_NAME_TYPE_VIRT_DIR;
}

static void
add_name (struct building *b, const TSK_FS_NAME *name)
{
  const size_t len = strnlen (name->name, NAME_MAX_LEN);
  const size_t size = map_name_size (len);
  struct map_name *new;

  b->dir = get_room (b->dir, &b->cap, b->len + size);
  new = (struct map_name *) ((char *) b->dir + b->len);
  memset (new, 0, size);
  new->inode = name->meta_addr;
  new->sequence = name->meta_seq;
  new->is_virtual = name->type == TSK_FS_NAME_TYPE_VIRT;
  new->len = len;
  memcpy (new->text, name->name, len);
  b->len += size;
  b->dir->nr_names++;
}

static struct map_dir *
build_dir (TSK_FS_DIR *dir, uint64_t inode)
{
  const size_t nr = tsk_fs_dir_getsize (dir);
  struct building b = { .len = sizeof *b.dir };
  const TSK_FS_NAME *name;
  size_t i;

  b.dir = get_room (NULL, &b.cap, b.len);
  *b.dir = (struct map_dir) { { .kind = RECORD_DIR, .inode = inode }, 0 };
  for (i = 0; i < nr; ++i) {
    name = tsk_fs_dir_get_name (dir, i);
    if (is_wanted (name))
      add_name (&b, name);
  }
  b.dir->record.len = b.len;
  return b.dir;
}

const struct map_dir *
tree_dir (TSK_FS_INFO *fs, uint64_t inode, struct map_dir **owned)
{
  const struct map_dir *known = golden_map_dir (inode);
  TSK_FS_DIR *dir;

  *owned = NULL;
  if (known != NULL)
    return known;
  dir = tsk_fs_dir_open_meta (fs, inode);
  if (dir == NULL)
    return NULL;
  *owned = build_dir (dir, inode);
  tsk_fs_dir_close (dir);
  golden_map_add_dir (*owned);
  return *owned;
}
