/* SPDX-License-Identifier: BSD-3-Clause */

/* Estimates the size that data would have in a pool, for several block sizes
 * in one pass over the data.
 *
 * Dedup.  The data is split into pieces of the smallest block size, and each
 * piece is checked for zeroes and hashed (XXH3-128) once.  The hash of a larger
 * block is the hash of its pieces' hashes.  A set of hashes for each size
 * counts the distinct contents (estimate-set.h has the odds of a wrong count).
 *
 * Compression.  A content may be compressed when it first appears: its data is
 * at hand then, and it first appears exactly once.  Compressing everything six
 * times would take ten times longer than all other work, so after N distinct
 * contents the next one is compressed with probability
 *
 *   p = SAMPLE / (SAMPLE + N)
 *
 * (bits of its hash decide), and represents 1 / p contents (Horvitz and
 * Thompson, 1952).  Of N contents SAMPLE * ln (1 + N / SAMPLE) are
 * compressed, and since 1 / p - 1 adds up to N^2 / (2 SAMPLE) the error is
 * that of 2 SAMPLE contents drawn from infinitely many, at any N.  The method
 * does not need the size of the data, so it works on streams; it keeps no
 * data, and reads nothing twice.  N depends on the order in which the threads
 * run: the figures of two runs differ, by less than their error.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/iszero.h"
#include "base/xxh3.h"
#include "estimate/estimate-int.h"
#include "format/format.h"

/* The stored sizes of VM images' blocks vary by 35 to 45 % of their mean
 * (LZ4): an error (95 %) of 1.96 * 0.45 / sqrt (2 * 1300), less than 2 %.
 * A sample 1.5 times as large would cost a fifth of the speed for images of
 * 0.5 GB.
 */
#define SAMPLE 1300

/* The fraction of the memory that is reserved for each size: about the share of
 * the 64 KiB set among those of 4 to 128 KiB.
 */
#define OWN_PART 32

/* How much data is hashed before its hashes are added to the sets. */
#define UNIT_BYTES BLOCK_SIZE_MAX
#define PIECES_MAX (UNIT_BYTES / BLOCK_SIZE_MIN)

/* How many hashes ahead the sets' memory is prefetched. */
#define PREFETCH 8

/* The working memory of a thread. */
struct scratch {
  struct scratch *next;             /* in the list of the unused ones */
  struct codec_ctx *codec;          /* owned, all four */
  uint8_t *out;                     /* largest block size; compressed */
  uint8_t *tail;                    /* the same; an image's end, padded */
  uint8_t *below;                   /* the same; what it inherits there */
  bool inherited[PIECES_MAX];       /* equal to what is below */
  XXH128_hash_t pieces[PIECES_MAX]; /* 0: zeroes */
  XXH128_hash_t hashes[PIECES_MAX]; /* of one block size's blocks */
  uint16_t index[PIECES_MAX];       /* the number of each hash's block */
};

/*----------------------------------------------------------------------
 * New and free
 */

static int
fail_memory (void)
{
  return nbdedup_fail (ENOMEM, "out of memory");
}

static uint32_t
largest_block (const struct nbdedup_estimate *e)
{
  return e->sizes[e->nr_sizes - 1].block_size;
}

static bool
is_power_of_two (uint64_t n)
{
  return n != 0 && (n & (n - 1)) == 0;
}

/* Insert a size in order, unless it is there already. */
static int
add_size (struct nbdedup_estimate *e, uint32_t size)
{
  unsigned i = e->nr_sizes;

  if (!is_power_of_two (size) || size < BLOCK_SIZE_MIN ||
      size > BLOCK_SIZE_MAX || size < e->sector_bytes)
    return nbdedup_fail (EINVAL,
                         "block size %" PRIu32 ": must be a power of "
                         "two from %u to %u, and not below the sector",
                         size, BLOCK_SIZE_MIN, BLOCK_SIZE_MAX);
  while (i > 0 && e->sizes[i - 1].block_size > size)
    i--;
  if (i > 0 && e->sizes[i - 1].block_size == size)
    return 0;
  assert (e->nr_sizes < ESTIMATE_SIZES_MAX);
  memmove (&e->sizes[i + 1], &e->sizes[i],
           (e->nr_sizes - i) * sizeof e->sizes[0]);
  e->sizes[i].block_size = size;
  e->nr_sizes++;
  return 0;
}

