/* SPDX-License-Identifier: BSD-3-Clause */

/* Who owns what in one file system: its journal, its files and, of the rest,
 * free space and metadata.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"

/* dpkg's list of a package's files; larger ones are not read. */
#define LIST_DIR "/var/lib/dpkg/info/"
#define LIST_MAX (4 << 20)

struct owning {
  TSK_FS_INFO *fs;
  uint64_t size;                /* of its partition */
  const char *prefix;
  char path[8192];
};

/* Claim a run of the file system's blocks. */
static void
claim_blocks (struct owning *o, const char *owner, uint64_t addr, uint64_t nr)
{
  const uint64_t block = o->fs->block_size;
  const uint64_t blocks = o->size / block;

  if (addr >= blocks || nr == 0)
    return;
  if (nr > blocks - addr)
    nr = blocks - addr;
  claim (owner, o->fs->offset + addr * block, nr * block);
}

struct claiming {
  struct owning *o;
  const char *owner;
};

static void
claim_extent (void *opaque, uint64_t addr, uint64_t nr)
{
  struct claiming *c = opaque;

  claim_blocks (c->o, c->owner, addr, nr);
}

static void
claim_file (struct owning *o, TSK_FS_FILE *file, const char *owner)
{
  const int nr = tsk_fs_file_attr_getsize (file);
  const TSK_FS_ATTR_RUN *run;
  const TSK_FS_ATTR *attr;
  int i;

  if (each_extent (file, claim_extent, &(struct claiming) { o, owner }))
    return;
  for (i = 0; i < nr; ++i) {
    attr = tsk_fs_file_attr_get_idx (file, i);
    if (attr == NULL || !(attr->flags & TSK_FS_ATTR_NONRES))
      continue;
    for (run = attr->nrd.run; run; run = run->next)
      if (!(run->flags & (TSK_FS_ATTR_RUN_FLAG_FILLER |
                          TSK_FS_ATTR_RUN_FLAG_SPARSE)))
        claim_blocks (o, owner, run->addr, run->len);
  }
}

static void
claim_inode (struct owning *o, TSK_INUM_T inode, const char *owner)
{
  TSK_FS_FILE *file = tsk_fs_file_open_meta (o->fs, NULL, inode);

  if (file != NULL)
    claim_file (o, file, owner);
  tsk_fs_file_close (file);
}

/*----------------------------------------------------------------------
 * Files
 */

static bool
is_list (const char *path)
{
  const size_t len = strlen (path);

  return strncmp (path, LIST_DIR, strlen (LIST_DIR)) == 0 && len > 5 &&
    strcmp (path + len - 5, ".list") == 0;
}

/* "/var/lib/dpkg/info/libc6:amd64.list" -> "libc6" */
static void
send_package (const char *path)
{
  const char *name = path + strlen (LIST_DIR);

  send_text (FILES_PACKAGE, name, strcspn (name, ":") < strlen (name)
             ? strcspn (name, ":") : strlen (name) - 5);
}

static void
send_list (TSK_FS_FILE *file, const char *path)
{
  static char buf[32 << 10];
  TSK_OFF_T done = 0;
  ssize_t n;

  if (file->meta->size <= 0 || file->meta->size > LIST_MAX)
    return;
  send_package (path);
  while (done < file->meta->size) {
    n = tsk_fs_file_read (file, done, buf, sizeof buf,
                          TSK_FS_FILE_READ_FLAG_NONE);
    if (n <= 0)
      return;
    send_text (FILES_FILES, buf, n);
    done += n;
  }
}

/* Files of the file system itself: NTFS has them in its root directory. */
static const char *
owner_of (const struct owning *o, const TSK_FS_FILE *file, const char *path)
{
  if (file->name->type == TSK_FS_NAME_TYPE_VIRT ||
      file->meta->type == TSK_FS_META_TYPE_DIR)
    return PSEUDO_METADATA;
  if (!TSK_FS_TYPE_ISNTFS (o->fs->ftype) || file->meta->addr >= 64)
    return strncmp (path, "/$Extend/$UsnJrnl", 17) == 0 &&
      TSK_FS_TYPE_ISNTFS (o->fs->ftype) ? PSEUDO_JOURNAL : NULL;
  if (strcmp (path, "/$LogFile") == 0)
    return PSEUDO_JOURNAL;
  return path[1] == '$' ? PSEUDO_METADATA : NULL;
}

/* A damaged name can contain a slash, which would be another path. */
static void
hide_slashes (char *name)
{
  while ((name = strchr (name, '/')) != NULL)
    *name = '?';
}

static TSK_WALK_RET_ENUM
on_name (TSK_FS_FILE *file, const char *dir, void *opaque)
{
  struct owning *o = opaque;
  const char *owner, *path;
  int n;

  if (file->name == NULL || file->meta == NULL ||
      TSK_FS_ISDOT (file->name->name) ||
      !(file->meta->flags & TSK_FS_META_FLAG_ALLOC))
    return TSK_WALK_CONT;
  hide_slashes (file->name->name);
  n = snprintf (o->path, sizeof o->path, "%s/%s%s", o->prefix, dir,
                file->name->name);
  if (n >= (int) sizeof o->path)
    strcpy (o->path + sizeof o->path - 4, "...");
  path = o->path + strlen (o->prefix);
  owner = owner_of (o, file, path);
  claim_file (o, file, owner != NULL ? owner : o->path);
  if (*o->prefix == '\0' && is_list (path))
    send_list (file, path);
  return TSK_WALK_CONT;
}

/*----------------------------------------------------------------------
 * The rest
 */

static bool
is_free (struct owning *o, TSK_DADDR_T addr)
{
  return addr >= o->fs->first_block && addr <= o->fs->last_block_act &&
    (o->fs->block_getflags (o->fs, addr) & TSK_FS_BLOCK_FLAG_UNALLOC);
}

static void
claim_rest (void *opaque, uint64_t offset, uint64_t len)
{
  struct owning *o = opaque;
  const uint64_t block = o->fs->block_size, start = o->fs->offset;
  uint64_t addr = (offset - start) / block, end;
  const uint64_t last = (offset - start + len - 1) / block;
  bool is;

  for (; addr <= last; addr = end) {
    is = is_free (o, addr);
    for (end = addr + 1; end <= last && is_free (o, end) == is; ++end)
      ;
    claim_blocks (o, is ? PSEUDO_FREE : PSEUDO_METADATA, addr, end - addr);
  }
}

void
own_file_system (TSK_FS_INFO *fs, uint64_t size, const char *prefix)
{
  static struct owning o;
  const uint64_t own = (fs->last_block + 1) * fs->block_size;

  o.fs = fs;
  o.size = own < size ? own : size;
  o.prefix = prefix;
  if (TSK_FS_TYPE_ISEXT (fs->ftype) && fs->journ_inum != 0)
    claim_inode (&o, fs->journ_inum, PSEUDO_JOURNAL);
  tsk_error_reset ();
  if (tsk_fs_dir_walk (fs, fs->root_inum, TSK_FS_DIR_WALK_FLAG_ALLOC |
                       TSK_FS_DIR_WALK_FLAG_RECURSE |
                       TSK_FS_DIR_WALK_FLAG_NOORPHAN, on_name, &o))
    send_note ("%s%scannot read all directories: %.200s", prefix,
               *prefix ? " " : "", tsk_error_get_errstr ());
  each_unclaimed (fs->offset, o.size, claim_rest, &o);
}
