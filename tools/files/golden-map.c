/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hashtable.h"
#include "base/mix.h"
#include "files.h"
#include "golden-map.h"

struct entry {
  struct hashtable_link link;
  const struct map_record *record;
  uint64_t file_system; /* its first byte */
};

static bool is_recording;
static struct hashtable table; /* of struct entry */
static const struct byte_range *changed;
static size_t nr_changed;

/* The present file system.  'is_known': the golden image had one of this kind
 * here.
 */
static uint64_t start; /* its first byte */
static uint32_t block_size;
static bool is_known;

/*----------------------------------------------------------------------
 * Reading the records.  They come from a helper that has parsed what a guest
 * wrote, so nothing in them is trusted.
 */

static bool
is_valid_dir (const struct map_record *r)
{
  const struct map_dir *dir = (const struct map_dir *) r;
  const char *p = (const char *) (dir + 1), *end = (const char *) r + r->len;
  const struct map_name *name;
  uint64_t i;

  if (r->len < sizeof *dir)
    return false;
  for (i = 0; i < dir->nr_names; ++i) {
    name = (const struct map_name *) p;
    if ((size_t) (end - p) < sizeof *name ||
        (size_t) (end - p) < map_name_size (name->len) ||
        name->text[name->len] != '\0')
      return false;
    p += map_name_size (name->len);
  }
  return true;
}

static bool
is_valid_file (const struct map_record *r)
{
  const struct map_file *file = (const struct map_file *) r;

  return r->len >= sizeof *file &&
    (r->len - sizeof *file) / sizeof file->runs[0] >= file->nr_runs;
}

static bool
is_valid (const struct map_record *r, size_t left)
{
  if (left < sizeof *r || r->len > left || r->len % 8 != 0 ||
      r->len < sizeof *r)
    return false;
  switch (r->kind) {
  case RECORD_FILE_SYSTEM:
    return r->len >= sizeof (struct map_file_system);
  case RECORD_FILE:
    return is_valid_file (r);
  case RECORD_DIR:
    return is_valid_dir (r);
  case RECORD_LIST:
    return r->len >= sizeof (struct map_list);
  default:
    return false;
  }
}

static uint64_t
hash_of (uint64_t file_system, uint32_t kind, uint64_t inode)
{
  return mix_two (mix_two (file_system, kind), inode);
}

static const struct map_record *
find (uint32_t kind, uint64_t inode)
{
  const uint64_t hash = hash_of (start, kind, inode);
  const struct hashtable_link *l;
  const struct entry *e;

  if (table.nr_entries == 0)
    return NULL;
  for (l = hashtable_chain (&table, hash); l; l = l->next) {
    e = hashtable_entry (l, const struct entry, link);
    if (e->file_system == start && e->record->kind == kind &&
        e->record->inode == inode)
      return e->record;
  }
  return NULL;
}

/* The number of valid records; the others are left out. */
static size_t
count_records (const char *p, size_t len)
{
  const char *const end = p + len;
  size_t nr = 0;

  while (is_valid ((const struct map_record *) p, end - p)) {
    nr++;
    p += ((const struct map_record *) p)->len;
  }
  return nr;
}

static void
index_records (const char *p, size_t len)
{
  const size_t nr = count_records (p, len);
  struct entry *entries = calloc (nr + 1, sizeof *entries);
  const struct map_record *r;
  uint64_t file_system = 0;
  size_t i;

  if (entries == NULL || hashtable_init (&table) == -1)
    give_up ("out of memory");
  for (i = 0; i < nr; ++i, p += r->len) {
    r = (const struct map_record *) p;
    if (r->kind == RECORD_FILE_SYSTEM)
      file_system = r->inode;
    entries[i].record = r;
    entries[i].file_system = file_system;
    hashtable_insert (&table, &entries[i].link,
                      hash_of (file_system, r->kind, r->inode));
  }
}