static int
check_settings (struct nbdedup_estimate *e,
                const struct nbdedup_estimate_settings *s)
{
  size_t i;

  if (!is_power_of_two (s->sector_bytes) || s->sector_bytes < SECTOR_MIN ||
      s->sector_bytes > SECTOR_MAX)
    return nbdedup_fail (EINVAL,
                         "sector %" PRIu32 ": must be a power of two "
                         "from %u to %u",
                         s->sector_bytes, SECTOR_MIN, SECTOR_MAX);
  e->sector_bytes = s->sector_bytes;
  if (s->memory_bytes < NBDEDUP_ESTIMATE_MEMORY_MIN)
    return nbdedup_fail (EINVAL,
                         "memory %" PRIu64 ": at least %" PRIu64 " "
                         "bytes are needed",
                         s->memory_bytes, NBDEDUP_ESTIMATE_MEMORY_MIN);
  e->budget.max_bytes = e->memory_bytes = s->memory_bytes;
  e->exact = s->exact;
  e->sample = s->sample > 0 ? (double) s->sample : SAMPLE;
  if (compression_parse (s->compress, &e->compression) == -1)
    return -1;
  for (i = 0; i < s->nr_block_sizes; ++i)
    if (add_size (e, s->block_sizes[i]) == -1)
      return -1;
  return e->nr_sizes > 0 ? 0 : nbdedup_fail (EINVAL, "no block size");
}

struct nbdedup_estimate *
nbdedup_estimate_new (const struct nbdedup_estimate_settings *settings)
{
  struct nbdedup_estimate *e = calloc (1, sizeof *e);
  unsigned i;
  int r;

  if (e == NULL)
    return fail_memory (), NULL;
  r = check_settings (e, settings);
  lock_init (&e->lock);
  for (i = 0; i < e->nr_sizes; ++i)
    lock_init (&e->sizes[i].lock);
  for (i = 0; i < e->nr_sizes && r == 0; ++i) {
    e->sizes[i].set = set_new (&e->budget, e->budget.max_bytes / OWN_PART,
                               !e->exact);
    r = e->sizes[i].set == NULL ? -1 : 0;
  }
  if (r == 0 && settings->compare_directory) {
    e->compare = compare_new (settings->compare_directory,
                              e->sizes[0].block_size);
    r = e->compare == NULL ? -1 : 0;
  }
  if (r == 0)
    return e;
  nbdedup_estimate_free (e);
  return NULL;
}

static void
scratch_free (struct scratch *s)
{
  if (s == NULL)
    return;
  codec_ctx_free (s->codec);
  free (s->out);
  free (s->tail);
  free (s->below);
  free (s);
}

void
nbdedup_estimate_free (struct nbdedup_estimate *e)
{
  const int err = errno;
  struct scratch *s;
  unsigned i;

  if (e == NULL)
    return;
  while ((s = e->scratch) != NULL) {
    e->scratch = s->next;
    scratch_free (s);
  }
  for (i = 0; i < e->nr_sizes; ++i) {
    set_free (e->sizes[i].set);
    lock_destroy (&e->sizes[i].lock);
  }
  lock_destroy (&e->lock);
  compare_free (e->compare);
  free (e);
  errno = err;
}

/* At most one for each thread is ever allocated. */
static struct scratch *
scratch_get (struct nbdedup_estimate *e)
{
  struct scratch *s;

  {
    WITH_LOCK (&e->lock);
    s = e->scratch;
    if (s != NULL)
      e->scratch = s->next;
  }
  if (s != NULL)
    return s;
  s = calloc (1, sizeof *s);
  if (s == NULL)
    return fail_memory (), NULL;
  s->codec = codec_ctx_new ();
  s->out = malloc (largest_block (e));
  s->tail = malloc (largest_block (e));
  s->below = malloc (largest_block (e));
  if (s->codec && s->out && s->tail && s->below)
    return s;
  scratch_free (s);
  return fail_memory (), NULL;
}

