/* SPDX-License-Identifier: BSD-3-Clause */

/* The workers: they turn a batch of dirty blocks into pointers.
 *
 *  1. outside of txgs and locks: test each block for zeroes; hash it.
 *  2. inside a txg: look it up in the DDT.  A duplicate takes a reference.
 *  3. compress, place and write the rest, neighbours in one write; what does
 *     not compress is written from where it is.
 *  4. log the new records, then make them visible (ddt_insert).
 *  5. install the pointers, under the volume's install lock, unless a hole came
 *     in between.
 *
 * A cut of the txg waits for the threads inside, so a reference taken in
 * step 2 and the pointer that holds it from step 5 on belong to one txg.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/backoff.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/iszero.h"
#include "base/waiting.h"
#include "base/xxh3.h"
#include "core/ddt.h"
#include "core/notes.h"
#include "core/txg.h"
#include "data/quota.h"
#include "data/read.h"
#include "data/volume-types.h"
#include "data/writeback-int.h"
#include "disk/room.h"
#include "disk/store.h"
#include "format/codec.h"
#include "format/dedup-mode.h"
#include "format/hash.h"
#include "space/space.h"

enum outcome { ZERO, DUPLICATE, NEW, SAME_AS_NEW };

struct item {
  enum outcome outcome;
  struct digest digest;
  struct pointer ptr;
  struct record record;  /* NEW */
  bool repeats;          /* an earlier block of the batch has this digest */
  bool found;            /* and 'ptr' has a reference to a record with it */
  bool over_quota;       /* NEW: not in the index because of ddt-quota */
  unsigned same_as;      /* SAME_AS_NEW: index of the NEW one */
  const uint8_t *stored; /* NEW: staged, or the block itself */
};

struct worker {
  struct writeback *wb;
  struct nbdedup_pool *pool;
  struct hasher *hasher;   /* owned */
  struct codec_ctx *codec; /* owned */
  uint8_t *staging;     /* owned; compressed records of one batch, in order */
  uint8_t *compare;     /* owned; verify: the record on disk */
  uint32_t since_yield; /* bytes */
  struct item items[BATCH_BLOCKS];
};

void
worker_free (struct worker *w)
{
  if (w == NULL)
    return;
  hasher_free (w->hasher);
  codec_ctx_free (w->codec);
  free (w->staging);
  free (w->compare);
  free (w);
}

struct worker *
worker_new (struct writeback *wb)
{
  struct hasher *hasher = hasher_new (wb->pool->hash, &wb->pool->hash_key);
  struct worker *w;

  if (hasher == NULL)
    return NULL;
  w = calloc (1, sizeof *w);
  if (w == NULL) {
    hasher_free (hasher);
    return nbdedup_fail_null (ENOMEM, "no memory for a thread that writes");
  }
  w->wb = wb;
  w->pool = wb->pool;
  w->hasher = hasher;
  w->codec = codec_ctx_new ();
  w->staging = malloc (BATCH_BYTES + BATCH_BLOCKS * SECTOR_MAX);
  w->compare = malloc (BLOCK_SIZE_MAX);
  if (w->codec && w->staging && w->compare)
    return w;
  worker_free (w);
  return nbdedup_fail_null (ENOMEM, "no memory for a thread that writes");
}

/* Retry: OpenSSL needs memory for each hash. */
static int
hash_block (struct worker *w, uint64_t domain, const uint8_t *buf,
            uint32_t size, struct digest *digest)
{
  unsigned tries = 0;
  int r;

  do
    r = hasher_digest (w->hasher, domain, buf, size, digest);
  while (r == -1 && backoff_sleep (&tries));
  return r;
}

/* Immutable while this worker has the batch, so it needs no lock. */
static const uint8_t *
content_of (const struct dirty_batch *b, unsigned i)
{
  return b->blocks[i]->inflight->data;
}

/* After so many bytes were computed. */
static void
yield_after (struct worker *w, uint32_t bytes)
{
  w->since_yield += bytes;
  if (w->since_yield < YIELD_BYTES)
    return;
  w->since_yield = 0;
  worker_yield (w->wb);
}

static int
hash_batch (struct worker *w, const struct dirty_batch *b)
{
  uint32_t size = b->volume->block_size;
  const uint8_t *buf;
  unsigned i;

  for (i = 0; i < b->nr; ++i) {
    buf = content_of (b, i);
    w->items[i].outcome = is_zero (buf, size) ? ZERO : NEW;
    if (w->items[i].outcome == NEW &&
        hash_block (w, b->domain, buf, size, &w->items[i].digest) == -1)
      return -1;
    yield_after (w, size);
  }
  return 0;
}

