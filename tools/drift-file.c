/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "drift-file.h"
#include "image.h"
#include "interrupt.h"
#include "new-file.h"

/* Takes the descriptor. */
static int
write_fd (int fd, const char *file, drift_write_fn *write,
          const json_t *histories, bool sync)
{
  FILE *fp = fdopen (fd, "w");
  int r;

  if (fp == NULL) {
    close (fd);
    return image_fail ("%s: %s", file, strerror (errno));
  }
  r = write (fp, histories, file);
  if (r == 0 && (fflush (fp) == EOF || (sync && fsync (fd) == -1)))
    r = image_fail ("%s: %s", file, strerror (errno));
  if (fclose (fp) == EOF && r == 0)
    r = image_fail ("%s: %s", file, strerror (errno));
  return r;
}

static int
write_new_file (const char *file, drift_write_fn *write,
                const json_t *histories)
{
  struct new_file nf;
  int fd = new_file_open (&nf, file);
  int r = -1;

  if (fd != -1)
    r = write_fd (fd, file, write, histories, true);
  if (r == 0 && interrupted ())
    r = image_fail ("%s: interrupted", file);
  if (r == 0)
    r = new_file_commit (&nf);
  new_file_free (&nf);
  return r;
}

int
drift_save (const char *file, drift_write_fn *write, const json_t *histories)
{
  struct stat st;
  int fd;

  if (strcmp (file, "-") == 0)
    return write (stdout, histories, "standard output");
  if (stat (file, &st) == -1 || S_ISREG (st.st_mode) || S_ISDIR (st.st_mode))
    return write_new_file (file, write, histories);

  /* /dev/stdout, a pipe: the device itself is not to be replaced. */
  fd = open (file, O_WRONLY | O_CLOEXEC);
  if (fd == -1)
    return image_fail ("%s: %s", file, strerror (errno));
  return write_fd (fd, file, write, histories, false);
}
