/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "core/fold-int.h"
#include "core/fold-summary.h"

unsigned
summary_chunk_bytes (uint32_t sector_bytes)
{
  /* A chunk fits into SUMMARY_CHUNK_MAX. */
  assert (sector_bytes >= SECTOR_MIN && sector_bytes <= SECTOR_MAX);
  return sector_bytes > 4096 ? sector_bytes : 4096;
}

unsigned
summary_chunk_slots (uint32_t sector_bytes)
{
  return summary_chunk_bytes (sector_bytes) / SUMMARY_SLOT_BYTES;
}

static uint32_t
segment_sectors (const struct summary_chunk *chunk)
{
  return SEGMENT_BYTES / chunk->sector_bytes;
}

static void
pack_header (const struct summary_chunk *chunk, uint8_t buf[SUMMARY_SLOT_BYTES])
{
  summary_header_pack (chunk->uuid, chunk->addr, chunk->index,
                       chunk->sector_bytes, buf);
}

static unsigned
slot_in_chunk (const struct summary_chunk *chunk, const struct record *r)
{
  return r->slot % summary_chunk_slots (chunk->sector_bytes);
}

static uint64_t
slot_offset (const struct summary_chunk *chunk, unsigned slot)
{
  return chunk->addr * chunk->sector_bytes + slot * SUMMARY_SLOT_BYTES;
}

bool
summary_find_birth (const struct summary_chunk *chunk, const uint8_t *buf,
                    const struct record *r, uint64_t *birth)
{
  const unsigned slot = slot_in_chunk (chunk, r);
  struct record found;

  return summary_slot_unpack (chunk->uuid, slot_offset (chunk, slot),
                              chunk->addr / segment_sectors (chunk),
                              segment_sectors (chunk),
                              buf + slot * SUMMARY_SLOT_BYTES, &found, birth) &&
    found.ptr.addr == r->ptr.addr && found.ptr.psize == r->ptr.psize &&
    found.ptr.codec == r->ptr.codec && found.ptr.cksum == r->ptr.cksum &&
    found.lsize == r->lsize && found.domain == (uint32_t) r->domain &&
    memcmp (&found.digest, &r->digest, sizeof found.digest) == 0;
}

bool
summary_describes (const struct summary_chunk *chunk, const uint8_t *buf,
                   const struct record *r)
{
  uint64_t birth;

  return summary_find_birth (chunk, buf, r, &birth);
}

static void
put_slot (const struct summary_chunk *chunk, const struct record *r,
          uint64_t birth, uint8_t *buf)
{
  const unsigned slot = slot_in_chunk (chunk, r);

  summary_slot_pack (chunk->uuid, slot_offset (chunk, slot), r, birth,
                     segment_sectors (chunk), buf + slot * SUMMARY_SLOT_BYTES);
}

/* Write the slots of records that pool.db has and the chunk does not describe.
 * Their birth is not known.  The present fold serves instead, because they are
 * the last records in these sectors.
 */
static int
fill_in (struct meta_conn *c, const struct summary_chunk *chunk, uint64_t birth,
         uint8_t *buf, uint64_t *nr_bad)
{
  const unsigned per_chunk = summary_chunk_slots (chunk->sector_bytes);
  const uint64_t nr_sectors = segment_sectors (chunk);
  const uint64_t first = chunk->addr / nr_sectors * nr_sectors;
  struct blob row CLEANUP_BLOB = { NULL };
  struct record r;
  uint64_t group;
  size_t off;
  int n;

  *nr_bad = 0;
  for (group = first / RECORD_GROUP_SECTORS;
       group * RECORD_GROUP_SECTORS < first + nr_sectors; ++group) {
    row.len = 0;
    if (meta_record_get (c, group, &row) == -1)
      return -1;
    off = 0;
    while ((n = record_next (group, row.p, row.len, &off, &r)) != 0) {
      if (n == -1)
        return -1;
      if (r.slot / per_chunk != chunk->index ||
          summary_describes (chunk, buf, &r))
        continue;
      put_slot (chunk, &r, birth, buf);
      ++*nr_bad;
    }
  }
  return 0;
}