/* dedup=verify: does the record found by the hash have the same content? */
static bool
is_same (struct worker *w, const struct pointer *ptr, const uint8_t *buf,
         uint32_t size)
{
  int r;

  waiting_begin ();
  r = read_record (w->pool, ptr, size, w->compare, 0, size, NULL);
  waiting_end ();
  return r == 0 && memcmp (w->compare, buf, size) == 0;
}

/* Is there an equal block before this one in the batch? */
static bool
find_in_batch (struct worker *w, const struct dirty_batch *b, unsigned i)
{
  struct item *it = &w->items[i];
  unsigned j;

  assert (it->outcome == NEW);
  for (j = 0; j < i; ++j)
    if (w->items[j].outcome == NEW &&
        memcmp (&w->items[j].digest, &it->digest, sizeof it->digest) == 0) {
      if (b->dedup == DEDUP_VERIFY &&
          memcmp (content_of (b, j), content_of (b, i),
                  b->volume->block_size) != 0)
        return false;
      it->outcome = SAME_AS_NEW;
      it->same_as = j;
      return true;
    }
  return false;
}

static bool
repeats_digest (const struct worker *w, unsigned i)
{
  const struct item *items = w->items;
  unsigned j;

  for (j = 0; j < i; ++j)
    if (items[j].outcome != ZERO &&
        memcmp (&items[j].digest, &items[i].digest, sizeof items[i].digest) ==
          0)
      return true;
  return false;
}

/* Look up each digest of the batch once. */
static void
look_up (struct worker *w, const struct dirty_batch *b)
{
  struct ddt_query queries[BATCH_BLOCKS];
  unsigned index[BATCH_BLOCKS], nr = 0, i;
  struct item *it;

  for (i = 0; i < b->nr; ++i) {
    it = &w->items[i];
    if (it->outcome == ZERO)
      continue;
    it->found = false;
    it->repeats = repeats_digest (w, i);
    if (it->repeats)
      continue;
    queries[nr] = (struct ddt_query) { &it->digest, &it->ptr, false };
    index[nr++] = i;
  }
  ddt_lookup (w->pool->ddt, nr, queries, b->volume->block_size, b->domain);
  for (i = 0; i < nr; ++i)
    w->items[index[i]].found = queries[i].found;
}

/* What repeats another one's digest is either like that one, if that is new, or
 * looked up on its own.
 */
static bool
is_found (struct worker *w, const struct dirty_batch *b, unsigned i)
{
  struct item *it = &w->items[i];
  struct ddt_query query = { &it->digest, &it->ptr, false };

  if (it->repeats && !find_in_batch (w, b, i)) {
    ddt_lookup (w->pool->ddt, 1, &query, b->volume->block_size, b->domain);
    it->found = query.found;
  }
  return it->found;
}

static void
deduplicate (struct worker *w, const struct dirty_batch *b)
{
  struct nbdedup_pool *pool = w->pool;
  bool over_quota = b->dedup != DEDUP_OFF && quota_is_over (pool, 0);
  bool indexed = b->dedup != DEDUP_OFF && !over_quota;
  uint32_t size = b->volume->block_size;
  unsigned ticket = quiesce_enter (&pool->quiesce), missed = 0, i;
  struct item *it;

  if (b->dedup != DEDUP_OFF)
    look_up (w, b);
  for (i = 0; i < b->nr; ++i) {
    it = &w->items[i];
    if (it->outcome == ZERO)
      continue;
    it->record.flags = indexed ? RECORD_INDEXED : 0;
    it->over_quota = false;
    if (b->dedup == DEDUP_OFF || !is_found (w, b, i)) {
      it->over_quota = over_quota && it->outcome == NEW;
      missed += it->over_quota;
      continue;
    }
    if (b->dedup == DEDUP_VERIFY &&
        !is_same (w, &it->ptr, content_of (b, i), size)) {
      /* Other content with this hash has the entry in the index. */
      ddt_unref (pool->ddt, it->ptr.addr);
      it->record.flags = 0;
      continue;
    }
    it->outcome = DUPLICATE;
  }
  quiesce_leave (&pool->quiesce, ticket);
  if (missed > 0)
    notes_add_over_quota (pool->notes, missed, (uint64_t) missed * size);
}

/* Make the stored form of a block.  A compressed one goes to 'out': whole
 * sectors, padded with zeroes.  Returns its sectors.
 */
