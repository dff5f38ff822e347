/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <string.h>

#include "base/varint.h"
#include "format/index-row.h"

/* The lowest bit of INDEX_PREFIX_MASK. */
#define PREFIX_SHIFT 17
/* Of a packed entry. */
#define ENTRY_MIN 2
#define ENTRY_MAX ((size_t) 2 * VARINT_MAX)

size_t
index_row_pack (const uint8_t *entries, size_t len, uint8_t *buf)
{
  struct index_entry e;
  uint8_t entry[ENTRY_MAX];
  uint64_t last = 0;
  size_t off, n, used = 0;

  assert (len % INDEX_ENTRY_LEN == 0);
  for (off = 0; off < len; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (entries + off, &e);
    e.prefix >>= PREFIX_SHIFT;
    if (e.prefix < last)
      return 0;
    n = varint_put (entry, e.prefix - last);
    n += varint_put (entry + n, e.addr << 1 | e.removed);
    if (n > len - used)
      return 0;
    memcpy (buf + used, entry, n);
    used += n;
    last = e.prefix;
  }
  if (used % INDEX_ENTRY_LEN == 0 && used < len)
    buf[used++] = 0;
  return used < len ? used : 0;
}

bool
index_row_is_packed (size_t len)
{
  return len % INDEX_ENTRY_LEN != 0;
}

size_t
index_row_unpacked_max (size_t len)
{
  return len / ENTRY_MIN * INDEX_ENTRY_LEN + 1;
}

struct index_row
index_row_open (const uint8_t *row, size_t len)
{
  return (struct index_row) {
    .p = row,
    .len = len,
    .packed = index_row_is_packed (len),
  };
}

static int
next_packed (struct index_row *row, struct index_entry *e)
{
  const uint8_t *p = row->p + row->off;
  const size_t len = row->len - row->off;
  uint64_t more, addr;
  size_t n, m;

  if (len == 0 || (len == 1 && *p == 0))
    return 0;
  n = varint_get (p, len, &more);
  m = n > 0 ? varint_get (p + n, len - n, &addr) : 0;
  if (m == 0 || more > (UINT64_MAX >> PREFIX_SHIFT) - row->last ||
      addr >> 1 > ADDR_MAX)
    return -1;
  row->off += n + m;
  row->last += more;
  *e = (struct index_entry) {
    .prefix = row->last << PREFIX_SHIFT,
    .addr = addr >> 1,
    .removed = addr & 1,
  };
  return 1;
}

int
index_row_next (struct index_row *row, struct index_entry *e)
{
  if (row->packed)
    return next_packed (row, e);
  if (row->off == row->len)
    return 0;
  index_entry_unpack (row->p + row->off, e);
  row->off += INDEX_ENTRY_LEN;
  return 1;
}

size_t
index_row_unpack (const uint8_t *row, size_t len, uint8_t *entries)
{
  struct index_row packed = index_row_open (row, len);
  struct index_entry e;
  size_t used = 0;
  int r;

  assert (packed.packed);
  while ((r = index_row_next (&packed, &e)) == 1) {
    index_entry_pack (&e, entries + used);
    used += INDEX_ENTRY_LEN;
  }
  if (r == -1)
    entries[used++] = 0;
  return used;
}

bool
index_row_is_in_order (uint64_t low, const uint8_t *entries, size_t len)
{
  struct index_entry e, last = { .prefix = low };
  size_t off;

  for (off = 0; off + INDEX_ENTRY_LEN <= len; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (entries + off, &e);
    if (e.prefix < last.prefix ||
        (off > 0 && index_entry_compare (&last, &e) >= 0))
      return false;
    last = e;
  }
  return off == len;
}
