/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/damage.h"
#include "core/engine.h"
#include "core/map.h"
#include "core/record-cache.h"
#include "data/read.h"
#include "data/volume-types.h"
#include "disk/store.h"
#include "format/codec.h"
#include "meta/meta.h"

/* The context of a read.  The pool keeps a list of them, because allocating
 * large buffers for each read costs more than decompressing into them.
 */
struct reader {
  struct reader *next;
  struct codec_ctx *codec; /* owned */
  uint8_t *raw, *block;    /* owned; 'size' bytes each */
  uint32_t size;
};

static void
reader_free (struct reader *r)
{
  if (r == NULL)
    return;
  codec_ctx_free (r->codec);
  free (r->raw);
  free (r->block);
  free (r);
}

void
readers_free (struct nbdedup_pool *pool)
{
  struct reader *r;

  while ((r = pool->readers) != NULL) {
    pool->readers = r->next;
    reader_free (r);
  }
}

static int
reader_grow (struct reader *r, uint32_t size)
{
  if (r->size >= size)
    return 0;
  free (r->raw);
  free (r->block);
  r->raw = malloc (size);
  r->block = malloc (size);
  r->size = r->raw && r->block ? size : 0;
  return r->size ? 0 : nbdedup_fail (ENOMEM, "no memory to read a block");
}

static struct reader *
reader_get (struct nbdedup_pool *pool, uint32_t size)
{
  struct reader *r;

  {
    WITH_LOCK (&pool->readers_lock);
    r = pool->readers;
    if (r)
      pool->readers = r->next;
  }
  if (r == NULL) {
    r = calloc (1, sizeof *r);
    if (r)
      r->codec = codec_ctx_new ();
    if (r == NULL || r->codec == NULL) {
      reader_free (r);
      return nbdedup_fail_null (ENOMEM, "no memory to read a block");
    }
  }
  if (reader_grow (r, size) == -1) {
    reader_free (r);
    return NULL;
  }
  assert (r->size >= size);
  return r;
}

static void
reader_put (struct nbdedup_pool *pool, struct reader *r)
{
  WITH_LOCK (&pool->readers_lock);
  r->next = pool->readers;
  pool->readers = r;
}

/* 'r' may be NULL if needs_reader says so. */
static int
read_stored (struct nbdedup_pool *pool, const struct pointer *ptr,
             uint32_t lsize, struct reader *r, uint8_t *out)
{
  uint8_t *raw = ptr->codec == CODEC_NONE ? out : r->raw;

  assert (r != NULL || ptr->codec == CODEC_NONE);
  assert (ptr->psize <= lsize); /* so the buffers are large enough */
  if (store_read (pool->store, ptr->addr, raw, ptr->psize) == -1 ||
      pointer_check_stored (ptr, raw) == -1)
    return -1;
  if (ptr->codec == CODEC_NONE)
    return 0;
  return codec_decompress (r->codec, ptr->codec, raw, ptr->psize, out, lsize);
}

/* Find the copies of this record.  The table may be wrong: the caller verifies
 * their bytes like the record's own.
 */
static unsigned
find_copies (struct nbdedup_pool *pool, uint64_t addr,
             uint64_t copies[COPIES_BESIDE])
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  unsigned nr;

  if (meta_copies_get (c, addr, copies, &nr) == -1)
    nr = 0;
  meta_reader_put (pool->meta, c);
  assert (nr <= COPIES_BESIDE);
  return nr;
}

static void
note_copy (struct nbdedup_pool *pool, uint64_t addr)
{
  /* Log only the first; "status" has the count. */
  if (pool->copy_reads++ == 0)
    events_post (pool->events, NBDEDUP_LOG_WARNING,
                 event_new ("damage", "{s:s, s:I, s:b}", "found", "read",
                            "sector", (json_int_t) addr, "copy_answered", 1),
                 "the record at sector %" PRIu64 " is damaged: its copy "
                 "answered the read; run nbdedup scrub to repair it",
                 addr);
}

