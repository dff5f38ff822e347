/* SPDX-License-Identifier: BSD-3-Clause */

/* The pool's lock: which process gets it, what others learn about the holder,
 * and what a crash leaves; also the messages of error.c and the loops of
 * fullio.c.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fullio.h"
#include "disk/lockfile.h"

static char dir[] = "/tmp/nbdedup-lockfile-XXXXXX";
static char lock_path[64];

static void
write_lock_text (const char *text, size_t len)
{
  int fd = open (lock_path, O_RDWR | O_CREAT | O_TRUNC, 0644);

  assert (fd != -1);
  assert (full_pwrite (fd, text, len, 0) == 0);
  close (fd);
}

/* Children die with the test, so a test that fails leaves none behind. */
static pid_t
fork_child (void)
{
  pid_t pid = fork ();

  assert (pid != -1);
  if (pid == 0)
    assert (prctl (PR_SET_PDEATHSIG, SIGKILL) == 0);
  return pid;
}

static void
expect_opening (const char *stage, uint64_t done, uint64_t total)
{
  struct lockfile_holder h;

  assert (lockfile_take (dir, false, "other", &h) == -1 && errno == EBUSY);
  assert (h.server && h.pid == getpid () && strcmp (h.who, "server") == 0);
  assert (strcmp (h.opening.stage, stage) == 0);
  assert (h.opening.done == done && h.opening.total == total);
}

static int
take (bool server, const char *who)
{
  int fd = lockfile_take (dir, server, who, NULL);

  assert (fd != -1);
  return fd;
}

/* A child that takes the lock, says so, and waits to be killed. */
static pid_t
start_holder (bool server, const char *who)
{
  int fds[2];
  char ch;
  pid_t pid;

  assert (pipe (fds) == 0);
  pid = fork_child ();
  if (pid == 0) {
    close (fds[0]);
    if (lockfile_take (dir, server, who, NULL) == -1 ||
        write (fds[1], "x", 1) != 1)
      _exit (1);
    for (;;)
      pause ();
  }
  close (fds[1]);
  assert (read (fds[0], &ch, 1) == 1);
  close (fds[0]);
  return pid;
}

static void
kill_holder (pid_t pid)
{
  assert (kill (pid, SIGKILL) == 0);
  assert (waitpid (pid, NULL, 0) == pid);
}

static void
expect_busy (const char *who, bool server, pid_t pid, const char *name)
{
  struct lockfile_holder holder;

  memset (&holder, 0xff, sizeof holder);
  errno = 0;
  assert (lockfile_take (dir, false, who, &holder) == -1);
  assert (errno == EBUSY);
  assert (holder.server == server);
  assert (holder.pid == pid);
  assert (strcmp (holder.who, name) == 0);
  assert (strstr (nbdedup_error (), dir) != NULL);
  assert (strstr (nbdedup_error (), name) != NULL);
}

/* Lock the first 'len' bytes as a process does that has written no text: no
 * message may name an earlier holder.
 */
static void
expect_no_name (off_t len)
{
  struct flock fl = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = len };
  int fd = open (lock_path, O_RDWR);

  assert (fd != -1 && fcntl (fd, F_OFD_SETLK, &fl) == 0);
  expect_busy ("x", false, 0, "");
  expect_busy (NULL, false, 0, "");
  close (fd);
}

static void
test_take_and_release (void)
{
  struct lockfile_holder holder;
  char text[128], expected[128];
  int fd, fd2;
  int64_t n;

  assert (lockfile_take (dir, false, NULL, &holder) == 0);
  assert (access (lock_path, F_OK) == -1); /* testing makes no file */

  fd = lockfile_take (dir, true, "nbdkit", &holder);
  assert (fd != -1);
  assert (fcntl (fd, F_GETFD) & FD_CLOEXEC);
  assert (holder.pid == 0);

  sprintf (expected, "server %d nbdkit\n", (int) getpid ());
  n = full_pread (fd, text, sizeof text - 1, 0);
  assert (n == (int64_t) strlen (expected));
  text[n] = '\0';
  assert (strcmp (text, expected) == 0);

  /* The same process is no exception. */
  expect_busy ("nbdedup list", true, getpid (), "nbdkit");
  expect_busy (NULL, true, getpid (), "nbdkit");
  assert (lockfile_take (dir, false, NULL, NULL) == -1);

  close (fd);
  assert (lockfile_take (dir, false, NULL, &holder) == 0);
  fd2 = take (false, "nbdedup create");
  expect_busy ("x", false, getpid (), "nbdedup create");
  close (fd2);
}

