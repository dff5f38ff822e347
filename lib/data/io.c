/* SPDX-License-Identifier: BSD-3-Clause */

/* Data of volumes.  Requests are split at block boundaries; a write to part of
 * a block is a read-modify-write under the block's range.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/iszero.h"
#include "core/engine.h"
#include "core/map.h"
#include "core/txg.h"
#include "data/io-counters.h"
#include "data/read.h"
#include "data/volume-types.h"
#include "data/writeback.h"
#include "meta/meta.h"

/* Take the lock, because another thread may change the name. */
static int
refuse (struct volume *v, int err, const char *why)
{
  char name[VOLUME_FULL_NAME_MAX];

  WITH_LOCK (&v->pool->volumes->lock);
  volume_full_name (v, name);
  return nbdedup_fail (err, "volume %s %s", name, why);
}

/* Call it before a request, and after one that read data.  The pool frees the
 * volume's data only after setting 'gone', so a request that missed 'gone' at
 * first sees it in the second check.
 */
static int
check_gone (struct volume *v)
{
  return v->gone ? refuse (v, ESHUTDOWN, "was destroyed or rolled back") : 0;
}

static int
check_request (struct nbdedup_volume *h, uint64_t len, uint64_t offset,
               bool mutates)
{
  struct volume *v = h->volume;
  char why[100];

  if (check_gone (v) == -1)
    return -1;
  /* Without this check the lost map would read as holes. */
  if (h->lost)
    return refuse (v, EIO, VOLUME_LOST_TEXT);
  if (mutates && h->readonly)
    return refuse (v, EROFS, "is read-only");
  if (offset > h->size || len > h->size - offset) {
    snprintf (why, sizeof why,
              "has %" PRIu64 " bytes: %" PRIu64 "+%" PRIu64 " "
              "is past its end",
              h->size, offset, len);
    return refuse (v, EINVAL, why);
  }
  return 0;
}

uint64_t
nbdedup_volume_size (struct nbdedup_volume *h)
{
  return h->size;
}

uint32_t
nbdedup_volume_block_size (struct nbdedup_volume *h)
{
  return h->volume->block_size;
}

bool
nbdedup_volume_is_readonly (struct nbdedup_volume *h)
{
  return h->readonly;
}

/*----------------------------------------------------------------------
 * Reading
 */

/* How many of the first blocks the map has pointers to, without a newer version
 * in memory.
 */
static unsigned
count_stored (const uint8_t *states, uint64_t here, unsigned nr)
{
  unsigned i = 0;

  while (i < nr && states[i] == MAP_POINTER && !(here >> i & 1))
    i++;
  return i;
}

struct found {
  unsigned nr_hits, nr_misses;
};

/* Read the first of 'nr' stored blocks, or as many of them as lie side by side
 * in the store if the client wants the first one whole; it wants the others
 * whole.  '*n': the bytes of the first; becomes those read.  Returns the number
 * of blocks, or -1.
 */
static int
read_first (struct volume *v, uint64_t block, const struct pointer *ptrs,
            size_t nr, uint8_t *buf, size_t offset, size_t *n,
            struct found *found)
{
  unsigned run = 0;
  bool cached;

  if (nr > 1 && *n == v->block_size)
    run = read_run (v->pool, ptrs, v->block_size, (unsigned) nr, buf);
  if (run > 0) {
    *n = (size_t) run * v->block_size;
    found->nr_misses += run;
    return (int) run;
  }
  if (read_of_block (v, block, ptrs, buf, offset, *n, &cached) == -1)
    return -1;
  found->nr_hits += cached;
  found->nr_misses += !cached;
  return 1;
}

/* Read blocks of one leaf: dirty blocks from memory, the rest by the map's
 * pointers.  The function asks for dirty blocks first and reads the map second:
 * a version installed between the two is in the first answer or in the second.
 */
