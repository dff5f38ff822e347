/* SPDX-License-Identifier: BSD-3-Clause */

/* "check --repair": derive from the file "records" what is missing or wrong in
 * pool.db.  A pointer has the checksum of the stored bytes, and the summaries
 * repeat pool.db's description of a record.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/xxh3.h"
#include "core/fold-summary.h"
#include "data/verify.h"
#include "format/codec.h"
#include "format/hash.h"
#include "format/segment.h"
#include "report/check-int.h"

struct derive {
  struct nbdedup_pool *pool;
  struct verifier v;
  const uint8_t *content; /* of the last derive_content */

  /* The place of the last record found; the next one is usually near. */
  uint16_t *chunks; /* owned; of 'segment'; NULL: not known */
  unsigned nr_chunks, last;
  uint64_t segment;
  uint64_t chunk; /* address of the summary in 'buf'; 0: none */
  uint8_t buf[SUMMARY_CHUNK_MAX];
};

struct derive *
derive_new (struct nbdedup_pool *pool)
{
  struct derive *d = calloc (1, sizeof *d);

  if (d == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory to repair");
  d->pool = pool;
  if (verifier_init (&d->v, pool) == 0)
    return d;
  free (d);
  return NULL;
}

void
derive_free (struct derive *d)
{
  if (d == NULL)
    return;
  verifier_free (&d->v);
  derive_forget (d);
  free (d);
}

void
derive_forget (struct derive *d)
{
  free (d->chunks);
  d->chunks = NULL;
  d->chunk = 0;
}

/* A read error proves nothing: a later read may succeed. */
enum content
derive_content (struct derive *d, const struct pointer *ptr, uint32_t lsize)
{
  int64_t n = store_read_most (d->pool->store, ptr->addr, d->v.raw, ptr->psize);

  if (n == -1)
    return CONTENT_UNKNOWN;
  if ((uint64_t) n < ptr->psize || xxh3_64 (d->v.raw, ptr->psize) != ptr->cksum)
    return CONTENT_LOST;
  d->content = d->v.raw;
  if (ptr->codec == CODEC_NONE)
    return CONTENT_GOOD;
  d->content = d->v.block;
  if (codec_decompress (d->v.codec, ptr->codec, d->v.raw, ptr->psize,
                        d->v.block, lsize) == 0)
    return CONTENT_GOOD;
  return errno == ENOMEM ? CONTENT_UNKNOWN : CONTENT_LOST;
}

/* Chunks are aligned to their size.  Chunks from an earlier use of the segment
 * may still be there: if two have the same number trust neither.  1, or 0.
 */
static int
find_chunks (struct derive *d, struct segment_map *map)
{
  struct nbdedup_pool *pool = d->pool;
  const unsigned bytes = summary_chunk_bytes (pool->sector_bytes);
  uint8_t buf[SUMMARY_CHUNK_MAX];
  uint64_t addr;
  uint32_t index;
  unsigned s;

  for (s = 0; s < map->nr_sectors; s += map->chunk_sectors) {
    addr = map->id * map->nr_sectors + s;
    if (addr * pool->sector_bytes < STORE_HEADER_BYTES ||
        store_read (pool->store, addr, buf, bytes) == -1)
      continue;
    if (summary_header_unpack (pool->uuid, addr, pool->sector_bytes, buf,
                               &index) &&
        segment_map_place_chunk (map, index, s) == -1)
      return 0;
  }
  return 1;
}

int
derive_chunks (struct derive *d, struct meta_conn *c, uint64_t segment,
               uint16_t **chunks, unsigned *nr_chunks)
{
  struct blob b CLEANUP_BLOB = { NULL };
  struct segment_map *map = NULL;
  int r = meta_segment_get (c, segment, &b);

  *chunks = NULL;
  if (r == -1)
    return -1;
  if (r == 1)
    map = segment_map_unpack (segment, d->pool->sector_bytes, b.p, b.len);
  r = 1;
  if (map == NULL) {
    map = segment_map_new (segment, d->pool->sector_bytes);
    if (map == NULL)
      return -1;
    r = find_chunks (d, map);
  }
  *nr_chunks = map->nr_chunks;
  *chunks = malloc ((map->nr_chunks + 1) * sizeof **chunks);
  if (*chunks == NULL)
    r = nbdedup_fail (ENOMEM, "no memory to repair");
  else
    memcpy (*chunks, map->chunks, map->nr_chunks * sizeof **chunks);
  segment_map_free (map);
  return r;
}

struct take {
  struct segment_map *map;
  uint64_t end; /* groups of the segment */
  bool wrong;
};

static int
take_group (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct take *t = opaque;
  struct segment_map *map = t->map;
  struct record r;
  size_t off = 0;
  int n;

  if (group >= t->end)
    return 1;
  while ((n = record_next (group, buf, len, &off, &r)) != 0)
    if (n == -1 || segment_map_set_slot (map, r.slot) == -1 ||
        segment_map_set (map, (unsigned) (r.ptr.addr % map->nr_sectors),
                         sectors_of (r.ptr.psize, map->sector_bytes)) == -1) {
      t->wrong = true;
      return 1;
    }
  return 0;
}

int
derive_map (struct derive *d, struct meta_conn *c, uint64_t segment,
            struct segment_map **map)
{
  uint64_t groups = SEGMENT_BYTES / d->pool->sector_bytes /
    RECORD_GROUP_SECTORS;
  struct take t = { .end = (segment + 1) * groups };
  CLEANUP_FREE uint16_t *chunks = NULL;
  unsigned nr;
  int r = derive_chunks (d, c, segment, &chunks, &nr);

  if (r != 1)
    return r;
  t.map = segment_map_new (segment, d->pool->sector_bytes);
  if (t.map == NULL)
    return -1;
  r = segment_map_set_chunks (t.map, chunks, nr) == 0;
  if (r == 1 && meta_record_scan (c, segment * groups, take_group, &t) == -1)
    r = -1;
  if (r == 1 && !t.wrong) {
    *map = t.map;
    return 1;
  }
  segment_map_free (t.map);
  return r == -1 ? -1 : 0;
}

/* A slot of this chunk that describes the record: 1 and the rest of it. */
static int
find_slot (struct derive *d, uint64_t addr, unsigned index,
           const struct pointer *ptr, uint32_t lsize, struct record *r)
{
  struct nbdedup_pool *pool = d->pool;
  unsigned per_segment = SEGMENT_BYTES / pool->sector_bytes;
  unsigned slots = summary_chunk_slots (pool->sector_bytes), i;
  struct digest digest;
  uint64_t birth;

  if (d->chunk != addr) {
    d->chunk = 0;
    if (store_read (pool->store, addr, d->buf,
                    summary_chunk_bytes (pool->sector_bytes)) == -1)
      return 0;
    d->chunk = addr;
  }
  for (i = 1; i < slots; ++i)
    if (summary_slot_unpack (pool->uuid,
                             addr * pool->sector_bytes + i * SUMMARY_SLOT_BYTES,
                             addr / per_segment, per_segment,
                             d->buf + i * SUMMARY_SLOT_BYTES, r, &birth) == 1 &&
        r->ptr.addr == ptr->addr && r->ptr.psize == ptr->psize &&
        r->ptr.codec == ptr->codec && r->ptr.cksum == ptr->cksum &&
        r->lsize == lsize &&
        hasher_digest (d->v.hasher, r->domain, d->content, lsize, &digest) ==
          0 &&
        memcmp (&digest, &r->digest, sizeof digest) == 0) {
      r->slot = (uint16_t) (index * slots + i);
      r->flags = r->domain ? RECORD_EXTENDED : 0;
      return 1;
    }
  return 0;
}

int
derive_record (struct derive *d, struct meta_conn *c, const struct pointer *ptr,
               uint32_t lsize, struct record *r)
{
  unsigned per_segment = SEGMENT_BYTES / d->pool->sector_bytes, i, n;
  uint64_t segment = ptr->addr / per_segment;
  int found;

  if (d->chunks == NULL || d->segment != segment) {
    derive_forget (d);
    found = derive_chunks (d, c, segment, &d->chunks, &d->nr_chunks);
    if (found != 1) {
      derive_forget (d);
      return found;
    }
    d->segment = segment;
    d->last = 0;
  }
  found = 0;
  for (n = 0; n < d->nr_chunks && !found; ++n) {
    i = (d->last + n) % d->nr_chunks;
    if (d->chunks[i] != SEGMENT_CHUNK_LOST)
      found = find_slot (d, segment * per_segment + d->chunks[i], i, ptr, lsize,
                         r);
    if (found)
      d->last = i;
  }
  return found;
}