static void
test_crash (void)
{
  struct lockfile_holder holder;
  pid_t pid;
  int fd;

  pid = start_holder (true, "nbdkit");
  expect_busy ("nbdedup list", true, pid, "nbdkit");
  expect_busy (NULL, true, pid, "nbdkit");
  kill_holder (pid);

  /* The text is stale, the lock is gone. */
  assert (lockfile_take (dir, false, NULL, &holder) == 0);
  fd = take (false, "nbdedup get");
  expect_busy ("x", false, getpid (), "nbdedup get");
  close (fd);
}

/* The decisive byte is locked, but the text is still an earlier holder's. */
static void
test_stale_text (void)
{
  write_lock_text ("server 1 somebody\n", 18);
  expect_no_name (1);
}

/* Garbage in the file is not believed, and does no harm. */
static void
test_garbage_text (void)
{
  static const struct {
    const char *text;
    size_t len;
  } bad[] = {
    { "", 0 },
    { "\n", 1 },
    { "server", 6 },
    { "server \n", 8 },
    { "server x y\n", 11 },
    { "server -1 y\n", 12 },
    { "server 0 y\n", 11 },
    { "server 99999999999 y\n", 21 },
    { "server 99999999999999999999999 y\n", 33 },
    { "server 12\n", 10 },
    { "server 12 y", 11 },
    { "client 12 y\n", 12 },
    { "\0\0\0\0\0\0\0\0\0\0", 10 },
    { "server 12 y\0\n", 13 },
  };
  char *longtext;
  size_t i;
  int fd;

  for (i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    write_lock_text (bad[i].text, bad[i].len);
    expect_no_name (2);
  }

  longtext = malloc (100000);
  assert (longtext != NULL);
  memset (longtext, 'w', 100000);
  memcpy (longtext, "server 12 ", 10);
  write_lock_text (longtext, 100000);
  free (longtext);
  expect_no_name (2);

  /* A longer text of an earlier holder leaves nothing behind. */
  fd = take (false, "a");
  expect_busy ("x", false, getpid (), "a");
  close (fd);
}

static void
test_long_and_odd_names (void)
{
  struct lockfile_holder holder;
  char who[1000];
  int fd;

  memset (who, 'n', sizeof who);
  who[sizeof who - 1] = '\0';
  fd = take (false, who);
  assert (lockfile_take (dir, false, "x", &holder) == -1 && errno == EBUSY);
  assert (holder.pid == getpid () && strlen (holder.who) == 127);
  close (fd);

  fd = take (false, "two\nlines\033[2J");
  expect_busy ("x", false, getpid (), "two?lines?[2J");
  close (fd);
}

/* Only one of many processes gets the lock. */
static void
test_race (void)
{
  enum { NR = 16 };
  pid_t pids[NR];
  int i, status, winners = 0, go[2], done[2];
  char ch;

  assert (pipe (go) == 0 && pipe (done) == 0);
  for (i = 0; i < NR; ++i) {
    pids[i] = fork_child ();
    if (pids[i] == 0) {
      struct lockfile_holder holder;

      close (go[1]);
      close (done[0]);
      if (read (go[0], &ch, 1) != 0) /* until the parent closes it */
        _exit (2);
      if (lockfile_take (dir, i % 2, "racer", &holder) != -1) {
        /* Hold the lock until every other process has failed. */
        if (write (done[1], "w", 1) != 1)
          _exit (2);
        for (;;)
          pause ();
      }
      if (errno != EBUSY)
        _exit (2);
      if (holder.pid != 0 && strcmp (holder.who, "racer") != 0)
        _exit (2);
      if (write (done[1], "l", 1) != 1)
        _exit (2);
      _exit (0);
    }
  }
  close (go[0]);
  close (go[1]);
  for (i = 0; i < NR; ++i) {
    assert (read (done[0], &ch, 1) == 1);
    if (ch == 'w')
      winners++;
  }
  assert (winners == 1);
  for (i = 0; i < NR; ++i) {
    kill (pids[i], SIGKILL);
    assert (waitpid (pids[i], &status, 0) == pids[i]);
    assert (!WIFEXITED (status) || WEXITSTATUS (status) == 0);
  }
  close (done[0]);
  close (done[1]);
}

