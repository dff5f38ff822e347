/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fullio.h"
#include "base/lock.h"
#include "base/owner.h"
#include "meta/meta-copy.h"
#include "meta/meta-files.h"
#include "vfs/wal-format.h"

/* The room on a file system that does not support fallocate. */
#define ENDLESS (UINT64_MAX / 4)

struct file {
  int fd;
  char *path;     /* owned; for messages */
  uint64_t bytes; /* allocated */
  uint64_t solid; /* ... by us, from the start on: no holes */
};

struct meta_files {
  uint32_t page_bytes;
  struct meta_copy *copy; /* not owned */
  struct lock lock;       /* protects everything below; innermost */
  struct file db, wal;
  bool endless;
};

/* Count allocated blocks, because a write into a hole needs new space. */
static void
count_bytes (struct file *file)
{
  struct stat st;

  file->solid = 0;
  if (fstat (file->fd, &st) == -1)
    return;
  file->bytes = (uint64_t) st.st_blocks * 512;
  if (file->bytes > (uint64_t) st.st_size)
    file->bytes = (uint64_t) st.st_size;
}

static int
open_file (struct file *file, const char *path, const char *suffix)
{
  struct stat st;

  if (asprintf (&file->path, "%s%s", path, suffix) == -1) {
    file->path = NULL;
    return nbdedup_fail (ENOMEM, "no memory");
  }
  file->fd = open_owned (file->path,
                         O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (file->fd == -1 || fstat (file->fd, &st) == -1)
    return nbdedup_fail (errno == ELOOP ? EIO : errno, "%s: %s", file->path,
                         strerror (errno));
  if (!S_ISREG (st.st_mode))
    return nbdedup_fail (EIO, "%s: not a regular file", file->path);
  count_bytes (file);
  return 0;
}

struct meta_files *
meta_files_open (const char *db_path, uint32_t page_bytes,
                 struct meta_copy *copy)
{
  struct meta_files *f = calloc (1, sizeof *f);
  int err;

  if (f == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  lock_init (&f->lock);
  f->page_bytes = page_bytes;
  f->copy = copy;
  f->db.fd = f->wal.fd = -1;
  if (open_file (&f->db, db_path, "") == -1 ||
      open_file (&f->wal, db_path, "-wal") == -1) {
    err = errno;
    meta_files_close (f);
    errno = err;
    return NULL;
  }
  return f;
}

static void
close_file (struct file *file)
{
  if (file->fd != -1)
    close (file->fd);
  free (file->path);
}

void
meta_files_close (struct meta_files *f)
{
  if (f == NULL)
    return;
  close_file (&f->db);
  close_file (&f->wal);
  lock_destroy (&f->lock);
  free (f);
}

static uint64_t
frame_bytes (const struct meta_files *f)
{
  return FRAME_HEADER_BYTES + f->page_bytes;
}

uint64_t
meta_files_db_pages (struct meta_files *f)
{
  WITH_LOCK (&f->lock);
  return f->endless ? ENDLESS : f->db.bytes / f->page_bytes;
}

uint64_t
meta_files_wal_pages (struct meta_files *f)
{
  WITH_LOCK (&f->lock);
  if (f->endless)
    return ENDLESS;
  return f->wal.bytes < WAL_HEADER_BYTES
    ? 0
    : (f->wal.bytes - WAL_HEADER_BYTES) / frame_bytes (f);
}

static void
begin_change (struct meta_files *f, const struct file *file)
{
  if (file == &f->db)
    meta_copy_change_begin (f->copy);
}

static void
end_change (struct meta_files *f, const struct file *file)
{
  if (file == &f->db)
    meta_copy_change_end (f->copy);
}

static int
allocate_locked (struct meta_files *f, struct file *file, uint64_t bytes)
{
  int r, err;

  assert_held (&f->lock);
  assert (file->solid <= file->bytes);
  if (bytes <= file->bytes || f->endless)
    return 0;
  /* A file system may look at each page of the range. */
  begin_change (f, file);
  do
    r = fallocate (file->fd, 0, (off_t) file->solid,
                   (off_t) (bytes - file->solid));
  while (r == -1 && errno == EINTR);
  err = errno;
  end_change (f, file);
  errno = err;
  if (r == 0) {
    file->bytes = file->solid = bytes;
    return 0;
  }
  if (errno == EOPNOTSUPP || errno == ENOSYS) {
    f->endless = true;
    return 0;
  }
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    /* A part may have been allocated. */
    count_bytes (file);
    errno = err;
    return nbdedup_fail (ENOSPC,
                         "%s: no room for metadata: %s: free some "
                         "space on its file system",
                         file->path, strerror (errno));
  }
  return nbdedup_fail (EIO, "%s: allocating %" PRIu64 " bytes: %s", file->path,
                       bytes, strerror (errno));
}

int
meta_files_allocate (struct meta_files *f, uint64_t db_pages,
                     uint64_t wal_pages)
{
  WITH_LOCK (&f->lock);
  if (allocate_locked (f, &f->db, db_pages * f->page_bytes) == -1)
    return -1;
  return wal_pages == 0
    ? 0
    : allocate_locked (f, &f->wal,
                       WAL_HEADER_BYTES + wal_pages * frame_bytes (f));
}

static void
trim_locked (struct meta_files *f, struct file *file, uint64_t bytes)
{
  struct stat st;

  assert_held (&f->lock);
  if (f->endless || fstat (file->fd, &st) == -1 ||
      (uint64_t) st.st_size <= bytes)
    return;
  /* Never free more than that, even if it is allocated again at once: other
   * programs may be waiting for space.
   */
  begin_change (f, file);
  if (ftruncate (file->fd, (off_t) bytes) == 0 && file->bytes > bytes)
    file->bytes = bytes;
  if (file->solid > bytes)
    file->solid = bytes;
  assert (file->solid <= file->bytes);
  end_change (f, file);
}

void
meta_files_trim (struct meta_files *f, uint64_t db_pages, uint64_t wal_pages)
{
  WITH_LOCK (&f->lock);
  trim_locked (f, &f->db, db_pages * f->page_bytes);
  if (full_datasync (f->wal.fd) == -1)
    return; /* the next commit fails too */
  trim_locked (f, &f->wal, WAL_HEADER_BYTES + wal_pages * frame_bytes (f));
}
