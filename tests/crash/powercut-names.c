/* SPDX-License-Identifier: BSD-3-Clause */

/* Preloaded, as powercut.c is: records the names that are made, moved and
 * removed.
 *
 * Calls that could change a pool, but that no program makes yet, end the
 * program, because a test that does not see them would prove nothing.
 */

#include <config.h>
/* With it, the names below would be macros for other functions. */
#undef _FILE_OFFSET_BITS

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include "crash/powercut-int.h"

/* If a program is killed between the call and its entry, the log does not have
 * the name, and the name stays.  This is allowed.
 */
static void
log_created (const char *path)
{
  struct powercut_entry e = make_entry (POWERCUT_CREATE, path);
  struct stat st;

  if (lstat (path, &st) == -1)
    give_up (path);
  e.ino = st.st_ino;
  put (&e, NULL);
}

/* Keep the content of a name that is removed, in case that is taken back. */
static void
keep (const char *path, uint64_t ino)
{
  char kept[PATH_MAX];

  snprintf (kept, sizeof kept, "%s.d/%" PRIu64, log_path, ino);
  if (real_linkat (AT_FDCWD, path, AT_FDCWD, kept, 0) == -1 && errno != EEXIST)
    give_up (kept);
}

static int
do_open (int dirfd, const char *name, int flags, mode_t mode)
{
  char path[POWERCUT_PATH_MAX];
  struct stat st;
  int fd;

  find_functions ();
  if ((flags & (O_CREAT | O_TRUNC)) == 0 || (flags & O_TMPFILE) == O_TMPFILE ||
      !is_watched_name (dirfd, name, path))
    return real_openat (dirfd, name, flags, mode);
  lock ();
  if (lstat (path, &st) == 0) {
    if ((flags & O_TRUNC) && st.st_size > 0)
      give_up ("O_TRUNC");
    fd = real_openat (dirfd, name, flags, mode);
  }
  else {
    fd = real_openat (dirfd, name, flags, mode);
    if (fd != -1)
      log_created (path);
  }
  unlock ();
  return fd;
}

static mode_t
get_mode (int flags, va_list args)
{
  return flags & (O_CREAT | O_TMPFILE) ? va_arg (args, mode_t) : 0;
}

int
open (const char *name, int flags, ...)
{
  va_list args;
  mode_t mode;

  va_start (args, flags);
  mode = get_mode (flags, args);
  va_end (args);
  return do_open (AT_FDCWD, name, flags, mode);
}

int
openat (int dirfd, const char *name, int flags, ...)
{
  va_list args;
  mode_t mode;

  va_start (args, flags);
  mode = get_mode (flags, args);
  va_end (args);
  return do_open (dirfd, name, flags, mode);
}