static int
read_leaf (struct nbdedup_volume *h, uint64_t block, unsigned nr, uint8_t *buf,
           size_t offset, size_t len)
{
  struct volume *v = h->volume;
  const uint32_t size = v->block_size;
  struct pointer ptrs[LEAF_BLOCKS];
  uint8_t states[LEAF_BLOCKS];
  struct found found = { 0, 0 };
  unsigned i, end = 0; /* where the stored blocks from 'i' on end */
  size_t n, whole;
  uint64_t here;
  int step;

  assert (nr > 0 && nr <= LEAF_BLOCKS && offset < size);
  here = writeback_present (v, block, nr);
  if (map_get (v->pool->map, v->layer, block, nr, states, ptrs) == -1)
    return -1;
  for (i = 0; i < nr; i += (unsigned) step, buf += n, len -= n, offset = 0) {
    n = size - offset < len ? size - offset : len;
    step = 1;
    if (here >> i & 1) {
      if (writeback_read (v->pool->writeback, v, block + i, buf, offset, n))
        found.nr_hits++;
      /* It was installed meanwhile, so the map's answer may be older. */
      else if (read_block (v, block + i, buf, offset, n) == -1)
        return -1;
    }
    else if (states[i] == MAP_LOST)
      return read_lost (block + i);
    else if (states[i] != MAP_POINTER)
      memset (buf, 0, n);
    else {
      if (i >= end)
        end = i + count_stored (states + i, here >> i, nr - i);
      whole = end - i < len / size ? end - i : len / size;
      step = read_first (v, block + i, ptrs + i, whole, buf, offset, &n,
                         &found);
      if (step == -1)
        return -1;
    }
  }
  assert (len == 0); /* the blocks cover the request */
  if (found.nr_hits > 0)
    io_count (&h->io->cache_hits, found.nr_hits);
  if (found.nr_misses > 0)
    io_count (&h->io->cache_misses, found.nr_misses);
  return 0;
}

static int
read_range (struct nbdedup_volume *h, void *buf, uint32_t len, uint64_t offset)
{
  struct volume *v = h->volume;
  struct nbdedup_pool *pool = v->pool;
  uint8_t *p = buf;
  uint64_t block;
  unsigned nr, ticket;
  size_t n, in_block;
  int r = 0;

  if (check_request (h, len, offset, false) == -1)
    return -1;
  while (len > 0 && r == 0) {
    block = offset / v->block_size;
    in_block = offset % v->block_size;
    nr = LEAF_BLOCKS - block % LEAF_BLOCKS;
    n = (size_t) nr * v->block_size - in_block;
    if (n > len) {
      n = len;
      nr = (unsigned) ((in_block + n + v->block_size - 1) / v->block_size);
    }
    ticket = quiesce_enter (&pool->quiesce);
    r = read_leaf (h, block, nr, p, in_block, n);
    quiesce_leave (&pool->quiesce, ticket);
    p += n;
    offset += n;
    len -= (uint32_t) n;
  }
  return check_gone (v) == -1 ? -1 : r;
}

int
nbdedup_volume_read (struct nbdedup_volume *h, void *buf, uint32_t len,
                     uint64_t offset)
{
  const uint64_t began = io_begin (h->io);

  return io_end (h->io, IO_READ, len, began, read_range (h, buf, len, offset));
}

/*----------------------------------------------------------------------
 * Writing
 */

static int
write_block (struct nbdedup_pool *pool, struct volume *v, uint64_t block,
             const void *buf, size_t offset, size_t len)
{
  int r = writeback_write (pool->writeback, v, block, buf, offset, len);

  assert (len > 0 && offset < v->block_size && len <= v->block_size - offset);
  /* A full pool still accepts holes, which need no room. */
  if (r == -1 && errno == ENOSPC && len == v->block_size && is_zero (buf, len))
    return writeback_holes (pool->writeback, v, block, 1);
  return r;
}

/* Write the first block of a request, or whole ones that go together.  '*n':
 * becomes the bytes written.
 */
static int
write_first (struct volume *v, uint64_t block, const uint8_t *buf,
             size_t offset, uint32_t len, uint32_t *n)
{
  const uint32_t size = v->block_size;
  unsigned run = 0;

  if (offset == 0 && len >= 2 * size)
    run = writeback_write_run (v->pool->writeback, v, block, len / size, buf);
  if (run > 0) {
    *n = run * size;
    return 0;
  }
  *n = size - (uint32_t) offset < len ? size - (uint32_t) offset : len;
  return write_block (v->pool, v, block, buf, offset, *n);
}