static uint32_t
stage (struct worker *w, const struct dirty_batch *b, unsigned i, uint8_t *out)
{
  uint32_t size = b->volume->block_size, sector = w->pool->sector_bytes;
  const uint8_t *buf = content_of (b, i);
  struct item *it = &w->items[i];
  uint32_t nr;
  int codec;

  it->record.ptr.psize = (uint32_t) codec_store (w->codec, &b->compression,
                                                 sector, buf, size, out, &codec,
                                                 &it->stored);
  it->record.ptr.codec = (uint8_t) codec;
  nr = sectors_of (it->record.ptr.psize, sector);
  assert (nr > 0 && it->record.ptr.psize <= size);
  if (it->stored == out)
    memset (out + it->record.ptr.psize, 0,
            (size_t) nr * sector - it->record.ptr.psize);
  it->record.ptr.cksum = xxh3_64 (it->stored, it->record.ptr.psize);
  it->record.lsize = size;
  it->record.digest = it->digest;
  it->record.domain = b->domain;
  it->record.refcount = 0;
  return nr;
}

/* Write runs of records that are neighbours in the store together.  'index':
 * the item of each.
 */
static int
write_runs (struct worker *w, unsigned nr, const unsigned *index,
            const uint32_t *nr_sectors, const struct placement *place)
{
  const uint32_t sector = w->pool->sector_bytes;
  const uint32_t max = WRITE_BYTES_MAX / sector;
  struct iovec iov[BATCH_BLOCKS], *last;
  unsigned i, j, nr_iov;
  uint8_t *stored;
  uint32_t run;

  for (i = 0; i < nr; i = j) {
    run = 0;
    nr_iov = 0;
    for (j = i; j < nr && place[j].addr == place[i].addr + run && run < max;
         ++j) {
      stored = (uint8_t *) w->items[index[j]].stored; /* only read */
      last = nr_iov ? &iov[nr_iov - 1] : NULL;
      if (last && (uint8_t *) last->iov_base + last->iov_len == stored)
        last->iov_len += (size_t) nr_sectors[j] * sector;
      else
        iov[nr_iov++] = (struct iovec) { stored,
                                         (size_t) nr_sectors[j] * sector };
      run += nr_sectors[j];
    }
    if (store_writev (w->pool->store, place[i].addr, iov, (int) nr_iov) == -1)
      return -1;
    worker_yield (w->wb);
  }
  return 0;
}

static int
store_new (struct worker *w, const struct dirty_batch *b)
{
  struct nbdedup_pool *pool = w->pool;
  struct placement place[BATCH_BLOCKS];
  uint32_t nr_sectors[BATCH_BLOCKS];
  struct ddt_new new[BATCH_BLOCKS];
  unsigned index[BATCH_BLOCKS], i, nr = 0;
  uint8_t *out = w->staging;
  struct item *it;

  for (i = 0; i < b->nr; ++i) {
    if (w->items[i].outcome != NEW)
      continue;
    index[nr] = i;
    nr_sectors[nr] = stage (w, b, i, out);
    yield_after (w, b->volume->block_size);
    if (w->items[i].stored == out)
      out += (size_t) nr_sectors[nr] * pool->sector_bytes;
    nr++;
  }
  assert ((size_t) (out - w->staging) <=
          BATCH_BYTES + BATCH_BLOCKS * SECTOR_MAX);
  if (nr == 0)
    return 0;
  if (space_alloc (pool->space, nr, nr_sectors, place) == -1 ||
      write_runs (w, nr, index, nr_sectors, place) == -1)
    return -1;
  for (i = 0; i < nr; ++i) {
    it = &w->items[index[i]];
    it->record.ptr.addr = place[i].addr;
    it->record.slot = place[i].slot;
    new[i] = (struct ddt_new) { &it->record, place[i].chunk_addr, &it->ptr };
    if (txg_log_record (pool->txg, &it->record, place[i].chunk_addr,
                        it->over_quota) == -1)
      return -1;
    yield_after (w, b->volume->block_size);
  }
  return ddt_insert (pool->ddt, nr, new);
}

static int
refer_to_same (struct worker *w, const struct dirty_batch *b)
{
  struct item *it;
  unsigned i;

  for (i = 0; i < b->nr; ++i) {
    it = &w->items[i];
    if (it->outcome != SAME_AS_NEW)
      continue;
    assert (it->same_as < i && w->items[it->same_as].outcome == NEW);
    it->ptr = w->items[it->same_as].ptr;
    if (ddt_ref (w->pool->ddt, it->ptr.addr, 1) == -1)
      return -1;
  }
  return 0;
}

static int
install_locked (struct worker *w, const struct dirty_batch *b,
                struct room_touched *touched)
{
  struct nbdedup_pool *pool = w->pool;
  struct layer *layer = b->volume->layer;
  struct item *it;
  unsigned i;
  int r = 0;

