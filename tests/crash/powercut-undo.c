/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "crash/powercut-undo.h"

#define SECTOR 512
#define MAX_FILES 64

/* How much of the unsynced changes survives. */
enum mode {
  NOTHING,
  SOME,
  EVERYTHING,   /* EVERYTHING: as after a kill */
  NOTHING_EVER, /* not even what was synced */
};

/* The state of one file at the end of the log. */
struct file {
  uint64_t ino;
  int fd;           /* -1: never found */
  uint64_t durable; /* the last durable entry */
  uint64_t durable_size;
  bool sized;
};

/* A name, and the file that has it (0: none). */
struct name {
  char path[POWERCUT_PATH_MAX];
  uint64_t ino;
};

struct undo {
  const uint8_t *log;
  uint64_t size;
  size_t *entries, nr_entries; /* their offsets */
  uint64_t last;               /* seq */
  const char *dir;
  char kept[PATH_MAX]; /* the directory of files without a name */
  enum mode mode;
  uint64_t salt;
  struct rng *rng;
  struct file files[MAX_FILES];
  unsigned nr_files;
  struct name names[MAX_FILES];
  unsigned nr_names;
};

static const struct powercut_entry *
entry_at (const struct undo *u, size_t i)
{
  return (const void *) (u->log + u->entries[i]);
}

static bool
is_name_entry (const struct powercut_entry *e)
{
  return e->kind == POWERCUT_CREATE || e->kind == POWERCUT_UNLINK ||
    e->kind == POWERCUT_RENAME;
}

static void
find_entries (struct undo *u)
{
  const struct powercut_entry *e;
  size_t p = sizeof (struct powercut_header), max = 0;

  while (p < u->size) {
    e = (const void *) (u->log + p);
    if (u->size - p < sizeof *e || e->magic != POWERCUT_MAGIC ||
        u->size - p - sizeof *e < e->len)
      die ("powercut: the log is damaged at %zu", p);
    if (u->nr_entries == max) {
      max = max * 2 + 1024;
      u->entries = realloc (u->entries, max * sizeof u->entries[0]);
      if (u->entries == NULL)
        die ("out of memory");
    }
    u->entries[u->nr_entries++] = p;
    u->last = e->seq;
    p += sizeof *e + ((e->len + 7) & ~UINT64_C (7));
  }
}

/*----------------------------------------------------------------------
 * Content
 */

static int
open_in (const char *dir, uint64_t ino)
{
  DIR *d = opendir (dir);
  struct dirent *e;
  int fd = -1;

  if (d == NULL)
    return -1;
  while (fd == -1 && (e = readdir (d)) != NULL)
    if (e->d_ino == ino && e->d_type == DT_REG) {
      fd = openat (dirfd (d), e->d_name, O_RDWR | O_CLOEXEC);
      if (fd == -1)
        die ("powercut: %s/%s: %s", dir, e->d_name, strerror (errno));
    }
  closedir (d);
  return fd;
}

static struct file *
find_file (struct undo *u, uint64_t ino)
{
  struct file *f;
  unsigned i;

  for (i = 0; i < u->nr_files; ++i)
    if (u->files[i].ino == ino)
      return &u->files[i];
  if (i == MAX_FILES)
    die ("powercut: too many files");
  f = &u->files[i];
  *f = (struct file) { .ino = ino, .fd = open_in (u->dir, ino) };
  if (f->fd == -1)
    f->fd = open_in (u->kept, ino);
  u->nr_files++;
  return f;
}

static void
put_back (const struct file *f, const uint8_t *old, uint64_t offset,
          uint64_t len)
{
  if (pwrite (f->fd, old, len, offset) != (ssize_t) len)
    die ("powercut: writing back: %s", strerror (errno));
}

/* The moment up to which the disk has the writes to a sector.  During one undo
 * each call returns the same moment.
 */
static uint64_t
sector_moment (const struct undo *u, const struct file *f, uint64_t sector)
{
  struct rng rng = rng_make (u->salt ^ f->durable, sector);

  switch (rng_below (&rng, 3)) {
  case 0:
    return f->durable;
  case 1:
    return u->last;
  default:
    return rng_between (&rng, f->durable, u->last);
  }
}

static void
undo_write (const struct undo *u, const struct file *f,
            const struct powercut_entry *e, enum mode mode)
{
  const uint8_t *old = (const uint8_t *) (e + 1);
  uint64_t offset = e->offset, end = e->offset + e->len, n;

  for (; offset < end; offset += n, old += n) {
    n = SECTOR - offset % SECTOR;
    if (n > end - offset)
      n = end - offset;
    if (mode == NOTHING ||
        (mode == SOME && e->seq > sector_moment (u, f, offset / SECTOR)))
      put_back (f, old, offset, n);
  }
}