/* The blocks that a range of bytes touches. */
static void
range_begin (struct volume *v, struct range *range, uint64_t len,
             uint64_t offset)
{
  assert (len > 0);
  writeback_range_begin (v, range, offset / v->block_size,
                         (offset + len - 1) / v->block_size);
}

/* Counts a change also if the mutation failed. */
static void
range_end (struct volume *v, struct range *range)
{
  v->changes++;
  writeback_range_end (v, range);
}

static int
write_range (struct nbdedup_volume *h, const void *buf, uint32_t len,
             uint64_t offset)
{
  struct volume *v = h->volume;
  const uint8_t *p = buf;
  struct range range;
  uint32_t n;
  int r = 0;

  if (check_request (h, len, offset, true) == -1)
    return -1;
  if (len == 0)
    return 0;
  writers_note (h);
  range_begin (v, &range, len, offset);
  for (; len > 0 && r == 0; p += n, offset += n, len -= n)
    r = write_first (v, offset / v->block_size, p, offset % v->block_size, len,
                     &n);
  range_end (v, &range);
  return r;
}

int
nbdedup_volume_write (struct nbdedup_volume *h, const void *buf, uint32_t len,
                      uint64_t offset)
{
  const uint64_t began = io_begin (h->io);

  return io_end (h->io, IO_WRITE, len, began,
                 write_range (h, buf, len, offset));
}

/* Zero part of a block; a block that is a hole stays one. */
static int
zero_part (struct volume *v, uint64_t block, size_t offset, size_t len)
{
  struct nbdedup_pool *pool = v->pool;
  CLEANUP_FREE uint8_t *buf = malloc (v->block_size);

  assert (len > 0 && offset < v->block_size && len <= v->block_size - offset);
  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a block");
  if (!writeback_read (pool->writeback, v, block, buf, 0, v->block_size) &&
      read_block (v, block, buf, 0, v->block_size) == -1)
    return -1;
  if (is_zero (buf + offset, len))
    return 0;
  memset (buf + offset, 0, len);
  return write_block (pool, v, block, buf, 0, v->block_size);
}

/* The first block from 'first' to 'last' that may not be a hole, or 'last' + 1.
 * So a request takes time by what is there, not by its length.
 */
static int
next_used (struct volume *v, uint64_t first, uint64_t last, uint64_t *next)
{
  struct nbdedup_pool *pool = v->pool;
  unsigned ticket = quiesce_enter (&pool->quiesce);
  uint64_t leaf;
  int r;

  assert (first <= last);
  /* In the order in which a write moves. */
  *next = writeback_next (v, first, last);
  r = map_next (pool->map, v->layer, first / LEAF_BLOCKS, last / LEAF_BLOCKS,
                &leaf);
  quiesce_leave (&pool->quiesce, ticket);
  if (r == 1 && leaf * LEAF_BLOCKS < *next)
    *next = leaf * LEAF_BLOCKS < first ? first : leaf * LEAF_BLOCKS;
  assert (*next >= first && *next <= last + 1);
  return r == -1 ? -1 : 0;
}

/* Large requests are split into pieces: each holds the volume's install lock
 * while it records its leaves.
 */
#define HOLES_AT_ONCE (UINT64_C (1) << 16)

/* A piece behind a hole is one leaf, because the next hole may follow. */
static int
zero_blocks (struct volume *v, uint64_t first, uint64_t count)
{
  const uint64_t end = first + count;
  uint64_t piece = LEAF_BLOCKS, n, next;

  for (; first < end; first += n) {
    n = end - first;
    /* If the map cannot be read, skip nothing: a trim needs no read. */
    if (n > LEAF_BLOCKS && next_used (v, first, end - 1, &next) == 0 &&
        next > first) {
      n = next - first;
      piece = LEAF_BLOCKS;
      continue;
    }
    if (n > piece - first % LEAF_BLOCKS)
      n = piece - first % LEAF_BLOCKS;
    if (piece < HOLES_AT_ONCE)
      piece *= 2;
    if (writeback_holes (v->pool->writeback, v, first, n) == -1)
      return -1;
  }
  assert (first == end);
  return 0;
}