static void
test_bad_places (void)
{
  char path[128];

  sprintf (path, "%s/missing", dir);
  assert (lockfile_take (path, false, "x", NULL) == -1);
  assert (errno == ENOENT);
  assert (lockfile_take (path, false, NULL, NULL) == -1);
  assert (errno == ENOENT);
  assert (lockfile_take (lock_path, false, "x", NULL) == -1);
  assert (errno == ENOTDIR);

  /* A symbolic link, a directory and a FIFO are no locks, and a FIFO does
   * not hang.
   */
  sprintf (path, "%s/elsewhere", dir);
  assert (unlink (lock_path) == 0);
  assert (symlink (path, lock_path) == 0);
  assert (lockfile_take (dir, false, "x", NULL) == -1 && errno == EINVAL);
  assert (access (path, F_OK) == -1);
  assert (unlink (lock_path) == 0);

  assert (mkdir (lock_path, 0755) == 0);
  assert (lockfile_take (dir, false, "x", NULL) == -1);
  assert (lockfile_take (dir, false, NULL, NULL) == -1 && errno == EINVAL);
  assert (rmdir (lock_path) == 0);

  assert (mkfifo (lock_path, 0644) == 0);
  assert (lockfile_take (dir, false, "x", NULL) == -1 && errno == EINVAL);
  assert (lockfile_take (dir, false, NULL, NULL) == -1 && errno == EINVAL);
  assert (unlink (lock_path) == 0);

  close (take (false, "x"));
}

/* A user who may not write to the pool learns which process has it, or else
 * what to do.  Root may always write, so root becomes another user here.
 */
static void
test_no_permission (void)
{
  pid_t holder_pid, pid;
  int status;

  assert (chmod (dir, 0755) == 0 && chmod (lock_path, 0644) == 0);
  holder_pid = start_holder (true, "nbdkit");
  pid = fork_child ();
  if (pid == 0) {
    if (geteuid () == 0)
      assert (setgid (65534) == 0 && setuid (65534) == 0);
    else
      assert (chmod (lock_path, 0444) == 0);
    expect_busy ("x", true, holder_pid, "nbdkit");
    expect_busy (NULL, true, holder_pid, "nbdkit");
    _exit (0);
  }
  assert (waitpid (pid, &status, 0) == pid && status == 0);
  kill_holder (holder_pid);

  pid = fork_child ();
  if (pid == 0) {
    if (geteuid () == 0)
      assert (setgid (65534) == 0 && setuid (65534) == 0);
    else
      assert (chmod (lock_path, 0444) == 0);
    assert (lockfile_take (dir, false, "x", NULL) == -1);
    assert (errno == EACCES);
    assert (strstr (nbdedup_error (), "may write to") != NULL);
    assert (lockfile_take (dir, false, NULL, NULL) == 0);
    _exit (0);
  }
  assert (waitpid (pid, &status, 0) == pid && status == 0);
  assert (chmod (lock_path, 0644) == 0);
}

static void *
other_thread_fails (void *arg)
{
  assert (strcmp (nbdedup_error (), "no error") == 0);
  nbdedup_fail (ENOENT, "of the other thread");
  return arg;
}