static void
scratch_put (struct nbdedup_estimate *e, struct scratch *s)
{
  WITH_LOCK (&e->lock);
  s->next = e->scratch;
  e->scratch = s;
}

/*----------------------------------------------------------------------
 * Compression
 */

/* The sectors that the block would take: as stage () in write.c computes it. */
static uint32_t
stored_sectors (struct nbdedup_estimate *e, struct scratch *s,
                const uint8_t *block, uint32_t size)
{
  size_t n = 0;

  if (e->compression.codec != CODEC_NONE && size > e->sector_bytes)
    n = codec_compress (s->codec, &e->compression, block, size, s->out,
                        size - e->sector_bytes);
  return sectors_of (n ? (uint32_t) n : size, e->sector_bytes);
}

/* A number from 0 to 1 that depends only on the hash, but not on those bits
 * that decide whether the hash is in the set's sample.
 */
static double
lot_of (const XXH128_hash_t *hash)
{
  return ldexp ((double) (hash->low64 & ((UINT64_C (1) << 52) - 1)), -52);
}

/* Compress the content with its probability, or skip it.  It has just appeared
 * for the first time, and the set admitted it with a probability of 2^-depth.
 */
static void
sample_block (struct nbdedup_estimate *e, struct size_counts *c,
              struct scratch *s, const uint8_t *block,
              const XXH128_hash_t *hash, unsigned depth)
{
  const double let_in = ldexp (1, -(int) depth);
  const double seen = (double) atomic_fetch_add (&c->seen,
                                                 UINT64_C (1) << depth);
  double p = e->exact ? 1 : e->sample / (e->sample + seen), factor, x;

  if (p > let_in)
    p = let_in;
  if (lot_of (hash) >= p / let_in)
    return;
  x = stored_sectors (e, s, block, c->block_size);
  factor = (1 - p) / (p * p);

  WITH_LOCK (&c->lock);
  c->sample.nr++;
  c->sample.weight += 1 / p;
  c->sample.sectors += x / p;
  c->sample.c += factor;
  c->sample.cx += factor * x;
  c->sample.cxx += factor * x * x;
}

/*----------------------------------------------------------------------
 * Dedup
 */

static void
hash_pieces (struct scratch *s, const uint8_t *buf, unsigned nr, uint32_t len)
{
  unsigned i;

  for (i = 0; i < nr; ++i, buf += len)
    s->pieces[i] = is_zero (buf, len) ? (XXH128_hash_t) { 0, 0 }
                                      : xxh3_128 (buf, len);
}

static void
find_inherited (struct scratch *s, const uint8_t *buf, const uint8_t *below,
                unsigned nr, uint32_t len)
{
  unsigned i;

  for (i = 0; i < nr; ++i)
    s->inherited[i] = below != NULL &&
      memcmp (buf + (size_t) i * len, below + (size_t) i * len, len) == 0;
}

/* Does a block of 'per' pieces take space: is it neither zero nor inherited? */
static bool
takes_space (const struct scratch *s, unsigned first, unsigned per)
{
  bool zero = true, inherited = true;
  unsigned i;

  for (i = first; i < first + per; ++i) {
    zero &= is_zero_hash (&s->pieces[i]);
    inherited &= s->inherited[i];
  }
  return !zero && !inherited;
}

/* Set s->hashes and s->index for the blocks, of 'per' pieces each, that take
 * space.  Returns their number.
 */
static unsigned
hash_blocks (struct scratch *s, unsigned nr_pieces, unsigned per)
{
  unsigned i, nr = 0;

  assert (per > 0);
  for (i = 0; i < nr_pieces; i += per) {
    if (!takes_space (s, i, per))
      continue;
    s->hashes[nr] = hash_of_pieces (&s->pieces[i], per);
    s->index[nr++] = (uint16_t) (i / per);
  }
  return nr;
}

static int
add_blocks (struct nbdedup_estimate *e, struct size_counts *c,
            struct scratch *s, const uint8_t *buf, unsigned nr)
{
  unsigned depth, i;
  int r;

