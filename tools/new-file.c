/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image.h"
#include "new-file.h"
#include "tools.h"

/* Room for the suffix in a name of 255 bytes. */
#define BASE_MAX 200

static int
fail_errno (const struct new_file *nf)
{
  return image_fail ("%s: %s", nf->path, strerror (errno));
}

/* As fchown; 0 also if the process may not do it, or the file system cannot. */
static int
try_chown (int fd, uid_t uid, gid_t gid)
{
  return fchown (fd, uid, gid) == -1 && errno != EPERM && errno != EINVAL &&
      errno != ENOTSUP
    ? -1
    : 0;
}

/* Keep the owner and the mode of a replaced file: it may be secret, or shared,
 * or another user's, such as QEMU's.  A user may give a file to another group
 * of theirs, but not to another user.  The owner comes first, because the mode
 * is for that.
 */
static int
keep_access (int fd, const char *replaced)
{
  struct stat st;

  if (stat (replaced, &st) == -1)
    return 0;
  return try_chown (fd, (uid_t) -1, st.st_gid) == -1 ||
      try_chown (fd, st.st_uid, (gid_t) -1) == -1
    ? -1
    : fchmod (fd, st.st_mode & 0777);
}

int
new_file_open (struct new_file *nf, const char *file)
{
  char *base;
  int fd;

  memset (nf, 0, sizeof *nf);
  nf->path = realpath (file, NULL);
  if (nf->path == NULL) /* new, or a dangling link: replaced */
    nf->path = copy_string (file);
  base = strrchr (nf->path, '/');
  base = base == NULL ? nf->path : base + 1;
  if (*base == '\0')
    return image_fail ("%s: Is a directory", nf->path);
  nf->dir = make_string ("%.*s%.*s.exporting-XXXXXX", (int) (base - nf->path),
                         nf->path, BASE_MAX, base);
  if (mkdtemp (nf->dir) == NULL) {
    const int err = errno;

    free (nf->dir);
    nf->dir = NULL;
    errno = err;
    return fail_errno (nf);
  }
  nf->temp = make_string ("%s/%s", nf->dir, base);
  fd = open (nf->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd == -1)
    return fail_errno (nf);
  if (keep_access (fd, nf->path) == -1) {
    fail_errno (nf);
    close (fd);
    return -1;
  }
  return fd;
}

int
new_file_sync (int fd)
{
  int r;

  do
    r = fsync (fd);
  while (r == -1 && errno == EINTR);
  return r;
}

/* Make the new name durable, too. */
static int
sync_directory (const char *file)
{
  char *copy = copy_string (file);
  int fd, r = -1;

  fd = open (dirname (copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd != -1) {
    /* Some file systems cannot sync directories. */
    r = new_file_sync (fd) == -1 && errno != EINVAL ? -1 : 0;
    close (fd);
  }
  free (copy);
  return r;
}

int
new_file_commit (struct new_file *nf)
{
  if (rename (nf->temp, nf->path) == -1)
    return fail_errno (nf);
  rmdir (nf->dir); /* an empty directory would do no harm */
  free (nf->dir);
  nf->dir = NULL;
  return sync_directory (nf->path) == -1 ? fail_errno (nf) : 0;
}

void
new_file_free (struct new_file *nf)
{
  if (nf->dir != NULL) {
    if (nf->temp != NULL)
      unlink (nf->temp);
    rmdir (nf->dir);
  }
  free (nf->dir);
  free (nf->temp);
  free (nf->path);
  memset (nf, 0, sizeof *nf);
}
