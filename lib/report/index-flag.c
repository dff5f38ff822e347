/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/backoff.h"
#include "base/error.h"
#include "disk/room.h"
#include "report/index-flag.h"

size_t
index_flag_groups (const struct record_name *names, size_t nr, unsigned groups)
{
  uint64_t group = UINT64_MAX, this;
  size_t i;

  assert (groups > 0);
  for (i = 0; i < nr; ++i) {
    this = names[i].addr / RECORD_GROUP_SECTORS;
    if (this != group && groups-- == 0)
      break;
    group = this;
  }
  return i;
}

uint64_t
index_flag_pages (unsigned groups, size_t nr)
{
  return groups * ROOM_GROUP_PAGES + nr / ROOM_ENTRIES_PER_PAGE + 1;
}

static bool
is_row_whole (uint64_t group, const struct blob *row)
{
  struct record r;
  size_t off = 0;
  int n;

  while ((n = record_next (group, row->p, row->len, &off, &r)) == 1)
    ;
  return n == 0;
}

/* The records of one group. */
static int
change_group (struct meta_conn *c, struct blob *row,
              const struct record_name *names, size_t nr,
              int (*fn) (void *opaque, const struct record *r), void *opaque)
{
  const uint64_t group = names[0].addr / RECORD_GROUP_SECTORS;
  bool changed = false;
  struct record r;
  size_t off, i = 0;
  int n, wanted;

  row->len = 0;
  wanted = meta_record_get (c, group, row);
  if (wanted != 1 || !is_row_whole (group, row))
    return wanted == -1 ? -1 : 0;
  for (off = 0; off < row->len && i < nr; off += (size_t) n) {
    n = record_unpack (group, row->p + off, row->len - off, &r);
    while (i < nr && names[i].addr < r.ptr.addr)
      ++i;
    if (i == nr || names[i].addr != r.ptr.addr ||
        memcmp (&names[i].digest, &r.digest, sizeof r.digest) != 0)
      continue;
    wanted = fn (opaque, &r);
    if (wanted == -1)
      return -1;
    if (wanted == 0)
      continue;
    record_put_flags (row->p + off, r.flags ^ RECORD_INDEXED);
    changed = true;
  }
  return changed ? meta_record_put (c, group, row->p, row->len) : 0;
}

int
index_flag_change (struct meta_conn *c, const struct record_name *names,
                   size_t nr, int (*fn) (void *opaque, const struct record *r),
                   void *opaque)
{
  struct blob row CLEANUP_BLOB = { NULL };
  size_t i, n;
  int r = 0;

  backoff_is_off = true; /* the fold must not wait for each record */
  for (i = 0; i < nr && r == 0; i += n) {
    n = index_flag_groups (names + i, nr - i, 1);
    assert (n > 0 && n <= nr - i);
    r = change_group (c, &row, names + i, n, fn, opaque);
  }
  backoff_is_off = false;
  return r;
}
