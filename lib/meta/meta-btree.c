/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "format/format.h"
#include "meta/meta-btree.h"
#include "vfs/cksum-vfs.h"

#define USABLE (META_PAGE_BYTES - CKSUM_RESERVE)
/* Page 1 begins with the header of the database. */
#define FIRST_PAGE_SKIP 100

#define INTERIOR_INDEX 0x02
#define INTERIOR_TABLE 0x05
#define BOTTOM_INDEX 0x0a
#define BOTTOM_TABLE 0x0d

/* How many bytes of a payload are on the page itself. */
#define MAX_LOCAL_TABLE (USABLE - 35)
#define MAX_LOCAL_INDEX ((USABLE - 12) * 64 / 255 - 23)
#define MIN_LOCAL ((USABLE - 12) * 32 / 255 - 23)
/* The bytes of an empty row: a cell has at least four. */
#define EMPTY_ROW 4

static unsigned
get_be16 (const uint8_t *p)
{
  return (unsigned) p[0] << 8 | p[1];
}

static void
put_be16 (uint8_t *p, unsigned v)
{
  p[0] = (uint8_t) (v >> 8);
  p[1] = (uint8_t) v;
}

static void
put_be32 (uint8_t *p, uint32_t v)
{
  put_be16 (p, v >> 16);
  put_be16 (p + 2, v & 0xffff);
}

/* Returns the bytes used; 0: the number does not end before 'end'. */
static unsigned
get_varint (const uint8_t *p, const uint8_t *end, uint64_t *v)
{
  unsigned n;

  *v = 0;
  for (n = 0; n < 9 && p + n < end; ++n) {
    if (n == 8) {
      *v = *v << 8 | p[n];
      return 9;
    }
    *v = *v << 7 | (p[n] & 0x7f);
    if (!(p[n] & 0x80))
      return n + 1;
  }
  return 0;
}

static unsigned
put_varint (uint8_t *p, uint64_t v)
{
  unsigned n = 1, i;
  uint64_t rest;

  for (rest = v >> 7; rest; rest >>= 7)
    n++;
  if (n >= 9) { /* the ninth byte has eight bits */
    n = 9;
    p[8] = (uint8_t) v;
    for (i = 8, v >>= 8; i-- > 0; v >>= 7)
      p[i] = (uint8_t) ((v & 0x7f) | 0x80);
    return n;
  }
  for (i = n; i-- > 0; v >>= 7)
    p[i] = (uint8_t) ((v & 0x7f) | (i + 1 < n ? 0x80 : 0));
  return n;
}

int
leaf_key_compare (const struct leaf_key *a, const struct leaf_key *b)
{
  if (a->branch != b->branch)
    return a->branch < b->branch ? -1 : 1;
  if (a->leaf != b->leaf)
    return a->leaf < b->leaf ? -1 : 1;
  return a->seq < b->seq ? -1 : a->seq > b->seq;
}

static const uint8_t *
header_of (const struct btree_page *page)
{
  return page->p + (page->number == 1 ? FIRST_PAGE_SKIP : 0);
}

static int
not_understood (uint32_t number)
{
  return nbdedup_fail (EIO,
                       "pool.db: page %" PRIu32 " is not a valid b-tree "
                       "page",
                       number);
}

int
btree_page_open (const uint8_t *p, uint32_t number, struct btree_page *page)
{
  const uint8_t *h;

  *page = (struct btree_page) { .p = p, .number = number };
  h = header_of (page);
  if (h[0] != INTERIOR_INDEX && h[0] != INTERIOR_TABLE &&
      h[0] != BOTTOM_INDEX && h[0] != BOTTOM_TABLE)
    return not_understood (number);
  page->interior = h[0] == INTERIOR_INDEX || h[0] == INTERIOR_TABLE;
  page->index = h[0] == INTERIOR_INDEX || h[0] == BOTTOM_INDEX;
  page->nr_cells = get_be16 (h + 3);
  if (page->nr_cells > USABLE / 4)
    return not_understood (number);
  return 0;
}

uint32_t
btree_right_child (const struct btree_page *page)
{
  return btree_number (header_of (page), 2);
}

int
btree_cell_get (const struct btree_page *page, unsigned i,
                struct btree_cell *cell)
{
  const uint8_t *end = page->p + USABLE, *p;
  uint64_t payload;
  size_t max = page->index ? MAX_LOCAL_INDEX : MAX_LOCAL_TABLE;
  unsigned n;

  memset (cell, 0, sizeof *cell);
  p = page->p + get_be16 (header_of (page) + (page->interior ? 12 : 8) + 2 * i);
  if (page->interior) {
    if (p + 4 > end)
      return not_understood (page->number);
    cell->child = btree_number (p, 0);
    p += 4;
    if (!page->index)
      return get_varint (p, end, &cell->rowid) > 0
        ? 0
        : not_understood (page->number);
  }
  n = get_varint (p, end, &payload);
  p += n;
  if (n > 0 && !page->index) {
    n = get_varint (p, end, &cell->rowid);
    p += n;
  }
  if (n == 0)
    return not_understood (page->number);
  cell->payload = p;
  cell->local = payload;
  if (payload > max) {
    cell->local = MIN_LOCAL + (payload - MIN_LOCAL) % (USABLE - 4);
    if (cell->local > max)
      cell->local = MIN_LOCAL;
    if (p + cell->local + 4 > end)
      return not_understood (page->number);
    cell->overflow = btree_number (p + cell->local, 0);
    cell->nr_overflow = (uint32_t) ((payload - cell->local + USABLE - 5) /
                                    (USABLE - 4));
  }
  return p + cell->local > end ? not_understood (page->number) : 0;
}