  assert_held (&b->volume->dirty.install);
  for (i = 0; i < b->nr && r == 0; ++i) {
    it = &w->items[i];
    assert (it->outcome == ZERO || it->ptr.addr > 0);
    if (!is_wanted_locked (b->blocks[i])) {
      if (it->outcome != ZERO)
        ddt_unref (pool->ddt, it->ptr.addr);
    }
    else if (it->outcome == ZERO)
      r = txg_set_holes (pool->txg, layer, b->blocks[i]->block, 1, touched);
    else
      r = txg_set_pointer (pool->txg, layer, b->blocks[i]->block, &it->ptr,
                           touched);
  }
  return r;
}

static uint64_t
leaves_of (const struct dirty_batch *b)
{
  uint64_t leaf, last = UINT64_MAX;
  uint64_t leaves = 0;
  unsigned i;

  for (i = 0; i < b->nr; ++i) {
    leaf = b->blocks[i]->block / LEAF_BLOCKS;
    leaves += leaf != last;
    last = leaf;
  }
  assert (leaves <= b->nr);
  return leaves;
}

/* What the blocks touch besides what they displace. */
static void
touch_items (const struct worker *w, const struct dirty_batch *b,
             struct room_touched *touched)
{
  const struct item *it;
  unsigned i;

  for (i = 0; i < b->nr; ++i) {
    it = &w->items[i];
    if (it->outcome == NEW)
      room_touch_new (touched, it->ptr.addr);
    else if (it->outcome != ZERO)
      room_touch_ref (touched, it->ptr.addr);
  }
}

/* The batch is installed. */
static void
count_items (const struct worker *w, const struct dirty_batch *b)
{
  struct dedup_counters *c = &b->volume->dedup_counters;
  const uint32_t sector = w->pool->sector_bytes;
  unsigned nr_hits = 0, nr_misses = 0, i;
  uint64_t stored = 0;
  const struct item *it;

  for (i = 0; i < b->nr; ++i) {
    it = &w->items[i];
    if (it->outcome == NEW) {
      nr_misses++;
      stored += (uint64_t) sectors_of (it->record.ptr.psize, sector) * sector;
    }
    else
      nr_hits += it->outcome != ZERO;
  }
  io_count (&c->hits, nr_hits);
  io_count (&c->misses, nr_misses);
  io_count (&c->zeroes, b->nr - nr_hits - nr_misses);
  io_count (&c->stored_bytes, stored);
}

static void
write_some (struct worker *w, struct dirty_batch *b)
{
  struct nbdedup_pool *pool = w->pool;
  uint64_t pages = b->nr * ROOM_BLOCK_PAGES + leaves_of (b) * ROOM_LEAF_PAGES;
  struct room_touched touched;
  int r = txg_check (pool->txg);

  assert (b->nr > 0 && b->nr <= BATCH_BLOCKS);
  if (r == 0) {
    txg_throttle (pool->txg);
    r = hash_batch (w, b);
  }
  pages = txg_enter (pool->txg, b->nr, pages);
  touched = txg_touch (pool->txg);
  if (r == 0) {
    deduplicate (w, b);
    r = store_new (w, b);
    if (r == 0)
      r = refer_to_same (w, b);
  }
  if (r == 0) {
    WITH_LOCK (&b->volume->dirty.install);
    r = install_locked (w, b, &touched);
  }
  /* Answered writes are lost, so no flush may succeed any more. */
  if (r == -1)
    txg_fail (pool->txg);
  if (r == 0)
    count_items (w, b);
  writeback_done (w->wb, b, r == 0);
  if (r == 0) {
    touch_items (w, b, &touched);
    txg_return (pool->txg, pages, &touched);
  }
  txg_leave (pool->txg);
}

/* When space is short a txg accepts fewer blocks at once. */
static void
write_batch (struct worker *w, const struct dirty_batch *b)
{
  uint64_t max;
  struct dirty_batch some;
  unsigned i;

  for (i = 0; i < b->nr; i += some.nr) {
    max = txg_blocks_at_once (w->pool->txg);
    some = *b;
    some.nr = b->nr - i < max ? b->nr - i : (unsigned) max;
    assert (some.nr > 0);
    memcpy (some.blocks, b->blocks + i, some.nr * sizeof some.blocks[0]);
    write_some (w, &some);
  }
}

void *
write_worker (void *worker)
{
  struct worker *w = worker;
  struct dirty_batch b;

  waiting_set (&(struct waiting) {
    worker_waits,
    worker_has_waited,
    w->wb,
  });
  while (writeback_take (w->wb, &b)) {
    write_batch (w, &b);
    writeback_unpin (b.volume);
  }
  worker_free (w);
  return NULL;
}
