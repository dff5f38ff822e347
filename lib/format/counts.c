/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/varint.h"
#include "format/counts.h"

void
counts_clear (struct counts *counts)
{
  memset (counts, 0xff, sizeof *counts); /* COUNT_SAME */
}

size_t
counts_pack (const struct counts *counts, uint8_t buf[COUNTS_LEN_MAX])
{
  size_t used = 0;
  unsigned i;
  uint64_t v;

  for (i = 0; i < RECORD_GROUP_SECTORS; ++i) {
    if (counts->of[i] == COUNT_SAME)
      continue;
    assert (counts->of[i] <= RECORD_REFCOUNT_MAX ||
            counts->of[i] == COUNT_DEAD);
    v = counts->of[i] == COUNT_DEAD ? 0 : counts->of[i] + 1;
    buf[used++] = (uint8_t) i;
    used += varint_put (buf + used, v);
  }
  assert (used <= COUNTS_LEN_MAX);
  return used;
}

/* Returns the bytes used; 0: damaged. */
static size_t
unpack_entry (const uint8_t *buf, size_t len, unsigned *sector, uint64_t *count)
{
  uint64_t v;
  const size_t n = varint_get (buf + 1, len - 1, &v);

  if (n == 0 || n >= COUNTS_ENTRY_MAX || v > RECORD_REFCOUNT_MAX + 1)
    return 0;
  *sector = buf[0];
  *count = v == 0 ? COUNT_DEAD : v - 1;
  return 1 + n;
}

int
counts_unpack (uint64_t group, const uint8_t *buf, size_t len,
               struct counts *counts)
{
  unsigned sector, next = 0;
  size_t off, n;
  uint64_t count;

  counts_clear (counts);
  for (off = 0; off < len; off += n, next = sector + 1) {
    n = unpack_entry (buf + off, len - off, &sector, &count);
    if (n == 0 || sector < next)
      return nbdedup_fail (EIO,
                           "pool.db: the counts of group %" PRIu64
                           " are damaged",
                           group);
    counts->of[sector] = count;
  }
  return 0;
}

void
counts_apply (uint64_t group, uint8_t *records, size_t *len,
              const uint8_t *counts, size_t counts_len)
{
  struct counts new;
  struct record r;
  size_t off, kept = 0;
  uint64_t count;
  int n;

  if (counts_unpack (group, counts, counts_len, &new) == -1) {
    *len = *len > 0;
    return;
  }
  for (off = 0; off < *len; off += (size_t) n) {
    n = record_unpack (group, records + off, *len - off, &r);
    count = n == -1 ? COUNT_SAME : new.of[r.ptr.addr % RECORD_GROUP_SECTORS];
    if (n == -1) /* the caller finds it, too */
      n = (int) (*len - off);
    if (count == COUNT_DEAD)
      continue;
    if (count != COUNT_SAME)
      record_put_refcount (records + off, count);
    memmove (records + kept, records + off, (size_t) n);
    kept += (size_t) n;
  }
  assert (kept <= *len);
  *len = kept;
}
