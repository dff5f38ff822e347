/* SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/tempfile.h"

int
tempfile_open (const char *dir)
{
  int fd = open (dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  char path[4096];

  /* Not every file system supports O_TMPFILE. */
  if (fd == -1 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    snprintf (path, sizeof path, "%s/nbdedup-XXXXXX", dir);
    fd = mkostemp (path, O_CLOEXEC);
    if (fd != -1)
      unlink (path);
  }
  return fd != -1 ? fd
                  : nbdedup_fail (errno, "%s: cannot make a temporary file: %s",
                                  dir, strerror (errno));
}
