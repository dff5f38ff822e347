/* SPDX-License-Identifier: BSD-3-Clause */

/* See meta-stamp.h; https://sqlite.org/fileformat2.html, sections 1.6 and 2.1,
 * and lib/meta/schema.sql.
 */

#include <config.h>

#include <string.h>

#include "meta/meta-stamp.h"

#define TABLE_LEAF 0x0d
#define BLOB_TYPE(len) (12 + 2 * (len))
#define NR_COLUMNS 12 /* up to "fold" */

enum {
  COLUMN_UUID = 1,
  COLUMN_EPOCH,
  COLUMN_OPENING,
  COLUMN_FOLDED = 9,
  COLUMN_FOLD = 11,
};

struct input {
  const uint8_t *p, *end;
};

static bool
get_varint (struct input *in, uint64_t *v)
{
  unsigned i;

  for (*v = 0, i = 0; i < 9 && in->p < in->end; ++i) {
    if (i == 8) {
      *v = *v << 8 | *in->p++;
      return true;
    }
    *v = *v << 7 | (*in->p & 0x7f);
    if (!(*in->p++ & 0x80))
      return true;
  }
  return false;
}

static bool
get_integer (struct input *in, uint64_t type, uint64_t *v)
{
  static const unsigned lengths[] = { 0, 1, 2, 3, 4, 6, 8 };
  unsigned i, n;

  *v = type == 9;
  if (type == 8 || type == 9)
    return true;
  if (type < 1 || type > 6)
    return false;
  n = lengths[type];
  if ((size_t) (in->end - in->p) < n || (in->p[0] & 0x80))
    return false; /* none is negative */
  for (i = 0; i < n; ++i)
    *v = *v << 8 | *in->p++;
  return true;
}

/* Parse the columns of the row with these types and values. */
static bool
get_columns (struct input *types, struct input *values,
             struct meta_stamp *stamp)
{
  uint64_t type, v;
  unsigned i;

  for (i = 0; i < NR_COLUMNS; ++i) {
    if (!get_varint (types, &type))
      return false;
    if (type == 0) /* the key, which SQLite does not store twice */
      continue;
    if (i == COLUMN_UUID) {
      if (type != BLOB_TYPE (UUID_LEN) || values->end - values->p < UUID_LEN)
        return false;
      memcpy (stamp->uuid, values->p, UUID_LEN);
      values->p += UUID_LEN;
      continue;
    }
    if (!get_integer (values, type, &v))
      return false;
    switch (i) {
    case COLUMN_EPOCH:
      stamp->epoch = v;
      break;
    case COLUMN_OPENING:
      stamp->opening = v != 0;
      break;
    case COLUMN_FOLDED:
      stamp->folded = v;
      break;
    case COLUMN_FOLD:
      stamp->fold = v;
      break;
    }
  }
  return true;
}

bool
meta_stamp_parse (const uint8_t *page, size_t len, struct meta_stamp *stamp)
{
  struct input in, types;
  uint64_t payload, key, header;
  size_t cell;

  if (len < 512 || page[0] != TABLE_LEAF || page[3] != 0 || page[4] != 1)
    return false;
  cell = (size_t) page[8] << 8 | page[9];
  if (cell >= len)
    return false;
  in = (struct input) { page + cell, page + len };
  if (!get_varint (&in, &payload) || !get_varint (&in, &key) || key != 1 ||
      payload > (size_t) (in.end - in.p))
    return false;
  in.end = in.p + payload;
  types = in;
  if (!get_varint (&types, &header) || header > payload)
    return false;
  types.end = in.p + header;
  in.p += header;
  memset (stamp, 0, sizeof *stamp);
  return get_columns (&types, &in, stamp);
}
