/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "drift-file.h"
#include "image.h"
#include "interrupt.h"
#include "new-file.h"
#include "tools.h"

/* Takes ownership of the descriptor.  The function makes the whole text in
 * memory before it writes, so that a failed write has an errno.
 */
static int
write_fd (int fd, const char *file, drift_write_fn *write_form,
          const json_t *histories, bool sync)
{
  char *text = NULL;
  size_t len;
  FILE *fp = open_memstream (&text, &len);
  int r = fp == NULL ? -1 : write_form (fp, histories, file);

  if (fp == NULL || fclose (fp) == EOF)
    exit (fail ("out of memory"));
  if (r == 0 &&
      (write_all (fd, text, len) == -1 || (sync && new_file_sync (fd) == -1)))
    r = image_fail ("%s: %s", file, strerror (errno));
  if (close (fd) == -1 && r == 0)
    r = image_fail ("%s: %s", file, strerror (errno));
  free (text);
  return r;
}

static int
write_new_file (const char *file, drift_write_fn *write_form,
                const json_t *histories)
{
  struct new_file nf;
  int fd = new_file_open (&nf, file);
  int r = -1;

  if (fd != -1)
    r = write_fd (fd, file, write_form, histories, true);
  if (r == 0 && interrupted ())
    r = image_fail ("%s: interrupted", file);
  if (r == 0)
    r = new_file_commit (&nf);
  new_file_free (&nf);
  return r;
}

int
drift_save (const char *file, drift_write_fn *write_form,
            const json_t *histories)
{
  struct stat st;
  int fd;

  if (strcmp (file, "-") == 0)
    return write_form (stdout, histories, "standard output");
  if (stat (file, &st) == -1 || S_ISREG (st.st_mode) || S_ISDIR (st.st_mode))
    return write_new_file (file, write_form, histories);

  /* /dev/stdout, a pipe: do not replace the device itself. */
  fd = open (file, O_WRONLY | O_CLOEXEC);
  if (fd == -1)
    return image_fail ("%s: %s", file, strerror (errno));
  return write_fd (fd, file, write_form, histories, false);
}
