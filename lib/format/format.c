/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <xxhash.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/xxh3.h"
#include "format/codec.h"
#include "format/format.h"

#define PSIZE_SHIFT 40
#define CODEC_SHIFT 60

static unsigned
size_shift (uint32_t size)
{
  return (unsigned) __builtin_ctz (size);
}

static bool
is_block_size (uint64_t size)
{
  return size >= BLOCK_SIZE_MIN && size <= BLOCK_SIZE_MAX &&
    (size & (size - 1)) == 0;
}

void
pointer_pack (const struct pointer *p, uint8_t buf[POINTER_LEN])
{
  assert (p->addr > 0 && p->addr <= ADDR_MAX);
  assert (p->psize > 0 && p->psize <= BLOCK_SIZE_MAX);
  put_le64 (buf,
            p->addr | (uint64_t) (p->psize - 1) << PSIZE_SHIFT |
              (uint64_t) p->codec << CODEC_SHIFT);
  put_le64 (buf + 8, p->cksum);
}

uint64_t
pointer_addr (const uint8_t buf[POINTER_LEN])
{
  return get_le64 (buf) & ADDR_MAX;
}

int
pointer_unpack (const uint8_t buf[POINTER_LEN], uint32_t lsize,
                struct pointer *p)
{
  uint64_t w = get_le64 (buf);

  p->addr = w & ADDR_MAX;
  p->psize = (uint32_t) ((w >> PSIZE_SHIFT) & 0xfffff) + 1;
  p->codec = (uint8_t) (w >> CODEC_SHIFT);
  p->cksum = get_le64 (buf + 8);
  if (p->addr == 0)
    return nbdedup_fail (EIO, "map: a pointer has address 0");
  if (codec_name (p->codec) == NULL)
    return nbdedup_fail (EIO, "map: a pointer has the unknown codec %u",
                         p->codec);
  if (p->psize > lsize || (p->codec == CODEC_NONE && p->psize != lsize))
    return nbdedup_fail (EIO,
                         "map: a pointer to %" PRIu32 " stored bytes "
                         "for a block of %" PRIu32,
                         p->psize, lsize);
  return 0;
}

int
pointer_check_stored (const struct pointer *p, const uint8_t *raw)
{
  if (xxh3_64 (raw, p->psize) == p->cksum)
    return 0;
  return nbdedup_fail (EIO,
                       "records: the record at sector %" PRIu64
                       " is damaged: its checksum is wrong",
                       p->addr);
}

size_t
record_pack (const struct record *r, uint8_t buf[RECORD_ENTRY_MAX])
{
  uint16_t flags = r->flags & ~RECORD_EXTENDED;

  assert (r->refcount <= RECORD_REFCOUNT_MAX);
  if (r->domain != 0)
    flags |= RECORD_EXTENDED;
  put_le16 (buf, (uint16_t) (r->ptr.addr % RECORD_GROUP_SECTORS));
  put_le16 (buf + 2, r->slot);
  /* Byte 4 is the low byte, so psize fills bytes 5 .. 7. */
  put_le32 (buf + 4,
            (uint32_t) r->ptr.codec | (size_shift (r->lsize) - 9) << 4 |
              (r->ptr.psize - 1) << 8);
  put_le64 (buf + 8, r->refcount | (uint64_t) flags << 48);
  put_le64 (buf + 16, r->ptr.cksum);
  memcpy (buf + 24, r->digest.b, DIGEST_LEN);
  if (r->domain == 0)
    return RECORD_ENTRY_LEN;
  put_le16 (buf + 56, 12);
  put_le16 (buf + 58, 1);
  put_le16 (buf + 60, 8);
  put_le64 (buf + 62, r->domain);
  return RECORD_ENTRY_MAX;
}

void
record_put_refcount (uint8_t *entry, uint64_t refcount)
{
  assert (refcount <= RECORD_REFCOUNT_MAX);
  put_le64 (entry + 8, refcount | (uint64_t) get_le16 (entry + 14) << 48);
}

