/* SPDX-License-Identifier: BSD-3-Clause */

/* Preloaded into a server or a command, this library makes calls fail, transfer
 * less than was asked for, or take long.
 *
 *   FAULT_FILE   base name of the file that the calls are on: journal, records,
 *                pool.db, pool.db-wal, ... (a pattern of fnmatch(3))
 *   FAULT_CALL   write (pwrite and the like), sync (fdatasync, fsync),
 *                fallocate, read (pread and the like), truncate, open,
 *                rename, unlink, stat (of an open file), map, lock, statvfs;
 *                or a call that is on no file: memory and thread, where
 *                FAULT_FILE is the base name of the object that calls
 *                (nbdedup, libsqlite3.so.0); sqlite, where FAULT_FILE is the
 *                function's name (sqlite3_step)
 *   FAULT_ARM    calls count, and fail, only while this file exists
 *   FAULT_STACK  until the first failure, only calls with this stack count (16
 *                digits: see "The stack of a call")
 *   FAULT_DEPTH  number of our own frames in a stack (default 6)
 *   FAULT_NTH    number of the first call that fails (from 1)
 *   FAULT_COUNT  number of calls that fail (default 1)
 *   FAULT_ERRNO  the error (default EIO); SQLite's functions return the result
 *                code for this error
 *   FAULT_SHORT  reads and writes transfer half, and do not fail
 *   FAULT_MS     the calls take this many milliseconds, and do not fail
 *   FAULT_LOG    append a line to this file for each of the calls, with the
 *                frames of its stack if it has one
 *   FAULT_CLOCK  add the number of seconds in this file to the time of day; the
 *                file is read at each call
 *   FAULT_TRACE  append a line "PID CALL FILE STACK" to this file for each call
 *                on a file below the directory FAULT_BELOW, and for each call
 *                on no file
 *
 * A sync that fails syncs nothing, a write that fails writes nothing.
 */

#include <config.h>
/* With it, the names below would be macros for other functions. */
#undef _FILE_OFFSET_BITS

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

static_assert (sizeof (off_t) == 8, "one function for both names");

/* glibc's own, for callers that must not reach the functions below. */
void *__libc_malloc (size_t size);
void *__libc_calloc (size_t nr, size_t size);
void *__libc_realloc (void *ptr, size_t size);
void *__libc_memalign (size_t align, size_t size);

enum verdict { GO_ON, FAIL, SHORT };

static const char *file, *which, *arm, *log_path, *below, *clock_path;
static uint64_t wanted; /* a stack, or 0: any */
static long nth = 1, count = 1, depth = 6;
static int error = EIO, trace = -1;
static bool transfer_less, memory;
static long milliseconds;
static atomic_long calls;
static _Thread_local bool inside; /* calls of ours do not count */
static _Thread_local int faked;   /* SQLite's last result code */

static long
number (const char *name, long otherwise)
{
  const char *s = getenv (name);

  return s && s[0] ? atol (s) : otherwise;
}

