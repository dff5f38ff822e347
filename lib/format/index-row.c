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

/* Unpack an entry, and make '*last' its prefix.  Returns its bytes, 0: it is
 * damaged.
 */
static size_t
unpack_entry (const uint8_t *buf, size_t len, uint64_t *last,
              struct index_entry *e)
{
  uint64_t more, addr;
  const size_t n = varint_get (buf, len, &more);
  const size_t m = n > 0 ? varint_get (buf + n, len - n, &addr) : 0;

  if (m == 0 || more > (UINT64_MAX >> PREFIX_SHIFT) - *last ||
      addr >> 1 > ADDR_MAX)
    return 0;
  *last += more;
  *e = (struct index_entry) {
    .prefix = *last << PREFIX_SHIFT,
    .addr = addr >> 1,
    .removed = addr & 1,
  };
  return n + m;
}

size_t
index_row_unpack (const uint8_t *row, size_t len, uint8_t *entries)
{
  struct index_entry e;
  uint64_t last = 0;
  size_t off, n, used = 0;

  assert (index_row_is_packed (len));
  for (off = 0; off < len; off += n) {
    if (off == len - 1 && row[off] == 0)
      break;
    n = unpack_entry (row + off, len - off, &last, &e);
    if (n == 0) {
      entries[used] = 0;
      return used + 1;
    }
    index_entry_pack (&e, entries + used);
    used += INDEX_ENTRY_LEN;
  }
  return used;
}
