/* SPDX-License-Identifier: BSD-3-Clause */

/* The pool's "lock" file.
 *
 * Processes lock single bytes of the file, each with an OFD lock:
 *
 *   byte 0   exclusive: the process that has the pool open; shared: processes
 *            that only read.  This lock decides
 *   byte 1   exclusive: the same process, after writing its text to the file
 *   byte 2   shared: servers that only read
 *
 * A crash, and also an ordinary close, leaves the text behind.  The lock of
 * byte 1 distinguishes the present holder's text from an earlier one's: without
 * it a reader between a new holder's lock and its text would name the wrong
 * process, and wait for it.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* F_OFD_SETLK */
#endif

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/log.h"
#include "base/owner.h"
#include "disk/lockfile.h"

#define HELD_BYTE 0
#define TEXT_BYTE 1
#define READING_SERVER_BYTE 2

/* "command", a pid and 'who', with room for extensions. */
#define TEXT_MAX 512

static struct flock
lock_of_byte (off_t byte, short type)
{
  return (struct flock) {
    .l_type = type,
    .l_whence = SEEK_SET,
    .l_start = byte,
    .l_len = 1,
  };
}

/* Returns 1 if the byte is now locked by 'fd', 0 if another file has it,
 * -1 with errno.
 */
static int
try_lock (int fd, off_t byte, short type)
{
  struct flock fl = lock_of_byte (byte, type);

  for (;;) {
    if (fcntl (fd, F_OFD_SETLK, &fl) == 0)
      return 1;
    if (errno == EAGAIN || errno == EACCES)
      return 0;
    if (errno != EINTR)
      return -1;
  }
}

/* Returns 1 if a lock of another open file description prevents a lock of this
 * type on the byte, 0 if not, -1 with errno.
 */
static int
has_owner (int fd, off_t byte, short type)
{
  struct flock fl = lock_of_byte (byte, type);

  if (fcntl (fd, F_OFD_GETLK, &fl) == -1)
    return -1;
  return fl.l_type != F_UNLCK;
}

/* Parse "opening STAGE DONE TOTAL\n".  Any other text says nothing: the holder
 * may be writing it at this moment.
 */
static void
parse_opening (const char *text, struct lockfile_opening *opening)
{
  struct lockfile_opening o;
  int end = -1;

  if (sscanf (text, "opening %15[a-z] %" SCNu64 " %" SCNu64 "%n", o.stage,
              &o.done, &o.total, &end) == 3 &&
      end != -1 && text[end] == '\n')
    *opening = o;
}

/* Parse "server PID WHO\n".  Returns false for any other text. */
static bool
parse_text (const char *text, struct lockfile_holder *holder)
{
  const char *p;
  char *end;
  intmax_t pid;
  size_t len;

  if (strncmp (text, "server ", 7) == 0) {
    holder->server = true;
    p = text + 7;
  }
  else if (strncmp (text, "command ", 8) == 0) {
    holder->server = false;
    p = text + 8;
  }
  else
    return false;

  if (*p < '1' || *p > '9')
    return false;
  errno = 0;
  pid = strtoimax (p, &end, 10);
  if (errno != 0 || pid > INT_MAX || *end != ' ')
    return false;

  p = end + 1;
  len = strcspn (p, "\n");
  if (p[len] != '\n') /* cut short */
    return false;
  if (len >= sizeof holder->who)
    len = sizeof holder->who - 1;
  memcpy (holder->who, p, len);
  holder->who[len] = '\0';
  holder->pid = pid;
  parse_opening (strchr (p, '\n') + 1, &holder->opening);
  return true;
}

/* Describe the holder of the lock.  All zero if it is not known. */
static void
read_holder (int fd, struct lockfile_holder *holder)
{
  char text[TEXT_MAX + 1];
  struct stat st;
  int64_t len;

  memset (holder, 0, sizeof *holder);
  if (has_owner (fd, HELD_BYTE, F_RDLCK) == 0 &&
      has_owner (fd, HELD_BYTE, F_WRLCK) == 1) {
    holder->reader = true;
    holder->reader_is_server = has_owner (fd, READING_SERVER_BYTE, F_WRLCK) ==
      1;
    return;
  }
  if (has_owner (fd, TEXT_BYTE, F_WRLCK) != 1)
    return;
  len = full_pread (fd, text, TEXT_MAX, 0);
  if (len <= 0)
    return;
  text[len] = '\0';
  if (!parse_text (text, holder))
    memset (holder, 0, sizeof *holder);
  else if (fstat (fd, &st) == 0)
    holder->since = st.st_mtim.tv_sec; /* the text is written first */
}