int
creat (const char *name, mode_t mode)
{
  return do_open (AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int
unlinkat (int dirfd, const char *name, int flags)
{
  char path[POWERCUT_PATH_MAX];
  struct powercut_entry e;
  struct stat st;
  int r;

  if (!is_watched_name (dirfd, name, path) || lstat (path, &st) == -1 ||
      S_ISSOCK (st.st_mode))
    return real_unlinkat (dirfd, name, flags);
  if (!S_ISREG (st.st_mode))
    give_up ("removing what is no file");
  lock ();
  keep (path, st.st_ino);
  e = make_entry (POWERCUT_UNLINK, path);
  e.ino = st.st_ino;
  put (&e, NULL);
  r = real_unlinkat (dirfd, name, flags);
  if (r == -1)
    give_up (path); /* the log says that it is gone */
  unlock ();
  return r;
}

int
unlink (const char *name)
{
  return unlinkat (AT_FDCWD, name, 0);
}

int
renameat2 (int from_fd, const char *from, int to_fd, const char *to,
           unsigned flags)
{
  char old[POWERCUT_PATH_MAX], new[POWERCUT_PATH_MAX];
  struct powercut_entry e;
  struct stat st;
  bool watched;
  int r;

  watched = is_watched_name (from_fd, from, old);
  if (is_watched_name (to_fd, to, new) != watched)
    give_up ("a rename out of the directory, or into it");
  if (!watched || lstat (old, &st) == -1)
    return real_renameat2 (from_fd, from, to_fd, to, flags);
  if (flags || !S_ISREG (st.st_mode))
    give_up ("an unknown rename");
  lock ();
  e = make_entry (POWERCUT_RENAME, old);
  e.ino = st.st_ino;
  e.len = sizeof new;
  keep (old, st.st_ino);
  if (lstat (new, &st) == 0) {
    keep (new, st.st_ino);
    e.replaced = st.st_ino;
  }
  put (&e, new);
  r = real_renameat2 (from_fd, from, to_fd, to, flags);
  if (r == -1)
    give_up (old);
  unlock ();
  return r;
}

int
renameat (int from_fd, const char *from, int to_fd, const char *to)
{
  return renameat2 (from_fd, from, to_fd, to, 0);
}

int
rename (const char *from, const char *to)
{
  return renameat2 (AT_FDCWD, from, AT_FDCWD, to, 0);
}

int
mkdirat (int dirfd, const char *name, mode_t mode)
{
  char path[POWERCUT_PATH_MAX];
  int r;

  if (!is_watched_name (dirfd, name, path))
    return real_mkdirat (dirfd, name, mode);
  lock ();
  r = real_mkdirat (dirfd, name, mode);
  if (r == 0) {
    if (strcmp (path, dir) != 0)
      give_up ("a directory in the directory");
    log_created (path);
  }
  unlock ();
  return r;
}

int
mkdir (const char *name, mode_t mode)
{
  return mkdirat (AT_FDCWD, name, mode);
}

/*----------------------------------------------------------------------
 * Calls that no program makes
 */

static void
refuse (int fd, const char *what)
{
  char path[POWERCUT_PATH_MAX];

  if (is_watched (fd, path)) {
    errno = ENOTSUP;
    give_up (what);
  }
}

ssize_t
writev (int fd, const struct iovec *iov, int nr)
{
  refuse (fd, "writev");
  return real_writev (fd, iov, nr);
}

ssize_t
pwritev2 (int fd, const struct iovec *iov, int nr, off_t offset, int flags)
{
  refuse (fd, "pwritev2");
  return real_pwritev2 (fd, iov, nr, offset, flags);
}

ssize_t
copy_file_range (int in, off_t *in_offset, int out, off_t *out_offset,
                 size_t len, unsigned flags)
{
  refuse (out, "copy_file_range");
  return real_copy_file_range (in, in_offset, out, out_offset, len, flags);
}

ssize_t
sendfile (int out, int in, off_t *offset, size_t len)
{
  refuse (out, "sendfile");
  return real_sendfile (out, in, offset, len);
}

ssize_t
splice (int in, off_t *in_offset, int out, off_t *out_offset, size_t len,
        unsigned flags)
{
  refuse (out, "splice");
  return real_splice (in, in_offset, out, out_offset, len, flags);
}

int
posix_fallocate (int fd, off_t offset, off_t len)
{
  refuse (fd, "posix_fallocate");
  return real_posix_fallocate (fd, offset, len);
}

void *
mmap (void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
  find_functions ();
  if (fd != -1 && (flags & MAP_TYPE) != MAP_PRIVATE && (prot & PROT_WRITE))
    refuse (fd, "mmap");
  return real_mmap (addr, len, prot, flags, fd, offset);
}

static void
refuse_name (int dirfd, const char *name, const char *what)
{
  char path[POWERCUT_PATH_MAX];

  if (is_watched_name (dirfd, name, path)) {
    errno = ENOTSUP;
    give_up (what);
  }
}

int
linkat (int from_fd, const char *from, int to_fd, const char *to, int flags)
{
  refuse_name (to_fd, to, "link");
  return real_linkat (from_fd, from, to_fd, to, flags);
}

int
link (const char *from, const char *to)
{
  return linkat (AT_FDCWD, from, AT_FDCWD, to, 0);
}

int
symlinkat (const char *target, int dirfd, const char *name)
{
  refuse_name (dirfd, name, "symlink");
  return real_symlinkat (target, dirfd, name);
}

int
symlink (const char *target, const char *name)
{
  return symlinkat (target, AT_FDCWD, name);
}

SAME (int, posix_fallocate64, posix_fallocate, int, off_t, off_t)
SAME (int, open64, open, const char *, int, ...)
SAME (int, openat64, openat, int, const char *, int, ...)
SAME (int, creat64, creat, const char *, mode_t)
SAME (void *, mmap64, mmap, void *, size_t, int, int, int, off_t)