/* The record is damaged: read a copy.  0, or -1 with the error of the record
 * itself.
 */
static int
read_copy (struct nbdedup_pool *pool, const struct pointer *ptr, uint32_t lsize,
           struct reader *r, uint8_t *out)
{
  uint64_t copies[COPIES_BESIDE];
  struct pointer copy = *ptr;
  char text[512];
  unsigned i, nr;

  snprintf (text, sizeof text, "%s", nbdedup_error ());
  nr = find_copies (pool, ptr->addr, copies);
  for (i = 0; i < nr; ++i) {
    copy.addr = copies[i];
    if (read_stored (pool, &copy, lsize, r, out) == 0) {
      note_copy (pool, ptr->addr);
      return 0;
    }
  }
  return nbdedup_fail (EIO,
                       "%s: run nbdedup scrub to list the affected "
                       "volumes",
                       text);
}

/* Not for bytes that go to the caller's buffer as they are stored. */
static bool
needs_reader (const struct pointer *ptr, uint32_t lsize, size_t len)
{
  return ptr->codec != CODEC_NONE || len < lsize;
}

/* What becomes of a record that the cache does not have. */
enum keep {
  KEEP_NOT,
  KEEP_ADMITTED, /* it is up to the cache */
  KEEP_ALWAYS,
};

/* The client has read 'len' bytes of the record.  To read all of one that is
 * not compressed costs a copy and a checksum.
 */
static void
keep_record (struct nbdedup_pool *pool, const struct pointer *ptr,
             const uint8_t *data, uint32_t lsize, size_t len, enum keep keep)
{
  const bool cheap = ptr->codec == CODEC_NONE && len == lsize;

  if (keep == KEEP_ALWAYS ||
      (keep == KEEP_ADMITTED &&
       record_cache_admits (pool->records, ptr->addr, lsize, cheap)))
    record_cache_put (pool->records, ptr->addr, ptr->cksum, data, lsize);
}

static int
get_record (struct nbdedup_pool *pool, const struct pointer *ptr,
            uint32_t lsize, void *buf, size_t offset, size_t len,
            enum keep keep, bool *cached)
{
  struct reader *r = NULL;
  uint8_t *out = buf;
  bool hit;
  int ret;

  assert (offset <= lsize && len <= lsize - offset);
  hit = record_cache_get (pool->records, ptr->addr, ptr->cksum, buf, offset,
                          len);
  if (cached)
    *cached = hit;
  if (hit)
    return 0;
  if (needs_reader (ptr, lsize, len)) {
    r = reader_get (pool, lsize);
    if (r == NULL)
      return -1;
    if (len < lsize)
      out = r->block;
  }
  ret = read_stored (pool, ptr, lsize, r, out);
  if (ret == -1 && errno == EIO)
    ret = read_copy (pool, ptr, lsize, r, out);
  if (ret == 0)
    keep_record (pool, ptr, out, lsize, len, keep);
  if (ret == 0 && out != buf)
    memcpy (buf, out + offset, len);
  if (r)
    reader_put (pool, r);
  return ret;
}

int
read_record (struct nbdedup_pool *pool, const struct pointer *ptr,
             uint32_t lsize, void *buf, size_t offset, size_t len, bool *cached)
{
  return get_record (pool, ptr, lsize, buf, offset, len, KEEP_ADMITTED, cached);
}

int
read_record_once (struct nbdedup_pool *pool, const struct pointer *ptr,
                  uint32_t lsize, void *buf, size_t offset, size_t len)
{
  return get_record (pool, ptr, lsize, buf, offset, len, KEEP_NOT, NULL);
}

int
read_warm (struct nbdedup_pool *pool, const struct pointer *ptr, uint32_t lsize)
{
  struct reader *r = reader_get (pool, lsize);
  int ret;

  if (r == NULL)
    return -1;
  ret = read_stored (pool, ptr, lsize, r, r->block);
  if (ret == 0)
    ret = record_cache_put_cold (pool->records, ptr->addr, ptr->cksum, r->block,
                                 lsize);
  reader_put (pool, r);
  return ret;
}

