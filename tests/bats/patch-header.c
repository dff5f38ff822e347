/* SPDX-License-Identifier: BSD-3-Clause */

/* patch-header FILE DISTANCE OFFSET VALUE
 *
 * Write a 64-bit number into both copies of the header of a pool's file (the
 * second one DISTANCE bytes after the first), and correct their checksums: 512
 * bytes, of which the last 8 are the checksum of the rest, as in
 * nbdedup-format(5).
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "rigs/testutil.h"

#define HEADER 512

static void
put_le64 (uint8_t *p, uint64_t v)
{
  int i;

  for (i = 0; i < 8; ++i)
    p[i] = v >> (8 * i);
}

int
main (int argc, char *argv[])
{
  uint8_t buf[HEADER];
  off_t distance;
  size_t offset;
  int fd, i;

  if (argc != 5)
    die ("usage: patch-header FILE DISTANCE OFFSET VALUE");
  distance = strtoull (argv[2], NULL, 0);
  offset = strtoull (argv[3], NULL, 0);
  if (offset > HEADER - 16)
    die ("the offset is at most %d", HEADER - 16);
  fd = open (argv[1], O_RDWR | O_CLOEXEC);
  if (fd == -1)
    die ("%s: %s", argv[1], strerror (errno));
  for (i = 0; i < 2; ++i) {
    if (pread (fd, buf, HEADER, i * distance) != HEADER)
      die ("%s: no header at %lld", argv[1], (long long) i * distance);
    put_le64 (buf + offset, strtoull (argv[4], NULL, 0));
    put_le64 (buf + HEADER - 8, XXH3_64bits (buf, HEADER - 8));
    if (pwrite (fd, buf, HEADER, i * distance) != HEADER)
      die ("%s: %s", argv[1], strerror (errno));
  }
  return 0;
}
