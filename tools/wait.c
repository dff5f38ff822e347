/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interrupt.h"
#include "tools.h"
#include "wait.h"

/* Most commands end sooner, ... */
#define SAY_MS 500
/* ... and so do most requests, on a machine that is busy too. */
#define SAY_ANSWER_MS 900

static const char *command; /* not owned */
static bool must_end;
static const char *advice = ""; /* static */

void
wait_set_command (const char *name)
{
  command = name;
}

/*----------------------------------------------------------------------
 * "export X - | import Y -": one command has the pool, and reads or writes the
 * pipe; this process has the other end, and waits for the pool.
 */

/* The mode of another process's descriptor: O_RDONLY ...; -1: not known. */
static int
access_mode (long pid, const char *fd)
{
  char path[64], line[64];
  int mode = -1, flags;
  FILE *fp;

  snprintf (path, sizeof path, "/proc/%ld/fdinfo/%.16s", pid, fd);
  fp = fopen (path, "re");
  if (fp == NULL)
    return -1;
  while (mode == -1 && fgets (line, sizeof line, fp) != NULL)
    if (sscanf (line, "flags: %o", (unsigned *) &flags) == 1)
      mode = flags & O_ACCMODE;
  fclose (fp);
  return mode;
}

static bool
has_open (long pid, const struct stat *pipe, int mode)
{
  bool found = false;
  struct dirent *entry;
  struct stat st;
  char path[64];
  DIR *dir;

  snprintf (path, sizeof path, "/proc/%ld/fd", pid);
  dir = opendir (path);
  if (dir == NULL)
    return false;
  while (!found && (entry = readdir (dir)) != NULL)
    found = fstatat (dirfd (dir), entry->d_name, &st, 0) == 0 &&
      S_ISFIFO (st.st_mode) && st.st_dev == pipe->st_dev &&
      st.st_ino == pipe->st_ino && access_mode (pid, entry->d_name) == mode;
  closedir (dir);
  return found;
}

/* Other commands read and write only while they do not have the pool. */
static bool
uses_pipe (const char *who)
{
  return strcmp (who, "nbdedup export") == 0 ||
    strcmp (who, "nbdedup import") == 0;
}

static bool
waits_for_us (const struct nbdedup_wait *wait)
{
  struct stat st;

  if (wait->pid <= 0 || !uses_pipe (wait->who))
    return false;
  return (fstat (STDIN_FILENO, &st) == 0 && S_ISFIFO (st.st_mode) &&
          has_open (wait->pid, &st, O_WRONLY)) ||
    (fstat (STDOUT_FILENO, &st) == 0 && S_ISFIFO (st.st_mode) &&
     has_open (wait->pid, &st, O_RDONLY));
}

static bool
is_pipe (int fd)
{
  struct stat st;

  return fstat (fd, &st) == 0 && S_ISFIFO (st.st_mode);
}

/* Other programs may stand between the two.  No message may be long. */
static void
advise (const struct nbdedup_wait *wait)
{
  if (strncmp (wait->who, "nbdedup ", 8) != 0)
    advice = "";
  else if (uses_pipe (wait->who) &&
           (strcmp (command, "import") == 0 ||
            strcmp (command, "export") == 0) &&
           (is_pipe (STDIN_FILENO) || is_pipe (STDOUT_FILENO)))
    advice = ": if a pipe joins the two, each waits for the other: start a "
             "server for the pool, or use a file instead of the pipe";
  else
    advice = ": try again when that has ended, or start a server for the pool, "
             "which runs many commands at once";
}

const char *
wait_advice (void)
{
  return advice;
}

/*----------------------------------------------------------------------*/

/* Once for each kind: which process has the pool, or its turn, may change
 * often.
 */
static void
say (const struct nbdedup_wait *wait)
{
  static unsigned said;

  if (said & 1u << wait->kind)
    return;
  said |= 1u << wait->kind;
  if (wait->longest_ms > 0)
    note ("%s: waiting for up to %" PRIu64 " s: %s%s", command,
          wait->longest_ms / 1000, wait->why,
          wait->kind == NBDEDUP_WAIT_POOL && strstr (advice, "pipe") ? advice
                                                                     : "");
  else
    note ("%s: waiting: %s", command, wait->why);
}

int
wait_for_pool (const struct nbdedup_wait *wait)
{
  if (interrupted () && !must_end)
    return EINTR;
  if (wait->kind == NBDEDUP_WAIT_POOL) {
    if (waits_for_us (wait))
      return EDEADLK;
    advise (wait);
  }
  if (wait->waited_ms >=
      (wait->kind == NBDEDUP_WAIT_ANSWER ? SAY_ANSWER_MS : SAY_MS))
    say (wait);
  return 0;
}

void
wait_must_end (void)
{
  must_end = true;
}

int
wait_silently (const struct nbdedup_wait *wait)
{
  (void) wait;
  return interrupted () ? EINTR : 0;
}