void
record_put_flags (uint8_t *entry, uint16_t flags)
{
  put_le16 (entry + 14, flags);
}

static int
record_unpack_extension (const uint8_t *buf, size_t len, struct record *r)
{
  size_t n, type, field;
  const uint8_t *p;

  if (len < 2 || len < 2 + (n = get_le16 (buf)))
    return nbdedup_fail (EIO, "record: extension cut short");
  for (p = buf + 2; n >= 4; p += 4 + field, n -= 4 + field) {
    type = get_le16 (p);
    field = (get_le16 (p + 2) + 1u) & ~(size_t) 1;
    if (field > n - 4)
      return nbdedup_fail (EIO, "record: extension field cut short");
    if (type == 1 && field == 8)
      r->domain = get_le64 (p + 4);
  }
  return 2 + (int) get_le16 (buf);
}

int
record_unpack (uint64_t group, const uint8_t *buf, size_t len, struct record *r)
{
  uint64_t w;
  uint32_t v;
  int used = RECORD_ENTRY_LEN, ext;

  if (len < RECORD_ENTRY_LEN)
    return nbdedup_fail (EIO, "record: row of group %" PRIu64 " is cut short",
                         group);
  if (get_le16 (buf) >= RECORD_GROUP_SECTORS)
    return nbdedup_fail (EIO, "record: sector %u outside its group",
                         get_le16 (buf));
  r->ptr.addr = group * RECORD_GROUP_SECTORS + get_le16 (buf);
  r->slot = get_le16 (buf + 2);
  v = get_le32 (buf + 4);
  r->ptr.codec = v & 15;
  r->lsize = 1u << (((v >> 4) & 15) + 9);
  r->ptr.psize = (v >> 8) + 1;
  w = get_le64 (buf + 8);
  r->refcount = w & RECORD_REFCOUNT_MAX;
  r->flags = (uint16_t) (w >> 48);
  r->ptr.cksum = get_le64 (buf + 16);
  memcpy (r->digest.b, buf + 24, DIGEST_LEN);
  r->domain = 0;
  if (!is_block_size (r->lsize) || r->ptr.psize > r->lsize ||
      (r->ptr.codec == CODEC_NONE && r->ptr.psize != r->lsize) ||
      codec_name (r->ptr.codec) == NULL || r->ptr.addr == 0)
    return nbdedup_fail (EIO, "record: entry at %" PRIu64 " is not valid",
                         r->ptr.addr);
  if (r->flags & RECORD_EXTENDED) {
    ext = record_unpack_extension (buf + used, len - used, r);
    if (ext == -1)
      return -1;
    used += ext;
  }
  return used;
}

int
record_next (uint64_t group, const uint8_t *row, size_t len, size_t *off,
             struct record *r)
{
  int n;

  assert (*off <= len);
  if (*off == len)
    return 0;
  n = record_unpack (group, row + *off, len - *off, r);
  if (n == -1)
    return -1;
  *off += (size_t) n;
  return 1;
}

size_t
leaf_pack (const struct leaf *leaf, uint8_t buf[LEAF_LEN_MAX])
{
  size_t used = LEAF_STATES_LEN;
  bool any = false;
  unsigned i;

  memset (buf, 0, LEAF_STATES_LEN);
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (leaf->state[i] == MAP_INHERIT)
      continue;
    any = true;
    buf[i / 4] |= (uint8_t) (leaf->state[i] << 2 * (i % 4));
    if (leaf->state[i] == MAP_POINTER) {
      memcpy (buf + used, leaf->ptr[i], POINTER_LEN);
      used += POINTER_LEN;
    }
  }
  return any ? used : 0;
}