/* All of a file; NULL: it is empty. */
static const void *
map_file_of (const char *name, size_t *len)
{
  const int fd = open (name, O_RDONLY);
  struct stat st;
  void *p;

  if (fd == -1 || fstat (fd, &st) == -1)
    give_up ("cannot read what is known of the golden image");
  *len = st.st_size;
  p = *len ? mmap (NULL, *len, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
  if (p == MAP_FAILED)
    give_up ("out of memory");
  close (fd);
  return p;
}

void
golden_map_open (void)
{
  size_t len;
  const char *p = map_file_of (FILES_GOLDEN, &len);

  if (len > 0)
    index_records (p, len);
  changed = map_file_of (FILES_CHANGED, &len);
  nr_changed = len / sizeof *changed;
}

/*----------------------------------------------------------------------
 * Is it still the same?
 */

static bool
has_changed (uint64_t offset, uint64_t len)
{
  size_t lo = 0, hi = nr_changed, mid;

  while (lo < hi) {
    mid = (lo + hi) / 2;
    if (changed[mid].offset + changed[mid].len <= offset)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo < nr_changed && changed[lo].offset < offset + len;
}

/* Overflow is no harm: a wrong answer is one about the same hostile image. */
static bool
run_has_changed (const struct map_run *run)
{
  return has_changed (start + run->addr * block_size, run->nr * block_size);
}

const struct map_file *
golden_map_file (uint64_t inode)
{
  const struct map_file *file = (const struct map_file *) find (RECORD_FILE,
                                                                inode);
  uint64_t at, len, i;

  if (!is_known || file == NULL || !locate_inode (inode, &at, &len) ||
      at != file->at || len != file->at_len || has_changed (at, len))
    return NULL;
  for (i = 0; i < file->nr_runs; ++i)
    if (file->runs[i].is_metadata && run_has_changed (&file->runs[i]))
      return NULL;
  return file;
}

static bool
has_same_content (uint64_t inode)
{
  const struct map_file *file = golden_map_file (inode);
  uint64_t i;

  if (file == NULL)
    return false;
  for (i = 0; i < file->nr_runs; ++i)
    if (run_has_changed (&file->runs[i]))
      return false;
  return true;
}

const struct map_dir *
golden_map_dir (uint64_t inode)
{
  return !is_known || !has_same_content (inode)
    ? NULL
    : (const struct map_dir *) find (RECORD_DIR, inode);
}

bool
golden_map_list (uint64_t inode, uint64_t *number)
{
  const struct map_list *list = (const struct map_list *) find (RECORD_LIST,
                                                                inode);

  if (!is_known || list == NULL || !has_same_content (inode))
    return false;
  *number = list->number;
  return true;
}

/*----------------------------------------------------------------------
 * Recording
 */

void
golden_map_record (void)
{
  is_recording = true;
}

/* Records wait here, because a message for each would cost more than they. */
static char waiting[FILES_TEXT_MAX];
static size_t nr_waiting;

static void
send_waiting (void)
{
  if (nr_waiting > 0)
    send_text (FILES_MAP, waiting, nr_waiting);
  nr_waiting = 0;
}

static void
add (const struct map_record *record)
{
  const char *p = (const char *) record;
  size_t left = record->len, n;

  for (; left > 0; left -= n, p += n) {
    if (nr_waiting == sizeof waiting)
      send_waiting ();
    n = sizeof waiting - nr_waiting < left ? sizeof waiting - nr_waiting : left;
    memcpy (waiting + nr_waiting, p, n);
    nr_waiting += n;
  }
}

void
golden_map_end (void)
{
  send_waiting ();
}

void
golden_map_add_file (const struct map_file *file)
{
  if (is_recording && file->at_len != 0)
    add (&file->record);
}

void
golden_map_add_dir (const struct map_dir *dir)
{
  if (is_recording)
    add (&dir->record);
}

void
golden_map_add_list (uint64_t inode, uint64_t number)
{
  const struct map_list list = {
    { RECORD_LIST, sizeof list, inode },
    number,
  };

  if (is_recording)
    add (&list.record);
}

void
golden_map_begin (TSK_FS_INFO *fs)
{
  const struct map_file_system new = {
    { RECORD_FILE_SYSTEM, sizeof new, fs->offset },
    fs->ftype,
    fs->block_size,
    fs->last_block,
    fs->last_inum,
  };
  const struct map_file_system *old;

  locate_begin (fs);
  start = fs->offset;
  block_size = fs->block_size;
  old = (const struct map_file_system *) find (RECORD_FILE_SYSTEM, start);
  /* It may have grown, but what libtsk has found must still be valid. */
  is_known = old != NULL && old->type == new.type &&
    old->block_size == new.block_size && old->last_block <= new.last_block &&
    old->last_inode <= new.last_inode;
  if (is_recording)
    add (&new.record);
}
