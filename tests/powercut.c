/* SPDX-License-Identifier: BSD-3-Clause */

/* Preloaded into a server: remember what is overwritten, and what is synced.
 * See powercut-undo.h.
 */

#include <config.h>
/* Else the names below would be those of other functions. */
#undef _FILE_OFFSET_BITS

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "powercut-undo.h"

static_assert (sizeof (off_t) == 8, "one function for both names");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t seq;
static int log_fd = -1;
static const char *dir;

#define REAL(ret, name, ...)                                            \
  static ret (*real_##name) (__VA_ARGS__);

REAL (ssize_t, pwrite, int, const void *, size_t, off_t)
REAL (ssize_t, write, int, const void *, size_t)
REAL (ssize_t, pwritev, int, const struct iovec *, int, off_t)
REAL (int, ftruncate, int, off_t)
REAL (int, fallocate, int, int, off_t, off_t)
REAL (int, fdatasync, int)
REAL (int, fsync, int)

static void __attribute__ ((constructor))
init (void)
{
  const char *path = getenv ("POWERCUT_LOG");

  real_pwrite = dlsym (RTLD_NEXT, "pwrite");
  real_write = dlsym (RTLD_NEXT, "write");
  real_pwritev = dlsym (RTLD_NEXT, "pwritev");
  real_ftruncate = dlsym (RTLD_NEXT, "ftruncate");
  real_fallocate = dlsym (RTLD_NEXT, "fallocate");
  real_fdatasync = dlsym (RTLD_NEXT, "fdatasync");
  real_fsync = dlsym (RTLD_NEXT, "fsync");
  dir = getenv ("POWERCUT_DIR");
  if (path && dir)
    log_fd = open (path, O_WRONLY|O_CREAT|O_APPEND|O_CLOEXEC, 0666);
}

/* Is 'fd' a regular file below the directory?  Returns its path. */
static bool
is_watched (int fd, char path[POWERCUT_PATH_MAX])
{
  char link[32];
  ssize_t n;
  size_t len;

  if (log_fd == -1 || fd == log_fd)
    return false;
  snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
  memset (path, 0, POWERCUT_PATH_MAX);
  n = readlink (link, path, POWERCUT_PATH_MAX - 1);
  len = strlen (dir);
  return n > (ssize_t) len && memcmp (path, dir, len) == 0 && path[len] == '/';
}

/* Any failure here would make the test prove nothing. */
static void
put (const void *buf, size_t len)
{
  if (real_write (log_fd, buf, len) != (ssize_t) len) {
    perror ("powercut log");
    abort ();
  }
}

/* Log what 'len' bytes at 'offset' have now, before they change. */
static void
log_old (int fd, const char *path, enum powercut_kind kind, uint64_t offset,
         uint64_t len)
{
  struct powercut_entry e = {
    .magic = POWERCUT_MAGIC, .kind = kind, .seq = ++seq, .offset = offset,
    .len = len,
  };
  size_t padded = sizeof e + ((len + 7) & ~UINT64_C (7));
  uint8_t *buf = calloc (1, padded);
  struct stat st;
  ssize_t r;
  uint64_t done = 0;

  if (buf == NULL || fstat (fd, &st) == -1)
    abort ();
  e.size = st.st_size;
  memcpy (e.path, path, POWERCUT_PATH_MAX);
  memcpy (buf, &e, sizeof e);
  while (done < len) {          /* past the end: zeroes */
    r = pread (fd, buf + sizeof e + done, len - done, offset + done);
    if (r <= 0)
      break;
    done += r;
  }
  put (buf, padded);
  free (buf);
}

ssize_t
pwrite (int fd, const void *buf, size_t len, off_t offset)
{
  char path[POWERCUT_PATH_MAX];
  ssize_t r;

  if (!is_watched (fd, path))
    return real_pwrite (fd, buf, len, offset);
  pthread_mutex_lock (&lock);
  log_old (fd, path, POWERCUT_WRITE, offset, len);
  r = real_pwrite (fd, buf, len, offset);
  pthread_mutex_unlock (&lock);
  return r;
}

ssize_t
write (int fd, const void *buf, size_t len)
{
  char path[POWERCUT_PATH_MAX];
  ssize_t r;

  if (!is_watched (fd, path))
    return real_write (fd, buf, len);
  pthread_mutex_lock (&lock);
  log_old (fd, path, POWERCUT_WRITE, lseek (fd, 0, SEEK_CUR), len);
  r = real_write (fd, buf, len);
  pthread_mutex_unlock (&lock);
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
  pthread_mutex_lock (&lock);
  log_old (fd, path, POWERCUT_WRITE, offset, len);
  r = real_pwritev (fd, iov, nr, offset);
  pthread_mutex_unlock (&lock);
  return r;
}

int
ftruncate (int fd, off_t size)
{
  char path[POWERCUT_PATH_MAX];
  struct stat st;
  int r;

  if (!is_watched (fd, path))
    return real_ftruncate (fd, size);
  pthread_mutex_lock (&lock);
  if (fstat (fd, &st) == 0 && st.st_size > size)
    log_old (fd, path, POWERCUT_TRUNCATE, size, st.st_size - size);
  r = real_ftruncate (fd, size);
  pthread_mutex_unlock (&lock);
  return r;
}

int
fallocate (int fd, int mode, off_t offset, off_t len)
{
  char path[POWERCUT_PATH_MAX];
  int r;

  if (!is_watched (fd, path))
    return real_fallocate (fd, mode, offset, len);
  pthread_mutex_lock (&lock);
  if (mode & (FALLOC_FL_PUNCH_HOLE|FALLOC_FL_ZERO_RANGE))
    log_old (fd, path, POWERCUT_WRITE, offset, len);
  else
    log_old (fd, path, POWERCUT_WRITE, offset, 0); /* the size */
  r = real_fallocate (fd, mode, offset, len);
  pthread_mutex_unlock (&lock);
  return r;
}

static int
do_sync (int fd, int (*real) (int))
{
  struct powercut_entry e = { .magic = POWERCUT_MAGIC,
                              .kind = POWERCUT_SYNC };
  struct stat st;
  int r;

  if (!is_watched (fd, e.path))
    return real (fd);

  /* Writes are logged and done under the lock: those up to now are
   * covered, those that overlap the sync are not.
   */
  pthread_mutex_lock (&lock);
  e.offset = seq;
  if (fstat (fd, &st) == -1)
    abort ();
  e.size = st.st_size;
  pthread_mutex_unlock (&lock);

  r = real (fd);

  if (r == 0) {
    pthread_mutex_lock (&lock);
    e.seq = ++seq;
    put (&e, sizeof e);
    pthread_mutex_unlock (&lock);
  }
  return r;
}

int
fdatasync (int fd)
{
  return do_sync (fd, real_fdatasync);
}

int
fsync (int fd)
{
  return do_sync (fd, real_fsync);
}

/* Programs built for large files call these. */
ssize_t pwrite64 (int, const void *, size_t, off_t)
  __attribute__ ((alias ("pwrite")));
ssize_t pwritev64 (int, const struct iovec *, int, off_t)
  __attribute__ ((alias ("pwritev")));
int ftruncate64 (int, off_t) __attribute__ ((alias ("ftruncate")));
int fallocate64 (int, int, off_t, off_t)
  __attribute__ ((alias ("fallocate")));