static void
find_durable (struct undo *u)
{
  const struct powercut_entry *e;
  struct file *f;
  size_t i;

  for (i = 0; i < u->nr_entries; ++i) {
    e = entry_at (u, i);
    if (e->kind == POWERCUT_SYNC_DIR || strcmp (e->path, u->dir) == 0)
      continue;
    f = find_file (u, e->ino);
    if (e->kind == POWERCUT_SYNC) {
      if (u->mode != NOTHING_EVER && e->offset >= f->durable) {
        f->durable = e->offset;
        f->durable_size = e->size;
        f->sized = true;
      }
    }
    else if (!f->sized && e->kind != POWERCUT_UNLINK &&
             e->kind != POWERCUT_RENAME) {
      f->durable_size = e->size; /* 0 if this entry makes it */
      f->sized = true;
    }
  }
}

static void
undo_content (struct undo *u)
{
  const struct powercut_entry *e;
  const struct file *f;
  enum mode mode = u->mode == NOTHING_EVER ? NOTHING : u->mode, truncations;
  struct stat st;
  size_t i;

  truncations = mode != SOME ? mode : u->salt & 2 ? EVERYTHING : NOTHING;
  for (i = u->nr_entries; i-- > 0;) {
    e = entry_at (u, i);
    if (e->kind != POWERCUT_WRITE && e->kind != POWERCUT_TRUNCATE)
      continue;
    f = find_file (u, e->ino);
    if (f->fd == -1 || e->seq <= f->durable)
      continue;
    undo_write (u, f, e, e->kind == POWERCUT_TRUNCATE ? truncations : mode);
  }
  for (i = 0; i < u->nr_files; ++i) {
    f = &u->files[i];
    if (f->fd == -1 || !f->sized)
      continue;
    if (mode == NOTHING || (mode == SOME && rng_percent (u->rng, 50)))
      if (fstat (f->fd, &st) == 0 && (uint64_t) st.st_size > f->durable_size &&
          ftruncate (f->fd, f->durable_size) == -1)
        die ("powercut: ftruncate: %s", strerror (errno));
  }
}

/*----------------------------------------------------------------------
 * Names
 */

/* Find a name, or add it.  'first': the file that has a name that is added. */
static struct name *
find_name (struct undo *u, const char *path, uint64_t first)
{
  unsigned i;

  for (i = 0; i < u->nr_names; ++i)
    if (strcmp (u->names[i].path, path) == 0)
      return &u->names[i];
  if (i == MAX_FILES)
    die ("powercut: too many names");
  memcpy (u->names[i].path, path, POWERCUT_PATH_MAX);
  u->names[i].ino = first;
  u->nr_names++;
  return &u->names[i];
}

/* Find each name that changed, in its state at the beginning of the log. */
static void
find_names (struct undo *u)
{
  const struct powercut_entry *e;
  size_t i;

  for (i = 0; i < u->nr_entries; ++i) {
    e = entry_at (u, i);
    if (e->kind == POWERCUT_CREATE)
      find_name (u, e->path, 0);
    if (e->kind == POWERCUT_UNLINK || e->kind == POWERCUT_RENAME)
      find_name (u, e->path, e->ino);
    if (e->kind == POWERCUT_RENAME)
      find_name (u, (const char *) (e + 1), e->replaced);
  }
}

static void
redo_name (struct undo *u, const struct powercut_entry *e)
{
  struct name *n = find_name (u, e->path, 0);

  if (e->kind == POWERCUT_CREATE)
    n->ino = e->ino;
  else if (n->ino == e->ino) /* not if another file has it now */
    n->ino = 0;
  if (e->kind == POWERCUT_RENAME)
    find_name (u, (const char *) (e + 1), 0)->ino = e->ino;
}

static bool
is_in (const char *path, const char *dir)
{
  size_t len = strlen (dir);

  return strncmp (path, dir, len) == 0 && path[len] == '/' &&
    strchr (path + len + 1, '/') == NULL;
}

/* Apply the changes of names that are on the disk: all durable ones, and some
 * others.
 */
static void
redo_names (struct undo *u)
{
  const struct powercut_entry *e, *sync;
  bool each = rng_percent (u->rng, 50);
  uint64_t moment = rng_between (u->rng, 0, u->last);
  bool kept;
  size_t i, j;

  for (i = 0; i < u->nr_entries; ++i) {
    e = entry_at (u, i);
    if (!is_name_entry (e))
      continue;
    kept = u->mode == EVERYTHING ||
      (u->mode == SOME && (each ? rng_percent (u->rng, 50) : e->seq <= moment));
    for (j = i + 1; j < u->nr_entries && !kept; ++j) {
      sync = entry_at (u, j);
      kept = sync->kind == POWERCUT_SYNC_DIR && u->mode != NOTHING_EVER &&
        sync->offset >= e->seq && is_in (e->path, sync->path);
    }
    if (kept)
      redo_name (u, e);
  }
}

static void
kept_path (const struct undo *u, uint64_t ino, char path[PATH_MAX])
{
  if (snprintf (path, PATH_MAX, "%s/%" PRIu64, u->kept, ino) >= PATH_MAX)
    die ("powercut: %s: too long", u->kept);
}