  for (i = 0; i < nr && i < PREFETCH; ++i)
    set_prefetch (c->set, &s->hashes[i]);
  for (i = 0; i < nr; ++i) {
    if (i + PREFETCH < nr)
      set_prefetch (c->set, &s->hashes[i + PREFETCH]);
    r = set_add (c->set, &s->hashes[i], &depth);
    if (r == -1)
      return -1;
    if (r == 1)
      sample_block (e, c, s, buf + (size_t) s->index[i] * c->block_size,
                    &s->hashes[i], depth);
  }
  atomic_fetch_add (&c->nonzero, nr);
  return 0;
}

/* Add data that is whole blocks of every size, at most UNIT_BYTES, from
 * 'offset' of the image on.  'below': NULL, or what the image inherits there.
 */
static int
add_unit (struct nbdedup_estimate *e, struct scratch *s, const uint8_t *buf,
          const uint8_t *below, size_t len, uint64_t offset)
{
  const uint32_t piece = e->sizes[0].block_size;
  const unsigned nr_pieces = (unsigned) (len / piece);
  unsigned i, nr;

  assert (len <= UNIT_BYTES && len % largest_block (e) == 0);
  hash_pieces (s, buf, nr_pieces, piece);
  find_inherited (s, buf, below, nr_pieces, piece);
  if (e->compare &&
      compare_put (e->compare, offset / piece, s->pieces, nr_pieces) == -1)
    return -1;
  for (i = 0; i < e->nr_sizes; ++i) {
    nr = hash_blocks (s, nr_pieces, e->sizes[i].block_size / piece);
    if (add_blocks (e, &e->sizes[i], s, buf, nr) == -1)
      return -1;
  }
  return 0;
}

int
nbdedup_estimate_begin (struct nbdedup_estimate *e, const char *name,
                        int64_t time)
{
  return e->compare == NULL ? 0 : compare_begin (e->compare, name, time);
}

/* The same for the end of an image. */
static int
add_tail (struct nbdedup_estimate *e, struct scratch *s, const uint8_t *buf,
          const uint8_t *below, size_t len, uint64_t offset)
{
  const size_t whole = largest_block (e);

  memcpy (s->tail, buf, len);
  memset (s->tail + len, 0, whole - len);
  if (below != NULL) {
    memcpy (s->below, below, len);
    memset (s->below + len, 0, whole - len);
    below = s->below;
  }
  return add_unit (e, s, s->tail, below, whole, offset);
}

static int
add_data (struct nbdedup_estimate *e, const uint8_t *buf, const uint8_t *below,
          size_t len, uint64_t offset)
{
  struct scratch *s = scratch_get (e);
  size_t done, n;
  int r = 0;

  if (s == NULL)
    return -1;
  for (done = 0; done < len && r == 0; done += n) {
    const uint8_t *at = below == NULL ? NULL : below + done;

    n = len - done < UNIT_BYTES ? len - done : UNIT_BYTES;
    if (n > largest_block (e))
      n -= n % largest_block (e);
    r = n < largest_block (e)
      ? add_tail (e, s, buf + done, at, n, offset + done)
      : add_unit (e, s, buf + done, at, n, offset + done);
  }
  scratch_put (e, s);
  return r;
}

int
nbdedup_estimate_add (struct nbdedup_estimate *e, const void *buf, size_t len,
                      uint64_t offset)
{
  return add_data (e, buf, NULL, len, offset);
}

int
nbdedup_estimate_add_clone (struct nbdedup_estimate *e, const void *buf,
                            const void *below, size_t len, uint64_t offset)
{
  return add_data (e, buf, below, len, offset);
}

int
nbdedup_estimate_image (struct nbdedup_estimate *e, uint64_t size)
{
  unsigned i;

  for (i = 0; i < e->nr_sizes; ++i) {
    const uint32_t bs = e->sizes[i].block_size;

    atomic_fetch_add (&e->sizes[i].blocks, size / bs + (size % bs != 0));
  }
  return e->compare == NULL ? 0 : compare_end (e->compare, size);
}