/* Find the chunk's address in pool.db: 1, 0 if there is no such chunk, -1.
 * '*in_use': pool.db has records with slots in it.
 */
static int
find_chunk (struct meta_conn *c, uint64_t segment, unsigned index,
            uint32_t sector_bytes, uint64_t *addr, bool *in_use)
{
  struct blob b CLEANUP_BLOB = { NULL };
  struct segment_map *map;
  int r = meta_segment_get (c, segment, &b);

  if (r != 1)
    return r;
  map = segment_map_unpack (segment, sector_bytes, b.p, b.len);
  if (map == NULL)
    return -1;
  r = index < map->nr_chunks && map->chunks[index] != SEGMENT_CHUNK_LOST;
  *in_use = r && segment_map_chunk_has_slots (map, index);
  if (r)
    *addr = segment * map->nr_sectors + map->chunks[index];
  segment_map_free (map);
  return r;
}

/* Read a chunk that pool.db lists, and correct it in 'buf'; if its header is
 * right, only with 'all'.  Returns 1 if it was wrong, 0, -1.
 */
static int
read_known (struct meta_conn *c, struct store *store,
            const struct summary_chunk *chunk, uint64_t birth, bool all,
            uint8_t *buf, uint64_t *nr_bad)
{
  const unsigned len = summary_chunk_bytes (chunk->sector_bytes);
  uint8_t header[SUMMARY_SLOT_BYTES];
  bool bad = false;

  *nr_bad = 0;
  pack_header (chunk, header);
  if (store_read (store, chunk->addr, buf, len) == -1) {
    memset (buf, 0, len);
    bad = true;
  }
  else if (memcmp (buf, header, sizeof header) != 0) {
    nbdedup_fail (EIO,
                  "records: the summary at sector %" PRIu64 " is "
                  "damaged",
                  chunk->addr);
    bad = true;
  }
  memcpy (buf, header, sizeof header);
  if ((bad || all) && fill_in (c, chunk, birth, buf, nr_bad) == -1)
    return -1;
  return bad || *nr_bad > 0;
}

int
summary_repair (struct meta_conn *c, struct store *store,
                const struct meta_state *state, uint64_t segment,
                unsigned index, uint64_t *nr_bad)
{
  struct summary_chunk chunk = {
    .uuid = state->uuid,
    .sector_bytes = state->sector_bytes,
    .index = index,
  };
  uint8_t buf[SUMMARY_CHUNK_MAX];
  bool in_use;
  int r;

  *nr_bad = 0;
  r = find_chunk (c, segment, index, state->sector_bytes, &chunk.addr, &in_use);
  if (r != 1)
    return r;
  r = read_known (c, store, &chunk, state->fold, true, buf, nr_bad);
  if (r != 1)
    return r;
  return store_write (store, chunk.addr, buf,
                      summary_chunk_bytes (state->sector_bytes));
}

/*----------------------------------------------------------------------
 * Step 1 of a fold
 */

static int
compare_by_chunk (const void *a, const void *b)
{
  const struct ddt_change *const *x = a, *const *y = b;

  if ((*x)->chunk_addr != (*y)->chunk_addr)
    return (*x)->chunk_addr < (*y)->chunk_addr ? -1 : 1;
  return (*x)->record->slot < (*y)->record->slot ? -1 : 1;
}

/* As in a transaction: what cannot be read may be repaired. */
static int
fail_reading (struct fold *f)
{
  if (errno == EIO && !meta_has_write_failed (meta_writer (f->parts->meta)))
    fold_set_inconsistent (f);
  return -1;
}

/* Begin a chunk in which pool.db has no record.  While records are lost it may
 * have some whose only description is their slots: keep those.
 */