int
read_lost (uint64_t block)
{
  return nbdedup_fail (EIO,
                       "block %" PRIu64 " is lost to damage in the pool: "
                       "reads fail until a client writes or zeroes the whole "
                       "block",
                       block);
}

/* A block cannot be read: tell that once.  A command prints the error itself.
 * Keeps the error.
 */
static void
note_damage (struct volume *v, uint64_t block)
{
  struct events *e = v->pool->events;
  char name[VOLUME_FULL_NAME_MAX], what[1100];
  const struct damage_place place = { name, block * v->block_size,
                                      v->block_size };
  const int err = errno;

  if (events_is_new_place (e, v->id, block)) {
    snprintf (what, sizeof what, "cannot be read: %s", nbdedup_error ());
    {
      WITH_LOCK (&v->pool->volumes->lock);
      volume_full_name (v, name);
    }
    damage_tell (e, &place, "read", what,
                 events_has_thread (e) ? DAMAGE_LOG | DAMAGE_KEEP
                                       : DAMAGE_KEEP);
  }
  errno = err;
}

static int
get_of_block (struct volume *v, uint64_t block, const struct pointer *ptr,
              void *buf, size_t offset, size_t len, enum keep keep,
              bool *cached)
{
  int r = get_record (v->pool, ptr, v->block_size, buf, offset, len, keep,
                      cached);

  if (r == -1 && errno == EIO)
    note_damage (v, block);
  return r;
}

int
read_of_block (struct volume *v, uint64_t block, const struct pointer *ptr,
               void *buf, size_t offset, size_t len, bool *cached)
{
  return get_of_block (v, block, ptr, buf, offset, len, KEEP_ADMITTED, cached);
}

/* The longest run.  The pool keeps a buffer of this size for each thread, and
 * the run's bytes are still in the processor's cache when their checksums are
 * computed.
 */
#define RUN_BYTES_MAX (UINT32_C (128) << 10)

struct run {
  const struct pointer *ptrs;
  uint32_t lsize, sector;
  unsigned nr;
  uint64_t cached; /* bit i: the cache has it, or is not to have it */
  bool as_stored;  /* no record is compressed */
};

/* For a smaller record that is not compressed a lookup in the cache, and an
 * entry there, cost more than its share of a run's read and its checksum.
 */
#define LOOKUP_BYTES_MIN (UINT32_C (8) << 10)

static bool
are_as_stored (const struct pointer *ptrs, unsigned nr)
{
  unsigned i = 0;

  while (i < nr && ptrs[i].codec == CODEC_NONE)
    i++;
  return i == nr;
}

/* Records that lie side by side in the store: the leading ones that the cache
 * does not have.  Or all of them, if most are not there and none is compressed:
 * then one read costs less than many smaller ones and copies between them.  Of
 * small ones all, unless the cache has them all.
 */
static struct run
find_run (struct nbdedup_pool *pool, const struct pointer *ptrs, uint32_t lsize,
          unsigned nr)
{
  struct run run = { ptrs, lsize, pool->sector_bytes, 0, 0, false };
  uint64_t addrs[RUN_BYTES_MAX / BLOCK_SIZE_MIN], addr = ptrs[0].addr;
  unsigned i;

  if (nr > RUN_BYTES_MAX / lsize)
    nr = RUN_BYTES_MAX / lsize;
  for (i = 0; i < nr && ptrs[i].addr == addr; ++i) {
    addrs[i] = addr;
    addr += sectors_of (ptrs[i].psize, run.sector);
  }
  if (i < 2)
    return run;
  run.nr = i;
  run.as_stored = are_as_stored (ptrs, i);
  if (run.as_stored && lsize < LOOKUP_BYTES_MIN &&
      record_cache_lacks_one (pool->records, addrs, i)) {
    run.cached = UINT64_MAX;
    return run;
  }
  run.cached = record_cache_present (pool->records, addrs, i);
  if (run.cached == 0 ||
      (run.as_stored && 2 * (unsigned) __builtin_popcountll (run.cached) <= i))
    return run;
  run.nr = (unsigned) __builtin_ctzll (run.cached);
  run.as_stored = are_as_stored (ptrs, run.nr);
  return run;
}

