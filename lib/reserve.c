/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "cleanup.h"
#include "error.h"
#include "reserve.h"

/* Enough for the folds that a full pool still needs: 16 MiB, less for a
 * small pool (an eighth of what it stores, none for an empty one) and on a
 * small file system.  On one that is nearly full a smaller one must do.
 */
#define RESERVE_BYTES_MAX (UINT64_C (16) << 20)
#define RESERVE_BYTES_MIN (UINT64_C (1) << 20)
#define STORED_PER_RESERVE 8
#define FS_PER_RESERVE 16

struct reserve {
  char *path;                   /* owned */
  uint64_t bytes;               /* allocated now */
};

struct reserve *
reserve_new (const char *path)
{
  struct reserve *r = calloc (1, sizeof *r);
  struct stat st;

  if (r == NULL || (r->path = strdup (path)) == NULL) {
    free (r);
    return nbdedup_fail_null (ENOMEM, "no memory");
  }
  /* What an earlier session left counts: recovery may need it. */
  if (stat (path, &st) == 0)
    r->bytes = (uint64_t) st.st_blocks * 512;
  return r;
}

void
reserve_free (struct reserve *r)
{
  if (r == NULL)
    return;
  free (r->path);
  free (r);
}

static uint64_t
min_u64 (uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

uint64_t
reserve_wanted (uint64_t stored_bytes)
{
  uint64_t want = stored_bytes / STORED_PER_RESERVE;

  if (stored_bytes == 0)
    return 0;
  if (want < RESERVE_BYTES_MIN)
    want = RESERVE_BYTES_MIN;
  return min_u64 (want, RESERVE_BYTES_MAX);
}

bool
reserve_refill (struct reserve *r, uint64_t stored_bytes)
{
  struct statvfs fs;
  uint64_t want = reserve_wanted (stored_bytes);

  if (want <= r->bytes)
    return true;
  CLEANUP_CLOSE int fd = open (r->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

  if (fd == -1 || fstatvfs (fd, &fs) == -1)
    return false;
  want = min_u64 (want, (uint64_t) fs.f_blocks * fs.f_frsize /
                  FS_PER_RESERVE);
  for (; want > r->bytes && want >= RESERVE_BYTES_MIN; want /= 2) {
    if (fallocate (fd, 0, 0, (off_t) want) == 0)
      r->bytes = want;
    else if (errno == EOPNOTSUPP)
      return true;              /* such a file system promises nothing */
  }
  return r->bytes > 0;
}

bool
reserve_release (struct reserve *r)
{
  if (r->bytes == 0)
    return false;
  r->bytes = 0;
  return truncate (r->path, 0) == 0;
}
