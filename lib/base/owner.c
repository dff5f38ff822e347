/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/owner.h"

/* Only an empty file without another name can have been created just now: the
 * directory's owner may have put a link to a file of root's there.
 */
static void
adopt (int fd, const char *path)
{
  CLEANUP_FREE char *copy = strdup (path);
  struct stat st, dir;

  if (copy == NULL || fstat (fd, &st) == -1 || !S_ISREG (st.st_mode) ||
      st.st_uid != 0 || st.st_size != 0 || st.st_nlink != 1 ||
      stat (dirname (copy), &dir) == -1 || dir.st_uid == 0)
    return;
  /* Where the kernel refuses, for example because this is the root of a user
   * namespace, the file is root's, as before.
   */
  if (fchown (fd, dir.st_uid, dir.st_gid) == -1)
    return;
}

int
open_owned (const char *path, int flags, mode_t mode)
{
  int fd = open (path, flags | O_CREAT, mode);

  if (fd != -1 && geteuid () == 0)
    adopt (fd, path);
  return fd;
}