/* Zero exactly these bytes; whole blocks become holes.  The last block of the
 * volume counts as whole when the range reaches the end, because bytes past
 * the end are zero anyway.
 */
static int
zero_range (struct volume *v, uint64_t len, uint64_t offset,
            uint64_t volume_size)
{
  uint64_t end = offset + len, size = v->block_size, first, last;
  uint64_t head;

  head = offset % size;
  if (head != 0) {
    uint64_t n = size - head < len ? size - head : len;

    if (offset + n == volume_size)
      n = size - head;
    if (zero_part (v, offset / size, head, n) == -1)
      return -1;
    offset += n;
  }
  if (offset >= end)
    return 0;
  first = offset / size;
  last = end == volume_size ? (end + size - 1) / size : end / size;
  if (last > first && zero_blocks (v, first, last - first) == -1)
    return -1;
  if (last * size < end)
    return zero_part (v, last, 0, end - last * size);
  return 0;
}

/* The request, for ZERO and for TRIM. */
static int
zero_request (struct nbdedup_volume *h, uint64_t len, uint64_t offset)
{
  struct volume *v = h->volume;
  struct range range;
  int r;

  if (check_request (h, len, offset, true) == -1)
    return -1;
  if (txg_check (v->pool->txg) == -1)
    return -1;
  if (len == 0)
    return 0;
  writers_note (h);
  range_begin (v, &range, len, offset);
  r = zero_range (v, len, offset, v->size);
  range_end (v, &range);
  return r;
}

int
nbdedup_volume_zero (struct nbdedup_volume *h, uint64_t len, uint64_t offset)
{
  const uint64_t began = io_begin (h->io);

  return io_end (h->io, IO_ZERO, len, began, zero_request (h, len, offset));
}

int
nbdedup_volume_trim (struct nbdedup_volume *h, uint64_t len, uint64_t offset)
{
  const uint64_t began = io_begin (h->io);

  return io_end (h->io, IO_TRIM, len, began, zero_request (h, len, offset));
}

/*----------------------------------------------------------------------
 * Durability
 */

static int
flush (struct nbdedup_volume *h)
{
  struct volume *v = h->volume;

  if (check_request (h, 0, 0, false) == -1 ||
      writeback_drain (v->pool->writeback, v) == -1 || check_gone (v) == -1)
    return -1;
  return txg_flush (v->pool->txg);
}

int
nbdedup_volume_flush (struct nbdedup_volume *h)
{
  const uint64_t began = io_begin (h->io);

  return io_end (h->io, IO_FLUSH, 0, began, flush (h));
}

static int
flush_range (struct nbdedup_volume *h, uint64_t len, uint64_t offset)
{
  struct volume *v = h->volume;
  uint64_t first, last;

  if (check_request (h, len, offset, false) == -1)
    return -1;
  if (len == 0)
    return 0;
  first = offset / v->block_size;
  last = (offset + len - 1) / v->block_size;
  if (writeback_drain_range (v->pool->writeback, v, first, last - first + 1) ==
        -1 ||
      check_gone (v) == -1)
    return -1;
  return txg_flush (v->pool->txg);
}

int
nbdedup_volume_flush_range (struct nbdedup_volume *h, uint64_t len,
                            uint64_t offset)
{
  const uint64_t began = io_begin (h->io);

  return io_end (h->io, IO_FLUSH, 0, began, flush_range (h, len, offset));
}

/*----------------------------------------------------------------------
 * Extents, cache
 */

struct extents {
  struct volume *volume;
  uint64_t start, end; /* of the request */
  int (*fn) (void *opaque, uint64_t offset, uint64_t len, bool hole);
  void *opaque;
  uint64_t offset, len; /* not yet reported */
  bool hole;
  bool saw_data;
};

