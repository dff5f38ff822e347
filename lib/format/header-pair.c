/* SPDX-License-Identifier: BSD-3-Clause */

/* A header kept twice: see header-pair.h for its format, and for why one
 * copy is always valid.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/fullio.h"
#include "format/header-pair.h"

void
header_pack (const struct header_kind *kind, const struct file_header *h,
             uint8_t buf[HEADER_LEN])
{
  memset (buf, 0, HEADER_LEN);
  memcpy (buf, kind->magic, 8);
  put_le32 (buf + 8, kind->version);
  put_le32 (buf + 12, h->own32);
  put_le64 (buf + 16, h->features_incompat);
  put_le64 (buf + 24, h->features_compat);
  put_le64 (buf + 32, h->features_autoclear);
  memcpy (buf + 40, h->uuid, UUID_LEN);
  put_le64 (buf + 56, h->epoch);
  put_le64 (buf + 64, h->own64);
  memcpy (buf + 72, h->own, HEADER_OWN_LEN);
  put_le64 (buf + 504, XXH3_64bits (buf, 504));
}
static_assert (40 + UUID_LEN == 56 &&
                 72 + HEADER_OWN_LEN + 392 + 8 == HEADER_LEN,
               "header layout");

enum copy_state
header_state (const struct header_kind *kind, const uint8_t buf[HEADER_LEN])
{
  if (memcmp (buf, kind->magic, 8) != 0)
    return COPY_NO_MAGIC;
  if (get_le64 (buf + 504) != XXH3_64bits (buf, 504))
    return COPY_BAD_CHECKSUM;
  return COPY_VALID;
}

/* Unpack a valid copy. */
static int
header_unpack (const struct header_kind *kind, const char *path,
               const uint8_t buf[HEADER_LEN], struct file_header *h)
{
  uint64_t unknown;

  if (get_le32 (buf + 8) != kind->version)
    return nbdedup_fail (EINVAL,
                         "%s: was made by a newer nbdedup (format %" PRIu32
                         "; this one knows %" PRIu32 "): upgrade "
                         "nbdedup",
                         path, get_le32 (buf + 8), kind->version);
  h->own32 = get_le32 (buf + 12);
  h->features_incompat = get_le64 (buf + 16);
  h->features_compat = get_le64 (buf + 24);
  h->features_autoclear = get_le64 (buf + 32);
  memcpy (h->uuid, buf + 40, UUID_LEN);
  h->epoch = get_le64 (buf + 56);
  h->own64 = get_le64 (buf + 64);
  memcpy (h->own, buf + 72, HEADER_OWN_LEN);
  unknown = h->features_incompat & ~kind->known_incompat;
  if (unknown != 0)
    return nbdedup_fail (EINVAL,
                         "%s: was made by a newer nbdedup (this one "
                         "does not know feature 0x%" PRIx64 "): upgrade "
                         "nbdedup",
                         path, unknown);
  return kind->check (path, h);
}

static bool
is_newer (const struct file_header *a, const struct file_header *b)
{
  return a->epoch > b->epoch || (a->epoch == b->epoch && a->own64 > b->own64);
}

int
header_pair_read (struct header_pair *pair, const struct header_kind *kind,
                  int fd, const char *path)
{
  uint8_t buf[2][HEADER_LEN];
  enum copy_state state[2];
  struct file_header h[2] = { 0 };
  unsigned i, good;
  int err = 0;
  int64_t r;

  for (i = 0; i < 2; ++i) {
    r = full_pread (fd, buf[i], HEADER_LEN, i * kind->copy_distance);
    /* Treat an unreadable copy as a damaged one. */
    if (r == -1)
      err = errno;
    state[i] = r == HEADER_LEN ? header_state (kind, buf[i])
                               : COPY_BAD_CHECKSUM;
  }
  if (err != 0 && state[0] != COPY_VALID && state[1] != COPY_VALID)
    return nbdedup_fail (EIO, "%s: reading its header: %s", path,
                         strerror (err));
  if (state[0] == COPY_NO_MAGIC && state[1] == COPY_NO_MAGIC)
    return nbdedup_fail (EIO, "%s: %s", path, kind->no_magic);
  if (state[0] != COPY_VALID && state[1] != COPY_VALID)
    return nbdedup_fail (EIO, "%s: both copies of the header are damaged: %s",
                         path, kind->restore);

  for (i = 0; i < 2; ++i)
    if (state[i] == COPY_VALID &&
        header_unpack (kind, path, buf[i], &h[i]) == -1)
      return -1;
  good = state[1] == COPY_VALID;
  if (state[0] == COPY_VALID && state[1] == COPY_VALID) {
    if (memcmp (h[0].uuid, h[1].uuid, UUID_LEN) != 0 ||
        h[0].own32 != h[1].own32)
      return nbdedup_fail (EIO,
                           "%s: the two copies of the header are of "
                           "different pools: %s",
                           path, kind->restore);
    good = is_newer (&h[1], &h[0]);
  }
  pair->kind = kind;
  pair->header = h[good];
  pair->good_copy = good;
  return 0;
}

int
header_pair_write (struct header_pair *pair, int fd,
                   const struct file_header *header)
{
  uint8_t buf[HEADER_LEN];
  unsigned i, copy;

  assert (!is_newer (&pair->header, header));
  header_pack (pair->kind, header, buf);
  for (i = 0; i < 2; ++i) {
    copy = !pair->good_copy;
    if (full_pwrite (fd, buf, sizeof buf, copy * pair->kind->copy_distance) ==
          -1 ||
        full_datasync (fd) == -1)
      return -1;
    pair->good_copy = copy;
    pair->header = *header;
  }
  return 0;
}

int
header_pair_set_epoch (struct header_pair *pair, int fd, uint64_t epoch)
{
  struct file_header header = pair->header;

  header.epoch = epoch;
  header.features_autoclear &= pair->kind->known_autoclear;
  return header_pair_write (pair, fd, &header);
}
