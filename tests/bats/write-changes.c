/* SPDX-License-Identifier: BSD-3-Clause */

/* Apply the changes of a copy of an export to the export, as its guest would.
 *
 *   write-changes SOCKET EXPORT OLD NEW
 *
 * OLD is the present content of the export, NEW the wanted one; both are raw
 * images of its size.  Neighbouring pieces of 4 KiB that differ are written
 * together (up to 128 KiB), pieces that became zero are trimmed; then comes a
 * flush.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <libnbd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "rigs/testutil.h"

#define PIECE 4096u
#define WRITE_MAX (UINT64_C (128) << 10)

enum change { CHANGE_NONE, CHANGE_WRITE, CHANGE_TRIM };

static const uint8_t *old, *new;
static uint64_t size;

static const uint8_t *
map_image (const char *path)
{
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  struct stat st;
  void *p;

  if (fd == -1 || fstat (fd, &st) == -1)
    die ("%s: %s", path, strerror (errno));
  if ((uint64_t) st.st_size != size)
    die ("%s: its size is not the export's", path);
  p = mmap (NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (p == MAP_FAILED)
    die ("%s: %s", path, strerror (errno));
  close (fd);
  return p;
}

static uint64_t
piece_len (uint64_t offset)
{
  return size - offset < PIECE ? size - offset : PIECE;
}

static enum change
change_at (uint64_t offset)
{
  uint64_t len = piece_len (offset);

  if (memcmp (old + offset, new + offset, len) == 0)
    return CHANGE_NONE;
  return all_zero (new + offset, len) ? CHANGE_TRIM : CHANGE_WRITE;
}

static void
do_change (struct nbd_handle *h, enum change change, uint64_t offset,
           uint64_t len)
{
  int r = 0;

  if (change == CHANGE_WRITE)
    r = nbd_pwrite (h, new + offset, len, offset, 0);
  else if (change == CHANGE_TRIM)
    r = nbd_trim (h, len, offset, 0);
  if (r == -1)
    die ("%s", nbd_get_error ());
}

int
main (int argc, char *argv[])
{
  struct nbd_handle *h = nbd_create ();
  uint64_t offset, end;
  enum change change;

  if (argc != 5)
    die ("usage: write-changes SOCKET EXPORT OLD NEW");
  if (h == NULL || nbd_set_export_name (h, argv[2]) == -1 ||
      nbd_connect_unix (h, argv[1]) == -1)
    die ("%s", nbd_get_error ());
  size = nbd_get_size (h);
  old = map_image (argv[3]);
  new = map_image (argv[4]);
  for (offset = 0; offset < size; offset = end) {
    change = change_at (offset);
    end = offset + piece_len (offset);
    while (end < size && end - offset < WRITE_MAX && change_at (end) == change)
      end += piece_len (end);
    do_change (h, change, offset, end - offset);
  }
  if (nbd_flush (h, 0) == -1 || nbd_shutdown (h, 0) == -1)
    die ("%s", nbd_get_error ());
  nbd_close (h);
  return 0;
}