static int
fail_busy (const char *pool, int fd, struct lockfile_holder *holder)
{
  struct lockfile_holder h;

  read_holder (fd, &h);
  if (holder)
    *holder = h;
  if (h.reader)
    return nbdedup_fail (EBUSY,
                         "%s: another process has this pool open "
                         "read-only",
                         pool);
  if (h.pid == 0)
    return nbdedup_fail (EBUSY, "%s: another process has this pool open", pool);
  return nbdedup_fail (EBUSY, "%s: the %s %s (process %d) has this pool open",
                       pool, h.server ? "server" : "command", h.who,
                       (int) h.pid);
}

/* A process that /proc does not show has ended, or runs on another machine. */
bool
lockfile_holder_is_ending (const struct lockfile_holder *holder)
{
  char path[40], text[TEXT_MAX + 1];
  CLEANUP_CLOSE int fd = -1;
  const char *p;
  int64_t len;

  snprintf (path, sizeof path, "/proc/%ld/stat", (long) holder->pid);
  fd = open (path, O_RDONLY | O_CLOEXEC);
  if (fd == -1)
    return true;
  len = full_pread (fd, text, TEXT_MAX, 0);
  if (len <= 0)
    return true;
  text[len] = '\0';
  p = strrchr (text, ')'); /* PID (NAME) STATE; NAME may contain ")" */
  return p != NULL &&
    (strncmp (p, ") Z", 3) == 0 || strncmp (p, ") X", 3) == 0);
}

/* Format the text of a holder: one line, whatever 'who' contains. */
static size_t
format_text (char text[TEXT_MAX], bool server, const char *who)
{
  size_t i, start;
  int n;

  start = snprintf (text, TEXT_MAX, "%s %d ", server ? "server" : "command",
                    (int) getpid ());
  n = snprintf (text + start, TEXT_MAX - start, "%.127s", who);
  assert (n >= 0 && start + n < TEXT_MAX - 1);
  for (i = start; i < start + n; ++i)
    if ((unsigned char) text[i] < 0x20 || text[i] == 0x7f)
      text[i] = '?';
  text[i++] = '\n';
  return i;
}

/* Overwrite before truncating: that needs no new space on most file systems.
 * If the disk is full open the pool without a text: then other processes do not
 * learn which one has it.
 */
static int
write_text (int fd, const char *path, bool server, const char *who)
{
  char text[TEXT_MAX];
  size_t len;
  int r;

  len = format_text (text, server, who);
  if (full_pwrite (fd, text, len, 0) == -1 || ftruncate (fd, len) == -1) {
    if (errno == ENOSPC || errno == EDQUOT)
      return 0;
    return nbdedup_fail (errno,
                         "%s: cannot record which process has the pool "
                         "open: %s",
                         path, strerror (errno));
  }
  r = try_lock (fd, TEXT_BYTE, F_WRLCK);
  if (r == -1)
    return nbdedup_fail (errno, "%s: cannot lock: %s", path, strerror (errno));
  if (r == 0) /* nbdedup never takes only this byte */
    return nbdedup_fail (EBUSY, "%s: locked by a program that is not nbdedup",
                         path);
  return 0;
}

/* The text is not synced: after a crash no process has the lock.  The file
 * keeps its time, which says since when the holder has it.
 */
void
lockfile_tell (int fd, const char *stage, uint64_t done, uint64_t total)
{
  char text[TEXT_MAX + 64];
  struct stat st;
  const int64_t len = full_pread (fd, text, TEXT_MAX, 0);
  char *line;

  if (len <= 0 || fstat (fd, &st) == -1)
    return;
  line = memchr (text, '\n', (size_t) len);
  if (line == NULL) /* a full disk: there is no text */
    return;
  ++line;
  if (stage)
    line += snprintf (line, 64, "opening %.15s %" PRIu64 " %" PRIu64 "\n",
                      stage, done, total);
  if (full_pwrite (fd, text, (size_t) (line - text), 0) == -1 ||
      ftruncate (fd, line - text) == -1)
    return;
  (void) futimens (fd, (struct timespec[]) { st.st_atim, st.st_mtim });
}

static int
check_regular (int fd, const char *path)
{
  struct stat st;

  if (fstat (fd, &st) == -1)
    return nbdedup_fail (errno, "%s: %s", path, strerror (errno));
  if (!S_ISREG (st.st_mode))
    return nbdedup_fail (EINVAL,
                         "%s: not a regular file, so it is not "
                         "a pool's lock: remove it",
                         path);
  return 0;
}