/* Returns the bytes used; -1: the serial type is not that of an integer. */
static int
get_integer (const uint8_t *p, const uint8_t *end, uint64_t type, uint64_t *v)
{
  static const uint8_t sizes[7] = { 0, 1, 2, 3, 4, 6, 8 };
  unsigned i;

  if (type == 8 || type == 9) {
    *v = type - 8;
    return 0;
  }
  if (type == 0 || type > 6 || p + sizes[type] > end)
    return -1;
  *v = p[0] & 0x80 ? UINT64_MAX : 0;
  for (i = 0; i < sizes[type]; ++i)
    *v = *v << 8 | p[i];
  return sizes[type];
}

int
btree_leaf_row (const struct btree_cell *cell, struct leaf_key *key,
                const uint8_t **data, size_t *len)
{
  const uint8_t *h = cell->payload, *end = h + cell->local, *p;
  uint64_t header, types[4], values[3];
  unsigned n, i;
  int m;

  if (cell->overflow != 0 || (n = get_varint (h, end, &header)) == 0 ||
      header > cell->local)
    return -1;
  p = h + header;
  for (i = 0; i < 4; ++i) {
    h += n;
    n = get_varint (h, p, &types[i]);
    if (n == 0)
      return -1;
  }
  for (i = 0; i < 3; ++i) {
    m = get_integer (p, end, types[i], &values[i]);
    if (m == -1)
      return -1;
    p += m;
  }
  if (types[3] < 12 || types[3] % 2 != 0 ||
      (types[3] - 12) / 2 != (uint64_t) (end - p))
    return -1;
  *key = (struct leaf_key) { values[0], values[1], values[2] };
  *data = p;
  *len = (size_t) (end - p);
  return 0;
}

/*----------------------------------------------------------------------
 * Making pages
 */

void
btree_make (uint8_t *p, bool index, uint32_t right)
{
  memset (p, 0, META_PAGE_BYTES);
  p[0] = index ? right ? INTERIOR_INDEX : BOTTOM_INDEX
    : right    ? INTERIOR_TABLE
               : BOTTOM_TABLE;
  put_be16 (p + 5, USABLE);
  if (right)
    put_be32 (p + 8, right);
}

/* Write the record's header and its integers; returns the bytes used. */
static unsigned
put_row (uint8_t *p, const struct leaf_key *key, uint64_t data_len)
{
  const uint64_t values[3] = { key->branch, key->leaf, key->seq };
  unsigned n = 1, i;

  for (i = 0; i < 3; ++i)
    p[n++] = 6; /* 8 bytes */
  n += put_varint (p + n, 12 + 2 * data_len);
  p[0] = (uint8_t) n;
  for (i = 0; i < 3; ++i, n += 8) {
    put_be32 (p + n, (uint32_t) (values[i] >> 32));
    put_be32 (p + n + 4, (uint32_t) values[i]);
  }
  return n;
}

/* Write a cell of an index b-tree; returns the bytes used. */
static unsigned
put_index_cell (uint8_t *cell, uint32_t child, const struct leaf_key *key,
                uint32_t nr_overflow)
{
  uint8_t row[64];
  uint64_t payload = put_row (row, key, 0);
  unsigned n = 0, used;

  /* The part that is not on this page fills the overflow pages. */
  if (nr_overflow > 0)
    payload = MIN_LOCAL + (uint64_t) nr_overflow * (USABLE - 4);
  used = put_row (row, key, 0);
  while (nr_overflow > 0 && used != put_row (row, key, payload - used))
    used = put_row (row, key, payload - used);
  if (child) {
    put_be32 (cell, child);
    n = 4;
  }
  n += put_varint (cell + n, payload);
  memcpy (cell + n, row, used);
  return n + (nr_overflow > 0 ? MIN_LOCAL : used);
}

/* The same for a table b-tree: a row without columns. */
static unsigned
put_table_cell (uint8_t *cell, uint32_t child, const struct leaf_key *key,
                uint32_t nr_overflow)
{
  uint64_t rowid = btree_rowid (key->seq);
  unsigned n;

  if (child) {
    put_be32 (cell, child);
    return 4 + put_varint (cell + 4, rowid);
  }
  n = put_varint (cell,
                  nr_overflow == 0
                    ? EMPTY_ROW
                    : MIN_LOCAL + (uint64_t) nr_overflow * (USABLE - 4));
  n += put_varint (cell + n, rowid);
  cell[n] = 1; /* the length of the row's header */
  return n + (nr_overflow > 0 ? MIN_LOCAL : EMPTY_ROW);
}

void
btree_add (uint8_t *p, uint32_t child, const struct leaf_key *key,
           uint32_t overflow, uint32_t nr_overflow)
{
  uint8_t cell[MIN_LOCAL + 32] = { 0 };
  unsigned nr = get_be16 (p + 3), begin = get_be16 (p + 5), n;
  bool index = p[0] == INTERIOR_INDEX || p[0] == BOTTOM_INDEX;

  n = (index ? put_index_cell : put_table_cell) (cell, child, key, nr_overflow);
  if (nr_overflow > 0) {
    put_be32 (cell + n, overflow);
    n += 4;
  }
  begin -= n;
  memcpy (p + begin, cell, n);
  put_be16 (p + (child ? 12 : 8) + 2 * nr, begin);
  put_be16 (p + 3, nr + 1);
  put_be16 (p + 5, begin);
}

void
btree_make_overflow (uint8_t *p, uint32_t next)
{
  memset (p, 0, META_PAGE_BYTES);
  put_be32 (p, next);
}