static void
empty_directory (const char *dir)
{
  DIR *d = opendir (dir);
  struct dirent *e;

  if (d == NULL)
    return;
  while ((e = readdir (d)) != NULL)
    if (strcmp (e->d_name, ".") != 0 && strcmp (e->d_name, "..") != 0 &&
        unlinkat (dirfd (d), e->d_name, 0) == -1)
      die ("powercut: %s/%s: %s", dir, e->d_name, strerror (errno));
  closedir (d);
}

/* Make the directory what 'names' says. */
static void
put_names (struct undo *u)
{
  char kept[PATH_MAX];
  const struct name *n;
  struct stat st;
  unsigned i;

  for (i = 0; i < u->nr_names; ++i) {
    n = &u->names[i];
    if (strcmp (n->path, u->dir) == 0 && n->ino == 0) {
      /* The directory itself was new. */
      empty_directory (u->dir);
      if (rmdir (u->dir) == -1 && errno != ENOENT)
        die ("powercut: %s: %s", u->dir, strerror (errno));
      return;
    }
    if (lstat (n->path, &st) == 0) {
      kept_path (u, st.st_ino, kept);
      if (S_ISREG (st.st_mode) && link (n->path, kept) == -1 && errno != EEXIST)
        die ("powercut: %s: %s", kept, strerror (errno));
    }
  }
  for (i = 0; i < u->nr_names; ++i) {
    n = &u->names[i];
    if (strcmp (n->path, u->dir) == 0 ||
        (lstat (n->path, &st) == 0 ? st.st_ino : 0) == n->ino)
      continue;
    if (unlink (n->path) == -1 && errno != ENOENT)
      die ("powercut: %s: %s", n->path, strerror (errno));
    kept_path (u, n->ino, kept);
    if (n->ino && link (kept, n->path) == -1)
      die ("powercut: %s: %s", n->path, strerror (errno));
  }
}

static void
undo (const char *path, const char *dir, enum mode mode, struct rng *rng)
{
  struct undo u = {
    .dir = dir,
    .mode = mode,
    .rng = rng,
    .salt = rng_next (rng),
  };
  const struct powercut_header *header;
  struct stat st;
  unsigned i;
  int fd;

  fd = open (path, O_RDONLY | O_CLOEXEC);
  if (fd == -1 && errno == ENOENT)
    return;
  if (fd == -1 || fstat (fd, &st) == -1)
    die ("powercut: %s: %s", path, strerror (errno));
  if ((size_t) st.st_size < sizeof *header) {
    close (fd);
    return;
  }
  u.log = mmap (NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (u.log == MAP_FAILED)
    die ("powercut: mmap: %s", strerror (errno));
  close (fd);
  header = (const void *) u.log;
  u.size = header->end;
  snprintf (u.kept, sizeof u.kept, "%s.d", path);

  find_entries (&u);
  find_durable (&u);
  undo_content (&u);
  find_names (&u);
  redo_names (&u);
  put_names (&u);
  for (i = 0; i < u.nr_files; ++i)
    if (u.files[i].fd != -1)
      close (u.files[i].fd);
  free (u.entries);
  munmap ((void *) u.log, st.st_size);
  if (unlink (path) == -1)
    die ("powercut: %s: %s", path, strerror (errno));
  empty_directory (u.kept);
}

void
powercut_after (const char *path, uint64_t nr, bool names_only)
{
  struct powercut_header *header;
  int fd = open (path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  struct stat st;

  if (fd == -1 || flock (fd, LOCK_EX) == -1 || fstat (fd, &st) == -1 ||
      ((size_t) st.st_size < sizeof *header &&
       ftruncate (fd, sizeof *header) == -1))
    die ("powercut: %s: %s", path, strerror (errno));
  header = mmap (NULL, sizeof *header, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                 0);
  if (header == MAP_FAILED)
    die ("powercut: mmap: %s", strerror (errno));
  if (header->end < sizeof *header)
    header->end = sizeof *header;
  header->cut_at = names_only ? 0 : header->seq + nr;
  header->names_left = names_only ? nr : 0;
  munmap (header, sizeof *header);
  close (fd);
}

uint64_t
powercut_changes (const char *path)
{
  struct powercut_header header = { .seq = 0 };
  int fd = open (path, O_RDONLY | O_CLOEXEC);

  if (fd != -1) {
    if (pread (fd, &header, sizeof header, 0) == -1)
      die ("powercut: %s: %s", path, strerror (errno));
    close (fd);
  }
  return header.seq;
}

void
powercut_undo (const char *log, const char *dir, struct rng *rng)
{
  static const enum mode modes[] = { NOTHING, SOME, SOME, EVERYTHING };

  undo (log, dir, modes[rng_below (rng, 4)], rng);
}

void
powercut_undo_all (const char *log, const char *dir)
{
  struct rng rng = rng_make (0, 0);

  undo (log, dir, NOTHING_EVER, &rng);
}