/* From the start of the first record to the end of the last. */
static size_t
run_bytes (const struct run *run)
{
  const struct pointer *last = &run->ptrs[run->nr - 1];

  return (size_t) (last->addr - run->ptrs[0].addr) * run->sector + last->psize;
}

/* Check and unpack what was read.  Returns how many records are good. */
static unsigned
unpack_run (struct nbdedup_pool *pool, const struct run *run, struct reader *r,
            const uint8_t *raw, uint8_t *out)
{
  const struct pointer *p;
  const uint8_t *in;
  unsigned i;

  for (i = 0; i < run->nr; ++i, out += run->lsize) {
    p = &run->ptrs[i];
    in = raw + (size_t) (p->addr - run->ptrs[0].addr) * run->sector;
    if (pointer_check_stored (p, in) == -1)
      break;
    if (p->codec != CODEC_NONE) {
      assert (r != NULL); /* read_run took one */
      if (codec_decompress (r->codec, p->codec, in, p->psize, out,
                            run->lsize) == -1)
        break;
    }
    else if (in != out)
      memcpy (out, in, run->lsize);
    if (!(run->cached >> i & 1))
      keep_record (pool, p, out, run->lsize, run->lsize, KEEP_ADMITTED);
  }
  return i;
}

/* In a pool that is open read-only, the store keeps the journal's records in
 * memory, each by its own address, and a run reads past them.  If the file
 * lacks one, its check fails here, and the caller reads it alone.
 */
unsigned
read_run (struct nbdedup_pool *pool, const struct pointer *ptrs, uint32_t lsize,
          unsigned nr, uint8_t *buf)
{
  const struct run run = find_run (pool, ptrs, lsize, nr);
  struct reader *r = NULL;
  uint8_t *raw = buf;
  unsigned good = 0;
  size_t bytes;

  if (run.nr < 2)
    return 0;
  bytes = run_bytes (&run);
  if (!run.as_stored) {
    r = reader_get (pool, RUN_BYTES_MAX);
    if (r == NULL)
      return 0;
    raw = r->raw;
  }
  assert (bytes <= RUN_BYTES_MAX && bytes <= (size_t) run.nr * lsize);
  if (store_read (pool->store, ptrs[0].addr, raw, bytes) == 0)
    good = unpack_run (pool, &run, r, raw, buf);
  if (r)
    reader_put (pool, r);
  return good;
}

static int
get_block (struct volume *v, uint64_t block, void *buf, size_t offset,
           size_t len, enum keep keep)
{
  struct nbdedup_pool *pool = v->pool;
  unsigned ticket = quiesce_enter (&pool->quiesce);
  struct pointer ptr;
  uint8_t state;
  int r;

  /* v->layer is read inside quiesce, where the layer stays valid. */
  r = map_get (pool->map, v->layer, block, 1, &state, &ptr);
  if (r == 0) {
    if (state == MAP_LOST)
      r = read_lost (block);
    else if (state == MAP_POINTER)
      r = get_of_block (v, block, &ptr, buf, offset, len, keep, NULL);
    else
      memset (buf, 0, len);
  }
  quiesce_leave (&pool->quiesce, ticket);
  return r;
}

int
read_block (struct volume *v, uint64_t block, void *buf, size_t offset,
            size_t len)
{
  return get_block (v, block, buf, offset, len, KEEP_ADMITTED);
}

int
read_replaced_block (struct volume *v, uint64_t block, void *buf)
{
  return get_block (v, block, buf, 0, v->block_size, KEEP_NOT);
}

int
read_into_cache (struct volume *v, uint64_t block, void *buf)
{
  return get_block (v, block, buf, 0, v->block_size, KEEP_ALWAYS);
}
