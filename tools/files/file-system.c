/* SPDX-License-Identifier: BSD-3-Clause */

/* Who owns what in one file system: its journal, its files and, of the rest,
 * free space and metadata.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hashtable.h"
#include "base/mix.h"
#include "files.h"
#include "golden-map.h"

/* dpkg's list of a package's files; larger ones are not read. */
#define LIST_DIR "/var/lib/dpkg/info/"
#define LIST_MAX (4 << 20)

/* Deeper directories than Linux reaches by one path. */
#define DEPTH_MAX 2048

struct owning {
  TSK_FS_INFO *fs;
  uint64_t size; /* of its partition */
  const char *prefix;
  char path[8192];
  size_t path_len;
  struct hashtable dirs; /* of struct seen_dir */
  bool is_incomplete;    /* a directory cannot be read */
};

struct seen_dir {
  struct hashtable_link link;
  uint64_t inode;
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

static void
claim_file (struct owning *o, const struct map_file *file, const char *owner)
{
  uint64_t i;

  for (i = 0; i < file->nr_runs; ++i)
    claim_blocks (o, owner, file->runs[i].addr, file->runs[i].nr);
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

  send_text (FILES_PACKAGE, name,
             strcspn (name, ":") < strlen (name) ? strcspn (name, ":")
                                                 : strlen (name) - 5);
}

static void
send_content (TSK_FS_FILE *file)
{
  static char buf[32 << 10];
  TSK_OFF_T done = 0;
  ssize_t n;

  while (done < file->meta->size) {
    n = tsk_fs_file_read (file, done, buf, sizeof buf,
                          TSK_FS_FILE_READ_FLAG_NONE);
    if (n <= 0)
      return;
    send_text (FILES_FILES, buf, n);
    done += n;
  }
}

static void
send_list (struct owning *o, const char *path, uint64_t inode, uint64_t size)
{
  static uint64_t nr_lists;
  TSK_FS_FILE *file;
  uint64_t number;

  if (size == 0 || size > LIST_MAX)
    return;
  if (golden_map_list (inode, &number)) {
    send_same_package (number);
    return;
  }
  file = tsk_fs_file_open_meta (o->fs, NULL, inode);
  if (file == NULL)
    return;
  send_package (path);
  send_content (file);
  tsk_fs_file_close (file);
  golden_map_add_list (inode, nr_lists++);
}

/* Files of the file system itself: NTFS has them in its root directory. */
static const char *
owner_of (const struct owning *o, const struct map_name *name, bool is_dir,
          const char *path)
{
  if (name->is_virtual || is_dir)
    return PSEUDO_METADATA;
  if (!TSK_FS_TYPE_ISNTFS (o->fs->ftype) || name->inode >= 64)
    return strncmp (path, "/$Extend/$UsnJrnl", 17) == 0 &&
        TSK_FS_TYPE_ISNTFS (o->fs->ftype)
      ? PSEUDO_JOURNAL
      : NULL;
  if (strcmp (path, "/$LogFile") == 0)
    return PSEUDO_JOURNAL;
  return path[1] == '$' ? PSEUDO_METADATA : NULL;
}

/* Append a name to the path.  In a damaged one a slash would be another path.
 */
static void
append_name (struct owning *o, const char *name)
{
  const size_t room = sizeof o->path - o->path_len;
  const int n = snprintf (o->path + o->path_len, room, "/%s", name);
  char *p = o->path + o->path_len + (room > 1);

  while ((p = strchr (p, '/')) != NULL)
    *p = '?';
  if (n >= (int) room)
    strcpy (o->path + sizeof o->path - 4, "...");
  o->path_len = strlen (o->path);
}

/* Returns whether it is a directory. */
static bool
own_name (struct owning *o, const struct map_name *name)
{
  const struct map_file *file = tree_file (o->fs, name->inode);
  const char *path = o->path + strlen (o->prefix), *owner;
  bool is_dir;

  /* An entry of NTFS's MFT may be another file's by now. */
  if (file == NULL ||
      (TSK_FS_TYPE_ISNTFS (o->fs->ftype) && file->sequence != name->sequence))
    return false;
  is_dir = file->is_dir;
  owner = owner_of (o, name, is_dir, path);
  claim_file (o, file, owner != NULL ? owner : o->path);
  if (*o->prefix == '\0' && is_list (path))
    send_list (o, path, name->inode, file->size);
  return is_dir;
}

/* In a damaged file system a directory can be in several, or in itself. */
static bool
is_new_dir (struct owning *o, uint64_t inode)
{
  const uint64_t hash = mix (inode);
  struct hashtable_link *l;
  struct seen_dir *new;

  for (l = hashtable_chain (&o->dirs, hash); l; l = l->next)
    if (hashtable_entry (l, struct seen_dir, link)->inode == inode)
      return false;
  new = malloc (sizeof *new);
  if (new == NULL)
    give_up ("out of memory");
  new->inode = inode;
  hashtable_insert (&o->dirs, &new->link, hash);
  return true;
}

static void
free_dir (void *opaque, struct hashtable_link *l)
{
  (void) opaque;
  free (hashtable_entry (l, struct seen_dir, link));
}

static void own_dir (struct owning *o, uint64_t inode, unsigned depth);

static void
own_names (struct owning *o, const struct map_dir *dir, unsigned depth)
{
  const struct map_name *name = map_first_name (dir);
  const size_t len = o->path_len;
  uint64_t i;

  for (i = 0; i < dir->nr_names; ++i, name = map_next_name (name)) {
    append_name (o, name->text);
    if (own_name (o, name) && is_new_dir (o, name->inode))
      own_dir (o, name->inode, depth + 1);
    o->path[len] = '\0';
    o->path_len = len;
  }
}

static void
own_dir (struct owning *o, uint64_t inode, unsigned depth)
{
  struct map_dir *owned = NULL;
  const struct map_dir *dir = NULL;

  if (depth < DEPTH_MAX)
    dir = tree_dir (o->fs, inode, &owned);
  if (dir == NULL)
    o->is_incomplete = true;
  else
    own_names (o, dir, depth);
  free (owned);
}

static void
own_files (struct owning *o)
{
  const uint64_t root = o->fs->root_inum;

  if (hashtable_init (&o->dirs) == -1)
    give_up ("out of memory");
  o->path_len = snprintf (o->path, sizeof o->path, "%s", o->prefix);
  o->is_incomplete = false;
  tsk_error_reset ();
  /* Its names can be the golden image's only if its inode is recorded. */
  tree_file (o->fs, root);
  is_new_dir (o, root);
  own_dir (o, root, 0);
  hashtable_visit (&o->dirs, free_dir, NULL);
  hashtable_destroy (&o->dirs);
  if (o->is_incomplete)
    send_note ("%s%scannot read all directories: %.200s", o->prefix,
               *o->prefix ? " " : "",
               tsk_error_get_errstr () ? tsk_error_get_errstr ()
                                       : "they are nested too deeply");
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
  const struct map_file *journal = NULL;

  o.fs = fs;
  o.size = own < size ? own : size;
  o.prefix = prefix;
  golden_map_begin (fs);
  if (TSK_FS_TYPE_ISEXT (fs->ftype) && fs->journ_inum != 0)
    journal = tree_file (fs, fs->journ_inum);
  if (journal != NULL)
    claim_file (&o, journal, PSEUDO_JOURNAL);
  own_files (&o);
  each_unclaimed (fs->offset, o.size, claim_rest, &o);
}
