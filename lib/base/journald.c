/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/journald.h"

struct journald_entry {
  FILE *fp;   /* owned; writes 'text' */
  char *text; /* owned */
  size_t len;
};

bool
journald_has_stderr (void)
{
  const char *stream = getenv ("JOURNAL_STREAM");
  uintmax_t device, inode;
  struct stat st;
  char end;

  return stream && sscanf (stream, "%ju:%ju%c", &device, &inode, &end) == 2 &&
    fstat (STDERR_FILENO, &st) == 0 && st.st_dev == device &&
    st.st_ino == inode;
}

static void
entry_free (struct journald_entry *entry)
{
  if (entry->fp)
    fclose (entry->fp);
  free (entry->text);
  free (entry);
}

struct journald_entry *
journald_begin (void)
{
  struct journald_entry *entry = calloc (1, sizeof *entry);

  if (entry == NULL)
    return NULL;
  entry->fp = open_memstream (&entry->text, &entry->len);
  if (entry->fp)
    return entry;
  entry_free (entry);
  return NULL;
}

/* The form for any value, also of several lines: the name, the length and the
 * bytes.
 */
void
journald_add (struct journald_entry *entry, const char *name, const char *value)
{
  const size_t len = strlen (value);
  uint8_t size[8];

  assert (*name >= 'A' && *name <= 'Z');
  put_le64 (size, len);
  fprintf (entry->fp, "%s\n", name);
  fwrite (size, sizeof size, 1, entry->fp);
  fwrite (value, len, 1, entry->fp);
  putc ('\n', entry->fp);
}

static int
send_text (const char *path, const char *text, size_t len)
{
  struct sockaddr_un addr = { .sun_family = AF_UNIX };
  CLEANUP_CLOSE int fd = -1;

  if (strlen (path) >= sizeof addr.sun_path)
    return -1;
  strcpy (addr.sun_path, path);
  fd = socket (AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd == -1)
    return -1;
  return sendto (fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL,
                 (struct sockaddr *) &addr, sizeof addr) == (ssize_t) len
    ? 0
    : -1;
}

int
journald_send (struct journald_entry *entry, const char *path)
{
  int r = ferror (entry->fp);

  r = fclose (entry->fp) != 0 || r ? -1 : 0;
  entry->fp = NULL;
  if (r == 0)
    r = send_text (path, entry->text, entry->len);
  entry_free (entry);
  return r;
}