/* Open the lock file, which needs only permission to read.  '*fd' is -1 if
 * there is none.
 */
static int
open_to_read (const char *pool, const char *path, int *fd)
{
  *fd = open (path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (*fd == -1) {
    if (errno == ENOENT && access (pool, F_OK) == 0)
      return 0;
    return nbdedup_fail (errno, "%s: cannot open: %s", path, strerror (errno));
  }
  return check_regular (*fd, path);
}

/* Test the lock without taking it. */
static int
test_lock (const char *pool, const char *path, struct lockfile_holder *holder)
{
  CLEANUP_CLOSE int fd = -1;
  int r;

  if (open_to_read (pool, path, &fd) == -1)
    return -1;
  if (fd == -1)
    return 0;
  r = has_owner (fd, HELD_BYTE, F_WRLCK);
  if (r == -1)
    return nbdedup_fail (errno,
                         "%s: cannot tell whether the pool is in "
                         "use: %s",
                         path, strerror (errno));
  if (r == 1)
    return fail_busy (pool, fd, holder);
  return 0;
}

/* The lock file could not be opened for writing.  If a server has the pool,
 * report that: the caller can work through the server without permission to
 * write here.
 */
static int
fail_open (const char *pool, const char *path, int err,
           struct lockfile_holder *holder)
{
  if (err == EACCES || err == EPERM || err == EROFS) {
    if (test_lock (pool, path, holder) == -1 && errno == EBUSY)
      return -1;
    if (err == EROFS)
      return nbdedup_fail (EROFS,
                           "%s: cannot lock the pool: its file system "
                           "is read-only; mount it read-write",
                           path);
    return nbdedup_fail (err,
                         "%s: cannot lock the pool: %s; run this as a "
                         "user who may write to %s",
                         path, strerror (err), pool);
  }
  if (err == ELOOP)
    return nbdedup_fail (EINVAL,
                         "%s: a symbolic link, so it is not a pool's "
                         "lock: remove it",
                         path);
  return nbdedup_fail (err, "%s: cannot open: %s", path, strerror (err));
}

int
lockfile_take (const char *pool, bool server, const char *who,
               struct lockfile_holder *holder)
{
  CLEANUP_FREE char *path = NULL;
  CLEANUP_CLOSE int fd = -1;
  int r;

  if (holder)
    memset (holder, 0, sizeof *holder);
  if (asprintf (&path, "%s/lock", pool) == -1) {
    path = NULL;
    return nbdedup_fail (ENOMEM, "%s: out of memory", pool);
  }
  if (who == NULL)
    return test_lock (pool, path, holder);

  fd = open_owned (path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd == -1)
    return fail_open (pool, path, errno, holder);
  if (check_regular (fd, path) == -1)
    return -1;

  r = try_lock (fd, HELD_BYTE, F_WRLCK);
  if (r == -1)
    return nbdedup_fail (errno, "%s: cannot lock: %s", path, strerror (errno));
  if (r == 0)
    return fail_busy (pool, fd, holder);
  if (write_text (fd, path, server, who) == -1)
    return -1;

  r = fd;
  fd = -1;
  return r;
}

int
lockfile_share (const char *pool, bool server, int *fd,
                struct lockfile_holder *holder)
{
  CLEANUP_FREE char *path = NULL;
  CLEANUP_CLOSE int mine = -1;
  int r;

  if (holder)
    memset (holder, 0, sizeof *holder);
  if (fd)
    *fd = -1;
  if (asprintf (&path, "%s/lock", pool) == -1) {
    path = NULL;
    return nbdedup_fail (ENOMEM, "%s: out of memory", pool);
  }
  if (open_to_read (pool, path, &mine) == -1)
    return -1;
  if (mine == -1) {
    if (fd)
      nbdedup_log (NBDEDUP_LOG_WARNING,
                   "%s: is missing: nothing keeps other "
                   "processes from writing to the pool",
                   path);
    return 0;
  }

  if (fd)
    r = try_lock (mine, HELD_BYTE, F_RDLCK);
  else
    r = has_owner (mine, HELD_BYTE, F_RDLCK) != 1;
  if (r == 0)
    return fail_busy (pool, mine, holder);
  if (fd == NULL)
    return 0;
  if (r == 1 && server)
    r = try_lock (mine, READING_SERVER_BYTE, F_RDLCK);
  if (r != 1) {
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: cannot lock: %s: nothing keeps "
                 "other processes from writing to the pool",
                 path, strerror (errno));
    return 0;
  }
  *fd = mine;
  mine = -1;
  return 0;
}
