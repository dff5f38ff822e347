/* SPDX-License-Identifier: BSD-3-Clause */

/* See meta-mark.h. */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/owner.h"
#include "meta/meta-mark.h"

#define MAGIC "NBDDUPMC"
#define MARK_VERSION 1
#define BLOCK 4096
#define PATH_OFFSET 44
#define CKSUM_OFFSET (BLOCK - 8)

enum {
  STATE_CURRENT = 1,
  STATE_OLD,
  STATE_ONLY, /* current, and pool.db is distrusted */
  STATE_NONE  /* neither file can be trusted */
};

static void
pack (const struct meta_mark *mark, uint8_t *block)
{
  size_t len = strlen (mark->path);

  assert (len <= META_MARK_PATH_MAX);
  memset (block, 0, BLOCK);
  memcpy (block, MAGIC, 8);
  put_le32 (block + 8, MARK_VERSION);
  put_le32 (block + 12,
            mark->distrusted  ? mark->current ? STATE_ONLY : STATE_NONE
              : mark->current ? STATE_CURRENT
                              : STATE_OLD);
  memcpy (block + 16, mark->uuid, UUID_LEN);
  put_le64 (block + 32, mark->copied);
  put_le32 (block + 40, (uint32_t) len);
  memcpy (block + PATH_OFFSET, mark->path, len);
  put_le64 (block + CKSUM_OFFSET, XXH3_64bits (block, CKSUM_OFFSET));
}

static bool
unpack (const uint8_t *block, struct meta_mark *mark)
{
  uint32_t len = get_le32 (block + 40), state = get_le32 (block + 12);

  if (memcmp (block, MAGIC, 8) != 0 ||
      get_le64 (block + CKSUM_OFFSET) != XXH3_64bits (block, CKSUM_OFFSET) ||
      get_le32 (block + 8) != MARK_VERSION || len > META_MARK_PATH_MAX)
    return false;
  mark->current = state == STATE_CURRENT || state == STATE_ONLY;
  mark->distrusted = state == STATE_ONLY || state == STATE_NONE;
  memcpy (mark->uuid, block + 16, UUID_LEN);
  mark->copied = get_le64 (block + 32);
  memcpy (mark->path, block + PATH_OFFSET, len);
  mark->path[len] = '\0';
  return true;
}

bool
meta_is_of_process (int err)
{
  return err == ENOMEM || err == EMFILE || err == ENFILE;
}

int
meta_mark_read (const char *file, struct meta_mark *mark)
{
  CLEANUP_CLOSE int fd = open (file,
                               O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  uint8_t block[BLOCK];
  struct meta_mark m;
  unsigned i, valid = 0;

  /* Without the mark a current copy would count as old, and be overwritten. */
  if (fd == -1 && meta_is_of_process (errno))
    return nbdedup_fail (errno, "%s: %s", file, strerror (errno));
  for (i = 0; i < 2 && fd != -1; ++i) {
    if (full_pread (fd, block, BLOCK, i * BLOCK) != BLOCK ||
        !unpack (block, &m))
      continue;
    if (valid++ == 0)
      *mark = m;
    else {
      mark->current &= m.current;
      mark->distrusted |= m.distrusted;
      if (m.copied < mark->copied)
        mark->copied = m.copied;
    }
  }
  return valid > 0;
}

int
meta_mark_write (const char *file, const struct meta_mark *mark)
{
  CLEANUP_CLOSE int fd =
    open_owned (file, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  uint8_t block[BLOCK];
  struct stat st;
  unsigned i;

  if (fd == -1 || fstat (fd, &st) == -1)
    return nbdedup_fail (errno, "%s: %s", file, strerror (errno));
  pack (mark, block);
  for (i = 0; i < 2; ++i)
    if (full_pwrite (fd, block, BLOCK, i * BLOCK) == -1 ||
        full_datasync (fd) == -1)
      return nbdedup_fail (errno, "%s: %s", file, strerror (errno));
  if (st.st_size == 0 && sync_directory_of (file) == -1)
    return nbdedup_fail (errno, "%s: %s", file, strerror (errno));
  return 0;
}
