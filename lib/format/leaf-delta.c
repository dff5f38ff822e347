/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/error.h"
#include "format/leaf-delta.h"

#define AREA_BLOCKS (DELTA_LEAVES * LEAF_BLOCKS)

static unsigned
block_of (uint64_t leaf, unsigned index)
{
  return (unsigned) (leaf % DELTA_LEAVES) * LEAF_BLOCKS + index;
}

static unsigned
block_at (const uint8_t *row, size_t i)
{
  return get_le16 (row + i * DELTA_ENTRY_LEN);
}

static size_t
position (const uint8_t *row, size_t nr, unsigned block)
{
  return array_position (nr, i, block_at (row, i) < block);
}

bool
deltas_are_valid (const uint8_t *row, size_t len)
{
  size_t i;

  if (len % DELTA_ENTRY_LEN != 0 || len > DELTA_LEN_MAX)
    return false;
  for (i = 0; i < len / DELTA_ENTRY_LEN; ++i)
    if (block_at (row, i) >= AREA_BLOCKS ||
        (i > 0 && block_at (row, i - 1) >= block_at (row, i)))
      return false;
  return true;
}

unsigned
deltas_of_leaf (const uint8_t *row, size_t len, uint64_t leaf, size_t *first)
{
  const size_t nr = len / DELTA_ENTRY_LEN;
  const unsigned block = block_of (leaf, 0);

  *first = position (row, nr, block);
  return (unsigned) (position (row, nr, block + LEAF_BLOCKS) - *first);
}

static unsigned
state_of (const uint8_t *buf, unsigned index)
{
  return buf[index / 4] >> 2 * (index % 4) & 3;
}

/* The place of the block's pointer in the packed leaf, which gets one if the
 * block is lost.  NULL: it can have none.
 */
static uint8_t *
pointer_in (uint8_t *buf, size_t *len, unsigned index)
{
  size_t at = LEAF_STATES_LEN;
  unsigned i;

  if (*len < LEAF_STATES_LEN)
    return NULL;
  for (i = 0; i < index; ++i)
    if (state_of (buf, i) == MAP_POINTER)
      at += POINTER_LEN;
  if (state_of (buf, index) == MAP_POINTER)
    return at + POINTER_LEN <= *len ? buf + at : NULL;
  if (state_of (buf, index) != MAP_LOST || at > *len ||
      *len + POINTER_LEN > LEAF_LEN_MAX)
    return NULL;
  buf[index / 4] ^= (MAP_LOST ^ MAP_POINTER) << 2 * (index % 4);
  memmove (buf + at + POINTER_LEN, buf + at, *len - at);
  *len += POINTER_LEN;
  return buf + at;
}

int
deltas_apply (const uint8_t *row, size_t len, uint64_t leaf, uint8_t *buf,
              size_t *buf_len)
{
  const uint8_t *entry;
  uint8_t *ptr;
  size_t first;
  unsigned nr;

  if (!deltas_are_valid (row, len))
    return nbdedup_fail (EIO,
                         "the deltas of map leaf %" PRIu64 " are not valid",
                         leaf);
  nr = deltas_of_leaf (row, len, leaf, &first);
  for (entry = row + first * DELTA_ENTRY_LEN; nr > 0;
       entry += DELTA_ENTRY_LEN, --nr) {
    ptr = pointer_in (buf, buf_len, get_le16 (entry) % LEAF_BLOCKS);
    if (ptr == NULL)
      return nbdedup_fail (EIO,
                           "map leaf %" PRIu64
                           ": a delta is of a block without a pointer",
                           leaf);
    memcpy (ptr, entry + 2, POINTER_LEN);
  }
  return 0;
}

size_t
deltas_drop (uint8_t *row, size_t len, uint64_t leaf)
{
  size_t first, end;
  const unsigned nr = deltas_of_leaf (row, len, leaf, &first);

  assert (deltas_are_valid (row, len));
  first *= DELTA_ENTRY_LEN;
  end = first + (size_t) nr * DELTA_ENTRY_LEN;
  memmove (row + first, row + end, len - end);
  return len - (end - first);
}

size_t
deltas_add (uint8_t row[DELTA_LEN_MAX], size_t len, uint64_t leaf,
            const struct leaf_pointer *pointers, unsigned nr)
{
  uint8_t old[DELTA_LEN_MAX], *p;
  size_t all = len / DELTA_ENTRY_LEN, i;
  unsigned k, added = 0;

  assert (deltas_are_valid (row, len));
  for (k = 0; k < nr; ++k) {
    assert (k == 0 || pointers[k - 1].index < pointers[k].index);
    i = position (row, all, block_of (leaf, pointers[k].index));
    added += i == all ||
      block_at (row, i) != block_of (leaf, pointers[k].index);
  }
  if (all + added > DELTA_ENTRIES_MAX)
    return 0;
  memcpy (old, row, len);
  for (i = k = 0, p = row; i < all || k < nr; p += DELTA_ENTRY_LEN) {
    const unsigned block = k < nr ? block_of (leaf, pointers[k].index)
                                  : AREA_BLOCKS;

    if (i < all && block_at (old, i) < block) {
      memcpy (p, old + i++ * DELTA_ENTRY_LEN, DELTA_ENTRY_LEN);
      continue;
    }
    if (i < all && block_at (old, i) == block)
      i++;
    put_le16 (p, (uint16_t) block);
    memcpy (p + 2, pointers[k++].ptr, POINTER_LEN);
  }
  assert ((size_t) (p - row) == (all + added) * DELTA_ENTRY_LEN);
  return (size_t) (p - row);
}