static void __attribute__ ((constructor))
init (void)
{
  const char *path = getenv ("FAULT_TRACE");
  int fd;

  file = getenv ("FAULT_FILE");
  which = getenv ("FAULT_CALL");
  arm = getenv ("FAULT_ARM");
  log_path = getenv ("FAULT_LOG");
  below = getenv ("FAULT_BELOW");
  clock_path = getenv ("FAULT_CLOCK");
  wanted = strtoull (getenv ("FAULT_STACK") ?: "0", NULL, 16);
  depth = number ("FAULT_DEPTH", 6);
  nth = number ("FAULT_NTH", 1);
  count = number ("FAULT_COUNT", 1);
  error = number ("FAULT_ERRNO", EIO);
  transfer_less = number ("FAULT_SHORT", 0);
  milliseconds = number ("FAULT_MS", 0);
  if (path) {
    /* A high number, for programs that expect descriptors from 3 on. */
    fd = syscall (SYS_openat, AT_FDCWD, path,
                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    trace = fd == -1 ? -1 : fcntl (fd, F_DUPFD_CLOEXEC, 900);
    close (fd);
  }
  memory = which && strcmp (which, "memory") == 0;
}

/* ----------------------------------------------------------------------
 * The stack of a call
 *
 * The stack has the innermost 'depth' return addresses in our program or
 * plugin.  Of the libraries in between it has the one frame right inside each
 * of these, such as SQLite's function that calls our VFS.  Calls for memory
 * leave the libraries out: there are too many.  Addresses are relative to
 * where the object is loaded, so the stack is the same in each process until
 * the next build.
 */

struct stack {
  uint64_t hash;
  bool of_memory; /* libraries do not count */
  bool library;   /* of the frame before this one */
  long nr_ours;
  size_t len;
  char text[2000];
};

static void
add (struct stack *s, const char *name, uint64_t at)
{
  s->hash = (s->hash ^ at) * 0x100000001b3;
  s->hash ^= s->hash >> 29;
  if (s->len < sizeof s->text - 100)
    s->len += snprintf (s->text + s->len, 100, " %.60s+0x%" PRIx64, name, at);
}

static _Unwind_Reason_Code
frame (struct _Unwind_Context *context, void *arg)
{
  struct stack *s = arg;
  uintptr_t pc = _Unwind_GetIP (context);
  struct dl_find_object object;
  const char *path, *name;
  bool library;

  if (pc == 0 || _dl_find_object ((void *) pc, &object) != 0)
    return _URC_NO_REASON;
  path = object.dlfo_link_map->l_name;
  name = strrchr (path, '/');
  name = path[0] == '\0' ? program_invocation_short_name
    : name               ? name + 1
                         : path;
  library = strncmp (name, "lib", 3) == 0 && strncmp (name, "libc.", 5) != 0;
  if (!library && strcmp (name, "nbdedup") != 0 &&
      strcmp (name, "nbdkit-dedup-plugin.so") != 0)
    return _URC_NO_REASON;
  if (!library || (!s->of_memory && !s->library))
    add (s, name, pc - object.dlfo_link_map->l_addr);
  s->library = library;
  s->nr_ours += !library;
  return s->nr_ours < depth ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static void
walk (struct stack *s, const char *call)
{
  *s = (struct stack) {
    .hash = 0xcbf29ce484222325,
    .of_memory = strcmp (call, "memory") == 0,
  };
  _Unwind_Backtrace (frame, s);
}

static void
append (int fd, const char *text, size_t n)
{
  if (syscall (SYS_write, fd, text, n) != (long) n)
    abort ();
}

/* True if this call, which may fail, is to fail. */
static bool
its_turn (const char *call, struct stack *s)
{
  long nr;

  if (wanted && atomic_load (&calls) < nth) {
    walk (s, call);
    if (s->hash != wanted)
      return false;
  }
  nr = atomic_fetch_add (&calls, 1) + 1;
  return nr >= nth && nr < nth + count;
}

/* Decide what happens to this call.  If it is to fail, set errno.  If it is to
 * take long, sleep here.
 */
static enum verdict
judge (const char *call, const char *name)
{
  struct stack s;
  char text[2400];
  int fd, n;

  if (trace != -1 && (arm == NULL || syscall (SYS_access, arm, F_OK) == 0)) {
    walk (&s, call);
    n = snprintf (text, sizeof text, "%d %s %.300s %016" PRIx64 "\n",
                  (int) getpid (), call, name, s.hash);
    append (trace, text, n);
  }
  if (file == NULL || which == NULL || strcmp (call, which) != 0 ||
      fnmatch (file, name, 0) != 0)
    return GO_ON;
  if (arm && syscall (SYS_access, arm, F_OK) == -1)
    return GO_ON;
  s.len = 0;
  if (!its_turn (call, &s))
    return GO_ON;

  if (log_path) {
    fd = syscall (SYS_openat, AT_FDCWD, log_path,
                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    n = milliseconds
      ? snprintf (text, sizeof text, "%s of %.300s takes long", call, name)
      : transfer_less
      ? snprintf (text, sizeof text, "%s of %.300s is short", call, name)
      : snprintf (text, sizeof text, "%s of %.300s fails with errno %d", call,
                  name, error);
    n += snprintf (text + n, sizeof text - n, "%.*s\n", (int) s.len,
                   s.len ? s.text : "");
    if (fd == -1)
      abort ();
    append (fd, text, n);
    close (fd);
  }
  if (milliseconds) {
    usleep ((useconds_t) milliseconds * 1000);
    return GO_ON;
  }
  if (transfer_less)
    return SHORT;
  errno = error;
  return FAIL;
}

/* The same for a call on a file.  The digits of a random name become 'x', so
 * that the name is the same each time.
 */
static enum verdict
judge_path (const char *call, char *path)
{
  static const char deleted[] = " (deleted)";
  size_t n = strlen (path), digits;
  enum verdict v;
  char *base, *p;

  if (n >= sizeof deleted &&
      strcmp (path + n - (sizeof deleted - 1), deleted) == 0)
    path[n - (sizeof deleted - 1)] = '\0';
  /* A directory, opened for O_TMPFILE, may end with one. */
  for (n = strlen (path); n > 1 && path[n - 1] == '/'; --n)
    path[n - 1] = '\0';
  if (below && strncmp (path, below, strlen (below)) != 0)
    return GO_ON;
  base = strrchr (path, '/');
  base = below && strcmp (path, below) == 0 ? strcpy (path, "directory")
    : base                                  ? base + 1
                                            : path;
  for (p = base; *p; ++p) {
    digits = strspn (p, "0123456789abcdef");
    if (digits >= 6)
      memset (p, 'x', digits);
    p += digits ? digits - 1 : 0;
  }
  inside = true;
  v = judge (call, base);
  inside = false;
  return v;
}

static enum verdict
judge_fd (const char *call, int fd)
{
  char link[32], path[PATH_MAX];
  ssize_t n;
  int saved = errno;

  if (inside || (trace == -1 && (which == NULL || strcmp (call, which) != 0)))
    return GO_ON;
  snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
  n = readlink (link, path, sizeof path - 1);
  errno = saved;
  if (n <= 0 || path[0] != '/')
    return GO_ON;
  path[n] = '\0';
  return judge_path (call, path);
}

static enum verdict
judge_at (const char *call, int dir, const char *name)
{
  char link[32], path[PATH_MAX];
  ssize_t n = 0;
  int saved = errno;

  if (inside || (trace == -1 && (which == NULL || strcmp (call, which) != 0)))
    return GO_ON;
  if (name[0] != '/') {
    if (dir == AT_FDCWD)
      strcpy (link, "/proc/self/cwd");
    else
      snprintf (link, sizeof link, "/proc/self/fd/%d", dir);
    n = readlink (link, path, sizeof path - 1);
    errno = saved;
    if (n <= 0)
      return GO_ON;
    path[n++] = '/';
  }
  if (n + strlen (name) >= sizeof path)
    return GO_ON;
  strcpy (path + n, name);
  return judge_path (call, path);
}

/* The same for a call for memory or a thread, by the object that calls. */
static enum verdict
judge_caller (const char *call, const void *address)
{
  enum verdict v;
  const char *base;
  Dl_info info;

  if (inside || (trace == -1 && (which == NULL || strcmp (call, which) != 0)))
    return GO_ON;
  inside = true;
  v = GO_ON;
  if (dladdr (address, &info) && info.dli_fname) {
    base = strrchr (info.dli_fname, '/');
    v = judge (call, base ? base + 1 : info.dli_fname);
  }
  inside = false;
  return v;
}

#define REAL(ret, name, params)                                                \
  static ret (*real) params;                                                   \
                                                                               \
  if (real == NULL)                                                            \
  real = dlsym (RTLD_NEXT, #name)

#define WRAP(ret, name, verdict, failed, params, args)                         \
  ret name params;                                                             \
  ret name params                                                              \
  {                                                                            \
    REAL (ret, name, params);                                                  \
    return verdict == FAIL ? failed : real args;                               \
  }

#define HALF(len) ((len) > 1 ? (len) / 2 : (len))

#define WRAP_TRANSFER(ret, name, call, params, args)                           \
  ret name params;                                                             \
  ret name params                                                              \
  {                                                                            \
    enum verdict v = judge_fd (call, fd);                                      \
    REAL (ret, name, params);                                                  \
                                                                               \
    if (v == FAIL)                                                             \
      return -1;                                                               \
    if (v == SHORT)                                                            \
      len = HALF (len);                                                        \
    return real args;                                                          \
  }

#define WRAP_VECTOR(name, params, args)                                        \
  ssize_t name params;                                                         \
  ssize_t name params                                                          \
  {                                                                            \
    enum verdict v = judge_fd ("write", fd);                                   \
    struct iovec first;                                                        \
    REAL (ssize_t, name, params);                                              \
                                                                               \
    if (v == FAIL)                                                             \
      return -1;                                                               \
    if (v == SHORT && nr > 1)                                                  \
      nr /= 2;                                                                 \
    else if (v == SHORT && nr == 1) {                                          \
      first = iov[0];                                                          \
      first.iov_len = HALF (first.iov_len);                                    \
      iov = &first;                                                            \
    }                                                                          \
    return real args;                                                          \
  }

WRAP_TRANSFER (ssize_t, pwrite, "write",
               (int fd, const void *buf, size_t len, off_t offset),
               (fd, buf, len, offset))
WRAP_TRANSFER (ssize_t, pwrite64, "write",
               (int fd, const void *buf, size_t len, off_t offset),
               (fd, buf, len, offset))
WRAP_TRANSFER (ssize_t, write, "write", (int fd, const void *buf, size_t len),
               (fd, buf, len))
WRAP_VECTOR (writev, (int fd, const struct iovec *iov, int nr), (fd, iov, nr))
WRAP_VECTOR (pwritev, (int fd, const struct iovec *iov, int nr, off_t offset),
             (fd, iov, nr, offset))
WRAP_VECTOR (pwritev64, (int fd, const struct iovec *iov, int nr, off_t offset),
             (fd, iov, nr, offset))
WRAP_TRANSFER (ssize_t, pread, "read",
               (int fd, void *buf, size_t len, off_t offset),
               (fd, buf, len, offset))
WRAP_TRANSFER (ssize_t, pread64, "read",
               (int fd, void *buf, size_t len, off_t offset),
               (fd, buf, len, offset))
WRAP_TRANSFER (ssize_t, read, "read", (int fd, void *buf, size_t len),
               (fd, buf, len))
WRAP (int, fdatasync, judge_fd ("sync", fd), -1, (int fd), (fd))
WRAP (int, fsync, judge_fd ("sync", fd), -1, (int fd), (fd))
WRAP (int, fallocate, judge_fd ("fallocate", fd), -1,
      (int fd, int mode, off_t offset, off_t len), (fd, mode, offset, len))
WRAP (int, fallocate64, judge_fd ("fallocate", fd), -1,
      (int fd, int mode, off_t offset, off_t len), (fd, mode, offset, len))
WRAP (int, ftruncate, judge_fd ("truncate", fd), -1, (int fd, off_t len),
      (fd, len))
WRAP (int, ftruncate64, judge_fd ("truncate", fd), -1, (int fd, off_t len),
      (fd, len))
WRAP (int, fstat, judge_fd ("stat", fd), -1, (int fd, struct stat *st),
      (fd, st))
WRAP (int, fstat64, judge_fd ("stat", fd), -1, (int fd, struct stat64 *st),
      (fd, st))
WRAP (int, fstatvfs, judge_fd ("statvfs", fd), -1, (int fd, struct statvfs *st),
      (fd, st))
WRAP (int, statvfs, judge_at ("statvfs", AT_FDCWD, path), -1,
      (const char *path, struct statvfs *st), (path, st))
WRAP (int, rename, judge_at ("rename", AT_FDCWD, old), -1,
      (const char *old, const char *new), (old, new))
WRAP (int, unlink, judge_at ("unlink", AT_FDCWD, path), -1, (const char *path),
      (path))
WRAP (int, unlinkat, judge_at ("unlink", dir, path), -1,
      (int dir, const char *path, int flags), (dir, path, flags))
WRAP (void *, mmap, judge_fd ("map", fd), MAP_FAILED,
      (void *at, size_t len, int prot, int flags, int fd, off_t offset),
      (at, len, prot, flags, fd, offset))
WRAP (void *, mmap64, judge_fd ("map", fd), MAP_FAILED,
      (void *at, size_t len, int prot, int flags, int fd, off_t offset),
      (at, len, prot, flags, fd, offset))

/* Functions with an optional last argument. */
#define LAST(type, from)                                                       \
  va_list list;                                                                \
  type last;                                                                   \
                                                                               \
  va_start (list, from);                                                       \
  last = va_arg (list, type);                                                  \
  va_end (list)

#define WRAP_OPEN(name)                                                        \
  int name (const char *path, int flags, ...);                                 \
  int name (const char *path, int flags, ...)                                  \
  {                                                                            \
    LAST (int, flags);                                                         \
    REAL (int, name, (const char *, int, ...));                                \
                                                                               \
    return judge_at ("open", AT_FDCWD, path) == FAIL                           \
      ? -1                                                                     \
      : real (path, flags, last);                                              \
  }

#define WRAP_OPENAT(name)                                                      \
  int name (int dir, const char *path, int flags, ...);                        \
  int name (int dir, const char *path, int flags, ...)                         \
  {                                                                            \
    LAST (int, flags);                                                         \
    REAL (int, name, (int, const char *, int, ...));                           \
                                                                               \
    return judge_at ("open", dir, path) == FAIL                                \
      ? -1                                                                     \
      : real (dir, path, flags, last);                                         \
  }

WRAP_OPEN (open)
WRAP_OPEN (open64)
WRAP_OPENAT (openat)
WRAP_OPENAT (openat64)

#define WRAP_FCNTL(name)                                                       \
  int name (int fd, int cmd, ...);                                             \
  int name (int fd, int cmd, ...)                                              \
  {                                                                            \
    bool locks = cmd == F_SETLK || cmd == F_SETLKW || cmd == F_OFD_SETLK ||    \
      cmd == F_OFD_SETLKW;                                                     \
    LAST (void *, cmd);                                                        \
    REAL (int, name, (int, int, ...));                                         \
                                                                               \
    return locks && judge_fd ("lock", fd) == FAIL ? -1 : real (fd, cmd, last); \
  }

WRAP_FCNTL (fcntl)
WRAP_FCNTL (fcntl64)

/* ----------------------------------------------------------------------
 * Memory, threads
 */

#define CALLER __builtin_return_address (0)

static bool
no_memory (const void *caller)
{
  return (memory || trace != -1) && judge_caller ("memory", caller) == FAIL;
}

void *
malloc (size_t size)
{
  return no_memory (CALLER) ? NULL : __libc_malloc (size);
}

void *
calloc (size_t nr, size_t size)
{
  return no_memory (CALLER) ? NULL : __libc_calloc (nr, size);
}

void *
realloc (void *ptr, size_t size)
{
  return no_memory (CALLER) ? NULL : __libc_realloc (ptr, size);
}

void *
aligned_alloc (size_t align, size_t size)
{
  return no_memory (CALLER) ? NULL : __libc_memalign (align, size);
}

/* Inside libc's functions libc would be the caller, so these replace them. */
char *
strdup (const char *s)
{
  size_t n = strlen (s) + 1;
  char *copy = no_memory (CALLER) ? NULL : __libc_malloc (n);

  return copy ? memcpy (copy, s, n) : NULL;
}

char *
strndup (const char *s, size_t max)
{
  size_t n = strnlen (s, max);
  char *copy = no_memory (CALLER) ? NULL : __libc_malloc (n + 1);

  if (copy == NULL)
    return NULL;
  copy[n] = '\0';
  return memcpy (copy, s, n);
}

int
asprintf (char **text, const char *format, ...)
{
  va_list list;
  int r;

  if (no_memory (CALLER))
    return -1;
  va_start (list, format);
  r = vasprintf (text, format, list);
  va_end (list);
  return r;
}

WRAP (int, pthread_create, judge_caller ("thread", CALLER), EAGAIN,
      (pthread_t * thread, const pthread_attr_t *attr, void *(*run) (void *),
       void *arg),
      (thread, attr, run, arg))

/* ----------------------------------------------------------------------
 * The time of day
 */

static time_t
wrong_by (void)
{
  char text[32];
  ssize_t n;
  int fd;

  if (clock_path == NULL)
    return 0;
  fd = syscall (SYS_openat, AT_FDCWD, clock_path, O_RDONLY | O_CLOEXEC);
  if (fd == -1)
    return 0;
  n = syscall (SYS_read, fd, text, sizeof text - 1);
  close (fd);
  text[n > 0 ? n : 0] = '\0';
  return atol (text);
}

int
clock_gettime (clockid_t clock, struct timespec *ts)
{
  int r = syscall (SYS_clock_gettime, clock, ts);

  if (r == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    ts->tv_sec += wrong_by ();
  return r;
}

int
gettimeofday (struct timeval *tv, void *zone)
{
  struct timespec ts;

  (void) zone;
  clock_gettime (CLOCK_REALTIME, &ts);
  tv->tv_sec = ts.tv_sec;
  tv->tv_usec = ts.tv_nsec / 1000;
  return 0;
}

time_t
time (time_t *result)
{
  struct timespec ts;

  clock_gettime (CLOCK_REALTIME, &ts);
  if (result)
    *result = ts.tv_sec;
  return ts.tv_sec;
}

/* ----------------------------------------------------------------------
 * SQLite: a function that fails does nothing.
 */

static void *
sqlite_function (const char *name)
{
  static void *library;
  void *function;

  inside = true;
  /* A plugin's libraries are not among those that RTLD_NEXT finds. */
  if (library == NULL)
    library = dlopen ("libsqlite3.so.0", RTLD_LAZY | RTLD_NOLOAD);
  function = library ? dlsym (library, name) : NULL;
  inside = false;
  if (function == NULL)
    abort ();
  return function;
}

/* SQLite's own calls of these functions do not fail: sqlite3_exec ignores what
 * sqlite3_step returns.
 */
static bool
is_sqlite (const void *caller)
{
  struct dl_find_object object;

  return _dl_find_object ((void *) caller, &object) == 0 &&
    strstr (object.dlfo_link_map->l_name, "/libsqlite3.so") != NULL;
}

/* The result code, or 0. */
static int
sqlite_fails (const char *name, const void *caller)
{
  enum verdict v;

  faked = SQLITE_OK;
  if (inside || is_sqlite (caller) ||
      (trace == -1 && (which == NULL || strcmp (which, "sqlite") != 0)))
    return SQLITE_OK;
  inside = true;
  v = judge ("sqlite", name);
  inside = false;
  if (v != FAIL)
    return SQLITE_OK;
  switch (error) {
  case ENOMEM:
    return faked = SQLITE_NOMEM;
  case ENOSPC:
    return faked = SQLITE_FULL;
  case EINTR:
    return faked = SQLITE_BUSY;
  default:
    return faked = SQLITE_IOERR;
  }
}

/* Do not fail a rollback here: it can fail only for lack of memory. */
static bool
is_rollback (const char *sql)
{
  return sql && strcmp (sql, "ROLLBACK") == 0;
}

static const char *
sql_of (sqlite3_stmt *stmt)
{
  static const char *(*real) (sqlite3_stmt *);

  if (real == NULL)
    real = sqlite_function ("sqlite3_sql");
  return real (stmt);
}

#define WRAP_SQLITE(name, clear, sql, params, args)                            \
  int name params                                                              \
  {                                                                            \
    static int (*real) params;                                                 \
    int r = is_rollback (sql) ? SQLITE_OK : sqlite_fails (#name, CALLER);      \
                                                                               \
    if (real == NULL)                                                          \
      real = sqlite_function (#name);                                          \
    if (r != SQLITE_OK) {                                                      \
      clear;                                                                   \
      return r;                                                                \
    }                                                                          \
    return real args;                                                          \
  }

WRAP_SQLITE (sqlite3_open_v2, *db = NULL, NULL,
             (const char *path, sqlite3 **db, int flags, const char *vfs),
             (path, db, flags, vfs))
WRAP_SQLITE (sqlite3_prepare_v2, *stmt = NULL, sql,
             (sqlite3 * db, const char *sql, int len, sqlite3_stmt **stmt,
              const char **tail),
             (db, sql, len, stmt, tail))
WRAP_SQLITE (sqlite3_prepare_v3, *stmt = NULL, sql,
             (sqlite3 * db, const char *sql, int len, unsigned flags,
              sqlite3_stmt **stmt, const char **tail),
             (db, sql, len, flags, stmt, tail))
WRAP_SQLITE (sqlite3_step, , sql_of (stmt), (sqlite3_stmt * stmt), (stmt))
WRAP_SQLITE (sqlite3_exec, if (message) *message = NULL, sql,
             (sqlite3 * db, const char *sql, sqlite3_callback callback,
              void *arg, char **message),
             (db, sql, callback, arg, message))
WRAP_SQLITE (sqlite3_wal_checkpoint_v2, , NULL,
             (sqlite3 * db, const char *name, int mode, int *pages, int *done),
             (db, name, mode, pages, done))

int
sqlite3_extended_errcode (sqlite3 *db)
{
  static int (*real) (sqlite3 *);

  if (faked)
    return faked;
  if (real == NULL)
    real = sqlite_function ("sqlite3_extended_errcode");
  return real (db);
}

const char *
sqlite3_errmsg (sqlite3 *db)
{
  static const char *(*real) (sqlite3 *), *(*text) (int);

  if (real == NULL) {
    real = sqlite_function ("sqlite3_errmsg");
    text = sqlite_function ("sqlite3_errstr");
  }
  return faked ? text (faked) : real (db);
}
