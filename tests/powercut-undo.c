/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "powercut-undo.h"

#define SECTOR 512

/* What is known about one file at the end. */
struct file {
  char path[POWERCUT_PATH_MAX];
  int fd;
  uint64_t durable;             /* entries up to this one are */
  uint64_t durable_size;
  bool sized;
};

static struct file *
find_file (struct file *files, unsigned *nr, unsigned max, const char *path)
{
  unsigned i;

  for (i = 0; i < *nr; ++i)
    if (strcmp (files[i].path, path) == 0)
      return &files[i];
  if (*nr == max)
    die ("powercut: too many files");
  files[i] = (struct file) { .fd = open (path, O_RDWR|O_CLOEXEC) };
  memcpy (files[i].path, path, POWERCUT_PATH_MAX);
  (*nr)++;
  return &files[i];
}

/* The entry at '*p', and step over it; NULL at the end (the last entry may
 * be cut off: its write never began).
 */
static const struct powercut_entry *
next_entry (const uint8_t *log, size_t size, size_t *p)
{
  const struct powercut_entry *e = (const void *) (log + *p);
  size_t len;

  if (size - *p < sizeof *e || e->magic != POWERCUT_MAGIC)
    return NULL;
  len = e->kind == POWERCUT_SYNC ? 0 : (e->len + 7) & ~UINT64_C (7);
  if (size - *p - sizeof *e < len)
    return NULL;
  *p += sizeof *e + len;
  return e;
}

static void
put_back (const struct file *f, const uint8_t *old, uint64_t offset,
          uint64_t len)
{
  if (pwrite (f->fd, old, len, offset) != (ssize_t) len)
    die ("powercut: %s: %s", f->path, strerror (errno));
}

/* The moment up to which the disk has what was written to a sector: the
 * same answer each time that it is asked during one undo.
 */
static uint64_t
sector_moment (const struct file *f, uint64_t sector, uint64_t salt,
               uint64_t last)
{
  struct rng rng = rng_make (salt ^ f->durable, sector);

  switch (rng_below (&rng, 3)) {
  case 0:
    return f->durable;
  case 1:
    return last;
  default:
    return rng_between (&rng, f->durable, last);
  }
}

static void
undo_write (const struct file *f, const struct powercut_entry *e,
            uint64_t salt, unsigned mode, uint64_t last)
{
  const uint8_t *old = (const uint8_t *) (e + 1);
  uint64_t offset = e->offset, end = e->offset + e->len, n;

  for (; offset < end; offset += n, old += n) {
    n = SECTOR - offset % SECTOR;
    if (n > end - offset)
      n = end - offset;
    if (mode == 0 ||
        (mode == 1 && e->seq > sector_moment (f, offset / SECTOR, salt,
                                              last)))
      put_back (f, old, offset, n);
  }
}

void
powercut_undo (const char *path, struct rng *rng)
{
  struct file files[16];
  const struct powercut_entry *e;
  struct file *f;
  struct stat st;
  uint64_t salt = rng_next (rng), last = 0;
  /* 0: nothing survives that was not synced; 2: all does, as after a kill;
   * 1: decided by sector.
   */
  unsigned nr = 0, i, mode = rng_below (rng, 4);
  size_t p, *entries = NULL, nr_entries = 0, max_entries = 0;
  uint8_t *log;
  int fd;

  mode = mode == 3 ? 1 : mode;
  fd = open (path, O_RDONLY|O_CLOEXEC);
  if (fd == -1 && errno == ENOENT)
    return;
  if (fd == -1 || fstat (fd, &st) == -1)
    die ("powercut: %s: %s", path, strerror (errno));
  if (st.st_size == 0) {
    close (fd);
    return;
  }
  log = mmap (NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (log == MAP_FAILED)
    die ("powercut: mmap: %s", strerror (errno));
  close (fd);

  p = 0;
  for (;;) {
    if (nr_entries == max_entries) {
      max_entries = max_entries * 2 + 1024;
      entries = realloc (entries, max_entries * sizeof entries[0]);
      if (entries == NULL)
        die ("out of memory");
    }
    entries[nr_entries] = p;
    e = next_entry (log, st.st_size, &p);
    if (e == NULL)
      break;
    nr_entries++;
    last = e->seq > last ? e->seq : last;
    f = find_file (files, &nr, sizeof files / sizeof files[0], e->path);
    if (e->kind == POWERCUT_SYNC && e->offset >= f->durable) {
      f->durable = e->offset;
      f->durable_size = e->size;
      f->sized = true;
    }
    else if (!f->sized) {
      f->durable_size = e->size;
      f->sized = true;
    }
  }

  while (nr_entries-- > 0) {
    p = entries[nr_entries];
    e = next_entry (log, st.st_size, &p);
    f = find_file (files, &nr, sizeof files / sizeof files[0], e->path);
    if (f->fd == -1 || e->kind == POWERCUT_SYNC || e->seq <= f->durable)
      continue;
    undo_write (f, e, salt, e->kind == POWERCUT_TRUNCATE && mode == 1 ?
                salt & 2 : mode, last);
  }
  for (i = 0; i < nr; ++i) {
    if (files[i].fd == -1)
      continue;
    if (mode == 0 || (mode == 1 && rng_percent (rng, 50))) {
      struct stat now;

      if (fstat (files[i].fd, &now) == 0 &&
          (uint64_t) now.st_size > files[i].durable_size &&
          ftruncate (files[i].fd, files[i].durable_size) == -1)
        die ("powercut: ftruncate: %s", strerror (errno));
    }
    close (files[i].fd);
  }
  free (entries);
  munmap (log, st.st_size);
}
