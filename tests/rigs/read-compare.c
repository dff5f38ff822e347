/* SPDX-License-Identifier: BSD-3-Clause */

/* Read an export that may be damaged, piece by piece.
 *
 *   read-compare SOCKET EXPORT FILE [PIECE]
 *
 * Each piece (default 4096 bytes) must be equal to that of FILE, or fail with
 * EIO.  No extent may report data as zero.  Prints "N right, N EIO".  Exits
 * with status 1 if anything was wrong, 3 if the export cannot be opened.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <libnbd.h>
#include <sys/stat.h>

#include "rigs/testutil.h"

static uint8_t *expected;
static uint64_t size;
static bool wrong;

static int
check_extents (void *opaque, const char *context, uint64_t offset,
               uint32_t *entries, size_t nr, int *error)
{
  uint64_t *next = opaque, end;
  size_t i;

  (void) error;
  (void) context;
  for (i = 0; i < nr; i += 2, offset = end) {
    end = offset + entries[i] < size ? offset + entries[i] : size;
    if ((entries[i + 1] & LIBNBD_STATE_ZERO) &&
        !all_zero (expected + offset, end - offset)) {
      fprintf (stderr,
               "WRONG: extent of %" PRIu64 " bytes at %" PRIu64
               " is called zero but has data\n",
               end - offset, offset);
      wrong = true;
    }
  }
  *next = offset;
  return 0;
}

int
main (int argc, char *argv[])
{
  struct nbd_handle *nbd = nbd_create ();
  uint64_t piece = 4096, offset, n, next, right = 0, errors = 0;
  uint8_t *buf;
  struct stat st;
  FILE *f;

  if (argc < 4 || argc > 5 || nbd == NULL)
    die ("usage: read-compare SOCKET EXPORT FILE [PIECE]");
  if (argc == 5)
    piece = strtoull (argv[4], NULL, 0);
  f = fopen (argv[3], "r");
  if (f == NULL || fstat (fileno (f), &st) == -1)
    die ("%s: %s", argv[3], strerror (errno));
  size = st.st_size;
  expected = xmalloc (size);
  if (fread (expected, 1, size, f) != size)
    die ("%s: %s", argv[3], strerror (errno));
  fclose (f);

  alarm (120); /* a hang is a failure */
  nbd_set_export_name (nbd, argv[2]);
  nbd_add_meta_context (nbd, LIBNBD_CONTEXT_BASE_ALLOCATION);
  if (nbd_connect_unix (nbd, argv[1]) == -1) {
    fprintf (stderr, "%s: %s\n", argv[2], nbd_get_error ());
    return 3;
  }
  if ((uint64_t) nbd_get_size (nbd) != size)
    die ("WRONG: size is %" PRIi64 ", expected %" PRIu64, nbd_get_size (nbd),
         size);

  buf = xmalloc (piece);
  for (offset = 0; offset < size; offset += n) {
    n = size - offset < piece ? size - offset : piece;
    memset (buf, 0xa5, n);
    if (nbd_pread (nbd, buf, n, offset, 0) == 0) {
      if (memcmp (buf, expected + offset, n) == 0)
        right++;
      else {
        fprintf (stderr, "WRONG: %" PRIu64 " bytes at %" PRIu64 "%s\n", n,
                 offset, all_zero (buf, n) ? ": zeroes" : "");
        wrong = true;
      }
    }
    else if (nbd_get_errno () == EIO && !nbd_aio_is_dead (nbd))
      errors++;
    else
      die ("WRONG: read of %" PRIu64 " bytes at %" PRIu64 ": %s", n, offset,
           nbd_get_error ());
  }

  for (offset = 0; offset < size; offset = next) {
    next = offset;
    n = size - offset < (1 << 20) ? size - offset : 1 << 20;
    if (nbd_block_status (nbd, n, offset,
                          (nbd_extent_callback) { .callback = check_extents,
                                                  .user_data = &next },
                          0) == -1) {
      if (nbd_get_errno () != EIO)
        die ("WRONG: block status at %" PRIu64 ": %s", offset,
             nbd_get_error ());
      errors++;
      next = offset + n;
    }
    else if (next <= offset)
      die ("WRONG: block status at %" PRIu64 " stands still", offset);
  }
  nbd_shutdown (nbd, 0);
  nbd_close (nbd);
  printf ("%" PRIu64 " right, %" PRIu64 " EIO\n", right, errors);
  free (buf);
  free (expected);
  return wrong;
}