/* 'nr' blocks, cut to the request. */
static int
add_blocks (struct extents *e, uint64_t block, uint64_t nr, bool hole)
{
  uint64_t from = block * e->volume->block_size;
  uint64_t to = from + nr * e->volume->block_size;
  int r = 0;

  if (from < e->start)
    from = e->start;
  if (to > e->end)
    to = e->end;
  assert (from < to); /* it is a part of the request */
  if (e->len > 0 && e->hole != hole) {
    r = e->fn (e->opaque, e->offset, e->len, e->hole);
    e->len = 0;
  }
  if (e->len == 0) {
    e->offset = from;
    e->hole = hole;
  }
  assert (e->offset + e->len == from); /* no gap, no overlap */
  e->len += to - from;
  e->saw_data |= !hole;
  return r;
}

/* Blocks of one leaf. */
static int
add_leaf (struct extents *e, uint64_t block, unsigned nr)
{
  struct volume *v = e->volume;
  struct nbdedup_pool *pool = v->pool;
  unsigned ticket = quiesce_enter (&pool->quiesce), i;
  struct pointer ptrs[LEAF_BLOCKS];
  uint8_t states[LEAF_BLOCKS];
  uint64_t here;
  int r;

  here = writeback_present (v, block, nr);
  r = map_get (pool->map, v->layer, block, nr, states, ptrs);
  quiesce_leave (&pool->quiesce, ticket);
  for (i = 0; i < nr && r == 0; ++i)
    r = add_blocks (e, block + i, 1, !(here >> i & 1) && states[i] == MAP_HOLE);
  return r;
}

/* The next blocks up to 'last': those of a leaf, and the hole behind them. */
static int
add_next (struct extents *e, uint64_t *block, uint64_t last)
{
  uint64_t next = (*block / LEAF_BLOCKS + 1) * LEAF_BLOCKS, end;
  int r;

  assert (*block <= last);
  if (next > last + 1)
    next = last + 1;
  e->saw_data = false;
  r = add_leaf (e, *block, (unsigned) (next - *block));
  *block = next;
  if (r != 0 || e->saw_data || next > last)
    return r;
  r = next_used (e->volume, next, last, &end);
  if (r == 0 && end > next)
    r = add_blocks (e, next, end - next, true);
  if (r == 0)
    *block = end;
  return r;
}

int
nbdedup_volume_extents (struct nbdedup_volume *h, uint64_t len, uint64_t offset,
                        int (*fn) (void *opaque, uint64_t offset, uint64_t len,
                                   bool hole),
                        void *opaque)
{
  struct volume *v = h->volume;
  struct extents e = {
    .volume = v,
    .start = offset,
    .end = offset + len,
    .fn = fn,
    .opaque = opaque,
  };
  uint64_t block = offset / v->block_size;
  const uint64_t last = (offset + len - 1) / v->block_size;
  int r = 0;

  if (check_request (h, len, offset, false) == -1)
    return -1;
  if (len == 0)
    return 0;
  while (block <= last && r == 0)
    r = add_next (&e, &block, last);
  if (r == 0 && e.len > 0)
    r = fn (opaque, e.offset, e.len, e.hole);
  return check_gone (v) == -1 ? -1 : r;
}

int
nbdedup_volume_cache (struct nbdedup_volume *h, uint64_t len, uint64_t offset)
{
  struct volume *v = h->volume;
  struct nbdedup_pool *pool = v->pool;
  CLEANUP_FREE uint8_t *buf = NULL;
  uint64_t block, last;

  if (check_request (h, len, offset, false) == -1)
    return -1;
  /* More than the cache holds would evict itself. */
  if (len > pool->settings.record_cache_bytes)
    len = pool->settings.record_cache_bytes;
  if (len == 0)
    return 0;
  buf = malloc (v->block_size);
  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a block");
  last = (offset + len - 1) / v->block_size;
  for (block = offset / v->block_size; block <= last; ++block)
    if (read_into_cache (v, block, buf) == -1)
      return -1;
  return 0;
}
