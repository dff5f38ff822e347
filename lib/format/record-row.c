/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/varint.h"
#include "format/record-row.h"

#define HEADER_LEN 2

enum {
  HAS_SECTOR = 1,
  HAS_SLOT = 2,
  HAS_KIND = 4,
  HAS_FLAGS = 8,
  HAS_COUNT = 16,
  HAS_DOMAIN = 32,
};
#define PSIZE_SHIFT 6

/* The longest packed entry is no longer than the other form. */
_Static_assert (1 + 1 + 2 + 1 + 2 + 7 + VARINT_MAX + 3 + 8 + DIGEST_LEN <=
                  RECORD_ENTRY_MAX,
                "buffers of RECORD_ROW_MAX bytes");

/* What an entry can share with the last one. */
struct shared {
  unsigned sector, slot, kind, flags, psize; /* psize - 1 */
  uint64_t domain;
};

static const struct shared before_all = {
  .sector = UINT8_MAX,
  .slot = UINT16_MAX,
  .flags = RECORD_INDEXED,
};

static struct shared
shared_of (const struct record *r)
{
  return (struct shared) {
    .sector = (unsigned) (r->ptr.addr % RECORD_GROUP_SECTORS),
    .slot = r->slot,
    .kind = r->ptr.codec | (unsigned) (__builtin_ctz (r->lsize) - 9) << 4,
    .flags = r->flags & ~(unsigned) RECORD_EXTENDED,
    .psize = r->ptr.psize - 1,
    .domain = r->domain,
  };
}

static unsigned
bytes_of (unsigned n)
{
  return n > UINT16_MAX ? 3 : n > UINT8_MAX ? 2 : 1;
}

static size_t
pack_entry (const struct record *r, struct shared *last, uint8_t *buf)
{
  const struct shared s = shared_of (r);
  size_t n = 1;
  unsigned i, has = 0;

  if (s.sector != (uint8_t) (last->sector + 1)) {
    has |= HAS_SECTOR;
    buf[n++] = (uint8_t) s.sector;
  }
  if (s.slot != (uint16_t) (last->slot + 1)) {
    has |= HAS_SLOT;
    put_le16 (buf + n, (uint16_t) s.slot);
    n += 2;
  }
  if (s.kind != last->kind) {
    has |= HAS_KIND;
    buf[n++] = (uint8_t) s.kind;
  }
  if (s.flags != last->flags) {
    has |= HAS_FLAGS;
    put_le16 (buf + n, (uint16_t) s.flags);
    n += 2;
  }
  if (r->refcount != 1) {
    has |= HAS_COUNT;
    n += varint_put (buf + n, r->refcount);
  }
  if (s.domain != last->domain) {
    has |= HAS_DOMAIN;
    n += varint_put (buf + n, s.domain);
  }
  if (s.psize != last->psize) {
    has |= bytes_of (s.psize) << PSIZE_SHIFT;
    for (i = 0; i < bytes_of (s.psize); ++i)
      buf[n++] = (uint8_t) (s.psize >> 8 * i);
  }
  buf[0] = (uint8_t) has;
  put_le64 (buf + n, r->ptr.cksum);
  memcpy (buf + n + 8, r->digest.b, DIGEST_LEN);
  *last = s;
  return n + 8 + DIGEST_LEN;
}

int
record_row_pack (uint64_t group, const uint8_t *entries, size_t len,
                 uint8_t buf[RECORD_ROW_MAX])
{
  struct shared last = before_all;
  size_t off = 0, used = HEADER_LEN;
  struct record r;
  int n;

  assert (len > 0);
  put_le16 (buf, RECORD_ROW_PACKED);
  while ((n = record_next (group, entries, len, &off, &r)) == 1) {
    if (used + RECORD_ENTRY_MAX > RECORD_ROW_MAX)
      return nbdedup_fail (EIO,
                           "record: row of group %" PRIu64
                           " has too many entries",
                           group);
    used += pack_entry (&r, &last, buf + used);
  }
  return n == -1 ? -1 : (int) used;
}

bool
record_row_is_packed (const uint8_t *row, size_t len)
{
  return len >= HEADER_LEN && get_le16 (row) == RECORD_ROW_PACKED;
}

/* The little-endian number of 'n' bytes at '*p'; moves that behind it. */
static unsigned
take (const uint8_t **p, unsigned n)
{
  unsigned i, v = 0;

  for (i = 0; i < n; ++i)
    v |= (unsigned) *(*p)++ << 8 * i;
  return v;
}

static bool
take_varint (const uint8_t **p, const uint8_t *end, uint64_t *v)
{
  const size_t n = varint_get (*p, (size_t) (end - *p), v);

  *p += n;
  return n > 0;
}

/* The bytes of the fields before the reference count. */
static size_t
fixed_len (unsigned has)
{
  return (has & HAS_SECTOR ? 1u : 0) + (has & HAS_SLOT ? 2u : 0) +
    (has & HAS_KIND ? 1u : 0) + (has & HAS_FLAGS ? 2u : 0);
}

/* Returns the bytes of the packed entry, 0: it is damaged.  '*r' is what can be
 * told without the group: its address is a sector.
 */
static size_t
unpack_entry (const uint8_t *buf, size_t len, struct shared *last,
              struct record *r)
{
  const uint8_t *p = buf + 1, *end = buf + len;
  const unsigned has = buf[0];

  if (len < 1 + fixed_len (has))
    return 0;
  last->sector = has & HAS_SECTOR ? take (&p, 1) : (uint8_t) (last->sector + 1);
  last->slot = has & HAS_SLOT ? take (&p, 2) : (uint16_t) (last->slot + 1);
  if (has & HAS_KIND)
    last->kind = take (&p, 1);
  if (has & HAS_FLAGS)
    last->flags = take (&p, 2) & ~(unsigned) RECORD_EXTENDED;
  r->refcount = 1;
  if ((has & HAS_COUNT && !take_varint (&p, end, &r->refcount)) ||
      (has & HAS_DOMAIN && !take_varint (&p, end, &last->domain)) ||
      r->refcount > RECORD_REFCOUNT_MAX ||
      (size_t) (end - p) < (has >> PSIZE_SHIFT) + 8 + DIGEST_LEN)
    return 0;
  if (has >> PSIZE_SHIFT)
    last->psize = take (&p, has >> PSIZE_SHIFT);
  r->ptr.addr = last->sector;
  r->slot = (uint16_t) last->slot;
  r->ptr.codec = last->kind & 15;
  r->lsize = 1u << ((last->kind >> 4) + 9);
  r->flags = (uint16_t) last->flags;
  r->domain = last->domain;
  r->ptr.psize = last->psize + 1;
  r->ptr.cksum = get_le64 (p);
  memcpy (r->digest.b, p + 8, DIGEST_LEN);
  return (size_t) (p + 8 + DIGEST_LEN - buf);
}

size_t
record_row_unpack (const uint8_t *row, size_t len,
                   uint8_t entries[RECORD_ROW_MAX])
{
  struct shared last = before_all;
  struct record r;
  size_t off = HEADER_LEN, used = 0, n;

  assert (record_row_is_packed (row, len));
  while (off < len) {
    n = used + RECORD_ENTRY_MAX > RECORD_ROW_MAX - 1
      ? 0
      : unpack_entry (row + off, len - off, &last, &r);
    if (n == 0) {
      entries[used] = 0;
      return used + 1;
    }
    used += record_pack (&r, entries + used);
    off += n;
  }
  return used;
}
