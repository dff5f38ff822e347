/* SPDX-License-Identifier: BSD-3-Clause */

/* Preloaded into servers and commands, or linked with a test: records what is
 * overwritten, made and removed, and what is synced.  See powercut-undo.h.
 */

#include <config.h>
/* With it, the names below would be macros for other functions. */
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
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "crash/powercut-int.h"

static_assert (sizeof (off_t) == 8, "one function for both names");

#define DEFINE(ret, name, args) ret (*real_##name) args;
LIBC_FUNCTIONS (DEFINE)

int log_fd = -1;
const char *log_path, *dir;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct powercut_header *header;
static char parent[PATH_MAX];

_Noreturn void
give_up (const char *what)
{
  fprintf (stderr, "powercut: %s: %s\n", what, strerror (errno));
  abort ();
}

void
find_functions (void)
{
  if (real_symlinkat)
    return;
#define FIND(ret, name, args) real_##name = dlsym (RTLD_NEXT, #name);
  LIBC_FUNCTIONS (FIND)
}

void
powercut_begin (const char *log, const char *directory)
{
  char *copy;

  find_functions ();
  log_path = log;
  dir = directory;
  copy = strdup (dir);
  if (copy == NULL)
    give_up ("strdup");
  snprintf (parent, sizeof parent, "%s", dirname (copy));
  free (copy);
  log_fd = real_openat (AT_FDCWD, log_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (log_fd == -1 || flock (log_fd, LOCK_EX) == -1)
    give_up (log_path);
  if (lseek (log_fd, 0, SEEK_END) < (off_t) sizeof *header &&
      real_ftruncate (log_fd, sizeof *header) == -1)
    give_up (log_path);
  header = real_mmap (NULL, sizeof *header, PROT_READ | PROT_WRITE, MAP_SHARED,
                      log_fd, 0);
  if (header == MAP_FAILED)
    give_up ("mmap");
  if (header->end < sizeof *header)
    header->end = sizeof *header;
  flock (log_fd, LOCK_UN);
}

void
powercut_end (void)
{
  munmap (header, sizeof *header);
  close (log_fd);
  log_fd = -1;
}

static void __attribute__ ((constructor))
init (void)
{
  const char *log = getenv ("POWERCUT_LOG");
  const char *directory = getenv ("POWERCUT_DIR");

  find_functions ();
  if (log && directory)
    powercut_begin (log, directory);
}

void
lock (void)
{
  pthread_mutex_lock (&mutex);
  while (flock (log_fd, LOCK_EX) == -1)
    if (errno != EINTR)
      give_up ("flock");
}

void
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

/* True if names in this directory are recorded.  In the parent only the name of
 * the watched directory is.
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

bool
is_watched (int fd, char path[POWERCUT_PATH_MAX])
{
  int err = errno;
  bool r;

  find_functions ();
  r = log_fd != -1 && fd != log_fd && fd_path (fd, path) && is_below (path);
  errno = err;
  return r;
}

bool
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
    snprintf (path, POWERCUT_PATH_MAX, "%s/%s", real, base) <
    POWERCUT_PATH_MAX &&
    (is_below (path) || strcmp (path, dir) == 0);
}

void
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
        real_pwrite (log_fd, zeroes, padding, end + e->len) !=
          (ssize_t) padding)
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
  /* Mostly before the change itself, so the caller has no answer. */
  if (header->cut_at && e->seq >= header->cut_at)
    kill (getpid (), SIGKILL);
}

struct powercut_entry
make_entry (enum powercut_kind kind, const char *path)
{
  struct powercut_entry e = {
    .magic = POWERCUT_MAGIC,
    .kind = kind,
    .seq = header->seq + 1,
  };

  memcpy (e.path, path, POWERCUT_PATH_MAX);
  return e;
}

/* Log the present 'len' bytes at 'offset', before they change. */
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
    readable = real_openat (AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (readable == -1)
      give_up (path);
  }
  e.offset = offset;
  e.len = len;
  e.size = st.st_size;
  e.ino = st.st_ino;
  while (done < len) { /* past the end: zeroes */
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
    log_old (fd, path, POWERCUT_WRITE, size, 0); /* the size */
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
  fd = real_openat (AT_FDCWD, path, O_RDWR | O_CLOEXEC);
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
  if (mode &
      ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
    give_up ("fallocate: unknown mode");
  lock ();
  if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
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

  /* Changes are logged and made under the lock.  The sync covers the changes
   * up to now, but not those that overlap it.
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

SAME (ssize_t, pwrite64, pwrite, int, const void *, size_t, off_t)
SAME (ssize_t, pwritev64, pwritev, int, const struct iovec *, int, off_t)
SAME (int, ftruncate64, ftruncate, int, off_t)
SAME (int, truncate64, truncate, const char *, off_t)
SAME (int, fallocate64, fallocate, int, int, off_t, off_t)