static void
test_error (void)
{
  char longtext[3000];
  pthread_t thread;
  size_t len, i;

  assert (nbdedup_fail (EIO, "%s: expected %d, found %d", "x", 1, 2) == -1);
  assert (errno == EIO);
  assert (strcmp (nbdedup_error (), "x: expected 1, found 2") == 0);

  /* A text may have the last text as an argument. */
  assert (nbdedup_fail (ENOSPC, "y: %s", nbdedup_error ()) == -1);
  assert (errno == ENOSPC);
  assert (strcmp (nbdedup_error (), "y: x: expected 1, found 2") == 0);

  nbdedup_fail (EIO, "%s", "a\nb\tc\033[1m\177\302\233z\303\244");
  assert (strcmp (nbdedup_error (),
                  "a?b?c?[1m?"
                  "??z\303\244") == 0);

  memset (longtext, 'l', sizeof longtext);
  longtext[sizeof longtext - 1] = '\0';
  nbdedup_fail (EIO, "%s", longtext);
  len = strlen (nbdedup_error ());
  assert (len == 1023 && strcmp (nbdedup_error () + len - 4, "l...") == 0);
  for (i = 0; i < 20; ++i)
    nbdedup_fail (EIO, "again: %s", nbdedup_error ());
  assert (strlen (nbdedup_error ()) <= 1023);

  /* A character is never cut in half. */
  for (i = 0; i < 6; ++i) {
    size_t j;

    for (j = i; j + 3 < sizeof longtext; j += 3)
      memcpy (longtext + j, "\342\202\254", 3);
    longtext[j] = '\0';
    nbdedup_fail (EIO, "%s", longtext);
    len = strlen (nbdedup_error ());
    assert (strcmp (nbdedup_error () + len - 6, "\342\202\254...") == 0);
  }

  assert (pthread_create (&thread, NULL, other_thread_fails, NULL) == 0);
  assert (pthread_join (thread, NULL) == 0);
  assert (strstr (nbdedup_error (), "other thread") == NULL);
}

static void
test_fullio (void)
{
  char buf[16] = "", path[64];
  int fd;

  sprintf (path, "%s/file", dir);
  fd = open (path, O_RDWR | O_CREAT, 0644);
  assert (fd != -1);
  assert (full_pwrite (fd, "0123456789", 10, 5) == 0);
  assert (full_pread (fd, buf, 10, 5) == 10);
  assert (memcmp (buf, "0123456789", 10) == 0);
  assert (full_pread (fd, buf, 16, 10) == 5); /* the file's end */
  assert (full_pread (fd, buf, 16, 15) == 0);
  assert (full_pread (fd, buf, 0, 0) == 0);
  assert (full_pwrite (fd, buf, 0, 0) == 0);
  assert (full_pread (fd, buf, 16, UINT64_MAX - 3) == -1 && errno == EINVAL);
  assert (full_pwrite (fd, buf, 16, UINT64_MAX - 3) == -1 && errno == EFBIG);
  assert (full_pread (-1, buf, 16, 0) == -1 && errno == EBADF);
  assert (full_pwrite (-1, buf, 16, 0) == -1 && errno == EBADF);
  close (fd);
  fd = open ("/dev/full", O_RDWR);
  assert (fd != -1);
  assert (full_pwrite (fd, buf, 16, 0) == -1 && errno == ENOSPC);
  close (fd);
  assert (unlink (path) == 0);
}

static void
expect_readers (bool server)
{
  struct lockfile_holder holder;

  memset (&holder, 0xff, sizeof holder);
  assert (lockfile_take (dir, false, "x", &holder) == -1 && errno == EBUSY);
  assert (holder.reader && holder.reader_is_server == server);
  assert (!holder.server && holder.pid == 0);
  assert (strstr (nbdedup_error (), "read-only") != NULL);
  assert (lockfile_take (dir, false, NULL, &holder) == -1 && errno == EBUSY);
  assert (holder.reader);
}

