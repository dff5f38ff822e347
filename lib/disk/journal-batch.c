/* SPDX-License-Identifier: BSD-3-Clause */

/* One batch of the journal, in bytes.  All integers are little-endian.
 *
 * The ring is [8192, ring_end).  A batch starts at a multiple of 512 with its
 * header.  The body follows, then zeroes up to the next multiple of 512.  There
 * the trailer starts; the list follows, then zeroes up to the next multiple of
 * 512.  Wraps and marks have only a header.
 *
 *   OFFSET  SIZE  FIELD
 *      0      4   magic "NBJB"
 *      4      4   kind: 1 data, 2 wrap, 3 mark
 *      8     16   uuid of the pool
 *     24      8   epoch of the session that wrote it
 *     32      8   seq: its number; in a wrap: the number of the batch at the
 *                 ring's start; in a mark: the number of the last batch when
 *                 the mark was written
 *     40      8   durable: the highest number known durable, with the records
 *                 that its batch refers to
 *     48      8   folded: the highest number known folded into pool.db
 *     56      8   position: offset of this header in the file
 *     64      4   length of the body; 0 for a wrap or mark
 *     68      4   length of the list; 0 for a wrap or mark
 *     72      8   XXH3_64bits of the body
 *     80      8   settled: the highest number of a batch known to be settled:
 *                 all records that it and the batches before it name are
 *                 durable, in "records" or carried
 *     88      8   XXH3_64bits of bytes 0 .. 87
 *
 * The trailer repeats the header in sectors of its own, so that no bad sector
 * hides a batch or its subject:
 *
 *      0      4   magic "NBJT"
 *      4     84   as in the header
 *     88      8   XXH3_64bits of bytes 0 .. 87
 *     96      8   XXH3_64bits of the list
 *    104          the list, which replaces a damaged body
 *
 * A batch never ends at ring_end: room for a wrap always stays behind it.
 * The header has its position because bodies carry users' data: replay must not
 * take a copy of a journal inside a body for batches.
 */

#include <config.h>

#include <assert.h>
#include <string.h>

#include <xxhash.h>

#include "base/bytes.h"
#include "base/xxh3.h"
#include "disk/journal-int.h"

#define BATCH_MAGIC "NBJB"
#define TRAILER_MAGIC "NBJT"

static uint64_t
whole_sectors (uint64_t len)
{
  return (len + JOURNAL_ALIGN - 1) & ~(uint64_t) (JOURNAL_ALIGN - 1);
}

uint64_t
batch_trailer_offset (const struct journal_batch *b)
{
  return whole_sectors (BATCH_HEADER_LEN + (uint64_t) b->len);
}

uint64_t
batch_size (const struct journal_batch *b)
{
  if (b->kind != BATCH_DATA)
    return JOURNAL_ALIGN;
  return batch_trailer_offset (b) +
    whole_sectors (BATCH_TRAILER_LEN + (uint64_t) b->list_len);
}

void
batch_pack (const struct journal *j, const struct journal_batch *b,
            uint8_t buf[BATCH_HEADER_LEN])
{
  /* Nothing that unpack would refuse. */
  assert (b->seq > 0 && b->settled <= b->seq && b->durable <= b->settled);
  assert (b->len <= JOURNAL_BODY_MAX && b->list_len <= JOURNAL_BODY_MAX);
  assert (b->kind == BATCH_DATA || (b->len == 0 && b->list_len == 0));
  assert (b->position >= RING_START && b->position % JOURNAL_ALIGN == 0);
  assert (b->position + batch_size (b) <= ring_end (j));
  memset (buf, 0, BATCH_HEADER_LEN);
  memcpy (buf, BATCH_MAGIC, 4);
  put_le32 (buf + 4, b->kind);
  memcpy (buf + 8, j->pair.header.uuid, UUID_LEN);
  put_le64 (buf + 24, b->epoch);
  put_le64 (buf + 32, b->seq);
  put_le64 (buf + 40, b->durable);
  put_le64 (buf + 48, b->folded);
  put_le64 (buf + 56, b->position);
  put_le32 (buf + 64, b->len);
  put_le32 (buf + 68, b->list_len);
  put_le64 (buf + 72, b->body_hash);
  put_le64 (buf + 80, b->settled);
  put_le64 (buf + 88, XXH3_64bits (buf, 88));
}
static_assert (8 + UUID_LEN == 24 && 88 + 8 == BATCH_HEADER_LEN &&
                 BATCH_HEADER_LEN <= JOURNAL_ALIGN,
               "batch header layout");