static void
start_chunk (const struct fold *f, const struct summary_chunk *chunk,
             uint8_t *buf)
{
  const unsigned len = summary_chunk_bytes (chunk->sector_bytes);
  uint8_t header[SUMMARY_SLOT_BYTES];

  pack_header (chunk, header);
  if (f->base.features_compat & FEATURE_COMPAT_RECORDS_LOST &&
      store_read (f->parts->store, chunk->addr, buf, len) == 0 &&
      memcmp (buf, header, sizeof header) == 0)
    return;
  memset (buf, 0, len);
  memcpy (buf, header, sizeof header);
}

/* Write the slots of 'nr' records of one chunk.  The function reads the chunk
 * first, and writes its other slots back with the same bytes, so a torn write
 * cannot harm them.
 */
static int
write_chunk (struct fold *f, struct ddt_change *const *changes, size_t nr,
             bool *logged)
{
  struct meta_conn *c = meta_writer (f->parts->meta);
  const unsigned len = summary_chunk_bytes (f->sector_bytes);
  struct summary_chunk chunk = {
    .uuid = f->state.uuid,
    .sector_bytes = f->sector_bytes,
    .addr = changes[0]->chunk_addr,
    .index = changes[0]->record->slot / summary_chunk_slots (f->sector_bytes),
  };
  uint8_t buf[SUMMARY_CHUNK_MAX];
  uint64_t addr = 0, nr_bad;
  bool in_use = false;
  size_t i;
  int r;

  assert (nr > 0 && changes[0]->record != NULL);
  r = find_chunk (c, chunk.addr / f->segment_sectors, chunk.index,
                  f->sector_bytes, &addr, &in_use);
  if (r == -1)
    return fail_reading (f);
  /* A chunk that the allocator took since the last fold has only these
   * records.  The last fold has stored its place already if the allocator took
   * it before that fold wrote the segment's row.
   */
  if (!in_use || addr != chunk.addr)
    start_chunk (f, &chunk, buf);
  else {
    r = read_known (c, f->parts->store, &chunk, f->base.fold + 1, false, buf,
                    &nr_bad);
    if (r == -1)
      return fail_reading (f);
    if (r == 1 && !*logged) {
      *logged = true;
      nbdedup_log (NBDEDUP_LOG_WARNING,
                   "%s: the fold writes this summary "
                   "again from pool.db, which has all of its data; run nbdedup "
                   "scrub to look for more damage",
                   nbdedup_error ());
    }
  }
  for (i = 0; i < nr; ++i)
    put_slot (&chunk, changes[i]->record, f->base.fold + 1, buf);
  return store_write (f->parts->store, chunk.addr, buf, len);
}

int
fold_write_summaries (struct fold *f)
{
  CLEANUP_FREE struct ddt_change *moved = NULL;
  struct ddt_change **new;
  bool logged = false;
  size_t nr = 0, nr_moved, i, j;
  int r = 0;

  /* The order of the steps in fold.h. */
  assert (f->inserted.nr == 0 && f->nr_gone == 0);
  if (fold_moves_new (f, &moved, &nr_moved) == -1)
    return -1;
  new = malloc ((f->nr_changes + nr_moved + 1) * sizeof *new);
  if (new == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a fold");
  for (i = 0; i < nr_moved; ++i)
    new[nr++] = &moved[i];
  for (i = 0; i < f->nr_changes; ++i)
    if (f->changes[i].record)
      new[nr++] = &f->changes[i];
  assert (nr <= f->nr_changes + nr_moved);
  qsort (new, nr, sizeof *new, compare_by_chunk);
  for (i = 0; i < nr && r == 0; i = j) {
    for (j = i; j < nr && new[j]->chunk_addr == new[i]->chunk_addr; ++j)
      ;
    r = write_chunk (f, new + i, j - i, &logged);
  }
  free (new);
  return r;
}