int
leaf_unpack (const uint8_t *buf, size_t len, struct leaf *leaf)
{
  size_t used = LEAF_STATES_LEN;
  unsigned i;

  memset (leaf->state, MAP_INHERIT, sizeof leaf->state);
  if (len == 0)
    return 0;
  if (len < LEAF_STATES_LEN)
    return nbdedup_fail (EIO, "map: a leaf of %zu bytes", len);
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    leaf->state[i] = (buf[i / 4] >> 2 * (i % 4)) & 3;
    if (leaf->state[i] == MAP_POINTER) {
      if (len - used < POINTER_LEN)
        return nbdedup_fail (EIO, "map: a leaf that is cut short");
      memcpy (leaf->ptr[i], buf + used, POINTER_LEN);
      used += POINTER_LEN;
    }
  }
  if (used != len)
    return nbdedup_fail (EIO, "map: a leaf with %zu bytes too many",
                         len - used);
  return 0;
}

uint64_t
digest_word (const struct digest *digest)
{
  uint64_t v;

  memcpy (&v, digest->b, sizeof v);
  return be64toh (v);
}

uint64_t
digest_prefix (const struct digest *digest)
{
  return digest_word (digest) & INDEX_PREFIX_MASK;
}

/* An entry's first bytes are a prefix without the lowest 16 bits, and this. */
#define INDEX_REMOVED 1u
#define INDEX_PREFIX_SHIFT 16
#define INDEX_PREFIX_LEN 6
#define INDEX_ADDR_LEN 5

void
index_entry_make (const struct digest *digest, uint64_t addr,
                  struct index_entry *e)
{
  *e = (struct index_entry) { .prefix = digest_prefix (digest), .addr = addr };
}

void
index_entry_pack (const struct index_entry *e, uint8_t buf[INDEX_ENTRY_LEN])
{
  uint8_t word[8];

  assert ((e->prefix & ~INDEX_PREFIX_MASK) == 0);
  put_le64 (word,
            e->prefix >> INDEX_PREFIX_SHIFT | (e->removed ? INDEX_REMOVED : 0));
  memcpy (buf, word, INDEX_PREFIX_LEN);
  put_le64 (word, e->addr);
  memcpy (buf + INDEX_PREFIX_LEN, word, INDEX_ADDR_LEN);
}

void
index_entry_unpack (const uint8_t buf[INDEX_ENTRY_LEN], struct index_entry *e)
{
  uint8_t word[8] = { 0 };
  uint64_t v;

  memcpy (word, buf, INDEX_PREFIX_LEN);
  v = get_le64 (word);
  e->prefix = v << INDEX_PREFIX_SHIFT & INDEX_PREFIX_MASK;
  e->removed = v & INDEX_REMOVED;
  memset (word, 0, sizeof word);
  memcpy (word, buf + INDEX_PREFIX_LEN, INDEX_ADDR_LEN);
  e->addr = get_le64 (word);
}

bool
index_entry_matches (const struct index_entry *e, const struct digest *digest)
{
  return e->prefix == digest_prefix (digest);
}

int
index_entry_compare (const struct index_entry *x, const struct index_entry *y)
{
  if (x->prefix != y->prefix)
    return x->prefix < y->prefix ? -1 : 1;
  return x->addr < y->addr ? -1 : x->addr > y->addr;
}

void
summary_header_pack (const uint8_t uuid[UUID_LEN], uint64_t chunk_addr,
                     uint32_t index, uint32_t sector_bytes, uint8_t buf[64])
{
  memset (buf, 0, 64);
  memcpy (buf, "NBDCHUNK", 8);
  memcpy (buf + 8, uuid, UUID_LEN);
  put_le64 (buf + 24, chunk_addr);
  put_le32 (buf + 32, index);
  put_le32 (buf + 36, sector_bytes);
  put_le64 (buf + 56, XXH3_64bits (buf, 56));
}

bool
summary_header_unpack (const uint8_t uuid[UUID_LEN], uint64_t chunk_addr,
                       uint32_t sector_bytes, const uint8_t buf[64],
                       uint32_t *index)
{
  uint8_t header[64];

  *index = get_le32 (buf + 32);
  summary_header_pack (uuid, chunk_addr, *index, sector_bytes, header);
  return memcmp (buf, header, sizeof header) == 0;
}

