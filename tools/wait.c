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

/* Most commands end sooner. */
#define SAY_MS 500

static const char *command; /* not owned */

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

/*----------------------------------------------------------------------*/

int
wait_for_pool (const struct nbdedup_wait *wait)
{
  static bool said;

  if (interrupted ())
    return EINTR;
  if (waits_for_us (wait))
    return EDEADLK;
  if (!said && wait->waited_ms >= SAY_MS) {
    note ("%s: waiting for up to %" PRIu64 " s: %s", command,
          wait->longest_ms / 1000, wait->why);
    said = true;
  }
  return 0;
}

int
wait_silently (const struct nbdedup_wait *wait)
{
  (void) wait;
  return interrupted () ? EINTR : 0;
}