/* Readers share the lock, and leave no trace in the file. */
/* What the holder tells while it opens the pool.  Its file keeps its time. */
static void
test_opening (void)
{
  static const char *const odd[] = {
    "opening",
    "opening recovery 1",
    "opening recovery x 2\n",
    "opening recovery 1 2",
    "opening RECOVERY 1 2\n",
    "opening recovery 1 2 3\n",
  };
  struct lockfile_holder h;
  struct stat before, after;
  char text[64];
  size_t i;
  int fd = take (true, "server"), n;

  assert (futimens (fd, (struct timespec[]) { { 1000, 0 }, { 2000, 5 } }) == 0);
  assert (fstat (fd, &before) == 0);
  expect_opening ("", 0, 0);
  lockfile_tell (fd, "loading", 0, 0);
  expect_opening ("loading", 0, 0);
  lockfile_tell (fd, "recovery", 12345678901234, UINT64_MAX);
  expect_opening ("recovery", 12345678901234, UINT64_MAX);
  lockfile_tell (fd, "recovery", 3, 4);
  expect_opening ("recovery", 3, 4);
  assert (fstat (fd, &after) == 0 && after.st_mtim.tv_sec == 2000 &&
          after.st_mtim.tv_nsec == 5);
  lockfile_tell (fd, NULL, 0, 0);
  expect_opening ("", 0, 0);
  assert (fstat (fd, &after) == 0 && after.st_size == before.st_size);

  for (i = 0; i < sizeof odd / sizeof odd[0]; ++i) {
    n = snprintf (text, sizeof text, "server %d server\n%s", getpid (), odd[i]);
    assert (full_pwrite (fd, text, (size_t) n, 0) == 0);
    assert (ftruncate (fd, n) == 0);
    expect_opening ("", 0, 0);
  }

  /* A holder that crashed then is no obstacle to the next. */
  lockfile_tell (fd, "recovery", 3, 4);
  close (fd);
  fd = take (true, "server");
  expect_opening ("", 0, 0);
  /* Without a text there is nothing to tell to. */
  assert (ftruncate (fd, 0) == 0);
  lockfile_tell (fd, "recovery", 3, 4);
  assert (fstat (fd, &after) == 0 && after.st_size == 0);
  assert (lockfile_take (dir, false, "other", &h) == -1 && h.pid == 0);
  close (fd);
}

static void
test_share (void)
{
  struct lockfile_holder holder;
  struct stat before, after;
  int fd, fd2, fd3;

  unlink (lock_path);
  assert (lockfile_share (dir, false, &fd, &holder) == 0 && fd == -1);
  assert (lockfile_share (dir, false, NULL, &holder) == 0);
  assert (access (lock_path, F_OK) == -1);

  fd = take (true, "nbdkit");
  assert (lockfile_share (dir, false, &fd2, &holder) == -1);
  assert (errno == EBUSY && fd2 == -1);
  assert (holder.server && !holder.reader && holder.pid == getpid ());
  assert (lockfile_share (dir, false, NULL, NULL) == -1 && errno == EBUSY);
  close (fd);

  assert (stat (lock_path, &before) == 0);
  assert (lockfile_share (dir, false, &fd, &holder) == 0 && fd != -1);
  assert (fcntl (fd, F_GETFD) & FD_CLOEXEC);
  assert ((fcntl (fd, F_GETFL) & O_ACCMODE) == O_RDONLY);
  assert (lockfile_share (dir, false, NULL, &holder) == 0);
  expect_readers (false);
  assert (lockfile_share (dir, true, &fd2, &holder) == 0 && fd2 != -1);
  expect_readers (true);
  assert (lockfile_share (dir, true, &fd3, &holder) == 0 && fd3 != -1);
  close (fd2);
  expect_readers (true);
  close (fd3);
  expect_readers (false);
  close (fd);
  assert (stat (lock_path, &after) == 0);
  assert (before.st_size == after.st_size);
  assert (before.st_mtim.tv_sec == after.st_mtim.tv_sec &&
          before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);

  close (take (false, "y"));
}

int
main (void)
{
  assert (mkdtemp (dir) != NULL);
  sprintf (lock_path, "%s/lock", dir);

  test_error ();
  test_fullio ();
  test_take_and_release ();
  test_crash ();
  test_stale_text ();
  test_garbage_text ();
  test_long_and_odd_names ();
  test_race ();
  test_bad_places ();
  test_no_permission ();
  test_opening ();
  test_share ();

  unlink (lock_path);
  assert (rmdir (dir) == 0);
  return 0;
}