static uint32_t
summary_check (const uint8_t uuid[UUID_LEN], uint64_t slot_offset,
               const uint8_t buf[64])
{
  return (uint32_t) XXH3_64bits_withSeed (buf, 60,
                                          slot_offset ^ get_le64 (uuid));
}

void
summary_slot_pack (const uint8_t uuid[UUID_LEN], uint64_t slot_offset,
                   const struct record *r, uint64_t birth,
                   uint32_t sectors_per_segment, uint8_t buf[64])
{
  put_le16 (buf, (uint16_t) (r->ptr.addr % sectors_per_segment));
  buf[2] = (uint8_t) (r->ptr.codec | (size_shift (r->lsize) - 9) << 4);
  buf[3] = 0;
  put_le32 (buf + 4, r->ptr.psize);
  put_le64 (buf + 8, r->ptr.cksum);
  memcpy (buf + 16, r->digest.b, DIGEST_LEN);
  put_le64 (buf + 48, birth);
  put_le32 (buf + 56, (uint32_t) r->domain);
  put_le32 (buf + 60, summary_check (uuid, slot_offset, buf));
}

int
summary_slot_unpack (const uint8_t uuid[UUID_LEN], uint64_t slot_offset,
                     uint64_t segment, uint32_t sectors_per_segment,
                     const uint8_t buf[64], struct record *r, uint64_t *birth)
{
  if (get_le32 (buf + 60) != summary_check (uuid, slot_offset, buf))
    return 0;
  memset (r, 0, sizeof *r);
  r->ptr.addr = segment * sectors_per_segment + get_le16 (buf);
  r->ptr.codec = buf[2] & 15;
  r->lsize = 1u << ((buf[2] >> 4) + 9);
  r->ptr.psize = get_le32 (buf + 4);
  r->ptr.cksum = get_le64 (buf + 8);
  memcpy (r->digest.b, buf + 16, DIGEST_LEN);
  *birth = get_le64 (buf + 48);
  r->domain = get_le32 (buf + 56);
  return is_block_size (r->lsize) && r->ptr.psize > 0 &&
    r->ptr.psize <= r->lsize && codec_name (r->ptr.codec) != NULL;
}

static void
je_head (uint8_t type, uint8_t flags, uint16_t own, uint32_t len, uint8_t *buf)
{
  buf[0] = type;
  buf[1] = flags;
  put_le16 (buf + 2, own);
  put_le32 (buf + 4, len);
}

void
je_record_pack (const struct record *r, uint64_t chunk_addr, unsigned flags,
                uint8_t buf[JE_RECORD_LEN])
{
  uint32_t len = JE_RECORD_LEN;

  assert ((flags & ~(unsigned) (JE_DATA | JE_OVER_QUOTA)) == 0);
  if (flags & JE_DATA)
    len += (r->ptr.psize + 7) & ~7u;
  je_head (JE_RECORD, (uint8_t) flags, r->slot, len, buf);
  put_le64 (buf + 8, r->ptr.addr);
  put_le64 (buf + 16, chunk_addr);
  put_le64 (buf + 24, r->ptr.cksum);
  put_le64 (buf + 32, r->domain);
  memcpy (buf + 40, r->digest.b, DIGEST_LEN);
  put_le32 (buf + 72, r->ptr.psize);
  buf[76] = r->ptr.codec;
  buf[77] = (uint8_t) (size_shift (r->lsize) - 9);
  put_le16 (buf + 78, r->flags);
}

void
je_pointers_pack (uint64_t layer, uint64_t block, uint16_t count,
                  uint8_t buf[JE_POINTERS_LEN])
{
  je_head (JE_POINTERS, 0, count, JE_POINTERS_LEN + count * POINTER_LEN, buf);
  put_le64 (buf + 8, layer);
  put_le64 (buf + 16, block);
}