void
batch_pack_trailer (const struct journal *j, const struct journal_batch *b,
                    uint64_t list_hash, uint8_t buf[BATCH_TRAILER_LEN])
{
  assert (b->kind == BATCH_DATA);
  batch_pack (j, b, buf);
  memcpy (buf, TRAILER_MAGIC, 4);
  put_le64 (buf + 88, XXH3_64bits (buf, 88));
  put_le64 (buf + 96, list_hash);
}

/* A header or trailer is valid if and only if all these checks succeed. */
static bool
unpack (const struct journal *j, const uint8_t *buf, const char *magic,
        struct journal_batch *b)
{
  if (memcmp (buf, magic, 4) != 0 ||
      get_le64 (buf + 88) != XXH3_64bits (buf, 88) ||
      memcmp (buf + 8, j->pair.header.uuid, UUID_LEN) != 0)
    return false;
  switch (get_le32 (buf + 4)) {
  case BATCH_DATA:
    b->kind = BATCH_DATA;
    break;
  case BATCH_WRAP:
    b->kind = BATCH_WRAP;
    break;
  case BATCH_MARK:
    b->kind = BATCH_MARK;
    break;
  default:
    return false;
  }
  b->epoch = get_le64 (buf + 24);
  b->seq = get_le64 (buf + 32);
  b->durable = get_le64 (buf + 40);
  b->folded = get_le64 (buf + 48);
  b->position = get_le64 (buf + 56);
  b->len = get_le32 (buf + 64);
  b->list_len = get_le32 (buf + 68);
  b->body_hash = get_le64 (buf + 72);
  b->settled = get_le64 (buf + 80);
  if (b->seq == 0 || b->settled > b->seq || b->len > JOURNAL_BODY_MAX ||
      b->list_len > JOURNAL_BODY_MAX)
    return false;
  if (b->kind != BATCH_DATA)
    return b->len == 0 && b->list_len == 0;
  return b->position >= RING_START && b->position < ring_end (j) &&
    b->position + batch_size (b) + JOURNAL_ALIGN <= ring_end (j);
}

bool
batch_unpack (const struct journal *j, const uint8_t *buf, uint64_t position,
              struct journal_batch *b)
{
  return unpack (j, buf, BATCH_MAGIC, b) && b->position == position;
}

bool
batch_unpack_trailer (const struct journal *j, const uint8_t *buf,
                      uint64_t position, struct journal_batch *b)
{
  return unpack (j, buf, TRAILER_MAGIC, b) && b->kind == BATCH_DATA &&
    b->position + batch_trailer_offset (b) == position;
}

bool
batch_unpack_moved (const struct journal *j, const uint8_t *buf,
                    struct journal_batch *b)
{
  return unpack (j, buf, BATCH_MAGIC, b) || unpack (j, buf, TRAILER_MAGIC, b);
}

int
batch_read_body (struct journal *j, const struct journal_batch *b,
                 uint8_t *body)
{
  const int r = journal_read (j, b->position + BATCH_HEADER_LEN, body, b->len);

  if (r != 0)
    return r == 1 ? 0 : -1;
  return xxh3_64 (body, b->len) == b->body_hash;
}

int
batch_read_list (struct journal *j, const struct journal_batch *b,
                 uint8_t *list)
{
  const uint64_t position = b->position + batch_trailer_offset (b);
  uint8_t buf[BATCH_TRAILER_LEN];
  struct journal_batch t;
  int r;

  if (journal_read (j, position, buf, sizeof buf) == -1)
    return -1;
  if (!batch_unpack_trailer (j, buf, position, &t) || t.epoch != b->epoch ||
      t.seq != b->seq || t.list_len != b->list_len)
    return 0;
  r = journal_read (j, position + BATCH_TRAILER_LEN, list, b->list_len);
  if (r != 0)
    return r == 1 ? 0 : -1;
  return xxh3_64 (list, b->list_len) == get_le64 (buf + 96);
}
