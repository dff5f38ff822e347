/* SPDX-License-Identifier: BSD-3-Clause */

/* Preloaded into servers and commands: remember what is overwritten, made
 * and removed, and what is synced.  See powercut-undo.h.
 *
 * Calls that could change a pool, but that nobody makes yet, end the
 * program: a test that does not see them would prove nothing.
 */

#include <config.h>
/* Else the names below would be those of other functions. */
#undef _FILE_OFFSET_BITS

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "powercut-undo.h"

static_assert (sizeof (off_t) == 8, "one function for both names");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct powercut_header *header;
static int log_fd = -1;
static const char *log_path, *dir;
static char parent[PATH_MAX];

#define REAL(ret, name, ...)                                            \
  static ret (*real_##name) (__VA_ARGS__);

REAL (ssize_t, pwrite, int, const void *, size_t, off_t)
REAL (ssize_t, write, int, const void *, size_t)
REAL (ssize_t, writev, int, const struct iovec *, int)
REAL (ssize_t, pwritev, int, const struct iovec *, int, off_t)
REAL (ssize_t, pwritev2, int, const struct iovec *, int, off_t, int)
REAL (ssize_t, copy_file_range, int, off_t *, int, off_t *, size_t, unsigned)
REAL (ssize_t, sendfile, int, int, off_t *, size_t)
REAL (ssize_t, splice, int, off_t *, int, off_t *, size_t, unsigned)
REAL (int, ftruncate, int, off_t)
REAL (int, truncate, const char *, off_t)
REAL (int, fallocate, int, int, off_t, off_t)
REAL (int, posix_fallocate, int, off_t, off_t)
REAL (int, fdatasync, int)
REAL (int, fsync, int)
REAL (void *, mmap, void *, size_t, int, int, int, off_t)
REAL (int, openat, int, const char *, int, ...)
REAL (int, unlinkat, int, const char *, int)
REAL (int, renameat2, int, const char *, int, const char *, unsigned)
REAL (int, mkdirat, int, const char *, mode_t)
REAL (int, linkat, int, const char *, int, const char *, int)
REAL (int, symlinkat, const char *, int, const char *)

static _Noreturn void
give_up (const char *what)
{
  fprintf (stderr, "powercut: %s: %s\n", what, strerror (errno));
  abort ();
}

/* Other libraries may be initialised, and call these, before this one. */
static void
find_functions (void)
{
  if (real_symlinkat)
    return;
#define FIND(name) real_##name = dlsym (RTLD_NEXT, #name)
  FIND (pwrite);
  FIND (write);
  FIND (writev);
  FIND (pwritev);
  FIND (pwritev2);
  FIND (copy_file_range);
  FIND (sendfile);
  FIND (splice);
  FIND (ftruncate);
  FIND (truncate);
  FIND (fallocate);
  FIND (posix_fallocate);
  FIND (fdatasync);
  FIND (fsync);
  FIND (mmap);
  FIND (openat);
  FIND (unlinkat);
  FIND (renameat2);
  FIND (mkdirat);
  FIND (linkat);
  FIND (symlinkat);
}

static void __attribute__ ((constructor))
init (void)
{
  char *copy;

  find_functions ();
  log_path = getenv ("POWERCUT_LOG");
  dir = getenv ("POWERCUT_DIR");
  if (log_path == NULL || dir == NULL)
    return;
  copy = strdup (dir);
  if (copy == NULL)
    give_up ("strdup");
  snprintf (parent, sizeof parent, "%s", dirname (copy));
  free (copy);
  log_fd = real_openat (AT_FDCWD, log_path, O_RDWR|O_CREAT|O_CLOEXEC, 0666);
  if (log_fd == -1 || flock (log_fd, LOCK_EX) == -1)
    give_up (log_path);
  if (lseek (log_fd, 0, SEEK_END) < (off_t) sizeof *header &&
      real_ftruncate (log_fd, sizeof *header) == -1)
    give_up (log_path);
  header = real_mmap (NULL, sizeof *header, PROT_READ|PROT_WRITE, MAP_SHARED,
                      log_fd, 0);
  if (header == MAP_FAILED)
    give_up ("mmap");
  if (header->end < sizeof *header)
    header->end = sizeof *header;
  flock (log_fd, LOCK_UN);
}

/* Entries and changes stand in the same order: nothing comes in between, of
 * this process or another.
 */
static void
lock (void)
{
  pthread_mutex_lock (&mutex);
  while (flock (log_fd, LOCK_EX) == -1)
    if (errno != EINTR)
      give_up ("flock");
}

static void
unlock (void)
{
  int err = errno;

  flock (log_fd, LOCK_UN);
  pthread_mutex_unlock (&mutex);
  errno = err;
}

static bool
is_below (const char *path)
{
  size_t len = strlen (dir);

  return strncmp (path, dir, len) == 0 && path[len] == '/';
}

/* The names in these directories are recorded; of the parent's only that of
 * the watched one.
 */
static bool
is_directory (const char *path)
{
  return strcmp (path, dir) == 0 || strcmp (path, parent) == 0;
}

static bool
fd_path (int fd, char path[POWERCUT_PATH_MAX])
{
  char link[32];

  snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
  memset (path, 0, POWERCUT_PATH_MAX);
  return readlink (link, path, POWERCUT_PATH_MAX - 1) > 0;
}

/* Is 'fd' a file below the directory? */
static bool
is_watched (int fd, char path[POWERCUT_PATH_MAX])
{
  int err = errno;
  bool r;

  find_functions ();
  r = log_fd != -1 && fd != log_fd && fd_path (fd, path) && is_below (path);
  errno = err;
  return r;
}

/* Is 'name', which need not exist, one that is recorded?  Then 'path' is it,
 * without links.
 */
static bool
is_watched_name (int dirfd, const char *name, char path[POWERCUT_PATH_MAX])
{
  char whole[2 * PATH_MAX], real[PATH_MAX], base[POWERCUT_PATH_MAX];
  char *copy;
  int err = errno;
  bool ok;

  find_functions ();
  if (log_fd == -1)
    return false;
  if (name[0] == '/' || dirfd == AT_FDCWD)
    snprintf (whole, sizeof whole, "%s", name);
  else if (fd_path (dirfd, base))
    snprintf (whole, sizeof whole, "%s/%s", base, name);
  else
    give_up ("a directory");
  copy = strdup (whole);
  if (copy == NULL)
    give_up ("strdup");
  snprintf (base, sizeof base, "%s", basename (whole));
  ok = realpath (dirname (copy), real) != NULL;
  free (copy);
  errno = err;
  memset (path, 0, POWERCUT_PATH_MAX);
  return ok &&
    snprintf (path, POWERCUT_PATH_MAX, "%s/%s", real, base)
    < POWERCUT_PATH_MAX &&
    (is_below (path) || strcmp (path, dir) == 0);
}

/* Any failure here would make the test prove nothing. */
static void
put (const struct powercut_entry *e, const void *data)
{
  static const uint8_t zeroes[8];
  size_t padding = -e->len & 7;
  uint64_t end = header->end;

  if (real_pwrite (log_fd, e, sizeof *e, end) != (ssize_t) sizeof *e)
    give_up (log_path);
  end += sizeof *e;
  if (data && e->len) {
    if (real_pwrite (log_fd, data, e->len, end) != (ssize_t) e->len ||
        real_pwrite (log_fd, zeroes, padding, end + e->len)
        != (ssize_t) padding)
      give_up (log_path);
    end += e->len + padding;
  }
  header->seq = e->seq;
  __atomic_store_n (&header->end, end, __ATOMIC_RELEASE);
  if (header->names_left &&
      (e->kind == POWERCUT_SYNC_DIR || e->kind == POWERCUT_CREATE ||
       e->kind == POWERCUT_UNLINK || e->kind == POWERCUT_RENAME) &&
      --header->names_left == 0)
    header->cut_at = e->seq;
  /* Before the change itself, mostly: whoever asked for it has no answer. */
  if (header->cut_at && e->seq >= header->cut_at)
    kill (getpid (), SIGKILL);
}

static struct powercut_entry
make_entry (enum powercut_kind kind, const char *path)
{
  struct powercut_entry e = {
    .magic = POWERCUT_MAGIC, .kind = kind, .seq = header->seq + 1,
  };

  memcpy (e.path, path, POWERCUT_PATH_MAX);
  return e;
}

/* Log what 'len' bytes at 'offset' have now, before they change. */
static void
log_old (int fd, const char *path, enum powercut_kind kind, uint64_t offset,
         uint64_t len)
{
  struct powercut_entry e = make_entry (kind, path);
  uint8_t *buf = calloc (1, len ? len : 1);
  struct stat st;
  ssize_t r;
  uint64_t done = 0;
  int readable = fd;

  if (buf == NULL || fstat (fd, &st) == -1)
    give_up (path);
  if (len && (fcntl (fd, F_GETFL) & O_ACCMODE) == O_WRONLY) {
    readable = real_openat (AT_FDCWD, path, O_RDONLY|O_CLOEXEC);
    if (readable == -1)
      give_up (path);
  }
  e.offset = offset;
  e.len = len;
  e.size = st.st_size;
  e.ino = st.st_ino;
  while (done < len) {          /* past the end: zeroes */
    r = pread (readable, buf + done, len - done, offset + done);
    if (r <= 0)
      break;
    done += r;
  }
  if (readable != fd)
    close (readable);
  put (&e, buf);
  free (buf);
}

/*----------------------------------------------------------------------
 * Content
 */

ssize_t
pwrite (int fd, const void *buf, size_t len, off_t offset)
{
  char path[POWERCUT_PATH_MAX];
  ssize_t r;

  if (!is_watched (fd, path))
    return real_pwrite (fd, buf, len, offset);
  lock ();
  log_old (fd, path, POWERCUT_WRITE, offset, len);
  r = real_pwrite (fd, buf, len, offset);
  unlock ();
  return r;
}

ssize_t
write (int fd, const void *buf, size_t len)
{
  char path[POWERCUT_PATH_MAX];
  ssize_t r;

  if (!is_watched (fd, path))
    return real_write (fd, buf, len);
  lock ();
  log_old (fd, path, POWERCUT_WRITE, lseek (fd, 0, SEEK_CUR), len);
  r = real_write (fd, buf, len);
  unlock ();
  return r;
}

ssize_t
pwritev (int fd, const struct iovec *iov, int nr, off_t offset)
{
  char path[POWERCUT_PATH_MAX];
  uint64_t len = 0;
  ssize_t r;
  int i;

  if (!is_watched (fd, path))
    return real_pwritev (fd, iov, nr, offset);
  for (i = 0; i < nr; ++i)
    len += iov[i].iov_len;
  lock ();
  log_old (fd, path, POWERCUT_WRITE, offset, len);
  r = real_pwritev (fd, iov, nr, offset);
  unlock ();
  return r;
}

static void
log_resize (int fd, const char *path, off_t size)
{
  struct stat st;

  if (fstat (fd, &st) == -1)
    give_up (path);
  if (st.st_size > size)
    log_old (fd, path, POWERCUT_TRUNCATE, size, st.st_size - size);
  else
    log_old (fd, path, POWERCUT_WRITE, size, 0);        /* the size */
}

int
ftruncate (int fd, off_t size)
{
  char path[POWERCUT_PATH_MAX];
  int r;

  if (!is_watched (fd, path))
    return real_ftruncate (fd, size);
  lock ();
  log_resize (fd, path, size);
  r = real_ftruncate (fd, size);
  unlock ();
  return r;
}

int
truncate (const char *name, off_t size)
{
  char path[POWERCUT_PATH_MAX];
  int fd, r;

  if (!is_watched_name (AT_FDCWD, name, path))
    return real_truncate (name, size);
  fd = real_openat (AT_FDCWD, path, O_RDWR|O_CLOEXEC);
  if (fd == -1)
    return -1;
  r = ftruncate (fd, size);
  close (fd);
  return r;
}

int
fallocate (int fd, int mode, off_t offset, off_t len)
{
  char path[POWERCUT_PATH_MAX];
  int r;

  if (!is_watched (fd, path))
    return real_fallocate (fd, mode, offset, len);
  if (mode & ~(FALLOC_FL_KEEP_SIZE|FALLOC_FL_PUNCH_HOLE|
               FALLOC_FL_ZERO_RANGE))
    give_up ("fallocate: unknown mode");
  lock ();
  if (mode & (FALLOC_FL_PUNCH_HOLE|FALLOC_FL_ZERO_RANGE))
    log_old (fd, path, POWERCUT_WRITE, offset, len);
  else
    log_old (fd, path, POWERCUT_WRITE, offset, 0); /* the size */
  r = real_fallocate (fd, mode, offset, len);
  unlock ();
  return r;
}

static int
do_sync (int fd, int (*real) (int))
{
  struct powercut_entry e;
  char path[POWERCUT_PATH_MAX];
  struct stat st;
  uint64_t covers;
  int r;

  if (log_fd == -1 || fd == log_fd || !fd_path (fd, path) ||
      (!is_below (path) && !is_directory (path)))
    return real (fd);

  /* Changes are logged and done under the lock: those up to now are
   * covered, those that overlap the sync are not.
   */
  lock ();
  covers = header->seq;
  if (fstat (fd, &st) == -1)
    give_up (path);
  unlock ();

  r = real (fd);

  if (r == 0) {
    lock ();
    e = make_entry (S_ISDIR (st.st_mode) ? POWERCUT_SYNC_DIR : POWERCUT_SYNC,
                    path);
    e.offset = covers;
    e.size = st.st_size;
    e.ino = st.st_ino;
    put (&e, NULL);
    unlock ();
  }
  return r;
}

int
fdatasync (int fd)
{
  find_functions ();
  return do_sync (fd, real_fdatasync);
}

int
fsync (int fd)
{
  find_functions ();
  return do_sync (fd, real_fsync);
}

/*----------------------------------------------------------------------
 * Names
 */

/* A program may be killed between the call and its entry: then the log does
 * not know the name, and it stays, which is allowed.
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

/* The content of a name that goes is needed if that is taken back. */
static void
keep (const char *path, uint64_t ino)
{
  char kept[PATH_MAX];

  snprintf (kept, sizeof kept, "%s.d/%" PRIu64, log_path, ino);
  if (real_linkat (AT_FDCWD, path, AT_FDCWD, kept, 0) == -1 &&
      errno != EEXIST)
    give_up (kept);
}

static int
do_open (int dirfd, const char *name, int flags, mode_t mode)
{
  char path[POWERCUT_PATH_MAX];
  struct stat st;
  int fd;

  find_functions ();
  if ((flags & (O_CREAT|O_TRUNC)) == 0 || (flags & O_TMPFILE) == O_TMPFILE ||
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
  return flags & (O_CREAT|O_TMPFILE) ? va_arg (args, mode_t) : 0;
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
  return do_open (AT_FDCWD, name, O_CREAT|O_WRONLY|O_TRUNC, mode);
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
    give_up (path);             /* the log says that it is gone */
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
 * Calls that nobody makes
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

/* Programs built for large files call these. */
#define SAME(ret, name, as, ...)                                        \
  ret name (__VA_ARGS__) __attribute__ ((alias (#as)));

SAME (ssize_t, pwrite64, pwrite, int, const void *, size_t, off_t)
SAME (ssize_t, pwritev64, pwritev, int, const struct iovec *, int, off_t)
SAME (int, ftruncate64, ftruncate, int, off_t)
SAME (int, truncate64, truncate, const char *, off_t)
SAME (int, fallocate64, fallocate, int, int, off_t, off_t)
SAME (int, posix_fallocate64, posix_fallocate, int, off_t, off_t)
SAME (int, open64, open, const char *, int, ...)
SAME (int, openat64, openat, int, const char *, int, ...)
SAME (int, creat64, creat, const char *, mode_t)
SAME (void *, mmap64, mmap, void *, size_t, int, int, int, off_t)