void
je_holes_pack (uint64_t layer, uint64_t block, uint64_t count,
               uint8_t buf[JE_HOLES_LEN])
{
  assert (count <= JE_HOLES_MAX);
  je_head (JE_HOLES, 0, 0, JE_HOLES_LEN, buf);
  put_le64 (buf + 8, layer);
  put_le64 (buf + 16, block);
  put_le64 (buf + 24, count);
}

void
je_lost_pack (uint64_t layer, uint64_t block, uint64_t count,
              uint8_t buf[JE_HOLES_LEN])
{
  je_holes_pack (layer, block, count, buf);
  buf[0] = JE_LOST;
}

static int
je_unpack_record (const uint8_t *buf, uint32_t len, struct journal_entry *e)
{
  struct record *r = &e->record;

  if (len < JE_RECORD_LEN)
    return nbdedup_fail (EIO, "journal: record entry of %" PRIu32 " bytes",
                         len);
  memset (r, 0, sizeof *r);
  r->slot = get_le16 (buf + 2);
  r->ptr.addr = get_le64 (buf + 8);
  e->chunk_addr = get_le64 (buf + 16);
  r->ptr.cksum = get_le64 (buf + 24);
  r->domain = get_le64 (buf + 32);
  memcpy (r->digest.b, buf + 40, DIGEST_LEN);
  r->ptr.psize = get_le32 (buf + 72);
  r->ptr.codec = buf[76];
  r->lsize = 1u << ((buf[77] & 15) + 9);
  r->flags = get_le16 (buf + 78);
  e->data = NULL;
  e->over_quota = buf[1] & JE_OVER_QUOTA;
  if (r->ptr.addr == 0 || r->ptr.addr > ADDR_MAX || r->ptr.psize == 0 ||
      !is_block_size (r->lsize) || r->ptr.psize > r->lsize ||
      codec_name (r->ptr.codec) == NULL)
    return nbdedup_fail (EIO, "journal: record entry is not valid");
  if (buf[1] & JE_DATA) {
    if (len - JE_RECORD_LEN < r->ptr.psize)
      return nbdedup_fail (EIO, "journal: record entry lacks its data");
    e->data = buf + JE_RECORD_LEN;
  }
  return 0;
}

static int
check_blocks (const struct journal_entry *e)
{
  const uint64_t max = VOLUME_SIZE_MAX / BLOCK_SIZE_MIN;

  if (e->count <= JE_HOLES_MAX && e->block <= max - e->count)
    return 0;
  return nbdedup_fail (EIO,
                       "journal: an entry has %" PRIu64
                       " blocks from block %" PRIu64 " on",
                       e->count, e->block);
}

int64_t
je_unpack (const uint8_t *buf, size_t len, struct journal_entry *e)
{
  uint32_t n;

  if (len < 8 || (n = get_le32 (buf + 4)) < 8 || n > len || n % 8 != 0)
    return nbdedup_fail (EIO, "journal: entry cut short");
  e->type = buf[0];
  switch (e->type) {
  case JE_RECORD:
    if (je_unpack_record (buf, n, e) == -1)
      return -1;
    return n;
  case JE_POINTERS:
    e->count = get_le16 (buf + 2);
    if (n < JE_POINTERS_LEN || (n - JE_POINTERS_LEN) / POINTER_LEN < e->count)
      return nbdedup_fail (EIO, "journal: pointers entry cut short");
    e->layer = get_le64 (buf + 8);
    e->block = get_le64 (buf + 16);
    e->pointers = buf + JE_POINTERS_LEN;
    return check_blocks (e) == -1 ? -1 : (int64_t) n;
  case JE_HOLES:
  case JE_LOST:
    if (n < JE_HOLES_LEN)
      return nbdedup_fail (EIO, "journal: holes entry cut short");
    e->layer = get_le64 (buf + 8);
    e->block = get_le64 (buf + 16);
    e->count = get_le64 (buf + 24);
    return check_blocks (e) == -1 ? -1 : (int64_t) n;
  default:
    return nbdedup_fail (EIO, "journal: entry of unknown type %u", e->type);
  }
}
