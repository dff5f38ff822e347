/* SPDX-License-Identifier: BSD-3-Clause */

/* One batch of the journal, in bytes.  All integers are little-endian.
 *
 * The ring is [8192, ring_end).  A batch starts at a multiple of 512 with
 * its header; its body follows at once, then zeroes up to the next
 * multiple of 512.
 *
 *   OFFSET  SIZE  FIELD
 *      0      4   magic "NBJB"
 *      4      4   kind: 1 data, 2 wrap, 3 mark
 *      8     16   uuid of the pool
 *     24      8   epoch of the session that wrote it
 *     32      8   seq: its number; of a wrap: of the batch at the start; of a
 *                 mark: of the last batch when it was written
 *     40      8   durable: the highest number known durable, with what its
 *                 batch refers to
 *     48      8   folded: the highest number known folded into pool.db
 *     56      8   position: offset of this header in the file
 *     64      4   length of the body; 0 for a wrap or mark
 *     68      4   zero
 *     72      8   XXH3_64bits of the body
 *     80      8   settled: the highest number of which it is known that all
 *                 records that it and the batches before it name are
 *                 durable, in "records" or carried
 *     88      8   XXH3_64bits of bytes 0 .. 87
 *
 * A batch never ends at ring_end: room for a wrap always stays behind it.
 * The position is there because bodies carry the bytes of users: a copy of
 * a journal inside of a journal must not be mistaken for its batches.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <xxhash.h>

#include "bytes.h"
#include "error.h"
#include "fullio.h"
#include "journal-int.h"

#define BATCH_MAGIC "NBJB"

uint64_t
batch_size (uint32_t len)
{
  return (BATCH_HEADER_LEN + (uint64_t) len + JOURNAL_ALIGN - 1) &
    ~(uint64_t) (JOURNAL_ALIGN - 1);
}

void
batch_pack (const struct journal *j, const struct batch *b,
            uint64_t position, uint8_t buf[BATCH_HEADER_LEN])
{
  memset (buf, 0, BATCH_HEADER_LEN);
  memcpy (buf, BATCH_MAGIC, 4);
  put_le32 (buf + 4, b->kind);
  memcpy (buf + 8, j->pair.header.uuid, UUID_LEN);
  put_le64 (buf + 24, b->epoch);
  put_le64 (buf + 32, b->seq);
  put_le64 (buf + 40, b->durable);
  put_le64 (buf + 48, b->folded);
  put_le64 (buf + 56, position);
  put_le32 (buf + 64, b->len);
  put_le64 (buf + 72, b->body_hash);
  put_le64 (buf + 80, b->settled);
  put_le64 (buf + 88, XXH3_64bits (buf, 88));
}
static_assert (8 + UUID_LEN == 24 && 88 + 8 == BATCH_HEADER_LEN &&
               BATCH_HEADER_LEN <= JOURNAL_ALIGN, "batch header layout");

/* It is valid if and only if all of this holds. */
bool
batch_unpack (const struct journal *j, const uint8_t *buf,
              uint64_t position, struct batch *b)
{
  if (memcmp (buf, BATCH_MAGIC, 4) != 0 ||
      get_le64 (buf + 88) != XXH3_64bits (buf, 88) ||
      memcmp (buf + 8, j->pair.header.uuid, UUID_LEN) != 0 ||
      get_le64 (buf + 56) != position ||
      get_le32 (buf + 68) != 0)
    return false;
  switch (get_le32 (buf + 4)) {
  case BATCH_DATA: b->kind = BATCH_DATA; break;
  case BATCH_WRAP: b->kind = BATCH_WRAP; break;
  case BATCH_MARK: b->kind = BATCH_MARK; break;
  default: return false;
  }
  b->epoch = get_le64 (buf + 24);
  b->seq = get_le64 (buf + 32);
  b->durable = get_le64 (buf + 40);
  b->folded = get_le64 (buf + 48);
  b->len = get_le32 (buf + 64);
  b->body_hash = get_le64 (buf + 72);
  b->settled = get_le64 (buf + 80);
  if (b->seq == 0 || b->len > JOURNAL_BODY_MAX || b->settled > b->seq)
    return false;
  if (b->kind != BATCH_DATA)
    return b->len == 0;
  return position + batch_size (b->len) + JOURNAL_ALIGN <=
    ring_end (j);
}

int
batch_read_body (struct journal *j, uint64_t position, const struct batch *b,
                 uint8_t *body)
{
  const int64_t r =
    full_pread (j->fd, body, b->len, position + BATCH_HEADER_LEN);

  if (r == -1 || r < b->len)
    return nbdedup_fail (EIO, "%s: reading %" PRIu32 " bytes at %" PRIu64
                         ": %s: " RESTORE, j->path, b->len, position,
                         r == -1 ? strerror (errno) : "end of file");
  return XXH3_64bits (body, b->len) == b->body_hash;
}
